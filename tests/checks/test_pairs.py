"""Checks of the ways between nodes: each fires on its fault and stays quiet on what looks like it."""

from dataclasses import replace

import pytest
from ddp_doctor.facts import (
    Address,
    Env,
    Interface,
    Network,
    OpenedPort,
    Pair,
    Pairs,
    PortTry,
    RdmaTry,
    Reason,
    Resolved,
    Store,
)
from ddp_doctor.model import Outcome
from ddp_doctor.policy import Policy
from judging import judged

SEVERAL = Policy(nnodes=4)


def pair(peer="n2", outcome="open", ports=(40001, 40002), **more):
    tries = tuple(PortTry(port, outcome, "10.0.0.2", None) for port in ports)
    good = {
        "name": Resolved(peer, ("10.0.0.2",)),
        "addresses": ("10.0.0.2",),
        "ip": "10.0.0.2",
        "interface": "eth0",
        "mtu_bytes": 1500,
        "peer_mtu_bytes": 1500,
        "path_mtu_bytes": 1500,
        "path_mtu_known": True,
        "latency_min_s": 20e-6,
        "latency_median_s": 25e-6,
        "sent_gbit_s": 9.4,
        "link_gbit_s": 10.0,
        "back": "open",
    }
    return Pair(peer, peer, tries=tries, **{**good, **more})


def pairs(*peers, **more):
    usual = {"usual_gbit_s": 9.4, "usual_latency_s": 20e-6}
    return Pairs(peers=peers or (pair("n2"), pair("n3"), pair("n4")), **{**usual, **more})


ETH0 = Network(interfaces=(Interface("eth0", 2, "physical", (Address("10.0.0.1", 24, "ipv4", "global"),), 1500, 10000, "up", True, True),
                           Interface("eth1", 3, "physical", (Address("10.1.0.1", 24, "ipv4", "global"),), 1500, 1000, "up", True, True)))  # fmt: skip


def verdicts(name, section, policy=SEVERAL):
    return judged(f"pairs/{name}", policy, pairs=section, network=ETH0, env=Env(variables=()))


def failed(name, section):
    return [(v.subject, v.message) for v in verdicts(name, section) if v.outcome is Outcome.FAILED]


CHECKS = (
    "ports-blocked peer-name-misleads peer-name-unresolved long-packets-vanish path-mtu-smaller "
    "slower-than-other-pairs slower-than-link farther-than-other-pairs"
).split()


@pytest.mark.parametrize("name", CHECKS)
def test_healthy_ways_pass_and_name_no_peer(name):
    (verdict,) = verdicts(name, pairs())
    assert verdict.outcome is Outcome.PASSED
    assert verdict.measured.startswith("3 peers: ")
    assert not {"n2", "n3", "n4"} & set(verdict.measured.split())


@pytest.mark.parametrize("name", CHECKS)
def test_a_job_of_one_node_has_no_ways(name):
    (verdict,) = verdicts(name, pairs(), Policy(nnodes=1))
    assert verdict.outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        ("refused", "resets"),
        ("rejected", "rejects"),
        ("filtered", "drops"),
        ("down", "no machine"),
        ("unroutable", "no route"),
        ("prohibited", "this node itself"),
        ("wrong-answer", "something else"),
        ("unresolved", "does not resolve"),
    ],
)
def test_what_an_attempt_met_is_told_apart(outcome, word):
    ((subject, message),) = failed("ports-blocked", pairs(pair("n2", outcome), pair("n3")))
    assert subject == "to n2"
    assert word in message


def test_some_ports_and_the_way_back_are_said():
    half = replace(pair("n2"), tries=(PortTry(1, "open"), PortTry(2, "filtered")), back="filtered")
    ((_, message),) = failed("ports-blocked", pairs(half, pair("n3")))
    assert "some ports" in message
    assert "neither does the way back work" in message


def test_a_node_that_reaches_nobody_is_one_finding():
    blocked = [pair(f"n{number}", "filtered", back="filtered") for number in range(2, 6)]
    ((subject, _),) = failed("ports-blocked", pairs(*blocked))
    assert subject == "all 4 peers"


def test_attempts_that_were_not_made_prove_nothing():
    gone = Pair("n2", "n2", unread={"tries": Reason("unreachable", "n2 does not answer")})
    late = pair("n3", "deadline")
    found = verdicts("ports-blocked", pairs(gone, late))
    assert [v.outcome for v in found] == [Outcome.SKIPPED, Outcome.SKIPPED]


@pytest.mark.parametrize(
    ("addresses", "fires"),
    [(("10.0.0.2",), False), (("127.0.1.1",), True), (("10.9.9.9",), True), (("10.0.0.2", "10.9.9.9"), True)],
)
def test_a_name_that_leads_elsewhere(addresses, fires):
    there = pair("n2", name=Resolved("n2", addresses))
    assert bool(failed("peer-name-misleads", pairs(there))) is fires
    assert failed("peer-name-unresolved", pairs(there)) == []


def test_a_name_that_is_not_known():
    there = pair("n2", name=Resolved("n2", (), "no such name"))
    assert [subject for subject, _ in failed("peer-name-unresolved", pairs(there))] == ["to n2"]
    assert failed("peer-name-misleads", pairs(there)) == []


@pytest.mark.parametrize(
    ("path", "known", "ends", "check"),
    [
        (9000, True, (9000, 9000), None),
        (1500, True, (9000, 1500), None),  # the peer's own interface is smaller: another check's matter
        (1500, False, (9000, 9000), "long-packets-vanish"),
        (1450, True, (1500, 1500), "path-mtu-smaller"),
    ],
)
def test_packets_as_long_as_both_ends_allow(path, known, ends, check):
    way = pair("n2", path_mtu_bytes=path, path_mtu_known=known, mtu_bytes=ends[0], peer_mtu_bytes=ends[1])
    fired = {name for name in ("long-packets-vanish", "path-mtu-smaller") if failed(name, pairs(way))}
    assert fired == ({check} if check else set())


@pytest.mark.parametrize(("gbit_s", "fires"), [(9.4, False), (6.0, False), (0.094, True)])
def test_one_slow_way_among_fast_ones(gbit_s, fires):
    found = failed("slower-than-other-pairs", pairs(pair("n2", sent_gbit_s=gbit_s), pair("n3")))
    assert bool(found) is fires


def test_all_equally_slow_is_the_link_not_a_node():
    slow = [pair(f"n{number}", sent_gbit_s=0.94) for number in (2, 3, 4)]
    section = pairs(*slow, usual_gbit_s=0.94)
    assert failed("slower-than-other-pairs", section) == []
    assert failed("slower-than-link", section) != []


def test_one_stream_does_not_fill_a_fast_link():
    fast = pair("n2", sent_gbit_s=20.0, link_gbit_s=100.0)
    assert failed("slower-than-link", pairs(fast, usual_gbit_s=20.0)) == []


@pytest.mark.parametrize(("latency_s", "fires"), [(20e-6, False), (60e-6, False), (3e-3, True)])
def test_a_peer_in_another_zone(latency_s, fires):
    found = failed("farther-than-other-pairs", pairs(pair("n2", latency_min_s=latency_s), pair("n3")))
    assert bool(found) is fires


@pytest.mark.parametrize(("interface", "fires"), [("eth0", False), ("wlan0", True)])
def test_packets_that_leave_by_another_interface(interface, fires):
    assert bool(failed("route-by-other-interface", pairs(pair("n2", interface=interface), pair("n3")))) is fires


@pytest.mark.parametrize(("outcome", "fires"), [("opened", False), ("in-use", True), ("prohibited", True)])
def test_the_port_of_the_master(outcome, fires):
    section = pairs(opened=OpenedPort(29500, outcome, "EADDRINUSE" if fires else None))
    assert bool(failed("master-port-not-opened", section)) is fires


@pytest.mark.parametrize(("outcome", "fires"), [("open", False), ("filtered", True), ("refused", True)])
def test_the_way_to_the_master(outcome, fires):
    section = pairs(to_master=pair("n1", outcome, (29500,)))
    assert bool(failed("master-port-closed", section)) is fires


@pytest.mark.parametrize(
    ("outcome", "fires"), [("served", False), ("met", False), ("failed", True), ("timed-out", True)]
)
def test_a_meeting_in_torchs_store(outcome, fires):
    section = pairs(rendezvous=Store("n1", 29500, outcome, "Connection reset by peer" if fires else None))
    assert bool(failed("rendezvous-failed", section)) is fires


def test_a_meeting_that_was_not_asked_for_is_no_pass():
    section = pairs(unread={"rendezvous": Reason("not-asked", "with --profile deep")})
    (verdict,) = verdicts("rendezvous-failed", section)
    assert verdict.outcome is Outcome.SKIPPED


# --------------------------------------------------------------------------- RDMA


def over(*tries, **more):
    return pairs(rdma=tries, usual_rdma_gbit_s=40.0, **more)


def rdma(outcome="met", gbit_s=40.0, peer="n2", detail=None):
    return RdmaTry(peer, "mlx5_0:1", "mlx5_0:1", outcome, detail, gbit_s if outcome == "met" else None, True, 3)


@pytest.mark.parametrize("name", ["rdma-fails", "rdma-slower-than-others"])
def test_adapters_that_meet_pass_and_name_no_peer(name):
    (verdict,) = verdicts(name, over(rdma(), rdma(gbit_s=38.0)))
    assert verdict.outcome is Outcome.PASSED
    assert "n2" not in verdict.measured


@pytest.mark.parametrize(
    ("outcome", "detail"), [("failed", "transport retry counter exceeded (12)"), ("timed-out", "no end within 12 s")]
)
def test_a_dead_way_over_rdma(outcome, detail):
    found = [
        v
        for v in verdicts("rdma-fails", over(rdma(outcome, detail=detail), rdma(peer="n3")))
        if v.outcome is Outcome.FAILED
    ]
    (verdict,) = found
    assert verdict.subject == "mlx5_0:1 to n2"
    assert detail in verdict.measured
    assert "GID index 3" in verdict.measured
    assert any("4791" in step.text for remedy in verdict.fixes for step in remedy.steps)


def test_what_could_not_be_tried_is_no_pass_and_no_fault():
    (verdict,) = verdicts("rdma-fails", over(rdma("unable", detail="ibv_rc_pingpong is not installed here")))
    assert verdict.outcome is Outcome.SKIPPED
    assert "not installed" in verdict.reason.text


@pytest.mark.parametrize(("gbit_s", "fires"), [(40.0, False), (30.0, False), (4.0, True)])
def test_a_slow_way_over_rdma(gbit_s, fires):
    assert bool(failed("rdma-slower-than-others", over(rdma(gbit_s=gbit_s), rdma(peer="n3")))) is fires


def test_without_rdma_nothing_is_said():
    section = pairs(unread={"rdma": Reason("not-applicable", "no RDMA port that NCCL would use")})
    assert {v.outcome for name in ("rdma-fails", "rdma-slower-than-others") for v in verdicts(name, section)} == {
        Outcome.SKIPPED
    }

"""Attempts against real ports, firewalls, routes and dead hosts of a lab."""

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import reach
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable

PORT = 29500
ROUTES = ("prohibit 10.99.1.0/24", "blackhole 10.99.2.0/24", "unreachable 10.99.3.0/24", "10.99.4.0/24 via 10.77.0.2")
TARGETS = {
    ("b", PORT): ("connected", None, "REACHABLE"),
    ("b", 29501): ("refused", "ECONNREFUSED", "REACHABLE"),
    ("b", 29502): ("timed-out", "ETIMEDOUT", "REACHABLE"),
    ("b", 29503): ("host-unreachable", "EHOSTUNREACH", "REACHABLE"),
    ("b", 29504): ("refused", "ECONNREFUSED", "REACHABLE"),
    ("b", 29505): ("refused", "ECONNREFUSED", "REACHABLE"),
    ("dead", PORT): ("host-unreachable", "EHOSTUNREACH", "FAILED"),
    ("10.88.0.1", PORT): ("net-unreachable", "ENETUNREACH", ""),
    ("10.99.1.1", PORT): ("prohibited", "EACCES", ""),
    ("10.99.2.1", PORT): ("blackhole", "EINVAL", ""),
    ("10.99.3.1", PORT): ("host-unreachable", "EHOSTUNREACH", ""),
    ("nobody", PORT): ("unresolved", "Name or service not known", None),
}
"""Target -> outcome, errno, neighbour. 29502 is dropped, 29503 rejected as firewalld does, 29504 by nft's default."""

FIREWALL = (
    "tcp dport 29502 drop; tcp dport 29503 reject with icmpx type admin-prohibited; tcp dport 29504 reject; "
    "tcp dport 29505 reject with tcp reset"
)


@pytest.fixture(scope="module")
def connections(lab):
    """What host a learns of every target, all at once."""
    a, b = lab.add("a"), lab.add("b")
    lab.name("dead", "10.77.0.200")
    b.listen(PORT)
    b.nft(FIREWALL)
    for route in ROUTES:
        a.ip(f"route add {route}")
    facts = a.collect("reach", master_addr="b", master_port=PORT, ports=list(TARGETS))
    return {(c["host"], c["port"]): c for c in facts["reach"]["connections"]}


@pytest.mark.lab
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t[0]}-{t[1]}")
def test_outcomes_are_told_apart_by_errno_time_and_neighbour(connections, target):
    found = connections[target]
    assert (found["outcome"], found.get("errno"), found.get("neighbour")) == TARGETS[target]


@pytest.mark.lab
def test_a_dead_host_takes_the_kernel_three_seconds_and_a_reject_none(connections):
    dead, rejected, dropped = (connections[t]["duration_s"] for t in (("dead", PORT), ("b", 29503), ("b", 29502)))
    assert rejected < 2.5 < dead < reach.CONNECT_S <= dropped


@pytest.mark.lab
def test_what_the_deadline_cuts_short_tells_nothing_of_the_port(lab, connections):
    facts = lab.hosts["a"].collect("reach", deadline_s=2, ports=[("b", PORT), ("b", 29502)])
    assert [c["outcome"] for c in facts["reach"]["connections"]] == ["connected", "deadline"]


@pytest.mark.lab
def test_the_master_does_not_try_itself_and_a_gateway_has_no_neighbour_entry_of_the_peer(lab, connections):
    b, a = lab.hosts["b"], lab.hosts["a"]
    assert b.collect("reach", master_addr="b", master_port=PORT)["reach"]["connections"] == []
    assert b.collect("reach", master_addr="b", node_rank=0)["reasons"]["reach"]["text"] == "this node is the master"
    own = b.collect("reach", ports=[("b", PORT)])["reach"]["connections"][0]
    assert (own["outcome"], own["local"]) == ("connected", True)
    far = a.collect("reach", env={"MASTER_ADDR": "10.99.4.1"})["reach"]["connections"][0]
    assert (far["port"], far["neighbour"]) == (29500, "")


def test_nothing_is_sent_by_quick_and_nothing_asked_without_a_port():
    assert reach.wanted(Ask(profile="quick")).kind == "not-asked"
    with pytest.raises(Unreadable, match="no port is named"):
        reach.read(Recording({"env ": {"value": {}}}, {}), Ask())


def test_a_named_port_on_loopback_is_local_and_refused_without_a_listener():
    (found,) = reach.read(Host(), Ask(ports=(("127.0.0.1", 1),))).connections
    assert (found.outcome, found.errno, found.ip) == ("refused", "ECONNREFUSED", "127.0.0.1")


def test_a_recording_is_judged_again_without_sending():
    answer = {"host": "gpu1", "port": 29500, "ip": "10.0.0.1", "outcome": "refused", "errno": "ECONNREFUSED"}
    host = Recording({"env ": {"value": {}}, "ask reach": {"value": [answer]}}, {})
    (found,) = reach.read(host, Ask(master_addr="gpu1", master_port=29500)).connections
    assert (found.host, found.outcome, found.local) == ("gpu1", "refused", None)

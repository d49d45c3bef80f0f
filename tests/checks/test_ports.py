"""Checks of the master's port and of ports that were asked for."""

import pytest
from ddp_doctor.facts import Connection, Launch, Limits, Network, Reach, Reason, Socket
from judging import judged, outcome, remedy_text

RANGE = (32768, 60999)
PYTHON = Socket("0.0.0.0", 29500, 4242, "python3")
MASTER = Launch(is_master=True, master_addr="10.0.0.1", master_port=29500)
RANK = Launch(rank=0, is_master=True, master_port=29500, sources={"rank": "RANK"})
STEP = Launch(rank=0, is_master=True, master_port=29500, sources={"rank": "SLURM_PROCID"})
WORKER = Launch(is_master=False, master_addr="10.0.0.1", master_port=29500)


def network(*listening):
    return Network(listening=listening, port_range=RANGE)


@pytest.mark.parametrize(
    ("launch", "facts", "taken", "in_use"),
    [
        (MASTER, network(), "passed", "skipped"),
        (MASTER, network(Socket("0.0.0.0", 22)), "passed", "skipped"),
        (MASTER, network(PYTHON), "failed", "skipped"),
        (MASTER, network(Socket("127.0.0.1", 29500)), "failed", "skipped"),
        (STEP, network(PYTHON), "failed", "skipped"),
        (RANK, network(PYTHON), "skipped", "failed"),
        (WORKER, network(PYTHON), "skipped", "skipped"),
        (Launch(master_port=29500), network(PYTHON), "skipped", "skipped"),
        (Launch(is_master=True), network(PYTHON), "skipped", "skipped"),
        (MASTER, Network(unread={"listening": Reason("no-rights", "hidepid")}), "skipped", "skipped"),
    ],
)
def test_the_masters_port_must_be_free_before_the_job_runs(launch, facts, taken, in_use):
    assert outcome("ports/master-port-taken", launch=launch, network=facts) == taken
    assert outcome("ports/master-port-in-use", launch=launch, network=facts) == in_use


def test_the_owner_is_named_and_another_port_is_offered():
    facts = network(PYTHON, Socket("::", 29501))
    (verdict,) = judged("ports/master-port-taken", launch=MASTER, network=facts)
    assert verdict.measured == "pid 4242 (python3) listens on 0.0.0.0 port 29500"
    assert "--master-port 29502" in remedy_text(verdict)
    assert "kill 4242" in remedy_text(verdict)


def test_inside_a_job_the_owner_is_a_note():
    (verdict,) = judged("ports/master-port-in-use", launch=RANK, network=network(PYTHON))
    assert (verdict.severity.value, "own store or torchrun agent" in verdict.message) == ("note", True)


@pytest.mark.parametrize(
    ("port", "lowest", "is_master", "found"),
    [
        (443, 1024, True, "failed"),
        (443, 1, True, "passed"),
        (443, 0, True, "passed"),
        (1024, 1024, True, "passed"),
        (443, 1024, False, "skipped"),
        (443, None, True, "skipped"),
    ],
)
def test_only_root_opens_low_ports(port, lowest, is_master, found):
    launch = Launch(is_master=is_master, master_port=port)
    (verdict,) = judged("ports/master-port-privileged", launch=launch, limits=Limits(lowest_port=lowest))
    assert verdict.outcome.value == found
    assert ("--master-port 29500" in remedy_text(verdict)) is (found == "failed")


def test_a_master_that_is_this_node_needs_no_way_to_it():
    loopback = Launch(is_master=None, master_addr="127.0.0.1", master_port=29500)
    (verdict,) = judged("ports/master-port-unreachable", launch=loopback, reach=Reach(()))
    assert verdict.reason.text == "the master 127.0.0.1 is this node itself"


@pytest.mark.parametrize(
    ("port", "found"), [(29500, "passed"), (32768, "failed"), (50000, "failed"), (61000, "passed")]
)
def test_a_port_that_the_kernel_gives_away_is_noted(port, found):
    launch = Launch(is_master=True, master_port=port)
    assert outcome("ports/master-port-in-ephemeral-range", launch=launch, network=network()) == found


def test_where_every_port_is_given_away_a_free_one_or_its_reservation_is_offered():
    wide = Network(listening=(PYTHON, Socket("::", 29501)), port_range=(1024, 65535))
    (taken,) = judged("ports/master-port-taken", launch=MASTER, network=wide)
    assert "--master-port 29502" in remedy_text(taken)
    (given,) = judged("ports/master-port-in-ephemeral-range", launch=MASTER, network=wide)
    assert "--master-port" not in remedy_text(given)
    assert "ip_local_reserved_ports=29500" in remedy_text(given)


def attempt(outcome, errno=None, duration_s=None, neighbour=None, host="10.0.0.1", port=29500):
    return Connection(host, port, "10.0.0.1", outcome, errno, duration_s, neighbour)


OUTCOMES = [
    (attempt("connected"), "passed", "", "connected"),
    (
        attempt("refused", "ECONNREFUSED", 0.001, "REACHABLE"),
        "passed",
        "",
        "nothing listens (a firewall that answers",
    ),
    (
        attempt("timed-out", "ETIMEDOUT", 4.0, "REACHABLE"),
        "failed",
        "drops the packets",
        "after 4 s, neighbour REACHABLE",
    ),
    (
        attempt("host-unreachable", "EHOSTUNREACH", 0.001, "REACHABLE"),
        "failed",
        "a firewall rejects",
        "EHOSTUNREACH after",
    ),
    (attempt("host-unreachable", "EHOSTUNREACH", 0.02, ""), "failed", "a firewall rejects", "EHOSTUNREACH after"),
    (attempt("host-unreachable", "EHOSTUNREACH", 3.1, "FAILED"), "failed", "does not answer", "neighbour FAILED"),
    (attempt("host-unreachable", "EHOSTUNREACH", 3.1, ""), "failed", "no machine on the way", "after 3.1 s"),
    (attempt("net-unreachable", "ENETUNREACH", 0.0), "failed", "no route", "ENETUNREACH"),
    (attempt("prohibited", "EACCES", 0.0), "failed", "prohibit", "EACCES"),
    (attempt("blackhole", "EINVAL", 0.0), "failed", "blackhole", "EINVAL"),
    (attempt("reset", "ECONNRESET", 0.1), "failed", "was reset", "ECONNRESET"),
    (attempt("error", "EADDRNOTAVAIL", 0.0), "failed", "EADDRNOTAVAIL", "EADDRNOTAVAIL"),
    (attempt("unresolved", "Name or service not known", host="node0"), "skipped", "", ""),
]


@pytest.mark.parametrize(("seen", "found", "meaning", "measured"), OUTCOMES)
def test_what_stands_in_the_way_is_told_apart(seen, found, meaning, measured):
    launch = Launch(is_master=False, master_addr=seen.host, master_port=29500)
    (verdict,) = judged("ports/master-port-unreachable", launch=launch, reach=Reach((seen,)))
    assert verdict.outcome.value == found
    assert meaning in verdict.message
    assert measured in verdict.measured
    assert bool(verdict.fixes) is (found == "failed")


def test_the_masters_port_and_the_others_are_judged_apart():
    other = attempt("timed-out", "ETIMEDOUT", 4.0, host="storage", port=2049)
    reach = Reach((attempt("connected"), other))
    (master,) = judged("ports/master-port-unreachable", launch=WORKER, reach=reach)
    (asked,) = judged("ports/port-unreachable", launch=WORKER, reach=reach)
    assert (master.subject, master.outcome.value) == ("10.0.0.1 port 29500", "passed")
    assert (asked.subject, asked.outcome.value) == ("storage port 2049", "failed")


@pytest.mark.parametrize(
    ("seen", "found", "meaning", "remedy"),
    [
        (attempt("refused", "ECONNREFUSED", host="storage", port=2049), "failed", "nothing listens", "port 2049"),
        (attempt("refused", "ECONNREFUSED", host="gpu02", port=29500), "passed", "", ""),
        (attempt("unresolved", "Name or service not known", host="nosuch"), "failed", "not resolve", "/etc/hosts"),
        (attempt("deadline", host="storage", port=2049), "skipped", "", ""),
    ],
)
def test_who_names_a_port_needs_it_unless_it_is_the_masters_which_may_be_silent(seen, found, meaning, remedy):
    (verdict,) = judged("ports/port-unreachable", launch=WORKER, reach=Reach((seen,)))
    assert verdict.outcome.value == found
    assert meaning in verdict.message
    assert remedy in remedy_text(verdict)


@pytest.mark.parametrize("id", ["ports/port-unreachable", "ports/master-port-unreachable"])
def test_an_attempt_that_the_deadline_cut_short_is_not_judged(id):
    seen = attempt("deadline", port=29500 if "master" in id else 2049)
    (verdict,) = judged(id, launch=WORKER, reach=Reach((seen,)))
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "deadline")


def test_without_a_named_port_torchruns_default_is_the_masters():
    launch = Launch(is_master=False, master_addr="10.0.0.1")
    reach = Reach((attempt("timed-out"),))
    assert outcome("ports/master-port-unreachable", launch=launch, reach=reach) == "failed"
    assert outcome("ports/port-unreachable", launch=launch, reach=reach) == "skipped"

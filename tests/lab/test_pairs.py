"""Ways between hosts of a lab, tried by the real program on each: firewalls, MTUs, a slow link, names, a host that dies."""

import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager

import pytest
from ddp_doctor.cluster.pairs import Master, Node, run
from ddp_doctor.facts import Env, Network, Reason
from ddp_doctor.node import MARK
from ddp_doctor.policy import Policy
from judging import judged, own_checks
from lab.hosts import Lab, Unable

pytestmark = pytest.mark.lab
PORT = 29500


class Pipes:
    """A session with the program on each host, through pipes instead of ssh."""

    def __init__(self, hosts):
        self.programs = {}
        self.on_word = {}
        for host in hosts:
            argv = host.argv([sys.executable, "-m", "ddp_doctor.node"])
            self.programs[host.name] = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, requests, limit_s):
        answers = {}
        threads = [threading.Thread(target=self._one, args=(n, r, answers)) for n, r in requests.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def _one(self, name, request, answers):
        self.on_word.get((name, request["do"]), lambda: None)()
        program = self.programs[name]
        try:
            program.stdin.write(json.dumps({**request, "id": 1}) + "\n")
            program.stdin.flush()
        except BrokenPipeError:
            pass
        for line in program.stdout:
            answer = json.loads(line[len(MARK) :]) if line.startswith(MARK) else {}
            if answer.get("id") == 1:
                answers[name] = answer["value"] if "value" in answer else Reason(answer["failure"], answer["text"])
                return
        answers[name] = Reason("unreachable", "the connection ended")

    def close(self):
        for program in self.programs.values():
            program.communicate()


@pytest.fixture
def hosts():
    """A function that builds hosts of a lab of its own."""
    try:
        made = Lab()
    except Unable as error:
        pytest.skip(f"lab: {error}")
    with made:
        yield lambda *names: [made.add(name) for name in names]


@contextmanager
def session(hosts):
    with ExitStack() as stack:
        pipes = Pipes(hosts)
        stack.callback(pipes.close)
        yield pipes


def tried(hosts, master=None, on_word=None, **more):
    """Each host's section, by the names that the lab gives."""
    with session(hosts) as pipes:
        pipes.on_word.update(on_word or {})
        return run(pipes, [Node(host.name) for host in hosts], master, **more)


def faults(section):
    """Check -> (subject, message) of what fails in it."""
    checks = [id for id in own_checks().checks if id.startswith("pairs/")]
    found = {id[6:]: judged(id, Policy(nnodes=3), pairs=section, network=Network(), env=Env()) for id in checks}
    failed = {id: [(v.subject, v.message) for v in vs if v.outcome.value == "failed"] for id, vs in found.items()}
    return {id: told for id, told in failed.items() if told}


def to(section, peer):
    return next(pair for pair in section.peers if pair.peer == peer)


def outcomes(pair):
    return {each.outcome for each in pair.tries}


def test_healthy_hosts(hosts):
    found = tried(hosts("h1", "h2", "h3"), Master("h1", "h1", PORT))
    assert {name: faults(section) for name, section in found.items()} == {"h1": {}, "h2": {}, "h3": {}}
    pair = to(found["h2"], "h1")
    assert (outcomes(pair), pair.back, pair.interface, pair.source) == ({"open"}, "open", "eth0", "10.77.0.2")
    assert (pair.path_mtu_bytes, pair.peer_mtu_bytes, pair.path_mtu_known) == (1500, 1500, True)
    assert 0 < pair.latency_min_s <= pair.latency_median_s
    assert pair.sent_gbit_s > 0.1
    assert found["h1"].opened.outcome == "opened"
    assert outcomes(found["h3"].to_master) == {"open"}


HIGH = "tcp flags & (syn|ack) == syn tcp dport 32768-60999"


@pytest.mark.parametrize(
    ("rule", "outcome", "words"),
    [
        (f"{HIGH} drop", "filtered", "drops"),
        (f"{HIGH} reject", "rejected", "rejects"),
        (f"{HIGH} reject with icmp type admin-prohibited", "rejected", "rejects"),
        (f"{HIGH} reject with icmp type host-unreachable", "rejected", "rejects"),
        (f"{HIGH} reject with tcp reset", "refused", "resets"),
    ],
)
def test_high_ports_are_closed_while_the_masters_port_is_open(hosts, rule, outcome, words):
    a, b = hosts("a", "b")
    b.nft(rule)
    found = tried([a, b], Master("b", "b", PORT))
    assert outcomes(to(found["a"], "b")) == {outcome}
    assert outcomes(found["a"].to_master) == {"open"}
    ((subject, message),) = faults(found["a"])["ports-blocked"]
    assert subject == "to b"
    assert words in message
    assert message.endswith("the way back is open")
    assert faults(found["b"]) == {}
    assert to(found["a"], "b").unread["sent_gbit_s"].text == "no port of the peer was reached"


def test_the_masters_port_is_closed(hosts):
    a, b = hosts("a", "b")
    b.nft(f"tcp dport {PORT} drop")
    found = tried([a, b], Master("b", b.address, PORT))
    assert list(faults(found["a"])) == ["master-port-closed"]
    assert "drops" in faults(found["a"])["master-port-closed"][0][1]


def test_the_masters_port_is_in_use(hosts):
    a, b = hosts("a", "b")
    b.listen(PORT)
    found = tried([a, b], Master("b", "b", PORT))
    assert faults(found["b"]) == {"master-port-not-opened": [(f"port {PORT}", "the master cannot open its port")]}
    assert faults(found["a"]) == {}
    assert outcomes(found["a"].to_master) == {"open"}


def test_udp_alone_is_blocked_which_says_nothing(hosts):
    a, b = hosts("a", "b")
    b.nft("meta l4proto udp drop")
    found = tried([a, b])
    assert faults(found["a"]) == {}
    assert "UDP" in to(found["a"], "b").unread["path_mtu_bytes"].text


def test_jumbo_frames_that_the_switch_drops(hosts):
    a, b, c = hosts("a", "b", "c")
    for host in (a, b):
        host.ip("link set eth0 mtu 9000")
    found = tried([a, b, c])
    assert (to(found["a"], "b").path_mtu_bytes, to(found["a"], "b").path_mtu_known) == (1500, False)
    assert [subject for subject, _ in faults(found["a"])["long-packets-vanish"]] == ["to b"]
    assert "long-packets-vanish" not in faults(found["c"])


def test_a_router_that_says_how_long_packets_may_be(hosts):
    a, b = hosts("a", "b")
    a.ip(f"route add {b.address} dev eth0 mtu 1400")
    found = tried([a, b])
    assert (to(found["a"], "b").path_mtu_bytes, to(found["a"], "b").path_mtu_known) == (1400, True)
    assert list(faults(found["a"])) == ["path-mtu-smaller"]


def test_one_slow_link(hosts):
    a, b, c = hosts("a", "b", "c")
    b.run("tc qdisc add dev eth0 root tbf rate 10mbit burst 16kb latency 50ms".split())
    found = tried([a, b, c])
    assert to(found["b"], "a").sent_gbit_s == pytest.approx(0.01, rel=0.5)
    assert [subject for subject, _ in faults(found["b"])["slower-than-other-pairs"]] == ["to c", "to a"]
    assert faults(found["a"]) == {}


def test_a_name_that_leads_to_this_node_itself(hosts):
    a, b = hosts("a", "b")
    a.etc("hosts", "127.0.1.1 b\n")
    found = tried([a, b], Master("b", b.address, PORT))
    pair = to(found["a"], "b")
    assert (pair.local, outcomes(pair), pair.name.addresses) == (True, {"refused"}, ("127.0.1.1",))
    wrong = faults(found["a"])
    assert "leads to this node itself" in wrong["ports-blocked"][0][1]
    assert list(wrong) == ["peer-name-misleads", "ports-blocked"]


def test_an_address_is_used_where_the_name_is_not_known(hosts):
    a, b = hosts("a", "b")
    a.etc("hosts", "")
    with session([a, b]) as pipes:
        found = run(pipes, [Node("a", a.address), Node("b", b.address)])
    assert outcomes(to(found["a"], "b")) == {"open"}
    assert list(faults(found["a"])) == ["peer-name-unresolved"]


def test_a_host_that_dies_is_named_and_the_others_go_on(hosts):
    a, b, c = hosts("a", "b", "c")
    found = tried([a, b, c], on_word={("c", "reach"): c.close})
    assert outcomes(to(found["a"], "b")) == {"open"}
    assert to(found["a"], "b").sent_gbit_s > 0
    assert "c does not answer" in to(found["a"], "c").unread["tries"].text
    assert faults(found["a"]) == {}
    assert found["c"].peers[0].tries is None


def test_a_host_that_was_dead_before(hosts):
    a, b, c = hosts("a", "b", "c")
    found = tried([a, b, c], on_word={("c", "listen"): c.close})
    assert isinstance(found["c"], Reason)
    assert "c does not answer" in to(found["b"], "c").unread["tries"].text


def test_no_time_is_left(hosts):
    found = tried(hosts("a", "b"), limit_s=1.0)
    assert {name: section.kind for name, section in found.items()} == {"a": "deadline", "b": "deadline"}


def test_ports_are_closed_in_the_end_and_may_be_opened_again(hosts):
    a, b = hosts("a", "b")
    nodes, master = [Node("a"), Node("b")], Master("b", "b", PORT)
    with session([a, b]) as pipes:
        first = run(pipes, nodes, master)
        assert f":{PORT}" not in b.run(["ss", "-Hltn"]).stdout
        second = run(pipes, nodes, master)
    assert {section.opened.outcome for section in (first["b"], second["b"])} == {"opened"}


REACH = """
import json, sys
from ddp_doctor import reaching
print(json.dumps(reaching.reach(json.load(sys.stdin), "key", 12.0)))
"""
PROHIBIT, BLACKHOLE, NOWHERE = "192.0.2.1", "192.0.2.2", "198.51.100.1"


def test_what_attempts_meet(hosts):
    (a, b) = hosts("a", "b")
    a.ip(f"route add prohibit {PROHIBIT}")
    a.ip(f"route add blackhole {BLACKHOLE}")
    b.listen(5000)
    expected = {
        ("10.77.0.99", 1): "down",
        (PROHIBIT, 1): "prohibited",
        (BLACKHOLE, 1): "unroutable",
        (NOWHERE, 1): "unroutable",
        ("nobody", 1): "unresolved",
        (b.address, 1): "refused",
        (b.address, 5000): "wrong-answer",
    }
    targets = json.dumps([{"host": host, "ports": [port]} for host, port in expected])
    answers = json.loads(a.run([sys.executable, "-c", REACH], stdin=targets).stdout)
    assert [answer["tries"][0]["outcome"] for answer in answers] == list(expected.values())


# --------------------------------------------------------------------------- a meeting in torch's store

REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]
needs_torch = pytest.mark.skipif(not REAL, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch")


def met(hosts, *pythons):
    with session(hosts) as pipes:
        nodes = [Node(host.name, python=python) for host, python in zip(hosts, pythons)]
        return run(pipes, nodes, Master(hosts[0].name, hosts[0].name, PORT), throughput=False, rendezvous=True)


@needs_torch
@pytest.mark.parametrize("python", REAL)
def test_nodes_with_torch_meet_in_its_store(hosts, python):
    a, b, c = hosts("a", "b", "c")
    sections = met([a, b, c], python, python, None)
    assert (sections["a"].rendezvous.outcome, sections["b"].rendezvous.outcome) == ("served", "met")
    assert "no torch" in sections["c"].unread["rendezvous"].text
    assert not any("rendezvous-failed" in faults(section) for section in sections.values())
    assert not [
        line for host in (a, b) for line in host.run(["ps", "-ewwo", "args="]).stdout.splitlines() if "MEETING" in line
    ]


@needs_torch
def test_a_port_that_only_torch_cannot_use(hosts):
    """Between the tries and the meeting somebody closes the port."""
    a, b = hosts("a", "b")
    with session([a, b]) as pipes:
        pipes.on_word["b", "join"] = lambda: a.nft(f"tcp dport {PORT} reject with tcp reset")
        nodes = [Node(host.name, python=REAL[0]) for host in (a, b)]
        sections = run(pipes, nodes, Master("a", "a", PORT), throughput=False, rendezvous=True)
    assert sections["b"].rendezvous.outcome == "failed"
    assert faults(sections["b"])["rendezvous-failed"] == [("to a", "torch's store cannot be used from here")]


def test_an_interpreter_that_cannot_serve_is_said_so(hosts):
    a, b = hosts("a", "b")
    sections = met([a, b], "/bin/false", sys.executable)
    assert (sections["a"].rendezvous.outcome, sections["a"].rendezvous.detail) == (
        "failed",
        "torch ended before the store was open",
    )
    assert "a could not open torch's store" in sections["b"].unread["rendezvous"].text

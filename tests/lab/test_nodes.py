"""``run --nodes`` over real ssh: every node side by side, every fault of one named, and nothing left on any."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ddp_doctor.node import MARK

pytestmark = pytest.mark.lab
LIMIT_S = 60
NODE = [sys.executable, "-m", "ddp_doctor", "node"]
QUICK = ("--profile", "quick", "--select", "fleet,memory", "--connect-timeout", "5")


@pytest.fixture(scope="module")
def hosts(lab):
    """A head and three nodes that let it in."""
    made = {name: lab.add(name) for name in ("head", "n1", "n2", "n3")}
    for host in made.values():
        host.sshd()
    made["head"].knows(*made.values())
    return made


def argv(*arguments):
    return [sys.executable, "-m", "ddp_doctor", "run", *QUICK, *arguments]


def run(head, *arguments):
    """(exit status, report) of a run from the head."""
    done = head.run(argv("--json", *arguments), check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def statuses(report):
    return {node["name"]: node["status"] for node in report["nodes"]}


def reason(report, name):
    (node,) = [node for node in report["nodes"] if node["name"] == name]
    return node["reason"]["kind"], node["reason"]["text"]


def processes(host):
    """Command lines of what runs on a host, but for its first process, its sshd and this look."""
    own = ("cat", "ps -e")
    lines = host.run(["ps", "-ewwo", "args="]).stdout.splitlines()
    return [line for line in lines if not line.startswith(own) and "[listener]" not in line]


def left(*hosts):
    """What runs on any of the hosts even after LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while any(processes(host) for host in hosts) and time.monotonic() < end:
        pass
    return [line for host in hosts for line in processes(host)]


def script(host, text):
    """Make a script of this text ``$HOME/bin/doctor`` on a host."""
    path = host.home / "bin" / "doctor"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("way", [(), ("--push",)], ids=["installed", "pushed"])
def test_all_nodes_in_one_report(hosts, way):
    status, report = run(hosts["head"], "--nodes", "n[1-3]", *way)
    assert (status, statuses(report)) == (0, dict.fromkeys(("n1", "n2", "n3"), "examined"))
    for node in report["nodes"]:
        assert node["how"]["via"] == "ssh"
        assert abs(node["how"]["clock_offset_s"]) <= node["how"]["clock_error_s"] < 5
    assert {v["outcome"] for v in report["verdicts"] if v["check"] == "fleet/clocks-apart"} == {"passed"}
    assert left(*hosts.values()) == []


def test_a_pushed_doctor_leaves_nothing_on_the_node(hosts):
    def files():
        found = subprocess.run(
            ["find", str(hosts["n1"].folder), "/tmp", "-xdev", "-newer", str(stamp)], capture_output=True
        )
        return [line for line in found.stdout.decode().splitlines() if "n1/" in line or "ddp_doctor" in line]

    stamp = hosts["head"].folder / "stamp"
    stamp.touch()
    status, report = run(hosts["head"], "--nodes", "n1", "--push")
    assert (status, statuses(report)) == (0, {"n1": "examined"})
    assert [name for name in files() if not name.endswith("sshd.log")] == []


def test_nodes_that_cannot_be_reached_are_named_with_the_reason(lab, hosts):
    locked, changed, silent, rejecting = (lab.add(name) for name in ("locked", "changed", "silent", "rejecting"))
    for host in (locked, changed, rejecting):
        host.sshd()
    (locked.home / ".ssh" / "authorized_keys").write_text("")
    silent.listen(22)
    rejecting.nft("tcp dport 22 reject with tcp reset")
    hosts["head"].knows(*(host for name, host in lab.hosts.items() if name not in ("silent",)))
    known = hosts["head"].home / ".ssh" / "known_hosts"
    lines = known.read_text().splitlines()
    wrong = [line for line in lines if not line.startswith("changed")] + [f"changed {hosts['n1'].host_key()}"]
    known.write_text("\n".join(wrong) + "\n")
    status, report = run(hosts["head"], "--nodes", "n1,locked,changed,silent,rejecting,nowhere")
    assert status == 3
    assert statuses(report) == {
        "n1": "examined",
        **dict.fromkeys(("locked", "changed", "silent", "rejecting", "nowhere"), "unreachable"),
    }
    kinds = {name: reason(report, name)[0] for name in statuses(report) if name != "n1"}
    assert kinds == {
        "locked": "auth-refused",
        "changed": "host-key-changed",
        "silent": "timed-out",
        "rejecting": "refused",
        "nowhere": "unresolved",
    }
    assert report["summary"]["headline"].startswith("Cannot tell: 5 of 6 nodes did not answer")
    hosts["head"].knows(*(host for name, host in lab.hosts.items() if name not in ("silent",)))


COMMANDS = {
    "works": f'exec {" ".join(NODE)}',
    "older": "echo \"Error: No such command 'node'.\" >&2; exit 2",
    "half": f"""echo '{MARK}{{"hello": {{}}}}'; read request; echo '{MARK}{{"id": "ping", "value": 1}}'; printf '{MARK}{{"id": 1, "val'""",
    "dies": f"""echo '{MARK}{{"hello": {{}}}}'; read request; kill -9 $$""",
    "odd": f"""echo '{MARK}{{"hello": {{}}}}'; while read request; do echo '{MARK}{{"id": "ping"}}'; echo '{MARK}{{"id": 1, "value": {{"os": 5}}}}'; done""",
    "hangs": "exec sleep 1000",
    "floods": "exec yes",
}  # fmt: skip
EXPECTED = {
    "older": ("absent", "older than --nodes"),
    "missing": ("absent", "--push"),
    "half": ("unreadable", "half an answer"),
    "dies": ("crashed", "was killed"),
    "odd": ("unreadable", "its facts cannot be read"),
    "hangs": ("timed-out", "no answer within 8 s"),
    "floods": ("unreadable", "prints without end"),
}


def test_whatever_is_called_there_the_other_nodes_are_examined(lab, hosts):
    made = {name: lab.add(name) for name in (*COMMANDS, "missing")}
    for name, host in made.items():
        host.sshd()
        if name in COMMANDS:
            script(host, COMMANDS[name])
    hosts["head"].knows(*(host for name, host in lab.hosts.items() if name != "silent"))
    status, report = run(
        hosts["head"], "--nodes", ",".join(made), "--remote-command", "$HOME/bin/doctor", "--node-timeout", "8"
    )
    assert status == 3
    assert [name for name, status in statuses(report).items() if status == "examined"] == ["works"]
    for name, (kind, words) in EXPECTED.items():
        found = reason(report, name)
        assert (name, found[0]) == (name, kind), found
        assert words in found[1]


@pytest.mark.parametrize("noise", ["echo welcome to the cluster", "printf 'no line break'", "echo DDP-DOCTOR; stty -a"])
def test_a_shell_that_prints_on_standard_output_does_no_harm(hosts, noise):
    profile = hosts["n2"].home / ".bashrc"
    profile.write_text(noise + "\n")
    try:
        status, report = run(hosts["head"], "--nodes", "n[1-2]")
    finally:
        profile.unlink()
    assert (status, set(statuses(report).values())) == (0, {"examined"})


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash", "/bin/csh", "/usr/bin/fish"])
@pytest.mark.parametrize("way", [(), ("--push",)], ids=["installed", "pushed"])
def test_any_login_shell_will_do(hosts, shell, way):
    if not os.access(shell, os.X_OK):
        pytest.skip(f"{shell} is not installed")
    hosts["n3"].shell(shell)
    try:
        status, report = run(hosts["head"], "--nodes", "n3", *way)
    finally:
        hosts["n3"].shell("/bin/bash")
    assert (status, statuses(report)) == (0, {"n3": "examined"})


def test_host_file_exclusion_and_lists(hosts):
    folder = hosts["head"].folder
    (folder / "hosts").write_text("n1 slots=8\nn2:4\n10.77.0.4 n3 n3.cluster\nnowhere\nhead # not this one\n")
    status, _ = run(
        hosts["head"], "--hostfile", str(folder / "hosts"), "--exclude-nodes", "head",
        "--good-nodes", str(folder / "good"), "--bad-nodes", str(folder / "bad"), "--fold-lists",
    )  # fmt: skip
    assert status == 3
    assert ((folder / "good").read_text(), (folder / "bad").read_text()) == ("n[1-3]\n", "nowhere\n")


def started(host, *arguments):
    """A run on the head whose node programs are at work on ``host``."""
    running = subprocess.Popen(hosts_argv(host.lab.hosts["head"], *arguments), stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + LIMIT_S
    while not any("python" in line for line in processes(host)):
        assert running.poll() is None
        assert time.monotonic() < end
    return running


def hosts_argv(head, *arguments):
    return head.argv(argv(*arguments))


@pytest.mark.parametrize("way", [(), ("--push",)], ids=["installed", "pushed"])
def test_ctrl_c_leaves_no_process_on_any_node(hosts, way):
    wanted = ("--profile", "deep", "--sample", "600", "--select", "rates", "--json", "--nodes", "n[1-3]", *way)
    running = started(hosts["n1"], *wanted)
    inner = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    os.kill(int(inner[0]) if inner else running.pid, signal.SIGINT)
    out, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 3
    assert {node["reason"]["kind"] for node in json.loads(out)["nodes"]} == {"interrupted"}
    assert left(*hosts.values()) == []


def test_a_head_that_is_killed_leaves_no_process_on_any_node(hosts):
    running = started(hosts["n1"], "--profile", "deep", "--sample", "600", "--nodes", "n[1-3]")
    hosts["head"].run(["pkill", "-KILL", "-f", "ddp_doctor run"])
    running.communicate(timeout=LIMIT_S)
    assert left(hosts["n1"], hosts["n2"], hosts["n3"]) == []


def test_a_node_that_dies_is_named(lab, hosts):
    victim = lab.add("victim")
    victim.sshd()
    hosts["head"].knows(*(host for name, host in lab.hosts.items() if name != "silent"))
    running = started(victim, "--sample", "600", "--json", "--nodes", "n1,victim", "--node-timeout", "10")
    victim.close()
    out, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 3
    report = json.loads(out)
    assert statuses(report) == {"n1": "examined", "victim": "unreachable"}


def test_facts_of_all_nodes_are_kept_and_judged_later(hosts, tmp_path):
    head, folder = hosts["head"], tmp_path / "facts"
    asked = ["collect", "--nodes", "n[1-2]", "--output", str(folder)]
    done = head.run([sys.executable, "-m", "ddp_doctor", *asked], check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["n1.json", "n2.json"]
    again = head.run([sys.executable, "-m", "ddp_doctor", "run", "--facts", str(folder), "--json"], check=False)
    report = json.loads(again.stdout)
    assert set(statuses(report)) == {"n1", "n2"}
    assert ("pairs/ports-blocked", "passed") in {(v["check"], v["outcome"]) for v in report["verdicts"]}


def test_a_node_without_facts_is_named_and_the_others_are_kept(hosts, tmp_path):
    asked = ["collect", "--profile", "quick", "--nodes", "n1,nowhere", "--output", str(tmp_path / "facts")]
    done = hosts["head"].run([sys.executable, "-m", "ddp_doctor", *asked], check=False)
    assert done.returncode == 3
    assert "nowhere: its name cannot be resolved" in done.stderr
    assert [path.name for path in (tmp_path / "facts").iterdir()] == ["n1.json"]


def test_facts_of_many_nodes_need_a_folder(hosts):
    done = hosts["head"].run([sys.executable, "-m", "ddp_doctor", "collect", "--nodes", "n1"], check=False)
    assert done.returncode == 2
    assert "--output FOLDER" in done.stderr


def test_where_ranks_start_over_ssh_the_nodes_log_in_to_each_other(hosts):
    asked = ("--profile", "standard", "--select", "ssh", "--launcher", "mpirun", "--master-addr", "n1")
    status, report = run(hosts["head"], "--nodes", "n[1-3]", *asked)
    failed = {
        (v["node"], v["subject"])
        for v in report["verdicts"]
        if v["check"] == "ssh/login-fails" and v["outcome"] == "failed"
    }
    assert status == 1
    assert ("n1", "n2") in failed  # only the head knows keys and hosts
    assert {node for node, _ in failed} == {"n1", "n2", "n3"}


def test_a_node_whose_firewall_drops_is_named_with_a_remedy(lab, hosts):
    walled = lab.add("walled")
    walled.sshd()
    walled.nft("ct state established,related accept; tcp dport 22 accept; ip protocol tcp drop")
    hosts["head"].knows(*(host for host in lab.hosts.values() if (host.folder / "host_key_22.pub").exists()))
    asked = ("--profile", "standard", "--select", "pairs/ports-blocked")
    status, report = run(hosts["head"], "--nodes", "n1,walled", *asked)
    failures = [v for v in report["verdicts"] if v["outcome"] == "failed"]
    (failed,) = [v for v in failures if v["check"] == "pairs/ports-blocked"]
    assert (status, failed["node"], failed["subject"]) == (1, "n1", "to walled")
    assert "a firewall drops the packets" in failed["message"]
    steps = [step for remedy in failed["fixes"] for step in remedy["steps"]]
    assert any("nft" in step["text"] and "10.77.0.0/24" in step["text"] for step in steps)

"""Processes: real ones in state D, zombies, holders of a device node."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ddp_doctor import child
from ddp_doctor.ask import Ask
from ddp_doctor.collect import processes
from ddp_doctor.facts import Process
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder, Recording

DEADLINE_S = 20.0
VFORK = r"""
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    if (vfork() == 0) { pause(); _exit(0); }   /* the parent sleeps in the kernel until its child ends */
    wait(0);
    return 0;
}
"""


def until(ready):
    """What ``ready`` returns once it is true."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = ready()
        if found:
            return found
    raise AssertionError("did not come about")


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.fixture
def blocked(tmp_path):
    """Pid of a process that stays in state D: the parent of a vfork()."""
    (tmp_path / "blocked.c").write_text(VFORK)
    try:
        subprocess.run(["cc", "-o", str(tmp_path / "blocked"), str(tmp_path / "blocked.c")], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    started = subprocess.Popen([str(tmp_path / "blocked")], start_new_session=True)
    until(lambda: state_of(started.pid) == "D")
    yield started.pid
    go_on(started.pid)
    started.wait()


def go_on(pid):
    """End the child for which a vfork() waits; its parent then ends by itself."""
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(each), 9)


NEGLIGENT = """
import os, sys
pid = os.fork()
if pid == 0: os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def zombie(monkeypatch):
    """(pid of a process that has ended, its parent, which does not collect it), of a doctor that did not start them."""
    monkeypatch.setattr(child, "_owner", 0)
    parent = subprocess.Popen(
        [sys.executable, "-c", NEGLIGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield int(parent.stdout.readline()), parent.pid
    parent.communicate("")


def test_a_process_in_state_d_in_two_looks_is_told(blocked):
    (found,) = [p for p in processes.read(Host(), Ask()).blocked if p.pid == blocked]
    assert (found.name, found.state, found.devices) == ("blocked", "D", ())
    assert found.age_s < DEADLINE_S


def test_one_that_went_on_between_the_looks_is_not(blocked):
    def ended(_):
        go_on(blocked)
        until(lambda: state_of(blocked) == "Z")

    seen = processes.look(sleep=ended)
    assert blocked not in [p["pid"] for p in seen["blocked"]]


def test_a_zombie_is_told_with_its_parent(zombie):
    pid, parent = zombie
    (found,) = [p for p in processes.read(Host(), Ask()).zombies if p.pid == pid]
    assert (found.parent, found.state, found.devices) == (parent, "Z", None)
    assert found.unread["devices"].kind == "not-applicable"


def test_children_of_the_doctor_that_have_just_ended_are_none():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: state_of(ended.pid) == "Z")
    assert ended.pid not in [p.pid for p in processes.read(Host(), Ask()).zombies]
    ended.wait()


def test_nor_are_children_of_its_other_children():
    parent = subprocess.Popen(
        [sys.executable, "-c", NEGLIGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    assert state_of(pid) == "Z"
    assert pid not in [p.pid for p in processes.read(Host(), Ask()).zombies]
    parent.communicate("")


def test_who_holds_a_device_node_is_told():
    with open("/dev/zero", "rb"):
        held = processes.look(devices=re.compile("/dev/zero"))["holding"]
    assert [p["devices"] for p in held if p["pid"] == os.getpid()] == [["/dev/zero"]]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("42 (python3) S 1 42 42 0 -1 4 0 0 0 0 1 1 0 0 20 0 1 0 500 1 1\n", "python3"),
        ("42 (a (b) c) D 1 42 42 0 -1 4 0 0 0 0 1 1 0 0 20 0 1 0 500 1 1\n", "a (b) c"),
        ("42 (new\nline) S 1 42 42 0 -1 4 0 0 0 0 1 1 0 0 20 0 1 0 500 1 1\n", "new\nline"),
    ],
)
def test_a_name_may_hold_anything(text, name):
    seen = processes.parse_stat(text)
    assert (seen.pid, seen.name, seen.parent) == (42, name, 1)
    assert seen.started_s == 500 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("text", ["", "42", "42 (x) S 1", "x (y) z"])
def test_what_is_no_such_line_is_none(text):
    assert processes.parse_stat(text) is None


def test_it_replays(zombie):
    recorder = Recorder()
    live = processes.read(recorder, Ask())
    assert processes.read(Recording(recorder.entries, {}, complete=True), Ask()) == live


def test_nothing_seen_where_proc_is_hidden_is_no_answer():
    answer = {"blocked": [], "zombies": [{"pid": 7, "name": "x"}], "holding": [], "hidden": True}
    found = processes.read(replayed(answer), Ask())
    assert (found.blocked, found.zombies) == (None, (Process(7, "x"),))
    assert found.unread["holding"].kind == "no-rights"


def replayed(answer):
    recorder = Recorder()
    recorder.ask("processes", lambda: answer)
    return Recording(recorder.entries, {}, complete=True)

"""Children: what they answer, and that none of them outlives its time."""

import os
import select
import signal
import subprocess
import sys
from typing import Any, Callable, Iterator, Tuple

import pytest
from ddp_doctor import child

LONG_S = 60.0
SHORT_S = 0.2


@pytest.fixture
def pipe() -> Iterator[Tuple[int, int]]:
    """A pipe whose reader sees the end when every process that holds the writer has ended."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    yield reader, writer
    os.close(reader)


def hear(reader: int) -> bytes:
    """What is written until all writers are gone; fails when one is still there after 10 seconds."""
    heard = b""
    while True:
        assert select.select([reader], [], [], 10)[0], f"a process still holds the pipe (heard {heard!r})"
        chunk = os.read(reader, 100)
        if not chunk:
            return heard
        heard += chunk


def say_and_wait(writer: int) -> None:
    os.write(writer, b"x")
    while True:
        signal.pause()


def die(signum: int) -> Callable[[], Any]:
    return lambda: os.kill(os.getpid(), signum)


def test_answer_comes_back_as_json() -> None:
    assert child.call("x", lambda: {"a": [1, None, "ü\udcff"]}, LONG_S).value == {"a": [1, None, "ü\udcff"]}


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: sys.exit("gone"), "SystemExit: gone"),
        (die(signal.SIGUSR1), "ended without an answer (signal 10)"),
        (die(signal.SIGKILL), "ended without an answer (signal 9)"),
        (lambda: os._exit(3), "ended without an answer (exit status 3)"),
        (lambda: float("nan"), "answer is not JSON"),
        (lambda: {1, 2}, "answer is not JSON"),
    ],
)
def test_failure_is_told_in_words(work: Callable[[], Any], words: str) -> None:
    outcome = child.call("x", work, LONG_S)
    assert outcome.failure == "crashed"
    assert words in outcome.text


def test_too_long_an_answer_is_refused() -> None:
    ((_, outcome),) = child.finish([child.start("x", lambda: "y" * 2**22, LONG_S)], limit_bytes=2**20)
    assert (outcome.failure, outcome.text) == ("crashed", "answered more than 1 MiB")


@pytest.mark.parametrize("deaf", [False, True])
def test_hang_is_timed_out_and_ended(pipe: Tuple[int, int], deaf: bool) -> None:
    reader, writer = pipe

    def hang() -> None:
        if deaf:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say_and_wait(writer)

    outcome = child.call("x", hang, SHORT_S)
    os.close(writer)
    assert (outcome.failure, outcome.text, outcome.left_pid) == ("timed-out", "timed out after 0.2 s", None)
    assert hear(reader) == b"x"


def test_children_run_side_by_side() -> None:
    reader, writer = os.pipe()
    first = child.start("waits for the other", lambda: os.read(reader, 1).decode(), LONG_S)
    second = child.start("wakes the other", lambda: os.write(writer, b"!"), LONG_S)
    outcomes = {c.name: outcome.value for c, outcome in child.finish([first, second])}
    assert outcomes == {"waits for the other": "!", "wakes the other": 1}


def test_one_that_hangs_hides_no_other() -> None:
    children = [child.start("hangs", signal.pause, SHORT_S), child.start("answers", lambda: 1, LONG_S)]
    assert {c.name: o.failure for c, o in child.finish(children)} == {"hangs": "timed-out", "answers": None}


def grandchild(writer: int) -> int:
    if os.fork() == 0:
        say_and_wait(writer)
    return 1


def grandchild_of_one_that_hangs(writer: int) -> None:
    grandchild(writer)
    signal.pause()


def child_of_a_child(writer: int) -> Any:
    return child.call("inner", lambda: say_and_wait(writer), LONG_S).failure


@pytest.mark.parametrize("work", [grandchild, grandchild_of_one_that_hangs, child_of_a_child])
def test_descendants_end_with_their_child(pipe: Tuple[int, int], work: Callable[[int], Any]) -> None:
    reader, writer = pipe
    child.call("x", lambda: work(writer), 1.0)
    os.close(writer)
    assert set(hear(reader)) <= {ord("x")}


def test_nothing_stays_uncollected() -> None:
    for work in (lambda: 1, die(signal.SIGKILL), signal.pause):
        child.call("x", work, SHORT_S)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert not child._groups


def test_child_has_none_of_our_stdio(capfd: pytest.CaptureFixture[str]) -> None:
    assert child.call("x", lambda: [os.write(1, b"noise"), os.write(2, b"noise"), os.read(0, 1) == b""], 9).value[2]
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_ends_what_was_started(pipe: Tuple[int, int]) -> None:
    reader, writer = pipe
    script = (
        "import os, signal, sys\n"
        "from ddp_doctor import child\n"
        "def hang():\n"
        f"    os.write({writer}, b'x')\n"
        "    while True: signal.pause()\n"
        "try: child.call('x', hang, 60)\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], pass_fds=[writer])
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert hear(reader) == b""


def test_ctrl_c_while_a_child_is_being_started(pipe: Tuple[int, int]) -> None:
    reader, writer = pipe
    script = (
        "import os, signal, sys\n"
        "from ddp_doctor import child\n"
        "setpgid = os.setpgid\n"
        "def interrupted(pid, group):\n"
        "    if pid: os.kill(os.getpid(), signal.SIGINT)\n"
        "    setpgid(pid, group)\n"
        "os.setpgid = interrupted\n"
        "try: child.call('x', signal.pause, 60)\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], pass_fds=[writer])
    os.close(writer)
    assert process.wait(10) == 130
    assert hear(reader) == b""

"""A child that stays: it answers again and again, and may hang, die or lie."""

import os
import signal
import time
from pathlib import Path

import pytest
from ddp_doctor.unreadable import Unreadable
from ddp_doctor.watch.session import Session

LIMIT_S = 20.0


def counting():
    numbers = iter(range(1000))
    return lambda: [next(numbers), os.getpid()]


def refused(session, limit_s=LIMIT_S):
    with pytest.raises(Unreadable) as caught:
        session.ask(limit_s)
    return caught.value.reason


def alive(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def session(request):
    made = Session("library", request.param)
    yield made
    made.close()


@pytest.mark.parametrize("session", [counting], indirect=True)
def test_one_child_answers_again_and_again(session):
    answers = [session.ask(LIMIT_S) for _ in range(3)]
    assert [number for number, _ in answers] == [0, 1, 2]
    assert len({pid for _, pid in answers} - {os.getpid()}) == 1
    session.close()
    assert not alive(answers[0][1])


@pytest.mark.parametrize(
    "session", [lambda: signal.pause, lambda: signal.pause()], indirect=True, ids=["at work", "at start"]
)
def test_one_that_hangs_is_late_and_begun_anew(session):
    started = time.monotonic()
    assert refused(session, 0.2).kind == "timed-out"
    assert refused(session, 0.2).text == "library: no answer in 0.2 s"
    assert time.monotonic() - started < LIMIT_S


@pytest.mark.parametrize("session", [counting], indirect=True)
def test_one_that_died_is_begun_anew(session):
    _, pid = session.ask(LIMIT_S)
    os.kill(pid, signal.SIGKILL)
    assert refused(session).kind == "crashed"
    assert session.ask(LIMIT_S)[0] == 0


def broken():
    raise ValueError("no library")


@pytest.mark.parametrize(
    ("session", "text"),
    [
        (lambda: broken, "ValueError: no library"),
        (broken, "ValueError: no library"),
        (lambda: lambda: {1}, "it has ended"),
    ],
    indirect=["session"],
    ids=["at work", "at start", "no JSON"],
)
def test_what_it_raises_is_a_reason(session, text):
    assert text in refused(session).text


@pytest.mark.parametrize("session", [lambda: lambda: "x" * 2**21], indirect=True)
def test_an_answer_without_end_is_refused(session):
    assert "does not end" in refused(session).text


def test_it_ends_with_its_owner():
    read, write = os.pipe()
    owner = os.fork()
    if owner == 0:
        os.write(write, str(Session("x", counting).ask(LIMIT_S)[1]).encode())
        os._exit(0)
    os.waitpid(owner, 0)
    pid = int(os.read(read, 100))
    end = time.monotonic() + LIMIT_S
    while (
        alive(pid) and Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z" and time.monotonic() < end
    ):
        pass
    assert time.monotonic() < end
    os.close(read)
    os.close(write)

"""A child that stays: it keeps a library open (NVML) and answers again and again, each time within a limit.

``child.py`` forks a child for each question; for a question every ten seconds all day long starting NVML anew would cost
more than the answer. A session that hangs is ended and begun anew at the next question: it can hang, its owner cannot.
"""

import contextlib
import json
import os
import select
import signal
import time
from typing import Any, Callable, Optional

from ddp_doctor import child
from ddp_doctor.collect import nvml
from ddp_doctor.facts import Reason
from ddp_doctor.unreadable import Unreadable

Answer = Callable[[], Any]
MAX_ANSWER_BYTES = 2**20
"""What one GPU tells is some kB."""

REST_S = 0.2
"""A child that has begun to write an answer of some kB has ended it in no time."""


class Session:
    """``begin`` runs in the child once and returns what answers each question there, as JSON data."""

    def __init__(self, name: str, begin: Callable[[], Answer]) -> None:
        self.name, self._begin = name, begin
        self._pid: Optional[int] = None
        self._questions = self._answers = -1
        self._limit_s = self._ends_at = 0.0

    def ask(self, limit_s: float) -> Any:
        """The answer to a question put now. Raises what ``put`` and ``answer`` raise."""
        self.put(limit_s)
        return self.answer()

    def put(self, limit_s: float) -> None:
        """Put a question, which has so long to be answered. Raises Unreadable where there is nobody to put it to."""
        if self._pid is None:
            self._start()
        self._limit_s, self._ends_at = limit_s, time.monotonic() + limit_s
        with contextlib.suppress(OSError):  # ``answer`` says that it has ended
            os.write(self._questions, b"?")

    def is_ready(self, until: float) -> bool:
        """Does the answer begin before ``until``, on the monotonic clock?"""
        ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
        return bool(ready)

    def answer(self) -> Any:
        """The answer. Raises Unreadable: timed-out or crashed, with the session over, or what the child said."""
        try:
            answer = json.loads(self._line())
        except _Late:
            self.close()
            raise Unreadable(Reason("timed-out", f"{self.name}: no answer in {self._limit_s:g} s")) from None
        except (OSError, ValueError) as error:
            self.close()
            raise Unreadable(Reason("crashed", f"{self.name}: {error}")) from None
        if "reason" in answer:
            raise Unreadable(Reason(**answer["reason"]))
        return answer["value"]

    def close(self) -> None:
        """End the child; the next question begins a new one. One that the kernel will not end is left behind."""
        if self._pid is None:
            return
        pid, self._pid = self._pid, None
        for end in (self._questions, self._answers):
            os.close(end)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        child.reap(pid, child.GRACE_S)

    def _line(self) -> bytes:
        """One line of the child's. Raises _Late, OSError."""
        line = b""
        while not line.endswith(b"\n"):
            # the rest of an answer that has begun is not given up because others were waited for meanwhile
            if not self.is_ready(max(self._ends_at, time.monotonic() + REST_S) if line else self._ends_at):
                raise _Late
            part = os.read(self._answers, 65536)
            if not part:
                raise OSError("it has ended")
            line += part
            if len(line) > MAX_ANSWER_BYTES:
                raise OSError("its answer does not end")
        return line

    def _start(self) -> None:
        """Fork. Raises Unreadable where there is no process left for it."""
        theirs, self._questions = os.pipe()
        self._answers, ours = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            for end in (theirs, self._questions, self._answers, ours):
                os.close(end)
            raise Unreadable(Reason("crashed", f"{self.name}: cannot start a child: {error.strerror}")) from None
        if pid == 0:
            os.close(self._questions)
            os.close(self._answers)
            _serve(self._begin, theirs, ours)
        os.close(theirs)
        os.close(ours)
        self._pid = pid


class _Late(Exception):
    """Its time is over."""


def _serve(begin: Callable[[], Answer], questions: int, answers: int) -> None:
    """Run in the child: one answer for each question until the pipe closes. Never returns."""
    try:
        nvml.die_with_parent()  # the pipe does not tell where a later child holds its other end, too
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who then closes the pipe
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        reply = _guarded(begin)
        while os.read(questions, 1):
            answer = reply if isinstance(reply, dict) else _value(reply)
            os.write(answers, json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def _guarded(begin: Callable[[], Answer]) -> Any:
    """What answers, or the answer itself where it could not begin."""
    try:
        return begin()
    except Unreadable as error:
        return {"reason": error.reason.__dict__}
    except Exception as error:  # noqa: BLE001  a library may raise anything
        return {"reason": {"kind": "crashed", "text": f"{type(error).__name__}: {error}"}}


def _value(reply: Answer) -> Any:
    try:
        return {"value": reply()}
    except Unreadable as error:
        return {"reason": error.reason.__dict__}
    except Exception as error:  # noqa: BLE001  a library may raise anything
        return {"reason": {"kind": "crashed", "text": f"{type(error).__name__}: {error}"}}

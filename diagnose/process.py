"""The command as a process: its streams, the signals that tell it to end, and its exit."""

import contextlib
import os
import signal
import sys
import time
from typing import Any, NoReturn, Optional

USAGE = 2
"""Exit status for wrong usage, for input that cannot be used, and for a file that cannot be written."""
UNSURE = 3
"""Exit status where no verdict is possible."""
SAME_S = 1.0
"""A second signal so soon is the first one again: timeout(1), for one, sends to the command and then to its group."""

_told_at: Optional[float] = None
"""When this process was told to end, or began to by itself; on the monotonic clock."""


def begin() -> None:
    """Have three streams, whatever we were started with, and hear signals."""
    _stand_in_for_closed_streams()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as nohup, and "&" in a script, leave it
            signal.signal(signum, _told)


def _stand_in_for_closed_streams() -> None:
    """Started with ``>&-``: what is opened next would take the number of standard output, and be written to."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def _told(_signum: int, _frame: Any) -> None:
    """The first signal ends the examination, which is then reported; one that comes later ends that as well."""
    global _told_at
    now = time.monotonic()
    if _told_at is None:
        _told_at = now
        raise KeyboardInterrupt
    if now - _told_at > SAME_S:
        _end_what_runs()
        os._exit(UNSURE)


def command_line_above() -> bytes:
    """The command line of the process that started this one; empty where it cannot be read."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
            return file.read(1 << 16).replace(b"\0", b" ")
    except OSError:
        return b""


def leave(status: int, message: str = "") -> NoReturn:
    """Exit with ``status``; what cannot be written any more, since the reader has gone away (``| head``), is let go."""
    global _told_at
    interrupted, _told_at = _told_at is not None, _told_at or time.monotonic()
    _end_what_runs()
    if message:
        complain(message)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if (
        interrupted
    ):  # CPython exits by SIGINT after a KeyboardInterrupt within exec(), though it was caught (pythonrun.c)
        os._exit(status)
    sys.exit(status)


def leave_interrupted() -> NoReturn:
    """Exit after a signal that came where nothing else could answer it."""
    global _told_at
    _told_at = _told_at or time.monotonic()
    leave(UNSURE, "interrupted")


def _end_what_runs() -> None:
    if "ddp_doctor.child" in sys.modules:
        sys.modules["ddp_doctor.child"].end_groups()


def complain(message: str) -> None:
    """Say something on standard error, in one line, if it can be written there."""
    from ddp_doctor.escape import terminal

    with contextlib.suppress(OSError):
        sys.stderr.write(f"ddp-doctor: {terminal(message)}\n")
        sys.stderr.flush()


def where(error: BaseException) -> str:
    """File and line at which an exception came up."""
    place = error.__traceback__
    while place and place.tb_next:
        place = place.tb_next
    return f"{os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno}" if place else "nowhere"

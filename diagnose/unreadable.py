"""Unreadable: the one way in which the door to a node says no."""

import errno
import os

from ddp_doctor.facts import Reason

LOST = ("timed-out", "crashed", "unreadable")
"""Kinds of reason that say that something went wrong; the others say why there was nothing to read."""


class Unreadable(Exception):
    """The node did not give what was asked; ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


def reason_of(error: OSError, what: str) -> Reason:
    """Turn an operating system's error into a reason that names ``what``."""
    words = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Reason("absent", f"{what}: {words}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Reason("no-rights", f"{what}: {words}")
    return Reason("unreadable", f"{what}: {words}")

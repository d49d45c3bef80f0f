"""Remedies of causes that a log shows: what each check of a log says to do."""

from typing import Any, Callable, Iterator

from ddp_doctor.checks.logs import (
    application,
    collectives,
    hardware,
    launcher,
    links,
    memory,
    rdma,
    sockets,
    stack,
    surroundings,
)
from ddp_doctor.model import Remedy, say

AREAS = (application, collectives, hardware, launcher, links, memory, rdma, sockets, stack, surroundings)


def _remedy(text: str, doc: str) -> Callable[..., Iterator[Remedy]]:
    def fix() -> Iterator[Remedy]:
        yield Remedy("Take the cause away", (say(text),))

    fix.__doc__, fix.__module__ = f"What helps against: {doc}", __name__
    return fix


def _remedies(area: Any) -> Iterator[Any]:
    for name, check in vars(area).items():
        text = getattr(check, "__log_remedy__", "")
        if text and getattr(check, "__module__", "") == area.__name__:
            yield name, _remedy(text, (check.__doc__ or name).splitlines()[0])


globals().update(found for area in AREAS for found in _remedies(area))

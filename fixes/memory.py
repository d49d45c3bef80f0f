"""Remedies for want of memory."""

from typing import Iterator, Optional

from ddp_doctor.facts import Launch, Os
from ddp_doctor.fixes._node import engine_of, is_slurm
from ddp_doctor.model import Remedy, Step, command, say


def low(os: Optional[Os] = None, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """Find who has it, and take less."""
    who = command("ps -eo pid,user,rss,comm --sort=-rss", scope="this node")
    yield Remedy(
        "See who has the memory (rss is in KiB); files in /dev/shm count too", (who, command("du -sh /dev/shm"))
    )
    if engine_of(os) or is_slurm(launch):
        yield Remedy("Ask for more", (_more(os, launch),))
    yield _less()


def cgroup_limit_below_visible(os: Optional[Os] = None, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """Size by the limit, or raise it."""
    yield _less()
    yield Remedy("Raise the limit", (_more(os, launch),))


def _less() -> Remedy:
    text = "Size caches, pin_memory and num_workers of the data loaders by the limit, not by the machine's memory."
    return Remedy("Take less", (say(text, scope="this job"),))


def _more(os: Optional[Os], launch: Optional[Launch]) -> Step:
    if is_slurm(launch):
        text = "Ask for more with --mem (0 asks for all of the node's)."
    elif engine_of(os) == "kubernetes":
        text = "Raise resources.limits.memory of the container; an emptyDir with medium Memory counts against it."
    elif engine_of(os) == "docker":
        text = "Start the container without --memory, or with a larger one."
    else:
        text = "Raise MemoryMax= of the slice or service that this session runs in."
    return say(text, scope="this job")

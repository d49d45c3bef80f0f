"""Checks of the host's memory."""

from typing import Iterator, Optional, Tuple

from ddp_doctor.checks._job import ranks_here
from ddp_doctor.facts import UNLIMITED, Launch, Memory, Os
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.policy import GIB, Policy
from ddp_doctor.units import plural, size


@check(Severity.WARNING)
def low(memory: Memory, policy: Policy) -> Iterator[Reading]:
    """Little memory is available.

    Why: Each rank takes some GiB of host memory for CUDA, pinned buffers and data loader workers. When it runs out the
        kernel ends a process with SIGKILL: torchrun then reports exit code -9, and the other ranks hang in a collective.
    See: https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    available, total = _room(memory)
    percent = 100 * available / total if total else 0.0
    yield Reading(
        ok=available >= policy.memory_available_min_bytes or percent >= policy.memory_available_min_percent,
        measured=f"{size(available)} available of {size(total)}",
        expected=f"at least {size(policy.memory_available_min_bytes)} or {policy.memory_available_min_percent:g} %",
        message="the job may be ended for want of memory",
    )


def _room(memory: Memory) -> Tuple[int, int]:
    """(available, total) in bytes: of the machine or of the cgroup, whichever leaves less."""
    available = known(memory.available_bytes, memory, "available_bytes")
    total = known(memory.total_bytes, memory, "total_bytes")
    limit = memory.cgroup_limit_bytes
    if limit is None or limit >= UNLIMITED or memory.cgroup_used_bytes is None:
        return available, total
    left = max(0, limit - memory.cgroup_used_bytes)
    return (left, limit) if left < available else (available, total)


@check(Severity.NOTE)
def cgroup_limit_below_visible(
    memory: Memory, policy: Policy, os: Optional[Os] = None, launch: Optional[Launch] = None
) -> Iterator[Reading]:
    """The cgroup grants less memory than this process sees, or little for the ranks.

    Why: /proc/meminfo shows the machine's memory in a container or a job step too, and programs that size caches, pinned
        pools or the number of data loader workers by it overshoot; past the limit the kernel ends a process with SIGKILL,
        though the machine has memory left. Files in /dev/shm count against the limit. The share that a scheduler gives is
        meant, and is only told where it is small for the ranks.
    See: https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    limit = known(memory.cgroup_limit_bytes, memory, "cgroup_limit_bytes")
    total = known(memory.total_bytes, memory, "total_bytes")
    by, ranks = _scheduler(os, launch, policy), ranks_here(policy, launch) or 1
    need = min(RANK_BYTES * ranks if by else total, total)
    yield Reading(
        ok=limit >= need,
        measured=("no limit" if limit >= UNLIMITED else f"a limit of {size(limit)}")
        + f", {size(total)} visible"
        + (f", in a job of {by}" if by else ""),
        expected=f"at least {size(need)} for {plural(ranks, 'rank')}"
        if by
        else "a limit of no less than what is visible",
        message=f"programs see {size(total)} of memory, the limit is {size(limit)}",
    )


RANK_BYTES = 2 * GIB
"""Host memory of a rank with torch and CUDA before it holds any data: a bound of our own."""


def _scheduler(os: Optional[Os], launch: Optional[Launch], policy: Policy) -> str:
    """Who gave this process its share of the machine: Slurm, Kubernetes, or "" for nobody that is known."""
    if policy.launcher == "slurm" or (launch is not None and bool(launch.slurm)):
        return "Slurm"
    return "Kubernetes" if policy.launcher == "kubernetes" or (os and os.container == "kubernetes") else ""

"""Checks of processors."""

from typing import Iterator, Optional

from ddp_doctor.checks._job import ranks_here
from ddp_doctor.facts import UNLIMITED, Cpu, Launch
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural


@check(Severity.WARNING)
def fewer_than_ranks(cpu: Cpu, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """The ranks of this node share fewer processors than there are ranks.

    Why: A rank's Python, its NCCL proxy thread and its data loader workers then wait for each other, and the GPUs wait for
        them. The usual cause is a Slurm step with one task and no --cpus-per-task that starts all ranks itself.
    See: https://slurm.schedmd.com/srun.html
    """
    ranks = ranks_here(policy, launch)
    if ranks is not None:
        usable = min(
            float(known(cpu.allowed, cpu, "allowed")), cpu.quota if cpu.quota is not None else float(UNLIMITED)
        )
        yield Reading(
            ok=usable >= ranks,
            measured=_processors(usable),
            expected=f"at least {ranks}, one for each of the {plural(ranks, 'rank')}",
            message=f"{plural(ranks, 'rank')} share {_processors(usable)}",
        )


@check(Severity.NOTE)
def quota_below_visible(cpu: Cpu) -> Iterator[Reading]:
    """The cgroup grants fewer processors than this process sees.

    Why: Python, OpenMP and data loaders count the processors that they see and start as many threads or workers; the
        kernel then stops all of them for the rest of each period when the quota is used up. Set OMP_NUM_THREADS and
        num_workers by the quota.
    See: https://docs.kernel.org/scheduler/sched-bwc.html
    """
    allowed, quota = known(cpu.allowed, cpu, "allowed"), known(cpu.quota, cpu, "quota")
    yield Reading(
        ok=quota >= allowed,
        measured="no quota" if quota >= UNLIMITED else f"a quota of {_processors(quota)}, {allowed} visible",
        expected="a quota of no fewer than those visible",
        message=f"programs see {plural(allowed, 'processor')}, the container may use {_processors(quota)}",
    )


def _processors(number: float) -> str:
    return f"{number:g} processor" + ("" if number == 1 else "s")

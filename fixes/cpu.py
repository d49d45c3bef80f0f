"""Remedies for too few processors."""

from typing import Iterator, Optional

from ddp_doctor.checks._job import ranks_here
from ddp_doctor.facts import UNLIMITED, Cpu, Launch, Os
from ddp_doctor.fixes._node import engine_of, is_slurm
from ddp_doctor.model import Remedy, export, say
from ddp_doctor.policy import Policy


def fewer_than_ranks(cpu: Cpu, os: Optional[Os] = None, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """Ask for more processors where the job is started, if the machine has more."""
    if cpu.allowed is not None and cpu.allowed == cpu.threads and (cpu.quota or UNLIMITED) >= cpu.threads:
        text = "The machine has no more: start fewer ranks here, or take a larger one."
        yield Remedy("Start fewer ranks", (say(text, scope="this job"),))
        return
    if is_slurm(launch):
        text = "Ask for processors: --cpus-per-task in sbatch, and again on srun's line (from Slurm 22.05 srun does not inherit it)."
        see = "https://slurm.schedmd.com/srun.html"
    elif engine_of(os) == "kubernetes":
        text, see = "Raise resources.limits.cpu of the container, or leave it out.", ""
    elif engine_of(os) == "docker":
        text, see = "Start the container without --cpus and --cpuset-cpus, or with larger ones.", ""
    else:
        text, see = "Start the ranks without taskset or numactl, or in a wider cpuset.", ""
    yield Remedy("Give the job more processors", (say(text, scope="this job", see=see),))


def quota_below_visible(cpu: Cpu, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """Size threads and workers by the quota."""
    ranks, quota = ranks_here(policy, launch), cpu.quota or 1.0
    divide = "" if ranks else " With several ranks on this node, divide both by their number."
    text = f"Let the data loaders of all ranks together have at most {max(1, int(quota))} workers.{divide}"
    threads = str(max(1, int(quota / (ranks or 1))))
    yield Remedy(
        "Start as many threads and workers as the quota allows",
        (export("OMP_NUM_THREADS", threads, scope="this job"), say(text, scope="this job")),
    )

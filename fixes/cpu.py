"""Remedies for too few processors."""

from typing import Iterator, Optional

from ddp_doctor.checks._job import ranks_here
from ddp_doctor.facts import UNLIMITED, Cpu, Launch, Os
from ddp_doctor.fixes._node import engine_of, is_slurm
from ddp_doctor.model import Remedy, Verdict, command, export, say, write_file
from ddp_doctor.policy import Policy


def fewer_than_ranks(cpu: Cpu, os: Optional[Os] = None, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """Ask for more processors where the job is started, if the machine has more."""
    yield from _more(cpu, os, launch)


def few_for_ranks(cpu: Cpu, os: Optional[Os] = None, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """Ask for more processors where the job is started, if the machine has more."""
    yield from _more(cpu, os, launch)


def bound_to_one_numa_node(cpu: Cpu, os: Optional[Os] = None, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """Ask for processors of all nodes; where each rank should be bound, let the launcher do it."""
    yield from _more(cpu, os, launch)
    text = "To bind each rank to the processors near its GPU: torchrun --numa-binding=node, or srun --gpu-bind=closest."
    see = "https://docs.pytorch.org/docs/main/elastic/numa.html"
    yield Remedy("Bind ranks one by one instead", (say(text, scope="this job", see=see),))


def _more(cpu: Cpu, os: Optional[Os], launch: Optional[Launch]) -> Iterator[Remedy]:
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


def numa_balancing_on(os: Optional[Os] = None) -> Iterator[Remedy]:
    """Off, now and at every boot."""
    path, who = "/etc/sysctl.d/90-numa-balancing.conf", "root"
    where = "On the machine itself, not in this container: switch" if engine_of(os) else "Switch"
    now = command("sysctl -w kernel.numa_balancing=0", who=who, scope="this node until reboot", undo="the same with 1")
    stay = write_file(path, "kernel.numa_balancing = 0\n", who=who, scope="this node", undo=f"remove {path}")
    yield Remedy(f"{where} it off", (now, stay))


def governor_powersave(os: Optional[Os] = None) -> Iterator[Remedy]:
    """The governor performance."""
    where = "On the machine itself, not in this container: choose" if engine_of(os) else "Choose"
    tuned = "Where tuned or cpupower's service sets the governor, change it there: it comes back at the next boot."
    step = command("cpupower frequency-set -g performance", who="root", scope="this node until reboot")
    yield Remedy(f"{where} the governor performance", (step, say(tuned, who="root")))


def throttled() -> Iterator[Remedy]:
    """Cooling."""
    text = (
        "Compare temperatures and fan speeds with a healthy node (ipmitool sdr); look for dust, a dead fan, warm air."
    )
    yield Remedy("Look after the cooling", (say(text, who="cluster admin", scope="this node"),))


def memory_uncorrected(finding: Verdict) -> Iterator[Remedy]:
    """Find the module, take the node out of service."""
    yield _module()


def memory_corrected(finding: Verdict) -> Iterator[Remedy]:
    """Find the module."""
    yield _module()


def _module() -> Remedy:
    look = command("grep -H . /sys/devices/system/edac/mc/mc*/dimm*/dimm_label /sys/devices/system/edac/mc/mc*/dimm*/dimm_ce_count"
                   " /sys/devices/system/edac/mc/mc*/dimm*/dimm_ue_count", scope="this node")  # fmt: skip
    text = (
        "Take the node out of service and have the module with the errors replaced; the BMC's event log names its slot."
    )
    return Remedy("Find the module and replace it", (look, say(text, who="cluster admin", scope="this node")))

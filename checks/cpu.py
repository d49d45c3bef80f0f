"""Checks of processors."""

import re
from typing import Dict, Iterator, List, Optional, Set

from ddp_doctor import nvlink
from ddp_doctor.checks._job import ranks_here
from ddp_doctor.facts import UNLIMITED, Cpu, Gpus, Launch, Os
from ddp_doctor.model import Reading, Severity, check, known, unknown
from ddp_doctor.policy import Policy
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural, seconds


@check(Severity.WARNING)
def fewer_than_ranks(cpu: Cpu, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """The ranks of this node share fewer processors than there are ranks.

    Why: A rank's Python, its NCCL proxy thread and its data loader workers then wait for each other, and the GPUs wait for
        them. The usual cause is a Slurm step with one task and no --cpus-per-task that starts all ranks itself.
    See: https://slurm.schedmd.com/srun.html
    """
    ranks = ranks_here(policy, launch)
    if ranks is not None:
        usable = _usable(cpu)
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


@check(Severity.NOTE)
def few_for_ranks(cpu: Cpu, policy: Policy, gpus: Gpus, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """The ranks of this node have hardly a processor each beside themselves.

    Why: A rank keeps one processor busy, and NCCL's proxy thread, which polls while data goes between nodes, another; data
        loader workers come on top. When they share a processor the GPUs wait.
    See: https://slurm.schedmd.com/srun.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    ranks, each = ranks_here(policy, launch), int(bound("cpu.per_rank").warning or 0)
    if ranks is not None and gpus.gpus and _usable(cpu) >= ranks:  # fewer than ranks: another check's affair
        yield Reading(
            ok=_usable(cpu) >= each * ranks,
            measured=f"{_processors(_usable(cpu))} for {plural(ranks, 'rank')}",
            expected=f"at least {each * ranks}: {each} for each rank, and more for data loaders",
            message="the ranks share their processors with NCCL's proxies and the data loaders",
        )


@check(Severity.NOTE)
def bound_to_one_numa_node(cpu: Cpu, gpus: Gpus, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """The processors allowed are on one NUMA node, the GPUs on several.

    Why: Ranks of the other node's GPUs then work from afar: their memory and every copy to their GPU cross the link between
        the sockets. The usual cause is a Slurm step or taskset of too few cores. A rank's own binding to its GPU is fine.
    See: https://slurm.schedmd.com/mc_support.html
        https://docs.pytorch.org/docs/main/elastic/numa.html
    """
    if launch is not None and launch.local_rank is not None:
        return  # this is one rank's process, which may well be bound
    nodes = _numa_of_gpus(gpus)
    allowed = _numa_of_processors(known(cpu.numa_cpus, cpu, "numa_cpus"), known(cpu.allowed_list, cpu, "allowed_list"))
    if len(nodes) > 1 and allowed and ranks_here(policy, launch) != 1:
        yield Reading(
            ok=len(allowed) != 1,
            measured=f"processors {cpu.allowed_list} on {_listed(allowed)}, GPUs on {_listed(nodes)}",
            expected="processors near all GPUs",
            message="some ranks will work far from their GPU",
        )


@check(Severity.NOTE)
def numa_balancing_on(cpu: Cpu, gpus: Gpus) -> Iterator[Reading]:
    """The kernel moves memory between NUMA nodes by itself.

    Why: Automatic NUMA balancing unmaps pages to see who uses them; the faults and moves cost training with pinned buffers time
        that varies from step to step. Most distributions have it on; makers of GPU machines advise to switch it off.
    See: https://rocm.docs.amd.com/en/docs-6.3.3/how-to/rocm-for-ai/training/prerequisite-system-validation.html
        https://docs.kernel.org/admin-guide/sysctl/kernel.html
    """
    if gpus.gpus and known(cpu.numa_nodes, cpu, "numa_nodes") > 1:
        state = known(cpu.numa_balancing, cpu, "numa_balancing")
        yield Reading(
            ok=state & 1 == 0,
            measured=f"kernel.numa_balancing = {state}",
            expected="0, off",
            message="automatic NUMA balancing is on",
        )


DYNAMIC = ("intel_pstate", "amd-pstate", "amd-pstate-epp", "amd_pstate", "amd_pstate_epp")
"""Drivers whose "powersave" raises the clocks under load (docs.kernel.org/admin-guide/pm/intel_pstate.html, amd-pstate.html);
amd-pstate's guided mode, which does too, cannot be told from its passive one by the name."""


@check(Severity.NOTE)
def governor_powersave(cpu: Cpu, gpus: Gpus) -> Iterator[Reading]:
    """The processors are held at their lowest frequency.

    Why: The governor "powersave" of cpufreq means the lowest clock, except with the drivers intel_pstate and amd-pstate-epp,
        which raise it under load. Ranks launch their kernels and load their data at a fraction of the speed.
    See: https://docs.kernel.org/admin-guide/pm/cpufreq.html
        https://docs.kernel.org/admin-guide/pm/intel_pstate.html
    """
    governors = known(cpu.governors, cpu, "governors")
    if gpus.gpus and governors:
        driver = known(cpu.frequency_driver, cpu, "frequency_driver")
        yield Reading(
            ok="powersave" not in governors or driver in DYNAMIC,
            measured=f"governor {', '.join(governors)} of {driver}",
            expected="performance or schedutil",
            message="processors run at their lowest frequency (governor powersave)",
        )


@check(Severity.NOTE)
def throttled(cpu: Cpu, gpus: Gpus, os: Os) -> Iterator[Reading]:
    """The processors have been slowed down for their heat again and again.

    Why: A node whose processors throttle feeds its GPUs late, and collectives wait for the slowest node. Dust, a fan, or warm air
        from the neighbour are the usual causes. Laptops do it in health and are not judged.
    See: https://www.kernel.org/doc/html/latest/admin-guide/thermal/intel_thermal_throttle.html
    """
    if any(nvlink.is_datacenter(gpu) for gpu in gpus.gpus or ()):
        events, uptime_s = known(cpu.throttled, cpu, "throttled"), known(os.uptime_s, os, "uptime_s")
        limit = bound("cpu.throttled_per_day")
        per_day = events / max(uptime_s / 86400, 1.0)
        yield Reading(
            ok=per_day <= (limit.warning or 0),
            measured=f"{events} throttle events in {seconds(uptime_s)} of all cores and packages",
            expected=f"at most {limit.warning:g} a day",
            message="processors are slowed down for their heat",
            source=limit.source,
        )


@check(Severity.ERROR)
def memory_uncorrected(cpu: Cpu) -> Iterator[Reading]:
    """The machine's memory had errors that could not be corrected.

    Why: Whatever stood there is lost: a process may have been ended for it, or computes with wrong data. The module should be
        replaced before a job runs for days.
    See: https://docs.kernel.org/admin-guide/RAS/main.html
        https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-edac
    """
    for controller in known(cpu.memory_controllers, cpu, "memory_controllers"):
        if controller.uncorrected is None:
            yield unknown(controller, "uncorrected", controller.name)
        else:
            yield Reading(
                ok=controller.uncorrected == 0,
                subject=controller.name,
                measured=f"{plural(controller.uncorrected, 'uncorrected memory error')} of {controller.name} since boot",
                expected="none",
                message=f"{controller.name}: the memory behind it had errors that could not be corrected",
            )


@check(Severity.NOTE)
def memory_corrected(cpu: Cpu) -> Iterator[Reading]:
    """The machine's memory had more corrected errors than chance explains.

    Why: Single bits flip now and then and are put right. Many errors of one controller announce a module that fails.
    See: https://docs.kernel.org/admin-guide/RAS/main.html
        https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-edac
    """
    limit = bound("cpu.memory_corrected")
    for controller in known(cpu.memory_controllers, cpu, "memory_controllers"):
        if controller.corrected is None:
            yield unknown(controller, "corrected", controller.name)
        else:
            yield Reading(
                ok=controller.corrected <= (limit.warning or 0),
                subject=controller.name,
                measured=f"{plural(controller.corrected, 'corrected memory error')} of {controller.name} since boot",
                expected=f"at most {limit.warning:g}",
                message=f"{controller.name}: the memory behind it is corrected often",
                source=limit.source,
            )


def _usable(cpu: Cpu) -> float:
    """Processors by mask and quota. Raises NotKnown."""
    return min(float(known(cpu.allowed, cpu, "allowed")), cpu.quota if cpu.quota is not None else float(UNLIMITED))


def _numa_of_gpus(gpus: Gpus) -> Set[str]:
    """NUMA nodes of the GPUs that this process may use, by their functions on the bus."""
    nodes = {function.pci: function.numa_node for function in gpus.on_bus or ()}
    found = (gpu.numa_node if gpu.numa_node is not None else nodes.get(gpu.pci or "") for gpu in gpus.gpus or ())
    return {str(node) for node in found if node is not None}


def _numa_of_processors(numa_cpus: Dict[str, str], allowed: str) -> Set[str]:
    """NUMA nodes that have one of the allowed processors."""
    ours = _numbers(allowed)
    return {node for node, processors in numa_cpus.items() if ours & _numbers(processors)}


def _numbers(text: str) -> Set[int]:
    """The processors of a list as the kernel writes it: "0-3,8"; what is none is left out."""
    ranges = (re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part) for part in text.split(","))
    found: List[range] = [range(int(r.group(1)), int(r.group(2) or r.group(1)) + 1) for r in ranges if r]
    return {number for each in found for number in each}


def _listed(nodes: Set[str]) -> str:
    return (
        f"NUMA node{'' if len(nodes) == 1 else 's'} {' and '.join(sorted(nodes, key=lambda node: (len(node), node)))}"
    )


def _processors(number: float) -> str:
    return f"{number:g} processor" + ("" if number == 1 else "s")

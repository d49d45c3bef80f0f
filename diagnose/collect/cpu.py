"""Cpu: what processors the machine has, and how much of them this process may use."""

import re
from typing import Optional, Set, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect.cgroup import group, values
from ddp_doctor.collect.numbers import labelled, parse_cpu_list
from ddp_doctor.facts import UNLIMITED, Cpu, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

CPUINFO_LIMIT_BYTES = 16 * 2**20
"""A processor takes about 1.5 kB of /proc/cpuinfo; Linux allows 8192 of them (CONFIG_NR_CPUS, x86)."""
_SYS = "/sys/devices/system"


def read(host: Host, ask: Ask) -> Cpu:
    """Processors of the machine, and what affinity and cgroup leave of them to this process."""
    unread: Unread = {}
    info = optional(lambda: host.read("/proc/cpuinfo", CPUINFO_LIMIT_BYTES), unread, "model")
    sockets, cores = optional(lambda: _topology(host, info or ""), unread, "sockets") or (None, None)
    if "sockets" in unread:
        unread["cores"] = unread["sockets"]
    return Cpu(
        model=None if info is None else optional(lambda: parse_model(info), unread, "model"),
        sockets=sockets,
        cores=cores,
        threads=optional(lambda: _count(host, f"{_SYS}/cpu/online"), unread, "threads"),
        allowed=optional(lambda: parse_allowed(host.read("/proc/self/status")), unread, "allowed"),
        quota=optional(lambda: _quota(host), unread, "quota"),
        numa_nodes=optional(lambda: _count(host, f"{_SYS}/node/has_cpu"), unread, "numa_nodes"),
        governors=optional(lambda: _governors(host), unread, "governors"),
        load_1min=optional(lambda: parse_load(host.read("/proc/loadavg")), unread, "load_1min"),
        unread=unread,
    )


def parse_model(cpuinfo: str) -> str:
    """Name of the processor; Arm gives numbers of maker and part alone. Raises Unreadable."""
    for label in ("model name", "Model Name", "Processor", "cpu model", "cpu", "uarch"):
        name = labelled(cpuinfo, label)
        if name and not name.isdigit():
            return name
    maker, part = labelled(cpuinfo, "CPU implementer"), labelled(cpuinfo, "CPU part")
    if not maker or not part:
        raise Unreadable(Reason("absent", "/proc/cpuinfo does not name the processor"))
    return f"Arm implementer {maker} part {part}"


def _topology(host: Host, cpuinfo: str) -> Tuple[int, int]:
    """(sockets, cores) from /proc/cpuinfo, or where it has no "physical id" (Arm, POWER) from sysfs."""
    return parse_topology(cpuinfo) or _sys_topology(host)


def parse_topology(cpuinfo: str) -> Optional[Tuple[int, int]]:
    """(sockets, cores) of what is online, from "physical id" and "cpu cores"; None where these are not given.

    "core id" is no help: it repeats itself on processors with several dies (kernel, Documentation/arch/x86/topology.rst).
    """
    sockets = re.findall(r"^physical id\s*: (\d+)$.*?^cpu cores\s*: (\d+)$", cpuinfo, re.MULTILINE | re.DOTALL)
    cores = {socket: int(count) for socket, count in sockets}
    return (len(cores), sum(cores.values())) if cores else None


def _sys_topology(host: Host) -> Tuple[int, int]:
    """(sockets, cores) from each processor's topology folder; one without such a folder is offline."""
    packages: Set[str] = set()
    cores: Set[str] = set()
    for name in host.list(f"{_SYS}/cpu"):
        if re.fullmatch(r"cpu\d+", name):
            folder = f"{_SYS}/cpu/{name}/topology"
            package = optional(lambda path=f"{folder}/physical_package_id": host.read(path).strip(), {}, "")  # type: ignore[misc]
            siblings = optional(lambda path=f"{folder}/thread_siblings_list": host.read(path).strip(), {}, "")  # type: ignore[misc]
            packages.update([package] if package else [])
            cores.update([siblings] if siblings else [])
    if not packages or not cores:
        raise Unreadable(Reason("absent", "neither /proc/cpuinfo nor sysfs tells sockets and cores"))
    return len(packages), len(cores)


def parse_allowed(status: str) -> int:
    """Processors in this process's mask, from /proc/self/status. Raises Unreadable."""
    return parse_cpu_list(labelled(status, "Cpus_allowed_list") or "?", "Cpus_allowed_list")


def _count(host: Host, path: str) -> int:
    return parse_cpu_list(host.read(path), path)


def _quota(host: Host) -> float:
    """The smallest quota of this process's cgroup and its parents, in processors."""
    place = group(host, "cpu")
    if place.version == 2:
        texts = list(values(host, place, "cpu.max").values())
    else:
        periods = values(host, place, "cpu.cfs_period_us")
        quotas = values(host, place, "cpu.cfs_quota_us")
        texts = [f"{quota} {periods.get(folder, '')}" for folder, quota in quotas.items()]
    return min(map(parse_quota, texts), default=float(UNLIMITED))


def parse_quota(text: str) -> float:
    """Processors that ``QUOTA PERIOD`` grants; "max" and -1 are no limit. Raises Unreadable."""
    if re.match(r"(max|-1)( |$)", text):
        return float(UNLIMITED)
    found = re.fullmatch(r"(\d{1,18}) ([1-9]\d{0,17})", text, re.ASCII)
    if not found:
        raise Unreadable(Reason("unreadable", f"cgroup CPU quota {text[:40]!r} is not two numbers"))
    return int(found.group(1)) / int(found.group(2))


def _governors(host: Host) -> Tuple[str, ...]:
    """Distinct governors of all policies. Raises Unreadable for a folder that is there and cannot be read."""
    folder = f"{_SYS}/cpu/cpufreq"
    if not host.exists(folder):
        return ()
    unread: Unread = {}
    paths = [f"{folder}/{name}/scaling_governor" for name in host.list(folder) if re.fullmatch(r"policy\d+", name)]
    found = {optional(lambda path=path: host.read(path).strip(), unread, "any") for path in paths}  # type: ignore[misc]
    if unread and found == {None}:
        raise Unreadable(unread["any"])
    return tuple(sorted(governor for governor in found if governor))


def parse_load(text: str) -> float:
    """Load of the last minute, the first number of /proc/loadavg. Raises Unreadable."""
    found = re.match(r"\d{1,9}\.\d+(?= )", text, re.ASCII)
    if not found:
        raise Unreadable(Reason("unreadable", f"/proc/loadavg says {text[:40]!r}"))
    return float(found.group())

"""Cpu: what processors the machine has, and how much of them this process may use."""

import re
from typing import Dict, List, Optional, Set, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect.cgroup import group, values
from ddp_doctor.collect.numbers import labelled, parse_cpu_list, read_number
from ddp_doctor.facts import UNLIMITED, Cpu, MemoryController, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.numerals import whole
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
        frequency_driver=optional(
            lambda: host.read(f"{_SYS}/cpu/cpu0/cpufreq/scaling_driver").strip(), unread, "frequency_driver"
        ),
        allowed_list=optional(lambda: parse_allowed_list(host.read("/proc/self/status")), unread, "allowed_list"),
        numa_cpus=optional(lambda: _numa_cpus(host), unread, "numa_cpus"),
        numa_balancing=optional(lambda: read_number(host, "/proc/sys/kernel/numa_balancing"), unread, "numa_balancing"),
        throttled=optional(lambda: _throttled(host, info or ""), unread, "throttled"),
        memory_controllers=optional(lambda: _memory_controllers(host), unread, "memory_controllers"),
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


def parse_allowed_list(status: str) -> str:
    """This process's mask as the kernel writes lists. Raises Unreadable."""
    parse_allowed(status)
    return labelled(status, "Cpus_allowed_list") or ""


def _numa_cpus(host: Host) -> Dict[str, str]:
    """NUMA node -> its processors; a GPU's or CXL memory is a node without any."""
    folder = f"{_SYS}/node"
    numbers = sorted(int(name[4:]) for name in host.list(folder) if re.fullmatch(r"node\d{1,6}", name, re.ASCII))
    found = {str(number): host.read(f"{folder}/node{number}/cpulist").strip() for number in numbers}
    for number, text in found.items():
        if text:
            parse_cpu_list(text, f"{folder}/node{number}/cpulist")
    return found


def _throttled(host: Host, cpuinfo: str) -> int:
    """Events of every core and every package since boot: threads of one core count the same ones, and so does a package.

    Raises Unreadable: absent where the kernel counts none (only its Intel driver does, arch/x86 therm_throt.c).
    """
    cores, packages = parse_places(cpuinfo)
    first = f"{_SYS}/cpu/cpu0/thermal_throttle"
    if not cores or not host.exists(first):
        raise Unreadable(Reason("absent", f"{first}: this processor's driver counts no throttling"))
    paths = [_count_path(n, "core") for n in cores] + [_count_path(n, "package") for n in packages]
    counts = [optional(lambda path=path: read_number(host, path), {}, "count") for path in paths]  # type: ignore[misc]
    known = [count for count in counts if count is not None]
    if not known:
        return read_number(host, paths[0])
    return sum(known)


def _count_path(number: int, kind: str) -> str:
    return f"{_SYS}/cpu/cpu{number}/thermal_throttle/{kind}_throttle_count"


def parse_places(cpuinfo: str) -> Tuple[List[int], List[int]]:
    """(a processor of every core, one of every package) by /proc/cpuinfo; empty where it tells no places."""
    cores: Dict[Tuple[str, str], int] = {}
    packages: Dict[str, int] = {}
    for block in cpuinfo.split("\n\n"):
        number, package, core = (labelled(block, label) or "" for label in ("processor", "physical id", "core id"))
        processor = whole(number)
        if processor is not None and package and core:
            cores.setdefault((package, core), processor)
            packages.setdefault(package, processor)
    return list(cores.values()), list(packages.values())


def _memory_controllers(host: Host) -> Tuple[MemoryController, ...]:
    """EDAC's controllers (Documentation/admin-guide/RAS); none where no driver of it is loaded."""
    folder = f"{_SYS}/edac/mc"
    if not host.exists(folder):
        return ()
    names = [name for name in host.list(folder) if re.fullmatch(r"mc\d{1,6}", name, re.ASCII)]
    return tuple(_memory_controller(host, f"{folder}/{name}", name) for name in sorted(names, key=lambda n: int(n[2:])))


def _memory_controller(host: Host, folder: str, name: str) -> MemoryController:
    unread: Unread = {}
    return MemoryController(
        name=name,
        corrected=optional(lambda: read_number(host, f"{folder}/ce_count"), unread, "corrected"),
        uncorrected=optional(lambda: read_number(host, f"{folder}/ue_count"), unread, "uncorrected"),
        unread=unread,
    )


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

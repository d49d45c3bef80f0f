"""Memory: the machine's, and what the cgroup leaves of it to this process."""

import re
from typing import Dict, Optional, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect.cgroup import Group, group, smallest
from ddp_doctor.collect.numbers import labelled, parse_number, read_number
from ddp_doctor.facts import UNLIMITED, Memory, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

_ROWS = {
    "total_bytes": "MemTotal",
    "available_bytes": "MemAvailable",
    "swap_total_bytes": "SwapTotal",
    "swap_free_bytes": "SwapFree",
    "hugepages_total": "HugePages_Total",
    "hugepages_free": "HugePages_Free",
    "hugepage_bytes": "Hugepagesize",
}
_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def read(host: Host, ask: Ask) -> Memory:
    """Memory of the machine from /proc/meminfo, and the limit and use of this process's cgroup."""
    unread: Unread = {}
    place = optional(lambda: group(host, "memory"), unread, "cgroup_limit_bytes")
    limit_bytes, folder = None, ""
    if place:
        found = optional(lambda: smallest(host, place, _FILES[place.version][0]), unread, "cgroup_limit_bytes")
        limit_bytes, folder = found or (None, "")
    return Memory(
        **_machine(host, unread),
        transparent_hugepages=optional(lambda: _transparent_hugepages(host), unread, "transparent_hugepages"),
        cgroup_limit_bytes=limit_bytes,
        cgroup_used_bytes=optional(lambda: _used(host, place, limit_bytes, folder), unread, "cgroup_used_bytes"),
        unread=unread,
    )


def _machine(host: Host, unread: Unread) -> Dict[str, int]:
    """Fields from /proc/meminfo; each of those that are not there gets its reason."""
    text = optional(lambda: host.read("/proc/meminfo"), unread, "total_bytes")
    if text is None:
        unread.update(dict.fromkeys(_ROWS, unread["total_bytes"]))
        return {}
    found = {name: optional(lambda label=label: parse_row(text, label), unread, name) for name, label in _ROWS.items()}  # type: ignore[misc]
    return {name: value for name, value in found.items() if value is not None}


def parse_row(meminfo: str, label: str) -> int:
    """A row of /proc/meminfo, in bytes where it is given in kB (which are 1024 bytes), else a count. Raises Unreadable."""
    value = labelled(meminfo, label)
    if value is None:
        raise Unreadable(Reason("absent", f"/proc/meminfo has no row {label}"))
    number, _, unit = value.partition(" ")
    if unit not in ("kB", ""):
        raise Unreadable(Reason("unreadable", f"/proc/meminfo: {label} is {value[:40]!r}"))
    return parse_number(number, f"/proc/meminfo: {label}") * (1024 if unit else 1)


def _transparent_hugepages(host: Host) -> str:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    found = re.search(r"\[(\w+)\]", host.read(path))
    if not found:
        raise Unreadable(Reason("unreadable", f"{path}: no value is chosen in it"))
    return found.group(1)


def _used(host: Host, place: Optional[Group], limit_bytes: Optional[int], folder: str) -> int:
    """Use of the group that sets the limit, without the file cache that the kernel gives back before it kills."""
    if place is None or limit_bytes is None:
        raise Unreadable(Reason("absent", "the cgroup's memory limit is not known"))
    if limit_bytes == UNLIMITED:
        raise Unreadable(Reason("not-applicable", "no cgroup limits the memory of this process"))
    used_bytes = read_number(host, f"{folder}/{_FILES[place.version][1]}")
    return max(0, used_bytes - parse_file_cache(host.read(f"{folder}/memory.stat"), place.version))


def parse_file_cache(stat: str, version: int) -> int:
    """Bytes of file pages in memory.stat, with those of child groups; files in shared memory are not among them."""
    rows: Tuple[str, ...] = ("active_file", "inactive_file")
    if version == 1:
        rows = ("total_active_file", "total_inactive_file")
    return sum(int(n) for n in re.findall(rf"^(?:{'|'.join(rows)}) (\d{{1,19}})$", stat, re.MULTILINE | re.ASCII))

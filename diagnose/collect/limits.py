"""Limits: what this process may lock, open and start, and the cgroup's and the kernel's bounds on that."""

import re
from typing import Any, Dict, Optional

from ddp_doctor.ask import Ask
from ddp_doctor.collect.cgroup import cgroup_dirs
from ddp_doctor.facts import UNLIMITED, Limit, Limits, Unread
from ddp_doctor.host import Host, optional

_ROWS = {
    "memlock_bytes": "Max locked memory",
    "nofile": "Max open files",
    "nproc": "Max processes",
    "stack_bytes": "Max stack size",
    "core_bytes": "Max core file size",
}
CAP_IPC_LOCK = 14
"""Bit number in include/uapi/linux/capability.h."""


def read(host: Host, ask: Ask) -> Limits:
    """Limits of this process, as ``/proc/self/limits`` and ``/proc/self/status`` tell them."""
    unread: Unread = {}
    rows: Any = parse_limits(optional(lambda: host.read("/proc/self/limits"), unread, "memlock_bytes") or "")
    status = optional(lambda: host.read("/proc/self/status"), unread, "cap_ipc_lock")
    for name in (name for name in _ROWS if name not in rows and "memlock_bytes" in unread):
        unread[name] = unread["memlock_bytes"]
    return Limits(
        cap_ipc_lock=parse_capability(status, CAP_IPC_LOCK) if status else None,
        cgroup_pids_max=_cgroup_number(host, "pids.max", unread, "cgroup_pids_max"),
        cgroup_pids_current=_cgroup_number(host, "pids.current", unread, "cgroup_pids_current"),
        kernel_pid_max=_number(host, "/proc/sys/kernel/pid_max", unread, "kernel_pid_max"),
        kernel_threads_max=_number(host, "/proc/sys/kernel/threads-max", unread, "kernel_threads_max"),
        kernel_file_max=_number(host, "/proc/sys/fs/file-max", unread, "kernel_file_max"),
        unread=unread,
        **rows,
    )


def parse_limits(text: str) -> Dict[str, Limit]:
    """Rows of /proc/self/limits by field name; rows that are not there are left out."""
    rows = {}
    for name, label in _ROWS.items():
        found = re.search(rf"^{label} +(\d+|unlimited) +(\d+|unlimited)", text, re.MULTILINE)
        if found:
            soft, hard = (UNLIMITED if n == "unlimited" else min(int(n), UNLIMITED) for n in found.groups())
            rows[name] = Limit(soft, hard)
    return rows


def parse_capability(status: str, bit: int) -> Optional[bool]:
    """Is capability ``bit`` in the effective set that /proc/self/status shows?"""
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    return bool(int(found.group(1), 16) >> bit & 1) if found else None


def _number(host: Host, path: str, unread: Unread, field: str) -> Optional[int]:
    text = optional(lambda: host.read(path), unread, field)
    return int(text) if text and text.strip().isdigit() else None


def _cgroup_number(host: Host, name: str, unread: Unread, field: str) -> Optional[int]:
    """The first cgroup on the way up that has the file ``name``; UNLIMITED for "max"."""
    for folder in cgroup_dirs(host, "pids"):
        text = optional(lambda path=f"{folder}/{name}": host.read(path), {}, field)  # type: ignore[misc]
        if text and text.strip() != "max":
            return int(text)
    return UNLIMITED if field.endswith("max") else None

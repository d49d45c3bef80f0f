"""Limits: what this process may lock, open and start, and the cgroup's and the kernel's bounds on that."""

import re
from typing import Dict, Optional, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect.cgroup import group, smallest
from ddp_doctor.collect.container import container_kind
from ddp_doctor.collect.numbers import labelled, read_number
from ddp_doctor.facts import UNLIMITED, Limit, Limits, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

_ROWS = {
    "memlock_bytes": "Max locked memory",
    "nofile": "Max open files",
    "nproc": "Max processes",
    "stack_bytes": "Max stack size",
    "core_bytes": "Max core file size",
}
CAP_NET_BIND_SERVICE, CAP_IPC_LOCK = 10, 14
"""Bit numbers in include/uapi/linux/capability.h."""
PROT_SOCK = 1024
"""Below it ports are for root, where no setting says otherwise (include/net/sock.h)."""


def read(host: Host, ask: Ask) -> Limits:
    """Limits of this process, as ``/proc/self/limits`` and ``/proc/self/status`` tell them."""
    unread: Unread = {}
    pids_max, pids_current = _cgroup_pids(host, unread)
    return Limits(
        **_own(host, unread),
        cap_ipc_lock=optional(
            lambda: parse_capability(host.read("/proc/self/status"), CAP_IPC_LOCK), unread, "cap_ipc_lock"
        ),
        lowest_port=optional(lambda: _lowest_port(host), unread, "lowest_port"),
        whose=optional(
            lambda: whose(host.env(), host.user()[1], optional(lambda: container_kind(host), {}, "") or ""),
            unread,
            "whose",
        ),
        cgroup_pids_max=pids_max,
        cgroup_pids_current=pids_current,
        kernel_pid_max=optional(lambda: read_number(host, "/proc/sys/kernel/pid_max"), unread, "kernel_pid_max"),
        kernel_threads_max=optional(
            lambda: read_number(host, "/proc/sys/kernel/threads-max"), unread, "kernel_threads_max"
        ),
        kernel_file_max=optional(lambda: read_number(host, "/proc/sys/fs/file-max"), unread, "kernel_file_max"),
        unread=unread,
    )


def _own(host: Host, unread: Unread) -> Dict[str, Limit]:
    """Rows of /proc/self/limits; each of those that are not there gets its reason."""
    text = optional(lambda: host.read("/proc/self/limits"), unread, "memlock_bytes")
    rows = parse_limits(text or "")
    for name, label in _ROWS.items():
        if name not in rows:
            unread[name] = (
                unread["memlock_bytes"]
                if text is None
                else Reason("unreadable", f"/proc/self/limits has no row {label!r}")
            )
    return rows


def parse_limits(text: str) -> Dict[str, Limit]:
    """Rows of /proc/self/limits by field name; rows that are not there are left out."""
    rows = {}
    for name, label in _ROWS.items():
        found = re.search(rf"^{label} +(\d{{1,20}}|unlimited) +(\d{{1,20}}|unlimited)\b", text, re.MULTILINE | re.ASCII)
        if found:
            soft, hard = (UNLIMITED if n == "unlimited" else min(int(n), UNLIMITED) for n in found.groups())
            rows[name] = Limit(soft, hard)
    return rows


def _lowest_port(host: Host) -> int:
    """By the capability, else by the network namespace's net.ipv4.ip_unprivileged_port_start, which Linux 4.11 brought."""
    if parse_capability(host.read("/proc/self/status"), CAP_NET_BIND_SERVICE):
        return 1
    try:
        return read_number(host, "/proc/sys/net/ipv4/ip_unprivileged_port_start")
    except Unreadable as error:
        if error.reason.kind != "absent":
            raise
        return PROT_SOCK


def parse_capability(status: str, bit: int) -> bool:
    """Is capability ``bit`` in the effective set that /proc/self/status shows? Raises Unreadable."""
    mask = labelled(status, "CapEff") or ""
    if not re.fullmatch(r"[0-9a-fA-F]{1,32}", mask):
        raise Unreadable(Reason("unreadable", "/proc/self/status: no capability mask CapEff in it"))
    return bool(int(mask, 16) >> bit & 1)


def whose(env: Dict[str, str], user: str, container: str = "") -> str:
    """Whose limits these are: they come from what started this process, and root's or ssh's are not the job's."""
    marks = (
        ("TORCHELASTIC_RUN_ID" in env, "a torchrun worker"),
        ("SLURM_STEP_ID" in env, "the Slurm job step"),
        ("SLURM_JOB_ID" in env, "the Slurm job"),
        ("PBS_JOBID" in env, "the PBS job"),
        ("LSB_JOBID" in env, "the LSF job"),
        ("KUBERNETES_SERVICE_HOST" in env or container == "kubernetes", "this pod"),
        (
            container not in ("", *_OF_THE_SESSION),
            f"this {container} container".replace("container container", "container"),
        ),
        ("SSH_CONNECTION" in env, "this ssh session"),
    )
    return f"{next((words for here, words in marks if here), 'this shell')} (user {user})"


_OF_THE_SESSION = ("apptainer", "enroot")
"""Containers that run with the limits of the session that starts them."""


def _cgroup_pids(host: Host, unread: Unread) -> Tuple[Optional[int], Optional[int]]:
    """(limit, number) of tasks in the group that sets the smallest limit; without a limit, in this process's own."""
    place = optional(lambda: group(host, "pids"), unread, "cgroup_pids_max")
    if place is None:
        unread["cgroup_pids_current"] = unread["cgroup_pids_max"]
        return None, None
    found = optional(lambda: smallest(host, place, "pids.max"), unread, "cgroup_pids_max")
    folder = found[1] if found and found[1] else place.folders[0]
    current = optional(lambda: read_number(host, f"{folder}/pids.current"), unread, "cgroup_pids_current")
    return (found[0] if found else None), current

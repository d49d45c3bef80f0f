"""Processes: what waits in the kernel, is a zombie, or holds a GPU or an HCA.

One child looks through /proc and hands out the few that matter: a node's process list is nobody's business, and command
lines are never read.
"""

import os
import re
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from ddp_doctor import child
from ddp_doctor.ask import Ask
from ddp_doctor.facts import Process, Processes, Reason, Unread
from ddp_doctor.host import Host, optional

BETWEEN_LOOKS_S = 0.2
"""A process that waits for a disk is in state D for some milliseconds; what is in it twice, 0.2 s apart, may be stuck."""
LOOK_LIMIT_S = 5.0
MAX_NAMED = 64
"""So many of a kind are told; who has more has one fault, not as many."""
MAX_OPEN_FILES = 1024
"""So many open files of a process are looked at."""
DEVICES = re.compile(r"/dev/(nvidia\d+|nvidia-caps/nvidia-cap\d+|infiniband/uverbs\d+)")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h): any other is a container's."""
_KTHREADD = 2
"""Kernel threads are children of pid 2 (kthreadd): they hold no device node."""

Plain = Dict[str, Any]


def read(host: Host, ask: Ask) -> Processes:
    """Processes of this pid namespace: in a container they are the container's own."""
    seen = dict(host.ask("processes", look, LOOK_LIMIT_S))
    hidden = bool(seen.pop("hidden"))
    unread: Unread = {name: _HIDDEN for name, found in seen.items() if hidden and not found}
    namespace = optional(lambda: host.link("/proc/self/ns/pid"), unread, "own_namespace")
    known = {name: tuple(map(_process, found)) for name, found in seen.items() if name not in unread}
    return Processes(
        own_namespace=None if namespace is None else namespace == _INITIAL_PID_NAMESPACE, unread=unread, **known
    )


_HIDDEN = Reason("no-rights", "/proc shows this user's own processes alone (hidepid)")
"""None of one's own is no answer for the node."""


def _process(plain: Plain) -> Process:
    known = dict(plain)
    unread = {name: Reason(**reason) for name, reason in known.pop("unread", {}).items()}
    devices = known.pop("devices", None)
    return Process(devices=None if devices is None else tuple(devices), unread=unread, **known)


# --------------------------------------------------------------------------- in the child


class Seen(NamedTuple):
    """One line of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    parent: int
    started_s: float
    """Seconds after boot."""


def look(devices: "re.Pattern[str]" = DEVICES, sleep: Callable[[float], None] = time.sleep) -> Dict[str, Any]:
    """Two looks at what is in state D, one at zombies and at who holds a device node that ``devices`` matches."""
    processes = list(_all())
    first = [seen for seen in processes if seen.state == "D"]
    if first:
        sleep(BETWEEN_LOOKS_S)
    again = {seen.pid: _seen(str(seen.pid)) for seen in first}
    blocked = [seen for seen in first if _same(again[seen.pid], seen)]
    parents = {seen.pid: seen.parent for seen in processes}
    zombies = [seen for seen in processes if seen.state == "Z" and not _is_own(seen, parents)]
    return {
        "blocked": [_plain(seen, devices) for seen in blocked[:MAX_NAMED]],
        "zombies": [_plain(seen, None) for seen in zombies[:MAX_NAMED]],
        "holding": _holding(processes, devices),
        "hidden": not any(seen.pid == 1 for seen in processes),
    }


def _is_own(seen: Seen, parents: Dict[int, int]) -> bool:
    """Was it started by the doctor, by whichever of its processes? What has ended below them is being collected."""
    pid, passed = seen.parent, {seen.pid}
    while pid > 1 and pid not in passed:
        if pid == child.first_pid():
            return True
        passed.add(pid)
        pid = parents.get(pid, 0)
    return False


def _same(now: Optional[Seen], before: Seen) -> bool:
    """Still the same process, and still waiting."""
    return now is not None and now.started_s == before.started_s and now.state == "D"


def _all() -> Iterator[Seen]:
    for entry in os.listdir("/proc"):
        seen = _seen(entry) if entry.isdigit() else None
        if seen is not None:
            yield seen


def _seen(pid: str) -> Optional[Seen]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_stat(file.read().decode("utf-8", "backslashreplace"))
    except OSError:  # it ended meanwhile
        return None


def parse_stat(text: str) -> Optional[Seen]:
    """ "42 (a name (with)) S 1 ...": the name stands between the first and the last parenthesis (proc_pid_stat(5))."""
    found = re.match(r"(\d+) \((.*)\) (\S) (\d+) (.*)", text, re.DOTALL)
    rest = found.group(5).split() if found else []
    if found is None or len(rest) < 18:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return Seen(int(found.group(1)), found.group(2), found.group(3), int(found.group(4)), int(rest[17]) / ticks)


def _plain(seen: Seen, devices: "Optional[re.Pattern[str]]") -> Plain:
    """Plain ``Process`` data."""
    unread: Dict[str, Any] = {}
    plain: Plain = {"pid": seen.pid, "name": seen.name, "state": seen.state, "parent": seen.parent}
    plain["age_s"] = round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - seen.started_s), 1)
    plain["uid"] = _told(unread, "uid", lambda: os.stat(f"/proc/{seen.pid}").st_uid)
    plain["unit"] = _told(unread, "unit", lambda: _unit(seen.pid))
    plain["waits_in"] = _told(unread, "waits_in", lambda: _waits_in(seen.pid))
    if devices is not None:
        plain["devices"] = _told(unread, "devices", lambda: open_devices(seen.pid, devices))
    else:
        unread["devices"] = {"kind": "not-applicable", "text": "a zombie holds nothing"}
    return {**plain, "unread": unread}


def _told(unread: Dict[str, Any], field: str, look: Callable[[], Any]) -> Any:
    try:
        return look()
    except PermissionError:
        unread[field] = {"kind": "no-rights", "text": "another user's process"}
    except OSError as error:
        unread[field] = {"kind": "absent", "text": f"the process ended meanwhile: {error.strerror}"}
    return None


def _waits_in(pid: int) -> str:
    """The kernel's function, "" where it does not say; the kernel says "0" to whom it does not want to tell."""
    with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
        text = file.read(100).strip()
    if text == "0":
        raise PermissionError(1, "hidden")
    return text


def _unit(pid: int) -> str:
    """The innermost service, scope or slice of its cgroup: 0::/system.slice/vllm.service."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="backslashreplace") as file:
        parts = file.read(4096).replace("\n", "/").split("/")
    return next((part[:100] for part in reversed(parts) if part.endswith((".service", ".scope"))), "")


def _holding(processes: List[Seen], devices: "re.Pattern[str]") -> List[Plain]:
    """Those with such a device node open; another user's are told to root alone, and left out for others."""
    found: List[Plain] = []
    for seen in processes:
        if seen.parent == _KTHREADD or len(found) >= MAX_NAMED:
            continue
        try:
            held = open_devices(seen.pid, devices)
        except OSError:
            continue
        if held:
            found.append({**_plain(seen, devices), "devices": held})
    return found


def open_devices(pid: int, devices: "re.Pattern[str]") -> List[str]:
    """Device nodes that a process holds open. Raises OSError for another user's process."""
    folder = f"/proc/{pid}/fd"
    held = set()
    for entry in os.listdir(folder)[:MAX_OPEN_FILES]:
        try:
            target = os.readlink(f"{folder}/{entry}")
        except FileNotFoundError:  # closed meanwhile
            continue
        if devices.fullmatch(target):
            held.add(target)
    return sorted(held)

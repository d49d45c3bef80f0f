"""Time: who keeps this node's clock, and how well."""

import os
import re
from typing import Any, Dict, List, Optional

from ddp_doctor.ask import Ask
from ddp_doctor.collect.container import container_kind
from ddp_doctor.collect.virtualisation import virtualisation
from ddp_doctor.facts import Clock, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

STA_UNSYNC, STA_NANO = 0x0040, 0x2000
"""Bits of the status in include/uapi/linux/timex.h: the clock is not synchronised; offsets are in nanoseconds."""
TOOL_LIMIT_S = 2.0
DAEMONS = {
    "chronyd": "chronyd",
    "systemd-timesyn": "systemd-timesyncd",  # the kernel keeps 15 characters of a name
    "ntpd": "ntpd",
    "ntpsec": "ntpd",
    "openntpd": "openntpd",
    "ptp4l": "ptp4l",
    "phc2sys": "phc2sys",
}
"""Name of the process -> synchroniser; when several run, the first of this order that steers the system's clock."""


def read(host: Host, ask: Ask) -> Clock:
    """The synchroniser that runs, its own words, and the kernel's."""
    unread: Unread = {}
    who = optional(lambda: _synchroniser(host), unread, "synchroniser")
    kernel = optional(lambda: _kernel(host), unread, "max_error_s")
    said = _said(host, who, unread)
    known = {
        "synchronised": _synchronised(host, who, said, kernel, unread),
        "offset_s": said.get("offset_s", _kernel_offset(who, kernel)),
        "max_error_s": kernel["max_error_s"] if kernel else None,
    }
    if known["offset_s"] is None:
        unread.setdefault("offset_s", Reason("not-applicable", "no synchroniser that tells an offset runs here"))
    if "stratum" not in said:
        unread.setdefault("stratum", Reason("not-applicable", "no synchroniser that tells its stratum runs here"))
    return Clock(who, stratum=said.get("stratum"), unread=unread, **known)


def _synchroniser(host: Host) -> str:
    """Name of the daemon; "host" where the clock is another system's affair; "" for none. Raises Unreadable."""
    running = set(host.ask("synchroniser", lambda: running_daemons(host.root)))
    for comm, name in DAEMONS.items():
        if comm in running:
            return name
    return "host" if _is_kept_by_host(host) else ""


def running_daemons(root: str) -> List[str]:
    """Which of DAEMONS run, by the names of the processes below ``root``; nothing else of any process is read."""
    proc, found = os.path.join(root, "proc"), set()
    for pid in filter(str.isdigit, os.listdir(proc)):
        try:
            with open(f"{proc}/{pid}/comm", "rb") as file:
                found.add(file.read(64).strip().decode("ascii", "replace"))
        except OSError:  # it has ended
            continue
    return sorted(found & set(DAEMONS))


def _is_kept_by_host(host: Host) -> bool:
    """A container has its host's clock; Hyper-V and WSL set the clock of their guests.

    A guest of KVM, Xen or VMware takes the time once, at its start, and must then be synchronised like any machine.
    """
    if optional(lambda: container_kind(host), {}, ""):
        return True
    kind = optional(lambda: virtualisation(host), {}, "")
    return kind == "wsl" or (kind == "microsoft" and host.exists("/sys/bus/vmbus/drivers/hv_utils"))


def _kernel(host: Host) -> Dict[str, Any]:
    """What adjtimex(2) says, asked without changing anything."""
    return parse_adjtimex(host.ask("adjtimex", _adjtimex))


def _adjtimex() -> Dict[str, int]:
    import ctypes

    class Timex(ctypes.Structure):
        """The head of struct timex (include/uapi/linux/timex.h); the rest is room."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_char * 256),
        )

    timex = Timex()  # modes 0: read only
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    return {"status": timex.status, "offset": timex.offset, "maxerror": timex.maxerror}


def parse_adjtimex(answer: Dict[str, int]) -> Dict[str, Any]:
    """synchronised, offset_s (kernel's remaining correction) and max_error_s (maxerror is in microseconds)."""
    status = answer["status"]
    return {
        "synchronised": not status & STA_UNSYNC,
        "offset_s": answer["offset"] * (1e-9 if status & STA_NANO else 1e-6),
        "max_error_s": answer["maxerror"] * 1e-6,
    }


def _kernel_offset(who: Optional[str], kernel: Optional[Dict[str, Any]]) -> Optional[float]:
    """The kernel's offset where the daemon lets the kernel do the steering; chronyd and the others do it themselves."""
    if kernel and who in ("ntpd", "systemd-timesyncd"):
        return float(kernel["offset_s"])
    return None


def _synchronised(
    host: Host, who: Optional[str], said: Dict[str, Any], kernel: Optional[Dict[str, Any]], unread: Unread
) -> Optional[bool]:
    """The daemon's word before the kernel's: chronyd without ``rtcsync`` leaves the kernel's flag alone."""
    if "synchronised" in said:
        return bool(said["synchronised"])
    if kernel is None:
        unread["synchronised"] = unread["max_error_s"]
        return None
    if kernel["synchronised"] or (who != "host" and who != "chronyd") or (who == "host" and _shares_kernel(host)):
        return bool(kernel["synchronised"])
    unread["synchronised"] = Reason("not-applicable", f"{who} keeps the clock and leaves the kernel's flag alone")
    return None


def _shares_kernel(host: Host) -> bool:
    """In a container the kernel's flag is the host's own."""
    return bool(optional(lambda: container_kind(host), {}, ""))


def _said(host: Host, who: Optional[str], unread: Unread) -> Dict[str, Any]:
    """What the daemon itself says: stratum, and with chronyd offset_s and synchronised."""
    tools = {"chronyd": _chrony, "systemd-timesyncd": _timesyncd}
    if who not in tools:
        return {}
    return optional(lambda: tools[who](host), unread, "stratum") or {}


def _chrony(host: Host) -> Dict[str, Any]:
    ran = host.run("chronyc-tracking", ["chronyc", "-n", "-c", "tracking"], TOOL_LIMIT_S)
    return parse_chrony(ran.stdout) if ran.status == 0 else _refuse("chronyc", ran.status, ran.stdout + ran.stderr)


def _timesyncd(host: Host) -> Dict[str, Any]:
    argv = ["timedatectl", "show-timesync", "--property=NTPMessage"]
    ran = host.run("timedatectl-timesync", argv, TOOL_LIMIT_S)
    return parse_timesync(ran.stdout) if ran.status == 0 else _refuse("timedatectl", ran.status, ran.stderr)


def _refuse(tool: str, status: int, words: str) -> Dict[str, Any]:
    raise Unreadable(Reason("unreadable", f"{tool} ended with status {status}: {words.strip()[:200]}"))


def parse_chrony(text: str) -> Dict[str, Any]:
    """The line of ``chronyc -c tracking``: field 3 is the stratum, 5 the clock's distance from NTP time, 14 the state.

    Raises Unreadable.
    """
    fields = text.strip().split(",")
    if len(fields) < 14 or not re.fullmatch(r"\d{1,3}", fields[2]) or not re.fullmatch(r"-?\d{1,12}\.\d+", fields[4]):
        raise Unreadable(Reason("unreadable", f"chronyc tracking says {text.strip()[:80]!r}"))
    return {"stratum": int(fields[2]), "offset_s": float(fields[4]), "synchronised": fields[13] != "Not synchronised"}


def parse_timesync(text: str) -> Dict[str, Any]:
    """Stratum out of ``NTPMessage={ Leap=0, ..., Stratum=2, ... }``; without a message there was no answer yet.

    Raises Unreadable.
    """
    found = re.search(r"\bStratum=(\d{1,3})\b", text)
    if not found:
        raise Unreadable(Reason("absent", "systemd-timesyncd has not heard from a server yet"))
    return {"stratum": int(found.group(1))}

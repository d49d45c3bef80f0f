"""Services: which daemons run here, and who listens on which TCP port.

Shared by the sections that ask it of a firewall, of sshd and of the master port. Answers go through ``host.ask``, so
a recording keeps the few rows that matter and neither the node's process list nor its connections.
"""

import os
import socket
import struct
from typing import Any, Dict, Iterable, List, Set, Tuple

from ddp_doctor.facts import Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

UNITS = "/run/systemd/units"
"""systemd keeps a link ``invocation:UNIT`` here for each unit that is active; every user may list it."""
_TCP_LISTEN = "0A"
"""TCP_LISTEN in include/net/tcp_states.h"""
_LIMIT_S = 5.0


def running(host: Host, process: str, *units: str) -> bool:
    """Does a process called ``process`` run, or one of systemd's ``units``?

    Unreadable no-rights when neither shows and /proc hides other users' processes (hidepid).
    """
    if any(f"invocation:{unit}" in _units(host) for unit in units):
        return True
    seen = host.ask(f"processes called {process}", lambda: _processes(process))
    if not seen["pids"] and seen["hidden"]:
        raise Unreadable(Reason("no-rights", f"{process}: /proc shows this user's own processes alone"))
    return bool(seen["pids"])


def running_of(host: Host, processes: Tuple[str, ...]) -> Set[str]:
    """Those of the ``processes`` (names as in /proc/PID/comm) that run, by one look at /proc.

    Unreadable no-rights when none shows and /proc hides other users' processes (hidepid).
    """
    seen = host.ask(f"processes called {', '.join(processes)}", lambda: _processes_of(processes))
    if not seen["names"] and seen["hidden"]:
        raise Unreadable(Reason("no-rights", f"{processes[0]}: /proc shows this user's own processes alone"))
    return set(seen["names"])


def _processes_of(names: Tuple[str, ...]) -> Dict[str, Any]:
    pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    return {"names": sorted({_comm(pid) for pid in pids} & set(names)), "hidden": "1" not in pids}


def _units(host: Host) -> Tuple[str, ...]:
    try:
        return host.list(UNITS)
    except Unreadable:
        return ()


def _processes(name: str) -> Dict[str, Any]:
    """Pids whose /proc/PID/comm is ``name``; whether other users' processes are hidden (no pid 1)."""
    pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    return {"pids": [int(pid) for pid in pids if _comm(pid) == name], "hidden": "1" not in pids}


def _comm(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().strip().decode("utf-8", "backslashreplace")
    except OSError:  # it ended meanwhile
        return ""


def listening(host: Host) -> List[Tuple[str, int]]:
    """(address, port) of each listening TCP socket of this network namespace."""
    return [(str(ip), int(port)) for ip, port in host.ask("listening", _listening, _LIMIT_S)]


def _listening() -> List[Tuple[str, int]]:
    """Read line by line: a busy node has a hundred thousand connections, and they are nobody's business."""
    found: List[Tuple[str, int]] = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, encoding="ascii", errors="replace") as lines:
                found += parse_listening(lines)
        except FileNotFoundError:  # no IPv6 here
            if path == "/proc/net/tcp":
                raise
    return found


def parse_listening(lines: Iterable[str]) -> List[Tuple[str, int]]:
    """(address, port) of the rows of /proc/net/tcp or tcp6 in state LISTEN; other rows are passed over."""
    found = []
    for line in lines:
        fields = line.split()
        if len(fields) > 3 and fields[3] == _TCP_LISTEN:
            ip, _, port = fields[1].partition(":")
            found.append((address(ip), int(port, 16)))
    return found


def address(text: str) -> str:
    """The kernel prints an address as 32-bit words in its own byte order."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    return socket.inet_ntop(
        socket.AF_INET if len(words) == 1 else socket.AF_INET6, struct.pack(f"={len(words)}I", *words)
    )


def owners(host: Host, ports: Iterable[int]) -> Dict[int, Tuple[int, str]]:
    """Port -> (pid, process name) of the listeners on ``ports`` that this user may see. Unreadable without psutil."""
    wanted = set(ports)
    rows = host.ask("owners of ports in question", lambda: _owners(wanted), _LIMIT_S)
    return {int(port): (int(pid), str(process)) for port, pid, process in rows}


def _owners(ports: Set[int]) -> List[Tuple[int, int, str]]:
    try:
        import psutil
    except ImportError:
        raise Unreadable(Reason("absent", "psutil is not installed here")) from None
    seen = ((s.laddr[1], s.pid) for s in psutil.net_connections("tcp") if s.status == psutil.CONN_LISTEN and s.laddr)
    return [(port, pid, _comm(str(pid))) for port, pid in seen if pid and port in ports]

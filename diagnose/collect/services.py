"""Services: which daemons run here, and who listens on which TCP port.

Shared by the sections that ask it of a firewall, of sshd and of the master port. Answers go through ``host.ask``, so
a recording keeps the few rows that matter and neither the node's process list nor its connections.
"""

import os
import socket
import struct
from typing import Any, Dict, Iterable, List, Optional, Tuple

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


def listening(host: Host) -> List[Tuple[str, int, int]]:
    """(address, port, inode) of each listening TCP socket of this network namespace."""
    return [(str(ip), int(port), int(inode)) for ip, port, inode in host.ask("listening", _listening, _LIMIT_S)]


def _listening() -> List[Tuple[str, int, int]]:
    """Read line by line: a busy node has a hundred thousand connections, and they are nobody's business."""
    found: List[Tuple[str, int, int]] = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, encoding="ascii", errors="replace") as lines:
                found += parse_listening(lines)
        except FileNotFoundError:  # no IPv6 here
            if path == "/proc/net/tcp":
                raise
    return found


def parse_listening(lines: Iterable[str]) -> List[Tuple[str, int, int]]:
    """(address, port, inode) of the rows of /proc/net/tcp or tcp6 in state LISTEN; other rows are passed over."""
    found = []
    for line in lines:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _TCP_LISTEN and fields[9].isdigit():
            ip, _, port = fields[1].partition(":")
            found.append((address(ip), int(port, 16), int(fields[9])))
    return found


def address(text: str) -> str:
    """The kernel prints an address as 32-bit words in its own byte order."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    return socket.inet_ntop(
        socket.AF_INET if len(words) == 1 else socket.AF_INET6, struct.pack(f"={len(words)}I", *words)
    )


def owners(host: Host, inodes: List[int]) -> Dict[int, Tuple[int, str]]:
    """Inode -> (pid, process name) of the sockets whose owner this user may see."""
    if not inodes:
        return {}
    name = "owners of sockets in question"
    rows = host.ask(name, lambda: _owners({f"socket:[{inode}]": inode for inode in inodes}), _LIMIT_S)
    return {int(inode): (int(pid), str(process)) for inode, pid, process in rows}


def _owners(links: Dict[str, int]) -> List[Tuple[int, int, str]]:
    """Look through the descriptors of every process that lets us, until each socket has an owner."""
    found: List[Tuple[int, int, str]] = []
    for pid in (entry for entry in os.listdir("/proc") if entry.isdigit()):
        for link in _descriptors(pid):
            inode = links.pop(link, None)
            if inode is not None:
                found.append((inode, int(pid), _comm(pid)))
        if not links:
            break
    return found


def _descriptors(pid: str) -> List[str]:
    folder = f"/proc/{pid}/fd"
    try:
        return [link for link in (_link(f"{folder}/{fd}") for fd in os.listdir(folder)) if link]
    except OSError:  # another user's, or ended meanwhile
        return []


def _link(path: str) -> Optional[str]:
    try:
        return os.readlink(path)
    except OSError:
        return None

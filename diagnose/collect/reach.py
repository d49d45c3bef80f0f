"""Reach: can this node open a TCP connection to the master's port and to the ports that were named?

Nothing is sent over a connection; it is closed at once. All attempts run side by side in one child.
"""

import errno
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddp_doctor import child
from ddp_doctor.ask import Ask
from ddp_doctor.collect import netlink
from ddp_doctor.collect.master import master
from ddp_doctor.facts import Connection, Reach, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

RESOLVE_S = 5.0
"""A resolver whose first server is dead takes its 5 s (resolv.conf(5))."""
CONNECT_S = 4.0
"""Longer than the 3 s after which the kernel calls a silent neighbour dead (mcast_solicit 3 x retrans_time_ms 1000)."""
ADDRESSES = 3
"""A name may have several addresses, of which the first that answers counts: so many are tried."""
TARGETS = 256
_ANSWER_S = RESOLVE_S + ADDRESSES * CONNECT_S + 1.0
LIMIT_S = _ANSWER_S + 2.0

_OUTCOMES = {
    "ECONNREFUSED": "refused",
    "ETIMEDOUT": "timed-out",
    "EHOSTUNREACH": "host-unreachable",
    "EHOSTDOWN": "host-unreachable",
    "ENETUNREACH": "net-unreachable",
    "ENETDOWN": "net-unreachable",
    "EACCES": "prohibited",
    "EPERM": "prohibited",
    "EINVAL": "blackhole",
    "ECONNRESET": "reset",
}
"""errno of connect(2) -> outcome. EACCES and EINVAL are how prohibit and blackhole routes answer (ip-route(8))."""


def wanted(ask: Ask) -> Optional[Reason]:
    """Not asked by a profile that sends nothing."""
    return None if ask.active else Reason("not-asked", "profile quick sends nothing")


def read(host: Host, ask: Ask) -> Reach:
    """Attempts to reach the master, unless this node is the master, and the named ports."""
    address, port = master(host, ask)
    is_rank_0 = ask.node_rank == 0
    to_master = [(address, port)] if address and port and not is_rank_0 else []
    targets = list(dict.fromkeys([*to_master, *ask.ports]))[:TARGETS]
    if not targets:
        raise Unreadable(Reason("not-asked", "this node is the master" if is_rank_0 else "no port is named"))
    answers: Any = host.ask("reach", lambda: attempts(targets), LIMIT_S)
    found = (Connection(**answer) for answer in answers)
    return Reach(tuple(c for c in found if not (c.local and (c.host, c.port) in to_master)))


def attempts(targets: List[Tuple[str, int]]) -> List[Dict[str, Any]]:
    """Try every target at the same time; those that do not end in time are told so. Runs in a child."""
    limit_s, late = child.within(_ANSWER_S)
    answers: List[Dict[str, Any]] = [{"host": name, "port": port, "outcome": late} for name, port in targets]
    threads = [threading.Thread(target=_attempt, args=(answer,), daemon=True) for answer in answers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [dict(answer) for answer in answers]


def _attempt(answer: Dict[str, Any]) -> None:
    """Resolve, then try one address after the other until one connects; the first failure is told otherwise."""
    found = _within(RESOLVE_S, lambda: _addresses(answer["host"]))
    if not found:
        answer.update(outcome="unresolved", errno="timed out" if found is None else None)
        return
    if isinstance(found, str):
        answer.update(outcome="unresolved", errno=found)
        return
    results = []
    for family, address in found[:ADDRESSES]:
        results.append(_connect(family, (address[0], answer["port"], *address[2:])))
        if results[-1]["outcome"] == "connected":
            break
    answer.update(next((r for r in results if r["outcome"] == "connected"), results[0]))


def _within(limit_s: float, work: Callable[[], Any]) -> Any:
    """What ``work`` returns, or None when it takes longer: getaddrinfo(3) cannot be told to hurry."""
    box: List[Any] = []
    thread = threading.Thread(target=lambda: box.append(work()), daemon=True)
    thread.start()
    thread.join(limit_s)
    return box[0] if box else None


def _addresses(name: str) -> Any:
    """[(family, sockaddr)], or the resolver's words."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte, a label that is too long
        return str(error.args[-1] if error.args else error)
    return list(dict.fromkeys((int(entry[0]), entry[4]) for entry in found))


def _connect(family: int, sockaddr: Tuple[Any, ...]) -> Dict[str, Any]:
    """One attempt with what the routing and neighbour tables say of it afterwards."""
    ip = str(sockaddr[0])
    started = time.monotonic()
    code = _errno_of_connect(family, sockaddr)
    duration_s = round(time.monotonic() - started, 4)
    words = errno.errorcode.get(code, str(code)) if code else None
    outcome = _OUTCOMES.get(words, "error") if words else "connected"
    return {"ip": ip, "outcome": outcome, "errno": words, "duration_s": duration_s, **_tables(ip)}


def _errno_of_connect(family: int, sockaddr: Tuple[Any, ...]) -> int:
    """0 when connected; ETIMEDOUT also when CONNECT_S is over."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_S)
        try:
            sock.connect(sockaddr)
        except socket.timeout:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def _tables(ip: str) -> Dict[str, Any]:
    """neighbour ("" behind a gateway, or with no entry) and local; nothing where the kernel does not say."""
    try:
        route = netlink.route(ip)
        direct = not route.get("gateway") and not route.get("local") and "error" not in route
        return {"neighbour": netlink.neighbour(ip) if direct else "", "local": bool(route.get("local"))}
    except OSError:
        return {}

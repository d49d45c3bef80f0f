"""Reaching: a node's attempts to reach peers that listen (``pairing``): ports, latency, path MTU, throughput.

Runs on the node: the standard library alone. Nothing here raises for what the network does.
"""

import contextlib
import errno
import json
import os
import select
import socket
import statistics
import struct
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ddp_doctor.collect import netlink

MAGIC = b"ddp-doctor"
RESOLVE_S = 5.0
"""A resolver whose first server is dead takes its 5 s (resolv.conf(5))."""
CONNECT_S = 4.0
"""Longer than the 3 s after which the kernel calls a silent neighbour dead (mcast_solicit 3 x retrans_time_ms 1000)."""
ANSWER_S = 3.0
ADDRESSES = 3
"""So many addresses of a name are tried, as torch's store tries all."""
REACH_S = RESOLVE_S + CONNECT_S + ANSWER_S
TARGETS = 256
PINGS = 20
SAMPLE_S = 0.3
"""A TCP stream has its full speed within some tens of round trips; of a local network these are milliseconds."""
STREAM_S = SAMPLE_S + 1.5
"""The whole sample: a path on which long packets vanish brings nothing at all."""
NO_STREAM = ("not-asked", "streams between nodes are sent with --profile deep or --select pairs")
HEARD_S = 0.25
"""A datagram that has not arrived after so long is lost."""
RUNGS = 16
"""Lengths that are tried side by side, so that four tries find one of 65,536."""
SMALLEST_BYTES = 512
"""Every path takes it: IPv4 asks for 576 of every host (RFC 791), and IPv6 for more."""

Plain = Dict[str, Any]

_OUTCOMES = {
    "ECONNREFUSED": "refused",
    "ETIMEDOUT": "filtered",
    "EHOSTUNREACH": "unroutable",
    "EHOSTDOWN": "down",
    "ENETUNREACH": "unroutable",
    "ENETDOWN": "unroutable",
    "EACCES": "prohibited",
    "EPERM": "prohibited",
    "EINVAL": "unroutable",
    "EADDRNOTAVAIL": "unroutable",
    "ECONNRESET": "reset",
}
"""errno of connect(2) -> outcome, where no ICMP message says more; EACCES and EINVAL come of prohibit and blackhole routes."""


class Family(NamedTuple):
    """What the two kinds of addresses call the same things (linux/in.h, in6.h, icmp.h, icmpv6.h)."""

    level: int
    receive_errors: int
    mtu_discover: int
    mtu: int
    header_bytes: int
    """IP and UDP."""
    ways_lost: Dict[int, str]
    """Codes of "destination unreachable" that routers send for want of a way; firewalls send the others."""
    address_at: int
    """Where the address stands in a socket address."""


_FAMILIES = {
    int(socket.AF_INET): Family(
        socket.IPPROTO_IP, 11, 10, 14, 28, {0: "network", 1: "host", 5: "source route", 6: "network", 7: "host"}, 4
    ),
    int(socket.AF_INET6): Family(socket.IPPROTO_IPV6, 25, 23, 24, 48, {0: "network", 2: "scope", 3: "host"}, 8),
}
_NEVER_DIVIDE = 2
"""IP_PMTUDISC_DO"""
_ERRORS_OF_ICMP = (2, 3)
"""SO_EE_ORIGIN_ICMP and SO_EE_ORIGIN_ICMP6"""


# --------------------------------------------------------------------------- ports


def reach(targets: Sequence[Plain], key: str, limit_s: float) -> List[Plain]:
    """Try all ports of all targets (host, name, ports) side by side; what does not end in time is told so.

    Each answer: name (what the resolver said of it), tries (port, outcome, ip, detail, answered), ip, local, interface,
    source.
    """
    answers = [_late(target) for target in targets[:TARGETS]]
    work = [partial(_reach_one, target, answer, key) for target, answer in zip(targets, answers)]
    _side_by_side(work, min(limit_s, REACH_S))
    return [json.loads(json.dumps(answer)) for answer in answers]  # a late thread may still write into the first


def _late(target: Plain) -> Plain:
    return {"tries": [{"port": int(port), "outcome": "deadline"} for port in target["ports"]]}


def _side_by_side(work: Sequence[Callable[[], None]], limit_s: float) -> None:
    """Do all at the same time; those that take longer are left to end by themselves."""
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _reach_one(target: Plain, answer: Plain, key: str) -> None:
    host, name = str(target["host"]), target.get("name")
    found: Dict[str, Any] = {}
    _side_by_side([partial(_resolve_into, found, each) for each in {host, str(name or host)}], RESOLVE_S)
    if name:
        answer["name"] = _resolved(str(name), found.get(str(name)))
    addresses = found.get(host, "timed out")
    if isinstance(addresses, str):
        answer["tries"] = [{**each, "outcome": "unresolved", "detail": addresses} for each in answer["tries"]]
        return
    sources: List[str] = []
    work = [partial(_try_into, tried, addresses, key, sources) for tried in answer["tries"]]
    answer.update(_way(_used(answer["tries"], addresses)))
    _side_by_side(work, CONNECT_S + ANSWER_S)
    answer.update(_way(_used(answer["tries"], addresses)))
    answer.update({"source": sources[0]} if sources else {})


def _resolve_into(found: Dict[str, Any], host: str) -> None:
    found[host] = resolve(host)


def _try_into(tried: Plain, addresses: Sequence[Any], key: str, sources: List[str]) -> None:
    tried.update(try_port(addresses, tried["port"], key, sources))


def _resolved(name: str, said: Any) -> Plain:
    if isinstance(said, list):
        return {"name": name, "addresses": [address[0] for _family, address in said]}
    return {"name": name, "addresses": [], "error": said or "timed out"}


def resolve(host: str) -> Any:
    """[(family, socket address)], or the resolver's words."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte, a label that is too long
        return str(error.args[-1] if error.args else error)
    return list(dict.fromkeys((int(entry[0]), entry[4]) for entry in found))


def _used(tries: Sequence[Plain], addresses: Sequence[Any]) -> str:
    """The address that led to the peer, else the first."""
    return next((str(t["ip"]) for t in tries if t["outcome"] == "open"), str(addresses[0][1][0]))


def _way(ip: str) -> Plain:
    """How packets to an address leave, as the kernel would route them now."""
    try:
        route = netlink.route(ip)
    except (OSError, ValueError):
        return {"ip": ip}
    own = {name: route[name] for name in ("interface", "source") if route.get(name)}
    return {"ip": ip, "local": bool(route.get("local")), **own}


def try_port(addresses: Sequence[Any], port: int, key: str, sources: List[str]) -> Plain:
    """One port, by one address after the other until one is open; else what the first one met."""
    met: List[Plain] = []
    for family, address in addresses[:ADDRESSES]:
        met.append(_attempt(family, (address[0], port, *address[2:]), key, sources))
        if met[-1]["outcome"] == "open":
            break
    return next((each for each in met if each["outcome"] == "open"), met[0])


def _attempt(family: int, address: Tuple[Any, ...], key: str, sources: List[str]) -> Plain:
    told = {"ip": str(address[0])}
    if family not in _FAMILIES:
        return {**told, "outcome": "error", "detail": f"address family {family}"}
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_S)
        with contextlib.suppress(OSError):
            sock.setsockopt(_FAMILIES[family].level, _FAMILIES[family].receive_errors, 1)
        try:
            sock.connect(address)
        except OSError as error:
            return {**told, **failure(sock, error, str(address[0]))}
        sources.append(str(sock.getsockname()[0]))
        return {**told, **_greeted(sock, key)}


def _greeted(sock: socket.socket, key: str) -> Plain:
    """Who answers on an open connection? Its token is in ``answered``; the head knows whose it is."""
    sock.settimeout(ANSWER_S)
    try:
        sock.sendall(b"%s %s talk\n" % (MAGIC, key.encode()))
        said = sock.recv(256)
    except socket.timeout:
        return {"outcome": "wrong-answer", "detail": "it took the connection and said nothing"}
    except OSError as error:
        return {"outcome": "reset", "detail": _name(error)}
    if not said:
        return {"outcome": "wrong-answer", "detail": "it closed the connection without an answer"}
    return {"outcome": "open", "answered": said.strip().decode("ascii", "replace")[:64]}


def failure(sock: socket.socket, error: OSError, target: str) -> Plain:
    """What a connect that failed met: the kernel's errno, and the ICMP message behind it where there was one."""
    words = "ETIMEDOUT" if isinstance(error, socket.timeout) else _name(error)
    icmp = _icmp(sock)
    if icmp is None:
        return {"outcome": _OUTCOMES.get(words, "error"), "detail": words}
    code, sender = icmp
    lost = _FAMILIES[sock.family].ways_lost.get(code)
    own = sender and _way(sender).get("local") and not _way(target).get("local")
    if lost == "host" and own:
        return {"outcome": "down", "detail": "no neighbour has that address"}
    if lost and sender != target:
        return {"outcome": "unroutable", "detail": f"{sender} says: {lost} unreachable"}
    return {"outcome": "rejected", "detail": f"by {sender}"}


def _icmp(sock: socket.socket) -> Optional[Tuple[int, str]]:
    """(code, sender) of the "destination unreachable" that ended a connect, from the socket's error queue; or None."""
    family = _FAMILIES[sock.family]
    sock.setblocking(False)
    try:
        _data, parts, _flags, _from = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
    except OSError:
        return None
    for level, kind, data in parts:
        if (level, kind) == (family.level, family.receive_errors) and len(data) >= 16:
            origin, _kind, code = struct.unpack_from("=4xBBB", data)
            packed = data[16 + family.address_at :][: 16 if sock.family == socket.AF_INET6 else 4]
            if origin in _ERRORS_OF_ICMP:
                return code, socket.inet_ntop(sock.family, packed)
    return None


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))


# --------------------------------------------------------------------------- measurements


class Talk:
    """An open connection to a peer's port, on which it answers lines."""

    def __init__(self, target: Plain, key: str, word: str, limit_s: float) -> None:
        """Raises OSError where the peer does not answer, or another one does."""
        self._sock = socket.create_connection((str(target["ip"]), int(target["port"])), min(CONNECT_S, limit_s))
        self._sock.settimeout(min(ANSWER_S, limit_s))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._sock.makefile("rb")
        if self.ask(b"%s %s %s\n" % (MAGIC, key.encode(), word.encode())) != str(target["token"]).encode() + b"\n":
            self.close()
            raise OSError("the peer does not answer")

    def ask(self, line: bytes) -> bytes:
        """The answer to one line; b"" when the peer has gone. Raises OSError."""
        self._sock.sendall(line)
        return self._lines.readline(1 << 16)

    def answer(self) -> Any:
        """The next line, as JSON. Raises OSError, ValueError."""
        return json.loads(self._lines.readline(1 << 16) or b"null")

    @property
    def sock(self) -> socket.socket:
        return self._sock

    def close(self) -> None:
        """Close at once; what was not yet sent is thrown away."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._lines.close()
        self._sock.close()


def measure(target: Plain, key: str, limit_s: float, stream: bool = True) -> Plain:
    """The way to one peer (ip, port, udp, token), in this direction; what cannot be told has its reason in ``unread``."""
    until = time.monotonic() + limit_s
    unread: Dict[str, List[str]] = {}
    found: Plain = {}
    try:
        talk = Talk(target, key, "talk", limit_s)
    except OSError as error:
        why = ["timed-out" if isinstance(error, socket.timeout) else "unreadable", f"{target['ip']}: {error}"]
        fields = ("latency_min_s", "latency_median_s", "path_mtu_bytes", "path_mtu_known", "sent_gbit_s")
        return {"unread": dict.fromkeys(fields, why)}
    try:
        _note(found, unread, ("latency_min_s", "latency_median_s"), lambda: latency(talk))
        _note(found, unread, ("path_mtu_bytes", "path_mtu_known"), lambda: path_mtu(target, key, talk, until))
    finally:
        talk.close()
    if stream:
        _note(found, unread, ("sent_gbit_s",), lambda: throughput(target, key, until))
    else:
        unread["sent_gbit_s"] = list(NO_STREAM)
    return {**found, "unread": unread}


def _note(found: Plain, unread: Plain, fields: Sequence[str], work: Callable[[], Plain]) -> None:
    """Put in what ``work`` found, or why it found nothing."""
    try:
        found.update(work())
    except (OSError, ValueError, TypeError, KeyError) as error:
        kind = "timed-out" if isinstance(error, socket.timeout) else "unreadable"
        unread.update({field: [kind, str(error) or type(error).__name__] for field in fields})


def latency(talk: Talk) -> Plain:
    """Shortest and median round trip in seconds. Raises OSError."""
    trips = []
    for _ in range(PINGS):
        started = time.perf_counter()
        if talk.ask(b"p\n") != b"p\n":
            raise OSError("the peer ended the connection")
        trips.append(time.perf_counter() - started)
    return {"latency_min_s": round(min(trips), 7), "latency_median_s": round(statistics.median(trips), 7)}


def path_mtu(target: Plain, key: str, talk: Talk, until: float) -> Plain:
    """The longest packet that arrives undivided, and whether the kernel knows that. Raises OSError where none arrives."""
    ip = str(target["ip"])
    found = socket.getaddrinfo(ip, int(target["udp"]), type=socket.SOCK_DGRAM)[0]
    family = _FAMILIES[int(found[0])]
    with socket.socket(found[0], socket.SOCK_DGRAM) as sock:
        sock.setsockopt(family.level, family.mtu_discover, _NEVER_DIVIDE)
        sock.connect(found[4])
        ladder = _Ladder(sock, family, key, talk, until)
        if not ladder.arrives(SMALLEST_BYTES):
            raise OSError("no datagram arrived at all: UDP is blocked between the two")
        longest = ladder.longest()
        return {"path_mtu_bytes": longest, "path_mtu_known": ladder.known() <= longest}


class _Ladder:
    """Datagrams of many lengths; the peer tells over TCP which of them arrived, so that only this direction counts."""

    def __init__(self, sock: socket.socket, family: Family, key: str, talk: Talk, until: float) -> None:
        self._sock, self._family, self._talk, self._until = sock, family, talk, until
        self._id = os.urandom(6).hex().encode()
        self._head = b"%s %s " % (key.encode(), self._id)

    def known(self) -> int:
        """Path MTU as the kernel has it: the interface's, a route's, or what ICMP said."""
        return int(self._sock.getsockopt(self._family.level, self._family.mtu))

    def arrives(self, length: int) -> bool:
        """Does one of three datagrams of this length arrive?"""
        return any(length in self._heard([length]) for _ in range(3))

    def longest(self) -> int:
        """The longest that arrives; one above SMALLEST_BYTES is looked for up to what the kernel takes for possible."""
        low, high = SMALLEST_BYTES, self.known()
        if self.arrives(high):
            return high
        while low < high and time.monotonic() < self._until:
            high = min(high, self.known())
            rungs = spread(low, high)
            heard = self._heard(rungs)
            low = max([low, *heard & set(rungs)])
            high = min([high, *(rung - 1 for rung in rungs if rung > low)])
        return low

    def _heard(self, lengths: Sequence[int]) -> Set[int]:
        """Those of these lengths that have arrived, of two datagrams each, within HEARD_S."""
        for length in [*lengths, *lengths]:
            with contextlib.suppress(OSError):  # EMSGSIZE: known() says less now; ECONNREFUSED of an earlier one
                self._sock.send(self._head.ljust(length - self._family.header_bytes, b"."))
        until = time.monotonic() + HEARD_S
        heard: Set[int] = set()
        while not set(lengths) <= heard and time.monotonic() < until:
            said = json.loads(self._talk.ask(b"s %s\n" % self._id) or b"[]")
            heard = {int(n_bytes) + self._family.header_bytes for n_bytes in said}
            time.sleep(0.01)
        return heard


def spread(low: int, high: int) -> List[int]:
    """At most RUNGS lengths above ``low`` up to ``high``, evenly spread, the last one included."""
    steps = min(RUNGS, high - low)
    return sorted({low + (high - low) * step // steps for step in range(1, steps + 1)}) if steps > 0 else []


def throughput(target: Plain, key: str, until: float) -> Plain:
    """What one TCP stream brings to the peer in SAMPLE_S. Raises OSError where nothing arrives."""
    limit_s = max(0.1, until - time.monotonic())
    talk = Talk(target, key, "sink", limit_s)
    try:
        said = _stream(talk, min(STREAM_S, limit_s))
    finally:
        talk.close()
    if not said or not said["seconds"]:
        raise socket.timeout("a stream was sent and nothing of it arrived")
    return {"sent_gbit_s": round(8e-9 * said["bytes"] / said["seconds"], 6)}


def _stream(talk: Talk, limit_s: float) -> Any:
    """Send until the peer tells what arrived, or the time is over."""
    until = time.monotonic() + limit_s
    block = bytes(1 << 18)
    talk.sock.setblocking(False)
    poll = select.poll()
    poll.register(talk.sock, select.POLLIN | select.POLLOUT)
    while time.monotonic() < until:
        events = poll.poll(max(0, int(1000 * (until - time.monotonic()))))
        if any(event & (select.POLLIN | select.POLLERR | select.POLLHUP) for _fd, event in events):
            talk.sock.settimeout(ANSWER_S)
            return talk.answer()
        with contextlib.suppress(BlockingIOError):
            talk.sock.send(block)
    return None

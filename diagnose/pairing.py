"""Pairing: what a node does in tests between nodes. It listens, and it tries others that listen.

The head asks by words (``ANSWERS``); what a word needs of an earlier one is in the session's ``state`` and ends with it.
Every port is open for those alone who know the session's key. Runs on the node: the standard library alone.
"""

import contextlib
import errno
import fcntl
import hmac
import json
import socket
import struct
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Set

from ddp_doctor import meeting, reaching, verbs_tools
from ddp_doctor.collect import netlink
from ddp_doctor.reaching import MAGIC, SAMPLE_S

HELLO_S = 5.0
"""Who connects and says nothing for so long is left; so is one who falls silent."""
SERVED = 64
"""Connections that are served at a time; others wait in the kernel's queue."""
BACKLOG = 4096
"""The default of net.core.somaxconn since Linux 5.4: all nodes of a large job come to the master at once."""
PORTS = 16
"""No request opens more."""
LINE_BYTES = 256
IDS = 4096
"""Peers whose datagrams are remembered."""
DRAIN_S = 2.0
_GET_MTU = 0x8921
"""SIOCGIFMTU of netdevice(7)."""

State = Dict[str, Any]
Plain = Dict[str, Any]


class Listeners:
    """Open ports of this node, each served by a thread that ends with the process, or by ``close``."""

    def __init__(self, key: str, token: str) -> None:
        self._key, self._token = key.encode(), token.encode()
        self._slots = threading.BoundedSemaphore(SERVED)
        self._seen: Dict[bytes, Set[int]] = {}
        """Who sent datagrams -> their lengths, those that arrived."""
        self._sockets: List[socket.socket] = []
        self._closed = False

    def tcp(self, port: int = 0) -> int:
        """Listen on a port, or one that the kernel picks as it does for NCCL and Gloo; returns it. Raises OSError."""
        listener = _wildcard(socket.SOCK_STREAM, port)
        try:
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return self._start(listener, self._accept)

    def udp(self) -> int:
        """Hear datagrams on a port that the kernel picks; returns it. Raises OSError."""
        return self._start(_wildcard(socket.SOCK_DGRAM, 0), self._hear)

    def close(self) -> None:
        """Close all ports. A thread that waits on one is woken by shutdown(2), not by close(2)."""
        self._closed = True
        for sock in self._sockets:
            with contextlib.suppress(OSError):  # ENOTCONN of a datagram socket, which wakes its reader all the same
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._sockets.clear()

    def _start(self, sock: socket.socket, serve: Callable[[socket.socket], None]) -> int:
        self._sockets.append(sock)
        port = int(sock.getsockname()[1])
        threading.Thread(target=serve, args=(sock,), daemon=True).start()
        return port

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(0.05)  # no file descriptor is left: one will come back; or it is closed
                continue
            self._slots.acquire()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """One visitor: who does not know the key gets no answer."""
        try:
            with connection, contextlib.suppress(OSError, ValueError):
                connection.settimeout(HELLO_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with connection.makefile("rb") as lines:
                    words = lines.readline(LINE_BYTES).split()
                    if len(words) == 3 and words[0] == MAGIC and hmac.compare_digest(words[1], self._key):
                        connection.sendall(self._token + b"\n")
                        (_sink if words[2] == b"sink" else self._talk)(connection, lines)
        finally:
            self._slots.release()

    def _talk(self, connection: socket.socket, lines: BinaryIO) -> None:
        """Answer each line until the visitor goes: "p" by "p", "s ID" by the lengths of the datagrams of that ID."""
        for line in iter(lambda: lines.readline(LINE_BYTES), b""):
            words = line.split()
            heard = sorted(self._seen.get(words[1], ())) if len(words) == 2 else []
            connection.sendall(b"p\n" if words == [b"p"] else json.dumps(heard).encode() + b"\n")

    def _hear(self, sock: socket.socket) -> None:
        while not self._closed:
            try:
                data = sock.recv(1 << 16)
            except OSError:
                continue
            words = data[:LINE_BYTES].split(b" ", 2)
            if len(words) == 3 and hmac.compare_digest(words[0], self._key):
                if len(self._seen) >= IDS:
                    del self._seen[next(iter(self._seen))]
                self._seen.setdefault(words[1], set()).add(len(data))


def _sink(connection: socket.socket, lines: BinaryIO) -> None:
    """Swallow what comes for SAMPLE_S from its first bytes on, tell how much that was, and wait for the visitor to go."""
    buffer = bytearray(1 << 20)
    first: Optional[float] = None
    taken, took_s = 0, 0.0
    while first is None or took_s < SAMPLE_S:
        n_bytes = connection.recv_into(buffer)
        now = time.monotonic()
        if not n_bytes:
            break
        taken += n_bytes if first is not None else 0
        first = now if first is None else first
        took_s = now - first
        connection.settimeout(SAMPLE_S)
    connection.sendall(json.dumps({"bytes": taken, "seconds": took_s}).encode() + b"\n")
    until = time.monotonic() + DRAIN_S
    while time.monotonic() < until and connection.recv_into(buffer):
        pass


def _wildcard(kind: int, port: int) -> socket.socket:
    """A socket bound to all addresses, of both families where this node has IPv6. Raises OSError."""
    try:
        return _bound(socket.AF_INET6, kind, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT):
            raise
    return _bound(socket.AF_INET, kind, "", port)


def _bound(family: int, kind: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


# --------------------------------------------------------------------------- words


def listen(request: Plain, state: State) -> Plain:
    """Open ``ports`` TCP ports, one for datagrams, and ``master_port`` where one is named; those of before are closed."""
    unlisten(request, state)
    listeners = state["listeners"] = Listeners(str(request["key"]), str(request["token"]))
    wanted = request.get("master_port")
    master = _open(listeners, int(wanted)) if wanted is not None else None
    ports = [listeners.tcp() for _ in range(min(int(request.get("ports", 1)), PORTS))]
    try:
        datagrams: Optional[int] = listeners.udp()
    except OSError:
        datagrams = None
    return {"ports": ports, "udp": datagrams, "master": master, "addresses": own_addresses()}


def _open(listeners: Listeners, port: int) -> Plain:
    """The master's port: opened, or why not."""
    try:
        listeners.tcp(port)
    except (OSError, OverflowError) as error:
        code = getattr(error, "errno", None)
        outcomes = {errno.EADDRINUSE: "in-use", errno.EACCES: "prohibited", errno.EPERM: "prohibited"}
        words = errno.errorcode.get(code or 0, str(error))
        return {"port": port, "outcome": outcomes.get(code or 0, "error"), "detail": words}
    return {"port": port, "outcome": "opened"}


def unlisten(request: Plain, state: State) -> Plain:
    """Close the ports, and end what serves a meeting."""
    listeners = state.pop("listeners", None)
    if listeners is not None:
        listeners.close()
    meeting.leave(state)
    verbs_tools.leave(state)
    return {}


def own_addresses() -> List[Plain]:
    """Addresses that others could use: ip, interface, mtu_bytes; none where the kernel does not say."""
    try:
        names = {row["index"]: name for name, row in netlink.links().items()}
        found = [row for row in netlink.addresses() if row["scope"] != "host" and row["index"] in names]
    except OSError:
        return []
    return [{"ip": r["ip"], "interface": names[r["index"]], "mtu_bytes": mtu_of(names[r["index"]])} for r in found]


def mtu_of(interface: str) -> Optional[int]:
    """MTU of an interface in bytes, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        answer = fcntl.ioctl(sock, _GET_MTU, struct.pack("16si12x", interface.encode()[:15], 0))
        return int(struct.unpack_from("16si", answer)[1])
    return None


def reach(request: Plain, state: State) -> Plain:
    """Try the ports of all ``targets`` at the same time."""
    found = reaching.reach(request["targets"], str(request["key"]), float(request["limit_s"]))
    for answer in found:
        answer["mtu_bytes"] = mtu_of(answer["interface"]) if answer.get("interface") else None
    return {"targets": found}


def measure(request: Plain, state: State) -> Plain:
    """Latency and path MTU to one peer, and a sample of the throughput where it is wanted."""
    throughput = bool(request.get("throughput", True))
    return reaching.measure(request["target"], str(request["key"]), float(request["limit_s"]), throughput)


ANSWERS: Dict[str, Callable[[Plain, State], Plain]] = {
    "listen": listen,
    "unlisten": unlisten,
    "reach": reach,
    "measure": measure,
    "store": meeting.serve_store,
    "join": meeting.join_store,
    "rdma-serve": verbs_tools.serve,
    "rdma-visit": verbs_tools.visit,
}
"""Word -> what answers it."""

LASTING = frozenset(("listen", "unlisten", "store", "rdma-serve"))
"""Words that leave something in the process; the others may be answered by a child of it."""

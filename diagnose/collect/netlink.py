"""Netlink: links, addresses, neighbours and routes as the kernel itself tells them.

One small reader of rtnetlink(7) instead of ip(8) and psutil, which are not on every node: only here do an address's
scope, a neighbour's state and the errno of a route come from one source. Message layouts: include/uapi/linux/
netlink.h, rtnetlink.h, if_link.h, if_addr.h and neighbour.h. Everything here reads; nothing is sent to the network.
Each function raises OSError where the kernel (or a sandbox) refuses. They are called through ``host.ask``.
"""

import errno
import os
import socket
import struct
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddp_doctor.numerals import whole

_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_GETLINK, _GETADDR, _GETROUTE, _GETNEIGH = 18, 22, 26, 30
_BUFFER_BYTES = 1 << 18
"""The kernel fills at most 32 KiB a message of a dump."""
_LIMIT_S = 2.0

_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host"}
_FAMILIES = {int(socket.AF_INET): "ipv4", int(socket.AF_INET6): "ipv6"}
_NEIGHBOUR_STATES = {
    0x01: "INCOMPLETE",
    0x02: "REACHABLE",
    0x04: "STALE",
    0x08: "DELAY",
    0x10: "PROBE",
    0x20: "FAILED",
    0x40: "NOARP",
    0x80: "PERMANENT",
}
_LOCAL_ROUTE = 2
"""RTN_LOCAL"""


def links() -> Dict[str, Dict[str, Any]]:
    """Interface name -> index, flags and kind: the kernel's own word (veth, bridge, tun, ...), "" for a device's driver."""
    found = {}
    for body in ask(_GETLINK, _DUMP, struct.pack("=BxHiII", 0, 0, 0, 0, 0)):
        index, flags = struct.unpack_from("=4xiI", body)
        attributes = parse_attributes(body[16:])
        info = parse_attributes(attributes.get(18, b""))  # IFLA_LINKINFO holds IFLA_INFO_KIND
        row = {"index": index, "flags": flags, "kind": _string(info.get(1, b""))}
        found[_string(attributes.get(3, b""))] = row
    return found


def addresses() -> List[Dict[str, Any]]:
    """Addresses of all interfaces: index, family, ip, prefix, scope."""
    found = []
    for body in ask(_GETADDR, _DUMP, struct.pack("=BBBBI", 0, 0, 0, 0, 0)):
        family, prefix, _flags, scope, index = struct.unpack_from("=BBBBI", body)
        attributes = parse_attributes(body[8:])
        ip = attributes.get(2, attributes.get(1))  # IFA_LOCAL; IFA_ADDRESS is the peer on a point-to-point link
        if family in _FAMILIES and ip:
            row = {"index": index, "family": _FAMILIES[family], "ip": socket.inet_ntop(family, ip), "prefix": prefix}
            found.append({**row, "scope": _SCOPES.get(scope, str(scope))})
    return found


def neighbour(ip: str) -> str:
    """State of ``ip`` in the neighbour table; "" when it has no entry."""
    family, packed, _ = _parsed(ip)
    for body in ask(_GETNEIGH, _DUMP, struct.pack("=BxxxiHBB", family, 0, 0, 0, 0)):
        state = struct.unpack_from("=BxxxiHBB", body)[2]
        if body[0] == family and parse_attributes(body[12:]).get(1) == packed:  # NDA_DST
            return _NEIGHBOUR_STATES.get(state, "")
    return ""


def route(ip: str) -> Dict[str, Any]:
    """How a packet to ``ip`` would leave: interface, source, gateway, local; or ``error``, the errno's name."""
    family, packed, scope = _parsed(ip)
    header = struct.pack("=BBBBBBBBI", family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    wanted = header + attribute(1, packed) + (attribute(4, struct.pack("=i", scope)) if scope else b"")
    try:
        (body,) = ask(_GETROUTE, 0, wanted)
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, str(error))}
    attributes = parse_attributes(body[12:])
    return {
        "interface": _name(attributes.get(4)),
        "source": _address(family, attributes.get(7)),
        "gateway": _address(family, attributes.get(5)) or _via(attributes.get(18)),
        "local": body[7] == _LOCAL_ROUTE,
    }


def ask(kind: int, flags: int, request: bytes) -> Iterator[bytes]:
    """Send one request; yield the body of each answer. Raises OSError with the kernel's errno."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as sock:  # 0: NETLINK_ROUTE
        sock.settimeout(_LIMIT_S)
        sock.send(struct.pack("=IHHII", 16 + len(request), kind, _REQUEST | flags, 1, 0) + request)
        while True:
            for answer, body in _messages(sock.recv(_BUFFER_BYTES)):
                if answer == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, os.strerror(code))
                if answer == _DONE:
                    return
                yield body
                if not flags & _DUMP:
                    return


def _messages(data: bytes) -> Iterator[Tuple[int, bytes]]:
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if length < 16:
            return
        yield kind, data[16:length]
        data = data[length + 3 & ~3 :]


def parse_attributes(data: bytes) -> Dict[int, bytes]:
    """Type -> value of a row of attributes; the two highest bits of a type are flags."""
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[length + 3 & ~3 :]
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, to stand last in a request: it is not padded."""
    return struct.pack("=HH", 4 + len(value), kind) + value


def _parsed(ip: str) -> Tuple[int, bytes, int]:
    """(family, packed address, interface index of its scope). Raises OSError for what is no address."""
    plain, _, scope = ip.partition("%")
    family = socket.AF_INET6 if ":" in plain else socket.AF_INET
    index = whole(scope, 10) if scope else 0
    return int(family), socket.inet_pton(family, plain), socket.if_nametoindex(scope) if index is None else index


def _address(family: int, packed: Optional[bytes]) -> Optional[str]:
    return socket.inet_ntop(family, packed) if packed else None


def _via(value: Optional[bytes]) -> Optional[str]:
    """RTA_VIA: a gateway of the other family, its family in front."""
    return _address(struct.unpack_from("=H", value)[0], value[2:]) if value else None


def _name(index: Optional[bytes]) -> Optional[str]:
    return socket.if_indextoname(struct.unpack("=I", index)[0]) if index else None


def _string(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "backslashreplace")

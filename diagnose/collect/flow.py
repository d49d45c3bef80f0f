"""Flow control of an Ethernet port that carries RoCE: what priority its traffic has, and whether it is lossless.

The kernel tells it to everybody by rtnetlink's data centre bridging messages, which are what dcb(8) and mlnx_qos ask.
Layouts: include/uapi/linux/dcbnl.h and ethtool.h.
"""

import errno
import os
import struct
from typing import Any, Dict, Iterator, Sequence, Tuple

from ddp_doctor.collect import netlink
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

_GETDCB = 78
_IEEE_GET = 21
_IFNAME, _IEEE = 1, 13
"""DCB_ATTR_IFNAME, DCB_ATTR_IEEE"""
_PFC, _APP_TABLE = 2, 3
"""DCB_ATTR_IEEE_PFC, DCB_ATTR_IEEE_APP_TABLE"""
_SELECTOR_DSCP = 5
"""IEEE_8021QAZ_APP_SEL_DSCP"""
_SIOCETHTOOL, _GPAUSEPARAM = 0x8946, 0x12

LIMIT_S = 3.0
"""The kernel answers at once, unless an adapter's firmware does not."""

Flow = Dict[str, str]


def ask(netdevs: Sequence[str]) -> Dict[str, Any]:
    """Interface -> its settings, or {"error": text}. Called through ``host.ask``."""
    return {name: _settings(name) for name in netdevs}


def _settings(name: str) -> Dict[str, str]:
    try:
        found = parse_ieee(_ieee(name))
    except OSError as error:
        found = {"error": os.strerror(error.errno) if error.errno else str(error)}
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            found = {"error": "its driver has no data centre bridging"}
    return {**found, **_pauses(name)}


def _ieee(name: str) -> bytes:
    """The attribute DCB_ATTR_IEEE of an interface. Raises OSError: EOPNOTSUPP where the driver has no such thing."""
    header = struct.pack("=BBH", 0, _IEEE_GET, 0)
    (body,) = netlink.ask(_GETDCB, 0, header + netlink.attribute(_IFNAME, name.encode() + b"\0"))
    return netlink.parse_attributes(body[4:]).get(_IEEE, b"")


def parse_ieee(data: bytes) -> Flow:
    """pfc: priorities with priority flow control, "3" or "3,4", "" for none; trust: "dscp" or "pcp".

    mlx5 trusts DSCP from the first DSCP entry of the application table on (mlx5e_dcbnl_ieee_setapp); so do drivers with
    no other way to tell.
    """
    found: Flow = {}
    settings = netlink.parse_attributes(data)
    if len(settings.get(_PFC, b"")) >= 2:
        enabled = settings[_PFC][1]
        found["pfc"] = ",".join(str(priority) for priority in range(8) if enabled >> priority & 1)
    if _APP_TABLE in settings:
        dscp = any(selector == _SELECTOR_DSCP for selector in _selectors(settings[_APP_TABLE]))
        found["trust"] = "dscp" if dscp else "pcp"
    return found


def _selectors(table: bytes) -> Iterator[int]:
    """struct dcb_app begins with its selector; the rows all have the type DCB_ATTR_IEEE_APP."""
    while len(table) >= 5:
        length = struct.unpack_from("=H", table)[0]
        if length < 5:
            return
        yield table[4]
        table = table[length + 3 & ~3 :]


def _pauses(name: str) -> Flow:
    """rx_pause, tx_pause: "on" or "off" (ETHTOOL_GPAUSEPARAM); nothing where the driver does not say."""
    import array
    import fcntl
    import socket

    buffer = array.array("B", struct.pack("=IIII", _GPAUSEPARAM, 0, 0, 0))
    request = struct.pack("16sP8x", name.encode()[:15], buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request)
        except OSError:
            return {}
    _, _, rx, tx = struct.unpack("=IIII", buffer.tobytes())
    return {"rx_pause": "on" if rx else "off", "tx_pause": "on" if tx else "off"}


def ecn(host: Host, netdev: str) -> Flow:
    """ecn_np, ecn_rp: priorities on which DCQCN notifies and reacts; NVIDIA's own driver alone shows them in sysfs."""
    found: Flow = {}
    for side in ("np", "rp"):
        folder = f"/sys/class/net/{netdev}/ecn/roce_{side}/enable"
        try:
            names: Tuple[str, ...] = tuple(name for name in host.list(folder) if name.isdigit())
            found[f"ecn_{side}"] = ",".join(name for name in names if host.read(f"{folder}/{name}").strip() == "1")
        except Unreadable:
            continue
    return found

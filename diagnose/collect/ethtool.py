"""Ethtool: a driver's own statistics by ioctl(SIOCETHTOOL), as ``ethtool -S`` shows them. Nothing is changed by it.

Numbers and layouts: include/uapi/linux/ethtool.h and sockios.h. They are called through ``host.ask``.
"""

import array
import errno
import fcntl
import os
import socket
import struct
from typing import Any, Dict, Sequence

_SIOCETHTOOL = 0x8946
_GSSET_INFO, _GSTRINGS, _GSTATS = 0x37, 0x1B, 0x1D
_STATS_SET = 1
"""ETH_SS_STATS"""
_NAME_BYTES = 32
"""ETH_GSTRING_LEN"""
MOST = 100_000
"""No driver has more statistics: mlx5 with 128 queues has some 10 000."""


def statistics(names: Sequence[str]) -> Dict[str, Any]:
    """Interface -> statistics by name, none where its driver has none, or the kernel's words ("No such device")."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return {name: _words_or_statistics(sock, name) for name in names}


def _words_or_statistics(sock: socket.socket, name: str) -> Any:
    try:
        return statistics_of(sock, name)
    except (OSError, struct.error) as error:
        if isinstance(error, OSError) and error.errno == errno.EOPNOTSUPP:
            return {}
        return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


def statistics_of(sock: socket.socket, name: str) -> Dict[str, int]:
    """Statistics of one interface. Raises OSError: it has none, or has gone."""
    count = _count(sock, name)
    if not 0 < count <= MOST:
        return {}
    labels = ask(sock, name, struct.pack("=III", _GSTRINGS, _STATS_SET, count), count * _NAME_BYTES)[12:]
    values = ask(sock, name, struct.pack("=II", _GSTATS, count), count * 8)[8:]
    texts = (labels[i * _NAME_BYTES : (i + 1) * _NAME_BYTES].split(b"\0")[0] for i in range(count))
    return {text.decode("ascii", "backslashreplace").strip(): v for text, v in zip(texts, _numbers(values, count))}


def _numbers(values: bytes, count: int) -> Sequence[int]:
    return struct.unpack_from(f"={count}Q", values)


def _count(sock: socket.socket, name: str) -> int:
    """ETHTOOL_GSSET_INFO: command, reserved, mask of the sets, and the size of each set that there is."""
    answer = ask(sock, name, struct.pack("=IIQ", _GSSET_INFO, 0, 1 << _STATS_SET), 4)
    mask, count = struct.unpack_from("=QI", answer, 8)
    return int(count) if mask else 0


def ask(sock: socket.socket, name: str, request: bytes, room_bytes: int) -> bytes:
    """One ioctl with ``struct ifreq``: the name, and a pointer to the request, behind which the kernel writes its answer."""
    buffer = array.array("B", request + bytes(room_bytes))
    address, _ = buffer.buffer_info()
    fcntl.ioctl(sock, _SIOCETHTOOL, struct.pack("16sP16x", os.fsencode(name)[:15], address))
    return buffer.tobytes()

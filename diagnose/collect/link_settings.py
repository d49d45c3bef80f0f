"""What a card and its transceiver are set to: rings, forward error correction, the module's own memory.

Read by ioctl(SIOCETHTOOL); numbers and layouts: include/uapi/linux/ethtool.h. Nothing is changed by it. They are called
through ``host.ask``.
"""

import os
import socket
import struct
from typing import Any, Callable, Dict, List, Sequence

from ddp_doctor.collect.ethtool import ask

_GRINGPARAM, _GFECPARAM, _GMODULEINFO, _GMODULEEEPROM = 0x10, 0x50, 0x42, 0x43
_FEC = ("none", "auto", "off", "rs", "baser", "llrs")
"""ETHTOOL_FEC_*_BIT, in order."""
_SFF_8472, _SFF_8636, _SFF_8436 = 2, 3, 4
"""ETH_MODULE_*: the layout of the module's memory."""
_CMIS = (0x18, 0x19, 0x1E, 0x1F)
"""SFF-8024 identifiers of modules with the Common Management Interface: QSFP-DD, OSFP, QSFP+ and SFP-DD with CMIS."""
KINDS = {
    0x03: "SFP", 0x0C: "QSFP", 0x0D: "QSFP+", 0x11: "QSFP28", 0x18: "QSFP-DD", 0x19: "OSFP", 0x1E: "QSFP+ with CMIS",
    0x1F: "SFP-DD with CMIS", 0x0B: "DWDM-SFP",
}  # fmt: skip
"""SFF-8024, table 4-1."""
_MOST_BYTES = 1024

Plain = Dict[str, Any]


def read(names: Sequence[str], modules: bool) -> Dict[str, Plain]:
    """Interface -> ring, fec, module, each a value or {"error": the kernel's words, "errno": number}.

    modules: also ask the transceivers, which takes some 10 ms each.
    """
    wanted: Dict[str, Callable[[socket.socket, str], Any]] = {"ring": ring, "fec": fec}
    if modules:
        wanted["module"] = module
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return {name: {what: _guarded(look, sock, name) for what, look in wanted.items()} for name in names}


def _guarded(look: Callable[[socket.socket, str], Any], sock: socket.socket, name: str) -> Any:
    try:
        return look(sock, name)
    except OSError as error:
        return {"error": os.strerror(error.errno or 0), "errno": error.errno}
    except (struct.error, IndexError) as error:
        return {"error": f"answer of another form: {error}", "errno": None}


def ring(sock: socket.socket, name: str) -> Plain:
    """rx, rx_max, tx, tx_max in descriptors. Raises OSError: the driver does not tell."""
    answer = struct.unpack("=9I", ask(sock, name, struct.pack("=I", _GRINGPARAM), 32)[:36])
    return {"rx_max": answer[1], "tx_max": answer[4], "rx": answer[5], "tx": answer[8]}


def fec(sock: socket.socket, name: str) -> List[str]:
    """Forward error correction in force. Raises OSError."""
    _, active, _, _ = struct.unpack("=4I", ask(sock, name, struct.pack("=I", _GFECPARAM), 12)[:16])
    return [word for bit, word in enumerate(_FEC) if active >> bit & 1]


def module(sock: socket.socket, name: str) -> Plain:
    """The module as plain ``Module`` data. Raises OSError: none is plugged in, or the driver or the user may not look."""
    _, layout, size = struct.unpack("=3I", ask(sock, name, struct.pack("=I", _GMODULEINFO), 40)[:12])
    size = min(size, _MOST_BYTES)
    head = struct.pack("=4I", _GMODULEEEPROM, 0, 0, size)
    return parse_module(layout, ask(sock, name, head, size)[16 : 16 + size])


def parse_module(layout: int, memory: bytes) -> Plain:
    """What a module's memory tells. Raises IndexError for one that is too short."""
    kind = memory[0]
    known: Plain = {"kind": KINDS.get(kind, f"type {kind:#04x}")}
    if kind in _CMIS:
        return {**known, **_texts(memory, 129, 148), **_temperature(memory, 14, None)}
    if layout in (_SFF_8636, _SFF_8436):
        return {**known, **_texts(memory, 148, 168), **_temperature(memory, 22, 512)}
    known.update(_texts(memory, 20, 40))
    diagnostics = len(memory) >= 512 and memory[92] & 0x40  # SFF-8472: monitoring is implemented; page A2h follows A0h
    return {**known, **(_temperature(memory, 256 + 96, 256) if layout == _SFF_8472 and diagnostics else {})}


def _texts(memory: bytes, vendor: int, part: int) -> Plain:
    """Vendor and part number, sixteen characters each."""
    return {"vendor": _word(memory[vendor : vendor + 16]), "part": _word(memory[part : part + 16])}


def _word(data: bytes) -> str:
    return "".join(chr(byte) for byte in data if 32 <= byte < 127).strip()


def _temperature(memory: bytes, at: int, thresholds: Any) -> Plain:
    """Degrees in 1/256; 0 is what a cable without a sensor says. The alarm's and the warning's upper limits are 4 bytes apart."""
    raw = _signed(memory, at)
    if raw == 0:
        return {}
    found: Plain = {"temperature_c": round(raw / 256, 1)}
    if thresholds is not None and len(memory) >= thresholds + 6:
        alarm, warning = _signed(memory, thresholds), _signed(memory, thresholds + 4)
        found.update({"temperature_high_alarm_c": alarm / 256} if alarm > 0 else {})
        found.update({"temperature_high_warning_c": warning / 256} if warning > 0 else {})
    return found


def _signed(memory: bytes, at: int) -> int:
    if len(memory) < at + 2:
        raise IndexError(f"{len(memory)} bytes")
    return int.from_bytes(memory[at : at + 2], "big", signed=True)

"""A PCI function's configuration space: what stands in its PCI Express and ACS capabilities.

Without CAP_SYS_ADMIN the kernel gives the first 64 bytes alone (drivers/pci/pci-sysfs.c, pci_read_config).
"""

import re
from typing import Dict, Optional, Tuple

from ddp_doctor.facts import Reason, Unread

HEADER_BYTES, PCI_BYTES = 64, 256
"""Of the standard header, and of the space that PCI had before PCI Express extended it to 4096."""
_STATUS, _HAS_CAPABILITIES, _FIRST = 0x06, 0x10, 0x34
_EXPRESS, _DEVICE_CONTROL, _FIRST_EXTENDED = 0x10, 0x08, 0x100
_ACS, _ACS_CONTROL, _REDIRECTS = 0x000D, 0x06, 0x04 | 0x08
"""Names and numbers of include/uapi/linux/pci_regs.h: PCI_ACS_RR (requests) and PCI_ACS_CR (completions)."""

Values = Dict[str, Optional[int]]


def as_hex(text: str) -> str:
    """A file's bytes as hexadecimal digits, out of the text that the door makes of them (backslashreplace)."""
    plain = re.sub(r"\\x([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found.group(1), 16)), text)
    return plain.encode("utf-8", "surrogateescape").hex()


def parse_config(digits: str) -> Tuple[Values, Unread]:
    """acs_redirect, max_read_request_bytes, max_payload_bytes and relaxed_ordering, and why what is None is."""
    try:
        space = bytes.fromhex(digits.strip())
    except ValueError:
        return _none(Reason("unreadable", "the configuration space is damaged in this recording"))
    if len(space) < HEADER_BYTES:
        return _none(Reason("unreadable", f"the configuration space has {len(space)} bytes"))
    if space[:4] == b"\xff\xff\xff\xff":
        return _none(Reason("unreadable", "the device does not answer: its configuration space is all ones"))
    if len(space) == HEADER_BYTES:
        return _none(
            Reason(
                "no-rights",
                f"needs root with CAP_SYS_ADMIN: the kernel shows others {HEADER_BYTES} bytes of the configuration space",
            )
        )
    values: Values = {}
    why: Unread = {}
    _express(space, values, why)
    _acs(space, values, why)
    return values, why


_EXPRESS_FIELDS = ("max_read_request_bytes", "max_payload_bytes", "relaxed_ordering")


def _none(reason: Reason) -> Tuple[Values, Unread]:
    fields = ("acs_redirect", *_EXPRESS_FIELDS)
    return dict.fromkeys(fields), dict.fromkeys(fields, reason)


def _express(space: bytes, values: Values, why: Unread) -> None:
    """The device control register: two sizes of 128 bytes times a power of two, and a bit."""
    at = _capability(space, _EXPRESS)
    if at is None:
        why.update(dict.fromkeys(_EXPRESS_FIELDS, Reason("not-applicable", "no PCI Express device")))
        return
    control = _word(space, at + _DEVICE_CONTROL)
    values["max_read_request_bytes"] = 128 << (control >> 12 & 7)
    values["max_payload_bytes"] = 128 << (control >> 5 & 7)
    values["relaxed_ordering"] = bool(control & 0x10)


def _acs(space: bytes, values: Values, why: Unread) -> None:
    at = _extended(space, _ACS)
    if at is None:
        why["acs_redirect"] = Reason("not-applicable", "no ACS capability")
    else:
        values["acs_redirect"] = bool(_word(space, at + _ACS_CONTROL) & _REDIRECTS)


def _capability(space: bytes, wanted: int) -> Optional[int]:
    """Where a capability begins; a list that runs in circles ends when every place was seen."""
    at = space[_FIRST] & 0xFC if space[_STATUS] & _HAS_CAPABILITIES else 0
    seen = set()
    while HEADER_BYTES <= at < PCI_BYTES - 12 and at + 12 <= len(space) and at not in seen:
        if space[at] == wanted:
            return at
        seen.add(at)
        at = space[at + 1] & 0xFC
    return None


def _extended(space: bytes, wanted: int) -> Optional[int]:
    """Where an extended capability begins."""
    at = _FIRST_EXTENDED
    seen = set()
    while _FIRST_EXTENDED <= at <= len(space) - 8 and at not in seen:
        header = int.from_bytes(space[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == wanted:
            return at
        seen.add(at)
        at = header >> 20 & 0xFFC
    return None


def _word(space: bytes, at: int) -> int:
    return int.from_bytes(space[at : at + 2], "little")

"""What the IOMMU does with the requests of GPUs."""

import re
from typing import Optional, Sequence, Tuple

from ddp_doctor.facts import Reason
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

_UNITS, _GROUPS, _CMDLINE = "/sys/class/iommu", "/sys/kernel/iommu_groups", "/proc/cmdline"
TRANSLATED = ("DMA", "DMA-FQ")
"""Types of a group's default domain: with its own addresses, flushed at once or later (Documentation/ABI, iommu_groups)."""
_WORD = re.compile(r"(intel_iommu|amd_iommu|iommu|iommu\.passthrough|iommu\.strict|pci)=\S*")


def state(host: Host, groups: Sequence[str]) -> Tuple[str, str]:
    """("off" | "passthrough" | "translated" | "on", what says so). groups: those of the GPUs. Raises Unreadable.

    "on" is an IOMMU whose mode nothing tells: before Linux 5.11 groups have no type for ordinary users.
    """
    units = host.list(_UNITS) if host.exists(_UNITS) else ()
    if not units:
        if not host.exists("/sys/kernel"):
            raise Unreadable(Reason("absent", "/sys/kernel: No such file or directory"))
        return "off", f"{_UNITS} is empty"
    types = [(group, _type(host, group)) for group in groups]
    found = next(((group, kind) for group, kind in types if kind in TRANSLATED), None)
    if found is not None:
        return "translated", f"{_GROUPS}/{found[0]}/type: {found[1]}"
    known = [(group, kind) for group, kind in types if kind == "identity"]
    if known:
        return "passthrough", f"{_GROUPS}/{known[0][0]}/type: identity"
    words = optional(lambda: iommu_words(host.read(_CMDLINE, clean=_kept)), {}, "cmdline") or ()
    return by_words(words) or ("on", f"{_UNITS}: {', '.join(units[:4])}")


def _type(host: Host, group: str) -> Optional[str]:
    return optional(lambda: host.read(f"{_GROUPS}/{group}/type").strip(), {}, "type") if group.isdigit() else None


def _kept(cmdline: str) -> str:
    """What concerns this of the kernel's command line: other words may hold secrets."""
    return " ".join(iommu_words(cmdline))


def iommu_words(cmdline: str) -> Tuple[str, ...]:
    """Settings of the IOMMU and of PCI on the kernel's command line."""
    return tuple(word for word in cmdline.split() if _WORD.fullmatch(word))


def by_words(words: Sequence[str]) -> Optional[Tuple[str, str]]:
    """What the command line asks for; None where it says nothing of the mode."""
    for word in reversed(words):
        if word in ("iommu=pt", "iommu.passthrough=1", "iommu.passthrough=y", "iommu.passthrough=on"):
            return "passthrough", f"{word} on the kernel's command line"
        if word in ("iommu=nopt", "iommu.passthrough=0", "iommu.passthrough=n", "iommu.passthrough=off"):
            return "translated", f"{word} on the kernel's command line"
    return None

"""The PCI bus as sysfs shows it. It is not namespaced: a container sees all of the machine's functions."""

import re
from typing import Iterator, List, NamedTuple, Optional, Tuple

from ddp_doctor.facts import PciGpu
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers (pci.ids). An NVIDIA card's audio is 0x0403, an NVSwitch 0x0680."""
LENT_DRIVERS = ("vfio-pci", "pci-stub", "pciback", "xen-pciback")
"""Drivers that hold a function for a virtual machine: the host's jobs cannot use it."""

ACCELERATOR_VENDORS = {"0x1002": "amd", "0x1da3": "habana", "0x1ed5": "mthreads", "0x19e5": "huawei"}
ACCELERATOR_CLASSES = ("0x0302", "0x0380", "0x1200")
"""3D and display controllers and processing accelerators: Instinct, Gaudi, Ascend ... A VGA controller (0x0300) is left
out: a Radeon card and the graphics inside a processor look alike here, and a server's BMC is one."""
INTEL, INTEL_MAX = "0x8086", range(0x0BD0, 0x0BDC)
"""Device ids of the Data Center GPU Max series (pci.ids, Ponte Vecchio); other 0x0380 of Intel sit in laptops."""


class Function(NamedTuple):
    """One PCI function: address, class ("0x0302": base and sub-class), vendor and device id."""

    pci: str
    kind: str
    vendor: str
    device: str


def address(text: str) -> str:
    """Write a PCI address as sysfs does: "00000000:07:00.0" and "0000:07:00.0" are "0000:07:00.0".

    What is not an address comes back in lower case as it is.
    """
    found = re.fullmatch(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", text.strip().lower())
    if not found:
        return text.strip().lower()
    domain, bus, device, function = found.groups(default="0")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


def functions(host: Host) -> Tuple[Function, ...]:
    """Display controllers and accelerators on the bus. Raises Unreadable when there is no bus to look at."""
    return tuple(_functions(host, host.list(DEVICES)))


def _functions(host: Host, names: Tuple[str, ...]) -> Iterator[Function]:
    for pci in names:
        kind = identity(host, pci, "class")[:6]
        if kind in GPU_CLASSES + ACCELERATOR_CLASSES:
            yield Function(pci, kind, identity(host, pci, "vendor"), identity(host, pci, "device"))


def nvidia_gpus(host: Host, found: Tuple[Function, ...]) -> Tuple[PciGpu, ...]:
    """GPUs that an NVIDIA driver would drive here: none lent to a virtual machine, no virtual function."""
    gpus: List[PciGpu] = []
    for function in found:
        if function.vendor != NVIDIA or function.kind not in GPU_CLASSES:
            continue
        bound = driver(host, function.pci)
        if bound not in LENT_DRIVERS and not is_virtual(host, function.pci):
            gpus.append(PciGpu(function.pci, function.device, bound, numa_node(host, function.pci)))
    return tuple(gpus)


NVSWITCH_CLASS, NVSWITCH_DRIVER, FIRST_NVSWITCH = "0x0680", "nvidia-nvswitch", 0x1AC0
"""Class "other bridge", which NVIDIA's old chipsets also have, with ids below 0x1000 (https://pci-ids.ucw.cz/read/PC/10de);
the first switch, that of the DGX-2, is 0x1ac2."""


def nvswitches(host: Host) -> Tuple[str, ...]:
    """NVSwitches of this host on the bus, none lent to a virtual machine. Raises Unreadable without a bus."""
    names = [name for name in host.list(DEVICES) if identity(host, name, "class")[:6] == NVSWITCH_CLASS]
    switches = [name for name in names if identity(host, name, "vendor") == NVIDIA and is_nvswitch(host, name)]
    return tuple(name for name in switches if driver(host, name) not in LENT_DRIVERS)


def is_nvswitch(host: Host, name: str) -> bool:
    return driver(host, name) == NVSWITCH_DRIVER or int(identity(host, name, "device") or "0", 16) >= FIRST_NVSWITCH


def other_vendors(found: Tuple[Function, ...]) -> Tuple[str, ...]:
    """Other vendors' accelerators that a training job could use: "amd 0000:03:00.0"."""
    named = [(ACCELERATOR_VENDORS.get(f.vendor) or _intel(f), f) for f in found if f.kind in ACCELERATOR_CLASSES]
    return tuple(f"{vendor} {function.pci}" for vendor, function in named if vendor)


def _intel(function: Function) -> Optional[str]:
    return "intel" if function.vendor == INTEL and int(function.device or "0", 16) in INTEL_MAX else None


def numa_node(host: Host, pci: str) -> Optional[int]:
    """NUMA node of a function; None where the firmware names none (-1) or the file cannot be read."""
    text = optional(lambda: host.read(f"{DEVICES}/{pci}/numa_node"), {}, "numa_node")
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text.strip()) else None


def identity(host: Host, pci: str, name: str) -> str:
    """An id such as 0x10de; "" where it cannot be read: one bad function hides no other."""
    text = optional(lambda: host.read(f"{DEVICES}/{pci}/{name}", limit_bytes=64), {}, name)
    return text.strip().lower() if text and re.fullmatch(r"0x[0-9a-fA-F]+\s*", text) else ""


def driver(host: Host, pci: str) -> Optional[str]:
    """Bound driver; "" when none is bound."""
    try:
        return host.link(f"{DEVICES}/{pci}/driver").rstrip("/").rsplit("/", 1)[-1]
    except Unreadable as error:
        return "" if error.reason.kind == "absent" else None


def is_virtual(host: Host, pci: str) -> bool:
    """A virtual function (vGPU), seen from the machine that owns the physical one."""
    return optional(lambda: host.link(f"{DEVICES}/{pci}/physfn"), {}, "physfn") is not None

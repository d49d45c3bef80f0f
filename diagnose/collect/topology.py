"""Topology: how GPUs and NICs hang on the PCIe tree, as sysfs shows it, and what lies on the way between them.

The tree is read from the real paths of the functions ("pci0000:00/0000:00:01.0/0000:01:00.0"): no lspci is needed.
"""

import re
from dataclasses import replace
from typing import Dict, Iterator, Optional, Sequence, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect import pci
from ddp_doctor.collect.iommu import state
from ddp_doctor.collect.pci_config import as_hex, parse_config
from ddp_doctor.facts import PciDevice, Reason, Topology, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

_NIC_CLASSES, _BRIDGE_CLASS = ("0x02", "0x0c06"), "0x0604"
"""Network controllers (InfiniBand among them, 0x0207), InfiniBand on a serial bus, PCI-to-PCI bridges:
https://pci-ids.ucw.cz/read/PD"""
_UNKNOWN_WIDTHS = (0, 63, 255)
"""What the kernel writes for a link that it knows nothing of (drivers/pci/pci-sysfs.c, PCIE_LNK_WIDTH_UNKNOWN), and 63 where a
device has fallen off the bus: all bits of the width are ones."""


def read(host: Host, ask: Ask) -> Topology:
    """GPUs, NICs and NVSwitches with the bridges above them. /sys is not namespaced: a container sees all of the machine's."""
    unread: Unread = {}
    ends = optional(lambda: tuple(_ends(host)), unread, "devices")
    devices = None if ends is None else (*ends, *_bridges(host, ends))
    if devices is None:
        unread["host_bridges"] = unread["devices"]
    gpus = tuple(device for device in devices or () if device.kind == "gpu")
    iommu = optional(lambda: state(host, _groups(devices or ())), unread, "iommu")
    if iommu is None:
        unread["iommu_said_by"] = unread["iommu"]
    return Topology(
        devices=devices,
        host_bridges=None if devices is None else _host_bridges(devices),
        iommu=iommu[0] if iommu else None,
        iommu_said_by=iommu[1] if iommu else None,
        peer_memory=optional(lambda: _peer_memory(host, bool(gpus) or devices is None), unread, "peer_memory"),
        gdrcopy=optional(lambda: _gdrcopy(host), unread, "gdrcopy"),
        unread=unread,
    )


def _groups(devices: Sequence[PciDevice]) -> Tuple[str, ...]:
    """IOMMU groups of the GPUs; on a node without any those of the NICs."""
    groups = [
        dict.fromkeys(d.iommu_group for d in devices if d.kind == kind and d.iommu_group) for kind in ("gpu", "nic")
    ]
    return tuple(groups[0] or groups[1])


def _host_bridges(devices: Sequence[PciDevice]) -> Dict[str, Optional[int]]:
    """Host bridge -> NUMA node, which is that of everything below it; None where nothing below it names one."""
    found: Dict[str, Optional[int]] = {}
    for device in devices:
        if device.host_bridge is not None and found.get(device.host_bridge) is None:
            found[device.host_bridge] = device.numa_node
    return found


# --------------------------------------------------------------------------- devices


def _ends(host: Host) -> Iterator[PciDevice]:
    for name in host.list(pci.DEVICES):
        kind = _kind(host, name)
        if kind:
            driver = pci.driver(host, name)
            virtual = pci.is_virtual(host, name)
            rdma, interfaces = (_members(host, name, folder) for folder in ("infiniband", "net"))
            if driver not in pci.LENT_DRIVERS and (not virtual or (kind == "nic" and rdma)):
                yield replace(_device(host, name, kind, driver), rdma=rdma, interfaces=interfaces)


def _kind(host: Host, name: str) -> str:
    """gpu, nic or nvswitch; "" for what has no part in this."""
    kind = pci.identity(host, name, "class")
    if kind.startswith(_NIC_CLASSES):
        return "nic"
    if kind[:6] in (*pci.GPU_CLASSES, pci.NVSWITCH_CLASS) and pci.identity(host, name, "vendor") == pci.NVIDIA:
        if kind[:6] in pci.GPU_CLASSES:
            return "gpu"
        return "nvswitch" if pci.is_nvswitch(host, name) else ""
    return ""


def _members(host: Host, name: str, folder: str) -> Tuple[str, ...]:
    """RDMA devices or network interfaces of a function, which has no such folder when it has none."""
    return optional(lambda: host.list(f"{pci.DEVICES}/{name}/{folder}"), {}, folder) or ()


def _bridges(host: Host, ends: Sequence[PciDevice]) -> Tuple[PciDevice, ...]:
    """Every bridge above one of the ends, once; a function that is its own parent in a damaged tree ends the walk."""
    names = dict.fromkeys(parent for end in ends for parent in end.parents or ())
    return tuple(_device(host, name, "bridge", pci.driver(host, name)) for name in names)


def _device(host: Host, name: str, kind: str, driver: Optional[str]) -> PciDevice:
    """One function; what cannot be read of it is a reason, and hides nothing else."""
    unread: Unread = {}
    folder = f"{pci.DEVICES}/{name}"
    if driver is None:
        unread["driver"] = Reason("unreadable", f"{folder}/driver cannot be read")
    place = optional(lambda: parse_place(host.realpath(folder)), unread, "parents")
    if place is None:
        unread["host_bridge"] = unread["parents"]
    vendor, device = (pci.identity(host, name, field)[2:] for field in ("vendor", "device"))
    if not (vendor and device):
        unread["vendor_device"] = Reason("unreadable", f"{folder}: vendor or device is no number")
    config = _config(host, name, kind, unread)
    return PciDevice(
        pci=name,
        kind=kind,
        vendor_device=f"{vendor}:{device}" if vendor and device else None,
        host_bridge=place[0] if place else None,
        parents=place[1] if place else None,
        driver=driver,
        numa_node=optional(lambda: parse_numa(host.read(f"{folder}/numa_node")), unread, "numa_node"),
        speed_gt_s=_link(host, folder, "current_link_speed", unread, "speed_gt_s"),
        speed_max_gt_s=_link(host, folder, "max_link_speed", unread, "speed_max_gt_s"),
        width=_whole(_link(host, folder, "current_link_width", unread, "width")),
        width_max=_whole(_link(host, folder, "max_link_width", unread, "width_max")),
        iommu_group=optional(lambda: host.link(f"{folder}/iommu_group").rsplit("/", 1)[-1], unread, "iommu_group"),
        acs_redirect=config.get("acs_redirect"),  # type: ignore[arg-type]
        max_read_request_bytes=config.get("max_read_request_bytes"),
        max_payload_bytes=config.get("max_payload_bytes"),
        relaxed_ordering=config.get("relaxed_ordering"),  # type: ignore[arg-type]
        unread=unread,
    )


def parse_place(path: str) -> Tuple[str, Tuple[str, ...]]:
    """(host bridge, bridges down to the device) of a function's real path. Raises Unreadable.

    Some host bridges hang below others (a volume management device, Hyper-V's bus): the last one counts.
    """
    parts = path.split("/")
    roots = [n for n, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)]
    if not roots:
        raise Unreadable(Reason("absent", f"{path[-80:]}: no PCI host bridge above it"))
    above = parts[roots[-1] + 1 : -1]
    return parts[roots[-1]], tuple(
        part for part in above if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)
    )


def parse_numa(text: str) -> int:
    """NUMA node of a function. Raises Unreadable, absent for -1."""
    if text.strip() == "-1":
        raise Unreadable(Reason("absent", "the firmware names no NUMA node for it"))
    if not re.fullmatch(r"\d{1,6}", text.strip(), re.ASCII):
        raise Unreadable(Reason("unreadable", f"NUMA node {text.strip()[:40]!r} is no number"))
    return int(text)


def parse_link(text: str) -> float:
    """The number of "8.0 GT/s PCIe" or "16". Raises Unreadable: for what the kernel calls unknown too."""
    found = re.match(r"(\d{1,3}(?:\.\d)?)(?: GT/s.*)?$", text.strip(), re.ASCII)
    if not found or ("GT" not in text and int(float(found.group(1))) in _UNKNOWN_WIDTHS):
        raise Unreadable(Reason("absent", f"the kernel does not know this link: {text.strip()[:40]!r}"))
    return float(found.group(1))


def _link(host: Host, folder: str, name: str, unread: Unread, field: str) -> Optional[float]:
    return optional(lambda: parse_link(host.read(f"{folder}/{name}")), unread, field)


def _whole(number: Optional[float]) -> Optional[int]:
    return None if number is None else int(number)


_CONFIG_FIELDS = ("acs_redirect", "max_read_request_bytes", "max_payload_bytes", "relaxed_ordering")


def _config(host: Host, name: str, kind: str, unread: Unread) -> Dict[str, Optional[int]]:
    """What stands in the configuration space of NICs and bridges; ACS of bridges alone."""
    if kind not in ("nic", "bridge"):
        unread.update(dict.fromkeys(_CONFIG_FIELDS, Reason("not-asked", "its configuration space is not read")))
        return {}
    reasons: Unread = {}
    text = optional(lambda: host.read(f"{pci.DEVICES}/{name}/config", clean=as_hex), reasons, "config")
    if text is None:
        unread.update(dict.fromkeys(_CONFIG_FIELDS, reasons["config"]))
        return {}
    values, why = parse_config(text)
    if kind == "nic":
        values["acs_redirect"], why["acs_redirect"] = None, Reason("not-applicable", "no bridge")
    unread.update(why)
    return values


# --------------------------------------------------------------------------- GPUDirect


_PEERMEM = (
    "/sys/module/nvidia_peermem",
    "/sys/module/nv_peer_mem",
    "/sys/kernel/mm/memory_peers/nv_mem",
    "/sys/kernel/mm/memory_peers/nv_mem_nc",
    "/sys/kernel/mm/memory_peers/nvidia-peermem",
)
"""Where NCCL (src/transport/net_ib.cc, ncclIbGdrSupport) and NVSHMEM look for it, and the older module's name."""
DMABUF_DRIVER, DMABUF_KERNEL = 515, (5, 12)
"""dma-buf wants the open kernel module, which came with R515, and Linux 5.12 (NVIDIA GPU Operator, GPUDirect RDMA)."""


def _peer_memory(host: Host, has_gpu: bool) -> str:
    """nvidia-peermem, dma-buf or "". Raises Unreadable, where it cannot be told too."""
    if not has_gpu:
        raise Unreadable(Reason("not-applicable", "no NVIDIA GPU on the bus"))
    if any(host.exists(path) for path in _PEERMEM):
        return "nvidia-peermem"
    module = host.read("/proc/driver/nvidia/version")
    return "dma-buf" if has_dmabuf(module, host.read("/proc/sys/kernel/osrelease")) else ""


def has_dmabuf(module: str, kernel: str) -> bool:
    """Do the driver ("... Open Kernel Module ... 535.104.05 ...") and the kernel's release have dma-buf for GPUs?

    Raises Unreadable where a distribution's older kernel may have got it from a newer one.
    """
    version = re.search(r"Kernel Module(?: for \S+)?\s+(\d{3,4})\.", module)
    release = re.match(r"(\d{1,3})\.(\d{1,3})", kernel)
    if version is None or release is None:
        raise Unreadable(Reason("unreadable", "the driver's or the kernel's version cannot be read"))
    if "Open Kernel Module" not in module or int(version.group(1)) < DMABUF_DRIVER:
        return False
    if (int(release.group(1)), int(release.group(2))) >= DMABUF_KERNEL:
        return True
    if re.search(r"\.el\d|\.amzn", kernel):
        raise Unreadable(
            Reason("unreadable", f"whether kernel {kernel.strip()[:40]} has dma-buf for RDMA cannot be told")
        )
    return False


def _gdrcopy(host: Host) -> bool:
    return host.exists("/dev/gdrdrv") and host.exists("/sys/module/gdrdrv")

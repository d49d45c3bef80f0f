"""Virtualisation: on what kind of virtual machine this node runs, if it is one."""

import re
from typing import Optional, Sequence

from ddp_doctor.facts import Reason
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

_DMI = "/sys/class/dmi/id/"
_MODELS = (
    (r"^KVM\b|OpenStack|oVirt|RHEV|KubeVirt|Alibaba Cloud ECS", "kvm"),
    (r"^QEMU\b|^Bochs\b", "qemu"),
    (r"VMware", "vmware"),
    (r"VirtualBox|innotek", "oracle"),
    (r"^Parallels", "parallels"),
    (r"^Xen\b|HVM domU", "xen"),
    (r"^BHYVE", "bhyve"),
    (r"Apple Virtualization", "apple"),
    (r"Microsoft Corporation.*\bVirtual Machine\b", "microsoft"),
)
"""Vendor and product as DMI shows them; after systemd's src/basic/virt.c (dmi_vendor_table)."""
_CLOUDS = ((r"Amazon EC2", "amazon"), (r"Google", "google"))
"""Vendors that write the same name on virtual machines and on bare metal."""
_CLOCKS = (("kvm-clock", "kvm"), ("hyperv", "microsoft"), ("xen", "xen"), ("vmware", "vmware"))


def virtualisation(host: Host) -> str:
    """kvm, vmware, microsoft, xen, wsl, amazon, google, firecracker ...; "vm" of unknown kind; "" on bare metal.

    Raises Unreadable where nothing says either.
    """
    if re.search("microsoft", _text(host, "/proc/sys/kernel/osrelease"), re.IGNORECASE):
        return "wsl"
    if _text(host, "/sys/hypervisor/type") == "xen":
        return "" if "control_d" in _text(host, "/proc/xen/capabilities") else "xen"
    dmi = [_text(host, _DMI + name) for name in ("sys_vendor", "product_name", "board_vendor", "bios_vendor")]
    flag = hypervisor_flag(_text(host, "/proc/cpuinfo", 8 * 2**20))
    found = by_dmi(" ".join(dmi[:2]), dmi, flag) or (by_firmware(host) if flag or flag is None else "")
    if found is not None:
        return found
    if not any(dmi) and flag is None:
        raise Unreadable(Reason("absent", "neither DMI nor the processor's flags are shown here"))
    return "vm" if flag else ""


def hypervisor_flag(cpuinfo: str) -> Optional[bool]:
    """Does the processor say that it runs below a hypervisor (CPUID 1, ECX bit 31)? None: not an x86 processor."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return " hypervisor" in flags.group(1) if flags else None


def by_dmi(model: str, names: Sequence[str], flag: Optional[bool]) -> Optional[str]:
    """Kind of machine by its DMI names; None where they do not tell. ``model``: vendor and product in one text."""
    for pattern, kind in _MODELS:
        if any(re.search(pattern, text) for text in [model, *names]):
            return kind
    for pattern, kind in _CLOUDS:
        if re.search(pattern, model):
            metal = flag is False or (flag is None and re.search(r"\bmetal\b", model))
            return "" if metal else kind
    return None


def by_firmware(host: Host) -> Optional[str]:
    """Kind by what a machine without DMI shows: device tree, ACPI's maker, the clocks that the hypervisor offers."""
    tree = _text(host, "/proc/device-tree/hypervisor/compatible")
    if tree:
        return next(
            (kind for name, kind in (("kvm", "kvm"), ("xen", "xen"), ("vmware", "vmware")) if name in tree), "vm"
        )
    if "FIRECK" in _text(host, "/sys/firmware/acpi/tables/FACP"):  # OEM ID in the table's header; root alone reads it
        return "firecracker"
    clocks = _text(host, "/sys/devices/system/clocksource/clocksource0/available_clocksource")
    return next((kind for name, kind in _CLOCKS if name in clocks), None)


def _text(host: Host, path: str, limit_bytes: int = 2**16) -> str:
    return (optional(lambda: host.read(path, limit_bytes), {}, "") or "").strip()

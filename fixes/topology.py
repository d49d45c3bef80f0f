"""Remedies for the way between GPUs and network cards."""

import re
import shlex
from itertools import combinations
from typing import Iterator, List, Optional, Tuple

from ddp_doctor import topology as tree
from ddp_doctor.facts import Env, Gpus, Os, PciDevice, Topology
from ddp_doctor.fixes._node import engine_of
from ddp_doctor.model import Remedy, Verdict, command, export, say, unset

NCCL_URL = "https://docs.nvidia.com/deeplearning/nccl/archives/nccl_273/user-guide/docs/troubleshooting.html"
PEERMEM_URL = "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html"
PARAMETERS_URL = "https://www.kernel.org/doc/html/latest/admin-guide/kernel-parameters.html"


def acs_between_gpus(topology: Topology, os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    """Switch ACS off; or keep NCCL off this way."""
    ours = [place.device for place in tree.gpus_of(topology, gpus)]
    yield from _without_acs(topology, list(combinations(ours, 2)), os)
    yield _without_peer_copies()


def acs_between_gpu_and_nic(
    topology: Topology, os: Optional[Os] = None, gpus: Optional[Gpus] = None
) -> Iterator[Remedy]:
    """Switch ACS off."""
    nics = tree.rdma_nics(topology)
    yield from _without_acs(
        topology, [(place.device, nic) for place in tree.gpus_of(topology, gpus) for nic in nics], os
    )


def _without_acs(topology: Topology, pairs: List[Tuple[PciDevice, PciDevice]], os: Optional[Os]) -> Iterator[Remedy]:
    """For good in the firmware or by the kernel's command line; until reboot by setpci on the ports that redirect."""
    firmware = say(
        f"{_where(os)}Switch off ACS in the machine's firmware (often below PCIe or IO virtualisation).",
        who="root", scope="this node", risk=APART, see=NCCL_URL,
    )  # fmt: skip
    yield Remedy("Switch ACS off in the firmware", (firmware,))
    ports = [bridge.pci for bridge in tree.ports_between(topology, pairs) if bridge.acs_redirect]
    yield from _at_ports(ports, os)
    text = f"Add 'pci=disable_acs_redir={';'.join(ports)}' to the kernel's command line and reboot."
    yield Remedy(
        "Have the kernel leave it off", (say(text, who="root", scope="this node", risk=APART, see=PARAMETERS_URL),)
    )


APART = "devices behind these ports are no longer kept apart: not on a host of virtual machines"


def _at_ports(ports: List[str], os: Optional[Os]) -> Iterator[Remedy]:
    """A command for each port that redirects."""
    commands = tuple(
        command(f"setpci -s {shlex.quote(port)} ECAP_ACS+0x6.w=0000", who="root", scope="this node until reboot",
                undo="reboot", risk=APART, see=NCCL_URL)
        for port in ports
    )  # fmt: skip
    if commands:
        yield Remedy(f"{_where(os)}Switch ACS off at the ports that redirect, until the next boot", commands)


def _where(os: Optional[Os]) -> str:
    return "On the machine itself, not in this container: " if engine_of(os) else ""


def iommu_translates(topology: Topology, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Passthrough; or off in the firmware; or no redirection above the GPUs; or no peer copies."""
    text = f"{_where(os)}Add iommu=pt to the kernel's command line and reboot."
    undo = "take it out again and reboot"
    pt = say(text, who="root", scope="this node", undo=undo, see=PARAMETERS_URL)
    yield Remedy("Set the IOMMU to passthrough", (pt,))
    off = f"{_where(os)}Switch VT-d (Intel) or the IOMMU (AMD) off in the firmware, where no virtual machines run."
    yield Remedy("Switch it off", (say(off, who="root", scope="this node", see=NCCL_URL),))
    above = {bridge for device in topology.devices or () if device.kind == "gpu" for bridge in device.parents or ()}
    yield from _at_ports([d.pci for d in topology.devices or () if d.pci in above and d.acs_redirect], os)
    yield _without_peer_copies()


def _without_peer_copies() -> Remedy:
    step = export(
        "NCCL_P2P_DISABLE", "1", scope="this job", risk="slower: GPUs exchange data through the machine's memory"
    )
    return Remedy("Until then, if jobs hang: take no peer copies", (step,))


def gpu_without_near_nic(env: Optional[Env] = None) -> Iterator[Remedy]:
    """Find the card that is missing among those that NCCL uses."""
    if env is not None and env.get("NCCL_IB_HCA"):
        text = "Look whether NCCL_IB_HCA leaves out the card that is next to this GPU (run with -v for the table)."
        yield Remedy("Let NCCL use the card", (say(text, scope="this job"),))
    look = command("ibstat", who="user", scope="this node")
    text = "Compare with a healthy node which cards are there, have a link and are ACTIVE; look for the missing one in lspci."
    yield Remedy("Find the missing card", (look, say(text, who="cluster admin")))


def gpu_far_from_nics() -> Iterator[Remedy]:
    """Spread the cards over the sockets."""
    text = "Put the RDMA cards into slots of both sockets, or bring up those that are down; run with -v for the table."
    yield Remedy("Give each socket a card", (say(text, who="cluster admin", scope="this node"),))


def nic_link_degraded(topology: Topology, finding: Verdict) -> Iterator[Remedy]:
    """Look at both ends, reseat."""
    yield from _seat(topology, finding)


def nic_link_below_siblings(topology: Topology, finding: Verdict) -> Iterator[Remedy]:
    """Look at both ends, reseat."""
    yield from _seat(topology, finding)


def _seat(topology: Topology, finding: Verdict) -> Iterator[Remedy]:
    nic = _card(topology, finding.subject)
    look = (command(f"lspci -vvv -s {shlex.quote(nic.pci)}", who="root", scope="this node"),) if nic else ()
    text = "Seat the card and its riser anew, and compare slot and PCIe settings of the firmware with those of a healthy node."
    yield Remedy("Look at the link (LnkCap, LnkSta), then at the slot", (*look, say(text, who="cluster admin")))


def gpudirect_rdma_missing(
    os: Optional[Os] = None, gpus: Optional[Gpus] = None, env: Optional[Env] = None
) -> Iterator[Remedy]:
    """Load nvidia-peermem; or have dma-buf."""
    if env is not None and env.get("NCCL_DMABUF_ENABLE"):
        yield Remedy("Let NCCL use dma-buf", (unset("NCCL_DMABUF_ENABLE", scope="this job"),))
    if engine_of(os) == "kubernetes":
        text = "Install the driver with the open kernel module (dma-buf), or set driver.rdma.enabled=true in the GPU Operator."
        yield Remedy(
            "Have the GPU Operator do it", (say(text, who="cluster admin", scope="all nodes", see=PEERMEM_URL),)
        )
        return
    where = "On the machine itself, not in this container: load" if engine_of(os) else "Load"
    load = command(
        "modprobe nvidia-peermem", who="root", scope="this node until reboot", undo="modprobe -r nvidia-peermem"
    )
    stay = say(
        "Put the line nvidia-peermem into /etc/modules-load.d/nvidia-peermem.conf to have it after a reboot.",
        who="root",
    )
    yield Remedy(f"{where} nvidia-peermem", (load, stay))
    if gpus is None or gpus.kernel_module_open is not True:
        text = "Install the driver's open kernel module (Turing and newer GPUs, R515 and newer) on Linux 5.12 or newer."
        yield Remedy(
            "Use dma-buf, which NVIDIA recommends", (say(text, who="root", scope="this node", see=PEERMEM_URL),)
        )


def max_read_request_low(topology: Topology, finding: Verdict) -> Iterator[Remedy]:
    """By the number that setpci writes into bits 12 to 14 of the device control register."""
    nic, wanted = _card(topology, finding.subject), re.match(r"(\d{3,4}) bytes", finding.expected)
    if nic is None or wanted is None:
        return
    code = (int(wanted.group(1)) // 128).bit_length() - 1
    text = f"setpci -s {shlex.quote(nic.pci)} CAP_EXP+8.w={code << 12:04x}:7000"
    step = command(
        text,
        who="root",
        scope="this node until reboot",
        undo="reboot",
        see="https://community.mellanox.com/docs/DOC-2496",
    )
    yield Remedy("Let the card read more at once, or set it in the firmware", (step,))


def relaxed_ordering_differs(topology: Topology, finding: Verdict) -> Iterator[Remedy]:
    """Set like the siblings."""
    nic = _card(topology, finding.subject)
    if nic is not None:
        text = f"setpci -s {shlex.quote(nic.pci)} CAP_EXP+8.w=0010:0010"
        step = command(text, who="root", scope="this node until reboot", undo="reboot")
        yield Remedy("Set it as its siblings have it", (step,))


def _card(topology: Topology, name: str) -> Optional[PciDevice]:
    """The card with that RDMA device."""
    return next((nic for nic in tree.rdma_nics(topology) if name in nic.rdma), None)

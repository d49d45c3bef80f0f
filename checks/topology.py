"""Checks of the way between GPUs and network cards: the PCIe tree, what redirects its traffic, and GPUDirect."""

from itertools import combinations
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor import nccl, nvlink
from ddp_doctor import topology as tree
from ddp_doctor.facts import Env, Gpus, Os, PciDevice, Rdma, Reason, Topology, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, unknown, why_unknown
from ddp_doctor.policy import Policy
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural


@check(Severity.WARNING)
def acs_between_gpus(topology: Topology, os: Os, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """A PCIe switch sends what GPUs write to each other through the processor.

    Why: Access control services (ACS) of the switch's ports redirect requests between GPUs to the root complex. Peer copies
        then are far slower, and where the IOMMU translates too they have been seen to hang. A virtual machine's host needs
        ACS; a machine that runs jobs itself does not.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html
        https://docs.nvidia.com/deeplearning/nccl/archives/nccl_273/user-guide/docs/troubleshooting.html
    """
    if _is_bare_metal(os):
        pairs = [(a.device, b.device) for a, b in _pcie_pairs(topology, gpus)]
        yield from _acs(topology, pairs, "GPUs", "what GPUs write to each other")


@check(Severity.WARNING, several_nodes=True)
def acs_between_gpu_and_nic(
    topology: Topology, os: Os, rdma: Rdma, policy: Policy, gpus: Optional[Gpus] = None, env: Optional[Env] = None,
    torch: Optional[Torch] = None,
) -> Iterator[Reading]:  # fmt: skip
    """A PCIe switch sends what goes between GPUs and network cards through the processor.

    Why: Access control services (ACS) of the switch's ports redirect what an RDMA card reads and writes in GPU memory to the
        root complex, which is slower than the switch, and all GPUs and cards share it.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html
    """
    if _is_bare_metal(os) and topology.peer_memory != "":
        nics = _nics(topology, rdma, policy, env, torch)
        pairs = [(place.device, nic) for place in tree.gpus_of(topology, gpus) for nic in nics]
        yield from _acs(topology, pairs, "GPUs and RDMA cards", "what goes between GPUs and network cards")


def _acs(topology: Topology, pairs: Sequence[Tuple[PciDevice, PciDevice]], whose: str, what: str) -> Iterator[Reading]:
    """One reading over the bridges that requests between near devices pass; none where a switch joins no two of them."""
    if pairs and all(tree.pcie_class(*pair) is None for pair in pairs):
        raise NotKnown(_why_no_class(*pairs[0]))
    bridges = tree.ports_between(topology, pairs)
    redirecting = sorted(bridge.pci for bridge in bridges if bridge.acs_redirect)
    unread = [b for b in bridges if b.acs_redirect is None and why_unknown(b, "acs_redirect").kind != "not-applicable"]
    if unread and not redirecting:
        yield unknown(unread[0], "acs_redirect")
    elif bridges:
        yield Reading(
            ok=not redirecting,
            measured=f"ACS redirects at {len(redirecting)} of {plural(len(bridges), 'switch port')} between {whose}"
            + (f": {_some(redirecting)}" if redirecting else ""),
            expected="no port that redirects",
            message=f"{what} takes the way through the processor",
        )


@check(Severity.WARNING)
def iommu_translates(topology: Topology, os: Os, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """The IOMMU translates the addresses that GPUs use among each other.

    Why: On machines with x86 processors a translating IOMMU sends peer traffic to the root complex: NCCL's peer copies over PCIe
        become slow, give wrong data or hang. In passthrough mode, or off, it does no harm; Grace needs its own (SMMU).
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html
        https://github.com/NVIDIA/nccl/issues/257
        https://github.com/NVIDIA/nccl/issues/2079
        https://docs.nvidia.com/deeplearning/nccl/archives/nccl_273/user-guide/docs/troubleshooting.html
    """
    if not _is_bare_metal(os) or known(os.machine, os, "machine") != "x86_64" or not _pcie_pairs(topology, gpus):
        return
    state = known(topology.iommu, topology, "iommu")
    if state == "on":
        raise NotKnown(Reason("unreadable", f"the IOMMU is on, nothing tells its mode ({topology.iommu_said_by})"))
    yield Reading(
        ok=state != "translated",
        measured=f"IOMMU {state} ({topology.iommu_said_by})",
        expected="off, or passthrough (iommu=pt)",
        message="the IOMMU translates what GPUs write to each other: peer copies may be slow or hang",
    )


@check(Severity.WARNING, several_nodes=True)
def gpu_without_near_nic(
    topology: Topology, os: Os, rdma: Rdma, policy: Policy, gpus: Optional[Gpus] = None, env: Optional[Env] = None,
    torch: Optional[Torch] = None,
) -> Iterator[Reading]:  # fmt: skip
    """A GPU has no network card on its PCIe switch, unlike most of its siblings.

    Why: On machines made for training each GPU has an RDMA card on its own switch. Where one is missing from those that NCCL
        uses (it has failed, its link is down, NCCL_IB_HCA leaves it out), that GPU's data goes through the processor, and all
        ranks wait for it.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html
    """
    found = _nearest(topology, os, rdma, policy, gpus, env, torch)
    near = [label for label, kind in found.items() if kind in tree.NEAR]
    if 2 * len(near) > len(found):
        for label, kind in found.items():
            yield Reading(
                ok=kind in tree.NEAR,
                subject=label,
                measured=f"nearest RDMA card: {kind}",
                expected="PIX or PXB: one on its own PCIe switch, as most GPUs here have",
                message=f"{label} has no network card near it: its data takes the way through the processor",
            )


@check(Severity.NOTE, several_nodes=True)
def gpu_far_from_nics(
    topology: Topology, os: Os, rdma: Rdma, policy: Policy, gpus: Optional[Gpus] = None, env: Optional[Env] = None,
    torch: Optional[Torch] = None,
) -> Iterator[Reading]:  # fmt: skip
    """A GPU reaches every network card only through the other processor.

    Why: Its data crosses the link between the sockets, which is slower than PCIe and shared. Some machines are built so;
        otherwise a card in the other socket's slot, or one that is down, is the cause.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for label, kind in _nearest(topology, os, rdma, policy, gpus, env, torch).items():
        yield Reading(
            ok=kind != "SYS",
            subject=label,
            measured=f"nearest RDMA card: {kind}",
            expected="one on its own NUMA node",
            message=f"{label} and every RDMA card in use are on different sockets",
        )


@check(Severity.WARNING, several_nodes=True)
def nic_link_degraded(
    topology: Topology, rdma: Rdma, policy: Policy, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """A network card's PCIe link runs slower or narrower than card and slot both can.

    Why: The link bounds what the card can carry whatever its port says: x8 halves it. A card that is not fully seated, a riser,
        or a setting of the firmware makes it train so.
    See: https://community.mellanox.com/docs/DOC-2496
    """
    for nic in _nics(topology, rdma, policy, env, torch):
        above = _parent(topology, nic)
        if above is not None:
            yield from _link(above, nic, nic.rdma[0])


@check(Severity.WARNING)
def switch_link_degraded(topology: Topology) -> Iterator[Reading]:
    """The PCIe link of a switch above GPUs runs slower or narrower than both ends can.

    Why: Everything behind the switch, GPUs and network cards, shares this link to the processor.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html
    No fix: seat the board or riser anew, compare the firmware's settings with a healthy node's; else it is a repair.
    """
    by_name = {device.pci: device for device in topology.devices or ()}
    chains = (device.parents or () for device in topology.devices or () if device.kind == "gpu")
    links = dict.fromkeys(pair for chain in chains for pair in zip(chain, chain[1:]))
    for upper, lower in links:
        if upper in by_name and lower in by_name and _is_one_link(by_name[upper], by_name[lower]):
            yield from _link(by_name[upper], by_name[lower], f"switch {lower}")


@check(Severity.WARNING, several_nodes=True)
def nic_link_below_siblings(
    topology: Topology, rdma: Rdma, policy: Policy, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """One network card has a slower PCIe link than the others of its model.

    Why: NCCL spreads its data evenly over the cards, so the slowest sets the pace of all.
    See: https://community.mellanox.com/docs/DOC-2496
    """
    nics = _nics(topology, rdma, policy, env, torch)
    yield from (unknown(nic, "width", nic.rdma[0]) for nic in nics if nic.width is None)
    for siblings in _siblings([nic for nic in nics if not _is_degraded(topology, nic)], _capacity):
        best = max(siblings, key=lambda nic: _capacity(nic) or 0)
        for nic in siblings:
            yield Reading(
                ok=_capacity(nic) == _capacity(best),
                subject=nic.rdma[0],
                measured=_words(nic.speed_gt_s, nic.width),
                expected=f"{_words(best.speed_gt_s, best.width)}, as {best.rdma[0]} has",
                message=f"{nic.rdma[0]} has a slower PCIe link than its siblings",
            )


@check(Severity.WARNING, several_nodes=True)
def gpudirect_rdma_missing(
    topology: Topology, rdma: Rdma, policy: Policy, gpus: Gpus, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """Network cards cannot read and write GPU memory: GPUDirect RDMA is not possible.

    Why: Without nvidia-peermem, and without the open kernel module on a kernel with dma-buf, everything is copied through the
        machine's memory first, which costs bandwidth and processor time on every node. It works, so that nobody notices.
    See: https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html
    """
    able = any(nvlink.is_datacenter(gpu) for gpu in gpus.gpus or ())  # GeForce has no GPUDirect RDMA
    if able and _nics(topology, rdma, policy, env, torch):
        way = known(topology.peer_memory, topology, "peer_memory")
        refused = _without_dmabuf(env, torch) if way == "dma-buf" else ""
        yield Reading(
            ok=way != "" and not refused,
            measured=(f"by {way}" if way else "neither nvidia-peermem nor dma-buf")
            + (f", but {refused}" if refused else ""),
            expected="nvidia-peermem loaded, or the open kernel module with Linux 5.12 or newer (dma-buf)",
            message="data between nodes is copied through the machine's memory",
        )


@check(Severity.NOTE, several_nodes=True)
def max_read_request_low(
    topology: Topology, rdma: Rdma, policy: Policy, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """A network card asks for less data at once over PCIe than its siblings do, or less than is usual.

    Why: Small read requests cost a fast card bandwidth when it sends; what is good for one of several equal cards is good for
        all of them.
    See: https://community.mellanox.com/docs/DOC-2496
    """
    least = int(bound("topology.max_read_request").warning or 0)
    nics = _nics(topology, rdma, policy, env, torch)
    most: Dict[Optional[str], int] = {}
    for nic in nics:
        most[nic.vendor_device] = max(most.get(nic.vendor_device, least), nic.max_read_request_bytes or 0)
    for nic in nics:
        if nic.max_read_request_bytes is None:
            yield unknown(nic, "max_read_request_bytes", nic.rdma[0])
        else:
            wanted = most[nic.vendor_device]
            yield Reading(
                ok=nic.max_read_request_bytes >= wanted,
                subject=nic.rdma[0],
                measured=f"read requests of {nic.max_read_request_bytes} bytes",
                expected=f"{wanted} bytes" + (", as its siblings" if wanted > least else " or more"),
                message=f"{nic.rdma[0]} reads in small pieces over PCIe",
            )


@check(Severity.NOTE, several_nodes=True)
def relaxed_ordering_differs(
    topology: Topology, rdma: Rdma, policy: Policy, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """A network card may not reorder its PCIe requests, though others of its model may.

    Why: Relaxed ordering lets the card's writes overtake each other, which several platforms need for full speed. Where none of
        the cards has it the kernel or the firmware has a reason; one that differs has been changed.
    See: https://community.mellanox.com/docs/DOC-2496
    """
    nics = _nics(topology, rdma, policy, env, torch)
    yield from (unknown(nic, "relaxed_ordering", nic.rdma[0]) for nic in nics if nic.relaxed_ordering is None)
    for siblings in _siblings(nics, lambda nic: nic.relaxed_ordering):
        some = any(nic.relaxed_ordering for nic in siblings)
        for nic in siblings:
            yield Reading(
                ok=bool(nic.relaxed_ordering) or not some,
                subject=nic.rdma[0],
                measured=f"relaxed ordering {'on' if nic.relaxed_ordering else 'off'}",
                expected="the same as its siblings",
                message=f"{nic.rdma[0]} may not reorder its PCIe requests, unlike its siblings",
            )


# --------------------------------------------------------------------------- what they share


def _is_bare_metal(os: Os) -> bool:
    """A guest's host sets ACS and IOMMU, and needs them. Raises NotKnown."""
    return known(os.virtualisation, os, "virtualisation") == ""


def _pcie_pairs(topology: Topology, gpus: Optional[Gpus]) -> List[Tuple[tree.Placed, tree.Placed]]:
    """Pairs of GPUs that reach one another over PCIe: without NVLink, and with peer access as far as the driver says."""
    known(topology.devices, topology, "devices")
    ours = tree.gpus_of(topology, gpus)
    bonds = nvlink.bonds([place.gpu for place in ours if place.gpu is not None])
    return [pair for pair in combinations(ours, 2) if not _joined(pair, bonds) and not _refused(*pair)]


def _joined(pair: Tuple[tree.Placed, tree.Placed], bonds: Dict[Tuple[int, int], int]) -> bool:
    numbers = sorted(place.gpu.index for place in pair if place.gpu is not None)
    return len(numbers) == 2 and (numbers[0], numbers[1]) in bonds


def _refused(a: tree.Placed, b: tree.Placed) -> bool:
    """The driver allows no peer access between them (GeForce, by the chipset ...): nothing is sent that way."""
    if a.gpu is None or b.gpu is None:
        return False
    return (a.gpu.peers or {}).get(str(b.gpu.index), "ok") != "ok"


def _nics(
    topology: Topology, rdma: Rdma, policy: Policy, env: Optional[Env], torch: Optional[Torch]
) -> List[PciDevice]:
    """RDMA cards that carry the job's data, on nodes with GPUs. Raises NotKnown."""
    devices = known(topology.devices, topology, "devices")
    known(rdma.devices, rdma, "devices")
    if not any(device.kind == "gpu" for device in devices):
        return []
    ports = nccl.carrier(rdma, env, nccl.version_of(torch)).ports
    used = {p.device.name for p in ports if not {p.name, p.device.name} & set(policy.ignore_hcas)}
    return [nic for nic in tree.rdma_nics(topology) if used & set(nic.rdma)]


def _nearest(
    topology: Topology, os: Os, rdma: Rdma, policy: Policy, gpus: Optional[Gpus], env: Optional[Env],
    torch: Optional[Torch],
) -> Dict[str, str]:  # fmt: skip
    """GPU -> the class of the nearest RDMA card in use; empty where the tree is made up, or nothing is known of it."""
    if tree.is_flattened(topology, known(os.virtualisation, os, "virtualisation")):
        raise NotKnown(Reason("not-applicable", "a virtual machine that shows a PCI tree of its own"))
    nics = _nics(topology, rdma, policy, env, torch)
    ours = tree.gpus_of(topology, gpus)
    found = {place.label: tree.nearest(place.device, nics) for place in ours}
    if ours and nics and not any(found.values()):
        raise NotKnown(_why_no_class(ours[0].device, nics[0]))
    return {label: kind for label, kind in found.items() if kind is not None}


DMABUF_SINCE: nccl.Version = (2, 13)
"""NCCL's release notes for 2.13.4 (checks/data/nccl.csv)."""


def _without_dmabuf(env: Optional[Env], torch: Optional[Torch]) -> str:
    """Why this job's NCCL takes no dma-buf; "" where it does, or its version is not known."""
    asked = env.get("NCCL_DMABUF_ENABLE") if env else None
    if asked and nccl.integer(asked) == 0:
        return f"NCCL_DMABUF_ENABLE is {asked}"
    version = nccl.version_of(torch)
    if version is not None and version < DMABUF_SINCE:
        return f"NCCL {'.'.join(map(str, version))} is older than 2.13, which brought it"
    return ""


def _why_no_class(a: PciDevice, b: PciDevice) -> Reason:
    """Why it is not known how near two devices are."""
    blind = next(((d, f) for d in (a, b) for f in ("parents", "numa_node") if getattr(d, f) is None), (a, "parents"))
    return why_unknown(*blind)


def _parent(topology: Topology, device: PciDevice) -> Optional[PciDevice]:
    """The port that the device's link leads to."""
    name = device.parents[-1] if device.parents else None
    return next((other for other in topology.devices or () if other.pci == name), None)


def _is_degraded(topology: Topology, nic: PciDevice) -> bool:
    """Its own link says already that it could do more."""
    above = _parent(topology, nic)
    return above is not None and any(reading.ok is False for reading in _link(above, nic, ""))


def _is_one_link(upper: PciDevice, lower: PciDevice) -> bool:
    """Do both describe one link? A switch's inner connection has two ends that tell of different links, or none at all."""
    if None in (upper.speed_gt_s, upper.width, lower.speed_gt_s, lower.width):
        return False
    level = len(lower.parents or ())
    return level % 2 == 1 and (upper.speed_gt_s, upper.width) == (lower.speed_gt_s, lower.width)


def _link(upper: PciDevice, lower: PciDevice, subject: str) -> Iterator[Reading]:
    """Width and speed of a link against what both its ends can. What a virtual function tells is nothing (0 lanes)."""
    if lower.width is None or lower.speed_gt_s is None:
        reason = why_unknown(lower, "width" if lower.width is None else "speed_gt_s")
        yield Reading(ok=None, subject=subject, reason=reason)
        return
    width = _lesser(upper.width_max, lower.width_max)
    speed = _lesser(upper.speed_max_gt_s, lower.speed_max_gt_s)
    yield Reading(
        ok=(width is None or lower.width >= width) and (speed is None or lower.speed_gt_s >= speed),
        subject=subject,
        measured=f"PCIe link at {_words(lower.speed_gt_s, lower.width)}",
        expected=f"{_words(speed, width)}, which both ends can",
        message=f"{subject} has a PCIe link that runs below what both its ends can",
    )


def _lesser(a: Optional[float], b: Optional[float]) -> Optional[float]:
    found = [number for number in (a, b) if number is not None]
    return min(found) if found else None


def _words(speed_gt_s: Optional[float], width: Optional[float]) -> str:
    """32 GT/s x16."""
    parts = ("" if speed_gt_s is None else f"{speed_gt_s:g} GT/s", "" if width is None else f"x{width:g}")
    return " ".join(filter(None, parts)) or "not known"


def _capacity(nic: PciDevice) -> Optional[float]:
    return None if nic.width is None or nic.speed_gt_s is None else nic.width * nic.speed_gt_s


def _siblings(nics: Sequence[PciDevice], value: Callable[[PciDevice], object]) -> Iterator[List[PciDevice]]:
    """Cards of one model of which ``value`` is known, where there are several."""
    models: Dict[Optional[str], List[PciDevice]] = {}
    for nic in nics:
        if value(nic) is not None:
            models.setdefault(nic.vendor_device, []).append(nic)
    yield from (group for group in models.values() if len(group) > 1)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

"""How near the GPUs and NICs of a node are to each other, worked out of its PCIe tree, as ``nvidia-smi topo -m`` prints it.

PIX   at most one PCIe switch between them      PHB   through one host bridge of the processor
PXB   several switches, no host bridge          NODE  through several host bridges of one NUMA node
SYS   through the link between NUMA nodes       NV#   that many NVLinks
"""

from itertools import takewhile
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ddp_doctor import nvlink
from ddp_doctor.facts import Cpu, Gpu, Gpus, NodeFacts, PciDevice, Topology
from ddp_doctor.remembered import by_identity

NEAR = ("PIX", "PXB")
"""Without the processor in between: what NCCL's GPUDirect RDMA takes by default up to PXB (NCCL_NET_GDR_LEVEL)."""


class Placed(NamedTuple):
    """A GPU of this job: its label ("GPU 3") and its place on the bus."""

    label: str
    device: PciDevice
    gpu: Optional[Gpu]


def gpus_of(topology: Topology, gpus: Optional[Gpus]) -> List[Placed]:
    """The GPUs that this process may use, in the driver's order; without the driver's word all that are on the bus.

    sysfs shows a container or job the GPUs of the whole machine: those that the driver does not list here are not ours.
    """
    on_bus = {device.pci: device for device in topology.devices or () if device.kind == "gpu"}
    listed = [gpu for gpu in (gpus.gpus if gpus else None) or () if gpu.pci in on_bus]
    if listed:
        return [Placed(f"GPU {gpu.index}", on_bus[gpu.pci or ""], gpu) for gpu in listed]
    return [Placed(f"GPU {number}", device, None) for number, device in enumerate(on_bus.values())]


def rdma_nics(topology: Topology) -> List[PciDevice]:
    """NICs that have an RDMA device, in the order of its name."""
    nics = [device for device in topology.devices or () if device.kind == "nic" and device.rdma]
    return sorted(nics, key=lambda nic: _natural(nic.rdma[0]))


def _natural(name: str) -> Tuple[str, int, str]:
    """mlx5_10 comes after mlx5_9."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :][:9] or 0), name


def pcie_class(a: PciDevice, b: PciDevice) -> Optional[str]:
    """PIX, PXB, PHB, NODE or SYS; None where the facts do not tell."""
    if a.host_bridge is None or b.host_bridge is None or a.parents is None or b.parents is None:
        return None
    if a.host_bridge != b.host_bridge:
        return _across(a.numa_node, b.numa_node)
    if not shared(a, b):
        return "PHB"
    return "PIX" if max(map(len, apart(a, b))) <= 1 else "PXB"


def _across(a: Optional[int], b: Optional[int]) -> Optional[str]:
    """Between host bridges. Firmware that names no node at all has one; one that names some leaves the others unknown."""
    if (a is None) != (b is None):
        return None
    return "NODE" if a == b else "SYS"


def shared(a: PciDevice, b: PciDevice) -> Tuple[str, ...]:
    """Bridges above both, from the root port down."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(a.parents or (), b.parents or ()))
    return tuple(bridge for bridge, _ in pairs)


def apart(a: PciDevice, b: PciDevice) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """Bridges above the one and not the other, for each: what a request between them passes below the last common one."""
    above = len(shared(a, b))
    return (a.parents or ())[above:], (b.parents or ())[above:]


def ports_between(topology: Topology, pairs: Sequence[Tuple[PciDevice, PciDevice]]) -> List[PciDevice]:
    """Bridges that requests between near devices pass below the last common one, where access control could turn them."""
    near = [pair for pair in pairs if pcie_class(*pair) in NEAR]
    names = dict.fromkeys(name for pair in near for way in apart(*pair) for name in way)
    by_name = {device.pci: device for device in topology.devices or ()}
    return [by_name[name] for name in names if name in by_name]


def nearest(device: PciDevice, others: Sequence[PciDevice]) -> Optional[str]:
    """The best class from a device to any of the others; None for no others, or none that is known."""
    order = ("PIX", "PXB", "PHB", "NODE", "SYS")
    found = [kind for kind in (pcie_class(device, other) for other in others) if kind]
    return min(found, key=order.index) if found else None


def is_flattened(topology: Topology, virtualisation: Optional[str]) -> bool:
    """Is this a virtual machine whose PCI tree is made up? Those that pass the real one on have switches in it."""
    devices = [device for device in topology.devices or () if device.kind in ("gpu", "nic")]
    return bool(virtualisation) and not any(len(device.parents or ()) > 1 for device in devices)


# --------------------------------------------------------------------------- the matrix


LEGEND = (
    "PIX: one PCIe switch; PXB: several; PHB: the processor; NODE: its host bridges; SYS: both sockets; NV: NVLinks"
)


@by_identity
def matrix(
    topology: Topology, gpus: Optional[Gpus] = None, cpu: Optional[Cpu] = None, virtualisation: Optional[str] = None
) -> Tuple[str, ...]:
    """Lines of the table of classes; none on a node without GPUs, and where there is nothing to tell.

    "?" is a class that the facts do not tell. RDMA NICs are columns of their own, named below the table.
    """
    ours = gpus_of(topology, gpus)
    if not ours:
        return ()
    nics = rdma_nics(topology)
    places = [*(place.device for place in ours), *nics]
    heads = [*(place.label.replace(" ", "") for place in ours), *(f"NIC{n}" for n in range(len(nics)))]
    bonds = _bonds(ours)
    rows = [["", *heads, "CPUs", "NUMA"]]
    told = False
    for number, (head, place) in enumerate(zip(heads, places)):
        cells = [_cell(number, other, places, bonds) for other in range(len(places))]
        told = told or bool(set(cells) - {"X", "?"})
        rows.append([head, *cells, *_affinity(place, cpu)])
    if not told:
        return ()
    legend = [f"NIC{n}: {', '.join((*nic.rdma, *nic.interfaces))} ({nic.pci})" for n, nic in enumerate(nics)]
    return (*_aligned(rows), *legend, LEGEND, *_remark(topology, virtualisation))


def of(facts: NodeFacts) -> Tuple[str, ...]:
    """The matrix of a node, by what is known of it."""
    if facts.topology is None:
        return ()
    return matrix(facts.topology, facts.gpus, facts.cpu, facts.os.virtualisation if facts.os else None)


def _cell(row: int, column: int, places: Sequence[PciDevice], bonds: Dict[Tuple[int, int], int]) -> str:
    if row == column:
        return "X"
    links = bonds.get((min(row, column), max(row, column)))
    return f"NV{links}" if links else pcie_class(places[row], places[column]) or "?"


def _bonds(ours: Sequence[Placed]) -> Dict[Tuple[int, int], int]:
    """NVLinks between the GPUs, by their places in ``ours``."""
    places = {place.gpu.index: number for number, place in enumerate(ours) if place.gpu is not None}
    found = nvlink.bonds([place.gpu for place in ours if place.gpu is not None])
    pairs = {(places[a], places[b]): links for (a, b), links in found.items()}
    return {(min(pair), max(pair)): links for pair, links in pairs.items()}


def _affinity(place: PciDevice, cpu: Optional[Cpu]) -> List[str]:
    """Processors of the device's NUMA node, and the node; "-" where the firmware names none."""
    if place.numa_node is None:
        return ["-", "-"]
    cpus = ((cpu.numa_cpus if cpu else None) or {}).get(str(place.numa_node))
    return [cpus or "-", str(place.numa_node)]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def _remark(topology: Topology, virtualisation: Optional[str]) -> Tuple[str, ...]:
    made_up = "This virtual machine shows a PCI tree of its own: the classes say nothing of the hardware."
    return (made_up,) if is_flattened(topology, virtualisation) else ()

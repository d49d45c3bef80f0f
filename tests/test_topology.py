"""Topology: classes of pairs as nvidia-smi topo -m prints them, held against captured machines."""

import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest
from ddp_doctor import topology as tree
from ddp_doctor.facts import Cpu, Gpu, Gpus, NvLink, PciDevice, Topology
from ddp_doctor.model import Node, Report, Summary, Tool
from ddp_doctor.report import Options, table

CAPTURES = Path(__file__).parents[2] / "shared/captures"
here = pytest.mark.skipif(not CAPTURES.exists(), reason="../shared/captures is not here")


def device(pci, *parents, bridge="pci0000:00", numa=0, kind="gpu", rdma=()):
    return PciDevice(pci, kind, host_bridge=bridge, parents=parents, numa_node=numa, rdma=rdma)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (device("a", "root"), device("b", "root"), "PIX"),  # two functions of one card
        (device("a", "root", "up", "down1"), device("b", "root", "up", "down2"), "PIX"),
        (device("a", "root", "up", "down1"), device("b", "root", "up", "down2", "up2", "down3"), "PXB"),
        (device("a", "root1"), device("b", "root2"), "PHB"),
        (device("a"), device("b"), "PHB"),
        (device("a", "root1"), device("b", "root2", bridge="pci0000:20"), "NODE"),
        (device("a", numa=None), device("b", bridge="pci0000:20", numa=None), "NODE"),  # one socket whose firmware names none
        (device("a", numa=1), device("b", bridge="pci0000:20"), "SYS"),
        (device("a", numa=None), device("b", bridge="pci0000:20"), None),
        (PciDevice("a", "gpu"), device("b"), None),
    ],
)  # fmt: skip
def test_class_of_a_pair(a, b, expected):
    assert (tree.pcie_class(a, b), tree.pcie_class(b, a)) == (expected, expected)


def test_matrix():
    links = tuple(NvLink(n, active=True, remote_kind="gpu", remote_pci="0000:02:00.0") for n in range(4))
    gpus = Gpus(
        gpus=(Gpu(0, pci="0000:01:00.0", nvlinks=links), Gpu(1, pci="0000:02:00.0"), Gpu(2, pci="0000:81:00.0"))
    )
    devices = (
        device("0000:01:00.0", "root", "up", "down1"),
        device("0000:02:00.0", "root", "up", "down2"),
        device("0000:81:00.0", "root3", bridge="pci0000:80", numa=1),
        device("0000:82:00.0", "root4", bridge="pci0000:80", numa=1),  # a GPU that the job was not given
        device("0000:83:00.0", "root5", bridge="pci0000:80", numa=None, kind="nic", rdma=("mlx5_10",)),
        device("0000:03:00.0", "root", "up", "down3", kind="nic", rdma=("mlx5_2",)),
    )  # fmt: skip
    cpu = Cpu(numa_cpus={"0": "0-31,64-95", "1": "32-63,96-127"})
    assert tree.matrix(Topology(devices=devices), gpus, cpu, "") == (
        "      GPU0  GPU1  GPU2  NIC0  NIC1  CPUs          NUMA",
        "GPU0  X     NV4   SYS   PIX   ?     0-31,64-95    0",
        "GPU1  NV4   X     SYS   PIX   ?     0-31,64-95    0",
        "GPU2  SYS   SYS   X     SYS   PHB   32-63,96-127  1",
        "NIC0  PIX   PIX   SYS   X     ?     0-31,64-95    0",
        "NIC1  ?     ?     PHB   ?     X     -             -",
        "NIC0: mlx5_2 (0000:03:00.0)",
        "NIC1: mlx5_10 (0000:83:00.0)",
        tree.LEGEND,
    )


@pytest.mark.parametrize(
    ("virtualisation", "parents", "flattened"),
    [("", (), False), ("kvm", (), True), ("kvm", ("root",), True), ("kvm", ("root", "up", "down"), False)],
)
def test_a_guest_that_is_given_the_real_tree_is_no_flattened_one(virtualisation, parents, flattened):
    topology = Topology(devices=(device("a", *parents), device("b", *parents)))
    assert tree.is_flattened(topology, virtualisation) is flattened
    assert ("of its own" in tree.matrix(topology, None, None, virtualisation)[-1]) is flattened


def test_nothing_to_tell_no_matrix():
    assert tree.matrix(Topology(devices=(device("a"),))) == ()
    assert tree.matrix(Topology(devices=(PciDevice("a", "gpu"), PciDevice("b", "gpu")))) == ()
    assert tree.matrix(Topology(devices=(device("a", kind="nic", rdma=("rxe0",)),))) == ()
    assert tree.matrix(Topology()) == ()


# --------------------------------------------------------------------------- captured machines


def printed(text):
    """The table of ``nvidia-smi topo -m``: (row, column) -> class."""
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*(GPU|NIC)\d+\s", line)]
    heads = [word for word in rows[0] if re.fullmatch(r"(GPU|NIC)\d+", word)]
    return {(row[0], head): cell for row in rows[1:] for head, cell in zip(heads, row[1:])}


def worked_out(topology, gpus=None):
    """The same of ours."""
    return printed("\n".join(tree.matrix(topology, gpus)))


TOKEN = re.compile(r"\[(\d{4}:[0-9a-f]{2})\]|\[([0-9a-f]{2})(?:-[0-9a-f]{2})?\]|(?<=-)([0-9a-f]{2}\.[0-7])")
"""Of lspci -tv: a host bridge, the buses below a bridge, a function."""


def from_lspci(text):
    """The tree that ``lspci -tv`` draws: above a token is what stands to the left of it, on its own line or before."""
    above, nics = [], 0
    for line in text.splitlines():
        drawn, words = (
            re.fullmatch(r"(.*?(?:[0-9a-f]\.[0-7]|\]))(?:-*  (.*)|-*)", line).groups()
            if TOKEN.search(line)
            else ("", "")
        )
        for token in TOKEN.finditer(drawn):
            above = [entry for entry in above if entry[0] < token.start()]
            root, bus, function = token.groups()
            address = root or (f"0000:{bus}" if bus else f"{above[-1][1]}:{function}")
            above.append((token.start(), address))
        pci, *_ = [address for _, address in reversed(above)] or [""]
        if words and re.search(r"NVIDIA.*\[RTX|ConnectX", words):
            parents = [address for _, address in above[:-1] if "." in address]
            rdma = () if "NVIDIA" in words else (f"mlx5_{nics}",)
            nics += len(rdma)
            yield device(pci, *parents, bridge=above[0][1], kind="nic" if rdma else "gpu", rdma=rdma)


@here
def test_a_captured_machine_s_tree_gives_what_nvidia_smi_printed_on_it():
    folder = CAPTURES / "5-host/stelline-threadripper"
    topology = Topology(devices=tuple(from_lspci((folder / "0002.lspci-tv.txt").read_text())))
    expected = printed((folder / "0453.nvidia-smi-topo-m.txt").read_text())
    assert len(expected) == 16
    assert worked_out(topology) == expected


def from_hwloc(path):
    """PCI devices of hwloc's XML: bridges nest as they do on the bus; the package above gives the NUMA node."""

    def walk(element, bridge, parents, numa):
        for child in element.findall("object"):
            kind, pci = child.get("type"), child.get("pci_busid")
            node = next((int(n.get("os_index")) for n in child.iter("object") if n.get("type") == "NUMANode"), numa)
            if kind == "Bridge" and child.get("bridge_type") == "0-1":
                yield from walk(child, "pci" + child.get("bridge_pci").split("-")[0].replace("[", ""), (), numa)
            elif kind == "Bridge":
                yield from walk(child, bridge, (*parents, pci), numa)
            elif kind == "PCIDev":
                gpu = re.match(r"030[02] \[10de", child.get("pci_type"))
                names = [o.get("name") for o in child.iter("object") if o.get("type") == "OSDev"]
                rdma = tuple(name for name in names if re.match(r"mlx\d_|hfi1_|qib", name))
                yield device(pci, *parents, bridge=bridge, numa=numa, kind="gpu" if gpu else "nic", rdma=rdma)
            else:
                yield from walk(child, bridge, parents, node if kind in ("Package", "Group") else numa)

    return Topology(devices=tuple(walk(ET.parse(path).getroot(), None, (), 0)))


def from_nccl(path):
    """A topology file of NCCL: what hangs directly below a processor is a host bridge's root port."""

    def walk(element, bridge, parents, numa):
        for child in element.findall("pci"):
            kind, pci = child.get("class", ""), child.get("busid")
            rdma = tuple(net.get("name") for net in child.iter("net")) or (f"nic {pci}",)
            if kind.startswith("0x0604"):
                yield from walk(child, bridge or f"pci{pci}", (*parents, pci), numa)
            else:
                where = "gpu" if kind.startswith("0x03") else "nic"
                yield device(
                    pci,
                    *parents,
                    bridge=bridge or f"pci{pci}",
                    numa=numa,
                    kind=where,
                    rdma=() if where == "gpu" else rdma,
                )

    cpus = ET.fromstring(path.read_text().replace("\x00", "")).iter("cpu")
    return Topology(devices=tuple(d for cpu in cpus for d in walk(cpu, None, (), int(cpu.get("numaid") or 0))))


def counted(topology):
    """How many pairs of GPUs are of each class, and how near the nearest RDMA card of each GPU is."""
    gpus = [place.device for place in tree.gpus_of(topology, None)]
    pairs = [tree.pcie_class(a, b) for a, b in combinations(gpus, 2)]
    near = [tree.nearest(gpu, tree.rdma_nics(topology)) for gpu in gpus]
    return {kind: pairs.count(kind) for kind in sorted(set(pairs))}, sorted({kind or "-" for kind in near})


@here
@pytest.mark.parametrize(
    ("name", "pairs", "near"),
    [
        ("5-host/hwloc/nvidiaDGX2.xml", {"PIX": 8, "PXB": 16, "NODE": 32, "SYS": 64}, ["-"]),
        ("5-host/hwloc/mpibind.coral-lassen.xml", {"SYS": 4, "PIX": 2}, ["NODE"]),
        ("7-nccl-topo/oci/H100-topology.xml", {"NODE": 12, "SYS": 16}, ["PIX"]),
        ("7-nccl-topo/aws/p4d-24xl-topo.xml", {"PIX": 4, "NODE": 8, "SYS": 16}, ["PIX"]),
        ("7-nccl-topo/azure/ndv4-topo.xml", {"PIX": 4, "SYS": 24}, ["PIX"]),
    ],
)  # fmt: skip
def test_captured_trees_of_known_machines(name, pairs, near):
    read = from_hwloc if "hwloc" in name else from_nccl
    assert counted(read(CAPTURES / name)) == (dict(sorted(pairs.items())), near)


@here
def test_every_captured_tree_has_a_symmetric_matrix():
    paths = [(from_hwloc, p) for p in CAPTURES.glob("5-host/hwloc/*.xml")]
    paths += [(from_nccl, p) for p in CAPTURES.glob("7-nccl-topo/*/*topo*.xml")]
    assert len(paths) > 70
    for read, path in paths:
        topology = read(path)
        cells = worked_out(topology) if tree.matrix(topology) else {}
        assert all(cells[b, a] == cell for (a, b), cell in cells.items()), path


# --------------------------------------------------------------------------- in the report


@pytest.mark.parametrize("verbose", [False, True])
def test_the_report_shows_each_matrix_once_with_v(verbose):
    """A table is never wrapped; nodes with the same one stand together."""
    lines = ("      GPU0  GPU1", "GPU0  X     NV18" + "  -" * 30)
    nodes = (
        Node("n1", matrix=lines),
        Node("n2", matrix=lines),
        Node("n3", matrix=("      GPU0", "GPU0  X")),
        Node("n4"),
    )
    page = table.render(
        Report(1, Tool("ddp-doctor", "1"), nodes, (), Summary("Ready.", 0)), Options(width=60, verbose=verbose)
    )
    assert page.count("Ways between GPUs and network cards") == (2 if verbose else 0)
    assert page.count(f"\n  {lines[1]}\n") == (1 if verbose else 0)
    assert ("of n1, n2" in page) is verbose

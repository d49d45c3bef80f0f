"""NVLinks between the GPUs of one node, worked out of their facts."""

from itertools import combinations
from typing import Dict, Sequence, Tuple

from ddp_doctor.facts import Gpu


def bonds(gpus: Sequence[Gpu]) -> Dict[Tuple[int, int], int]:
    """Number of NVLinks between each two GPUs, by their indices (the smaller one first); pairs without one are left out.

    GPUs on NVSwitches reach one another over as many links as the one with fewer active ones has: what
    ``nvidia-smi topo -m`` prints as NV18. Links whose state could not be read count for nothing.
    """
    found = {(a.index, b.index): _direct(a, b) or _switched(a, b) for a, b in combinations(gpus, 2)}
    return {(min(pair), max(pair)): links for pair, links in found.items() if links}


def active_links(gpu: Gpu) -> int:
    """How many of the GPU's NVLinks are known to be up."""
    return sum(link.active is True for link in gpu.nvlinks or ())


def _direct(a: Gpu, b: Gpu) -> int:
    """Links that lead straight from one to the other, as either end tells."""
    return max(_links_to(a, b), _links_to(b, a))


def _links_to(gpu: Gpu, other: Gpu) -> int:
    return sum(bool(link.active and link.remote_pci and link.remote_pci == other.pci) for link in gpu.nvlinks or ())


def _switched(a: Gpu, b: Gpu) -> int:
    return min(_links_to_switches(a), _links_to_switches(b))


def _links_to_switches(gpu: Gpu) -> int:
    return sum(bool(link.active and link.remote_kind == "switch") for link in gpu.nvlinks or ())

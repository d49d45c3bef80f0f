"""NVLinks between the GPUs of one node, worked out of their facts."""

from itertools import combinations
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from ddp_doctor import tables
from ddp_doctor.facts import Gpu
from ddp_doctor.gpu_models import is_datacenter as is_datacenter  # checks of other areas ask for it here
from ddp_doctor.gpu_models import model_of


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
    """Where the driver does not tell what is at the other end, a GPU that has joined a fabric hangs on its switches."""
    on_fabric = gpu.fabric is not None and gpu.fabric.state == "completed"
    kinds = ("switch", "unknown") if on_fabric else ("switch",)
    return sum(
        bool(link.active and link.remote_kind in kinds and (link.remote_kind == "switch" or not link.remote_pci))
        for link in gpu.nvlinks or ()
    )


# --------------------------------------------------------------------------- what a model is meant to have


class Product(NamedTuple):
    """What NVLink is on a GPU model: see ``tables.NvLinkForm`` and ``tables.GpuModel``."""

    name: str
    joined: str
    manager: str
    links: Optional[int]
    link_gb_s: Optional[float]
    """Of one link and direction, in 10**9 bytes per second."""
    by_design: str
    source: str


def product(gpu: Gpu) -> Optional[Product]:
    """The tables' word on this GPU's NVLinks; None for a model that they do not have, or that has none."""
    model = model_of(gpu.name or "")
    form = next((row for row in tables.nvlinks() if model and row.gpu == model.gpu), None)
    if model is None or form is None:
        return None
    links = int(model.nvlink_links) if model.nvlink_links.isdigit() else None
    speed = float(model.nvlink_per_direction_gb_s) / links if links else None
    return Product(model.gpu, form.joined, form.manager, links, speed, form.by_design, form.source)


def has_no_nvlink(gpu: Gpu) -> bool:
    """The tables say that this model has no NVLink."""
    model = model_of(gpu.name or "")
    return model is not None and model.nvlink_generation == "none"

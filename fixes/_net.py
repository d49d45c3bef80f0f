"""What several fixes ask about the node's network."""

import re
import shlex
from typing import List, Optional

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Interface, Network, Torch
from ddp_doctor.model import Step, export, say

NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
NCCL_IB_HCA = f"{NCCL_ENV}#nccl-ib-hca"
NCCL_NETWORK = (
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html"
)
TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"


def good_interfaces(network: Optional[Network]) -> List[Interface]:
    """Interfaces that lead to other nodes, the one to the master or to the default gateway first, then the fastest."""
    found = [i for i in (network.interfaces if network else None) or () if nccl.reaches_others(i)]
    routes = (network.master_route, network.default_route) if network else ()
    used = [route.interface for route in routes if route is not None and route.interface]
    first = {name: place for place, name in reversed(list(enumerate(used)))}
    return sorted(found, key=lambda i: (first.get(i.name, len(used)), -(nccl.wire_speed_gbit_s(i) or 0)))


def best_endpoint(network: Optional[Network], env: Optional[Env], torch: Optional[Torch]) -> Optional[nccl.Endpoint]:
    """The interface and address by which the others should reach this node: NCCL's own where that is good."""
    chosen = nccl.sockets((network.interfaces if network else None) or (), env, nccl.version_of(torch)).endpoints
    others = (
        nccl.Endpoint(interface, address)
        for interface in good_interfaces(network)
        for address in interface.addresses or ()
        if not nccl.is_link_local(address.ip)
    )
    if chosen and nccl.reaches_others(chosen[0].interface):
        return chosen[0]
    return next(others, None)


def without_hca(name: str, env: Optional[Env]) -> Step:
    """Leave an adapter ("mlx5_2") or one of its ports ("mlx5_2:1") out of what NCCL uses, and leave out what is left out now."""
    now = (env.get("NCCL_IB_HCA") if env else None) or ""
    if not now or now.startswith("^"):
        return export("NCCL_IB_HCA", f"{now},{name}" if now else f"^={name}", scope="this job", see=NCCL_IB_HCA)
    mode, names = ("=", now[1:]) if now.startswith("=") else ("", now)
    kept = [each for each in names.split(",") if each.partition(":")[0] != name.partition(":")[0]]
    if kept and len(kept) < len(names.split(",")):
        return export("NCCL_IB_HCA", mode + ",".join(kept), scope="this job", see=NCCL_IB_HCA)
    return say(f"Set NCCL_IB_HCA so that it leaves out {name}.", scope="this job", see=NCCL_IB_HCA)


def plain(name: Optional[str]) -> str:
    """A host or interface name for a command line; "" for a text that is none."""
    return shlex.quote(name) if name and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*", name) else ""

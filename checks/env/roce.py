"""GIDs: the addresses by which RoCE ports talk, and NCCL's choice among them."""

from typing import Iterator, List, Optional, Tuple

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Rdma, Torch
from ddp_doctor.model import Reading, Severity, check, known, unknown


@check(Severity.ERROR, several_nodes=True)
def gid_index_empty(env: Env, rdma: Rdma, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """NCCL_IB_GID_INDEX points to an empty row of a port's GID table.

    Why: The rows differ between hosts, containers and after a change of address; with an empty one the connection fails
        ("ibv_modify_qp failed with error Invalid argument" or "No data available").
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index
        https://github.com/NVIDIA/nccl/issues/426
    """
    for port, choice in _choices(env, rdma, torch):
        if choice is None:
            yield unknown(port.port, "gids", port.name)
        elif choice.by.startswith("NCCL_IB_GID_INDEX"):
            rows = ", ".join(str(gid.index) for gid in port.port.gids or ())
            yield Reading(
                ok=choice.gid is not None,
                subject=port.name,
                measured=f"{choice.by}; rows in use: {rows or 'none'}",
                expected="a row that is in use, or no index",
                message=f"row {choice.index} of the GID table of {port.name} is empty",
            )


@check(Severity.WARNING, several_nodes=True)
def gid_not_routable(env: Env, rdma: Rdma, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """NCCL will use a GID of a RoCE port that does not lead beyond its own link.

    Why: A link-local GID (fe80::) or one of RoCE v1 reaches the same layer-2 network at most; through a router connections time
        out. NCCL before 2.21 takes row 0, which is mostly such a one. Later ones look for an IPv4 GID of RoCE v2 and
        find none where the interface has no IPv4 address; NCCL_IB_ADDR_FAMILY=AF_INET6 lets them look for IPv6.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index
        https://github.com/NVIDIA/nccl/issues/718
    """
    for port, choice in _choices(env, rdma, torch):
        if choice is None:
            yield unknown(port.port, "gids", port.name)
        elif choice.gid is not None or not choice.by.startswith("NCCL_IB_GID_INDEX"):
            version = nccl.roce_version(choice.gid)
            yield Reading(
                ok=nccl.is_routable(choice.gid) and version != 1,
                subject=port.name,
                measured=f"row {choice.index} by {choice.by}: {_words(choice)}",
                expected="RoCE v2 and an address that is not link-local",
                message=f"NCCL will use the GID {_words(choice)} of {port.name}",
            )


def _choices(env: Env, rdma: Rdma, torch: Optional[Torch]) -> Iterator[Tuple[nccl.HcaPort, Optional[nccl.GidChoice]]]:
    """The RoCE ports that NCCL will use, each with its choice."""
    known(rdma.devices, rdma, "devices")
    version = nccl.version_of(torch)
    ports: List[nccl.HcaPort] = [p for p in nccl.carrier(rdma, env, version).ports if p.port.link_layer == "Ethernet"]
    for port in ports:
        yield port, nccl.gid_choice(port.port, env, version)


def _words(choice: nccl.GidChoice) -> str:
    """10.0.0.5 (RoCE v2), fe80::1 (IB/RoCE v1)."""
    if choice.gid is None:
        return "nothing"
    return f"{nccl.gid_ip(choice.gid)} ({choice.gid.type or 'version not known'})"

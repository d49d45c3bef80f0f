"""Which interfaces a job will use, and the words for them."""

from typing import List, Optional, Sequence, Tuple

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Interface, Network, Rdma, Reason, Torch
from ddp_doctor.model import NotKnown, known, why_unknown


def needs_nccl(torch: Optional[Torch]) -> None:
    """Raises NotKnown where the torch has no NCCL, whose choices then concern nobody."""
    if nccl.lacks(torch):
        raise NotKnown(Reason("not-applicable", "this torch has no NCCL"))


def used(interfaces: Sequence[Interface], env: Env, rdma: Optional[Rdma], torch: Optional[Torch]) -> nccl.Sockets:
    """The interfaces that a job will really use: with RDMA the first one alone, to start up; without, all carry data."""
    needs_nccl(torch)
    version = nccl.version_of(torch)
    chosen = nccl.sockets(interfaces, env, version)
    one = nccl.carrier(rdma, env, version).kind == "rdma"
    return nccl.Sockets(chosen.endpoints[:1], chosen.by) if one else chosen


def interfaces_of(network: Network) -> Tuple[Interface, ...]:
    """The interfaces, where at least one's addresses could be read; raises NotKnown otherwise."""
    interfaces = known(network.interfaces, network, "interfaces")
    if interfaces and all(i.addresses is None for i in interfaces):
        raise NotKnown(why_unknown(interfaces[0], "addresses"))
    return interfaces


def named_positively(interfaces: Sequence[Interface], env: Env, torch: Optional[Torch]) -> List[str]:
    """Interfaces that NCCL_SOCKET_IFNAME asks for by name: a person chose them."""
    named = nccl.socket_list(env)
    if named is None or named.negated:
        return []
    chosen = nccl.sockets(interfaces, env, nccl.version_of(torch)).endpoints
    return [e.interface.name for e in chosen if e.interface.kind != "loopback"]


def by(chosen: nccl.Sockets, env: Env) -> str:
    if chosen.by in ("NCCL_SOCKET_IFNAME", "NCCL_COMM_ID"):
        return f"{chosen.by}={env.get(chosen.by)}"
    return "NCCL's own choice"


def state(interface: Interface) -> str:
    """eth1 (down), eth2 (no address), eth0 (10.0.0.5)."""
    if interface.up is False or interface.running is False:
        return f"{interface.name} ({'down' if interface.up is False else 'no link'})"
    return f"{interface.name} ({interface.addresses[0].ip if interface.addresses else 'no address'})"

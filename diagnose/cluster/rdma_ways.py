"""Which adapters of which nodes are tried over RDMA: each node with its neighbours in a ring, rail by rail."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddp_doctor import nccl
from ddp_doctor.facts import NodeFacts

Way = Tuple[str, str]
MOST_RAILS = 16
"""NCCL uses no more adapters of a node (MAX_IB_DEVS was 16 before NCCL 2.18, 32 since); eight are usual."""


@dataclass(frozen=True)
class End:
    """A port of an adapter that NCCL would use. gid_index: None on InfiniBand."""

    device: str
    port: int
    gid_index: Optional[int] = None
    mtu_bytes: Optional[int] = None
    roce: bool = False

    @property
    def name(self) -> str:
        """mlx5_0:1."""
        return f"{self.device}:{self.port}"

    def request(self) -> Dict[str, Any]:
        """As a node's program takes it."""
        return {"device": self.device, "port": self.port, "gid_index": self.gid_index, "mtu_bytes": self.mtu_bytes}


def ends(facts: NodeFacts) -> Tuple[End, ...]:
    """The active ports that NCCL would use on this node, in its order; none where it would use sockets."""
    version = nccl.version_of(facts.torch)
    if facts.rdma is None or nccl.overridden(facts.env) is not None:
        return ()
    ports = nccl.hca_ports(facts.rdma.devices or (), facts.env, version)
    found = (_end(port, facts, version) for port in ports if port.active)
    return tuple(end for end in found if end is not None)[:MOST_RAILS]


def _end(hca: nccl.HcaPort, facts: NodeFacts, version: Optional[nccl.Version]) -> Optional[End]:
    """None for a RoCE port without a GID in the row that NCCL takes, which a check of its own tells."""
    port = hca.port
    if port.link_layer != "Ethernet":
        return End(hca.device.name, port.port, None, port.active_mtu_bytes)
    choice = nccl.gid_choice(port, facts.env, version)
    if choice is None or choice.gid is None:
        return None
    return End(hca.device.name, port.port, choice.index, port.active_mtu_bytes, True)


def ring(nodes: Sequence[str]) -> List[List[Way]]:
    """Rounds of disjoint pairs in which each node meets the next one: two, and a third for an odd number of nodes."""
    ways = list(zip(nodes, nodes[1:]))
    if len(nodes) > 2:
        ways.append((nodes[-1], nodes[0]))
    rounds = [ways[0::2], ways[1::2]]
    if len(ways) % 2 and len(ways) > 1:
        rounds = [ways[0:-1:2], ways[1::2], ways[-1:]]
    return [found for found in rounds if found]


def rails(ours: Sequence[End], theirs: Sequence[End]) -> List[Tuple[End, End]]:
    """Which port meets which: of the same name, and where none is, of the same place and kind."""
    by_name = {end.name: end for end in theirs}
    pairs = []
    for place, end in enumerate(ours):
        other = by_name.get(end.name) or (theirs[place] if place < len(theirs) else None)
        if other is not None and other.roce == end.roce:
            pairs.append((end, other))
    return pairs

"""Between: the ways between nodes that were examined, tried over the same session, and put into their facts."""

from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from ddp_doctor.cluster import pairs
from ddp_doctor.cluster.reached import Reached
from ddp_doctor.facts import NodeFacts, Pairs, Reason

PORTS, SPEED = "ports", "speed"
"""How much is tried: ports, names, routes, latency and packet lengths; or also streams, which fill the network, a meeting in
torch's store, and messages over RDMA."""
MOST_NODES = 512
"""Each keeps a connection of its own from here, an ssh process of some 8 MB."""
LIMIT_S = pairs.LIMIT_S
SECTION = "pairs"

Section = Union[Pairs, Reason]


def depth(profile: str, asked: Optional[bool]) -> Optional[str]:
    """How much is tried: as the profile says, or what was asked for by name (True) or is judged by nobody (False)."""
    if asked is False or (profile == "quick" and not asked):
        return None
    return SPEED if asked or profile == "deep" else PORTS


def tried(
    session: pairs.Session, nodes: Sequence[Reached], how_much: str, limit_s: float, say: Callable[[str], None]
) -> List[Reached]:
    """The nodes with their ways to one another. say: told what is being done."""
    examined = [node for node in nodes if isinstance(node, NodeFacts)]
    why = _why_not(examined)
    if why is not None:
        return with_sections(nodes, dict.fromkeys((facts.name for facts in examined), why))
    tests = [pairs.node_of(facts) for facts in examined]
    try:
        sections: Dict[str, Any] = pairs.run(
            session,
            tests,
            pairs.master_of(examined),
            min(limit_s, LIMIT_S),
            say,
            **dict.fromkeys(("throughput", "rendezvous", "rdma"), how_much == SPEED),
        )
    except KeyboardInterrupt:
        sections = dict.fromkeys((facts.name for facts in examined), Reason("interrupted", "interrupted"))
    return with_sections(nodes, sections)


def _why_not(examined: Sequence[NodeFacts]) -> Optional[Reason]:
    if len(examined) < 2:
        return Reason("not-applicable", "no other node answered")
    if len(examined) > MOST_NODES:
        return Reason("not-asked", f"ways between more than {MOST_NODES} nodes are not tried at once: name fewer")
    return None


def with_sections(nodes: Sequence[Reached], sections: Dict[str, Section]) -> List[Reached]:
    """The nodes with these sections, each by the name of its node."""
    return [_with(node, sections[node.name]) if node.name in sections else node for node in nodes]


def _with(node: Reached, section: Section) -> Reached:
    if not isinstance(node, NodeFacts):
        return node
    reasons = {name: why for name, why in node.reasons.items() if name != SECTION}
    if isinstance(section, Reason):
        return replace(node, pairs=None, reasons={**reasons, SECTION: section})
    return replace(node, pairs=section, reasons=reasons)

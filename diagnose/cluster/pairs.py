"""Pairs: the ways between nodes, tried by the nodes themselves while all of them listen.

First every node listens, and all try all their peers' ports at once: that costs a few packets and, where a firewall is
silent, one wait for all. Then what is open is measured, in rounds of disjoint pairs so that samples do not disturb one
another, first in one direction and then in the other. What came out are facts of the node that tried.
"""

import secrets
import statistics
import time
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, Type, TypeVar, Union

import msgspec
from ddp_doctor import meeting, nccl, reaching, verbs_tools
from ddp_doctor.cluster import rdma_ways
from ddp_doctor.collect.master import DEFAULT_PORT
from ddp_doctor.facts import NodeFacts, OpenedPort, Pair, Pairs, PortTry, RdmaTry, Reason, Resolved, Store

ALL_PAIRS_UP_TO = 16
"""So many nodes all meet each other, in 15 rounds; of more each meets about 2 log2 of their number."""
PORTS = 4
"""Ports that each node opens: a firewall that lets half of the range through is missed once in 16."""
LIMIT_S = 180.0
LISTEN_S = 10.0
MEASURE_S = 8.0
"""Of a way on which long packets and the stream vanish: three waits, and then the search; a healthy one takes 0.4 s."""
MARGIN_S = 2.0
"""What an answer takes on its way back."""
NO_RDMA = "adapters send to each other with --profile deep or --select pairs"
NO_MEETING = "nodes meet in torch's store with --profile deep or --select pairs"
MEASURED = ("latency_min_s", "latency_median_s", "path_mtu_bytes", "path_mtu_known", "sent_gbit_s")

Answer = Union[Dict[str, Any], Reason]
Way = Tuple[str, str]
"""From the first node to the second."""
T = TypeVar("T")


class Session(Protocol):
    """What is needed of ``session.Session``: all nodes are asked at the same time."""

    def ask(self, requests: Mapping[str, Mapping[str, Any]], limit_s: float) -> Dict[str, Answer]:
        """Each node's answer, or why there is none."""


@dataclass(frozen=True)
class Node:
    """A node to be tried, and what its facts say of the way to it."""

    name: str
    address: Optional[str] = None
    """By which NCCL or Gloo would call it; None: the address of its name."""
    link_gbit_s: Optional[float] = None
    """Of the interface with that address, where it is a wire."""
    firewalls: Optional[Tuple[str, ...]] = None
    """Those that are active."""
    python: Optional[str] = None
    """The interpreter that has torch; None: no meeting in torch's store."""
    rdma: Tuple[rdma_ways.End, ...] = ()
    """The ports that NCCL would use."""
    hostname: Optional[str] = None
    """What it calls itself, which torchrun publishes; None: the same as ``name``, which may be known to the user's ssh alone."""


@dataclass(frozen=True)
class Master:
    """Where the job's ranks will meet: the name of the node, and MASTER_ADDR and MASTER_PORT."""

    node: str
    address: str
    port: int = DEFAULT_PORT


def node_of(facts: NodeFacts) -> Node:
    """What the tests need to know of an examined node."""
    endpoint = chosen(facts)
    torch = facts.torch
    firewalls = facts.network.firewalls if facts.network else None
    return Node(
        facts.name,
        endpoint.address.ip if endpoint else None,
        nccl.wire_speed_gbit_s(endpoint.interface) if endpoint else None,
        None if firewalls is None else tuple(f.name for f in firewalls if f.active),
        torch.python if torch and torch.installed and torch.imported is not False else None,
        rdma_ways.ends(facts),
        facts.os.hostname if facts.os else None,
    )


def chosen(facts: NodeFacts) -> Optional[nccl.Endpoint]:
    """The address by which the other ranks would call this node: NCCL's choice, or Gloo's where torch has no NCCL."""
    interfaces = (facts.network.interfaces if facts.network else None) or ()
    if not nccl.lacks(facts.torch):
        return next(iter(nccl.sockets(interfaces, facts.env, nccl.version_of(facts.torch)).endpoints), None)
    names = nccl.gloo_names(facts.env)
    own = nccl.own_address(facts.network) if facts.network else None
    return next(
        (nccl.Endpoint(i, a) for i in interfaces for a in i.addresses or () if i.name in names or a.ip == own), None
    )


def master_of(nodes: Sequence[NodeFacts]) -> Optional[Master]:
    """The master that the nodes' launchers name; the first node, where none names one; None: it is none of these nodes."""
    for facts in nodes:
        launch = facts.launch
        if launch is not None and launch.is_master:
            return Master(facts.name, launch.master_addr or facts.name, launch.master_port or DEFAULT_PORT)
    if not nodes or any(facts.launch is not None and facts.launch.master_addr for facts in nodes):
        return None
    launch = nodes[0].launch
    port = launch.master_port if launch is not None else None
    return Master(nodes[0].name, _called(node_of(nodes[0])), port or DEFAULT_PORT)


# --------------------------------------------------------------------------- plan


def rounds(names: Sequence[str], all_pairs_up_to: int = ALL_PAIRS_UP_TO) -> List[List[Way]]:
    """Rounds of disjoint pairs; each pair comes once, and every node is connected with every other over some pairs."""
    nodes = list(dict.fromkeys(names))
    return _tournament(nodes) if len(nodes) <= all_pairs_up_to else _circulant(nodes)


def _tournament(nodes: List[str]) -> List[List[Way]]:
    """All pairs: one node stays in its place and the others go round (the circle method)."""
    places: List[Optional[str]] = [*nodes, *[None] * (len(nodes) % 2)]
    half = len(places) // 2
    found = []
    for _ in range(len(places) - 1):
        met = zip(places[:half], reversed(places[half:]))
        found.append([(a, b) for a, b in met if a is not None and b is not None])
        places.insert(1, places.pop())
    return found


def _circulant(nodes: List[str]) -> List[List[Way]]:
    """Each node with those 1, 2, 4, 8 ... places further on in the ring."""
    found: List[List[Way]] = []
    step = 1
    while 2 * step <= len(nodes):
        found.extend(_ring(nodes, step))
        step *= 2
    return found


def _ring(nodes: List[str], step: int) -> List[List[Way]]:
    """Pairs of one distance: they form rings, of which every other pair goes into one round; an odd ring needs a third."""
    length = len(nodes) // gcd(len(nodes), step)
    by_round: Dict[int, List[Way]] = {}
    for start in range(gcd(len(nodes), step)):
        ring = [nodes[(start + place * step) % len(nodes)] for place in range(length)]
        for place in range(length if length > 2 else 1):
            number = 2 if length % 2 and place == length - 1 else place % 2
            by_round.setdefault(number, []).append((ring[place], ring[(place + 1) % length]))
    return [by_round[number] for number in sorted(by_round)]


# --------------------------------------------------------------------------- what nodes answer


@dataclass(frozen=True)
class OwnAddress:
    """An address of a node, and the MTU of its interface."""

    ip: str
    interface: str
    mtu_bytes: Optional[int] = None


@dataclass(frozen=True)
class Listening:
    """A node's answer to "listen"."""

    ports: Tuple[int, ...]
    udp: Optional[int] = None
    master: Optional[OpenedPort] = None
    addresses: Tuple[OwnAddress, ...] = ()


@dataclass(frozen=True)
class Tried:
    """One port, as the node tells it; ``answered``: the token of the one who did."""

    port: int
    outcome: str
    ip: Optional[str] = None
    detail: Optional[str] = None
    answered: Optional[str] = None


@dataclass(frozen=True)
class Tries:
    """A node's answer of one target to "reach"."""

    tries: Tuple[Tried, ...]
    name: Optional[Resolved] = None
    ip: Optional[str] = None
    local: Optional[bool] = None
    interface: Optional[str] = None
    source: Optional[str] = None
    mtu_bytes: Optional[int] = None


@dataclass(frozen=True)
class Measured:
    """A node's answer to "measure"."""

    latency_min_s: Optional[float] = None
    latency_median_s: Optional[float] = None
    path_mtu_bytes: Optional[int] = None
    path_mtu_known: Optional[bool] = None
    sent_gbit_s: Optional[float] = None
    unread: Dict[str, Tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """A node's answer to "rdma-serve"."""

    port: Optional[int] = None
    unable: Optional[str] = None


def _typed(answer: Answer, kind: Type[T]) -> Union[T, Reason]:
    """An answer as its type, or why it is none."""
    if isinstance(answer, Reason):
        return answer
    try:
        return msgspec.convert(answer, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        return Reason("unreadable", f"an answer that makes no sense: {error}")


# --------------------------------------------------------------------------- run


def run(
    session: Session,
    nodes: Sequence[Node],
    master: Optional[Master] = None,
    limit_s: float = LIMIT_S,
    say: Callable[[str], None] = lambda text: None,
    throughput: bool = True,
    rendezvous: bool = False,
    rdma: bool = False,
) -> Dict[str, Union[Pairs, Reason]]:
    """Try and measure the ways between these nodes: each node's section, or why it has none.

    A node that does not answer is left out from then on, and the others go on. After ``limit_s`` no test is begun.
    say: told what is being done. throughput: send streams, too, which fill the network for a moment. rendezvous: let the
    nodes that have torch meet in its store. rdma: let the adapters of neighbours send to each other.
    """
    test = _Test(session, nodes, master, limit_s, say, throughput)
    try:
        test.listen()
        test.reach()
        test.measure()
        if rdma:
            test.over_rdma()
    finally:
        test.close()
    if rendezvous:
        test.meet()
    return test.facts()


class _Test:
    """The state of one run."""

    def __init__(
        self,
        session: Session,
        nodes: Sequence[Node],
        master: Optional[Master],
        limit_s: float,
        say: Callable[[str], None],
        throughput: bool,
    ) -> None:
        self._session, self._say, self._throughput = session, say, throughput
        self._nodes = {node.name: node for node in nodes}
        self._master = master if master is not None and master.node in self._nodes else None
        self._until = time.monotonic() + limit_s
        self._rounds = rounds(list(self._nodes))
        self._key = secrets.token_hex(8)
        self._tokens = {name: secrets.token_hex(8) for name in self._nodes}
        self._whose = {token: name for name, token in self._tokens.items()}
        self._gone: Dict[str, Reason] = {}
        """Nodes that do not answer, and why."""
        self._listening: Dict[str, Listening] = {}
        self._ways: Dict[Way, Union[Tries, Reason]] = {}
        self._to_master: Dict[str, Union[Tries, Reason]] = {}
        self._measured: Dict[Way, Union[Measured, Reason]] = {}
        self._meeting: Dict[str, Union[Store, Reason, None]] = {}
        self._rdma: Optional[Dict[str, List[RdmaTry]]] = None

    def _ask(self, requests: Mapping[str, Mapping[str, Any]], limit_s: float, what: str) -> Dict[str, Answer]:
        """Ask those that still answer; a node that does not is gone from here on."""
        asked = {name: request for name, request in requests.items() if name not in self._gone}
        left_s = self._until - time.monotonic()
        if left_s < MARGIN_S:
            late = Reason("deadline", f"no time was left for {what}")
            return dict.fromkeys(asked, late)
        self._say(what)
        limit_s = min(limit_s, left_s)
        bounded = {name: {**request, "key": self._key, "limit_s": limit_s} for name, request in asked.items()}
        answers = self._session.ask(bounded, limit_s + MARGIN_S) if asked else {}
        for name in asked:
            answer = answers.get(name, Reason("unreadable", "it was asked and has no answer"))
            if isinstance(answer, Reason):
                self._gone[name] = answer
        return {name: answers[name] for name in asked if name in answers}

    def listen(self) -> None:
        """Open ports on every node, and the master's port on the master."""
        requests: Dict[str, Dict[str, Any]] = {}
        for name, token in self._tokens.items():
            requests[name] = {"do": "listen", "token": token, "ports": PORTS}
        if self._master is not None:
            requests[self._master.node]["master_port"] = self._master.port
        for name, answer in self._ask(requests, LISTEN_S, "opening ports").items():
            found = _typed(answer, Listening)
            if isinstance(found, Reason):
                self._gone[name] = found
            else:
                self._listening[name] = found

    def reach(self) -> None:
        """Every node tries the ports of all its peers, and the master's, at the same time."""
        peers: Dict[str, List[str]] = {name: [] for name in self._listening}
        for a, b in (way for pairs in self._rounds for way in pairs):
            if a in peers and b in peers:
                peers[a].append(b)
                peers[b].append(a)
        requests = {
            name: {"do": "reach", "targets": [*map(self._target, others), *self._master_target(name)]}
            for name, others in peers.items()
        }
        limit_s = reaching.REACH_S + MARGIN_S
        for name, answer in self._ask(requests, limit_s, "trying every port").items():
            found = _typed(answer, Dict[str, Tuple[Tries, ...]])
            told: Any = found if isinstance(found, Reason) else found.get("targets", ())
            for place, peer in enumerate(peers[name]):
                self._ways[name, peer] = _at(told, place)
            if self._master_target(name):
                self._to_master[name] = _at(told, len(peers[name]))

    def _target(self, peer: str) -> Dict[str, Any]:
        node = self._nodes[peer]
        return {
            "host": _called(node),
            "name": _name_of(node.hostname or peer),
            "ports": list(self._listening[peer].ports),
        }

    def _master_target(self, name: str) -> List[Dict[str, Any]]:
        """The master's port, where somebody listens on it and this is not the master."""
        if self._master is None or name == self._master.node or self._no_master():
            return []
        return [{"host": self._master.address, "name": _name_of(self._master.address), "ports": [self._master.port]}]

    def _no_master(self) -> Optional[Reason]:
        """Why nobody listens on the master's port."""
        if self._master is None:
            return Reason("not-asked", "the master is none of these nodes")
        opened = self._listening[self._master.node].master if self._master.node in self._listening else None
        if opened is None:
            return self._gone_words(self._master.node)
        if opened.outcome in ("opened", "in-use"):
            return None
        return Reason("not-applicable", f"the master could not open its port {opened.port}: {opened.detail}")

    def _gone_words(self, name: str) -> Reason:
        why = self._gone.get(name, Reason("unreadable", "it did not open its ports"))
        return Reason(why.kind, f"{name} does not answer: {why.text}")

    def measure(self) -> None:
        """Latency, path MTU and throughput of the open ways, in rounds, one direction after the other."""
        for number, pairs in enumerate(self._rounds, 1):
            for ways in (pairs, [(b, a) for a, b in pairs]):
                targets = {way: self._open(way) for way in ways}
                requests = {
                    a: {"do": "measure", "target": t, "throughput": self._throughput}
                    for (a, _b), t in targets.items()
                    if t is not None
                }
                what = f"measuring the ways between nodes, round {number} of {len(self._rounds)}"
                answers = self._ask(requests, MEASURE_S, what)
                for a, b in ways:
                    if a in answers:
                        self._measured[a, b] = _typed(answers[a], Measured)

    def _open(self, way: Way) -> Optional[Dict[str, Any]]:
        """Where a way is to be measured: an open port; None where there is none."""
        tries, peer = self._ways.get(way), way[1]
        if isinstance(tries, Reason) or tries is None or peer in self._gone:
            return None
        right = [t for t in tries.tries if t.outcome == "open" and t.answered == self._tokens[peer]]
        if not right:
            return None
        return {"ip": right[0].ip, "port": right[0].port, "udp": self._listening[peer].udp, "token": self._tokens[peer]}

    def close(self) -> None:
        """Close the ports: the session may go on to other things."""
        asked = {name: {"do": "unlisten"} for name in self._listening if name not in self._gone}
        if asked:
            self._session.ask(asked, LISTEN_S)

    def over_rdma(self) -> None:
        """Neighbours in a ring send to each other over RDMA, rail by rail, all disjoint pairs at the same time."""
        self._rdma = {name: [] for name in self._nodes}
        able = [name for name, node in self._nodes.items() if node.rdma and name in self._listening]
        for ways in rdma_ways.ring(able):
            rails = {way: rdma_ways.rails(self._nodes[way[0]].rdma, self._nodes[way[1]].rdma) for way in ways}
            for number in range(max(map(len, rails.values()), default=0)):
                self._rail({way: pairs[number] for way, pairs in rails.items() if number < len(pairs)})

    def _rail(self, ends: Dict[Way, Tuple[rdma_ways.End, rdma_ways.End]]) -> None:
        """One port of each pair's first node with one of its second."""
        told = "sending over RDMA between nodes"
        open_at = {way: self._open(way) for way in ends}
        ready = {way: pair for way, pair in ends.items() if open_at[way]}
        served = self._ask(
            {b: {"do": "rdma-serve", "end": theirs.request()} for (_, b), (_, theirs) in ready.items()}, LISTEN_S, told
        )
        at = {way: _typed(served[way[1]], Served) for way in ready if way[1] in served}
        requests = {
            way[0]: {
                "do": "rdma-visit",
                "end": ready[way][0].request(),
                "ip": (open_at[way] or {})["ip"],
                "tcp_port": found.port,
            }
            for way, found in at.items()
            if isinstance(found, Served) and found.port is not None
        }
        visited = self._ask(requests, verbs_tools.TRY_S + MARGIN_S, told)
        for way, (ours, theirs) in ready.items():
            self._tried_rdma(way, ours, theirs, at.get(way), visited.get(way[0]))

    def _tried_rdma(
        self, way: Way, ours: rdma_ways.End, theirs: rdma_ways.End, served: Any, answer: Optional[Answer]
    ) -> None:
        """Keep what came of one pair of ports, at the node that tried."""
        if isinstance(served, Served) and served.unable:
            answer = {"outcome": "unable", "detail": f"{way[1]}: {served.unable}"}
        if isinstance(answer, dict) and self._rdma is not None:
            whole = {**answer, "peer": way[1], "device": ours.name, "peer_device": theirs.name}
            found = _typed({**whole, "roce": ours.roce, "gid_index": ours.gid_index}, RdmaTry)
            if isinstance(found, RdmaTry):
                self._rdma[way[0]].append(found)

    def meet(self) -> None:
        """Open torch's store on the master's port, now that it is free again, and let every node that has torch visit it."""
        self._meeting = dict.fromkeys(self._nodes, self._no_meeting())
        if self._master is None or self._meeting[self._master.node] is not None:
            return
        host, port, first = self._master.address, self._master.port, self._master.node
        common = {"host": host, "port": port}
        served = self._ask(
            {first: {**common, "do": "store", "python": self._nodes[first].python}},
            meeting.LIMIT_S,
            "opening torch's store",
        )
        self._meeting = {name: self._no_torch(name) for name in self._nodes}
        self._meeting[first] = self._store(served.get(first))
        opened = self._meeting[first]
        if not isinstance(opened, Store) or opened.outcome != "served":
            why = Reason("not-applicable", f"{first} could not open torch's store")
            self._meeting.update({name: why for name in self._nodes if name != first})
            return
        requests = {
            name: {**common, "do": "join", "python": node.python, "token": name}
            for name, node in self._nodes.items()
            if name != first and self._no_torch(name) is None
        }
        for name, answer in self._ask(requests, meeting.LIMIT_S, "meeting in torch's store").items():
            self._meeting[name] = self._store(answer)
        self.close()

    def _no_meeting(self) -> Optional[Reason]:
        """Why nobody can meet in torch's store."""
        why = self._no_master()
        if self._master is None or why is not None:
            return why
        opened = self._listening[self._master.node].master
        if opened is not None and opened.outcome == "in-use":
            return Reason("not-applicable", f"another program holds port {opened.port} of the master")
        return self._no_torch(self._master.node)

    def _no_torch(self, name: str) -> Optional[Reason]:
        return self._gone.get(name) or (
            None if self._nodes[name].python else Reason("absent", f"no torch that can be imported was found on {name}")
        )

    def _store(self, answer: Optional[Answer]) -> Union[Store, Reason]:
        """What came of a visit, as a fact."""
        if self._master is None or answer is None:
            return Reason("unreadable", "it was not asked")
        if isinstance(answer, Reason):
            return answer
        return _typed({**answer, "host": self._master.address, "port": self._master.port}, Store)

    # ----------------------------------------------------------------- facts

    def facts(self) -> Dict[str, Union[Pairs, Reason]]:
        """Each node's section."""
        measured = [found for found in self._measured.values() if isinstance(found, Measured)]
        usual = _median([found.sent_gbit_s for found in measured]), _median([m.latency_min_s for m in measured])
        return {name: self._section(name, *usual) for name in self._nodes}

    def _section(
        self, name: str, usual_gbit_s: Optional[float], usual_latency_s: Optional[float]
    ) -> Union[Pairs, Reason]:
        if name not in self._listening:
            return self._gone.get(name, Reason("unreadable", "it did not open its ports"))
        unread: Dict[str, Reason] = {}
        if usual_latency_s is None:
            unread.update(dict.fromkeys(("usual_gbit_s", "usual_latency_s"), Reason("absent", "no pair was measured")))
        if not self._throughput:
            unread["usual_gbit_s"] = Reason(*reaching.NO_STREAM)
        peers = dict.fromkeys(
            peer for pairs in self._rounds for way in pairs if name in way for peer in way if peer != name
        )
        listening = self._listening[name]
        to_master = self._master_way(name, unread)
        if listening.master is None:
            unread["opened"] = Reason("not-applicable", "this node is not the master")
        met = self._meeting.get(name) or Reason("not-asked", NO_MEETING)
        if isinstance(met, Reason):
            unread["rendezvous"] = met
        rdma = self._rdma_of(name, unread)
        met_gbit_s = [found.sent_gbit_s for tries in (self._rdma or {}).values() for found in tries]
        return Pairs(
            rdma=rdma,
            usual_rdma_gbit_s=_median(met_gbit_s),
            peers=tuple(self._pair(name, peer) for peer in peers),
            opened=listening.master,
            to_master=to_master,
            usual_gbit_s=usual_gbit_s,
            usual_latency_s=usual_latency_s,
            rendezvous=met if isinstance(met, Store) else None,
            unread=unread,
        )

    def _rdma_of(self, name: str, unread: Dict[str, Reason]) -> Optional[Tuple[RdmaTry, ...]]:
        """What this node tried over RDMA, or the reason why it did not."""
        if self._rdma is None:
            unread["rdma"] = Reason("not-asked", NO_RDMA)
        elif not self._nodes[name].rdma:
            unread["rdma"] = Reason("not-applicable", "no RDMA port that NCCL would use")
        elif not self._rdma[name]:
            unread["rdma"] = Reason(
                "not-applicable", "no peer with a port of this kind was reached; others may have tried this node"
            )
        else:
            return tuple(self._rdma[name])
        return None

    def _master_way(self, name: str, unread: Dict[str, Reason]) -> Optional[Pair]:
        if self._master is not None and name == self._master.node:
            unread["to_master"] = Reason("not-applicable", "this node is the master")
            return None
        why = self._no_master()
        if self._master is None or why is not None:
            unread["to_master"] = why or Reason("not-asked", "no master")
            return None
        found = self._to_master.get(name) or self._gone.get(name) or Reason("unreadable", "it was not tried")
        pair = Pair(self._master.node, self._master.address, firewalls=self._nodes[self._master.node].firewalls)
        return self._with_tries(pair, found)

    def _pair(self, name: str, peer: str) -> Pair:
        node, here = self._nodes[peer], self._nodes[name]
        links = [each.link_gbit_s for each in (node, here)]
        pair = Pair(peer, _called(node), firewalls=node.firewalls)
        if peer not in self._listening:
            return self._unmeasured(_unread(pair, ("tries", "addresses"), self._gone_words(peer)), name)
        found = self._ways.get((name, peer)) or self._gone.get(name) or Reason("unreadable", "it was not tried")
        pair = self._with_tries(pair, found)
        back = self._ways.get((peer, name))
        own = self._listening[peer].addresses
        pair = replace(
            pair,
            addresses=tuple(address.ip for address in own),
            peer_mtu_bytes=next((address.mtu_bytes for address in own if address.ip == pair.ip), None),
            back=None if back is None or isinstance(back, Reason) else worst(self._outcomes(back, name)),
            link_gbit_s=min(filter(None, links)) if all(links) else None,
        )
        return self._unmeasured(pair, name)

    def _with_tries(self, pair: Pair, found: Union[Tries, Reason]) -> Pair:
        """The pair with what its attempts met; a peer that has meanwhile gone proves nothing by its silence."""
        if isinstance(found, Reason):
            return _unread(pair, ("tries",), found)
        outcomes = self._outcomes(found, pair.peer)
        if pair.peer in self._gone and worst(outcomes) != "open":
            return _unread(pair, ("tries",), self._gone_words(pair.peer))
        return replace(
            pair,
            tries=outcomes,
            **{name: getattr(found, name) for name in ("name", "ip", "local", "interface", "source", "mtu_bytes")},
        )

    def _outcomes(self, found: Tries, peer: str) -> Tuple[PortTry, ...]:
        """The attempts; one that somebody else answered is no success."""
        return tuple(self._outcome(tried, peer) for tried in found.tries)

    def _outcome(self, tried: Tried, peer: str) -> PortTry:
        if self._is_master_in_use(tried, peer):
            return PortTry(tried.port, "open", tried.ip, "the program that holds the port took the connection")
        if tried.outcome != "open" or tried.answered == self._tokens[peer]:
            return PortTry(tried.port, tried.outcome, tried.ip, tried.detail)
        who = self._whose.get(tried.answered or "", "something else")
        return PortTry(tried.port, "wrong-answer", tried.ip, f"{who} answered")

    def _is_master_in_use(self, tried: Tried, peer: str) -> bool:
        """Did the program that holds the master's port take the connection? Nobody of ours could answer there."""
        opened = self._listening[peer].master if peer in self._listening else None
        taken = tried.outcome in ("open", "wrong-answer") and tried.answered not in self._whose
        return taken and opened is not None and (opened.port, opened.outcome) == (tried.port, "in-use")

    def _unmeasured(self, pair: Pair, name: str) -> Pair:
        """The pair with what was measured, and the reasons for the rest."""
        found = self._measured.get((name, pair.peer))
        if isinstance(found, Measured):
            why = {field: Reason(*words) for field, words in found.unread.items() if field in MEASURED}
            values = {field: getattr(found, field) for field in MEASURED}
            return replace(pair, **values, unread={**pair.unread, **why})
        late = self._gone.get(name) or (self._gone_words(pair.peer) if pair.peer in self._gone else None)
        is_open = pair.tries is not None and any(t.outcome == "open" for t in pair.tries)
        why_not = found or late or Reason("deadline", "no time was left") if is_open else None
        return _unread(pair, MEASURED, why_not or Reason("not-applicable", "no port of the peer was reached"))


def _at(told: Any, place: int) -> Union[Tries, Reason]:
    """The answer of one target, or why there is none."""
    if isinstance(told, Reason):
        return told
    found: Union[Tries, Reason] = (
        told[place] if place < len(told) else Reason("unreadable", "fewer answers than targets")
    )
    return found


def _unread(pair: Pair, names: Sequence[str], reason: Reason) -> Pair:
    return replace(pair, unread={**pair.unread, **dict.fromkeys(names, reason)})


def _called(node: Node) -> str:
    """What peers call: the address that NCCL would publish, where it leads anywhere; else the name."""
    return node.address if node.address and not nccl.is_loopback(node.address) else node.name


def _name_of(host: str) -> Optional[str]:
    """A name to resolve; None for an address, and for one that means this node everywhere."""
    return host if nccl.ip_of(host) is None and not host.startswith("localhost") else None


def worst(tries: Sequence[PortTry]) -> str:
    """The outcome of the first attempt that failed; "open" where none did."""
    return next((each.outcome for each in tries if each.outcome != "open"), "open")


def _median(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


__all__ = ["Master", "Node", "Session", "Store", "chosen", "master_of", "node_of", "rounds", "run", "worst"]

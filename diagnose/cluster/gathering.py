"""Gathering: the facts of many nodes side by side, over ssh; each as it comes, or why there is none."""

import json
import re
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ddp_doctor import document
from ddp_doctor.ask import SSH_LAUNCHERS, Ask
from ddp_doctor.cluster import between, push, slurm, ssh
from ddp_doctor.cluster import hostfile as hostfiles
from ddp_doctor.cluster.folding import shortened
from ddp_doctor.cluster.names import BadNodes, parse_nodes
from ddp_doctor.cluster.reached import Reached, Unreachable
from ddp_doctor.cluster.session import FANOUT, Answer, Session, Way
from ddp_doctor.cluster.ssh import CONNECT_S
from ddp_doctor.facts import Reason, to_plain
from ddp_doctor.scope import sections_in

NODE_LIMIT_S = 120.0
"""A node's facts, without samples and compute tests: importing torch from a cold shared file system is the longest."""
DEEP_S = 240.0
"""What the compute test may take on top (``collect.compute.TEST_LIMIT_S`` and its children)."""
MOST_LOGINS = 128
"""From the first node to others: four rounds of ``collect.logins.SIDE_BY_SIDE``, a minute where none of them answers."""
JUDGING_S = 1.0
"""What --deadline leaves for judging and printing."""


@dataclass(frozen=True)
class Plan:
    """What is asked of which nodes, and how long anybody waits."""

    way: Way
    asks: Dict[str, Ask]
    """Node, as the user wrote it -> what it is asked; in the user's order."""
    sections: Tuple[str, ...]
    fanout: int = FANOUT
    node_limit_s: float = NODE_LIMIT_S
    """For one node, from the start of its ssh."""
    deadline_s: Optional[float] = None
    """For all nodes."""
    lost: Tuple[Unreachable, ...] = ()
    """Nodes of which it was known before that nothing can be started there."""
    between: Optional[str] = None
    """How much is tried of the ways between the nodes (``between.depth``); None: nothing."""

    @property
    def held(self) -> bool:
        """Do the connections outlast the facts, since all nodes have one at once, and ways between them will be tried?"""
        return self.between is not None and 1 < len(self.asks) <= self.fanout

    def session_between(self) -> Session:
        """Connections to all nodes at once, for the ways between them."""
        return self.way.session(min(len(self.asks), between.MOST_NODES), between.LIMIT_S + self.way.connect_s)

    def session(self) -> Session:
        """Connections for the facts."""
        longest_s = self.node_limit_s + (self.way.connect_s + between.LIMIT_S if self.held else 0.0)
        return self.way.session(self.fanout, longest_s)

    def limit_s(self) -> float:
        """For all: as long as the slowest nodes may take, in as many turns as there are."""
        turns = -(-len(self.asks) // self.fanout)
        longest = turns * (self.node_limit_s + self.way.connect_s)
        return longest if self.deadline_s is None else min(longest, self.deadline_s)


def named(options: Mapping[str, Any], env: Mapping[str, str]) -> Tuple[List[str], List[str]]:
    """The nodes that are meant, each once, and what there is to remark. Raises BadNodes and OSError."""
    names, remarks, path = parse_nodes(options["nodes"]), [], options["hostfile"]
    if path is not None:
        read = hostfiles.read(path)
        names = list(dict.fromkeys([*names, *read.names]))
        if read.repeated:
            remarks.append(f"{path}: named more than once, examined once: {shortened(read.repeated)}")
    if options["slurm"]:
        names = slurm.nodes_of(names, options["partition"], env)
    without = set(parse_nodes(options["exclude_nodes"]))
    left = [name for name in names if name not in without]
    if not left:
        raise BadNodes("no node is left to examine")
    return left, remarks


def plan(
    nodes: Sequence[str],
    base: Ask,
    options: Mapping[str, Any],
    scope: str,
    pairs_asked: Optional[bool] = None,
    env: Optional[Mapping[str, str]] = None,
) -> Plan:
    """The plan for these nodes by the command line's options. Raises BadNodes for what ssh or srun must not be given.

    pairs_asked: are the ways between the nodes asked for by name, or judged by nobody? None: as the profile says.
    """
    limit_s = options["node_timeout_s"] or node_limit_s(base)
    asks = asks_of(replace(base, python=options["python"]), nodes)
    made = _by_slurm(nodes, options, env or {}, limit_s) if options["slurm"] else (_by_ssh(options), list(nodes), ())
    chosen, up, lost = made
    return Plan(
        way=chosen,
        asks={node: asks[node] for node in up},
        sections=sections_in(scope),
        fanout=len(nodes) if options["slurm"] else options["fanout"] or FANOUT,
        node_limit_s=limit_s,
        deadline_s=None if options["deadline"] is None else max(0.1, options["deadline"] - JUDGING_S),
        lost=tuple(lost),
        between=between.depth(base.profile, pairs_asked),
    )


def _by_slurm(
    nodes: Sequence[str], options: Mapping[str, Any], env: Mapping[str, str], limit_s: float
) -> Tuple[Way, List[str], Sequence[Unreachable]]:
    """One srun on the nodes that are up, and those that are not. Raises BadNodes."""
    slurm.check_options(options)
    command, preamble = _program(options)
    up, lost = slurm.ready(nodes, "SLURM_JOB_ID" in env)
    return slurm.step(up, command, preamble, options, env, limit_s), up, lost


def _by_ssh(options: Mapping[str, Any]) -> Way:
    """A connection to each node. Raises BadNodes."""
    for name in ("ssh_user", "ssh_jump"):
        if options[name] is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@:,\[\]-]*", options[name]):
            raise BadNodes(f"--{name.replace('_', '-')} {options[name]!r}: not a name")
    for option in options["ssh_options"]:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*[ =].+", option):
            raise BadNodes(f"--ssh-option {option!r}: expected NAME=VALUE, as in ssh_config(5)")
    if options["partition"] or options["slurm_options"]:
        raise BadNodes("--partition and --slurm-option go with --slurm")
    connect_s = options["connect_timeout_s"] or CONNECT_S
    words = ssh.options(
        options["ssh_user"], options["ssh_port"], options["ssh_jump"], options["ssh_options"], connect_s
    )
    command, preamble = _program(options)
    return ssh.Way(command, words, connect_s, preamble)


def _program(options: Mapping[str, Any]) -> Tuple[str, bytes]:
    """The command line on a node, and what is sent first. Raises BadNodes."""
    if options["push"] and options["remote_command"]:
        raise BadNodes("--push and --remote-command exclude each other")
    if options["push"]:
        return push.command(), push.archive()
    return ssh.installed(options["remote_command"]), b""


def node_limit_s(ask: Ask) -> float:
    """Seconds for a node of which this is asked."""
    return (
        NODE_LIMIT_S + ask.sample_s + (DEEP_S if ask.compute or (ask.compute is None and ask.profile == "deep") else 0)
    )


def asks_of(base: Ask, nodes: Sequence[str]) -> Dict[str, Ask]:
    """What each node is asked: the same, with its own rank where the master is one of them, and whom it logs in to."""
    order = ranked(base.master_addr, nodes)
    known = base.master_addr in order
    count = base.nnodes or (len(nodes) if len(nodes) > 1 else None)
    asked = replace(base, nnodes=count, cwd=None)
    by_rank = {
        node: replace(asked, node_rank=rank if known else None, peers=base.peers or _peers(base, rank, order))
        for rank, node in enumerate(order)
    }
    return {node: by_rank[node] for node in nodes}


def _peers(base: Ask, rank: int, order: Sequence[str]) -> Tuple[str, ...]:
    """Whom a node logs in to: what the launcher will do, where it starts ranks over ssh.

    The first node starts the others; Open MPI's daemons start further ones in a tree (plm_rsh_tree_spawn), so that each node
    tries two more, and every node is tried from three places.
    """
    if base.launcher not in SSH_LAUNCHERS:
        return ()
    others = [*order[rank + 1 :], *order[:rank]]
    return tuple(others[:MOST_LOGINS] if rank == 0 else others[:2])


def ranked(master: Optional[str], nodes: Sequence[str]) -> List[str]:
    """The nodes by node rank: the master first, the others as they were named."""
    return [*(n for n in nodes if n == master), *(n for n in nodes if n != master)]


def reach(plan: Plan, progress: Callable[[List[str]], None]) -> List[Reached]:
    """Every node's facts, or why there are none, in the plan's order. After Ctrl-C: what was known by then."""
    return [*(_reach(plan, progress) if plan.asks else ()), *plan.lost]


def _reach(plan: Plan, progress: Callable[[List[str]], None]) -> List[Reached]:
    until = time.monotonic() + (plan.deadline_s or float("inf"))
    with plan.session() as session:
        nodes, interrupted = _facts_of_all(session, plan, progress)
        if plan.held and not interrupted:
            return _between(session, plan, nodes, until, progress)
    if plan.between is None or interrupted or len(nodes) < 2:
        return nodes
    return _between_many(plan, nodes, until, progress)


def _facts_of_all(session: Session, plan: Plan, progress: Callable[[List[str]], None]) -> Tuple[List[Reached], bool]:
    """Nodes in the plan's order, and whether somebody pressed Ctrl-C."""
    found: Dict[str, Reached] = {}
    interrupted = False

    def waiting_for(names: List[str]) -> None:
        progress([f"{len(names)} of {len(plan.asks)} nodes: {shortened(names, 60)}"])

    try:
        for node in facts(session, plan, waiting_for):
            found[node.name] = node
    except KeyboardInterrupt:
        interrupted = True
    why = Reason("interrupted", "interrupted before it had answered")
    return [found.get(name) or Unreachable(name, why) for name in plan.asks], interrupted


def facts(session: Session, plan: Plan, waiting_for: Optional[Callable[[List[str]], None]] = None) -> Iterator[Reached]:
    """Every node's facts, each as it comes, or why there are none."""
    requests = {node: _request(plan, ask) for node, ask in plan.asks.items()}
    reader = document.Reader()
    for node, answer in session.stream(requests, plan.limit_s(), last=not plan.held, waiting_for=waiting_for):
        yield reached(node, answer, session.clock(node), reader)


def _between(
    session: Session, plan: Plan, nodes: List[Reached], until: float, progress: Callable[[List[str]], None]
) -> List[Reached]:
    limit_s = min(between.LIMIT_S, until - time.monotonic())
    return between.tried(session, nodes, plan.between or between.PORTS, limit_s, lambda what: progress([what]))


def _between_many(
    plan: Plan, nodes: List[Reached], until: float, progress: Callable[[List[str]], None]
) -> List[Reached]:
    """Of more nodes than are asked for facts at once: all of them get a connection, to listen at the same time."""
    with plan.session_between() as session:
        return _between(session, plan, nodes, until, progress)


def _request(plan: Plan, ask: Ask) -> Dict[str, Any]:
    patience_s = plan.node_limit_s - min(5.0, plan.node_limit_s / 4)  # what it knows by then, it can still send
    if plan.deadline_s is not None:
        patience_s = min(patience_s, plan.deadline_s * 3 / 4)
    return {
        "do": "facts",
        "ask": to_plain(ask),
        "sections": plan.sections,
        "deadline_s": patience_s,
        "limit_s": plan.node_limit_s,
        "via": plan.way.via,
        **plan.way.extra,
    }


def reached(node: str, answer: Answer, clock: Optional[Tuple[float, float]], reader: document.Reader) -> Reached:
    """A node's answer to a request for facts, typed."""
    if isinstance(answer, Reason):
        return Unreachable(node, answer)
    how = answer.get("how", {})
    if clock is not None and isinstance(how, dict):
        how = {**how, "clock_offset_s": round(clock[0], 6), "clock_error_s": round(clock[1], 6)}
    plain = {"reasons": {}, **answer, "name": node, "how": how}
    try:
        return reader.facts(json.dumps(plain).encode("ascii")) or document.facts_collected(plain)
    except (document.BadDocument, TypeError, ValueError) as error:
        return Unreachable(node, Reason("unreadable", f"its facts cannot be read: {error}"))

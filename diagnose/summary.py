"""The report in short: each node's header, the headline, the counts and what to type next."""

from dataclasses import replace
from typing import Dict, Iterable, Iterator, List, Set, Tuple, Union

from ddp_doctor import header, model, nccl, next_lines, topology
from ddp_doctor.accelerators import answering, chosen
from ddp_doctor.cluster.folding import folded as folded_names
from ddp_doctor.cluster.reached import Unreachable
from ddp_doctor.facts import SECTIONS, Gpus, NodeFacts, Reason
from ddp_doctor.model import Outcome, Severity, Verdict, folded
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural
from ddp_doctor.unreadable import LOST

CUT_SHORT = ("interrupted", "deadline")
_WENT_WRONG = (*LOST, *CUT_SHORT, "not-recorded")
"""Kinds of reason that say that something went wrong while looking, unlike not-applicable, not-asked or no-rights."""


def node(facts: NodeFacts) -> model.Node:
    """One node's entry in the report."""
    return model.Node(
        name=facts.name,
        how=facts.how,
        collected_at=facts.collected_at,
        duration_s=facts.duration_s,
        summary=header.lines(facts),
        left_behind=facts.left_behind,
        matrix=topology.of(facts),
    )


def unreachable(missed: Unreachable) -> model.Node:
    """The entry of a node that did not answer."""
    return model.Node(name=missed.name, status="unreachable", reason=missed.reason)


class Seen:
    """What the summary needs of the nodes, taken in one by one: the facts of a few, and a word or two of the others."""

    def __init__(self, nodes: Iterable[NodeFacts] = ()) -> None:
        self.names: List[str] = []
        self.first: List[NodeFacts] = []
        """The first KEPT nodes: from them it follows what to type next."""
        self.cut_short: Set[str] = set()
        """Nodes where a section was not read because nobody would wait any longer."""
        self.lost: Dict[str, Reason] = {}
        """Nodes of which no section at all could be read, and why: no process could be started there, for one."""
        self.looked_for_torch = self.found_torch = False
        self.ways: Dict[str, List[str]] = {}
        """How data will go between nodes, in words -> nodes with GPUs where it will."""
        self.unreachable: Dict[str, Reason] = {}
        """Nodes that did not answer, and why."""
        for facts in nodes:
            self.add(facts)

    def __len__(self) -> int:
        return len(self.names)

    def miss(self, missed: Unreachable) -> None:
        """Take in that a node did not answer."""
        self.unreachable[missed.name] = missed.reason

    def add(self, facts: NodeFacts) -> None:
        """Take in a node."""
        self.names.append(facts.name)
        if len(self.first) < KEPT:
            self.first.append(facts)
        if any(reason.kind in CUT_SHORT for reason in facts.reasons.values()):
            self.cut_short.add(facts.name)
        other_system = facts.how.via in header.OTHER_TOOLS  # whose report is not judged at all
        wrong = [reason for reason in facts.reasons.values() if reason.kind in LOST or other_system]
        if wrong and all(getattr(facts, section) is None for section in SECTIONS):
            self.lost[facts.name] = wrong[0]
        looked = bool(facts.torch) or "torch" not in facts.reasons or facts.reasons["torch"].kind != "not-asked"
        self.looked_for_torch = self.looked_for_torch or looked
        self.found_torch = self.found_torch or bool(facts.torch and facts.torch.installed)
        if facts.gpus and facts.gpus.gpus:
            way = nccl.traffic(facts.network, facts.rdma, facts.env, facts.torch, _gpus_of_job(facts.gpus))
            self.ways.setdefault(way, []).append(facts.name)


_FEW = 40
"""Characters that the names of nodes may take in the headline."""
KEPT = 64
"""Facts of so many nodes are kept for what to type next: lines are printed for fewer still."""
Nodes = Union[Seen, Iterable[NodeFacts]]


def _seen(nodes: Nodes) -> Seen:
    return nodes if isinstance(nodes, Seen) else Seen(nodes)


def summarise(
    nodes: Nodes,
    verdicts: Iterable[Verdict],
    policy: Policy,
    exit_status: int,
    remarks: Tuple[str, ...] = (),
) -> model.Summary:
    """The report in short; ``exit_status`` is the engine's."""
    seen, found = _seen(nodes), folded(verdicts)
    if len(seen) > len(seen.first):
        policy = replace(policy, nnodes=next_lines.nnodes(seen.first, policy, len(seen)))
    return model.Summary(
        headline=" ".join(_headline(seen, found, policy, exit_status)),
        exit_status=exit_status,
        counts=counts(verdicts),
        next=next_lines.lines([] if seen.unreachable else seen.first, list(found), policy),
        remarks=remarks,
    )


Found = Dict[Verdict, List[str]]
"""Verdict without its node -> nodes that have it."""


def counts(verdicts: Iterable[Verdict]) -> Dict[str, int]:
    """error, warning, note, waived (failed verdicts), passed, skipped, broken -> number of verdicts."""
    found = dict.fromkeys(("error", "warning", "note", "waived", "passed", "skipped", "broken"), 0)
    for v, nodes in folded(verdicts).items():
        key = "waived" if v.waived else v.severity.value if v.outcome is Outcome.FAILED else v.outcome.value
        found[key] += len(nodes)
    return found


def _headline(nodes: Seen, verdicts: Found, policy: Policy, exit_status: int) -> Iterator[str]:
    """Ready or not, in plain words; then what the network will give."""
    errors = _failed(verdicts, Severity.ERROR)
    things = _causes(v for v in verdicts if v.counts and v.severity is Severity.ERROR)
    warnings = _failed(verdicts, Severity.WARNING)
    blind = {v.check for v in verdicts if v.reason and v.reason.kind in _WENT_WRONG}
    if errors:
        yield f"Not ready: {plural(things, 'thing')} to fix{_on(errors, nodes, verdicts)}."
    elif exit_status == 1:
        notes = _failed(verdicts, Severity.NOTE)
        found = plural(len(warnings), "warning") if warnings else plural(len(notes), "note")
        yield f"Not ready: {found} to look at, which you chose to count as failures."
    elif exit_status:
        yield f"Cannot tell: {_doubt(nodes, verdicts)}."
    elif not any(v.outcome in (Outcome.PASSED, Outcome.FAILED) for v in verdicts):
        yield f"Nothing to judge: none of the checks ({len({v.check for v in verdicts})}) had anything to look at here."
    else:
        seen = f" as far as could be seen ({plural(len(blind), 'check')} could not look)" if blind else ""
        yield f"Ready{seen}{', with ' + plural(len(warnings), 'warning') if warnings else ''}" + (
            f"{_without_torch(nodes)}."
        )
    if nodes.unreachable and exit_status == 1:
        yield f"{_silent(nodes)}."
    yield from _network(nodes, policy)


def _silent(nodes: Seen) -> str:
    """Who did not answer."""
    missed = list(nodes.unreachable)
    return f"{len(missed)} of {len(nodes) + len(missed)} nodes did not answer ({_few(missed)})"


def _failed(verdicts: Iterable[Verdict], severity: Severity) -> List[str]:
    """Checks that failed with that severity and count."""
    return sorted({v.check for v in verdicts if v.counts and v.severity is severity})


def _causes(failures: Iterable[Verdict]) -> int:
    """How many things there are to fix: checks whose first remedy has the same steps show one cause from several sides."""
    ways: Dict[str, object] = {}
    for verdict in failures:
        ways.setdefault(verdict.check, verdict.fixes[0].steps if verdict.fixes else verdict.check)
    return len(set(ways.values()))


def _on(checks: List[str], nodes: Seen, verdicts: Found) -> str:
    if len(nodes) < 2:
        return ""
    hit = {node for v, names in verdicts.items() if v.counts and v.check in checks for node in names} - {""}
    return f" on {len(hit)} of {len(nodes)} nodes" if hit else " between the nodes"


def cut_short(nodes: Nodes, verdicts: Iterable[Verdict]) -> List[str]:
    """Nodes where Ctrl-C or --deadline ended the collecting before a section, or what a check looks at, was read."""
    return _cut_short(_seen(nodes), folded(verdicts))


def _cut_short(nodes: Seen, verdicts: Found) -> List[str]:
    unjudged = {node for v, names in verdicts.items() if v.reason and v.reason.kind in CUT_SHORT for node in names}
    return [name for name in nodes.names if name in unjudged or name in nodes.cut_short]


def _doubt(nodes: Seen, verdicts: Found) -> str:
    """Why no verdict is possible."""
    if nodes.unreachable:
        return _silent(nodes)
    broken = sorted({v.check for v in verdicts if v.outcome is Outcome.BROKEN})
    cut = _cut_short(nodes, verdicts)
    if cut:
        return "the examination was cut short" + (f" on {folded_names(cut)}" if len(nodes) > 1 else "")
    if nodes.lost:
        why = next(iter(nodes.lost.values()))
        return f"nothing could be read{f' on {folded_names(list(nodes.lost))}' if len(nodes) > 1 else ''} ({why.text})"
    if broken:
        return f"{plural(len(broken), 'check')} broke ({', '.join(broken)})"
    judged = any(v.outcome in (Outcome.PASSED, Outcome.FAILED) for v in verdicts)
    return "not every node could be examined" if judged else "nothing could be examined"


def _network(nodes: Seen, policy: Policy) -> Iterator[str]:
    """What NCCL will use between the nodes that have GPUs, unless the job has one node."""
    if next_lines.nnodes(nodes.first, policy, len(nodes)) == 1:
        return
    ways = {way: names for way, names in nodes.ways.items() if way}
    if len(ways) == 1:
        yield f"{next(iter(ways))}."
    elif ways:
        yield "; ".join(f"{_few(names)}: {way}" for way, names in ways.items()) + "."


def _gpus_of_job(gpus: Gpus) -> int:
    """GPUs that a job here can use: those that answer and that CUDA_VISIBLE_DEVICES leaves."""
    working = len(answering(gpus))
    names = chosen(gpus.visible_devices)
    return working if names is None else min(working, len(names))


def _without_torch(nodes: Seen) -> str:
    """Words where torch was looked for and none was found on any node: then nothing is known of what the job runs."""
    return ", but no torch was examined" if nodes.looked_for_torch and not nodes.found_torch else ""


def _few(names: List[str]) -> str:
    """The nodes, folded where that is short."""
    text = folded_names(names)
    return text if len(text) <= _FEW else f"{', '.join(names[:3])} and {len(names) - 3} more"

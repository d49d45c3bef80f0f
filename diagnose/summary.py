"""The report in short: each node's header, the headline, the counts and what to type next."""

from typing import Dict, Iterable, Iterator, List, Sequence, Tuple

from ddp_doctor import header, model, nccl, next_lines, topology
from ddp_doctor.accelerators import answering, chosen
from ddp_doctor.facts import Gpus, NodeFacts
from ddp_doctor.model import Outcome, Severity, Verdict
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural

CUT_SHORT = ("interrupted", "deadline")
_WENT_WRONG = ("timed-out", "crashed", "unreadable", *CUT_SHORT, "not-recorded")
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


def summarise(
    nodes: Sequence[NodeFacts],
    verdicts: Sequence[Verdict],
    policy: Policy,
    exit_status: int,
    remarks: Tuple[str, ...] = (),
) -> model.Summary:
    """The report in short; ``exit_status`` is the engine's."""
    return model.Summary(
        headline=" ".join(_headline(nodes, verdicts, policy, exit_status)),
        exit_status=exit_status,
        counts=counts(verdicts),
        next=next_lines.lines(nodes, verdicts, policy),
        remarks=remarks,
    )


def counts(verdicts: Sequence[Verdict]) -> Dict[str, int]:
    """error, warning, note, waived (failed verdicts), passed, skipped, broken -> number of verdicts."""
    keys = [
        "waived" if v.waived else v.severity.value if v.outcome is Outcome.FAILED else v.outcome.value for v in verdicts
    ]
    return {key: keys.count(key) for key in ("error", "warning", "note", "waived", "passed", "skipped", "broken")}


def _headline(
    nodes: Sequence[NodeFacts], verdicts: Sequence[Verdict], policy: Policy, exit_status: int
) -> Iterator[str]:
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
    yield from _network(nodes, policy)


def _failed(verdicts: Sequence[Verdict], severity: Severity) -> List[str]:
    """Checks that failed with that severity and count."""
    return sorted({v.check for v in verdicts if v.counts and v.severity is severity})


def _causes(failures: Iterable[Verdict]) -> int:
    """How many things there are to fix: checks whose first remedy has the same steps show one cause from several sides."""
    ways: Dict[str, object] = {}
    for verdict in failures:
        ways.setdefault(verdict.check, verdict.fixes[0].steps if verdict.fixes else verdict.check)
    return len(set(ways.values()))


def _on(checks: List[str], nodes: Sequence[NodeFacts], verdicts: Sequence[Verdict]) -> str:
    if len(nodes) < 2:
        return ""
    hit = {v.node for v in verdicts if v.counts and v.check in checks}
    return f" on {len(hit)} of {len(nodes)} nodes"


def cut_short(nodes: Sequence[NodeFacts], verdicts: Sequence[Verdict]) -> List[str]:
    """Nodes where Ctrl-C or --deadline ended the collecting before a section, or what a check looks at, was read."""
    unjudged = {v.node for v in verdicts if v.reason and v.reason.kind in CUT_SHORT}
    return [
        facts.name
        for facts in nodes
        if facts.name in unjudged or any(reason.kind in CUT_SHORT for reason in facts.reasons.values())
    ]


def _doubt(nodes: Sequence[NodeFacts], verdicts: Sequence[Verdict]) -> str:
    """Why no verdict is possible."""
    broken = sorted({v.check for v in verdicts if v.outcome is Outcome.BROKEN})
    cut = cut_short(nodes, verdicts)
    if cut:
        return "the examination was cut short" + (f" on {', '.join(cut)}" if len(nodes) > 1 else "")
    if broken:
        return f"{plural(len(broken), 'check')} broke ({', '.join(broken)})"
    judged = any(v.outcome in (Outcome.PASSED, Outcome.FAILED) for v in verdicts)
    return "not every node could be examined" if judged else "nothing could be examined"


def _network(nodes: Sequence[NodeFacts], policy: Policy) -> Iterator[str]:
    """What NCCL will use between the nodes that have GPUs, unless the job has one node."""
    if next_lines.nnodes(nodes, policy) == 1:
        return
    ways: Dict[str, List[str]] = {}
    for facts in nodes:
        if facts.gpus and facts.gpus.gpus:
            way = nccl.traffic(facts.network, facts.rdma, facts.env, facts.torch, _gpus_of_job(facts.gpus))
            ways.setdefault(way, []).append(facts.name)
    ways.pop("", None)
    if len(ways) == 1:
        yield f"{next(iter(ways))}."
    elif ways:
        yield "; ".join(f"{_few(names)}: {way}" for way, names in ways.items()) + "."


def _gpus_of_job(gpus: Gpus) -> int:
    """GPUs that a job here can use: those that answer and that CUDA_VISIBLE_DEVICES leaves."""
    working = len(answering(gpus))
    names = chosen(gpus.visible_devices)
    return working if names is None else min(working, len(names))


def _without_torch(nodes: Sequence[NodeFacts]) -> str:
    """Words where torch was looked for and none was found on any node: then nothing is known of what the job runs."""
    looked = [n for n in nodes if n.torch or "torch" not in n.reasons or n.reasons["torch"].kind != "not-asked"]
    found = any(n.torch and n.torch.installed for n in nodes)
    return ", but no torch was examined" if looked and not found else ""


def _few(names: List[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

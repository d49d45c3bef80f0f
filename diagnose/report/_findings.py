"""What several formats share: equal findings folded over nodes, order, steps in words."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Sequence, Tuple

from ddp_doctor import escape
from ddp_doctor.model import Outcome, Remedy, Report, Step, Verdict


@dataclass(frozen=True)
class Finding:
    """A verdict without its node, and the nodes that have it."""

    verdict: Verdict
    nodes: Tuple[str, ...]

    @property
    def area(self) -> str:
        """ "limits" of limits/memlock-too-low."""
        return self.verdict.check.split("/")[0]

    @property
    def label(self) -> str:
        """ERROR, WARNING, NOTE, WAIVED, BROKEN, SKIPPED or PASSED."""
        verdict = self.verdict
        if verdict.outcome is not Outcome.FAILED:
            return str(verdict.outcome.value).upper()
        return "WAIVED" if verdict.waived else str(verdict.severity.value).upper()


def folded(verdicts: Iterable[Verdict]) -> List[Finding]:
    """Findings that differ only in the node become one, in the order of their first appearance."""
    nodes: Dict[Verdict, List[str]] = {}
    for verdict in verdicts:
        nodes.setdefault(replace(verdict, node=""), []).append(verdict.node)
    return [Finding(verdict, tuple(names)) for verdict, names in nodes.items()]


def _badness(finding: Finding) -> int:
    """Low is bad: ERROR 0, WARNING 1, NOTE 2, waived 3."""
    return 3 if finding.verdict.waived else 2 - finding.verdict.severity.rank


def faults_by_area(findings: Iterable[Finding]) -> Dict[str, List[Finding]]:
    """Failed findings by area: the area with the worst first, in each the worst first, else by name."""
    areas: Dict[str, List[Finding]] = {}
    for finding in sorted(findings, key=lambda f: (_badness(f), f.verdict.check)):
        if finding.verdict.outcome is Outcome.FAILED:
            areas.setdefault(finding.area, []).append(finding)
    return areas


def of_outcome(findings: Iterable[Finding], outcome: Outcome) -> List[Finding]:
    """Findings with that outcome, in their order."""
    return [finding for finding in findings if finding.verdict.outcome is outcome]


def by_reason(findings: Iterable[Finding]) -> Dict[Tuple[str, str], List[Finding]]:
    """(kind, text) of the reason -> findings that it explains; reasons that explain most first."""
    groups: Dict[Tuple[str, str], List[Finding]] = {}
    for finding in findings:
        reason = finding.verdict.reason
        groups.setdefault((reason.kind, reason.text) if reason else ("", "no reason given"), []).append(finding)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def checks(findings: Iterable[Finding]) -> List[str]:
    """Ids, each once, in order."""
    return sorted({finding.verdict.check for finding in findings})


def area_counts(findings: Iterable[Finding]) -> str:
    """gpus 3, rdma 6: how many checks of each area."""
    counts = Counter(check.split("/")[0] for check in checks(findings))
    return ", ".join(f"{area} {number}" for area, number in sorted(counts.items()))


def where(finding: Finding, report: Report) -> str:
    """The nodes of a finding, in words; empty in a report about one node."""
    if len(report.nodes) < 2:
        return ""
    names = ", ".join(finding.nodes)
    return names if len(finding.nodes) == 1 else f"{len(finding.nodes)} of {len(report.nodes)} nodes: {names}"


def step_words(step: Step) -> str:
    """What a person reads before a step's code: the sentence, who must do it and how far it reaches; often nothing."""
    sentence = {"sentence": step.text, "file": f"Put this into {step.name}"}.get(step.kind, "")
    rights = {"user": "", "root": "as root"}.get(step.who, f"by the {step.who}")
    terms = ", ".join(filter(None, (rights, f"for {step.scope}" if step.scope else "")))
    if not sentence:
        return f"{terms[0].upper()}{terms[1:]}:" if terms else ""
    return f"{sentence}{f' ({terms})' if terms else ''}{':' if step.kind == 'file' else ''}"


def step_code(step: Step) -> str:
    """What is to be typed or written in a step; empty for a sentence."""
    return {
        "command": step.text,
        "export": escape.export(step.name, step.value),
        "unset": f"unset {step.name}",
        "file": step.text.rstrip("\n"),
    }.get(step.kind, "")


def other_titles(fixes: Sequence[Remedy]) -> str:
    """The titles of all remedies but the first."""
    return "; ".join(remedy.title for remedy in fixes[1:])

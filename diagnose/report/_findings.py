"""What several formats share: equal findings folded over nodes, order, steps in words."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Sequence, Tuple

from ddp_doctor import escape, model
from ddp_doctor.cluster.folding import shortened
from ddp_doctor.model import Outcome, Remedy, Report, Step, Verdict


@dataclass(frozen=True)
class Finding:
    """A verdict without its node, and the nodes that have it; where other subjects have the same, also all of these."""

    verdict: Verdict
    nodes: Tuple[str, ...]
    subjects: Tuple[str, ...] = ()
    wordings: int = 1
    """In so many wordings the nodes have it: numbers of their own."""

    @property
    def subject(self) -> str:
        """What was looked at: "gpu01, gpu02"; empty for the node itself."""
        return ", ".join(self.subjects) or self.verdict.subject

    @property
    def shown(self) -> str:
        """Whose words the verdict has, where it stands for several subjects and names one."""
        verdict = self.verdict
        if self.wordings > 1:
            return f"as on {self.nodes[0]}; measured values or remedies of the others differ (-v shows them)"
        named = verdict.subject in repr((verdict.measured, verdict.message, verdict.fixes))
        return f"as for {verdict.subject}, the others are alike" if len(self.subjects) > 1 and named else ""

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
    return [Finding(verdict, tuple(names)) for verdict, names in model.folded(verdicts).items()]


def over_subjects(findings: Iterable[Finding]) -> List[Finding]:
    """Findings that differ only in the subject, wherever it is named, become one in the words of the first."""
    alike: Dict[Tuple[str, Tuple[str, ...]], List[Finding]] = {}
    for finding in findings:
        subject = finding.verdict.subject
        words = repr(replace(finding.verdict, subject="")).replace(subject, "\0") if subject else repr(finding.verdict)
        alike.setdefault((words, finding.nodes), []).append(finding)
    return [replace(group[0], subjects=tuple(f.verdict.subject for f in group)) for group in alike.values()]


MANY = 3
"""More wordings of one finding than this, each on nodes of its own, are shown as one."""


def over_wordings(findings: Iterable[Finding]) -> List[Finding]:
    """Findings that differ between nodes in what was measured alone become one, where there are more than MANY."""
    alike: Dict[Tuple[object, ...], List[Finding]] = {}
    for finding in findings:
        v = finding.verdict
        alike.setdefault((v.check, finding.subject, v.severity, v.waived, v.message, v.why), []).append(finding)
    return [merged for group in alike.values() for merged in (_merged(group) if len(group) > MANY else group)]


def _merged(group: List[Finding]) -> List[Finding]:
    nodes = tuple(dict.fromkeys(node for finding in group for node in finding.nodes))
    return [replace(group[0], nodes=nodes, wordings=len(group))]


def _badness(finding: Finding) -> int:
    """Low is bad: ERROR 0, WARNING 1, NOTE 2, waived 3."""
    return 3 if finding.verdict.waived else 2 - finding.verdict.severity.rank


def faults_by_area(findings: Iterable[Finding], each: bool = False) -> Dict[str, List[Finding]]:
    """Failed findings by area: the area with the worst first, in each the worst first, else by name.

    each: also those that differ between many nodes in what was measured alone.
    """
    areas: Dict[str, List[Finding]] = {}
    faults = over_subjects(of_outcome(findings, Outcome.FAILED))
    faults = faults if each else over_wordings(faults)
    for finding in sorted(faults, key=lambda f: (_badness(f), f.verdict.check)):
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


def noun(report: Report) -> str:
    """What the report calls a node: files that were linted are none."""
    return "file" if report.nodes and all(node.how.via == "lint" for node in report.nodes) else "node"


def where(finding: Finding, report: Report) -> str:
    """The nodes of a finding, in words, folded; empty in a report about one node, and for what blames none."""
    if len(report.nodes) < 2 or finding.nodes == ("",):
        return ""
    names = shortened(finding.nodes)
    return names if len(finding.nodes) == 1 else f"{len(finding.nodes)} of {len(report.nodes)} {noun(report)}s: {names}"


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

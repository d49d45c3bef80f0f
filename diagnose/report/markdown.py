"""The report as Markdown, for a CI system's step summary."""

from typing import Iterator, List, Sequence

from ddp_doctor import escape
from ddp_doctor.escape import markdown as safe
from ddp_doctor.model import Outcome, Remedy, Report
from ddp_doctor.report import Options
from ddp_doctor.report import _findings as findings
from ddp_doctor.report._findings import Finding


def render(report: Report, options: Options) -> str:
    """GitHub-flavoured Markdown: headline, nodes, a table of findings, each in full, then the rest folded away."""
    found = findings.folded(report.verdicts)
    faults = [finding for group in findings.faults_by_area(found).values() for finding in group]
    parts = (
        [f"## {safe(report.summary.headline)}"],
        _nodes(report),
        _overview(faults, report),
        *(_fault(finding, report) for finding in faults),
        _broken(found, report),
        _rest(found),
        (f"*{safe(remark)}*" for remark in report.summary.remarks),
        ["### Next", escape.fenced("\n".join(map(escape.terminal, report.summary.next)), "sh")]
        if report.summary.next
        else [],
    )
    return "\n\n".join(line for part in parts for line in part) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table; the cells are escaped here."""
    from tabulate import tabulate

    cells = [[safe(cell) for cell in row] for row in rows]
    return tabulate(cells, headers=head, tablefmt="github", disable_numparse=True)


def _nodes(report: Report) -> Iterator[str]:
    labels = list(dict.fromkeys(label for node in report.nodes for label in node.summary))
    examined = [node for node in report.nodes if node.status == "examined"]
    names = [node.name for node in examined]
    values = [[node.summary.get(label, "") for label in labels] for node in examined]
    if len(names) == 1:
        yield _table(["node", safe(names[0])], list(zip(labels, values[0])))
    elif names:
        yield _table(["node", *map(safe, labels)], [[name, *row] for name, row in zip(names, values)])
    missed = [
        [node.name, node.reason.text if node.reason else ""] for node in report.nodes if node.status != "examined"
    ]
    if missed:
        yield _table(["not reached", "because"], missed)
    for node in examined:
        if node.left_behind:
            yield f"Left behind on {safe(node.name)}: {safe('; '.join(node.left_behind))}"


def _overview(faults: Sequence[Finding], report: Report) -> Iterator[str]:
    if faults:
        rows = [[f.label, f.verdict.check, _place(f, report), f.verdict.measured, f.verdict.expected] for f in faults]
        yield _table(["", "check", "where", "measured", "expected"], rows)


def _place(finding: Finding, report: Report) -> str:
    return "; ".join(filter(None, (finding.subject, findings.where(finding, report))))


def _fault(finding: Finding, report: Report) -> Iterator[str]:
    """A finding in full."""
    verdict = finding.verdict
    place = _place(finding, report)
    yield f"### {finding.label}: {safe(verdict.message)}"
    facts = (
        ("check", verdict.check),
        ("where", place),
        ("shown", finding.shown),
        ("measured", verdict.measured),
        ("expected", verdict.expected),
        ("why", verdict.why),
        ("waived", verdict.waived.reason if verdict.waived else ""),
        ("until", (verdict.waived.until or "") if verdict.waived else ""),
        ("source", verdict.source),
    )
    yield "\n".join(f"- **{label}**: {safe(text)}" for label, text in facts if text)
    if not verdict.waived:
        yield from _remedy(verdict.fixes)


def _remedy(fixes: Sequence[Remedy]) -> Iterator[str]:
    """The best remedy step by step, the others by name."""
    if not fixes:
        return
    yield f"**What to do:** {safe(fixes[0].title)}"
    for step in fixes[0].steps:
        words, code = findings.step_words(step), findings.step_code(step)
        yield from [safe(words)] if words else []
        yield from [escape.fenced(code, "sh" if step.kind != "file" else "")] if code else []
    if fixes[1:]:
        yield f"Or: {safe(findings.other_titles(fixes))}"


def _broken(found: Sequence[Finding], report: Report) -> Iterator[str]:
    broken = findings.of_outcome(found, Outcome.BROKEN)
    if broken:
        yield "### Broken checks (a defect of the check, which says nothing about the node)"
        rows = [[f.verdict.check, _place(f, report), f.verdict.reason.text if f.verdict.reason else ""] for f in broken]
        yield _table(["check", "where", "what broke"], rows)


def _rest(found: Sequence[Finding]) -> Iterator[str]:
    """What passed and what was not judged, folded away."""
    passed, skipped = (findings.of_outcome(found, outcome) for outcome in (Outcome.PASSED, Outcome.SKIPPED))
    rows: List[List[str]] = [[f.verdict.check, f.verdict.subject, f.verdict.measured] for f in passed]
    if rows:
        title = f"{len(findings.checks(passed))} passed"
        yield _folded(title, _table(["check", "where", "measured"], sorted(rows)))
    if skipped:
        reasons = [
            [text, ", ".join(findings.checks(group))] for (_, text), group in findings.by_reason(skipped).items()
        ]
        yield _folded(f"{len(findings.checks(skipped))} not judged", _table(["because", "checks"], reasons))


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape.html(title)}</summary>\n\n{body}\n\n</details>"

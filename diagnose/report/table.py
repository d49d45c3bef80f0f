"""The report for people: a sentence, who was looked at, what is wrong, what to type next."""

import re
import textwrap
from typing import Dict, Iterator, List, Sequence, Set, Tuple

from ddp_doctor import escape, glossary
from ddp_doctor.cluster.folding import shortened
from ddp_doctor.model import Node, Outcome, Remedy, Report, Severity, Step, Verdict
from ddp_doctor.report import Options
from ddp_doctor.report import _findings as findings
from ddp_doctor.report._findings import Finding
from ddp_doctor.units import plural

_COLOURS = {
    "ERROR": "1;31",
    "WARNING": "33",
    "NOTE": "36",
    "WAIVED": "2",
    "BROKEN": "35",
    "READY": "1;32",
    "heading": "1",
    "code": "1",
}
"""SGR parameters of ECMA-48."""
_NARROWEST = 40
_HEADER_VALUES = 4
"""So many different values of one header line are shown."""
_OWNERS = 60
"""Characters that the nodes of a header value may take."""
_SHORT = 100
"""Characters up to which a remedy's only step is shown wherever the remedy is named."""
_INDENT = 11
"""Columns before a finding's text: two, then the longest label and room."""


def render(report: Report, options: Options) -> str:
    """Text of at most ``options.width`` columns, but for commands and addresses, which are not broken."""
    page = _Page(options)
    found = findings.folded(report.verdicts)
    parts = (
        _headline(report, page),
        _header(report, page),
        _unreachable(report, page),
        _faults(found, report, page),
        _broken(found, report, page),
        _passed(found, report, page),
        _matrices(report.nodes, page),
        _skipped(found, page),
        _remarks(report, page),
        _next(report, page),
    )
    blocks = ("\n".join(lines) for lines in map(list, parts) if lines)
    return escape.carried("\n\n".join(blocks) + "\n", options.encoding)


class _Page:
    """Lines of the right width and colour; every text passes ``escape`` here."""

    def __init__(self, options: Options) -> None:
        self.width = max(options.width, _NARROWEST)
        self.colour = options.colour
        self.verbose = options.verbose
        self.told: Dict[Tuple[Step, ...], str] = {}
        """Steps that were printed -> the check at which they stand."""
        self.abridged = False
        """Was a remedy named without its steps?"""

    def paint(self, text: str, kind: str) -> str:
        """Text in the colour of ``kind``, where colour is wanted."""
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if self.colour and kind in _COLOURS else text

    def wrapped(self, text: str, first: str = "", rest: str = "") -> List[str]:
        """Lines of ``text``; ``first`` stands before the first one, ``rest`` before the others."""
        return textwrap.wrap(
            escape.terminal(" ".join(text.split())), self.width, initial_indent=first, subsequent_indent=rest,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip

    def labelled(self, label: str, text: str, indent: int, kind: str = "") -> List[str]:
        """``text`` beside its label, which takes ``indent`` columns; nothing when there is no text."""
        if not text:
            return []
        label = escape.terminal(label)
        first, *more = self.wrapped(text, f"{label:<{indent - 1}} ", " " * indent)
        return [first.replace(label, self.paint(label, kind), 1), *more]

    def code(self, text: str, indent: int) -> List[str]:
        """Lines to copy: as they are, never wrapped."""
        return [" " * indent + self.paint(line, "code") for line in escape.lines(text).split("\n")]

    def clipped(self, text: str) -> str:
        """One line of at most the width."""
        return text if len(text) <= self.width else text[: self.width - 3].rstrip() + "..."

    def heading(self, text: str) -> List[str]:
        """The first line of a block."""
        return [self.paint(line, "heading") for line in self.wrapped(text)]


def _headline(report: Report, page: _Page) -> Iterator[str]:
    kind = {0: "READY", 1: "ERROR"}.get(report.summary.exit_status, "BROKEN")
    for line in page.wrapped(report.summary.headline):
        yield page.paint(line, kind)


def _header(report: Report, page: _Page) -> Iterator[str]:
    """Who was looked at: line by line, nodes with the same value together."""
    examined = [node for node in report.nodes if node.status == "examined"]
    names, noun = [node.name for node in examined], findings.noun(report)
    if not names:
        return
    yield from page.labelled(
        noun.capitalize() if len(names) == 1 else f"{len(names)} {noun}s", shortened(names), 13, "heading"
    )
    for label, values in _header_values(examined).items():
        for number, (value, owners) in enumerate(list(values.items())[:_HEADER_VALUES]):
            owned = "" if len(owners) == len(names) else f"{shortened(owners, _OWNERS)}: "
            yield from page.labelled("" if number else label, owned + value, 13, "heading")
        if len(values) > _HEADER_VALUES:
            yield from page.labelled("", f"and {len(values) - _HEADER_VALUES} different ones", 13)


def _header_values(nodes: Sequence[Node]) -> Dict[str, Dict[str, List[str]]]:
    """Label -> value -> nodes that have it."""
    found: Dict[str, Dict[str, List[str]]] = {}
    for node in nodes:
        left = {"Left behind": "; ".join(node.left_behind)} if node.left_behind else {}
        for label, value in {**node.summary, **left}.items():
            found.setdefault(label, {}).setdefault(value, []).append(node.name)
    return found


def _unreachable(report: Report, page: _Page) -> Iterator[str]:
    """Nodes that did not answer, those for the same reason together."""
    missed: Dict[str, List[str]] = {}
    for node in report.nodes:
        if node.status != "examined":
            missed.setdefault(node.reason.text if node.reason else node.status, []).append(node.name)
    if missed:
        yield from page.heading("not reached")
    for reason, names in missed.items():
        yield from page.wrapped(f"{shortened(names)}: {reason}", "  ", " " * 4)


def _faults(found: Sequence[Finding], report: Report, page: _Page) -> Iterator[str]:
    seen: Set[str] = set()
    for number, (area, group) in enumerate(findings.faults_by_area(found, each=page.verbose).items()):
        if number:
            yield ""
        yield from page.heading(area)
        for finding in group:
            yield from _fault(finding, report, page, seen)


def _fault(finding: Finding, report: Report, page: _Page, seen: Set[str]) -> Iterator[str]:
    """One finding: what, where, measured, expected, why, what to do."""
    verdict = finding.verdict
    told = not finding.subject or re.search(rf"(?<!\w){re.escape(finding.subject)}(?!\w)", verdict.message)
    subject = "" if told else f"{finding.subject}: "
    yield from page.labelled(
        f"  {finding.label}", f"{subject}{verdict.message} [{verdict.check}]", _INDENT, finding.label
    )
    if verdict.waived:
        until = f" (until {verdict.waived.until})" if verdict.waived.until else ""
        yield from _detail("waived", f"{verdict.waived.reason}{until}", page)
    yield from _detail("on", findings.where(finding, report), page)
    yield from _detail("shown", finding.shown, page)
    yield from _detail("measured", verdict.measured, page)
    yield from _detail("expected", verdict.expected, page)
    yield from _detail("why", verdict.why, page)
    if not verdict.waived:
        yield from _remedies(verdict, page)
    yield from _detail("source", verdict.source, page)
    text = " ".join((verdict.subject, verdict.message, verdict.measured, verdict.expected, verdict.why))
    yield from _detail("words", "; ".join(glossary.explained(text, seen)), page)


def _detail(label: str, text: str, page: _Page) -> List[str]:
    return page.labelled(" " * _INDENT + label, text, _INDENT + 10)


def _remedies(verdict: Verdict, page: _Page) -> Iterator[str]:
    """Each way out step by step; of a note, whose ways out are rarely taken, the best and the short ones, others by name."""
    in_full, named = list(verdict.fixes), []
    if verdict.severity is Severity.NOTE and not page.verbose:
        in_full = [remedy for number, remedy in enumerate(verdict.fixes) if not number or _is_short(remedy)]
        named = [remedy.title for remedy in verdict.fixes if remedy not in in_full]
    for number, remedy in enumerate(in_full):
        yield from _remedy("or" if number else "do", remedy, verdict.check, page)
    yield from _detail("or", "; ".join(named), page)
    page.abridged = page.abridged or bool(named)


def _is_short(remedy: Remedy) -> bool:
    lengths = [len(findings.step_words(step)) + len(findings.step_code(step)) for step in remedy.steps]
    return not lengths or (len(lengths) == 1 and lengths[0] <= _SHORT)


def _remedy(label: str, remedy: Remedy, check: str, page: _Page) -> Iterator[str]:
    """One way out; steps that stand above already, since one cause often shows in several findings, are not repeated."""
    above = page.told.setdefault(remedy.steps, check)
    if remedy.steps and above != check:
        yield from _detail(label, f"{remedy.title}: the steps stand above, at {above}", page)
        return
    yield from _detail(label, remedy.title, page)
    for step in remedy.steps:
        yield from _step(step, page)


def _step(step: Step, page: _Page) -> Iterator[str]:
    margin = " " * (_INDENT + 10)
    yield from page.wrapped(findings.step_words(step), margin, margin)
    code = findings.step_code(step)
    yield from page.code(code, _INDENT + 12) if code else ()
    for label, text in (("risk", step.risk), ("undo", step.undo), ("see", step.see)):
        yield from page.wrapped(f"{label}: {text}", margin + "  ", margin + "    ") if text else ()


def _broken(found: Sequence[Finding], report: Report, page: _Page) -> Iterator[str]:
    broken = findings.of_outcome(found, Outcome.BROKEN)
    if broken:
        yield from page.heading("Broken checks: a defect of the check, which says nothing about the node")
    for finding in broken:
        verdict = finding.verdict
        place = "; ".join(filter(None, (verdict.subject, findings.where(finding, report))))
        text = f"{verdict.check}{f' ({place})' if place else ''}: {verdict.reason.text if verdict.reason else ''}"
        yield from page.labelled("  BROKEN", text, _INDENT, "BROKEN")


def _passed(found: Sequence[Finding], report: Report, page: _Page) -> Iterator[str]:
    """One line per area with what was measured; with -v a line for each check and subject."""
    passed = sorted(findings.of_outcome(found, Outcome.PASSED), key=lambda f: f.verdict.check)
    if passed:
        yield from page.heading("Passed")
    if page.verbose:
        for finding in passed:
            yield from page.wrapped(_pass_words(finding, report), "  ", "      ")
        return
    for area in dict.fromkeys(finding.area for finding in passed):
        group = [finding for finding in passed if finding.area == area]
        measured = dict.fromkeys(_measured(finding) for finding in group if finding.verdict.measured)
        text = f"  {area:<10} {len(findings.checks(group)):>2}  {'; '.join(measured)}"
        yield page.clipped(escape.terminal(text).rstrip())


def _measured(finding: Finding) -> str:
    verdict = finding.verdict
    return verdict.measured if verdict.subject in verdict.measured else f"{verdict.subject} {verdict.measured}"


def _pass_words(finding: Finding, report: Report) -> str:
    verdict = finding.verdict
    subject = f" {verdict.subject}" if verdict.subject else ""
    nodes = findings.where(finding, report)
    expected = f" (expected: {verdict.expected})" if verdict.expected else ""
    return f"{verdict.check}{subject}{f' on {nodes}' if nodes else ''}: {verdict.measured or 'fine'}{expected}"


def _matrices(nodes: Sequence[Node], page: _Page) -> Iterator[str]:
    """With -v how near GPUs and network cards are to each other; nodes with the same table together."""
    tables: Dict[Tuple[str, ...], List[str]] = {}
    for node in nodes:
        if page.verbose and node.matrix:
            tables.setdefault(node.matrix, []).append(node.name)
    for number, (lines, owners) in enumerate(tables.items()):
        if number:
            yield ""
        where = f" of {', '.join(owners)}" if len(nodes) > 1 else ""
        yield from page.heading(f"Ways between GPUs and network cards{where}, as nvidia-smi topo -m names them")
        yield from ("  " + escape.terminal(line) for line in lines)


_MANY = 8


def _skipped(found: Sequence[Finding], page: _Page) -> Iterator[str]:
    """What was not judged: what does not apply on one line, other reasons one line each; with -v every check is named.

    A reason that covers more than ``_MANY`` checks is counted by area: nobody reads a hundred names.
    """
    skipped = findings.of_outcome(found, Outcome.SKIPPED)
    if not skipped:
        return
    yield from page.heading(f"Not judged: {plural(len(findings.checks(skipped)), 'check')}")
    moot = []
    for (kind, text), group in findings.by_reason(skipped).items():
        if kind == "not-applicable" and not page.verbose:
            moot.append(f"{text} ({findings.area_counts(group)})")
        else:
            many = len(findings.checks(group)) > _MANY and not page.verbose
            names = f"({findings.area_counts(group)})" if many else f"[{', '.join(_names(group))}]"
            yield from page.wrapped(f"{text} {names}", "  ", "      ")
    if moot:
        yield from page.wrapped(f"does not apply: {'; '.join(moot)}", "  ", "      ")


def _names(group: Sequence[Finding]) -> List[str]:
    """Check ids, with the subjects of those that could not be told for some subjects alone."""
    subjects: Dict[str, List[str]] = {}
    for finding in group:
        subjects.setdefault(finding.verdict.check, []).extend(filter(None, [finding.verdict.subject]))
    return [f"{id} ({', '.join(names)})" if names else id for id, names in sorted(subjects.items())]


def _remarks(report: Report, page: _Page) -> Iterator[str]:
    abridged = ("-v shows the steps of the remedies that are only named",) if page.abridged else ()
    for remark in (*report.summary.remarks, *abridged):
        yield from page.wrapped(f"({remark})", "", " ")


def _next(report: Report, page: _Page) -> Iterator[str]:
    """Commands as they are, comments and sentences wrapped."""
    if report.summary.next:
        yield from page.heading("Next")
    for line in report.summary.next:
        if line.startswith("#"):
            yield from page.wrapped(line, "  ", "  # ")
        else:
            yield from page.code(escape.terminal(line), 2)

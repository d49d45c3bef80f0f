"""The report as JUnit XML: a suite for each node, a test case for each check and subject."""

from typing import Dict, Iterable, List, Optional
from xml.etree import ElementTree as xml

from ddp_doctor import escape, header
from ddp_doctor.model import Node, Outcome, Report, Verdict
from ddp_doctor.report import Options
from ddp_doctor.report import _findings as findings


def render(report: Report, options: Options) -> str:
    """XML as the JUnit readers of Jenkins, GitLab and GitHub take it.

    Findings below ``options.fail_on`` are test cases that pass, with the finding as their output: they do not fail the
    run either. Waived findings and checks that did not apply are skipped; broken checks and unreachable nodes are errors.
    """
    root = xml.Element("testsuites", name=f"{report.tool.name} {report.tool.version}")
    by_node: Dict[str, List[Verdict]] = {}
    for verdict in report.verdicts:
        by_node.setdefault(verdict.node, []).append(verdict)
    names = {node.name for node in report.nodes}
    over_all = [Node(name) for name in by_node if name not in names]
    for node in (*report.nodes, *over_all):
        root.append(_suite(node, by_node.get(node.name, []), options))
    _count(root, root.iter("testcase"))
    for element in root.iter():
        element.text = element.text or ("\n" if len(element) else None)
        element.tail = "\n"
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(root, encoding="unicode")


def _suite(node: Node, verdicts: List[Verdict], options: Options) -> xml.Element:
    suite = xml.Element("testsuite", name=escape.xml(node.name or "all nodes"))
    if node.name:
        suite.set("hostname", escape.xml(node.name))
    moment = header.moment(node.collected_at) if node.collected_at is not None else None
    if moment:
        suite.set("timestamp", moment.strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("time", f"{node.duration_s or 0:.3f}")
    properties = xml.SubElement(suite, "properties") if node.summary else None
    for label, text in node.summary.items() if properties is not None else ():
        xml.SubElement(properties, "property", name=escape.xml(label), value=escape.xml(text))  # type: ignore[arg-type]
    if node.status != "examined":
        case = xml.SubElement(suite, "testcase", classname=escape.xml(node.name), name="node/examined", time="0")
        why = f": {node.reason.text}" if node.reason else ""
        xml.SubElement(case, "error", type=escape.xml(node.status), message=escape.xml(f"{node.status}{why}"))
    for verdict in verdicts:
        suite.append(_case(verdict, options))
    _count(suite, suite.iter("testcase"))
    return suite


def _count(element: xml.Element, cases: Iterable[xml.Element]) -> None:
    """Totals of the test cases within, as attributes."""
    cases = list(cases)
    element.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))


def _case(verdict: Verdict, options: Options) -> xml.Element:
    name = f"{verdict.check} [{verdict.subject}]" if verdict.subject else verdict.check
    case = xml.Element("testcase", classname=escape.xml(verdict.node or "all nodes"), name=escape.xml(name), time="0")
    tag = _tag(verdict, options)
    if tag:
        mark = xml.SubElement(case, tag, message=escape.xml(_message(verdict)))
        if tag != "skipped":
            mark.set("type", verdict.severity.value)
            mark.text = escape.xml(_details(verdict))
    else:
        xml.SubElement(case, "system-out").text = escape.xml(_details(verdict))
    return case


def _tag(verdict: Verdict, options: Options) -> Optional[str]:
    if verdict.outcome is Outcome.BROKEN:
        return "error"
    if verdict.outcome is Outcome.SKIPPED or verdict.waived:
        return "skipped"
    return "failure" if verdict.counts and verdict.severity.rank >= options.fail_on.rank else None


def _message(verdict: Verdict) -> str:
    """One line: the reason, the waiver or the fault."""
    if verdict.waived:
        until = f" until {verdict.waived.until}" if verdict.waived.until else ""
        return f"waived{until}: {verdict.waived.reason} ({verdict.message})"
    return verdict.reason.text if verdict.reason else verdict.message


def _details(verdict: Verdict) -> str:
    """Everything about a verdict, a line for each part."""
    failed = verdict.outcome is Outcome.FAILED
    parts = [
        (verdict.severity.value, verdict.message) if failed else ("", ""),
        ("measured", verdict.measured),
        ("expected", verdict.expected),
        ("why", verdict.why),
        *(("do", line) for line in _remedies(verdict)),
        ("source", verdict.source if failed else ""),
        ("reason", verdict.reason.text if verdict.reason else ""),
    ]
    return "\n".join(f"{label}: {text}" for label, text in parts if text)


def _remedies(verdict: Verdict) -> Iterable[str]:
    """The first remedy's steps, the others by title."""
    for remedy in verdict.fixes[:1]:
        yield remedy.title
        for step in remedy.steps:
            yield from filter(None, (findings.step_words(step), findings.step_code(step)))
    if verdict.fixes[1:]:
        yield f"or {findings.other_titles(verdict.fixes)}"

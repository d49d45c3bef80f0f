"""The checks' own documentation, as text and as JSON: what ``ddp-doctor checks`` prints."""

import json
import textwrap
from typing import Dict, Iterator, List, Sequence

from ddp_doctor import escape, glossary
from ddp_doctor.model import Severity
from ddp_doctor.registry import Check, Registry
from ddp_doctor.units import plural

_INDENT = 10


def text(checks: Sequence[Check], loaded: Registry, detailed: bool = False, width: int = 100) -> str:
    """A list of the checks, or with ``detailed`` the documentation of each; plug-ins that did not load come last."""
    body = "\n\n".join("\n".join(_page(check, width)) for check in checks) if detailed else _list(checks, width)
    failed = [f"plug-in {name} could not be loaded: {error}" for name, error in loaded.failed_plugins.items()]
    return "\n".join((body, *map(escape.terminal, failed)))


def as_json(checks: Sequence[Check]) -> str:
    """A JSON list: id, severity, several_nodes, title, why, see, judges, no_fix, has_fix."""
    return json.dumps([_plain(check) for check in checks], indent=2)


def _plain(check: Check) -> Dict[str, object]:
    return {
        "id": check.id,
        "severity": check.severity.value,
        "several_nodes": check.several_nodes,
        "title": check.doc.title,
        "why": check.doc.why,
        "see": list(check.doc.see),
        "judges": list(check.parameters),
        "no_fix": check.doc.no_fix,
        "has_fix": check.fix is not None,
    }


def _list(checks: Sequence[Check], width: int) -> str:
    """One line for each check while the width allows it, the title wrapped below itself."""
    from tabulate import tabulate

    columns = [(escape.terminal(check.id), check.severity.value) for check in checks]
    taken = sum(max(map(len, column)) + 2 for column in zip(*columns)) if columns else 0
    titles = (textwrap.fill(escape.terminal(check.doc.title), max(width - taken, 20)) for check in checks)
    rows = [(*left, title) for left, title in zip(columns, titles)]
    table = tabulate(rows, headers=("check", "severity", "fault"), tablefmt="simple", disable_numparse=True)
    return f"{table}\n\n{plural(len(checks), 'check')}; ddp-doctor checks ID explains one."


def _page(check: Check, width: int) -> Iterator[str]:
    """Everything about one check."""
    yield escape.terminal(check.id)
    yield from _wrapped(check.doc.title, width, "  ")
    yield ""
    unknown = ", or while their number is not known"
    if check.severity is not Severity.NOTE:
        unknown = "; a note while their number is not known"
    several = f" (only for a job of several nodes{unknown})" if check.several_nodes else ""
    yield from _part("severity", check.severity.value + several, width)
    yield from _part("why", check.doc.why, width)
    yield from _part("judges", ", ".join(check.parameters), width)
    yield from _part("fix", _fix(check), width)
    for address in check.doc.see:
        yield from _part("see", address, width)
    for line in glossary.explained(f"{check.doc.title} {check.doc.why}", set()):
        yield from _part("word", line, width)


def _fix(check: Check) -> str:
    if check.fix is not None:
        return "the report shows remedies that fit the node"
    return f"none: {check.doc.no_fix}" if check.doc.no_fix else "none"


def _part(label: str, words: str, width: int) -> List[str]:
    return _wrapped(words, width, f"  {label:<{_INDENT}}", " " * (_INDENT + 2)) if words else []


def _wrapped(words: str, width: int, first: str, rest: str = "") -> List[str]:
    """Lines of at most ``width`` columns; addresses are not broken."""
    clean = escape.terminal(" ".join(words.split()))
    return textwrap.wrap(
        clean,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest or first,
        break_long_words=False,
        break_on_hyphens=False,
    )

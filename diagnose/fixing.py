"""``ddp-doctor fix``: the remedies of a report, by who must do what: to read, to source, or as a script. Nothing is applied."""

import json
import re
import shlex
import textwrap
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from ddp_doctor.cluster.folding import shortened
from ddp_doctor.escape import export, terminal
from ddp_doctor.model import Remedy, Report, Severity, Step, Verdict, folded

WHO = ("user", "root", "cluster admin", "network admin", "vendor")
"""In this order: what one can do oneself comes first."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Fix:
    """A finding that counts, the nodes that have it, and its ways out, best first."""

    verdict: Verdict
    nodes: Tuple[str, ...]

    @property
    def remedies(self) -> Tuple[Remedy, ...]:
        """Best first; none where the check has no fix."""
        return self.verdict.fixes

    @property
    def who(self) -> str:
        """Who must do the best one: the one with most rights of its steps."""
        steps = [step.who for remedy in self.remedies[:1] for step in remedy.steps]
        return max(steps, key=_rank, default="user")


def _rank(who: str) -> int:
    return WHO.index(who) if who in WHO else len(WHO)


def fixes(report: Report, ids: Sequence[str] = ()) -> List[Fix]:
    """Findings that count, the worst first; with ``ids`` those whose check is, or begins with, one of them."""
    found = [
        Fix(verdict, tuple(dict.fromkeys(names)))
        for verdict, names in folded(report.verdicts).items()
        if verdict.counts
        and (not ids or any(verdict.check == id or verdict.check.startswith(f"{id.rstrip('/')}/") for id in ids))
    ]
    return sorted(found, key=lambda fix: (-fix.verdict.severity.rank, fix.verdict.check, fix.verdict.subject))


def text(found: Sequence[Fix], width: int) -> str:
    """To read: by who must do it, the worst first."""
    if not found:
        return "Nothing to fix.\n"
    lines: List[str] = []
    for who in sorted({fix.who for fix in found if fix.remedies}, key=_rank):
        lines += [
            "",
            f"To be done by the {who}"
            if who not in ("user", "root")
            else f"To be done as {'you are' if who == 'user' else 'root'}",
        ]
        for fix in found:
            if fix.remedies and fix.who == who:
                lines += ["", *_lines(fix, width)]
    without = [fix for fix in found if not fix.remedies]
    if without:
        lines += ["", "Without a remedy that can be told"]
        lines += [_wrapped("  ", f"{fix.verdict.check}: {_message(fix)}", width) for fix in without]
    return "\n".join(lines[1:]) + "\n"


def _message(fix: Fix) -> str:
    verdict = fix.verdict
    subject = f"{verdict.subject}: " if verdict.subject else ""
    nodes = [name for name in fix.nodes if name]
    on = f" (on {shortened(nodes)})" if nodes else ""
    return terminal(f"{subject}{verdict.message}{on}")


def _lines(fix: Fix, width: int) -> Iterator[str]:
    yield _wrapped(f"  {fix.verdict.severity.value.upper():8s} ", f"{_message(fix)} [{fix.verdict.check}]", width)
    for number, remedy in enumerate(fix.remedies):
        yield _wrapped("    or    " if number else "    do    ", terminal(remedy.title), width)
        for step in remedy.steps:
            yield from _step_lines(step, width)


def _step_lines(step: Step, width: int) -> Iterator[str]:
    margin = " " * 10
    where = ", ".join(
        filter(None, ("" if step.who == "user" else f"as {step.who}", f"for {step.scope}" if step.scope else ""))
    )
    if step.kind == "sentence":
        yield _wrapped(margin, terminal(step.text) + (f" ({where})" if where else ""), width)
    else:
        if where:
            yield f"{margin}{where}:"
        yield from (f"{margin}  {terminal(line)}" for line in shell(step).splitlines())
    for name in ("risk", "undo", "see"):
        value = getattr(step, name)
        if value:
            yield _wrapped(f"{margin}  {name}: ", terminal(value), width)


def _wrapped(head: str, words: str, width: int) -> str:
    return textwrap.fill(
        words,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )


def shell(step: Step) -> str:
    """A step as a shell would take it; a file's as its content. Names that are none become a comment."""
    if step.kind in ("export", "unset") and not _NAME.fullmatch(step.name):
        return f"# not a variable: {terminal(step.name)}"
    if step.kind == "export":
        return export(step.name, step.value)
    if step.kind == "unset":
        return f"unset {step.name}"
    if step.kind == "file":
        return f"# write to {terminal(step.name)}:\n{step.text}"
    return step.text


def environment(found: Sequence[Fix]) -> str:
    """To be sourced: the variables that the best remedy of each finding sets or takes away, each with its reason."""
    lines: Dict[str, str] = {}
    for fix in found:
        for step in fix.remedies[0].steps if fix.remedies else ():
            if step.kind in ("export", "unset") and _NAME.fullmatch(step.name) and step.name not in lines:
                lines[step.name] = f"# {fix.verdict.check}: {_one_line(_message(fix))}\n{shell(step)}\n"
    return "".join(lines.values()) or "# no finding asks for a variable\n"


def _one_line(words: str) -> str:
    return re.sub(r"\s+", " ", words)


def script(found: Sequence[Fix]) -> str:
    """The commands of every best remedy as a script that shows them, and runs them with --apply; the rest as comments."""
    lines = [
        "#!/bin/sh",
        "# Made by ddp-doctor fix --script. It shows what it would do; with --apply it does it. Read it first.",
        "set -eu",
        "apply=${1:-}",
        "run() {",
        "    printf '+ %s\\n' \"$1\"",
        '    if [ "$apply" = --apply ]; then sh -c "$1"; fi',
        "}",
    ]
    for fix in found:
        lines += ["", f"# {fix.verdict.severity.value}: {_one_line(_message(fix))} [{fix.verdict.check}]"]
        for remedy in fix.remedies[:1]:
            lines.append(f"# {_one_line(terminal(remedy.title))}")
            lines += [line for step in remedy.steps for line in _script_lines(step)]
    return "\n".join(lines) + "\n"


def _script_lines(step: Step) -> Iterator[str]:
    notes = [f"as {step.who}" if step.who != "user" else "", f"for {step.scope}" if step.scope else ""]
    notes += [f"{name}: {getattr(step, name)}" for name in ("risk", "undo", "see") if getattr(step, name)]
    if any(notes):
        yield f"# {_one_line(terminal('; '.join(filter(None, notes))))}"
    if step.kind == "command" and step.who in ("user", "root"):
        yield f"run {shlex.quote(step.text)}"
    else:
        yield from (f"# {terminal(line)}" for line in shell(step).splitlines())


def as_json(found: Sequence[Fix]) -> str:
    """For programs."""
    return json.dumps({"schema_version": 1, "fixes": [_plain(fix) for fix in found]}, indent=1)


def _plain(fix: Fix) -> Dict[str, Any]:
    verdict = fix.verdict
    return {
        "check": verdict.check,
        "severity": verdict.severity.value,
        "subject": verdict.subject,
        "message": verdict.message,
        "nodes": [name for name in fix.nodes if name],
        "remedies": [
            {"title": remedy.title, "steps": [{k: v for k, v in vars(step).items() if v} for step in remedy.steps]}
            for remedy in fix.remedies
        ],
    }


def exit_status(found: Sequence[Fix], fail_on: Severity) -> int:
    """1 while there is something at or above ``fail_on`` to fix, else 0."""
    return int(any(fix.verdict.severity.rank >= fail_on.rank for fix in found))

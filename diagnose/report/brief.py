"""The report in one line, for prologs and health-check programs."""

from typing import List

from ddp_doctor import escape
from ddp_doctor.model import Outcome, Report, Severity, folded
from ddp_doctor.report import Options

WIDTH = 80
"""Schedulers cut a node's reason field; the issue asks for at most 80 characters."""
_WORDS = {0: "READY", 1: "NOT READY", 2: "WRONG USAGE"}


def render(report: Report, options: Options) -> str:
    """One line, as "NOT READY n07: limits/memlock-too-low +2" : never a word that a Slurm TaskProlog would obey."""
    word = _WORDS.get(report.summary.exit_status, "CANNOT TELL")
    names = [node.name for node in report.nodes]
    who = names[0] if len(names) == 1 else f"{len(names)} nodes"
    text = escape.carried(escape.terminal(": ".join(filter(None, (f"{word} {who}", _what(report))))), options.encoding)
    return (text if len(text) <= WIDTH else text[: WIDTH - 3] + "...") + "\n"


def _what(report: Report) -> str:
    """What could not be told, where that keeps from a verdict; else the worst check and how many more there are."""
    if report.summary.exit_status == 3:
        return _doubt(report)
    failed = [v for v in folded(report.verdicts) if v.counts]
    worse = [v for v in failed if v.severity is not Severity.NOTE]
    counting = worse or (failed if report.summary.exit_status else [])
    worst_first = dict.fromkeys(v.check for v in sorted(counting, key=lambda v: (-v.severity.rank, v.check)))
    return _and_more(list(worst_first)) if counting else ""


def _doubt(report: Report) -> str:
    """Nodes that were not reached, else checks that are broken (of a plug-in that was not loaded: its name)."""
    unreachable = [node.name for node in report.nodes if node.status != "examined"]
    if unreachable:
        return f"unreachable {_and_more(unreachable)}"
    broken = [v for v in folded(report.verdicts) if v.outcome is Outcome.BROKEN]
    names = list(dict.fromkeys(v.subject if v.check == "plugin/not-loaded" else v.check for v in broken))
    return f"broken {_and_more(names)}" if names else ""


def _and_more(names: List[str]) -> str:
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")

"""Lists of good and bad nodes, for host files and schedulers."""

from typing import List, Sequence, Tuple

from ddp_doctor.cluster.folding import folded
from ddp_doctor.model import Report, Severity
from ddp_doctor.model import folded as by_verdict


def of(report: Report, fail_on: Severity) -> Tuple[List[str], List[str]]:
    """(good, bad): a node is bad when it did not answer, or when a finding at or above ``fail_on`` names it.

    One that was not examined to the end, without such a finding, is in neither: nothing is known against it.
    """
    found = by_verdict(report.verdicts)
    failed = {name for v, names in found.items() if v.counts and v.severity.rank >= fail_on.rank for name in names}
    unsure = {
        name for v, names in found.items() if v.reason and v.reason.kind in ("broken", *CUT_SHORT) for name in names
    }
    bad = [n.name for n in report.nodes if n.name in failed or n.status != "examined"]
    good = [n.name for n in report.nodes if n.name not in failed | unsure and n.status == "examined"]
    return good, bad


CUT_SHORT = ("deadline", "interrupted")


def text(names: Sequence[str], fold: bool = False) -> str:
    """A host file: a name on each line, or sets of them."""
    lines = folded(names).split(", ") if fold and names else names
    return "".join(f"{line}\n" for line in lines)

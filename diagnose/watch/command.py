"""The command ``watch``: what is looked at, where it is told, and what the exit status is."""

import contextlib
import sys
from dataclasses import dataclass
from typing import List, Optional

from ddp_doctor.ask import Ask
from ddp_doctor.config import Config
from ddp_doctor.host import Host
from ddp_doctor.model import Severity
from ddp_doctor.process import USAGE, complain
from ddp_doctor.registry import Check
from ddp_doctor.units import plural
from ddp_doctor.watch import loop, prometheus
from ddp_doctor.watch.findings import Findings
from ddp_doctor.watch.looks import Looks


@dataclass(frozen=True)
class Where:
    """prometheus: file to write for each look. as_lines: a line of JSON for each look instead of a table."""

    prometheus: Optional[str]
    as_lines: bool


def plan(interval_s: float, duration: Optional[str]) -> loop.Plan:
    """Raises BadTime."""
    return loop.Plan(interval_s, None if duration is None else loop.duration_s(duration))


def run(
    host: Host, checks: List[Check], config: Config, wanted: loop.Plan, where: Where, fail_on: Optional[Severity]
) -> int:
    """Watch; 0 when nothing arose at or above ``fail_on`` (a warning when it is None), else 1; USAGE where it cannot be
    told to ``where``. Raises OSError."""
    refused = None if where.prometheus is None else prometheus.refusal(where.prometheus)
    if refused:
        complain(f"--prometheus {where.prometheus or 'with no name'}: {refused}")
        return USAGE
    looks = Looks(host, Ask(nnodes=config.policy.nnodes), wanted.for_s, _say_who_is_late)
    try:
        findings = Findings(checks, config, looks.at_start)
        _greet(findings, looks)
        tells = [loop.to_lines(sys.stdout) if where.as_lines else loop.to_terminal(sys.stdout, findings)]
        if where.prometheus is not None:
            tells.append(loop.to_prometheus(where.prometheus, findings))
        with contextlib.suppress(BrokenPipeError):  # | head has what it wanted
            loop.watch(looks, findings, wanted, tells)
    except KeyboardInterrupt:
        return 0
    finally:
        looks.close()
    lowest = fail_on or Severity.WARNING
    return 1 if findings.worst_new is not None and findings.worst_new.rank >= lowest.rank else 0


def _say_who_is_late(names: List[str], limit_s: Optional[float]) -> None:
    most = f", {limit_s:g} s at most" if limit_s is not None else ""
    complain(f"waiting for {', '.join(names)} to answer{most}")


def _greet(findings: Findings, looks: Looks) -> None:
    """What is not watched, and what was found before anything was watched; on standard error."""
    known = len(findings.lasting)
    if known:
        found = plural(known, "finding")
        complain(f"{found} at the start, which ddp-doctor run explains; only what arises from now on is told")
    if looks.kernel_reason:
        complain(f"the kernel's log is not watched, so no Xid is seen: {looks.kernel_reason.text}")

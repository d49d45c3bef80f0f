"""Checks of the facts themselves: what could not be read is no pass."""

from typing import Dict, Iterator

from ddp_doctor.facts import SECTIONS, Reason
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural
from ddp_doctor.unreadable import LOST


@check(Severity.ERROR)
def required_section_missing(reasons: Dict[str, Reason], policy: Policy) -> Iterator[Reading]:
    """Something that must have been examined was not.

    Why: The policy or --require says that this part of the node must be there. What was not read is not known to be
        healthy, so the node cannot be called ready.
    See: ddp-doctor's configuration, policy.require
    """
    for name in policy.require:
        reason = reasons.get(name)
        there = name in SECTIONS and reason is None
        yield Reading(
            ok=there,
            subject=name,
            measured="read" if there else reason.text if reason else f"there is no section {name}",
            expected=f"facts of {name}",
            message=f"{name} must be examined and was not",
        )


@check(Severity.WARNING)
def section_lost(reasons: Dict[str, Reason]) -> Iterator[Reading]:
    """A part of the examination did not end well.

    Why: Checks that need this section were skipped. A section that hangs is often the fault itself: a dead file server, a
        lost GPU or a wedged adapter keep everything that touches them waiting in the kernel (state D), the job as well.
    See: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    lost = {name: reason for name, reason in reasons.items() if reason.kind in LOST}
    for name, reason in lost.items():
        yield Reading(
            ok=False,
            subject=name,
            measured=f"{reason.kind}: {reason.text}",
            expected=f"facts of {name}",
            message=f"{name} could not be examined",
        )
    if not lost and len(reasons) < len(SECTIONS):
        yield Reading(
            ok=True, measured=f"{plural(len(SECTIONS) - len(reasons), 'section')} read", expected="no section lost"
        )

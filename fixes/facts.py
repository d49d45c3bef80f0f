"""Remedies for what could not be examined."""

from typing import Dict, Iterator

from ddp_doctor.facts import Reason
from ddp_doctor.model import Remedy, Verdict, command, say

ADVICE = {
    "no-rights": "Run ddp-doctor as root, or as a user who may read it.",
    "not-asked": "Ask for it: leave out --profile quick and --scope, or name what it needs.",
    "not-recorded": "Collect the facts again with this version of ddp-doctor.",
    "deadline": "Give it more time: a longer --deadline, or none.",
    "interrupted": "Run ddp-doctor again and let it end.",
    "not-applicable": "It does not exist here: take it out of policy.require, or leave this node out of the job.",
    "absent": "Install what it needs (the driver, the tool or the library that the reason names).",
    "timed-out": "Something that it reads hangs: mend that first; the kernel log names the device or the server.",
}
OTHERWISE = "Run ddp-doctor collect --bundle FILE.tar.gz and report what it says as a defect of ddp-doctor."


def required_section_missing(reasons: Dict[str, Reason], finding: Verdict) -> Iterator[Remedy]:
    """As the reason says."""
    reason = reasons.get(finding.subject)
    if reason is None:
        yield Remedy("Correct policy.require", (say(f"{finding.subject} is not the name of a section."),))
    else:
        yield Remedy("Let it be examined", (say(ADVICE.get(reason.kind, OTHERWISE)),))


def section_lost(reasons: Dict[str, Reason], finding: Verdict) -> Iterator[Remedy]:
    """See what hangs, or report it."""
    reason = reasons.get(finding.subject)
    if reason is not None and reason.kind == "timed-out":
        stuck = command("ps -eo pid,stat,wchan:30,comm", scope="this node")
        yield Remedy("See what hangs: processes in state D wait in the kernel", (stuck, say(ADVICE["timed-out"])))
    else:
        yield Remedy("Report it", (say(OTHERWISE),))

"""Remedies for the policy itself."""

from typing import Iterator

from ddp_doctor.model import Remedy, Verdict, say


def waiver_expired(finding: Verdict) -> Iterator[Remedy]:
    """Mend what it covered, or renew it."""
    yield Remedy(
        "Mend the fault and remove the waiver", (say(f"Look at {finding.subject} again; then remove its [[waiver]]."),)
    )
    yield Remedy("Renew it", (say("Set a new day in until, and say in reason why it is still right."),))

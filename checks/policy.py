"""Checks of the policy itself."""

from typing import Iterator

from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.policy import Policy


@check(Severity.WARNING)
def waiver_expired(policy: Policy) -> Iterator[Reading]:
    """A waiver is past its date.

    Why: The finding that it covered counts again. Someone promised to look at it by that day: mend the fault, or renew the
        waiver with a new reason.
    See: ddp-doctor's configuration, [[waiver]]
    """
    for waiver in policy.waivers:
        if waiver.until is not None:
            yield Reading(
                ok=policy.day <= waiver.until,
                subject=waiver.check if waiver.subject == "*" else f"{waiver.check} {waiver.subject}",
                measured=f"valid until {waiver.until.isoformat()}, judged as of {policy.day.isoformat()}",
                expected="a day that is not past",
                message=f"the waiver of {waiver.check} ended on {waiver.until.isoformat()} ({waiver.reason})",
            )

"""Checks of the policy itself."""

import datetime

import pytest
from ddp_doctor.policy import Policy, Waiver
from judging import judged, remedy_text

DAY = datetime.date(2026, 6, 15)


@pytest.mark.parametrize(
    ("until", "expected"),
    [(DAY, "passed"), (DAY - datetime.timedelta(days=1), "failed"), (DAY + datetime.timedelta(days=1), "passed")],
)
def test_a_waiver_holds_to_the_end_of_its_day(until, expected):
    policy = Policy(waivers=(Waiver("gpu/models-differ", "display card", until=until),), today=DAY)
    assert [v.outcome.value for v in judged("policy/waiver-expired", policy)] == [expected]


def test_an_expired_waiver_is_named_with_its_subject_and_reason():
    waiver = Waiver("disk/nearly-full", "new disks ordered", "/data*", datetime.date(2026, 1, 31))
    (verdict,) = judged("policy/waiver-expired", Policy(waivers=(waiver,), today=DAY))
    assert verdict.subject == "disk/nearly-full /data*"
    assert verdict.message == "the waiver of disk/nearly-full ended on 2026-01-31 (new disks ordered)"
    assert "disk/nearly-full /data*" in remedy_text(verdict)


def test_a_waiver_without_a_day_does_not_expire():
    (verdict,) = judged("policy/waiver-expired", Policy(waivers=(Waiver("os/below-minimum", "known"),), today=DAY))
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "not-applicable")

"""Checks of the facts themselves."""

import pytest
from ddp_doctor.facts import Gpus, Reason
from ddp_doctor.policy import Policy
from judging import judged, remedy_text

GPUS = Policy(require=("gpus",))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"gpus": Gpus()}, "passed"),
        ({"reasons": {"gpus": Reason("timed-out", "reading gpus: no answer")}}, "failed"),
        ({"reasons": {"gpus": Reason("not-asked", "not selected")}}, "failed"),
        ({}, "failed"),
    ],
)
def test_what_is_required_must_have_been_read(facts, expected):
    (verdict,) = judged("facts/required-section-missing", GPUS, **facts)
    assert (verdict.subject, verdict.outcome.value) == ("gpus", expected)


def test_a_section_that_does_not_exist_never_passes():
    (verdict,) = judged("facts/required-section-missing", Policy(require=("gpu",)))
    assert verdict.measured == "there is no section gpu"
    assert "gpu is not the name of a section" in remedy_text(verdict)


def test_nothing_is_required_by_the_stock_policy():
    (verdict,) = judged("facts/required-section-missing")
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "not-applicable")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("no-rights", "as root"),
        ("deadline", "--deadline"),
        ("timed-out", "hangs"),
        ("not-recorded", "Collect the facts again"),
        ("crashed", "a defect of ddp-doctor"),
    ],
)
def test_the_way_to_have_it_examined_follows_the_reason(kind, expected):
    (verdict,) = judged("facts/required-section-missing", GPUS, reasons={"gpus": Reason(kind, "-")})
    assert expected in remedy_text(verdict)


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        ("timed-out", True),
        ("crashed", True),
        ("unreadable", True),
        ("not-asked", False),
        ("no-rights", False),
        ("absent", False),
    ],
)
def test_a_section_that_did_not_end_well_is_told(kind, failed):
    (verdict,) = judged("facts/section-lost", reasons={"disk": Reason(kind, "reading disk: no answer")})
    assert (verdict.outcome.value == "failed", verdict.subject) == (failed, "disk" if failed else "")


def test_a_hang_is_looked_for_and_a_crash_is_reported():
    hang, crash = judged(
        "facts/section-lost", reasons={"disk": Reason("timed-out", "-"), "gpus": Reason("crashed", "-")}
    )
    assert "state D" in remedy_text(hang)
    assert "state D" not in remedy_text(crash)

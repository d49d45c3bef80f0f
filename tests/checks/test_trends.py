"""Checks of trends: what grows for long, and what is too short, too little or of another kind."""

import pytest
from ddp_doctor.facts import Reason, Trend, Trends
from judging import judged, outcome, remedy_text

GIB = float(2**30)
HOUR_S = 3600.0


def growing(rise=8 * GIB, span_s=HOUR_S, quantity="gpu-memory", levels=None):
    steps = levels or tuple(20 * GIB + rise * n / 3 for n in range(4))
    return Trend(quantity, "GPU 3, pid 42 (python)", 60, span_s, rise / span_s, steps, steps[-1], 80 * GIB)


@pytest.mark.parametrize(
    ("trend", "result"),
    [
        (growing(), "failed"),
        (growing(rise=1 * GIB), "passed"),
        (growing(span_s=600.0), "skipped"),
        (growing(quantity="host-memory"), "skipped"),
        (growing(levels=(20 * GIB, 28 * GIB, 28 * GIB, 28 * GIB)), "passed"),
        (growing(rise=-8 * GIB), "passed"),
    ],
)
def test_gpu_memory_that_grows_in_every_quarter(trend, result):
    assert outcome("trends/gpu-memory-grows", trends=Trends((trend,))) == result


def test_the_slope_and_when_it_is_full_are_told():
    (verdict,) = judged("trends/gpu-memory-grows", trends=Trends((growing(),)))
    assert "8 GiB an hour" in verdict.measured
    assert "full in 6 h" in verdict.measured
    assert "PYTORCH_CUDA_ALLOC_CONF" in remedy_text(verdict)


def test_memory_of_the_machine():
    assert outcome("trends/host-memory-shrinks", trends=Trends((growing(quantity="host-memory"),))) == "failed"


@pytest.mark.parametrize(("steps", "result"), [(0, "passed"), (2, "failed")])
def test_a_clock_that_jumps(steps, result):
    assert outcome("trends/clock-was-set", trends=Trends((), steps, 3.0 if steps else None)) == result


@pytest.mark.parametrize("check", ["gpu-memory-grows", "host-memory-shrinks", "clock-was-set"])
def test_one_look_sees_no_trend(check):
    missing = Reason("not-asked", "x")
    assert outcome(f"trends/{check}", trends=Trends(unread={"trends": missing, "clock_steps": missing})) == "skipped"

"""Trends: a leak is told, a warm-up, a swing and noise are not."""

import math
import random

import pytest
from ddp_doctor.watch.trend import MAX_POINTS, History, rises_throughout, seconds_until_full, slope, summary

GIB = 2**30


def trend(value, limit=80 * GIB):
    return summary("gpu-memory", "GPU 0", series(value), limit)


def series(value, count=120, every_s=10.0):
    return [(n * every_s, float(value(n * every_s))) for n in range(count)]


def noise(seed=1):
    return random.Random(seed)


@pytest.mark.parametrize(
    ("value", "per_s"),
    [
        (lambda t: 10 * GIB + t * GIB / 300, GIB / 300),
        (lambda t: 10 * GIB + t * GIB / 300 + noise(int(t)).gauss(0, 0.3 * GIB), GIB / 300),
        (lambda t: 10 * GIB + math.floor(t / 60) * GIB, GIB / 60),
        (lambda t: 10 * GIB + t * GIB / 300 + (20 * GIB if int(t) % 150 == 0 else 0), GIB / 300),
    ],
    ids=["a line", "a noisy line", "steps without end", "a line with spikes"],
)
def test_what_grows_without_end_is_told_with_its_slope(value, per_s):
    found = trend(value)
    assert rises_throughout(found)
    assert found.per_s == pytest.approx(per_s, rel=0.1)
    assert seconds_until_full(found) == pytest.approx((80 * GIB - found.last) / per_s, rel=0.1)


@pytest.mark.parametrize(
    "value",
    [
        lambda t: 10 * GIB,
        lambda t: 10 * GIB + noise(int(t)).gauss(0, 2 * GIB),
        lambda t: min(60 * GIB, 10 * GIB + t * GIB / 3),
        lambda t: 40 * GIB * (1 - math.exp(-t / 120)),
        lambda t: 30 * GIB + 10 * GIB * math.sin(t / 90),
        lambda t: 30 * GIB if t > 600 else 10 * GIB,
        lambda t: 60 * GIB - t * GIB / 300,
    ],
    ids=["level", "noise", "a warm-up that ends", "a caching allocator", "swings", "one step", "falls"],
)
def test_what_only_rises_swings_or_stands_is_not(value):
    assert not rises_throughout(trend(value))


@pytest.mark.parametrize(("count", "every_s"), [(5, 600.0), (1, 1.0), (0, 1.0), (50, 0.0)])
def test_a_few_points_are_no_trend(count, every_s):
    assert summary("gpu-memory", "GPU 0", series(lambda t: t * GIB, count, every_s)) is None


def test_what_falls_or_has_no_limit_is_never_full():
    assert seconds_until_full(trend(lambda t: 60 * GIB - t * GIB / 300)) is None
    assert seconds_until_full(trend(lambda t: t * GIB, limit=None)) is None
    assert seconds_until_full(trend(lambda t: t * GIB, limit=GIB)) == 0.0


def test_a_slope_is_in_units_per_second_and_minds_no_outlier():
    points = series(lambda t: 3 * t)
    points[7] = (points[7][0], 1e12)
    assert slope(points) == pytest.approx(3.0)
    assert slope([(1.0, 2.0), (1.0, 9.0)]) == 0.0


def test_the_history_is_bounded_and_spans_everything():
    history = History()
    for n in range(100_000):
        history.add(float(n), float(n))
    assert len(history.points) <= MAX_POINTS
    assert history.points[0][0] == 0.0
    assert history.points[-1][0] > 95_000
    history.clear()
    assert history.points == []

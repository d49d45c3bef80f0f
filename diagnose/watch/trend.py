"""Trends: does a quantity grow without end, or does it only rise, swing or stand?

A caching allocator grows in steps while a job warms up, then stands; a leak goes on. So a trend is told only over a long
span, by a slope that no single step makes (Theil and Sen: the median of the slopes between all pairs of points), and only
when the last part of the span still grows.
"""

from statistics import median
from typing import List, Optional, Sequence, Tuple

from ddp_doctor.facts import Trend

Point = Tuple[float, float]
"""(seconds, value)."""

MAX_POINTS = 120
"""So many points are kept: the median over all pairs of them costs some milliseconds."""
MIN_POINTS = 12
PARTS = 4
"""The span is cut into so many parts; growth must show in each."""


class History:
    """The last points of a quantity, in bounded memory: when it is full every second point is let go."""

    def __init__(self) -> None:
        self.points: List[Point] = []
        self._stride, self._skipped = 1, 0

    def add(self, at_s: float, value: float) -> None:
        """Keep a point. Steps between points double each time the history is full, so the span grows for ever."""
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.points.append((at_s, value))
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self._stride *= 2

    def clear(self) -> None:
        """Begin anew: what is measured is another process's, or was reset."""
        self.__init__()  # type: ignore[misc]


def summary(quantity: str, subject: str, points: Sequence[Point], limit: Optional[float] = None) -> Optional[Trend]:
    """The trend of some points; None where they are too few to tell one."""
    if len(points) < MIN_POINTS or points[-1][0] <= points[0][0]:
        return None
    span_s = points[-1][0] - points[0][0]
    return Trend(quantity, subject, len(points), span_s, slope(points), tuple(_levels(points)), points[-1][1], limit)


def rises_throughout(trend: Trend) -> bool:
    """Does every part of the span rise, none less than a quarter of the mean?"""
    steps = [after - before for before, after in zip(trend.levels, trend.levels[1:])]
    rise = trend.levels[-1] - trend.levels[0]
    return trend.per_s > 0 and min(steps, default=0.0) > 0 and min(steps) >= rise / len(steps) / 4


def seconds_until_full(trend: Trend) -> Optional[float]:
    """Seconds until the limit is reached at this pace; None where there is none, or it never is."""
    if trend.limit is None or trend.per_s <= 0:
        return None
    return max(0.0, (trend.limit - trend.last) / trend.per_s)


def _levels(points: Sequence[Point]) -> List[float]:
    """The median of each part of the span: a spike or a dip is no level."""
    start, span = points[0][0], points[-1][0] - points[0][0]
    parts: List[List[float]] = [[] for _ in range(PARTS)]
    for at_s, value in points:
        parts[min(PARTS - 1, int(PARTS * (at_s - start) / span))].append(value)
    return [median(part) for part in parts if part]


def slope(points: Sequence[Point]) -> float:
    """Theil and Sen's slope in units per second: the median of the slopes of all pairs (Sen 1968)."""
    thin = points[:: 1 + len(points) // 60]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(thin) for b in thin[i + 1 :] if b[0] > a[0]]
    return median(slopes) if slopes else 0.0

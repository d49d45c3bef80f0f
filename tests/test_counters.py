"""What two readings of a counter say."""

from typing import Any, Optional

import pytest
from ddp_doctor import counters
from ddp_doctor.facts import Counter, Rates
from hypothesis import given
from hypothesis import strategies as st

U32 = 2**32


def counter(first: Optional[int], second: Optional[int], bits: Optional[int] = None, sticks: bool = False) -> Counter:
    return Counter("rdma", "mlx5_0/1", "some", first, second, bits, sticks)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ((3, 3), ("counted", 0)),
        ((3, 10), ("counted", 7)),
        ((10, 3), ("reset", None)),
        ((10, 0), ("reset", None)),
        ((7, -1), ("reset", None)),
        ((-5, -1), ("reset", None)),
        ((7, None), ("gone", None)),
        ((None, 7), ("new", None)),
        ((255, 255, 8, True), ("saturated", None)),
        ((250, 255, 8, True), ("saturated", 5)),
        ((15, 15, 4, True), ("saturated", None)),
        ((65534, 65534, 16, True), ("counted", 0)),
        ((255, 0, 8, True), ("reset", None)),
        ((255, 300, 8, True), ("counted", 45)),  # it does not fit: this driver counts in a wider one
        ((300, 300, 8, True), ("counted", 0)),
        ((U32 - 10, 5, 32, False), ("wrapped", 15)),
        ((U32 - 10, 5), ("wrapped", 15)),  # a driver that counts in unsigned int and does not say so
        ((U32 // 2, 5), ("reset", None)),
        ((U32 + 10, 5), ("reset", None)),
        ((2**64 - 1, 2**64 - 1), ("counted", 0)),
        ((5, 7, 10**9, True), ("counted", 2)),  # no counter is so wide: 2**bits alone would take for ever
        ((5, 7, 65, True), ("counted", 2)),
        ((5, 7, 0, True), ("counted", 2)),
        ((5, 7, -1, True), ("counted", 2)),
        ((2**64 - 1, 2**64 - 1, 64, True), ("saturated", None)),
    ],
)
def test_change(readings: Any, expected: Any) -> None:
    found = counters.change(counter(*readings))
    assert (found.outcome, found.rose) == expected


@given(first=st.integers(0, 255), second=st.integers(0, 255))
def test_a_counter_at_the_maximum_of_its_width_is_never_no_change(first: int, second: int) -> None:
    found = counters.change(counter(first, second, 8, True))
    assert not (second == 255 and found.rose == 0)


@given(st.integers(-(2**70), 2**70), st.integers(-(2**70), 2**70), st.sampled_from([None, 4, 8, 16, 32]), st.booleans())
def test_a_rise_is_never_negative(first: int, second: int, bits: Optional[int], sticks: bool) -> None:
    rose = counters.change(counter(first, second, bits, sticks)).rose
    assert rose is None or rose >= 0


@pytest.mark.parametrize(
    ("rose", "interval_s", "expected"),
    [(10, 5.0, 2.0), (10, 0.0, None), (10, -1.0, None), (10, None, None), (None, 5.0, None)],
)
def test_a_rate_needs_time(rose: Optional[int], interval_s: Optional[float], expected: Optional[float]) -> None:
    assert counters.per_second(rose, interval_s) == expected


@pytest.mark.parametrize(
    ("readings", "expected"),
    [((255, None, 8, True), True), ((0, 255, 8, True), True), ((255, 0, 8, True), False), ((255, None), False)],
)
def test_saturation_is_that_of_the_newest_reading(readings: Any, expected: bool) -> None:
    assert counters.is_saturated(counter(*readings)) is expected


def test_counters_by_subject() -> None:
    rates = Rates(
        counters=(Counter("rdma", "a/1", "x", 1, 2), Counter("rdma", "a/1", "y", 1, 1), Counter("tcp", "", "z", 1, 9))
    )
    assert {subject: list(names) for subject, names in counters.of(rates, "rdma").items()} == {"a/1": ["x", "y"]}
    assert [(c.name, rose) for c, rose in counters.rises(rates.counters or ())] == [("x", 1), ("z", 8)]

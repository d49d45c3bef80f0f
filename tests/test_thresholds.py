"""Thresholds: each with a unit, a side and a source, and an error never before its warning."""

from dataclasses import replace

import pytest
from ddp_doctor import tables, thresholds
from ddp_doctor.tables import BadTable

ROW = tables.Threshold(
    "high", "somewhere", "", "", "", "gpu.x", "C", "above", "80", "90", "every GPU", "it is hot"
)  # fmt: skip


def test_every_row_of_the_table_is_a_bound():
    rows = tables.thresholds()
    assert len({row.name for row in rows}) == len(rows)
    assert all(thresholds.bound(row.name).unit and row.scope and row.says for row in rows)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"unit": ""}, "no unit"),
        ({"beyond": "over"}, "neither above nor below"),
        ({"warning": "", "error": ""}, "no bound"),
        ({"warning": "95"}, "comes before"),
        ({"beyond": "below"}, "comes before"),
    ],
)
def test_a_row_that_cannot_be_right_is_refused(changes, says):
    with pytest.raises(BadTable, match=says):
        thresholds.bound_of(replace(ROW, **changes))


def test_the_numbers_of_a_row_are_read():
    bound = thresholds.bound_of(ROW)
    assert (bound.warning, bound.error, bound.above, bound.source) == (80.0, 90.0, True, "somewhere")

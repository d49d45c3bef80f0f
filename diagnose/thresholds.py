"""Thresholds of measured quantities: numbers with a unit, a side, a scope and a source (``checks/data/thresholds.csv``)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, Optional

from ddp_doctor import tables
from ddp_doctor.tables import BadTable


@dataclass(frozen=True)
class Bound:
    """A threshold with its numbers. ``warning`` and ``error`` are in ``unit``; None: there is no such bound."""

    name: str
    unit: str
    above: bool
    """True: the fault lies above the bound; False: below."""
    warning: Optional[float]
    error: Optional[float]
    scope: str
    says: str
    source: str


def bound(name: str) -> Bound:
    """The threshold ``name``. KeyError for one that the table does not have: a defect of the check that asks."""
    return _bounds()[name]


@lru_cache(maxsize=None)
def _bounds() -> Dict[str, Bound]:
    return {row.name: bound_of(row) for row in tables.thresholds()}


def bound_of(row: tables.Threshold) -> Bound:
    """A row with its numbers read. BadTable where it has no unit, no side, no number, or its numbers are in the wrong order."""
    where = f"thresholds.csv: {row.name}"
    if not row.unit or row.beyond not in ("above", "below"):
        raise BadTable(f"{where}: no unit, or beyond is neither above nor below")
    warning, error = (float(text) if text else None for text in (row.warning, row.error))
    if warning is None and error is None:
        raise BadTable(f"{where}: no bound")
    above = row.beyond == "above"
    if warning is not None and error is not None and (error < warning if above else error > warning):
        raise BadTable(f"{where}: the bound for an error comes before that for a warning")
    return Bound(row.name, row.unit, above, warning, error, row.scope, row.says, row.source)

"""What two readings of a counter say: how much it rose, or why that cannot be told. Pure.

A counter that went backwards was reset, or began anew at the end of its width; one that stands at the maximum of its width
has stopped counting: what happened since is not known, and that is never "no change".
"""

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Tuple

from ddp_doctor.facts import Counter, Rates, Reason

_MOST_BITS = 64
"""The kernel, NVML and the InfiniBand specification have none that are wider; of a width beyond it nothing is known."""
_COMMON_BITS = 32
"""Width at which a counter of unknown width may begin anew: many drivers still count in unsigned int."""


@dataclass(frozen=True)
class Change:
    """How much a counter rose between two readings.

    outcome: counted, wrapped (began anew at its width; ``rose`` is right), saturated (stands at its maximum; ``rose`` is the
    least that it can have been, None for unknown), reset (went backwards), gone, new (not there at the first reading).
    """

    outcome: str
    rose: Optional[int] = None

    @property
    def reason(self) -> Reason:
        """Why ``rose`` is None."""
        return Reason("unreadable", _WHY.get(self.outcome, self.outcome))


_WHY = {
    "saturated": "it stands at the maximum of its width and has stopped counting: nobody can tell what happened since",
    "reset": "it went backwards: it was reset between the readings",
    "gone": "it was there at the first reading and gone at the second",
    "new": "it was not there at the first reading",
}


def change(counter: Counter) -> Change:
    """How much ``counter`` rose between two readings. Negative numbers are garbage and count as a reset."""
    first, second = counter.first, counter.second
    if second is None:
        return Change("gone")
    if first is None:
        return Change("new")
    most = maximum(counter)
    if most is not None and counter.sticks and second == most:
        return Change("saturated", second - first if second > first else None)
    if second >= first >= 0:
        return Change("counted", second - first)
    return Change("reset") if counter.sticks else _backwards(first, second, most)


def _backwards(first: int, second: int, most: Optional[int]) -> Change:
    """Began anew if it came from the last quarter of its width and is in the first one; otherwise it was reset."""
    size = (most or 2**_COMMON_BITS - 1) + 1
    if size * 3 // 4 <= first < size and 0 <= second < size // 4:
        return Change("wrapped", second + size - first)
    return Change("reset")


def maximum(counter: Counter) -> Optional[int]:
    """The largest number that fits its width; None where its width is not known.

    A number that does not fit shows that this driver counts in a wider one.
    """
    if counter.bits is None or not 0 < counter.bits <= _MOST_BITS:
        return None
    most = 2**counter.bits - 1
    return most if max(counter.first or 0, counter.second or 0) <= most else None


def is_saturated(counter: Counter) -> bool:
    """Does its newest reading stand at a maximum at which it stays?"""
    newest = counter.first if counter.second is None else counter.second
    return counter.sticks and newest is not None and newest == maximum(counter)


def per_second(rose: Optional[int], interval_s: Optional[float]) -> Optional[float]:
    """Events per second; None where either is not known or no time has passed."""
    return None if rose is None or not interval_s or interval_s <= 0 else rose / interval_s


def of(rates: Rates, source: str) -> Dict[str, Dict[str, Counter]]:
    """Subject -> name -> counter of one source, in the order in which they were written."""
    found: Dict[str, Dict[str, Counter]] = {}
    for counter in rates.counters or ():
        if counter.source == source:
            found.setdefault(counter.subject, {})[counter.name] = counter
    return found


def rises(counters: Iterable[Counter]) -> List[Tuple[Counter, int]]:
    """Counters that rose, with how much; those of which it is not known are left out."""
    changes = ((counter, change(counter).rose) for counter in counters)
    return [(counter, rose) for counter, rose in changes if rose]


def unknown(counters: Iterable[Counter]) -> List[Tuple[Counter, Change]]:
    """Counters of which nobody can tell how much they rose, with the outcome."""
    return [(counter, found) for counter, found in ((c, change(c)) for c in counters) if found.rose is None]

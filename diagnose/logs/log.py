"""A log as its checks see it: where the lines that matter stand, and which ranks wrote them."""

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Set, Tuple

from ddp_doctor.model import Reading

KEPT = 64
"""Lines that are kept of one pattern; all are counted."""


@dataclass(frozen=True)
class Event:
    """A line that matters. order: its place among all lines that were read."""

    order: int
    source: str
    number: int
    text: str
    rank: Optional[int] = None
    host: Optional[str] = None


@dataclass
class Hits:
    """Lines of one pattern: how many, the first of them, and the ranks that wrote any."""

    count: int = 0
    events: List[Event] = field(default_factory=list)
    ranks: Set[int] = field(default_factory=set)

    def add(self, event: Event) -> None:
        """Count a line; keep it where it is among the first, or the first of its rank."""
        new = event.rank is not None and event.rank not in self.ranks
        self.count += 1
        if event.rank is not None:
            self.ranks.add(event.rank)
        if len(self.events) < KEPT or (new and len(self.events) < 32 * KEPT):
            self.events.append(event)


@dataclass
class Log:
    """All files together. ``hits``: pattern -> its lines."""

    hits: Dict[str, Hits] = field(default_factory=dict)
    lines: int = 0
    size_bytes: int = 0
    sources: List[str] = field(default_factory=list)
    ranks: Set[int] = field(default_factory=set)
    last: Optional[Event] = None
    """The last line that says something."""

    def events(self, *patterns: str) -> List[Event]:
        """Lines of any of these patterns, in the order of the log, each once."""
        found = {event.order: event for pattern in patterns for event in self._hits(pattern).events}
        return [found[order] for order in sorted(found)]

    def count(self, *patterns: str) -> int:
        """How many lines any of these patterns has."""
        return sum(self._hits(pattern).count for pattern in patterns)

    def ranks_of(self, *patterns: str) -> Set[int]:
        """The ranks that wrote such lines."""
        return {rank for pattern in patterns for rank in self._hits(pattern).ranks}

    def has(self, *patterns: str) -> bool:
        """Is there a line of any of these patterns?"""
        return any(self._hits(pattern).count for pattern in patterns)

    def _hits(self, pattern: str) -> Hits:
        return self.hits.get(pattern) or Hits()


@dataclass(frozen=True)
class Cause(Reading):
    """A cause that a check found, with the lines that show it.

    tier: 0 is a fault of the machine, 1 a definite cause, 2 a likely one, 3 what the program raised itself, 4 what mostly
    follows from something else. confidence: high, medium or low.
    """

    events: Tuple[Event, ...] = ()
    tier: int = 1
    confidence: str = "high"


def found(
    events: Iterable[Event], message: str = "", tier: int = 1, confidence: str = "high", measured: str = ""
) -> Cause:
    """A cause with these lines."""
    lines = tuple(events)
    words = measured or (lines[0].text if lines else "")
    return Cause(ok=False, measured=words, message=message, events=lines, tier=tier, confidence=confidence)

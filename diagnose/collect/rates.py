"""Rates: counters, read once, or twice with ``Ask.sample_s`` between the readings.

The first reading goes through the door like anything else; the second, with the wait before it, is one answer of its own
("counters-2"), so that a recording holds both and a replay waits for nothing.
"""

import math
from time import monotonic, sleep
from typing import Any, Dict, List, Optional, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect import gpu_counters
from ddp_doctor.collect.counters import SOURCES, Key, Numbers, Source, Take, take, width
from ddp_doctor.facts import Counter, Rates, Reason, Unread, to_plain
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

LOOK_S = 20.0
"""Time for one look; hw_counters of many ports are asked of their firmware, each GPU of its driver."""
MOST_COUNTERS = 20_000
NOT_ASKED = Reason("not-asked", "one reading has no rate: --sample 5 takes two readings, 5 s apart")


def wanted(ask: Ask) -> Optional[Reason]:
    """A quick look has no use for one reading."""
    return (
        Reason("not-asked", "the quick profile reads no counters")
        if ask.profile == "quick" and not ask.sample_s
        else None
    )


def limit_s(ask: Ask) -> float:
    """Two looks and the time between them."""
    return 2 * LOOK_S + ask.sample_s + 5.0


def read(host: Host, ask: Ask) -> Rates:
    """Counters with one reading, or two."""
    sources: Dict[str, Source] = {**SOURCES, "gpu": gpu_counters.gpus} if ask.sample_s > 0 else SOURCES
    first = take(host, sources)
    if ask.sample_s <= 0:
        return Rates(counters=_counters(first, None), unread={"interval_s": NOT_ASKED, **first.unread})
    try:
        second, interval_s = _second(host, ask, first, sources)
    except Unreadable as error:
        return Rates(counters=_counters(first, None), unread={"interval_s": error.reason, **first.unread})
    return Rates(
        interval_s=interval_s,
        counters=_counters(first, second),
        unread={**first.unread, **second.unread, **_gone(first, second)},
    )


def _second(host: Host, ask: Ask, first: Take, sources: Dict[str, Source]) -> Tuple[Take, float]:
    """The second look and the seconds since the first one began. Raises Unreadable, also for an answer that makes no sense."""

    def look() -> Dict[str, Any]:
        sleep(max(0.0, ask.sample_s - (monotonic() - first.at_s)))
        again = take(host, sources)
        return {
            "interval_s": again.at_s - first.at_s,
            "numbers": [[*key, value] for key, value in again.numbers.items()],
            "unread": to_plain(again.unread),
        }

    answer = host.ask("counters-2", look, ask.sample_s + LOOK_S)
    try:
        return parse_second(answer)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        raise Unreadable(Reason("unreadable", "counters-2: not two readings")) from None


def parse_second(answer: Any) -> Tuple[Take, float]:
    """A recorded second look. Raises AttributeError, LookupError, TypeError, OverflowError or ValueError."""
    numbers: Numbers = {(str(s), str(w), str(n)): int(v) for s, w, n, v in answer["numbers"][:MOST_COUNTERS]}
    unread: Unread = {str(name): Reason(str(r["kind"]), str(r["text"])) for name, r in answer["unread"].items()}
    interval_s = float(answer["interval_s"])
    if not math.isfinite(interval_s):
        raise ValueError("no time")
    return Take(0.0, numbers, unread), interval_s


def _counters(first: Take, second: Optional[Take]) -> Tuple[Counter, ...]:
    keys: List[Key] = sorted({*first.numbers, *(second.numbers if second else ())})
    return tuple(_counter(key, first, second) for key in keys)


def _counter(key: Key, first: Take, second: Optional[Take]) -> Counter:
    bits, sticks = width(key)
    source, subject, name = key
    now = second.numbers.get(key) if second else None
    return Counter(source, subject, name, first.numbers.get(key), now, bits, sticks)


def _gone(first: Take, second: Take) -> Unread:
    """Subjects that were there at the first look and not at the second, unless the second says why itself."""
    left = {key[:2] for key in first.numbers} - {key[:2] for key in second.numbers}
    names = (f"{source} {subject}".strip() for source, subject in sorted(left))
    text = "there at the first reading, gone at the second"
    return {name: Reason("absent", f"{name}: {text}") for name in names if name not in second.unread}

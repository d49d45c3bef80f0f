"""What the checks of counters share: rows of the table of counters, held against two readings."""

import math
from fnmatch import fnmatchcase
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ddp_doctor import counters, tables
from ddp_doctor.facts import Counter, Rates, Reason
from ddp_doctor.model import NotKnown, Reading, known
from ddp_doctor.thresholds import Bound, bound

PER_S = {"1/s": 1.0, "1/min": 60.0}
"""Units of rates -> seconds."""
Wanted = Callable[[str, str], bool]
"""(source, subject): is it one that the job uses?"""


class Rise(NamedTuple):
    """A counter that a row of the table judges, and how it changed."""

    row: tables.CounterMeaning
    counter: Counter
    change: counters.Change


def interval_s(rates: Rates) -> float:
    """Seconds between the readings. Raises NotKnown for one reading, and for two at one moment."""
    found = known(rates.interval_s, rates, "interval_s")
    if not 0 < found < math.inf:
        raise NotKnown(Reason("unreadable", f"the two readings lie {found:g} s apart: no rate can be told"))
    return found


def readings(rates: Rates, check: str, wanted: Wanted = lambda source, subject: True) -> Iterator[Reading]:
    """One reading for each subject: what rose faster than it may; and one for what cannot be told of it."""
    seconds = interval_s(rates)
    rows = [row for row in tables.counters() if row.check == check]
    sources = {row.counted_by for row in rows}
    for (source, subject), found in _by_subject(rates, rows).items():
        if wanted(source, subject):
            yield from _readings(title(source, subject), found, seconds)
    for name, reason in rates.unread.items():
        source, _, subject = name.partition(" ")
        if source in sources and wanted(source, subject):
            yield Reading(ok=None, subject=title(source, subject), reason=reason)


def _by_subject(rates: Rates, rows: Iterable[tables.CounterMeaning]) -> Dict[Tuple[str, str], List[Rise]]:
    """Counters with a row, by what counts; those of a subject that has gone are told by ``Rates.unread``."""
    rows = list(rows)
    found: Dict[Tuple[str, str], List[Rise]] = {}
    for counter in rates.counters or ():
        row = next((r for r in rows if r.counted_by == counter.source and fnmatchcase(counter.name, r.name)), None)
        change = counters.change(counter)
        if row is not None and change.outcome not in ("gone", "new"):
            found.setdefault((counter.source, counter.subject), []).append(Rise(row, counter, change))
    return found


def _readings(subject: str, found: List[Rise], seconds: float) -> Iterator[Reading]:
    told = [rise for rise in found if rise.change.rose is not None]
    beyond = [rise for rise in told if is_beyond(rise, seconds)]
    if told:
        yield Reading(
            ok=not beyond,
            subject=subject,
            measured=f"{words(beyond or told, seconds)} in {seconds:.3g} s",
            expected=limits([rise.row for rise in beyond or told]),
            message=f"{subject}: {beyond[0].row.meaning}" if beyond else "",
            source=beyond[0].row.source if beyond else "",
        )
    for outcome in ("saturated", "reset"):
        these = [rise for rise in found if rise.change.rose is None and rise.change.outcome == outcome]
        if these:
            names = ", ".join(rise.counter.name for rise in these)
            text = f"{subject}, {names}: {these[0].change.reason.text}"
            yield Reading(ok=None, subject=subject, reason=Reason("unreadable", text))


def is_beyond(rise: Rise, seconds: float) -> bool:
    """Did it rise more than its row's bound allows in the time that the bound speaks of, or in that of the sample if it is longer?

    One event in a second is no "sixty a minute".
    """
    limit = bound(rise.row.threshold)
    return (rise.change.rose or 0) > (limit.warning or 0) * max(1.0, seconds / PER_S[limit.unit])


def words(rises: Iterable[Rise], seconds: float) -> str:
    """symbol_error +120 (24/s), link_downed +1; "no rise" where there is none."""
    parts = [
        f"{r.counter.name} {_rose(r.change)} ({rate((r.change.rose or 0) / seconds)})" for r in rises if r.change.rose
    ]
    return ", ".join(parts) or "no rise"


def _rose(change: counters.Change) -> str:
    return f"+{change.rose}" + (" or more" if change.outcome == "saturated" else "")


def rate(per_s: float) -> str:
    """24/s, or by the minute where it is slow."""
    return f"{per_s:.3g}/s" if per_s >= 1 else f"{per_s * 60:.3g}/min"


def limits(rows: Iterable[tables.CounterMeaning]) -> str:
    """What the rows allow: "no rise of link_downed; symbol_error at most 10/s"."""
    bounds: Dict[str, List[str]] = {}
    for row in rows:
        names = bounds.setdefault(allowed(bound(row.threshold)), [])
        names.extend([row.name] if row.name not in names else [])
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in bounds.items())


def allowed(limit: Bound) -> str:
    """ "no rise", or "at most 10/s"."""
    return f"at most {limit.warning:g} {limit.unit}".replace(" 1/", "/") if limit.warning else "no rise"


def title(source: str, subject: str) -> str:
    """mlx5_0 port 1, as a person says it."""
    device, slash, port = subject.partition("/")
    return f"{device} port {port}" if source == "rdma" and slash else subject


def number(found: Dict[str, Counter], name: str) -> Optional[int]:
    """How much one of a subject's counters rose; None where that is not known."""
    return counters.change(found[name]).rose if name in found else None


def unread(rates: Rates, source: str) -> Iterator[Reading]:
    """Readings for what of a source could not be read."""
    for name, reason in rates.unread.items():
        if name == source or name.startswith(source + " "):
            yield Reading(ok=None, subject=name.partition(" ")[2], reason=reason)

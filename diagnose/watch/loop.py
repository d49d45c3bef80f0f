"""The watch itself: look, judge, tell, wait for the next moment."""

import re
import shutil
import time
from dataclasses import dataclass
from typing import Callable, List, Optional, TextIO

from ddp_doctor import process
from ddp_doctor.facts import NodeFacts
from ddp_doctor.watch import BadTime, lines, metrics, prometheus, screen
from ddp_doctor.watch.findings import Findings, News
from ddp_doctor.watch.looks import Looks

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
MOST_S = 1e9
"""Thirty years."""
Tell = Callable[[NodeFacts, News], None]


@dataclass(frozen=True)
class Plan:
    """interval_s: between looks. for_s: how long; None: until it is told to end."""

    interval_s: float
    for_s: Optional[float] = None


def duration_s(text: str) -> float:
    """Seconds of "90", "90s", "15m", "1h", "2d" or "1.5h". Raises BadTime."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(s|min|m|h|d)?", text)
    seconds = float(found.group(1)) * UNITS[found.group(2) or "s"] if found else 0.0
    if not 0 < seconds < MOST_S:
        raise BadTime(f"{text[:40]!r}: not a time such as 90s, 15m, 1h or 2d")
    return seconds


def watch(looks: Looks, findings: Findings, plan: Plan, tells: List[Tell]) -> None:
    """Look each ``interval_s`` until the time is over. A look that takes longer than that lets moments pass.

    Ctrl-C ends it like the time does. Raises what ``tells`` raise: OSError where nobody reads any more.
    """
    started = time.monotonic()
    ends_at = started + plan.for_s if plan.for_s is not None else float("inf")
    moment = started + plan.interval_s
    try:
        while moment <= ends_at + 0.001:
            time.sleep(max(0.0, moment - time.monotonic()))
            facts = looks.look()
            news = findings.judge(facts, time.monotonic())
            for tell in tells:
                tell(facts, news)
            late_s = max(0.0, time.monotonic() - moment)
            moment += plan.interval_s * (1 + late_s // plan.interval_s)
    except KeyboardInterrupt:
        return


def to_lines(stream: TextIO) -> Tell:
    """A line of JSON for each look."""

    def tell(facts: NodeFacts, news: News) -> None:
        stream.write(lines.line(facts, news) + "\n")
        stream.flush()

    return tell


def to_terminal(stream: TextIO, findings: Findings) -> Tell:
    """A table in its place, findings above it."""
    started = time.monotonic()
    drawn: List[str] = []

    def tell(facts: NodeFacts, news: News) -> None:
        columns, rows = shutil.get_terminal_size((100, 24))
        said = list(screen.told(news, time.strftime("%H:%M:%S")))
        table = screen.table(facts, findings, time.monotonic() - started, columns - 1, rows)
        stream.write(screen.redrawn(len(drawn), [*said, *table]))
        stream.flush()
        drawn[:] = table

    return tell


def to_prometheus(path: str, findings: Findings) -> Tell:
    """The text file, written anew for each look. When it cannot be, and when it can be again, is said once."""
    trouble = [""]

    def tell(facts: NodeFacts, _news: News) -> None:
        before, trouble[0] = trouble[0], ""
        try:
            prometheus.write(path, prometheus.render(metrics.samples(facts, findings)))
        except OSError as error:  # a disk that is full now need not be so at the next look
            trouble[0] = f"cannot be written: {error.strerror}; it is tried again at each look"
        if trouble[0] != before:
            process.complain(f"{path}: {trouble[0] or 'is written again'}")

    return tell

"""A check of a log by the lines that programs print."""

import sys
from typing import Any, Callable, Iterator, Sequence

from ddp_doctor.logs.log import Cause, Log, found
from ddp_doctor.model import Severity, check

PROGRESS = (
    r"[Ee]poch[ :=\[]{1,3}\d",
    r"\d(\.\d{1,3})?(it/s|s/it)\b",
    r"\bloss[\"']?[ :=]{1,3}-?\d",
    r"[Tt]raining (finished|complete|done)",
    r"samples/s|tokens/s",
)
"""Lines of a job that trains: what only looks odd did not stop it."""


def cause(
    module: str,
    doc: str,
    *patterns: str,
    do: str,
    needs: Sequence[str] = (),
    unless: Sequence[str] = (),
    tier: int = 1,
    confidence: str = "high",
    ranks: int = 0,
) -> Callable[..., Any]:
    """A check that fires where a line has one of the patterns (regular expressions that RE2 takes, too).

    needs: lines that must be there as well, one of each; unless: lines without which it does not hold. ranks: so many
    ranks at least must have written it. do: the remedy. tier, confidence: see ``Cause``.
    """

    def judge(log: Log) -> Iterator[Cause]:
        if not log.has(*patterns) or not all(log.has(each) for each in needs) or log.has(*unless):
            return
        if len(log.ranks_of(*patterns)) >= ranks:
            yield found(log.events(*patterns), tier=tier, confidence=confidence)

    judge.__doc__, judge.__module__ = (doc if sys.flags.optimize < 2 else None), module
    judge.__log_patterns__ = (*patterns, *needs, *unless)  # type: ignore[attr-defined]
    judge.__log_remedy__ = do  # type: ignore[attr-defined]
    return check(Severity.ERROR)(judge)


def looks_for(*patterns: str, do: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a check that judges lines of these patterns by itself."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__log_patterns__ = patterns  # type: ignore[attr-defined]
        function.__log_remedy__ = do  # type: ignore[attr-defined]
        return function

    return mark

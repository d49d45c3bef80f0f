"""How nodes are compared: the odd one out against the majority, the good day, or nobody where there is none."""

from typing import Any, Callable, Iterator, List, Tuple

from ddp_doctor.cluster.fleet import Column, Standing
from ddp_doctor.cluster.folding import shortened
from ddp_doctor.facts import Reason
from ddp_doctor.model import Reading

ALONE = Reason("not-applicable", "no other node to compare with")
_SHOWN = 4
"""So many different values are shown."""


def agree(column: Column, message: str, words: Callable[[Any], str] = str, subject: str = "") -> Iterator[Reading]:
    """A reading for the nodes of each value: equal ones pass, odd ones fail.

    message: the fault in words, "runs another NCCL". words: the value in words that stand alone, "NCCL 2.21.5".
    Where no value has a majority one reading names all values and blames no node.
    """
    for group in column.groups():
        standings = group.standings()
        alone = len(group.values) == 1 and standings[0].due in (None, standings[0].value) and not group.good.words
        undecided = [standing for standing in standings if standing.due is None]
        if alone:
            yield Reading(ok=None, nodes=standings[0].nodes, subject=subject, reason=ALONE)
            continue
        if undecided:
            yield _undecided(undecided, message, words, subject)
        for standing in standings:
            if standing.due is not None:
                yield _reading(standing, message, words, subject)


def _reading(standing: Standing, message: str, words: Callable[[Any], str], subject: str) -> Reading:
    good = standing.value == standing.due
    due = words(standing.due)
    return Reading(
        ok=good,
        nodes=standing.nodes,
        subject=subject,
        measured=words(standing.value),
        expected="the same on all nodes" if good else f"{due}, {standing.by}",
        message=message,
    )


def _undecided(standings: List[Standing], message: str, words: Callable[[Any], str], subject: str) -> Reading:
    """No value has a majority: all are named, and nobody is odd."""
    most = sorted(standings, key=lambda standing: -len(standing.nodes))
    shown = "; ".join(f"{shortened(s.nodes)}: {words(s.value)}" for s in most[:_SHOWN])
    more = f"; and {len(most) - _SHOWN} other values" if len(most) > _SHOWN else ""
    return Reading(
        ok=False,
        subject=subject,
        measured=shown + more,
        expected="the same on all nodes; which of them is right cannot be told by a majority",
        message=f"nodes differ, and none is odd: {message}",
    )


def agree_by_subject(
    column: Column, message: str, words: Callable[[Any], str] = str, default: Any = None, ignored: Tuple[str, ...] = ()
) -> Iterator[Reading]:
    """The same for each subject of a column of pairs; subjects that only one node has are not compared."""
    for subject, part in column.by_subject(default).items():
        if subject not in ignored and subject.split(":")[0] not in ignored:
            yield from agree(part, message, words, subject)


def shared(
    column: Column, message: str, words: Callable[[Any], str], allowed: Callable[[Any], bool]
) -> Iterator[Reading]:
    """Values that should be one node's own: each that several nodes have fails on all of them."""
    own: List[str] = []
    for value, nodes in column.by_value().items():
        if len(nodes) == 1 or allowed(value):
            own.extend(nodes)
        else:
            yield Reading(
                ok=False,
                nodes=nodes,
                subject=words(value),
                measured=f"{words(value)} on {shortened(nodes)}",
                expected="another one on each node",
                message=message,
            )
    if own:
        yield Reading(ok=True, nodes=tuple(own), measured="its own", expected="another one on each node")

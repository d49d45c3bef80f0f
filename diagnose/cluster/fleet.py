"""The fleet: of every node a few small values, by which nodes are compared with one another.

Nodes are fed one by one and are not kept. A column is one value of every node (``fleet.torch``); what could not be read
on a node is not in its values but, with the reason, in ``without``. Which columns there are stands in ``columns.py``.
"""

import fnmatch
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Set,
    Tuple,
)

from ddp_doctor.facts import NodeFacts, Reason
from ddp_doctor.model import NotKnown

Value = Any
"""Hashable: a text, a number, or a tuple of them."""
Values = Dict[str, Value]
Partitions = Mapping[str, Tuple[str, ...]]
"""Name of a partition -> patterns of the names of its nodes, as in the policy."""


class Standing(NamedTuple):
    """Nodes with one value, beside the value that they should have.

    due: None where nothing says which value is right: the nodes disagree and none has a majority. by: what says it.
    """

    value: Value
    nodes: Tuple[str, ...]
    due: Optional[Value]
    by: str


@dataclass(frozen=True)
class Column:
    """One value of every node, those without one, and what the same nodes had on a good day."""

    name: str
    values: Values = field(default_factory=dict)
    without: Dict[str, Reason] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)
    """Node -> partition that it belongs to; nodes that are not in it are one partition more."""
    good: "GoodDay" = field(default_factory=lambda: GoodDay())

    def groups(self) -> List["Column"]:
        """The column of each partition: only nodes of one are compared with one another."""
        found: Dict[str, Values] = {}
        for node, value in self.values.items():
            found.setdefault(self.partition.get(node, ""), {})[node] = value
        return [replace(self, values=values) for values in found.values()]

    def by_value(self) -> Dict[Value, Tuple[str, ...]]:
        """Value -> nodes that have it, the most frequent first."""
        found: Dict[Value, List[str]] = {}
        for node, value in self.values.items():
            found.setdefault(value, []).append(node)
        return {value: tuple(found[value]) for value in sorted(found, key=lambda value: -len(found[value]))}

    def usual(self) -> Optional[Value]:
        """The value of more than half of the nodes, or None."""
        counts = Counter(self.values.values()).most_common(1)
        return counts[0][0] if counts and 2 * counts[0][1] > len(self.values) else None

    def standings(self) -> List[Standing]:
        """The nodes of one partition by what they have and should have: of the good day, else of the majority."""
        from ddp_doctor.cluster.folding import shortened

        usual = self.usual()
        others = f"as on {shortened(self.by_value()[usual])}" if usual is not None and len(self.by_value()) > 1 else ""
        due = {node: self.good.of(self.name, node) for node in self.values}
        found: Dict[Tuple[Value, Optional[Value], str], List[str]] = {}
        for node, value in self.values.items():
            wanted, by = (due[node], self.good.words) if due[node] is not None else (usual, others)
            found.setdefault((value, wanted, by), []).append(node)
        return [Standing(value, tuple(nodes), wanted, by) for (value, wanted, by), nodes in found.items()]

    def by_subject(self, default: Optional[Value] = None) -> Dict[str, "Column"]:
        """Columns of the subjects of a column of pairs (subject, value), by subject.

        default: the value of nodes that do not name the subject; without one they are left out of its column.
        """
        tables = {node: dict(pairs) for node, pairs in self.values.items()}
        subjects = sorted({subject for table in tables.values() for subject in table})
        return {
            subject: replace(
                self,
                values={n: t.get(subject, default) for n, t in tables.items() if default is not None or subject in t},
                good=self.good.of_subject(self.name, subject, default),
            )
            for subject in subjects
        }

    def map(self, function: Callable[[Any], Value]) -> "Column":
        """The column of ``function`` of each value, also of those of the good day."""
        return replace(
            self,
            values={node: function(value) for node, value in self.values.items()},
            good=self.good.mapped(self.name, function),
        )


@dataclass(frozen=True)
class GoodDay:
    """Values as they were on a day when all was well: column -> node -> value. ``words`` says which day that was."""

    columns: Mapping[str, Values] = field(default_factory=dict)
    words: str = ""

    def of(self, column: str, node: str) -> Optional[Value]:
        """What this node had, else (for one that was not there) what most nodes had."""
        values = self.columns.get(column, {})
        return values[node] if node in values else Column(column, values).usual() if values else None

    def of_subject(self, column: str, subject: str, default: Optional[Value]) -> "GoodDay":
        """The good day of one subject of a column of pairs."""
        tables = {node: dict(pairs) for node, pairs in self.columns.get(column, {}).items()}
        values = {n: t.get(subject, default) for n, t in tables.items() if default is not None or subject in t}
        return GoodDay({column: values}, self.words)

    def mapped(self, column: str, function: Callable[[Any], Value]) -> "GoodDay":
        """The good day of a column of which a function is compared."""
        return GoodDay({column: {n: function(v) for n, v in self.columns.get(column, {}).items()}}, self.words)


class _Reader:
    """A column's function, with what came of the last nodes.

    It is pure: where all parts of the facts that it ever looked at are those of a node before, its answer is that node's.
    """

    def __init__(self, name: str, read: Callable[[NodeFacts], Value]) -> None:
        self._name, self._read = name, read
        self._looked_at: Tuple[str, ...] = ()
        self._answers: Dict[Tuple[int, ...], Tuple[Tuple[Any, ...], Answer]] = {}
        self._same: Dict[Value, Value] = {}
        """Values, so that equal ones of many nodes are one object."""

    def read(self, facts: NodeFacts) -> "Answer":
        """The node's value, or why there is none: also for what a damaged document makes of the function."""
        parts = tuple(getattr(facts, name) for name in self._looked_at)
        known = self._answers.get(tuple(map(id, parts))) if parts else None
        if known is not None:
            return known[1]
        watched = _Watched(facts)
        answer = self._answer(watched)
        self._remember(facts, watched.looked_at, answer)
        return answer

    def _answer(self, facts: Any) -> "Answer":
        try:
            value = self._read(facts)
            return self._same.setdefault(value, value), None
        except NotKnown as error:
            return None, error.reason
        except Exception as error:  # noqa: BLE001  facts may hold anything that their types allow
            return None, Reason("broken", f"fleet.{self._name}: {type(error).__name__}: {error}")

    def _remember(self, facts: NodeFacts, looked_at: Set[str], answer: "Answer") -> None:
        if not looked_at <= set(self._looked_at):
            self._looked_at = tuple(sorted({*self._looked_at, *looked_at}))
            self._answers.clear()
        if len(self._answers) >= REMEMBERED:
            del self._answers[next(iter(self._answers))]
        parts = tuple(getattr(facts, name) for name in self._looked_at)
        self._answers[tuple(map(id, parts))] = (parts, answer)  # the parts live as long as their identity counts


Answer = Tuple[Value, Optional[Reason]]
REMEMBERED = 64
"""So many answers of a column are kept: a fleet has few kinds of nodes."""


class _Watched:
    """Facts of a node, which tell what of them was looked at."""

    def __init__(self, facts: NodeFacts) -> None:
        self._facts = facts
        self.looked_at: Set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.looked_at.add(name)
        return getattr(self._facts, name)


class Fleet:
    """Columns of all nodes, as attributes; ``add`` takes in a node and keeps no more of it than its values."""

    def __init__(
        self,
        readers: Optional[Mapping[str, Callable[[NodeFacts], Value]]] = None,
        partitions: Optional[Partitions] = None,
        good: Optional[GoodDay] = None,
    ) -> None:
        from ddp_doctor.cluster import columns

        self._readers = {
            name: _Reader(name, read) for name, read in (columns.readers() if readers is None else readers).items()
        }
        self.good = good or GoodDay()
        self._partitions = dict(partitions or {})
        self._partition: Dict[str, str] = {}
        self._columns = {name: Column(name, {}, {}, self._partition, self.good) for name in self._readers}
        self.nodes: List[str] = []
        self.asked: Set[str] = set()
        """Columns that were looked at since the set was emptied."""

    def add(self, facts: NodeFacts) -> None:
        """Take in a node's values; what a damaged document makes of a column is that column's reason."""
        node = facts.name
        self.nodes.append(node)
        named = next((name for name, patterns in self._partitions.items() if matches(node, patterns)), None)
        if named is not None:
            self._partition[node] = named
        for name, reader in self._readers.items():
            value, reason = reader.read(facts)
            if reason is None:
                self._columns[name].values[node] = value
            else:
                self._columns[name].without[node] = reason

    def __getattr__(self, name: str) -> Column:
        columns: Dict[str, Column] = self.__dict__.get("_columns", {})
        if name not in columns:
            raise AttributeError(f"fleet has no column {name!r}; there are: {', '.join(columns)}")
        self.asked.add(name)
        return columns[name]

    def columns(self) -> Iterator[Column]:
        """All columns."""
        return iter(self._columns.values())

    def without(self) -> Dict[str, Reason]:
        """Nodes that lack a value of a column that was asked for -> why they do; the first reason of each."""
        found: Dict[str, Reason] = {}
        for name in sorted(self.asked):
            for node, reason in self._columns[name].without.items():
                found.setdefault(node, reason)
        return found


def matches(node: str, patterns: Iterable[str]) -> bool:
    """Is a node one of those that "gpu[01-32]" names, or like "a100-*"? With * or ? it is a pattern, else a set."""
    return any(
        fnmatch.fnmatchcase(node, pattern.replace("[", "[[]")) if set(pattern) & set("*?") else node in _named(pattern)
        for pattern in patterns
    )


@lru_cache(maxsize=256)
def _named(pattern: str) -> FrozenSet[str]:
    """The nodes of a set; empty for a pattern that is none."""
    from ddp_doctor.cluster.names import BadNodes, parse_nodes

    try:
        return frozenset(parse_nodes([pattern]))
    except BadNodes:
        return frozenset()

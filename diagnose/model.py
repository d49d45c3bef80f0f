"""The words of a diagnosis: severity and outcome, readings, verdicts, remedies and the report."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar

from ddp_doctor.facts import How, Reason

REPORT_SCHEMA_VERSION = 1

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class Severity(str, Enum):
    """How bad a failed check is. NOTE: worth knowing; WARNING: runs, but slower or less safely; ERROR: will fail or hang."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for NOTE, 1 for WARNING, 2 for ERROR."""
        return list(Severity).index(self)


class Outcome(str, Enum):
    """What a check came to on one subject. ``broken``: the check itself failed; that says nothing of the node."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    BROKEN = "broken"


class NotKnown(Exception):
    """A check needs a value that the facts do not have; the engine makes "skipped" of it."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


def known(value: Optional[T], section: Any, name: str) -> T:
    """Return ``value``, the field ``name`` of ``section``; raise NotKnown with the section's reason when it is None."""
    if value is None:
        raise NotKnown(why_unknown(section, name))
    return value


def why_unknown(section: Any, name: str) -> Reason:
    """Why the field ``name`` of ``section`` is None."""
    unread: Mapping[str, Reason] = getattr(section, "unread", {})
    text = f"not looked at when these facts were taken ({type(section).__name__.lower()}.{name})"
    return unread.get(name) or Reason("not-recorded", text)


@dataclass(frozen=True)
class Reading:
    """What a check saw at one thing that it looked at.

    ok: True, False, or None when it could not be told (then ``reason`` says why).
    measured, expected: with units, in words that stand alone. message: the fault, in a sentence.
    subject: what was looked at where a check looks at several things: "GPU 3", "mlx5_0 port 1", "/tmp".
    source: address or table row that ``expected`` rests on, where it differs from the check's own See.
    """

    ok: Optional[bool]
    measured: str = ""
    expected: str = ""
    message: str = ""
    subject: str = ""
    source: str = ""
    reason: Optional[Reason] = None
    nodes: Tuple[str, ...] = ()
    """Of a check over a fleet: the nodes that it speaks of; empty where it speaks of all and blames none."""


def unknown(section: Any, name: str, subject: str = "") -> Reading:
    """A reading for a thing whose field ``name`` could not be read."""
    return Reading(ok=None, subject=subject, reason=why_unknown(section, name))


@dataclass(frozen=True)
class Step:
    """One thing to do. kind: export, unset, command, file or sentence.

    text: the sentence, the command line, or the content of the file; name and value: of the variable, or the file's path.
    who: user, root, cluster admin, network admin or vendor. scope: this shell, this job, this node until reboot, this node,
    all nodes. undo: how to take it back. see: address of the document that it rests on.
    """

    kind: str
    text: str = ""
    name: str = ""
    value: str = ""
    who: str = "user"
    scope: str = ""
    risk: str = ""
    undo: str = ""
    see: str = ""


@dataclass(frozen=True)
class Remedy:
    """One way out of a fault: a title and its steps in order."""

    title: str
    steps: Tuple[Step, ...] = ()


def say(text: str, **more: str) -> Step:
    """A step for a person, in a sentence."""
    return Step("sentence", text=text, **more)


def command(text: str, **more: str) -> Step:
    """A command line to run; whatever comes from facts in it was quoted by the caller (``shlex.quote``)."""
    return Step("command", text=text, **more)


def export(name: str, value: str, **more: str) -> Step:
    """An environment variable to set for the job."""
    return Step("export", name=name, value=value, **more)


def unset(name: str, **more: str) -> Step:
    """An environment variable to remove."""
    return Step("unset", name=name, **more)


def write_file(path: str, content: str, **more: str) -> Step:
    """A file to write, or lines to add to it."""
    return Step("file", name=path, text=content, **more)


@dataclass(frozen=True)
class Waived:
    """Why a failed verdict does not count, and until which day (ISO date) that holds."""

    reason: str
    until: Optional[str] = None


@dataclass(frozen=True)
class Verdict:
    """What one check came to for one subject on one node.

    severity: how bad a failure of the check is, whatever the outcome: of a passed or skipped verdict it says how bad it would
    have been. Only ``failed`` without ``waived`` counts. message, why and fixes are empty unless it failed.
    """

    check: str
    node: str
    outcome: Outcome
    severity: Severity
    subject: str = ""
    measured: str = ""
    expected: str = ""
    message: str = ""
    why: str = ""
    source: str = ""
    reason: Optional[Reason] = None
    """Why it was skipped or is broken."""
    waived: Optional[Waived] = None
    fixes: Tuple[Remedy, ...] = ()

    @property
    def counts(self) -> bool:
        """A failure that is not waived."""
        return self.outcome is Outcome.FAILED and self.waived is None


class Verdicts(Sequence[Verdict]):
    """Verdicts of many nodes, those that differ only in the node kept once; they are read like any sequence of verdicts.

    Equal ones stand side by side, in the order of their first appearance.
    """

    def __init__(self) -> None:
        self._batches: Dict[int, Tuple[Tuple[Verdict, ...], List[str]]] = {}
        """By the identity of a batch, which is kept so that it stays its own: the batch, and nodes that have it."""
        self._nodes: Optional[Dict[Verdict, List[str]]] = None

    def add(self, verdict: Verdict, nodes: Iterable[str]) -> None:
        """Take in a verdict, without its node, of these nodes."""
        batch = (verdict,)
        self._batches[id(batch)] = (batch, list(nodes))
        self._nodes = None

    def add_batches(self, node: str, batches: Iterable[Tuple[Verdict, ...]]) -> None:
        """Take in the verdicts, without their node, of one node. A batch that was there before, that very object, is fast."""
        known = self._batches
        for batch in batches:
            if id(batch) in known:
                known[id(batch)][1].append(node)
            else:
                known[id(batch)] = (batch, [node])
        self._nodes = None

    @property
    def nodes(self) -> Dict[Verdict, List[str]]:
        """Verdict without its node -> nodes that have it; in the order of the checks' ids, and of appearance."""
        if self._nodes is None:
            found: Dict[Verdict, List[str]] = {}
            for batch, names in self._batches.values():
                for verdict in batch:
                    found.setdefault(verdict, []).extend(names)
            self._nodes = {verdict: found[verdict] for verdict in sorted(found, key=lambda verdict: verdict.check)}
        return self._nodes

    def __len__(self) -> int:
        return sum(map(len, self.nodes.values()))

    def __iter__(self) -> Iterator[Verdict]:
        return (replace(verdict, node=node) for verdict, names in self.nodes.items() for node in names)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def folded(verdicts: Iterable[Verdict]) -> Dict[Verdict, List[str]]:
    """Verdict without its node -> nodes that have it, in the order of their first appearance."""
    if isinstance(verdicts, Verdicts):
        return verdicts.nodes
    found: Dict[Verdict, List[str]] = {}
    for verdict in verdicts:
        found.setdefault(replace(verdict, node=""), []).append(verdict.node)
    return found


@dataclass(frozen=True)
class Node:
    """One node in a report. status: examined or unreachable. summary: label -> text for the header."""

    name: str
    status: str = "examined"
    how: How = field(default_factory=How)
    collected_at: Optional[float] = None
    duration_s: Optional[float] = None
    summary: Dict[str, str] = field(default_factory=dict)
    left_behind: Tuple[str, ...] = ()
    matrix: Tuple[str, ...] = ()
    """Lines of a table of how near its GPUs and network cards are to each other; none on a node without GPUs."""
    reason: Optional[Reason] = None
    """Why it is unreachable."""


@dataclass(frozen=True)
class Summary:
    """The report in short. headline: one sentence; counts: outcome or severity -> number; next: lines to type next."""

    headline: str
    exit_status: int
    counts: Dict[str, int] = field(default_factory=dict)
    next: Tuple[str, ...] = ()
    remarks: Tuple[str, ...] = ()
    """Of the examination itself: configuration in use, plug-ins that failed to load, processes left behind."""


@dataclass(frozen=True)
class Tool:
    name: str
    version: str


@dataclass(frozen=True)
class Report:
    """The one document that every format is made from."""

    schema_version: int
    tool: Tool
    nodes: Tuple[Node, ...]
    verdicts: Sequence[Verdict]
    summary: Summary


@dataclass(frozen=True)
class Mark:
    """What ``@check`` writes on a function."""

    severity: Severity
    several_nodes: bool = False


def check(severity: Severity, several_nodes: bool = False) -> Callable[[Function], Function]:
    """Mark a function as a check.

    several_nodes: the fault matters only to a job of several nodes: with policy.nnodes 1 the check does not apply, with
    more it has its severity, and while the number is unknown it is a NOTE (never an alarm on a laptop).
    """

    def mark(function: Function) -> Function:
        function.__ddp_check__ = Mark(severity, several_nodes)  # type: ignore[attr-defined]
        return function

    return mark


def worst(verdicts: Iterable[Verdict]) -> Optional[Severity]:
    """The highest severity among failures that count, or None."""
    found = [v.severity for v in verdicts if v.counts]
    return max(found, key=lambda severity: severity.rank) if found else None

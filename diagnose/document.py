"""Documents: facts and reports to JSON and back, where judging happens (msgspec; not needed on a node)."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, Optional, Tuple, Type, TypeVar, get_type_hints

import msgspec
from ddp_doctor import facts, model
from ddp_doctor.facts import How, NodeFacts, Reason
from ddp_doctor.model import Report

T = TypeVar("T")


class BadDocument(Exception):
    """The document is not one of ours, is newer than this version reads, or is damaged; the text says which."""


def facts_from(plain: Any) -> NodeFacts:
    """Facts from plain JSON data. Raises BadDocument."""
    return _from(plain, NodeFacts, facts.SCHEMA_VERSION, "facts")


class Reader:
    """Reads facts of many nodes: sections that are equal to the byte become one object, read once.

    So a fleet of like nodes is read and judged at little more than the price of what differs.
    """

    def __init__(self) -> None:
        self._kinds = get_type_hints(NodeFacts)
        self._seen: Dict[str, Dict[bytes, Any]] = {name: {} for name in facts.SECTIONS}

    def facts(self, content: bytes) -> Optional[NodeFacts]:
        """The facts in a JSON document; None where it is something else, or has a fault that ``facts_from`` will name."""
        try:
            parts: Dict[str, msgspec.Raw] = msgspec.json.decode(content, type=Dict[str, msgspec.Raw])
            sections = {name: self._section(name, bytes(parts.pop(name))) for name in facts.SECTIONS if name in parts}
            rest: _Rest = msgspec.json.decode(msgspec.json.encode(parts), type=_Rest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if "verdicts" in parts or not 1 <= rest.schema_version <= facts.SCHEMA_VERSION:
            return None
        return NodeFacts(**{name: getattr(rest, name) for name in _REST}, **sections)

    def _section(self, name: str, text: bytes) -> Any:
        seen = self._seen[name]
        if text not in seen:
            if len(seen) >= REMEMBERED:
                del seen[next(iter(seen))]
            seen[text] = msgspec.json.decode(text, type=self._kinds[name])
        return seen[text]


REMEMBERED = 64
"""So many different sections of a kind are kept: a fleet has few kinds of nodes."""


@dataclass(frozen=True)
class _Rest:
    """What facts hold besides their sections."""

    name: str
    schema_version: int
    collected_at: Optional[float] = None
    duration_s: Optional[float] = None
    how: How = field(default_factory=How)
    reasons: Dict[str, Reason] = field(default_factory=dict)
    left_behind: Tuple[str, ...] = ()


_REST = tuple(f.name for f in fields(_Rest))


def facts_collected(plain: Any) -> NodeFacts:
    """Facts as they were just collected: a section of another form than its type's is a reason, and hides no other.

    That is what becomes of an odd answer of a library, or in a recording. Raises BadDocument.
    """
    kinds = get_type_hints(NodeFacts)
    reasons = dict(plain["reasons"])
    sound = dict(plain)
    for name in facts.SECTIONS:
        try:
            msgspec.convert(plain.get(name), kinds[name])
        except (msgspec.ValidationError, RecursionError) as error:
            reasons[name] = {"kind": "unreadable", "text": f"reading {name}: not of the expected form: {error}"}
            sound[name] = None
    return facts_from({**sound, "reasons": reasons})


def report_from(plain: Any) -> Report:
    """A saved report from plain JSON data. Raises BadDocument."""
    report = _from(plain, Report, model.REPORT_SCHEMA_VERSION, "a report")
    return replace(report, verdicts=tuple(report.verdicts))


def plain_from(text: bytes) -> Any:
    """JSON data. Raises BadDocument."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadDocument(f"not JSON: {error}") from None


def is_report(plain: Any) -> bool:
    """Is this a saved report rather than one node's facts?"""
    return isinstance(plain, dict) and "verdicts" in plain


def _from(plain: Any, kind: Type[T], version: int, what: str) -> T:
    found = plain.get("schema_version") if isinstance(plain, dict) else None
    if not isinstance(found, int) or found < 1:
        raise BadDocument(f"not {what} of ddp-doctor: no schema_version in it")
    if found > version:
        raise BadDocument(f"{what} of schema {found}: this ddp-doctor reads up to {version}; use a newer one")
    try:
        return msgspec.convert(plain, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadDocument(f"{what}, damaged: {error}") from None

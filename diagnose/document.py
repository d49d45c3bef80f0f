"""Documents: facts and reports to JSON and back, where judging happens (msgspec; not needed on a node)."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Callable, Dict, Optional, Tuple, Type, TypeVar, get_type_hints

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
    """Reads facts of many nodes: fields of sections that are equal to the byte become one object, read once.

    So a fleet of like nodes is read, and judged (``engine.Judge``), at little more than the price of what differs.
    """

    def __init__(self) -> None:
        self._kinds = {
            name: _section_class(kind) for name, kind in get_type_hints(NodeFacts).items() if name in _SECTIONS
        }
        self._fields = {name: get_type_hints(kind) for name, kind in self._kinds.items()}
        self._fields[""] = {"reasons": Dict[str, Reason]}
        self._seen: Dict[Tuple[str, str], Dict[bytes, Any]] = {}

    def facts(self, content: bytes) -> Optional[NodeFacts]:
        """The facts in a JSON document; None where it is something else, or has a fault that ``facts_from`` will name."""
        try:
            parts: Dict[str, msgspec.Raw] = msgspec.json.decode(content, type=Dict[str, msgspec.Raw])
            sections = {name: self._section(name, parts.pop(name)) for name in facts.SECTIONS if name in parts}
            reasons = self._field("", "reasons", parts.pop("reasons", msgspec.Raw(b"{}")))
            rest: _Rest = msgspec.json.decode(msgspec.json.encode(parts), type=_Rest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            return None
        if "verdicts" in parts or not 1 <= rest.schema_version <= facts.SCHEMA_VERSION:
            return None
        return NodeFacts(**{name: getattr(rest, name) for name in _REST}, reasons=reasons, **sections)

    def _section(self, name: str, text: msgspec.Raw) -> Any:
        return self._once((name, ""), bytes(text), lambda: self._made(name, text))

    def _made(self, name: str, text: msgspec.Raw) -> Any:
        """A section of fields; TypeError where one is missing that must be there."""
        if bytes(text) == b"null":
            return None
        kinds = self._fields[name]
        given: Dict[str, msgspec.Raw] = msgspec.json.decode(text, type=Dict[str, msgspec.Raw])
        values = {key: self._field(name, key, each) for key, each in given.items() if key in kinds}
        values.setdefault("unread", _NOTHING_UNREAD)
        return self._kinds[name](**values)

    def _field(self, section: str, name: str, text: msgspec.Raw) -> Any:
        kind = self._fields[section][name]
        return self._once((section, name), bytes(text), lambda: msgspec.json.decode(text, type=kind))

    def _once(self, place: Tuple[str, str], text: bytes, make: Callable[[], Any]) -> Any:
        """What stands at this place under this text: made once, and kept for some time."""
        seen = self._seen.setdefault(place, {})
        if text not in seen:
            if len(seen) >= REMEMBERED:
                del seen[next(iter(seen))]
            seen[text] = make()
        return seen[text]


_SECTIONS = frozenset(facts.SECTIONS)
_NOTHING_UNREAD: Dict[str, Reason] = {}
"""One for all sections of which everything could be read."""


def _section_class(kind: Any) -> Any:
    """The class in Optional[class]."""
    return next(each for each in kind.__args__ if each is not type(None))


REMEMBERED = 64
"""So many different values of a field are kept: a fleet has few kinds of nodes."""


@dataclass(frozen=True)
class _Rest:
    """What facts hold besides their sections."""

    name: str
    schema_version: int
    collected_at: Optional[float] = None
    duration_s: Optional[float] = None
    how: How = field(default_factory=How)
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

"""Documents: facts and reports to JSON and back, where judging happens (msgspec; not needed on a node)."""

from typing import Any, Type, TypeVar, get_type_hints

import msgspec
from ddp_doctor import facts, model
from ddp_doctor.facts import NodeFacts
from ddp_doctor.model import Report

T = TypeVar("T")


class BadDocument(Exception):
    """The document is not one of ours, is newer than this version reads, or is damaged; the text says which."""


def facts_from(plain: Any) -> NodeFacts:
    """Facts from plain JSON data. Raises BadDocument."""
    return _from(plain, NodeFacts, facts.SCHEMA_VERSION, "facts")


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
    return _from(plain, Report, model.REPORT_SCHEMA_VERSION, "a report")


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

"""Scope: whose readiness is judged, and what then says nothing."""

from dataclasses import replace
from typing import Any, Tuple

from ddp_doctor.facts import SECTIONS, NodeFacts, Reason

OUT_OF_SCOPE = {
    "node": ("limits", "env", "launch", "torch", "cuda", "ssh", "logins"),
    "job": ("ssh", "logins"),
    "user": (),
}
"""Sections that say nothing about what is judged: a prolog's limits and environment are root's, not the job's."""


def sections_in(scope: str) -> Tuple[str, ...]:
    """The sections to collect for a scope: node, job or user."""
    return tuple(name for name in SECTIONS if name not in OUT_OF_SCOPE[scope])


def in_scope(facts: NodeFacts, scope: str) -> NodeFacts:
    """Facts without the sections that are out of scope, for judging facts that were collected earlier."""
    out = dict.fromkeys(OUT_OF_SCOPE[scope])
    why = {name: Reason("not-asked", f"--scope {scope} does not judge it") for name in out}
    changes: Any = {**out, "reasons": {**facts.reasons, **why}}
    return replace(facts, **changes)

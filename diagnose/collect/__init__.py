"""Collecting: a module per section, each with ``read(host, ask)`` that returns the section.

A module may set ``LIMIT_S``, the seconds that its section may take, or ``limit_s(ask)`` where that depends on what is
asked, and ``wanted(ask)``, which returns None or the ``Reason`` why the section is not asked for.
"""

import importlib
from time import monotonic  # not "import time": the section of that name becomes an attribute of this package
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddp_doctor import __version__, child
from ddp_doctor.ask import Ask
from ddp_doctor.facts import SCHEMA_VERSION, SECTIONS, Reason, to_plain
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder
from ddp_doctor.unreadable import Unreadable

LIMIT_S = 10.0
"""A section's time when its module sets none: the calls behind it have shorter limits of their own."""


def gather(
    host: Host, ask: Ask, deadline_s: Optional[float] = None, sections: Tuple[str, ...] = SECTIONS
) -> Dict[str, Any]:
    """Collect the sections side by side, each in a child of its own; return the node's facts as plain JSON data.

    deadline_s: seconds after which a section that has not answered is given up. ``sections``: the others are "not asked".
    """
    started = monotonic()
    document = _frame(host, ask)
    reasons: Dict[str, Any] = {
        name: to_plain(Reason("not-asked", "not selected")) for name in SECTIONS if name not in sections
    }
    left_behind: List[str] = []
    for name, outcome in _outcomes(host, ask, deadline_s, sections, reasons):
        if outcome.failure:
            reasons[name] = to_plain(Reason(outcome.failure, f"reading {name}: {outcome.text}"))
        elif "section" in outcome.value:
            document[name] = outcome.value["section"]
        else:
            reasons[name] = outcome.value["reason"]
        if isinstance(host, Recorder) and outcome.value:
            host.entries.update(outcome.value["entries"])
        if outcome.left_pid:
            left_behind.append(f"pid {outcome.left_pid} (reading {name}): the kernel would not end it")
    document.update(reasons=reasons, left_behind=left_behind, duration_s=round(monotonic() - started, 4))
    return document


def _frame(host: Host, ask: Ask) -> Dict[str, Any]:
    """What holds for the document as a whole."""
    from ddp_doctor.collect import frame

    return {"schema_version": SCHEMA_VERSION, **to_plain(frame.read(host, ask, __version__))}


def _outcomes(
    host: Host, ask: Ask, deadline_s: Optional[float], sections: Tuple[str, ...], reasons: Dict[str, Any]
) -> Iterator[Tuple[str, child.Outcome]]:
    running = []
    for name in SECTIONS:
        if name not in sections:
            continue
        module = importlib.import_module(f"ddp_doctor.collect.{name}")
        reason = module.wanted(ask) if hasattr(module, "wanted") else None
        if reason is not None:
            reasons[name] = to_plain(reason)
            continue
        limit_s = module.limit_s(ask) if hasattr(module, "limit_s") else getattr(module, "LIMIT_S", LIMIT_S)
        limit_s = limit_s if deadline_s is None else min(limit_s, deadline_s)
        running.append(child.start(name, lambda m=module: _section(m, host, ask), limit_s))  # type: ignore[misc]
    waiting = {started.name for started in running}
    try:
        for finished, outcome in child.finish(running):
            waiting.discard(finished.name)
            yield finished.name, outcome
    except KeyboardInterrupt:  # what is known so far is reported
        for name in waiting:
            reasons[name] = to_plain(Reason("interrupted", f"interrupted while reading {name}"))


def _section(module: Any, host: Host, ask: Ask) -> Dict[str, Any]:
    """Run in the child: the section, or the reason why there is none, and what went through the door."""
    if isinstance(host, Recorder):
        host.entries.clear()
    try:
        answer = {"section": to_plain(module.read(host, ask))}
    except Unreadable as error:
        answer = {"reason": to_plain(error.reason)}
    return {**answer, "entries": host.entries if isinstance(host, Recorder) else {}}

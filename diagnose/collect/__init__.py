"""Collecting: a module per section, each with ``read(host, ask)`` that returns the section.

A module may set ``LIMIT_S``, the seconds that its section may take, or ``limit_s(ask)`` where that depends on what is
asked, and ``wanted(ask)``, which returns None or the ``Reason`` why the section is not asked for.
"""

import importlib
from functools import partial
from time import monotonic  # not "import time": the section of that name becomes an attribute of this package
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddp_doctor import __version__, child
from ddp_doctor.ask import Ask
from ddp_doctor.collect import frame
from ddp_doctor.facts import SCHEMA_VERSION, SECTIONS, Reason, to_plain
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder, Recording
from ddp_doctor.unreadable import Unreadable, reason_of

WRONG_SHAPE = (AttributeError, LookupError, TypeError, ValueError, OverflowError)
"""What comes of data that is not of the shape that a library gives."""
MOST_CHARACTERS = 200
"""Of what Python says of a damaged recording, which may quote some of it."""
LIMIT_S = 10.0
"""A section's time when its module sets none: the calls behind it have shorter limits of their own."""


def gather(
    host: Host,
    ask: Ask,
    deadline_s: Optional[float] = None,
    sections: Tuple[str, ...] = SECTIONS,
    waiting_for: Optional[Callable[[List[str]], None]] = None,
) -> Dict[str, Any]:
    """Collect the sections and return the node's facts as plain JSON data: ``Gathering`` in one call."""
    with Gathering(host, ask, deadline_s, sections) as gathering:
        return gathering.document(waiting_for)


class Gathering:
    """The sections being collected side by side, each in a child of its own, while the caller does something else.

    deadline_s: seconds after which a section that has not answered is given up. ``sections``: the others are "not asked".
    Leaving the context ends what still runs.
    """

    def __init__(
        self, host: Host, ask: Ask, deadline_s: Optional[float] = None, sections: Tuple[str, ...] = SECTIONS
    ) -> None:
        ask = host.asked(ask)
        self._started, self._host, self._ask = monotonic(), host, ask
        self._reasons: Dict[str, Any] = {}
        self._running: List[child.Child] = []
        for name in SECTIONS:
            module = importlib.import_module(f"ddp_doctor.collect.{name}") if name in sections else None
            reason = _why_not(module, ask)
            if module is None or reason is not None:
                self._reasons[name] = to_plain(reason)
                continue
            work = partial(_section, module, host, ask)
            try:
                self._running.append(child.start(name, work, _limit_s(module, ask), deadline_s))
            except OSError as error:  # of processes or file descriptors none is left
                self._reasons[name] = to_plain(reason_of(error, f"reading {name}: cannot start a child"))

    def __enter__(self) -> "Gathering":
        return self

    def __exit__(self, *_error: Any) -> None:
        child.abandon(self._running)
        self._running = []

    def document(self, waiting_for: Optional[Callable[[List[str]], None]] = None) -> Dict[str, Any]:
        """Wait for the sections; the facts as plain JSON data. After Ctrl-C: what was known by then.

        waiting_for: told every second which sections are still out.
        """
        document = {"schema_version": SCHEMA_VERSION, **to_plain(frame.read(self._host, self._ask, __version__))}
        running, self._running = self._running, []
        left_behind: List[str] = []
        waiting = {started.name for started in running}
        try:
            for finished, outcome in child.finish(running, waiting_for=waiting_for):
                waiting.discard(finished.name)
                self._note(document, finished.name, outcome)
                if outcome.left_pid:
                    left_behind.append(f"pid {outcome.left_pid} (reading {finished.name})")
        except KeyboardInterrupt:
            for name in waiting:
                self._reasons[name] = to_plain(Reason("interrupted", f"interrupted while reading {name}"))
        duration_s = round(monotonic() - self._started, 4)
        return {**document, "reasons": self._reasons, "left_behind": left_behind, "duration_s": duration_s}

    def _note(self, document: Dict[str, Any], name: str, outcome: child.Outcome) -> None:
        """Put one section, or the reason why there is none, where it belongs."""
        if outcome.failure:
            self._reasons[name] = to_plain(Reason(outcome.failure, f"reading {name}: {outcome.text}"))
            return
        if "section" in outcome.value:
            document[name] = outcome.value["section"]
        else:
            self._reasons[name] = outcome.value["reason"]
        if isinstance(self._host, Recorder):
            # What several sections ask is recorded once, as the first of them was told.
            for name, entry in outcome.value["entries"].items():
                self._host.entries.setdefault(name, entry)


def _why_not(module: Any, ask: Ask) -> Optional[Reason]:
    """Why a section is not collected, or None."""
    if module is None:
        return Reason("not-asked", "not selected")
    reason: Optional[Reason] = module.wanted(ask) if hasattr(module, "wanted") else None
    return reason


def _limit_s(module: Any, ask: Ask) -> float:
    return float(module.limit_s(ask) if hasattr(module, "limit_s") else getattr(module, "LIMIT_S", LIMIT_S))


def _section(module: Any, host: Host, ask: Ask) -> Dict[str, Any]:
    """Run in the child: the section, or the reason why there is none, and what went through the door."""
    if isinstance(host, Recorder):
        host.entries.clear()
    try:
        answer = {"section": to_plain(module.read(host, ask))}
    except Unreadable as error:
        answer = {"reason": to_plain(error.reason)}
    except WRONG_SHAPE as error:
        if not isinstance(host, Recording):
            raise
        answer = {"reason": to_plain(_damaged(module, error))}
    return {**answer, "entries": host.entries if isinstance(host, Recorder) else {}}


def _damaged(module: Any, error: Exception) -> Reason:
    """Why a section could not be made out of a recording, which may hold anything; on a node the same is a defect of ours."""
    what = f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]
    return Reason("unreadable", f"the recording is damaged where {module.__name__.rpartition('.')[2]} is read ({what})")

"""A conversation with programs on nodes: greetings, readings of their clocks, questions and answers, and what ends it.

How a program is started, written to and cut off differs: ``ssh_engine`` has a connection for each node, ``slurm_engine`` one
for all. Everything here runs in the engine's own thread; orders reach it through a port, answers leave it through a queue.
"""

import json
import logging
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self
from ddp_doctor.facts import Reason

HELLO_S = 30.0
"""After the time to connect: a shell's profile and Python on a shared file system that is slow, but alive, make it in that."""
NOISE_LIMIT_BYTES, NOISE_LIMIT_LINES = 2**20, 10_000
"""What a login shell prints before an answer is a greeting; who prints so much will print for ever."""
LINE_LIMIT_BYTES = 64 * 2**20
STDERR_KEPT_BYTES = 8192
PINGS = 3
"""So many readings of a node's clock; the one with the shortest round trip counts."""

TALKATIVE = Reason("unreadable", "it prints without end, and no answer")
PING: Mapping[str, Any] = {"do": "time", "id": "ping"}
END: Mapping[str, Any] = {"do": "end"}

Request = Mapping[str, Any]


@dataclass
class Link:
    """One node's program, as the engine's thread sees it."""

    node: str
    worker: Any = None
    """What ClusterShell runs for it; None when it has ended."""
    started_at: Optional[float] = None
    greeted: bool = False
    noise_bytes: int = 0
    noise_lines: int = 0
    stderr: bytes = b""
    noise: bytes = b""
    """The last that it said on standard output which is no answer."""
    pinged_at: float = 0.0
    pings: List[Tuple[float, float]] = field(default_factory=list)
    """(half of the round trip, offset of its clock) in seconds."""
    held: List[Request] = field(default_factory=list)
    """Requests that wait for the greeting."""
    open: Set[int] = field(default_factory=set)
    """Numbers of requests without an answer."""
    last: bool = False
    dropped: Optional[Reason] = None


class Conversation(EventHandler):  # type: ignore[misc]
    """The links to all nodes. What differs between the ways: ``start``, ``send``, ``part`` and ``cut``."""

    def __init__(
        self, limit_s: Optional[float], connect_s: float, answers: Any, clocks: Dict[str, Tuple[float, float]]
    ) -> None:
        """limit_s: what one node may take in all. connect_s: what may pass before the program there is started."""
        logging.getLogger("ClusterShell").addHandler(logging.NullHandler())  # it speaks of broken pipes; we do
        self._limit_s, self._connect_s, self._answers, self._clocks = limit_s, connect_s, answers, clocks
        self.links: Dict[str, Link] = {}
        self._leaving = False
        self.task = task_self()
        for name in ("stdout_msgtree", "stderr_msgtree", "auto_tree"):
            self.task.set_default(name, False)
        self.port = self.task.port(handler=self)
        self._clock = self.task.timer(1.0, handler=self, interval=1.0, autoclose=True)

    def start(self, link: Link) -> None:
        """Start the program on a node."""
        raise NotImplementedError

    def send(self, link: Link, request: Request) -> None:
        """Write a request to the program."""
        raise NotImplementedError

    def part(self, link: Link) -> None:
        """Let the program end by itself."""
        raise NotImplementedError

    def cut(self, link: Link) -> None:
        """End it now."""
        raise NotImplementedError

    def run(self) -> None:
        """Until it is told to abort."""
        self.task.resume()

    # ----------------------------------------------------------------- orders

    def ev_msg(self, port: Any, order: Tuple[Any, ...]) -> None:
        """An order of the session."""
        word, *rest = order
        if word == "ask":
            self._ask(*rest)
            return
        if word == "farewell":
            self._leaving = True
            for link in self.links.values():
                if link.worker is not None:
                    self.part(link)
            self.end_if_alone()
            return
        self.task.abort()

    def end_if_alone(self) -> None:
        """Stop the engine when it was told to and nothing runs any more."""
        if self._leaving and not any(link.worker for link in self.links.values()):
            self.task.abort()

    def _ask(self, number: int, requests: Mapping[str, Request], last: bool) -> None:
        for node, request in requests.items():
            link = self.links.get(node)
            if link is not None and link.worker is None:  # it has ended, and stays so
                self._answers.put((node, number, link.dropped or Reason("unreachable", "the connection had ended")))
                continue
            if link is None:
                link = self.links[node] = Link(node)
                self.start(link)
            link.last = last
            link.open.add(number)
            numbered = {**request, "id": number}
            if link.greeted and len(link.pings) >= PINGS:
                self.send(link, numbered)
            else:
                link.held.append(numbered)

    # ----------------------------------------------------------------- what nodes say

    def noted(self, link: Link, text: bytes, on_stderr: bool) -> None:
        """A node said something that is no answer."""
        if on_stderr:
            link.stderr = (link.stderr + text + b"\n")[-STDERR_KEPT_BYTES:]
        else:
            link.noise = text[-200:] or link.noise
        link.noise_bytes += len(text)
        link.noise_lines += 1
        if link.noise_bytes > NOISE_LIMIT_BYTES or link.noise_lines > NOISE_LIMIT_LINES:
            self.drop(link, TALKATIVE)

    def heard(self, link: Link, line: bytes) -> None:
        """A node answered."""
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self.drop(link, Reason("unreadable", "half an answer came, or one that is damaged"))
        elif "hello" in answer:
            link.greeted = True
            self._ping(link)
        elif answer.get("id") == "ping":
            self._pong(link, answer)
        elif answer.get("id") in link.open:
            link.open.discard(answer["id"])
            self._answers.put((link.node, answer["id"], answer))
            if link.last and not link.open:
                self.part(link)

    def _ping(self, link: Link) -> None:
        link.pinged_at = time.time()
        self.send(link, PING)

    def _pong(self, link: Link, answer: Dict[str, Any]) -> None:
        """Take a reading of its clock: it was made at some moment between question and answer."""
        now, theirs = time.time(), answer.get("value")
        if isinstance(theirs, (int, float)):
            half_s = max(0.0, now - link.pinged_at) / 2
            link.pings.append((half_s, theirs - (now + link.pinged_at) / 2))
            error_s, offset_s = min(link.pings)
            self._clocks[link.node] = (offset_s, error_s)
        if len(link.pings) < PINGS and isinstance(theirs, (int, float)):
            self._ping(link)
            return
        link.pings += [(float("inf"), 0.0)] * (PINGS - len(link.pings))
        for request in link.held:
            self.send(link, request)
        link.held.clear()

    # ----------------------------------------------------------------- ends

    def ev_timer(self, timer: Any) -> None:
        """Every second: programs that hang or take too long, and such as say much without an end."""
        now = time.monotonic()
        for link in list(self.links.values()):
            if link.worker is None or link.started_at is None:
                continue
            if not link.greeted and now - link.started_at > self._connect_s + HELLO_S:
                hint = f"; it printed {link.noise[-80:].decode(errors='replace')!r}" if link.noise else ""
                self.drop(link, Reason("timed-out", f"connected, but nothing answered in {HELLO_S:.0f} s{hint}"))
            elif self._limit_s and now - link.started_at > self._limit_s:
                self.drop(link, Reason("timed-out", f"no answer within {self._limit_s:.3g} s"))
            elif self.unfinished_bytes(link) > LINE_LIMIT_BYTES:
                self.drop(link, TALKATIVE)

    def unfinished_bytes(self, link: Link) -> int:
        """Bytes of a line whose end has not come."""
        raise NotImplementedError

    def drop(self, link: Link, reason: Reason) -> None:
        """Have no more to do with a node."""
        if link.dropped is None and link.worker is not None:
            link.dropped = reason
            self.cut(link)

    def ended(self, link: Link, reason: Reason) -> None:
        """A node's program has ended: what was asked and is open has no answer."""
        link.worker, link.dropped = None, reason
        for number in link.open:
            self._answers.put((link.node, number, reason))
        link.open.clear()
        self.end_if_alone()


def line(request: Request) -> bytes:
    """A request as a program on a node takes it."""
    return json.dumps(request, allow_nan=False).encode("ascii") + b"\n"

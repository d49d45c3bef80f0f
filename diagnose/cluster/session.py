"""A session: the program of ``node.py`` on many nodes at once, over ssh by ClusterShell, asked and answering.

ClusterShell's engine runs in a thread of its own: it starts one ssh for each node, ``fanout`` at a time, and hears them.
Orders reach it through a port, answers come back through a queue. Nodes are named as the user wrote them.
"""

import contextlib
import itertools
import json
import logging
import queue
import resource
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple, Union

from ClusterShell.Event import EventHandler
from ClusterShell.Task import task_self
from ddp_doctor.cluster.ssh import Way, why_it_ended
from ddp_doctor.facts import Reason
from ddp_doctor.node import MARK

FANOUT = 64
"""Nodes at once: that of clush(1)."""
HELLO_S = 30.0
"""After the time to connect: a shell's profile and Python on a shared file system that is slow, but alive, make it in that."""
NOISE_LIMIT_BYTES, NOISE_LIMIT_LINES = 2**20, 10_000
"""What a login shell prints before an answer is a greeting; who prints so much will print for ever."""
LINE_LIMIT_BYTES = 64 * 2**20
STDERR_KEPT_BYTES = 8192
PINGS = 3
"""So many readings of a node's clock; the one with the shortest round trip counts."""
FILES_EACH, FILES_OTHER = 4, 128
"""Files that ClusterShell holds open for a connection (two socket pairs, one pipe while it starts), and everything else."""
PATIENCE_S = 0.5
FAREWELL_S = 2.0
"""What nodes get to end by themselves before their connections are cut."""

TALKATIVE = Reason("unreadable", "it prints without end, and no answer")

Answer = Union[Dict[str, Any], Reason]
Requests = Mapping[str, Mapping[str, Any]]


@dataclass
class _Link:
    """One node's connection, as the engine's thread sees it."""

    node: str
    worker: Any = None
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
    held: List[Tuple[int, bytes]] = field(default_factory=list)
    """Requests that wait for the greeting: number and line."""
    open: Set[int] = field(default_factory=set)
    """Numbers of requests without an answer."""
    last: bool = False
    dropped: Optional[Reason] = None


class Session:
    """Programs on nodes, each started when it is first asked, and ended with the session."""

    def __init__(self, way: Way, fanout: int = FANOUT, node_limit_s: Optional[float] = None) -> None:
        """node_limit_s: how long a node may take in all, from the start of its ssh."""
        self._way, self._fanout, self._node_limit_s = way, fanout, node_limit_s
        self._answers: Any = queue.SimpleQueue()
        """(node, number of the request, answer or reason); a node without a name: the engine has ended."""
        self._clocks: Dict[str, Tuple[float, float]] = {}
        self._numbers = itertools.count(1)
        _make_room(fanout)
        self._up = threading.Event()
        self._engine: Optional[_Engine] = None
        self._thread = threading.Thread(target=self._run, name="ddp-doctor-session", daemon=True)

    def __enter__(self) -> "Session":
        self._thread.start()
        self._up.wait()
        return self

    def __exit__(self, *_error: Any) -> None:
        for order in (("farewell",), ("abort",)):
            with contextlib.suppress(OSError, KeyError, AttributeError):  # the engine has ended
                self._tell(*order)
            self._thread.join(FAREWELL_S)

    def _run(self) -> None:
        try:
            self._engine = _Engine(self._way, self._fanout, self._node_limit_s, self._answers, self._clocks)
            self._up.set()
            self._engine.run()
        finally:
            self._up.set()
            self._answers.put(("", 0, Reason("crashed", "the connections' engine ended")))

    def _tell(self, *order: Any) -> None:
        if self._engine is not None:
            self._engine.port.msg_send(order)

    def ask(self, requests: Requests, limit_s: float) -> Dict[str, Answer]:
        """Send each node its request, all at the same time; each node's answer, or the reason why there is none."""
        return dict(self.stream(requests, limit_s))

    def stream(
        self,
        requests: Requests,
        limit_s: float,
        last: bool = False,
        waiting_for: Optional[Callable[[List[str]], None]] = None,
    ) -> Iterator[Tuple[str, Answer]]:
        """The same, each as it comes. last: a node's program is ended when it has answered, so that others get their turn.

        waiting_for: told now and then which nodes are still out.
        """
        number = next(self._numbers)
        waiting = dict.fromkeys(requests)
        self._tell("ask", number, {node: _line(number, request) for node, request in requests.items()}, last)
        until = time.monotonic() + limit_s
        while waiting:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            try:
                node, answered, answer = self._answers.get(timeout=min(left_s, PATIENCE_S))
            except queue.Empty:
                if waiting_for:
                    waiting_for(list(waiting))
                continue
            if answered == number and node in waiting:
                del waiting[node]
                yield node, _value(answer)
            elif not node:  # the engine has ended, and nobody else will answer
                break
        for node in waiting:
            yield node, Reason("timed-out", f"no answer within {limit_s:.3g} s")

    def clock(self, node: str) -> Optional[Tuple[float, float]]:
        """(offset of the node's clock to ours, how far that may be off) in seconds, by the quickest of PINGS questions."""
        return self._clocks.get(node)


def _make_room(connections: int) -> None:
    """Lift our own soft limit of open files, where the hard one allows it: a connection takes some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_EACH * connections + FILES_OTHER
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # not allowed to: connections then fail, and say so
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _line(number: int, request: Mapping[str, Any]) -> bytes:
    return json.dumps({**request, "id": number}, allow_nan=False).encode("ascii") + b"\n"


def _value(answer: Any) -> Answer:
    """An answer's value; a reason where there is none."""
    if isinstance(answer, Reason):
        return answer
    if "failure" in answer:
        return Reason(str(answer["failure"]), str(answer.get("text", ""))[:2000])
    value = answer.get("value")
    return value if isinstance(value, dict) else Reason("unreadable", "an answer of a kind that was not asked for")


class _Engine(EventHandler):  # type: ignore[misc]
    """ClusterShell's side, all in one thread: connections, what they say, and when they end."""

    def __init__(
        self, way: Way, fanout: int, node_limit_s: Optional[float], answers: Any, clocks: Dict[str, Tuple[float, float]]
    ) -> None:
        logging.getLogger("ClusterShell").addHandler(logging.NullHandler())  # it speaks of broken pipes; we do
        self._way, self._limit_s, self._answers, self._clocks = way, node_limit_s, answers, clocks
        self._links: Dict[str, _Link] = {}
        self._leaving = False
        self._task = task_self()
        for name, value in (("fanout", fanout), ("connect_timeout", 0), ("ssh_options", way.options_text)):
            self._task.set_info(name, value)
        for name in ("stdout_msgtree", "stderr_msgtree", "auto_tree"):
            self._task.set_default(name, False)
        self.port = self._task.port(handler=self)
        self._task.timer(1.0, handler=self, interval=1.0, autoclose=True)

    def run(self) -> None:
        """Until it is told to abort."""
        self._task.resume()

    # ----------------------------------------------------------------- orders

    def ev_msg(self, port: Any, order: Tuple[Any, ...]) -> None:
        """An order of the session."""
        word, *rest = order
        if word == "ask":
            self._ask(*rest)
            return
        if word == "farewell":
            self._leaving = True
            for link in self._links.values():
                self._part(link)
            self._end_if_alone()
            return
        self._task.abort()

    def _end_if_alone(self) -> None:
        if self._leaving and not any(link.worker for link in self._links.values()):
            self._task.abort()

    def _ask(self, number: int, lines: Dict[str, bytes], last: bool) -> None:
        for node, line in lines.items():
            link = self._links.get(node)
            if link is not None and link.worker is None:  # it has ended, and stays so
                self._answers.put((node, number, link.dropped or Reason("unreachable", "the connection had ended")))
                continue
            if link is None:
                link = self._links[node] = _Link(node)
                link.worker = self._task.shell(
                    self._way.command, nodes=node, handler=self, stderr=True, tree=False, timeout=self._limit_s
                )
                link.worker.write(self._way.preamble)
            link.last = last
            link.open.add(number)
            if link.greeted and len(link.pings) >= PINGS:
                link.worker.write(line)
            else:
                link.held.append((number, line))

    def _part(self, link: _Link) -> None:
        if link.worker is not None:
            link.worker.write(b'{"do": "end"}\n')
            link.worker.set_write_eof()

    # ----------------------------------------------------------------- what ClusterShell tells

    def ev_pickup(self, worker: Any, node: str) -> None:
        """A node's ssh was started."""
        self._link(worker).started_at = time.monotonic()

    def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
        """A node said a line."""
        link = self._link(worker)
        place = msg.find(MARK.encode()) if sname != worker.SNAME_STDERR else -1
        if place >= 0:
            self._heard(link, msg[place + len(MARK) :])
            return
        if sname == worker.SNAME_STDERR:
            link.stderr = (link.stderr + msg + b"\n")[-STDERR_KEPT_BYTES:]
        else:
            link.noise = msg[-200:] or link.noise
        link.noise_bytes += len(msg)
        link.noise_lines += 1
        if link.noise_bytes > NOISE_LIMIT_BYTES or link.noise_lines > NOISE_LIMIT_LINES:
            self._drop(link, TALKATIVE)

    def _heard(self, link: _Link, line: bytes) -> None:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self._drop(link, Reason("unreadable", "half an answer came, or one that is damaged"))
        elif "hello" in answer:
            link.greeted = True
            self._ping(link)
        elif answer.get("id") == "ping":
            self._pong(link, answer)
        elif answer.get("id") in link.open:
            link.open.discard(answer["id"])
            self._answers.put((link.node, answer["id"], answer))
            if link.last and not link.open:
                self._part(link)

    def _ping(self, link: _Link) -> None:
        link.pinged_at = time.time()
        link.worker.write(b'{"do": "time", "id": "ping"}\n')

    def _pong(self, link: _Link, answer: Dict[str, Any]) -> None:
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
        for _, line in link.held:
            link.worker.write(line)
        link.held.clear()

    def ev_timer(self, timer: Any) -> None:
        """Every second: connections that hang, and such as say much without an end."""
        now = time.monotonic()
        for link in self._links.values():
            if link.worker is None or link.started_at is None:
                continue
            if not link.greeted and now - link.started_at > self._way.connect_s + HELLO_S:
                hint = f"; it printed {link.noise[-80:].decode(errors='replace')!r}" if link.noise else ""
                self._drop(link, Reason("timed-out", f"connected, but nothing answered in {HELLO_S:.0f} s{hint}"))
            elif any(len(s.rbuf) > LINE_LIMIT_BYTES for c in link.worker._clients for s in c.streams.values()):
                self._drop(link, TALKATIVE)

    def ev_close(self, worker: Any, timedout: bool) -> None:
        """A node's ssh has ended."""
        link = self._link(worker)
        status = worker.node_retcode(link.node) if not timedout and link.dropped is None else None
        reason = link.dropped or (
            Reason("timed-out", f"no answer within {self._limit_s:.3g} s")
            if timedout and self._limit_s
            else why_it_ended(link.node, status, link.stderr.decode("utf-8", "replace"), link.greeted)
        )
        link.worker, link.dropped = None, reason
        for number in link.open:
            self._answers.put((link.node, number, reason))
        link.open.clear()
        self._end_if_alone()

    def _drop(self, link: _Link, reason: Reason) -> None:
        if link.dropped is not None:
            return
        link.dropped = reason
        link.worker.abort()

    def _link(self, worker: Any) -> _Link:
        return self._links[str(worker.nodes)]

"""A session: the program of ``node.py`` on many nodes at once, asked and answering.

The conversation with them runs in a thread of its own, by ClusterShell's engine. Orders reach it through a port, answers
come back through a queue. Nodes are named as the user wrote them.
"""

import contextlib
import itertools
import queue
import resource
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Protocol, Tuple, Union

from ddp_doctor.cluster.conversation import Conversation
from ddp_doctor.facts import Reason

FANOUT = 64
"""Nodes at once: that of clush(1)."""
FILES_EACH, FILES_OTHER = 4, 128
"""Files that ClusterShell holds open for a connection (two socket pairs, one pipe while it starts), and everything else."""
PATIENCE_S = 0.5
FAREWELL_S = 2.0
"""What nodes get to end by themselves before their connections are cut."""

Answer = Union[Dict[str, Any], Reason]
Requests = Mapping[str, Mapping[str, Any]]
Clocks = Dict[str, Tuple[float, float]]
Engine = Callable[[Any, Clocks], Conversation]
"""(queue for answers, readings of clocks) -> the conversation that feeds both."""


class Way(Protocol):
    """How programs on nodes are started: ``ssh.Way``, ``slurm.Step``."""

    @property
    def via(self) -> str:
        """What the facts say of it."""

    @property
    def connect_s(self) -> float:
        """What may pass before a program is started."""

    @property
    def extra(self) -> Mapping[str, Any]:
        """What a request for facts says besides."""

    def session(self, fanout: int, limit_s: float) -> "Session":
        """A session with so many nodes at once, each for so long."""


class Session:
    """Programs on nodes, each started when it is first asked, and ended with the session."""

    def __init__(self, engine: Engine, connections: int = FANOUT) -> None:
        """engine: makes the conversation, in its thread. connections: how many there will be at once."""
        self._make_engine = engine
        self._answers: Any = queue.SimpleQueue()
        """(node, number of the request, answer or reason); a node without a name: the engine has ended."""
        self._clocks: Clocks = {}
        self._numbers = itertools.count(1)
        _make_room(connections)
        self._up = threading.Event()
        self._engine: Optional[Conversation] = None
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
            self._engine = self._make_engine(self._answers, self._clocks)
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
        self._tell("ask", number, dict(requests), last)
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


def _value(answer: Any) -> Answer:
    """An answer's value; a reason where there is none."""
    if isinstance(answer, Reason):
        return answer
    if "failure" in answer:
        return Reason(str(answer["failure"]), str(answer.get("text", ""))[:2000])
    value = answer.get("value")
    return value if isinstance(value, dict) else Reason("unreadable", "an answer of a kind that was not asked for")

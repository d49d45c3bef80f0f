"""The conversation by Slurm: one srun for all nodes, whose standard input reaches every task."""

import contextlib
import os
import shlex
import signal
import time
from typing import Any, Dict, List, Optional, Tuple

from ddp_doctor import broadcast
from ddp_doctor.cluster import slurm
from ddp_doctor.cluster.conversation import END, PING, STDERR_KEPT_BYTES, Conversation, Link, Request, line
from ddp_doctor.node import PIECE_MARK

TURN_S = 0.05
"""What is to be sent goes out so often, in one line for all nodes."""


class SlurmEngine(Conversation):
    """One stream to all nodes, and one from them."""

    def __init__(
        self, step: slurm.Step, limit_s: Optional[float], answers: Any, clocks: Dict[str, Tuple[float, float]]
    ) -> None:
        super().__init__(limit_s, step.connect_s, answers, clocks)
        self._step = step
        self._worker: Any = None
        self._outbox: Dict[Any, Dict[str, Request]] = {}
        """Number of the request -> node -> request."""
        self._pieces: Dict[str, List[bytes]] = {}
        self._stderr = b""
        self._turn = self.task.timer(TURN_S, handler=self, interval=TURN_S, autoclose=True)

    def start(self, link: Link) -> None:
        """Start srun, which starts all nodes' programs, with the first of them."""
        if self._worker is None:
            self._worker = self.task.shell(f"exec {shlex.join(self._step.argv)}", handler=self, stderr=True)
            self._worker.write(self._step.preamble)
        link.worker, link.started_at = self._worker, time.monotonic()

    def send(self, link: Link, request: Request) -> None:
        """Put it into the next line that goes out."""
        self._outbox.setdefault(request["id"], {})[link.node] = request

    def part(self, link: Link) -> None:
        """It ends with all others, when srun's input does: see ``ev_msg``."""

    def cut(self, link: Link) -> None:
        """srun cannot end one task: nobody listens to it any more."""
        self.ended(link, link.dropped or slurm.why_it_ended(None, ""))

    def unfinished_bytes(self, link: Link) -> int:
        """Pieces of an answer whose last one has not come."""
        return sum(map(len, self._pieces.get(link.node, ())))

    def end_if_alone(self) -> None:
        """As for others, but srun has to end as well."""
        if self._worker is None:
            super().end_if_alone()

    def ev_timer(self, timer: Any) -> None:
        """Send what waits; every second also look for nodes that hang."""
        if timer is not self._turn:
            super().ev_timer(timer)
            return
        waiting, self._outbox = self._outbox, {}
        for requests in waiting.values():
            for node, request in requests.items():
                if request is PING:
                    self.links[node].pinged_at = time.time()
            self._write(broadcast.packed(requests))

    def _write(self, request: Request) -> None:
        if self._worker is not None:
            self._worker.write(line(request))

    def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
        """srun said a line: a piece of a node's answer, or words."""
        if sname == worker.SNAME_STDERR:
            self._stderr = (self._stderr + msg + b"\n")[-STDERR_KEPT_BYTES:]
            for name, status, words in slurm.exited(msg.decode("utf-8", "replace")):
                link = self.links.get(name)
                if link is not None and link.worker is not None and not self._leaving:
                    self.drop(link, slurm.why_a_task_ended(status, words, link.greeted))
            return
        place = msg.find(PIECE_MARK.encode())
        if place >= 0:
            self._piece(msg[place + len(PIECE_MARK) :])

    def _piece(self, text: bytes) -> None:
        name, _, rest = text.partition(b" ")
        word, _, piece = rest.partition(b" ")
        node = name.decode("ascii", "replace")
        link = self.links.get(node)
        if link is None or link.worker is None:
            return
        self._pieces.setdefault(node, []).append(piece)
        if word == b"end":
            self.heard(link, b"".join(self._pieces.pop(node)))

    def ev_msg(self, port: Any, order: Tuple[Any, ...]) -> None:
        """An order of the session. Before it ends, the programs are told to, and if that is in vain srun is."""
        if order[0] == "farewell" and self._worker is not None:
            self._write(END)
            self._worker.set_write_eof()
        if order[0] == "abort" and self._worker is not None:
            with contextlib.suppress(OSError, AttributeError):
                os.kill(self._worker.clients[0].popen.pid, signal.SIGTERM)
        super().ev_msg(port, order)

    def ev_close(self, worker: Any, timedout: bool) -> None:
        """srun has ended, and all that it started."""
        reason = slurm.why_it_ended(worker.retcode(), self._stderr.decode("utf-8", "replace"))
        self._worker = None
        for link in self.links.values():
            if link.worker is not None:
                self.ended(link, link.dropped or reason)
        self.end_if_alone()

"""The conversation over ssh: ClusterShell starts one ssh for each node, ``fanout`` at a time."""

import time
from typing import Any, Dict, Optional, Tuple

from ddp_doctor.cluster.conversation import END, Conversation, Link, Request, line
from ddp_doctor.cluster.ssh import Way, why_it_ended
from ddp_doctor.node import MARK


class SshEngine(Conversation):
    """A connection for each node."""

    def __init__(
        self, way: Way, fanout: int, limit_s: Optional[float], answers: Any, clocks: Dict[str, Tuple[float, float]]
    ) -> None:
        super().__init__(limit_s, way.connect_s, answers, clocks)
        self._way = way
        for name, value in (("fanout", fanout), ("connect_timeout", 0), ("ssh_options", way.options_text)):
            self.task.set_info(name, value)

    def start(self, link: Link) -> None:
        """Queue its ssh; ClusterShell starts it when its turn comes."""
        link.worker = self.task.shell(self._way.command, nodes=link.node, handler=self, stderr=True, tree=False)
        link.worker.write(self._way.preamble)

    def send(self, link: Link, request: Request) -> None:
        """Write to its ssh."""
        link.worker.write(line(request))

    def part(self, link: Link) -> None:
        """Say goodbye, and close its input."""
        link.worker.write(line(END))
        link.worker.set_write_eof()

    def cut(self, link: Link) -> None:
        """Kill its ssh; ``ev_close`` follows."""
        link.worker.abort()

    def unfinished_bytes(self, link: Link) -> int:
        """What ClusterShell holds of a line."""
        return max((len(s.rbuf) for c in link.worker._clients for s in c.streams.values()), default=0)

    def ev_pickup(self, worker: Any, node: str) -> None:
        """A node's ssh was started."""
        self._link(worker).started_at = time.monotonic()

    def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
        """A node said a line."""
        link, on_stderr = self._link(worker), sname == worker.SNAME_STDERR
        place = -1 if on_stderr else msg.find(MARK.encode())
        if place >= 0:
            self.heard(link, msg[place + len(MARK) :])
        else:
            self.noted(link, msg, on_stderr)

    def ev_close(self, worker: Any, timedout: bool) -> None:
        """A node's ssh has ended."""
        link = self._link(worker)
        status = worker.node_retcode(link.node) if link.dropped is None else None
        words = link.stderr.decode("utf-8", "replace")
        self.ended(link, link.dropped or why_it_ended(link.node, status, words, link.greeted))

    def _link(self, worker: Any) -> Link:
        return self.links[str(worker.nodes)]

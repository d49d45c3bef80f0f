"""The kernel's log while it is watched: lines as they are written, out of /dev/kmsg."""

import os
import time
from dataclasses import replace
from typing import Iterator, Optional

from ddp_doctor.collect.kernel_lines import fault_lines
from ddp_doctor.collect.kernel_log import Seen, log_of
from ddp_doctor.facts import KernelLog, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import reason_of

MAX_RECORDS = 20_000
"""So many records are read at a time: a flood must not keep the watch from looking at anything else."""


class KernelTail:
    """Records of the ring buffer that come after this was made."""

    def __init__(self, host: Host) -> None:
        self._path = os.path.join(host.root, "dev/kmsg")
        self.reason: Optional[Reason] = None
        self._fd = -1
        self._since = time.time()
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.reason = reason_of(error, "/dev/kmsg")

    def look(self) -> Optional[KernelLog]:
        """The log since the last look; None where it cannot be read: ``reason`` says why."""
        if self._fd < 0:
            return None
        now = time.time()
        try:
            lines = list(self._records())
        except OSError as error:
            self.reason = reason_of(error, "/dev/kmsg")
            self.close()
            return None
        boot = now - time.clock_gettime(time.CLOCK_MONOTONIC)
        since, self._since = self._since, now
        log = log_of(Seen("kmsg", tuple(lines), "", "", whole_boot=False, boot=boot), boot, now)
        return replace(log, since=since, until=now)

    def _records(self) -> Iterator[str]:
        """New records with a fault's words in them; the kernel says EPIPE for those it has overwritten meanwhile."""
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue
            if not record:
                return
            head = record.split(b"\n", 1)[0]
            if fault_lines(head, 1)[0]:
                yield head.decode("utf-8", "backslashreplace")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

"""Looks at one node, again and again: each gives facts that the checks judge like any others.

A look reads what counts (``collect.counters``), asks the GPUs (``gpus.py``) and takes new lines of the kernel's log
(``kernel.py``). What changes slowly and costs more, links, disks, the clock, is collected anew once a minute.
"""

import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional

from ddp_doctor import document
from ddp_doctor.ask import Ask
from ddp_doctor.collect import gather
from ddp_doctor.collect.counters import SOURCES, Key, Source, Take, take, width
from ddp_doctor.facts import Counter, Memory, NodeFacts, Rates, Reason, Trends
from ddp_doctor.host import Host
from ddp_doctor.watch.gpus import WaitingFor, WatchedGpus
from ddp_doctor.watch.kernel import KernelTail
from ddp_doctor.watch.memory import MemoryHistories

AT_START = ("os", "gpus", "torch", "env", "launch", "network", "rdma", "time", "disk", "memory", "processes", "cpu")
"""Sections as they were at the start: which devices there are, and which of them a job would use."""
SLOW = ("network", "rdma", "time", "disk", "processes")
SLOW_EVERY_S = 60.0
START_S = 5.0
"""The facts of the start have so long where a watch is shorter than that; a node in order needs half a second."""
CLOCK_STEP_S = 0.5
"""A wall clock that differs by more from the monotonic one than at the last look was set. Synchronisers slew smaller offsets
(chronyd's and ntpd's step threshold is 0.128 s or more)."""


class Looks:
    """The node as it is watched. ``at_start``: its facts at the start; ``close`` ends what was opened."""

    def __init__(
        self, host: Host, ask: Ask, for_s: Optional[float] = None, waiting_for: Optional[WaitingFor] = None
    ) -> None:
        """for_s: how long is watched at most: what hangs at the start is not waited for much longer than that.

        waiting_for: told once what does not answer, and how many seconds it has, where that is known.
        """
        self._host, self._ask = host, replace(ask, profile="quick", sample_s=0.0)
        most_s = None if for_s is None else max(START_S, for_s)
        self.at_start = document.facts_collected(
            gather(host, self._ask, most_s, AT_START, _once(waiting_for, most_s) if waiting_for else None)
        )
        self._facts = self.at_start
        count = len((self.at_start.gpus.gpus if self.at_start.gpus else None) or ())
        self.gpus = WatchedGpus(host, count if self._by_nvml() else 0, waiting_for)
        self._kernel = KernelTail(host)
        self.histories = MemoryHistories()
        self._sources: Dict[str, Source] = {**SOURCES, "gpu": self.gpus.counters}
        self._slow_at = self._started = time.monotonic()
        self._offset_s = time.time() - self._started
        self._steps, self._largest_s = 0, 0.0
        self.gpus.look(float("inf") if for_s is None else for_s)
        self._last = take(host, self._sources)

    @property
    def kernel_reason(self) -> Optional[Reason]:
        """Why the kernel's log is not watched; None when it is."""
        return self._kernel.reason

    def _by_nvml(self) -> bool:
        return bool(self.at_start.gpus and self.at_start.gpus.source == "nvml")

    def look(self) -> NodeFacts:
        """What is so now, with the rates since the last look, and the kernel's lines since then."""
        self.gpus.look()
        now = take(self._host, self._sources)
        rates, self._last = rates_between(self._last, now), now
        self._mind_clock()
        if time.monotonic() - self._slow_at >= SLOW_EVERY_S:
            self._slow_at = time.monotonic()
            self._collect_slow()
        log = self._kernel.look()
        gpus = self.gpus.facts(self._facts.gpus)
        memory = read_memory(self._host, self._facts.memory)
        self.histories.add(now.at_s, gpus, memory)
        reasons = dict(self._facts.reasons)
        reasons.update({} if log else {"kernel_log": self._kernel.reason or Reason("unreadable", "/dev/kmsg")})
        return replace(
            self._facts,
            collected_at=time.time(),
            gpus=gpus,
            memory=memory,
            rates=rates,
            kernel_log=log,
            trends=self._trends(),
            reasons={
                name: why
                for name, why in reasons.items()
                if name not in ("rates", "trends", *(("kernel_log",) if log else ()))
            },
        )

    def _collect_slow(self) -> None:
        document_now = document.facts_collected(gather(self._host, self._ask, sections=SLOW))
        fresh: Dict[str, Any] = {name: getattr(document_now, name) for name in SLOW}
        reasons = {name: why for name, why in document_now.reasons.items() if name in SLOW}
        kept = {name: why for name, why in self._facts.reasons.items() if name not in SLOW}
        self._facts = replace(self._facts, **fresh, reasons={**kept, **reasons})

    def _mind_clock(self) -> None:
        offset_s = time.time() - time.monotonic()
        step_s = abs(offset_s - self._offset_s)
        self._offset_s = offset_s
        if step_s > CLOCK_STEP_S:
            self._steps += 1
            self._largest_s = max(self._largest_s, step_s)

    def _trends(self) -> Trends:
        return Trends(
            trends=self.histories.trends(),
            clock_steps=self._steps,
            clock_step_s=self._largest_s,
            watched_s=time.monotonic() - self._started,
        )

    def close(self) -> None:
        self.gpus.close()
        self._kernel.close()


def _once(waiting_for: WaitingFor, limit_s: Optional[float]) -> Callable[[List[str]], None]:
    """For ``gather``, which tells each second who is still out: say it the first time."""
    told: List[str] = []

    def tell(names: List[str]) -> None:
        if not told:
            told.extend(names)
            waiting_for(names, limit_s)

    return tell


def rates_between(before: Take, now: Take) -> Rates:
    """Two takes as facts."""
    keys = sorted({*before.numbers, *now.numbers})
    unread = {**before.unread, **now.unread}
    return Rates(now.at_s - before.at_s, tuple(_counter(key, before, now) for key in keys), unread=unread)


def _counter(key: Key, before: Take, now: Take) -> Counter:
    bits, sticks = width(key)
    return Counter(*key, before.numbers.get(key), now.numbers.get(key), bits, sticks)


def read_memory(host: Host, known: Optional[Memory]) -> Optional[Memory]:
    """The machine's memory now."""
    from ddp_doctor.collect.memory import read

    try:
        return read(host, Ask(profile="quick"))
    except Exception:  # noqa: BLE001  /proc/meminfo that cannot be read is told by the facts of the start
        return known

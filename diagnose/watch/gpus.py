"""GPUs while they are watched: a child for each keeps NVML open, so that a look costs some calls and no start."""

import time
from dataclasses import fields, replace
from typing import Any, Callable, Dict, List, Optional

from ddp_doctor import child
from ddp_doctor.collect import gpu_counters, nvlink, nvml
from ddp_doctor.collect.counters import Found, Numbers
from ddp_doctor.collect.gpus import gpu_of, named
from ddp_doctor.facts import Gpu, Gpus, Reason, Unread
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable
from ddp_doctor.watch.session import Session

LIMIT_S = 3.0
"""An awake GPU answers in milliseconds."""
FIRST_LIMIT_S = 10.0
"""The first look may have to wake it."""
PATIENCE = 3
"""After so many looks without an answer a GPU is asked only each ``REST`` looks."""
REST = 30
WATCHED = frozenset(
    "pci uuid name memory_total_bytes temperature_c temperature_slowdown_c temperature_margin_c utilisation_percent power_w "
    "power_limit_w clock_sm_mhz clock_sm_max_mhz performance_state throttle ecc_mode ecc_uncorrected_volatile remap_pending "
    "remap_failure retired_pending recovery_action processes fabric".split()
)
"""Fields that can change while a job runs, and those that say which GPU it is."""

Plain = Dict[str, Any]
WaitingFor = Callable[[List[str], Optional[float]], None]


class WatchedGpus:
    """All GPUs of the node, as long as they are watched."""

    def __init__(self, host: Host, count: int, waiting_for: Optional[WaitingFor] = None) -> None:
        """waiting_for: told which GPUs have not answered after a second, and how many seconds they have, once for each."""
        self._host, self.waiting_for = host, waiting_for
        self._sessions: List[Session] = [_session(index) for index in range(count)]
        self._silent = [0] * count
        self._asked = 0
        self.told: List[Plain] = []

    def look(self, most_s: float = FIRST_LIMIT_S) -> None:
        """Ask all GPUs at once; what each says stands in ``told``, or why it says nothing.

        most_s: how long the first look may wait for one that sleeps, at least LIMIT_S.
        """
        limit_s = LIMIT_S if self._asked else max(LIMIT_S, min(FIRST_LIMIT_S, most_s))
        self._asked += 1
        unasked = {index: why for index in range(len(self._sessions)) for why in [self._put(index, limit_s)] if why}
        self._tell_who_is_late([index for index in range(len(self._sessions)) if index not in unasked], limit_s)
        self.told = [unasked.get(index) or self._answer(index) for index in range(len(self._sessions))]

    def _put(self, index: int, limit_s: float) -> Optional[Plain]:
        """Put the question; or what is told of a GPU that is left alone, or cannot be asked."""
        if self._silent[index] >= PATIENCE and self._asked % REST:
            return _silent(index, Reason("timed-out", "has not answered for a while"))
        try:
            self._sessions[index].put(limit_s)
        except Unreadable as error:
            return self._missed(index, error.reason)
        return None

    def _answer(self, index: int) -> Plain:
        try:
            told: Plain = self._sessions[index].answer()
        except Unreadable as error:
            return self._missed(index, error.reason)
        self._silent[index] = 0
        return told

    def _missed(self, index: int, reason: Reason) -> Plain:
        self._silent[index] += 1
        return _silent(index, reason)

    def _tell_who_is_late(self, asked: List[int], limit_s: float) -> None:
        until = time.monotonic() + min(child.PATIENCE_S, limit_s)
        late = [index for index in asked if not self._sessions[index].is_ready(until) and not self._silent[index]]
        if late and self.waiting_for:
            self.waiting_for([self._sessions[index].name for index in late], limit_s)

    def counters(self, _host: Host) -> Found:
        """A source for ``counters.take``, out of the last look."""
        numbers: Numbers = {}
        unread: Unread = {}
        for index, told in enumerate(self.told):
            if told.get("fault"):
                unread[f"gpu GPU {index}"] = Reason("unreadable", f"GPU {index}: {told['fault']}")
            numbers.update({("gpu", f"GPU {index}", name): int(n) for name, n in told.get("counts", {}).items()})
            for link, errors in told.get("links", {}).items():
                numbers.update({("nvlink", f"GPU {index} link {link}", n): int(v) for n, v in errors.items()})
        return numbers, unread

    def facts(self, known: Optional[Gpus]) -> Optional[Gpus]:
        """The section "gpus" as of the last look: fields that are not watched are left as they were found at the start."""
        if known is None or known.gpus is None or len(known.gpus) != len(self.told):
            return known
        now = [
            gpu_of({name: value for name, value in told.items() if name not in ("counts", "links")})
            for told in self.told
        ]
        changing = [f.name for f in fields(Gpu) if f.name in WATCHED or f.name in ("memory_used_bytes", "fault")]
        mixed = tuple(
            replace(old, **{name: getattr(new, name) for name in changing}, unread=_unread(old, new, changing))
            for old, new in zip(known.gpus, now)
        )
        return replace(known, gpus=tuple(replace(gpu, processes=named(self._host, gpu.processes)) for gpu in mixed))

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def _unread(old: Gpu, new: Gpu, changing: List[str]) -> Unread:
    kept = {name: reason for name, reason in old.unread.items() if name not in changing}
    return {**kept, **{name: reason for name, reason in new.unread.items() if name in changing}}


def _silent(index: int, reason: Reason) -> Plain:
    silent = {"kind": reason.kind, "text": reason.text}
    return {"index": index, "fault": f"{reason.text}", "silent": silent}


def _session(index: int) -> Session:
    def begin() -> Any:
        try:
            import pynvml
        except ImportError as error:
            raise Unreadable(Reason("absent", f"pynvml (package nvidia-ml-py): {error}")) from None
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            raise Unreadable(Reason("unreadable", f"NVML: {nvml.words(pynvml, error)}")) from None
        return lambda: _told(pynvml, handle, index)

    return Session(f"GPU {index}", begin)


def _told(library: Any, handle: Any, index: int) -> Plain:
    """Run in the GPU's child: what it is, does and counts."""
    readings = tuple(reading for reading in nvml.READINGS if WATCHED.intersection(reading[0]))
    told = nvml.read_gpu(library, handle, index, readings)
    if told.get("fault"):
        return told
    try:
        counts, links = gpu_counters.counts(library, handle), nvlink.error_counts(library, handle)
    except library.NVMLError as error:
        return {**told, "fault": nvml.words(library, error)}
    return {**told, "counts": counts, "links": links}

"""How memory went while it was watched: of each process on each GPU, and of the machine."""

from typing import Dict, Optional, Tuple

from ddp_doctor.facts import Gpus, Memory, Trend
from ddp_doctor.watch.trend import History, summary

Key = Tuple[str, str]
"""(quantity, subject)."""
MAX_HISTORIES = 512
"""64 GPUs with eight processes each: beyond it no new one is followed."""


class MemoryHistories:
    """A history for each process on each GPU that is there, and one for the machine's memory."""

    def __init__(self) -> None:
        self._histories: Dict[Key, History] = {}
        self._limits: Dict[Key, Optional[float]] = {}

    def add(self, at_s: float, gpus: Optional[Gpus], memory: Optional[Memory]) -> None:
        """Note what is in use now; what is no longer there is forgotten."""
        now = {**of_gpus(gpus), **of_machine(memory)}
        for key in [key for key in self._histories if key not in now]:
            del self._histories[key], self._limits[key]
        for key, (value, limit) in now.items():
            if key in self._histories or len(self._histories) < MAX_HISTORIES:
                self._histories.setdefault(key, History()).add(at_s, value)
                self._limits[key] = limit

    def trends(self) -> Tuple[Trend, ...]:
        found = (summary(*key, history.points, self._limits[key]) for key, history in self._histories.items())
        return tuple(trend for trend in found if trend)


def of_gpus(gpus: Optional[Gpus]) -> Dict[Key, Tuple[float, Optional[float]]]:
    """(Memory in use, what there is) of each process; of the GPU as a whole where its processes cannot be told apart."""
    found: Dict[Key, Tuple[float, Optional[float]]] = {}
    for gpu in (gpus.gpus if gpus else None) or ():
        total = float(gpu.memory_total_bytes) if gpu.memory_total_bytes else None
        counted = [process for process in gpu.processes or () if process.used_bytes]
        for process in counted:
            name = f" ({process.name})" if process.name else ""
            found["gpu-memory", f"GPU {gpu.index}, pid {process.pid}{name}"] = (float(process.used_bytes or 0), total)
        if not counted and gpu.memory_used_bytes:
            found["gpu-memory", f"GPU {gpu.index}"] = (float(gpu.memory_used_bytes), total)
    return found


def of_machine(memory: Optional[Memory]) -> Dict[Key, Tuple[float, Optional[float]]]:
    """What is neither free nor cache that can be dropped."""
    if memory is None or memory.total_bytes is None or memory.available_bytes is None:
        return {}
    used = float(memory.total_bytes - memory.available_bytes)
    return {("host-memory", "this node"): (used, float(memory.total_bytes))}

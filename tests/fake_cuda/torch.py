"""A torch whose GPUs are the processor: the real one, with what CUDA alone has put in its place.

With this folder on PYTHONPATH ``import torch`` finds this file, which leaves the real torch in its place. Every GPU is an
80 GB one of compute capability 8.0 whose memory is the machine's; its events tell a made-up time, one millisecond for
whatever is between two of them, so that rates are the same in every run; the other clock runs fast, so that little is
repeated. FAKE_CUDA says in JSON what is wrong:
{"cuda:1": {"slow": 3, "hang": "mm", "die": "mm", "raise": "mm", "flip": "mm"}}, the last four at the call of that function.
"""

import json
import os
import signal
import sys
import time
from typing import Any

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
del sys.modules["torch"]
import torch  # noqa: E402  the real one

NAME = sys.argv[sys.argv.index("--device") + 1] if "--device" in sys.argv else ""
FAULTS = json.loads(os.environ.get("FAKE_CUDA", "{}")).get(NAME, {})
TICK_MS = 1.0 * FAULTS.get("slow", 1)
FREE_BYTES, TOTAL_BYTES = 6 << 20, 80 << 30
CALLS = os.environ.get("FAKE_CUDA_CALLS")
"""A file that every call of this module is noted in."""
clock_ms = 0.0


def note(text: str) -> None:
    if CALLS:
        with open(CALLS, "a", encoding="ascii") as file:
            file.write(f"{NAME} {text}\n")


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at_ms = 0.0

    def record(self) -> None:
        global clock_ms
        clock_ms += TICK_MS
        self.at_ms = clock_ms

    def synchronize(self) -> None:
        note("Event.synchronize")

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds, as torch's."""
        return end.at_ms - self.at_ms


class Properties:
    total_memory = TOTAL_BYTES
    multi_processor_count = 108


class Cuda:
    Event = Event

    def init(self) -> None:
        note("init")
        if FAULTS.get("init"):
            raise RuntimeError(FAULTS["init"])

    def set_device(self, device: Any) -> None:
        note("set_device")

    def synchronize(self, device: Any) -> None:
        note("synchronize")

    def empty_cache(self) -> None:
        note("empty_cache")

    def mem_get_info(self, device: Any) -> Any:
        return FREE_BYTES, TOTAL_BYTES

    def get_device_properties(self, device: Any) -> Properties:
        return Properties()

    def get_device_capability(self, device: Any) -> Any:
        return 8, 0


def processor(name: str) -> Any:
    """In place of torch.device: every device is the processor."""
    return real_device("cpu")


def pinned(tensor: Any) -> Any:
    note("pin_memory")
    return tensor


def at(function: str) -> None:
    """What is wrong with this device happens when it calls this function."""
    if FAULTS.get("hang") == function:
        while True:
            time.sleep(3600)
    if FAULTS.get("die") == function:
        os.write(2, b"\nCUDA kernel errors: \x1b[31mXid 79\xff\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULTS.get("raise") == function:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def product(real: Any, left: Any, right: Any, out: Any = None) -> Any:
    """In float32, as GPUs add: old processors' code has no product of float16."""
    found = real(left.float(), right.float()).to(left.dtype)
    return found if out is None else out.copy_(found)


def faulty(function: str) -> Any:
    real, calls = getattr(torch, function), []

    def call(*given: Any, **named: Any) -> Any:
        at(function)
        answer = product(real, *given, **named) if function == "mm" else real(*given, **named)
        calls.append(1)
        if FAULTS.get("flip") == function and len(calls) == 3:
            answer.view(-1).view(torch.int16)[5] ^= 1
        return answer

    return call


real_counter = time.perf_counter
time.perf_counter = lambda: 50 * real_counter()
real_device = torch.device
torch.cuda = Cuda()
torch.device = processor
torch.version.cuda = os.environ.get("FAKE_CUDA_VERSION", "12.8") or None
torch.Tensor.pin_memory = pinned
for name in ("mm", "full", "arange"):
    setattr(torch, name, faulty(name))

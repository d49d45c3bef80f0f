"""What GPUs and their NVLinks count, as NVML tells it.

``counts`` reads one GPU out of a started NVML, for who keeps one open; ``gpus`` is a source for ``counters.take`` that starts
NVML in a child for each GPU: one that hangs hides no other.
"""

from typing import Any, Callable, Dict

from ddp_doctor import child
from ddp_doctor.collect import nvlink, nvml
from ddp_doctor.collect.counters import Found, Numbers
from ddp_doctor.facts import Reason, Unread
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

LIMIT_S = 10.0
"""For all GPUs together, which are awake: the facts of them are read at the same time."""


def gpus(host: Host) -> Found:
    """Counters of "GPU 0" and, of its NVLinks, "GPU 0 link 3". Nothing where there is no NVIDIA driver."""
    answer = host.ask("nvml-counters", talk, LIMIT_S + nvml.START_S)
    numbers: Numbers = {}
    unread: Unread = {}
    for index, gpu in sorted(dict(answer).items()):
        if "fault" in gpu:
            unread[f"gpu GPU {index}"] = Reason(gpu["kind"], f"GPU {index}: {gpu['fault']}")
            continue
        numbers.update({("gpu", f"GPU {index}", name): int(value) for name, value in gpu["counts"].items()})
        for link, names in gpu["links"].items():
            numbers.update({("nvlink", f"GPU {index} link {link}", n): int(v) for n, v in names.items()})
    return numbers, unread


def talk() -> Dict[str, Any]:
    """GPU -> counts and links, or its fault. Runs in the child of ``host.ask``. Raises Unreadable."""
    if nvml.library_missing():
        return {}
    try:
        import pynvml
    except ImportError as error:
        raise Unreadable(Reason("absent", f"pynvml (package nvidia-ml-py): {error}")) from None
    started = child.call("nvml", lambda: nvml.begin(pynvml), nvml.START_S)
    if started.failure:
        raise Unreadable(Reason(started.failure, f"NVML did not start: {started.text}"))
    return _all(pynvml, int(started.value.get("count", 0)))


def _all(library: Any, count: int) -> Dict[str, Any]:
    children = [child.start(str(i), lambda i=i: _started(library, i), LIMIT_S) for i in range(count)]  # type: ignore[misc]
    found = {}
    for finished, outcome in child.finish(children):
        found[finished.name] = outcome.value or {"fault": outcome.text, "kind": outcome.failure}
    return found


def _started(library: Any, index: int) -> Dict[str, Any]:
    """Run in the GPU's own child: a started NVML does not survive a fork."""
    nvml.die_with_parent()
    try:
        library.nvmlInit()
        handle = library.nvmlDeviceGetHandleByIndex(index)
        return {"counts": counts(library, handle), "links": nvlink.error_counts(library, handle)}
    except library.NVMLError as error:
        return {"fault": nvml.words(library, error), "kind": "unreadable"}


def counts(library: Any, gpu: Any) -> Dict[str, int]:
    """What one GPU counts; what it or the driver does not count is left out. Raises NVML's error where the GPU is gone."""
    found = {}
    for name, call in READINGS.items():
        try:
            found[name] = int(call(library, gpu))
        except library.NVMLError as error:
            if error.value in nvml.GONE:
                raise
        except (AttributeError, LookupError, TypeError, ValueError):  # an older pynvml
            continue
    return found


def _ecc(kind: int) -> Callable[[Any, Any], Any]:
    return lambda n, g: n.nvmlDeviceGetTotalEccErrors(g, kind, nvml.VOLATILE)


def _lowered_ns(policy: int) -> Callable[[Any, Any], Any]:
    """nvmlDeviceGetViolationStatus: nanoseconds for which clocks were lowered for this reason (nvml.h)."""
    return lambda n, g: n.nvmlDeviceGetViolationStatus(g, policy).violationTime


READINGS: Dict[str, Callable[[Any, Any], Any]] = {
    "pcie_replay": lambda n, g: n.nvmlDeviceGetPcieReplayCounter(g),
    "ecc_corrected_volatile": _ecc(nvml.CORRECTED),
    "ecc_uncorrected_volatile": _ecc(nvml.UNCORRECTED),
    "lowered_for_power_ns": _lowered_ns(0),
    "lowered_for_heat_ns": _lowered_ns(1),
    "lowered_for_board_limit_ns": _lowered_ns(3),
    "lowered_for_reliability_ns": _lowered_ns(5),
}
"""Name -> the call that answers it. Policies: nvmlPerfPolicyType_t POWER, THERMAL, BOARD_LIMIT, RELIABILITY."""

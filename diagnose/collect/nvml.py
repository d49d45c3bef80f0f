"""The talk with NVML through ``pynvml``. Everything here runs in a child: any of its calls may hang or crash.

NVML starts without waking a GPU; a GPU is woken when its handle is asked for (nvml.h, ``nvmlInit_v2``). So one child
starts NVML and counts, and then each GPU is read in a child of its own, side by side: a wedged GPU hides no other.
"""

import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddp_doctor import child
from ddp_doctor.collect import nvlink
from ddp_doctor.collect.pci import address
from ddp_doctor.facts import Reason
from ddp_doctor.unreadable import Unreadable

LIBRARY = "libnvidia-ml.so.1"
START_S = 10.0
"""Time for NVML to start. It may have to load the kernel module, which takes a few seconds."""
WAKE_S = 3.0
"""A GPU without persistence wakes for 1 to 3 s, one after the other in the kernel (reference/wards.md)."""
STALL_S = 10.0
"""A GPU that has not answered this long after the last one that did is given up: three times the longest wake."""
READ_LIMIT_S = 45.0
"""All GPUs together: sixteen of them that wake one after the other need 48 s at the very worst."""
ASK_LIMIT_S = START_S + READ_LIMIT_S + 5.0

LIBRARY_NOT_FOUND, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 12, 3, 4, 13
GONE = (15, 16)
"""nvmlReturn_t GPU_IS_LOST and RESET_REQUIRED: the GPU answers nothing more. Numbers as in nvml.h."""
UNKNOWN = 999

Plain = Dict[str, Any]

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
THROTTLE_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clocks_setting",
)
"""Bit 0 upwards of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason*)."""

GPU_SENSOR, SLOWDOWN_THRESHOLD, CLOCK_SM, CLOCK_MEMORY = 0, 1, 1, 2
CORRECTED, UNCORRECTED, VOLATILE, AGGREGATE = 0, 1, 0, 1
"""Enumerators of nvml.h."""


def talk() -> Plain:
    """Ask NVML everything: ``{"error": words}``, or driver, library, cuda and ``gpus`` as plain ``Gpu`` data.

    Runs in the child of ``host.ask``. Raises Unreadable: absent (no pynvml), timed-out, crashed, no-rights.
    """
    missing = library_missing()
    if missing:
        return {"error": missing}
    try:
        import pynvml
    except ImportError as error:
        raise Unreadable(Reason("absent", f"pynvml (package nvidia-ml-py): {error}")) from None
    started = child.call("nvml", lambda: begin(pynvml), START_S)
    if started.failure:
        raise Unreadable(Reason(started.failure, f"NVML did not start: {started.text}{_stuck(started)}"))
    answer: Plain = started.value
    if "count" in answer:
        asked = child.start("peers", lambda: _started_peers(pynvml, answer["count"]), READ_LIMIT_S)
        answer["gpus"] = _gpus(pynvml, answer["count"])
        _note_peers(answer["gpus"], asked)
    return answer


def library_missing() -> Optional[str]:
    """NVML's words for a library that cannot be loaded. Asked first: importing pynvml costs 20 ms of CPU."""
    import ctypes

    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        text = str(error)
        return "NVML Shared Library Not Found" if "No such file" in text else f"NVML Shared Library Not Found ({text})"
    return None


def begin(nvml: Any) -> Plain:
    """Start NVML: its error, or what it says of the driver, with the number of GPUs. Runs in a child of its own."""
    die_with_parent()
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return {"error": words(nvml, error), "library": _try(nvml, _library_version)}
    return {
        "driver": _try(nvml, lambda n: _text(n.nvmlSystemGetDriverVersion())),
        "library": _try(nvml, _library_version),
        "cuda": _try(nvml, lambda n: _cuda(n.nvmlSystemGetCudaDriverVersion())),
        "count": count,
    }


def die_with_parent() -> None:
    """prctl(PR_SET_PDEATHSIG, SIGKILL): whoever is ended from above takes what hangs in a library with it."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))


def _try(nvml: Any, call: Callable[[Any], Any]) -> Any:
    try:
        return call(nvml)
    except (nvml.NVMLError, UnicodeDecodeError):
        return None


def _library_version(nvml: Any) -> str:
    """NVML writes CUDA's major version before the driver's: 12.535.104.05. It answers before it is started, too."""
    version = _text(nvml.nvmlSystemGetNVMLVersion())
    return version.split(".", 1)[1] if version.count(".") > 1 else version


def _cuda(number: int) -> str:
    """1000 x major + 10 x minor, as cuda.h has it: 12020 is "12.2"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def words(nvml: Any, error: Any) -> str:
    """NVML's own words for an error; pynvml's where the library has none."""
    try:
        return _text(nvml.nvmlErrorString(error.value))
    except (nvml.NVMLError, UnicodeDecodeError):
        return str(error)


def _text(value: Any) -> str:
    """pynvml before 11.510 answers bytes."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


# --------------------------------------------------------------------------- all GPUs


def _gpus(nvml: Any, count: int) -> List[Plain]:
    """Read each GPU in a child of its own; one that does not answer is told with its ``fault``."""
    started = time.monotonic()
    children = [child.start(f"gpu {i}", lambda i=i: _started_gpu(nvml, i), READ_LIMIT_S) for i in range(count)]  # type: ignore[misc]
    last = min((waiting.deadline for waiting in children), default=started)
    _wait_until(children, min(last, started + max(STALL_S, WAKE_S * count)))
    indices = {running.pid: index for index, running in enumerate(children)}
    found: Dict[int, Plain] = {}
    for finished, outcome in child.finish(children):
        index, now = indices[finished.pid], time.monotonic()
        found[index] = outcome.value or _silent(index, outcome, now - started)
        if outcome.value:
            _wait_until(children, min(last, now + STALL_S))
    return [found[index] for index in sorted(found)]


def _wait_until(children: List[child.Child], deadline: float) -> None:
    for waiting in children:
        waiting.deadline = deadline


def _silent(index: int, outcome: child.Outcome, waited_s: float) -> Plain:
    """A GPU whose child ran out of time or died."""
    text = f"timed out: no answer in {waited_s:.0f} s" if outcome.failure == "timed-out" else outcome.text
    return {"index": index, "fault": text + _stuck(outcome), "silent": {"kind": outcome.failure, "text": text}}


def _stuck(outcome: child.Outcome) -> str:
    return f" (pid {outcome.left_pid} hangs in the driver and cannot be ended)" if outcome.left_pid else ""


def _started_gpu(nvml: Any, index: int) -> Plain:
    """Run in the GPU's own child: a started NVML does not survive a fork."""
    die_with_parent()
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        text = words(nvml, error)
        kind = "no-rights" if error.value == NO_PERMISSION else "unreadable"
        return {"index": index, "fault": text, "silent": {"kind": kind, "text": text}}
    return read_gpu(nvml, handle, index)


PEERS_S = 2.0
"""More time for peer access once all GPUs have answered; it was asked for at the same time, and takes milliseconds.
Where a GPU hangs, this hangs as well: it asks all of them."""


def _started_peers(nvml: Any, count: int) -> Dict[str, Dict[str, str]]:
    """Run in a child of its own: it needs the handles of all GPUs, and one that hangs must cost no more than this answer."""
    die_with_parent()
    nvml.nvmlInit()
    return nvlink.peers(nvml, count)


def _note_peers(gpus: List[Plain], asked: child.Child) -> None:
    """Give each GPU that answered its ``peers``, or the reason why they are not known."""
    hangs = any(gpu.get("silent", {}).get("kind") == "timed-out" for gpu in gpus)
    asked.deadline = min(asked.deadline, time.monotonic() + (0.0 if hangs else PEERS_S))
    for _, outcome in child.finish([asked]):
        said = "no answer" if outcome.failure == "timed-out" else outcome.text or "this GPU could not be asked"
        failed = {"kind": outcome.failure or "unreadable", "text": f"peer access: {said}{_stuck(outcome)}"}
        for gpu in gpus:
            if "unread" not in gpu:  # a silent one, whose reason is that of every field
                continue
            if outcome.failure or str(gpu["index"]) not in outcome.value:
                gpu["unread"]["peers"] = failed
            else:
                gpu["peers"] = outcome.value[str(gpu["index"])]


# --------------------------------------------------------------------------- one GPU


def read_gpu(nvml: Any, handle: Any, index: int, readings: "Optional[Tuple[ReadingOf, ...]]" = None) -> Plain:
    """Plain ``Gpu`` data. Each call is guarded: not supported, an error of this field, or the GPU is gone.

    readings: those of ``READINGS`` that are wanted; None: all.
    """
    gpu: Plain = {"index": index, "unsupported": [], "unread": {}}
    for names, call in READINGS if readings is None else readings:
        try:
            values = call(nvml, handle)
        except nvml.NVMLError as error:
            if _note(gpu, names, error.value, words(nvml, error)):
                gpu["silent"] = {"kind": "unreadable", "text": gpu["fault"]}
                break
        except (
            AttributeError,
            LookupError,
            ValueError,
            TypeError,
            RuntimeError,
        ) as error:  # an older pynvml; text that is none
            _unread(gpu, names, "unreadable", f"{type(error).__name__}: {error}")
        else:
            gpu.update(zip(names, values if len(names) > 1 else (values,)))
    return gpu


def _note(gpu: Plain, names: Tuple[str, ...], code: int, text: str) -> bool:
    """Note an error of NVML; True when the GPU has nothing more to say.

    An unknown error is a fault where the GPU cannot even tell its identity or memory; elsewhere it is the field's.
    """
    if code in GONE or (code == UNKNOWN and names[0] in VITAL):
        gpu["fault"] = text
    if names == ("mig",) and code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):  # a driver from before MIG has none
        gpu["mig"] = "unsupported"
    elif code == NOT_SUPPORTED:
        gpu["unsupported"].extend(names)
    else:
        kind = {NO_PERMISSION: "no-rights", FUNCTION_NOT_FOUND: "absent"}.get(code, "unreadable")
        _unread(gpu, names, kind, f"NVML: {text}")
    return code in GONE


def _unread(gpu: Plain, names: Tuple[str, ...], kind: str, text: str) -> None:
    gpu["unread"].update({name: {"kind": kind, "text": text} for name in names})


def _pci(nvml: Any, gpu: Any) -> str:
    return address(_text(nvml.nvmlDeviceGetPciInfo(gpu).busId))


def _capability(nvml: Any, gpu: Any) -> str:
    return "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(gpu))


def _memory(nvml: Any, gpu: Any) -> Tuple[int, int, bool]:
    """(total, used, does used include the driver's reserve?): the second version of the call leaves it out."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
        return memory.total, memory.used, False
    except (nvml.NVMLError, AttributeError, TypeError) as error:
        if getattr(error, "value", None) in GONE:
            raise
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return memory.total, memory.used, True


def _first(nvml: Any, names: Tuple[str, ...], *args: Any) -> Any:
    """Answer of the first of these calls that pynvml and the driver both have."""
    missing: Exception = AttributeError(f"pynvml has no {names[0]}")
    for name in names:
        try:
            return getattr(nvml, name)(*args)
        except AttributeError:
            continue
        except nvml.NVMLError as error:
            if error.value != FUNCTION_NOT_FOUND:
                raise
            missing = error
    raise missing


def _throttle(nvml: Any, gpu: Any) -> List[str]:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return throttle_names(_first(nvml, names, gpu))


def throttle_names(mask: int) -> List[str]:
    """Names of the set bits; a bit that has none as hexadecimal number."""
    bits = [bit for bit in range(64) if mask >> bit & 1]
    return [THROTTLE_REASONS[bit] if bit < len(THROTTLE_REASONS) else hex(1 << bit) for bit in bits]


def _power_limit(nvml: Any, gpu: Any) -> float:
    """The limit in force, which is the smallest of several."""
    return float(_first(nvml, ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"), gpu)) / 1000


def _ecc(nvml: Any, gpu: Any, kind: int, counter: int) -> int:
    return int(nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, counter))


def _remapped(nvml: Any, gpu: Any) -> Tuple[int, int, bool, bool]:
    correctable, uncorrectable, pending, failure = nvml.nvmlDeviceGetRemappedRows(gpu)
    return correctable, uncorrectable, bool(pending), bool(failure)


_PROCESS_CALLS = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}


def _processes(nvml: Any, gpu: Any) -> List[Plain]:
    """Pids, memory and kinds. NVML's process names are command lines: never asked for."""
    found = []
    for kind, name in _PROCESS_CALLS.items():
        versions = tuple(f"nvmlDeviceGet{name}RunningProcesses{v}" for v in ("_v3", "_v2"))
        try:
            processes = _first(nvml, versions, gpu)
        except (nvml.NVMLError, AttributeError) as error:
            if kind == "compute" or getattr(error, "value", None) in GONE:
                raise
            continue  # graphics and MPS are not told everywhere
        found += [{"pid": p.pid, "used_bytes": p.usedGpuMemory, "kind": kind} for p in processes]
    return found


RECOVERY_ACTION, MEMORY_TEMPERATURE, RETIRED_SINGLE_BIT, RETIRED_DOUBLE_BIT, RETIRED_PENDING = 230, 82, 29, 30, 31
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, MEMORY_TEMP, RETIRED_SBE, RETIRED_DBE and RETIRED_PENDING of nvml.h."""
RECOVERY_ACTIONS = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset", "system_reboot",
)  # fmt: skip
"""nvmlDeviceGpuRecoveryAction_t, from 0."""
THROTTLED_FIELDS = {
    74: "sw_power_cap",
    76: "sync_boost",
    269: "sw_thermal_slowdown",
    270: "hw_thermal_slowdown",
    271: "hw_power_brake_slowdown",
}
"""NVML_FI_DEV_CLOCKS_EVENT_REASON_*: nanoseconds for which this reason lowered the clocks (nvml.h)."""
SHUTDOWN_THRESHOLD, MEMORY_MAX_THRESHOLD, GPU_MAX_THRESHOLD = 0, 2, 3
SRAM = 7
"""NVML_MEMORY_LOCATION_SRAM"""
CLOCK_ID_SM = 1


def _field(nvml: Any, gpu: Any, field: int) -> int:
    """One field value. Raises NVML's error for one that the device or the driver does not have."""
    values = field_values(nvml, gpu, [field])
    if field not in values:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return values[field]


def field_values(nvml: Any, gpu: Any, fields: List[int]) -> Dict[int, int]:
    """Those of the fields that answer, all in one call. Raises NVML's error where the GPU is gone or the call is not there."""
    answers = nvml.nvmlDeviceGetFieldValues(gpu, fields)
    return {answer.fieldId: nvlink.field_value(answer) for answer in answers if answer.nvmlReturn == 0}


def _throttled(nvml: Any, gpu: Any) -> Dict[str, int]:
    """Microseconds for which clocks were lowered, by reason."""
    values = field_values(nvml, gpu, list(THROTTLED_FIELDS))
    if not values:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return {THROTTLED_FIELDS[field]: nanoseconds // 1000 for field, nanoseconds in values.items()}


def _retired(nvml: Any, gpu: Any) -> Tuple[int, int, bool]:
    """Retired pages by cause, and whether some wait for the driver to be loaded anew."""
    values = field_values(nvml, gpu, [RETIRED_SINGLE_BIT, RETIRED_DOUBLE_BIT, RETIRED_PENDING])
    if RETIRED_SINGLE_BIT not in values or RETIRED_DOUBLE_BIT not in values:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return values[RETIRED_SINGLE_BIT], values[RETIRED_DOUBLE_BIT], bool(values.get(RETIRED_PENDING))


def _sram(nvml: Any, gpu: Any, counter: int) -> int:
    return int(nvml.nvmlDeviceGetMemoryErrorCounter(gpu, UNCORRECTED, counter, SRAM))


def _sram_threshold(nvml: Any, gpu: Any) -> bool:
    """The driver's own judgement of its SRAM errors (R550 and newer)."""
    import ctypes

    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = nvml.nvmlEccSramErrorStatus_v1
    nvml.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _recovery_action(nvml: Any, gpu: Any) -> str:
    action = _field(nvml, gpu, RECOVERY_ACTION)
    return RECOVERY_ACTIONS[action] if 0 <= action < len(RECOVERY_ACTIONS) else f"action {action}"


def _performance_state(nvml: Any, gpu: Any) -> int:
    """0 to 15. Raises LookupError for 32, NVML_PSTATE_UNKNOWN."""
    state = int(nvml.nvmlDeviceGetPerformanceState(gpu))
    if state > 15:
        raise LookupError(f"performance state {state}")
    return state


VITAL = ("name", "uuid", "memory_total_bytes")

ReadingOf = Tuple[Tuple[str, ...], Callable[[Any, Any], Any]]

READINGS: Tuple[ReadingOf, ...] = (
    (("pci",), _pci),
    (("uuid",), lambda n, g: _text(n.nvmlDeviceGetUUID(g))),
    (("name",), lambda n, g: _text(n.nvmlDeviceGetName(g))),
    (("memory_total_bytes", "memory_used_bytes", "memory_used_includes_reserve"), _memory),
    (("serial",), lambda n, g: _text(n.nvmlDeviceGetSerial(g))),
    (("compute_capability",), _capability),
    (("compute_mode",), lambda n, g: COMPUTE_MODES[n.nvmlDeviceGetComputeMode(g)]),
    (("mig",), lambda n, g: "enabled" if n.nvmlDeviceGetMigMode(g)[0] else "disabled"),
    (("persistence",), lambda n, g: bool(n.nvmlDeviceGetPersistenceMode(g))),
    (("temperature_c",), lambda n, g: n.nvmlDeviceGetTemperature(g, GPU_SENSOR)),
    (("temperature_slowdown_c",), lambda n, g: n.nvmlDeviceGetTemperatureThreshold(g, SLOWDOWN_THRESHOLD)),
    (("power_w",), lambda n, g: n.nvmlDeviceGetPowerUsage(g) / 1000),
    (("power_limit_w",), _power_limit),
    (("power_default_limit_w",), lambda n, g: n.nvmlDeviceGetPowerManagementDefaultLimit(g) / 1000),
    (("clock_sm_mhz",), lambda n, g: n.nvmlDeviceGetClockInfo(g, CLOCK_SM)),
    (("clock_sm_max_mhz",), lambda n, g: n.nvmlDeviceGetMaxClockInfo(g, CLOCK_SM)),
    (("clock_memory_mhz",), lambda n, g: n.nvmlDeviceGetClockInfo(g, CLOCK_MEMORY)),
    (("clock_memory_max_mhz",), lambda n, g: n.nvmlDeviceGetMaxClockInfo(g, CLOCK_MEMORY)),
    (("throttle",), _throttle),
    (("ecc_mode",), lambda n, g: bool(n.nvmlDeviceGetEccMode(g)[0])),
    (("ecc_corrected_volatile",), lambda n, g: _ecc(n, g, CORRECTED, VOLATILE)),
    (("ecc_corrected_aggregate",), lambda n, g: _ecc(n, g, CORRECTED, AGGREGATE)),
    (("ecc_uncorrected_volatile",), lambda n, g: _ecc(n, g, UNCORRECTED, VOLATILE)),
    (("ecc_uncorrected_aggregate",), lambda n, g: _ecc(n, g, UNCORRECTED, AGGREGATE)),
    (("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure"), _remapped),
    (("pcie_gen",), lambda n, g: n.nvmlDeviceGetCurrPcieLinkGeneration(g)),
    (("pcie_gen_max",), lambda n, g: n.nvmlDeviceGetMaxPcieLinkGeneration(g)),
    (("pcie_width",), lambda n, g: n.nvmlDeviceGetCurrPcieLinkWidth(g)),
    (("pcie_width_max",), lambda n, g: n.nvmlDeviceGetMaxPcieLinkWidth(g)),
    (("temperature_shutdown_c",), lambda n, g: n.nvmlDeviceGetTemperatureThreshold(g, SHUTDOWN_THRESHOLD)),
    (("temperature_max_c",), lambda n, g: n.nvmlDeviceGetTemperatureThreshold(g, GPU_MAX_THRESHOLD)),
    (("temperature_memory_max_c",), lambda n, g: n.nvmlDeviceGetTemperatureThreshold(g, MEMORY_MAX_THRESHOLD)),
    (("temperature_margin_c",), lambda n, g: n.nvmlDeviceGetMarginTemperature(g)),
    (("temperature_memory_c",), lambda n, g: _field(n, g, MEMORY_TEMPERATURE)),
    (("utilisation_percent",), lambda n, g: n.nvmlDeviceGetUtilizationRates(g).gpu),
    (("performance_state",), _performance_state),
    (("throttled_us",), _throttled),
    (("clock_application_mhz",), lambda n, g: n.nvmlDeviceGetApplicationsClock(g, CLOCK_ID_SM)),
    (("clock_application_default_mhz",), lambda n, g: n.nvmlDeviceGetDefaultApplicationsClock(g, CLOCK_ID_SM)),
    (("ecc_sram_uncorrected_volatile",), lambda n, g: _sram(n, g, VOLATILE)),
    (("ecc_sram_uncorrected_aggregate",), lambda n, g: _sram(n, g, AGGREGATE)),
    (("ecc_sram_threshold_exceeded",), _sram_threshold),
    (("retired_single_bit", "retired_double_bit", "retired_pending"), _retired),
    (("recovery_action",), _recovery_action),
    (("pcie_gen_device_max",), lambda n, g: n.nvmlDeviceGetGpuMaxPcieLinkGeneration(g)),
    (("pcie_replays",), lambda n, g: n.nvmlDeviceGetPcieReplayCounter(g)),
    (("processes",), _processes),
    (("nvlinks",), nvlink.nvlinks),
    (("fabric",), nvlink.fabric),
)
"""Fields of ``Gpu`` and the call that answers them, vital ones first."""

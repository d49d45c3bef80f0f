"""Checks of the GPUs' pace: what lowers their clocks now, heat, and limits that somebody set."""

from typing import Callable, Iterator, List, Optional, Tuple

from ddp_doctor.accelerators import answering, label
from ddp_doctor.checks.gpu._siblings import Compared, compared
from ddp_doctor.checks.gpu._told import unsure
from ddp_doctor.facts import Gpu, Gpus
from ddp_doctor.gpu_models import is_datacenter
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural

REASONS = "https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html"

_WORDS = {
    "gpu_idle": "idle",
    "sw_power_cap": "at its power limit",
    "hw_slowdown": "slowed down by its hardware",
    "hw_thermal_slowdown": "slowed down by its hardware: too hot",
    "hw_power_brake_slowdown": "slowed down by the machine's power supply",
    "sw_thermal_slowdown": "slowed down by its driver: too hot",
    "sync_boost": "waiting for GPUs of its boost group",
    "applications_clocks_setting": "at the clocks that were set",
    "display_clocks_setting": "at the display's clocks",
}
"""Clock event reason -> in words. Only those that mean heat, a power brake or a hardware slowdown are faults."""

# --------------------------------------------------------------------------- what lowers the clocks now


@check(Severity.WARNING)
def slowed_by_heat(gpus: Gpus) -> Iterator[Reading]:
    """A GPU's hardware has halved its clocks, or more, because it is too hot.

    Why: All ranks wait for the slowest GPU. A fan, a blocked duct, a cold plate or the machine's air is not as it should be.
        The GPU does not reach this state under any load while its cooling works.
    See: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html
    """
    yield from _reason(gpus, "hw_thermal_slowdown", "{gpu} is too hot: its hardware holds its clocks down")
    yield from unsure(gpus, "throttle")


@check(Severity.WARNING)
def slowed_by_power_brake(gpus: Gpus) -> Iterator[Reading]:
    """The machine has told a GPU to halve its clocks, or more, to save power.

    Why: The signal comes from outside the GPU: a power supply that failed or is overloaded, or a limit of the rack. All ranks
        wait for the slowest GPU.
    See: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html
    """
    braked = _braked(gpus)
    if not (len(braked) > 1 and all(braked)):  # that is told of the node as a whole
        yield from _reason(
            gpus,
            _BRAKE,
            "a signal of the machine holds {gpu} down: its power supply, or a limit of the rack",
        )


@check(Severity.ERROR)
def all_slowed_by_power_brake(gpus: Gpus) -> Iterator[Reading]:
    """The machine has told all its GPUs to halve their clocks, or more, to save power.

    Why: The machine has lost a power supply, or a limit of the rack holds it down. The whole node runs at half its speed or
        less, and all other nodes of a job wait for it.
    See: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html
    """
    braked = _braked(gpus)
    if len(braked) > 1:
        number = plural(len(braked), "GPU")
        yield Reading(
            ok=not all(braked),
            measured=f"{sum(braked)} of {number} slowed down by the machine's power brake",
            expected="none",
            message=f"a signal of the machine holds all {number} down: its power supply, or a limit of the rack",
        )


_BRAKE = "hw_power_brake_slowdown"


def _braked(gpus: Gpus) -> List[bool]:
    """Of each GPU that tells: does the machine's power brake hold it down?"""
    return [_BRAKE in reasons and not _at_full_clocks(gpu) for gpu, reasons in _told(gpus)]


@check(Severity.WARNING)
def slowed_by_hardware(gpus: Gpus) -> Iterator[Reading]:
    """A GPU's hardware has halved its clocks, or more, while it works.

    Why: It draws too much power for its protection, or it is too hot. The flag also appears for a moment when an idle GPU
        changes its clocks: of idle ones it is not judged.
    See: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html
    """
    for gpu, reasons in _told(gpus):
        named = {"hw_thermal_slowdown", "hw_power_brake_slowdown"} & set(reasons)  # told by the checks above
        if not named and not ("hw_slowdown" in reasons and is_idle(gpu)):
            yield _slowed(gpu, reasons, "hw_slowdown", "the hardware of {gpu} runs it at half its clocks or less")


@check(Severity.WARNING)
def slowed_by_driver_for_heat(gpus: Gpus) -> Iterator[Reading]:
    """The driver lowers the clocks of a GPU made for servers because it is too hot.

    Why: The GPU, or its memory, is above the temperature at which it keeps its full clocks, and all ranks wait for the slowest
        GPU. Cards for
        desktops and laptops are built to work at that temperature and are not judged.
    See: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html
    """
    for gpu, reasons in _told(gpus):
        if is_datacenter(gpu) and not (_at_full_clocks(gpu) or is_idle(gpu)):
            yield _slowed(gpu, reasons, "sw_thermal_slowdown", "{gpu} is too hot for its full clocks")


def _at_full_clocks(gpu: Gpu) -> bool:
    """A flag without an effect was raised for a moment."""
    return gpu.clock_sm_mhz is not None and gpu.clock_sm_mhz == gpu.clock_sm_max_mhz


def _reason(gpus: Gpus, reason: str, message: str) -> Iterator[Reading]:
    for gpu, reasons in _told(gpus):
        if not _at_full_clocks(gpu):
            yield _slowed(gpu, reasons, reason, message)


def _told(gpus: Gpus) -> Iterator[Tuple[Gpu, Tuple[str, ...]]]:
    """GPUs that tell why their clocks are low. Laptops brake on battery and in heat by design: they are left out."""
    for gpu in answering(gpus):
        if gpu.throttle is not None and not is_mobile(gpu):
            yield gpu, gpu.throttle


def is_mobile(gpu: Gpu) -> bool:
    return any(word in (gpu.name or "") for word in ("Laptop", "Max-Q", "Mobile"))


def is_idle(gpu: Gpu) -> bool:
    """Nothing runs on it, as far as it tells; one that tells nothing of this is not idle."""
    low = gpu.performance_state is not None and gpu.performance_state > LOWEST_AT_WORK
    return "gpu_idle" in (gpu.throttle or ()) or gpu.utilisation_percent == 0 or low


LOWEST_AT_WORK = 2
"""CUDA programs run in P0 or P2; P8 and beyond are idle states (nvidia-smi's manual: P0 is the fastest of 16)."""


def _slowed(gpu: Gpu, reasons: Tuple[str, ...], reason: str, message: str) -> Reading:
    at = f" at {gpu.clock_sm_mhz} of {gpu.clock_sm_max_mhz} MHz" if gpu.clock_sm_mhz and gpu.clock_sm_max_mhz else ""
    heat = f", {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
    words = ", ".join(_WORDS.get(name, name.replace("_", " ")) for name in reasons) or "nothing lowers its clocks"
    return Reading(
        ok=reason not in reasons,
        subject=label(gpu),
        measured=words + (at + heat if reason in reasons else ""),
        expected=f"not {_WORDS[reason]}",
        message=message.format(gpu=label(gpu)),
    )


# --------------------------------------------------------------------------- temperature


@check(Severity.WARNING)
def too_hot(gpus: Gpus) -> Iterator[Reading]:
    """A GPU made for servers is near the temperature at which it lowers its clocks.

    Why: Under load it will pass it, and all ranks wait for the slowest GPU. The bound is the GPU's own: models differ by 20
        degrees. Cards for desktops and laptops are built to work at their limit and are not judged.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    least = bound("gpu.temperature_margin").warning or 0
    for gpu in answering(gpus):
        margin, limit = _margin(gpu)
        if margin is not None and is_datacenter(gpu):
            yield Reading(
                ok=margin >= least,
                subject=label(gpu),
                measured=f"{margin} °C {'below' if margin >= 0 else 'from'} {limit}" + _heat(gpu.temperature_c),
                expected=f"at least {least:g} °C below",
                message=f"{label(gpu)} is {'near' if margin > 0 else 'at'} the temperature at which it slows down",
            )


def _margin(gpu: Gpu) -> Tuple[Optional[int], str]:
    """Degrees left to the GPU's own limit, and which that is."""
    if gpu.temperature_margin_c is not None:
        return gpu.temperature_margin_c, "the limit for full clocks"
    limits = ((gpu.temperature_max_c, "the limit for full clocks"), (gpu.temperature_slowdown_c, "its slowdown"))
    for limit, name in limits:
        if limit and gpu.temperature_c is not None:
            return limit - gpu.temperature_c, f"{name} ({limit} °C)"
    return None, ""


def _heat(temperature_c: Optional[int]) -> str:
    return "" if temperature_c is None else f", at {temperature_c} °C"


@check(Severity.WARNING)
def memory_too_hot(gpus: Gpus) -> Iterator[Reading]:
    """A GPU's memory is at its own temperature limit.

    Why: The driver lowers the GPU's clocks to protect its memory, which shows in no utilisation: the GPU seems busy and is slow.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    for gpu in answering(gpus):
        heat, limit = gpu.temperature_memory_c, gpu.temperature_memory_max_c
        if heat is not None and limit:
            yield Reading(
                ok=heat < limit,
                subject=label(gpu),
                measured=f"memory at {heat} °C",
                expected=f"below {limit} °C, this GPU's limit for full speed",
                message=f"the memory of {label(gpu)} is too hot for its full speed",
            )


# --------------------------------------------------------------------------- limits that were set


@check(Severity.WARNING)
def power_limit_unlike_siblings(gpus: Gpus) -> Iterator[Reading]:
    """A GPU has a lower power limit than the others of its model here.

    Why: It is the slowest under load, and all ranks wait for it. A limit that was set for a test and forgotten, or a GPU that
        was replaced after limits were set.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    yield from _below(gpus, lambda gpu: gpu.power_limit_w, lambda gpu: gpu.power_default_limit_w, "power limit", "W")


@check(Severity.NOTE)
def power_limit_lowered(gpus: Gpus) -> Iterator[Reading]:
    """The GPUs' power limit is below what their maker set.

    Why: They are slower under load than other machines with this model. Sites set it on purpose, where cooling or power are
        short; then all nodes of a job should have the same.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    yield from _lowered(gpus, lambda gpu: gpu.power_limit_w, lambda gpu: gpu.power_default_limit_w, "power limit", "W")


@check(Severity.WARNING)
def clocks_unlike_siblings(gpus: Gpus) -> Iterator[Reading]:
    """A GPU's clocks were set lower than those of the others of its model here.

    Why: All ranks wait for the slowest GPU. Clocks that were set for a measurement stay until they are reset.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    yield from _below(gpus, _clock, _default_clock, "application clock", "MHz")


@check(Severity.NOTE)
def clocks_lowered(gpus: Gpus) -> Iterator[Reading]:
    """The GPUs' clocks were set lower than their maker's.

    Why: Every program is slower than on other machines with this model. Sites set it on purpose to save power or to make
        measurements comparable.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    yield from _lowered(gpus, _clock, _default_clock, "application clock", "MHz")


Quantity = Callable[[Gpu], Optional[float]]


def _clock(gpu: Gpu) -> Optional[float]:
    return gpu.clock_application_mhz


def _default_clock(gpu: Gpu) -> Optional[float]:
    return gpu.clock_application_default_mhz


def _below(gpus: Gpus, set_to: Quantity, default: Quantity, what: str, unit: str) -> Iterator[Reading]:
    """A reading for each GPU with siblings: is what it is set to below theirs?"""
    for one in compared(gpus, set_to):
        made = default(one.gpu)
        yield Reading(
            ok=one.value >= one.usual or bool(made and one.value >= made),  # board variants have defaults of their own
            subject=label(one.gpu),
            measured=f"{what} {one.value:g} {unit}" + (f" (default {made:g} {unit})" if made else ""),
            expected=f"{one.usual:g} {unit}{_as_others(one)}",
            message=f"the {what} of {label(one.gpu)} is {one.value:g} {unit}, that of its siblings {one.usual:g} {unit}",
        )


def _as_others(one: Compared) -> str:
    return f", as {plural(one.others, 'GPU')} of this model here have" if one.others else ", the highest here"


def _lowered(gpus: Gpus, set_to: Quantity, default: Quantity, what: str, unit: str) -> Iterator[Reading]:
    """A reading for each GPU: is what it is set to below its default? One that differs from its siblings is told by _below."""
    odd = {
        one.gpu.index for one in compared(gpus, set_to) if one.value < one.usual and one.value < (default(one.gpu) or 0)
    }
    for gpu in answering(gpus):
        value, made = set_to(gpu), default(gpu)
        if value is not None and made and gpu.index not in odd and not is_mobile(gpu):
            yield Reading(
                ok=value >= made,
                subject=label(gpu),
                measured=f"{what} {value:g} {unit}",
                expected=f"{made:g} {unit}, the default of this GPU",
                message=f"{label(gpu)} is held below its speed: {what} {value:g} of {made:g} {unit}",
            )

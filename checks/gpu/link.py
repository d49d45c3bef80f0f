"""Checks of the GPUs' PCIe links, each against its own maximum and its siblings."""

from statistics import median
from typing import Iterable, Iterator, Optional

from ddp_doctor.accelerators import answering, label
from ddp_doctor.checks.gpu._siblings import compared, siblings
from ddp_doctor.checks.gpu.pace import is_idle
from ddp_doctor.facts import Gpu, Gpus, Reason
from ddp_doctor.gpu_models import is_datacenter
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural

IDLE = Reason("not-applicable", "an idle GPU lowers its link's generation by design: look again while it works")


@check(Severity.WARNING)
def pcie_generation_low(gpus: Gpus) -> Iterator[Reading]:
    """A GPU that works has its PCIe link at a lower generation than slot and card both support.

    Why: Each generation less halves the speed of copies to the host, to network cards and between GPUs without NVLink. Idle
        GPUs lower it to save power and raise it when they work: only those at work are judged.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    for gpu in answering(gpus):
        now, most = gpu.pcie_gen, gpu.pcie_gen_max
        if now is None or not most:
            continue
        if now < most and not _works(gpu):
            yield Reading(ok=None, subject=label(gpu), reason=IDLE)
        else:
            yield Reading(
                ok=now >= most,
                subject=label(gpu),
                measured=f"PCIe generation {now}{_load(gpu)}",
                expected=f"generation {most}, which slot and card both support",
                message=f"the PCIe link of {label(gpu)} runs at generation {now} of {most} while the GPU works",
            )


def _works(gpu: Gpu) -> bool:
    """It says that much runs on it and that its clocks are up: a link that is just waking is not judged."""
    busy = (gpu.utilisation_percent or 0) >= (bound("gpu.busy").warning or 0)
    return busy and gpu.performance_state is not None and not is_idle(gpu)


def _load(gpu: Gpu) -> str:
    return f" at {gpu.utilisation_percent} % utilisation" if gpu.utilisation_percent else ""


@check(Severity.WARNING)
def pcie_width_lost(gpus: Gpus) -> Iterator[Reading]:
    """The PCIe link of a GPU made for servers has fewer lanes than it supports, and than its siblings have.

    Why: Half the lanes halve the speed of copies to the host, to network cards and between GPUs without NVLink. The card, its
        riser or the slot has a bad contact: a GPU does not give up lanes to save power. Desktop boards give their second slot
        fewer lanes by design: cards for desktops are not judged here.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    for one in compared(gpus, lambda gpu: gpu.pcie_width):
        most = one.gpu.pcie_width_max
        if most and is_datacenter(one.gpu):
            yield Reading(
                ok=one.value >= min(most, one.usual),
                subject=label(one.gpu),
                measured=f"x{one.value}",
                expected=f"x{most}, which slot and card both support; {plural(one.others, 'sibling')} at x{one.usual}",
                message=f"the PCIe link of {label(one.gpu)} has {one.value} of {most} lanes",
            )


@check(Severity.NOTE)
def pcie_width_low(gpus: Gpus) -> Iterator[Reading]:
    """PCIe links have fewer lanes than their GPUs support.

    Why: Fewer lanes make copies to the host and to network cards slower. Where all GPUs are alike, and in the second slot of a
        desktop, it is mostly the machine's design, or a virtual machine that does not show its slots; a single GPU may also
        sit badly in its slot.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    unlike = (one for one in compared(gpus, lambda gpu: gpu.pcie_width) if one.value < one.usual)
    lost = {one.gpu.index for one in unlike if is_datacenter(one.gpu)}
    for gpu in answering(gpus):
        if gpu.pcie_width and gpu.pcie_width_max and gpu.index not in lost:
            yield Reading(
                ok=gpu.pcie_width >= gpu.pcie_width_max,
                subject=label(gpu),
                measured=f"x{gpu.pcie_width}",
                expected=f"x{gpu.pcie_width_max}",
                message=f"the PCIe link of {label(gpu)} has {gpu.pcie_width} of {gpu.pcie_width_max} lanes",
            )


@check(Severity.WARNING)
def pcie_slot_unlike_siblings(gpus: Gpus) -> Iterator[Reading]:
    """A GPU made for servers sits in a slot that supports less than those of its siblings.

    Why: Servers give all their GPUs the same slots. A slot that offers a lower generation or fewer lanes was set so in the
        firmware, or its riser or the switch before it is faulty; all ranks wait for the slowest GPU.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    for one in compared(gpus, _slot):
        if is_datacenter(one.gpu):
            (generation, width), (usual_generation, usual_width) = one.value, one.usual
            yield Reading(
                ok=generation >= usual_generation and width >= usual_width,
                subject=label(one.gpu),
                measured=f"at most generation {generation}, x{width}",
                expected=f"generation {usual_generation}, x{usual_width}, as {plural(one.others, 'sibling')} here",
                message=f"the slot of {label(one.gpu)} offers less than those of its siblings",
            )


def _slot(gpu: Gpu) -> object:
    """The most that the link can be: (generation, lanes)."""
    return (gpu.pcie_gen_max, gpu.pcie_width_max) if gpu.pcie_gen_max and gpu.pcie_width_max else None


@check(Severity.NOTE)
def pcie_slot_slow(gpus: Gpus) -> Iterator[Reading]:
    """A GPU supports a newer PCIe generation than its slot.

    Why: Copies to the host are slower than this GPU could make them. It is the machine's design, or a setting of its firmware.
    See: https://man.archlinux.org/man/nvidia-smi.1
    No fix: Mostly the machine's design; where the board is newer, its firmware's setting of the slot's speed.
    """
    cards = [gpu for gpu in answering(gpus) if not _is_superchip(gpu)]
    told = [gpu for gpu in cards if gpu.pcie_gen_device_max and gpu.pcie_gen_max]
    slow = [gpu for gpu in told if (gpu.pcie_gen_max or 0) < (gpu.pcie_gen_device_max or 0)]
    if told:
        shown = slow or told
        yield Reading(
            ok=not slow,
            measured=f"slot and card together: PCIe generation {_each(gpu.pcie_gen_max for gpu in shown)}",
            expected=f"generation {_each(gpu.pcie_gen_device_max for gpu in shown)}, which the cards support",
            message=f"{', '.join(map(label, slow))}: the cards support a newer PCIe generation than their slots",
        )


def _is_superchip(gpu: Gpu) -> bool:
    """On Grace Hopper and Grace Blackwell copies to the host go over NVLink-C2C, not over PCIe."""
    return any(board in (gpu.name or "") for board in ("GH200", "GB200", "GB300", "GB10"))


def _each(values: Iterable[Optional[int]]) -> str:
    """The different values, in words."""
    return " and ".join(str(value) for value in sorted({value or 0 for value in values}))


@check(Severity.NOTE)
def pcie_replays_unlike_siblings(gpus: Gpus) -> Iterator[Reading]:
    """A GPU's PCIe link has sent many more packets again than those of its siblings.

    Why: Packets that arrive damaged are sent again: the data are right, the link is slower. The count is that since the driver
        was loaded and says nothing by itself; far more than the siblings have points to the card's contacts, its riser or its
        slot. Whether it goes on is told by a second reading (--sample).
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    limit = bound("gpu.replays_above_siblings")
    for group in siblings(gpus):
        known = [(gpu, gpu.pcie_replays) for gpu in group if gpu.pcie_replays is not None]
        usual = median(count for _, count in known) if len(known) > 2 else None
        for gpu, count in known if usual is not None else ():
            yield Reading(
                ok=count - (usual or 0) <= (limit.warning or 0),
                subject=label(gpu),
                measured=f"{plural(count, 'PCIe replay')} since the driver was loaded",
                expected=f"about {usual:g}, as on its siblings",
                message=f"{label(gpu)} had {count} PCIe replays, its siblings about {usual:g}",
                source=limit.source,
            )

"""Xid and SXid: what NVIDIA's drivers told the kernel's log of GPUs and NVSwitches since boot."""

from typing import Any, Callable, Dict, Iterator, List, Optional

from ddp_doctor import xids
from ddp_doctor.facts import Gpus, KernelEvent, KernelLog
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.policy import Policy
from ddp_doctor.units import clock, plural, seconds

CATALOG = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"


@check(Severity.ERROR)
def gpu_fault(kernel_log: KernelLog, policy: Policy, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """A GPU had a fault after which it must be reset, or worse.

    Why: After an uncorrectable memory error, a halted micro-controller, a GPU that fell off the bus, a failed NVLink or a
        system processor (GSP) that does not answer, the next job on the GPU fails or hangs, and takes all other ranks with
        it. It stays so until the GPU is reset. Faults before the driver was last loaded, or before it said that no
        recovery is needed (Xid 154, NVML), are told as notes.
    See: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
        https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
    """
    yield from _judged(kernel_log, gpus, policy, "xid", lambda e: _bad(e, "error") and not _over(e, kernel_log, gpus))


@check(Severity.WARNING)
def gpu_trouble(kernel_log: KernelLog, policy: Policy, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """A GPU had a fault that ended a program and may come again.

    Why: The GPU goes on, but the program that met the fault was ended: a contained memory error, a copy engine's
        exception, a corrupted stream of commands. Once is bad luck; more than once on the same GPU is a GPU to test.
    See: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
    """
    yield from _judged(kernel_log, gpus, policy, "xid", lambda e: _bad(e, "warning") and not _over(e, kernel_log, gpus))


@check(Severity.NOTE)
def program_error(kernel_log: KernelLog, policy: Policy, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """A program made an error on a GPU.

    Why: Xid 13, 31, 43 and 45 are mostly faults of the program: an illegal address, a kernel that asserts, a process that
        was ended. The GPU is well. When the same GPU shows them under programs that run elsewhere, test the GPU.
    See: https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
        https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
    """
    yield from _judged(
        kernel_log, gpus, policy, "xid", lambda e: _bad(e, "note") and xids.meaning_of(e).cause == "application"
    )


@check(Severity.NOTE)
def driver_note(kernel_log: KernelLog, policy: Policy, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """The driver told of a GPU what is worth knowing.

    Why: A row of memory that waits to be remapped, a corrected error, or a number that no list explains: nothing fails by
        it now. A pending remap does no harm; reset the GPU when it is idle.
    See: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
        https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
    """
    yield from _judged(kernel_log, gpus, policy, "xid", _worth_knowing)


@check(Severity.NOTE)
def earlier_fault(kernel_log: KernelLog, policy: Policy, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """A GPU had a fault and was brought back since.

    Why: The driver was loaded again after the fault, or said that no recovery is needed any more. A GPU that has such a
        fault again should leave the pool.
    See: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
    """
    yield from _judged(kernel_log, gpus, policy, "xid", lambda e: not _bad(e, "note") and _over(e, kernel_log, gpus))


@check(Severity.NOTE)
def fault_of_another_gpu(kernel_log: KernelLog, policy: Policy, gpus: Gpus) -> Iterator[Reading]:
    """A GPU of this machine that this job was not given had a fault.

    Why: The kernel's log is the machine's, and this job or container sees some of its GPUs. A fault of another one is not
        this job's, unless the two are joined by NVLink.
    See: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
    """
    for event in _of(kernel_log, "xid"):
        if _foreign(event, gpus, policy) and not _bad(event, "note"):
            yield _reading(event, kernel_log, gpus)


@check(Severity.ERROR)
def nvswitch_fault(kernel_log: KernelLog, policy: Policy, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """An NVSwitch had a fatal fault.

    Why: A fatal SXid stops the traffic of a link or of the whole switch: collectives over NVLink hang or fail on all GPUs of
        the node until GPUs and switches are reset together.
    See: https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html
    """
    yield from _judged(kernel_log, gpus, policy, "sxid", lambda e: _bad(e, "error") and not _over(e, kernel_log, gpus))


@check(Severity.NOTE)
def nvswitch_note(kernel_log: KernelLog, policy: Policy, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """An NVSwitch told of errors that are not fatal.

    Why: They are corrected, or follow from another fault. Many of them on one link point to its cable or connector.
    See: https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html
    """
    yield from _judged(kernel_log, gpus, policy, "sxid", lambda e: not _bad(e, "error") or _over(e, kernel_log, gpus))


@check(Severity.ERROR)
def driver_fault(kernel_log: KernelLog, policy: Policy, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """NVIDIA's driver cannot use a GPU.

    Why: The driver says so without an Xid: it lost the GPU, could not initialise it, wants it reset, was not given its
        memory region by the firmware, or met a library of another version.
    See: https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
    """
    events = [e for e in _of(kernel_log, "nvrm") if _what(e) in _NVRM and not _over(e, kernel_log, gpus)]
    for event in events:
        if not (_foreign(event, gpus, policy) or (_what(event) == "off-bus" and _has_xid_79(event, kernel_log))):
            yield _told(event, kernel_log, gpus, _NVRM[_what(event)])
    if not events and _has_gpus(gpus):
        yield Reading(ok=True, measured=f"no fault of NVIDIA's driver {window(kernel_log)}")


_NVRM = {
    "off-bus": "the GPU has fallen off the PCIe bus",
    "init-failed": "the driver could not initialise the GPU",
    "reset-required": "the driver wants the GPU to be reset",
    "bar-invalid": "the firmware gave the GPU no valid memory region",
    "api-mismatch": "a program's driver library has another version than the kernel module",
}
"""Field "what" of an event of kind nvrm -> in words."""


def _judged(
    log: KernelLog, gpus: Optional[Gpus], policy: Policy, kind: str, wanted: Callable[[KernelEvent], bool]
) -> Iterator[Reading]:
    """A reading for each event that is wanted and is of this job's GPUs; one that passed where there is none."""
    events = [e for e in _of(log, kind) if wanted(e) and not _foreign(e, gpus, policy)]
    for event in _one_each(events):
        yield _reading(event, log, gpus)
    if not events and _has_gpus(gpus):
        name = "SXid" if kind == "sxid" else "Xid"
        others = any(event.kind == kind for event in known(log.events, log, "events"))
        yield Reading(ok=True, measured=f"no {name}{' of this kind' if others else ''} {window(log)}")


def _has_gpus(gpus: Optional[Gpus]) -> bool:
    """May there be a GPU of NVIDIA's? Without one the log's silence says nothing."""
    return gpus is None or gpus.gpus is None or bool(gpus.gpus or gpus.on_bus)


def _one_each(events: List[KernelEvent]) -> List[KernelEvent]:
    """One event for a code and a device: a driver repeats itself in lines that say more or less."""
    best: Dict[Any, KernelEvent] = {}
    for event in events:
        key = (event.code, event.pci, (event.fields or {}).get("action"))
        if key not in best or (event.fields and not best[key].fields):
            best[key] = event
    return list(best.values())


def _of(log: KernelLog, kind: str) -> List[KernelEvent]:
    """Events of one kind; of the recovery actions of a GPU (Xid 154) the last alone: it holds."""
    events = [event for event in known(log.events, log, "events") if event.kind == kind]
    last = {event.pci: event for event in sorted(events, key=_last) if event.code == 154}
    return [event for event in events if event.code != 154 or last[event.pci] is event]


def _last(event: KernelEvent) -> float:
    return event.last_at or event.first_at or 0.0


def _what(event: KernelEvent) -> str:
    return (event.fields or {}).get("what", "")


def _bad(event: KernelEvent, severity: str) -> bool:
    return xids.meaning_of(event).severity == severity


def _worth_knowing(event: KernelEvent) -> bool:
    meaning = xids.meaning_of(event)
    return meaning.severity == "note" and meaning.cause not in ("application", "recovery")


def _over(event: KernelEvent, log: KernelLog, gpus: Optional[Gpus] = None) -> bool:
    """Was the driver loaded after it, or does it say since that this GPU needs no recovery?

    NVML's word is the newest there is: drivers since R570 have one.
    """
    own = [
        gpu.recovery_action if gpu.fault is None else gpu.fault
        for gpu in (gpus.gpus or () if gpus else ())
        if gpu.pci and gpu.pci == event.pci
    ]
    if own == ["none"] and event.kind == "xid":
        return True
    for later in known(log.events, log, "events"):
        loaded = later.kind == "nvrm" and _what(later) == "loaded"
        settled = later.code == 154 and later.pci == event.pci and xids.meaning_of(later).action == "none"
        if (loaded or (settled and (later.fields or {}).get("action"))) and _last(later) > _last(event) > 0:
            return True
    return False


def _has_xid_79(event: KernelEvent, log: KernelLog) -> bool:
    return any(e.code == 79 and event.pci in (e.pci, None) for e in _of(log, "xid"))


def _foreign(event: KernelEvent, gpus: Optional[Gpus], policy: Policy) -> bool:
    """Is it of a GPU that this job was not given? Only where all that it was given answer: a lost one is not seen."""
    if gpus is None or event.pci is None or policy.scope == "node" or gpus.admitted is None:
        return False
    own = [gpu.pci for gpu in gpus.gpus or ()]
    return None not in own and len(own) >= gpus.admitted > 0 and event.pci not in own and _on_bus(event.pci, gpus)


def _on_bus(pci: str, gpus: Gpus) -> bool:
    return pci in [gpu.pci for gpu in gpus.on_bus or ()]


def subject_of(event: KernelEvent, gpus: Optional[Gpus]) -> str:
    """GPU 3 (0000:4e:00.0), or what the line names."""
    index = next((gpu.index for gpu in (gpus.gpus or () if gpus else ()) if gpu.pci and gpu.pci == event.pci), None)
    name = "GPU" if event.kind != "sxid" else event.device or "NVSwitch"
    if index is not None:
        return f"GPU {index} ({event.pci})"
    return f"{name} {event.pci}" if event.pci else event.device or name


def _reading(event: KernelEvent, log: KernelLog, gpus: Optional[Gpus]) -> Reading:
    meaning = xids.meaning_of(event)
    label = f"{'SXid' if event.kind == 'sxid' else 'Xid'} {event.code}"
    action = (event.fields or {}).get("action")
    words = f"the driver asks for: {action}" if action else meaning.meaning.rstrip(".")
    words = words[:1].lower() + words[1:] if words[1:2].islower() or words[:2] == "A " else words
    return _told(event, log, gpus, f"{words} ({meaning.todo})" if meaning.action != "none" else words, label)


def _told(event: KernelEvent, log: KernelLog, gpus: Optional[Gpus], words: str, label: str = "") -> Reading:
    who = f", process {event.process or 'unknown'} (pid {event.pid})" if event.pid else ""
    subject = subject_of(event, gpus)
    code = f" {label}" if label else ""
    return Reading(
        ok=False,
        subject=f"{subject}{code}",
        measured=f"{label or 'a fault'} {times(event)}{when(event, log)}{who}: {event.text[:160]}",
        expected="no such line",
        message=f"{subject}{code}: {words}",
        source=CATALOG if label.startswith("Xid") else "",
    )


def times(event: KernelEvent) -> str:
    return "once" if event.count == 1 else f"{event.count} times"


def when(event: KernelEvent, log: KernelLog) -> str:
    """ ", 3 h before this look (12:03 UTC on 2026-11-30)"; nothing where the line has no time."""
    last = clock(event.last_at) if event.last_at is not None else ""
    if event.last_at is None or not last:
        return ""
    ago = (
        f", {seconds(log.until - event.last_at)} before the log's end"
        if log.until and log.until >= event.last_at
        else ""
    )
    return f" (last {last}{ago})"


def window(log: KernelLog) -> str:
    """since 2026-11-30 12:03 UTC (kmsg, which reaches back to boot)."""
    begun = clock(log.since) if log.since is not None else ""
    since = f"since {begun}" if begun else "in what the log holds"
    reach = "which reaches back to boot" if log.whole_boot else "which does not reach back to boot"
    dropped = f"; {plural(log.dropped, 'line')} left out" if log.dropped else ""
    return f"{since} ({log.source}, {reach}{dropped})"

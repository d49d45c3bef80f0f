"""The kernel's log: faults of PCIe, RDMA adapters, memory, disks and of the kernel itself since boot."""

from dataclasses import replace
from typing import Callable, Iterator, List, Optional

from ddp_doctor.checks.xid import times, when, window
from ddp_doctor.facts import Gpus, KernelEvent, KernelLog, Rdma
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural


@check(Severity.ERROR)
def pcie_uncorrected(
    kernel_log: KernelLog, gpus: Optional[Gpus] = None, rdma: Optional[Rdma] = None
) -> Iterator[Reading]:
    """PCIe told of an error that it could not correct.

    Why: Data on the bus were lost: the GPU or the adapter at that address, or below that port, may have stopped, and what
        was in flight is gone. Riser, slot, cable or the card itself are the usual reasons.
    See: https://docs.kernel.org/PCI/pcieaer-howto.html
    """
    yield from _faults(
        kernel_log,
        "aer",
        lambda e: not _corrected(e),
        "uncorrected PCIe error",
        lambda e: f"{_name(e, gpus, rdma)} met a PCIe error that could not be corrected",
    )


@check(Severity.WARNING)
def pcie_corrected_flood(
    kernel_log: KernelLog, gpus: Optional[Gpus] = None, rdma: Optional[Rdma] = None
) -> Iterator[Reading]:
    """PCIe corrects many errors.

    Why: Each corrected error is a packet sent again: many of them slow a GPU or an adapter down, and fill the log. A bad
        contact in the slot or on a riser is the usual reason.
    See: https://docs.kernel.org/PCI/pcieaer-howto.html
    """
    yield from _counted(kernel_log, "aer", _corrected, "kernel.pcie_corrected_per_day", "corrected PCIe errors",
                        lambda e: f"the PCIe link of {_name(e, gpus, rdma)} corrects many errors")  # fmt: skip


@check(Severity.ERROR)
def adapter_fault(kernel_log: KernelLog, rdma: Optional[Rdma] = None) -> Iterator[Reading]:
    """An RDMA adapter's firmware failed.

    Why: The driver no longer hears from the adapter's firmware, or it tells of a fatal error. Connections over it break, and
        NCCL ends with an error of its InfiniBand queue until the adapter is reset.
    See: https://docs.kernel.org/networking/devlink/mlx5.html
    """
    yield from _faults(
        kernel_log,
        "mlx5",
        lambda e: _what(e) == "health",
        "failed adapter",
        lambda e: f"the firmware of {_name(e, None, rdma, 'the adapter')} failed",
    )


@check(Severity.WARNING)
def adapter_trouble(kernel_log: KernelLog, rdma: Optional[Rdma] = None) -> Iterator[Reading]:
    """An RDMA adapter told of trouble.

    Why: A command that its firmware did not answer, a module that is too hot or that it cannot read, a slot that gives too
        little power, or a queue that does not send: the adapter works on, slower or not for long.
    See: https://docs.kernel.org/networking/devlink/mlx5.html
    """
    yield from _faults(kernel_log, ("mlx5", "netdev"), lambda e: _what(e) in _TROUBLE, "trouble of an adapter",
                       lambda e: f"{_name(e, None, rdma, 'an adapter')}: {_TROUBLE[_what(e)]}")  # fmt: skip


_TROUBLE = {
    "command-timeout": "its firmware did not answer a command",
    "power": "its PCIe slot gives it too little power",
    "module": "its cable or optical module has an error",
    "queue-timeout": "a queue of it stopped sending",
}


@check(Severity.WARNING, several_nodes=True)
def link_flaps(kernel_log: KernelLog) -> Iterator[Reading]:
    """A network link went down again and again.

    Why: Each time the link is down, RDMA connections over it time out and the job may end. A healthy link goes down when
        the node or the switch boots; a bad cable or module takes it down again and again.
    See: https://facebookresearch.github.io/gcm/docs/GCM_Health_Checks/health_checks/check-syslogs/link-flaps
    """
    yield from _counted(kernel_log, "link", lambda e: True, "kernel.link_downs_per_day", "times a link went down",
                        lambda e: f"the link of {e.device} went down {times(e)}")  # fmt: skip


@check(Severity.ERROR)
def memory_uncorrected(kernel_log: KernelLog) -> Iterator[Reading]:
    """The machine's memory or processor had an error that could not be corrected.

    Why: A process may have been ended for it, or a rank computes with wrong data. The memory module should be replaced.
    See: https://docs.kernel.org/admin-guide/RAS/main.html
    """
    yield from _faults(kernel_log, ("mce", "edac"), lambda e: _what(e) == "uncorrected", "uncorrected memory error",
                       lambda e: f"{e.device or 'memory or processor'}: an error that could not be corrected")  # fmt: skip


@check(Severity.NOTE)
def memory_corrected(kernel_log: KernelLog) -> Iterator[Reading]:
    """The machine's memory or processor had errors that were corrected.

    Why: Nothing was lost. A module with many of them fails sooner: have it replaced when the node is serviced.
    See: https://docs.kernel.org/admin-guide/RAS/main.html
    """
    yield from _faults(kernel_log, ("mce", "edac"), lambda e: _what(e) in ("corrected", "logged"), "corrected memory error",
                       lambda e: f"{e.device or 'memory or processor'}: errors that were corrected")  # fmt: skip


@check(Severity.WARNING, several_nodes=True)
def cpu_throttled(kernel_log: KernelLog) -> Iterator[Reading]:
    """The processor was too hot and lowered its clock.

    Why: Ranks on this node start kernels and feed data more slowly, and all others wait for them.
    See: https://docs.kernel.org/driver-api/thermal/x86_pkg_temperature_thermal.html
    """
    yield from _counted(kernel_log, "thermal", lambda e: True, "kernel.cpu_throttled_per_day", "times a core was too hot",
                        lambda e: f"{e.device} was too hot and lowered its clock")  # fmt: skip


@check(Severity.NOTE)
def process_killed(kernel_log: KernelLog) -> Iterator[Reading]:
    """The kernel ended a process for want of memory.

    Why: When it was a rank or a data loader, the job ends with signal 9 or hangs until it times out, without a word of why.
    See: https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer
    """
    yield from _faults(kernel_log, "oom", lambda e: True, "process ended for want of memory",
                       lambda e: f"{e.process or 'a process'}{f' (pid {e.pid})' if e.pid else ''} was ended: memory ran out")  # fmt: skip


@check(Severity.WARNING)
def task_hung(kernel_log: KernelLog) -> Iterator[Reading]:
    """A process hung in the kernel for minutes.

    Why: It waited for a disk, a network file system, the NVIDIA driver or an adapter, and could not be ended. What it waited
        for stands in the lines that follow in the log.
    See: https://docs.kernel.org/admin-guide/sysctl/kernel.html#hung-task-timeout-secs
    """
    yield from _faults(kernel_log, "hung-task", lambda e: True, "hung process",
                       lambda e: f"{e.process or 'a process'} (pid {e.pid}) hung in the kernel for more than {(e.fields or {}).get('seconds', '120')} s")  # fmt: skip


@check(Severity.WARNING)
def cpu_stalled(kernel_log: KernelLog) -> Iterator[Reading]:
    """A processor was stuck in the kernel.

    Why: A core that does not come back for 20 s and more stops what runs on it, and others that wait for it: heartbeats and
        NCCL's proxy threads are late, and the job may time out.
    See: https://docs.kernel.org/admin-guide/lockup-watchdogs.html
        https://docs.kernel.org/RCU/stallwarn.html
    """
    yield from _faults(kernel_log, "lockup", lambda e: True, "stuck processor",
                       lambda e: f"a processor was stuck in the kernel ({_what(e)} lock-up or stall)")  # fmt: skip


@check(Severity.WARNING)
def storage_error(kernel_log: KernelLog) -> Iterator[Reading]:
    """A disk or a file system had errors.

    Why: Data sets and checkpoints on it may be damaged or cannot be written; a file system that became read-only fails the
        next checkpoint, and a server that does not answer hangs whoever reads from it.
    See: https://docs.kernel.org/admin-guide/ext4.html
        https://docs.kernel.org/admin-guide/nfs/index.html
    """
    yield from _faults(kernel_log, ("io-error", "filesystem"), lambda e: True, "error of a disk or file system",
                       lambda e: f"{e.device or 'a file system'}: {_STORAGE.get(_what(e), 'errors of reading or writing')}")  # fmt: skip


_STORAGE = {
    "read-only": "the file system became read-only",
    "error": "the file system has errors",
    "nfs-lost": "the NFS server did not answer",
    "evicted": "the Lustre server shut this node out",
    "timeout": "the disk did not answer in time",
    "gone": "the disk's controller failed",
    "raid": "a disk of the array failed",
}


@check(Severity.WARNING)
def kernel_crashed(kernel_log: KernelLog) -> Iterator[Reading]:
    """The kernel itself met a fault.

    Why: After an Oops or a BUG the kernel goes on with a part of it broken: drivers may hang. Reboot the node.
    See: https://docs.kernel.org/admin-guide/bug-hunting.html
    """
    yield from _faults(kernel_log, "panic", lambda e: True, "fault of the kernel", lambda e: "the kernel met a fault")


@check(Severity.NOTE)
def training_crashed(kernel_log: KernelLog) -> Iterator[Reading]:
    """A program crashed in a library that training uses.

    Why: A segmentation fault in NCCL, CUDA or torch ends a rank; the others wait for it until they time out.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    yield from _faults(kernel_log, "segfault", _of_training, "crash in a library of training",
                       lambda e: f"{e.process or 'a program'} crashed in {(e.fields or {}).get('library', 'a library')}")  # fmt: skip


def _of_training(event: KernelEvent) -> bool:
    library, process = (event.fields or {}).get("library", ""), event.process or ""
    return library.startswith(
        ("libnccl", "libcuda", "libcudnn", "libtorch", "libc10", "libibverbs", "libmlx5", "libucp")
    ) or (process.startswith(("python", "pt_main", "torchrun")))


Say = Callable[[KernelEvent], str]
Wanted = Callable[[KernelEvent], bool]


def _faults(log: KernelLog, kinds: object, wanted: Wanted, name: str, say: Say) -> Iterator[Reading]:
    """A reading for each kind of event that is wanted; one that passed, with the window, where there is none."""
    events = _of(log, kinds, wanted)
    for event in events:
        yield _reading(event, log, say(event), "no such line")
    if not events:
        yield Reading(ok=True, measured=f"no {name} {window(log)}")


def _counted(log: KernelLog, kind: str, wanted: Wanted, threshold: str, name: str, say: Say) -> Iterator[Reading]:
    """Like ``_faults``, for events of which a few a day are no fault."""
    limit, events = bound(threshold), _of(log, kind, wanted)
    most = limit.warning if limit.warning is not None else 0.0
    many = [event for event in events if in_a_day(event, log) > most]
    for event in many:
        reading = _reading(event, log, say(event), f"at most {most:.0f} {name} in a day")
        busiest = f"{in_a_day(event, log):.0f} in a day, {reading.measured}"
        yield replace(reading, measured=busiest, source=limit.source)
    if not many:
        yield Reading(ok=True, measured=f"{sum(e.count for e in events)} {name} {window(log)}")


def in_a_day(event: KernelEvent, log: KernelLog) -> float:
    """How many like lines came within a day: at most, or where facts do not tell that, on the mean over the log."""
    if event.most_in_a_day is not None:
        return event.most_in_a_day
    days = (log.until - log.since) / 86_400 if log.until is not None and log.since is not None else 1.0
    return event.count / max(1.0, days)


def _of(log: KernelLog, kinds: object, wanted: Wanted) -> List[KernelEvent]:
    names = kinds if isinstance(kinds, tuple) else (kinds,)
    return [event for event in known(log.events, log, "events") if event.kind in names and wanted(event)]


def _reading(event: KernelEvent, log: KernelLog, message: str, expected: str) -> Reading:
    subject = " ".join(filter(None, (event.device, event.pci))) or (f"pid {event.pid}" if event.pid else event.kind)
    return Reading(
        ok=False,
        subject=subject,
        measured=f"{plural(event.count, 'line')}{when(event, log)}: {event.text[:160]}",
        expected=expected,
        message=message,
    )


def _what(event: KernelEvent) -> str:
    return (event.fields or {}).get("what", "")


def _corrected(event: KernelEvent) -> bool:
    return (event.fields or {}).get("severity") == "Corrected"


def _name(event: KernelEvent, gpus: Optional[Gpus], rdma: Optional[Rdma], other: str = "the device") -> str:
    """GPU 3 (0000:4e:00.0), mlx5_0 (0000:12:00.0), or the address alone."""
    for gpu in (gpus.gpus or ()) if gpus else ():
        if event.pci and gpu.pci == event.pci:
            return f"GPU {gpu.index} ({event.pci})"
    for device in (rdma.devices or ()) if rdma else ():
        if event.pci and device.pci == event.pci:
            return f"{device.name} ({event.pci})"
    return event.device or (f"{other} {event.pci}" if event.pci else other)

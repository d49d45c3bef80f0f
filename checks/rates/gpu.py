"""Checks of what GPUs, their NVLinks, processors and memory count."""

from typing import Iterator

from ddp_doctor import counters, tables
from ddp_doctor.checks.rates import _judge
from ddp_doctor.facts import Rates
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.thresholds import bound

NS_PER_S = 1e9


@check(Severity.WARNING)
def gpu_pcie_replays(rates: Rates) -> Iterator[Reading]:
    """A GPU repeats packets on PCIe.

    Why: A riser, a slot, a cable or a retimer damages packets. Each is sent again, so copies to and from this GPU are slow,
        and the GPU may fall off the bus (Xid 79).
    See: https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html
    """
    yield from _judge.readings(rates, "gpu-pcie-replays")


@check(Severity.ERROR)
def gpu_uncorrected_errors(rates: Rates) -> Iterator[Reading]:
    """A GPU's memory gave wrong data while it was looked at.

    Why: An error that ECC cannot mend ends the program that uses the memory (Xid 48, 94 or 95), and every rank of its job.
    See: https://docs.nvidia.com/deploy/xid-errors/index.html
    """
    yield from _judge.readings(rates, "gpu-uncorrected-errors")


@check(Severity.WARNING)
def gpu_clocks_lowered(rates: Rates) -> Iterator[Reading]:
    """A GPU was slowed down for its heat while it was looked at.

    Why: All ranks wait for the slowest one in each collective: one GPU that is too hot slows down the whole job. Clocks that
        are lowered at the power limit are normal in training and not counted here.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
    """
    seconds, limit = _judge.interval_s(rates), bound("rates.throttle_share")
    meanings = {row.name: row for row in tables.counters() if row.check == "gpu-clocks-lowered"}
    for gpu, found in counters.of(rates, "gpu").items():
        rises = {name: _judge.number(found, name) for name in meanings}
        known = {name: 100 * ns / NS_PER_S / seconds for name, ns in rises.items() if ns is not None}
        if known:
            worst = max(known, key=lambda name: known[name])
            yield Reading(
                ok=known[worst] <= (limit.warning or 0),
                subject=gpu,
                measured=f"clocks lowered in {known[worst]:.0f} % of {seconds:.3g} s",
                expected=f"at most {limit.warning:g} % of the time",
                message=f"{gpu}: {meanings[worst].meaning}",
                source=limit.source,
            )
    yield from _judge.unread(rates, "gpu")


@check(Severity.WARNING)
def nvlink_errors(rates: Rates) -> Iterator[Reading]:
    """Packets on an NVLink are damaged or repeated.

    Why: NVLink repeats what was damaged, so the data are right and the link is slow; a link that must be trained anew stops
        meanwhile. All GPUs of the node wait for the slowest link in each collective.
    See: https://docs.nvidia.com/health-validation/reference/checks/nvlink
    """
    yield from _judge.readings(rates, "nvlink-errors")


@check(Severity.WARNING)
def cpu_throttled(rates: Rates) -> Iterator[Reading]:
    """Processors are slowed down for their heat.

    Why: NCCL's proxy threads and data loaders run on them: the whole node becomes slower, and all others wait for it.
    See: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu
    """
    yield from _judge.readings(rates, "cpu-throttled")


@check(Severity.ERROR)
def memory_errors_uncorrected(rates: Rates) -> Iterator[Reading]:
    """The machine's memory gave wrong data while it was looked at.

    Why: An error that ECC cannot mend kills the program that uses the memory, or the machine stops.
    See: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-edac
    """
    yield from _judge.readings(rates, "memory-errors-uncorrected")


@check(Severity.NOTE)
def memory_errors_corrected(rates: Rates) -> Iterator[Reading]:
    """Errors of the machine's memory come in a stream.

    Why: Each is mended, at the cost of an interruption; a stream of them slows the node down and announces one that cannot be
        mended.
    See: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-edac
    """
    yield from _judge.readings(rates, "memory-errors-corrected")

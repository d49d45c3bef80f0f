"""Checks of how long disks let requests wait."""

from typing import Dict, Iterator

from ddp_doctor import counters
from ddp_doctor.checks.rates import _judge
from ddp_doctor.facts import Counter, Rates
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.thresholds import bound


@check(Severity.WARNING)
def disk_slow(rates: Rates) -> Iterator[Reading]:
    """Requests wait long for a disk.

    Why: Data loaders and checkpoints on it hold up the ranks of this node, and every other rank waits for them in the next
        collective. The time is that of "iostat -x 1" (await), which includes the time in the queue.
    See: https://man7.org/linux/man-pages/man1/iostat.1.html
        https://docs.kernel.org/admin-guide/iostats.html
    """
    seconds, limit = _judge.interval_s(rates), bound("rates.disk_wait")
    for disk, found in counters.of(rates, "disk").items():
        done, waited_ms = (_sum(found, *names) for names in (("reads", "writes"), ("read_ms", "write_ms")))
        if done / seconds < (bound("rates.disk_minimum").warning or 0):
            continue
        await_ms, queue = waited_ms / done, _sum(found, "weighted_io_ms") / 1000 / seconds
        yield Reading(
            ok=await_ms <= (limit.warning or 0),
            subject=disk,
            measured=f"{await_ms:.3g} ms a request, {done / seconds:.3g} requests/s, {queue:.3g} under way on average",
            expected=f"at most {limit.warning:g} ms a request",
            message=f"a request to {disk} takes {await_ms:.3g} ms",
            source=limit.source,
        )
    yield from _judge.unread(rates, "disk")


def _sum(found: Dict[str, Counter], *names: str) -> int:
    return sum(_judge.number(found, name) or 0 for name in names)

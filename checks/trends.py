"""Checks of what only shows over time, while ddp-doctor watch looks on."""

from typing import Iterator

from ddp_doctor.facts import Trend, Trends
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.thresholds import bound
from ddp_doctor.units import seconds, size
from ddp_doctor.watch.trend import rises_throughout, seconds_until_full


@check(Severity.WARNING)
def gpu_memory_grows(trends: Trends) -> Iterator[Reading]:
    """GPU memory grows without end.

    Why: A job that holds on to tensors (a loss that is summed up with its graph, growing sequence lengths, caches) takes
        more memory at each step until it dies with "CUDA out of memory", often hours after the start. A caching allocator
        that warms up grows, too, and then stands: growth that goes on in every quarter of a long span is told.
    See: https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """
    yield from _growths(trends, "gpu-memory", "trends.gpu_memory_rise")


@check(Severity.WARNING)
def host_memory_shrinks(trends: Trends) -> Iterator[Reading]:
    """The machine's memory runs out.

    Why: Data loader workers that copy what they should share, or caches in Python, take more at each epoch until the
        kernel ends a process of its choice: the rank dies with signal 9, and the others wait for it.
    See: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """
    yield from _growths(trends, "host-memory", "trends.host_memory_rise")


def _growths(trends: Trends, quantity: str, rise: str) -> Iterator[Reading]:
    """A reading for each trend of a quantity that was looked at for long enough."""
    span_s = bound("trends.span").warning or 0
    for trend in known(trends.trends, trends, "trends"):
        if trend.quantity == quantity and trend.span_s >= span_s:
            yield _growth(trend, bound(rise).warning or 0)


def _growth(trend: Trend, least_percent: float) -> Reading:
    rise = trend.levels[-1] - trend.levels[0]
    much = rise >= least_percent / 100 * (trend.limit or trend.last)
    full_s = seconds_until_full(trend)
    when = f", full in {seconds(full_s)}" if full_s is not None and full_s > 0 else ""
    pace = (
        f"{size(int(abs(trend.per_s) * 3600))} an hour"
        if trend.per_s >= 0
        else f"falls by {size(int(-trend.per_s * 3600))} an hour"
    )
    return Reading(
        ok=not (much and rises_throughout(trend)),
        subject=trend.subject,
        measured=f"{size(int(trend.last))} in use, {pace} over the last {seconds(trend.span_s)}{when}",
        expected="no growth that goes on in every quarter of the span",
        message=f"memory of {trend.subject} grows by {pace}{when}",
        source=bound("trends.span").source,
    )


@check(Severity.WARNING)
def clock_was_set(trends: Trends) -> Iterator[Reading]:
    """The wall clock jumps.

    Why: Torchrun's c10d rendezvous compares the clocks of nodes and takes one for dead whose heartbeat looks 15 s old; logs
        and checkpoints of several nodes no longer fit together. A synchroniser that works moves the clock gently.
    See: https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
    """
    steps = known(trends.clock_steps, trends, "clock_steps")
    largest = trends.clock_step_s or 0.0
    yield Reading(
        ok=steps == 0,
        measured=f"set {steps} times, by up to {largest:.1f} s" if steps else "ran evenly",
        expected="no step of more than half a second",
        message=f"the wall clock was set {steps} times while it was watched, by up to {largest:.1f} s",
    )

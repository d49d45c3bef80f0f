"""Checks of what RDMA ports count."""

from dataclasses import replace
from typing import Iterator, Optional

from ddp_doctor import counters, nccl
from ddp_doctor.checks.rates import _judge
from ddp_doctor.facts import Counter, Env, Os, Rates, Rdma, Torch
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.thresholds import bound
from ddp_doctor.units import seconds

DAY_S = 86_400.0


def _used(rdma: Optional[Rdma], env: Optional[Env], torch: Optional[Torch]) -> _judge.Wanted:
    """Ports that NCCL would use, and their devices; all of them where the facts of RDMA are missing."""
    if rdma is None or rdma.devices is None:
        return lambda source, subject: True
    ports = nccl.hca_ports(rdma.devices, env, nccl.version_of(torch))
    others = {d.name for d in rdma.devices if d.ports and not nccl.hca_ports([d], None)}  # EFA: by a plug-in
    names = {f"{p.device.name}/{p.port.port}" for p in ports if p.active is not False}
    names |= {name.partition("/")[0] for name in names}
    return lambda source, subject: subject in names or subject.partition("/")[0] in others


@check(Severity.WARNING)
def rdma_link_errors(
    rates: Rates, rdma: Optional[Rdma] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """An RDMA port receives damaged packets.

    Why: A cable, a transceiver or a switch port is failing. What is damaged is sent again after a time-out, so one bad
        link slows down every collective of the job long before it breaks.
    See: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    """
    yield from _judge.readings(rates, "rdma-link-errors", _used(rdma, env, torch))


@check(Severity.ERROR)
def rdma_link_lost(
    rates: Rates, rdma: Optional[Rdma] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """The link of an RDMA port went down while it was looked at.

    Why: NCCL's connections over the port end with a retry error when the link does not return within their time-out. NCCL
        moves them to another port only since 2.29.7 and where NCCL_IB_RESILIENCY_PORT_FAILOVER is on: else the job dies.
    See: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    """
    yield from _judge.readings(rates, "rdma-link-lost", _used(rdma, env, torch))


@check(Severity.WARNING)
def rdma_packets_discarded(
    rates: Rates, rdma: Optional[Rdma] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """An RDMA port throws packets away.

    Why: A port discards what it cannot send or has no buffer for: the network is congested, or flow control does not
        work. RDMA repeats everything since the lost packet, so a few losses cost much bandwidth.
    See: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    """
    yield from _judge.readings(rates, "rdma-packets-discarded", _used(rdma, env, torch))


@check(Severity.WARNING)
def rdma_packets_repeated(
    rates: Rates, rdma: Optional[Rdma] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """Packets of an RDMA port are lost on the way and sent again.

    Why: RDMA repeats everything since the lost packet, and after NCCL_IB_RETRY_CNT time-outs in a row the job ends. On
        RoCE it mostly means that the network is not lossless: PFC or ECN is not configured the same way on hosts and
        switches. Messages that only slow senders down (CNP) and pauses are no fault: they are congestion control at work.
    See: https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters
    """
    yield from _judge.readings(rates, "rdma-packets-repeated", _used(rdma, env, torch))


@check(Severity.WARNING)
def rdma_requests_failing(
    rates: Rates, rdma: Optional[Rdma] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """Requests over RDMA end with an error.

    Why: A request that fails breaks its connection: NCCL tells of it as "Got completion from peer ... with status" and the
        job ends. Requests that are merely flushed when a program ends are not counted here.
    See: https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters
    """
    yield from _judge.readings(_without_flushed(rates), "rdma-requests-failing", _used(rdma, env, torch))


def _without_flushed(rates: Rates) -> Rates:
    """The same with ``*_cqe_error`` less ``*_cqe_flush_error``: every queue that is closed in order flushes its requests."""
    flushed = {(c.subject, c.name): c for c in rates.counters or () if c.name.endswith("_cqe_flush_error")}

    def less(counter: Counter) -> Counter:
        other = flushed.get((counter.subject, counter.name.replace("_cqe_error", "_cqe_flush_error")))
        if other is None or other is counter or None in (counter.first, counter.second, other.first, other.second):
            return counter
        rose = (counters.change(counter).rose or 0) - (counters.change(other).rose or 0)
        return replace(counter, first=0, second=max(0, rose))

    return replace(rates, counters=tuple(map(less, rates.counters or ())))


@check(Severity.NOTE)
def rdma_port_waits(
    rates: Rates, rdma: Optional[Rdma] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """An InfiniBand port waits more than it sends.

    Why: It has something to send and gets no credit for it: a receiver is slow, or switches are busy with other jobs.
        Bandwidth over it stays below what the link can do. Some waiting is normal under load.
    See: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    """
    seconds_between, limit = _judge.interval_s(rates), bound("rates.wait_share")
    used = _used(rdma, env, torch)
    for subject, found in counters.of(rates, "rdma").items():
        waited, sent = _judge.number(found, "port_xmit_wait"), _judge.number(found, "port_xmit_data")
        if waited is None or sent is None or not used("rdma", subject):
            continue
        if (waited + sent) / seconds_between < (bound("rates.wait_minimum").warning or 0):
            continue
        share = 100 * waited / (waited + sent)
        yield Reading(
            ok=share <= (limit.warning or 0),
            subject=_judge.title("rdma", subject),
            measured=f"waited {share:.0f} % of the time in which it had something to send",
            expected=f"at most {limit.warning:g} %",
            message=f"{_judge.title('rdma', subject)} waits for credits: the network is congested",
            source=limit.source,
        )


@check(Severity.NOTE)
def rdma_link_downed_often(
    rates: Rates, os: Os, rdma: Optional[Rdma] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """The link of an RDMA port has gone down often since boot.

    Why: A link that goes down ends the jobs that use it. A total does not say when: a port is counted down once at boot,
        and whenever its switch is restarted. --sample or watch shows whether it goes on.
    See: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    """
    limit, used = bound("rates.link_downed_per_day"), _used(rdma, env, torch)
    uptime_s = known(os.uptime_s, os, "uptime_s")
    for subject, found in counters.of(rates, "rdma").items():
        counter = found.get("link_downed")
        if counter is None or counter.first is None or not used("rdma", subject):
            continue
        total = counter.first if counter.second is None else counter.second
        more = " or more" if counters.is_saturated(counter) else ""
        yield Reading(
            ok=total <= (limit.warning or 0) * max(1.0, uptime_s / DAY_S),
            subject=_judge.title("rdma", subject),
            measured=f"down {total} times{more} in {seconds(uptime_s)}",
            expected=f"at most {limit.warning:g} a day",
            message=f"the link of {_judge.title('rdma', subject)} has gone down {total} times{more}",
            source=limit.source,
        )

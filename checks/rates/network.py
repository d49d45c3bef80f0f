"""Checks of what interfaces, TCP and the kernel's queues count."""

from typing import Iterator, Optional

from ddp_doctor import counters
from ddp_doctor.checks.rates import _judge
from ddp_doctor.facts import Network, Rates
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.thresholds import bound


def _up(network: Optional[Network]) -> _judge.Wanted:
    """Interfaces that are up with a link, or were when the facts were read; all where those are missing."""
    if network is None or network.interfaces is None:
        return lambda source, subject: True
    down = {interface.name for interface in network.interfaces if interface.running is False}
    return lambda source, subject: subject not in down


def _in_use(network: Optional[Network]) -> _judge.Wanted:
    """Interfaces that are meant to be up and have an address or belong to a bond; all where the facts of them are missing."""
    if network is None or network.interfaces is None:
        return lambda source, subject: True
    used = {i.name for i in network.interfaces if i.up is not False and (i.addresses or i.master)}
    return lambda source, subject: subject in used


@check(Severity.WARNING)
def interface_errors(rates: Rates, network: Optional[Network] = None) -> Iterator[Reading]:
    """An interface receives damaged packets.

    Why: A cable, a transceiver or a switch port is failing. TCP takes each loss for congestion and slows down; RoCE repeats
        everything since the lost packet. Bits that error correction mends are normal and not counted here.
    See: https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html
        https://docs.kernel.org/networking/statistics.html
    """
    yield from _judge.readings(rates, "interface-errors", _up(network))


@check(Severity.WARNING)
def interface_drops(rates: Rates, network: Optional[Network] = None) -> Iterator[Reading]:
    """An interface throws packets away for want of buffers.

    Why: More comes than the node takes: the receive ring is too short, the processors are busy, or, with RoCE, flow
        control does not hold the senders back. The sender repeats what was lost, after a while.
    See: https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html
    """
    yield from _judge.readings(rates, "interface-drops", _up(network))


@check(Severity.ERROR)
def interface_link_lost(rates: Rates, network: Optional[Network] = None) -> Iterator[Reading]:
    """The link of an interface went or came while it was looked at.

    Why: While it is down nothing goes over it. Connections over TCP stand still and may end; those of RoCE end when the
        link does not return within their time-out, and the job with them.
    See: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net
    """
    yield from _judge.readings(rates, "interface-link-lost", _in_use(network))


@check(Severity.NOTE)
def cloud_allowance_exceeded(rates: Rates) -> Iterator[Reading]:
    """The instance has reached what its type may send or receive.

    Why: Amazon queues and drops what is beyond the allowance of the instance type. Training that goes over TCP is held back
        by it; a larger type, or EFA, which does not count against it, is faster.
    See: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-network-performance-ena.html
    """
    yield from _judge.readings(rates, "cloud-allowance-exceeded")


@check(Severity.WARNING)
def kernel_drops_packets(rates: Rates) -> Iterator[Reading]:
    """The kernel throws packets or connections away.

    Why: One of its queues or tables is full: a processor's backlog, the table of tracked connections, or the queue of
        connections that a program has not yet accepted. Ranks then connect late, or not at all, at random.
    See: https://docs.kernel.org/networking/snmp_counter.html
        https://docs.kernel.org/admin-guide/sysctl/net.html
    """
    yield from _judge.readings(rates, "kernel-drops-packets")


@check(Severity.WARNING)
def tcp_retransmissions(rates: Rates) -> Iterator[Reading]:
    """Many TCP segments are sent again.

    Why: Segments are lost on the way, so every connection is slow: Gloo, the rendezvous, and NCCL where it has no RDMA.
        It counts all connections of this node, those to storage and to the world as well.
    See: https://docs.kernel.org/networking/snmp_counter.html
    """
    _judge.interval_s(rates)
    limit, least = bound("rates.retransmitted_share"), bound("rates.retransmitted_minimum").warning or 0
    found = counters.of(rates, "tcp").get("", {})
    sent, again = _judge.number(found, "OutSegs"), _judge.number(found, "RetransSegs")
    if sent is None or again is None:
        yield from _judge.unread(rates, "tcp")
    elif sent + again >= least:
        share = 100 * again / (sent + again)
        yield Reading(
            ok=share <= (limit.warning or 0),
            measured=f"{again} of {sent + again} TCP segments were sent again ({share:.2g} %)",
            expected=f"at most {limit.warning:g} %",
            message="TCP loses segments on the way",
            source=limit.source,
        )

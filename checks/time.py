"""Checks of the clock."""

from typing import Iterator, Optional

from ddp_doctor.facts import Clock, Launch, Reason
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.policy import Policy
from ddp_doctor.units import seconds

HEARTBEAT_LIMIT_S = 10.0
"""A node whose clock is this far off is one late heartbeat (5 s) away from being taken for dead: torchrun's c10d rendezvous
gives up a node after 3 intervals of 5 s (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py)."""
KEPT_BY_HOST = Reason("not-applicable", "the clock is kept by the host of this container or guest")


@check(Severity.WARNING, several_nodes=True)
def not_synchronised(time: Clock) -> Iterator[Reading]:
    """The clock is not synchronised.

    Why: Torchrun's c10d rendezvous compares the nodes' wall clocks: a node whose clock drifts away is taken for dead and the
        job restarts or waits for it in vain. Log files of several nodes cannot be put in order either.
    See: https://github.com/awslabs/awsome-distributed-ai/issues/180
        https://github.com/pytorch/pytorch/issues/76287
    """
    synchroniser = known(time.synchroniser, time, "synchroniser")
    if synchroniser == "host" and not time.synchronised:
        yield Reading(ok=None, reason=KEPT_BY_HOST)
        return
    yield Reading(
        ok=known(time.synchronised, time, "synchronised"),
        measured=_state(time),
        expected="synchronised by chronyd, systemd-timesyncd, ntpd or PTP",
        message="nothing keeps this node's clock"
        if not synchroniser
        else f"{synchroniser} runs but is not synchronised",
    )


def _state(time: Clock) -> str:
    who = time.synchroniser or "no synchroniser runs"
    offset = "" if time.offset_s is None else f", {_distance(time.offset_s)} off"
    return f"{who}, {'synchronised' if time.synchronised else 'not synchronised'}{offset}"


@check(Severity.WARNING, several_nodes=True)
def offset_too_large(time: Clock, policy: Policy) -> Iterator[Reading]:
    """The clock is far from its reference.

    Why: Torchrun's c10d rendezvous compares the nodes' wall clocks; the difference between two nodes may be twice the
        offset of one. Time stamps of log files and of file systems on servers disagree as well.
    See: https://github.com/awslabs/awsome-distributed-ai/issues/180
    """
    yield _offset(time, policy.clock_error_max_s, "the clock is far from the time of its source")


@check(Severity.ERROR, several_nodes=True)
def offset_breaks_rendezvous(time: Clock, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """The clock is so far off that other nodes will take this one for dead.

    Why: Torchrun's c10d rendezvous writes heartbeats with the sender's wall clock every 5 s and drops a node whose last one
        looks older than 15 s by the reader's. A static rendezvous compares no clocks.
    See: https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py
        https://github.com/pytorch/pytorch/issues/76287
    """
    if launch is None or launch.rendezvous != "static":
        yield _offset(time, HEARTBEAT_LIMIT_S, "other nodes will take this one for dead")


def _offset(time: Clock, most_s: float, message: str) -> Reading:
    offset_s = known(time.offset_s, time, "offset_s")
    return Reading(
        ok=abs(offset_s) <= most_s,
        measured=f"{_distance(offset_s)} off",
        expected=f"at most {seconds(most_s)}",
        message=message,
    )


def _distance(offset_s: float) -> str:
    """The size of an offset: 0.2 ms, 3 s."""
    return f"{abs(offset_s) * 1000:.3g} ms" if abs(offset_s) < 1 else seconds(abs(offset_s))

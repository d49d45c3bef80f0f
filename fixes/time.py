"""Remedies for the clock."""

from typing import Iterator, Optional

from ddp_doctor.facts import Clock, Os
from ddp_doctor.fixes._node import engine_of, install, is_debian, service
from ddp_doctor.model import Remedy, Step, command, say

CHRONY_FAQ = "https://chrony-project.org/faq.html"


def not_synchronised(time: Clock, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Run a synchroniser, or see why the one that runs has no source."""
    if engine_of(os):
        yield _of_host()
    elif time.synchroniser == "chronyd":
        yield Remedy("See why chronyd has no source", (command("chronyc -n sources"), _reachable()))
    elif time.synchroniser:
        yield Remedy(f"See why {time.synchroniser} has no source", (command("timedatectl status"), _reachable()))
    else:
        name = "chrony" if is_debian(os) else "chronyd"
        undo = f"systemctl disable --now {name}"
        start = service(os, "enable --now", name, scope="this node", undo=undo)
        same = say("Let all nodes ask the same servers: what counts is that they agree.", who="root", see=CHRONY_FAQ)
        yield Remedy("Run chrony", (install(os, "chrony", "chrony"), start, same))


def offset_too_large(time: Clock, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Step the clock."""
    yield _step(time, os)


def offset_breaks_rendezvous(time: Clock, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Step the clock; or launch with a rendezvous that compares none."""
    yield _step(time, os)
    text = "Start torchrun with --master-addr, --master-port and --node-rank instead of --rdzv-backend=c10d: it compares no clocks."
    yield Remedy("Use the static rendezvous", (say(text, scope="this job"),))


def _step(time: Clock, os: Optional[Os]) -> Remedy:
    if engine_of(os):
        return _of_host()
    more = {"who": "root", "scope": "this node", "risk": "programs that run see the time jump", "see": CHRONY_FAQ}
    timesyncd = time.synchroniser == "systemd-timesyncd"
    step = service(os, "restart", "systemd-timesyncd", **more) if timesyncd else command("chronyc makestep", **more)
    return Remedy("Set the clock at once", (step,))


def _of_host() -> Remedy:
    return Remedy(
        "Have the host's clock synchronised",
        (say("A container has its host's clock: synchronise the host.", who="cluster admin"),),
    )


def _reachable() -> Step:
    return say(
        "The servers must answer on UDP port 123; name a server inside the site where the nodes reach no other.",
        who="root",
    )

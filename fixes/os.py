"""Remedies for an operating system that the site does not want."""

from typing import Iterator

from ddp_doctor.facts import Os
from ddp_doctor.model import Remedy, Verdict, say


def below_minimum(os: Os, finding: Verdict) -> Iterator[Remedy]:
    """Leave the node out, or upgrade it."""
    yield Remedy(
        "Run the job on other nodes",
        (say("Leave this node out of the job until it is upgraded.", scope="this job"),),
    )
    yield _upgrade(os, finding)


def below_recommended(os: Os, finding: Verdict) -> Iterator[Remedy]:
    """Upgrade when there is time."""
    yield _upgrade(os, finding)


def end_of_life(os: Os, finding: Verdict) -> Iterator[Remedy]:
    """Upgrade when there is time."""
    yield _upgrade(os, finding)


def _upgrade(os: Os, finding: Verdict) -> Remedy:
    steps = [
        say(f"Upgrade this node ({finding.expected}).", who="cluster admin", scope="this node", risk="needs a reboot")
    ]
    if os.id == "centos" and not os.stream and (os.version or "").startswith("8"):
        steps.append(
            say(
                "CentOS 8 ended on 31 December 2021: its packages, 8.5 too, are at vault.centos.org only. Rocky Linux 8 and"
                " AlmaLinux 8 take its place and still get security fixes.",
                who="cluster admin",
                see="https://www.centos.org/centos-linux-eol/",
            )
        )
    return Remedy("Upgrade the operating system", tuple(steps))

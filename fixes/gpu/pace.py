"""Ways out where GPUs are hot or held below their speed."""

from typing import Iterator, Optional

from ddp_doctor.facts import Gpus, Os
from ddp_doctor.fixes.gpu._steps import elsewhere, found, of
from ddp_doctor.model import Remedy, Verdict, command, say

WATCH = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK"


def slowed_by_heat() -> Iterator[Remedy]:
    yield _cooling()


def slowed_by_driver_for_heat() -> Iterator[Remedy]:
    yield _cooling()


def too_hot() -> Iterator[Remedy]:
    yield _cooling()


def memory_too_hot() -> Iterator[Remedy]:
    yield _cooling()


def _cooling() -> Remedy:
    return Remedy(
        "Have the cooling looked at",
        (
            command(WATCH, scope="this node"),
            command("ipmitool sdr type Fan", who="root", scope="this node"),
            say(
                "Fans, filters and ducts, coolant and cold plate, air at the inlet. One GPU much hotter than its siblings: its own heat sink; "
                "all of them: the machine or the room.",
                who="cluster admin",
            ),
        ),
    )  # fmt: skip


def slowed_by_power_brake() -> Iterator[Remedy]:
    yield Remedy(
        "Have the power supplies looked at",
        (
            command(WATCH, scope="this node"),
            command("ipmitool sdr type 'Power Supply'", who="root", scope="this node"),
            say(
                "A supply that failed or lost its feed, or a limit in the machine's management (BMC) or the rack: after the cause is gone the "
                "GPUs may need a power cycle of the node to let go.",
                who="cluster admin",
            ),
        ),
    )  # fmt: skip


all_slowed_by_power_brake = slowed_by_power_brake


def slowed_by_hardware() -> Iterator[Remedy]:
    yield Remedy(
        "See whether it is heat or power",
        (
            command(WATCH, scope="this node"),
            say(
                "Look a second time: a state that stays points to the GPU's power cables or its heat.",
                who="cluster admin",
            ),
        ),
    )


def power_limit_unlike_siblings(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield from _power(finding, gpus, os)


def power_limit_lowered(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield from _power(finding, gpus, os)


def _power(finding: Verdict, gpus: Gpus, os: Optional[Os]) -> Iterator[Remedy]:
    gpu = found(finding, gpus)
    limit = gpu.power_default_limit_w if gpu else None
    now = gpu.power_limit_w if gpu else None
    if elsewhere(os, "set the GPU's power limit") or limit is None:
        ask = say("Ask who runs the node whether the limit is meant; only root of the node can change it.")
        yield Remedy("Have the limit raised", (ask,))
        return
    undo = f"nvidia-smi{of(gpu)} -pl {now:g}" if now is not None else ""
    yield Remedy(
        "Raise the limit to the GPU's default, unless it is meant",
        (
            command(f"nvidia-smi{of(gpu)} -pl {limit:g}", who="root", scope="this node until reboot", undo=undo),
            say("Look for what sets it at boot: a unit of systemd, DCGM's policies, the machine's management.", who="cluster admin"),
        ),
    )  # fmt: skip


def clocks_unlike_siblings(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield from _clocks(finding, gpus, os)


def clocks_lowered(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield from _clocks(finding, gpus, os)


def _clocks(finding: Verdict, gpus: Gpus, os: Optional[Os]) -> Iterator[Remedy]:
    which = of(found(finding, gpus))
    yield elsewhere(os, "give the GPU its default clocks back") or Remedy(
        "Give the GPU its default clocks back, unless they are meant",
        (
            command(f"nvidia-smi{which} -rac", who="root", scope="this node until reboot"),
            command(f"nvidia-smi{which} -rgc", who="root", scope="this node until reboot"),
        ),
    )

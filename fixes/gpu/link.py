"""Ways out of faults of the GPUs' PCIe links."""

from typing import Iterator, Optional

from ddp_doctor.facts import Gpus
from ddp_doctor.fixes.gpu._steps import found, quoted_pci
from ddp_doctor.model import Remedy, Step, Verdict, command, say


def pcie_generation_low(finding: Verdict, gpus: Gpus) -> Iterator[Remedy]:
    yield _seat(finding, gpus)


def pcie_width_lost(finding: Verdict, gpus: Gpus) -> Iterator[Remedy]:
    yield _seat(finding, gpus)


def pcie_width_low(finding: Verdict, gpus: Gpus) -> Iterator[Remedy]:
    by_design = say("In a virtual machine, or where the board's manual gives the slot so many lanes, leave it.")
    yield Remedy("Look whether it is meant", (by_design, _lspci(finding, gpus)))
    yield _seat(finding, gpus)


def pcie_slot_unlike_siblings(finding: Verdict, gpus: Gpus) -> Iterator[Remedy]:
    setting = say(
        "Compare the slot's settings in the firmware (link speed, bifurcation) with the others.", who="cluster admin"
    )
    yield Remedy("Look at the slot's settings", (setting, _lspci(finding, gpus)))
    yield _seat(finding, gpus)


def pcie_replays_unlike_siblings(finding: Verdict, gpus: Gpus) -> Iterator[Remedy]:
    look = command("ddp-doctor run --sample 60 --select rates", scope="this node")
    yield Remedy("See whether it goes on", (look, command("dmesg | grep -i AER", who="root", scope="this node")))
    yield _seat(finding, gpus)


def _seat(finding: Verdict, gpus: Optional[Gpus]) -> Remedy:
    return Remedy(
        "Have the card, its riser and its slot looked at",
        (
            _lspci(finding, gpus),
            say("A reboot trains the link anew; if it comes up short again, reseat the card, then change riser, slot and card in turn.", who="cluster admin"),
        ),
    )  # fmt: skip


def _lspci(finding: Verdict, gpus: Optional[Gpus]) -> Step:
    """What the link can do and does, as the bus says it."""
    which = quoted_pci(found(finding, gpus))
    return command(f"lspci{which} -vv | grep -E '^[0-9a-f]|LnkCap:|LnkSta:'", who="root", scope="this node")

"""Ways out of faults that the kernel's log tells of."""

import shlex
from typing import Iterator, Optional

from ddp_doctor.facts import Os
from ddp_doctor.model import Remedy, Verdict, command, say


def pcie_uncorrected(finding: Verdict) -> Iterator[Remedy]:
    yield _pcie(finding, "Take the node out of use, and have slot, riser and card looked at")


def pcie_corrected_flood(finding: Verdict) -> Iterator[Remedy]:
    yield _pcie(finding, "Have the slot, the riser or the cable looked at")


def _pcie(finding: Verdict, title: str) -> Remedy:
    address = shlex.quote(finding.subject.split()[-1])
    return Remedy(
        title,
        (
            command(f"lspci -vvs {address}", who="root"),
            say("Reseat the card, or move it to another slot; update the firmware of the board and the card.", who="cluster admin"),
        ),
    )  # fmt: skip


def adapter_fault(finding: Verdict) -> Iterator[Remedy]:
    address = shlex.quote(finding.subject.split()[-1])
    yield Remedy(
        "Take the node out of use and reset the adapter",
        (
            command(f"mlxfwreset -d {address} reset", who="root", risk="ends all traffic over the adapter"),
            say("If it fails again: update its firmware, power the node off and on, or have it replaced.", who="cluster admin"),
        ),
    )  # fmt: skip


def adapter_trouble(finding: Verdict) -> Iterator[Remedy]:
    if "module" in finding.message:
        yield Remedy("Reseat or replace the cable or the module, and look at the cooling", ())
    elif "power" in finding.message:
        yield Remedy("Give the slot its power: the BIOS setting of its limit, the auxiliary cable, or another slot", ())
    else:
        yield Remedy("Update firmware and driver of the adapter; reset it if it comes again", ())


def link_flaps(finding: Verdict) -> Iterator[Remedy]:
    yield Remedy(
        "Clean, reseat or replace the cable or the module, and look at the switch's port",
        (command(f"ethtool -m {shlex.quote(finding.subject.split()[0])}", who="root"),),
    )


def memory_uncorrected(os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy(
        "Take the node out of use and have the memory module replaced",
        (command("ras-mc-ctl --summary", who="root"), command("ipmitool sel elist", who="root")),
    )


def memory_corrected() -> Iterator[Remedy]:
    yield Remedy("Look at which module has them", (command("ras-mc-ctl --error-count", who="root"),))


def cpu_throttled() -> Iterator[Remedy]:
    yield Remedy("Look at the fans, the air flow and the processor's heat sink", (command("ipmitool sdr type temperature", who="root"),))  # fmt: skip


def process_killed() -> Iterator[Remedy]:
    yield Remedy(
        "Give the job more memory, or let it use less",
        (say("Fewer data loader workers, less prefetching, no copy of the data set in each rank; or a larger memory limit of the job or container."),),
    )  # fmt: skip


def task_hung() -> Iterator[Remedy]:
    yield Remedy(
        "Find out what it waited for",
        (command("dmesg -T | grep -A 30 'blocked for more than'", who="root"), say("A disk, an NFS or Lustre server, the NVIDIA driver or an adapter: mend that.")),
    )  # fmt: skip


def cpu_stalled() -> Iterator[Remedy]:
    yield Remedy("Look at the stack that the log shows; update kernel, drivers and firmware if it comes again", ())


def storage_error(finding: Verdict) -> Iterator[Remedy]:
    if "server" in finding.message:
        yield Remedy("Look at the file server and the way to it", ())
        return
    device = shlex.quote(f"/dev/{finding.subject.split()[0]}")
    yield Remedy(
        "Look at the disk, and keep checkpoints elsewhere",
        (command(f"smartctl -a {device}", who="root"), say("Replace a disk that fails; check the file system before it is written again.", who="cluster admin")),
    )  # fmt: skip


def kernel_crashed() -> Iterator[Remedy]:
    yield Remedy("Reboot the node", (command("reboot", who="root", risk="ends everything on the node"),))


def training_crashed() -> Iterator[Remedy]:
    yield Remedy("Look at the rank's output and its core file; try other versions of the library", ())

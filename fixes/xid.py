"""Ways out of faults that NVIDIA's drivers told the kernel's log of."""

import re
from typing import Iterator, Optional, Tuple

from ddp_doctor import xids
from ddp_doctor.facts import Gpus, KernelEvent, KernelLog, Launch, Os
from ddp_doctor.fixes._node import service
from ddp_doctor.fixes.gpu._steps import DEBUG, drain
from ddp_doctor.model import Remedy, Step, Verdict, command, say

CATALOG = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"


def gpu_fault(finding: Verdict, kernel_log: KernelLog, os: Optional[Os] = None, gpus: Optional[Gpus] = None,
              launch: Optional[Launch] = None) -> Iterator[Remedy]:  # fmt: skip
    event = _event(finding, kernel_log)
    action = xids.meaning_of(event).action if event else "reset-gpu"
    yield _remedy(action, finding, os, launch)


def gpu_trouble(finding: Verdict) -> Iterator[Remedy]:
    yield Remedy(
        "Start the job again, and test the GPU if it comes again",
        (
            say("Start the job again from its last checkpoint."),
            command(f"dcgmi diag -r 3{_which(finding, ' -i ')}", who="cluster admin", see=DEBUG, risk="keeps the GPU busy for minutes"),
        ),
    )  # fmt: skip


def program_error(finding: Verdict) -> Iterator[Remedy]:
    yield Remedy(
        "Look for the fault in the program",
        (
            say(
                "Run it with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to see which kernel does it.",
                see=DEBUG,
            ),
            say("If programs that run elsewhere fail on this GPU alone, have it tested (dcgmi diag -r 3)."),
        ),
    )


def driver_note() -> Iterator[Remedy]:
    yield Remedy("Nothing now: reset the GPU when it is idle if a remap is pending", ())


def earlier_fault() -> Iterator[Remedy]:
    yield Remedy("Nothing now: note it, and test the GPU if it comes again", ())


def fault_of_another_gpu() -> Iterator[Remedy]:
    yield Remedy("Tell the cluster's admins: it is a GPU of somebody else's job", ())


def nvswitch_fault(finding: Verdict, kernel_log: KernelLog, os: Optional[Os] = None,
                   launch: Optional[Launch] = None) -> Iterator[Remedy]:  # fmt: skip
    event = _event(finding, kernel_log)
    action = xids.meaning_of(event).action if event else "reset-fabric"
    action = "reset-fabric" if action == "reset-gpu" else action  # what hangs on a switch is reset with it
    yield _remedy(action, finding, os, launch)


def nvswitch_note() -> Iterator[Remedy]:
    yield Remedy("Nothing now: have the link's cable looked at if they become many", ())


def driver_fault(finding: Verdict, os: Optional[Os] = None, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    if "other version" in finding.message or "another version" in finding.message:
        yield Remedy(
            "Use driver libraries of the kernel module's version",
            (say("Reboot the node after a driver update; in a container, restart it."),),
        )
        return
    action = "reset-gpu" if "reset" in finding.message else "reboot"
    yield _remedy(action, finding, os, launch)


_TITLES = {
    "reset-gpu": "Take the node out of use and reset the GPU",
    "drain-and-reset": "Let the jobs on the GPU end, then reset it",
    "reset-fabric": "Take the node out of use, and reset GPUs and NVSwitches together",
    "restart-fabric-manager": "Restart the fabric manager",
    "reboot": "Take the node out of use and reboot it",
    "restart-vm": "Restart the virtual machine",
    "check-nvlink": "Take the node out of use, reset its GPUs and test the NVLinks",
    "check-cables": "Have the links' cables and connectors looked at",
    "check-cooling": "Have the cooling looked at",
    "check-hardware": "Have the GPU's power cables and its seating looked at",
    "contact-support": "Take the node out of use and contact the vendor",
}


def _remedy(action: str, finding: Verdict, os: Optional[Os], launch: Optional[Launch]) -> Remedy:
    """The way out that an action of the tables asks for, as far as it can be gone from here."""
    if os is not None and os.container:
        text = f"A container can reset nothing. To be done on the node: {xids.ACTIONS.get(action, action)}."
        return Remedy("Tell who runs the node, and ask for another one", (say(text, who="cluster admin"),))
    return Remedy(_TITLES.get(action, _TITLES["contact-support"]), (drain(launch), *_steps(action, finding, os)))


def _steps(action: str, finding: Verdict, os: Optional[Os]) -> Tuple[Step, ...]:
    if action in ("reset-gpu", "drain-and-reset"):
        return (_reset(finding), _if_not())
    if action in ("check-nvlink", "reset-fabric"):
        return (
            command(
                "nvidia-smi --gpu-reset",
                who="root",
                scope="this node",
                risk="ends everything that runs on its GPUs",
                see=DEBUG,
            ),
            command("nvidia-smi nvlink --status", who="user"),
            _if_not(),
        )
    if action == "restart-fabric-manager":
        return (service(os, "restart", "nvidia-fabricmanager", risk="ends what runs on the node's GPUs"),)
    if action == "reboot":
        return (
            command("reboot", who="root", scope="this node", risk="ends everything on the node"),
            say(
                "If the GPU is lost again, power the node off and on; then have it reseated or replaced.",
                who="vendor",
                see=DEBUG,
            ),
        )
    return (
        command("nvidia-bug-report.sh", who="root", scope="this node"),
        say(f"Send it to the vendor with the line of the kernel's log; {xids.ACTIONS.get(action, action)}.", who="cluster admin", see=CATALOG),
    )  # fmt: skip


def _reset(finding: Verdict) -> Step:
    which = _which(finding, " -i ")
    return command(
        f"nvidia-smi --gpu-reset{which}", who="root", scope="this node", risk="ends what runs on this GPU", see=DEBUG
    )


def _if_not() -> Step:
    return say("If the reset fails or the fault comes again, reboot; then run dcgmi diag -r 3, and have the part replaced.", who="cluster admin")  # fmt: skip


def _which(finding: Verdict, option: str) -> str:
    """`` -i 0000:4e:00.0`` of a finding whose subject names a PCI address."""
    found = re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", finding.subject)
    if found is None:
        return ""
    index = re.match(r"GPU (\d{1,3}) \(", finding.subject)
    return option + (index.group(1) if index else found.group())


def _event(finding: Verdict, kernel_log: KernelLog) -> Optional[KernelEvent]:
    """The event that a finding tells of, by the code and the address in its subject."""
    for event in kernel_log.events or ():
        code = f" {'SXid' if event.kind == 'sxid' else 'Xid'} {event.code}"
        if finding.subject.endswith(code) and (event.pci is None or event.pci in finding.subject):
            action = (event.fields or {}).get("action")
            if event.code != 154 or action is None or action in finding.message:
                return event
    return None

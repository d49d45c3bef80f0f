"""Steps that several fixes of GPUs share."""

import shlex
from typing import Optional, Tuple

from ddp_doctor.accelerators import label, last_branch
from ddp_doctor.facts import Gpu, Gpus, Launch, Os
from ddp_doctor.fixes._node import is_slurm
from ddp_doctor.model import Remedy, Step, Verdict, command, say

GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html"
DEBUG = "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html"
RMA = "https://docs.nvidia.com/deploy/rma-process/index.html"


# --------------------------------------------------------------------------- one GPU


def found(finding: Verdict, gpus: Optional[Gpus]) -> Optional[Gpu]:
    """The GPU that a finding is about."""
    return next((gpu for gpu in (gpus.gpus if gpus else None) or () if label(gpu) == finding.subject), None)


def of(gpu: Optional[Gpu]) -> str:
    """ "-i ADDRESS" of a GPU for nvidia-smi, quoted; its number where the address is not known; "" for none."""
    if gpu is None:
        return ""
    return f" -i {shlex.quote(gpu.pci) if gpu.pci else gpu.index}"


def quoted_pci(gpu: Optional[Gpu]) -> str:
    """ "-s ADDRESS" of a GPU for lspci, quoted; all of NVIDIA's devices where it is not known."""
    return f" -s {shlex.quote(gpu.pci)}" if gpu is not None and gpu.pci else " -d 10de:"


def drain(launch: Optional[Launch]) -> Step:
    """Take the node out of service, by Slurm where that is here."""
    if is_slurm(launch):
        name = 'NodeName="$(hostname -s)"'
        return command(
            f'scontrol update {name} State=DRAIN Reason="GPU fault"',
            who="cluster admin",
            scope="this node",
            undo=f"scontrol update {name} State=RESUME",
        )
    return say("Take the node out of service, so that no job starts on it.", who="cluster admin")


def reset(gpu: Optional[Gpu]) -> Tuple[Step, ...]:
    """Reset a GPU that nothing uses."""
    return (
        command(
            f"nvidia-smi --gpu-reset{of(gpu)}",
            who="root",
            scope="this node",
            risk="ends what runs on this GPU",
            see=DEBUG,
        ),
        say(
            "Stop what holds it first (jobs, DCGM, nvidia-persistenced). A100s and older GPUs on NVSwitches are reset all "
            "together: leave -i away. Where a virtual machine may not reset it, reboot.",
            who="root",
        ),
    )


def reboot() -> Step:
    return command("reboot", who="root", scope="this node", risk="ends everything that runs here")


def power_cycle() -> Step:
    return say(
        "If that does not help, power the node off and on: a reboot does not reset a GPU that the bus has lost.",
        who="cluster admin",
        see=DEBUG,
    )


def replace_it(gpu: Optional[Gpu], launch: Optional[Launch]) -> Remedy:
    """Have a faulty GPU replaced; until then nothing runs on it."""
    test = f"dcgmi diag -r 3{f' -i {gpu.index}' if gpu else ''}"
    return Remedy(
        "Take the node out of service and have the GPU replaced",
        (
            drain(launch),
            command("nvidia-bug-report.sh", who="root", scope="this node", see=RMA),
            command(test, who="cluster admin", scope="this node", risk="keeps the GPU busy for minutes"),
            say("Send both to the vendor, with the serial number of the GPU (nvidia-smi -q).", who="vendor", see=RMA),
        ),
    )


def elsewhere(os: Optional[Os], what: str) -> Optional[Remedy]:
    """In a container: what is to be done on its node, by somebody else; None elsewhere."""
    if not in_container(os):
        return None
    text = f"A container cannot do this. To be done on the node: {what}."
    return Remedy("Tell who runs the node, and ask for another one", (say(text, who="cluster admin"),))


# --------------------------------------------------------------------------- the driver


def in_container(os: Optional[Os]) -> bool:
    return bool(os and os.container)


def family(os: Optional[Os]) -> str:
    """debian, rhel, suse or ""."""
    names = {os.id or "", *(os.like or ())} if os else set()
    families = {"debian": {"debian", "ubuntu"}, "rhel": {"rhel", "centos", "fedora", "rocky"}, "suse": {"suse", "sles"}}
    return next((family for family, members in families.items() if names & members), "")


def install(os: Optional[Os], gpus: Optional[Gpus]) -> Tuple[Step, ...]:
    """Install the newest driver, or the last branch for the GPUs that are here."""
    more = {"who": "root", "scope": "this node", "see": GUIDE}
    branch = last_branch(gpus)
    if os and os.id == "ubuntu":
        package = f" nvidia:{branch}-server" if branch else ""
        return (command(f"ubuntu-drivers install --gpgpu{package}", **more), say("Reboot.", who="root"))
    if family(os) == "debian":
        return (command("apt install nvidia-driver", **more), say("It is in the section non-free. Reboot.", who="root"))
    if family(os) == "rhel":
        kernel = "dnf install kernel-devel-$(uname -r) kernel-headers"
        return (
            command(kernel, **more),
            say("Add NVIDIA's package repository for this release.", **more),
            command(f"dnf module install nvidia-driver:{branch or 'latest'}-dkms", **more),
            say("Reboot.", who="root"),
        )
    which = f"the driver, branch {branch} at most," if branch else "the driver"
    return (say(f"Install {which} as NVIDIA's guide says for this distribution, then reboot.", **more),)


def upgrade(os: Optional[Os], gpus: Optional[Gpus]) -> Tuple[Step, ...]:
    if in_container(os):
        return (
            say(
                "The driver is the host's: it has to be upgraded there, not in the container.",
                who="cluster admin",
                see=GUIDE,
            ),
        )
    return (say("Let no job use the GPUs (drain the node).", who="cluster admin"), *install(os, gpus))


def container_steps(os: Optional[Os]) -> Tuple[Step, ...]:
    kind = os.container if os else None
    if kind == "kubernetes":
        return (
            say("Ask for the GPUs in the pod: resources.limits nvidia.com/gpu: N; the node needs the device plugin."),
        )
    if kind in ("apptainer", "singularity"):
        return (say("Start the container with --nv."),)
    if kind == "podman":
        return (say("Start the container with --device nvidia.com/gpu=all (CDI)."),)
    return (
        say("Start the container with --gpus all; the host needs the NVIDIA driver and the NVIDIA Container Toolkit."),
    )

"""Ways out of faults of GPUs and their driver."""

import shlex
from typing import Iterator, Optional, Tuple

from ddp_doctor.accelerators import last_branch
from ddp_doctor.facts import Gpus, Os, Rdma
from ddp_doctor.fixes._node import service
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say, write_file
from ddp_doctor.policy import Policy

GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html"
FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide"
DRIVER_CONTAINER = "https://github.com/NVIDIA/gpu-driver-container/blob/main/ubuntu22.04/nvidia-driver"


def driver_not_loaded(os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    if _in_container(os):
        yield Remedy("Give the container its driver", _container_steps(os))
        return
    yield Remedy(
        "Load the driver that is installed",
        (
            command("modprobe nvidia", who="root", scope="this node until reboot", see=GUIDE),
            command("dkms status", who="root", scope="this node"),
            say(
                "If modprobe finds no module for this kernel, build it (dkms autoinstall) or boot the kernel that it was "
                "built for; with secure boot the module must be signed.",
                who="root",
            ),
        ),
    )
    yield Remedy("Install the driver", _install(os, gpus))


def bound_to_nouveau(os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    text = "blacklist nouveau\noptions nouveau modeset=0\n"
    debian = _family(os) == "debian"
    yield Remedy(
        "Keep nouveau away and install NVIDIA's driver",
        (
            write_file("/etc/modprobe.d/blacklist-nouveau.conf", text, who="root", scope="this node"),
            command("update-initramfs -u" if debian else "dracut --force", who="root", scope="this node"),
            *_install(os, gpus),
        ),
    )


def left_to_nouveau(os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    yield from bound_to_nouveau(os, gpus)


def driver_library_mismatch(gpus: Gpus, os: Optional[Os] = None, rdma: Optional[Rdma] = None) -> Iterator[Remedy]:
    if _in_container(os):
        yield Remedy(
            "Use the driver libraries of the host",
            (
                say(
                    "Remove libnvidia-* and libcuda of another version from the image, or restart the container: the "
                    "host's driver may have been changed under it.",
                    scope="this job",
                ),
            ),
        )
        return
    drained = say("Let no job and no display use the GPUs (drain the node).", who="cluster admin")
    yield Remedy(
        "Reboot, so that the new kernel module is loaded",
        (drained, command("reboot", who="root", scope="this node", risk="ends everything that runs here")),
    )
    yield Remedy("Exchange the module without a reboot", (drained, *_exchange(rdma, os)))


USERS_OF_NVIDIA = ("nvidia_peermem", "nv_peer_mem", "gdrdrv", "nvidia_fs")
"""Modules of GPUDirect RDMA and Storage: while one of them is loaded the kernel keeps the module nvidia."""


def _exchange(rdma: Optional[Rdma], os: Optional[Os]) -> Iterator[Step]:
    """Stop the services that hold the GPUs open, then take the modules out, those that use others first."""
    more = {"who": "root", "scope": "this node until reboot"}
    loaded = rdma.modules if rdma is not None and rdma.modules is not None else USERS_OF_NVIDIA
    users = [name for name in USERS_OF_NVIDIA if name in loaded]
    # patterns match units that are loaded: one that is not installed is no error
    yield service(os, "stop", "'nvidia-*' 'dcgm*'", see=DRIVER_CONTAINER, **more)
    yield command(" ".join(["modprobe -r", *users, "nvidia_drm nvidia_modeset nvidia_uvm nvidia"]), **more)
    yield command(
        " ".join(["modprobe -a nvidia nvidia_uvm", *(users if loaded is not USERS_OF_NVIDIA else ())]), **more
    )
    yield say(
        "Start again what was stopped: nvidia-persistenced, nvidia-dcgm and, where GPUs are joined by NVSwitch, "
        "nvidia-fabricmanager, whose version must be the new driver's.",
        who="root",
        see=FABRIC,
    )


def unreadable() -> Iterator[Remedy]:
    yield Remedy(
        "See what the driver says, then reset or reboot",
        (
            command("nvidia-smi", scope="this node"),
            command("dmesg | grep -iE 'NVRM|Xid'", who="root", scope="this node"),
            say(
                "If it hangs, reboot the node; if it hangs again, the GPU or its slot is to be replaced.",
                who="cluster admin",
            ),
        ),
    )


def driver_below_minimum(finding: Verdict, os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    yield Remedy(f"Install a newer driver ({finding.expected})", _upgrade(os, gpus))


def driver_too_old_for_cuda_11(
    finding: Verdict, os: Optional[Os] = None, gpus: Optional[Gpus] = None
) -> Iterator[Remedy]:
    yield Remedy(f"Install a newer driver ({finding.expected})", _upgrade(os, gpus))
    yield Remedy("Use a torch built with CUDA 10.2", (command("pip install torch==1.12.1", scope="this job"),))


def not_answering(finding: Verdict, gpus: Gpus) -> Iterator[Remedy]:
    gpu = next((g for g in gpus.gpus or () if finding.subject == f"GPU {g.index}"), None)
    which = shlex.quote(gpu.pci) if gpu and gpu.pci else "PCI-ADDRESS"
    yield Remedy(
        "Drain the node and bring the GPU back",
        (
            say("Take the node out of service: jobs on it fail or hang.", who="cluster admin"),
            command("dmesg | grep -i Xid", who="root", scope="this node"),
            command(
                f"nvidia-smi --gpu-reset -i {which}", who="root", scope="this node", risk="ends what runs on this GPU"
            ),
            say(
                "If the reset fails, power the node off and on; if the GPU is lost again, have it replaced.",
                who="cluster admin",
            ),
        ),
    )
    left = ",".join(str(g.index) for g in gpus.gpus or () if g.fault is None)
    if left:
        yield Remedy("Meanwhile leave the GPU out", (export("CUDA_VISIBLE_DEVICES", left, scope="this job"),))


def fewer_than_on_bus(os: Optional[Os] = None) -> Iterator[Remedy]:
    if _in_container(os):
        yield Remedy("Give the container its GPUs again", _container_steps(os))
        return
    yield Remedy(
        "See why the driver did not start the missing GPU",
        (
            command("dmesg | grep -iE 'NVRM|Xid|nvidia'", who="root", scope="this node"),
            say(
                "RmInitAdapter failed, fallen off the bus or a power cable: power the node off and on, then have the GPU "
                "checked. A card that this driver no longer supports can be bound to vfio-pci, which counts as set aside.",
                who="cluster admin",
            ),
        ),
    )


def fewer_than_expected(gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    if gpus.on_bus == () and not _in_container(os):
        text = "No NVIDIA device is on the PCI bus: look whether the card is in its slot, powered and on in the BIOS, or, in a "
        guest = "virtual machine, whether it was passed through."
        look = command("lspci -d 10de:", scope="this node")
        yield Remedy("See why the bus shows no GPU", (look, say(text + guest, who="cluster admin")))
    else:
        yield from fewer_than_on_bus(os)
    yield Remedy(
        "Correct the expectation",
        (say("Change expect_gpus in the policy, or --expect-gpus, if this node has fewer."),),
    )


def unexpected_model(policy: Policy) -> Iterator[Remedy]:
    model = policy.expect_gpu_model or ""
    yield Remedy(
        "Use another node, or change the policy", (say(f"expect_gpu_model asks for {model!r}.", who="cluster admin"),)
    )


def fewer_than_ranks(gpus: Gpus) -> Iterator[Remedy]:
    working = sum(1 for gpu in gpus.gpus or () if gpu.fault is None)
    hidden = gpus.visible_devices is not None
    steps = (say("CUDA_VISIBLE_DEVICES hides GPUs: let it name as many as there are processes."),) if hidden else ()
    yield Remedy(
        "Start as many processes as there are GPUs",
        (
            *steps,
            say(
                f"torchrun --nproc-per-node {working or 1} (this node has {working} GPUs that answer).",
                scope="this job",
            ),
        ),
    )


def models_differ() -> Iterator[Remedy]:
    yield Remedy(
        "Let the job use the GPUs of one model",
        (
            command("nvidia-smi --query-gpu=index,name,memory.total --format=csv", scope="this node"),
            say(
                "Name them in CUDA_VISIBLE_DEVICES, with CUDA_DEVICE_ORDER=PCI_BUS_ID so that the numbers are nvidia-smi's."
            ),
        ),
    )


def memory_taken(finding: Verdict) -> Iterator[Remedy]:
    index = finding.subject.rpartition(" ")[2]
    look = f"nvidia-smi -i {shlex.quote(index)} --query-compute-apps=pid,name,used_memory --format=csv"
    yield Remedy(
        "Find out whose it is, and end it if it is yours",
        (
            command(look, scope="this node"),
            say("Nothing listed and memory taken: the process is in another container, or left behind; root sees it with "
                "fuser -v /dev/nvidia*.", who="root"),
        ),
    )  # fmt: skip
    yield Remedy("Use other GPUs", (say("Name free GPUs in CUDA_VISIBLE_DEVICES.", scope="this job"),))


def compute_mode_prohibited(finding: Verdict) -> Iterator[Remedy]:
    yield Remedy("Open the GPU to programs", (_default_mode(finding.subject.rpartition(" ")[2], "PROHIBITED"),))


def exclusive_and_too_many_ranks(gpus: Gpus) -> Iterator[Remedy]:
    yield from fewer_than_ranks(gpus)
    closed = [gpu for gpu in gpus.gpus or () if (gpu.compute_mode or "").startswith("exclusive")]
    yield Remedy(
        "Let several processes on a GPU (NCCL still wants one rank a GPU)",
        tuple(_default_mode(str(gpu.index), "EXCLUSIVE_PROCESS") for gpu in closed),
    )


def _default_mode(index: str, before: str) -> Step:
    number = shlex.quote(index)
    return command(
        f"nvidia-smi -i {number} -c DEFAULT",
        who="root",
        scope="this node until reboot",
        undo=f"nvidia-smi -i {number} -c {before}",
    )


def mig_against_policy(finding: Verdict, policy: Policy) -> Iterator[Remedy]:
    if "unsupported" in finding.measured:
        yield Remedy("Use another node", (say("This GPU cannot be divided.", who="cluster admin"),))
        return
    index = shlex.quote(finding.subject.rpartition(" ")[2])
    on = int(policy.mig == "required")
    yield Remedy(
        f"Switch MIG {'on' if on else 'off'}",
        (
            say("Let no process use the GPU; a GPU reset or a reboot makes the change active.", who="cluster admin"),
            command(
                f"nvidia-smi -i {index} -mig {on}",
                who="root",
                scope="this node",
                undo=f"nvidia-smi -i {index} -mig {1 - on}",
            ),
        ),
    )


# --------------------------------------------------------------------------- shared


def _in_container(os: Optional[Os]) -> bool:
    return bool(os and os.container)


def _family(os: Optional[Os]) -> str:
    """debian, rhel, suse or ""."""
    names = {os.id or "", *(os.like or ())} if os else set()
    families = {"debian": {"debian", "ubuntu"}, "rhel": {"rhel", "centos", "fedora", "rocky"}, "suse": {"suse", "sles"}}
    return next((family for family, members in families.items() if names & members), "")


def _install(os: Optional[Os], gpus: Optional[Gpus]) -> Tuple[Step, ...]:
    """Install the newest driver, or the last branch for the GPUs that are here."""
    more = {"who": "root", "scope": "this node", "see": GUIDE}
    branch = last_branch(gpus)
    if os and os.id == "ubuntu":
        package = f" nvidia:{branch}-server" if branch else ""
        return (command(f"ubuntu-drivers install --gpgpu{package}", **more), say("Reboot.", who="root"))
    if _family(os) == "debian":
        return (command("apt install nvidia-driver", **more), say("It is in the section non-free. Reboot.", who="root"))
    if _family(os) == "rhel":
        kernel = "dnf install kernel-devel-$(uname -r) kernel-headers"
        return (
            command(kernel, **more),
            say("Add NVIDIA's package repository for this release.", **more),
            command(f"dnf module install nvidia-driver:{branch or 'latest'}-dkms", **more),
            say("Reboot.", who="root"),
        )
    which = f"the driver, branch {branch} at most," if branch else "the driver"
    return (say(f"Install {which} as NVIDIA's guide says for this distribution, then reboot.", **more),)


def _upgrade(os: Optional[Os], gpus: Optional[Gpus]) -> Tuple[Step, ...]:
    if _in_container(os):
        return (
            say(
                "The driver is the host's: it has to be upgraded there, not in the container.",
                who="cluster admin",
                see=GUIDE,
            ),
        )
    return (say("Let no job use the GPUs (drain the node).", who="cluster admin"), *_install(os, gpus))


def _container_steps(os: Optional[Os]) -> Tuple[Step, ...]:
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

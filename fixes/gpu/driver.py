"""Ways out of faults of the NVIDIA driver."""

from typing import Iterator, Optional

from ddp_doctor.facts import Gpus, Os, Rdma
from ddp_doctor.fixes._node import service
from ddp_doctor.fixes.gpu._steps import GUIDE, container_steps, family, in_container, install, upgrade
from ddp_doctor.model import Remedy, Step, Verdict, command, say, write_file

FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide"
DRIVER_CONTAINER = "https://github.com/NVIDIA/gpu-driver-container/blob/main/ubuntu22.04/nvidia-driver"
PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/persistence-daemon.html"


USERS_OF_NVIDIA = ("nvidia_peermem", "nv_peer_mem", "gdrdrv", "nvidia_fs")
"""Modules of GPUDirect RDMA and Storage: while one of them is loaded the kernel keeps the module nvidia."""


def driver_not_loaded(os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    if in_container(os):
        yield Remedy("Give the container its driver", container_steps(os))
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
    yield Remedy("Install the driver", install(os, gpus))


def bound_to_nouveau(os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    text = "blacklist nouveau\noptions nouveau modeset=0\n"
    debian = family(os) == "debian"
    yield Remedy(
        "Keep nouveau away and install NVIDIA's driver",
        (
            write_file("/etc/modprobe.d/blacklist-nouveau.conf", text, who="root", scope="this node"),
            command("update-initramfs -u" if debian else "dracut --force", who="root", scope="this node"),
            *install(os, gpus),
        ),
    )


def left_to_nouveau(os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    yield from bound_to_nouveau(os, gpus)


def driver_library_mismatch(gpus: Gpus, os: Optional[Os] = None, rdma: Optional[Rdma] = None) -> Iterator[Remedy]:
    if in_container(os):
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


def driver_below_minimum(finding: Verdict, os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    yield Remedy(f"Install a newer driver ({finding.expected})", upgrade(os, gpus))


def driver_too_old_for_cuda_11(
    finding: Verdict, os: Optional[Os] = None, gpus: Optional[Gpus] = None
) -> Iterator[Remedy]:
    yield Remedy(f"Install a newer driver ({finding.expected})", upgrade(os, gpus))
    yield Remedy("Use a torch built with CUDA 10.2", (command("pip install torch==1.12.1", scope="this job"),))


def persistence_off(os: Optional[Os] = None) -> Iterator[Remedy]:
    if in_container(os):
        yield Remedy("Have it switched on on the node", (say("A container cannot do it.", who="cluster admin"),))
        return
    more = {"scope": "this node", "see": PERSISTENCE}
    yield Remedy("Start the persistence daemon", (service(os, "enable --now", "nvidia-persistenced", **more),))
    yield Remedy(
        "Switch it on until the next reboot",
        (command("nvidia-smi -pm 1", who="root", scope="this node until reboot", undo="nvidia-smi -pm 0"),),
    )

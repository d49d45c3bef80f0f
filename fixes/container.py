"""Ways out when a container was not given what it needs of the machine."""

from typing import Iterator

from ddp_doctor.facts import Os
from ddp_doctor.fixes._node import engine_of
from ddp_doctor.model import Remedy, Step, command, export, say

LOST_DEVICES = "https://github.com/NVIDIA/nvidia-docker/issues/1730"
OPTIONS = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"
PODS = "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"


def gpu_devices_taken_away() -> Iterator[Remedy]:
    yield Remedy(
        "Start the container anew, and keep it from losing its devices",
        (
            say("Restart the container: systemd took its devices away (systemctl daemon-reload).", scope="this job"),
            command(
                "nvidia-ctk system create-dev-char-symlinks --create-all",
                who="root",
                scope="this node",
                see=LOST_DEVICES,
            ),
            say('Or set "native.cgroupdriver=cgroupfs" as exec-opts of Docker.', who="root", see=LOST_DEVICES),
        ),
    )


def driver_device_missing(os: Os) -> Iterator[Remedy]:
    load = command("nvidia-modprobe -u -c=0", who="root", scope="this node until reboot")
    yield Remedy("Load nvidia_uvm on the machine, then start the container anew", (load, _give_gpus(os)))


def mig_devices_missing(os: Os) -> Iterator[Remedy]:
    if engine_of(os) == "kubernetes":
        text = "Ask for a part in the pod's limits, as nvidia.com/mig-1g.10gb: 1 (strategy mixed) or nvidia.com/gpu (single)."
        yield Remedy("Give the pod a part", (say(text, scope="this job", see=PODS),))
    else:
        text = 'Start the container with --gpus \'"device=0:0"\': part 0 of GPU 0, as "nvidia-smi -L" lists them.'
        yield Remedy("Give the container a part", (say(text, scope="this job", see=OPTIONS),))
    divide = (
        command("nvidia-smi mig -lgip", scope="this node"),
        say("Choose a profile, and make parts of it: nvidia-smi mig -cgi PROFILE -C.", who="root", scope="this node"),
    )
    yield Remedy("Divide the GPU first, where it has no parts yet", divide)


def no_gpu_given(os: Os) -> Iterator[Remedy]:
    yield Remedy("Start the container with the GPUs", (_give_gpus(os),))


def _give_gpus(os: Os) -> Step:
    """How a container of this kind is given GPUs."""
    if engine_of(os) == "kubernetes":
        return say("Ask for GPUs in the container's limits: nvidia.com/gpu: 8.", scope="this job", see=PODS)
    if os.container == "apptainer":
        return say("Start the container with --nv.", scope="this job")
    if os.container == "podman":
        return say("Start the container with --device nvidia.com/gpu=all.", scope="this job", see=OPTIONS)
    return say("Start the container with --gpus all (NVIDIA's container toolkit).", scope="this job", see=OPTIONS)


def roce_in_another_network(os: Os) -> Iterator[Remedy]:
    if engine_of(os) == "kubernetes":
        text = (
            "Set hostNetwork: true in the pod's spec, or give the pod an RDMA interface of its own (SR-IOV, macvlan)."
        )
        yield Remedy("Give the pod the adapters' interfaces", (say(text, scope="this job"),))
    else:
        text = "Start the container with --network=host."
        yield Remedy("Use the machine's network", (say(text, scope="this job"),))
    yield Remedy(
        "Do without RDMA", (export("NCCL_IB_DISABLE", "1", scope="this job", risk="TCP is several times slower"),)
    )


def pci_tree_hidden() -> Iterator[Remedy]:
    yield Remedy(
        "Let the container see /sys",
        (
            say(
                "Take away the mount over /sys, or use the machine's ordinary runtime (runc) for this job.",
                scope="this job",
            ),
        ),
    )
    text = "Where that cannot be: write the topology on the machine with NCCL_TOPO_DUMP_FILE, and name it here."
    yield Remedy(
        "Tell NCCL the topology", (say(text, scope="this job"), export("NCCL_TOPO_FILE", "/path/to/topology.xml"))
    )

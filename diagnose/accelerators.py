"""What the facts say of the GPUs that a job here could use: shared by the checks of GPUs and of the software stack."""

import re
from typing import List, Optional, Sequence, Tuple

from ddp_doctor.facts import Gpu, Gpus, Launch, Os, PciGpu
from ddp_doctor.numerals import whole
from ddp_doctor.policy import Policy
from ddp_doctor.versions import release

SET_ASIDE = ("vfio-pci", "vfio_pci", "nvgrace_gpu_vfio_pci", "pci-stub", "pciback", "xen-pciback")
"""Kernel drivers to which an administrator binds a device that a guest shall have, not this node."""


def drivable(gpus: Gpus) -> Tuple[PciGpu, ...]:
    """GPUs on the bus that NVIDIA's driver has, or could have: not those set aside for guests or held by nouveau."""
    return tuple(gpu for gpu in gpus.on_bus or () if gpu.driver not in (*SET_ASIDE, "nouveau"))


FIRST_TURING, FIRST_MAXWELL = 0x1E00, 0x1340
"""PCI device ids: TU102 begins at 0x1e02, GM108 at 0x1340, and what is older lies below (https://pci-ids.ucw.cz/read/PC/10de)."""


def last_branch(gpus: Optional[Gpus]) -> str:
    """The last branch of NVIDIA's driver that drives the oldest GPU here; "" where the newest does, or none is known.

    470 for Kepler, 580 for Maxwell, Pascal and Volta (NVIDIA's driver installation guide, kernel modules).
    """
    on_bus = [gpu for gpu in gpus.on_bus or () if gpu.driver not in SET_ASIDE] if gpus else []
    numbers = [int(gpu.device_id, 16) for gpu in on_bus if re.fullmatch("0x[0-9a-fA-F]{4}", gpu.device_id)]
    capabilities = [release(gpu.compute_capability or "") for gpu in (gpus.gpus if gpus else None) or ()]
    for branch, number, capability in (("470", FIRST_MAXWELL, (5,)), ("580", FIRST_TURING, (7, 5))):
        if any(n < number for n in numbers) or any(() < c < capability for c in capabilities):
            return branch
    return ""


def none_admitted(gpus: Gpus, os: Optional[Os] = None) -> bool:
    """This container or job was given no GPU, though /sys shows those of the machine."""
    if gpus.admitted is not None:
        return gpus.admitted == 0
    return bool(os and os.container and gpus.device_nodes == () and not gpus.gpus)


def is_gpu_node(gpus: Gpus, os: Optional[Os] = None) -> bool:
    """There are NVIDIA GPUs here for a job to use: the driver answers with some, or the bus has some that were admitted."""
    if none_admitted(gpus, os):
        return False
    return bool(gpus.gpus) or bool(drivable(gpus))


def is_jetson(os: Optional[Os]) -> bool:
    """A Jetson: its GPU is not on the PCI bus, its driver comes with the board's own Linux, its torch from NVIDIA."""
    return bool(os and os.kernel and "tegra" in os.kernel)


def ranks_per_node(policy: Policy, launch: Optional[Launch]) -> Optional[int]:
    """Processes that the job starts on this node, where it is known."""
    if policy.nproc_per_node is not None:
        return policy.nproc_per_node
    return (launch.nproc_per_node or launch.local_world_size) if launch else None


def chosen(visible_devices: Optional[str]) -> Optional[Tuple[str, ...]]:
    """Devices that CUDA_VISIBLE_DEVICES names, up to the first that CUDA would stop at; None where it is not set."""
    if visible_devices is None:
        return None
    names = []
    for name in (part.strip() for part in visible_devices.split(",")):
        if whole(name) is None and not name.upper().startswith(("GPU-", "MIG-")):
            break  # CUDA ignores the first invalid entry and all that follow (CUDA programming guide)
        names.append(name)
    return tuple(names)


def answering(gpus: Gpus) -> Tuple[Gpu, ...]:
    """GPUs that NVML told about without a fault."""
    return tuple(gpu for gpu in gpus.gpus or () if gpu.fault is None)


def taken_away(gpus: Gpus, os: Optional[Os]) -> bool:
    """This container may no longer open the GPUs whose nodes it has: NVML's words when the device cgroup denies them."""
    return bool(os and os.container) and gpus.device_nodes != () and "unknown error" in (gpus.nvml_error or "").lower()


def without_display_cards(gpus: Sequence[Gpu]) -> Tuple[List[Gpu], List[Gpu]]:
    """GPUs for work, and those with less than a quarter of the largest one's memory: a T400 beside A100s."""
    largest = max(gpu.memory_total_bytes or 0 for gpu in gpus)
    small = [gpu for gpu in gpus if gpu.memory_total_bytes is not None and gpu.memory_total_bytes * 4 < largest]
    return [gpu for gpu in gpus if gpu not in small], small


def label(gpu: Gpu) -> str:
    """How a GPU is called in a report: GPU 3."""
    return f"GPU {gpu.index}"

"""Do the driver, its libraries and the GPUs run what torch was built for?"""

import re
from typing import Iterator, Optional

from ddp_doctor import compat, decode
from ddp_doctor.accelerators import (
    FIRST_TURING,
    answering,
    drivable,
    is_gpu_node,
    is_jetson,
    none_admitted,
)
from ddp_doctor.checks.stack._build import imported
from ddp_doctor.facts import Cuda, Gpus, Library, Os, PciGpu, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, unknown, why_unknown
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural
from ddp_doctor.versions import at_least, minor


@check(Severity.ERROR)
def cuda_not_available(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """PyTorch cannot use the GPUs of this node: torch.cuda.is_available() is False.

    Why: CUDA could not start in the examined environment. The error tells which part is to blame: the driver, the fabric
        manager, a libcuda of another version, or a variable that hides the GPUs.
    See: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
        https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
    """
    if not torch.cuda or not is_gpu_node(gpus, os) or not imported(torch):
        return
    died = torch.cuda_available is None and why_unknown(torch, "cuda_available").kind == "crashed"
    available = False if died else known(torch.cuda_available, torch, "cuda_available")
    cause = decode.cuda_failure(torch.cuda_error, gpus.visible_devices, torch.cuda_init_code)
    said = torch.cuda_error or (
        f"cuInit returned {torch.cuda_init_code}" if torch.cuda_init_code else "CUDA said nothing"
    )
    yield Reading(
        ok=available,
        measured=f"CUDA {torch.cuda} available"
        + (f", {plural(torch.cuda_device_count, 'device')}" if torch.cuda_device_count is not None else "")
        if available
        else _shorter(said),
        expected="torch.cuda.is_available() is True",
        message=f"torch cannot use the GPUs: {cause.says}",
    )


def _shorter(text: str) -> str:
    """The part of torch's warning that tells, without its advice."""
    line = " ".join(text.split())
    return re.sub(r"\s*(Please update your GPU driver|\(Triggered internally).*", "", line)[:300]


# --------------------------------------------------------------------------- driver and CUDA build


@check(Severity.ERROR)
def driver_too_old(torch: Torch, gpus: Gpus, cuda: Optional[Cuda] = None, os: Optional[Os] = None) -> Iterator[Reading]:
    """The NVIDIA driver is too old for the CUDA version that the installed PyTorch was built with.

    Why: A driver runs every CUDA build of its own major version and of all older ones: from CUDA 11 one floor holds for
        the whole major version (450.80.02 for 11, 525.60.13 for 12, 580.65.06 for 13), so CUDA 12.4 on driver 535 is
        fine. Below the floor only a forward-compatibility package helps, on data-centre GPUs; where one is in use, or
        CUDA works, this check finds nothing.
    See: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
        https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
    """
    if not torch.cuda or torch.hip or is_jetson(os) or not (gpus.gpus or gpus.kernel_module):
        return
    driver = known(gpus.driver, gpus, "driver")
    floor = compat.driver_floor(torch.cuda)
    if floor is None:
        raise NotKnown(Reason("not-applicable", f"no table says which driver CUDA {torch.cuda} needs"))
    new_enough = at_least(driver, floor.version)
    if new_enough is False and not _works_anyway(torch, gpus):
        _leave_to_compat(torch, gpus, cuda, os)
    yield Reading(
        ok=None if new_enough is None else new_enough or _works_anyway(torch, gpus),
        measured=f"driver {driver}, torch {torch.version} with CUDA {torch.cuda}",
        expected=f"driver at least {floor.version} for CUDA {torch.cuda} ({floor.rule})",
        message=f"driver {driver} is {floor.probably}too old for the CUDA {torch.cuda} of torch {torch.version}",
        source=floor.source,
        reason=Reason("unreadable", f"driver version {driver!r}") if new_enough is None else None,
    )


def _works_anyway(torch: Torch, gpus: Gpus) -> bool:
    """CUDA was seen to work, or libcuda itself says that it supports this CUDA version: reality wins over the table."""
    supports = bool(gpus.cuda) and at_least(gpus.cuda or "", minor(torch.cuda or "")) is True
    return torch.cuda_available is True or supports


def _leave_to_compat(torch: Torch, gpus: Gpus, cuda: Optional[Cuda], os: Optional[Os]) -> None:
    """Raise NotKnown where a forward-compatibility libcuda is in use, or may be and nothing was tried."""
    if torch.cuda_available is False:
        return
    library = _compat_library(cuda)
    if library is not None:
        text = f"{library.path}, a forward-compatibility libcuda, stands in for the driver's; import torch to see if it works"
        raise NotKnown(Reason("not-applicable", text))
    if (os is not None and os.container) or torch.flavour == "ngc":
        text = "a container may bring a forward-compatibility libcuda: only the import tells (--profile standard)"
        raise NotKnown(Reason("not-asked", text))


def _compat_library(cuda: Optional[Cuda]) -> Optional[Library]:
    found = (cuda.shadowing if cuda else None) or ()
    return next((library for library in found if library.name == "cuda" and "/compat" in library.path), None)


# --------------------------------------------------------------------------- kernel module and libcuda

FIRST_BLACKWELL = 0x2900
"""PCI device ids of Blackwell lie between 0x2900 (GB100) and 0x327f (NVIDIA/gpu-admin-tools, gpu/devid_chips.py)."""


@check(Severity.ERROR)
def kernel_module_of_wrong_kind(gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """A GPU needs the other kind of NVIDIA's kernel module.

    Why: There are two. The open one drives Turing and newer GPUs, and Blackwell needs it; the proprietary one drives
        Maxwell, Pascal and Volta, which the open one cannot. A GPU with the wrong one stays dark: nvidia-smi says "No
        devices were found", the kernel log why.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html
        https://github.com/negativo17/nvidia-driver/issues/158
        https://github.com/Start9Labs/start-technologies/pull/3693
    """
    if not gpus.kernel_module or none_admitted(gpus, os):
        return
    answers = {gpu.pci for gpu in answering(gpus)} if gpus.source in ("nvml", "nvidia-smi") else set()
    for gpu in drivable(gpus):
        needed = _kind_needed(gpu)
        if needed and not answers and not gpus.nvml_error and gpus.gpus is None:
            yield unknown(gpus, "gpus", gpu.pci)
        elif needed:
            loaded = "open" if known(gpus.kernel_module_open, gpus, "kernel_module_open") else "proprietary"
            yield Reading(
                ok=gpu.pci in answers or loaded == needed,
                subject=gpu.pci,
                measured=f"{loaded} kernel module {gpus.kernel_module}, GPU {gpu.device_id}",
                expected=f"the {needed} kernel module",
                message=f"the {loaded} NVIDIA kernel module does not drive the GPU at {gpu.pci}",
            )


def _kind_needed(gpu: PciGpu) -> str:
    """The one kind of kernel module that drives this GPU; "" where both do, or its generation is not known."""
    number = int(gpu.device_id, 16) if re.fullmatch(r"0x[0-9a-fA-F]{4}", gpu.device_id) else FIRST_TURING
    return "proprietary" if number < FIRST_TURING else "open" if number >= FIRST_BLACKWELL else ""


@check(Severity.ERROR)
def stub_libcuda_first(
    cuda: Cuda, gpus: Gpus, torch: Optional[Torch] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """The libcuda that programs find first is the toolkit's stub.

    Why: Stubs are there to link programs where no driver is. Loaded at run time they answer every call with error 34,
        "CUDA driver is a stub library". lib64/stubs of a toolkit on LD_LIBRARY_PATH is the usual way to it.
    See: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
    """
    library = _first_libcuda(cuda)
    if library is not None and is_gpu_node(gpus, os):
        yield Reading(
            ok="/stubs" not in library.path or _cuda_works(torch),
            measured=f"{library.path} comes first",
            expected="the driver's own libcuda.so.1",
            message=f"programs load {library.path}, a stub, instead of the driver's libcuda",
        )


@check(Severity.ERROR)
def libcuda_of_older_driver(
    cuda: Cuda, gpus: Gpus, torch: Optional[Torch] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """The libcuda that programs find first is of an older driver than the loaded one.

    Why: The two must be of one version: CUDA says "system has unsupported display driver / cuda driver combination" (803).
        Images that were built with a driver inside, and copies of driver libraries in LD_LIBRARY_PATH, do this. A newer one
        may be a forward-compatibility package, which NVIDIA's images bring; an older package left in place fails as well.
    See: https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
        https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
    """
    library = _first_libcuda(cuda)
    if library is None or library.version is None or not is_gpu_node(gpus, os) or is_jetson(os):
        return
    driver = known(gpus.kernel_module or gpus.driver, gpus, "driver")
    # NVIDIA's own images take an older forward-compatibility package out of the way when they start.
    of_ngc = "/compat" in library.path and torch is not None and torch.flavour == "ngc" and not torch.imported
    if not of_ngc:
        yield Reading(
            ok=_cuda_works(torch) or at_least(library.version, driver),
            measured=f"{library.path} is of {library.version}, the loaded driver {driver}",
            expected=f"libcuda of {driver}",
            message=f"programs load the libcuda of driver {library.version} on driver {driver}",
            reason=Reason("unreadable", f"{library.version!r} or {driver!r} is no version"),
        )


def _first_libcuda(cuda: Cuda) -> Optional[Library]:
    """The libcuda that LD_PRELOAD or LD_LIBRARY_PATH puts first; programs ask for libcuda.so.1, so plain .so do not count."""
    shadowing = known(cuda.shadowing, cuda, "shadowing")
    return next((lib for lib in shadowing if lib.name == "cuda" and re.search(r"\.so\.\d", lib.path)), None)


def _cuda_works(torch: Optional[Torch]) -> bool:
    return torch is not None and torch.cuda_available is True


@check(Severity.NOTE)
def driver_branch_ended(gpus: Gpus, policy: Policy) -> Iterator[Reading]:
    """The branch of the NVIDIA driver gets no more fixes.

    Why: It works on. Security fixes, support for new kernels and repairs of faults come to supported branches only, of which
        the long-term ones last three years.
    See: https://docs.nvidia.com/datacenter/tesla/drivers/620/supported-drivers-and-cuda-toolkit-versions.html
    """
    branch = compat.driver_branch(gpus.driver) if gpus.driver else None
    over = compat.ended(branch.end_of_life, policy.age_day) if branch else None
    if branch and over is not None:
        yield Reading(
            ok=not over,
            measured=f"driver {gpus.driver} of branch {branch.branch}, {_life(branch.end_of_life, over)}",
            expected="a branch that is supported",
            message=f"driver branch {branch.branch} {branch.probably}gets no more fixes",
            source=branch.source,
        )


def _life(end_of_life: str, over: bool) -> str:
    """supported until 2028-06; "past" has no date."""
    day = re.match(r"[\d-]*", end_of_life)
    until = day.group() if day else ""
    return (f"whose support ended {until}" if until else "no longer supported") if over else f"supported until {until}"

"""Do the driver, its libraries and the GPUs run what torch was built for?"""

import re
from typing import Iterator, Optional

from ddp_doctor import compat, decode
from ddp_doctor.accelerators import is_gpu_node, is_jetson
from ddp_doctor.checks.stack._build import imported
from ddp_doctor.facts import Cuda, Gpus, Library, Os, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, why_unknown
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

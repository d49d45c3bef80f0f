"""Checks of NVIDIA's driver: is it there, does it fit, does it keep the GPUs awake."""

from typing import Iterator, Optional

from ddp_doctor.accelerators import answering, drivable, label, none_admitted
from ddp_doctor.checks.gpu._told import demanded, only_if_told
from ddp_doctor.facts import Gpus, Os, Reason, Torch
from ddp_doctor.gpu_models import is_datacenter
from ddp_doctor.model import Reading, Severity, check, known, unknown
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural
from ddp_doctor.versions import at_least

CUDA_11_FLOOR = "450.80.02"
"""The oldest driver that runs any CUDA 11 build (CUDA compatibility guide, minor version compatibility)."""


@check(Severity.ERROR)
def driver_not_loaded(gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """A GPU is on the PCI bus and no NVIDIA driver is loaded.

    Why: Without the kernel module nothing can use the GPU: CUDA finds no device and NCCL does not start. A new kernel
        whose module was not built (DKMS) and an installation that was never finished are the usual reasons.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html
    """
    on_bus = drivable(gpus)
    if not on_bus or none_admitted(gpus, os):
        return
    loaded = bool(gpus.gpus) or known(gpus.kernel_module, gpus, "kernel_module") != ""
    yield Reading(
        ok=loaded,
        measured=f"{plural(len(on_bus), 'GPU')} on the bus, "
        + (f"driver {gpus.driver}" if loaded else "no driver loaded"),
        expected="the nvidia kernel module is loaded",
        message=f"{plural(len(on_bus), 'GPU')} cannot be used: the NVIDIA driver is not loaded",
    )


@check(Severity.ERROR)
def bound_to_nouveau(
    gpus: Gpus, policy: Policy, torch: Optional[Torch] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """A GPU that torch or the policy wants is held by nouveau, the kernel's own display driver.

    Why: Nouveau cannot run CUDA, and NVIDIA's driver does not take a GPU that another driver has.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html
    """
    if _wanted(policy, torch):
        yield from _nouveau(gpus, os)


@check(Severity.NOTE)
def left_to_nouveau(
    gpus: Gpus, policy: Policy, torch: Optional[Torch] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """A GPU is held by nouveau, and no torch with CUDA is known here that would use it.

    Why: Nouveau serves a screen well and cannot run CUDA: to train on this GPU, NVIDIA's driver has to take its place.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html
    """
    if not _wanted(policy, torch):
        yield from _nouveau(gpus, os)


def _wanted(policy: Policy, torch: Optional[Torch]) -> bool:
    """Does the policy ask for GPUs, or is there a torch that uses NVIDIA's?"""
    return demanded(policy) or bool(torch and torch.cuda)


def _nouveau(gpus: Gpus, os: Optional[Os]) -> Iterator[Reading]:
    if none_admitted(gpus, os):
        return
    for gpu in known(gpus.on_bus, gpus, "on_bus"):
        if gpu.driver is None:
            yield unknown(gpus, "on_bus", gpu.pci)
        elif gpu.driver in ("nouveau", "nvidia"):
            yield Reading(
                ok=gpu.driver != "nouveau",
                subject=gpu.pci,
                measured=f"bound to {gpu.driver}",
                expected="bound to nvidia",
                message=f"the GPU at {gpu.pci} is held by nouveau, which cannot run CUDA",
            )


@check(Severity.ERROR)
def driver_library_mismatch(gpus: Gpus) -> Iterator[Reading]:
    """The driver's library and the loaded kernel module are of different versions.

    Why: The driver was upgraded and the old kernel module still runs (or a container brings libraries of another
        version). NVML and CUDA refuse to talk across versions: "Driver/library version mismatch", CUDA error 803.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
    """
    mismatch = "mismatch" in (gpus.nvml_error or "").lower()
    if not mismatch:
        only_if_told(gpus)
    if mismatch or gpus.gpus:
        module, library = gpus.kernel_module or "of unknown version", gpus.library or "another version"
        yield Reading(
            ok=not mismatch,
            measured=f"kernel module {module}, library {library}" if mismatch else f"driver {gpus.driver or module}",
            expected="both of one version",
            message="the NVIDIA driver was changed under the running kernel module: neither nvidia-smi nor CUDA starts",
        )


@check(Severity.ERROR)
def driver_below_minimum(gpus: Gpus, policy: Policy) -> Iterator[Reading]:
    """The NVIDIA driver is older than this site's minimum.

    Why: The site asks for a driver at least this new (driver_minimum in the policy).
    See: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    if policy.driver_minimum and (gpus.gpus or gpus.kernel_module):
        yield _driver_reading(gpus, policy.driver_minimum, "the site's policy")


@check(Severity.WARNING)
def driver_too_old_for_cuda_11(gpus: Gpus, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """The NVIDIA driver is too old for any CUDA 11 build, and no CUDA build is installed that could tell better.

    Why: Every torch since 1.13 is built with CUDA 11 or newer; such a build does not start on this driver. Where a torch
        with CUDA is installed stack/driver-too-old judges by its own floor instead.
    See: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    if not (gpus.gpus or gpus.kernel_module) or policy.driver_minimum or (torch and torch.cuda):
        return
    yield _driver_reading(gpus, CUDA_11_FLOOR, "the floor of CUDA 11")


def _driver_reading(gpus: Gpus, floor: str, whose: str) -> Reading:
    driver = gpus.driver or gpus.kernel_module or known(gpus.driver, gpus, "driver")
    return Reading(
        ok=at_least(driver, floor),
        measured=f"driver {driver}",
        expected=f"at least {floor} ({whose})",
        message=f"NVIDIA driver {driver} is older than {floor}, {whose}",
        reason=Reason("unreadable", f"driver version {driver!r}") if at_least(driver, floor) is None else None,
    )


@check(Severity.NOTE)
def persistence_off(gpus: Gpus) -> Iterator[Reading]:
    """GPUs made for servers are put to sleep whenever nothing uses them.

    Why: Each program that starts, and each look by nvidia-smi, then wakes the GPUs, 1 to 3 s each, and what was set on them
        (clocks, power limits) is forgotten in between. The persistence daemon keeps them awake.
    See: https://docs.nvidia.com/deploy/driver-persistence/persistence-daemon.html
    """
    told = [gpu for gpu in answering(gpus) if gpu.persistence is not None and is_datacenter(gpu)]
    if told:
        asleep = [label(gpu) for gpu in told if not gpu.persistence]
        yield Reading(
            ok=not asleep,
            measured=f"persistence off: {', '.join(asleep)}" if asleep else "persistence on",
            expected="on",
            message=f"persistence is off on {plural(len(asleep), 'GPU')}: programs start slower, settings are forgotten",
        )

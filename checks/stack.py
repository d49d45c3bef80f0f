"""Checks of the software stack: Python, torch, its CUDA build, NCCL, the driver and glibc, and whether they go together."""

import re
from typing import Iterator, List, Optional, Tuple

from ddp_doctor import compat, decode
from ddp_doctor.accelerators import is_gpu_node, is_jetson
from ddp_doctor.compat import Floor
from ddp_doctor.facts import Cuda, Gpus, Library, Os, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, unknown, why_unknown
from ddp_doctor.policy import Policy
from ddp_doctor.tables import TorchBuild
from ddp_doctor.units import plural
from ddp_doctor.versions import at_least, minor

# --------------------------------------------------------------------------- is it there, does it start


@check(Severity.ERROR)
def torch_missing_where_needed(
    torch: Torch, policy: Policy, gpus: Optional[Gpus] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """PyTorch is not installed on a node that should train.

    Why: The node has GPUs, or the policy requires torch, and the Python that was examined has no torch: the job fails at
        its first import. Often another environment is active than the job's: name it with --python.
    See: https://pytorch.org/get-started/locally/
    """
    if "torch" in policy.require or (gpus is not None and is_gpu_node(gpus, os)):
        yield _installed(torch)


@check(Severity.NOTE)
def torch_not_installed(
    torch: Torch, policy: Policy, gpus: Optional[Gpus] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """PyTorch is not installed.

    Why: This machine has no GPU that asks for it, so that may be right; to train here, torch has to be in the Python that
        runs the job.
    See: https://pytorch.org/get-started/locally/
    """
    if "torch" not in policy.require and not (gpus is not None and is_gpu_node(gpus, os)):
        yield _installed(torch)


def _installed(torch: Torch) -> Reading:
    installed = known(torch.installed, torch, "installed")
    python = f"{torch.python or 'the examined Python'} (chosen by {torch.python_chosen_by or 'default'})"
    return Reading(
        ok=installed,
        measured=f"torch {torch.version or 'of unknown version'} in {python}" if installed else f"no torch in {python}",
        expected="torch is installed in the Python that runs the job",
        message=f"there is no torch in {python}",
    )


@check(Severity.ERROR)
def torch_import_fails(torch: Torch) -> Iterator[Reading]:
    """PyTorch is installed but cannot be imported.

    Why: Every rank does this first. A library that is missing, too old or of another build than the one that torch was
        linked with is the usual reason, and LD_LIBRARY_PATH the usual way to it.
    See: https://man7.org/linux/man-pages/man8/ld.so.8.html
    """
    if not torch.installed:
        return
    imported = known(torch.imported, torch, "imported")
    cause = decode.import_failure(torch.import_failure, torch.import_error or "")
    took = f" in {torch.import_s:.1f} s" if torch.import_s is not None else ""
    yield Reading(
        ok=imported,
        measured=f"imported{took}" if imported else _last_line(torch.import_error) or cause.says,
        expected="import torch works",
        message=f"torch {torch.version or ''} cannot be imported: {cause.says}".replace("  ", " "),
    )


def _last_line(text: Optional[str]) -> str:
    lines = (text or "").strip().splitlines()
    return lines[-1].strip() if lines else ""


@check(Severity.ERROR)
def cpu_only_torch(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """The installed PyTorch was built without CUDA, on a node with NVIDIA GPUs.

    Why: It cannot use the GPUs, and has no NCCL. pip takes such a wheel from another index (+cpu), and on aarch64 the
        default wheels had no CUDA before torch 2.11; conda takes one where no driver was visible at installation.
    See: https://pytorch.org/get-started/locally/
    """
    if not torch.installed or not is_gpu_node(gpus, os):
        return
    cuda = known(torch.cuda, torch, "cuda")
    other = f"ROCm {torch.hip}" if torch.hip else "no CUDA"
    yield Reading(
        ok=bool(cuda),
        measured=f"torch {torch.version} with {f'CUDA {cuda}' if cuda else other}",
        expected="a build with CUDA",
        message=f"torch {torch.version} was built with {other} and cannot use the NVIDIA GPUs of this node",
    )


@check(Severity.ERROR)
def cuda_not_available(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """PyTorch cannot use the GPUs of this node: torch.cuda.is_available() is False.

    Why: CUDA could not start in the examined environment. The error tells which part is to blame: the driver, the fabric
        manager, a libcuda of another version, or a variable that hides the GPUs.
    See: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
        https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
    """
    if not torch.cuda or not is_gpu_node(gpus, os) or not _imported(torch):
        return
    died = torch.cuda_available is None and why_unknown(torch, "cuda_available").kind == "crashed"
    available = False if died else known(torch.cuda_available, torch, "cuda_available")
    cause = decode.cuda_failure(torch.cuda_error, gpus.visible_devices, torch.cuda_init_code)
    said = torch.cuda_error or (
        f"cuInit returned {torch.cuda_init_code}" if torch.cuda_init_code else "CUDA said nothing"
    )
    yield Reading(
        ok=available,
        measured=f"CUDA {torch.cuda} available, {plural(torch.cuda_device_count or 0, 'device')}"
        if available
        else _shorter(said),
        expected="torch.cuda.is_available() is True",
        message=f"torch cannot use the GPUs: {cause.says}",
    )


def _imported(torch: Torch) -> bool:
    """Was it imported, and did that work? NotKnown where nobody asked."""
    return bool(torch.installed) and known(torch.imported, torch, "imported")


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


# --------------------------------------------------------------------------- NCCL and the backends


@check(Severity.WARNING)
def older_nccl_loaded(torch: Torch) -> Iterator[Reading]:
    """Another libnccl than PyTorch's own is loaded, and it is older.

    Why: torch was compiled for its own NCCL; an older one that LD_LIBRARY_PATH, LD_PRELOAD or another package puts first
        lacks functions and fixes that torch counts on, and ranks with unlike NCCL versions do not work together.
    See: https://github.com/pytorch/pytorch/issues/122571
        https://github.com/pytorch/pytorch/issues/119072
    """
    seen = _loaded_nccl(torch)
    if seen:
        path, version, own = seen
        yield Reading(
            ok=at_least(version, own),
            measured=f"NCCL {version} from {path}",
            expected=f"NCCL {own}, for which this torch was built",
            message=f"NCCL {version} is loaded from {path}, older than the {own} of torch {torch.version}",
            reason=Reason("unreadable", f"version {version!r} of {path}") if at_least(version, own) is None else None,
        )


@check(Severity.NOTE)
def newer_nccl_loaded(torch: Torch) -> Iterator[Reading]:
    """Another libnccl than PyTorch's own is loaded, and it is newer.

    Why: NCCL 2 keeps its interface, so a newer one works, and sites preload one on purpose. All nodes must load the same.
    See: https://github.com/pytorch/pytorch/issues/122571
    """
    seen = _loaded_nccl(torch)
    if seen:
        path, version, own = seen
        yield Reading(
            ok=None if at_least(own, version) is None else at_least(own, version),
            measured=f"NCCL {version} from {path}",
            expected=f"NCCL {own}, for which this torch was built",
            message=f"NCCL {version} is loaded from {path} instead of the {own} that torch {torch.version} brings",
            reason=Reason("unreadable", f"version {version!r} of {path}") if at_least(own, version) is None else None,
        )


def _loaded_nccl(torch: Torch) -> Optional[Tuple[str, str, str]]:
    """(path, version, version that torch was built for) of the libnccl in torch's process; None where it is built in."""
    if not torch.cuda or not _imported(torch):
        return None
    if torch.nccl_loaded is None and getattr(torch.unread.get("nccl_loaded"), "kind", "") == "not-applicable":
        return None
    loaded = known(torch.nccl_loaded, torch, "nccl_loaded")
    if loaded.version is None:
        raise NotKnown(Reason("unreadable", f"{loaded.path} does not tell its version"))
    return loaded.path, loaded.version, torch.nccl or known(_required_nccl(torch), torch, "nccl")


def _required_nccl(torch: Torch) -> Optional[str]:
    """2.21.5 of the requirement nvidia-nccl-cu12==2.21.5."""
    found = re.search(r"nvidia-nccl-cu\d+\s*\(?==\s*([\d.]+)", " ".join(torch.requires or ()))
    return found.group(1) if found else None


@check(Severity.WARNING)
def nccl_would_be_replaced(torch: Torch, cuda: Cuda) -> Iterator[Reading]:
    """LD_PRELOAD puts an older libnccl before the one that PyTorch brings.

    Why: A preloaded library always comes first, whatever torch was linked with. (Of LD_LIBRARY_PATH that cannot be said
        without importing torch: wheels name their own folders with RPATH, which goes before it.)
    See: https://man7.org/linux/man-pages/man8/ld.so.8.html
    """
    if not torch.cuda or torch.imported or not torch.nccl_bundled:
        return
    own = _required_nccl(torch) or _table_nccl(torch)
    for library in known(cuda.shadowing, cuda, "shadowing"):
        if library.name == "nccl" and library.where == "ld-preload" and library.version and own:
            yield Reading(
                ok=at_least(library.version, own),
                subject=library.path,
                measured=f"LD_PRELOAD names NCCL {library.version}",
                expected=f"NCCL {own}, for which this torch was built",
                message=f"NCCL {library.version} would be loaded from {library.path} instead of torch's own {own}",
            )


def _table_nccl(torch: Torch) -> Optional[str]:
    builds = _official_builds(torch) if torch.flavour == "official-wheel" else ()
    versions = {build.nccl for build in builds}
    return versions.pop() if len(versions) == 1 else None


@check(Severity.ERROR)
def distributed_not_built(torch: Torch, os: Optional[Os] = None) -> Iterator[Reading]:
    """The installed PyTorch was built without torch.distributed.

    Why: Nothing of DistributedDataParallel works in it. Builds for small devices leave it out (USE_DISTRIBUTED=0).
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    if not is_jetson(os) and _imported(torch):
        yield Reading(
            ok=known(torch.distributed, torch, "distributed"),
            measured=f"torch {torch.version}",
            expected="torch.distributed.is_available() is True",
            message=f"torch {torch.version} was built without torch.distributed",
        )


@check(Severity.ERROR)
def nccl_not_available(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """The installed PyTorch has CUDA but not the backend nccl, on a node with NVIDIA GPUs.

    Why: NCCL is the backend for GPUs: without it init_process_group("nccl") fails, and Gloo moves GPU data through the CPU.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    if torch.cuda and is_gpu_node(gpus, os) and not is_jetson(os) and _imported(torch) and torch.distributed:
        yield _backend(torch, "nccl")


@check(Severity.WARNING)
def gloo_not_available(torch: Torch) -> Iterator[Reading]:
    """The installed PyTorch does not have the backend gloo.

    Why: Gloo is the backend for CPU tensors; checkpointing, barriers on the CPU and init_process_group without a backend
        use it beside NCCL, and a node without GPUs has nothing else.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    if _imported(torch) and torch.distributed:
        yield _backend(torch, "gloo")


def _backend(torch: Torch, name: str) -> Reading:
    backends = known(torch.backends, torch, "backends")
    return Reading(
        ok=name in backends,
        measured=f"backends: {', '.join(backends) or 'none'}",
        expected=f"{name} among them",
        message=f"torch {torch.version} cannot start the backend {name}",
    )


# --------------------------------------------------------------------------- Python and glibc


@check(Severity.ERROR)
def python_not_supported(torch: Torch) -> Iterator[Reading]:
    """There is no official wheel of the installed PyTorch for this Python version.

    Why: The binary modules of a wheel are for one Python version. Such a mixture comes from a copied folder, from
        PYTHONPATH or from an environment whose Python was replaced; it fails at the import.
    See: https://github.com/pytorch/pytorch/blob/main/RELEASE.md#release-compatibility-matrix
    """
    if not torch.installed:
        return
    build = max(_official_builds(torch), key=lambda row: len(row.pythons))
    python = known(torch.python_version, torch, "python_version")
    yield Reading(
        ok=torch.imported is True or compat.has_wheel_for(build, python),
        measured=f"Python {python}, torch {torch.version}",
        expected=f"{build.probably}Python {', '.join(build.pythons)} for torch {build.torch}",
        message=f"torch {torch.version} has {build.probably}no wheel for Python {minor(python)}",
        source=build.source,
    )


@check(Severity.ERROR)
def glibc_too_old(torch: Torch, os: Os) -> Iterator[Reading]:
    """The system's C library is older than the installed PyTorch needs.

    Why: A wheel says in its name for which glibc it was built (manylinux_2_28: 2.28); on an older system its libraries
        cannot be loaded: "version `GLIBC_2.28' not found".
    See: https://peps.python.org/pep-0600/
    """
    if not torch.installed:
        return
    floor = _wheel_floor(torch, known(os.machine, os, "machine"))
    if floor is None:
        raise NotKnown(
            Reason("not-applicable", f"no table says which glibc torch {torch.version} needs on {os.machine}")
        )
    glibc = known(os.glibc, os, "glibc")
    enough = torch.imported is True or at_least(glibc, floor.version)
    yield Reading(
        ok=enough,
        measured=f"glibc {glibc}, torch {torch.version}",
        expected=f"glibc at least {floor.version} ({floor.rule})",
        message=f"glibc {glibc} is {floor.probably}too old for torch {torch.version}, which needs {floor.version}",
        source=floor.source,
        reason=Reason("unreadable", f"glibc version {glibc!r}") if enough is None else None,
    )


def _wheel_floor(torch: Torch, machine: str) -> Optional[Floor]:
    """glibc that an official wheel needs: by its own tag; by the table where that is older than PEP 600 or says nothing."""
    builds = _official_builds(torch)
    tag = re.match(r"manylinux_(\d+)_(\d+)_", torch.wheel_tag or "")
    if tag:
        return Floor(
            f"{tag.group(1)}.{tag.group(2)}", f"the wheel's tag {torch.wheel_tag}", "https://peps.python.org/pep-0600/"
        )
    return compat.glibc_floor(builds, machine)


@check(Severity.NOTE)
def glibc_too_old_for_newest(os: Os) -> Iterator[Reading]:
    """The system's C library is too old for the newest PyTorch.

    Why: pip looks for a wheel that the system can load and silently stays at an older torch, or finds none.
    See: https://peps.python.org/pep-0600/
    """
    machine = known(os.machine, os, "machine")
    newest = compat.newest_torch()
    floor = compat.glibc_floor([newest], machine)
    if floor is None:
        return
    if os.glibc is None:
        yield unknown(os, "glibc")
        return
    yield Reading(
        ok=at_least(os.glibc, floor.version),
        measured=f"glibc {os.glibc}",
        expected=f"at least {floor.version} for torch {newest.torch}",
        message=f"glibc {os.glibc} stops at torch {compat.last_torch_for(os.glibc, machine)}; torch {newest.torch} needs {floor.version}",
        source=floor.source,
        reason=Reason("unreadable", f"glibc {os.glibc!r}") if at_least(os.glibc, floor.version) is None else None,
    )


def _official_builds(torch: Torch) -> Tuple[TorchBuild, ...]:
    """The installed torch's rows in the table of official wheels; NotKnown where it is none of them."""
    version = known(torch.version, torch, "version")
    if known(torch.flavour, torch, "flavour") != "official-wheel":
        text = f"torch {version} is not an official wheel ({torch.flavour}): not judged by the table of wheels"
        raise NotKnown(Reason("not-applicable", text))
    builds: List[TorchBuild] = list(compat.torch_builds(version))
    if not builds:
        raise NotKnown(Reason("not-applicable", f"torch {version} is not in the table of official wheels"))
    return tuple(builds)

"""Is torch there, does it start, and does it fit this Python and this system?"""

import re
from typing import Iterator, Optional

from ddp_doctor import compat, decode, glossary, tables
from ddp_doctor.accelerators import is_gpu_node
from ddp_doctor.checks.stack._build import official_builds
from ddp_doctor.compat import Floor
from ddp_doctor.facts import Cuda, Gpus, Os, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, unknown
from ddp_doctor.policy import Policy
from ddp_doctor.versions import at_least, minor, release


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
    python = f"{torch.python or 'the examined Python'} ({glossary.chosen_by(torch.python_chosen_by)})"
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
        message=f"torch {torch.version or ''} cannot be imported: {_why(torch, cause)}".replace("  ", " "),
    )


def _why(torch: Torch, cause: decode.Cause) -> str:
    """The cause; of an interpreter that does not start also which one, and that rights lack."""
    if cause.kind != "interpreter":
        return cause.says
    denied = "permission denied" in (torch.import_error or "").lower()
    return f"this user may not run {torch.python}" if denied else f"{torch.python} could not be started"


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
    build = max(official_builds(torch), key=lambda row: len(row.pythons))
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
    builds = official_builds(torch)
    tag = re.match(r"manylinux_(\d+)_(\d+)_", torch.wheel_tag or "")
    if tag:
        return Floor(
            f"{tag.group(1)}.{tag.group(2)}", f"the wheel's tag {torch.wheel_tag}", "https://peps.python.org/pep-0600/"
        )
    return compat.glibc_floor(builds, machine)


@check(Severity.NOTE)
def glibc_too_old_for_newest(os: Os) -> Iterator[Reading]:
    """The system's C library is too old for the newest PyTorch.

    Why: Pip looks for a wheel that the system can load and silently stays at an older torch, or finds none.
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


# --------------------------------------------------------------------------- what is installed beside it


@check(Severity.WARNING)
def companion_of_another_torch(torch: Torch) -> Iterator[Reading]:
    """The installed torchvision or torchaudio was built for another PyTorch.

    Why: Their compiled parts are linked with one minor version of torch: with another the import fails with "operator
        torchvision::nms does not exist" or an undefined symbol, and libraries that import them (transformers, timm) with it.
        torchaudio 2.11 and torchvision 0.29.1 and newer work with every later torch.
    See: https://docs.pytorch.org/audio/2.11.0/installation.html
        https://github.com/pytorch/vision#installation
        https://github.com/pytorch/vision/issues/2148
    """
    if not torch.installed or torch.flavour not in ("official-wheel", "conda"):
        return  # NVIDIA and others build their own pairs
    version, found = known(torch.version, torch, "version"), known(torch.companions, torch, "companions")
    for package in ("torchvision", "torchaudio"):
        fits = _fits(package, found[package], version) if package in found else None
        if fits is not None:
            yield Reading(
                ok=fits,
                subject=package,
                measured=f"{package} {found[package]} beside torch {version}",
                expected=f"the {package} of torch {minor(version)}",
                message=f"{package} {found[package]} does not belong to torch {version}",
            )


def _fits(package: str, version: str, torch: str) -> Optional[bool]:
    """By the package's own metadata; another patch release of the same minor version is linked alike. None: no row."""
    rows = [row for row in tables.companions() if row.package == package and minor(row.version) == minor(version)]
    if not rows or ".dev" in version + torch:
        return None
    return any(
        at_least(torch, row.torch[2:]) if row.torch.startswith(">=") else minor(row.torch) == minor(torch)
        for row in rows
        if row.torch
    )


@check(Severity.WARNING)
def companion_of_another_cuda(torch: Torch) -> Iterator[Reading]:
    """The installed torchvision or torchaudio was built for another CUDA version than PyTorch.

    Why: With another major version of CUDA the import of torchvision fails ("compiled with different CUDA major versions");
        a build without CUDA (+cpu) cannot work on tensors that are on a GPU: "not implemented for the CUDA backend".
    See: https://github.com/pytorch/vision#installation
        https://discuss.pytorch.org/t/132352/4
    """
    for package in ("torchvision", "torchaudio") if torch.installed and torch.cuda else ():
        version = (torch.companions or {}).get(package, "")
        build = re.search(r"\+(cpu|cu(\d{2,3}))$", version)
        if build:
            major = build.group(2)[:-1] if build.group(2) else ""
            yield Reading(
                ok=major == (torch.cuda or "").partition(".")[0],
                subject=package,
                measured=f"{package} {version} beside torch {torch.version}",
                expected=f"a build for CUDA {torch.cuda}",
                message=f"{package} {version} was built {'for another CUDA' if major else 'without CUDA'}",
            )


@check(Severity.WARNING)
def torch_of_conda_and_pip(torch: Torch) -> Iterator[Reading]:
    """Both conda and pip installed PyTorch in this environment.

    Why: The second wrote over files of the first: libraries of two builds lie side by side, either tool removes or upgrades
        the other's files, and which CUDA and NCCL are loaded depends on the order of installation.
    See: https://conda.github.io/conda-pypi/why/
    """
    conda = {name: v for name, v in (torch.companions or {}).items() if name in ("pytorch", "libtorch")}
    if torch.installed and conda:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(conda.items()))
        yield Reading(
            ok=torch.installer not in ("pip", "uv"),
            measured=f"torch {torch.version} by {torch.installer}; conda has {listed}",
            expected="torch from one of them",
            message=f"{torch.installer} installed torch {torch.version} over conda's {listed}",
        )


@check(Severity.NOTE)
def toolkit_of_another_cuda(torch: Torch, cuda: Cuda) -> Iterator[Reading]:
    """The CUDA compiler on PATH is of another major version than the CUDA of PyTorch.

    Why: It does not matter to training: a wheel brings the CUDA libraries that it needs. Building an extension (flash-attn,
        apex, DeepSpeed's operators) stops with "the detected CUDA version mismatches the version that was used to compile
        PyTorch"; another minor version is accepted.
    See: https://github.com/pytorch/pytorch/pull/59665
    """
    if torch.installed and torch.cuda and cuda.nvcc is not None and cuda.nvcc.version:
        nvcc = cuda.nvcc.version
        yield Reading(
            ok=release(nvcc)[:1] == release(torch.cuda)[:1],
            measured=f"nvcc {nvcc} at {cuda.nvcc.path}, torch {torch.version} with CUDA {torch.cuda}",
            expected=f"nvcc of CUDA {torch.cuda}, to build extensions",
            message=f"extensions cannot be built: nvcc is of CUDA {minor(nvcc)}, torch of {torch.cuda}",
        )

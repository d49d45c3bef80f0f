"""Ways out when torch is missing, does not start, or does not fit this Python or system."""

import re
from typing import Iterator, Optional

from ddp_doctor import compat, decode
from ddp_doctor.facts import Cuda, Gpus, Os, Torch
from ddp_doctor.fixes._node import quoted
from ddp_doctor.fixes.stack._pip import again, install, library_path, pip
from ddp_doctor.model import Remedy, Verdict, command, export, say, unset


def torch_missing_where_needed(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy(
        "Name the Python that the job uses",
        (say("ddp-doctor run --python /path/to/python, or activate its environment."),),
    )
    yield Remedy("Install torch there", install(torch, gpus, os))


def torch_not_installed(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield from torch_missing_where_needed(torch, gpus, os)


def torch_import_fails(
    torch: Torch, cuda: Optional[Cuda] = None, gpus: Optional[Gpus] = None, os: Optional[Os] = None
) -> Iterator[Remedy]:
    cause = decode.import_failure(torch.import_failure, torch.import_error or "")
    if cause.kind == "interpreter":
        yield from _other_python(torch)
        return
    if cause.kind in ("nccl", "symbol", "libstdcxx", "segfault", "abort") and library_path(cuda):
        yield Remedy(
            "Let torch find its own libraries",
            (
                unset("LD_LIBRARY_PATH", scope="this job", risk="what else needs it must get it in another way"),
                say("If that helps, leave out of it only the folders that hold CUDA or NCCL libraries."),
            ),
        )
    special = _SPECIAL.get(cause.kind)
    if special:
        yield Remedy(special[0], tuple(say(text) for text in special[1:]))
    if cause.kind == "numpy":
        yield Remedy("Install the numpy that it was built for", (pip(torch, "install 'numpy<2'"),))
    elif cause.kind == "mkl":
        yield Remedy("Go back to MKL 2024.0", (command("conda install mkl==2024.0", scope="this job"),))
    elif cause.kind not in ("libcuda", "killed", "slow", "shadowed", "rights", "glibc", "cpu"):
        yield Remedy("Install torch anew, with the packages that it requires", (again(torch),))
    elif cause.kind in ("glibc", "cpu"):
        yield Remedy("Install a torch that this system can load", install(torch, gpus, os))


def _other_python(torch: Torch) -> Iterator[Remedy]:
    path = quoted(torch.python or "python3")
    text = "Each folder on the way must be searchable (x), the file executable, its file system not mounted noexec."
    look = command(f"namei -l -- {path}", scope="this node")
    yield Remedy("Let this user run that Python", (look, say(text, who="root")))
    yield Remedy("Examine the Python that the job uses", (say("ddp-doctor run --python /path/to/python"),))


_SPECIAL = {
    "libcuda": (
        "Make the driver's libraries visible",
        "In a container, start it with the GPUs (--gpus all, --nv); on the machine itself, install the driver.",
    ),
    "killed": (
        "Give the process more memory",
        "Raise the memory limit of the container or job (importing torch with CUDA takes some GB of address space).",
    ),
    "slow": (
        "Put the environment on a faster file system",
        "A home on NFS or Lustre under load takes minutes for torch's thousands of files: use a local disk or an image.",
    ),
    "shadowed": (
        "Move what hides torch out of the way",
        "Rename the file or folder called torch in the working directory or on PYTHONPATH.",
    ),
    "libstdcxx": (
        "Use the newer libstdc++",
        "conda install -c conda-forge libstdcxx-ng puts a newer one into a conda environment.",
    ),
    "cpu": (
        "Use a machine with newer instructions",
        "Official wheels need what common x86-64 processors have had for a decade; a guest may hide it (CPU model host).",
    ),
    "rights": ("Make its files readable", "Its owner must let this user read the folder of the environment."),
}


def cpu_only_torch(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install a build with CUDA in its place", (pip(torch, "uninstall torch"), *install(torch, gpus, os)))


def python_not_supported(torch: Torch) -> Iterator[Remedy]:
    builds = compat.torch_builds(torch.version or "")
    versions = ", ".join(builds[0].pythons) if builds else "another version"
    text = f"Make an environment with Python {versions}, and install torch {torch.version} in it."
    yield Remedy("Use a Python that this torch was built for", (say(text, scope="this job"),))


def glibc_too_old(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install a torch that this system can load", install(torch, gpus, os))
    yield Remedy(
        "Run it in a container with a newer system",
        (say("An image of Ubuntu 22.04 has glibc 2.35.", scope="this job"),),
    )


def glibc_too_old_for_newest() -> Iterator[Remedy]:
    yield Remedy(
        "Stay with this torch, or run newer ones in a container",
        (say("An image of Ubuntu 22.04 has glibc 2.35.", scope="this job"),),
    )


def companion_of_another_torch(torch: Torch, finding: Verdict) -> Iterator[Remedy]:
    rows = compat.companions(finding.subject, torch.version or "")
    wanted = f"{finding.subject}=={rows[-1].version}" if rows else finding.subject
    local = (torch.version or "").partition("+")[2]
    index = f" --index-url https://download.pytorch.org/whl/{local}" if re.fullmatch(r"cpu|cu\d+", local) else ""
    yield Remedy(f"Install the {finding.subject} of this torch", (pip(torch, f"install --no-deps {wanted}{index}"),))


def companion_of_another_cuda(torch: Torch, finding: Verdict) -> Iterator[Remedy]:
    yield from companion_of_another_torch(torch, finding)


def torch_of_conda_and_pip(torch: Torch) -> Iterator[Remedy]:
    text = "Make a new environment and install torch once: with pip alone, or with conda alone."
    yield Remedy("Start from a clean environment", (say(text, scope="this job"),))


def toolkit_of_another_cuda(torch: Torch, cuda: Cuda) -> Iterator[Remedy]:
    wanted = (torch.cuda or "").partition(".")[0]
    found = [toolkit for toolkit in cuda.toolkits or () if (toolkit.version or "").partition(".")[0] == wanted]
    if found:
        yield Remedy(
            "Build with the toolkit of the same version", (export("CUDA_HOME", found[-1].path, scope="this job"),)
        )
    text = "Nothing else needs it: wheels of the extension for this torch, where there are some, are not built here."
    yield Remedy(f"Install a CUDA {torch.cuda} toolkit, only to build extensions", (say(text),))

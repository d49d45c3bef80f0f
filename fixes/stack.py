"""Ways out of faults of the software stack."""

import re
import shlex
from typing import Iterator, Optional, Tuple

from ddp_doctor import compat, decode
from ddp_doctor.accelerators import answering, is_jetson
from ddp_doctor.facts import Cuda, Gpus, Os, Torch
from ddp_doctor.fixes import gpu as _gpu
from ddp_doctor.model import Remedy, Step, Verdict, command, say, unset
from ddp_doctor.policy import Policy
from ddp_doctor.tables import TorchBuild
from ddp_doctor.versions import at_least

COMPAT = "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html"
FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide"


def torch_missing_where_needed(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy(
        "Name the Python that the job uses",
        (say("ddp-doctor run --python /path/to/python, or activate its environment."),),
    )
    yield Remedy("Install torch there", _install(torch, gpus, os))


def torch_not_installed(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield from torch_missing_where_needed(torch, gpus, os)


def torch_import_fails(
    torch: Torch, cuda: Optional[Cuda] = None, gpus: Optional[Gpus] = None, os: Optional[Os] = None
) -> Iterator[Remedy]:
    cause = decode.import_failure(torch.import_failure, torch.import_error or "")
    if cause.kind in ("nccl", "symbol", "libstdcxx", "segfault", "abort") and _library_path(cuda):
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
        yield Remedy("Install the numpy that it was built for", (_pip(torch, "install 'numpy<2'"),))
    elif cause.kind == "mkl":
        yield Remedy("Go back to MKL 2024.0", (command("conda install mkl==2024.0", scope="this job"),))
    elif cause.kind not in ("libcuda", "killed", "slow", "shadowed", "rights", "glibc", "cpu"):
        yield Remedy("Install torch anew, with the packages that it requires", (_again(torch),))
    elif cause.kind in ("glibc", "cpu"):
        yield Remedy("Install a torch that this system can load", _install(torch, gpus, os))


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
    yield Remedy("Install a build with CUDA in its place", (_pip(torch, "uninstall torch"), *_install(torch, gpus, os)))


def cuda_not_available(
    torch: Torch, gpus: Gpus, policy: Policy, finding: Verdict, cuda: Optional[Cuda] = None, os: Optional[Os] = None
) -> Iterator[Remedy]:
    cause = decode.cuda_failure(torch.cuda_error, gpus.visible_devices, torch.cuda_init_code)
    if cause.kind == "hidden":
        yield Remedy("Let the job see its GPUs", (unset("CUDA_VISIBLE_DEVICES", scope="this job"),))
    elif cause.kind == "driver":
        yield from driver_too_old(torch, gpus, policy, os)
    elif cause.kind == "died":
        yield from _gpu.unreadable(finding, os)
    elif cause.kind == "no-driver":
        yield from _gpu.driver_not_loaded(os)
    elif cause.kind in ("mismatch", "compat", "stub"):
        yield from _other_libcuda(cause.kind, gpus, cuda, os)
    elif cause.kind == "fabric":
        yield Remedy("Start the fabric manager of the driver's own version", _fabric(gpus))
    elif cause.kind == "unknown":
        yield Remedy("Load nvidia_uvm anew", _uvm())
    elif cause.kind == "mps":
        yield Remedy(
            "Start MPS, or do without it",
            (
                unset("CUDA_MPS_PIPE_DIRECTORY", scope="this job"),
                command("nvidia-cuda-mps-control -d", scope="this node"),
            ),
        )
    else:
        yield Remedy("See what the driver says", (command("nvidia-smi"), command("ls -l /dev/nvidia*")))


def _other_libcuda(kind: str, gpus: Gpus, cuda: Optional[Cuda], os: Optional[Os]) -> Iterator[Remedy]:
    found = [library for library in (cuda.shadowing if cuda else None) or () if library.name == "cuda"]
    if found:
        where = found[0].path.rsplit("/", 1)[0]
        yield Remedy(
            "Let programs find the driver's own libcuda",
            (
                say(
                    f"Leave {where} out of LD_LIBRARY_PATH ({found[0].path} comes first now).",
                    scope="this job",
                    see=COMPAT,
                ),
            ),
        )
    if kind == "mismatch":
        yield from _gpu.driver_library_mismatch(gpus, os)
    elif not found:
        yield Remedy(
            "Remove the libcuda that is not the driver's",
            (
                command("ldconfig -p | grep libcuda.so"),
                say("Keep the one of the driver's package only.", who="root", see=COMPAT),
            ),
        )


def _fabric(gpus: Gpus) -> Tuple[Step, ...]:
    return (
        command("systemctl enable --now nvidia-fabricmanager", who="root", scope="this node", see=FABRIC),
        say(
            f"Its version must be the driver's ({gpus.driver or 'see nvidia-smi'}); on B200 systems nvlsm must run too.",
            who="root",
        ),
        command("nvidia-smi -q | grep -A 3 Fabric", scope="this node"),
    )


def _uvm() -> Tuple[Step, ...]:
    more = {"who": "root", "scope": "this node until reboot"}
    return (
        say("Let no process use the GPUs.", who="cluster admin"),
        command("modprobe -r nvidia_uvm", **more),
        command("modprobe nvidia_uvm", **more),
        say("If it does not load, reboot. In a container, /dev/nvidia-uvm must be among its devices.", who="root"),
    )


def driver_too_old(torch: Torch, gpus: Gpus, policy: Policy, os: Optional[Os] = None) -> Iterator[Remedy]:
    floor = compat.driver_floor(torch.cuda or "")
    newer = Remedy(f"Install a newer driver{f' (at least {floor.version})' if floor else ''}", _gpu._upgrade(os))
    demanded = at_least(gpus.driver or "", policy.driver_minimum or "") is False  # the site asks for a newer one anyway
    yield from (newer, *_older_build(torch, gpus, os)) if demanded else (*_older_build(torch, gpus, os), newer)
    version = re.match(r"(\d+)\.(\d+)", torch.cuda or "")
    if version:
        package = f"cuda-compat-{version.group(1)}-{version.group(2)}"
        text = f"On data-centre GPUs only: install {package} and put /usr/local/cuda/compat first on LD_LIBRARY_PATH."
        yield Remedy("Use NVIDIA's forward-compatibility package", (say(text, who="root", see=COMPAT),))


def _older_build(torch: Torch, gpus: Gpus, os: Optional[Os]) -> Iterator[Remedy]:
    build = _newest(torch, gpus, os)
    if build and not is_jetson(os):
        title = f"Install torch {build.torch} with CUDA {build.cuda}, the newest that this node can run"
        # pip takes 1.12.1+cu113 for 1.12.1 and would install nothing (PEP 440, local versions)
        yield Remedy(title, (_pip(torch, "uninstall torch"), _pip(torch, compat.pip_line(build)[len("pip ") :])))


def older_nccl_loaded(torch: Torch, cuda: Optional[Cuda] = None) -> Iterator[Remedy]:
    loaded = torch.nccl_loaded.path if torch.nccl_loaded else ""
    shadowing = [library for library in (cuda.shadowing if cuda else None) or () if library.name == "nccl"]
    preloaded = any(library.where == "ld-preload" for library in shadowing)
    if shadowing:
        yield Remedy(
            "Let torch load its own NCCL",
            (
                unset("LD_PRELOAD", scope="this job")
                if preloaded
                else say(f"Leave {loaded.rsplit('/', 1)[0]} out of LD_LIBRARY_PATH.", scope="this job"),
            ),
        )
    yield Remedy("Install torch anew, with the NCCL that it requires", (_again(torch),))


def newer_nccl_loaded(torch: Torch, cuda: Optional[Cuda] = None) -> Iterator[Remedy]:
    yield Remedy(
        "Nothing, if it was meant",
        (say("Make sure that every node of the job loads the same NCCL.", scope="all nodes"),),
    )
    yield from older_nccl_loaded(torch, cuda)


def nccl_would_be_replaced() -> Iterator[Remedy]:
    yield Remedy("Let torch load its own NCCL", (unset("LD_PRELOAD", scope="this job"),))


def distributed_not_built(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install an official build", _install(torch, gpus, os))


def nccl_not_available(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install an official build, which has NCCL", _install(torch, gpus, os))
    yield Remedy("Build torch with it", (say("USE_NCCL=1 and USE_DISTRIBUTED=1 when torch is built from source."),))


def gloo_not_available(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install an official build, which has Gloo", _install(torch, gpus, os))


def python_not_supported(torch: Torch) -> Iterator[Remedy]:
    builds = compat.torch_builds(torch.version or "")
    versions = ", ".join(builds[0].pythons) if builds else "another version"
    text = f"Make an environment with Python {versions}, and install torch {torch.version} in it."
    yield Remedy("Use a Python that this torch was built for", (say(text, scope="this job"),))


def glibc_too_old(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install a torch that this system can load", _install(torch, gpus, os))
    yield Remedy(
        "Run it in a container with a newer system",
        (say("An image of Ubuntu 22.04 has glibc 2.35.", scope="this job"),),
    )


def glibc_too_old_for_newest() -> Iterator[Remedy]:
    yield Remedy(
        "Stay with this torch, or run newer ones in a container",
        (say("An image of Ubuntu 22.04 has glibc 2.35.", scope="this job"),),
    )


# --------------------------------------------------------------------------- shared


def _machine(os: Optional[Os]) -> str:
    return (os and os.machine) or "x86_64"


def _library_path(cuda: Optional[Cuda]) -> bool:
    return bool(cuda and (cuda.library_path or cuda.shadowing))


def _pip(torch: Torch, what: str) -> Step:
    """pip of the examined interpreter, so that it does not land in another environment."""
    return command(f"{shlex.quote(torch.python or 'python3')} -m pip {what}", scope="this job")


def _newest(torch: Torch, gpus: Optional[Gpus], os: Optional[Os]) -> Optional[TorchBuild]:
    """The newest torch that this node's driver, GPUs, Python and glibc run; None where one of them is not known."""
    if not (gpus and gpus.driver and torch.python_version and os and os.glibc):
        return None
    known = sorted({gpu.compute_capability for gpu in answering(gpus) if gpu.compute_capability})
    return compat.newest_runnable(gpus.driver, torch.python_version, os.glibc, _machine(os), known)


def _install(torch: Torch, gpus: Optional[Gpus], os: Optional[Os]) -> Tuple[Step, ...]:
    """How to install a torch that runs here; the guide where the facts do not tell which one does."""
    if is_jetson(os):
        return (say("Install the torch that NVIDIA builds for this JetPack release: official wheels do not fit."),)
    if gpus and gpus.gpus == () and gpus.on_bus == () and gpus.other_vendor == ():
        return (_pip(torch, "install torch --index-url https://download.pytorch.org/whl/cpu"),)
    build = _newest(torch, gpus, os)
    if build:
        return (_pip(torch, compat.pip_line(build)[len("pip ") :]),)
    return (say("Choose a build at pytorch.org.", see="https://pytorch.org/get-started/locally/"),)


def _again(torch: Torch) -> Step:
    version = re.match(r"\d+(\.\d+)+", torch.version or "")
    return _pip(
        torch, f"install --force-reinstall torch=={version.group(0)}" if version else "install --force-reinstall torch"
    )

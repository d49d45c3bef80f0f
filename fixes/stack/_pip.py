"""What several fixes of the software stack tell a person to install, and with which pip."""

import re
import shlex
from typing import Optional, Tuple

from ddp_doctor import compat
from ddp_doctor.accelerators import answering, is_jetson
from ddp_doctor.facts import Cuda, Gpus, Os, Torch
from ddp_doctor.model import Step, command, say
from ddp_doctor.tables import TorchBuild


def machine(os: Optional[Os]) -> str:
    return (os and os.machine) or "x86_64"


def library_path(cuda: Optional[Cuda]) -> bool:
    return bool(cuda and (cuda.library_path or cuda.shadowing))


def pip(torch: Torch, what: str) -> Step:
    """pip of the examined interpreter, so that it does not land in another environment."""
    return command(f"{shlex.quote(torch.python or 'python3')} -m pip {what}", scope="this job")


def newest(torch: Torch, gpus: Optional[Gpus], os: Optional[Os]) -> Optional[TorchBuild]:
    """The newest torch that this node's driver, GPUs, Python and glibc run; None where one of them is not known."""
    if not (gpus and gpus.driver and torch.python_version and os and os.glibc):
        return None
    known = sorted({gpu.compute_capability for gpu in answering(gpus) if gpu.compute_capability})
    return compat.newest_runnable(gpus.driver, torch.python_version, os.glibc, machine(os), known)


def install(torch: Torch, gpus: Optional[Gpus], os: Optional[Os]) -> Tuple[Step, ...]:
    """How to install a torch that runs here; the guide where the facts do not tell which one does."""
    if is_jetson(os):
        return (say("Install the torch that NVIDIA builds for this JetPack release: official wheels do not fit."),)
    if gpus and gpus.gpus == () and gpus.on_bus == () and gpus.other_vendor == ():
        return (pip(torch, "install torch --index-url https://download.pytorch.org/whl/cpu"),)
    build = newest(torch, gpus, os)
    if build:
        return (pip(torch, compat.pip_line(build)[len("pip ") :]),)
    return (say("Choose a build at pytorch.org.", see="https://pytorch.org/get-started/locally/"),)


def again(torch: Torch) -> Step:
    version = re.match(r"\d+(\.\d+)+", torch.version or "")
    return pip(
        torch, f"install --force-reinstall torch=={version.group(0)}" if version else "install --force-reinstall torch"
    )

"""Ways out when the driver, its libraries or the GPUs do not run what torch was built for."""

import re
import shlex
from typing import Iterator, Optional, Tuple

from ddp_doctor import compat, decode
from ddp_doctor.accelerators import is_jetson
from ddp_doctor.facts import Cuda, Gpus, Os, Rdma, Torch
from ddp_doctor.fixes._node import is_debian, service
from ddp_doctor.fixes.gpu import driver as _driver
from ddp_doctor.fixes.gpu import presence as _presence
from ddp_doctor.fixes.gpu._steps import upgrade
from ddp_doctor.fixes.stack._pip import newest, pip
from ddp_doctor.model import Remedy, Step, Verdict, command, say, unset
from ddp_doctor.policy import Policy
from ddp_doctor.versions import at_least

COMPAT = "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html"
KERNEL_MODULES = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html"
FABRIC = _driver.FABRIC


def cuda_not_available(
    torch: Torch,
    gpus: Gpus,
    policy: Policy,
    cuda: Optional[Cuda] = None,
    os: Optional[Os] = None,
    rdma: Optional[Rdma] = None,
) -> Iterator[Remedy]:
    cause = decode.cuda_failure(torch.cuda_error, gpus.visible_devices, torch.cuda_init_code)
    if cause.kind == "hidden":
        yield Remedy("Let the job see its GPUs", (unset("CUDA_VISIBLE_DEVICES", scope="this job"),))
    elif cause.kind == "driver":
        yield from driver_too_old(torch, gpus, policy, os)
    elif cause.kind == "died":
        yield from _presence.unreadable()
    elif cause.kind == "no-driver":
        yield from _driver.driver_not_loaded(os, gpus)
    elif cause.kind in ("mismatch", "compat", "stub"):
        yield from _other_libcuda(cause.kind, gpus, cuda, os, rdma)
    elif cause.kind == "fabric":
        yield Remedy("Start the fabric manager of the driver's own version", _fabric(gpus, os))
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


def _other_libcuda(
    kind: str, gpus: Gpus, cuda: Optional[Cuda], os: Optional[Os], rdma: Optional[Rdma]
) -> Iterator[Remedy]:
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
        yield from _driver.driver_library_mismatch(gpus, os, rdma)
    elif not found:
        yield Remedy(
            "Remove the libcuda that is not the driver's",
            (
                command("ldconfig -p | grep libcuda.so"),
                say("Keep the one of the driver's package only.", who="root", see=COMPAT),
            ),
        )


def _fabric(gpus: Gpus, os: Optional[Os]) -> Tuple[Step, ...]:
    return (
        service(os, "enable --now", "nvidia-fabricmanager", scope="this node", see=FABRIC),
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
    newer = Remedy(f"Install a newer driver{f' (at least {floor.version})' if floor else ''}", upgrade(os, gpus))
    demanded = at_least(gpus.driver or "", policy.driver_minimum or "") is False  # the site asks for a newer one anyway
    yield from (newer, *_older_build(torch, gpus, os)) if demanded else (*_older_build(torch, gpus, os), newer)
    version = re.match(r"(\d+)\.(\d+)", torch.cuda or "")
    if version:
        package = f"cuda-compat-{version.group(1)}-{version.group(2)}"
        text = f"On data-centre GPUs only: install {package} and put /usr/local/cuda/compat first on LD_LIBRARY_PATH."
        yield Remedy("Use NVIDIA's forward-compatibility package", (say(text, who="root", see=COMPAT),))


def _older_build(torch: Torch, gpus: Gpus, os: Optional[Os]) -> Iterator[Remedy]:
    build = newest(torch, gpus, os)
    if build and not is_jetson(os):
        title = f"Install torch {build.torch} with CUDA {build.cuda}, the newest that this node can run"
        # pip takes 1.12.1+cu113 for 1.12.1 and would install nothing (PEP 440, local versions)
        yield Remedy(title, (pip(torch, "uninstall torch"), pip(torch, compat.pip_line(build)[len("pip ") :])))


def kernel_module_of_wrong_kind(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    needed = "open" if "the open" in finding.expected else "proprietary"
    branch = (gpus.driver or gpus.kernel_module or "").partition(".")[0] or "580"
    open_ending = "-open" if needed == "open" else ""
    if is_debian(os):
        step = command(
            f"apt-get install -y nvidia-driver-{shlex.quote(branch)}{open_ending}", who="root", scope="this node"
        )
    else:
        module = f"nvidia-driver:{branch}{'-open' if needed == 'open' else ''}"
        step = command(f"dnf module switch-to -y {shlex.quote(module)}", who="root", scope="this node")
    more = say("Packages and repositories name the two kinds differently; the guide has a table.", see=KERNEL_MODULES)
    reboot = command("reboot", who="root", scope="this node", risk="ends everything that runs here")
    yield Remedy(f"Install the {needed} kernel module", (step, more, reboot))
    if needed == "proprietary":
        text = "Driver branch 580 is the last one for Maxwell, Pascal and Volta."
        yield Remedy("Stay with a branch that drives this GPU", (say(text, who="cluster admin", see=KERNEL_MODULES),))


def stub_libcuda_first(gpus: Gpus, cuda: Optional[Cuda] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield from _other_libcuda("stub", gpus, cuda, os, None)


def libcuda_of_older_driver(gpus: Gpus, cuda: Optional[Cuda] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield from _other_libcuda("compat", gpus, cuda, os, None)


def driver_branch_ended(os: Optional[Os] = None, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    yield Remedy("Move to a long-term branch when there is time", upgrade(os, gpus))

"""Ways out when NCCL, cuDNN or a backend is not what torch was built for."""

import re
from typing import Iterator, Optional

from ddp_doctor.facts import Cuda, Gpus, Os, Torch
from ddp_doctor.fixes.stack._pip import again, install, pip
from ddp_doctor.model import Remedy, Verdict, say, unset


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
    yield Remedy("Install torch anew, with the NCCL that it requires", (again(torch),))


def newer_nccl_loaded(torch: Torch, cuda: Optional[Cuda] = None) -> Iterator[Remedy]:
    yield Remedy(
        "Nothing, if it was meant",
        (say("Make sure that every node of the job loads the same NCCL.", scope="all nodes"),),
    )
    yield from older_nccl_loaded(torch, cuda)


def nccl_would_be_replaced() -> Iterator[Remedy]:
    yield Remedy("Let torch load its own NCCL", (unset("LD_PRELOAD", scope="this job"),))


def distributed_not_built(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install an official build", install(torch, gpus, os))


def nccl_not_available(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install an official build, which has NCCL", install(torch, gpus, os))
    yield Remedy("Build torch with it", (say("USE_NCCL=1 and USE_DISTRIBUTED=1 when torch is built from source."),))


def gloo_not_available(torch: Torch, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install an official build, which has Gloo", install(torch, gpus, os))


def packages_overwrite_each_other(torch: Torch, finding: Verdict) -> Iterator[Remedy]:
    library = "nccl" if finding.subject == "NCCL" else "cudnn"
    packages = sorted(n for n in torch.nvidia_packages or {} if re.fullmatch(rf"nvidia-{library}-cu\d+", n))
    wanted = re.findall(rf"(nvidia-{library}-cu\d+)\s*\(?==\s*([\d.]+)", " ".join(torch.requires or ()))
    keep = "==".join(wanted[0]) if wanted else packages[-1] if packages else f"nvidia-{library}-cu12"
    steps = (pip(torch, f"uninstall -y {' '.join(packages)}"), pip(torch, f"install --no-deps {keep}"))
    yield Remedy("Remove them all, then install the one that torch requires", steps)
    text = "Give each framework an environment of its own: the other one loses its library by this."
    yield Remedy("Part the frameworks", (say(text),))


def cudnn_of_another_version(torch: Torch, cuda: Optional[Cuda] = None) -> Iterator[Remedy]:
    places = sorted(
        {lib.path.rsplit("/", 1)[0] for lib in (cuda.shadowing if cuda else None) or () if lib.name == "cudnn"}
    )
    if places:
        text = f"Leave {', '.join(places)} out of LD_LIBRARY_PATH."
        yield Remedy("Let torch load its own cuDNN", (say(text, scope="this job"),))
    yield Remedy("Install torch anew, with the cuDNN that it requires", (again(torch),))

"""Ways out when torch has no machine code for a GPU."""

from typing import Iterator, Optional

from ddp_doctor.facts import Gpus, Os, Torch
from ddp_doctor.fixes.gpu._steps import upgrade
from ddp_doctor.fixes.stack._pip import install, pip
from ddp_doctor.model import Remedy, export


def no_code_for_gpu(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield _other_build(torch, gpus, os)


def code_compiled_at_start(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield _other_build(torch, gpus, os)
    yield Remedy("Keep what was compiled", (export("CUDA_CACHE_MAXSIZE", "4294967296", scope="this job"),))


def driver_too_old_to_compile(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield _other_build(torch, gpus, os)
    yield Remedy("Install a newer driver", upgrade(os, gpus))


def _other_build(torch: Torch, gpus: Gpus, os: Optional[Os]) -> Remedy:
    steps = (pip(torch, "uninstall torch"), *install(torch, gpus, os))
    return Remedy("Install a torch with code for these GPUs", steps)

"""Does this torch have code that runs on the GPUs of this node?"""

import re
from typing import Iterator, NamedTuple, Optional, Tuple

from ddp_doctor.accelerators import answering, is_jetson, label, without_display_cards
from ddp_doctor.checks.stack._build import official_builds
from ddp_doctor.facts import Gpu, Gpus, Os, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known
from ddp_doctor.versions import at_least, minor, release


@check(Severity.ERROR)
def no_code_for_gpu(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """The installed PyTorch has no code for a GPU of this node.

    Why: A build holds machine code for some compute capabilities: code for 8.0 runs on 8.x, not on 9.0. On other GPUs the
        first kernel fails with "no kernel image is available for execution on the device". Old GPUs lose their code with
        new CUDA versions, new ones need a newer torch.
    See: https://docs.nvidia.com/cuda/cuda-programming-guide/01-introduction/cuda-platform.html
    """
    for gpu, how, codes in _code(torch, gpus, os):
        yield Reading(
            ok=how != "",
            subject=gpu.name or label(gpu),
            measured=f"compute capability {gpu.compute_capability}, torch {torch.version} has {_listed(codes)}",
            expected=f"code for {gpu.compute_capability}",
            message=f"torch {torch.version} has {codes.probably}no code for {gpu.name or label(gpu)} ({gpu.compute_capability})",
            source=codes.source,
        )


@check(Severity.NOTE)
def code_compiled_at_start(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """PyTorch has no machine code for a GPU; the driver compiles it from PTX at the first start.

    Why: That takes minutes, once per user and machine (the result is kept in ~/.nv/ComputeCache), and ranks that wait for it
        may look hung. A build with code for this GPU starts at once and is often faster.
    See: https://docs.nvidia.com/cuda/cuda-programming-guide/01-introduction/cuda-platform.html
    """
    for gpu, how, codes in _code(torch, gpus, os):
        if how:
            yield Reading(
                ok=how == "binary",
                subject=gpu.name or label(gpu),
                measured=f"compute capability {gpu.compute_capability}, torch {torch.version} has {_listed(codes)}",
                expected=f"machine code for {gpu.compute_capability}",
                message=f"the driver compiles torch {torch.version} for {gpu.name or label(gpu)} at its first start",
                source=codes.source,
            )


@check(Severity.ERROR)
def driver_too_old_to_compile(torch: Torch, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """PyTorch has only PTX for a GPU, and the driver is too old to compile it.

    Why: Minor-version compatibility does not cover PTX: a driver compiles that of its own CUDA version and older ones. Newer
        PTX fails with "the provided PTX was compiled with an unsupported toolchain" (222).
    See: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    for gpu, how, codes in _code(torch, gpus, os):
        if how == "ptx":
            supported = known(gpus.cuda, gpus, "cuda")
            yield Reading(
                ok=at_least(supported, minor(torch.cuda or "")),
                subject=gpu.name or label(gpu),
                measured=f"the driver supports CUDA {supported}, the PTX is of CUDA {torch.cuda}",
                expected=f"a driver for CUDA {minor(torch.cuda or '')}",
                message=f"driver {gpus.driver} cannot compile torch {torch.version} for {gpu.name or label(gpu)}",
                source=codes.source,
                reason=Reason("unreadable", f"{supported!r} is no version"),
            )


class _Codes(NamedTuple):
    """Compute capabilities for which a torch has machine code and PTX, and the table row that says so ("": torch itself)."""

    binaries: Tuple[str, ...]
    ptx: Tuple[str, ...]
    source: str = ""
    probably: str = ""


def _code(torch: Torch, gpus: Gpus, os: Optional[Os]) -> Iterator[Tuple[Gpu, str, _Codes]]:
    """(GPU, how torch runs on it, codes of this torch) for one GPU of each kind to work with.

    Not on a Jetson: code for 8.0 does not run on its 8.7 (programming guide: desktop and Tegra are not compatible).
    """
    working = [gpu for gpu in answering(gpus) if gpu.compute_capability]
    if not torch.cuda or not torch.installed or not working or is_jetson(os):
        return
    codes = _codes(torch, os)
    unlike = {(gpu.name, gpu.compute_capability): gpu for gpu in reversed(without_display_cards(working)[0])}
    for gpu in reversed(list(unlike.values())):
        yield gpu, _how(gpu.compute_capability or "", codes), codes


def _how(capability: str, codes: _Codes) -> str:
    """How code runs on a GPU: "binary", "ptx" (the driver compiles it at the first start), or "" for not at all.

    Code for X.y runs on X.z with z >= y; PTX of X.y also on everything newer (CUDA programming guide, compatibility of
    binaries and of PTX).
    """
    gpu = release(capability)
    if any(code[:1] == gpu[:1] and code <= gpu for code in map(release, codes.binaries)):
        return "binary"
    return "ptx" if any(form <= gpu for form in map(release, codes.ptx)) else ""


def _codes(torch: Torch, os: Optional[Os]) -> _Codes:
    """By torch's own word where it was imported, else by the table of official wheels. NotKnown where neither says."""
    if torch.arch_list:
        parts = [re.fullmatch(r"(sm|compute)_(\d+)(\d)f?", arch) for arch in torch.arch_list]  # 90a runs on 9.0 alone
        found = [(part.group(1), f"{part.group(2)}.{part.group(3)}") for part in parts if part]
        binaries = tuple(code for kind, code in found if kind == "sm")
        return _Codes(binaries, tuple(code for kind, code in found if kind == "compute"))
    machine = os.machine if os else None
    row = max(official_builds(torch), key=lambda row: row.cuda == torch.cuda)
    codes = {"x86_64": row.architectures, "aarch64": row.architectures_aarch64}.get(machine or "", ())
    if not codes:
        raise NotKnown(Reason("not-applicable", f"no table says for which GPUs torch {torch.version} has code"))
    return _Codes(codes, (minor(row.ptx),) if row.ptx else (), row.source, row.probably)


def _listed(codes: _Codes) -> str:
    return ", ".join(codes.binaries) + (f" and PTX of {', '.join(codes.ptx)}" if codes.ptx else "")

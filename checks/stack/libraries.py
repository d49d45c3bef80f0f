"""NCCL, cuDNN and the backends: which are loaded, and are they those that torch was built for?"""

import re
from typing import Dict, Iterator, List, Optional, Tuple

from ddp_doctor.accelerators import is_gpu_node, is_jetson
from ddp_doctor.checks.stack._build import imported, official_builds
from ddp_doctor.facts import Cuda, Gpus, Os, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known
from ddp_doctor.versions import at_least


@check(Severity.WARNING)
def older_nccl_loaded(torch: Torch) -> Iterator[Reading]:
    """Another libnccl than PyTorch's own is loaded, and it is older.

    Why: Torch was compiled for its own NCCL; an older one that LD_LIBRARY_PATH, LD_PRELOAD or another package puts first
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
    if not torch.cuda or not imported(torch):
        return None
    if torch.nccl_loaded is None and getattr(torch.unread.get("nccl_loaded"), "kind", "") == "not-applicable":
        return None
    loaded = known(torch.nccl_loaded, torch, "nccl_loaded")
    if loaded.version is None:
        raise NotKnown(Reason("unreadable", f"{loaded.path} does not tell its version"))
    return loaded.path, loaded.version, torch.nccl or known(_required(torch, "NCCL"), torch, "nccl")


@check(Severity.WARNING)
def nccl_would_be_replaced(torch: Torch, cuda: Cuda) -> Iterator[Reading]:
    """LD_PRELOAD puts an older libnccl before the one that PyTorch brings.

    Why: A preloaded library always comes first, whatever torch was linked with. (Of LD_LIBRARY_PATH that cannot be said
        without importing torch: wheels name their own folders with RPATH, which goes before it.)
    See: https://man7.org/linux/man-pages/man8/ld.so.8.html
    """
    if not torch.cuda or torch.imported or not torch.nccl_bundled:
        return
    own = _required(torch, "NCCL") or _table_nccl(torch)
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
    builds = official_builds(torch) if torch.flavour == "official-wheel" else ()
    versions = {build.nccl for build in builds}
    return versions.pop() if len(versions) == 1 else None


@check(Severity.ERROR)
def distributed_not_built(torch: Torch, os: Optional[Os] = None) -> Iterator[Reading]:
    """The installed PyTorch was built without torch.distributed.

    Why: Nothing of DistributedDataParallel works in it. Builds for small devices leave it out (USE_DISTRIBUTED=0).
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    if not is_jetson(os) and imported(torch):
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
    if torch.cuda and is_gpu_node(gpus, os) and not is_jetson(os) and imported(torch) and torch.distributed:
        yield _backend(torch, "nccl")


@check(Severity.WARNING)
def gloo_not_available(torch: Torch) -> Iterator[Reading]:
    """The installed PyTorch does not have the backend gloo.

    Why: Gloo is the backend for CPU tensors; checkpointing, barriers on the CPU and init_process_group without a backend
        use it beside NCCL, and a node without GPUs has nothing else.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    if imported(torch) and torch.distributed:
        yield _backend(torch, "gloo")


def _backend(torch: Torch, name: str) -> Reading:
    backends = known(torch.backends, torch, "backends")
    return Reading(
        ok=name in backends,
        measured=f"backends: {', '.join(backends) or 'none'}",
        expected=f"{name} among them",
        message=f"torch {torch.version} cannot start the backend {name}",
    )


# --------------------------------------------------------------------------- packages that write the same file


@check(Severity.WARNING)
def packages_overwrite_each_other(torch: Torch, cuda: Optional[Cuda] = None) -> Iterator[Reading]:
    """Packages for several CUDA versions wrote the same library file.

    Why: The packages nvidia-nccl-cu11, -cu12 and -cu13 all install nvidia/nccl/lib/libnccl.so.2, and those of cuDNN do the
        same; whichever came last is loaded, whatever pip says is installed, and removing one of them removes the file of all. Another
        framework (paddle, jax, cupy) in the same environment is the usual reason.
    See: https://github.com/marin-community/marin/issues/7344
        https://github.com/opendatalab/MinerU/issues/446
    """
    for title, packages in _same_file(torch.nvidia_packages or {}):
        required, present = _required(torch, title), _present(torch, cuda) if title == "NCCL" else None
        yield Reading(
            ok=len(packages) < 2 or (required is not None and present == required),
            subject=title,
            measured=", ".join(f"{name} {version}" for name, version in packages)
            + (f"; the file is {title} {present}" if present and len(packages) > 1 else ""),
            expected=f"one package of {title}" + (f", {required}" if required else ""),
            message=f"{len(packages)} packages of {title} write one file, and "
            + (f"{present} is there" if present else "which of them is there is not known"),
        )


def _same_file(packages: Dict[str, str]) -> Iterator[Tuple[str, List[Tuple[str, str]]]]:
    """(library, its packages) of those that are installed; cuDNN 8 and 9 have names of their own: libcudnn.so.8."""
    found: Dict[str, List[Tuple[str, str]]] = {}
    for name, version in sorted(packages.items()):
        match = re.fullmatch(r"nvidia-(nccl|cudnn)-cu\d+", name)
        if match:
            title = "NCCL" if match.group(1) == "nccl" else f"cuDNN {version.partition('.')[0]}"
            found.setdefault(title, []).append((name, version))
    yield from found.items()


def _required(torch: Torch, title: str) -> Optional[str]:
    """2.21.5 of the requirement nvidia-nccl-cu12==2.21.5."""
    name = title.split()[0].lower()
    found = re.search(rf"nvidia-{name}-cu\d+\s*\(?==\s*([\d.]+)", " ".join(torch.requires or ()))
    return found.group(1) if found else None


def _present(torch: Torch, cuda: Optional[Cuda]) -> Optional[str]:
    """Version of the file that packages of NCCL write, as the library itself says."""
    if torch.nccl_loaded and "/nvidia/nccl/" in torch.nccl_loaded.path:
        return torch.nccl_loaded.version
    return next((library.version for library in (cuda.nccls if cuda else None) or () if library.where == "wheel"), None)


@check(Severity.ERROR)
def cudnn_of_another_version(torch: Torch) -> Iterator[Reading]:
    """Another cuDNN than PyTorch was built for is loaded, and it does not fit.

    Why: Torch takes a cuDNN of its own major version that is not older; otherwise it raises "cuDNN version incompatibility"
        at the first convolution. LD_LIBRARY_PATH with the cuDNN of a toolkit or a module is the usual way to it.
    See: https://github.com/pytorch/pytorch/issues/80637
        https://github.com/pytorch/pytorch/pull/80877
    """
    if not torch.cuda or not imported(torch):
        return
    said = torch.unread["cudnn"].text if torch.cudnn is None and "cudnn" in torch.unread else ""
    versions = re.search(r"compiled\s+against (\(.+?\)) but (?:found runtime version|linked against) (\(.+?\))", said)
    if torch.cudnn is not None or versions:
        built, loaded = [_dotted(text) for text in versions.groups()] if versions else ("", torch.cudnn)
        yield Reading(
            ok=versions is None,
            measured=f"cuDNN {loaded}",
            expected=f"cuDNN {built}, for which this torch was built" if versions else "the cuDNN of this torch",
            message=f"cuDNN {loaded} is loaded, and torch {torch.version} was built for {built}",
        )
    elif said and torch.unread["cudnn"].kind != "not-applicable":
        raise NotKnown(torch.unread["cudnn"])


def _dotted(text: str) -> str:
    """8.9.2 of "(8, 9, 2)"."""
    return ".".join(re.findall(r"\d+", text))

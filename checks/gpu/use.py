"""Checks of who may use the GPUs: are they free, open to programs, whole."""

from typing import Iterator, List, Optional, Sequence

from ddp_doctor import nccl
from ddp_doctor.accelerators import answering, label, ranks_per_node
from ddp_doctor.checks.gpu._siblings import compared
from ddp_doctor.checks.gpu._told import usable_gpus
from ddp_doctor.facts import Env, Gpu, GpuProcess, Gpus, Launch
from ddp_doctor.model import Reading, Severity, check, unknown
from ddp_doctor.policy import GIB, Policy
from ddp_doctor.units import plural, size

MEMORY_TAKEN_BYTES = 2 * GIB
"""More than this in use before a job starts is somebody's: AMD's Primus preflight draws the line there too
(AMD-AGI/Primus, primus/tools/preflight/node_smoke). A desktop, DCGM and MPS stay below."""

RESERVE_BYTES = GIB
"""What the driver keeps for itself and NVML's first memory call counts as used, at most: 912 MB were seen on an idle A100
(github.com/Cldfire/nvml-wrapper/issues/57)."""

NEEDED_BY_THE_NODE = (
    "nv-hostengine",
    "dcgm",
    "nvidia-cuda-mps",
    "xorg",
    "xwayland",
    "gnome-shell",
    "nvidia-persistenced",
)
"""Beginnings of process names that belong on a GPU of a healthy node."""


@check(Severity.WARNING)
def memory_taken(gpus: Gpus) -> Iterator[Reading]:
    """Memory of a GPU is already taken.

    Why: Another job, a notebook or a process that was left behind holds it: the new job runs out of memory, or shares
        the GPU's time. Counted is what NVML's second memory call says, without the driver's reserve, DCGM and MPS.
    See: https://docs.nvidia.com/deploy/nvml-api/structnvmlMemory__v2__t.html
        https://github.com/Cldfire/nvml-wrapper/issues/57
    """
    for gpu in answering(gpus):
        if gpu.memory_used_bytes is None:
            yield unknown(gpu, "memory_used_bytes", label(gpu))
            continue
        owners = [process for process in gpu.processes or () if not _belongs(process)]
        if _is_system_memory(gpu) and not owners:
            continue
        reserve = RESERVE_BYTES if gpu.memory_used_includes_reserve else 0
        taken = gpu.memory_used_bytes - sum(p.used_bytes or 0 for p in gpu.processes or () if _belongs(p))
        yield Reading(
            ok=taken <= MEMORY_TAKEN_BYTES + reserve,
            subject=label(gpu),
            measured=_taken(gpu, owners),
            expected=f"at most {size(MEMORY_TAKEN_BYTES + reserve)} in use before the job starts",
            message=f"{size(taken)} of {label(gpu)} are in use by {_owners(owners)}",
        )


def _belongs(process: GpuProcess) -> bool:
    name = (process.name or "").rsplit("/", 1)[-1].lower()
    return process.kind in ("graphics", "mps") or name.startswith(NEEDED_BY_THE_NODE)


def _is_system_memory(gpu: Gpu) -> bool:
    """The GPU's memory is a NUMA node of the system (Grace): "used" may be the kernel's file cache there (NVML guide)."""
    return any(board in (gpu.name or "") for board in ("GH200", "GB200", "GB300", "GB10"))


def _taken(gpu: Gpu, owners: Sequence[GpuProcess]) -> str:
    of = f" of {size(gpu.memory_total_bytes)}" if gpu.memory_total_bytes else ""
    return f"{size(gpu.memory_used_bytes or 0)}{of} used" + (f" by {_owners(owners)}" if owners else "")


def _owners(owners: Sequence[GpuProcess]) -> str:
    named = [f"{(p.name or 'a process').rsplit('/', 1)[-1]} (pid {p.pid})" for p in owners]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return ", ".join(named[:3]) + more if named else "processes that are not visible from here"


@check(Severity.ERROR)
def compute_mode_prohibited(gpus: Gpus) -> Iterator[Reading]:
    """A GPU is in the compute mode Prohibited.

    Why: No program may open a CUDA context on it: CUDA says "all CUDA-capable devices are busy or unavailable" (46).
    See: https://docs.nvidia.com/deploy/mps/when-to-use-mps.html
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
    """
    for gpu in answering(gpus):
        if gpu.compute_mode is not None:
            yield Reading(
                ok=gpu.compute_mode != "prohibited",
                subject=label(gpu),
                measured=f"compute mode {gpu.compute_mode}",
                expected="default, or exclusive_process with one process a GPU",
                message=f"{label(gpu)} is closed to programs: compute mode Prohibited",
            )
        elif "compute_mode" not in gpu.unsupported:
            yield unknown(gpu, "compute_mode", label(gpu))


@check(Severity.ERROR)
def exclusive_and_too_many_ranks(
    gpus: Gpus, policy: Policy, launch: Optional[Launch] = None, env: Optional[Env] = None
) -> Iterator[Reading]:
    """The GPUs take one process each, and the job starts more processes than there are GPUs.

    Why: In the compute mode Exclusive Process the second process on a GPU fails with "all CUDA-capable devices are busy
        or unavailable" (46), unless MPS stands between.
    See: https://docs.nvidia.com/deploy/mps/when-to-use-mps.html
    """
    ranks = ranks_per_node(policy, launch)
    exclusive = _exclusive(gpus)
    if ranks is None or not exclusive or _mps(gpus, env):
        return
    usable, how = usable_gpus(gpus)
    yield Reading(
        ok=ranks <= usable,
        measured=f"{len(exclusive)} of {plural(len(answering(gpus)), 'GPU')} exclusive, {ranks} processes{how}",
        expected=f"at most {plural(usable, 'process', 'processes')}, or compute mode default",
        message=f"{ranks} processes for {plural(usable, 'GPU')} that take one process each",
    )


@check(Severity.NOTE)
def compute_mode_exclusive(gpus: Gpus, env: Optional[Env] = None) -> Iterator[Reading]:
    """GPUs are in the compute mode Exclusive Process.

    Why: It is fine with one process a GPU; a second one, of another user or a profiler, is turned away.
    See: https://docs.nvidia.com/deploy/mps/when-to-use-mps.html
    No fix: Nothing needs to change with one process a GPU; many sites set it on purpose, and MPS wants it.
    """
    modes = [gpu.compute_mode for gpu in answering(gpus) if gpu.compute_mode is not None]
    if modes:
        exclusive = [label(gpu) for gpu in _exclusive(gpus)]
        yield Reading(
            ok=not exclusive or _mps(gpus, env),
            measured=f"exclusive: {', '.join(exclusive)}" if exclusive else f"compute mode {modes[0]}",
            expected="default; or exclusive with one process a GPU",
            message=f"{plural(len(exclusive), 'GPU')} will take one process each",
        )


def _exclusive(gpus: Gpus) -> List[Gpu]:
    return [gpu for gpu in answering(gpus) if (gpu.compute_mode or "").startswith("exclusive")]


def _mps(gpus: Gpus, env: Optional[Env]) -> bool:
    """MPS serves these GPUs, or this environment points to its daemon."""
    serving = any(
        process.kind == "mps" or (process.name or "").rsplit("/", 1)[-1].startswith("nvidia-cuda-mps")
        for gpu in answering(gpus)
        for process in gpu.processes or ()
    )
    return serving or bool(env and env.get("CUDA_MPS_PIPE_DIRECTORY"))


@check(Severity.ERROR)
def mig_against_policy(gpus: Gpus, policy: Policy) -> Iterator[Reading]:
    """MIG is on where the policy forbids it, or off where it is required.

    Why: A GPU divided by MIG has no NVLink and no peer copies, and a process sees one slice only: a job for whole GPUs
        does not run on it as planned, nor one for slices on whole GPUs.
    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html
        https://docs.rapids.ai/deployment/stable/guides/mig
    """
    if policy.mig == "allowed":
        return
    for gpu in answering(gpus):
        if gpu.mig is None:
            yield unknown(gpu, "mig", label(gpu))
            continue
        yield Reading(
            ok=(gpu.mig == "enabled") == (policy.mig == "required"),
            subject=label(gpu),
            measured=f"MIG {gpu.mig}",
            expected=f"MIG {policy.mig} by the policy",
            message=f"MIG is {gpu.mig} on {label(gpu)}, and {policy.mig} by the policy",
        )


@check(Severity.ERROR)
def mig_and_too_many_ranks(
    gpus: Gpus, policy: Policy, launch: Optional[Launch] = None, env: Optional[Env] = None
) -> Iterator[Reading]:
    """The job starts more processes than there are GPUs, and these are divided by MIG.

    Why: Two ranks then share one physical GPU. NCCL tells ranks apart by the GPU, not by its slices, and stops with "Duplicate
        GPU detected". NCCL 2.32 can do it, as an experiment, with NCCL_MULTI_RANK_GPU_ENABLE=1.
    See: https://github.com/NVIDIA/nccl/issues/1716
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-multi-rank-gpu-enable
    """
    ranks, divided = ranks_per_node(policy, launch), _divided(gpus)
    if ranks is None or not divided or (env is not None and nccl.integer(env.get("NCCL_MULTI_RANK_GPU_ENABLE")) == 1):
        return
    number = len(answering(gpus))
    yield Reading(
        ok=ranks <= number,
        measured=f"{plural(ranks, 'process', 'processes')} on {plural(number, 'GPU')}, MIG on {len(divided)} of them",
        expected="at most one process a GPU",
        message=f"{ranks} processes share {plural(number, 'GPU')} by MIG: NCCL takes two slices of a GPU for one",
    )


@check(Severity.WARNING)
def mig_and_several_ranks(gpus: Gpus, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """The job starts several processes on GPUs that are divided by MIG.

    Why: A process sees one slice of one GPU, and slices reach one another neither over NVLink nor over PCIe: NCCL copies
        through the host's memory. For a job over several GPUs whole GPUs are far faster.
    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html
        https://github.com/NVIDIA/nccl/issues/1716
    """
    ranks, divided = ranks_per_node(policy, launch), _divided(gpus)
    if ranks is not None and divided:
        yield Reading(
            ok=ranks < 2,
            measured=f"{plural(ranks, 'process', 'processes')}, MIG on {', '.join(map(label, divided))}",
            expected="one process, or whole GPUs",
            message=f"{plural(ranks, 'process', 'processes')} on GPUs divided by MIG: no direct way between them",
        )


@check(Severity.WARNING)
def mig_unlike_siblings(gpus: Gpus) -> Iterator[Reading]:
    """Some GPUs of a model are divided by MIG here and others are not.

    Why: The numbers of CUDA devices then are not those of the GPUs: a job for all of them starts on slices and whole GPUs
        mixed, or fails. Where a scheduler hands out both kinds on purpose this is known: waive it.
    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html
    """
    for one in compared(gpus, lambda gpu: gpu.mig):
        yield Reading(
            ok=not one.odd,
            subject=label(one.gpu),
            measured=f"MIG {one.value}",
            expected=f"MIG {one.usual}, as on {plural(one.others, 'GPU')} of this model here",
            message=f"MIG is {one.value} on {label(one.gpu)} and {one.usual} on its siblings",
        )


def _divided(gpus: Gpus) -> List[Gpu]:
    return [gpu for gpu in answering(gpus) if gpu.mig == "enabled"]

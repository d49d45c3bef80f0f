"""Settings that were right while somebody looked for a fault, and cost speed or sleep ever since."""

from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ddp_doctor import nccl
from ddp_doctor.accelerators import answering
from ddp_doctor.checks.env._settings import faults_or_pass, has_cloud_stack, one, said
from ddp_doctor.facts import Env, Gpus, Rdma, Torch, Variable
from ddp_doctor.gpu_models import model_of
from ddp_doctor.model import Reading, Severity, check, known

# --------------------------------------------------------------------------- ways between GPUs


@check(Severity.WARNING)
def p2p_disabled(env: Env, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """Direct access between the GPUs of a node is switched off.

    Why: NCCL_P2P_DISABLE=1 and NCCL_P2P_LEVEL=LOC send everything between the GPUs through the host's memory, several times
        slower than NVLink. They are for finding faults and get left over.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable
    """
    if _has_nvlink(gpus) is not False:
        yield from _p2p(env, gpus, "several times slower than NVLink; unset it unless it is known to be needed here")


@check(Severity.NOTE)
def p2p_disabled_without_nvlink(env: Env, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """Direct access between GPUs without NVLink, or with bridges at most, is switched off.

    Why: Over PCIe it is worth less, and some machines need it off: drivers for GeForce RTX 40 do not have it, and virtual
        machines and IOMMUs break it. Where it works, NCCL is faster with it.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable
        https://github.com/NVIDIA/nccl-tests/issues/117
    """
    if _has_nvlink(gpus) is False:
        yield from _p2p(env, gpus, "right where peer-to-peer does not work; else NCCL is faster without it")


def _p2p(env: Env, gpus: Optional[Gpus], message: str) -> Iterator[Reading]:
    """Readings of both variables that can switch it off; none where there is one GPU."""
    found = [v for v in (one(env, "NCCL_P2P_DISABLE"), one(env, "NCCL_P2P_LEVEL")) if v is not None]
    if not _one_gpu(gpus):
        off = [v for v in found if _p2p_off(v)]
        yield from faults_or_pass(found, (_left(v, "not set", f"peer-to-peer is off: {message}") for v in off))


def _p2p_off(variable: Variable) -> bool:
    """1 switches it off and nothing else does; LOC, and 0 of the old scale, is the level that nothing reaches (paths.cc)."""
    if variable.name == "NCCL_P2P_DISABLE":
        return nccl.integer(variable.value) == 1
    return variable.value == "LOC" or (variable.value[:1].isdigit() and nccl.integer(variable.value) == 0)


def _left(variable: Variable, expected: str, message: str) -> Reading:
    return Reading(ok=False, subject=variable.name, measured=said(variable), expected=expected, message=message)


def _one_gpu(gpus: Optional[Gpus]) -> bool:
    return gpus is not None and gpus.gpus is not None and len(gpus.gpus) == 1


def _has_nvlink(gpus: Optional[Gpus]) -> Optional[bool]:
    """Is one of the GPUs here of a data-centre model with NVLink? None where no GPU is known, or not its model."""
    models = [model_of(gpu.name or "") for gpu in answering(gpus)] if gpus is not None else []
    if not models:
        return None
    fast = (m for m in models if m is not None and m.segment == "datacenter")
    if any(model.nvlink_per_direction_gb_s not in ("", "0") for model in fast):
        return True
    return None if None in models else False


@check(Severity.WARNING)
def shared_memory_disabled(env: Env, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """Shared memory between the ranks of a node is switched off.

    Why: NCCL_SHM_DISABLE=1 is a way round a small /dev/shm. GPUs that cannot reach each other directly then talk through the
        network card. A larger /dev/shm (docker run --shm-size, --ipc=host) is the cure.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-shm-disable
        https://github.com/NVIDIA/nccl/issues/406
    """
    variable = one(env, "NCCL_SHM_DISABLE")
    if variable is not None and not _one_gpu(gpus):
        off = nccl.integer(variable.value) != 0
        message = "ranks of one node talk through the network instead of shared memory"
        yield from faults_or_pass([variable], [_left(variable, "not set", message) if off else None])


# --------------------------------------------------------------------------- RDMA


@check(Severity.WARNING, several_nodes=True)
def infiniband_disabled(env: Env, rdma: Rdma) -> Iterator[Reading]:
    """InfiniBand is there and NCCL is told not to use it.

    Why: NCCL_IB_DISABLE=1 or NCCL_NET=Socket, left over from looking for a fault or copied from a guide for clusters without
        it, sends the data between nodes by TCP, ten and more times slower.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable
    """
    ports = [p for p in nccl.hca_ports(known(rdma.devices, rdma, "devices"), None) if p.active]
    infiniband = [p for p in ports if p.port.link_layer == "InfiniBand"]
    found = _rdma_off(env)
    if infiniband:
        names = ", ".join(p.name for p in infiniband[:8])
        message = f"the data will go by TCP past {nccl.rdma_words(infiniband)} ({names})"
        yield from faults_or_pass(_rdma_variables(env), (_left(v, "not set", message) for v in found))


@check(Severity.NOTE, several_nodes=True)
def rdma_disabled(env: Env, rdma: Optional[Rdma] = None) -> Iterator[Reading]:
    """NCCL is told not to use InfiniBand and RoCE.

    Why: NCCL_IB_DISABLE=1 is right on networks without RDMA, though NCCL finds that out by itself, and on RoCE that is not set
        up for it (clouds' Ethernet cards). Elsewhere it costs most of the speed.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable
    """
    ports = nccl.hca_ports(rdma.devices, None) if rdma is not None and rdma.devices is not None else []
    active = [p for p in ports if p.active]
    unseen = rdma is None or rdma.devices is None
    if unseen or (active and all(p.port.link_layer == "Ethernet" for p in active)):
        there = "whether there is RDMA here is not known" if unseen else f"there is {nccl.rdma_words(active)}"
        message = f"the data between nodes will go by TCP; {there}"
        yield from faults_or_pass(_rdma_variables(env), (_left(v, "not set", message) for v in _rdma_off(env)))


def _rdma_variables(env: Env) -> List[Variable]:
    return [v for v in (one(env, "NCCL_IB_DISABLE"), one(env, "NCCL_NET")) if v is not None]


def _rdma_off(env: Env) -> List[Variable]:
    return [
        v
        for v in _rdma_variables(env)
        if (v.value.lower() == "socket" if v.name == "NCCL_NET" else nccl.integer(v.value) != 0)
    ]


# --------------------------------------------------------------------------- debugging


@check(Severity.NOTE)
def debug_output_left_on(env: Env) -> Iterator[Reading]:
    """NCCL prints its debugging output.

    Why: NCCL_DEBUG=INFO or TRACE prints many lines for every communicator of every rank; WARN says what goes wrong, and costs
        nothing. Fine while you look for a fault.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
    """
    variable = one(env, "NCCL_DEBUG")
    if variable is not None:
        on = variable.value.upper() in ("INFO", "TRACE")
        message = "NCCL prints many lines for every communicator; WARN is enough when nothing is wrong"
        yield from faults_or_pass([variable], [_left(variable, "WARN", message) if on else None])


class _Slow(NamedTuple):
    """A value that makes a job slower; ``values`` in lower case."""

    values: Tuple[str, ...]
    why: str


_TRUE = ("y", "yes", "1", "t", "true")
_SLOW: Dict[str, _Slow] = {
    "TORCH_DISTRIBUTED_DEBUG": _Slow(("detail",), "every collective is checked by another one over Gloo first"),
    "TORCH_NCCL_BLOCKING_WAIT": _Slow(
        _TRUE, "the CPU waits for every collective, and torch 2.6 and later has no watchdog"
    ),
    "NCCL_BLOCKING_WAIT": _Slow(_TRUE, "the CPU waits for every collective"),
    "TORCH_NCCL_DESYNC_DEBUG": _Slow(_TRUE, "every collective is written to the store"),
    "TORCH_NCCL_NAN_CHECK": _Slow(_TRUE, "every collective has one more kernel"),
    "TORCH_NCCL_ENABLE_TIMING": _Slow(
        _TRUE, "every collective is timed, which makes hangs of the watchdog more likely"
    ),
    "NCCL_CHECK_MODE": _Slow(("debug_local", "debug_global"), "every collective is checked"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _Slow(("1",), "every release of memory stops the GPU"),
}


@check(Severity.WARNING)
def slow_debugging_left_on(env: Env) -> Iterator[Reading]:
    """Debugging that slows down every collective is on.

    Why: These switches check, time or wait for each collective. They find faults and do not belong into production.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    found = [v for v in (one(env, name) for name in _SLOW) if v is not None]
    slow = [v for v in found if v.value.lower() in _SLOW[v.name].values]
    yield from faults_or_pass(found, (_left(v, "not set", f"{_SLOW[v.name].why}: {v.name} is on") for v in slow))


@check(Severity.WARNING)
def cuda_launch_blocking_left_on(env: Env) -> Iterator[Reading]:
    """CUDA_LAUNCH_BLOCKING is on.

    Why: Every kernel is waited for, so that computing and communicating no longer overlap, and a process with several GPUs can
        deadlock in NCCL. It is for finding the kernel that fails.
    See: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
        https://github.com/NVIDIA/nccl/issues/750
    """
    variable = one(env, "CUDA_LAUNCH_BLOCKING")
    if variable is not None:
        on = nccl.integer(variable.value) != 0
        message = "every kernel is waited for: computing and communicating do not overlap"
        yield from faults_or_pass([variable], [_left(variable, "not set", message) if on else None])


@check(Severity.WARNING)
def hangs_go_unnoticed(env: Env) -> Iterator[Reading]:
    """What ends a job that hangs is switched off.

    Why: Without asynchronous error handling or the monitoring thread a rank that lost its peers waits for ever, and holds its
        GPUs.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")
    found = [v for v in (one(env, name) for name in names) if v is not None]
    off = [v for v in found if v.value.lower() in ("0", "n", "no", "f", "false")]
    message = "a rank that hangs is not ended"
    yield from faults_or_pass(found, (_left(v, "not set", message) for v in off))


# --------------------------------------------------------------------------- forced choices


@check(Severity.NOTE)
def algorithm_forced(env: Env) -> Iterator[Reading]:
    """The algorithm or the protocol of NCCL's collectives is forced.

    Why: NCCL chooses them by size and topology; a choice forced for one machine is seldom right on another, must be the same
        on all ranks, and from 2.24 fails where it cannot be had. It also switches the tuner of the EFA plug-in off.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo
        https://github.com/NVIDIA/nccl/issues/1709
    """
    found = [v for v in (one(env, "NCCL_ALGO"), one(env, "NCCL_PROTO")) if v is not None]
    forced = [] if has_cloud_stack(env) else found
    message = "NCCL's own choice by size and topology is switched off"
    yield from faults_or_pass(found, (_left(v, "not set", message) for v in forced))


@check(Severity.WARNING)
def ll128_forced(env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """The protocol LL128 is allowed by hand.

    Why: It relies on 128-byte stores that arrive whole. NCCL uses it by itself where the hardware guarantees that; elsewhere it
        can corrupt data.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-proto
    """
    variable = one(env, "NCCL_PROTO")
    if variable is not None and not has_cloud_stack(env):
        parts = (part.rpartition(":")[2] for part in variable.value.upper().split(";"))
        on = any("LL128" in part.split(",") for part in parts)
        message = "NCCL will use LL128 also where it can corrupt data"
        yield from faults_or_pass([variable], [_left(variable, "^LL128, or not set", message) if on else None])

"""Checks of resource limits."""

from typing import Iterator

from ddp_doctor.facts import Limits, Rdma
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.policy import Policy
from ddp_doctor.units import size


@check(Severity.ERROR)
def memlock_too_low(limits: Limits, rdma: Rdma, policy: Policy) -> Iterator[Reading]:
    """Locked memory is too small to register RDMA buffers.

    Why: NCCL pins its InfiniBand buffers; past RLIMIT_MEMLOCK ibv_reg_mr fails with ENOMEM and the first collective dies
        with "unhandled system error". The kernel asks this only of processes without CAP_IPC_LOCK.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    if known(rdma.devices, rdma, "devices"):
        soft = known(limits.memlock_bytes, limits, "memlock_bytes").soft
        exempt = known(limits.cap_ipc_lock, limits, "cap_ipc_lock")
        yield Reading(
            ok=exempt or soft >= policy.memlock_min_bytes,
            measured=f"memlock {size(soft)} of {limits.whose or 'this process'}" + (", CAP_IPC_LOCK" if exempt else ""),
            expected=f"at least {size(policy.memlock_min_bytes)}, or CAP_IPC_LOCK",
            message="NCCL cannot pin its InfiniBand buffers",
        )

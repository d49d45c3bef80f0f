"""Checks of resource limits."""

from typing import Iterator, Optional, Tuple

from ddp_doctor import nccl
from ddp_doctor.checks._job import ranks_here, world_size
from ddp_doctor.facts import UNLIMITED, Env, Launch, Limits, Rdma
from ddp_doctor.model import Reading, Severity, check, known, unknown
from ddp_doctor.policy import Policy
from ddp_doctor.units import count, plural, size

OWN_DESCRIPTORS = 512
"""Files that a rank has open whatever the size of the job (libraries, GPU devices, data loader workers): a margin of ours.
A rank of torch 2.13 with gloo, no GPU and two workers was measured to have 24."""
DESCRIPTORS_PER_RANK = 2
"""The master's process holds a connection of its key-value store for each rank, and Gloo a connection to each rank."""
TASKS_PER_RANK = 128
"""Processes and threads that a rank starts: data loader workers, NCCL proxies, CUDA and autograd threads: a margin of ours."""


@check(Severity.ERROR)
def memlock_too_low(limits: Limits, rdma: Rdma, policy: Policy, env: Optional[Env] = None) -> Iterator[Reading]:
    """Locked memory is too small to register RDMA buffers.

    Why: NCCL pins its InfiniBand buffers; past RLIMIT_MEMLOCK ibv_reg_mr fails with ENOMEM ("Cannot allocate memory") and
        the first collective dies with "unhandled system error". The kernel asks this only of processes without
        CAP_IPC_LOCK.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
        https://github.com/NVIDIA/nccl-tests/issues/206
        https://github.com/openucx/ucx/issues/8229
    """
    if _pins(rdma, policy, env):
        yield _memlock(limits, policy.memlock_min_bytes, "NCCL cannot pin its InfiniBand buffers")


@check(Severity.WARNING)
def memlock_limited(limits: Limits, rdma: Rdma, policy: Policy, env: Optional[Env] = None) -> Iterator[Reading]:
    """Locked memory is enough for a small job only.

    Why: Each further peer, channel and communicator pins more memory, so a limit that two nodes stay under is met by the
        same job on more nodes, late and with an unclear error. The usual advice for RDMA is no limit at all.
    See: https://docs.nvidia.com/deeplearning/nccl/archives/nccl_2143/user-guide/docs/troubleshooting.html
    """
    soft = known(limits.memlock_bytes, limits, "memlock_bytes").soft
    if (limits.cap_ipc_lock or soft >= policy.memlock_min_bytes) and _pins(rdma, policy, env):
        yield _memlock(limits, policy.memlock_recommended_bytes, "a large job may run out of memory that it can pin")


def _pins(rdma: Rdma, policy: Policy, env: Optional[Env]) -> bool:
    """Will NCCL register buffers for RDMA? Not for a job of one node, nor where it will take TCP."""
    devices = known(rdma.devices, rdma, "devices")
    return bool(devices) and policy.nnodes != 1 and nccl.carrier(rdma, env).kind != "sockets"


def _memlock(limits: Limits, least_bytes: int, message: str) -> Reading:
    soft = known(limits.memlock_bytes, limits, "memlock_bytes").soft
    enough = soft >= least_bytes
    exempt = enough or known(limits.cap_ipc_lock, limits, "cap_ipc_lock")
    return Reading(
        ok=exempt,
        measured=f"memlock {size(soft)} of {whose(limits)}" + (", CAP_IPC_LOCK" if limits.cap_ipc_lock else ""),
        expected=f"unlimited (at least {size(least_bytes)}), or CAP_IPC_LOCK",
        message=message,
    )


@check(Severity.ERROR)
def nofile_too_low(limits: Limits, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """The limit of open files is below what the job needs.

    Why: The master's key-value store holds a connection for every rank, and Gloo one to every rank; past the soft limit
        accept fails with "Too many open files" and the ranks that come late wait until they time out. NCCL raises its own
        soft limit to the hard one in one process only (setFilesLimit in src/bootstrap.cc); torch raises none.
    See: https://github.com/NVIDIA/nccl/issues/550
        https://pytorch.org/docs/stable/multiprocessing.html
    """
    nofile = known(limits.nofile, limits, "nofile")
    world = world_size(policy, launch)
    need, why = policy.nofile_min, "any job"
    if world is not None and OWN_DESCRIPTORS + DESCRIPTORS_PER_RANK * world > need:
        need, why = OWN_DESCRIPTORS + DESCRIPTORS_PER_RANK * world, plural(world, "rank")
    yield Reading(
        ok=nofile.soft >= need,
        measured=f"nofile {count(nofile.soft)} (hard {count(nofile.hard)}) of {whose(limits)}",
        expected=f"at least {need} for {why}",
        message=f"the job may run out of file descriptors: {count(nofile.soft)} allowed, {need} needed for {why}",
    )


@check(Severity.WARNING)
def too_few_tasks(limits: Limits, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """So few processes and threads may be started that the ranks may not all start theirs.

    Why: Data loader workers, NCCL's proxies, CUDA and OpenMP all start threads or processes. Past the cgroup's pids.max or
        RLIMIT_NPROC fork fails with EAGAIN: "Resource temporarily unavailable", "can't start new thread".
    See: https://docs.kernel.org/admin-guide/cgroup-v2.html
        https://man7.org/linux/man-pages/man2/getrlimit.2.html
    """
    ranks = ranks_here(policy, launch) or 1
    need = TASKS_PER_RANK * ranks
    for subject, left, name in _tasks_left(limits):
        if left is None:
            yield unknown(limits, name, subject)
        else:
            yield Reading(
                ok=left >= need,
                subject=subject,
                measured=_tasks(left) if subject == "cgroup" else f"nproc {count(left)} of {whose(limits)}",
                expected=f"at least {need} for {plural(ranks, 'rank')}",
                message="ranks, data loader workers or their threads may fail to start",
            )


def _tasks(left: int) -> str:
    return "no limit" if left >= UNLIMITED else f"{left} more tasks"


def _tasks_left(limits: Limits) -> Iterator[Tuple[str, Optional[int], str]]:
    """(subject, tasks left, field that says so). How many the user runs is not known: RLIMIT_NPROC counts as free."""
    most, used = limits.cgroup_pids_max, limits.cgroup_pids_current
    if most is None or most >= UNLIMITED:
        yield "cgroup", most, "cgroup_pids_max"
    else:
        yield "cgroup", None if used is None else max(0, most - used), "cgroup_pids_current"
    yield "user", limits.nproc.soft if limits.nproc else None, "nproc"


def whose(limits: Limits) -> str:
    """Whose limits were read: root's, or those of an ssh session, are not the job's."""
    return limits.whose or "this process"

"""Processes: what hangs in the kernel, and what an earlier job left behind."""

import re
from typing import Iterator, Optional, Tuple

from ddp_doctor.facts import Process, Processes
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.thresholds import bound
from ddp_doctor.units import seconds

_WAITS = (
    ("the NVIDIA driver", r"nv_|nvidia|os_acquire_|rm_|uvm_|_nv\d+rm"),
    ("a network file system", r"nfs|rpc_|wait_on_commit|ldlm_|ptlrpc|osc_|cl_sync_io|ceph|fuse_|request_wait_answer|gpfs|beegfs"),
    ("an RDMA adapter", r"ib_|mlx[45]_|rdma_|hfi1_"),
)  # fmt: skip
"""For what a process waits, by the kernel function that it sleeps in. Names as in the kernel's and the drivers' sources."""

_SERVANTS = re.compile(
    r"nvidia-|nv-|nv_|nvsm|nvtop|dcgm|X(org|wayland)?$|gnome-|kwin|plasmashell|slurm|containerd|dockerd|kubelet|node_export"
)
"""Daemons and desktops that hold a GPU for as long as they live."""

_TRAINERS = re.compile(r"python|pt_|ray::|torchrun|accelerate|deepspeed|mpirun|orted|hydra|all_reduce_perf")


@check(Severity.WARNING)
def stuck_in_kernel(processes: Processes) -> Iterator[Reading]:
    """A process hangs in the kernel.

    Why: A process that waits in state D for a GPU, an RDMA adapter or a network file system cannot be ended, not even
        with SIGKILL, and keeps what it holds: the next job finds the GPU taken, or hangs in the same place. Waiting for
        a local disk for a moment is normal and is not told.
    See: https://docs.kernel.org/admin-guide/sysctl/kernel.html#hung-task-timeout-secs
    """
    blocked = known(processes.blocked, processes, "blocked")
    stuck = [(process, where) for process in blocked for where in [_waits_for(process)] if where]
    for process, where in stuck:
        yield Reading(
            ok=False,
            subject=f"pid {process.pid}",
            measured=f"pid {process.pid} ({process.name}) in state D in two looks, {where}",
            expected="no process that hangs there",
            message=f"{process.name} (pid {process.pid}) hangs in the kernel, {where}",
        )
    if not stuck:
        yield Reading(
            ok=True, measured=f"{len(blocked)} processes in state D, none of them at a GPU, HCA or network disk"
        )


def _waits_for(process: Process) -> Optional[str]:
    """ "waiting for ...", or "holding /dev/nvidia0", where that is what a job needs."""
    names = [name for name, pattern in _WAITS if re.match(pattern, process.waits_in or "")]
    if names:
        return f"waiting for {names[0]} ({process.waits_in})"
    return f"holding {', '.join(process.devices)}" if process.devices else None


@check(Severity.WARNING)
def orphan_holds_gpu(processes: Processes) -> Iterator[Reading]:
    """A process without a parent holds a GPU.

    Why: When a launcher is killed, ranks can survive it: they keep GPU memory and the ports of the old job, and a new job
        dies with "CUDA out of memory" or "address already in use". A process that was meant to outlive its shell
        (nohup, tmux) looks the same: ask its owner.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    holding = known(processes.holding, processes, "holding")
    if not holding or processes.own_namespace is not True:  # in a container pid 1 is the job itself
        return
    orphans = [process for process in holding if _is_orphan(process)]
    for process in orphans:
        yield Reading(
            ok=False,
            subject=f"pid {process.pid}",
            measured=_described(process),
            expected="processes of a running job, or a service",
            message=f"{process.name} (pid {process.pid}) holds a GPU and its launcher is gone: it may be left from an earlier job",
        )
    if not orphans:
        yield Reading(ok=True, measured=f"{len(holding)} processes hold a GPU, each with a parent or as a service")


def _is_orphan(process: Process) -> bool:
    """Adopted by init and no service: older than a moment, as a daemon that starts is adopted, too."""
    limit_s = bound("processes.orphan_age").warning or 0
    unit = process.unit or ""
    is_service = unit.endswith(".service") and not unit.startswith("user@")
    young = process.age_s is not None and process.age_s < limit_s
    return process.parent == 1 and not is_service and not young and not _SERVANTS.match(process.name or "")


def _described(process: Process) -> str:
    age = f", {seconds(process.age_s)} old" if process.age_s is not None else ""
    owner = f", of uid {process.uid}" if process.uid is not None else ""
    return f"{process.name} (pid {process.pid}{owner}{age}) holds {', '.join(process.devices or ())}"


@check(Severity.NOTE)
def rank_not_collected(processes: Processes) -> Iterator[Reading]:
    """A training process has ended and its parent has not noticed.

    Why: A zombie holds neither memory nor a GPU, but it is a rank that died while its launcher goes on: the other ranks
        wait for it until their timeout.
    See: https://man7.org/linux/man-pages/man2/wait.2.html
    """
    zombies = known(processes.zombies, processes, "zombies")
    ranks: Tuple[Process, ...] = tuple(z for z in zombies if _TRAINERS.match(z.name or ""))
    listed = ", ".join(f"{zombie.name} (pid {zombie.pid}, child of {zombie.parent})" for zombie in ranks[:8])
    yield Reading(
        ok=not ranks,
        measured=listed or f"{len(zombies)} zombies, none of a training process",
        expected="no zombie of a training process",
        message=f"ended and not collected by its parent: {listed}",
    )

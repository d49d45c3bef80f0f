"""Shared memory, host memory and GPU memory."""

from ddp_doctor.checks.logs._cause import cause

NCCL_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
DATA = "https://docs.pytorch.org/docs/stable/data.html"
CUDA_MEMORY = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
CGROUP = "https://docs.kernel.org/admin-guide/cgroup-v2.html"
OOM = (
    r"CUDA out of memory",
    r"torch(\.cuda)?\.OutOfMemoryError",
    r"CUDA error: out of memory",
    r"[Cc]uda failure( \d{1,4})? ?'out of memory'",
    r"CUDA_ERROR_OUT_OF_MEMORY",
    r"CUBLAS_STATUS_ALLOC_FAILED",
)
SOCKETS = (
    r"Connection closed by remote peer|Connection reset by peer|Socket recv failed while polling|remote process exited"
)
WATCHDOG = r"Watchdog caught collective operation timeout"

shm_too_small = cause(
    __name__,
    f"""The shared memory in /dev/shm is too small.

    Why: NCCL shares buffers between the ranks of a node there, about 9 MiB for each; a container gets 64 MiB unless told otherwise.
    See: {NCCL_TROUBLE}
    """,
    r"(posix_fallocate|ftruncate|shm_open|fallocate).{0,60}No space left on device",
    r"Error while creating shared memory segment",
    r"failed to extend /dev/shm/nccl-",
    r"/dev/shm/nccl-\S{1,40}.{0,60}(No space|failed)",
    r"unable to (write to|open) file </torch_\S{1,60}>",
    r"unable to mmap \d{1,15} bytes from file </torch_",
    tier=1,
    do="Start the container with --ipc=host or --shm-size=8g (Kubernetes: emptyDir with medium: Memory at /dev/shm).",
)

dataloader_bus_error = cause(
    __name__,
    f"""A data loader's worker died for want of shared memory.

    Why: Workers hand batches over in /dev/shm; writing beyond its size is a bus error.
    See: {DATA}
    """,
    r"bus error encountered in worker",
    r"DataLoader worker \(pid.{0,40}killed by signal: Bus error",
    r"[Ii]t is possible that dataloader's workers are out of shared memory",
    do="Enlarge /dev/shm (--shm-size=8g or --ipc=host), or use fewer workers.",
)

host_oom_sigkill = cause(
    __name__,
    f"""The kernel killed a process for want of memory.

    Why: The node's memory, or the limit of the job's or container's cgroup, was used up; the process gets SIGKILL without a word.
    See: {CGROUP}
    """,
    r"Out of memory: Kill(ed)? process",
    r"oom-kill:constraint=",
    r"Memory cgroup out of memory",
    r"oom_reaper: reaped process",
    r"invoked oom-killer",
    r"OOMKilled",
    r"[Dd]etected \d{1,6} (oom[-_]kill|OOM Kill)",
    r"oom-kill event",
    r"Some of (your|the step) (processes|tasks) (may )?have been .{0,40}OOM",
    r"Exceeded (job|step) memory limit",
    tier=0,
    do="Give the job more memory (--mem, the container's limit), or use less: fewer data loader workers, no copies of the data set in each rank.",
)

dataloader_worker_killed = cause(
    __name__,
    f"""A data loader's worker was killed.

    Why: Most often by the kernel for want of memory.
    See: {DATA}
    """,
    r"DataLoader worker \(pid\(?s?\)? ?.{1,60}\) (is killed by signal|exited unexpectedly)",
    unless=(r"[Bb]us error", r"Out of memory: Kill"),
    tier=2,
    confidence="medium",
    do="Look into dmesg on that node for the OOM killer; fewer workers, less prefetching.",
)

gpu_oom_peers_see_socket_errors = cause(
    __name__,
    f"""One rank ran out of GPU memory; its peers print socket errors.

    Why: The rank that fails first closes its connections; NCCL's warnings on the others only say that it is gone.
    See: {CUDA_MEMORY}
    """,
    *OOM,
    needs=(SOCKETS,),
    tier=0,
    do="Make that rank fit: smaller batches, activation checkpointing, sharding; see which rank holds more than others.",
)

gpu_oom_peers_see_watchdog_timeout = cause(
    __name__,
    f"""One rank ran out of GPU memory; its peers wait until the watchdog ends them.

    Why: The others wait in a collective for the rank that failed.
    See: {CUDA_MEMORY}
    """,
    *OOM,
    needs=(WATCHDOG,),
    unless=(SOCKETS,),
    tier=0,
    do="Make that rank fit: smaller batches, activation checkpointing, sharding; see which rank holds more than others.",
)

gpu_oom = cause(
    __name__,
    f"""A GPU's memory is used up.

    Why: Weights, activations and buffers, or another process on the same GPU, need more than it has.
    See: {CUDA_MEMORY}
    """,
    *OOM,
    unless=(SOCKETS, WATCHDOG),
    do="Smaller batches, activation checkpointing, sharding; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation; look for other processes (nvidia-smi).",
)

"""The scheduler, the disks, and GPUs that are not to be had."""

from ddp_doctor.checks.logs._cause import cause

SBATCH = "https://slurm.schedmd.com/sbatch.html"
CUDA_ERRORS = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
DIST = "https://docs.pytorch.org/docs/stable/distributed.html"

job_time_limit = cause(
    __name__,
    f"""The scheduler ended the job at its time limit.

    Why: Slurm cancels a job when --time is over; what ranks print while they are ended is no fault.
    See: {SBATCH}
    """,
    r"DUE TO TIME LIMIT",
    r"DeadlineExceeded|activeDeadlineSeconds",
    tier=0,
    do="Ask for more time (--time), write checkpoints before the end (--signal=B:USR1@300), and let the job go on in the next one.",
)

job_cancelled = cause(
    __name__,
    f"""The job was cancelled or preempted.

    Why: A person, the scheduler or the cloud ended it; ranks get SIGTERM.
    See: {SBATCH}
    """,
    r"DUE TO PREEMPTION",
    r"(JOB|STEP) \S{1,40} ON \S{1,80} CANCELLED AT",
    r"Received (SIGTERM|SIGINT|signal 15)|SignalException: Process \d{1,8} got signal: (15|2)\b",
    r"[Pp]reempt(ed|ion)\b.{0,60}(node|pod|instance|VM|job)",
    unless=(r"DUE TO TIME LIMIT",),
    tier=3,
    confidence="medium",
    do="See who cancelled it (sacct -j JOB, kubectl get events); write checkpoints on SIGTERM.",
)

node_failed = cause(
    __name__,
    f"""A node failed while the job ran.

    Why: Slurm or Kubernetes lost it: power, kernel, network; every rank there is gone at once.
    See: {SBATCH}
    """,
    r"DUE TO NODE FAILURE|NODE_FAIL|[Nn]ode failure on",
    r"NodeNotReady|node .{1,80} is not ready|node lost",
    tier=0,
    do="Look at the node that is named (console, BMC, dmesg of the boot before); start again without it (--exclude).",
)

disk_full = cause(
    __name__,
    """A disk is full, or a quota is used up.

    Why: Checkpoints, logs and caches fill it; whoever writes next fails.
    See: https://man7.org/linux/man-pages/man2/write.2.html
    """,
    r"No space left on device",
    r"Disk quota exceeded",
    r"OSError: \[Errno (28|122)\]",
    unless=(r"posix_fallocate|shm|shared memory|/dev/shm",),
    do="Free space or raise the quota where it was written: df -h, df -i, quota -s.",
)

cuda_illegal_access = cause(
    __name__,
    f"""A GPU kernel failed: a wrong address or an assertion.

    Why: An index out of range (labels, tokens), or a fault of a library; the line where it is reported is not where it happened.
    See: {CUDA_ERRORS}
    """,
    r"an illegal memory access was encountered",
    r"device-side assert triggered",
    r"unspecified launch failure",
    r"misaligned address",
    r"illegal instruction was encountered",
    unless=(r"uncorrectable ECC", r"\bXid\b[^\n]{0,40}[ :)](48|79|94|95|119|120)\b"),
    do="Run with CUDA_LAUNCH_BLOCKING=1 (or TORCH_USE_CUDA_DSA) to see the real line; look for the kernel's Xid in dmesg: one GPU alone, again and again, is the GPU.",
)

gpu_busy = cause(
    __name__,
    f"""The GPU is taken, or not to be had.

    Why: Another process holds it in exclusive mode, an earlier job left one behind, or the scheduler gave none.
    See: {CUDA_ERRORS}
    """,
    r"CUDA-capable device\(s\) is/are busy or unavailable",
    r"No CUDA GPUs are available",
    r"no CUDA-capable device is detected",
    do="See who holds it (nvidia-smi, ddp-doctor run), the compute mode, CUDA_VISIBLE_DEVICES, and what the scheduler gave.",
)

watchdog_stuck = cause(
    __name__,
    f"""The watchdog of a rank itself hangs.

    Why: A CUDA or NCCL call never returns: a driver or network that hangs, or Python's lock held by another thread.
    See: {DIST}
    """,
    r"watchdog (thread )?got stuck for \d{1,6} seconds",
    r"heartbeat monitor.{0,80}(terminating|timeout|timed out)",
    tier=4,
    confidence="medium",
    do="py-spy dump and gdb on the rank that hangs; dmesg for Xids; TORCH_NCCL_DUMP_ON_TIMEOUT=1 for the next run.",
)

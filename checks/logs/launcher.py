"""Launcher and rendezvous."""

from ddp_doctor.checks.logs._cause import PROGRESS, cause

TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
DIST = "https://docs.pytorch.org/docs/stable/distributed.html"
NCCL_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

port_in_use = cause(
    __name__,
    f"""The port of the rendezvous is in use.

    Why: Another job, or what is left of an earlier one, listens on MASTER_PORT; the store of rank 0 cannot be opened there.
    See: {TORCHRUN}
    """,
    r"EADDRINUSE",
    r"[Aa]ddress already in use",
    r"errno: 98\b",
    r"system error: 10048",
    do="Take another port (--master-port, or --rdzv-endpoint HOST:0 on one node), or end the job that holds it: ss -ltnp.",
)

rendezvous_numeric_hostname = cause(
    __name__,
    f"""A host name of digits is taken for an IP address.

    Why: The resolver reads a name such as "05" as the address 0.0.0.5, and every rank then connects into nothing.
    See: {TORCHRUN}
    """,
    r"any network address of \(\d{1,10}, \d{1,5}\)",
    r"failed to connect to \[?(::ffff:)?0\.0\.\d{1,3}\.\d{1,3}\]?:\d{1,5}",
    do="Give the host a name that is no number, or name the master by its address.",
)

rendezvous_hostname_resolution = cause(
    __name__,
    f"""The name of the master does not resolve, or leads to a wrong address.

    Why: Every rank looks up MASTER_ADDR, or the name that the first agent published, on its own node.
    See: {TORCHRUN}
    """,
    r"\[c10d\].{0,200}(gai error|Name or service not known|Temporary failure in name resolution|nodename nor servname)",
    r"(getaddrinfo|gethostbyname)\b.{0,160}(Name or service not known|Temporary failure|failed)",
    r"socket\.gaierror",
    r"UnknownHostException",
    r"address of \(.{1,200}\) cannot be retrieved",
    r"failed to connect to \[?[A-Za-z][\w.-]{0,200}\]?:\d{1,5} \(errno: 113 - No route to host\)",
    do="Let the name resolve to the same routable address on every node (DNS or /etc/hosts), or use the address: "
    "ddp-doctor run --master-addr NAME on each node shows what it finds.",
)

rendezvous_no_host = cause(
    __name__,
    f"""No agent takes itself for the host of the rendezvous, or it cannot be reached.

    Why: With the c10d back end the agent whose own name or address is that of the endpoint opens the store. Where the
        endpoint is a service's name or an address behind NAT, nobody does, and all wait until they time out.
    See: {TORCHRUN}
    """,
    r"RendezvousConnectionError",
    r"The connection to the C10d store has failed",
    unless=(
        r"Address already in use",
        r"gai error",
        r"Name or service not known",
        r"No route to host",
        r"has failed to (shutdown|send a keep-alive)",
    ),
    confidence="medium",
    do="Name the first node as it calls itself (hostname) in --rdzv-endpoint, or add --rdzv-conf is_host=1 there and is_host=0 "
    "on the others; or use --master-addr and --node-rank.",
)

rendezvous_store_shared = cause(
    __name__,
    f"""Two jobs meet in one rendezvous.

    Why: Agents of different jobs with the same endpoint and --rdzv-id join each other; counts do not fit, or one is turned away.
    See: {TORCHRUN}
    """,
    r"RendezvousClosedError",
    r"The rendezvous '.{0,80}' has already been closed",
    r"RendezvousStateError",
    r"has failed to shutdown the rendezvous",
    tier=2,
    do="Give every job its own --rdzv-id and its own port.",
    confidence="medium",
)

rendezvous_timeout = cause(
    __name__,
    f"""A node did not come to the rendezvous in time.

    Why: All agents wait until --nnodes of them are there. One was not started, cannot reach the endpoint, or was given
        another --nnodes or --rdzv-id.
    See: {TORCHRUN}
    """,
    r"RendezvousTimeoutError",
    r"Timed out waiting for clients",
    r"[Tt]imed out after \d{1,6} seconds? waiting for clients",
    r"\d{1,5}/\d{1,5} clients joined",
    r"wait timeout after \d{1,9}ms, keys: /?(default_pg|store_based_barrier|init)",
    r"Timed out initializing process group in store based barrier",
    tier=4,
    confidence="medium",
    do="See which node is missing (worker_count tells how many came): start it, or look from there: "
    "ddp-doctor run --master-addr HOST --master-port PORT.",
)

rendezvous_wrong_master = cause(
    __name__,
    f"""Ranks look for the master where nobody listens.

    Why: MASTER_ADDR names another node than the one with rank 0, or leads to the node itself (localhost) on all of them, or
        rank 0 has not started or has ended.
    See: {DIST}
    """,
    r"\[c10d\] The client socket has (failed to connect|timed out)",
    r"client socket has timed out after \d{1,9}(s|ms) while trying to connect",
    r"TCPStore.{0,80}(Connection refused|timed out)",
    unless=(
        r"errno: 97 - Address family not supported",
        r"any network address of \(\d{1,10}, \d{1,5}\)",
        r"RendezvousConnectionError",
    ),
    tier=4,
    confidence="low",
    do="Name the node of rank 0 by an address that all nodes reach, the same on all: ddp-doctor run --nodes tries it.",
)

launcher_local_rank_arg = cause(
    __name__,
    f"""The launcher passes --local-rank, which the script does not know.

    Why: The launcher torch.distributed.launch adds --local-rank (with a dash since torch 2.0) to the script's arguments; torchrun sets
        LOCAL_RANK in the environment instead.
    See: {TORCHRUN}
    """,
    r"unrecognized arguments:.{0,200}--local[-_]rank",
    r"the following arguments are required:.{0,200}local[-_]rank",
    do="Start with torchrun and read os.environ['LOCAL_RANK'], or let the script's argparse accept --local-rank and --local_rank.",
)

device_ordinal_global_rank = cause(
    __name__,
    f"""A rank asks for a GPU by a number that this node does not have: the global rank was used as the device.

    Why: On the second node ranks begin with the number of GPUs of the first; the device is LOCAL_RANK.
    See: {TORCHRUN}
    """,
    r"invalid device ordinal",
    needs=(
        r"world size:? ?\d|--nnodes|node[ _-]?rank[^\n]{0,20}[1-9]|nnodes|[Rr]ank (8|9|1\d)\b|cuda:(8|9|1\d)|\.set_device\(.{0,20}\brank\b|\.cuda\(.{0,20}\brank\b|to\(rank\)|2 nodes|two nodes|machine_rank",
    ),
    do="Use int(os.environ['LOCAL_RANK']) for torch.cuda.set_device and device_ids.",
)

device_ordinal_nproc = cause(
    __name__,
    f"""More ranks were started on a node than it shows GPUs.

    Why: Rank n of the node asks for GPU n; with --nproc-per-node above the number of visible GPUs the last ones have none.
    See: {TORCHRUN}
    """,
    r"invalid device ordinal",
    r"CUDA_ERROR_INVALID_DEVICE",
    confidence="medium",
    do="Set --nproc-per-node to the number of visible GPUs (nvidia-smi -L, CUDA_VISIBLE_DEVICES, the scheduler's --gpus); "
    "ddp-doctor run --nproc-per-node N says it beforehand.",
)

duplicate_gpu = cause(
    __name__,
    f"""Two ranks use one GPU.

    Why: The device was not set from LOCAL_RANK before the first collective, or every rank sees one and the same GPU.
    See: {DIST}
    """,
    r"Duplicate GPU detected",
    do="Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group, and start no more ranks than GPUs.",
)

slurm_env = cause(
    __name__,
    """A library takes Slurm's variables for the job's.

    Why: In an interactive allocation SLURM_NTASKS and its like are set although srun starts no ranks; Lightning and others
        then wait for ranks that nobody starts.
    See: https://lightning.ai/docs/pytorch/stable/clouds/cluster_advanced.html
    """,
    r"The `?srun`? command is available on your system but is not used",
    r"You set `?--ntasks=\d{1,6}`? in your SLURM",
    r"If you're not using SLURM, ignore this message",
    r"You are running in a SLURM job but|SLURM_NTASKS.{0,80}(does not match|mismatch|differs|not equal)",
    r"(slurmstepd|srun): error: .{0,200}(task|step)[^\n]{0,40}(exceeded|[Ii]nvalid)",
    confidence="medium",
    tier=2,
    unless=(*PROGRESS,),
    do="Start with srun, or unset SLURM_NTASKS and SLURM_JOB_NAME in an interactive shell (SLURM_JOB_NAME=interactive for Lightning).",
)

mpi_backend_under_torchrun = cause(
    __name__,
    f"""MPI's back end is used in ranks that torchrun started.

    Why: ProcessGroupMPI needs ranks that mpirun started; under torchrun MPI starts as a world of one in each rank, and
        crashes or hangs.
    See: {DIST}
    """,
    r"ProcessGroupMPI",
    r"init_process_group\(.{0,40}['\"]mpi['\"]",
    needs=(r"Signal 11|signal 11|SIGSEGV|Segmentation fault|exitcode: -11|torchrun|torch\.distributed\.(elastic|run)",),
    tier=0,
    do="Use the back end nccl (or gloo) with torchrun, or start the ranks with mpirun.",
)

world_size_mismatch = cause(
    __name__,
    f"""The nodes do not agree on how many ranks there are.

    Why: --nnodes, --nproc-per-node or WORLD_SIZE differ between nodes, or a script was started with a part of the ranks.
    See: {TORCHRUN}
    """,
    r"world[_ ]size.{0,60}(does not match|mismatch|not equal|must be)",
    r"Rank \d{1,6} is (greater|larger) than or equal to world",
    r"rank \d{1,6} out of range|invalid rank|rank.{0,20}should be in the interval",
    r"expected world size of \d{1,6}, but got",
    r"More than \d{1,6} clients joined|client rank.{0,40}already exists",
    do="Start every node with the same --nnodes and --nproc-per-node, each with its own --node-rank.",
)

windows_no_nccl = cause(
    __name__,
    f"""NCCL is not in this torch: there is none for Windows.

    Why: NCCL runs on Linux alone; torch for Windows has Gloo.
    See: {DIST}
    """,
    r"Distributed package doesn't have NCCL",
    needs=(r"[A-Z]:\\|win32|Windows|site-packages\\",),
    do="Use backend='gloo' on Windows, or WSL2.",
)

backend_missing = cause(
    __name__,
    f"""This torch was built without the back end that is asked for.

    Why: CPU builds have no NCCL, wheels have no MPI.
    See: {DIST}
    """,
    r"Distributed package doesn't have (NCCL|MPI|UCC|GLOO|XCCL)",
    r"(NCCL|MPI|UCC) (is not available|backend is not available|not built)",
    r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
    r"Unknown c10d backend type",
    unless=(r"[A-Z]:\\",),
    do="Install the torch build for this machine's GPU (ddp-doctor matrix), or take a back end that it has.",
)

"""Policy: what the user expects of a node, with stock values that no healthy node fails.

Field names are the keys of ``[policy]`` in ddp-doctor.toml (see ``config.py``). Sizes are in bytes; the file may write
them as "8 GiB".
"""

import datetime
from dataclasses import dataclass, field, replace
from typing import Dict, Optional, Tuple

from ddp_doctor.facts import Launch

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True)
class Waiver:
    """A finding that a site knows and accepts. subject: a glob, "*" for all; until: last day on which it holds."""

    check: str
    reason: str
    subject: str = "*"
    until: Optional[datetime.date] = None


@dataclass(frozen=True)
class Policy:
    """What is expected."""

    # the job
    nnodes: Optional[int] = None
    """Number of nodes of the job; None: unknown (rules about several nodes are then notes)."""
    nproc_per_node: Optional[int] = None
    launcher: Optional[str] = None
    """torchrun, slurm, ssh, mpirun, deepspeed or kubernetes; the middle three log in by ssh."""
    scope: str = "user"
    """node, job or user: whose readiness is judged (a prolog as root judges the node)."""
    homogeneous: bool = True
    """All nodes of the job are alike: WORLD_SIZE must be nnodes x nproc_per_node."""

    partitions: Dict[str, Tuple[str, ...]] = field(default_factory=dict)
    """Kinds of nodes that differ on purpose: name -> their nodes, as sets "gpu[01-32]" or patterns "a100-*". Nodes are
    compared with those of their own partition only; nodes that none names are one more."""

    # what must be there
    require: Tuple[str, ...] = ()
    """Sections that must have been read: gpus, rdma, torch ..."""
    expect_gpus: Optional[int] = None
    expect_gpu_model: Optional[str] = None
    mig: str = "allowed"
    """allowed, forbidden or required."""

    # versions
    os_minimum: Dict[str, str] = field(default_factory=dict)
    """Distribution id -> lowest version: {"centos": "8.2"}. A distribution that is not named is accepted."""
    os_recommended: Dict[str, str] = field(default_factory=dict)
    os_only_named: bool = False
    """Only distributions named in os_minimum are accepted."""
    driver_minimum: Optional[str] = None
    """Driver floor of the site. Without it the floor follows from the installed CUDA build, and is 450.80.02, the floor of
    CUDA 11 (NVIDIA CUDA compatibility guide, minor version compatibility), where none is installed."""

    # limits and space
    memlock_min_bytes: int = 256 * MIB
    """Below it registering RDMA buffers fails. NCCL pins about 9.2 MiB for each channel, peer and direction (the segment in
    NVIDIA/nccl issue 1518); a ring and a tree of two channels take 110 MiB, and a job has at least two communicators.
    64 KiB and 8 MiB, the defaults of old and new kernels, are known to fail (openucx/ucx issue 8229, nccl-tests issue 206)."""
    memlock_recommended_bytes: int = 16 * GIB
    """Below it a large job may fail although a small one runs; AWS's EFA check asks for 16 GiB (awslabs/awsome-distributed-ai,
    2-efa-enumeration.sh), NCCL's and the MPI's guides for unlimited."""
    nofile_min: int = 1024
    """Soft limit of open files that any job needs: the login default of every current distribution. Where the size of the job
    is known, limits/nofile-too-low computes its need."""
    shm_min_bytes: Optional[int] = None
    """Size of /dev/shm. None: 512 MiB, where DeepSpeed's ds_report begins to warn (deepspeed/env_report.py), or half of the
    machine's memory where that is less: the kernel's own default for a tmpfs."""
    disk_free_min_bytes: int = 1 * GIB
    disk_free_min_percent: float = 5.0
    """A place is nearly full when both bounds are undercut: 5 % as in imbue's host health checks, and 1 GiB so that a large
    file system is not called full while a checkpoint still fits."""
    inodes_free_min_percent: float = 2.0
    """In percent of all inodes: a bound of our own, no standard names one."""
    memory_available_min_percent: float = 5.0
    memory_available_min_bytes: int = 2 * GIB
    """Memory is low when both bounds are undercut. Both are bounds of our own, no source names one: a rank with torch and CUDA
    takes some 2 GiB of host memory before it holds any data."""

    # network
    interface_min_gbit_s: Optional[float] = None
    """Lowest link speed of the interface that NCCL uses for sockets; None: below 10 Gb/s is a note."""
    clock_error_max_s: float = 1.0
    """Largest acceptable clock offset from the synchroniser's reference, in seconds (awslabs/awsome-distributed-ai issue 180)."""
    ignore_hcas: Tuple[str, ...] = ()
    """Storage and management HCAs, as "mlx5_2" or "mlx5_2:1"; their ports are not judged."""

    # judging
    waivers: Tuple[Waiver, ...] = ()
    today: Optional[datetime.date] = None
    """Day of judging (or --as-of)."""
    collected_on: Optional[datetime.date] = None
    """Day on which the node's facts were taken; the engine fills it in."""
    examined: Optional[int] = None
    """Nodes that are examined together: that many has the job, where nothing else says so and there are several."""

    @property
    def day(self) -> datetime.date:
        """The day as of which waivers are judged."""
        return self.today or datetime.date.today()

    @property
    def age_day(self) -> datetime.date:
        """The day as of which ends of life are judged: that of the facts, so that an old bundle is judged as it was."""
        return self.collected_on or self.day


def for_node(policy: Policy, launch: Optional[Launch]) -> Policy:
    """The policy with what only the node's launcher knows: number of nodes, ranks per node, launcher."""
    examined = policy.examined if (policy.examined or 0) > 1 else None
    if launch is None:
        return policy if policy.nnodes is not None else replace(policy, nnodes=examined)
    return replace(
        policy,
        nnodes=next((n for n in (policy.nnodes, launch.nnodes, examined) if n is not None), None),
        nproc_per_node=policy.nproc_per_node if policy.nproc_per_node is not None else launch.nproc_per_node,
        launcher=policy.launcher if policy.launcher is not None else launch.launcher,
    )

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
    memlock_min_bytes: int = 2**63 - 1
    """Where RDMA is used. NCCL's and the MPI's guides ask for unlimited; see limits/memlock-too-low."""
    nofile_min: int = 4096
    """Soft limit of open files. A rank needs some descriptors per peer connection and data loader worker; 1024, the login
    default, runs out in the hundreds of ranks."""
    shm_min_bytes: int = 1 * GIB
    """/dev/shm. Containers get 64 MiB by default (Docker's --shm-size), NCCL and data loaders share memory there."""
    disk_free_min_bytes: int = 1 * GIB
    disk_free_min_percent: float = 5.0
    """A place is nearly full when both bounds are undercut."""
    inodes_free_min_percent: float = 2.0
    memory_available_min_percent: float = 5.0
    memory_available_min_bytes: int = 2 * GIB

    # network
    interface_min_gbit_s: Optional[float] = None
    """Lowest link speed of the interface that NCCL uses for sockets; None: below 10 Gb/s is a note."""
    clock_error_max_s: float = 1.0
    """Largest acceptable clock offset from the synchroniser's reference."""
    ignore_hcas: Tuple[str, ...] = ()
    """Storage and management HCAs, as "mlx5_2" or "mlx5_2:1"; their ports are not judged."""

    # judging
    waivers: Tuple[Waiver, ...] = ()
    today: Optional[datetime.date] = None
    """Day of judging (or --as-of)."""


def for_node(policy: Policy, launch: Optional[Launch]) -> Policy:
    """The policy with what only the node's launcher knows: number of nodes, ranks per node, launcher."""
    if launch is None:
        return policy
    return replace(
        policy,
        nnodes=policy.nnodes if policy.nnodes is not None else launch.nnodes,
        nproc_per_node=policy.nproc_per_node if policy.nproc_per_node is not None else launch.nproc_per_node,
        launcher=policy.launcher if policy.launcher is not None else launch.launcher,
    )

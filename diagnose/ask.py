"""Ask: what may be asked of a node, as one value. Collectors take ``(host, ask)``."""

from dataclasses import dataclass
from typing import Optional, Tuple

PROFILES = ("quick", "standard", "deep")


@dataclass(frozen=True)
class Ask:
    """What to look at, and how deep.

    profile: quick sends nothing and imports no torch; standard also imports torch, asks DNS, the named ports
    and logins; deep adds samples and compute tests.
    """

    profile: str = "standard"
    launcher: Optional[str] = None
    """torchrun, slurm, ssh, mpirun, deepspeed or kubernetes, when the user said so."""
    nnodes: Optional[int] = None
    node_rank: Optional[int] = None
    nproc_per_node: Optional[int] = None
    master_addr: Optional[str] = None
    master_port: Optional[int] = None
    peers: Tuple[str, ...] = ()
    """Nodes to which a login without a password is tried."""
    ports: Tuple[Tuple[str, int], ...] = ()
    """Further (host, port) pairs to reach."""
    python: Optional[str] = None
    """Interpreter to examine; None: found as ``collect.torch`` says."""
    cwd: Optional[str] = None
    sample_s: float = 0.0
    """Seconds between two readings of counters; 0: one reading."""

    @property
    def active(self) -> bool:
        """May something be sent, and may torch be imported?"""
        return self.profile != "quick"

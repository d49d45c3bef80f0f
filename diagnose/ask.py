"""Ask: what may be asked of a node, as one value. Collectors take ``(host, ask)``."""

from dataclasses import dataclass, fields, replace
from typing import Any, Dict, Optional, Tuple

PROFILES = ("quick", "standard", "deep")
SSH_LAUNCHERS = ("ssh", "mpirun", "deepspeed")
"""Launchers that log in to every node; the others start their ranks by a daemon, or on each node by hand."""


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
    compute: Optional[bool] = None
    """Run the compute test on the GPUs, or do not; None: as the profile says."""

    @property
    def active(self) -> bool:
        """May something be sent, and may torch be imported?"""
        return self.profile != "quick"


def over(recorded: Any, given: Ask) -> Ask:
    """What was asked of a recorded node, with what ``given`` says otherwise; ``given`` alone where the record is damaged."""
    names = [field.name for field in fields(Ask) if field.name != "cwd"]  # ours is nobody's on that node
    said = {name: getattr(given, name) for name in names if getattr(given, name) != getattr(Ask(), name)}
    try:
        return replace(typed(recorded), **said)
    except (TypeError, ValueError, AttributeError):
        return given


def typed(plain: Dict[str, Any]) -> Ask:
    """What was asked, from its JSON data. Raises TypeError, ValueError or AttributeError where it is something else."""
    values: Dict[str, Any] = {name: value for name, value in plain.items() if isinstance(value, (str, int, float))}
    values["peers"] = tuple(str(peer) for peer in plain.get("peers", ()))
    values["ports"] = tuple((str(host), int(port)) for host, port in plain.get("ports", ()))
    return Ask(**values)

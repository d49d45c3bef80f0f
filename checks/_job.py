"""What several checks ask about the job."""

from typing import Optional

from ddp_doctor.facts import Launch
from ddp_doctor.policy import Policy


def ranks_here(policy: Policy, launch: Optional[Launch] = None) -> Optional[int]:
    """Ranks on this node, as the policy or the launcher says; None when neither does."""
    if policy.nproc_per_node is not None:
        return policy.nproc_per_node
    return launch.local_world_size if launch is not None else None


def world_size(policy: Policy, launch: Optional[Launch] = None) -> Optional[int]:
    """Ranks of the whole job: the launcher's WORLD_SIZE, else nodes times ranks per node; None when not known."""
    if launch is not None and launch.world_size is not None:
        return launch.world_size
    here = ranks_here(policy, launch)
    return None if here is None or policy.nnodes is None else here * policy.nnodes

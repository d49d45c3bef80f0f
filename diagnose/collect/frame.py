"""The frame of a node's facts: its name, when and how they were taken."""

from typing import Any, Dict

from ddp_doctor.ask import Ask
from ddp_doctor.facts import How
from ddp_doctor.host import Host, optional


def read(host: Host, ask: Ask, tool_version: str) -> Dict[str, Any]:
    """name, collected_at and how of ``NodeFacts``."""
    unread: Dict[str, Any] = {}
    name = optional(lambda: host.read("/proc/sys/kernel/hostname").strip(), unread, "name")
    uid, user = optional(host.user, unread, "user") or (None, None)
    how = How(
        via="local",
        user=user,
        uid=uid,
        tool_version=tool_version,
        python=optional(host.python, unread, "python"),
        profile=ask.profile,
        job=_job(optional(host.env, unread, "env") or {}),
    )
    return {"name": name or "unknown", "collected_at": optional(host.now, unread, "now"), "how": how}


def _job(env: Dict[str, str]) -> Any:
    """The scheduler's job in which the facts were taken."""
    for variable, scheduler in (("SLURM_JOB_ID", "slurm"), ("PBS_JOBID", "pbs"), ("LSB_JOBID", "lsf")):
        if variable in env:
            return f"{scheduler} {env[variable]}"
    return None

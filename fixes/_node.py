"""What several fixes ask about the node."""

import shlex
from typing import Optional

from ddp_doctor.facts import Launch, Os
from ddp_doctor.model import Step, command, say

KUBERNETES_VOLUME_URL = "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir"


def engine_of(os: Optional[Os]) -> str:
    """Who set the limits: kubernetes, docker (and what takes its options), or "" for the machine itself.

    Apptainer and enroot run with the limits and the /dev/shm of the session that starts them.
    """
    kind = (os.container or "") if os is not None else ""
    if kind in ("", "apptainer", "enroot"):
        return ""
    return "kubernetes" if kind == "kubernetes" else "docker"


def is_slurm(launch: Optional[Launch]) -> bool:
    """Was this process started by Slurm, or will the job be?"""
    return launch is not None and (launch.launcher == "slurm" or bool(launch.slurm))


def install(os: Optional[Os], redhat: str, debian: str) -> Step:
    """Install a package under its name in the distribution's family; what serves neither gets Red Hat's name in words."""
    names = {os.id or "", *(os.like or ())} if os is not None else set()
    if names & {"debian", "ubuntu"}:
        return command(f"apt-get install -y {debian}", who="root", scope="this node")
    if names & {"suse", "opensuse", "sles"} or any(name.startswith("opensuse") for name in names):
        return command(f"zypper install -y {redhat}", who="root", scope="this node")
    return command(f"dnf install -y {redhat}", who="root", scope="this node")


_MANAGE = {"enable --now": "Start", "restart": "Restart", "stop": "Stop"}


def service(os: Optional[Os], verb: str, names: str, **more: str) -> Step:
    """Start, restart or stop services as root: by systemctl, or in words where systemd does not run. names: quoted."""
    if os is not None and os.systemd is False:
        text = f"{_MANAGE[verb]} {names}: systemd does not run here, so by what manages the services of this system."
        return say(text, **{"who": "root", **more, "undo": ""})
    return command(f"systemctl {verb} {names}", **{"who": "root", **more})


def is_debian(os: Optional[Os]) -> bool:
    """Debian, Ubuntu and their children: their service of sshd is called ssh, that of chronyd chrony."""
    return os is not None and bool({os.id, *(os.like or ())} & {"debian", "ubuntu"})


def quoted(path: str) -> str:
    """A path for a command line that nothing takes for an option."""
    return shlex.quote(path if not path.startswith("-") else "./" + path)

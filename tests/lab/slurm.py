"""A real Slurm on hosts of a lab: munge, a controller on the first host, and slurmd on the others.

with Lab() as lab, Slurm(lab, "head", ["n1", "n2"]) as slurm:
    slurm.run(["srun", "-N2", "hostname"])

Everything lies in the lab's folder. slurmd wants a freezer cgroup of version 1: each host gets its own mount of it, and the
folders that slurmd makes there are removed in the end.
"""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from .hosts import Lab, LabHost, Unable

READY_S = 60
"""A controller and three slurmd are there in some 2 s."""
STATES = ("idle", "mixed", "allocated")
CGROUP = "/sys/fs/cgroup"

_CONF = """\
ClusterName=lab
SlurmctldHost={head}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=5
{settings}
{nodes}
PartitionName=lab Nodes=ALL Default=YES State=UP MaxTime=60
"""
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\nCgroupAutomount=no\n"
_MOUNT = """
set -e
mount -t tmpfs tmpfs {0}
mkdir {0}/freezer
mount -t cgroup -o freezer freezer {0}/freezer
"""


class Slurm:
    """The controller on ``head``; ``nodes`` are hosts of the lab, which are made where they are not there."""

    def __init__(self, lab: Lab, head: str, nodes: Sequence[str], settings: str = "") -> None:
        missing = [tool for tool in ("slurmctld", "slurmd", "munged", "srun") if shutil.which(tool) is None]
        if missing:
            raise Unable(f"not installed: {' '.join(missing)}")
        self.lab, self.folder = lab, lab.folder / "slurm"
        self.head = self._host(head)
        self.nodes = {name: self._host(name) for name in nodes}
        self.started: Dict[str, subprocess.Popen[bytes]] = {}
        self.folder.mkdir()
        self.before = set(self._freezers())
        (self.folder / "slurm.conf").write_text(
            _CONF.format(
                head=head,
                folder=self.folder,
                settings=settings,
                nodes="\n".join(f"NodeName={name} CPUs=1 State=UNKNOWN" for name in nodes),
            )
        )
        (self.folder / "cgroup.conf").write_text(_CGROUP_CONF)
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        try:
            self._start_munge()
            self._start("slurmctld", self.head, ["slurmctld", "-D"])
            for name, host in self.nodes.items():
                self._mount_cgroup(host)
                self._start(name, host, ["slurmd", "-D", "-N", name])
            self.wait_for(dict.fromkeys(nodes, STATES))
        except BaseException:
            self.close()
            raise

    def _host(self, name: str) -> LabHost:
        return self.lab.hosts.get(name) or self.lab.add(name)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        words = [f"--{option}={folder / name}" for option, name in files.items()]
        self._start("munged", self.head, ["munged", "--foreground", "--force", "--num-threads=2", *words])
        end = time.monotonic() + READY_S
        while not (folder / "socket").exists() and time.monotonic() < end:
            self._alive("munged")

    def _mount_cgroup(self, host: LabHost) -> None:
        done = host.run(["sh", "-c", _MOUNT.format(CGROUP)], check=False)
        if done.returncode:
            raise Unable(f"no freezer cgroup of version 1: {done.stderr.strip()}")

    def _start(self, name: str, host: LabHost, argv: Sequence[str]) -> None:
        with open(self.folder / f"{name}.out", "wb") as out:
            self.started[name] = subprocess.Popen(
                host.argv(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **self.env}
            )

    def _alive(self, name: str) -> None:
        if self.started[name].poll() is not None:
            words = (self.folder / f"{name}.out").read_text(errors="replace").strip().splitlines()
            raise Unable(f"{name} ended: {words[-1] if words else self.started[name].returncode}")

    def states(self) -> Dict[str, str]:
        """Node -> state, as sinfo tells them; none while the controller does not answer."""
        done = self.run(["sinfo", "-h", "-N", "-o", "%N %T"], check=False)
        return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)

    def wait_for(self, wanted: Dict[str, Sequence[str]]) -> None:
        """Until the nodes are in one of these states. Raises Unable when a server ends, or it takes READY_S."""
        end = time.monotonic() + READY_S
        while True:
            states = self.states()
            if all(states.get(name) in allowed for name, allowed in wanted.items()):
                return
            for name in list(self.started):
                self._alive(name)
            if time.monotonic() > end:
                raise Unable(f"after {READY_S} s the nodes are {states}")

    def run(
        self, argv: Sequence[str], check: bool = True, env: Optional[Dict[str, str]] = None, stdin: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on the head, where Slurm's commands find their configuration."""
        words = [f"{name}={value}" for name, value in {**self.env, **(env or {})}.items()]
        return self.head.run(["env", *words, *argv], stdin=stdin, check=check)

    def stop(self, name: str) -> None:
        """Kill a node's slurmd."""
        process = self.started.pop(name)
        process.terminate()
        process.wait()

    def close(self) -> None:
        """End every server, and remove what slurmd made in the machine's freezer."""
        for process in self.started.values():
            process.terminate()
        for process in self.started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        self.started.clear()
        for host in (*self.nodes.values(), self.head):
            host.close()
        for folder in sorted(set(self._freezers()) - self.before, key=len, reverse=True):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def _freezers(self) -> List[str]:
        found = []
        for top in Path(f"{CGROUP}/freezer").glob("slurm*"):
            found += [str(top), *(str(path) for path in top.rglob("*") if path.is_dir())]
        return found

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

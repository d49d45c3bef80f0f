"""Remedies for resource limits: each where the limit is set, in the container, in Slurm, by PAM, or in the shell."""

from typing import Iterator, Optional

from ddp_doctor.facts import UNLIMITED, Launch, Limit, Limits, Os
from ddp_doctor.fixes._node import engine_of, is_slurm, service
from ddp_doctor.model import Remedy, Verdict, command, say, write_file
from ddp_doctor.policy import Policy

SLURM_FAQ = "https://slurm.schedmd.com/faq.html#memlock"
_SLURMD = "/etc/systemd/system/slurmd.service.d/limits.conf"
_RELOGIN = say("Log in again: PAM sets these limits at the login, and no running process gets the new ones.")


def memlock_too_low(
    limits: Limits, policy: Policy, os: Optional[Os] = None, launch: Optional[Launch] = None
) -> Iterator[Remedy]:
    """Lift the limit where it is set."""
    yield from _memlock(limits, policy.memlock_min_bytes, os, launch)


def memlock_limited(
    limits: Limits, policy: Policy, os: Optional[Os] = None, launch: Optional[Launch] = None
) -> Iterator[Remedy]:
    """Lift the limit where it is set."""
    yield from _memlock(limits, policy.memlock_recommended_bytes, os, launch)


def _memlock(limits: Limits, least_bytes: int, os: Optional[Os], launch: Optional[Launch]) -> Iterator[Remedy]:
    if limits.memlock_bytes and limits.memlock_bytes.hard >= least_bytes:
        yield _raise_soft("-l", limits.memlock_bytes, 1024)
    if engine_of(os) == "kubernetes":
        yield _pod_capability()
    elif engine_of(os) == "docker":
        yield _container("--ulimit memlock=-1:-1", "Lift the container's limit of locked memory")
    elif is_slurm(launch):
        yield _slurmd("LimitMEMLOCK=infinity", "PropagateResourceLimitsExcept=MEMLOCK", os)
    else:
        yield _limits_conf("memlock", "unlimited")


def nofile_too_low(
    limits: Limits, finding: Verdict, os: Optional[Os] = None, launch: Optional[Launch] = None
) -> Iterator[Remedy]:
    """Raise the soft limit in the job where the hard one allows it, else the hard one where it is set."""
    need = _number_in(finding.expected)
    if limits.nofile and limits.nofile.hard >= need:
        yield _raise_soft("-n", limits.nofile, 1)
        return
    if engine_of(os) == "kubernetes":
        yield Remedy(
            "Raise the limit of the node's container runtime",
            (
                say(
                    "Kubernetes passes on the runtime's limit: set LimitNOFILE of containerd's or CRI-O's service.",
                    who="cluster admin",
                ),
            ),
        )
    elif engine_of(os) == "docker":
        yield _container("--ulimit nofile=1048576:1048576", "Raise the container's limit of open files")
    elif is_slurm(launch):
        yield _slurmd("LimitNOFILE=1048576", "PropagateResourceLimitsExcept=NOFILE", os)
    else:
        yield _limits_conf("nofile", "1048576")


def too_few_tasks(finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Raise the cgroup's or the user's limit of tasks; or start fewer of them."""
    if finding.subject == "user":
        yield _limits_conf("nproc", "unlimited")
    elif engine_of(os) == "kubernetes":
        step = say("Raise podPidsLimit in the kubelet's configuration, or remove it.", who="cluster admin")
        yield Remedy("Raise the pod's limit of processes", (step,))
    elif engine_of(os) == "docker":
        yield _container("--pids-limit=-1", "Lift the container's limit of processes")
    else:
        step = say(
            "Raise TasksMax= of the slice or service that this session runs in (systemctl status shows it).", who="root"
        )
        yield Remedy("Raise the session's limit of processes", (step,))
    yield Remedy(
        "Start fewer", (say("Lower num_workers of the data loaders, and set OMP_NUM_THREADS=1.", scope="this job"),)
    )


def _raise_soft(option: str, limit: Limit, unit: int) -> Remedy:
    hard = "unlimited" if limit.hard >= UNLIMITED else str(limit.hard // unit)
    step = command(f"ulimit -S {option} {hard}", scope="this shell", undo="end the shell")
    return Remedy("Raise the soft limit in the shell or script that starts the ranks", (step,))


def _limits_conf(item: str, value: str) -> Remedy:
    path = f"/etc/security/limits.d/90-ddp-{item}.conf"
    content = f"* soft {item} {value}\n* hard {item} {value}\n"
    see = "https://man7.org/linux/man-pages/man5/limits.conf.5.html"
    file = write_file(path, content, who="root", scope="this node", undo=f"remove {path}", see=see)
    return Remedy("Raise the limit for all logins", (file, _RELOGIN))


def _slurmd(setting: str, propagate: str, os: Optional[Os]) -> Remedy:
    content, undo = f"[Service]\n{setting}\n", f"remove {_SLURMD}"
    drop_in = write_file(_SLURMD, content, who="root", scope="this node", undo=undo, see=SLURM_FAQ)
    words = f"Raise the limit where slurmd is started, as {setting} does where systemd runs."
    without = os is not None and os.systemd is False
    steps = (
        say(words, who="root", scope="this node", see=SLURM_FAQ) if without else drop_in,
        say(
            f"Add {propagate} to slurm.conf: srun else brings the login node's limit along.",
            who="cluster admin",
            see=SLURM_FAQ,
        ),
        *(() if without else (command("systemctl daemon-reload", who="root"),)),
        service(os, "restart", "slurmd", scope="this node", risk="running jobs go on"),
    )
    return Remedy("Raise the limit of Slurm's daemon: limits.conf is PAM's and does not reach job steps", steps)


def _container(option: str, title: str) -> Remedy:
    text = f"Start the container with {option} (docker, podman and nerdctl take the same option)."
    return Remedy(
        title, (say(text, scope="this job", see="https://docs.docker.com/reference/cli/docker/container/run/"),)
    )


def _pod_capability() -> Remedy:
    text = "Add to the container: securityContext: {capabilities: {add: [IPC_LOCK]}}"
    see = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
    return Remedy("Give the container CAP_IPC_LOCK: Kubernetes has no ulimit", (say(text, scope="this job", see=see),))


def _number_in(text: str) -> int:
    """The first whole number of an expectation: "at least 4608 for 2048 ranks"."""
    return next((int(word) for word in text.split() if word.isdigit()), 0)

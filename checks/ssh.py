"""Checks of ssh between nodes: only some launchers need it, and only for jobs of several nodes."""

import re
from typing import Iterator, Optional

from ddp_doctor.ask import SSH_LAUNCHERS
from ddp_doctor.facts import Logins, Os, Reason, Ssh, SshFile
from ddp_doctor.model import Reading, Severity, check, known, why_unknown
from ddp_doctor.policy import Policy

NO_LOGIN_LAUNCHERS = ("torchrun", "slurm", "kubernetes")
"""Launchers whose ranks are started on each node by hand or by a daemon: they log in nowhere."""
FAILURES = {
    "auth-refused": "the node refuses every key: a password would be asked for",
    "host-key-unknown": "the node's host key is not known here: ssh would ask whether to trust it",
    "host-key-changed": "the node's host key is not the one that is known here",
    "unresolved": "the node's name does not resolve",
    "refused": "nothing listens on the node's ssh port",
    "timed-out": "the node's ssh port does not answer",
    "unreachable": "there is no way to the node",
    "no-client": "there is no ssh client here",
    "remote-failed": "the login works but no command can be run",
    "error": "ssh failed",
}
GROUP_OR_OTHERS = 0o077
WRITABLE_BY_GROUP, WRITABLE_BY_ALL = 0o020, 0o002


@check(Severity.ERROR)
def login_fails(logins: Logins, policy: Policy) -> Iterator[Reading]:
    """A login without a password fails, and the launcher needs it.

    Why: Mpirun, DeepSpeed and ssh loops log in to every node to start its ranks, where nobody can type a password or accept
        a host key: the job does not start, or starts on some nodes and waits for the others.
    See: https://www.deepspeed.ai/getting-started/
        https://man.openbsd.org/ssh
    """
    if policy.launcher in SSH_LAUNCHERS:
        yield from _logins(logins)


@check(Severity.WARNING)
def login_perhaps_needed(logins: Logins, policy: Policy) -> Iterator[Reading]:
    """A login without a password fails, and nothing says whether the launcher needs one.

    Why: Mpirun, DeepSpeed and ssh loops log in to every node to start its ranks; torchrun, Slurm and Kubernetes do not.
        --launcher or the policy tells which it is.
    See: https://www.deepspeed.ai/getting-started/
        https://man.openbsd.org/ssh
    """
    if policy.launcher not in (*SSH_LAUNCHERS, *NO_LOGIN_LAUNCHERS):
        yield from _logins(logins)


@check(Severity.NOTE)
def login_unavailable(logins: Logins, policy: Policy) -> Iterator[Reading]:
    """A login without a password fails, which this launcher does not need.

    Why: Torchrun, Slurm and Kubernetes start ranks without logging in. Only tools that look at all nodes over ssh miss it.
    See: https://man.openbsd.org/ssh
    """
    if policy.launcher in NO_LOGIN_LAUNCHERS:
        yield from _logins(logins)


def _logins(logins: Logins) -> Iterator[Reading]:
    for login in known(logins.logins, logins, "logins"):
        late = login.outcome == "deadline"
        yield Reading(
            ok=None if late else login.outcome == "ok",
            subject=login.host,
            measured=login.outcome + (f": {login.detail}" if login.detail else ""),
            expected="a login without a question",
            message=FAILURES.get(login.outcome, login.outcome),
            reason=Reason("deadline", "no answer before the deadline") if late else None,
        )


@check(Severity.ERROR, several_nodes=True)
def client_absent(ssh: Ssh, policy: Policy) -> Iterator[Reading]:
    """The launcher logs in by ssh, and there is no ssh client.

    Why: Mpirun, DeepSpeed and ssh loops start the ranks of other nodes with the ssh command; container images often come
        without it.
    See: https://www.deepspeed.ai/getting-started/
    """
    if policy.launcher in SSH_LAUNCHERS:
        absent = ssh.client is None and why_unknown(ssh, "client").kind == "absent"
        client = "" if absent else known(ssh.client, ssh, "client")
        yield Reading(
            ok=bool(client),
            measured=client or "no ssh command",
            expected=f"an ssh client, for {policy.launcher}",
            message=f"{policy.launcher} needs the ssh command",
        )


@check(Severity.WARNING)
def private_key_exposed(ssh: Ssh) -> Iterator[Reading]:
    """A private key can be read by others.

    Why: Ssh ignores a private key that its group or others may read ("UNPROTECTED PRIVATE KEY FILE"), so logins that
        relied on it ask for a password; and who can read it can log in as its owner. Copies by hand and mounted secrets
        are the usual causes.
    See: https://man.openbsd.org/ssh
    """
    for file in known(ssh.files, ssh, "files"):
        if file.kind == "private-key":
            yield _mode(file, GROUP_OR_OTHERS, "ssh ignores this key: others may read it")


@check(Severity.WARNING, several_nodes=True)
def writable_by_others(ssh: Ssh, os: Optional[Os] = None) -> Iterator[Reading]:
    """The home, .ssh or authorized_keys can be written by others.

    Why: Sshd with its default StrictModes then refuses the keys of this user ("bad ownership or modes"), so logins to
        this node ask for a password. What counts is each folder on the way to authorized_keys; with a shared home it is so
        on every node. Debian's sshd accepts what a group may write that has no other member, so that there, and where the
        system is not known, only what everybody may write counts.
    See: https://man.openbsd.org/sshd
        https://bugs.debian.org/314347
    """
    private_groups = os is None or os.id is None or bool({os.id, *(os.like or ())} & {"debian", "ubuntu"})
    unwanted = WRITABLE_BY_ALL if private_groups else WRITABLE_BY_ALL | WRITABLE_BY_GROUP
    files = known(ssh.files, ssh, "files")
    keys = [file for file in files if file.kind == "authorized_keys"]
    for file in files:
        if file in keys or any(key.path.startswith(file.path.rstrip("/") + "/") for key in keys):
            yield _mode(file, unwanted, "sshd refuses this user's keys: others may write here")


def _mode(file: SshFile, unwanted: int, message: str) -> Reading:
    """The file's mode may have none of the bits ``unwanted``."""
    if not re.fullmatch("[0-7]{1,5}", file.mode):
        return Reading(ok=None, subject=file.path, reason=Reason("unreadable", f"{file.mode[:40]!r} is no file mode"))
    bits = int(file.mode, 8)
    return Reading(
        ok=not bits & unwanted,
        subject=file.path,
        measured=f"mode {file.mode}",
        expected=f"mode {bits & ~unwanted:04o}",
        message=message,
    )

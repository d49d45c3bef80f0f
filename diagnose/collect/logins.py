"""Logins: does ssh reach each named node without a person?

The user's own configuration holds, as it does for the launcher, but nothing can ask, nothing is forwarded or shared,
and nothing is written: not even the host keys that "StrictHostKeyChecking no" or "accept-new" would add.
"""

import re
import time
from typing import Any, Dict, List, Optional, Sequence

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Login, Logins, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

CONNECT_S = 5
"""ssh's ConnectTimeout: TCP connection, handshake and key exchange (ssh_config(5))."""
LOGIN_S = 12.0
"""One login with everything: a home on NFS and an LDAP that are slow, but alive, make it in that."""
SIDE_BY_SIDE = 32

_HOST = re.compile(
    r"(?:[A-Za-z_][A-Za-z0-9_.-]{0,31}@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|[0-9A-Fa-f:]{2,39}(?:%\w{1,15})?)"
)

_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ConnectionAttempts=1",
    "NumberOfPasswordPrompts=0",
    "ControlMaster=no",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "UpdateHostKeys=no",
    "RequestTTY=no",
    "LogLevel=ERROR",
)

_WORDS = (
    ("host-key-changed", r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed"),
    ("host-key-unknown", r"Host key verification failed|No [\w-]+ host key is known"),
    ("unresolved", r"Could not resolve hostname"),
    ("auth-refused", r"Permission denied|Too many authentication failures|no more authentication methods"),
    ("refused", r"Connection refused"),
    ("timed-out", r"timed out"),
    (
        "unreachable",
        r"No route to host|Network is unreachable|Host is down|connect to host .*: (?:Permission denied|Invalid)",
    ),
)
"""Outcome <- ssh's own words in the C locale (sshconnect.c, sshconnect2.c and clientloop.c of OpenSSH), in this order."""
_FAILURES = {"absent": "no-client", "timed-out": "timed-out", "deadline": "deadline"}
"""Outcome <- how the attempt as a whole failed, before ssh could say anything."""


def wanted(ask: Ask) -> Optional[Reason]:
    """Not asked by a profile that sends nothing, or when no node is named."""
    if not ask.active:
        return Reason("not-asked", "profile quick sends nothing")
    return None if ask.peers else Reason("not-asked", "no node to log in to is named")


def limit_s(ask: Ask) -> float:
    """Time for all peers, SIDE_BY_SIDE at once."""
    return _rounds(len(ask.peers)) * (LOGIN_S + 2) + 3


def _rounds(peers: int) -> int:
    return -(-peers // SIDE_BY_SIDE)


def read(host: Host, ask: Ask) -> Logins:
    """One attempt for each peer; a name that could be taken for an option is not handed to ssh."""
    peers = list(dict.fromkeys(ask.peers))
    sound = [peer for peer in peers if is_host(peer)]
    files = known_hosts_option(_user_files(host))
    answers: Dict[str, Any] = {}
    if sound:
        answers = host.ask("logins", lambda: _attempts(sound, files), limit_s(ask))
    return Logins(tuple(_login(peer, answers.get(peer)) for peer in peers))


def is_host(name: str) -> bool:
    """Is ``name`` a host, with or without a user, that ssh cannot take for anything else?"""
    return _HOST.fullmatch(name) is not None


def argv(peer: str, known_hosts: str) -> List[str]:
    """The command line of one attempt."""
    options = [word for option in (*_OPTIONS, known_hosts) for word in ("-o", option)]
    return ["ssh", "-n", "-T", "-x", "-a", *options, "--", peer, "true"]


def known_hosts_option(configured: str) -> str:
    """UserKnownHostsFile with /dev/null in front: ssh adds keys to the first file and believes them all."""
    return f"UserKnownHostsFile=/dev/null {configured or '~/.ssh/known_hosts ~/.ssh/known_hosts2'}"


def _user_files(host: Host) -> str:
    """UserKnownHostsFile as the configuration has it for every host; "" for ssh's default."""
    from ddp_doctor.collect import ssh

    try:
        return ssh.options(host).get("UserKnownHostsFile", "")
    except Unreadable:
        return ""


def _attempts(peers: Sequence[str], known_hosts: str) -> Dict[str, Any]:
    """Peer -> what its ssh did: status, stderr, duration_s, or failure and text. Runs in a child."""
    from ddp_doctor import child

    answers = {}
    for first in range(0, len(peers), SIDE_BY_SIDE):
        some = peers[first : first + SIDE_BY_SIDE]
        running = [child.start(peer, lambda p=peer: _attempt(p, known_hosts), LOGIN_S + 1) for peer in some]  # type: ignore[misc]
        for finished, outcome in child.finish(running):
            answers[finished.name] = outcome.value or {"failure": outcome.failure, "text": outcome.text}
    return answers


def _attempt(peer: str, known_hosts: str) -> Dict[str, Any]:
    from ddp_doctor import command

    started = time.monotonic()
    try:
        ran = command.run("ssh", argv(peer, known_hosts), LOGIN_S, "")
    except FileNotFoundError:
        return {"failure": "absent", "text": "no ssh on PATH"}
    except Unreadable as error:
        return {"failure": error.reason.kind, "text": error.reason.text, "duration_s": _since(started)}
    return {"status": ran["status"], "stderr": ran["stderr"][-4000:], "duration_s": _since(started)}


def _since(started: float) -> float:
    return round(time.monotonic() - started, 4)


def _login(peer: str, answer: Optional[Dict[str, Any]]) -> Login:
    if answer is None:
        return Login(peer, "error", "not a host name: not handed to ssh")
    if "failure" in answer:
        outcome = _FAILURES.get(answer["failure"], "error")
        return Login(peer, outcome, one_line(answer["text"]), answer.get("duration_s"))
    outcome = outcome_of(answer["status"], answer["stderr"])
    return Login(peer, outcome, None if outcome == "ok" else one_line(answer["stderr"]), answer["duration_s"])


def outcome_of(status: int, stderr: str) -> str:
    """Outcome by ssh's exit status and words: 255 is its own, any other is the remote command's (ssh(1))."""
    if status == 0:
        return "ok"
    if status != 255:
        return "remote-failed" if status > 0 else "error"
    return next((outcome for outcome, words in _WORDS if re.search(words, stderr)), "error")


def one_line(text: str) -> Optional[str]:
    """The last line that says something, without what a terminal would obey; None when there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in lines[-1])[:300] if lines else None

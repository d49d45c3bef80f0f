"""Over ssh: the options of each login, the one command line at the other end, and what it means when it ends early."""

import re
import shlex
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ddp_doctor.cluster.session import Session
from ddp_doctor.collect.logins import one_line, outcome_of
from ddp_doctor.facts import Reason

CONNECT_S = 10
"""TCP connection, handshake and key exchange: ssh_config(5) ConnectTimeout."""

_BEFORE = ("BatchMode=yes", "NumberOfPasswordPrompts=0", "ControlMaster=no", "RequestTTY=no")
"""Before the user's options, since ssh takes the first value of each: nothing may ask, or stay behind as a master."""
_AFTER = (
    "ConnectionAttempts=1",
    "ServerAliveInterval=5",  # a host that dies is noticed in 15 s
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "UpdateHostKeys=no",
    "LogLevel=ERROR",
)


@dataclass(frozen=True)
class Way:
    """How the program is started on a node.

    command: for the login shell there, the same for every node. options: words of ssh(1) before the host.
    preamble: what is sent before the first request.
    """

    command: str
    options: Tuple[str, ...] = ()
    connect_s: float = CONNECT_S
    preamble: bytes = b""
    extra: Mapping[str, Any] = field(default_factory=dict)

    via: str = "ssh"

    def session(self, fanout: int, limit_s: float) -> Session:
        """Connections to nodes, so many at once, each of which ends after so long."""
        from ddp_doctor.cluster.ssh_engine import SshEngine

        return Session(partial(SshEngine, self, fanout, limit_s), fanout)

    @property
    def options_text(self) -> str:
        """The options as ClusterShell takes them: it splits the text like a shell."""
        return " ".join(shlex.quote(word) for word in self.options)


def options(
    user: Optional[str] = None,
    port: Optional[int] = None,
    jump: Optional[str] = None,
    given: Sequence[str] = (),
    connect_s: int = CONNECT_S,
) -> Tuple[str, ...]:
    """Words for ssh(1). given: in the form of ssh_config(5), "IdentityFile=~/.ssh/cluster"."""
    words = [f"-o{option}" for option in (*_BEFORE, *given, f"ConnectTimeout={connect_s}", *_AFTER)]
    words += ["-l", user] if user else []
    words += ["-p", str(port)] if port else []
    words += ["-J", jump] if jump else []
    return tuple(words)


def installed(remote_command: Optional[str] = None) -> str:
    """The command line where the tool is installed: at our own path, or as the user says."""
    if remote_command:
        return f"exec {remote_command} node"
    return f"exec {shlex.quote(sys.executable)} -m ddp_doctor node"


_TEXTS: Dict[str, str] = {
    "host-key-changed": "its host key is not the one in known_hosts: it was installed anew, or something else answers "
    "under this name",
    "host-key-unknown": "its host key is not in known_hosts: log in by hand once, or let ssh-keyscan collect the keys",
    "unresolved": "its name cannot be resolved here",
    "auth-refused": "it lets in none of your keys, and a password is never asked for: see ssh-copy-id(1)",
    "refused": "nothing listens at its ssh port",
    "timed-out": "no answer from its ssh port",
    "unreachable": "there is no route to it, or a firewall rejects ssh",
}
NOT_THERE = "install ddp-doctor at the same path there, say with --remote-command how it is called, or use --push"


def why_it_ended(node: str, status: Optional[int], stderr: str, greeted: bool) -> Reason:
    """Why a connection ended, by ssh's or the command's exit status and its last words; None: it was cut.

    The text does not name the node, so that equal fates can be told together.
    """
    said = (one_line(stderr) or "").replace(node, "<node>")
    words = f" ({said})" if said else ""
    if status is None:
        return Reason("unreachable", f"the connection was cut{words}")
    if status == 255:
        outcome = outcome_of(status, stderr)
        if greeted and outcome not in _TEXTS:
            return Reason("crashed", f"the connection broke, or the program there was killed{words}")
        return Reason(outcome if outcome in _TEXTS else "unreachable", _TEXTS.get(outcome, f"ssh failed{words}"))
    if greeted:
        return Reason("crashed", f"ended in the middle of its work with status {status}{words}")
    if re.search(r"No such command '?\"?node", stderr):
        return Reason("absent", f"the ddp-doctor there is older than --nodes: update it, or use --push{words}")
    if status in (126, 127) or "No module named" in stderr:
        return Reason("absent", f"no ddp-doctor there{words}: {NOT_THERE}")
    return Reason("unreadable", f"the command there ended with status {status}{words}; {NOT_THERE}")

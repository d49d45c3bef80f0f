"""Remedies for ssh between nodes."""

import shlex
from typing import Iterator, Optional

from ddp_doctor.facts import Logins, Os
from ddp_doctor.fixes._node import install, is_debian, quoted
from ddp_doctor.model import Remedy, Step, Verdict, command, say


def login_fails(logins: Logins, finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    """As the login failed."""
    outcome = next((login.outcome for login in logins.logins or () if login.host == finding.subject), "error")
    yield from _remedies(outcome, finding.subject, os)


def login_perhaps_needed(logins: Logins, finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    """As the login failed; or name the launcher that needs none."""
    yield from login_fails(logins, finding, os)
    text = "Name the launcher: --launcher torchrun (or slurm, kubernetes), or launcher in the policy."
    yield Remedy("If ranks are started without logging in", (say(text),))


def login_unavailable(logins: Logins, finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    """As the login failed."""
    yield from login_fails(logins, finding, os)


def _remedies(outcome: str, host: str, os: Optional[Os]) -> Iterator[Remedy]:
    if outcome == "auth-refused":
        yield _authorise(host)
    elif outcome == "host-key-unknown":
        yield _learn_host_key(host)
    elif outcome == "host-key-changed":
        yield _forget_host_key(host)
    elif outcome == "unresolved":
        text = f"Give {host} a line in /etc/hosts on every node, or a record in the site's DNS."
        yield Remedy("Make the name resolve", (say(text, who="root", scope="all nodes"),))
    elif outcome == "refused":
        service = "ssh" if is_debian(os) else "sshd"
        start = say(f"On {host}, as root: systemctl enable --now {service}", who="root")
        yield Remedy(f"Start the ssh server on {host}", (start,))
    elif outcome in ("timed-out", "unreachable"):
        text = f"Check that {host} is up, that a route leads to it, and that no firewall drops TCP port 22."
        yield Remedy("Find the way to the node", (say(text, who="network admin"),))
    elif outcome == "no-client":
        yield from client_absent(os)
    else:
        yield Remedy("Log in by hand to see what it says", (_run("ssh -o BatchMode=yes -v", host, "hostname"),))


def _authorise(host: str) -> Remedy:
    make = say("Without a key, make one first: ssh-keygen -t ed25519 (an empty passphrase, or an agent that holds it).")
    modes = say(
        f"If that changes nothing, on {host} nobody else may write to the home, .ssh and authorized_keys: chmod go-w."
    )
    return Remedy("Authorise your key there", (make, _run("ssh-copy-id", host), modes))


def _learn_host_key(host: str) -> Remedy:
    see = say(
        f"Log in once by hand and compare the fingerprint that ssh shows with one from {host}'s console or admin."
    )
    return Remedy(
        "Make the host key known",
        (
            _run("ssh", host, "hostname"),
            see,
            say("A site can keep all host keys in /etc/ssh/ssh_known_hosts.", who="cluster admin"),
        ),
    )


def _forget_host_key(host: str) -> Remedy:
    ask = say(
        f"Ask the admin whether {host} was installed anew: otherwise somebody else answers in its place.",
        who="cluster admin",
    )
    return Remedy("If the node was installed anew, forget its old key", (ask, _run("ssh-keygen -R", host)))


def client_absent(os: Optional[Os] = None) -> Iterator[Remedy]:
    """Install the client."""
    yield Remedy("Install the ssh client", (install(os, "openssh-clients", "openssh-client"),))


def private_key_exposed(finding: Verdict) -> Iterator[Remedy]:
    """Take the rights away, and the key out of use if others had it."""
    steps = (
        command(f"chmod go-rwx -- {quoted(finding.subject)}", scope="this node"),
        say("Where others may have copied it, make a new key and remove the old one from every authorized_keys."),
    )
    yield Remedy("Keep the key to yourself", steps)


def writable_by_others(finding: Verdict) -> Iterator[Remedy]:
    """Take the rights away."""
    step = command(f"chmod go-w -- {quoted(finding.subject)}", scope="this node")
    yield Remedy("Let nobody else write there", (step,))


def _run(tool: str, host: str, rest: str = "") -> Step:
    """A command that takes a host's name, which nothing may take for an option."""
    if host.startswith("-"):
        return say(f"The node's name {host!r} begins with a dash: ssh would take it for an option. Correct the name.")
    return command(" ".join(filter(None, (tool, shlex.quote(host), rest))))

"""Ssh: the client, its files and what they allow, and the server: what a login without a person depends on.

No key is ever read: a private key is known by its name, its .pub file or a configuration that names it. What
known_hosts and configuration files say of other hosts stays in the child that counts it.
"""

import re
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect import services
from ddp_doctor.facts import Reason, Ssh, SshFile, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

LIMIT_S = 10.0
_RUN_LIMIT_S = 2.0
DEFAULT_PORT = 22
_SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
_SERVER_UNITS = ("ssh.service", "sshd.service", "ssh.socket", "sshd.socket")
_INCLUDE_DEPTH = 4
"""ssh itself stops at 16 (READCONF_MAX_DEPTH in readconf.c)."""

OPTIONS = {
    name.lower(): name
    for name in "BatchMode StrictHostKeyChecking UserKnownHostsFile GlobalKnownHostsFile IdentityFile IdentitiesOnly "
    "IdentityAgent ProxyJump ProxyCommand Port User ConnectTimeout PubkeyAuthentication PreferredAuthentications "
    "AddKeysToAgent ControlMaster CheckHostIP AddressFamily BindAddress BindInterface GSSAPIAuthentication "
    "HostbasedAuthentication CanonicalizeHostname RemoteCommand".split()
}
"""Client options, ssh_config(5), that decide whether a login needs a person: small letters -> usual spelling."""
_COMMANDS = frozenset(("proxycommand", "remotecommand"))
"""Their values are command lines: kept is only that they are set."""


def read(host: Host, ask: Ask) -> Ssh:
    """The files are those of this user, in the home that the user database names, as ssh itself looks for them."""
    unread: Unread = {}
    home = optional(lambda: _home(host), unread, "files")
    if home is None:
        unread["known_hosts"] = unread["options"] = unread["files"]
    chosen: Optional[Dict[str, str]] = optional(lambda: options(host), unread, "options") if home else None
    running, ports = _server(host, unread)
    return Ssh(
        client=optional(lambda: _client(host), unread, "client"),
        files=optional(lambda: _files(host, home, (chosen or {}).get("IdentityFile", "")), unread, "files")
        if home
        else None,
        agent_keys=optional(lambda: _agent_keys(host), unread, "agent_keys"),
        known_hosts=optional(lambda: _known_hosts(host, home), unread, "known_hosts") if home else None,
        options=chosen,
        server_running=running,
        server_ports=ports,
        unread=unread,
    )


def _home(host: Host) -> str:
    return str(host.ask("home", _home_of_user))


def _home_of_user() -> str:
    import os
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise Unreadable(Reason("absent", f"uid {os.getuid()} has no entry in the user database")) from None


def _client(host: Host) -> str:
    return parse_version(host.run("ssh-version", ("ssh", "-V"), _RUN_LIMIT_S).stderr)


def parse_version(text: str) -> str:
    """ "OpenSSH_9.2p1" of "OpenSSH_9.2p1 Debian-2+deb12u3, OpenSSL 3.0.15": the first word. Unreadable when empty."""
    words = re.split(r"[\s,]+", text.strip())
    if not words[0].isprintable() or not words[0]:
        raise Unreadable(Reason("unreadable", f"ssh -V: {text[:80]!r}"))
    return words[0][:80]


def _agent_keys(host: Host) -> int:
    if not host.env().get("SSH_AUTH_SOCK"):
        raise Unreadable(Reason("absent", "SSH_AUTH_SOCK is not set: no agent"))
    ran = host.run("ssh-add-list", ("ssh-add", "-l"), _RUN_LIMIT_S)
    if ran.status == 0:
        return len(ran.stdout.splitlines())
    if ran.status == 1 and "no identities" in ran.stdout:
        return 0
    raise Unreadable(Reason("unreadable", f"ssh-add: {(ran.stderr or ran.stdout).strip()[:200]}"))


# --------------------------------------------------------------------------- files


def _files(host: Host, home: str, identity_file: str) -> Tuple[SshFile, ...]:
    """The home and ~/.ssh with what lies in it, links followed; a file that is gone or hidden is left out."""
    folder = f"{home}/.ssh"
    found = [_file(host, path, "directory") for path in (home, folder)]
    try:
        names = host.list(folder)
    except Unreadable as error:
        if error.reason.kind != "absent":
            raise
        return tuple(file for file in found[:1] if file)
    found += [_file(host, f"{folder}/{name}", kind_of(name, names)) for name in names]
    named = identity_file.replace("~", home, 1) if identity_file.startswith("~/") else identity_file
    if named.startswith("/") and not named.startswith(f"{folder}/") and "%" not in named:
        found.append(_file(host, named, "private-key"))
    return tuple(file for file in found if file)


def kind_of(name: str, names: Sequence[str]) -> str:
    """What a file in ~/.ssh is, by its name and its neighbours'."""
    if name.endswith(".pub"):
        return "public-key"
    if f"{name}.pub" in names or re.match(r"(id_|identity$)|.*\.(pem|key)$", name):
        return "private-key"
    if name in ("authorized_keys", "authorized_keys2"):
        return "authorized_keys"
    if re.match(r"known_hosts2?$", name):
        return "known_hosts"
    return "config" if name == "config" else "file"


def _file(host: Host, path: str, kind: str) -> Optional[SshFile]:
    stat = optional(lambda: host.stat(path), {}, path)
    if stat is None:
        return None
    kind = "directory" if stat.kind == "directory" else kind
    return SshFile(path, f"{stat.mode:04o}", stat.uid, kind)


def _known_hosts(host: Host, home: str) -> int:
    paths = (f"{home}/.ssh/known_hosts", f"{home}/.ssh/known_hosts2", _SYSTEM_KNOWN_HOSTS)
    return int(host.ask("known hosts", lambda: sum(count_entries(_quiet(path)) for path in paths)))


def count_entries(text: str) -> int:
    """Entries of a known_hosts file: lines that are neither empty nor comments."""
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _quiet(path: str) -> str:
    """Text of a file or "" where there is none; never recorded. Called in a child."""
    import os

    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, encoding="utf-8", errors="replace") as file:
            return file.read(4 << 20)
    except (FileNotFoundError, NotADirectoryError):
        return ""


# --------------------------------------------------------------------------- options


def options(host: Host) -> Dict[str, str]:
    """OPTIONS that hold for every host, in their usual spelling. Unreadable where the user has no home."""
    home = _home(host)
    found = host.ask("ssh options", lambda: _read_options(home))
    return {str(name): str(value) for name, value in found.items()}


def _read_options(home: str) -> Dict[str, str]:
    """Options of the user's file, then the system's: the first value wins."""
    found: Dict[str, str] = {}
    for path in (f"{home}/.ssh/config", _SYSTEM_CONFIG):
        for name, value in parse_config(_quiet(path), lambda words: _included(words, home)):
            found.setdefault(name, value)
    return found


def parse_config(text: str, included: Callable[[str], Iterable[str]], depth: int = 0) -> List[Tuple[str, str]]:
    """(option, value) of OPTIONS that hold for every host: those before the first Host or Match, and of "Host *".

    ``ssh -G`` would tell it for one host, but runs the commands of the user's "Match exec" lines.
    included: texts of the files that an Include's words name.
    """
    found: List[Tuple[str, str]] = []
    for_all = True
    for line in text.splitlines():
        words = re.match(r"\s*([A-Za-z]+)\s*(?:=|\s)\s*(.*?)\s*$", line)
        if not words:
            continue
        name, value = words.group(1), words.group(2).strip('"')
        if name.lower() in ("host", "match"):
            for_all = value == "*" if name.lower() == "host" else value.lower() == "all"
        elif for_all and name.lower() == "include" and depth < _INCLUDE_DEPTH:
            for more in included(value):
                found += parse_config(more, included, depth + 1)
        elif for_all and name.lower() in OPTIONS:
            found.append((OPTIONS[name.lower()], "set" if name.lower() in _COMMANDS else value[:200]))
    return found


def _included(words: str, home: str) -> List[str]:
    """Texts of the files that an Include names: relative ones lie in ~/.ssh or /etc/ssh."""
    import glob
    import os

    texts = []
    for word in words.split():
        path = word.replace("~", home, 1) if word.startswith("~/") else word
        folders = ("",) if path.startswith("/") else (f"{home}/.ssh", "/etc/ssh")
        for folder in folders:
            texts += [_quiet(name) for name in sorted(glob.glob(os.path.join(folder, path)))[:64]]
    return texts


# --------------------------------------------------------------------------- server


def _server(host: Host, unread: Unread) -> Tuple[Optional[bool], Optional[Tuple[int, ...]]]:
    """(runs, ports): sshd as a process or a unit, or systemd's socket that starts it, on ports that are listened on."""
    listening = optional(lambda: {port for _, port in services.listening(host)}, unread, "server_ports")
    configured = _configured_ports(host)
    ports = None if listening is None else tuple(port for port in configured if port in listening)
    runs: Any = optional(lambda: services.running(host, "sshd", *_SERVER_UNITS), unread, "server_running")
    if ports and not runs:
        unread.pop("server_running", None)
        runs = True
    return runs, ports


def _configured_ports(host: Host) -> Tuple[int, ...]:
    """Ports that sshd_config names; 22 where it names none or is root's to read."""
    text = optional(lambda: host.read("/etc/ssh/sshd_config"), {}, "sshd_config") or ""
    names = optional(lambda: host.list("/etc/ssh/sshd_config.d"), {}, "sshd_config.d") or ()
    parts = (
        optional(lambda n=n: host.read(f"/etc/ssh/sshd_config.d/{n}"), {}, n)  # type: ignore[misc]
        for n in names
        if n.endswith(".conf")
    )
    return parse_ports("\n".join((text, *(part or "" for part in parts)))) or (DEFAULT_PORT,)


def parse_ports(text: str) -> Tuple[int, ...]:
    """Ports of the Port and ListenAddress lines of sshd_config(5)."""
    ports = re.findall(r"^\s*Port\s+([0-9]{1,5})\s*$", text, re.MULTILINE | re.IGNORECASE)
    ports += re.findall(
        r"^\s*ListenAddress\s+(?:\[[^\]]+\]|[^\s:]+):([0-9]{1,5})\b", text, re.MULTILINE | re.IGNORECASE
    )
    return tuple(dict.fromkeys(int(port) for port in ports))

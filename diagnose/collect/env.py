"""Env: the variables that matter to distributed training, and those that NCCL reads from its configuration files."""

import os
from typing import Dict, List, Optional, Tuple

from ddp_doctor import redact
from ddp_doctor.ask import Ask
from ddp_doctor.facts import Env, Unread, Variable
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

SYSTEM_FILE = "/etc/nccl.conf"
FILE_LIMIT_BYTES = 2**24
"""A hand-written file is short; one with a stray 10 MB line must not hide its other lines."""
TEXT_LIMIT = 1023
"""Characters that NCCL takes of a name and of a value (src/misc/param.cc, buffers of 1024)."""


def read(host: Host, ask: Ask) -> Env:
    """Variables of the families in ``redact.FAMILIES``: the environment's, then the files' in NCCL's order."""
    unread: Unread = {}
    env = optional(host.env, unread, "variables")
    files = _files(host, env or {}, unread)
    found = [Variable(name, env[name]) for name in sorted(env) if redact.FAMILIES.fullmatch(name)] if env else []
    for path, text in files.items():
        found += parse_conf(text, path)
    return Env(variables=None if env is None else tuple(found), nccl_conf_files=tuple(files), unread=unread)


def _files(host: Host, env: Dict[str, str], unread: Unread) -> Dict[str, str]:
    """Path -> text of NCCL's files that are there, the one that wins first."""
    texts = {}
    for path in conf_paths(env.get("NCCL_CONF_FILE", ""), _home(host, unread)):
        try:
            texts[path] = host.read(path, FILE_LIMIT_BYTES, clean=redact.lines)
        except Unreadable as error:
            if error.reason.kind != "absent" or path == env.get("NCCL_CONF_FILE"):
                unread.setdefault("nccl_conf_files", error.reason)
    return texts


def conf_paths(named: str, home: Optional[str]) -> Tuple[str, ...]:
    """NCCL_CONF_FILE replaces ~/.nccl.conf; /etc/nccl.conf fills in what neither sets (src/misc/param.cc, initEnv)."""
    first = named or (f"{home}/.nccl.conf" if home else "")
    return tuple(dict.fromkeys(path for path in (first, SYSTEM_FILE) if path))


def _home(host: Host, unread: Unread) -> Optional[str]:
    """The home folder in the user database, which NCCL asks (getpwuid), whatever HOME says."""

    def work() -> str:
        import pwd

        try:
            return pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # a user without an entry, as in many containers: NCCL then reads no such file
            return ""

    return optional(lambda: str(host.ask("home-folder", work)), unread, "nccl_conf_files")


def parse_conf(text: str, path: str) -> List[Variable]:
    """Variables of an nccl.conf, as NCCL reads it: a name is all before the first "=", a value all after it.

    No quotes, blanks or "export" are taken away, a carriage return stays, "#" starts a comment only in the first
    column, a NUL ends the line, and the first of several lines for one name wins.
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("\0")[0].partition("=")
        if equals and name and not line.startswith("#"):
            found.append(Variable(name[:TEXT_LIMIT], value[:TEXT_LIMIT], f"{path}:{number}"))
    return found

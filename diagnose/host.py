"""Host: the only door to a node.

Everything that a collector learns goes through one of the calls of ``Host``. The door can lead to this machine,
to a captured tree below another root, or to a recording (``recording.py``), and whatever goes through it can be
recorded. Each call returns a value or raises ``Unreadable`` with a ``Reason``; nothing else gets out.
"""

import errno
import os
import platform
import socket
import stat as stat_module
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ddp_doctor import child, command, redact
from ddp_doctor.ask import Ask
from ddp_doctor.facts import Reason, to_plain
from ddp_doctor.unreadable import Unreadable, reason_of

READ_LIMIT_BYTES = 2**20
"""No file that a collector reads is larger on a sane machine; a looping or huge one is named, not swallowed."""
RUN_LIMIT_S = 5.0


@dataclass(frozen=True)
class Ran:
    """What a command did: its exit status (negative: the signal that ended it) and its output."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Stat:
    """kind: file, directory, link, char, block, fifo or socket; mode: permission bits."""

    kind: str
    mode: int
    uid: int
    gid: int
    size_bytes: int
    readable: bool
    writable: bool


@dataclass(frozen=True)
class StatVfs:
    """Sizes in bytes; inodes_total 0: no fixed number."""

    total_bytes: int
    free_bytes: int
    inodes_total: int
    inodes_free: int
    read_only: bool


class Host:
    """The live machine, or a tree below ``root``. Recorders and recordings override ``_door``."""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def read(self, path: str, limit_bytes: int = READ_LIMIT_BYTES, clean: Optional[Callable[[str], str]] = None) -> str:
        """Text of a file, decoded with backslashreplace. A file longer than ``limit_bytes`` is Unreadable.

        clean: applied behind the door, so that what it takes away (secrets, bulk) reaches no recording either.
        """
        look = clean or str
        return str(self._door("read", path, lambda: look(_read(self._real(path), path, limit_bytes))))

    def list(self, path: str) -> Tuple[str, ...]:
        """Sorted names in a directory."""
        return tuple(self._door("list", path, lambda: sorted(map(_text, os.listdir(self._real(path))))))

    def link(self, path: str) -> str:
        """Where a symbolic link points, as written in it."""
        return str(self._door("link", path, lambda: _text(os.readlink(self._beside(path)))))

    def realpath(self, path: str) -> str:
        """``path`` with every link resolved, as the node itself sees it."""
        return str(self._door("realpath", path, lambda: self._resolved(path)))

    def stat(self, path: str) -> Stat:
        """What stands at ``path``; links are followed. ``readable`` and ``writable`` are for this process."""
        return Stat(**self._door("stat", path, lambda: _stat(self._real(path))))

    def exists(self, path: str) -> bool:
        """Whether ``path`` is there. Unreadable when that cannot be told (a parent without search permission)."""
        try:
            self.stat(path)
        except Unreadable as error:
            if error.reason.kind == "absent":
                return False
            raise
        return True

    def statvfs(self, path: str) -> StatVfs:
        """Free space and inodes of the file system at ``path``."""
        return StatVfs(**self._door("statvfs", path, lambda: _statvfs(self._real(path))))

    def run(self, name: str, argv: Sequence[str], limit_s: float = RUN_LIMIT_S, stdin: str = "") -> Ran:
        """Run a command without a shell, with the C locale and no terminal; recorded under ``name``, not by argv.

        Unreadable: absent (no such command), timed-out, crashed (more than command.OUTPUT_LIMIT_BYTES of output).
        A status other than 0 is an answer.
        """
        return Ran(**self._door("run", name, lambda: command.run(name, argv, limit_s, stdin)))

    def ask(self, name: str, work: Callable[[], Any], limit_s: float = RUN_LIMIT_S) -> Any:
        """JSON answer of a library call (psutil, distro, NVML, socket) made in a child; recorded under ``name``.

        Unreadable: timed-out, crashed, or the reason of an ``Unreadable`` that ``work`` raises.
        """
        return self._door("ask", name, lambda: _ask(name, work, limit_s))

    def env(self) -> Dict[str, str]:
        """The environment, redacted (``redact.environment``)."""
        return dict(self._door("env", "", lambda: redact.environment(_environment())))

    def resolve(self, name: str, limit_s: float = 5.0) -> Tuple[str, ...]:
        """Addresses of a name by the node's own resolver, in its order. Unreadable "unresolved" with its words."""
        return tuple(self._door("resolve", name, lambda: _ask(f"resolve {name}", lambda: _resolve(name), limit_s)))

    def now(self, of: str = "") -> float:
        """Unix time in seconds. of: the section whose own moment it is; without it that of the facts as a whole."""
        return float(self._door("now", of, time.time))

    def user(self) -> Tuple[int, str]:
        """Effective uid and the user's name (the number as text where it has none)."""
        uid, name = self._door("user", "", _user)
        return int(uid), str(name)

    def python(self) -> str:
        """Version of the interpreter that looks."""
        return str(self._door("python", "", platform.python_version))

    def asked(self, ask: Ask) -> Ask:
        """What is asked of the node, noted like its answers; a recording knows what was asked of its own."""
        self._door("asked", "", lambda: to_plain(ask))
        return ask

    def _door(self, op: str, key: str, live: Callable[[], Any]) -> Any:
        """Everything goes through here: ``live`` answers JSON or raises."""
        try:
            return live()
        except OSError as error:
            raise Unreadable(reason_of(error, key or op)) from None
        except (ValueError, OverflowError) as error:  # an embedded NUL byte, a path that is too long
            raise Unreadable(Reason("unreadable", f"{key or op}: {error}")) from None

    def _real(self, path: str) -> str:
        """``path`` below the root, its links followed here: absolute ones, and any number of ``..``, stay inside."""
        return path if self.root == "/" else os.path.join(self.root, self._resolved(path).lstrip("/"))

    def _beside(self, path: str) -> str:
        """Like ``_real`` with the last part as it is written, for a look at a link itself."""
        return os.path.join(self._real(os.path.dirname(path)), os.path.basename(path))

    def _resolved(self, path: str) -> str:
        """Resolve links by hand when the root was moved, since realpath(3) would leave it."""
        if self.root == "/":
            return os.path.realpath(path)
        done, todo, hops = "/", [p for p in path.split("/") if p], 0
        while todo:
            part = todo.pop(0)
            done = os.path.normpath(os.path.join(done, part))
            here = self.root + done
            if os.path.islink(here):
                hops += 1
                if hops > 40:  # the kernel's own limit on links in a path
                    raise OSError(errno.ELOOP, "links lead to links")
                target = os.readlink(here)
                done = "/" if target.startswith("/") else os.path.dirname(done)
                todo = [p for p in target.split("/") if p] + todo
        return done


def _text(name: str) -> str:
    """A file name as text that any encoding can carry."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _environment() -> Dict[str, str]:
    return {_text(k): _text(v) for k, v in os.environ.items()}


def _read(real: str, path: str, limit_bytes: int) -> str:
    """Read at most ``limit_bytes``; never wait for a fifo or a terminal."""
    fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(fd, "rb") as file:
        if not stat_module.S_ISREG(os.fstat(fd).st_mode):
            raise Unreadable(Reason("unreadable", f"{path}: not a regular file"))
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise Unreadable(Reason("unreadable", f"{path}: longer than {limit_bytes} bytes"))
    return data.decode("utf-8", "backslashreplace")


_KINDS = {
    stat_module.S_IFREG: "file",
    stat_module.S_IFDIR: "directory",
    stat_module.S_IFLNK: "link",
    stat_module.S_IFCHR: "char",
    stat_module.S_IFBLK: "block",
    stat_module.S_IFIFO: "fifo",
    stat_module.S_IFSOCK: "socket",
}


def _stat(real: str) -> Dict[str, Any]:
    found = os.stat(real)
    return {
        "kind": _KINDS.get(stat_module.S_IFMT(found.st_mode), "other"),
        "mode": stat_module.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "gid": found.st_gid,
        "size_bytes": found.st_size,
        "readable": os.access(real, os.R_OK, effective_ids=True),
        "writable": os.access(real, os.W_OK, effective_ids=True),
    }


def _statvfs(real: str) -> Dict[str, Any]:
    found = os.statvfs(real)
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "inodes_total": found.f_files,
        "inodes_free": found.f_favail,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
    }


def _ask(name: str, work: Callable[[], Any], limit_s: float) -> Any:
    def answer() -> Any:
        try:
            return {"answer": work()}
        except Unreadable as error:
            return {"kind": error.reason.kind, "text": error.reason.text}
        except OSError as error:
            reason = reason_of(error, name)
            return {"kind": reason.kind, "text": reason.text}

    outcome = child.call(name, answer, limit_s)
    if outcome.failure:
        raise Unreadable(Reason(outcome.failure, f"{name}: {outcome.text}"))
    if "kind" in outcome.value:
        raise Unreadable(Reason(**outcome.value))
    return outcome.value["answer"]


def _resolve(name: str) -> List[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise Unreadable(Reason("unresolved", f"{name}: {error.args[-1] if error.args else error}")) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _user() -> List[Any]:
    """The name is asked for in a child: a directory service that does not answer would take the doctor with it."""
    import pwd

    uid = os.geteuid()
    outcome = child.call("user name", lambda: pwd.getpwuid(uid).pw_name, 2.0)
    return [uid, outcome.value or str(uid)]


def optional(read: Callable[[], Any], unread: Dict[str, Reason], field: str) -> Optional[Any]:
    """Return what ``read`` returns, or None with the reason noted in ``unread`` under ``field``."""
    try:
        return read()
    except Unreadable as error:
        unread[field] = error.reason
        return None

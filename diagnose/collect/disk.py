"""Disk: the places that a job writes to, /dev/shm, the temporary folder, the home and the working directory."""

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddp_doctor import redact
from ddp_doctor.ask import Ask
from ddp_doctor.collect import quota, shares
from ddp_doctor.collect.mounts import MOUNTINFO, MountLine, covering, parse_mountinfo
from ddp_doctor.facts import Disk, Mount, Quota, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

LOOK_LIMIT_S = 1.5
"""A healthy file server answers statvfs within milliseconds; four dead ones stay within the section's time."""
_NETWORK = frozenset(
    "afs beegfs ceph cifs coda davfs daos gfs gfs2 glusterfs gpfs lustre ncp ncpfs nfs nfs4 ocfs2 orangefs panfs pvfs2 "
    "smb3 smbfs wekafs "
    "fuse.beegfs fuse.blobfuse fuse.blobfuse2 fuse.ceph fuse.ceph-fuse fuse.curlftpfs fuse.daos fuse.davfs fuse.gcsfuse "
    "fuse.glusterfs fuse.goofys fuse.juicefs fuse.mount-s3 fuse.orangefs fuse.rclone fuse.s3fs fuse.seaweedfs fuse.sshfs "
    "fuse.JuiceFS fuse.mfs fuse.moosefs fuse.alluxio-fuse fuse.dfuse".split()
)
"""After systemd's fstype_is_network (src/basic/mountpoint-util.c), and what clusters mount besides."""
LIMIT_S = 15.0
"""Four places and the shares, each with its own limit, and a server asked for quotas."""
_LONG_OPTIONS = ("lowerdir", "upperdir", "workdir")
"""An overlay lists its layers in them: kilobytes about nothing that a check asks."""
_SIZES = ("total_bytes", "free_bytes", "inodes_total", "inodes_free")


def read(host: Host, ask: Ask) -> Disk:
    """The four places, each looked at in a child of its own: a dead file server hides itself alone."""
    unread: Unread = {}
    mounts = optional(lambda: parse_mountinfo(host.read(MOUNTINFO)), unread, "mounts")
    lines, reason = mounts or (), unread.pop("mounts", None)
    places = tuple(_place(host, role, path, lines, reason) for role, path in _places(host, ask))
    if mounts is None and reason:
        unread["shares"] = reason
    seen = [place.point for place in places if place.point]
    others = (
        None if mounts is None else optional(lambda: shares.shares(host, lines, seen, LOOK_LIMIT_S), unread, "shares")
    )
    return Disk(places, others, _quotas(host, ask, places, unread), unread=unread)


def _quotas(host: Host, ask: Ask, places: Sequence[Mount], unread: Unread) -> Optional[Tuple[Quota, ...]]:
    """Asking them sends a question to the file server: profile quick does not."""
    if not ask.active:
        unread["quotas"] = Reason("not-asked", "profile quick asks no server for quotas")
        return None
    found = quota.quotas(host, places, unread)
    return found if found or "quotas" not in unread else None


def _places(host: Host, ask: Ask) -> List[Tuple[str, str]]:
    """(role, path); a path that is not known is "" and its reason is told by the look at it."""
    env: Dict[str, str] = optional(host.env, {}, "") or {}
    home = env.get("HOME") or optional(lambda: str(host.ask("home", _home, LOOK_LIMIT_S)), {}, "") or ""
    cwd = ask.cwd or optional(lambda: str(host.ask("cwd", os.getcwd, LOOK_LIMIT_S)), {}, "") or ""
    return [("shm", "/dev/shm"), ("tmp", env.get("TMPDIR") or "/tmp"), ("home", home), ("cwd", cwd)]


def _home() -> str:
    """The home that the user database names, for a process that was started with an empty environment."""
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_dir


def _place(host: Host, role: str, path: str, lines: Sequence[MountLine], no_lines: Optional[Reason]) -> Mount:
    unread: Unread = {}
    seen: Dict[str, Any] = optional(lambda: _look(host, role, path), unread, "total_bytes") or {}
    if not seen:
        unread.update(dict.fromkeys((*_SIZES, "writable"), unread["total_bytes"]))
    line = covering(lines, seen.get("real") or path)
    if line is None:
        reason = no_lines or Reason("absent", f"no mount covers {path!r}")
        unread.update(dict.fromkeys(("point", "fs_type", "network", "options", "read_only"), reason))
        return Mount(role, path, **_sizes(seen), unread=unread)
    return Mount(role, path, **_mounted(line), read_only=_is_read_only(line, seen), **_sizes(seen), unread=unread)


def _look(host: Host, role: str, path: str) -> Dict[str, Any]:
    """What only a look at the place itself tells, which a dead file server never answers. Raises Unreadable."""
    if not path.startswith("/"):
        raise Unreadable(Reason("absent", f"the {role} directory is not known"))

    def look() -> Dict[str, Any]:
        found, sizes = host.stat(path), host.statvfs(path)
        return {
            "real": host.realpath(path),
            "writable": found.writable,
            "read_only": sizes.read_only,
            **{name: getattr(sizes, name) for name in _SIZES},
        }

    return dict(host.ask(f"disk {role}", look, LOOK_LIMIT_S))


def _sizes(seen: Dict[str, Any]) -> Dict[str, Any]:
    return {name: seen.get(name) for name in (*_SIZES, "writable")}


def _mounted(line: MountLine) -> Dict[str, Any]:
    return {
        "point": line.point,
        "fs_type": line.fs_type,
        "network": is_network(line.fs_type),
        "options": shown_options(line),
    }


def is_network(fs_type: str) -> bool:
    """Do the files lie on other machines? An unknown FUSE file system counts as local."""
    return fs_type in _NETWORK


def shown_options(line: MountLine) -> Tuple[str, ...]:
    """Options of the mount and of its file system, each once, as they may be kept."""
    pairs = (option.partition("=") for option in dict.fromkeys((*line.options, *line.super_options)))
    return tuple(
        name + equals + redact.variable(name, value) for name, equals, value in pairs if name not in _LONG_OPTIONS
    )


def _is_read_only(line: MountLine, seen: Dict[str, Any]) -> bool:
    """Either the mount or the file system below it, which turns read-only by itself after an error."""
    return "ro" in line.options or "ro" in line.super_options or bool(seen.get("read_only"))

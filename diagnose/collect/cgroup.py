"""Cgroups: the folders of this process's control group and its parents, version 1, 2 and both side by side."""

from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Tuple

from ddp_doctor.collect.mounts import MOUNTINFO, MountLine, parse_mountinfo
from ddp_doctor.facts import UNLIMITED, Reason
from ddp_doctor.host import Host
from ddp_doctor.numerals import whole
from ddp_doctor.unreadable import Unreadable

V1_UNLIMITED = 2**62
"""Version 1 writes "no limit" as the largest multiple of the page size below 2**63; no machine has 2**62 of anything."""


@dataclass(frozen=True)
class Group:
    """This process's place in the hierarchy that carries one controller.

    folders: its own first, then the parents up to the mount point. Inside a container that is where the parents
    end, whatever bounds them outside.
    """

    version: int
    folders: Tuple[str, ...]


def group(host: Host, controller: str) -> Group:
    """Place of this process for ``controller`` ("memory", "cpu", "pids"). Raises Unreadable, also where none is mounted."""
    mount = cgroup_mount(parse_mountinfo(host.read(MOUNTINFO)), controller)
    if mount is None:
        raise Unreadable(Reason("absent", f"no cgroup file system with the controller {controller} is mounted here"))
    version = 2 if mount.fs_type == "cgroup2" else 1
    path = parse_path(host.read("/proc/self/cgroup"), controller if version == 1 else "")
    return Group(version, folders(mount, path or "/"))


def cgroup_mount(mounts: Sequence[MountLine], controller: str) -> Optional[MountLine]:
    """The mount that carries ``controller``: version 1 wins, as the kernel gives a controller to one of the two alone.

    Of several (a container's tree is mounted in the host too) the one below /sys/fs/cgroup is this process's own.
    """
    v1 = [m for m in mounts if m.fs_type == "cgroup" and controller in m.super_options]
    v2 = [m for m in mounts if m.fs_type == "cgroup2"]
    candidates = v1 or v2
    own = [m for m in candidates if m.point.startswith("/sys/fs/cgroup")]
    return next(iter(own or candidates), None)


def parse_path(cgroup: str, controller: str) -> Optional[str]:
    """Path of this process in the hierarchy of ``controller`` ("" for version 2), from /proc/self/cgroup."""
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and (controller in controllers.split(",") if controller else not controllers):
            return path
    return None


def folders(mount: MountLine, path: str) -> Tuple[str, ...]:
    """Folders of ``path`` and its parents below the mount.

    Inside a container the path may be the host's while the mount shows the container's own group (its ``root``), and
    behind a cgroup namespace it may lead out of what is shown (``/../x``): then the mount point is all there is.
    """
    root = mount.root.rstrip("/")
    below = path[len(root) :] if path == root or path.startswith(root + "/") else ""
    parts = [part for part in below.split("/") if part]
    if ".." in parts:
        parts = []
    return tuple("/".join([mount.point, *parts[:n]]) for n in range(len(parts), -1, -1))


def values(host: Host, place: Group, name: str) -> Dict[str, str]:
    """Content of the file ``name`` by folder, for those of the folders that have it. Raises Unreadable.

    The root group has no limit files, and a container may not show the folder of its own path.
    """
    found = {}
    for folder in place.folders:
        try:
            found[folder] = host.read(f"{folder}/{name}").strip()
        except Unreadable as error:
            if error.reason.kind != "absent":
                raise
    return found


def parse_limit(text: str) -> int:
    """A limit as memory.max, memory.limit_in_bytes or pids.max hold it; UNLIMITED for none. Raises Unreadable."""
    if text == "max":
        return UNLIMITED
    limit = whole(text)
    if limit is None:
        raise Unreadable(Reason("unreadable", f"cgroup limit {text[:40]!r} is no number"))
    return UNLIMITED if limit >= V1_UNLIMITED else limit


def smallest(host: Host, place: Group, name: str) -> Tuple[int, str]:
    """The smallest limit in the files ``name`` and the folder that sets it; UNLIMITED and "" for none.

    Raises Unreadable.
    """
    limits = [(parse_limit(text), folder) for folder, text in values(host, place, name).items()]
    return min([entry for entry in limits if entry[0] != UNLIMITED], default=(UNLIMITED, ""))

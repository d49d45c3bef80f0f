"""Cgroups: the folders of this process's control group and its parents, version 1 and 2."""

import os
from typing import List, Optional, Tuple

from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable


def cgroup_dirs(host: Host, controller: str) -> Tuple[str, ...]:
    """Folders that may bound this process for ``controller``, its own first, then the parents up to the mount.

    Inside a container the path in /proc/self/cgroup may be the machine's while the mount shows the container's own
    root; folders that do not exist are left out by trying the root last.
    """
    try:
        mounts, groups = host.read("/proc/self/mountinfo"), host.read("/proc/self/cgroup")
    except Unreadable:
        return ()
    place = parse_mount(mounts, controller)
    path = parse_path(groups, controller if place and place[1] else "")
    if not place or path is None:
        return ()
    folders = [place[0]]
    for part in [p for p in path.split("/") if p and p != ".."]:
        folders.append(os.path.join(folders[-1], part))
    return tuple(reversed(folders))


def parse_mount(mountinfo: str, controller: str) -> Optional[Tuple[str, bool]]:
    """(mount point, is version 1) of the hierarchy that carries ``controller``; version 1 wins where both are."""
    found = None
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup" and controller in kind[-1].split(","):
            return fields[4], True
        if kind[0] == "cgroup2":
            found = (fields[4], False)
    return found


def parse_path(cgroup: str, controller: str) -> Optional[str]:
    """Path of this process in the hierarchy of ``controller`` ("" for version 2), from /proc/self/cgroup."""
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (not controllers and not controller) or (controller and controller in controllers.split(",")):
            return path
    return None


def paths(host: Host, controller: str, name: str) -> List[str]:
    """Paths of the file ``name`` in each of ``cgroup_dirs``."""
    return [f"{folder}/{name}" for folder in cgroup_dirs(host, controller)]

"""Mounts: what /proc/self/mountinfo says, for the sections that ask what lies where."""

import re
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

MOUNTINFO = "/proc/self/mountinfo"


@dataclass(frozen=True)
class MountLine:
    """One line of mountinfo (proc(5)): ``root`` is the folder of the file system that shows at ``point``."""

    root: str
    point: str
    options: Tuple[str, ...]
    fs_type: str
    source: str
    super_options: Tuple[str, ...]


def parse_mountinfo(text: str) -> Tuple[MountLine, ...]:
    """Lines of mountinfo in their order; lines of another form are left out."""
    return tuple(line for line in map(_mount_line, text.splitlines()) if line)


def _mount_line(line: str) -> Optional[MountLine]:
    head, separator, tail = line.partition(" - ")
    fields, kind = head.split(" "), tail.split(" ")
    if not separator or len(fields) < 6 or len(kind) < 3:
        return None
    root, point, options = fields[3:6]
    return MountLine(
        unescape(root),
        unescape(point),
        tuple(options.split(",")),
        kind[0],
        unescape(kind[1]),
        tuple(kind[2].split(",")),
    )


def unescape(text: str) -> str:
    r"""Undo the kernel's octal escapes of blank, tab, newline and backslash (\040 \011 \012 \134)."""
    return re.sub(r"\\(0\d\d|1[0-7]\d)", lambda found: chr(int(found.group(1), 8)), text)


def covering(mounts: Sequence[MountLine], path: str) -> Optional[MountLine]:
    """The mount that ``path`` lies on: the longest mount point, and of several on one point the last."""
    found = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        if (path == point or path.startswith(point + "/")) and (not found or len(mount.point) >= len(found.point)):
            found = mount
    return found

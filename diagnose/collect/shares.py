"""Network file systems that are mounted here, or should be: the section "disk" beyond the places a job surely writes to.

Each is looked at in a child of its own, side by side: several mounts of one dead server cost the time of one.
"""

import re
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddp_doctor import child
from ddp_doctor.collect.mounts import MountLine, unescape
from ddp_doctor.facts import Mount, Reason, to_plain
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

FSTAB = "/etc/fstab"
MAX_SHARES = 32
"""A node that mounts more names the first of them; automounters make hundreds."""
SIZES = ("total_bytes", "free_bytes", "inodes_total", "inodes_free")
_NEVER_AT_BOOT = re.compile(r"noauto|x-systemd\.automount|x-initrd|user|users")


def shares(host: Host, lines: Sequence[MountLine], seen_points: Sequence[str], limit_s: float) -> Tuple[Mount, ...]:
    """Network mounts other than those at ``seen_points``, and those of /etc/fstab that are not mounted."""
    from ddp_doctor.collect.disk import is_network

    mounted = {line.point: line for line in lines if is_network(line.fs_type)}
    others = [line for point, line in mounted.items() if point not in seen_points][:MAX_SHARES]
    looks: Dict[str, Any] = {}
    if others:
        points = [line.point for line in others]
        looks = dict(host.ask("network mounts", lambda: look_at(host, points, limit_s), 2 * limit_s + 2))
    points_now = {line.point for line in lines}
    missing = [entry for entry in _fstab(host) if entry.point not in points_now and is_network(entry.fs_type)]
    return (*(_share(line, looks) for line in others), *(_not_mounted(line) for line in missing))


def look_at(host: Host, points: Sequence[str], limit_s: float) -> Dict[str, Any]:
    """Point -> its sizes, or {"reason": ...}. A mount that hangs hides no other."""
    started = [child.start(point, partial(_sizes, host, point), limit_s) for point in points]
    found: Dict[str, Any] = {}
    for finished, outcome in child.finish(started):
        reason = Reason(outcome.failure, f"{finished.name}: {outcome.text}") if outcome.failure else None
        found[finished.name] = {"reason": to_plain(reason)} if reason else outcome.value
    return found


def _sizes(host: Host, point: str) -> Dict[str, Any]:
    try:
        found = host.statvfs(point)
    except Unreadable as error:
        return {"reason": to_plain(error.reason)}
    return {**{name: getattr(found, name) for name in SIZES}, "read_only": found.read_only}


def _share(line: MountLine, looks: Dict[str, Any]) -> Mount:
    from ddp_doctor.collect.disk import shown_options

    seen = dict(looks.get(line.point) or {"reason": {"kind": "not-recorded", "text": f"{line.point}: not looked at"}})
    reason = Reason(**seen.pop("reason")) if "reason" in seen else None
    read_only = seen.pop("read_only", None) or "ro" in line.options
    return Mount(
        "share",
        line.point,
        point=line.point,
        fs_type=line.fs_type,
        network=True,
        options=shown_options(line),
        read_only=read_only,
        **seen,
        unread={**(dict.fromkeys(SIZES, reason) if reason else {}), "writable": _NOT_ASKED},
    )


_NOT_ASKED = Reason("not-asked", "whether this user may write is looked at in the places of a job alone")


def _not_mounted(line: MountLine) -> Mount:
    reason = Reason("absent", f"{FSTAB} has it ({line.fs_type}), and it is not mounted")
    fields = ("point", "options", "read_only", "writable", *SIZES)
    return Mount("share", line.point, fs_type=line.fs_type, network=True, unread=dict.fromkeys(fields, reason))


def _fstab(host: Host) -> List[MountLine]:
    """Lines of fstab that are mounted at boot; none where there is no such file, as in most containers."""
    text: Optional[str] = optional(lambda: host.read(FSTAB), {}, "fstab")
    return parse_fstab(text or "")


def parse_fstab(text: str) -> List[MountLine]:
    """Lines of fstab(5) without noauto and without an automount."""
    found = []
    for line in text.splitlines():
        fields = line.split("#", 1)[0].split()
        if len(fields) < 3 or not fields[1].startswith("/"):
            continue
        options = tuple(fields[3].split(",")) if len(fields) > 3 else ()
        if not any(_NEVER_AT_BOOT.fullmatch(option) for option in options):
            found.append(MountLine("/", unescape(fields[1]), (), fields[2], unescape(fields[0]), ()))
    return found

"""Quotas of this user, as ``quota`` and ``lfs quota`` tell them where they are installed."""

import re
from typing import List, Sequence, Tuple

from ddp_doctor.facts import Mount, Quota, Reason, Unread
from ddp_doctor.host import Host, Ran
from ddp_doctor.unreadable import Unreadable

LIMIT_S = 3.0
KIB = 1024
"""Both commands count blocks of 1 KiB when they are not asked for other units."""
_ROW = re.compile(
    r"\s*(/\S*|\S+:/\S*)?\s+(\d{1,18})(\*?)\s+(\d{1,18})\s+(\d{1,18})\s+(\S+)?\s+(\d{1,18})(\*?)\s+(\d{1,18})\s+(\d{1,18})\b"
)


def quotas(host: Host, mounts: Sequence[Mount], unread: Unread) -> Tuple[Quota, ...]:
    """Quotas that are set for this user. Where neither command is installed: none, with the reason in ``unread``."""
    found: List[Quota] = []
    try:
        found += parse(host.run("quota", ["quota", "-w", "-p", "-u"], LIMIT_S))
    except Unreadable as error:
        unread["quotas"] = _why("quota", error.reason)
    for point in sorted({m.point for m in mounts if m.fs_type == "lustre" and m.point}):
        try:
            uid, _ = host.user()
            found += parse(host.run(f"lfs-quota {point}", ["lfs", "quota", "-q", "-u", str(uid), point], LIMIT_S))
        except Unreadable as error:
            unread["quotas"] = _why("lfs", error.reason)
    return tuple(found)


def _why(command: str, reason: Reason) -> Reason:
    """A command that is not there said in words: the kernel's "No such file" would seem to be about a file system."""
    return Reason("absent", f"the command {command} is not installed here") if reason.kind == "absent" else reason


def parse(ran: Ran) -> List[Quota]:
    """Rows of "filesystem blocks quota limit grace files quota limit grace"; a limit of 0 is none; * marks an excess.

    ``quota`` ends with status 1 where a quota is exceeded; a long device name stands on a line of its own without -w.
    """
    rows, name = [], ""
    for line in ran.stdout.splitlines():
        found = _ROW.match(line)
        if found:
            rows.append(_quota(found, found.group(1) or name))
        name = line.strip()
    return [row for row in rows if row.limit_bytes or row.soft_bytes or row.files_limit or row.files_soft]


def _quota(row: "re.Match[str]", place: str) -> Quota:
    used, soft, hard, files, files_soft, files_hard = (int(row.group(n)) for n in (2, 4, 5, 7, 9, 10))
    return Quota(
        place,
        used_bytes=used * KIB,
        soft_bytes=soft * KIB or None,
        limit_bytes=hard * KIB or None,
        files=files,
        files_soft=files_soft or None,
        files_limit=files_hard or None,
    )

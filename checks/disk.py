"""Checks of the places that a job writes to."""

from typing import Callable, Dict, Iterator, List, Optional, Tuple

from ddp_doctor.facts import Disk, Memory, Mount, Reason
from ddp_doctor.model import Reading, Severity, check, known, unknown, why_unknown
from ddp_doctor.policy import MIB, Policy
from ddp_doctor.units import size

SHM_MIN_BYTES = 512 * MIB
"""Where DeepSpeed's ds_report begins to warn (deepspeed/env_report.py)."""
HALF_OF_MEMORY = 0.45
"""The kernel's default size of a tmpfs is half of the memory that it manages, of which MemTotal may tell a little more: the
missing 5 % are a margin of our own."""


@check(Severity.ERROR)
def shm_too_small(disk: Disk, policy: Policy, memory: Optional[Memory] = None) -> Iterator[Reading]:
    """The shared memory in /dev/shm is too small.

    Why: NCCL shares buffers between the ranks of a node in /dev/shm, about 9 MiB for each pair and channel, and data loader
        workers hand over their batches there. A container gets 64 MiB unless told otherwise: NCCL then fails with "failed to
        extend /dev/shm/nccl-...", a data loader dies with "Bus error ... insufficient shared memory (shm)".
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/runtime_and_mpi_issues.html
        https://github.com/deepspeedai/DeepSpeed/pull/4015
        https://github.com/NVIDIA/nccl/issues/1518
    """
    least, why = _shm_floor(policy, memory)
    for mount in _mounts(disk, "shm"):
        if mount.total_bytes is None and not _absent(mount):
            yield unknown(mount, "total_bytes", mount.path)
        else:
            yield Reading(
                ok=(mount.total_bytes or 0) >= least,
                subject=mount.path,
                measured="there is none" if mount.total_bytes is None else size(mount.total_bytes),
                expected=f"at least {size(least)}{why}",
                message="NCCL or a data loader will run out of shared memory",
            )


def _absent(mount: Mount) -> bool:
    """The place does not exist."""
    return mount.total_bytes is None and why_unknown(mount, "total_bytes").kind == "absent"


def _shm_floor(policy: Policy, memory: Optional[Memory]) -> Tuple[int, str]:
    """Least size of /dev/shm: the policy's, else 512 MiB, or what the kernel gives a small machine."""
    if policy.shm_min_bytes is not None:
        return policy.shm_min_bytes, " (policy)"
    half = int(HALF_OF_MEMORY * memory.total_bytes) if memory and memory.total_bytes else SHM_MIN_BYTES
    return min(SHM_MIN_BYTES, half), ""


@check(Severity.WARNING)
def nearly_full(disk: Disk, policy: Policy) -> Iterator[Reading]:
    """A file system that the job writes to is nearly full.

    Why: Checkpoints, compiled kernels, caches and logs fail with "No space left on device", often hours after the start;
        in /dev/shm the next job meets what a killed one left (nccl-*, torch_* files).
    See: https://man7.org/linux/man-pages/man3/statvfs.3.html
    """
    for mount in _file_systems(disk):
        free, total = mount.free_bytes, mount.total_bytes
        if free is None or total is None:
            yield unknown(mount, "free_bytes", _subject(mount))
        elif total and not mount.read_only:
            percent = 100 * free / total
            yield Reading(
                ok=free >= policy.disk_free_min_bytes or percent >= policy.disk_free_min_percent,
                subject=_subject(mount),
                measured=f"{size(free)} of {size(total)} free ({percent:.1f} %)",
                expected=f"at least {size(policy.disk_free_min_bytes)} or {policy.disk_free_min_percent:g} %",
                message=f"{_subject(mount)} is nearly full",
            )


@check(Severity.ERROR)
def out_of_inodes(disk: Disk) -> Iterator[Reading]:
    """A file system that the job writes to can hold no further file.

    Why: Without a free inode no file can be created, and programs say "No space left on device" though df shows free
        space. Data sets of many small files and stale caches are the usual cause.
    See: https://man7.org/linux/man-pages/man3/statvfs.3.html
    """
    yield from _inodes(disk, lambda free, percent: free > 0, "no more files can be created", "at least 1 free inode")


@check(Severity.WARNING)
def few_inodes_left(disk: Disk, policy: Policy) -> Iterator[Reading]:
    """A file system that the job writes to can hold few further files.

    Why: Without a free inode no file can be created, and programs say "No space left on device" though df shows free
        space. Unpacking a data set or an environment of many small files uses them up.
    See: https://man7.org/linux/man-pages/man3/statvfs.3.html
    """
    least = policy.inodes_free_min_percent
    yield from _inodes(
        disk,
        lambda free, percent: free == 0 or percent >= least,
        "few files can still be created",
        f"at least {least:g} %",
    )


def _inodes(disk: Disk, enough: Callable[[int, float], bool], message: str, expected: str) -> Iterator[Reading]:
    """Readings of file systems with a fixed number of inodes; btrfs and many network file systems have none."""
    for mount in _file_systems(disk):
        free, total = mount.inodes_free, mount.inodes_total
        if free is None or total is None:
            yield unknown(mount, "inodes_free", _subject(mount))
        elif total and not mount.read_only:
            yield Reading(
                ok=enough(free, 100 * free / total),
                subject=_subject(mount),
                measured=f"{free} of {total} inodes free",
                expected=expected,
                message=f"on {_subject(mount)} {message}",
            )


@check(Severity.ERROR)
def read_only(disk: Disk) -> Iterator[Reading]:
    """Shared memory or the temporary folder cannot be written.

    Why: NCCL and data loaders create files in /dev/shm; torch, Python's multiprocessing and compilers create theirs in the
        temporary folder. A file system that turned read-only by itself had an I/O error: the kernel log says which.
    See: https://docs.python.org/3/library/tempfile.html
    """
    for mount in _mounts(disk, "shm", "tmp"):
        yield from _writable(mount)


@check(Severity.WARNING)
def not_writable(disk: Disk) -> Iterator[Reading]:
    """The home or the working directory cannot be written.

    Why: Torch, Triton and Hugging Face keep compiled kernels and downloads below the home, and most scripts write logs and
        checkpoints below the working directory. Both can be put elsewhere, if it is done before the job starts.
    See: https://pytorch.org/docs/stable/hub.html
    """
    for mount in _mounts(disk, "home", "cwd"):
        yield from _writable(mount)


def _writable(mount: Mount) -> Iterator[Reading]:
    if mount.writable is None and not mount.read_only:
        yield unknown(mount, "writable", mount.path)
    else:
        yield Reading(
            ok=bool(mount.writable) and not mount.read_only,
            subject=mount.path,
            measured="mounted read-only" if mount.read_only else "writable" if mount.writable else "no right to write",
            expected="writable",
            message=f"{mount.path} cannot be written by this user",
        )


@check(Severity.WARNING)
def missing(disk: Disk) -> Iterator[Reading]:
    """The temporary folder or the home does not exist.

    Why: Where TMPDIR names a folder that is not there Python silently takes another, often one too small or shared; without
        a home torch, Triton and Hugging Face cannot keep their caches. A scratch folder that only the first node has is the
        usual cause.
    See: https://docs.python.org/3/library/tempfile.html
    """
    for mount in _mounts(disk, "tmp", "home"):
        if mount.total_bytes is None and not _absent(mount):
            yield unknown(mount, "total_bytes", mount.path)
        else:
            yield Reading(
                ok=not _absent(mount),
                subject=mount.role,
                measured=why_unknown(mount, "total_bytes").text if _absent(mount) else mount.path,
                expected="a folder that exists",
                message=f"the {mount.role} folder{' ' + mount.path if mount.path else ''} does not exist",
            )


@check(Severity.ERROR)
def not_answering(disk: Disk) -> Iterator[Reading]:
    """A file system that the job uses does not answer.

    Why: A process that touches a mount whose server is gone waits in the kernel for ever and cannot even be killed: the job
        hangs at its first import, data set or checkpoint on it.
    See: https://man7.org/linux/man-pages/man5/nfs.5.html
    """
    for mount in known(disk.mounts, disk, "mounts"):
        if not _absent(mount):  # a place that is not there: disk/missing
            yield _answers(mount)


@check(Severity.WARNING)
def share_not_answering(disk: Disk) -> Iterator[Reading]:
    """A network file system that is mounted here does not answer.

    Why: Whatever looks at it hangs (df, a shell's completion, a data loader that walks its folders) or gets an error such
        as "Stale file handle". It is none of the places that every job uses: whether this job does is not known.
    See: https://man7.org/linux/man-pages/man5/nfs.5.html
    """
    for share in known(disk.shares, disk, "shares"):
        if not _absent(share):
            yield _answers(share)


@check(Severity.WARNING)
def share_not_mounted(disk: Disk) -> Iterator[Reading]:
    """A network file system stands in /etc/fstab and is not mounted.

    Why: The job finds an empty folder where data, code or an environment should be, on this node alone. Mounting at boot
        fails when the network or the server comes up later than the node.
    See: https://man7.org/linux/man-pages/man5/fstab.5.html
    """
    for share in known(disk.shares, disk, "shares"):
        yield Reading(
            ok=not _absent(share),
            subject=share.path,
            measured=why_unknown(share, "total_bytes").text if _absent(share) else "mounted",
            expected="mounted, as /etc/fstab says",
            message=f"{share.path} is not mounted",
        )


def _answers(mount: Mount) -> Reading:
    """Late, or one of the errors of a server or device that is gone."""
    bad = [reason for reason in mount.unread.values() if reason.kind == "timed-out" or _is_dead(reason)]
    hangs = bool(bad) and bad[0].kind == "timed-out"
    return Reading(
        ok=not bad,
        subject=mount.path,
        measured=bad[0].text if bad else "answered",
        expected="an answer at once",
        message=f"{mount.path} {'hangs' if hangs else 'is dead'}: its server or device does not answer",
    )


_DEAD = (
    "Stale file handle",
    "Transport endpoint is not connected",
    "Host is down",
    "Input/output error",
    "No route to host",
)
"""ESTALE, ENOTCONN (a FUSE daemon that ended), EHOSTDOWN, EIO and EHOSTUNREACH in the kernel's words (strerror(3))."""


def _is_dead(reason: Reason) -> bool:
    return reason.kind == "unreadable" and any(words in reason.text for words in _DEAD)


@check(Severity.ERROR)
def quota_used_up(disk: Disk) -> Iterator[Reading]:
    """This user's quota is used up.

    Why: Every write fails with "Disk quota exceeded": the first checkpoint, log or compiled kernel ends the job.
    See: https://man7.org/linux/man-pages/man1/quota.1.html
    """
    yield from _quota_readings(disk, hard=True)


@check(Severity.WARNING)
def quota_exceeded(disk: Disk) -> Iterator[Reading]:
    """This user is beyond the soft limit of a quota.

    Why: Writing goes on for the grace time, mostly a week, and then fails with "Disk quota exceeded".
    See: https://man7.org/linux/man-pages/man1/quota.1.html
    """
    yield from _quota_readings(disk, hard=False)


def _quota_readings(disk: Disk, hard: bool) -> Iterator[Reading]:
    """A reading for each quota that has the hard, or the soft, limit."""
    for quota in known(disk.quotas, disk, "quotas"):
        sizes = (quota.used_bytes, quota.limit_bytes if hard else quota.soft_bytes)
        files = (quota.files, quota.files_limit if hard else quota.files_soft)
        if sizes[1] is None and files[1] is None:
            continue
        over = [
            used for used, limit in (sizes, files) if limit is not None and (used >= limit if hard else used > limit)
        ]
        room = f"{size(sizes[0])} of {size(sizes[1])}" if sizes[1] else size(sizes[0])
        count = f"{files[0]} of {files[1]} files" if files[1] else f"{files[0]} files"
        yield Reading(
            ok=not over,
            subject=quota.place,
            measured=f"{room}, {count}",
            expected=f"less than the {'hard' if hard else 'soft'} limit",
            message=f"the quota on {quota.place} is {'used up' if hard else 'exceeded'}",
        )


def _mounts(disk: Disk, *roles: str) -> List[Mount]:
    return [mount for mount in known(disk.mounts, disk, "mounts") if mount.role in roles]


def _file_systems(disk: Disk) -> List[Mount]:
    """One place of each file system, one that could be read: with /tmp and home on "/" its fault is told once."""
    found: Dict[str, Mount] = {}
    for mount in sorted(known(disk.mounts, disk, "mounts"), key=lambda mount: mount.total_bytes is None):
        found.setdefault(mount.point or mount.path, mount)
    return list(found.values())


def _subject(mount: Mount) -> str:
    return mount.point or mount.path

"""Checks of the places that a job writes to."""

from typing import Callable, Dict, Iterator, List, Optional, Tuple

from ddp_doctor.facts import Disk, Memory, Mount
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
        if _absent(mount):  # a place that is not there: disk/missing
            continue
        late = [reason for reason in mount.unread.values() if reason.kind == "timed-out"]
        yield Reading(
            ok=not late,
            subject=mount.path,
            measured=late[0].text if late else "answered",
            expected="an answer at once",
            message=f"{mount.path} hangs: its server or device does not answer",
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

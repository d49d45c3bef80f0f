"""Remedies for the places that a job writes to."""

from typing import Iterator, List, Optional

from ddp_doctor.facts import Disk, Mount, Os
from ddp_doctor.fixes._node import KUBERNETES_VOLUME_URL, engine_of, quoted
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say
from ddp_doctor.policy import GIB, Policy


def shm_too_small(os: Optional[Os] = None) -> Iterator[Remedy]:
    """Enlarge /dev/shm where it is made."""
    if engine_of(os) == "kubernetes":
        # In YAML's flow style, which survives being wrapped.
        volume = "Add to the pod's spec: volumes: [{name: shm, emptyDir: {medium: Memory}}]"
        mount = "Add to the container: volumeMounts: [{name: shm, mountPath: /dev/shm}]"
        steps = (say(volume, scope="this job", see=KUBERNETES_VOLUME_URL), say(mount, scope="this job"))
        yield Remedy("Mount a memory volume at /dev/shm; what is in it counts against the memory limit", steps)
    elif engine_of(os) == "docker":
        see = "https://docs.docker.com/reference/cli/docker/container/run/"
        yield Remedy(
            "Start the container with the host's shared memory, or more of its own",
            (say("Start the container with --ipc=host, or with --shm-size=8g.", scope="this job", see=see),),
        )
    else:
        step = command(
            "mount -o remount,size=50% /dev/shm", who="root", scope="this node until reboot", undo="remount it smaller"
        )
        keep = say("To keep it, put size=50% into the line of /dev/shm in /etc/fstab.", who="root", scope="this node")
        yield Remedy("Enlarge /dev/shm", (step, keep))
    text = (
        "With num_workers=0 data loaders need no shared memory; NCCL_SHM_DISABLE=1 makes NCCL do without, more slowly."
    )
    yield Remedy("Do with less", (say(text, scope="this job"),))


def nearly_full(disk: Disk, finding: Verdict, policy: Policy) -> Iterator[Remedy]:
    """Find what is large; take another place."""
    path = _path(disk, finding)
    if path == "/dev/shm":
        steps = (
            command("ls -la /dev/shm"),
            say(
                "Remove nccl-*, torch_* and psm_* files that no running job of yours has open (fuser tells).",
                risk="a running job",
            ),
        )
        yield Remedy("Remove what killed jobs left", steps)
    else:
        yield Remedy("Find what is large", (command(f"du -xh --max-depth=1 -- {quoted(path)}"),))
    yield from _elsewhere(disk, path, policy)


def out_of_inodes(disk: Disk, finding: Verdict) -> Iterator[Remedy]:
    """Find the many files."""
    yield _many_files(_path(disk, finding))


def few_inodes_left(disk: Disk, finding: Verdict) -> Iterator[Remedy]:
    """Find the many files."""
    yield _many_files(_path(disk, finding))


def _many_files(path: str) -> Remedy:
    pack = say("Keep data sets of many small files packed (tar, WebDataset, squashfs), and remove stale caches.")
    return Remedy(
        "Find the folders with the most files", (command(f"du -x --inodes --max-depth=1 -- {quoted(path)}"), pack)
    )


def read_only(disk: Disk, finding: Verdict, policy: Policy, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Mount it writable, or write elsewhere."""
    if engine_of(os) == "kubernetes":
        text = f"Mount an emptyDir at {finding.subject}: the container's root is read-only (readOnlyRootFilesystem)."
        yield Remedy("Mount a writable volume", (say(text, scope="this job", see=KUBERNETES_VOLUME_URL),))
    elif engine_of(os) == "docker":
        text = f"Start the container without --read-only, or with --tmpfs {finding.subject}."
        yield Remedy("Mount a writable file system", (say(text, scope="this job"),))
    elif finding.measured == "no right to write":
        mode = command(f"chmod 1777 -- {quoted(finding.subject)}", who="root", scope="this node")
        yield Remedy("Give the folder its usual mode", (mode,))
    else:
        log = command("dmesg --level=err,warn", who="root")
        text = "After an I/O error repair the file system before it is mounted writable again."
        yield Remedy("See why it is read-only", (log, say(text, who="root", scope="this node")))
    if finding.subject != "/dev/shm":
        yield from _elsewhere(disk, finding.subject, policy)


def not_writable(disk: Disk, finding: Verdict, policy: Policy) -> Iterator[Remedy]:
    """Put caches and output elsewhere."""
    if any(m.role == "home" and m.path == finding.subject for m in disk.mounts or ()):
        yield _caches_elsewhere(disk)
    else:
        other = _roomiest(disk, finding.subject, policy)
        place = f", e.g. below {other.path}" if other else ""
        text = f"Start the job in a folder that can be written, or give its logs and checkpoints one{place}."
        yield Remedy("Write elsewhere", (say(text, scope="this job"),))


def missing(disk: Disk, finding: Verdict) -> Iterator[Remedy]:
    """Make the folder, or name another."""
    found = next((m for m in disk.mounts or () if m.role == finding.subject), None)
    if finding.subject == "home":
        text = "Make this user's home on every node (mkhomedir_helper USER), or mount the file system that holds it."
        yield Remedy("Give the user a home", (say(text, who="root", scope="all nodes"),))
        yield _caches_elsewhere(disk)
        return
    if found is not None and found.path:
        yield Remedy("Make the folder, on every node", (_make(disk, found.path),))
    yield Remedy("Name a folder that exists on every node", (export("TMPDIR", "/var/tmp", scope="this job"),))


def _make(disk: Disk, path: str) -> Step:
    """By this user below a place that it may write, else by root, for everybody as /tmp is."""
    undo = f"rmdir -- {quoted(path)}"
    if any(path.startswith(m.path.rstrip("/") + "/") and m.writable and not m.read_only for m in disk.mounts or ()):
        return command(f"mkdir -p -- {quoted(path)}", scope="this node", undo=undo)
    return command(f"install -d -m 1777 -- {quoted(path)}", who="root", scope="this node", undo=undo)


def _caches_elsewhere(disk: Disk) -> Remedy:
    """In the working directory: not below /tmp, where what others can write first torch would load as code."""
    other = next((m for m in disk.mounts or () if m.role == "cwd" and m.writable and not m.read_only), None)
    place = other.path if other else "/path/with/room"
    variables = ("TORCH_HOME", "TRITON_CACHE_DIR", "HF_HOME", "XDG_CACHE_HOME")
    return Remedy("Put the caches elsewhere", tuple(export(n, f"{place}/cache", scope="this job") for n in variables))


def not_answering(disk: Disk, finding: Verdict) -> Iterator[Remedy]:
    """Bring the server back, or take the mount away."""
    found = next((m for m in (*(disk.mounts or ()), *(disk.shares or ())) if m.path == finding.subject), None)
    point = (found.point if found else None) or finding.subject
    yield Remedy(
        "Bring the server back",
        (
            say(
                f"Check the server of {point} and the network to it; jobs go on when it answers again.",
                who="cluster admin",
            ),
            command("findmnt --types nfs,nfs4,cifs,lustre,ceph,beegfs,gpfs", scope="this node"),
        ),
    )
    detach = command(
        f"umount --lazy -- {quoted(point)}", who="root", scope="this node", risk="programs that use it get errors"
    )
    yield Remedy("Detach the mount", (detach,))


def share_not_answering(disk: Disk, finding: Verdict) -> Iterator[Remedy]:
    """The same as for a place of the job."""
    yield from not_answering(disk, finding)


def share_not_mounted(finding: Verdict) -> Iterator[Remedy]:
    """Mount it; the log says why it was not."""
    mount = command(f"mount -- {quoted(finding.subject)}", who="root", scope="this node until reboot")
    text = "If it fails at every boot, add _netdev to its options in /etc/fstab, so that it waits for the network."
    yield Remedy("Mount it", (mount, say(text, who="root", scope="this node")))


def quota_used_up(finding: Verdict) -> Iterator[Remedy]:
    """Make room, or write elsewhere."""
    text = f"Delete what is not needed on {finding.subject}, write checkpoints and caches elsewhere, or ask for a larger quota."
    caches = ("TORCH_HOME", "TRITON_CACHE_DIR", "HF_HOME")
    elsewhere = tuple(export(name, "/path/with/room/cache", scope="this job") for name in caches)
    yield Remedy("Make room", (say(text), *elsewhere))


def quota_exceeded(finding: Verdict) -> Iterator[Remedy]:
    """The same as for one that is used up."""
    yield from quota_used_up(finding)


def _elsewhere(disk: Disk, path: str, policy: Policy) -> Iterator[Remedy]:
    """Point TMPDIR at another place where there is room, when the fault is the temporary folder's."""
    temporary = next((m for m in disk.mounts or () if m.role == "tmp"), None)
    other = _roomiest(disk, path, policy)
    if temporary and other and path in (temporary.path, temporary.point):
        yield Remedy("Put temporary files elsewhere", (export("TMPDIR", other.path, scope="this job"),))


def _roomiest(disk: Disk, path: str, policy: Policy) -> Optional[Mount]:
    """The place of another file system with the most free space, if it has some GiB: never /dev/shm, which is memory."""
    others: List[Mount] = [
        m
        for m in disk.mounts or ()
        if m.role != "shm" and path not in (m.path, m.point) and m.writable and not m.read_only
        and (m.free_bytes or 0) >= max(4 * GIB, policy.disk_free_min_bytes)
    ]  # fmt: skip
    return max(others, key=lambda m: m.free_bytes or 0) if others else None


def _path(disk: Disk, finding: Verdict) -> str:
    """The mount point that a finding is about."""
    return next((m.point or m.path for m in disk.mounts or () if finding.subject in (m.point, m.path)), finding.subject)

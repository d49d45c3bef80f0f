"""Checks of the places that a job writes to."""

from dataclasses import replace

import pytest
from ddp_doctor.facts import Disk, Memory, Mount, Os, Quota, Reason
from ddp_doctor.policy import GIB, MIB, Policy
from judging import judged, outcome, remedy_text

ABSENT = Reason("absent", "/dev/shm: No such file or directory")
LATE = Reason("timed-out", "disk home: no answer within 1.5 s")
SHM = Mount("shm", "/dev/shm", "/dev/shm", "tmpfs", False, ("rw",), False, 16 * GIB, 16 * GIB, 1000, 990, True)
TMP = Mount("tmp", "/tmp", "/", "ext4", False, ("rw",), False, 100 * GIB, 50 * GIB, 10**6, 9 * 10**5, True)
HOME = replace(TMP, role="home", path="/home/ana")
NFS = replace(
    HOME,
    point="/home",
    fs_type="nfs4",
    network=True,
    inodes_total=0,
    inodes_free=0,
    total_bytes=2**50,
    free_bytes=2**49,
)
HUNG = Mount(
    "home",
    "/home/ana",
    "/home",
    "nfs4",
    True,
    (),
    False,
    unread=dict.fromkeys(("total_bytes", "free_bytes", "inodes_free", "writable"), LATE),
)
CWD = replace(TMP, role="cwd", path="/work")


def disk(*mounts):
    return Disk(mounts=mounts)


def failed(check_id, *mounts, policy=None):
    return [v.subject for v in judged(check_id, policy, disk=disk(*mounts)) if v.outcome.value == "failed"]


@pytest.mark.parametrize(
    "check_id",
    [
        "nearly-full",
        "out-of-inodes",
        "few-inodes-left",
        "read-only",
        "not-writable",
        "missing",
        "not-answering",
        "shm-too-small",
    ],
)
def test_a_healthy_node_raises_nothing(check_id):
    assert outcome(f"disk/{check_id}", disk=disk(SHM, TMP, NFS, CWD)) == "passed"


@pytest.mark.parametrize(
    ("name", "policy", "shm_bytes", "memory_bytes", "expected"),
    [
        ("container's default", Policy(), 64 * MIB, 2048 * GIB, "failed"),
        ("container's default, memory unknown", Policy(), 64 * MIB, None, "failed"),
        ("enough", Policy(), 512 * MIB, 2048 * GIB, "passed"),
        ("laptop", Policy(), 4 * GIB, 8 * GIB, "passed"),
        ("half of a small machine", Policy(), 240 * MIB, 512 * MIB, "passed"),
        ("site's floor", Policy(shm_min_bytes=8 * GIB), 4 * GIB, 8 * GIB, "failed"),
    ],
)
def test_shared_memory_is_judged_by_need_not_by_the_machine(name, policy, shm_bytes, memory_bytes, expected):
    memory = Memory(total_bytes=memory_bytes) if memory_bytes else None
    found = disk(replace(SHM, total_bytes=shm_bytes, free_bytes=shm_bytes))
    assert outcome("disk/shm-too-small", policy, disk=found, memory=memory) == expected


def test_no_shared_memory_at_all_is_too_small():
    found = disk(Mount("shm", "/dev/shm", unread={"total_bytes": ABSENT}))
    (verdict,) = judged("disk/shm-too-small", disk=found)
    assert (verdict.outcome.value, verdict.measured) == ("failed", "there is none")


def test_shared_memory_that_could_not_be_read_is_unsure():
    found = disk(Mount("shm", "/dev/shm", unread={"total_bytes": Reason("no-rights", "closed")}))
    assert outcome("disk/shm-too-small", disk=found) == "skipped"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("docker", "--shm-size=8g"),
        ("kubernetes", "emptyDir: {medium: Memory}"),
        ("apptainer", "mount -o remount"),
        ("", "mount -o remount"),
    ],
)
def test_shared_memory_is_enlarged_where_it_is_made(kind, expected):
    found = disk(replace(SHM, total_bytes=64 * MIB))
    (verdict,) = judged("disk/shm-too-small", disk=found, os=Os(container=kind))
    assert expected in remedy_text(verdict)


@pytest.mark.parametrize(
    ("name", "total", "free", "expected"),
    [
        ("large, small part, room for a checkpoint", 10**15, 4 * 10**12, "passed"),
        ("small, half empty", 512 * MIB, 256 * MIB, "passed"),
        ("exactly the bytes", 100 * GIB, 1 * GIB, "passed"),
        ("exactly the percentage", 1000 * MIB, 50 * MIB, "passed"),
        ("both bounds", 100 * GIB, 900 * MIB, "failed"),
        ("full", 100 * GIB, 0, "failed"),
    ],
)
def test_a_place_is_nearly_full_by_both_bounds(name, total, free, expected):
    found = disk(replace(TMP, total_bytes=total, free_bytes=free))
    assert outcome("disk/nearly-full", disk=found) == expected


@pytest.mark.parametrize(
    "unknown", [{"free_bytes": None}, {"total_bytes": None}, {"inodes_free": None}, {"inodes_total": None}]
)
def test_half_a_size_tells_nothing(unknown):
    check_id = "disk/nearly-full" if "bytes" in "".join(unknown) else "disk/out-of-inodes"
    assert outcome(check_id, disk=disk(replace(TMP, **unknown))) == "skipped"


def test_a_full_file_system_is_told_once():
    full = [replace(mount, free_bytes=0) for mount in (TMP, HOME, CWD)]
    assert failed("disk/nearly-full", SHM, *full) == ["/"]


def test_read_only_images_are_full_by_nature():
    squashfs = replace(CWD, point="/cvmfs", read_only=True, free_bytes=0, inodes_free=0)
    for check_id in ("nearly-full", "out-of-inodes", "few-inodes-left"):
        assert outcome(f"disk/{check_id}", disk=disk(squashfs)) == "skipped"


@pytest.mark.parametrize(
    ("total", "free", "out", "few"),
    [
        (10**6, 0, "failed", "passed"),
        (10**6, 100, "passed", "failed"),
        (10**6, 20000, "passed", "passed"),
        (10**6, 10**5, "passed", "passed"),
        (0, 0, "skipped", "skipped"),
    ],
)
def test_inodes_run_out_apart_from_bytes(total, free, out, few):
    found = disk(replace(TMP, inodes_total=total, inodes_free=free))
    assert (outcome("disk/out-of-inodes", disk=found), outcome("disk/few-inodes-left", disk=found)) == (out, few)


def test_shared_memory_and_temporary_folder_must_be_writable():
    assert failed("disk/read-only", replace(SHM, read_only=True), TMP) == ["/dev/shm"]
    assert failed("disk/read-only", SHM, replace(TMP, writable=False)) == ["/tmp"]
    assert failed("disk/read-only", SHM, TMP, replace(HOME, writable=False)) == []


def test_home_and_working_directory_should_be_writable():
    assert failed("disk/not-writable", replace(HOME, read_only=True), CWD) == ["/home/ana"]
    assert failed("disk/not-writable", HOME, replace(CWD, writable=False)) == ["/work"]


def test_whether_a_place_that_did_not_answer_is_writable_is_not_known():
    assert outcome("disk/not-writable", disk=disk(HUNG)) == "skipped"


def test_a_hung_mount_is_a_fault_of_its_own_and_hides_no_other():
    assert failed("disk/not-answering", SHM, TMP, HUNG) == ["/home/ana"]
    assert outcome("disk/nearly-full", disk=disk(TMP, HUNG)) == "passed skipped"


def test_a_hung_mount_is_detached_at_its_mount_point():
    (verdict,) = judged("disk/not-answering", disk=disk(HUNG))
    assert verdict.measured == LATE.text
    assert "umount --lazy -- /home" in remedy_text(verdict)


def absent(role, path):
    why = Reason("absent", f"{path}: No such file")
    return Mount(role, path, "/", "ext4", unread=dict.fromkeys(("total_bytes", "free_bytes", "inodes_free"), why))


@pytest.mark.parametrize(
    ("path", "who", "made"),
    [
        ("/scratch/77", "root", "install -d -m 1777 -- /scratch/77"),
        ("/home/ana/tmp", "user", "mkdir -p -- /home/ana/tmp"),
        ("/home/anastasia", "root", "install -d -m 1777 -- /home/anastasia"),
    ],
)
def test_a_folder_that_does_not_exist_is_named_and_made_by_who_may(path, who, made):
    (verdict, _) = judged("disk/missing", disk=disk(absent("tmp", path), HOME))
    assert (verdict.subject, verdict.measured) == ("tmp", f"{path}: No such file")
    assert [(step.who, step.text) for step in verdict.fixes[0].steps] == [(who, made)]


def test_a_home_that_nobody_names_is_missing_too():
    (verdict,) = judged(
        "disk/missing", disk=disk(Mount("home", "", unread={"total_bytes": Reason("absent", "the home is not known")}))
    )
    assert verdict.message == "the home folder does not exist"
    assert "mkdir -p" not in remedy_text(verdict)
    assert "export HOME" not in remedy_text(verdict)


def test_a_place_that_is_not_there_hides_no_file_system_and_answers_nothing():
    full = replace(HOME, free_bytes=MIB, inodes_free=0)
    for check in ("nearly-full", "out-of-inodes"):
        assert failed(f"disk/{check}", absent("tmp", "/nonexistent"), full) == ["/"]
    answered = judged("disk/not-answering", disk=disk(absent("tmp", "/nonexistent"), HOME))
    assert [v.subject for v in answered] == ["/home/ana"]


def test_temporary_files_go_where_there_is_room():
    full = replace(TMP, path="/tmp", point="/tmp", free_bytes=0)
    (verdict,) = [v for v in judged("disk/nearly-full", disk=disk(SHM, full, NFS)) if v.outcome.value == "failed"]
    assert "export TMPDIR /home/ana" in remedy_text(verdict)
    assert "du -xh --max-depth=1 -- /tmp" in remedy_text(verdict)


def test_shared_memory_is_no_place_for_temporary_files():
    full = replace(TMP, point="/tmp", free_bytes=0)
    (verdict,) = [v for v in judged("disk/nearly-full", disk=disk(SHM, full)) if v.outcome.value == "failed"]
    assert "TMPDIR" not in remedy_text(verdict)


def test_leftovers_are_looked_for_in_full_shared_memory():
    (verdict,) = judged("disk/nearly-full", disk=disk(replace(SHM, free_bytes=MIB)))
    assert "nccl-*" in remedy_text(verdict)


@pytest.mark.parametrize("path", ["/tmp/$(id)", "/tmp/a b", "/tmp/;reboot"])
def test_hostile_paths_are_quoted(path):
    (verdict,) = judged("disk/read-only", disk=disk(replace(TMP, path=path, writable=False)))
    commands = [step.text for remedy in verdict.fixes for step in remedy.steps if step.kind == "command"]
    assert commands == [f"chmod 1777 -- '{path}'"]


@pytest.mark.parametrize(("kind", "expected"), [("docker", "--tmpfs /tmp"), ("kubernetes", "emptyDir"), ("", "dmesg")])
def test_a_read_only_folder_is_mended_where_it_is_mounted(kind, expected):
    (verdict,) = judged("disk/read-only", disk=disk(replace(TMP, read_only=True)), os=Os(container=kind))
    assert expected in remedy_text(verdict)


def test_caches_of_a_home_that_cannot_be_written_go_elsewhere_and_not_to_tmp():
    scratch = replace(CWD, path="/scratch", point="/scratch")
    (verdict, _) = judged("disk/not-writable", disk=disk(TMP, replace(NFS, writable=False), scratch))
    assert "export TRITON_CACHE_DIR /scratch/cache" in remedy_text(verdict)


# --------------------------------------------------------------------------- shares and quotas

STALE = Reason("unreadable", "/data: Stale file handle")
SHARE = replace(NFS, role="share", path="/data", point="/data")


def gone(reason):
    return replace(SHARE, total_bytes=None, unread={"total_bytes": reason})


@pytest.mark.parametrize(
    ("reason", "result"),
    [
        (LATE, "failed"),
        (STALE, "failed"),
        (Reason("unreadable", "/data: Transport endpoint is not connected"), "failed"),
        (Reason("no-rights", "/data: Permission denied"), "passed"),
        (Reason("absent", "/etc/fstab has it (nfs), and it is not mounted"), "skipped"),
    ],
)
def test_a_dead_share_is_a_warning_and_a_dead_place_of_the_job_an_error(reason, result):
    (verdict,) = judged("disk/share-not-answering", disk=Disk((), (gone(reason),)))
    assert (verdict.outcome.value, verdict.severity.value) == (result, "warning")
    assert outcome("disk/not-answering", disk=disk(replace(gone(reason), role="home"))) == result


@pytest.mark.parametrize(("share", "result"), [(SHARE, "passed"), (gone(ABSENT), "failed"), (gone(STALE), "passed")])
def test_what_fstab_names_is_mounted(share, result):
    assert outcome("disk/share-not-mounted", disk=Disk((), (share,))) == result


def test_a_share_that_is_not_mounted_has_a_remedy_that_quotes_its_name():
    share = replace(gone(ABSENT), path="/data; rm x")
    (verdict,) = judged("disk/share-not-mounted", disk=Disk((), (share,)))
    assert "mount -- '/data; rm x'" in remedy_text(verdict)


@pytest.mark.parametrize(
    ("quota", "used_up", "exceeded"),
    [
        (Quota("/home", 50, 90, 100), "passed", "passed"),
        (Quota("/home", 95, 90, 100), "passed", "failed"),
        (Quota("/home", 100, 90, 100), "failed", "failed"),
        (Quota("/home", 50, None, 100, 7, 5, 9), "passed", "failed"),
        (Quota("/home", 50, None, None, 9, None, 9), "failed", "skipped"),
    ],
)
def test_quotas(quota, used_up, exceeded):
    facts = Disk((), (), (quota,))
    assert outcome("disk/quota-used-up", disk=facts) == used_up
    assert outcome("disk/quota-exceeded", disk=facts) == exceeded


@pytest.mark.parametrize("check_id", ["share-not-answering", "share-not-mounted", "quota-used-up", "quota-exceeded"])
def test_shares_and_quotas_that_were_not_asked_for_are_no_pass(check_id):
    why = Reason("not-asked", "profile quick")
    assert outcome(f"disk/{check_id}", disk=Disk((), unread={"shares": why, "quotas": why})) == "skipped"
    assert outcome(f"disk/{check_id}", disk=Disk((), (), ())) == "skipped"

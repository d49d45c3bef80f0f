"""Disk: the places that a job writes to, each by itself."""

import errno
import os
import signal
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ddp_doctor import child
from ddp_doctor.ask import Ask
from ddp_doctor.collect import disk, quota, shares
from ddp_doctor.collect.mounts import covering, parse_mountinfo, unescape
from ddp_doctor.facts import Mount, Quota
from ddp_doctor.host import Host, Ran, StatVfs
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable, reason_of

CAPTURES = Path(__file__).parents[3] / "shared/captures/5-host"
MOUNTINFO = (
    "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro\n"
    "28 27 0:23 / /dev/shm rw,nosuid,nodev - tmpfs shm rw,size=65536k\n"
    "29 27 0:40 / /home rw,relatime master:2 - nfs4 fs1:/export/home rw,vers=4.2,hard\n"
    "30 27 0:41 / /scratch\\040space rw - lustre mds@tcp:/s ro,flock\n"
)
SIZES = {"total_bytes": 2**26, "free_bytes": 2**25, "inodes_total": 1000, "inodes_free": 900}


def look(real: str, **other: Any) -> Dict[str, Any]:
    return {"value": {"real": real, "writable": True, "read_only": False, **SIZES, **other}}


def read(entries: Dict[str, Any], mountinfo: str = MOUNTINFO) -> Dict[str, Mount]:
    entries = {"env ": {"value": {"HOME": "/home/ana", "TMPDIR": "/scratch space/tmp"}}, **entries}
    node = Recording(entries, {"root/proc/self/mountinfo": mountinfo}, complete=True)
    mounts = disk.read(node, Ask(cwd="/srv/job")).mounts
    return {mount.role: mount for mount in mounts or ()}


def test_node() -> None:
    found = read(
        {
            "ask disk shm": look("/dev/shm"),
            "ask disk tmp": look("/scratch space/tmp", writable=False),
            "ask disk home": {"reason": {"kind": "timed-out", "text": "timed out after 1.5 s"}},
            "ask disk cwd": look("/home/ana/job"),
        }
    )
    assert list(found) == ["shm", "tmp", "home", "cwd"]
    shm = found["shm"]
    assert (shm.point, shm.fs_type, shm.network, shm.total_bytes) == ("/dev/shm", "tmpfs", False, 2**26)
    assert shm.options == ("rw", "nosuid", "nodev", "size=65536k")
    assert (shm.read_only, shm.writable, shm.unread) == (False, True, {})
    tmp = found["tmp"]
    assert (tmp.point, tmp.network, tmp.read_only, tmp.writable) == ("/scratch space", True, True, False)
    home = found["home"]  # the mount table knows of a server that does not answer
    assert (home.point, home.fs_type, home.network, home.read_only) == ("/home", "nfs4", True, False)
    assert {name: reason.kind for name, reason in home.unread.items()} == dict.fromkeys(
        ("total_bytes", "free_bytes", "inodes_total", "inodes_free", "writable"), "timed-out"
    )
    assert (found["cwd"].path, found["cwd"].point) == ("/srv/job", "/home")  # through a link


def test_place_that_is_not_there() -> None:
    shm = read({"ask disk shm": {"reason": {"kind": "absent", "text": "/dev/shm: No such file"}}})["shm"]
    assert shm.total_bytes is None
    assert shm.unread["total_bytes"].kind == "absent"


@pytest.mark.parametrize("mountinfo", ["", "\x00\\xff", "27 1 254:0 / / rw\n", "a - b c d\n"])
def test_hostile_mount_table_leaves_the_sizes(mountinfo: str) -> None:
    shm = read({"ask disk shm": look("/dev/shm")}, mountinfo)["shm"]
    assert (shm.total_bytes, shm.fs_type) == (2**26, None)
    assert set(shm.unread) == {"point", "fs_type", "network", "options", "read_only"}


def test_unknown_home_is_a_reason() -> None:
    home = read({"env ": {"value": {}}})["home"]
    assert (home.path, home.unread["total_bytes"].kind) == ("", "absent")


def test_escapes_of_the_kernel() -> None:
    assert unescape(r"/a\040b\011c\134040") == "/a b\tc\\040"


@pytest.mark.parametrize(
    ("path", "point"),
    [("/", "/"), ("/home", "/home"), ("/home/ana", "/home"), ("/homestead", "/"), ("/dev/shm/x", "/dev/shm")],
)
def test_covering_mount(path: str, point: str) -> None:
    found = covering(parse_mountinfo(MOUNTINFO), path)
    assert found is not None
    assert found.point == point


def test_last_mount_on_a_point_covers_the_others() -> None:
    lines = parse_mountinfo(MOUNTINFO + "31 28 0:50 / /dev/shm ro - tmpfs shm rw,size=1g\n")
    found = covering(lines, "/dev/shm")
    assert found is not None
    assert found.options == ("ro",)


@pytest.mark.parametrize(
    ("fs_type", "network"),
    [
        *((name, True) for name in ("nfs", "nfs4", "lustre", "gpfs", "ceph", "fuse.sshfs")),
        *((name, False) for name in ("ext4", "xfs", "tmpfs", "overlay", "fuse.fuse-overlayfs")),
    ],
)
def test_network_file_systems(fs_type: str, network: bool) -> None:
    assert disk.is_network(fs_type) is network


def test_options_are_kept_without_secrets_and_layers() -> None:
    (line,) = parse_mountinfo("9 1 0:1 / / rw - ceph x rw,name=a,secret=abc,lowerdir=/1:/2,upperdir=/3\n")
    assert disk.shown_options(line) == ("rw", "name=a", "secret=<redacted>")


class HungHome(Host):
    """A machine whose file server for the home does not answer."""

    def statvfs(self, path: str) -> StatVfs:
        while path == os.environ["HOME"]:
            signal.pause()
        return super().statvfs(path)


def test_dead_file_server_hides_itself_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(disk, "LOOK_LIMIT_S", 0.5)
    found = {mount.role: mount for mount in disk.read(HungHome(), Ask(cwd="/")).mounts or ()}
    assert found["home"].unread["total_bytes"].kind == "timed-out"
    assert found["home"].fs_type
    assert found["cwd"].total_bytes
    assert found["tmp"].total_bytes


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "link"))
    monkeypatch.chdir(tmp_path)
    found = {mount.role: mount for mount in disk.read(Host(), Ask()).mounts or ()}
    real = os.statvfs(tmp_path)
    for role in ("tmp", "cwd"):
        assert found[role].total_bytes == real.f_blocks * real.f_frsize
        assert found[role].writable is True
    assert found["cwd"].path == str(tmp_path)


def test_working_directory_that_was_removed(tmp_path: Path) -> None:
    def look_from_nowhere() -> List[str]:
        os.chdir(tmp_path)
        tmp_path.rmdir()
        mounts = disk.read(Host(), Ask()).mounts or ()
        return [mount.unread["total_bytes"].kind for mount in mounts if mount.role == "cwd"]

    assert child.call("nowhere", look_from_nowhere, 20).value == ["absent"]


# --------------------------------------------------------------------------- shares and quotas


class Dead(Host):
    """A machine with a file server that hangs and one whose exports were made anew."""

    def statvfs(self, path: str) -> StatVfs:
        while path == "/hangs":
            signal.pause()
        if path == "/stale":
            raise Unreadable(reason_of(OSError(errno.ESTALE, ""), path))
        return super().statvfs("/")


def test_shares_are_looked_at_side_by_side() -> None:
    points = ("/hangs", "/stale", "/fine")
    text = "".join(f"{n} 1 0:{n} / {p} rw - nfs4 fs:{p} rw\n" for n, p in enumerate(points))
    found = {m.path: m for m in shares.shares(Dead(), parse_mountinfo(text), (), 0.5)}
    assert found["/hangs"].unread["total_bytes"].kind == "timed-out"
    assert "Stale file handle" in found["/stale"].unread["total_bytes"].text
    assert (found["/fine"].fs_type, bool(found["/fine"].total_bytes)) == ("nfs4", True)


def test_shares_of_fstab_that_are_not_mounted() -> None:
    node = Recording({}, {"root/etc/fstab": FSTAB}, complete=True)
    found = shares.shares(node, parse_mountinfo("9 1 0:9 / /home rw - nfs4 fs:/h rw\n"), ("/home",), 0.5)
    assert [(m.path, m.unread["total_bytes"].kind) for m in found] == [("/data set", "absent")]


FSTAB = """
# fs:/old /old nfs defaults 0 0
UUID=1 / ext4 defaults 0 1
fs:/h /home nfs4 defaults 0 0
fs:/d /data\\040set nfs rw,hard 0 0
fs:/a /auto nfs noauto,x-systemd.automount 0 0
swap none swap sw 0 0
broken
"""

QUOTA = """Disk quotas for user ana (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/sda1 1000000*  900000 1000000       7  40000       0       0       0
     fs:/export     100       0       0       0      10       0       0       0
"""
LFS = "     /lustre 2048* 1024 4096 6d23h 10 0 5 -\n"
WRAPPED = """     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
/dev/mapper/a-very-long-name-of-a-device
                    12       0     100       0       3       0       0       0
"""


@pytest.mark.parametrize(
    ("text", "quotas"),
    [
        (QUOTA, [Quota("/dev/sda1", 1024 * 1_000_000, 1024 * 900_000, 1024 * 1_000_000, 40_000)]),
        (LFS, [Quota("/lustre", 2048 * 1024, 1024 * 1024, 4096 * 1024, 10, None, 5)]),
        (WRAPPED, [Quota("/dev/mapper/a-very-long-name-of-a-device", 12 * 1024, None, 100 * 1024, 3)]),
        ("", []),
        ("quota: error while getting quota\n" * 3, []),
    ],
    ids=["quota", "lfs", "long name", "nothing", "errors"],
)
def test_quotas_as_the_commands_tell_them(text: str, quotas: List[Quota]) -> None:
    assert quota.parse(Ran(1, text, "")) == quotas


def test_profile_quick_asks_for_no_quota() -> None:
    assert disk.read(Host(), Ask(profile="quick")).unread["quotas"].kind == "not-asked"


@pytest.mark.skipif(not CAPTURES.exists(), reason="../shared/captures is not here")
def test_captured_mount_tables() -> None:
    paths = [CAPTURES / "gpud/mountinfo", CAPTURES / "gcm-proc-self-mountinfo.txt"]
    paths += CAPTURES.glob("insights-core/mount/parsers.MOUNTINFO_D*")
    for path in paths:
        text = path.read_text()
        assert len(parse_mountinfo(text)) == len(text.splitlines()) > 2

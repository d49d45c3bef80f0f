"""The door: every answer is a value or a reason, and a moved root is not left."""

import os
import signal
from pathlib import Path
from typing import Any, Callable

import pytest
from ddp_doctor import child
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

NOBODY = 65534


def kind(read: Callable[[], Any]) -> str:
    """Kind of the reason with which the door says no."""
    with pytest.raises(Unreadable) as caught:
        read()
    return caught.value.reason.kind


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with files and links, beside a secret that is outside."""
    (tmp_path / "secret").write_text("outside")
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "usr/lib/os-release").write_text("ID=inside\n")
    links = {
        "etc/os-release": "../usr/lib/os-release",
        "etc/absolute": "/usr/lib/os-release",
        "etc/up": "../../../../../../usr/lib/os-release",
        "lib": "/usr/lib",
        "etc/outside": f"{tmp_path}/secret",
        "etc/climbs": "../../secret",
        "etc/loop": "loop",
        "etc/ping": "pong",
        "etc/pong": "/etc/ping",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


@pytest.mark.parametrize(
    "path", ["/usr/lib/os-release", "/etc/os-release", "/etc/absolute", "/etc/up", "/lib/os-release"]
)
def test_moved_root_follows_links_inside(tree: Path, path: str) -> None:
    host = Host(str(tree))
    assert host.read(path) == "ID=inside\n"
    assert host.realpath(path) == "/usr/lib/os-release"
    assert host.stat(path).kind == "file"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc/outside", "absent"),
        ("/etc/climbs", "absent"),
        ("/../secret", "absent"),
        ("/etc/../../secret", "absent"),
        ("/etc/loop", "unreadable"),
        ("/etc/ping", "unreadable"),
        ("/etc/loop/x", "unreadable"),
    ],
)
def test_moved_root_is_not_left(tree: Path, path: str, expected: str) -> None:
    host = Host(str(tree))
    assert kind(lambda: host.read(path)) == expected
    assert kind(lambda: host.stat(path)) == expected


def test_link_is_shown_as_written(tree: Path) -> None:
    host = Host(str(tree))
    assert host.link("/etc/climbs") == "../../secret"
    assert host.link("/etc/loop") == "loop"
    assert host.list("/lib") == ("os-release",)


def test_bytes_of_any_kind_become_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\x00\xc3\xbc\r\n")
    (tmp_path / os.fsdecode(b"\xfe")).write_bytes(b"")
    assert Host().read(str(tmp_path / "x")) == "\\xff\x00ü\r\n"
    assert Host().list(str(tmp_path)) == ("\\xfe", "x")


def _fifo(folder: Path) -> str:
    os.mkfifo(folder / "fifo")
    return str(folder / "fifo")


def _huge(folder: Path) -> str:
    with open(folder / "huge", "wb") as file:
        file.truncate(2**30)
    return str(folder / "huge")


def _loop(folder: Path) -> str:
    (folder / "loop").symlink_to("loop")
    return str(folder / "loop")


def _below_a_file(folder: Path) -> str:
    (folder / "file").write_text("")
    return str(folder / "file/x")


@pytest.mark.parametrize(
    ("make", "expected", "words"),
    [
        (_fifo, "unreadable", "not a regular file"),
        (str, "unreadable", "Is a directory"),
        (lambda _: "/dev/zero", "unreadable", "not a regular file"),
        (_huge, "unreadable", "longer than 1048576 bytes"),
        (_loop, "unreadable", "symbolic links"),
        (_below_a_file, "absent", "Not a directory"),
        (lambda folder: f"{folder}/none", "absent", "No such file"),
        (lambda folder: f"{folder}/a\0b", "unreadable", "null"),
        (lambda folder: f"{folder}/{'x' * 5000}", "unreadable", "too long"),
        (lambda folder: f"{folder}/\ud800", "unreadable", "surrogates"),
    ],
)
def test_what_cannot_be_read_is_a_reason(
    tmp_path: Path, make: Callable[[Path], str], expected: str, words: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(Unreadable) as caught:
        Host().read(path)
    assert caught.value.reason.kind == expected
    assert words in caught.value.reason.text


def test_rights_are_told_apart_from_absence(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o000)
    (tmp_path / "closed").touch(mode=0o000)

    def look_as_nobody() -> Any:
        os.chdir(tmp_path)  # the way down to here is root's alone
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        host = Host()
        calls = (
            lambda: host.read("closed"),
            lambda: host.list("locked"),
            lambda: host.exists("locked/x"),
            lambda: host.exists("none"),
            lambda: host.stat("closed").readable,
        )
        return [_value_or_kind(call) for call in calls]

    tmp_path.chmod(0o755)
    outcome = child.call("nobody", look_as_nobody, 10)
    assert outcome.value == ["no-rights", "no-rights", "no-rights", False, False]


def _value_or_kind(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Unreadable as error:
        return error.reason.kind


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda: _raise(FileNotFoundError(2, "x")), "absent"),
        (lambda: _raise(PermissionError(1, "x")), "no-rights"),
        (lambda: _raise(ImportError("x")), "crashed"),
        (lambda: os.kill(os.getpid(), signal.SIGUSR1), "crashed"),
        (signal.pause, "timed-out"),
        (lambda: Host().read("/no/such/file"), "absent"),
        (object, "crashed"),
    ],
)
def test_library_call_that_fails_is_a_reason(work: Callable[[], Any], expected: str) -> None:
    assert kind(lambda: Host().ask("library", work, limit_s=0.3)) == expected


def test_names_resolve_or_say_why() -> None:
    assert set(Host().resolve("localhost")) & {"127.0.0.1", "::1"}
    assert kind(lambda: Host().resolve("a..b")) == "unresolved"


def test_file_system_is_measured(tmp_path: Path) -> None:
    found, real = Host().statvfs(str(tmp_path)), os.statvfs(tmp_path)
    assert found.total_bytes == real.f_blocks * real.f_frsize
    assert found.inodes_total == real.f_files
    assert 0 < found.free_bytes <= found.total_bytes


def test_user_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SOMETHING_ELSE", "private")
    assert Host().user()[0] == os.geteuid()
    assert Host().env()["NCCL_DEBUG"] == "INFO"
    assert "SOMETHING_ELSE" not in Host().env()

"""Recordings: what went through the door comes out of them again, and hostile bundles are refused."""

import io
import json
import os
import tarfile

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import frame, gather
from ddp_doctor.host import Host
from ddp_doctor.recording import BadRecording, Recorder, Recording, open_recording, pack, write_bundle
from ddp_doctor.unreadable import Unreadable


def answers(host: Host, tree: str):
    """One of each thing that a collector asks, as (value or reason)."""
    asked = {
        "read": lambda: host.read(f"{tree}/file"),
        "list": lambda: host.list(tree),
        "link": lambda: host.link(f"{tree}/link"),
        "realpath": lambda: host.realpath(f"{tree}/link"),
        "stat": lambda: host.stat(f"{tree}/file"),
        "statvfs": lambda: host.statvfs(tree),
        "run": lambda: host.run("echo", ["echo", "hello"]),
        "run/false": lambda: host.run("false", ["false"]),
        "ask": lambda: host.ask("sum", lambda: 1 + 1),
        "env": host.env,
        "now": host.now,
        "user": host.user,
        "python": host.python,
        "exists": lambda: host.exists(f"{tree}/none"),
        "absent": lambda: host.read(f"{tree}/none"),
        "no command": lambda: host.run("none", ["ddp-doctor-no-such-command"]),
        "crash": lambda: host.ask("crash", lambda: os.kill(os.getpid(), 9)),
    }
    found = {}
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except Unreadable as error:
            found[name] = error.reason
    return found


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(b"caf\xc3\xa9 \xff\x00\n")
    (tmp_path / "tree/link").symlink_to("file")
    return str(tmp_path / "tree")


def test_the_python_is_that_of_the_node_and_unknown_in_older_recordings():
    entries = {"python ": {"value": "3.6.8"}}
    assert frame.read(Recording(entries, {}, complete=True), Ask(), "1.0")["how"].python == "3.6.8"
    assert frame.read(Recording({}, {}, complete=True), Ask(), "1.0")["how"].python is None


def test_a_bundle_answers_as_the_node_did(tree, tmp_path):
    recorder = Recorder()
    live = answers(recorder, tree)
    write_bundle(recorder.entries, str(tmp_path / "b.tar.gz"))
    assert answers(open_recording(str(tmp_path / "b.tar.gz")), tree) == live
    assert live["absent"].kind == "absent"
    assert live["crash"].kind == "crashed"
    assert live["run/false"].status == 1


def test_a_bundle_holds_regular_files_and_one_index(tree, tmp_path):
    recorder = Recorder()
    answers(recorder, tree)
    write_bundle(recorder.entries, str(tmp_path / "b.tar.gz"))
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert all(member.isreg() for member in tar)
        assert {"index.json", f"root{tree}/file", "run/echo.json", "ask/sum.json"} <= set(tar.getnames())


def test_a_folder_with_the_same_files_is_the_same_recording(tree, tmp_path):
    recorder = Recorder()
    live = answers(recorder, tree)
    for name, content in pack(recorder.entries).items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    assert answers(open_recording(str(tmp_path / "folder")), tree) == live


def test_what_was_not_recorded_is_not_taken_for_absent():
    with pytest.raises(Unreadable) as error:
        Recording({}, {}).read("/proc/meminfo")
    assert error.value.reason.kind == "not-recorded"


def test_a_complete_recording_says_absent():
    host = Recording({"link /sys/a": {"value": "b"}}, {"root/sys/b/x": "1"}, complete=True)
    assert host.list("/sys") == ("a", "b")
    assert host.read("/sys/b/x") == "1"
    assert host.stat("/sys/b").kind == "directory"
    assert not host.exists("/sys/c")


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "root/../../evil", "a\nb", "x" * 300, "root", "root/tmp/a", "root/tmp/a/b"]
)
def test_odd_paths_stay_in_the_bundle(name):
    files = pack({f"read {name}": {"value": "1"}, "read /tmp/a": {"value": "2"}})
    assert all(not file.startswith("/") and ".." not in file.split("/") for file in files)
    rebuilt = Recording(json.loads(files["index.json"])["entries"], {k: v.decode() for k, v in files.items()})
    assert rebuilt.read(name) == "1" or name == "/tmp/a"
    assert rebuilt.read("/tmp/a") == "2"


def archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content, kind in members:
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))


INDEX = ("index.json", b'{"format": 1, "entries": {}}', tarfile.REGTYPE)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([INDEX, ("../evil", b"", tarfile.REGTYPE)], "unsafe member"),
        ([INDEX, ("/etc/evil", b"", tarfile.REGTYPE)], "unsafe member"),
        ([INDEX, ("link", b"", tarfile.SYMTYPE)], "unsafe member"),
        ([INDEX, ("dev", b"", tarfile.CHRTYPE)], "unsafe member"),
        ([], "no index.json"),
        ([("index.json", b"{", tarfile.REGTYPE)], "cannot be read"),
        ([("index.json", b"[" * 100000, tarfile.REGTYPE)], "cannot be read"),
        ([("index.json", b"[]", tarfile.REGTYPE)], "format"),
        ([("index.json", b'{"format": 99}', tarfile.REGTYPE)], "format 99"),
        ([("index.json", b'{"format": 1, "entries": []}', tarfile.REGTYPE)], "broken entry"),
        ([("index.json", b'{"format": 1, "entries": {"read /a": {}}}', tarfile.REGTYPE)], "broken entry"),
        ([("index.json", b'{"format": 1, "entries": {"read /a": {"file": "gone"}}}', tarfile.REGTYPE)], "broken entry"),
        ([("index.json", b'{"format": 1, "entries": {"read /a": {"reason": 1}}}', tarfile.REGTYPE)], "broken entry"),
    ],
)
def test_hostile_and_broken_bundles_are_refused(tmp_path, members, words):
    archive(tmp_path / "b.tar.gz", members)
    with pytest.raises(BadRecording, match=words):
        open_recording(str(tmp_path / "b.tar.gz"))
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8b\x08\x00broken"])
def test_a_file_that_is_no_archive(tmp_path, content):
    (tmp_path / "b.tar.gz").write_bytes(content)
    with pytest.raises(BadRecording, match="cannot be read"):
        open_recording(str(tmp_path / "b.tar.gz"))


def test_a_truncated_bundle(tree, tmp_path):
    recorder = Recorder()
    answers(recorder, tree)
    write_bundle(recorder.entries, str(tmp_path / "b.tar.gz"))
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "b.tar.gz").read_bytes()[:-200])
    with pytest.raises(BadRecording):
        open_recording(str(tmp_path / "cut.tar.gz"))


def test_a_bundle_that_unpacks_to_far_too_much(tmp_path):
    zeros = b"\0" * (2**20)
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        for i in range(257):
            member = tarfile.TarInfo(f"root/{i}")
            member.size = len(zeros)
            tar.addfile(member, io.BytesIO(zeros))
    with pytest.raises(BadRecording, match="more than 256 MiB"):
        open_recording(str(tmp_path / "b.tar.gz"))


def test_the_whole_node_replays_to_the_same_facts(tmp_path):
    recorder = Recorder()
    live = gather(recorder, Ask(profile="quick", cwd=str(tmp_path)))
    write_bundle(recorder.entries, str(tmp_path / "b.tar.gz"))
    again = gather(open_recording(str(tmp_path / "b.tar.gz")), Ask(profile="quick", cwd=str(tmp_path)))
    for facts in (live, again):
        del facts["duration_s"], facts["how"]
    assert again == live


def test_a_bundle_knows_what_was_asked(tmp_path):
    recorder = Recorder()
    asked = Ask(profile="quick", nnodes=2, node_rank=1, peers=("a",), ports=(("b", 22),), cwd="/somewhere")
    assert recorder.asked(asked) == asked
    write_bundle(recorder.entries, str(tmp_path / "b.tar.gz"))
    again = open_recording(str(tmp_path / "b.tar.gz"))
    assert again.asked(Ask(cwd="/here")) == asked
    assert again.asked(Ask(nnodes=4)).nnodes == 4


@pytest.mark.parametrize("damaged", [[], "x", {"peers": 3}, {"ports": [[1, 2, 3]]}, {"no_such_field": 1}])
def test_a_damaged_record_of_what_was_asked_is_left_out(damaged):
    assert Recording({"asked ": {"value": damaged}}, {}).asked(Ask(nnodes=2)) == Ask(nnodes=2)

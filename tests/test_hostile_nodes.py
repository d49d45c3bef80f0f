"""Nodes whose files and tools are damaged, huge, endless or full of escapes: reasons, not exceptions, in every section.

A node's files are written out as a tree and damaged there; the door then leads to that tree. What a node's tools and
libraries answer is damaged in its recording.
"""

import json
import os
import random
import re

import pytest
from ddp_doctor import document, examine, registry, report
from ddp_doctor.ask import Ask
from ddp_doctor.collect import gather
from ddp_doctor.collect import os as os_section
from ddp_doctor.config import Config
from ddp_doctor.facts import SECTIONS
from ddp_doctor.host import Host
from ddp_doctor.model import Outcome
from ddp_doctor.recording import Recording, open_recording
from nodes import machine
from running import NODES

pytestmark = pytest.mark.slow

ASK = Ask(profile="quick", cwd="/")
CHECKS = registry.load(plugins=False)
ESCAPES = "\x1b[2J\u202e\x07"


def assert_sound(facts):
    """Every section is there or has a reason, nothing crashed, and the facts are judged and printed."""
    assert {n: r["text"] for n, r in facts["reasons"].items() if r["kind"] in ("crashed", "timed-out")} == {}
    assert {name for name in SECTIONS if facts.get(name) is None} == set(facts["reasons"])
    judged = examine.report(
        [document.facts_collected(json.loads(json.dumps(facts, allow_nan=False)))],
        list(CHECKS.checks.values()),
        CHECKS,
        Config(),
    )
    assert [(v.check, v.reason.text) for v in judged.verdicts if v.outcome is Outcome.BROKEN and v.reason] == []
    for name in report.formats():
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", report.render(name, judged, report.Options(verbose=True)))


# ---------------------------------------------------------------- files


def _replaced(make):
    def damage(path):
        path.unlink()
        make(path)

    return damage


def _rewritten(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


def _huge(path):
    with open(path, "r+b") as file:
        file.truncate(2**30)


DAMAGES = {
    "empty": _rewritten(lambda data: b""),
    "cut": _rewritten(lambda data: data[: len(data) // 2]),
    "cut at the front": _rewritten(lambda data: data[len(data) // 2 :]),
    "binary": _rewritten(lambda data: random.Random(len(data)).getrandbits(8 * 3000).to_bytes(3000, "big")),
    "nul bytes": _rewritten(lambda data: data.replace(b" ", b"\0")),
    "escapes": _rewritten(lambda data: data.replace(b"\n", ESCAPES.encode() + b"\n")),
    "no numbers": _rewritten(lambda data: re.sub(rb"\d", b"x", data)),
    "large numbers": _rewritten(lambda data: re.sub(rb"\d+", b"9" * 40, data)),
    "numbers without end": _rewritten(lambda data: b"9" * 6000),
    "negative numbers": _rewritten(lambda data: re.sub(rb"\d+", b"-1", data)),
    "one long line": _rewritten(lambda data: data.replace(b"\n", b" ") * 100),
    "many lines": _rewritten(lambda data: (data + b"\n") * min(2000, 10**6 // (len(data) + 1))),
    "1 GB": _huge,
    "fifo": _replaced(os.mkfifo),
    "folder": _replaced(os.mkdir),
    "loop": _replaced(lambda path: path.symlink_to(path.name)),
    "without end": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "gone": _replaced(lambda path: None),
}


@pytest.mark.parametrize("share", [1.0, 0.3], ids=["all files", "some files"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["h100-infiniband", "container-defaults"])
def test_damaged_files(tmp_path, name, damage, share):
    machine.write(machine.describe(NODES / name), tmp_path)
    root = tmp_path / "root"
    (root / "dev").mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.mknod(root / "dev" / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    choose = random.Random(f"{name} {damage}")
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for path in (path for path in files if choose.random() < share):
        DAMAGES[damage](path)
    assert_sound(gather(Host(str(root)), ASK))


# ---------------------------------------------------------------- tools and libraries

WORDS = {
    "empty": lambda text: "",
    "cut": lambda text: text[: len(text) // 2],
    "binary": lambda text: "".join(chr(random.Random(7).randrange(1, 0x300)) for _ in range(500)),
    "escapes": lambda text: text.replace("\n", ESCAPES + "\n") + ESCAPES,
    "large numbers": lambda text: re.sub(r"\d+", "9" * 40, text),
    "no numbers": lambda text: re.sub(r"\d", "x", text),
    "many lines": lambda text: (text + "\n") * 50,
}
VALUES = {
    "null": lambda value: None,
    "list": lambda value: [],
    "object": lambda value: {},
    "text": lambda value: ESCAPES,
    "number": lambda value: -1,
    "huge number": lambda value: 10**30,
}


def recorded(name, tmp_path):
    """The entries and files of a node's recording."""
    machine.write(machine.describe(NODES / name), tmp_path)
    recording = open_recording(str(tmp_path))
    return recording.entries, recording.files


@pytest.mark.parametrize("status", [0, 1, -11])
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("name", ["h100-infiniband", "laptop", "cloud-vm"])
def test_tools_that_say_something_else(tmp_path, name, words, status):
    entries, files = recorded(name, tmp_path)
    changed = {
        key: {"value": {**entry["value"], "status": status, "stdout": WORDS[words](entry["value"]["stdout"])}}
        for key, entry in entries.items()
        if key.startswith("run ") and "value" in entry
    }
    assert changed
    assert_sound(gather(Recording({**entries, **changed}, files, complete=True), ASK))


@pytest.mark.parametrize("answer", [None, [], {}, [[]], [{}], [None], True, -1, 1e308, "x", {"value": None}], ids=repr)
def test_a_recording_whose_answers_are_something_else(tmp_path, answer):
    """The recording is called damaged, never the doctor; what it says of other things is there."""
    entries, files = recorded("h100-infiniband", tmp_path)
    changed = {key: {"value": answer} for key in entries if key.startswith("ask ")}
    changed.update({f"ask {path[4:-5]}": {"value": answer} for path in files if path.startswith("ask/")})
    assert len(changed) > 10
    facts = gather(Recording({**entries, **changed}, files, complete=True), ASK)
    assert len([name for name in SECTIONS if facts.get(name)]) > 3
    assert_sound(facts)


def test_on_a_node_the_same_is_a_defect_of_ours(monkeypatch):
    monkeypatch.setattr(os_section, "read", lambda *_: {}["no such thing"])
    live, replayed = (gather(host, ASK, sections=("os",))["reasons"]["os"] for host in (Host(), Recording({}, {})))
    assert live["kind"] == "crashed"
    assert replayed == {
        "kind": "unreadable",
        "text": "the recording is damaged where os is read (KeyError: 'no such thing')",
    }


def damaged(value, change, choose):
    """Plain data with some of its parts, at any depth, made into something else."""
    if choose.random() < 0.2:
        return change(value)
    if isinstance(value, dict):
        return {key: damaged(each, change, choose) for key, each in value.items()}
    return [damaged(each, change, choose) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", ["h100-infiniband", "name-and-link-broken"])
def test_a_recording_that_holds_something_else(tmp_path, name, kind, seed):
    """Whatever stands in it: a section may be called damaged, but the others are there, judged and printed."""
    entries, files = recorded(name, tmp_path)
    choose = random.Random(f"{name} {kind} {seed}")
    changed = {
        key: {"value": damaged(entry["value"], VALUES[kind], choose)}
        for key, entry in entries.items()
        if "value" in entry
    }
    facts = gather(Recording({**entries, **changed}, files, complete=True), ASK)
    assert len([name for name in SECTIONS if facts.get(name)]) > 3
    assert_sound(facts)

"""Env: variables that matter, and nccl.conf files as NCCL itself reads them."""

from pathlib import Path
from typing import Any, Dict

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import env
from ddp_doctor.facts import Env, Variable
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder, Recording
from ddp_doctor.redact import HIDDEN

SYSTEM, USER = "/etc/nccl.conf", "/home/ana/.nccl.conf"


def read(files: Dict[str, str], variables: Dict[str, str], **entries: Any) -> Env:
    spoken = {"env ": {"value": variables}, "ask home-folder": {"value": "/home/ana"}, **entries}
    return env.read(Recording(spoken, {"root" + path: text for path, text in files.items()}, complete=True), Ask())


def test_variables_that_matter() -> None:
    found = read({}, {"NCCL_DEBUG": "INFO", "PATH": "/bin", "RANK": "0", "LD_PRELOAD": "x.so", "https_proxy": "p"})
    assert found.variables == (Variable("LD_PRELOAD", "x.so"), Variable("NCCL_DEBUG", "INFO"), Variable("RANK", "0"))
    assert (found.nccl_conf_files, found.unread) == ((), {})


@pytest.mark.parametrize(
    ("variables", "files", "value", "order"),
    [
        ({}, {SYSTEM: "NCCL_DEBUG=WARN"}, "WARN", (SYSTEM,)),
        ({}, {SYSTEM: "NCCL_DEBUG=WARN", USER: "NCCL_DEBUG=INFO"}, "INFO", (USER, SYSTEM)),
        ({"NCCL_DEBUG": "TRACE"}, {USER: "NCCL_DEBUG=INFO"}, "TRACE", (USER,)),
        (
            {"NCCL_CONF_FILE": "/x"},
            {SYSTEM: "NCCL_DEBUG=WARN", USER: "NCCL_DEBUG=INFO", "/x": "A=1"},
            "WARN",
            ("/x", SYSTEM),
        ),
        ({"NCCL_CONF_FILE": ""}, {USER: "NCCL_DEBUG=INFO"}, "INFO", (USER,)),
        ({}, {USER: "NCCL_DEBUG=INFO\nNCCL_DEBUG=WARN"}, "INFO", (USER,)),
    ],
)
def test_who_wins(variables: Dict[str, str], files: Dict[str, str], value: str, order: Any) -> None:
    found = read(files, variables)
    assert (found.get("NCCL_DEBUG"), found.nccl_conf_files) == (value, order)


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("#NCCL_DEBUG=INFO\n #NCCL_DEBUG=WARN", [(" #NCCL_DEBUG", "WARN", 2)]),
        ('NCCL_DEBUG="INFO"\r\n', [("NCCL_DEBUG", '"INFO"\r', 1)]),
        ("export NCCL_DEBUG=INFO\nNCCL_DEBUG = INFO", [("export NCCL_DEBUG", "INFO", 1), ("NCCL_DEBUG ", " INFO", 2)]),
        ("\n\nNCCL_SOCKET_IFNAME==eth0", [("NCCL_SOCKET_IFNAME", "=eth0", 3)]),
        ("NCCL_DEBUG=INFO\0NCCL_X=1\nNCCL_X=2", [("NCCL_DEBUG", "INFO", 1), ("NCCL_X", "2", 2)]),
        ("no assignment\n=1\n\0NCCL_X=1", []),
        ("NCCL_X=" + "1" * 2000, [("NCCL_X", "1" * 1023, 1)]),
    ],
)
def test_lines_as_nccl_reads_them(text: str, variables: Any) -> None:
    assert env.parse_conf(text, "/f") == [Variable(name, value, f"/f:{line}") for name, value, line in variables]


def test_a_hostile_file_is_read_to_its_end_and_leaks_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    long = b"NCCL_LONG=" + b"1" * (10 * 2**20)
    lines = [
        b"\xff\xfe=\x80",
        long,
        b"NCCL_KEY=hunter2",
        b"HF_TOKEN=hunter2",
        b"# hunter2",
        b"hunter2",
        b"NCCL_DEBUG=INFO",
    ]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_bytes(b"\n".join(lines))
    monkeypatch.delenv("NCCL_CONF_FILE", raising=False)
    monkeypatch.setenv("NCCL_API_TOKEN", "hunter2")
    host = Recorder(str(tmp_path))
    found = env.read(host, Ask())
    assert found.get("NCCL_LONG") == "1" * 1023
    assert (found.get("NCCL_DEBUG"), (found.variables or ())[-1].source) == ("INFO", "/etc/nccl.conf:7")
    assert (found.get("NCCL_KEY"), found.get("HF_TOKEN"), found.get("NCCL_API_TOKEN")) == (HIDDEN, HIDDEN, HIDDEN)
    assert "hunter2" not in repr(found) + repr(host.entries)


@pytest.mark.parametrize(
    ("variables", "path", "kind", "unread"),
    [
        ({}, SYSTEM, "no-rights", "no-rights"),
        ({"NCCL_CONF_FILE": "/gone"}, "/gone", "absent", "absent"),
        ({}, USER, "absent", None),
        ({}, USER, "unreadable", "unreadable"),
    ],
)
def test_a_file_that_cannot_be_read(variables: Dict[str, str], path: str, kind: str, unread: Any) -> None:
    reason = {"reason": {"kind": kind, "text": f"{path}: no"}}
    other = {SYSTEM: "NCCL_DEBUG=WARN", USER: "NCCL_DEBUG=WARN"}
    found = read({p: text for p, text in other.items() if p != path}, variables, **{f"read {path}": reason})
    assert found.get("NCCL_DEBUG") == "WARN"
    assert (found.unread["nccl_conf_files"].kind if found.unread else None) == unread


def test_a_user_without_an_entry_in_the_database() -> None:
    found = read({SYSTEM: "NCCL_DEBUG=WARN"}, {}, **{"ask home-folder": {"value": ""}})
    assert (found.nccl_conf_files, found.unread) == ((SYSTEM,), {})


def test_this_machine(monkeypatch: Any, tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("NCCL_IB_DISABLE=1\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "conf"))
    found = env.read(Host(), Ask())
    assert Variable("NCCL_IB_DISABLE", "1", f"{tmp_path}/conf:1") in (found.variables or ())

"""Commands: what they say, and that nothing of them is left."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest
from ddp_doctor import command
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

LONG_S = 30.0


def sh(script: str, limit_s: float = LONG_S, stdin: str = "") -> Tuple[int, str, str]:
    ran = command.run("x", ["sh", "-c", script], limit_s, stdin)
    return ran["status"], ran["stdout"], ran["stderr"]


def held_fifo(tmp_path: Path) -> Tuple[str, int]:
    """A fifo, open for reading: its end comes when every process that has it open for writing has ended."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return path, reader


def hear(reader: int) -> bytes:
    """What was written, once all writers are gone; fails when one is still there after 10 seconds."""
    os.set_blocking(reader, True)
    heard = b""
    while True:
        assert select.select([reader], [], [], 10)[0], f"a process still holds the fifo (heard {heard!r})"
        chunk = os.read(reader, 100)
        if not chunk:
            os.close(reader)
            return heard
        heard += chunk


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("echo out; echo err >&2; exit 3", (3, "out\n", "err\n")),
        ("kill -SEGV $$", (-11, "", "")),
        (r"printf '\377\000ok'", (0, "\\xff\x00ok", "")),
        ("echo $LC_ALL $LANG", (0, "C C\n", "")),
        ("cat", (0, "to say\n", "")),
        ("exec <&-; echo deaf", (0, "deaf\n", "")),
        ("exec >&- 2>&-; exit 4", (4, "", "")),
    ],
)
def test_what_a_command_did(script: str, answer: Tuple[int, str, str]) -> None:
    assert sh(script, stdin="to say\n") == answer


def test_large_input_and_output_cross() -> None:
    text = "0123456789abcde\n" * 2**16
    assert sh("cat", stdin=text) == (0, text, "")


def test_arguments_are_not_for_a_shell() -> None:
    hostile = "$(id); `id` > /tmp/x"
    assert command.run("x", ["printf", "%s", hostile], LONG_S, "")["stdout"] == hostile


def test_endless_output_is_refused() -> None:
    with pytest.raises(Unreadable) as caught:
        command.run("yes", ["yes"], LONG_S, "")
    assert (caught.value.reason.kind, caught.value.reason.text) == ("crashed", "yes: printed more than 8 MiB")


@pytest.mark.parametrize("trap", ["", "trap '' TERM INT HUP; "])
def test_hang_is_timed_out_with_its_descendants(tmp_path: Path, trap: str) -> None:
    path, reader = held_fifo(tmp_path)
    with pytest.raises(Unreadable) as caught:
        sh(f"{trap}exec 3>{path}; echo x >&3; sleep 1000 & sleep 1000", limit_s=0.5)
    assert caught.value.reason.kind == "timed-out"
    assert hear(reader) == b"x\n"


def test_descendant_that_keeps_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    path, reader = held_fifo(tmp_path)
    assert sh(f"exec 3>{path}; echo x >&3; sleep 1000 & echo done") == (0, "done\n", "")
    assert hear(reader) == b"x\n"


def _argv_absent(_: Path) -> List[str]:
    return ["/no/such/command"]


def _argv_not_executable(tmp_path: Path) -> List[str]:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    return [str(tmp_path / "tool")]


def _argv_no_interpreter(tmp_path: Path) -> List[str]:
    tool = tmp_path / "tool"
    tool.write_text("#!/no/such/interpreter\n")
    tool.chmod(0o755)
    return [str(tool)]


def _argv_no_program(tmp_path: Path) -> List[str]:
    tool = tmp_path / "tool"
    tool.write_bytes(b"\x7fELF garbage")
    tool.chmod(0o755)
    return [str(tool)]


def _argv_nul(_: Path) -> List[str]:
    return ["echo", "a\0b"]


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (_argv_absent, "absent"),
        (_argv_not_executable, "no-rights"),
        (_argv_no_interpreter, "absent"),
        (_argv_no_program, "unreadable"),
        (_argv_nul, "unreadable"),
    ],
)
def test_command_that_cannot_be_started(tmp_path: Path, argv, kind: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Unreadable) as caught:
        Host().run("tool", argv(tmp_path))
    assert caught.value.reason.kind == kind
    assert "tool" in caught.value.reason.text


def test_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    path, reader = held_fifo(tmp_path)
    script = (
        "import sys\n"
        "from ddp_doctor import command\n"
        f"argv = ['sh', '-c', 'exec 3>{path}; echo x >&3; sleep 1000 & sleep 1000']\n"
        "try: command.run('x', argv, 60, '')\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    assert select.select([reader], [], [], 10)[0]
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert hear(reader) == b"x\n"


def test_ctrl_c_while_a_command_is_being_started(tmp_path: Path) -> None:
    path, reader = held_fifo(tmp_path)
    script = (
        "import os, signal, sys\n"
        "from ddp_doctor import command\n"
        "start = command._start\n"
        "def interrupted(*args):\n"
        "    process = start(*args)\n"
        f"    assert os.read(os.open({path!r}, os.O_RDONLY), 1) == b'x'\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return process\n"
        "command._start = interrupted\n"
        f"argv = ['sh', '-c', 'exec 3>{path}; printf x >&3; sleep 1000 & sleep 1000']\n"
        "try: command.run('x', argv, 60, '')\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=10).returncode == 130
    assert hear(reader) == b""

"""The archive that travels, and the shells that start it; a real ssh is in tests/lab."""

import glob
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from ddp_doctor.cluster import push
from ddp_doctor.node import MARK

SHELLS = [path for path in map(shutil.which, ("sh", "bash", "csh", "fish", "zsh")) if path]


def asked(command, requests, shell="/bin/sh", env=None, cwd="/"):
    """(status, answers, words on standard error) of a program that was pushed through ``shell``, asked one by one."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([shell, "-c", command], env=env, cwd=cwd, **pipes) as program:
        answers = []
        try:
            program.stdin.write(push.archive())
            for request in requests:
                program.stdin.write(json.dumps(request).encode() + b"\n")
                program.stdin.flush()
                answers.append(
                    next(
                        json.loads(line[len(MARK) :])
                        for line in program.stdout
                        if line.startswith(MARK.encode()) and b'"id"' in line
                    )
                )
            program.stdin.write(b'{"do": "end"}\n')
        except BrokenPipeError:
            pass
        _, err = program.communicate(timeout=120)
    return program.returncode, answers, err.decode()


def test_the_archive_holds_the_node_side_alone():
    data = push.archive()
    assert int(data[:12]) == len(data) - 12
    names = zipfile.ZipFile(io.BytesIO(data[12:])).namelist()
    assert {"ddp_doctor/node.py", "ddp_doctor/collect/gpus.py", "ddp_doctor/facts.py"} <= set(names)
    assert not [name for name in names if "checks" in name or "data" in name.split("/")]
    assert len(data) < 2**20


def test_equal_trees_make_equal_archives():
    assert push.archive() == push.archive()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_starts_it(shell):
    status, (told,), _ = asked(push.command(), [{"do": "time", "id": 1}], shell)
    assert (status, told["id"], isinstance(told["value"], float)) == (0, 1, True)


@pytest.mark.parametrize(
    "python", sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.8*/bin/python"))) or [sys.executable]
)
def test_an_old_python_without_any_package_collects(python, tmp_path):
    (tmp_path / "python3").symlink_to(python)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    request = {"do": "facts", "id": 1, "ask": {"profile": "quick"}, "sections": ["os", "cpu", "memory"], "limit_s": 60}
    status, answers, words = asked(push.command(), [request], env=env, cwd=str(tmp_path))
    assert status == 0, words
    facts = answers[0]["value"]
    assert facts["os"]["machine"]
    assert facts["memory"]["total_bytes"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["python3"]


def test_no_python_is_said_so(tmp_path):
    for tool in ("sh", "echo"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    status, answers, words = asked(push.command(), [], env={"PATH": str(tmp_path)})
    if os.path.exists("/usr/libexec/platform-python"):
        pytest.skip("this system has a Python of its own tools")
    assert (status, answers) == (127, [])
    assert push.TOO_OLD in words


def test_an_archive_that_is_cut_short_starts_nothing():
    done = subprocess.run(
        ["/bin/sh", "-c", push.command()], input=push.archive()[:5000], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, b"")

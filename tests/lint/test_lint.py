"""``ddp-doctor lint``: files on the command line, judged by the checks of the environment, as a user runs it."""

import json
import os

import pytest
from running import doctor

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes 2
export NCCL_DEBUG=WARN
export NCCL_SOCKET_IFNAM=eth0
export NCCL_IB_HCA=$HCA
export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567
export NCCL_AUTH_TOKEN=hunter2
srun torchrun train.py
"""
GOOD = "NCCL_DEBUG=WARN\n"


@pytest.fixture
def lint(tmp_path):
    """A function that writes files, name by content, and lints them there."""

    def run(files, *options, **more):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return doctor("lint", *options, *files, cwd=str(tmp_path), **more)

    return run


def failed(done):
    """(check, measured or subject) of what was found."""
    verdicts = [v for v in json.loads(done.stdout)["verdicts"] if v["outcome"] == "failed"]
    return [(v["check"], v.get("measured") or v["subject"]) for v in verdicts]


def test_a_script_is_judged_with_file_and_line(lint):
    done = lint({"job.sbatch": SCRIPT}, "--json")
    assert ("env/misspelt-name", "NCCL_SOCKET_IFNAM=eth0 (job.sbatch:4)") in failed(done)
    report = json.loads(done.stdout)
    assert report["nodes"][0]["name"] == "job.sbatch"
    assert report["nodes"][0]["how"]["via"] == "lint"


def test_the_table_speaks_of_files(lint):
    done = lint({"job.sbatch": SCRIPT, "good.env": GOOD})
    first, *rest = done.stdout.split("\n")
    assert first == "1 thing to look at in 2 files: 1 warning."
    assert "2 files      job.sbatch, good.env" in rest
    assert "Take NCCL_SOCKET_IFNAM out of job.sbatch, line 4." in done.stdout
    assert "values that are filled in later were not judged: NCCL_IB_HCA (job.sbatch:5)" in done.stdout
    assert "node" not in done.stdout.lower().replace("nodes)", "")


def test_secrets_stay_where_they_are(lint):
    done = lint({"job.sbatch": SCRIPT}, "--json", "-v")
    assert not [secret for secret in ("hunter2", "0123456789abcdef") if secret in done.stdout + done.stderr]


@pytest.mark.parametrize(
    ("content", "options", "status"),
    [
        (GOOD, [], 0),
        ("x=1\n", [], 0),
        ("", [], 0),
        (SCRIPT, [], 0),
        (SCRIPT, ["--fail-on", "warning"], 1),
        (SCRIPT, ["--fail-on", "warning", "--ignore", "env/misspelt-name"], 0),
        (SCRIPT, ["--fail-on", "warning", "--select", "env/values"], 2),
        (SCRIPT, ["--exit-style", "nagios"], 1),
        ("NCCL_ALGO=Rin\n", [], 1),
        ("NCCL_ALGO=Rin\n", ["--nccl", "2.20.5"], 0),
        ("NCCL_IB_TIMEOUT=1800\n", [], 0),
        ("NCCL_IB_TIMEOUT=1800\n", ["--nnodes", "2"], 1),
        (b"\x7fELF" + b"\0\n" * 100, [], 3),
        (GOOD, ["--torch", "new"], 2),
    ],
)
def test_exit_status(lint, content, options, status):
    assert lint({"job.env": content}, *options).returncode == status


def test_a_file_that_is_not_there_keeps_no_other_from_being_judged(lint, tmp_path):
    done = lint({"good.env": GOOD}, "none.env", str(tmp_path))
    assert done.returncode == 2
    assert done.stdout.startswith("Nothing to object to in good.env: 1 variable looked at.")
    assert "none.env: No such file or directory" in done.stderr
    assert "Is a directory" in done.stderr


def test_standard_input():
    done = doctor("lint", "-", input="NCCL_DEBUGG=INFO\n")
    assert done.stdout.startswith("1 thing to look at in standard input: 1 warning.")
    assert "standard input:1" in done.stdout


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ([], []),
        (["--nccl", "2.10.3"], ["env/name-newer-than-library"]),
        (["--torch", "1.12.1"], ["env/name-newer-than-library"]),  # its wheels hold NCCL 2.10.3
        (["--torch", "2.4"], []),
    ],
)
def test_versions_decide_what_is_read(lint, options, noted):
    done = lint({"job.env": "NCCL_IB_QPS_PER_CONNECTION=2\nNCCL_NVLS_ENABLE=0\n"}, "--json", *options)
    assert [check for check, _ in failed(done)] == noted


def test_containers_do_not_contradict_one_another(lint):
    one = "environment: {NCCL_DEBUG: WARN, NCCL_MIN_CTAS: 8}"
    other = "environment: {NCCL_MAX_CTAS: 4}"
    done = lint({"compose.yaml": f"services:\n  a:\n    {one}\n  b:\n    {other}\n"}, "--json")
    assert [node["name"] for node in json.loads(done.stdout)["nodes"]] == ["compose.yaml (a)", "compose.yaml (b)"]
    assert "env/minimum-above-maximum" not in [check for check, _ in failed(done)]
    together = "NCCL_MIN_CTAS=8\nNCCL_MAX_CTAS=4\n"
    assert "env/minimum-above-maximum" in [check for check, _ in failed(lint({"job.env": together}, "--json"))]


def test_the_last_assignment_of_a_script_is_in_force(lint):
    text = "NCCL_MIN_CTAS=8\nNCCL_MAX_CTAS=4\nNCCL_MAX_CTAS=16\n"
    assert failed(lint({"job.env": text}, "--json")) == []
    assert ("env/conf-file-overridden", "nccl.conf:2: 4; nccl.conf:3: 16") in failed(
        lint({"nccl.conf": text}, "--json")
    )


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("job.env", b"A=1\nNCCL_X=\0\nNCCL_DEBUGG=1\n", "lint/line-unreadable job.env:2"),
        ("job.env", b"A=" + b"x" * 10**7 + b"\nNCCL_DEBUGG=1\n", "lint/line-unreadable job.env:1"),
        ("job.env", b"# caf\xe9\nNCCL_NET=\xff\xfe\nNCCL_DEBUGG=1\n", "lint/line-unreadable job.env:2"),
        ("job.env", b"A='1\nNCCL_DEBUGG=1\n", "lint/line-unreadable job.env:1"),
        ("job.env", b"A=1\r\nNCCL_DEBUGG=1\r\n", "lint/line-misread job.env:1"),
        ("job.yaml", b"a: [\n---\nenv: {NCCL_DEBUGG: 1}\n", "lint/line-unreadable job.yaml:2"),
        ("job.yaml", b"a: \x01\xff\0\nenv: {NCCL_DEBUGG: 1}\n", "lint/line-unreadable job.yaml:1"),
    ],
    ids=["NUL", "a long line", "not UTF-8", "an open quote", "CRLF", "broken YAML", "control characters"],
)
def test_bad_input_is_named_and_the_rest_judged(lint, name, content, wrong):
    found = failed(lint({name: content}, "--json"))
    assert [f"{check} {subject}" for check, subject in found if check.startswith("lint/")] == [wrong]
    assert [check for check, _ in found if check.startswith("env/")] == ["env/misspelt-name"]


def test_what_is_too_long_is_judged_up_to_there(lint):
    content = b"NCCL_DEBUGG=1\n" + b"# filler\n" * 300_000
    found = failed(lint({"job.env": content}, "--json"))
    assert [check for check, _ in found] == ["lint/line-unreadable", "env/misspelt-name"]


def test_a_thousand_faults_are_not_told_one_by_one(lint):
    found = failed(lint({"job.env": "A = 1\n" * 1000}, "--json"))
    assert len(found) == 21


def test_hostile_names_do_not_reach_the_terminal(lint):
    done = lint({"a\x1b[31m.env": "NCCL_DEBUGG=\x1b[31m1\n"})
    assert "\x1b" not in done.stdout
    assert "NCCL_DEBUGG" in done.stdout


def test_more_variables_than_a_person_writes_are_cut(lint):
    text = "".join(f"NCCL_X{number}=1\n" for number in range(1001)).encode()
    found = failed(lint({"job.env": text}, "--json"))
    assert ("lint/line-unreadable", "job.env:1001") in found
    assert ("env/unknown-name", "NCCL_X1000=1 (job.env:1001)") not in found


def test_an_open_quote_ends_at_once(lint):
    text = b'x="\ncat <<U\nexport NCCL_ZZZ=1\n' + b"word " * 2000
    assert "lint/line-unreadable" in [check for check, _ in failed(lint({"job.sh": text}, "--json"))]


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "job.sh")
    done = doctor("lint", str(tmp_path / "job.sh"))
    assert (done.returncode, "not a regular file" in done.stderr) == (2, True)


def test_an_open_quote_in_a_dockerfile_is_told(lint):
    assert ("lint/line-unreadable", "Dockerfile:2") in failed(
        lint({"Dockerfile": 'FROM a\nENV NCCL_NET="IB\n'}, "--json")
    )

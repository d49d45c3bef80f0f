"""The command over real cases, and over files that are odd or hostile."""

import bz2
import gzip
import json
import lzma
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_doctor import explain, registry
from ddp_doctor.logs import reading, scan

CASES = Path(__file__).parents[3] / "shared" / "cases"
CHECKS = explain.of_logs(list(registry.load(plugins=False).checks.values()))
PATTERNS = explain.patterns(CHECKS)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."


def judged(*paths):
    return explain.explain(scan.scanned([str(path) for path in paths], PATTERNS), CHECKS)


def doctor(*words, stdin=b"", **more):
    done = subprocess.run(
        [sys.executable, "-m", "ddp_doctor", "explain", *map(str, words)],
        input=stdin,
        capture_output=True,
        timeout=120,
        **more,
    )
    assert b"Traceback" not in done.stderr
    return done


def cases():
    folders = [path.parent for path in sorted(CASES.rglob("case.json"))]
    return [(folder / "log.txt", json.loads((folder / "case.json").read_text())["kind"]) for folder in folders]


@pytest.mark.skipif(not CASES.is_dir(), reason="../shared/cases is not here")
def test_public_cases_get_their_kind_first_and_healthy_ones_none():
    wrong = []
    for path, kind in cases():
        found = judged(path)
        told = found.causes[0].id[5:] if found.causes else found.verdict
        if kind.startswith("healthy"):
            assert found.verdict == "healthy", path
        elif told != kind:
            wrong.append((path.parent.name, kind, told))
    assert len(wrong) <= 0.05 * len(cases()), wrong


# --------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(("name", "opened"), [("a.log", open), ("a.log.gz", gzip.open), ("a.log.xz", lzma.open)])
def test_plain_and_compressed(tmp_path, name, opened):
    with opened(tmp_path / name, "wb") as file:
        file.write(f"one\n[rank3]: {OOM}\n".encode())
    found = judged(tmp_path / name)
    began = found.causes[0].began
    assert (found.causes[0].id, began.number, began.rank) == ("logs/gpu-oom", 2, 3)


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress, bz2.compress, bytes])
def test_standard_input_and_pipes_may_be_compressed(packed):
    content = packed(f"one\n{OOM}\n".encode())
    assert doctor("-", stdin=content).returncode == 1
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    done = doctor(f"/dev/fd/{read}", pass_fds=(read,))
    os.close(read)
    assert (done.returncode, b"2 lines" in done.stdout) == (1, True)


def test_a_plain_log_that_begins_like_an_archive(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(f"BZ is how this log begins\n{OOM}\n")
    assert judged(path).causes[0].id == "logs/gpu-oom"


def test_a_pipe_to_which_nobody_writes_is_empty(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert doctor(tmp_path / "pipe").returncode == 3


def test_a_folder_of_one_file_for_each_rank(tmp_path):
    for rank in range(2048):
        (tmp_path / f"rank{rank:04d}.log").write_text(
            f"[rank{rank}]: step 1\n" + (f"[rank{rank}]: {OOM}\n" if rank == 1999 else "")
        )
    done = doctor(tmp_path, "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert told["causes"][0]["began"]["file"].endswith("rank1999.log")
    assert (told["causes"][0]["began"]["rank"], len(told["read"]["files"])) == (1999, 2048)


def test_standard_input_and_the_exit_status():
    assert doctor("-", stdin=OOM.encode()).returncode == 1
    assert doctor("-", stdin=b"epoch 1\nepoch 2\n").returncode == 0
    assert doctor("-", stdin=b"Traceback (most recent call last):\n").returncode == 3
    assert b"Not known" in doctor("-", stdin=b"").stdout


@pytest.mark.parametrize("what", ["nowhere.log", "empty-folder"])
def test_what_is_not_there_is_said_so(tmp_path, what):
    (tmp_path / "empty-folder").mkdir()
    done = doctor(tmp_path / what)
    assert done.returncode == 2
    assert what.encode() in done.stderr


def test_a_damaged_archive_is_said_so(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(OOM.encode() * 1000)[:40])
    assert doctor(path).returncode == 2
    path.write_bytes(b"\x1f\x8bnonsense")
    assert doctor(path).returncode == 2


def test_progress_bars_and_colours_hide_nothing(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"\r  1%|  | 1/100\r  2%|  | 2/100\r\x1b[31m[rank7]: " + OOM.encode() + b"\x1b[0m\r\n")
    began = judged(path).causes[0].began
    assert (began.rank, "\x1b" in began.text) == (7, False)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: x", 3),
        ("[default5]: x", 5),
        ("12: x", 12),
        ("[1,7]<stderr>:x", 7),
        ("[E ProcessGroupNCCL.cpp:1] [Rank 9] x", 9),
        ("12:30:01 x", None),
        ("gpu01:1:2 [0] NCCL INFO x", None),
    ],
)
def test_who_wrote_a_line(line, rank):
    assert scan.rank_of(line) == rank


# --------------------------------------------------------------------------- hostile ones


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "core"
    path.write_bytes(bytes(range(256)) * 40_000 + b"\n" + OOM.encode() + b"\n\xff\xfe\0")
    assert judged(path).causes[0].id == "logs/gpu-oom"


def test_a_line_without_end_fills_no_memory():
    limit = 600 << 20
    source = f"import sys\nfor _ in range(700): sys.stdout.buffer.write(b'x' * (1 << 20))\nprint()\nprint({OOM!r})"
    writer = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    reader = subprocess.run(
        [sys.executable, "-m", "ddp_doctor", "explain", "-"],
        stdin=writer.stdout, capture_output=True, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )  # fmt: skip
    writer.stdout.close()
    writer.wait()
    assert reader.returncode == 1, reader.stderr
    assert b"logs/gpu-oom" in reader.stdout


def test_terminal_sequences_and_secrets_of_a_log_are_not_printed(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"CUDA out of memory \x1b]0;owned\x07\x1b[2J \x9b31m password=hunter2 https://me:secret@host/\n")
    for words in ((), ("--json",), ("--markdown",), ("-v",)):
        out = doctor(path, *words).stdout
        assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f\x9b]", out.replace(b"\xc2\x9b", b"\x9b"))
        assert b"hunter2" not in out
        assert b"secret@" not in out


def test_a_name_of_a_file_is_not_obeyed(tmp_path):
    path = tmp_path / "a\x1b[31mb.log"
    path.write_text(OOM)
    assert b"\x1b" not in doctor(path).stdout


def test_lines_made_to_run_for_ever_take_linear_time(tmp_path):
    """The work is counted by what the engine may do in RE2's linear time; the lines are the worst for backtracking."""
    path = tmp_path / "a.log"
    evil = [
        "[" * 3000,
        "a." * 3000 + "Error",
        "Connect to " + "x" * 5000,
        "rank " * 2000,
        "WorkNCCL(" * 1000,
        "-> " * 3000,
    ]
    path.write_text("\n".join(evil * 200) + f"\n{OOM}\n")
    assert doctor(path).returncode == 1


def test_a_pickle_is_only_bytes(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    import pickle

    path = tmp_path / "dump.pkl"
    path.write_bytes(pickle.dumps(Evil()))
    doctor(path)
    assert not (tmp_path / "owned").exists()


def test_a_pipe_in_a_folder_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.log").write_text(OOM)
    assert doctor(tmp_path).returncode == 1


def test_a_reader_that_goes_away(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(OOM)
    done = subprocess.run(f"{sys.executable} -m ddp_doctor explain {path} | true", shell=True, capture_output=True)
    assert done.stderr == b""


def test_more_lines_of_one_kind_than_anybody_needs(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(
        "".join(f"[rank{n % 8}]: NCCL WARN Connection reset by peer\n" for n in range(20_000)) + f"[rank5]: {OOM}\n"
    )
    found = judged(path)
    assert found.causes[0].id == "logs/gpu-oom-peers-see-socket-errors"
    assert found.log.lines == 20_001


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "FILES_MAX", 2)
    for number in range(3):
        (tmp_path / str(number)).write_text("x")
    with pytest.raises(reading.BadLog, match="more than 2 files"):
        reading.files([str(tmp_path)])


def test_who_selects_checks_of_logs_for_a_node_is_told_where_they_belong():
    done = subprocess.run(
        [sys.executable, "-m", "ddp_doctor", "run", "--select", "logs"], capture_output=True, timeout=60
    )
    assert done.returncode == 2
    assert b"ddp-doctor explain FILE" in done.stderr

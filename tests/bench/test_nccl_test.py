"""Collectives measured between ranks on this node: plans, verdicts, and real ranks of real torch."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from ddp_doctor import nccl_test
from ddp_doctor.nccl_test import BadTest, Measured, Plan

REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]
needs_torch = pytest.mark.skipif(not REAL, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch")
LIMIT_S = 120


def plan(**more):
    return Plan(**{"python": sys.executable, "backend": "gloo", "ranks": 2, "sizes_bytes": (8, 2**20), **more})


def result(size=2**20, seconds=0.001, name="all_reduce", **more):
    return {
        "collective": name,
        "dtype": "float32",
        "bytes": size,
        "count": size // 4,
        "seconds": seconds,
        "spread": 0.01,
        "wrong": [],
        **more,
    }


def judged(*results, least=None, **more):
    return nccl_test.judged(Measured(plan(), results=list(results), **more), least)


# --------------------------------------------------------------------------- what is measured


def test_sizes_as_in_nccl_tests():
    assert nccl_test.sizes(8, 64, 2) == (8, 16, 32, 64)
    assert nccl_test.sizes(8, 100, 4) == (8, 32)
    assert nccl_test.sizes(8, 8, 2) == (8,)


@pytest.mark.parametrize(("text", "size"), [("8", 8), ("64K", 65536), ("128M", 2**27), ("8G", 2**33), ("1kb", 1024)])
def test_sizes_as_people_write_them(text, size):
    assert nccl_test.size_of(text) == size


@pytest.mark.parametrize("text", ["", "K", "-8", "8T", "1.5M", "8 M", "²"])
def test_what_is_no_size(text):
    with pytest.raises(BadTest, match="not a size"):
        nccl_test.size_of(text)


@pytest.mark.parametrize(("least", "most", "factor"), [(16, 8, 2), (0, 8, 2), (8, 16, 1)])
def test_sizes_that_make_no_sense(least, most, factor):
    with pytest.raises(BadTest):
        nccl_test.sizes(least, most, factor)


@pytest.mark.parametrize(
    ("name", "ranks", "share"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send_recv", 8, 1.0),
    ],
)
def test_busbw_by_nccl_tests_own_shares(name, ranks, share):
    algbw, busbw = nccl_test.bandwidths_gb_s(result(10**9, 1.0, name), ranks)
    assert (algbw, busbw) == (1.0, pytest.approx(share))


# --------------------------------------------------------------------------- verdicts


def test_without_a_bound_it_tells_the_best_of_large_sizes():
    verdict = judged(result(8, 1e-9), result(2**20, 0.001), result(2**21, 0.001))
    assert (verdict.ok, verdict.exit_status) == (True, 0)
    assert verdict.words == ("all_reduce: 2.10 GB/s busbw at best",)


@pytest.mark.parametrize(("least", "ok"), [(1.0, True), (2.0, False)])
def test_a_bound_of_the_user(least, ok):
    verdict = judged(result(2**20, 0.001), least=least)
    assert (verdict.ok, verdict.exit_status) == (ok, 0 if ok else 1)


def test_noise_above_the_margin_is_inconclusive():
    verdict = judged(result(2**20, 0.001, spread=0.9), least=1.5)
    assert (verdict.ok, verdict.exit_status) == (None, 3)
    assert "inconclusive" in verdict.words[0]


def test_small_sizes_say_nothing_of_bandwidth():
    assert judged(result(1024), least=1.0).ok is None


def test_wrong_data_is_an_error_whatever_the_speed():
    verdict = judged(result(wrong=[[1, 2, 3, 4.0, 5.0]]), least=0.0)
    assert verdict.exit_status == 1
    assert "rank 1 has 2 wrong elements, the first is element 3: 4 instead of 5" in verdict.words[1]


def test_a_failure_is_no_pass():
    assert judged(failure="the ranks ended with status 1").exit_status == 3


def test_the_table_names_what_was_not_supported():
    measured = Measured(plan(), {"device": "CPU"}, [{**result(), "skipped": "gloo does not support it"}, result()])
    del measured.results[0]["seconds"]
    text = nccl_test.table(measured, nccl_test.judged(measured, None))
    assert "gloo does not support it" in text
    assert "says nothing about GPUs" in text
    assert text.rstrip().endswith("OK: all_reduce: 1.05 GB/s busbw at best")


# --------------------------------------------------------------------------- real ranks


def left(before):
    """Processes of ranks that were not there before."""
    found = [
        p for p in psutil.process_iter(["cmdline"]) if any("collectives.py" in word for word in p.info["cmdline"] or ())
    ]
    return {p.pid for p in found} - before


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("python", REAL)
def test_every_collective_is_right_on_real_ranks(python):
    given = {
        "collectives": nccl_test.COLLECTIVES,
        "dtypes": ("float32", "bfloat16", "int64"),
        "sizes_bytes": (8, 4096, 2**20),
    }
    measured = nccl_test.run(plan(python=python, ranks=3, iterations=2, warmup=1, **given))
    assert measured.failure == "", measured.lines[-20:]
    assert len(measured.results) == 7 * 3 * 3
    done = {r["collective"] for r in measured.results if "seconds" in r}
    assert {"all_reduce", "reduce", "broadcast", "all_gather", "send_recv"} <= done
    assert all(r["wrong"] == [] for r in measured.results if "seconds" in r)
    assert nccl_test.judged(measured, None).ok
    assert left(set()) == set()


def with_worker(monkeypatch, tmp_path, old, new):
    source = Path(nccl_test.WORKER).read_text()
    assert old in source
    path = tmp_path / "collectives.py"
    path.write_text(source.replace(old, new))
    monkeypatch.setattr(nccl_test, "WORKER", str(path))


@needs_torch
@pytest.mark.slow
def test_a_rank_with_wrong_data_is_named(monkeypatch, tmp_path):
    broken = "        self.run()\n        if self.test.rank == 1: self.tensor[3] += 1\n        return self.tensor, self.total(turn)"
    with_worker(monkeypatch, tmp_path, "        self.run()\n        return self.tensor, self.total(turn)", broken)
    measured = nccl_test.run(plan(python=REAL[0], sizes_bytes=(4096,), iterations=1, warmup=0))
    verdict = nccl_test.judged(measured, None)
    assert verdict.exit_status == 1
    assert "rank 1 has 1 wrong elements, the first is element 3" in verdict.words[1]


@needs_torch
@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named_and_nothing_stays(monkeypatch, tmp_path):
    with_worker(monkeypatch, tmp_path, "    import torch\n", "    if rank == 1: time.sleep(1000)\n    import torch\n")
    monkeypatch.setattr(nccl_test, "CONNECT_S", 8.0)
    measured = nccl_test.run(plan(python=REAL[0]))
    assert "rank 1: started" in measured.failure
    assert nccl_test.judged(measured, None).exit_status == 3
    assert left(set()) == set()


@needs_torch
@pytest.mark.slow
def test_a_rank_that_dies_is_explained(monkeypatch, tmp_path):
    from ddp_doctor import measuring

    with_worker(
        monkeypatch, tmp_path, "    test.first()\n", "    if rank == 1: raise KeyError('broken')\n    test.first()\n"
    )
    measured = nccl_test.run(plan(python=REAL[0]))
    assert measured.failure
    assert any("logs/app-exception" in line for line in measuring.explained(measured.lines, 100))


@needs_torch
@pytest.mark.slow
def test_the_command_and_ctrl_c(tmp_path):
    words = [sys.executable, "-m", "ddp_doctor", "nccl-test", "--python", REAL[0]]
    done = subprocess.run([*words, "-e", "1M", "-f", "1024", "-n", "2", "--json"], capture_output=True, timeout=LIMIT_S)
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"], told["backend"], told["ranks"]) == (0, "passed", "gloo", 2)
    assert told["results"][-1]["busbw_gb_s"] > 0
    running = subprocess.Popen([*words, "-n", "100000", "-b", "1M"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + LIMIT_S
    while not left(set()):
        assert time.monotonic() < end
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=LIMIT_S)
    assert b"Traceback" not in err
    assert running.returncode == 3
    while left(set()):
        assert time.monotonic() < end


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (("-b", "8M", "-e", "1M"), "larger than the last"),
        (("-b", "x"), "not a size"),
        (("--python", "/bin/true-not"), "no interpreter"),
    ],
)
def test_wrong_usage_starts_nothing(given, word):
    python = () if "--python" in given else ("--python", REAL[0] if REAL else sys.executable)
    done = subprocess.run(
        [sys.executable, "-m", "ddp_doctor", "nccl-test", *python, *given],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2
    assert word in done.stderr or "no torch" in done.stderr

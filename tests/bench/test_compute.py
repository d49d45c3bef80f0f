"""The compute test by real torches: on the processor, and on GPUs that are the processor (``fake_cuda``)."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ddp_doctor.bench import compute
from ddp_doctor.collect.compute import BOOT, parse_answers

REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]
needs_torch = pytest.mark.skipif(not REAL, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch")
SOURCE = Path(compute.__file__).read_text(encoding="utf-8")
FAKE_CUDA = str(Path(__file__).parents[1] / "fake_cuda")
LIMIT_S = 200


def ran(python: str, devices: List[str], source: str = SOURCE, env: Any = None, **options: Any) -> Any:
    said = json.dumps({"devices": devices, "limit_s": LIMIT_S, **options})
    argv = [python, "-B", "-c", BOOT, said]
    done = subprocess.run(argv, input=source, stdout=subprocess.PIPE, text=True, check=True, env=env)
    return parse_answers(done.stdout)


def on_gpus(python: str, count: int, source: str = SOURCE, env: Any = None, **faults: Dict[str, Any]) -> Any:
    """faults: gpu1={"slow": 3} ...; see fake_cuda/torch.py."""
    wrong = json.dumps({name.replace("gpu", "cuda:"): fault for name, fault in faults.items()})
    env = {**os.environ, "PYTHONPATH": FAKE_CUDA, "FAKE_CUDA": wrong, **(env or {})}
    return ran(python, [f"cuda:{i}" for i in range(count)], source, env, peers=True, visible=["GPU-a", "GPU-b"])


@needs_torch
@pytest.mark.parametrize("python", REAL)
def test_siblings_agree_and_a_device_that_cannot_be_used_hides_none(python: str) -> None:
    one, none, two = ran(python, ["cpu", "cuda:99", "cpu"], cpus=[[0], [], [0, 4095]])
    assert one["wrong"] == two["wrong"] == []
    assert not {"error", "unable"} & {*one, *two}
    assert one["checksums"] == two["checksums"]
    assert {"float32", "bfloat16"} <= set(one["checksums"])
    assert min(one["memory_gb_s"], one["to_device_gb_s"], one["to_host_gb_s"], *one["gemm_tflop_s"].values()) > 0
    assert none.get("error") or "without CUDA" in none["unable"]
    assert none["gemm_tflop_s"] == {}


# --------------------------------------------------------------------------- the way of a GPU


@needs_torch
@pytest.mark.parametrize("python", REAL)
def test_every_step_of_a_gpu_runs(python: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    said = on_gpus(python, 2, env={"FAKE_CUDA_CALLS": str(calls), "NVIDIA_TF32_OVERRIDE": "1"})
    for one, other in zip(said, ("cuda:1", "cuda:0")):
        assert one["wrong"] == []
        assert not {"error", "unable", "cut_short"} & set(one)
        assert set(one["gemm_tflop_s"]) == set(one["checksums"]) == {"float32", "float16", "bfloat16", "tf32"}
        assert one["multiprocessors"] == 108
        assert one["duration_s"] > 0
        # 2 * 256**3 operations, and 393216 bytes, in a millisecond that the event tells
        assert one["gemm_tflop_s"]["float32"] == pytest.approx(2 * 256**3 / 1e-3 / 1e12)
        assert one["memory_gb_s"] == pytest.approx(2 * 393216 / 1e-3 / 1e9)
        assert one["to_host_gb_s"] == one["to_device_gb_s"] == pytest.approx(393216 / 1e-3 / 1e9)
        assert one["peer_gb_s"] == {other: pytest.approx(393216 / 1e-3 / 1e9)}
    noted = set(calls.read_text().splitlines())
    steps = ("init", "set_device", "Event.synchronize", "synchronize", "pin_memory", "empty_cache")
    assert {f"cuda:{i} {step}" for i in range(2) for step in steps} <= noted


@needs_torch
def test_a_slow_gpu_is_slow_in_everything_and_no_other_is() -> None:
    said = on_gpus(REAL[0], 3, gpu1={"slow": 3})
    for number in ("memory_gb_s", "to_device_gb_s", "to_host_gb_s"):
        assert [said[0][number] / one[number] for one in said] == pytest.approx([1, 3, 1])
    assert said[0]["gemm_tflop_s"]["tf32"] / said[1]["gemm_tflop_s"]["tf32"] == pytest.approx(3)
    assert said[1]["peer_gb_s"]["cuda:2"] * 3 == pytest.approx(said[2]["peer_gb_s"]["cuda:1"])


@needs_torch
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"hang": "full"}, "memory: no answer within 8 s"),
        ({"die": "mm"}, "gemm: its process died (exit status -9): CUDA kernel errors: \\x1b[31mXid 79"),
        ({"raise": "mm"}, "RuntimeError: CUDA error: an illegal memory access"),
        ({"init": "no CUDA-capable device is detected"}, "RuntimeError: no CUDA-capable device is detected"),
    ],
)
def test_a_gpu_that_fails_is_told_and_the_others_go_on(fault: Any, words: str) -> None:
    source = SOURCE.replace("PHASE_LIMIT_S = 45.0", "PHASE_LIMIT_S = 8.0")
    assert source != SOURCE
    good, bad, other = on_gpus(REAL[0], 3, source, gpu1=fault)
    assert words in bad["error"]
    assert "to_host_gb_s" not in bad
    for one, name in ((good, "cuda:2"), (other, "cuda:0")):
        assert not {"error", "unable"} & set(one)
        assert set(one["peer_gb_s"]) == {name}


@needs_torch
def test_a_test_without_time_is_cut_short_which_is_no_fault_of_a_gpu() -> None:
    source = SOURCE.replace("PHASE_LIMIT_S = 45.0", f"PHASE_LIMIT_S = {LIMIT_S - 1}.0")
    for one in on_gpus(REAL[0], 2, source):
        assert "error" not in one
        assert "were over" in one["cut_short"]


@needs_torch
def test_a_torch_without_cuda_says_nothing_of_the_gpu() -> None:
    for one in on_gpus(REAL[0], 2, env={"FAKE_CUDA_VERSION": ""}):
        assert "is built without CUDA" in one["unable"]
        assert "error" not in one


@needs_torch
def test_nobody_is_left_when_whoever_started_it_is_gone() -> None:
    argv = [REAL[0], "-B", "-c", BOOT, json.dumps({"devices": ["cuda:0"], "limit_s": LIMIT_S})]
    env = {**os.environ, "PYTHONPATH": FAKE_CUDA, "FAKE_CUDA": '{"cuda:0": {"hang": "mm"}}'}
    started = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    assert started.stdin is not None
    started.stdin.write(SOURCE)
    started.stdin.close()
    children = wait_for(lambda: Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split())
    started.kill()
    started.wait()
    assert wait_for(lambda: not any(_runs(pid) for pid in children))


def _runs(pid: str) -> bool:
    """Is there such a process that is neither dead nor a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(what: Any) -> Any:
    """What it returns once that is true; the last, untrue answer after half a minute."""
    end = time.monotonic() + 30
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    return what()


# --------------------------------------------------------------------------- what is wrong is seen


@needs_torch
@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("left, right, out=out), compare", "left, right, out=out).add_(1.0), compare", "rounds differ"),
        ("    exact = some_left", "    exact = 1.01 * some_left", "entries are not what rounding could make"),
        ("(first[::step, ::step].cpu()", "(float('nan') * first[::step, ::step].cpu()", "entries are not what"),
        ("        block.bitwise_not_()", "        block.bitwise_not_()[7] ^= 1", "memory: "),
        ("    if not torch.equal(source, target)", "    target[9] ^= 1\n    if not torch.equal(source, target)", "a copy"),
        ("    if not torch.equal(there, back)", "    back[9] ^= 1\n    if not torch.equal(there, back)", "data differ"),
        ("    if not torch.equal(target, torch.arange", "    target[9] ^= 1\n    if not torch.equal(target, torch.arange",
         "copy to cuda:1: data differ"),
    ],
)  # fmt: skip
def test_a_flipped_bit_is_seen(before: str, after: str, told: str) -> None:
    assert before in SOURCE
    said = on_gpus(REAL[0], 2, SOURCE.replace(before, after))
    assert told in " ".join(said[0]["wrong"])


@needs_torch
def test_one_bit_in_one_round_is_seen() -> None:
    good, bad = on_gpus(REAL[0], 2, gpu1={"flip": "mm"})
    assert good["wrong"] == []
    (wrong,) = bad["wrong"]
    assert wrong.startswith("gemm float32: 1 of ")


@needs_torch
@pytest.mark.parametrize("python", REAL)
def test_no_right_product_lies_outside_the_bound_and_a_wrong_one_does(python: str) -> None:
    """Products added up in float32 in the worst order there is, one after the other, of many terms."""
    lines = [
        "import sys, types, json, torch",
        "module = types.ModuleType('compute'); exec(sys.stdin.read(), module.__dict__)",
        "generator = torch.Generator().manual_seed(3)",
        "left, right = torch.randn(8, 8192, generator=generator), torch.randn(8192, 8, generator=generator)",
        "said = {}",
        "for name, dtype, bits in (('float32', torch.float32, 24), ('float16', torch.float16, 11), ('bfloat16', torch.bfloat16, 8)):",
        "    a, b = left.to(dtype), right.to(dtype)",
        "    total = torch.zeros(8, 8)",
        "    for k in range(8192): total += a[:, k:k + 1].float() * b[k:k + 1].float()",
        "    exact = a.double() @ b.double()",
        "    far = module.Kind(name, dtype, bits).farthest(a.double(), b.double(), exact)",
        "    said[name] = [float(((total.to(dtype).double() - exact).abs() / far).max()), float((far / 8192 ** 0.5).max())]",
        "cut = lambda x: (x.view(torch.int32) & ~0x1FFF).view(torch.float32)",
        "exact = left.double() @ right.double()",
        "far = module.Kind('tf32', torch.float32, 11, True).farthest(left.double(), right.double(), exact)",
        "short = (cut(left).double() @ cut(right).double()).float()",
        "said['tf32'] = [float(((short.double() - exact).abs() / far).max()), float((far / 8192 ** 0.5).max())]",
        "print(json.dumps(said))",
    ]
    done = subprocess.run([python, "-c", "\n".join(lines)], input=SOURCE, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert set(said) == {"float32", "float16", "bfloat16", "tf32"}
    for used, deviations in said.values():
        assert used < 0.5  # ample room for any kernel's order of adding
        assert deviations < 0.5  # of a result's own spread: an entry that is somebody else's, or 0, is far outside


# --------------------------------------------------------------------------- the plan


@pytest.mark.parametrize("count", [1, 2, 8])
def test_all_calculate_together_and_copy_one_after_the_other(count: int) -> None:
    names = [f"cuda:{i}" for i in range(count)]
    told = list(compute.steps(names, peers=True))
    assert [set(step.values()) for step in told[:2]] == [{"gemm"}, {"memory"}]
    assert all(len(step) == count for step in told[:2])
    assert all(len(step) == 1 for step in told[2:])
    copies = [(names[i], text.split()[1]) for step in told for i, text in step.items() if text.startswith("peer")]
    assert sorted(copies) == [(a, b) for a in names for b in names if a != b]
    assert not any("peer" in text for step in compute.steps(names, peers=False) for text in step.values())

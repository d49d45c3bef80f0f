"""The compute test by real torches on the processor."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, List

import pytest
from ddp_doctor.bench import compute
from ddp_doctor.collect.compute import BOOT, parse_answers

REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]
needs_torch = pytest.mark.skipif(not REAL, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch")


def ran(python: str, devices: List[str], source: str) -> Any:
    options = json.dumps({"devices": devices, "limit_s": 100})
    argv = [python, "-B", "-c", BOOT, options]
    return parse_answers(subprocess.run(argv, input=source, stdout=subprocess.PIPE, text=True, check=True).stdout)


@needs_torch
@pytest.mark.parametrize("python", REAL)
def test_siblings_agree_and_a_device_that_cannot_be_used_hides_none(python: str) -> None:
    one, none, two = ran(python, ["cpu", "cuda:99", "cpu"], Path(compute.__file__).read_text())
    assert one["wrong"] == two["wrong"] == []
    assert "error" not in one
    assert "error" not in two
    assert one["checksums"] == two["checksums"]
    assert {"float32", "bfloat16"} <= set(one["checksums"])
    assert min(one["memory_gb_s"], one["to_device_gb_s"], one["to_host_gb_s"], *one["gemm_tflop_s"].values()) > 0
    assert none["error"]
    assert none["gemm_tflop_s"] == {}


@needs_torch
@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("torch.mm(*inputs, out=out), compare", "torch.mm(*inputs, out=out).add_(1.0), compare", "rounds differ"),
        ("exact = a[:4]", "exact = 2 * a[:4]", "off the exact result"),
        ("    bad = sum(", "    target[7] ^= 1\n    bad = sum(", "memory: 1 of"),
        ("    if not torch.equal(there, back)", "    back[9] ^= 1\n    if not torch.equal(there, back)", "data differ"),
    ],
)
def test_a_flipped_bit_is_seen(before: str, after: str, told: str) -> None:
    source = Path(compute.__file__).read_text()
    assert before in source
    (said,) = ran(REAL[0], ["cpu"], source.replace(before, after))
    assert told in " ".join(said["wrong"])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_pairs_are_disjoint_and_everybody_meets_everybody(count: int) -> None:
    met = []
    for pairs in compute.rounds([f"cuda:{i}" for i in range(count)]):
        members = [i for pair in pairs for i in pair]
        assert len(members) == len(set(members))
        met += [frozenset(pair) for pair in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2

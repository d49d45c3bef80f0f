"""Checks of the compute test."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_doctor.facts import Compute, GpuTest
from judging import failures, judged, remedy_text

GOOD = GpuTest(0, "cuda:0", "NVIDIA H200", gemm_tflop_s={"bfloat16": 700.0}, checksums={"bfloat16": "1"},
               memory_gb_s=4000.0, to_device_gb_s=55.0, to_host_gb_s=55.0, wrong=())  # fmt: skip


def node(**odd: Any) -> Compute:
    """Eight GPUs, of which number 3 is odd."""
    return Compute(gpus=tuple(replace(GOOD, index=i, **(odd if i == 3 else {})) for i in range(8)))


@pytest.mark.parametrize(
    ("odd", "ids"),
    [
        ({}, []),
        ({"gemm_tflop_s": {"bfloat16": 640.0}}, []),
        ({"gemm_tflop_s": {"bfloat16": 600.0}}, ["gpu-test/slow-gemm"]),
        ({"memory_gb_s": 3000.0}, ["gpu-test/slow-memory"]),
        ({"to_host_gb_s": 27.0}, ["gpu-test/slow-host-copy"]),
        ({"name": "NVIDIA A100", "memory_gb_s": 1500.0}, []),
        ({"checksums": {"bfloat16": "2"}}, []),
        ({"wrong": ("memory: 1 of 9 blocks differ",)}, ["gpu-test/wrong-results"]),
        ({"error": "CUDA out of memory"}, ["gpu-test/could-not-run"]),
    ],
)
def test_only_the_fault_is_told(odd: Any, ids: Any) -> None:
    assert failures("gpu-test", compute=node(**odd)) == ids
    for id in ids:
        (failed,) = [v for v in judged(id, compute=node(**odd)) if v.outcome.value == "failed"]
        assert failed.subject.startswith("GPU 3")
        assert remedy_text(failed)


def test_a_sibling_with_other_bits_is_unknown_not_passed() -> None:
    found = judged("gpu-test/differs-from-siblings", compute=node(checksums={"bfloat16": "2"}))
    assert [v.outcome.value for v in found if v.subject.startswith("GPU 3")] == ["skipped"]

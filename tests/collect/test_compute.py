"""Compute: which GPUs are left alone, and answers as facts."""

from typing import Any, Optional

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import compute
from ddp_doctor.facts import Gpu, GpuProcess

IDLE = {"uuid": "GPU-ab", "processes": (), "memory_used_bytes": 5 << 20}


@pytest.mark.parametrize(
    ("fields", "visible", "said"),
    [
        ({}, None, None),
        ({}, "0,3", None),
        ({}, "GPU-a", None),
        ({"processes": (GpuProcess(7, "Xorg", kind="graphics"),)}, None, None),
        ({}, "1", "leaves it out"),
        ({"processes": (GpuProcess(42, "python"),)}, None, r"in use by pid 42 (python)"),
        ({"processes": None}, None, "not known"),
        ({"memory_used_bytes": 9 << 30}, None, "memory is in use"),
        ({"mig": "enabled"}, None, "MIG"),
    ],
)
def test_a_gpu_in_use_is_left_alone(fields: Any, visible: Optional[str], said: Optional[str]) -> None:
    why = compute.why_not(Gpu(3, **{**IDLE, **fields}), visible)
    assert (why is None) if said is None else said in str(why)


def test_answers_become_facts_under_the_nodes_own_numbers() -> None:
    tested = [Gpu(2, uuid="a"), Gpu(5, uuid="b")]
    found = compute.as_test(tested[0], {"device": "cuda:0", "wrong": [], "peer_gb_s": {"cuda:1": 20.0}}, tested)
    assert (found.index, found.peer_gb_s, found.wrong) == (2, {"5": 20.0}, ())
    failed = compute.as_test(tested[1], {"error": "out of memory"}, tested)
    assert failed.wrong is None
    assert failed.unread["wrong"].kind == "crashed"


def test_it_runs_only_when_asked() -> None:
    assert compute.wanted(Ask(profile="deep")) is None
    assert compute.wanted(Ask(compute=True)) is None
    assert str(getattr(compute.wanted(Ask()), "kind", "")) == "not-asked"
    assert compute.parse_answers("torch says hello") == [] == compute.parse_answers(compute_mark() + "[1")


def compute_mark() -> str:
    from ddp_doctor.bench.compute import MARK

    return MARK

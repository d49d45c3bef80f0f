"""Checks of the compute test."""

from dataclasses import replace
from typing import Any, Dict, Sequence

import pytest
from ddp_doctor import tables
from ddp_doctor.checks import gpu_test
from ddp_doctor.facts import Compute, Gpu, Gpus, GpuTest, NodeFacts, NvLink, Os, PciDevice, Reason, Topology
from ddp_doctor.policy import Policy
from ddp_doctor.thresholds import bound
from fleets import judged_fleet
from judging import failures, judged, remedy_text

GOOD = GpuTest(0, "cuda:0", "NVIDIA H200", gemm_tflop_s={"bfloat16": 700.0}, checksums={"bfloat16": "1"},
               multiprocessors=132, memory_gb_s=4000.0, to_device_gb_s=55.0, to_host_gb_s=55.0, wrong=())  # fmt: skip
GPU = Gpu(0, pcie_gen_max=5, pcie_width_max=16, power_limit_w=700.0, power_default_limit_w=700.0)
BARE, VIRTUAL = Os(virtualisation=""), Os(virtualisation="kvm")


def node(count: int = 8, odd_one: int = 3, **odd: Any) -> Compute:
    """GPUs of which one is odd; each copies to each other at 390 GB/s."""
    rates = {i: {str(j): 390.0 for j in range(count) if j != i} for i in range(count)}
    tests = (replace(GOOD, index=i, peer_gb_s=rates[i]) for i in range(count))
    return Compute(gpus=tuple(replace(t, **odd) if t.index == odd_one else t for t in tests))


def gpus(count: int = 8, **changes: Any) -> Gpus:
    """Their GPUs, on NVSwitches."""
    links = tuple(NvLink(n, active=True, remote_kind="switch") for n in range(18))
    return Gpus(gpus=tuple(replace(GPU, index=i, nvlinks=links, **changes) for i in range(count)))


@pytest.mark.parametrize(
    ("odd", "ids"),
    [
        ({}, []),
        ({"gemm_tflop_s": {"bfloat16": 640.0}}, []),
        ({"gemm_tflop_s": {"bfloat16": 600.0}}, ["slow-gemm"]),
        ({"gemm_tflop_s": {"bfloat16": 300.0}}, ["gemm-slower-than-model", "slow-gemm"]),
        ({"memory_gb_s": 3000.0}, ["slow-memory"]),
        ({"memory_gb_s": 1400.0}, ["memory-slower-than-model", "slow-memory"]),
        ({"to_host_gb_s": 33.0}, ["slow-host-copy"]),
        ({"to_host_gb_s": 27.0}, ["host-copy-slower-than-link", "slow-host-copy"]),
        ({"name": "NVIDIA A100-SXM4-80GB", "memory_gb_s": 1500.0, "gemm_tflop_s": {"bfloat16": 250.0}}, []),
        ({"checksums": {"bfloat16": "2"}}, ["differs-from-siblings"]),
        ({"checksums": {"bfloat16": "2"}, "multiprocessors": 114}, []),
        ({"checksums": {"bfloat16": "2"}, "multiprocessors": None}, []),
        ({"wrong": ("memory: 1 of 9 blocks differ",)}, ["wrong-results"]),
        ({"error": "CUDA out of memory"}, ["could-not-run"]),
        ({"peer_gb_s": {"5": 200.0, "6": 390.0}}, ["slow-peer-copy"]),
        ({"peer_gb_s": {"5": 200.0, "cuda:6": 390.0, "": 1.0, "\u00b2": 1.0}}, ["slow-peer-copy"]),
    ],
)
def test_only_the_fault_is_told(odd: Any, ids: Any) -> None:
    facts = {"compute": node(**odd), "gpus": gpus(), "os": BARE}
    assert failures("gpu-test", **facts) == [f"gpu-test/{id}" for id in ids]
    for id in ids:
        (failed,) = [v for v in judged(f"gpu-test/{id}", **facts) if v.outcome.value == "failed"]
        assert failed.subject.startswith("GPU 3")
        assert remedy_text(failed)


@pytest.mark.parametrize(
    ("odd", "ids"),
    [
        ({}, []),
        ({"gemm_tflop_s": {"bfloat16": 600.0}, "memory_gb_s": 3300.0, "to_host_gb_s": 40.0}, []),
        ({"gemm_tflop_s": {"bfloat16": 500.0}}, ["slow-gemm"]),
        ({"memory_gb_s": 2900.0}, ["slow-memory"]),
        ({"to_host_gb_s": 32.0}, ["slow-host-copy"]),
        ({"checksums": {"bfloat16": "2"}}, ["differs-from-siblings"]),
    ],
)
def test_of_a_pair_both_are_named(odd: Any, ids: Any) -> None:
    facts = {"compute": node(2, odd_one=1, **odd), "gpus": gpus(2), "os": BARE}
    assert failures("gpu-test", **facts) == [f"gpu-test/{id}" for id in ids]
    for id in ids:
        (failed,) = [v for v in judged(f"gpu-test/{id}", **facts) if v.outcome.value == "failed"]
        assert "GPU 0" in failed.message
        assert "GPU 1" in failed.message


ALONE = {"gemm_tflop_s": {"bfloat16": 300.0}, "memory_gb_s": 1500.0, "to_host_gb_s": 20.0}
MODEL = ["gpu-test/gemm-slower-than-model", "gpu-test/memory-slower-than-model"]
LINK = ["gpu-test/host-copy-slower-than-link"]


@pytest.mark.parametrize(
    ("odd", "gpu", "os", "ids"),
    [
        ({}, {}, BARE, sorted(MODEL + LINK)),
        ({}, {}, VIRTUAL, MODEL),
        ({}, {"power_limit_w": 400.0}, BARE, LINK),
        ({}, {"clock_application_mhz": 800, "clock_application_default_mhz": 1980}, BARE, LINK),
        ({}, {"pcie_gen_max": 4}, BARE, MODEL),
        ({}, {"pcie_gen_max": None}, BARE, MODEL),
        ({"name": "NVIDIA GeForce RTX 3080 Laptop GPU"}, {}, BARE, []),
        ({"name": "Tesla P100-PCIE-12GB", "memory_gb_s": 380.0}, {}, VIRTUAL, []),
        ({"name": "NVIDIA X900"}, {}, BARE, []),
        ({"name": "Tesla T4", "memory_gb_s": 240.0}, {}, VIRTUAL, []),
    ],
)
def test_a_slow_gpu_alone_is_found_where_its_model_or_its_link_is_known(odd: Any, gpu: Any, os: Os, ids: Any) -> None:
    facts = {"compute": node(1, odd_one=0, **{**ALONE, **odd}), "gpus": gpus(1, **gpu), "os": os}
    assert failures("gpu-test", **facts) == ids
    for id in {*MODEL, *LINK} - set(ids):
        assert {v.outcome.value for v in judged(id, **facts)} <= {"skipped", "passed"}
        assert all(v.reason for v in judged(id, **facts) if v.outcome.value == "skipped")


def test_without_the_driver_s_facts_nothing_is_said_against_a_model() -> None:
    assert failures("gpu-test", compute=node(1, odd_one=0, **ALONE)) == []


def test_a_gpu_that_was_left_alone_is_no_pass() -> None:
    untested = GpuTest(3, name="NVIDIA H200")
    compute = Compute(gpus=tuple(untested if t.index == 3 else t for t in node().gpus or ()))
    for id in ("could-not-run", "wrong-results", "gemm-slower-than-model", "memory-slower-than-model"):
        found = judged(f"gpu-test/{id}", compute=compute, gpus=gpus(), os=BARE)
        assert [v.outcome.value for v in found if v.subject.startswith("GPU 3")] == ["skipped"]


# --------------------------------------------------------------------------- from GPU to GPU


def copies(slow: Dict[Any, float], count: int = 8) -> Compute:
    rates = {i: {str(j): slow.get((i, j), 390.0) for j in range(count) if j != i} for i in range(count)}
    return Compute(gpus=tuple(replace(GOOD, index=i, peer_gb_s=rates[i]) for i in range(count)))


@pytest.mark.parametrize(
    ("slow", "blamed"),
    [
        ([], []),
        ([(2, 5)], ["GPU 2"]),
        ([(i, 5) for i in range(8) if i != 5] + [(5, i) for i in range(8) if i != 5], ["GPU 5"]),
        ([(0, 1), (0, 2), (6, 7)], ["GPU 0", "GPU 6"]),
    ],
)
def test_a_slow_connection_counts_once_against_whom_most_have_in_common(slow: Any, blamed: Any) -> None:
    compute = copies(dict.fromkeys(slow, 200.0))
    found = judged("gpu-test/slow-peer-copy", compute=compute, gpus=gpus())
    assert [v.subject[:5] for v in found if v.outcome.value == "failed"] == blamed
    assert len(found) == 8


def on_bus(bridges: Sequence[str]) -> Any:
    """GPUs below these host bridges, without NVLink."""
    places = [f"0000:{i:02x}:00.0" for i in range(len(bridges))]
    devices = tuple(
        PciDevice(pci, kind="gpu", host_bridge=bridge, parents=(f"{bridge}:port{i}",), numa_node=int(bridge[-1]))
        for i, (pci, bridge) in enumerate(zip(places, bridges))
    )
    peers = {str(i): "ok" for i in range(len(bridges))}
    return (
        Gpus(gpus=tuple(Gpu(i, pci=pci, peers=peers) for i, pci in enumerate(places))),
        Topology(devices=devices),
    )


def test_only_copies_over_like_connections_are_compared() -> None:
    known, topology = on_bus(["pci0", "pci0", "pci0", "pci1", "pci1", "pci1"])
    across = {(i, j): 120.0 for i in range(6) for j in range(6) if (i < 3) != (j < 3)}
    assert failures("gpu-test", compute=copies(across, 6), gpus=known, topology=topology) == []
    slow = copies({**across, (0, 4): 60.0}, 6)
    (failed,) = [v for v in judged("gpu-test/slow-peer-copy", compute=slow, gpus=known, topology=topology)
                 if v.outcome.value == "failed"]  # fmt: skip
    assert "SYS" in failed.subject
    assert "60 GB/s" in failed.measured
    assert {v.outcome.value for v in judged("gpu-test/slow-peer-copy", compute=slow)} == {"skipped"}


# --------------------------------------------------------------------------- over nodes


def test_a_node_whose_gpus_are_all_slow_shows_among_others() -> None:
    slow = Compute(gpus=tuple(replace(test, gemm_tflop_s={"bfloat16": 600.0}) for test in node(2).gpus or ()))
    other = Compute(gpus=tuple(replace(test, name="NVIDIA B200", memory_gb_s=6500.0) for test in node(2).gpus or ()))
    nodes = [NodeFacts(f"gpu{i}", compute=slow if i == 2 else node(2)) for i in range(4)]
    nodes += [
        NodeFacts("b200", compute=other),
        NodeFacts("idle", reasons={"compute": Reason("not-asked", "not asked")}),
    ]
    assert failures("gpu-test", compute=slow, gpus=gpus(2), os=BARE) == []
    found = judged_fleet("gpu-test/slow-in-fleet", nodes, Policy(nnodes=6))
    assert {name: verdict.outcome.value for name, verdict in found.items()} == {
        "gpu0": "passed", "gpu1": "passed", "gpu2": "failed", "gpu3": "passed", "b200": "skipped", "idle": "skipped",
    }  # fmt: skip
    assert "GPU 0, GPU 1: 600, 600" in found["gpu2"].measured
    assert remedy_text(found["gpu2"])


# --------------------------------------------------------------------------- the numbers


def test_no_floor_lies_above_what_physics_allows() -> None:
    models = {row.gpu: row for row in tables.gpus()}
    for row in tables.gpu_speeds():
        assert row.gpu in models
        assert 0.5 <= float(row.measured_tflop_s) / float(row.peak_tflop_s) <= 1
        assert 10 < float(row.peak_tflop_s) < 10000  # a slip of the unit
    assert all(100 < min(map(float, row.memory_gb_s.split("/"))) < 10000 for row in models.values())
    for name in (
        "gemm",
        "gemm_pair",
        "gemm_model",
        "memory",
        "memory_pair",
        "memory_model",
        "copy",
        "copy_pair",
        "peer",
    ):
        assert 0 < (bound(f"gpu_test.{name}_share").warning or 0) < 100
    assert [round(rate * 16, 1) for rate in gpu_test.LANE_GB_S.values()] == [4.0, 8.0, 15.8, 31.5, 63.0, 121.0]


@pytest.mark.parametrize(
    ("generation", "healthy_gb_s"),
    [(3, 9.0), (4, 21.0), (5, 48.0)],  # the least that Azure's azurehpc-health-checks accepts of V100, A100 and H100
)
def test_what_others_accept_is_accepted(generation: int, healthy_gb_s: float) -> None:
    compute = node(1, odd_one=0, to_host_gb_s=healthy_gb_s, to_device_gb_s=healthy_gb_s)
    facts = {"compute": compute, "gpus": gpus(1, pcie_gen_max=generation), "os": BARE}
    assert {v.outcome.value for v in judged(LINK[0], **facts)} == {"passed"}

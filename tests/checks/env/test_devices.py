"""CUDA_VISIBLE_DEVICES, as CUDA reads it."""

import pytest
from ddp_doctor.facts import Env, Gpu, Gpus, Launch, PciGpu, Variable
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

UUIDS = ("GPU-3a1b6d4c-0d3e-11ee-8a0e-0242ac120002", "GPU-7f2c1111-0d3e-11ee-8a0e-0242ac120002")
TWO = Gpus(source="nvml", gpus=tuple(Gpu(n, "NVIDIA A100-SXM4-80GB", uuid) for n, uuid in enumerate(UUIDS)))
MIG = Gpus(source="nvml", gpus=(Gpu(0, "NVIDIA A100-SXM4-80GB", UUIDS[0], mig="enabled"),))
NONE = Gpus(source="proc", gpus=(), on_bus=())
BUS = Gpus(source="proc", on_bus=(PciGpu("0000:07:00.0", "0x20b0", "nvidia"),))


def env(value, **more):
    variables = {"CUDA_VISIBLE_DEVICES": value, **more}
    return Env(tuple(Variable(n, v) for n, v in variables.items() if v is not None), nccl_conf_files=())


@pytest.mark.parametrize(
    ("value", "gpus", "found"),
    [
        ("", None, "failed"),
        ("-1", TWO, "failed"),
        ("", BUS, "failed"),
        ("", NONE, "skipped"),
        ("NoDevFiles", TWO, "failed"),
        ("0", TWO, "passed"),
        (None, TWO, "skipped"),
        ("$GPUS", None, "skipped"),
    ],
)
def test_all_gpus_hidden(value, gpus, found):
    assert outcome("env/all-gpus-hidden", env=env(value), gpus=gpus) == found


@pytest.mark.parametrize(
    ("value", "found"),
    [("0,0", "failed"), ("0,1,0", "failed"), (f"{UUIDS[0]}, {UUIDS[0]}", "failed"), ("0,1", "passed")],
)
def test_a_gpu_named_twice(value, found):
    assert outcome("env/gpu-listed-twice", env=env(value)) == found


def test_every_gpu_is_named_once():
    (verdict,) = judged("env/gpu-listed-twice", env=env("1,0,1"))
    assert "export CUDA_VISIBLE_DEVICES 1,0" in remedy_text(verdict)


@pytest.mark.parametrize(
    ("value", "gpus", "found"),
    [
        ("0,7", TWO, "failed"),
        ("0,7", None, "passed"),
        ("0,one", TWO, "failed"),
        ("0,,1", TWO, "failed"),
        (f"0,{UUIDS[1]}", TWO, "failed"),
        (f"{UUIDS[0]}, {UUIDS[1]}", TWO, "failed"),
        ("GPU-deadbeef", TWO, "failed"),
        ("0, 1", TWO, "passed"),
        (",".join(UUIDS), TWO, "passed"),
        ("GPU-3a1b", TWO, "passed"),
        ("0,-1", TWO, "skipped"),
        ("5", MIG, "passed"),
        ("MIG-3a1b6d4c-0d3e-11ee-8a0e-0242ac120002", MIG, "passed"),
        ("0,1", BUS, "passed"),
        ("", TWO, "skipped"),
    ],
)
def test_a_list_that_cuda_cuts(value, gpus, found):
    assert outcome("env/gpu-list-cut", env=env(value), gpus=gpus) == found


@pytest.mark.parametrize(
    ("facts", "policy", "gpus", "found"),
    [
        (env("0,1", LOCAL_WORLD_SIZE="4"), Policy(), None, "failed"),
        (env("0,1"), Policy(nproc_per_node=4), None, "failed"),
        (env("0,1", LOCAL_WORLD_SIZE="2"), Policy(), None, "passed"),
        (env("0", LOCAL_WORLD_SIZE="4", SLURM_LOCALID="0"), Policy(), None, "passed"),
        (env("0,1", LOCAL_WORLD_SIZE="4"), Policy(), TWO, "skipped"),
        (env("0,1"), Policy(), None, "skipped"),
    ],
)
def test_fewer_gpus_than_ranks(facts, policy, gpus, found):
    assert outcome("env/fewer-gpus-than-ranks", policy, env=facts, gpus=gpus, launch=Launch()) == found


MIXED = Gpus(source="nvml", gpus=(Gpu(0, "NVIDIA T400"), Gpu(1, "NVIDIA A100-SXM4-80GB")))


@pytest.mark.parametrize(
    ("facts", "gpus", "found"),
    [
        (env("1"), MIXED, "failed"),
        (env("1", CUDA_DEVICE_ORDER="PCI_BUS_ID"), MIXED, "passed"),
        (env(UUIDS[0]), MIXED, "skipped"),
        (env(None), MIXED, "skipped"),
        (env("1"), TWO, "skipped"),
    ],
)
def test_two_ways_to_number_gpus(facts, gpus, found):
    assert outcome("env/gpu-order-differs", env=facts, gpus=gpus) == found

"""Checks of what the launcher set."""

import pytest
from ddp_doctor.facts import Gpu, Gpus, Launch, Network, Resolved, Torch
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

TWO = Policy(nnodes=2)
EIGHT_GPUS = Gpus(gpus=tuple(Gpu(n) for n in range(8)))


@pytest.mark.parametrize(
    ("check", "launch", "found"),
    [
        ("rank-out-of-range", Launch(rank=15, world_size=16), "passed"),
        ("rank-out-of-range", Launch(rank=16, world_size=16), "failed"),
        ("rank-out-of-range", Launch(rank=16), "skipped"),
        ("local-rank-out-of-range", Launch(local_rank=7, local_world_size=8), "passed"),
        ("local-rank-out-of-range", Launch(local_rank=8, local_world_size=8), "failed"),
        ("node-rank-out-of-range", Launch(node_rank=1, nnodes=2), "passed"),
        ("node-rank-out-of-range", Launch(node_rank=2, nnodes=2), "failed"),
        ("variable-malformed", Launch(malformed={"RANK": "abc"}), "failed"),
        ("variable-malformed", Launch(malformed={}, sources={"rank": "RANK"}), "passed"),
        ("variable-malformed", Launch(malformed={}, sources={}), "skipped"),
    ],
)
def test_numbers_must_be_in_their_range(check, launch, found):
    verdicts = judged(f"launch/{check}", launch=launch)
    assert {v.outcome.value for v in verdicts} == {found}
    assert all(v.fixes for v in verdicts if found == "failed")


@pytest.mark.parametrize(
    ("policy", "launch", "found"),
    [
        (TWO, Launch(world_size=16, nnodes=2, nproc_per_node=8), "passed"),
        (TWO, Launch(world_size=12, nnodes=2, local_world_size=8), "failed"),
        (TWO, Launch(world_size=16, local_world_size=8), "passed"),
        (Policy(nnodes=2, homogeneous=False), Launch(world_size=6, nnodes=2, local_world_size=4), "skipped"),
        (TWO, Launch(world_size=2, nnodes=2, nproc_per_node=8), "passed"),
        (TWO, Launch(world_size=2, nnodes=2, local_world_size=8, local_rank=3), "failed"),
        (TWO, Launch(world_size=2, nnodes=2, nproc_per_node=8, local_rank=0,
                     sources={"world_size": "SLURM_STEP_NUM_TASKS"}), "skipped"),
        (Policy(), Launch(world_size=16, nproc_per_node=8), "skipped"),
    ],
)  # fmt: skip
def test_world_size_counts_the_ranks_that_are_started(policy, launch, found):
    assert outcome("launch/world-size-mismatch", policy, launch=launch) == found


@pytest.mark.parametrize(
    ("launch", "gpus", "torch", "without", "one_each"),
    [
        (Launch(local_rank=7), EIGHT_GPUS, None, "passed", "skipped"),
        (Launch(local_rank=8), EIGHT_GPUS, None, "failed", "skipped"),
        (Launch(local_rank=2), Gpus(gpus=EIGHT_GPUS.gpus, visible_devices="0,1"), None, "failed", "skipped"),
        (Launch(local_rank=2), Gpus(gpus=EIGHT_GPUS.gpus, visible_devices="0,1,-1,3"), None, "failed", "skipped"),
        (Launch(local_rank=2), EIGHT_GPUS, Torch(cuda_device_count=2), "failed", "skipped"),
        (Launch(local_rank=2), Gpus(gpus=EIGHT_GPUS.gpus, admitted=2), None, "failed", "skipped"),
        (
            Launch(local_rank=3, launcher="slurm"),
            Gpus(gpus=EIGHT_GPUS.gpus, visible_devices="3"),
            None,
            "skipped",
            "failed",
        ),
        (
            Launch(local_rank=3, launcher="torchrun"),
            Gpus(gpus=EIGHT_GPUS.gpus, visible_devices="3"),
            None,
            "failed",
            "skipped",
        ),
        (Launch(local_rank=3, launcher="slurm"), EIGHT_GPUS, None, "passed", "passed"),
        (Launch(local_rank=3), Gpus(gpus=()), None, "skipped", "skipped"),
        (Launch(), EIGHT_GPUS, None, "skipped", "skipped"),
    ],
)
def test_every_local_rank_needs_a_gpu(launch, gpus, torch, without, one_each):
    assert outcome("launch/local-rank-without-gpu", launch=launch, gpus=gpus, torch=torch) == without
    assert outcome("launch/one-gpu-per-rank", launch=launch, gpus=gpus, torch=torch) == one_each


def resolved(*addresses):
    return Network(master_name=Resolved("node0", addresses))


@pytest.mark.parametrize(
    ("policy", "launch", "network", "found"),
    [
        (TWO, Launch(master_addr="localhost"), Network(), "failed"),
        (TWO, Launch(master_addr="127.0.0.1"), Network(), "failed"),
        (TWO, Launch(master_addr="::1"), Network(), "failed"),
        (TWO, Launch(master_addr="10.0.0.1"), Network(), "passed"),
        (TWO, Launch(master_addr="node0", is_master=False), resolved("127.0.1.1"), "failed"),
        (TWO, Launch(master_addr="node0", is_master=True), resolved("127.0.1.1"), "passed"),
        (TWO, Launch(master_addr="node0", is_master=False), resolved("10.0.0.1"), "passed"),
        (TWO, Launch(), Network(), "skipped"),
        (Policy(nnodes=1), Launch(master_addr="localhost"), Network(), "skipped"),
    ],
)
def test_several_nodes_cannot_meet_on_loopback(policy, launch, network, found):
    assert outcome("launch/master-is-loopback", policy, launch=launch, network=network) == found


ENV = {"rank": "RANK", "world_size": "WORLD_SIZE"}
SLURM = {"rank": "SLURM_PROCID", "world_size": "SLURM_STEP_NUM_TASKS"}


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        (Launch(rank=0, world_size=16, sources=ENV), "failed"),
        (Launch(rank=0, world_size=16, sources=ENV, master_addr="10.0.0.1"), "passed"),
        (Launch(rank=0, world_size=16, sources=ENV, malformed={"MASTER_ADDR": "n[1-2]"}), "skipped"),
        (Launch(rank=0, world_size=16, sources=SLURM), "skipped"),
        (Launch(rendezvous="static"), "failed"),
        (Launch(rendezvous="c10d", rank=0, world_size=16, sources=ENV), "skipped"),
        (Launch(), "skipped"),
    ],
)
def test_ranks_need_a_place_to_meet(launch, found):
    assert outcome("launch/master-unset", TWO, launch=launch) == found


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (Launch(launcher="slurm", malformed={"MASTER_ADDR": "gpu[01-02]"}), "scontrol show hostnames"),
        (Launch(launcher="slurm", malformed={"MASTER_PORT": "1234567"}), "SLURM_JOB_ID % 20000"),
        (Launch(malformed={"RANK": "abc"}), "unset RANK"),
        (Launch(malformed={"--nnodes": "x"}), "Correct the option"),
    ],
)
def test_a_malformed_value_is_mended_where_it_comes_from(launch, said):
    (verdict,) = judged("launch/variable-malformed", launch=launch)
    assert said in remedy_text(verdict)

"""Who we are in a job, by its variables; real jobs are in tests/lab."""

import pytest
from ddp_doctor.cluster import in_job
from ddp_doctor.cluster.in_job import NoJob, Place

TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu01",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
AGENT = b"/usr/bin/python3 -m torch.distributed.run --nnodes 2 -m ddp_doctor run"


def test_a_rank_of_torchrun():
    assert in_job.place(TORCHRUN) == Place(1, 2, 1, "gpu01", 29500, False, "none/2")
    assert not in_job.place(TORCHRUN).collects


def test_rank_0_opens_the_store_where_no_agent_keeps_it():
    first = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}
    assert in_job.place(first).opens_store
    assert not in_job.place({**first, "TORCHELASTIC_USE_AGENT_STORE": "True"}).opens_store


def test_what_env_needs_and_no_more():
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "::1", "MASTER_PORT": "1"}
    assert in_job.place(env) == Place(3, 4, 0, "::1", 1, False, "/0")


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_what_is_missing_is_named(name):
    with pytest.raises(NoJob, match=name):
        in_job.place({key: value for key, value in TORCHRUN.items() if key != name})


@pytest.mark.parametrize("value", ["-1", "x", "1e9", "9" * 10, "²"])
def test_what_is_no_number_is_named(value):
    with pytest.raises(NoJob, match="RANK is no number"):
        in_job.place({**TORCHRUN, "RANK": value})


@pytest.mark.parametrize(
    ("changes", "parent", "is_rank"),
    [
        ({}, AGENT, True),
        ({}, b"/venv/bin/torchrun --nnodes 2 -m ddp_doctor run", True),
        ({}, b"python train.py", False),
        ({}, b"", False),
        ({"WORLD_SIZE": "1"}, AGENT, False),
    ],
)
def test_only_what_torchrun_itself_started_is_a_rank(changes, parent, is_rank):
    assert in_job.is_rank_of_torchrun({**TORCHRUN, **changes}, parent) is is_rank


def test_without_torchruns_variables_it_is_none():
    env = {key: value for key, value in TORCHRUN.items() if not key.startswith("TORCHELASTIC")}
    assert not in_job.is_rank_of_torchrun(env, AGENT)

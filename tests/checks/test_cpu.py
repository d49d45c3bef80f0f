"""Checks of processors."""

import pytest
from ddp_doctor.facts import UNLIMITED, Cpu, Launch, Os, Reason
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

FREE = float(UNLIMITED)
EIGHT = Policy(nproc_per_node=8)


@pytest.mark.parametrize(
    ("policy", "launch", "cpu", "expected"),
    [
        (Policy(), None, Cpu(allowed=2, quota=FREE), "skipped"),
        (EIGHT, None, Cpu(allowed=128, quota=FREE), "passed"),
        (EIGHT, None, Cpu(allowed=8, quota=8.0), "passed"),
        (EIGHT, None, Cpu(allowed=1, quota=FREE), "failed"),
        (EIGHT, None, Cpu(allowed=128, quota=4.0), "failed"),
        (Policy(), Launch(local_world_size=4), Cpu(allowed=2, quota=FREE), "failed"),
        (EIGHT, None, Cpu(unread={"allowed": Reason("unreadable", "-")}), "skipped"),
    ],
)
def test_each_rank_needs_a_processor(policy, launch, cpu, expected):
    assert outcome("cpu/fewer-than-ranks", policy, cpu=cpu, launch=launch) == expected


def test_a_machine_with_no_more_processors_takes_fewer_ranks():
    (verdict,) = judged("cpu/fewer-than-ranks", EIGHT, cpu=Cpu(threads=4, allowed=4, quota=FREE), os=Os(container=""))
    assert [remedy.title for remedy in verdict.fixes] == ["Start fewer ranks"]


@pytest.mark.parametrize(
    ("launch", "os", "expected"),
    [
        (Launch(launcher="slurm"), Os(), "--cpus-per-task"),
        (None, Os(container="kubernetes"), "resources.limits.cpu"),
        (None, Os(container="docker"), "--cpuset-cpus"),
        (None, Os(container=""), "taskset"),
    ],
)
def test_processors_are_asked_for_where_the_job_is_started(launch, os, expected):
    (verdict,) = judged("cpu/fewer-than-ranks", EIGHT, cpu=Cpu(allowed=1, quota=FREE), launch=launch, os=os)
    assert expected in remedy_text(verdict)


@pytest.mark.parametrize(("quota", "expected"), [(FREE, "passed"), (16.0, "passed"), (4.5, "failed")])
def test_a_quota_below_what_is_visible_is_told(quota, expected):
    assert outcome("cpu/quota-below-visible", cpu=Cpu(allowed=16, quota=quota)) == expected


def test_no_quota_is_said_to_be_none():
    (verdict,) = judged("cpu/quota-below-visible", cpu=Cpu(allowed=16, quota=FREE))
    assert verdict.measured == "no quota"


def test_workers_are_counted_by_the_quota():
    (verdict,) = judged("cpu/quota-below-visible", cpu=Cpu(allowed=16, quota=4.5))
    assert verdict.measured == "a quota of 4.5 processors, 16 visible"
    assert "at most 4 workers" in remedy_text(verdict)


@pytest.mark.parametrize(
    ("quota", "ranks", "threads", "more"),
    [(16.0, 4, "4", False), (16.0, None, "16", True), (2.5, 8, "1", False), (0.5, None, "1", True)],
)
def test_threads_follow_the_quota_and_the_ranks(quota, ranks, threads, more):
    found = Cpu(threads=64, allowed=64, quota=quota)
    (verdict,) = judged("cpu/quota-below-visible", Policy(nproc_per_node=ranks), cpu=found)
    export, words = verdict.fixes[0].steps
    assert (export.name, export.value) == ("OMP_NUM_THREADS", threads)
    assert ("divide" in words.text) is more

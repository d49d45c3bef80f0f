"""Checks of the host's memory."""

import pytest
from ddp_doctor.facts import UNLIMITED, Launch, Memory, Os, Reason
from ddp_doctor.policy import GIB, MIB, Policy
from judging import judged, outcome, remedy_text

SLURM = Launch(launcher="slurm", slurm={"JOB_ID": "1"})


def memory(total, available, limit=UNLIMITED, used=None):
    return Memory(total_bytes=total, available_bytes=available, cgroup_limit_bytes=limit, cgroup_used_bytes=used)


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("idle node", memory(2048 * GIB, 2000 * GIB), "passed"),
        ("busy laptop", memory(8 * GIB, 1 * GIB), "passed"),
        ("small machine", memory(1 * GIB, 600 * MIB), "passed"),
        ("large node, small part, many GiB", memory(2048 * GIB, 60 * GIB), "passed"),
        ("exactly the bytes", memory(64 * GIB, 2 * GIB), "passed"),
        ("exactly the percentage", memory(20 * GIB, GIB), "passed"),
        ("exhausted", memory(64 * GIB, 1 * GIB), "failed"),
        ("nothing", memory(0, 0), "failed"),
        ("full cgroup on an idle node", memory(512 * GIB, 500 * GIB, 64 * GIB, 63 * GIB), "failed"),
        ("fresh cgroup on an idle node", memory(512 * GIB, 500 * GIB, 64 * GIB, 1 * GIB), "passed"),
        ("cgroup over its limit", memory(512 * GIB, 500 * GIB, 64 * GIB, 65 * GIB), "failed"),
        ("use of the cgroup unread", memory(512 * GIB, 500 * GIB, 64 * GIB, None), "passed"),
        ("cgroup unread", memory(512 * GIB, 500 * GIB, None, None), "passed"),
        ("unread", Memory(total_bytes=GIB, unread={"available_bytes": Reason("absent", "-")}), "skipped"),
    ],
)
def test_memory_is_low_by_both_bounds(name, found, expected):
    assert outcome("memory/low", memory=found) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [(UNLIMITED, "passed"), (512 * GIB, "passed"), (64 * GIB, "failed"), (None, "skipped")]
)
def test_a_limit_below_what_is_visible_is_told(limit, expected):
    assert outcome("memory/cgroup-limit-below-visible", memory=memory(512 * GIB, 500 * GIB, limit)) == expected


@pytest.mark.parametrize(
    ("os", "launch", "expected"),
    [
        (Os(container="docker"), None, "--memory"),
        (Os(container="kubernetes"), None, "resources.limits.memory"),
        (Os(container=""), SLURM, "--mem"),
        (Os(container=""), None, "MemoryMax="),
    ],
)
def test_the_limit_is_raised_where_it_is_set(os, launch, expected):
    found, policy = memory(512 * GIB, 500 * GIB, 8 * GIB), Policy(nproc_per_node=8)
    (verdict,) = judged("memory/cgroup-limit-below-visible", policy, memory=found, os=os, launch=launch)
    assert expected in remedy_text(verdict)
    assert verdict.measured.startswith("a limit of 8 GiB, 512 GiB visible")


@pytest.mark.parametrize(
    ("os", "launch", "limit", "ranks", "expected"),
    [
        (Os(container=""), SLURM, 64 * GIB, 8, "passed"),
        (Os(container="kubernetes"), None, 64 * GIB, None, "passed"),
        (Os(container="kubernetes"), None, 16 * GIB, 8, "passed"),
        (Os(container="kubernetes"), None, 15 * GIB, 8, "failed"),
        (Os(container="docker"), SLURM, GIB, None, "failed"),
        (Os(container="docker"), None, 64 * GIB, 8, "failed"),
        (Os(container="docker"), Launch(launcher="torchrun", slurm={}), 64 * GIB, 8, "failed"),
    ],
)
def test_the_share_that_a_scheduler_gives_is_meant(os, launch, limit, ranks, expected):
    found, policy = memory(512 * GIB, 500 * GIB, limit), Policy(nproc_per_node=ranks)
    assert outcome("memory/cgroup-limit-below-visible", policy, memory=found, os=os, launch=launch) == expected


def test_a_small_machine_is_not_what_a_scheduler_gave():
    found = memory(8 * GIB, 7 * GIB)
    assert (
        outcome("memory/cgroup-limit-below-visible", Policy(nproc_per_node=8), memory=found, launch=SLURM) == "passed"
    )


def test_what_leaves_less_is_told():
    (cgroup,) = judged("memory/low", memory=memory(512 * GIB, 500 * GIB, 64 * GIB, 4 * GIB))
    (machine,) = judged("memory/low", memory=memory(512 * GIB, 50 * GIB, 64 * GIB, 4 * GIB))
    assert cgroup.measured == "60 GiB available of 64 GiB"
    assert machine.measured == "50 GiB available of 512 GiB"


def test_no_limit_is_said_to_be_none():
    (verdict,) = judged("memory/cgroup-limit-below-visible", memory=memory(512 * GIB, 500 * GIB))
    assert verdict.measured == "no limit, 512 GiB visible"


def test_low_memory_shows_who_has_it():
    (verdict,) = judged("memory/low", memory=memory(64 * GIB, 1 * GIB))
    assert verdict.fixes[0].steps[0].text.startswith("ps -eo")
    assert len(verdict.fixes) == 2

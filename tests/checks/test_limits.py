"""Checks of resource limits, and where their remedies raise them."""

from dataclasses import replace

import pytest
from ddp_doctor.facts import (
    UNLIMITED,
    DeviceNode,
    Env,
    Launch,
    Limit,
    Limits,
    Os,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Variable,
)
from ddp_doctor.policy import GIB, MIB, Policy
from judging import judged, outcome, remedy_text

ACTIVE = RdmaPort(1, "ACTIVE", link_layer="InfiniBand")
UVERBS = DeviceNode("/dev/infiniband/uverbs0", True, True)
RDMA = Rdma(devices=(RdmaDevice("mlx5_0", (ACTIVE,), uverbs="uverbs0"),), device_nodes=(UVERBS,))
NO_RDMA = Rdma(devices=())
CLUSTER = Policy(nnodes=256, nproc_per_node=8)


def limits(memlock=UNLIMITED, cap=False, nofile=(1024, 2**20), nproc=UNLIMITED, **more):
    return Limits(
        memlock_bytes=Limit(memlock, memlock),
        cap_ipc_lock=cap,
        nofile=Limit(*nofile),
        nproc=Limit(nproc, nproc),
        whose="this shell (user ana)",
        **{"cgroup_pids_max": UNLIMITED, **more},
    )


@pytest.mark.parametrize(
    ("name", "rdma", "found", "too_low", "limited"),
    [
        ("laptop without RDMA", NO_RDMA, limits(64 * 1024), "skipped", "skipped"),
        ("old kernel's default", RDMA, limits(64 * 1024), "failed", "skipped"),
        ("new kernel's default", RDMA, limits(8 * MIB), "failed", "skipped"),
        ("root in a container", RDMA, limits(64 * 1024, cap=True), "passed", "passed"),
        ("Ubuntu's eighth of 32 GiB", RDMA, limits(4 * GIB), "passed", "failed"),
        ("healthy and finite", RDMA, limits(64 * GIB), "passed", "passed"),
        ("as the guides say", RDMA, limits(UNLIMITED), "passed", "passed"),
    ],
)
def test_locked_memory_counts_where_rdma_is_used_and_binds(name, rdma, found, too_low, limited):
    assert outcome("limits/memlock-too-low", rdma=rdma, limits=found) == too_low
    assert outcome("limits/memlock-limited", rdma=rdma, limits=found) == limited


@pytest.mark.parametrize(
    ("name", "rdma", "policy", "env"),
    [
        ("job of one node", RDMA, Policy(nnodes=1), Env(())),
        ("container that was given no adapter", replace(RDMA, device_nodes=()), Policy(), Env(())),
        ("RDMA switched off", RDMA, Policy(), Env((Variable("NCCL_IB_DISABLE", "1"),))),
        ("port down", Rdma((RdmaDevice("mlx5_0", (replace(ACTIVE, state="DOWN"),)),)), Policy(), Env(())),
    ],
)
def test_locked_memory_does_not_matter_where_nothing_is_pinned(name, rdma, policy, env):
    for check_id in ("limits/memlock-too-low", "limits/memlock-limited"):
        assert outcome(check_id, policy, rdma=rdma, env=env, limits=limits(8 * MIB, cap=True)) == "skipped"


def test_an_unlimited_memlock_needs_no_capability_to_be_known():
    found = Limits(memlock_bytes=Limit(UNLIMITED, UNLIMITED), unread={"cap_ipc_lock": Reason("no-rights", "closed")})
    assert outcome("limits/memlock-too-low", rdma=RDMA, limits=found) == "passed"


def test_a_low_memlock_is_unsure_without_the_capability():
    found = Limits(memlock_bytes=Limit(65536, 65536), unread={"cap_ipc_lock": Reason("no-rights", "closed")})
    (verdict,) = judged("limits/memlock-too-low", rdma=RDMA, limits=found)
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "no-rights")


def test_it_is_said_whose_limit_was_read():
    (verdict,) = judged("limits/memlock-too-low", rdma=RDMA, limits=limits(64 * 1024))
    assert verdict.measured == "memlock 64 KiB of this shell (user ana)"


@pytest.mark.parametrize(
    ("os", "launch", "expected"),
    [
        (Os(container=""), None, "/etc/security/limits.d/90-ddp-memlock.conf"),
        (Os(container=""), Launch(launcher="slurm"), "LimitMEMLOCK=infinity"),
        (Os(container=""), Launch(slurm={"SLURM_JOB_ID": "7"}), "PropagateResourceLimitsExcept=MEMLOCK"),
        (Os(container="", systemd=True), Launch(launcher="slurm"), "command systemctl restart slurmd"),
        (
            Os(container="", systemd=False),
            Launch(launcher="slurm"),
            "sentence Restart slurmd: systemd does not run here",
        ),
        (Os(container="", systemd=False), Launch(launcher="slurm"), "sentence Raise the limit where slurmd is started"),
        (Os(container="docker"), None, "--ulimit memlock=-1:-1"),
        (Os(container="podman"), Launch(launcher="slurm"), "--ulimit memlock=-1:-1"),
        (Os(container="kubernetes"), None, "securityContext: {capabilities: {add: [IPC_LOCK]}}"),
        (Os(container="apptainer"), Launch(launcher="slurm"), "LimitMEMLOCK=infinity"),
    ],
)
def test_memlock_is_raised_where_it_is_set(os, launch, expected):
    (verdict,) = judged("limits/memlock-too-low", rdma=RDMA, limits=limits(64 * 1024), os=os, launch=launch)
    assert expected in remedy_text(verdict)
    assert len(verdict.fixes) == 1


def test_a_high_hard_limit_is_used_first():
    found = Limits(memlock_bytes=Limit(64 * 1024, UNLIMITED), cap_ipc_lock=False)
    (verdict,) = judged("limits/memlock-too-low", rdma=RDMA, limits=found)
    assert verdict.fixes[0].steps[0].text == "ulimit -S -l unlimited"


@pytest.mark.parametrize(
    ("policy", "launch", "soft", "expected"),
    [
        (Policy(), None, 1024, "passed"),
        (Policy(nnodes=1), None, 1024, "passed"),
        (Policy(), None, 256, "failed"),
        (Policy(nnodes=16, nproc_per_node=8), None, 1024, "passed"),
        (CLUSTER, None, 1024, "failed"),
        (CLUSTER, None, 4608, "passed"),
        (Policy(), Launch(world_size=2048), 4607, "failed"),
        (Policy(nofile_min=65536), None, 4096, "failed"),
    ],
)
def test_open_files_are_judged_by_the_size_of_the_job(policy, launch, soft, expected):
    assert outcome("limits/nofile-too-low", policy, limits=limits(nofile=(soft, 2**20)), launch=launch) == expected


def test_the_remedy_for_a_soft_limit_differs_from_that_for_a_hard_one():
    (soft,) = judged("limits/nofile-too-low", CLUSTER, limits=limits(nofile=(1024, 2**20)))
    (hard,) = judged("limits/nofile-too-low", CLUSTER, limits=limits(nofile=(1024, 4096)))
    assert [step.text for step in soft.fixes[0].steps] == ["ulimit -S -n 1048576"]
    assert "ulimit -S" not in remedy_text(hard)
    assert "90-ddp-nofile.conf" in remedy_text(hard)


@pytest.mark.parametrize(
    ("policy", "found", "failed"),
    [
        (Policy(), limits(), []),
        (Policy(), limits(nproc=4096), []),
        (Policy(nproc_per_node=8), limits(cgroup_pids_max=2048, cgroup_pids_current=40), []),
        (Policy(nproc_per_node=8), limits(cgroup_pids_max=2048, cgroup_pids_current=1800), ["cgroup"]),
        (Policy(nproc_per_node=8), limits(nproc=512), ["user"]),
        (Policy(), limits(cgroup_pids_max=100, cgroup_pids_current=120), ["cgroup"]),
    ],
)
def test_tasks_must_suffice_for_the_ranks(policy, found, failed):
    verdicts = judged("limits/too-few-tasks", policy, limits=found)
    assert [v.subject for v in verdicts if v.outcome.value == "failed"] == failed


def test_a_limit_of_tasks_without_their_number_is_unsure():
    found = limits(cgroup_pids_max=100, unread={"cgroup_pids_current": Reason("no-rights", "closed")})
    outcomes = {v.subject: v.outcome.value for v in judged("limits/too-few-tasks", limits=found)}
    assert outcomes == {"cgroup": "skipped", "user": "passed"}


@pytest.mark.parametrize(
    ("kind", "expected"), [("podman", "--pids-limit=-1"), ("kubernetes", "podPidsLimit"), ("", "TasksMax=")]
)
def test_tasks_are_raised_where_they_are_limited(kind, expected):
    found = limits(cgroup_pids_max=100, cgroup_pids_current=90)
    (verdict, _) = judged("limits/too-few-tasks", limits=found, os=Os(container=kind))
    assert expected in remedy_text(verdict)


def test_the_floors_themselves_are_enough():
    policy = Policy(nproc_per_node=8)
    assert outcome("limits/memlock-too-low", rdma=RDMA, limits=limits(policy.memlock_min_bytes)) == "passed"
    assert outcome("limits/memlock-limited", rdma=RDMA, limits=limits(policy.memlock_min_bytes)) == "failed"
    assert outcome("limits/memlock-limited", rdma=RDMA, limits=limits(policy.memlock_recommended_bytes)) == "passed"
    assert outcome("limits/too-few-tasks", policy, limits=limits(nproc=1024)) == "passed"


def test_tasks_are_told_for_the_cgroup_and_for_the_user():
    found = limits(nproc=4096, cgroup_pids_max=2048, cgroup_pids_current=40)
    measured = [v.measured for v in judged("limits/too-few-tasks", limits=found)]
    assert measured == ["2008 more tasks", "nproc 4096 of this shell (user ana)"]
    assert next(v.measured for v in judged("limits/too-few-tasks", limits=limits())) == "no limit"


def test_limits_of_tasks_that_could_not_be_read_are_unsure():
    closed = {"cgroup_pids_max": Reason("no-rights", "closed"), "nproc": Reason("no-rights", "closed")}
    assert outcome("limits/too-few-tasks", limits=Limits(unread=closed)) == "skipped"

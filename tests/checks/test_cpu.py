"""Checks of processors."""

import pytest
from ddp_doctor.facts import UNLIMITED, Cpu, Gpu, Gpus, Launch, MemoryController, Os, PciGpu, Reason
from ddp_doctor.policy import Policy
from judging import failures, judged, outcome, remedy_text

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


# --------------------------------------------------------------------------- processors of nodes with GPUs

DAY = 86400.0
NODES = {"0": "0-31,64-95", "1": "32-63,96-127"}


def gpus(count=8, name="NVIDIA H100 80GB HBM3"):
    """GPUs of which each half hangs on a socket of its own."""
    addresses = [f"0000:{n + 1}8:00.0" for n in range(count)]
    bus = tuple(PciGpu(pci, "0x2330", "nvidia", 0 if n < count / 2 else 1) for n, pci in enumerate(addresses))
    return Gpus(gpus=tuple(Gpu(n, name=name, pci=pci) for n, pci in enumerate(addresses)), on_bus=bus)


def server(**more):
    """Two sockets of 32 cores with two threads each."""
    return Cpu(**{
        "threads": 128, "allowed": 128, "quota": FREE, "numa_nodes": 2, "numa_cpus": NODES, "allowed_list": "0-127",
        "numa_balancing": 0, "governors": ("performance",), "frequency_driver": "acpi-cpufreq", "throttled": 0,
        "memory_controllers": (MemoryController("mc0", 0, 0), MemoryController("mc1", 3, 0)), **more,
    })  # fmt: skip


LAPTOP = Cpu(
    threads=8, allowed=8, quota=FREE, numa_nodes=1, numa_cpus={"0": "0-7"}, allowed_list="0-7", numa_balancing=0,
    governors=("powersave",), frequency_driver="intel_pstate", throttled=25000, memory_controllers=(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("cpu", "found"),
    [
        (server(), gpus()),
        (LAPTOP, Gpus(gpus=())),
        (LAPTOP, gpus(1, "NVIDIA GeForce RTX 4060 Laptop GPU")),
        (server(numa_balancing=1, governors=("powersave",)), Gpus(gpus=())),  # a server without GPUs
        (server(governors=("powersave",), frequency_driver="intel_pstate"), gpus()),
        (server(governors=("powersave",), frequency_driver="amd-pstate-epp"), gpus()),
        (server(governors=(), frequency_driver=None, numa_balancing=2), gpus()),  # a virtual machine; memory tiering
        (server(throttled=90), gpus()),
    ],
)
def test_healthy_processors_are_quiet(cpu, found):
    assert failures("cpu", cpu=cpu, gpus=found, os=Os(uptime_s=DAY, container="")) == []


@pytest.mark.parametrize(
    ("policy", "launch", "allowed", "expected"),
    [
        (Policy(), None, 8, "skipped"),
        (EIGHT, None, 16, "passed"),
        (EIGHT, None, 15, "failed"),
        (EIGHT, None, 8, "failed"),
        (EIGHT, None, 7, "skipped"),  # fewer than ranks: said there
        (Policy(), Launch(local_world_size=2), 3, "failed"),
    ],
)
def test_a_rank_and_its_proxy_want_a_processor_each(policy, launch, allowed, expected):
    assert outcome("cpu/few-for-ranks", policy, cpu=server(allowed=allowed), gpus=gpus(), launch=launch) == expected


def test_a_job_without_gpus_has_no_proxies():
    assert outcome("cpu/few-for-ranks", EIGHT, cpu=server(allowed=8), gpus=Gpus(gpus=())) == "skipped"


@pytest.mark.parametrize(
    ("allowed", "found", "launch", "expected"),
    [
        ("0-31", gpus(), None, "failed"),
        ("96-100", gpus(), None, "failed"),
        ("0-127", gpus(), None, "passed"),
        ("0-15,32-47", gpus(), None, "passed"),
        (
            "0-31",
            Gpus(gpus=gpus().gpus[:4], on_bus=gpus().on_bus),
            None,
            "skipped",
        ),  # a job with the GPUs of that socket
        ("0-31", gpus(), Launch(local_rank=2), "skipped"),  # a rank that is bound to its GPU
        ("0-7", gpus(1), None, "skipped"),
        (None, gpus(), None, "skipped"),
    ],
)
def test_processors_of_one_node_for_gpus_of_both(allowed, found, launch, expected):
    cpu = server(allowed_list=allowed, unread={"allowed_list": Reason("unreadable", "-")})
    assert outcome("cpu/bound-to-one-numa-node", cpu=cpu, gpus=found, launch=launch) == expected


def test_a_numa_node_without_a_number_is_named_as_well():
    cpu = server(numa_cpus={"10": "0-31", "2": "0-31", "%s": "0-31"}, allowed_list="0-31")
    (verdict,) = judged("cpu/bound-to-one-numa-node", cpu=cpu, gpus=gpus())
    assert "on NUMA nodes 2 and %s and 10" in verdict.measured


def test_the_binding_in_words():
    (verdict,) = judged(
        "cpu/bound-to-one-numa-node", cpu=server(allowed=32, allowed_list="0-31"), gpus=gpus(), os=Os(container="")
    )
    assert verdict.measured == "processors 0-31 on NUMA node 0, GPUs on NUMA nodes 0 and 1"
    assert "--numa-binding=node" in remedy_text(verdict)


@pytest.mark.parametrize(
    ("check", "cpu", "remedy"),
    [
        ("numa-balancing-on", server(numa_balancing=1), "kernel.numa_balancing=0"),
        ("governor-powersave", server(governors=("performance", "powersave")), "cpupower frequency-set -g performance"),
        ("throttled", server(throttled=1000), "ipmitool"),
    ],
)
def test_what_slows_a_node_down_is_a_note(check, cpu, remedy):
    (verdict,) = judged(f"cpu/{check}", cpu=cpu, gpus=gpus(), os=Os(uptime_s=DAY, container=""))
    assert (verdict.outcome.value, verdict.severity.value) == ("failed", "note")
    assert remedy in remedy_text(verdict)


def test_throttling_is_told_by_the_day():
    for uptime_s, expected in ((100 * DAY, "passed"), (60.0, "failed")):
        assert outcome("cpu/throttled", cpu=server(throttled=1000), gpus=gpus(), os=Os(uptime_s=uptime_s)) == expected


def test_memory_errors_are_told_by_controller():
    bad = MemoryController(
        "mc2", None, None, {"corrected": Reason("unreadable", "-"), "uncorrected": Reason("absent", "-")}
    )
    cpu = server(memory_controllers=(MemoryController("mc0", 24, 0), MemoryController("mc1", 25, 1), bad))
    for check, severity in (("memory-uncorrected", "error"), ("memory-corrected", "note")):
        verdicts = judged(f"cpu/{check}", cpu=cpu)
        assert [v.outcome.value for v in verdicts] == ["passed", "failed", "skipped"]
        assert verdicts[1].severity.value == severity
    assert verdicts[1].measured == "25 corrected memory errors of mc1 since boot"
    assert "ioncomputer" in verdicts[1].source

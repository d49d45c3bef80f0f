"""Threads, libraries, proxies and the scheduler's numbers."""

import pytest
from ddp_doctor.facts import UNLIMITED, Cpu, Cuda, Env, Launch, Library, Network, Torch, Variable
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()), nccl_conf_files=())


FREE = float(UNLIMITED)


@pytest.mark.parametrize(
    ("value", "policy", "cpu", "found"),
    [
        ("64", Policy(nproc_per_node=8), Cpu(threads=128, allowed=128, quota=FREE), "failed"),
        ("16", Policy(nproc_per_node=8), Cpu(threads=128, allowed=128, quota=FREE), "passed"),
        ("16", Policy(nproc_per_node=8), Cpu(threads=128, allowed=16, quota=FREE), "passed"),
        ("4", Policy(nproc_per_node=8), Cpu(threads=128, allowed=128, quota=16.0), "failed"),
        ("64", Policy(), Cpu(threads=128, allowed=128, quota=FREE), "skipped"),
        ("4,2", Policy(nproc_per_node=64), Cpu(threads=4, allowed=4, quota=FREE), "skipped"),
    ],
)
def test_more_threads_than_processors(value, policy, cpu, found):
    verdicts = judged("env/more-threads-than-processors", policy, env=env(OMP_NUM_THREADS=value), cpu=cpu)
    assert [v.outcome.value for v in verdicts] == [found]


def test_the_processors_are_shared():
    (verdict,) = judged(
        "env/more-threads-than-processors",
        Policy(nproc_per_node=8),
        env=env(OMP_NUM_THREADS="64"),
        cpu=Cpu(threads=100, quota=FREE),
    )
    assert "export OMP_NUM_THREADS 12" in remedy_text(verdict)


def cuda(*names, path=("/opt/lib",), where="ld-library-path"):
    libraries = tuple(Library(f"/opt/lib/lib{name}.so.2", name, "2.18.3", where) for name in names)
    return Cuda(library_path=path, shadowing=libraries)


@pytest.mark.parametrize(
    ("facts", "torch", "found"),
    [
        (cuda("nccl"), Torch(flavour="official-wheel"), "failed"),
        (cuda("cudnn"), None, "failed"),
        (cuda("cudart", "cuda"), None, "passed"),
        (cuda("nccl"), Torch(flavour="ngc"), "skipped"),
        (cuda("nccl"), Torch(flavour="official-wheel", imported=True), "skipped"),
        (cuda(path=()), None, "skipped"),
    ],
)
def test_libraries_that_come_first(facts, torch, found):
    assert outcome("env/library-path-first", cuda=facts, torch=torch) == found


def network(**proxies):
    return Network(proxies=tuple(Variable(name, value) for name, value in proxies.items()))


PROXY = "http://proxy:3128"
ETCD = Launch(rendezvous="etcd-v2", master_addr="10.0.0.5")


@pytest.mark.parametrize(
    ("facts", "launch", "found"),
    [
        (network(http_proxy=PROXY), ETCD, "failed"),
        (network(HTTP_PROXY=PROXY, no_proxy="localhost,10.1.0.0/16"), ETCD, "failed"),
        (network(http_proxy=PROXY, NO_PROXY="10.0.0.0/8"), ETCD, "passed"),
        (network(http_proxy=PROXY, no_proxy="localhost, 10.0.0.5"), ETCD, "passed"),
        (network(http_proxy=PROXY, no_proxy=".cluster"), Launch(rendezvous="etcd", master_addr="n1.cluster"), "passed"),
        (network(http_proxy=PROXY), Launch(rendezvous="c10d", master_addr="10.0.0.5"), "skipped"),
        (network(no_proxy="*"), ETCD, "skipped"),
    ],
)
def test_a_proxy_matters_where_http_is_spoken(facts, launch, found):
    assert outcome("env/proxy-before-rendezvous", network=facts, launch=launch) == found


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (env(PET_NNODES="2", SLURM_NNODES="4"), "failed"),
        (env(PET_NNODES="2", SLURM_NNODES="4", SLURM_STEP_NUM_NODES="2"), "passed"),
        (env(PET_NNODES="1:4", SLURM_NNODES="3"), "passed"),
        (env(PET_NNODES="2"), "skipped"),
        (env(NNODES="2", SLURM_NNODES="4"), "skipped"),
    ],
)
def test_torchrun_and_slurm_count_the_nodes(facts, found):
    assert outcome("env/nodes-differ-from-slurm", env=facts) == found

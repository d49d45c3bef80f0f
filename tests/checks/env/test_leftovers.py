"""Settings left over from looking for a fault, and the machines on which they are right."""

import pytest
from ddp_doctor.facts import Env, Gpu, Gpus, Os, Rdma, RdmaDevice, RdmaPort, Variable
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()), nccl_conf_files=())


def failed(check, facts, nnodes=2, **more):
    verdicts = judged(f"env/{check}", Policy(nnodes=nnodes), env=facts, **more)
    return [v.subject for v in verdicts if v.outcome.value == "failed"]


def gpus(*names):
    return Gpus(source="nvml", gpus=tuple(Gpu(n, name) for n, name in enumerate(names)))


def rdma(layer, state="ACTIVE"):
    port = RdmaPort(1, state, link_layer=layer, rate_gbit_s=400.0)
    return Rdma(devices=(RdmaDevice("mlx5_0", ports=(port,)),), device_nodes=())


H100 = "NVIDIA H100 80GB HBM3"
RTX4090 = "NVIDIA GeForce RTX 4090"
OFF = env(NCCL_P2P_DISABLE="1")


@pytest.mark.parametrize(
    ("facts", "here", "warning", "note"),
    [
        (OFF, gpus(H100, H100), ["NCCL_P2P_DISABLE"], []),
        (OFF, None, ["NCCL_P2P_DISABLE"], []),
        (OFF, gpus("NVIDIA B900"), [], []),
        (OFF, gpus("NVIDIA B900", "NVIDIA B900"), ["NCCL_P2P_DISABLE"], []),
        (OFF, gpus(RTX4090, RTX4090), [], ["NCCL_P2P_DISABLE"]),
        (OFF, gpus(RTX4090), [], []),
        (env(NCCL_P2P_LEVEL="LOC"), gpus(H100, H100), ["NCCL_P2P_LEVEL"], []),
        (env(NCCL_P2P_LEVEL="0"), gpus(H100, H100), ["NCCL_P2P_LEVEL"], []),
        (env(NCCL_P2P_LEVEL="NVL"), gpus(H100, H100), [], []),
        (env(NCCL_P2P_DISABLE="0"), gpus(H100, H100), [], []),
        (env(NCCL_P2P_DISABLE="true"), gpus(H100, H100), [], []),
        (env(), gpus(H100, H100), [], []),
    ],
)
def test_peer_to_peer_switched_off(facts, here, warning, note):
    assert failed("p2p-disabled", facts, gpus=here) == warning
    assert failed("p2p-disabled-without-nvlink", facts, gpus=here) == note


def test_what_was_left_over_is_taken_away_where_it_is_set():
    both = Env(
        (Variable("NCCL_P2P_DISABLE", "1"), Variable("NCCL_P2P_DISABLE", "1", "/etc/nccl.conf:2")),
        nccl_conf_files=("/etc/nccl.conf",),
    )
    (verdict,) = judged("env/p2p-disabled", env=both)
    assert "unset NCCL_P2P_DISABLE" in remedy_text(verdict)
    assert "Take NCCL_P2P_DISABLE out of /etc/nccl.conf, line 2." in remedy_text(verdict)
    assert {step.who for step in verdict.fixes[0].steps} == {"user", "root"}


@pytest.mark.parametrize(
    ("value", "here", "found"),
    [
        ("1", None, ["NCCL_SHM_DISABLE"]),
        ("0", None, []),
        ("1", gpus(H100), []),
        ("1", gpus(H100, H100), ["NCCL_SHM_DISABLE"]),
    ],
)
def test_shared_memory_switched_off(value, here, found):
    assert failed("shared-memory-disabled", env(NCCL_SHM_DISABLE=value), gpus=here) == found


@pytest.mark.parametrize(
    ("os", "how"),
    [(Os(container="docker"), "--shm-size"), (Os(container=""), "remount"), (Os(container="kubernetes"), "emptyDir")],
)
def test_a_larger_shared_memory_where_it_is_made(os, how):
    (verdict,) = judged("env/shared-memory-disabled", env=env(NCCL_SHM_DISABLE="1"), os=os)
    assert how in remedy_text(verdict)


@pytest.mark.parametrize(
    ("facts", "here", "warning", "note"),
    [
        (env(NCCL_IB_DISABLE="1"), rdma("InfiniBand"), ["NCCL_IB_DISABLE"], []),
        (env(NCCL_NET="Socket"), rdma("InfiniBand"), ["NCCL_NET"], []),
        (env(NCCL_IB_DISABLE="1"), rdma("Ethernet"), [], ["NCCL_IB_DISABLE"]),
        (env(NCCL_IB_DISABLE="1"), None, [], ["NCCL_IB_DISABLE"]),
        (env(NCCL_IB_DISABLE="1"), rdma("InfiniBand", "DOWN"), [], []),
        (env(NCCL_IB_DISABLE="1"), Rdma(devices=()), [], []),
        (env(NCCL_IB_DISABLE="0", NCCL_NET="IB"), rdma("InfiniBand"), [], []),
        (env(NCCL_IB_DISABLE="0"), None, [], []),
    ],
)
def test_rdma_switched_off(facts, here, warning, note):
    assert failed("infiniband-disabled", facts, rdma=here) == warning
    assert failed("rdma-disabled", facts, rdma=here) == note
    assert failed("infiniband-disabled", facts, nnodes=1, rdma=here) == []


FAULTY = {
    "debug-output-left-on": [env(NCCL_DEBUG="INFO"), env(NCCL_DEBUG="trace")],
    "slow-debugging-left-on": [
        env(TORCH_DISTRIBUTED_DEBUG="DETAIL"),
        env(TORCH_NCCL_BLOCKING_WAIT="1"),
        env(TORCH_NCCL_DESYNC_DEBUG="true"),
    ],
    "cuda-launch-blocking-left-on": [env(CUDA_LAUNCH_BLOCKING="1")],
    "hangs-go-unnoticed": [env(TORCH_NCCL_ASYNC_ERROR_HANDLING="0"), env(TORCH_NCCL_ENABLE_MONITORING="false")],
    "algorithm-forced": [env(NCCL_ALGO="Ring"), env(NCCL_PROTO="simple")],
    "ll128-forced": [env(NCCL_PROTO="LL128"), env(NCCL_PROTO="allreduce:Simple,ll128")],
}
SOUND = {
    "debug-output-left-on": [env(NCCL_DEBUG="WARN"), env(NCCL_DEBUG="VERSION")],
    "slow-debugging-left-on": [env(TORCH_DISTRIBUTED_DEBUG="INFO", TORCH_NCCL_BLOCKING_WAIT="0")],
    "cuda-launch-blocking-left-on": [env(CUDA_LAUNCH_BLOCKING="0")],
    "hangs-go-unnoticed": [env(TORCH_NCCL_ASYNC_ERROR_HANDLING="1", TORCH_NCCL_ENABLE_MONITORING="1")],
    "algorithm-forced": [env(NCCL_ALGO="Ring", NCCL_FASTRAK_IFNAME="eth1")],
    "ll128-forced": [env(NCCL_PROTO="^LL128"), env(NCCL_PROTO="Simple,LL"), env(NCCL_PROTO="allreduce:^LL128")],
}


@pytest.mark.parametrize(("check", "facts"), [(c, f) for c, found in FAULTY.items() for f in found])
def test_debugging_left_on(check, facts):
    assert len(failed(check, facts)) == 1


@pytest.mark.parametrize(("check", "facts"), [(c, f) for c, found in SOUND.items() for f in found])
def test_what_may_stay(check, facts):
    assert outcome(f"env/{check}", env=facts) == "passed"

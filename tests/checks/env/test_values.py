"""Values of variables: read as NCCL and torch read them."""

import pytest
from ddp_doctor.facts import Env, Torch, Variable
from ddp_doctor.policy import Policy
from judging import judged, remedy_text

OLD = Torch(version="1.12.1", nccl="2.10.3")
NEW = Torch(version="2.14.1", nccl="2.30.7")


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()), nccl_conf_files=())


def failed(check, facts, nnodes=2, **more):
    verdicts = judged(f"env/{check}", Policy(nnodes=nnodes), env=facts, **more)
    return [v.subject for v in verdicts if v.outcome.value == "failed"]


FAULTY = {
    "value-not-a-number": [
        env(NCCL_IB_DISABLE="true"),
        env(NCCL_P2P_DISABLE="yes"),
        env(NCCL_BUFFSIZE="4M"),
        env(NCCL_IB_TC="010"),
        env(NCCL_NTHREADS="08"),
    ],
    "value-not-allowed": [
        env(NCCL_DEBUG="ERROR"),
        env(NCCL_DEBUG="1"),
        env(NCCL_P2P_LEVEL="nvl"),
        env(NCCL_NET_GDR_LEVEL="PCI"),
        env(NCCL_SOCKET_FAMILY="ipv4"),
        env(NCCL_CROSS_NIC="3"),
        env(NCCL_IB_TC="256"),
        env(NCCL_SOCKET_NTHREADS="32"),
        env(CUDA_DEVICE_ORDER="PCI"),
    ],
    "torch-refuses-value": [
        env(TORCH_NCCL_BLOCKING_WAIT="on"),
        env(TORCH_DISTRIBUTED_DEBUG="DEBUG"),
        env(TORCH_NCCL_ASYNC_ERROR_HANDLING="true"),
        env(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="10min"),
    ],
    "algorithm-unknown": [
        env(NCCL_ALGO="Rings"),
        env(NCCL_PROTO="Simple,LL256"),
        env(NCCL_ALGO="allreduce:Ring;broadcast:^Treee"),
    ],
    "ib-timer-out-of-range": [
        env(NCCL_IB_TIMEOUT="1800"),
        env(NCCL_IB_TIMEOUT="-1"),
        env(NCCL_IB_TIMEOUT="32"),
        env(NCCL_IB_RETRY_CNT="13"),
    ],
    "ib-wait-too-long": [env(NCCL_IB_TIMEOUT="25"), env(NCCL_IB_TIMEOUT="0")],
    "networks-contradict": [env(NCCL_NET="IB", NCCL_IB_DISABLE="1")],
    "minimum-above-maximum": [env(NCCL_MIN_CTAS="16", NCCL_MAX_CTAS="8")],
    "old-and-new-name-differ": [env(NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ASYNC_ERROR_HANDLING="1")],
    "setting-without-effect": [
        env(NCCL_DEBUG_SUBSYS="NET"),
        env(NCCL_DEBUG_SUBSYS="NET", NCCL_DEBUG="WARN"),
        env(NCCL_IB_HCA="mlx5_0", NCCL_IB_DISABLE="1"),
        env(NCCL_IB_HCA="mlx5_0", NCCL_NET="Socket"),
        env(NCCL_P2P_LEVEL="NVL", NCCL_P2P_DISABLE="1"),
    ],
    "not-for-this-job": [env(NCCL_COMM_ID="10.0.0.1:2000"), env(TP_SOCKET_IFNAME="eth0")],
}

SOUND = {
    "value-not-a-number": [
        env(NCCL_IB_DISABLE="1", NCCL_BUFFSIZE="0x400000", NCCL_IB_TC=" 106 ", NCCL_NTHREADS="", NCCL_CROSS_NIC="+2"),
        env(NCCL_IB_SL="00", NCCL_IB_GID_INDEX="-1"),
        env(NCCL_SET_THREAD_NAME="TRUE"),
        env(NCCL_BUFFSIZE="$SIZE"),
        env(MASTER_PORT="abc"),
    ],
    "value-not-allowed": [
        env(NCCL_DEBUG="info", NCCL_P2P_LEVEL="NVL", NCCL_NET_GDR_LEVEL="PIX", NCCL_SOCKET_FAMILY="AF_INET"),
        env(NCCL_P2P_LEVEL="3", NCCL_CUMEM_ENABLE="-2", NCCL_IB_GID_INDEX="3", NCCL_SOCKET_NTHREADS="-2"),
        env(NCCL_NET="AWS Libfabric", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_CROSS_NIC=""),
        env(NCCL_IB_TIMEOUT="1800"),
        env(NCCL_CROSS_NIC="two"),
    ],
    "torch-refuses-value": [
        env(TORCH_NCCL_BLOCKING_WAIT="Yes", TORCH_DISTRIBUTED_DEBUG="detail", TORCH_NCCL_ASYNC_ERROR_HANDLING="3"),
        env(NCCL_BLOCKING_WAIT="1"),
    ],
    "algorithm-unknown": [
        env(NCCL_ALGO="ring,tree", NCCL_PROTO="^LL128"),
        env(NCCL_ALGO="allreduce:tree,ring;broadcast:ring"),
    ],
    "ib-timer-out-of-range": [env(NCCL_IB_TIMEOUT="22", NCCL_IB_RETRY_CNT="7")],
    "ib-wait-too-long": [
        env(NCCL_IB_TIMEOUT="22"),
        env(NCCL_IB_TIMEOUT="24"),
        env(NCCL_IB_TIMEOUT="25", NCCL_IB_RETRY_CNT="3"),
    ],
    "networks-contradict": [env(NCCL_NET="IB", NCCL_IB_DISABLE="0"), env(NCCL_NET="Socket", NCCL_IB_DISABLE="1")],
    "minimum-above-maximum": [env(NCCL_MIN_CTAS="8", NCCL_MAX_CTAS="8")],
    "old-and-new-name-differ": [env(NCCL_ASYNC_ERROR_HANDLING="1", TORCH_NCCL_ASYNC_ERROR_HANDLING="1")],
    "setting-without-effect": [
        env(NCCL_DEBUG_SUBSYS="NET", NCCL_DEBUG="Info"),
        env(NCCL_IB_HCA="mlx5_0", NCCL_IB_DISABLE="0", NCCL_NET="ib"),
        env(NCCL_P2P_LEVEL="NVL", NCCL_P2P_DISABLE="0"),
    ],
    "not-for-this-job": [env(NCCL_DEBUG="WARN")],
}


@pytest.mark.parametrize(("check", "facts"), [(c, f) for c, found in FAULTY.items() for f in found])
def test_a_faulty_value_is_found(check, facts):
    assert len(failed(check, facts, torch=NEW)) == 1


@pytest.mark.parametrize(("check", "facts"), [(c, f) for c, found in SOUND.items() for f in found])
def test_a_sound_value_is_left_alone(check, facts):
    assert failed(check, facts, torch=NEW) == []


def test_what_a_word_is_read_as():
    (verdict,) = judged("env/value-not-a-number", env=env(NCCL_IB_DISABLE="true"))
    assert verdict.measured == "NCCL_IB_DISABLE=true, which NCCL reads as 0"
    assert "export NCCL_IB_DISABLE 1" in remedy_text(verdict)


def test_an_exponent_in_seconds():
    (verdict,) = judged("env/ib-timer-out-of-range", Policy(nnodes=2), env=env(NCCL_IB_TIMEOUT="1800"))
    assert verdict.measured == "NCCL_IB_TIMEOUT=1800; the adapter gets 8, which means 0.00105 s"
    (verdict,) = judged("env/ib-wait-too-long", Policy(nnodes=2), env=env(NCCL_IB_TIMEOUT="22"))
    assert verdict.measured.startswith("NCCL_IB_TIMEOUT=22: 2 min (7 times 17.2 s")


@pytest.mark.parametrize(("torch", "found"), [(OLD, []), (NEW, ["NCCL_ALGO"])])
def test_an_unknown_algorithm_ends_newer_releases_only(torch, found):
    assert failed("algorithm-unknown", env(NCCL_ALGO="Rings"), torch=torch) == found


def test_the_time_limit_of_an_older_torch_is_longer():
    assert failed("ib-wait-too-long", env(NCCL_IB_TIMEOUT="25"), torch=OLD) == []


def test_every_line_of_a_file_is_judged_and_named():
    facts = Env((Variable("NCCL_DEBUG", "ERROR", "a.sh:1"), Variable("NCCL_DEBUG", "FATAL", "a.sh:9")))
    found = judged("env/value-not-allowed", env=facts)
    assert [v.measured for v in found] == ["NCCL_DEBUG=ERROR (a.sh:1)", "NCCL_DEBUG=FATAL (a.sh:9)"]


def test_of_nccl_s_own_files_the_value_in_force_is_judged():
    variables = (Variable("NCCL_DEBUG", "WARN"), Variable("NCCL_DEBUG", "ERROR", "/etc/nccl.conf:1"))
    assert failed("value-not-allowed", Env(variables, nccl_conf_files=("/etc/nccl.conf",))) == []

"""Names of variables, on faulty environments and on those of healthy nodes."""

import pytest
from ddp_doctor.facts import Env, Rdma, RdmaDevice, Reason, Torch, Variable
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

OLD, MIDDLE, NEW = (
    Torch(version="1.12.1+cu113", nccl="2.10.3"),
    Torch(version="2.4.1+cu121", nccl="2.20.5"),
    Torch(version="2.14.1+cu130", nccl="2.30.7"),
)
ROCM = Torch(version="2.5.1+rocm6.2", nccl="2.20.5", hip="6.2")


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()), nccl_conf_files=())


def failed(check, facts, **more):
    """Subjects of the failed verdicts, by name: the message of each."""
    verdicts = judged(f"env/{check}", env=facts, **more)
    return {v.subject: v.message for v in verdicts if v.outcome.value == "failed"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_SOCKET_IFNMAE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_DEUBG", "NCCL_DEBUG"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_NETS", "NCCL_NET"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDELING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("GLOO_SOCKET_IFNAM", "GLOO_SOCKET_IFNAME"),
        ("NCCL_NET_GDR_LEVL", "NCCL_NET_GDR_LEVEL"),
    ],
)
def test_a_misspelt_name_is_found(name, meant):
    facts = Env((Variable(name, "x", "job.sh:3"),))
    (verdict,) = judged("env/misspelt-name", env=facts)
    assert (verdict.outcome.value, verdict.subject, verdict.expected) == ("failed", name, meant)
    assert verdict.measured == f"{name}=x (job.sh:3)"
    assert f"Take {name} out of job.sh, line 3." in remedy_text(verdict)
    assert f"export {meant} x" in remedy_text(verdict)
    assert failed("unknown-name", facts) == {}


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "NCCL_VERSION",
        "NCCL_VER",
        "NCCL_ROOT",
        "NCCL_LIB_DIR",
        "RCCL_DEBUG",
        "HCCL_DEBUG",
        "CCL_DEBUG",
        "NCCL_FASTRAK_IFNAME",
        "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS",
        "RANKS",
        "WORLDSIZE",
        "DEBUG",
        "MASTER_PORT",
    ],
)
def test_a_right_name_or_that_of_another_is_not_misspelt(name):
    assert failed("misspelt-name", env(**{name: "1"})) == {}


@pytest.mark.parametrize(
    ("facts", "torch", "found"),
    [
        (env(NCCL_MAGIC="1"), None, {"NCCL_MAGIC"}),
        (env(TORCH_NCCL_SOMETHING_NEW="1"), None, {"TORCH_NCCL_SOMETHING_NEW"}),
        (env(NCCL_MAGIC="1"), ROCM, set()),
        (env(NCCL_FASTRAK_MAGIC="1", NCCL_GPUDIRECTTCPX_MAGIC="1", NCCL_NET_MAGIC="1", RCCL_MAGIC="1"), None, set()),
        (env(NCCL_VERSION="2.21.5-1", NCCL_HOME="/usr", OMP_MAGIC="1"), None, set()),
        (env(NCCL_MAGIC="${MAGIC}"), None, set()),
    ],
)
def test_an_unknown_name_is_noted(facts, torch, found):
    assert set(failed("unknown-name", facts, torch=torch)) == found


def test_an_unknown_name_comes_with_the_most_similar_one():
    assert (
        "NCCL_SOCKET_IFNAME" in failed("unknown-name", env(NCCL_SOCKET_IFNAMES_LIST="eth0"))["NCCL_SOCKET_IFNAMES_LIST"]
    )


@pytest.mark.parametrize("name", ["NCCL_SOCKET_TIMEOUT", "NCCL_TIMEOUT", "NCCL_IB_ENABLE", "NCCL_MAX_CHANNELS"])
def test_a_name_of_the_guides_that_never_existed(name):
    (verdict,) = judged("env/name-nobody-reads", env=env(**{name: "1"}))
    assert (verdict.severity.value, verdict.subject) == ("warning", name)
    assert failed("misspelt-name", env(**{name: "1"})) == failed("unknown-name", env(**{name: "1"})) == {}


@pytest.mark.parametrize(
    ("check", "facts", "torch", "found"),
    [
        ("name-newer-than-library", env(NCCL_NVLS_ENABLE="1"), OLD, {"NCCL_NVLS_ENABLE"}),
        ("name-newer-than-library", env(NCCL_NVLS_ENABLE="1"), MIDDLE, set()),
        ("name-newer-than-library", env(NCCL_NVLS_ENABLE="1"), None, set()),
        ("name-newer-than-library", env(TORCH_NCCL_BLOCKING_WAIT="1"), OLD, {"TORCH_NCCL_BLOCKING_WAIT"}),
        ("name-newer-than-library", env(NCCL_IB_TIMEOUT="22", NCCL_DEBUG="WARN"), OLD, set()),
        ("name-newer-than-library", env(NCCL_IB_QPS_PER_CONNECTION="2"), OLD, set()),
        ("name-newer-than-library", env(NCCL_MNNVL_ENABLE="1"), ROCM, set()),
        ("name-no-longer-read", env(NCCL_TREE_THRESHOLD="0"), MIDDLE, {"NCCL_TREE_THRESHOLD"}),
        ("name-no-longer-read", env(NCCL_TREE_THRESHOLD="0"), None, {"NCCL_TREE_THRESHOLD"}),
        ("name-no-longer-read", env(NCCL_MNNVL="1"), MIDDLE, set()),
        ("name-no-longer-read", env(NCCL_MNNVL="1"), NEW, {"NCCL_MNNVL"}),
        ("name-no-longer-read", env(NCCL_CREATE_THREAD_CONTEXT="1"), MIDDLE, set()),
        ("name-deprecated", env(NCCL_ASYNC_ERROR_HANDLING="1"), OLD, set()),
        ("name-deprecated", env(NCCL_ASYNC_ERROR_HANDLING="1"), MIDDLE, {"NCCL_ASYNC_ERROR_HANDLING"}),
        ("name-deprecated", env(NCCL_MIN_NCHANNELS="8"), MIDDLE, {"NCCL_MIN_NCHANNELS"}),
        ("name-deprecated", env(NCCL_MIN_NCHANNELS="8"), OLD, set()),
        ("name-deprecated", env(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"), NEW, set()),
        ("name-deprecated", env(TORCH_NCCL_ASYNC_ERROR_HANDLING="1"), NEW, set()),
    ],
)
def test_names_by_the_version_that_is_installed(check, facts, torch, found):
    assert set(failed(check, facts, torch=torch)) == found


EFA = Rdma(devices=(RdmaDevice("rdmap16s27", driver="efa"),))


@pytest.mark.parametrize(
    ("provider", "ignored", "hides"),
    [
        ("mlx", "failed", "failed"),
        ("efa", "passed", "passed"),
        ("tcp", "passed", "failed"),
        ("^efa", "passed", "failed"),
    ],
)
def test_libfabric_s_provider(provider, ignored, hides):
    facts = env(FI_PROVIDER=provider)
    assert outcome("env/libfabric-provider-ignored", env=facts) == ignored
    assert outcome("env/libfabric-provider-hides-efa", Policy(nnodes=2), env=facts, rdma=EFA) == hides
    no_efa = Rdma(devices=(RdmaDevice("mlx5_0", driver="mlx5_core"),))
    assert outcome("env/libfabric-provider-hides-efa", Policy(nnodes=2), env=facts, rdma=no_efa) == "skipped"


def test_what_could_not_be_read_is_skipped_with_the_reason():
    facts = Env(unread={"variables": Reason("no-rights", "/proc/7/environ")})
    (verdict,) = judged("env/misspelt-name", env=facts)
    assert (verdict.outcome.value, verdict.reason.text) == ("skipped", "/proc/7/environ")

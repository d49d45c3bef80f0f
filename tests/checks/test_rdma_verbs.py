"""Checks of libibverbs, its providers and NCCL's plug-ins."""

import pytest
from ddp_doctor import nccl
from ddp_doctor.facts import DeviceNode, Env, Gpu, Gpus, Os, Rdma, RdmaDevice, RdmaPort, Reason, Variable
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

TWO = Policy(nnodes=2)
LIBRARY = "/usr/lib64/libibverbs.so.1"
DENIED = "mlx5_0: cannot be opened: Operation not permitted"
TIMED_OUT, CRASHED, UNREAD = (Reason(kind, f"mlx5_0: {kind}") for kind in ("timed-out", "crashed", "unreadable"))


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()))


def hca(name, verbs, uverbs="uverbs0", state="ACTIVE", reason=None):
    port = RdmaPort(1, state, "LinkUp", 400.0, link_layer="InfiniBand")
    return RdmaDevice(name, (port,), uverbs=uverbs, verbs=verbs, unread={"verbs": reason} if reason else {})


def rdma(*devices, library=LIBRARY, nodes=("uverbs0", "uverbs1"), **more):
    found = tuple(DeviceNode(f"/dev/infiniband/{node}", True, True) for node in nodes)
    return Rdma(devices, device_nodes=found, verbs_library=library, **more)


@pytest.mark.parametrize(
    ("facts", "variables", "found"),
    [
        (rdma(hca("mlx5_0", "opens")), env(), "passed"),
        (rdma(hca("mlx5_0", None), library=""), env(), "failed"),
        (rdma(hca("mlx5_0", None), library=None), env(), "skipped"),
        (rdma(hca("mlx5_0", None), library=""), env(NCCL_IB_DISABLE="1"), "skipped"),
        (rdma(hca("mlx5_0", None), library=""), env(NCCL_NET="Socket"), "skipped"),
        (rdma(hca("mlx5_0", None, state="DOWN"), library=""), env(), "skipped"),
        (rdma(hca("mlx5_0", None), library="", nodes=()), env(), "skipped"),
        (rdma(library=None), env(), "skipped"),
    ],
)
def test_the_library_must_be_there_for_devices_that_are_used(facts, variables, found):
    assert outcome("rdma/verbs-library-missing", TWO, rdma=facts, env=variables) == found


def test_without_the_library_nccl_takes_tcp():
    facts = rdma(hca("mlx5_0", None), library="")
    assert nccl.carrier(facts, env()).why == "libibverbs.so.1 is not on the library path"
    (verdict,) = judged(
        "rdma/verbs-library-missing", TWO, rdma=facts, env=env(), os=Os(id="ubuntu", container="docker")
    )
    assert "apt-get install -y libibverbs1 ibverbs-providers" in remedy_text(verdict)
    assert "image" in remedy_text(verdict)


BARE, POD = Os(id="centos", container=""), Os(container="kubernetes")
GOOD = hca("mlx5_1", "opens", "uverbs1")


@pytest.mark.parametrize(
    ("devices", "os", "found"),
    [
        ((hca("mlx5_0", "opens"), GOOD), BARE, "passed"),
        ((hca("mlx5_0", "not listed"), GOOD), BARE, "failed passed"),
        ((hca("mlx5_0", "not listed"), GOOD), POD, "failed passed"),
        ((hca("mlx5_0", DENIED), GOOD), BARE, "failed passed"),
        ((hca("mlx5_0", DENIED), GOOD), POD, "passed"),
        ((hca("mlx5_0", DENIED),), POD, "failed"),
        ((hca("mlx5_0", None, reason=TIMED_OUT), GOOD), BARE, "failed passed"),
        ((hca("mlx5_0", None, reason=CRASHED),), BARE, "failed"),
        ((hca("mlx5_0", None, reason=UNREAD),), BARE, "skipped"),
        ((hca("mlx5_0", "not listed", state="DOWN"),), BARE, "skipped"),
        ((hca("mlx5_0", "not listed", uverbs="uverbs7"),), BARE, "skipped"),
    ],
)
def test_devices_must_open(devices, os, found):
    assert outcome("rdma/device-cannot-be-opened", TWO, rdma=rdma(*devices), env=env(), os=os) == found


@pytest.mark.parametrize(
    ("device", "os", "said"),
    [
        (hca("mlx5_0", "not listed"), BARE, "dnf install -y libibverbs rdma-core"),
        (hca("mlx5_0", DENIED), POD, "--device=/dev/infiniband"),
        (hca("mlx5_0", None, reason=Reason("timed-out", "mlx5_0: no answer in 2 s")), BARE, "reboot"),
    ],
)
def test_what_is_done_for_a_device_that_does_not_open(device, os, said):
    facts = rdma(device, providers=("rxe",))
    (verdict,) = judged("rdma/device-cannot-be-opened", TWO, rdma=facts, env=env(), os=os)
    assert said in remedy_text(verdict)
    assert verdict.measured.endswith("providers: rxe")


@pytest.mark.parametrize(
    ("libraries", "found"),
    [
        ((LIBRARY,), "passed"),
        ((LIBRARY, "/usr/local/lib/libibverbs.so.1"), "failed"),
        ((), "skipped"),
        (None, "skipped"),
    ],
)
def test_two_stacks(libraries, found):
    assert outcome("rdma/two-verbs-stacks", TWO, rdma=rdma(GOOD, verbs_libraries=libraries)) == found


EFA = RdmaDevice("rdmap0s6", (RdmaPort(1, "ACTIVE", link_layer="Unspecified"),), driver="efa")
PLUGIN = ("/opt/amazon/ofi-nccl/lib/libnccl-net.so",)


@pytest.mark.parametrize(
    ("device", "plugins", "variables", "gpus", "found"),
    [
        (EFA, (), env(), None, "failed"),
        (EFA, PLUGIN, env(), None, "passed"),
        (EFA, None, env(), None, "skipped"),
        (EFA, (), env(NCCL_NET="Socket"), None, "skipped"),
        (EFA, (), env(), Gpus(gpus=()), "skipped"),
        (EFA, (), env(), Gpus(gpus=(Gpu(0),)), "failed"),
        (GOOD, (), env(), None, "skipped"),
    ],
)
def test_efa_needs_its_plugin(device, plugins, variables, gpus, found):
    facts = {"rdma": rdma(device, plugins=plugins), "env": variables, **({"gpus": gpus} if gpus else {})}
    assert outcome("rdma/efa-without-plugin", TWO, **facts) == found

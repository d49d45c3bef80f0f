"""GIDs of RoCE ports: which one NCCL takes, and whether it leads anywhere."""

import pytest
from ddp_doctor.facts import DeviceNode, Env, Gid, Rdma, RdmaDevice, RdmaPort, Reason, Torch, Variable
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

OLD, NEW = Torch(nccl="2.20.5"), Torch(nccl="2.27.5")
LINK = "fe80:0000:0000:0000:0ac0:ebff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
IPV6 = "fd00:0000:0000:0000:0000:0000:0000:0005"
ONE, TWO_ = "IB/RoCE v1", "RoCE v2"
USUAL = (Gid(0, LINK, ONE), Gid(1, LINK, TWO_), Gid(2, IPV4, ONE), Gid(3, IPV4, TWO_))
BARE = (Gid(0, LINK, ONE), Gid(1, LINK, TWO_))
NO_IPV4 = (*BARE, Gid(2, IPV6, ONE), Gid(3, IPV6, TWO_))


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()), nccl_conf_files=())


def rdma(gids, layer="Ethernet", **more):
    port = RdmaPort(1, "ACTIVE", link_layer=layer, rate_gbit_s=100.0, gids=gids, **more)
    return Rdma(
        devices=(RdmaDevice("mlx5_0", ports=(port,), uverbs="uverbs0"),),
        device_nodes=(DeviceNode("/dev/infiniband/uverbs0", True, True),),
    )


@pytest.mark.parametrize(
    ("gids", "facts", "torch", "empty", "routable"),
    [
        (USUAL, env(), NEW, "skipped", "passed"),
        (USUAL, env(), None, "skipped", "passed"),
        (USUAL, env(), OLD, "skipped", "failed"),
        (USUAL, env(NCCL_IB_GID_INDEX="3"), OLD, "passed", "passed"),
        (USUAL, env(NCCL_IB_GID_INDEX="3"), NEW, "passed", "passed"),
        (USUAL, env(NCCL_IB_GID_INDEX="0"), NEW, "passed", "failed"),
        (USUAL, env(NCCL_IB_GID_INDEX="2"), NEW, "passed", "failed"),
        (USUAL, env(NCCL_IB_GID_INDEX="5"), NEW, "failed", "skipped"),
        (USUAL, env(NCCL_IB_GID_INDEX="-1"), NEW, "skipped", "passed"),
        (BARE, env(), NEW, "skipped", "failed"),
        (NO_IPV4, env(), NEW, "skipped", "failed"),
        (NO_IPV4, env(NCCL_IB_ADDR_FAMILY="AF_INET6"), NEW, "skipped", "passed"),
        (USUAL, env(NCCL_IB_DISABLE="1"), NEW, "skipped", "skipped"),
        ((), env(), NEW, "skipped", "failed"),
    ],
)
def test_the_gid_that_nccl_takes(gids, facts, torch, empty, routable):
    more = {"env": facts, "rdma": rdma(gids), "torch": torch}
    assert outcome("env/gid-index-empty", Policy(nnodes=2), **more) == empty
    assert outcome("env/gid-not-routable", Policy(nnodes=2), **more) == routable


def test_infiniband_needs_no_such_gid():
    facts = rdma((Gid(0, LINK),), layer="InfiniBand")
    assert outcome("env/gid-not-routable", Policy(nnodes=2), env=env(), rdma=facts) == "skipped"


def test_a_table_that_could_not_be_read_is_no_pass():
    facts = rdma(None, unread={"gids": Reason("no-rights", "gids/0: permission denied")})
    (verdict,) = judged("env/gid-not-routable", Policy(nnodes=2), env=env(), rdma=facts)
    assert (verdict.outcome.value, verdict.subject, verdict.reason.kind) == ("skipped", "mlx5_0:1", "no-rights")


@pytest.mark.parametrize(
    ("gids", "facts", "torch", "said", "not_said"),
    [
        (USUAL, env(), OLD, "export NCCL_IB_GID_INDEX 3", "unset"),
        (USUAL, env(NCCL_IB_GID_INDEX="0"), NEW, "unset NCCL_IB_GID_INDEX", "AF_INET6"),
        (BARE, env(), NEW, "IPv4 address", "export NCCL_IB_GID_INDEX"),
    ],
)
def test_the_way_out(gids, facts, torch, said, not_said):
    (verdict,) = judged("env/gid-not-routable", Policy(nnodes=2), env=facts, rdma=rdma(gids), torch=torch)
    assert said in remedy_text(verdict)
    assert not_said not in remedy_text(verdict)

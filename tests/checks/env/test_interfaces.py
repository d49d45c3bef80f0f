"""Lists of interfaces and adapters by their text, with and without the node that they are for."""

import pytest
from ddp_doctor.facts import Address, Env, Interface, Network, Rdma, RdmaDevice, Variable
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()), nccl_conf_files=())


def failed(check, facts, nnodes=2, **more):
    verdicts = judged(f"env/{check}", Policy(nnodes=nnodes), env=facts, **more)
    return [v.subject for v in verdicts if v.outcome.value == "failed"]


def network(*names):
    return Network(
        interfaces=tuple(Interface(n, i, addresses=(Address("10.0.0.5", 24, "ipv4"),)) for i, n in enumerate(names))
    )


def rdma(*names):
    return Rdma(devices=tuple(map(RdmaDevice, names)))


IFNAME, HCA, GLOO = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME"


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        (IFNAME, "^docker,^lo", "^docker,lo"),
        (IFNAME, "=eth0,=eth1", "=eth0,eth1"),
        (IFNAME, "eth0, eth1", "eth0,eth1"),
        (IFNAME, "=^eth0", "=eth0"),
        (HCA, "^=mlx5_8,^=mlx5_14", "^=mlx5_8,mlx5_14"),
        (HCA, "mlx5_0;mlx5_1", "mlx5_0,mlx5_1"),
    ],
)
def test_a_mark_in_the_middle(name, value, meant):
    (verdict,) = judged("env/list-mark-misplaced", env=env(**{name: value}))
    assert (verdict.outcome.value, verdict.subject) == ("failed", name)
    assert f"export {name} {meant}" in remedy_text(verdict)


@pytest.mark.parametrize(
    "value", ["eth0", "^docker,lo", "=eth0,eno1", "^=docker0", "bond0.2093,ib0:1", "mlx5_0:1,mlx5_1:1"]
)
def test_marks_where_they_belong(value):
    assert failed("list-mark-misplaced", env(**{IFNAME: value, HCA: value})) == []


@pytest.mark.parametrize(
    ("value", "found"), [("^lo", 1), ("=eth0", 1), ("eth0, eth1", 1), ("eth0,eth1", 0), ("ib0", 0)]
)
def test_gloo_takes_exact_names(value, found):
    assert len(failed("gloo-list-has-pattern", env(**{GLOO: value}))) == found


@pytest.mark.parametrize(
    ("facts", "here", "found"),
    [
        (env(**{IFNAME: "mlx5_0"}), {}, [IFNAME]),
        (env(**{GLOO: "mlx5_0"}), {}, [GLOO]),
        (env(**{HCA: "=ib0"}), {}, [HCA]),
        (env(**{HCA: "hsn0"}), {}, [HCA]),
        (env(**{HCA: "eth0"}), {"rdma": rdma("eth0_rdma")}, []),
        (env(**{IFNAME: "rdma"}), {}, []),
        (env(**{IFNAME: "^mlx5_0"}), {}, [IFNAME]),
        (env(**{IFNAME: "ib0,eth0,=enp1s0", HCA: "mlx5,ibp12s0,rocep1s0f0,bnxt_re0", GLOO: "bond0"}), {}, []),
    ],
)
def test_a_name_of_the_wrong_kind(facts, here, found):
    assert failed("name-of-wrong-kind", facts, **here) == found


@pytest.mark.parametrize(
    ("value", "here", "found"),
    [
        ("^docker0", None, [IFNAME]),
        ("^docker,^lo", None, [IFNAME]),
        ("^docker,lo", None, []),
        ("^lo,docker", None, []),
        ("eth0", None, []),
        ("^docker0", network("lo", "eth0"), []),
    ],
)
def test_an_exclusion_that_admits_loopback(value, here, found):
    assert failed("exclusion-admits-loopback", env(**{IFNAME: value}), network=here) == found


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (env(**{IFNAME: "eth1"}), [IFNAME]),
        (env(**{IFNAME: "=eth1"}), []),
        (env(**{IFNAME: "eth"}), []),
        (env(**{IFNAME: "eth1,eth10"}), []),
        (env(**{HCA: "mlx5_1"}), [HCA]),
        (env(**{HCA: "mlx5_1:1,mlx5_0"}), [HCA]),
        (env(**{HCA: "=mlx5_1"}), []),
        (env(**{HCA: "mlx5"}), []),
    ],
)
def test_a_prefix_that_takes_more(facts, found):
    here = {"network": network("eth0", "eth1", "eth10"), "rdma": rdma("mlx5_0", "mlx5_1", "mlx5_10")}
    assert failed("prefix-takes-more", facts, **here) == found
    assert failed("prefix-takes-more", facts, network=network("eth1"), rdma=rdma("mlx5_1")) == []


def test_a_prefix_is_made_exact():
    (verdict,) = judged(
        "env/prefix-takes-more", Policy(nnodes=2), env=env(**{HCA: "^mlx5_1"}), rdma=rdma("mlx5_1", "mlx5_10")
    )
    assert verdict.measured == "NCCL_IB_HCA=^mlx5_1 takes mlx5_10 too"
    assert "export NCCL_IB_HCA ^=mlx5_1" in remedy_text(verdict)


@pytest.mark.parametrize(
    ("nccl", "gloo", "found"),
    [
        ("ib0", "eth0", "failed"),
        ("=eth0", "eth0", "passed"),
        ("eth", "eth1", "passed"),
        ("^docker,lo", "eth0", "passed"),
        ("^docker,lo", "docker0", "failed"),
        ("eth0", "", "skipped"),
    ],
)
def test_nccl_and_gloo_on_different_interfaces(nccl, gloo, found):
    assert outcome("env/interfaces-differ", env=env(**{IFNAME: nccl, GLOO: gloo})) == found

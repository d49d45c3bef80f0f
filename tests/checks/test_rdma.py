"""Checks of InfiniBand and RoCE: what NCCL would use, and what is down by design."""

from dataclasses import replace

import pytest
from ddp_doctor.facts import (
    Address,
    DeviceNode,
    Env,
    Interface,
    Network,
    Os,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Variable,
)
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

TWO = Policy(nnodes=2)


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()))


def device(name, *states, layer="InfiniBand", phys="Polling", uverbs="uverbs0", pci=None):
    ports = (RdmaPort(n, s, "LinkUp" if s in ("ACTIVE", "INIT") else phys, 200.0, link_layer=layer)
             for n, s in enumerate(states, 1))  # fmt: skip
    return RdmaDevice(name, ports=tuple(ports), uverbs=uverbs, pci=pci)


def rdma(*devices, nodes=("uverbs0",), writable=True, **more):
    found = tuple(DeviceNode(f"/dev/infiniband/{node}", True, writable) for node in nodes)
    return Rdma(devices, device_nodes=found, **more)


EIGHT = tuple(device(f"mlx5_{n}", "ACTIVE") for n in range(8))
STORAGE = (device("mlx5_8", "DOWN"), device("mlx5_9", "DOWN", layer="Ethernet"))
DUAL = (device("mlx5_0", "ACTIVE", "DOWN"), device("mlx5_1", "ACTIVE", "DOWN"))
EFA = device("efa_0", "DOWN", layer="Unspecified")


@pytest.mark.parametrize(
    ("name", "facts", "variables", "ignored", "failed"),
    [
        ("8 HCAs and storage ports", rdma(*EIGHT, *STORAGE), env(), (), []),
        ("dual-port cards", rdma(*DUAL), env(NCCL_IB_HCA="mlx5_0,mlx5_1"), (), []),
        ("a prefix names no port", rdma(*EIGHT, *STORAGE), env(NCCL_IB_HCA="mlx5"), (), []),
        ("exclusion names no port", rdma(*EIGHT, *STORAGE), env(NCCL_IB_HCA="^mlx5_8"), (), []),
        ("no RDMA", rdma(), env(), (), []),
        ("EFA is a plug-in's", rdma(EFA), env(), (), []),
        ("switched off", rdma(device("mlx5_0", "DOWN")), env(NCCL_IB_DISABLE="1"), (), []),
        ("ignored by the policy", rdma(device("mlx5_0", "DOWN")), env(), ("mlx5_0",), []),
        ("ignored port", rdma(device("mlx5_0", "DOWN")), env(NCCL_IB_HCA="mlx5_0"), ("mlx5_0:1",), []),
        ("named HCA down", rdma(*EIGHT, *STORAGE), env(NCCL_IB_HCA="=mlx5_0,mlx5_8"), (), ["mlx5_8"]),
        ("a prefix does not help", rdma(device("mlx5_1", "DOWN"), device("mlx5_10", "ACTIVE")),
         env(NCCL_IB_HCA="mlx5_1"), (), ["mlx5_1"]),
        ("named port down", rdma(*DUAL), env(NCCL_IB_HCA="mlx5_0:2,mlx5_1:1"), (), ["mlx5_0:2"]),
        ("all down", rdma(device("mlx5_0", "DOWN"), device("mlx5_1", "DOWN")), env(), (), [""]),
        ("no subnet manager", rdma(device("mlx5_0", "INIT")), env(), (), [""]),
    ],
)  # fmt: skip
def test_only_ports_that_nccl_should_use_must_be_active(name, facts, variables, ignored, failed):
    verdicts = judged("rdma/port-down", Policy(nnodes=2, ignore_hcas=ignored), rdma=facts, env=variables)
    assert [v.subject for v in verdicts if v.outcome.value != "passed" and v.outcome.value != "skipped"] == failed


@pytest.mark.parametrize(
    ("port", "message", "said"),
    [
        (device("mlx5_0", "INIT"), "no subnet manager", "opensm"),
        (device("mlx5_0", "DOWN"), "cable, transceiver or switch port", "ibstat"),
        (device("mlx5_0", "DOWN", phys="Disabled"), "switched off", "mlxlink"),
    ],
)
def test_why_a_port_is_down_is_said(port, message, said):
    (verdict,) = judged("rdma/port-down", TWO, rdma=rdma(port), env=env(), os=Os(id="centos"))
    assert message in verdict.message
    assert said in remedy_text(verdict)
    assert "dnf install" in remedy_text(verdict)


def test_a_subnet_manager_that_is_there_is_not_called_missing():
    port = RdmaPort(1, "INIT", "LinkUp", 200.0, link_layer="InfiniBand", sm_lid=1)
    (verdict,) = judged(
        "rdma/port-down", TWO, rdma=rdma(RdmaDevice("mlx5_0", ports=(port,))), env=env(), os=Os(id="centos")
    )
    assert verdict.message == "the link is up but the subnet manager has not made the port active"
    assert "leaves this port out" in remedy_text(verdict)


def test_a_roce_port_is_as_down_as_its_interface():
    port = RdmaPort(1, "DOWN", "Disabled", 40.0, link_layer="Ethernet", netdev="ens1np0")
    (verdict,) = judged("rdma/port-down", TWO, rdma=rdma(RdmaDevice("mlx5_0", ports=(port,))), env=env())
    assert verdict.message == "the network interface ens1np0 of the RoCE port is down or has no link"
    assert "ip link set ens1np0 up" in remedy_text(verdict)
    assert "ibstat" not in remedy_text(verdict)


def boards(*states, layer="InfiniBand"):
    """Adapters of one board, with these states of their first ports."""
    return tuple(replace(device(f"mlx5_{n}", s, layer=layer), board_id="MT_0000000838") for n, s in enumerate(states))


SEVEN_OF_EIGHT = boards("ACTIVE", "ACTIVE", "ACTIVE", "DOWN", "ACTIVE", "ACTIVE", "ACTIVE", "ACTIVE")


@pytest.mark.parametrize(
    ("name", "devices", "variables", "ignored", "failed"),
    [
        ("one of eight", SEVEN_OF_EIGHT, env(), (), ["mlx5_3:1"]),
        ("one of eight, another left out", SEVEN_OF_EIGHT, env(NCCL_IB_HCA="^mlx5_7"), (), ["mlx5_3:1"]),
        ("named without it", SEVEN_OF_EIGHT, env(NCCL_IB_HCA="=mlx5_0"), (), []),
        ("ignored", SEVEN_OF_EIGHT, env(), ("mlx5_3",), []),
        ("all are up", boards("ACTIVE", "ACTIVE"), env(), (), []),
        ("half of them", boards("ACTIVE", "DOWN"), env(), (), []),
        ("RoCE", boards("ACTIVE", "ACTIVE", "DOWN", layer="Ethernet"), env(), (), []),
        ("second ports", tuple(replace(d, board_id="MT_1") for d in DUAL), env(), (), []),
        ("other boards", (*EIGHT, *STORAGE), env(), (), []),
    ],
)
def test_a_port_that_is_down_beside_its_like_is_noted(name, devices, variables, ignored, failed):
    policy = Policy(nnodes=2, ignore_hcas=ignored)
    verdicts = judged("rdma/port-down-beside-its-like", policy, rdma=rdma(*devices), env=variables)
    assert [v.subject for v in verdicts if v.outcome.value == "failed"] == failed
    assert {v.severity.value for v in verdicts} == {"note"}
    assert all("mlxlink" in remedy_text(v) for v in verdicts if v.fixes)


def netdev(*ips, name="ens1np0", **more):
    return Interface(name, addresses=tuple(Address(ip, 24, "ipv4") for ip in ips), running=False, up=True, **more)


IDLE = RdmaDevice("mlx5_0", ports=(RdmaPort(1, "DOWN", "Polling", 25.0, link_layer="Ethernet", netdev="ens1np0"),))
BOND = netdev("10.0.0.5", name="bond0", lower=("ens1np0",))


@pytest.mark.parametrize(
    ("devices", "interfaces", "variables", "policy", "found"),
    [
        ((IDLE,), (netdev(),), env(), TWO, "skipped"),
        ((IDLE,), (netdev(),), env(NCCL_IB_HCA="^mlx5_9"), TWO, "skipped"),
        ((IDLE, device("mlx5_1", "ACTIVE")), (netdev(),), env(), TWO, "passed"),
        ((IDLE, device("mlx5_1", "DOWN")), (netdev(),), env(), TWO, "failed"),
        ((IDLE,), (netdev("10.0.0.5"),), env(), TWO, "failed"),
        ((IDLE,), (netdev(master="bond0"), BOND), env(), TWO, "failed"),
        ((IDLE,), (), env(), TWO, "failed"),
        ((IDLE,), (Interface("ens1np0"),), env(), TWO, "failed"),
        ((IDLE,), (netdev(),), env(NCCL_IB_HCA="mlx5_0"), TWO, "failed"),
        ((IDLE,), (netdev(),), env(), Policy(nnodes=2, require=("rdma",)), "failed"),
    ],
)
def test_an_ethernet_card_that_nobody_uses_is_not_judged(devices, interfaces, variables, policy, found):
    facts = {"rdma": rdma(*devices), "env": variables, "network": Network(interfaces=interfaces)}
    assert outcome("rdma/port-down", policy, **facts) == found


ROCE = device("mlx5_bond_0", "ACTIVE", layer="Ethernet")
VPI = RdmaDevice(
    "mlx5_0", (*device("", "ACTIVE").ports, *device("", "DOWN", "ACTIVE", layer="Ethernet").ports[1:]), uverbs="uverbs0"
)


@pytest.mark.parametrize(
    ("devices", "variables", "ignored", "found"),
    [
        ((*EIGHT, ROCE), env(), (), "InfiniBand: 8 ports; RoCE: mlx5_bond_0:1"),
        ((VPI,), env(), (), "InfiniBand: mlx5_0:1; RoCE: mlx5_0:2"),
        ((*EIGHT, ROCE), env(NCCL_IB_HCA="=mlx5_0,mlx5_1"), (), ""),
        ((*EIGHT, ROCE), env(NCCL_IB_HCA="^mlx5_bond"), (), ""),
        ((*EIGHT, ROCE), env(), ("mlx5_bond_0",), ""),
        ((*EIGHT, *STORAGE), env(), (), ""),
        ((ROCE,), env(), (), ""),
        ((*EIGHT, EFA), env(), (), ""),
        ((), env(), (), ""),
        ((*EIGHT, ROCE), env(NCCL_IB_DISABLE="1"), (), ""),
    ],
)
def test_link_layers_that_cannot_talk_to_each_other_are_noted(devices, variables, ignored, found):
    policy = Policy(nnodes=2, ignore_hcas=ignored)
    verdicts = judged("rdma/link-layers-mixed", policy, rdma=rdma(*devices), env=variables)
    assert "".join(v.measured for v in verdicts if v.outcome.value == "failed") == found


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ((*EIGHT[:2], ROCE), "export NCCL_IB_HCA =mlx5_0,mlx5_1\n"),
        (
            (device("mlx5_0", "ACTIVE"), ROCE, device("mlx5_1", "ACTIVE", layer="Ethernet")),
            "NCCL_IB_HCA =mlx5_bond_0,mlx5_1\n",
        ),
        ((VPI,), "NCCL_IB_HCA =mlx5_0:1\n"),
    ],
)
def test_the_ports_with_most_bandwidth_are_proposed_by_their_exact_names(devices, said):
    (verdict,) = judged("rdma/link-layers-mixed", TWO, rdma=rdma(*devices), env=env())
    assert (verdict.severity.value, said in remedy_text(verdict)) == ("note", True)


def test_a_state_that_could_not_be_read_is_no_pass_and_hides_nothing():
    blind = RdmaDevice("mlx5_0", unread={"ports": Reason("unreadable", "sysfs")})
    down = device("mlx5_1", "DOWN")
    variables = env(NCCL_IB_HCA="=mlx5_0,mlx5_1")
    found = {v.subject: v.outcome.value for v in judged("rdma/port-down", TWO, rdma=rdma(blind, down), env=variables)}
    assert found == {"mlx5_0": "skipped", "mlx5_1": "failed"}
    assert outcome("rdma/port-down", TWO, rdma=rdma(device("mlx5_0", None)), env=env()) == "skipped"


@pytest.mark.parametrize(
    ("facts", "value", "nothing", "absent"),
    [
        (rdma(*EIGHT), "mlx5_0", "passed", "passed"),
        (rdma(*EIGHT), "=mlx5_0,mlx5_9", "passed", "failed"),
        (rdma(*EIGHT), "mlx4", "failed", "skipped"),
        (rdma(*EIGHT), "mlx5_0;mlx5_1", "failed", "skipped"),
        (rdma(*EIGHT), "^mlx5", "failed", "skipped"),
        (rdma(), "mlx5_0", "failed", "skipped"),
        (rdma(), "", "skipped", "skipped"),
    ],
)
def test_a_list_of_hcas_must_find_what_it_names(facts, value, nothing, absent):
    assert outcome("rdma/hca-list-matches-nothing", TWO, rdma=facts, env=env(NCCL_IB_HCA=value)) == nothing
    assert outcome("rdma/named-hca-absent", TWO, rdma=facts, env=env(NCCL_IB_HCA=value)) == absent


def test_a_list_that_finds_nothing_is_replaced_by_adapters_that_are_active():
    facts = rdma(device("mlx5_2", "ACTIVE"), device("mlx5_3", "DOWN"))
    (verdict,) = judged("rdma/hca-list-matches-nothing", TWO, rdma=facts, env=env(NCCL_IB_HCA="mlx4"))
    assert verdict.measured == "NCCL_IB_HCA=mlx4 takes none of mlx5_2, mlx5_3"
    assert "export NCCL_IB_HCA =mlx5_2\n" in remedy_text(verdict) + "\n"


SHARE = (device("mlx5_0", "ACTIVE"), device("mlx5_1", "ACTIVE", uverbs="uverbs1"))
NO_VERBS = RdmaDevice(
    "mlx5_0", ports=device("x", "ACTIVE").ports, unread={"uverbs": Reason("absent", "no infiniband_verbs")}
)
BARE, CONTAINER, POD = Os(id="ubuntu", container=""), Os(container="docker"), Os(container="kubernetes")


@pytest.mark.parametrize(
    ("facts", "os", "found"),
    [
        (rdma(*SHARE, nodes=("uverbs0", "uverbs1")), BARE, "passed"),
        (rdma(*SHARE), BARE, "failed passed"),
        (rdma(*SHARE), POD, "passed"),
        (rdma(*SHARE, nodes=()), POD, "failed"),
        (rdma(NO_VERBS), BARE, "failed"),
        (rdma(*EIGHT, writable=False), BARE, "failed"),
        (rdma(EFA, nodes=()), BARE, "skipped"),
        (rdma(*STORAGE, nodes=()), BARE, "skipped"),
        (Rdma(devices=EIGHT, unread={"device_nodes": Reason("no-rights", "/dev")}), BARE, "skipped"),
        (rdma(), BARE, "skipped"),
    ],
)
def test_the_devices_of_user_space_must_be_there(facts, os, found):
    assert outcome("rdma/user-devices-missing", TWO, rdma=facts, env=env(), os=os) == found


@pytest.mark.parametrize(
    ("facts", "os", "measured", "said"),
    [
        (rdma(NO_VERBS), BARE, "no uverbs device: ib_uverbs is not loaded", "modprobe ib_uverbs"),
        (rdma(*EIGHT[:1], writable=False), BARE, "/dev/infiniband/uverbs0 is not writable", "udevadm"),
        (
            rdma(*EIGHT[:1], nodes=()),
            CONTAINER,
            "/dev/infiniband/uverbs0 does not exist here",
            "--device=/dev/infiniband",
        ),
        (rdma(*EIGHT[:1], nodes=()), POD, "/dev/infiniband/uverbs0 does not exist here", "resources.limits"),
    ],
)
def test_the_devices_are_given_where_they_are_missing(facts, os, measured, said):
    (verdict,) = judged("rdma/user-devices-missing", TWO, rdma=facts, env=env(), os=os)
    assert verdict.measured == measured
    assert said in remedy_text(verdict)


@pytest.mark.parametrize(
    ("devices", "hcas", "found"),
    [
        ((), (), "skipped"),
        ((), ("0000:07:00.0 15b3:1017 mlx5_core",), "failed"),
        ((), ("0000:07:00.0 15b3:1017 -",), "failed"),
        ((device("mlx5_0", "ACTIVE", pci="0000:07:00.0"),), ("0000:07:00.0 15b3:1017 mlx5_core",), "passed"),
        ((device("mlx5_bond_0", "ACTIVE", pci="0000:07:00.0"),),
         ("0000:07:00.0 15b3:1017 mlx5_core", "0000:07:00.1 15b3:1017 mlx5_core"), "passed"),
        ((device("mlx5_0", "ACTIVE", pci="0000:07:00.0"),),
         ("0000:07:00.0 15b3:1017 mlx5_core", "0000:08:00.0 15b3:1017 -"), "failed passed"),
    ],
)  # fmt: skip
def test_an_adapter_without_a_device_is_noted(devices, hcas, found):
    facts = rdma(*devices, pci_hcas=hcas)
    assert outcome("rdma/hca-without-device", TWO, rdma=facts) == found
    assert {v.severity.value for v in judged("rdma/hca-without-device", TWO, rdma=facts)} == {"note"}


@pytest.mark.parametrize(
    ("facts", "require", "found"),
    [
        (rdma(*EIGHT, *STORAGE), ("rdma",), "passed"),
        (rdma(), ("rdma",), "failed"),
        (rdma(*STORAGE), ("rdma",), "failed"),
        (rdma(device("mlx5_0", None)), ("rdma",), "failed"),
        (Rdma(unread={"devices": Reason("unreadable", "/sys")}), ("rdma",), "failed"),
        (rdma(), (), "skipped"),
    ],
)
def test_required_rdma_must_be_usable(facts, require, found):
    policy = Policy(require=require)
    assert outcome("rdma/required-rdma-missing", policy, rdma=facts, env=env(), os=BARE) == found


def test_what_was_looked_at_is_said_where_required_rdma_is_missing():
    facts = rdma(pci_hcas=("0000:07:00.0 15b3:101b -",))
    (verdict,) = judged("rdma/required-rdma-missing", Policy(require=("rdma",)), rdma=facts, env=env())
    assert verdict.measured == "/sys/class/infiniband is empty; on the PCI bus: 0000:07:00.0 15b3:101b -"

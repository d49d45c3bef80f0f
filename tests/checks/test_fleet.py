"""Checks between nodes: each fires on the odd node, shows both values, and stays quiet on equal nodes."""

from dataclasses import replace

import pytest
from ddp_doctor.cluster.fleet import GoodDay
from ddp_doctor.facts import (
    Address,
    Clock,
    Disk,
    Env,
    Gid,
    GpuFabric,
    Launch,
    Limit,
    LoadedLibrary,
    Memory,
    Mount,
    NodeFacts,
    Reason,
    Resolved,
    Variable,
)
from ddp_doctor.policy import Policy
from fleets import GIB, failing, judged_fleet, node
from judging import own_checks, remedy_text

CHECKS = [id for id in own_checks().checks if id.startswith("fleet/")]
ALIKE = [node(number) for number in range(1, 6)]


def in_torch(facts, **changes):
    return replace(facts, torch=replace(facts.torch, **changes))


def in_os(facts, **changes):
    return replace(facts, os=replace(facts.os, **changes))


def in_gpus(facts, **changes):
    return replace(facts, gpus=replace(facts.gpus, gpus=tuple(replace(gpu, **changes) for gpu in facts.gpus.gpus)))


def in_eth(facts, **changes):
    eth, *others = facts.network.interfaces
    return replace(facts, network=replace(facts.network, interfaces=(replace(eth, **changes), *others)))


def in_port(facts, **changes):
    first, *others = facts.rdma.devices
    port = replace(first.ports[0], **changes)
    return replace(facts, rdma=replace(facts.rdma, devices=(replace(first, ports=(port,)), *others)))


def with_variables(facts, **variables):
    more = tuple(Variable(name, value) for name, value in variables.items())
    return replace(facts, env=Env((*facts.env.variables, *more)))


def roce(facts, version="v2", gid="0000:0000:0000:0000:0000:ffff:0a00:0001", **flow):
    rows = (Gid(0, gid, f"RoCE {version}" if version == "v2" else "IB/RoCE v1", "eth0"),)
    return in_port(facts, link_layer="Ethernet", gids=rows, flow=flow or None)


ODD = {
    "nccl-differs": (lambda f: in_torch(f, nccl_loaded=LoadedLibrary("/y", "2.21.4")), "NCCL 2.21.4", "NCCL 2.21.5"),
    "torch-differs": (lambda f: in_torch(f, version="2.5.1+cu124"), "torch 2.5", "torch 2.6"),
    "torch-build-differs": (lambda f: in_torch(f, version="2.6.1+cu124"), "torch 2.6.1+cu124", "torch 2.6.0+cu124"),
    "cuda-differs": (lambda f: in_torch(f, cuda="11.8"), "built for CUDA 11.8", "built for CUDA 12.4"),
    "python-differs": (lambda f: in_torch(f, python_version="3.11.1"), "Python 3.11", "Python 3.10"),
    "driver-differs": (lambda f: replace(f, gpus=replace(f.gpus, driver="535.1")), "driver 535.1", "driver 570.133.20"),
    "kernel-differs": (lambda f: in_os(f, kernel="5.15.0-1"), "kernel 5.15.0-1", "kernel 5.15.0-140"),
    "system-differs": (lambda f: in_os(f, pretty="Debian 12"), "Debian 12", "Ubuntu 22.04.5 LTS"),
    "machine-differs": (lambda f: in_os(f, machine="aarch64"), "aarch64", "x86_64"),
    "tool-differs": (lambda f: replace(f, how=replace(f.how, tool_version="0.2.0")), "ddp-doctor 0.2.0", "ddp-doctor 0.1.0"),
    "variable-must-agree": (lambda f: with_variables(f, NCCL_ALGO="Ring"), "NCCL_ALGO=Ring", "NCCL_ALGO (not set)"),
    "variable-differs": (lambda f: with_variables(f, TORCH_NCCL_BLOCKING_WAIT="1"), "WAIT=1", "WAIT (not set)"),
    "limits-differ": (lambda f: replace(f, limits=replace(f.limits, nofile=Limit(256, 256))), "256", "1024"),
    "working-directory-differs": (
        lambda f: replace(f, disk=Disk((Mount("cwd", "/data/run", "/", "ext4", False),))), "ext4 mounted at /", "nfs4 mounted at /data",
    ),
    "gpu-models-differ": (lambda f: in_gpus(f, name="NVIDIA A100"), "NVIDIA A100", "NVIDIA H100 80GB HBM3"),
    "gpu-count-differs": (lambda f: replace(f, gpus=replace(f.gpus, gpus=f.gpus.gpus[:7])), "7 GPUs", "8 GPUs"),
    "ecc-differs": (lambda f: in_gpus(f, ecc_mode=False), "ECC off", "ECC on"),
    "mig-differs": (lambda f: in_gpus(f, mig="enabled"), "MIG enabled", "MIG disabled"),
    "persistence-differs": (lambda f: in_gpus(f, persistence=False), "persistence off", "persistence on"),
    "power-limit-differs": (lambda f: in_gpus(f, power_limit_w=500.0), "500 W", "700 W"),
    "less-memory": (lambda f: replace(f, memory=Memory(total_bytes=1890 * GIB)), "1890 GiB", "about 2015 GiB"),
    "processors-differ": (lambda f: replace(f, cpu=replace(f.cpu, threads=112)), "112 x Xeon", "224 x Xeon"),
    "clocks-apart": (lambda f: replace(f, time=Clock("chronyd", True, -7.0)), "7 s", "less than 5 s"),
    "clock-breaks-rendezvous": (lambda f: replace(f, time=Clock("chronyd", True, 40.0)), "40 s", "less than 10 s"),
    "transport-differs": (lambda f: replace(f, rdma=replace(f.rdma, devices=())), "by TCP sockets", "by RDMA"),
    "address-family-differs": (lambda f: in_eth(f, addresses=(Address("fd00::9", 64, "ipv6", "global"),)), "IPv6", "IPv4"),
    "mtu-differs": (lambda f: in_eth(f, mtu=1500), "MTU 1500 bytes", "MTU 9000 bytes"),
    "link-speed-differs": (lambda f: in_eth(f, speed_mbit_s=1000), "1 Gb/s", "25 Gb/s"),
    "interface-names-differ": (lambda f: in_eth(f, name="eno1"), "eno1", "eth0"),
    "master-resolves-differently": (
        lambda f: replace(f, network=replace(f.network, master_name=Resolved("gpu01", ("10.9.9.9",)))), "gpu01 is 10.9.9.9", "gpu01 is 10.0.0.1",
    ),
    "hcas-differ": (lambda f: in_port(f, state="DOWN"), "1: mlx5_1:1", "2: mlx5_0:1, mlx5_1:1"),
    "rdma-rate-differs": (lambda f: in_port(f, rate_gbit_s=200.0), "200 Gb/s", "400 Gb/s"),
    "rdma-mtu-differs": (lambda f: in_port(f, active_mtu_bytes=2048), "active MTU 2048 bytes", "active MTU 4096 bytes"),
    "subnet-manager-differs": (lambda f: in_port(f, sm_lid=7), "at LID 7", "at LID 1"),
    "firmware-differs": (
        lambda f: replace(f, rdma=replace(f.rdma, devices=tuple(replace(d, firmware="28.1") for d in f.rdma.devices))), "firmware 28.1", "firmware 28.39.1002",
    ),
}  # fmt: skip
"""Check -> what makes a node odd, and what is shown of it and of the others."""


@pytest.mark.parametrize("name", sorted(ODD))
def test_the_odd_node_is_named_with_both_values(name):
    change, measured, expected = ODD[name]
    found = judged_fleet(f"fleet/{name}", [*ALIKE, change(node(6))])
    failed = {node for node, verdict in found.items() if verdict.outcome.value == "failed"}
    assert failed == {"gpu06"}
    assert measured in found["gpu06"].measured
    assert expected in found["gpu06"].expected
    assert found["gpu02"].outcome.value == "passed"


@pytest.mark.parametrize("id", CHECKS)
def test_nodes_that_are_alike_are_quiet(id):
    assert failing(id, ALIKE) == []
    assert {v.outcome.value for v in judged_fleet(id, ALIKE).values()} <= {"passed", "skipped"}


@pytest.mark.parametrize("id", CHECKS)
def test_nodes_of_which_nothing_is_known_are_skipped_by_name(id):
    found = judged_fleet(id, [NodeFacts("a", reasons={"os": Reason("timed-out", "reading os")}), NodeFacts("b")])
    assert {v.outcome.value for v in found.values()} == {"skipped"}
    assert set(found) in ({"a", "b"}, {""})


def test_every_check_has_a_faulty_case():
    elsewhere = {"same-address", "same-host-name", "same-machine-twice", "gid-kinds-differ", "flow-control-differs", "outside-nvlink-domain"}  # fmt: skip
    assert {id.split("/")[1] for id in CHECKS} == set(ODD) | elsewhere


def test_a_node_without_the_value_is_skipped_with_its_reason():
    lost = replace(node(6), torch=None, reasons={"torch": Reason("crashed", "import torch: SIGSEGV")})
    found = judged_fleet("fleet/nccl-differs", [*ALIKE, lost])
    assert found["gpu06"].outcome.value == "skipped"
    assert found["gpu06"].reason == Reason("crashed", "import torch: SIGSEGV")
    assert found["gpu01"].outcome.value == "passed"


def test_two_nodes_that_differ_are_both_shown_and_none_is_blamed():
    found = judged_fleet("fleet/nccl-differs", [node(1), ODD["nccl-differs"][0](node(2))])
    assert list(found) == [""]
    assert found[""].outcome.value == "failed"
    assert found[""].severity.value == "error"
    assert found[""].measured == "gpu01: NCCL 2.21.5; gpu02: NCCL 2.21.4"


def test_kinds_of_nodes_that_differ_on_purpose_are_compared_among_themselves():
    others = [in_gpus(node(n), name="NVIDIA A100") for n in (7, 8, 9)]
    policy = Policy(partitions={"a100": ("gpu[07-09]",)})
    assert failing("fleet/gpu-models-differ", [*ALIKE, *others]) == ["gpu07", "gpu08", "gpu09"]
    assert failing("fleet/gpu-models-differ", [*ALIKE, *others], policy=policy) == []
    odd = in_gpus(node(8), name="NVIDIA A10")
    mixed = [*ALIKE, others[0], odd, others[2]]
    assert failing("fleet/gpu-models-differ", mixed, policy=policy) == ["gpu08"]


def test_against_a_good_day_the_majority_may_be_wrong():
    good = GoodDay({"nccl_version": {"gpu01": "2.21.5", "gpu02": "2.20.0"}}, "as in the baseline of 2026-11-30")
    found = judged_fleet("fleet/nccl-differs", ALIKE, good=good)
    assert [name for name, v in found.items() if v.outcome.value == "failed"] == ["gpu02"]
    assert found["gpu02"].expected == "NCCL 2.20.0, as in the baseline of 2026-11-30"
    assert found["gpu05"].outcome.value == "passed"
    alone = judged_fleet("fleet/nccl-differs", [node(2)], good=good)
    assert alone["gpu02"].outcome.value == "failed"


# ---------------------------------------------------------------- what looks ill and is not


def test_variables_that_differ_by_design_are_no_fault():
    nodes = [
        with_variables(
            node(n),
            LOCAL_RANK="0",
            NCCL_SOCKET_IFNAME=f"eth{n}",
            GLOO_SOCKET_IFNAME=f"eth{n}",
            NCCL_DEBUG_FILE=f"/tmp/{n}",
            TORCH_NCCL_DEBUG_INFO_TEMP_FILE=f"/tmp/{n}",
            SLURM_NODEID=str(n),
        )
        for n in range(1, 5)
    ]
    assert failing("fleet/variable-differs", nodes) == failing("fleet/variable-must-agree", nodes) == []


def test_docker0_repeats_everywhere_and_images_share_what_they_share():
    assert failing("fleet/same-address", ALIKE) == []
    clash = in_eth(node(6), addresses=(Address("10.0.0.2", 16, "ipv4", "global"),))
    found = judged_fleet("fleet/same-address", [*ALIKE, clash])
    assert {n for n, v in found.items() if v.outcome.value == "failed"} == {"gpu02", "gpu06"}
    assert found["gpu06"].measured == "10.0.0.2 on gpu02, gpu06"
    assert "ip neighbour show 10.0.0.2" in remedy_text(found["gpu06"])
    assert found["gpu01"].outcome.value == "passed"


def test_pods_of_one_machine_share_its_boot_and_network():
    pods = [replace(in_os(node(1), hostname=f"pod-{n}"), name=f"pod-{n}") for n in (1, 2)]
    assert failing("fleet/same-address", pods) == failing("fleet/same-machine-twice", pods) == []


def test_two_machines_of_one_name_and_one_machine_under_two():
    twins = [in_os(node(n), hostname="localhost") for n in (1, 2)]
    assert failing("fleet/same-host-name", twins) == ["gpu01", "gpu02"]
    assert failing("fleet/same-machine-twice", twins) == []
    twice = [node(1), replace(node(1), name="gpu01 (2)")]
    assert failing("fleet/same-machine-twice", twice) == ["gpu01", "gpu01 (2)"]
    assert failing("fleet/same-host-name", twice) == []


def test_unlike_numbers_of_gpus_can_be_meant():
    odd = ODD["gpu-count-differs"][0](node(6))
    assert failing("fleet/gpu-count-differs", [*ALIKE, odd], policy=Policy(homogeneous=False)) == []


def test_a_job_of_one_node_has_no_others():
    odd = ODD["nccl-differs"][0](node(6))
    found = judged_fleet("fleet/nccl-differs", [*ALIKE, odd], policy=Policy(nnodes=1))
    assert {v.outcome.value for v in found.values()} == {"skipped"}


def test_the_master_may_know_itself_by_another_address():
    first = replace(
        node(1), network=replace(node(1).network, master_name=Resolved("gpu01", ("127.0.1.1",))), launch=Launch(is_master=True)
    )  # fmt: skip
    assert failing("fleet/master-resolves-differently", [first, *ALIKE[1:]]) == []


def test_hardware_that_differs_by_its_kind_is_compared_within_it():
    a100 = [in_gpus(node(n), name="NVIDIA A100", power_limit_w=400.0) for n in (7, 8)]
    assert failing("fleet/power-limit-differs", [*ALIKE, *a100]) == []
    other_board = replace(node(6), rdma=replace(node(6).rdma, devices=tuple(
        replace(d, board_id="DEL0000000004", firmware="20.1") for d in node(6).rdma.devices
    )))  # fmt: skip
    assert failing("fleet/firmware-differs", [*ALIKE, other_board]) == []


def test_storage_adapters_are_left_out_where_the_policy_says_so():
    odd = in_port(node(6), state="DOWN")
    assert failing("fleet/hcas-differ", [*ALIKE, odd], policy=Policy(ignore_hcas=("mlx5_0",))) == []


# ---------------------------------------------------------------- RoCE, NVLink domains, clocks


def test_gids_of_another_kind_do_not_meet():
    nodes = [roce(node(n)) for n in range(1, 6)]
    v1 = judged_fleet("fleet/gid-kinds-differ", [*nodes, roce(node(6), "v1")])
    assert v1["gpu06"].measured == "RoCE v1, IPv4"
    assert v1["gpu06"].expected.startswith("RoCE v2, IPv4, as on gpu[01-05]")
    assert failing("fleet/gid-kinds-differ", nodes) == []


def test_flow_control_must_be_that_of_the_others():
    nodes = [roce(node(n), pfc="3", trust="dscp") for n in range(1, 6)]
    found = judged_fleet("fleet/flow-control-differs", [*nodes, roce(node(6), pfc="", trust="dscp")])
    assert found["gpu06"].measured == "pfc none; trust dscp"
    assert found["gpu01"].outcome.value == "passed"


def test_a_node_outside_the_nvlink_domain_is_odd_and_none_at_all_is_usual():
    inside = [in_gpus(node(n), fabric=GpuFabric("completed", cluster_uuid="u1", clique_id=1)) for n in range(1, 6)]
    assert failing("fleet/outside-nvlink-domain", [*inside, node(6)]) == ["gpu06"]
    assert failing("fleet/outside-nvlink-domain", ALIKE) == []


def test_a_synchronisers_word_has_a_size_and_no_side():
    nodes = [replace(node(n), time=Clock("chronyd", True, 3.0 * (-1) ** n)) for n in range(1, 5)]
    assert failing("fleet/clocks-apart", nodes) == []


# ---------------------------------------------------------------- remedies


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nccl-differs", "pip install torch==2.6.0 --index-url https://download.pytorch.org/whl/cu124"),
        ("variable-must-agree", "unset NCCL_ALGO"),
        ("gpu-count-differs", "--nproc_per_node 7"),
        ("transport-differs", "export NCCL_IB_DISABLE 1"),
        ("interface-names-differ", "export NCCL_SOCKET_IFNAME =eno1,eth0"),
        ("clock-breaks-rendezvous", "chronyc makestep"),
        ("master-resolves-differently", "getent ahosts gpu01"),
    ],
)
def test_remedies_name_what_the_others_have(name, words):
    found = judged_fleet(f"fleet/{name}", [*ALIKE, ODD[name][0](node(6))])
    assert words in remedy_text(found["gpu06"])


def test_a_hostile_name_of_the_master_is_quoted():
    name = "$(id);x"
    nodes = [
        replace(f, network=replace(f.network, master_name=Resolved(name, (ip,))))
        for f, ip in zip(ALIKE[1:], ("10.0.0.1", "10.0.0.1", "10.0.0.1", "10.9.9.9"))
    ]
    text = remedy_text(judged_fleet("fleet/master-resolves-differently", nodes)["gpu05"])
    assert "getent ahosts '$(id);x'" in text

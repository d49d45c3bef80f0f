"""The doctor beside a real RDMA stack: soft RoCE (rdma_rxe) in a virtual machine."""

import json
import re
from ipaddress import IPv6Address
from typing import Any, Dict

import pytest
from running import report

pytestmark = [pytest.mark.vm, pytest.mark.slow]


def devinfo(text: str) -> Dict[str, Any]:
    """Fields of ``ibv_devinfo -v`` of one device with one port, those that the doctor shows too."""
    fields = dict(re.findall(r"^\s+(\w+):\s+(\S+)", text, re.MULTILINE))
    gids = re.findall(r"GID\[\s*(\d+)\]:\s+(\S+?),? (.+)", text)
    return {
        "name": re.findall(r"hca_id:\s+(\S+)", text),
        "firmware": "" if fields["fw_ver"] == "0.0.0" else fields["fw_ver"],  # software has none: sysfs is empty
        "ports": int(fields["phys_port_cnt"]),
        **{name: fields[name] for name in ("node_guid", "sys_image_guid", "link_layer")},
        "state": fields["state"].replace("PORT_", ""),
        "phys_state": fields["phys_state"].replace("_", "").lower(),
        **{name: int(fields[name]) for name in ("sm_lid", "port_lid", "max_mtu", "active_mtu")},
        "gids": [(int(row), IPv6Address(gid), kind.strip()) for row, gid, kind in gids],
    }


def shown(facts: Dict[str, Any]) -> Dict[str, Any]:
    """The same fields of the doctor's facts."""
    (device,) = facts["rdma"]["devices"]
    (port,) = device["ports"]
    return {
        "name": [device["name"]],
        "firmware": device["firmware"],
        "ports": len(device["ports"]),
        **{name: device[name] for name in ("node_guid", "sys_image_guid")},
        "link_layer": port["link_layer"],
        "state": port["state"],
        "phys_state": port["phys_state"].lower(),
        "sm_lid": port["sm_lid"],
        "port_lid": port["lid"],
        "max_mtu": port["max_mtu_bytes"],
        "active_mtu": port["active_mtu_bytes"],
        "gids": [(gid["index"], IPv6Address(gid["gid"]), gid["type"]) for gid in port["gids"]],
    }


@pytest.mark.parametrize("scenario", ["healthy", "large_mtu", "port_down"])
def test_agrees_with_ibv_devinfo(vm, scenario):
    assert shown(vm.facts(scenario)) == devinfo(vm.text(scenario, "devinfo"))


def test_a_machine_without_rdma_is_no_fault(vm):
    assert not [check for check in vm.findings("no_rdma") if check.startswith("rdma/")]
    assert "limits/memlock-too-low" not in vm.findings("no_rdma")


def test_a_healthy_device_is_quiet(vm):
    alarms = {check: severity for check, severity in vm.findings("healthy").items() if severity != "note"}
    assert alarms == {}
    passed = {v["check"] for v in vm.verdicts("healthy") if v["outcome"] == "passed"}
    assert {"rdma/port-down", "rdma/user-devices-missing", "rdma/device-cannot-be-opened"} <= passed


def test_a_healthy_device_can_be_reached_by_its_ipv4_address(vm):
    gids = shown(vm.facts("healthy"))["gids"]
    assert (IPv6Address("::ffff:192.0.2.1"), "RoCE v2") in [gid[1:] for gid in gids]


def test_mtu_of_rdma_follows_the_interface(vm):
    assert (shown(vm.facts("healthy"))["active_mtu"], shown(vm.facts("large_mtu"))["active_mtu"]) == (1024, 4096)


def test_a_bundle_is_judged_elsewhere_as_it_was_there(vm):
    bundle = str(vm.folder / "healthy" / "bundle.tar.gz")
    replayed = report("--replay", bundle, "--profile", "quick", "--select", "rdma", "--nnodes", "2")["verdicts"]
    elsewhere = {(v["check"], v["subject"], v["outcome"], v["measured"]) for v in replayed}
    there = {(v["check"], v["subject"], v["outcome"], v["measured"]) for v in vm.verdicts("healthy")}
    assert elsewhere == {verdict for verdict in there if verdict[0].startswith("rdma/")}


def test_an_interface_that_is_down(vm):
    assert vm.findings("port_down")["rdma/port-down"] == "error"


def test_locked_memory_too_low(vm):
    assert vm.findings("memlock_low")["limits/memlock-too-low"] == "error"


def test_devices_that_the_user_may_not_open(vm):
    assert vm.findings("nodes_closed")["rdma/user-devices-missing"] == "error"


def test_counters_move_with_traffic_and_raise_no_alarm(vm):
    vm.text("traffic", "client")
    before, after = (_counters(vm.facts("traffic", name)) for name in ("before.json", "facts.json"))
    assert after["rxe0"]["sent_pkts"] - before["rxe0"]["sent_pkts"] > 20
    assert after["rxe1"]["rcvd_pkts"] - before["rxe1"]["rcvd_pkts"] > 20
    assert not [check for check, severity in vm.findings("traffic").items() if severity != "note"]


def _counters(facts: Dict[str, Any]) -> Dict[str, Dict[str, int]]:
    return {device["name"]: device["ports"][0]["hw_counters"] for device in facts["rdma"]["devices"]}


def test_two_rails_in_one_subnet(vm):
    assert "rdma/rails-share-subnet" in vm.findings("one_subnet")
    assert "rdma/rails-share-subnet" not in vm.findings("traffic")


def test_a_bond_with_a_member_down_and_a_vlan(vm):
    interfaces = {found["name"]: found for found in vm.facts("bond_and_vlan")["network"]["interfaces"]}
    running = {name: interfaces[name]["running"] for name in ("bond0", "bond0.7", "member0", "member1")}
    assert running == {"bond0": True, "bond0.7": True, "member0": True, "member1": False}
    assert (interfaces["bond0"]["kind"], interfaces["bond0"]["lower"]) == ("bond", ["member0", "member1"])
    assert (interfaces["bond0.7"]["kind"], interfaces["bond0.7"]["lower"]) == ("vlan", ["bond0"])


def rdma_of(vm, name):
    """What the first of two nodes met over RDMA."""
    (found,) = json.loads(vm.text("rdma_pairs", name))["a"]["rdma"]
    assert (found["peer"], found["device"], found["peer_device"]) == ("b", "rxe0:1", "rxe1:1")
    return found


def test_two_devices_send_to_each_other(vm):
    found = rdma_of(vm, "open")
    assert found["outcome"] == "met"
    assert found["sent_gbit_s"] > 0


def test_tcp_is_fine_and_roce_is_dead(vm):
    found = rdma_of(vm, "closed")
    assert found["outcome"] in ("failed", "timed-out")
    tries = json.loads(vm.text("rdma_pairs", "closed"))["a"]["peers"][0]["tries"]
    assert {each["outcome"] for each in tries} == {"open"}

"""What an interface is, and what /sys says of it, over written trees and a lab host's real ones."""

import json
import subprocess
import sys

import pytest
from ddp_doctor.collect import interfaces
from ddp_doctor.recording import Recording

CONNECTX = {
    "ifindex": "3\n",
    "type": "1\n",
    "flags": "0x1003\n",
    "operstate": "up\n",
    "mtu": "9000\n",
    "speed": "200000\n",
    "address": "b8:ce:f6:00:00:01\n",
    "uevent": "INTERFACE=ens1f0\nIFINDEX=3\n",
    "device/uevent": "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:101D\nPCI_SLOT_NAME=0000:17:00.0\n",
    "device/numa_node": "0\n",
}


def read(*interface_trees, entries=None):
    """Interfaces of a node whose /sys/class/net has these (name, {file: text})."""
    files = {f"root/sys/class/net/{name}/{file}": text for name, tree in interface_trees for file, text in tree.items()}
    unread = {}
    found = interfaces.read_all(Recording(entries or {}, files, complete=True), unread)
    return {interface.name: interface for interface in found}


def test_a_fast_physical_port_with_its_addresses():
    rows = [
        {"index": 3, "ip": "10.0.0.1", "prefix": 24, "family": "ipv4", "scope": "global"},
        {"index": 4, "ip": "10.9.0.1", "prefix": 24, "family": "ipv4", "scope": "global"},
    ]
    port = read(("ens1f0", CONNECTX), entries={"ask addresses": {"value": rows}})["ens1f0"]
    assert (port.kind, port.driver, port.pci, port.numa_node) == ("physical", "mlx5_core", "0000:17:00.0", 0)
    assert (port.mtu, port.speed_mbit_s, port.up, port.running) == (9000, 200000, True, True)
    assert [(a.ip, a.prefix) for a in port.addresses] == [("10.0.0.1", 24)]
    assert (port.master, port.lower) == ("", ())
    assert set(port.unread) == {
        "bond_mode", "carrier_changes", "rp_filter", "arp_ignore", "arp_announce", "ring", "fec", "module"
    }  # fmt: skip


def test_members_of_a_bond_and_the_bond_itself():
    link = {"link /sys/class/net/ens1f0/master": {"value": "../bond0"}}
    member = {**CONNECTX, "master/ifindex": "9\n", "upper_bond0/ifindex": "9\n"}
    bond = {"uevent": "DEVTYPE=bond\n", "lower_ens1f0/ifindex": "3\n", "bonding/mode": "802.3ad 4\n", "type": "1\n"}
    found = read(("ens1f0", member), ("bond0", bond), entries=link)
    assert (found["ens1f0"].master, found["bond0"].lower, found["bond0"].kind) == ("bond0", ("ens1f0",), "bond")
    assert (found["bond0"].bond_mode, found["ens1f0"].bond_mode) == ("802.3ad", None)


def test_how_a_port_answers_arp_is_read_and_that_of_a_bridge_is_not():
    settings = {f"root/proc/sys/net/ipv4/conf/{name}/rp_filter": "1\n" for name in ("ens1f0", "br0")}
    files = {f"root/sys/class/net/ens1f0/{file}": text for file, text in CONNECTX.items()}
    files.update({"root/sys/class/net/br0/bridge/x": "", "root/sys/class/net/br0/carrier_changes": "4\n", **settings})
    found = {i.name: i for i in interfaces.read_all(Recording({}, files, complete=True), {})}
    assert (found["ens1f0"].rp_filter, found["br0"].rp_filter, found["br0"].carrier_changes) == (1, None, 4)
    assert found["br0"].unread["rp_filter"].kind == "not-applicable"


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("-1\n", "unreadable", "does not say"),
        ("4294967295\n", "unreadable", "does not say"),
        ("0\n", "unreadable", "does not say"),
        ("fast\n", "unreadable", "not a number"),
        (None, "absent", "No such file"),
    ],
)
def test_a_speed_that_the_driver_does_not_say_has_a_reason(text, kind, words):
    tree = {name: value for name, value in {**CONNECTX, "speed": text}.items() if value is not None}
    port = read(("ens1f0", tree))["ens1f0"]
    assert (port.speed_mbit_s, port.unread["speed_mbit_s"].kind) == (None, kind)
    assert words in port.unread["speed_mbit_s"].text


def test_bonding_masters_is_no_interface_and_an_empty_folder_is_one_with_reasons():
    not_a_folder = {"list /sys/class/net/bonding_masters": {"reason": {"kind": "absent", "text": "Not a directory"}}}
    found = read(("ens1f0", CONNECTX), ("bonding_masters", {"x": ""}), ("odd", {"x": ""}), entries=not_a_folder)
    assert sorted(found) == ["ens1f0", "odd"]
    assert {found["odd"].unread[field].kind for field in ("mtu", "operstate", "up", "index")} == {"absent"}


@pytest.mark.parametrize(
    ("link_kind", "devtype", "hardware", "entries", "driver", "kind"),
    [
        ("", "", 772, (), None, "loopback"),
        ("veth", "", 1, (), None, "veth"),
        ("", "vlan", 1, (), None, "vlan"),
        ("", "", 1, ("bridge",), None, "bridge"),
        ("", "", 65534, ("tun_flags",), None, "tunnel"),
        ("wireguard", "wireguard", 65534, (), None, "tunnel"),
        ("", "", 65534, (), None, "tunnel"),
        ("", "wlan", 1, ("phy80211", "device"), "iwlwifi", "wireless"),
        ("bond", "bond", 32, ("bonding",), None, "bond"),
        ("ipoib", "", 32, (), None, "ipoib"),
        ("", "", 32, ("device",), "mlx5_core", "ipoib"),
        ("", "", 1, ("device",), "virtio_net", "virtio"),
        ("", "", 1, ("device",), "ena", "virtio"),
        ("", "", 1, ("device",), "mlx5_core", "physical"),
        ("", "", 1, ("device",), None, "physical"),
        ("macvlan", "macvlan", 1, (), None, "macvlan"),
        ("dummy", "", 1, (), None, "dummy"),
        ("ifb", "", 1, (), None, "other"),
    ],
)
def test_kind(link_kind, devtype, hardware, entries, driver, kind):
    assert interfaces.kind_of(link_kind, devtype, hardware, entries, driver) == kind


@pytest.mark.parametrize(
    ("flags", "operstate", "running"),
    [(0x1003, "up", True), (0x9, "unknown", True), (0x1003, "down", False), (0x1002, "up", False), (None, "up", None)],
)
def test_running_is_up_with_a_carrier(flags, operstate, running):
    assert interfaces.is_running(flags, operstate) is running


def test_interfaces_of_another_namespace_are_left_out():
    links = {"lo": {"index": 1, "flags": 0x8, "kind": ""}, "v9": {"index": 7, "flags": 0x1043, "kind": "veth"}}
    lo = {"ifindex": "1\n", "type": "772\n", "flags": "0x9\n", "operstate": "unknown\n", "mtu": "65536\n"}
    rows = [{"index": 7, "ip": "10.9.0.1", "prefix": 24, "family": "ipv4", "scope": "global"}]
    entries = {"ask links": {"value": links}, "ask addresses": {"value": rows}}
    found = read(("ens1f0", CONNECTX), ("lo", lo), entries=entries)
    assert sorted(found) == ["lo", "v9"]
    assert (found["lo"].up, found["lo"].running, found["lo"].kind) == (False, False, "loopback")
    assert (found["v9"].up, found["v9"].running, found["v9"].kind) == (True, True, "veth")
    assert [a.ip for a in found["v9"].addresses] == ["10.9.0.1"]
    assert found["v9"].unread["mtu"].kind == "not-applicable"


@pytest.mark.lab
def test_a_fresh_network_namespace_below_the_old_sys_has_loopback_alone():
    code = (
        "import json; from ddp_doctor.collect import interfaces; from ddp_doctor.host import Host; "
        "print(json.dumps([[i.name, i.up] for i in interfaces.read_all(Host(), {})]))"
    )
    argv = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code]
    seen = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert json.loads(seen) == [["lo", False]]


@pytest.mark.lab
def test_real_interfaces_have_the_kernels_own_kinds_flags_and_addresses(lab):
    host, peer = lab.add("host"), lab.add("peer")
    host.ip("link add br1 type bridge")
    host.ip("link add v1 type veth peer name v2")
    host.ip("link set v1 master br1 up")
    host.ip("address add 10.78.0.1/16 dev eth0 label eth0:1")
    host.ip("-6 address add fd00:77::1/64 dev eth0 nodad")
    host.ip("link set eth0 mtu 1400")
    found = {i["name"]: i for i in host.collect("network")["network"]["interfaces"]}
    assert {name: i["kind"] for name, i in found.items()} == {
        "br1": "bridge",
        "eth0": "veth",
        "lo": "loopback",
        "v1": "veth",
        "v2": "veth",
    }
    assert (found["v1"]["master"], found["br1"]["lower"], found["eth0"]["mtu"]) == ("br1", ["v1"], 1400)
    addresses = {(a["ip"], a["prefix"], a["scope"]) for a in found["eth0"]["addresses"]}
    assert {("10.77.0.1", 24, "global"), ("10.78.0.1", 16, "global"), ("fd00:77::1", 64, "global")} <= addresses
    assert [found[name]["running"] for name in ("eth0", "v1", "v2", "lo")] == [True, False, False, True]
    peer.close()

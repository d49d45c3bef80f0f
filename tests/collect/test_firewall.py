"""firewalld and ufw by their files, nftables by its chains (real ones in the lab)."""

import pytest
from ddp_doctor.collect import firewall
from ddp_doctor.recording import Recording

PUBLIC = """<?xml version="1.0" encoding="utf-8"?>
<zone>
  <short>Public</short>
  <service name="ssh"/><service name="../../../etc/shadow"/>
  <port port="29500" protocol="tcp"/>
  <port port="8000-9000" protocol="udp"/>
  <rule family="ipv4"><source address="10.0.0.0/8"/><accept/></rule>
  <rule family="ipv4"><source address="10.1.0.0/16"/><port port="22" protocol="tcp"/><accept/></rule>
  <rule family="ipv4"><source address="10.2.0.0/16"/><drop/></rule>
  <forward/>
</zone>"""
TRUSTED = (
    '<zone target="ACCEPT"><interface name="ib0"/><source address="192.168.5.0/24"/><source ipset="nodes"/></zone>'
)
SSH = '<service><port protocol="tcp" port="22"/></service>'
RUNNING = {"list /run/systemd/units": {"value": ["invocation:firewalld.service"]}}
STOPPED = {"ask processes called firewalld": {"value": {"pids": [], "hidden": False}}}

UFW = """\
*filter
### tuple ### allow tcp 29500 0.0.0.0/0 any 0.0.0.0/0 in
### tuple ### allow tcp 1024:65535 0.0.0.0/0 any 10.0.0.0/8 in comment=6e63636c
### tuple ### allow any any 0.0.0.0/0 any 10.1.0.0/16 in
### tuple ### allow any any 0.0.0.0/0 any 0.0.0.0/0 in_ib0
### tuple ### limit tcp 22 0.0.0.0/0 any 0.0.0.0/0 OpenSSH - in
### tuple ### allow tcp 80,443 0.0.0.0/0 any 0.0.0.0/0 in_eth0
### tuple ### allow tcp any 0.0.0.0/0 any 10.2.0.0/16 in
### tuple ### deny tcp 1 0.0.0.0/0 any 0.0.0.0/0 in
### tuple ### allow any 53 0.0.0.0/0 any 0.0.0.0/0 out
### tuple ### route:allow any any 0.0.0.0/0 any 0.0.0.0/0 in_eth0
### tuple ### torn
"""


def firewalld(entries, **files):
    """firewalld of a node with these files below /etc/firewalld ("zones/public.xml") besides the daemon's own."""
    tree = {
        "root/usr/sbin/firewalld": "",
        "root/usr/lib/firewalld/services/ssh.xml": SSH,
        **{f"root/etc/firewalld/{name}": text for name, text in files.items()},
    }
    return firewall.firewalld(Recording({"ask zones of connections": {"value": {}}, **entries}, tree, complete=True))


def test_firewalld_zones_in_force():
    files = {"zones/public.xml": PUBLIC, "zones/trusted.xml": TRUSTED, "zones/unused.xml": "<zone/>"}
    found = firewalld(RUNNING, **{"firewalld.conf": "# DefaultZone=work\nDefaultZone=public\n"}, **files)
    assert (found.active, found.zone, found.target) == (True, "public", "default")
    assert found.open_ports == ("29500/tcp", "8000-9000/udp", "22/tcp from 10.1.0.0/16", "22/tcp")
    assert found.trusted_sources == ("10.0.0.0/8", "192.168.5.0/24", "ipset:nodes")
    assert (found.interfaces, found.trusted_interfaces) == ({"ib0": "trusted"}, ("ib0",))
    assert [(zone.name, zone.target) for zone in found.zones] == [("public", "default"), ("trusted", "ACCEPT")]


def test_an_interface_that_networkmanager_puts_into_a_stock_zone_is_in_it():
    entries = {**RUNNING, "ask zones of connections": {"value": {"ib0": "trusted"}}}
    files = {"root/usr/sbin/firewalld": "", "root/usr/lib/firewalld/zones/trusted.xml": '<zone target="ACCEPT"/>'}
    found = firewall.firewalld(Recording(entries, files, complete=True))
    assert found.trusted_interfaces == ("ib0",)
    assert (found.zone, found.unread["open_ports"].kind) == ("public", "absent")


def test_firewalld_stopped_or_not_installed():
    assert firewalld(STOPPED).active is False
    assert firewall.firewalld(Recording({}, {}, complete=True)) is None


def test_without_rights_nothing_is_claimed():
    denied = {"reason": {"kind": "no-rights", "text": "Permission denied"}}
    entries = {"read /etc/firewalld/firewalld.conf": denied, "list /etc/firewalld/zones": denied, **RUNNING}
    found = firewalld(entries)
    assert (found.active, found.open_ports, found.trusted_sources, found.zones) == (True, None, None, None)
    assert {found.unread[f].kind for f in ("open_ports", "trusted_sources", "zone", "target")} == {"no-rights"}


@pytest.mark.parametrize("text", ["<zone", "", '<!DOCTYPE z [<!ENTITY a "b">]><zone>&a;</zone>', "\\x00\\xff"])
def test_a_zone_that_is_not_xml_is_unreadable(text):
    assert firewall.parse_zone("public", text) is None
    found = firewalld(RUNNING, **{"zones/public.xml": text})
    assert (found.open_ports, found.unread["open_ports"].kind) == (None, "unreadable")


def test_zones_of_connection_files():
    keyfile = "[connection]\nid=x\ninterface-name=ib0\nzone=trusted\n\n[wifi-security]\npsk=secret\n"
    assert firewall.parse_keyfile(keyfile) == {"ib0": "trusted"}
    assert firewall.parse_keyfile("[ipv4]\nzone=x\ninterface-name=ib0\n") == {}
    assert firewall.parse_ifcfg('TYPE=Ethernet\nDEVICE="em1"\nZONE=internal\n') == {"em1": "internal"}
    assert firewall.parse_ifcfg("DEVICE=em1\n") == {}


def test_ufw_rules():
    ports, sources, interfaces = firewall.parse_ufw(UFW)
    assert ports == (
        "29500/tcp",
        "1024-65535/tcp from 10.0.0.0/8",
        "22/tcp",
        "80/tcp on eth0",
        "443/tcp on eth0",
        "1-65535/tcp from 10.2.0.0/16",
    )
    assert (sources, interfaces) == (("10.1.0.0/16",), ("ib0",))


@pytest.mark.parametrize(
    ("conf", "rules", "active", "ports"),
    [
        ("ENABLED=yes\n", {"value": UFW}, True, "29500/tcp"),
        ("# ENABLED=yes\nENABLED=no\n", {"value": UFW}, False, None),
        ("ENABLED=yes\n", {"reason": {"kind": "no-rights", "text": "user.rules: Permission denied"}}, True, None),
    ],
)
def test_ufw(conf, rules, active, ports):
    files = {"root/etc/ufw/ufw.conf": conf, "root/etc/default/ufw": 'IPV6=yes\nDEFAULT_INPUT_POLICY="DROP" # x\n'}
    found = firewall.ufw(Recording({"read /etc/ufw/user.rules": rules}, files, complete=True))
    assert (found.active, found.target) == (active, "DROP" if active else None)
    assert (found.open_ports or (None,))[0] == ports
    assert ports or found.unread["open_ports"].kind in ("no-rights", "not-applicable")


def test_nftables_needs_root_and_the_older_iptables_its_table():
    files = {"root/usr/sbin/nft": "", "root/usr/sbin/iptables": ""}
    denied = {"reason": {"kind": "no-rights", "text": "/proc/net/ip_tables_names: Permission denied"}}
    entries = {"user ": {"value": [1000, "ana"]}, "read /proc/net/ip_tables_names": denied}
    nft, iptables = firewall.read_all(Recording(entries, files, complete=True))
    assert (nft.active, nft.unread["active"].kind) == (None, "no-rights")
    assert (iptables.active, iptables.unread["active"].kind) == (None, "no-rights")


def test_iptables_with_a_policy():
    files = {"root/usr/sbin/iptables": "", "root/proc/net/ip_tables_names": "nat\nfilter\n"}
    ran = {"status": 0, "stdout": "-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n", "stderr": ""}
    entries = {"user ": {"value": [0, "root"]}, "run iptables-list-input": {"value": ran}}
    (found,) = firewall.read_all(Recording(entries, files, complete=True))
    assert (found.name, found.active, found.target) == ("iptables", True, "DROP")


def test_nft_is_not_run_where_it_would_load_its_module():
    files = {"root/usr/sbin/nft": "", "root/proc/modules": "xfs 1 1 - Live 0x0\n"}
    (found,) = firewall.read_all(Recording({"user ": {"value": [0, "root"]}}, files, complete=True))
    assert (found.name, found.active) == ("nftables", False)


@pytest.mark.lab
@pytest.mark.parametrize(("policy", "target"), [("accept", "ACCEPT"), ("drop", "DROP")])
def test_real_nftables(lab, policy, target):
    host = lab.add(policy)
    assert [f["active"] for f in host.collect("network")["network"]["firewalls"]] == [False]
    host.nft("tcp dport 29500 drop")
    host.run(
        ["nft", "add", "chain", "inet", "lab", "more", f"{{ type filter hook input priority 5; policy {policy}; }}"]
    )
    host.run(["nft", "add", "chain", "inet", "lab", "out", "{ type filter hook output priority 0; policy accept; }"])
    (found,) = host.collect("network")["network"]["firewalls"]
    assert (found["name"], found["active"], found["target"]) == ("nftables", True, target)

"""Names, routes, ports: parsers over written files, the collector over real sockets and lab hosts."""

import subprocess
import sys
from pathlib import Path

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import network, rdma, services, ssh
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder, Recording

HOSTS = """\
127.0.0.1 localhost   # gpu01 in a comment
127.0.1.1 gpu01.cluster.local gpu01
10.0.0.1  GPU01 # the real one
10.0.0.11 gpu011
gpu01
"""
ROUTES = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
wlan0 00000000 0101A8C0 0003 0 0 600 00000000 0 0 0
eth0 00000000 FE00000A 0003 0 0 100 00000000 0 0 0
eth1 00000000 0100000A 0203 0 0 1 00000000 0 0 0
eth0 0000000A 00000000 0001 0 0 100 000000FF 0 0 0
torn
"""
ROUTES6 = (
    f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 00000001 00000000 00200200 lo\n"
    f"{'0' * 32} 00 {'0' * 32} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 ib0\n"
)
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1 0 100 0 0 10 0
   1: 0100007F:733C 0100007F:9999 01 00000000:00000000 00:00000000 00000000 0 0 4712 1 0 100 0 0 10 0
   2: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4713 1
   3: torn
"""


def test_hosts_lines_name_this_host_in_full_or_in_short():
    lines = ("127.0.1.1 gpu01.cluster.local gpu01", "10.0.0.1 GPU01")
    assert network.hosts_lines(HOSTS, "gpu01") == network.hosts_lines(HOSTS, "gpu01.cluster.local") == lines
    assert network.hosts_lines(HOSTS, "") == ()


def test_default_route_has_the_lowest_metric_and_is_no_reject():
    route = network.default_route(ROUTES, ROUTES6)
    assert (route.interface, route.gateway) == ("eth0", "10.0.0.254")
    route = network.default_route("", ROUTES6)
    assert (route.interface, route.gateway) == ("ib0", "fe80::1")
    assert network.default_route("", ROUTES6.splitlines()[0]) is None


def test_listening_rows_alone_are_kept():
    assert services.parse_listening(TCP.splitlines()) == [("127.0.0.1", 0x733C), ("::1", 22)]


LISTENER = """
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets), flush=True)
sys.stdin.read()
"""


def test_the_owner_of_the_masters_port_is_named_and_no_other_is_looked_for():
    argv = [sys.executable, "-c", LISTENER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port, other_port = map(int, process.stdout.readline().split())
        found = network.read(Host(), Ask(profile="quick", master_addr="127.0.0.1", master_port=port))
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
    sockets = {s.port: s for s in found.listening if s.ip == "127.0.0.1"}
    assert (sockets[port].pid, sockets[port].process) == (process.pid, name)
    assert (sockets[other_port].pid, sockets[other_port].unread["pid"].kind) == (None, "not-asked")
    assert (found.master_route.interface, found.master_route.source) == ("lo", "127.0.0.1")


def test_quick_asks_no_name_server_for_the_master():
    found = network.read(Host(), Ask(profile="quick", master_addr="node1.invalid"))
    assert (found.master_name, found.master_route) == (None, None)
    assert found.unread["master_route"].kind == "not-asked"


def test_garbage_is_a_reason_and_hides_nothing_else():
    files = {
        "root/proc/sys/kernel/hostname": "gpu01\n",
        "root/etc/hosts": HOSTS,
        "root/proc/net/route": "Iface\neth0 00000000 ZZ 0003 0 0 100 00000000 0 0 0\n",
        "root/proc/sys/net/ipv4/ip_local_port_range": "\\xff\\x00",
        "root/sys/class/net/eth0/mtu": "many\n",
        "root/sys/class/net/eth0/operstate": "up\n",
        "root/sys/class/net/eth0/type": "1\n",
    }
    entries = {
        "resolve gpu01": {"reason": {"kind": "timed-out", "text": "resolve gpu01: timed out after 1 s"}},
        "env ": {"value": {"https_proxy": "http://<redacted>@proxy:3128", "PATH": "/bin"}},
    }
    found = network.read(Recording(entries, files, complete=True), Ask(profile="quick"))
    assert found.hosts_lines == ("127.0.1.1 gpu01.cluster.local gpu01", "10.0.0.1 GPU01")
    assert (found.own_name.addresses, found.own_name.error) == ((), "timed out")
    assert [(p.name, p.value) for p in found.proxies] == [("https_proxy", "http://<redacted>@proxy:3128")]
    (eth0,) = found.interfaces
    assert (eth0.mtu, eth0.operstate, eth0.addresses, eth0.kind) == (None, "up", None, "other")
    kinds = {field: reason.kind for field, reason in {**eth0.unread, **found.unread}.items()}
    assert kinds["mtu"] == kinds["port_range"] == kinds["default_route"] == "unreadable"
    assert kinds["addresses"] == kinds["up"] == kinds["running"] == kinds["listening"] == "absent"
    assert (kinds["master_name"], kinds["fqdn"]) == ("not-applicable", "unresolved")


@pytest.mark.parametrize("text", ["9" * 6000, "many\n", "", "-1", "\u0664"])
def test_settings_that_are_no_numbers(text):
    paths = ("net/core/somaxconn", "net/netfilter/nf_conntrack_count")
    files = {f"root/proc/sys/{path}": text for path in paths}
    found = network.read(Recording({}, files, complete=True), Ask(profile="quick"))
    assert (found.sysctls, found.conntrack_used, found.unread["conntrack_used"].kind) == ({}, None, "unreadable")


def test_a_name_that_the_deadline_cut_short_is_not_unresolved():
    late = {"reason": {"kind": "deadline", "text": "no answer before the deadline, after 1 s"}}
    entries = {"env ": {"value": {}}, "resolve gpu01": late, "resolve node0": late}
    host = Recording(entries, {"root/proc/sys/kernel/hostname": "gpu01\n"}, complete=True)
    found = network.read(host, Ask(master_addr="node0"))
    assert (found.own_name, found.master_name, found.master_route) == (None, None, None)
    fields = ("own_name", "fqdn", "master_name", "master_route")
    assert {found.unread[field].kind for field in fields} == {"deadline"}


@pytest.mark.parametrize("section", [network, rdma, ssh])
def test_a_recording_replays_to_the_same_facts(section):
    recorder = Recorder()
    facts = section.read(recorder, Ask(profile="quick", master_addr="127.0.0.1"))
    assert section.read(Recording(recorder.entries, {}), Ask(profile="quick", master_addr="127.0.0.1")) == facts


@pytest.mark.lab
def test_routes_are_told_as_the_kernel_would_choose_them(lab):
    a = lab.add("a")
    lab.add("b")
    wanted = {
        "b": ("eth0", a.address, None, None),
        "10.99.1.1": (None, None, None, "EACCES"),
        "10.99.2.1": (None, None, None, "EINVAL"),
        "10.99.4.1": ("eth0", a.address, "10.77.0.2", None),
        "10.88.0.1": (None, None, None, "ENETUNREACH"),
    }
    for route in ("prohibit 10.99.1.0/24", "blackhole 10.99.2.0/24", "10.99.4.0/24 via 10.77.0.2"):
        a.ip(f"route add {route}")
    for target, expected in wanted.items():
        route = a.collect("network", master_addr=target)["network"]["master_route"]
        assert tuple(route.get(key) for key in ("interface", "source", "gateway", "error")) == expected


@pytest.mark.lab
def test_own_name_is_what_this_hosts_resolver_says(lab):
    host = lab.add("nameless")
    host.etc("hosts", "127.0.0.1 localhost\n")
    found = host.collect("network", profile="quick")["network"]
    assert (found["hostname"], found["hosts_lines"]) == ("nameless", [])
    assert "not known" in found["own_name"]["error"]
    assert found["unread"]["fqdn"]["kind"] == "unresolved"
    assert found["unread"]["default_route"]["kind"] == "absent"
    host.etc("hosts", "127.0.1.1 nameless.cluster nameless\n")
    found = host.collect("network", profile="quick")["network"]
    assert (found["own_name"]["addresses"], found["fqdn"]) == (["127.0.1.1"], "nameless.cluster")

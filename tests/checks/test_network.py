"""Checks of names, interfaces and firewalls, on faulty nodes and on healthy ones that look ill."""

import subprocess

import pytest
from ddp_doctor.facts import (
    Address,
    DeviceNode,
    Env,
    Firewall,
    Gpu,
    Gpus,
    Interface,
    Launch,
    Network,
    Os,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Resolved,
    Route,
    Torch,
    Variable,
    Zone,
)
from ddp_doctor.policy import Policy
from judging import judged, outcome, own_checks, remedy_text

ONE, TWO, MANY = Policy(nnodes=1), Policy(nnodes=2), Policy()
NAMES = ("unresolved", "is-loopback", "is-elsewhere")


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()))


def interface(name, index, *ips, kind="physical", speed=25000, running=True, **more):
    addresses = tuple(Address(ip, 64 if ":" in ip else 24, "ipv6" if ":" in ip else "ipv4") for ip in ips)
    unread = {} if speed else {"speed_mbit_s": Reason("unreadable", "the driver does not say")}
    return Interface(
        name, index, kind, addresses, speed_mbit_s=speed, running=running, up=True, unread={**unread, **more}
    )


LO = interface("lo", 1, "127.0.0.1", kind="loopback", speed=None)
ETH0 = interface("eth0", 2, "10.0.0.5", "fe80::5")
SLOW = interface("enp3s0", 2, "192.168.1.20", speed=1000)
DOCKER0 = interface("docker0", 9, "172.17.0.1", kind="bridge", speed=None, running=False)
RANGE = (32768, 60999)
GPU = Gpus(gpus=(Gpu(0),), on_bus=())
NO_GPU = Gpus(gpus=(), on_bus=())
NO_RDMA = Rdma(devices=(), device_nodes=())
HCAS = Rdma(
    devices=tuple(
        RdmaDevice(
            f"mlx5_{n}", ports=(RdmaPort(1, "ACTIVE", link_layer="InfiniBand", rate_gbit_s=400.0),), uverbs="uverbs0"
        )
        for n in range(8)
    ),
    device_nodes=(DeviceNode("/dev/infiniband/uverbs0", True, True),),
)


def network(*interfaces, own=("10.0.0.5",), error=None, **more):
    return Network(
        hostname="node1",
        interfaces=interfaces or (LO, ETH0),
        own_name=Resolved("node1", own, error),
        port_range=RANGE,
        **more,
    )


def names(policy, facts, launch=None, variables=None, gpus=GPU):
    """Outcomes of the four checks of the own name, and the severity of a failure."""
    found = {}
    for check in (*(f"own-name-{name}" for name in NAMES), "own-name-useless-to-peers"):
        (verdict,) = judged(
            f"network/{check}", policy, network=facts, launch=launch or Launch(), env=variables or env(), gpus=gpus
        )
        if verdict.outcome.value == "failed":
            found[check] = verdict.severity.value
    return found


# --------------------------------------------------------------------------- the own host name

LOOPBACK = network(own=("127.0.1.1",))
C10D = Launch(rendezvous="c10d", is_master=False)
MASTER = Launch(rendezvous="static", is_master=True)
WORKER = Launch(rendezvous="static", is_master=False)


@pytest.mark.parametrize(
    ("policy", "facts", "launch", "variables", "gpus", "found"),
    [
        (TWO, LOOPBACK, C10D, env(), GPU, {"own-name-is-loopback": "error"}),
        (TWO, LOOPBACK, MASTER, env(), GPU, {"own-name-useless-to-peers": "note"}),
        (TWO, LOOPBACK, MASTER, env(GLOO_SOCKET_IFNAME="eth0"), NO_GPU, {"own-name-useless-to-peers": "note"}),
        (TWO, LOOPBACK, Launch(is_master=True), env(), GPU, {"own-name-useless-to-peers": "note"}),
        (TWO, LOOPBACK, WORKER, env(), NO_GPU, {"own-name-is-loopback": "error"}),
        (TWO, LOOPBACK, WORKER, env(GLOO_SOCKET_IFNAME="eth0"), NO_GPU, {"own-name-useless-to-peers": "note"}),
        (TWO, LOOPBACK, WORKER, env(), GPU, {"own-name-useless-to-peers": "note"}),
        (ONE, LOOPBACK, C10D, env(), NO_GPU, {}),
        (MANY, LOOPBACK, Launch(), env(), NO_GPU, {"own-name-is-loopback": "note"}),
        (MANY, LOOPBACK, Launch(), env(), GPU, {"own-name-useless-to-peers": "note"}),
        (TWO, network(own=(), error="Name or service not known"), C10D, env(), GPU, {"own-name-unresolved": "error"}),
        (TWO, network(own=("203.0.113.9",)), C10D, env(), GPU, {"own-name-is-elsewhere": "error"}),
        (TWO, network(), C10D, env(), GPU, {}),
        (TWO, network(own=("203.0.113.9", "10.0.0.5")), C10D, env(), GPU, {}),
        (TWO, network(own=("fe80::5%eth0",)), C10D, env(), NO_GPU, {}),
    ],
)
def test_the_own_name_is_a_fault_where_something_relies_on_it(policy, facts, launch, variables, gpus, found):
    assert names(policy, facts, launch, variables, gpus) == found


def test_a_torch_without_nccl_relies_on_the_own_name_too():
    torch = Torch(backends=("gloo",))
    (verdict,) = judged(
        "network/own-name-is-loopback", TWO, network=LOOPBACK, launch=WORKER, env=env(), gpus=GPU, torch=torch
    )
    assert "Gloo" in verdict.message


def test_an_own_name_that_was_not_asked_for_is_no_pass():
    facts = Network(interfaces=(LO, ETH0), unread={"own_name": Reason("not-asked", "profile quick")})
    assert outcome("network/own-name-is-loopback", TWO, network=facts, launch=C10D, env=env()) == "skipped"


@pytest.mark.parametrize(
    ("hosts", "os", "said", "not_said"),
    [
        (("127.0.1.1 node1",), Os(id="ubuntu", container=""), "sed -i", "Take the own host name"),
        (("127.0.0.1 node1",), Os(id="centos", container=""), "sed -i", "Take the own host name"),
        (("127.0.0.1 localhost node1",), Os(id="centos", container=""), "Take the own host name", "sed -i"),
        (("127.0.1.1 node1 db",), Os(id="debian", container=""), "Take the own host name", "sed -i"),
        (("127.0.1.1 node1",), Os(container="docker"), "GLOO_SOCKET_IFNAME eth0", "/etc/hosts"),
        (("127.0.1.1 node1",), Os(container="kubernetes"), "--local-addr 10.0.0.5", "/etc/hosts"),
    ],
)
def test_the_own_name_is_mended_where_it_is_written(hosts, os, said, not_said):
    facts = network(own=("127.0.1.1",), hosts_lines=hosts)
    (verdict,) = judged("network/own-name-is-loopback", TWO, network=facts, launch=C10D, env=env(), os=os)
    text = remedy_text(verdict)
    assert said in text
    assert not_said not in text


def test_the_commands_for_etc_hosts_do_what_they_say(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1\tnode1.lab node1\n127.0.1.10 node1x\n")
    facts = Network("node1", "node1.lab", (LO, ETH0), hosts_lines=("127.0.1.1\tnode1.lab node1",),
                    own_name=Resolved("node1", ("127.0.1.1",)))  # fmt: skip
    (verdict,) = judged("network/own-name-is-loopback", TWO, network=facts, launch=C10D, env=env(), os=Os(container=""))
    for step in verdict.fixes[0].steps:
        subprocess.run(["sh", "-ec", step.text.replace("/etc/hosts", str(hosts))], check=True)
    assert hosts.read_text() == "127.0.0.1 localhost\n127.0.1.10 node1x\n10.0.0.5 node1.lab node1\n"


@pytest.mark.parametrize(
    ("hostname", "fqdn", "lines"),
    [
        ("vm", "localhost", ("127.0.0.1 localhost", "127.0.0.1 vm")),
        ("localhost", "localhost.localdomain", ("127.0.0.1 localhost localhost.localdomain",)),
        ("localhost.localdomain", "localhost", ("127.0.0.1 localhost.localdomain localhost",)),
    ],
)
def test_localhost_is_nobodys_name(hostname, fqdn, lines):
    own = Resolved(hostname, ("127.0.0.1",))
    facts = Network(hostname, fqdn, (LO, ETH0), own_name=own, hosts_lines=lines[-1:])
    (verdict,) = judged("network/own-name-is-loopback", TWO, network=facts, launch=C10D, env=env(), os=Os(container=""))
    commands = [step.text for remedy in verdict.fixes for step in remedy.steps if step.kind == "command"]
    assert not any("localhost" in text for text in commands)
    assert ("hostnamectl" in remedy_text(verdict)) is hostname.startswith("localhost")


def test_a_hostile_host_name_reaches_no_command():
    facts = Network(hostname="a;reboot", interfaces=(LO, ETH0), own_name=Resolved("a;reboot", ("127.0.1.1",)))
    (verdict,) = judged("network/own-name-is-loopback", TWO, network=facts, launch=C10D, env=env(), os=Os(container=""))
    commands = [step.text for remedy in verdict.fixes for step in remedy.steps if step.kind == "command"]
    assert commands
    assert not any("reboot" in text for text in commands)


# --------------------------------------------------------------------------- interfaces

POD = (LO, interface("eth0", 3, "10.244.1.7", kind="veth", speed=10000))
CLOUD = (LO, interface("ens5", 2, "172.31.4.7", kind="virtio", speed=None))
WSL = (LO, interface("eth0", 2, "192.168.1.9", kind="virtio", speed=10000))
CLUSTER = (
    LO,
    interface("eno1", 2, "10.9.0.5", speed=1000),
    interface("bond0", 5, "10.1.0.5", kind="bond", speed=50000),
    interface("bond0.2093", 6, "10.2.0.5", kind="vlan", speed=50000),
    interface("ib0", 7, "10.8.0.5", kind="ipoib", speed=200000),
    DOCKER0,
)
HOST_NETWORK = (LO, ETH0, DOCKER0, interface("veth12ab", 11, "fe80::12", kind="veth", speed=10000))
HEALTHY = [
    ("student", (LO, interface("enp3s0", 2, "192.168.1.20", speed=10000)), NO_RDMA, env(), Os()),
    ("pod", POD, NO_RDMA, env(), Os(container="kubernetes")),
    ("cloud", CLOUD, NO_RDMA, env(), Os(virtualisation="amazon")),
    ("wsl mirrored", WSL, NO_RDMA, env(), Os(virtualisation="wsl")),
    ("cluster", CLUSTER, HCAS, env(), Os()),
    ("cluster, named", CLUSTER, HCAS, env(NCCL_SOCKET_IFNAME="=bond0,eno9"), Os()),
    ("host network", HOST_NETWORK, HCAS, env(), Os(container="docker")),
    ("vpn by choice", (LO, interface("tailscale0", 4, "100.64.0.3", kind="tunnel", speed=None)), NO_RDMA,
     env(NCCL_SOCKET_IFNAME="tailscale0"), Os()),
]  # fmt: skip
INTERFACE_CHECKS = [
    "no-usable-interface",
    "loopback-chosen",
    "doubtful-interface",
    "chosen-interface-down",
    "address-behind-nat",
    "slow-interface",
    "interface-below-policy",
    "socket-interface-missing",
]


@pytest.mark.parametrize(("name", "interfaces", "rdma", "variables", "os"), HEALTHY, ids=[h[0] for h in HEALTHY])
def test_a_healthy_node_is_left_in_peace(name, interfaces, rdma, variables, os):
    faults = [
        verdict
        for check in INTERFACE_CHECKS
        for verdict in judged(
            f"network/{check}", TWO, network=network(*interfaces), rdma=rdma, env=variables, os=os, torch=Torch()
        )
        if verdict.outcome.value in ("failed", "broken")
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("check", "interfaces", "variables", "measured"),
    [
        ("no-usable-interface", (LO,), env(), "loopback alone"),
        ("no-usable-interface", (LO, interface("eth0", 2, "10.0.0.5", running=False)), env(), "eth0 (no link)"),
        ("no-usable-interface", (LO, interface("eth0", 2, "fe80::5")), env(), "eth0 (fe80::5)"),
        ("no-usable-interface", (LO, interface("docker0", 3, "172.17.0.1")), env(), "docker0 (172.17.0.1)"),
        ("loopback-chosen", (LO, ETH0), env(NCCL_SOCKET_IFNAME="^docker0"), "lo (127.0.0.1) by NCCL_SOCKET_IFNAME=^docker0"),
        ("doubtful-interface", (LO, interface("virbr0", 2, "192.168.122.1"), ETH0), env(NCCL_SOCKET_IFNAME="^lo"),
         "virbr0 (192.168.122.1) by NCCL_SOCKET_IFNAME=^lo"),
        ("doubtful-interface", (LO, ETH0, interface("br-0123456789ab", 3, "172.18.0.1")), env(),
         "br-0123456789ab (172.18.0.1) by NCCL's own choice"),
        ("socket-interface-missing", (LO, ETH0), env(NCCL_SOCKET_IFNAME="=enp3s0"),
         "NCCL_SOCKET_IFNAME==enp3s0 takes none of lo (127.0.0.1), eth0 (10.0.0.5)"),
        ("socket-interface-missing", (LO, ETH0), env(GLOO_SOCKET_IFNAME="eth"),
         "GLOO_SOCKET_IFNAME=eth takes none of lo (127.0.0.1), eth0 (10.0.0.5)"),
    ],
)  # fmt: skip
def test_a_bad_choice_of_interfaces_is_found(check, interfaces, variables, measured):
    found = judged(f"network/{check}", TWO, network=network(*interfaces), rdma=NO_RDMA, env=variables)
    assert [v.measured for v in found if v.outcome.value == "failed"] == [measured]
    assert all(v.fixes for v in found if v.outcome.value == "failed")


def test_what_only_nccl_reads_is_no_fault_without_nccl():
    variables, cpu = env(NCCL_SOCKET_IFNAME="nope"), Torch(cuda="", hip="")
    check = "network/socket-interface-missing"
    assert outcome(check, TWO, network=network(), env=variables) == "failed"
    assert outcome(check, TWO, network=network(), env=variables, torch=Torch(backends=("nccl", "gloo"))) == "failed"
    assert outcome(check, TWO, network=network(), env=variables, torch=cpu) == "skipped"
    variables = env(NCCL_SOCKET_IFNAME="lo")
    assert outcome("network/loopback-chosen", TWO, network=network(), env=variables, torch=cpu) == "skipped"


@pytest.mark.parametrize(("name", "found"), [("lo", "failed"), ("eth0", "passed"), ("nope", "skipped")])
def test_gloo_on_loopback_serves_one_node_only(name, found):
    facts = {"network": network(), "env": env(GLOO_SOCKET_IFNAME=name)}
    assert outcome("network/gloo-on-loopback", TWO, **facts) == found
    assert outcome("network/gloo-on-loopback", ONE, **facts) == "skipped"
    for verdict in judged("network/gloo-on-loopback", TWO, **facts):
        assert ("export GLOO_SOCKET_IFNAME eth0" in remedy_text(verdict)) is (found == "failed")


def test_a_loopback_interface_must_be_up():
    down = Interface("lo", 1, "loopback", (), up=False)
    assert outcome("network/loopback-down", ONE, network=network(down, ETH0)) == "failed"
    assert outcome("network/loopback-down", ONE, network=network()) == "passed"


def test_an_old_nccl_takes_virbr0_by_itself():
    facts = network(LO, interface("virbr0", 2, "192.168.122.1"), interface("eth0", 3, "10.0.0.5"))
    old, new = Torch(nccl="2.21.5"), Torch(nccl="2.29.7")
    check = "network/doubtful-interface"
    assert outcome(check, TWO, network=facts, rdma=NO_RDMA, env=env(), torch=old) == "failed passed"
    assert outcome(check, TWO, network=facts, rdma=NO_RDMA, env=env(), torch=new) == "passed"


def test_an_old_nccl_takes_an_interface_without_link():
    facts = network(LO, ETH0, interface("eth1", 3, "10.0.1.5", running=False), interface("virbr0", 4, "192.168.122.1"))
    old, new = Torch(nccl="2.21.5"), Torch(nccl="2.29.7")
    check = "network/chosen-interface-down"
    found = judged(check, TWO, network=facts, rdma=NO_RDMA, env=env(), torch=old)
    assert [(v.subject, v.outcome.value) for v in found] == [("eth0", "passed"), ("eth1", "failed")]
    assert "ip link set eth1 up" in remedy_text(found[1])
    assert "NCCL_SOCKET_IFNAME =eth0" in remedy_text(found[1])
    assert outcome(check, TWO, network=facts, rdma=NO_RDMA, env=env(), torch=new) == "passed"


def test_marks_that_cannot_work_are_named():
    (verdict,) = judged(
        "network/socket-interface-missing", network=network(), env=env(NCCL_SOCKET_IFNAME="=^eth9, eth8")
    )
    assert 'a blank and another "^"' in verdict.message


def nic(ip, prefix, kind="veth"):
    return Interface("eth0", 2, kind, (Address(ip, prefix, "ipv4"),), running=True, up=True)


DOCKER, WSL2 = Os(container="docker"), Os(container="", virtualisation="wsl")
MIRRORED = Interface("loopback0", 3, "virtio", (), running=True, up=True)


@pytest.mark.parametrize(
    ("os", "interfaces", "found"),
    [
        (DOCKER, (nic("172.17.0.3", 16),), "failed error"),
        (DOCKER, (nic("10.0.2.100", 24, "tunnel"),), "failed error"),
        (Os(container="podman"), (nic("10.88.0.3", 16),), "failed error"),
        (DOCKER, (nic("10.0.0.3", 24),), "passed error"),
        (DOCKER, (nic("172.17.0.3", 16, "physical"),), "passed error"),  # the host's network, with those numbers
        (WSL2, (nic("172.22.240.5", 20, "virtio"),), "failed error"),
        (Os(container="docker", virtualisation="wsl"), (nic("172.22.240.5", 20, "virtio"),), "failed error"),
        (WSL2, (nic("172.22.240.5", 20, "virtio"), MIRRORED), "passed error"),
        (WSL2, (nic("172.22.240.5", 24, "virtio"),), "passed error"),
        (WSL2, (nic("192.168.1.5", 24, "virtio"),), "passed error"),
        (Os(container="kubernetes"), (nic("172.17.0.3", 16),), "skipped error"),
        (Os(container=""), (nic("172.17.0.3", 16),), "skipped error"),
    ],
)
def test_an_address_behind_nat_is_a_fault_where_that_is_certain(os, interfaces, found):
    (verdict,) = judged("network/address-behind-nat", TWO, network=network(LO, *interfaces), env=env(), os=os)
    assert f"{verdict.outcome.value} {verdict.severity.value}" == found


def test_containers_that_play_nodes_on_one_machine_reach_each_other():
    facts = {"network": network(LO, nic("172.17.0.3", 16)), "env": env(), "os": DOCKER}
    there, elsewhere = (Launch(master_addr=ip, is_master=False) for ip in ("172.17.0.2", "10.0.0.1"))
    assert outcome("network/address-behind-nat", TWO, launch=there, **facts) == "skipped"
    assert outcome("network/address-behind-nat", TWO, launch=elsewhere, **facts) == "failed"


@pytest.mark.parametrize(
    ("interfaces", "rdma", "found", "measured"),
    [
        ((LO, SLOW), NO_RDMA, "failed", "enp3s0 at 1 Gb/s: about 0.11 GB/s, slow but normal"),
        ((LO, ETH0), NO_RDMA, "passed", "eth0 at 25 Gb/s: about 2.8 GB/s"),
        ((LO, SLOW, ETH0), NO_RDMA, "passed", "eth0 at 25 Gb/s: about 2.8 GB/s"),
        ((LO, SLOW), HCAS, "passed", "8 InfiniBand ports at 400 Gb/s: about 47 GB/s each; sockets only start the job"),
        (POD, NO_RDMA, "skipped", ""),
        (CLOUD, NO_RDMA, "skipped", ""),
        ((LO, SLOW), Rdma(), "skipped", ""),
        ((LO,), NO_RDMA, "skipped", ""),
    ],
)
def test_the_speed_of_real_wires_is_judged(interfaces, rdma, found, measured):
    (verdict,) = judged("network/slow-interface", TWO, network=network(*interfaces), rdma=rdma, env=env())
    assert (verdict.outcome.value, verdict.measured, verdict.severity.value) == (found, measured, "note")


def test_a_faster_interface_is_named_and_offered():
    facts = network(LO, SLOW, interface("ens1f0", 3, "10.0.0.5", speed=100000))
    variables = env(NCCL_SOCKET_IFNAME="=enp3s0")
    (verdict,) = judged("network/slow-interface", TWO, network=facts, rdma=NO_RDMA, env=variables)
    assert verdict.measured.endswith("(ens1f0 at 100 Gb/s would be faster)")
    assert "export NCCL_SOCKET_IFNAME =ens1f0" in remedy_text(verdict)


def test_the_sites_own_bound_is_an_error():
    policy = Policy(interface_min_gbit_s=40.0)
    (verdict,) = judged("network/interface-below-policy", policy, network=network(), rdma=HCAS, env=env())
    assert (verdict.outcome.value, verdict.severity.value, verdict.expected) == ("failed", "error", "at least 40 Gb/s")
    assert outcome("network/interface-below-policy", network=network(), env=env()) == "skipped"


def test_addresses_that_could_not_be_read_are_no_pass():
    blind = Interface("eth0", unread={"addresses": Reason("timed-out", "netlink")})
    assert outcome("network/no-usable-interface", TWO, network=Network(interfaces=(blind,)), env=env()) == "skipped"


def test_a_value_from_a_file_is_removed_there():
    variables = Env((Variable("NCCL_SOCKET_IFNAME", "enp9", "/etc/nccl.conf:3"),))
    (verdict,) = judged("network/socket-interface-missing", network=network(), env=variables)
    assert "Remove NCCL_SOCKET_IFNAME from /etc/nccl.conf:3" in remedy_text(verdict)


def test_the_interface_to_the_master_is_offered_first():
    facts = network(
        LO,
        interface("eno1", 2, "10.9.0.5", speed=1000),
        interface("ens1", 3, "10.1.0.5", speed=100000),
        master_route=Route("10.9.0.1", interface="eno1"),
    )
    (verdict,) = judged("network/loopback-chosen", TWO, network=facts, env=env(NCCL_SOCKET_IFNAME="^docker"))
    assert "export NCCL_SOCKET_IFNAME =eno1" in remedy_text(verdict)


# --------------------------------------------------------------------------- the master and firewalls


@pytest.mark.parametrize(
    ("address", "resolved", "found"),
    [
        ("node0", Resolved("node0", ("10.0.0.1",)), "passed"),
        ("node0", Resolved("node0", (), "Name or service not known"), "failed"),
        ("node0", Resolved("node0", (), "timed out"), "failed"),
        ("node0", None, "skipped"),
        ("10.0.0.1", None, "skipped"),
        (None, None, "skipped"),
    ],
)
def test_the_masters_name_must_resolve(address, resolved, found):
    facts = network(master_name=resolved)
    assert outcome("network/master-name-unresolved", network=facts, launch=Launch(master_addr=address)) == found


def firewalld(zones, default="public", **more):
    named = {zone.name: zone for zone in zones}
    first = named.get(default, Zone(default, "default", ()))
    sources = tuple(source for zone in zones for source in zone.trusted_sources or ())
    return Firewall("firewalld", True, default, more.pop("interfaces", {}), first.target, first.open_ports, sources,
                    (), tuple(zones), **more)  # fmt: skip


def zone(name="public", ports=("22/tcp",), target="default", sources=(), trusted=()):
    return Zone(name, target, tuple(ports), tuple(sources), tuple(trusted))


def ufw(ports=(), sources=(), interfaces=(), target="DROP"):
    return Firewall("ufw", True, None, None, target, tuple(ports), tuple(sources), tuple(interfaces))


CLOSED, OPEN, UNSURE = "failed", "passed", "skipped"


@pytest.mark.parametrize(
    ("firewall", "found"),
    [
        (firewalld([zone()]), CLOSED),
        (firewalld([zone(ports=["22/tcp", "29500/tcp"])]), CLOSED),
        (firewalld([zone(ports=["32768-60999/udp", "29500/tcp"])]), CLOSED),
        (firewalld([zone(ports=["1024-65535/tcp"])]), OPEN),
        (firewalld([zone(ports=["29500/tcp", "32768-50000/tcp", "50001-60999/tcp"])]), OPEN),
        (firewalld([zone(ports=["1-65535/tcp from 10.0.0.0/16"])]), OPEN),
        (firewalld([zone(ports=["1-65535/tcp from 10.7.0.0/16"])]), CLOSED),
        (firewalld([zone(), zone("trusted", (), "ACCEPT")], interfaces={"eth0": "trusted"}), OPEN),
        (firewalld([zone(), zone("trusted", (), "ACCEPT")], interfaces={"eth9": "trusted"}), CLOSED),
        (firewalld([zone("trusted", (), "ACCEPT")], "trusted"), OPEN),
        (firewalld([zone(), zone("trusted", (), "ACCEPT", ["10.0.0.0/24"], ["10.0.0.0/24"])]), OPEN),
        (firewalld([zone(), zone("trusted", (), "ACCEPT", ["10.7.0.0/24"], ["10.7.0.0/24"])]), CLOSED),
        (firewalld([zone(), zone("trusted", (), "ACCEPT", ["ipset:peers"], ["ipset:peers"])]), UNSURE),
        (firewalld([Zone("public", unread={"target": Reason("no-rights", "/etc/firewalld: needs root")})]), UNSURE),
        (Firewall("firewalld", active=False), OPEN),
        (Firewall("ufw", unread={"active": Reason("no-rights", "needs root")}), UNSURE),
        (ufw(), CLOSED),
        (ufw(["29500/tcp"]), CLOSED),
        (ufw(["1-65535/tcp on eth0"]), OPEN),
        (ufw(["1-65535/tcp on eth9"]), CLOSED),
        (ufw(sources=["10.0.0.0/24 on eth0"]), OPEN),
        (ufw(sources=["10.0.0.0/24 on eth9"]), CLOSED),
        (ufw(interfaces=["eth0"]), OPEN),
        (ufw(target="ACCEPT"), OPEN),
        (Firewall("nftables", active=True, target="DROP"), "skipped"),
    ],
)
def test_a_firewall_must_let_in_the_ports_that_nccl_picks(firewall, found):
    launch = Launch(is_master=True, master_port=29500)
    facts = network(firewalls=(firewall,))
    assert outcome("network/firewall-closed", TWO, network=facts, env=env(), launch=launch) == found


@pytest.mark.parametrize(
    ("firewall", "said"),
    [
        (firewalld([zone()]), "firewall-cmd --permanent --zone=trusted --add-source=10.0.0.0/24"),
        (firewalld([zone()]), "firewall-cmd --permanent --add-port=10086/tcp"),
        (ufw(), "ufw allow from 10.0.0.0/24"),
        (ufw(), "ufw allow proto tcp to any port 10086,50000:51000"),
    ],
)
def test_a_firewall_is_opened_with_its_own_tool(firewall, said):
    launch = Launch(is_master=True, master_port=10086)
    (verdict,) = judged(
        "network/firewall-closed", TWO, network=network(firewalls=(firewall,)), env=env(), launch=launch
    )
    assert said in remedy_text(verdict)
    assert "10086" in verdict.expected


def test_every_error_of_this_area_has_a_remedy():
    ours = [c for c in own_checks().checks.values() if c.id.split("/")[0] in ("network", "ports", "rdma", "launch")]
    assert len(ours) > 30
    assert [c.id for c in ours if c.fix is None] == []

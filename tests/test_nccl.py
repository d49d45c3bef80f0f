"""NCCL's and Gloo's choices. The tables of names are those of NCCL's own functions (v2.30.7-1, compiled and run)."""

import pytest
from ddp_doctor import nccl
from ddp_doctor.facts import (
    Address,
    DeviceNode,
    Env,
    Gid,
    Interface,
    LoadedLibrary,
    Network,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Resolved,
    Torch,
    Variable,
)

INTERFACES = "lo eth0 eth1 eth10 bond0 bond0.2093 docker0 virbr0 ib0".split()
PORTS = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("mlx5_11", 1), ("mlx5_bond_0", 1)]


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()))


def interface(name, index, *ips, running=True, **more):
    addresses = tuple(Address(ip, 64 if ":" in ip else 24, "ipv6" if ":" in ip else "ipv4") for ip in ips)
    return Interface(name, index=index, addresses=addresses, running=running, **more)


def device(name, *states, layer="InfiniBand", rate=200.0, uverbs="uverbs0"):
    ports = tuple(RdmaPort(n, state=s, link_layer=layer, rate_gbit_s=rate) for n, s in enumerate(states, 1))
    return RdmaDevice(name, ports=ports, uverbs=uverbs)


def rdma(*devices, nodes=("uverbs0",), writable=True):
    return Rdma(devices, device_nodes=tuple(DeviceNode(f"/dev/infiniband/{n}", True, writable) for n in nodes))


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("eth1", "eth1 eth10"),
        ("=eth0,eth1", "eth0 eth1"),
        ("=eth0,=eth1", "eth0"),
        ("^docker0", "lo eth0 eth1 eth10 bond0 bond0.2093 virbr0 ib0"),
        ("^docker,^lo", "lo eth0 eth1 eth10 bond0 bond0.2093 virbr0 ib0"),
        ("^docker,lo", "eth0 eth1 eth10 bond0 bond0.2093 virbr0 ib0"),
        ("eth0, eth1", "eth0"),
        ("=^eth0", ""),
        ("=,", " ".join(INTERFACES)),
        ("^,", ""),
        ("^=", ""),
        ("eth0:1", "eth0"),
        (",".join(f"x{n}" for n in range(16)) + ",eth0", ""),
    ],
)
def test_a_list_of_interfaces_is_read_as_nccl_reads_it(value, taken):
    named = nccl.parse_list(value)
    assert [name for name in INTERFACES if named.accepts(name)] == taken.split()


@pytest.mark.parametrize(
    ("value", "version", "taken"),
    [
        ("mlx5_1", None, "mlx5_1:1 mlx5_1:2 mlx5_10:1 mlx5_11:1"),
        ("=mlx5_1", None, "mlx5_1:1 mlx5_1:2"),
        ("=mlx5_0:1,mlx5_1:1", None, "mlx5_0:1 mlx5_1:1"),
        ("^=mlx5_0,^=mlx5_1", None, "mlx5_1:1 mlx5_1:2 mlx5_10:1 mlx5_11:1 mlx5_bond_0:1"),
        ("^=mlx5_1:1", None, "mlx5_0:1 mlx5_1:2 mlx5_10:1 mlx5_11:1 mlx5_bond_0:1"),
        ("mlx5_0 , mlx5_1", None, ""),
        ("mlx5_0:x", None, ""),
        ("mlx5_0::0:0", (2, 30, 7), "mlx5_0:1"),
        ("mlx5_0::0:0", (2, 30, 4), ""),
        ("mlx5_0:", (2, 27, 5), ""),
    ],
)
def test_a_list_of_hcas_is_read_as_nccl_reads_it(value, version, taken):
    named = nccl.parse_list(value, 32, version)
    assert [f"{name}:{port}" for name, port in PORTS if named.accepts(name, port)] == taken.split()


LO = interface("lo", 1, "127.0.0.1", "::1", kind="loopback")
ETH0 = interface("eth0", 2, "10.0.0.5", "fe80::5")
ETH1 = interface("eth1", 3, "10.1.0.5")
DOWN = interface("eno9", 2, "10.9.0.5", running=False)
DOCKER = interface("docker0", 4, "172.17.0.1")
VIRBR = interface("virbr0", 2, "192.168.122.1")
VETH = interface("veth12", 1, "fe80::12")
IB0 = interface("ib0", 7, "10.8.0.5")
OLD = (2, 21, 5)


@pytest.mark.parametrize(
    ("interfaces", "variables", "version", "by", "taken"),
    [
        ((LO, ETH1, ETH0), {}, None, "automatic", "eth0 eth1"),
        ((LO, ETH0, IB0), {}, None, "ib", "ib0"),
        ((LO, VETH, ETH0), {}, None, "automatic", "eth0 veth12"),
        ((LO, VIRBR, ETH1), {}, None, "automatic", "eth1"),
        ((LO, VIRBR, ETH1), {}, OLD, "automatic", "virbr0 eth1"),
        ((LO, DOWN, ETH1), {}, None, "automatic", "eth1"),
        ((LO, DOWN, ETH1), {}, OLD, "automatic", "eno9 eth1"),
        ((LO, DOCKER), {}, None, "docker", "docker0"),
        ((LO, VIRBR), {}, None, "lo", "lo"),
        ((VIRBR,), {}, None, "virbr", "virbr0"),
        ((LO, ETH0), {"NCCL_SOCKET_IFNAME": "^docker0"}, None, "NCCL_SOCKET_IFNAME", "lo eth0"),
        ((LO, ETH0), {"NCCL_SOCKET_IFNAME": "enp"}, None, "", ""),
        ((LO, ETH0), {"NCCL_SOCKET_IFNAME": "^"}, None, "automatic", "eth0"),
        ((LO, ETH0, ETH1), {"NCCL_SOCKET_FAMILY": "AF_INET6"}, None, "automatic", "eth0"),
        ((LO, ETH0, ETH1), {"NCCL_SOCKET_FAMILY": "ipv6"}, None, "automatic", "eth0 eth1"),
        ((LO, ETH0, ETH1), {"NCCL_COMM_ID": "10.1.0.9:29500"}, None, "NCCL_COMM_ID", "eth1"),
    ],
)
def test_interfaces_are_chosen_in_nccls_order(interfaces, variables, version, by, taken):
    found = nccl.sockets(interfaces, env(**variables), version)
    assert (found.by, [e.interface.name for e in found.endpoints]) == (by, taken.split())


def test_an_interface_is_used_with_its_ipv4_address():
    (endpoint,) = nccl.sockets((ETH0,), env()).endpoints
    assert endpoint.address.ip == "10.0.0.5"


@pytest.mark.parametrize(
    ("torch", "version"),
    [
        (Torch(nccl="2.10.3", nccl_loaded=LoadedLibrary("/x/libnccl.so.2", "2.18.1+cuda12.1")), (2, 18, 1)),
        (Torch(nccl="2.10.3", nvidia_packages={"nvidia-nccl-cu12": "2.21.5"}), (2, 10, 3)),
        (Torch(nvidia_packages={"nvidia-nccl-cu12": "2.21.5"}), (2, 21, 5)),
        (Torch(nccl="unknown"), None),
        (None, None),
    ],
)
def test_the_version_is_the_loaded_one_first(torch, version):
    assert nccl.version_of(torch) == version


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("true", 0), ("0x10", 16), ("010", 8), ("08", 0), (" -2", -2), ("4M", 4), ("", 0)]
)
def test_numbers_are_read_like_strtoll(text, number):
    assert nccl.integer(text) == number


HCA = device("mlx5_0", "ACTIVE")
EFA = device("efa_0", "ACTIVE", layer="Unspecified")


@pytest.mark.parametrize(
    ("facts", "variables", "kind"),
    [
        (rdma(HCA), {}, "rdma"),
        (rdma(HCA), {"NCCL_NET": "IB"}, "rdma"),
        (rdma(HCA), {"NCCL_IB_DISABLE": "true"}, "rdma"),
        (rdma(HCA), {"NCCL_IB_DISABLE": "1"}, "sockets"),
        (rdma(HCA), {"NCCL_NET": "socket"}, "sockets"),
        (rdma(HCA), {"NCCL_NET": "AWS Libfabric"}, "plug-in"),
        (rdma(HCA), {"NCCL_NET_PLUGIN": "none"}, "rdma"),
        (rdma(HCA), {"NCCL_IB_HCA": "mlx5_7"}, "sockets"),
        (rdma(HCA, nodes=()), {}, "sockets"),
        (rdma(HCA, writable=False), {}, "sockets"),
        (rdma(device("mlx5_0", "DOWN")), {}, "sockets"),
        (rdma(device("mlx5_0", None)), {}, "unknown"),
        (rdma(EFA), {}, "unknown"),
        (rdma(), {}, "sockets"),
        (Rdma(), {}, "unknown"),
        (None, {}, "unknown"),
    ],
)
def test_what_carries_the_data(facts, variables, kind):
    assert nccl.carrier(facts, env(**variables)).kind == kind


def test_without_ib_uverbs_no_device_can_be_opened():
    absent = RdmaDevice("mlx5_0", unread={"uverbs": Reason("absent", "no infiniband_verbs")})
    unsure = RdmaDevice("mlx5_0", unread={"uverbs": Reason("no-rights", "closed")})
    assert [nccl.node_of(rdma(), d) for d in (absent, unsure)] == [False, None]


def own(*addresses, interfaces=(LO, ETH0)):
    return Network(interfaces=interfaces, own_name=Resolved("node1", addresses))


@pytest.mark.parametrize(
    ("network", "address"),
    [
        (own("10.0.0.5"), "10.0.0.5"),
        (own("127.0.1.1", "10.0.0.5"), "127.0.1.1"),
        (own("203.0.113.9", "10.0.0.5"), "10.0.0.5"),
        (own("fe80::5%eth0"), "fe80::5%eth0"),
        (own("203.0.113.9"), None),
        (own(), None),
        (own("not an address"), None),
    ],
)
def test_gloo_takes_the_first_address_of_the_own_name_that_it_can_bind_to(network, address):
    assert nccl.own_address(network) == address


@pytest.mark.parametrize(
    ("value", "names"), [("eth0", ("eth0",)), ("eth0,eth1", ("eth0", "eth1")), ("^lo", ("^lo",)), ("", ())]
)
def test_gloo_takes_names_as_they_are(value, names):
    assert nccl.gloo_names(env(GLOO_SOCKET_IFNAME=value)) == names


@pytest.mark.parametrize(
    ("name", "kind", "nowhere"),
    [
        ("eth0", "veth", False),
        ("bond0.2093", "vlan", False),
        ("br0", "bridge", False),
        ("br-0123456789ab", "bridge", True),
        ("tailscale0", "tunnel", True),
        ("cali12ab", "veth", True),
        ("lo", "loopback", True),
        ("hsn0", "physical", False),
    ],
)
def test_local_interfaces_are_known_by_their_makers_names(name, kind, nowhere):
    assert nccl.leads_nowhere(Interface(name, kind=kind)) is nowhere


def wire(kind, speed, driver=None):
    return interface("enp3s0", 2, "10.0.0.5", kind=kind, speed_mbit_s=speed, driver=driver)


@pytest.mark.parametrize(
    ("facts", "network", "sentence"),
    [
        (
            rdma(),
            Network(interfaces=(LO, wire("physical", 1000))),
            "enp3s0 at 1 Gb/s: about 0.11 GB/s, slow but normal",
        ),
        (rdma(), Network(interfaces=(LO, wire("bond", 20000))), "enp3s0 at 20 Gb/s: about 2.2 GB/s"),
        (
            rdma(),
            Network(interfaces=(LO, wire("physical", 100000))),
            "enp3s0 at 100 Gb/s over TCP: a few GB/s, bound by the processors",
        ),
        (rdma(), Network(interfaces=(LO, wire("veth", 10000))), "enp3s0 (speed not known)"),
        (rdma(), Network(interfaces=(LO, wire("physical", 1000, "e1000"))), "enp3s0 (speed not known)"),
        (rdma(HCA), Network(), "1 InfiniBand port at 200 Gb/s: about 24 GB/s"),
        (rdma(HCA, HCA), Network(), "2 InfiniBand ports at 200 Gb/s: about 24 GB/s each"),
        (
            rdma(HCA, device("mlx5_1", "ACTIVE", layer="Ethernet", rate=25.0)),
            Network(),
            "2 InfiniBand and RoCE ports at 25 to 200 Gb/s",
        ),
    ],
)
def test_the_way_of_the_data_is_told_in_a_sentence(facts, network, sentence):
    assert nccl.traffic(network, facts, env()) == f"NCCL will use {sentence}"


def test_nothing_is_told_of_a_way_that_is_not_known():
    assert nccl.traffic(Network(interfaces=(LO, ETH0)), None, env()) == ""


# --------------------------------------------------------------------------- GIDs

LINK, V1, V2 = "fe80:0000:0000:0000:0ac0:ebff:fe00:0001", "IB/RoCE v1", "RoCE v2"


def gid(index, address, kind):
    """A row of the table, IPv4 addresses mapped as the kernel does it."""
    numbers = [int(part) for part in address.split(".")] if "." in address else []
    mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*numbers) if numbers else address
    return Gid(index, mapped, kind)


def table(*addresses):
    """Each address twice, for both versions, as the kernel lists them."""
    return tuple(gid(n, address, (V1, V2)[n % 2]) for n, address in enumerate(a for a in addresses for _ in range(2)))


USUAL = table(LINK, "10.0.0.1")


@pytest.mark.parametrize(
    ("gids", "variables", "version", "index"),
    [
        (USUAL, {}, None, 3),
        (table(LINK, "10.0.0.1", "192.168.1.5"), {}, None, 3),
        (table(LINK, "10.0.0.1", "192.168.1.5"), {"NCCL_IB_ADDR_RANGE": "192.168.0.0/16"}, None, 5),
        (table(LINK, "10.0.0.1"), {"NCCL_IB_ADDR_RANGE": "192.168.0.0"}, None, 3),
        (table(LINK, "10.0.0.1"), {"NCCL_IB_ADDR_RANGE": "fd00::/8"}, None, 3),
        (table(LINK, "fd00::5"), {}, None, 0),
        (table(LINK, "fd00::5"), {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, None, 3),
        (table(LINK), {}, None, 0),
        (USUAL, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, None, 2),
        (USUAL, {"NCCL_IB_GID_INDEX": "1"}, (2, 30, 7), 1),
        (USUAL, {"NCCL_IB_GID_INDEX": "-1"}, (2, 21, 5), 3),
        (USUAL, {}, (2, 21, 5), 3),
        (USUAL, {}, (2, 20, 5), 0),
        ((gid(0, LINK, None), gid(1, "10.0.0.1", None)), {}, None, 1),
        ((gid(4, "10.0.0.1", V2),), {}, None, 4),
    ],
)
def test_the_gid_that_nccl_walks_to(gids, variables, version, index):
    port = RdmaPort(1, link_layer="Ethernet", gids=gids)
    assert nccl.gid_choice(port, env(**variables), version).index == index


@pytest.mark.parametrize(
    "port", [RdmaPort(1, link_layer="InfiniBand", gids=USUAL), RdmaPort(1, link_layer="Ethernet", gids=None)]
)
def test_no_gid_is_chosen_on_infiniband_and_without_a_table(port):
    assert nccl.gid_choice(port, env()) is None


def test_what_a_gid_says():
    row = gid(3, "10.0.0.1", V2)
    assert (str(nccl.gid_ip(row)), nccl.gid_family(row), nccl.roce_version(row)) == ("10.0.0.1", 4, 2)
    assert (nccl.is_routable(row), nccl.is_routable(gid(0, LINK, V1)), nccl.is_routable(None)) == (True, False, False)
    assert nccl.gid_ip(Gid(0, "no address")) is None


@pytest.mark.parametrize("text", ["9" * 5000 + ".1", "2." + "9" * 5000 + ".1", "\u00b2.1", ""])
def test_a_version_without_end_is_none_or_short(text: str) -> None:
    found = nccl.version_of(Torch(nccl=text))
    assert found is None or max(found) < 10**9

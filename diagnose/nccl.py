"""NCCL's and Gloo's own choices, predicted from facts: interfaces, RDMA ports, the network that carries the data.

The rules are those of NVIDIA/nccl as of v2.30.7-1 (src/misc/socket.cc, src/misc/utils.cc, src/os/linux.cc,
src/transport/net_ib/init.cc, src/plugin/net.cc) and, where they differ, of the older tags that are named.
"""

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from ddp_doctor.facts import Address, Env, Gid, Interface, Network, Rdma, RdmaDevice, RdmaPort, Torch
from ddp_doctor.remembered import by_identity

Version = Tuple[int, ...]
Ip = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Subnet = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

NEWEST: Version = (2, 30, 7)
"""The rules that are taken where the version of NCCL is not known."""
RUNNING_SINCE: Version = (2, 28, 3)
"""From here on an interface must have IFF_RUNNING, and virbr* comes last like docker* and lo*."""
MAX_INTERFACES = 16
"""MAX_IFS: more tokens, and more interfaces, are dropped without a word."""
ANY_PORT = -1


@by_identity
def version_of(torch: Optional[Torch]) -> Optional[Version]:
    """The NCCL that this torch will use, as numbers: the loaded one, else the one torch names, else the wheel's."""
    if torch is None:
        return None
    wheels = (v for name, v in (torch.nvidia_packages or {}).items() if name.startswith("nvidia-nccl"))
    texts = (torch.nccl_loaded.version if torch.nccl_loaded else None, torch.nccl, *wheels)
    found = (re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", text or "") for text in texts)
    return next((tuple(int(n or 0) for n in match.groups()) for match in found if match), None)


def lacks(torch: Optional[Torch]) -> bool:
    """Is this torch known to have no NCCL: by its own list of back ends, or as a build for processors alone?"""
    if torch is None or torch.backends is not None:
        return torch is not None and "nccl" not in (torch.backends or ())
    return torch.cuda == "" and not torch.hip


def integer(text: Optional[str]) -> int:
    """An integer variable as NCCL reads it: strtoll with base 0, so that "true" is 0 and "0x10" is 16 (src/misc/param.cc)."""
    found = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text or "")
    if not found:
        return 0
    sign, digits = found.groups()
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    value = min(int(digits[:64], base), 2**63 - 1)  # strtoll stops at the largest long long
    return value * (-1 if sign == "-" else 1)


# --------------------------------------------------------------------------- the grammar of name lists


@dataclass(frozen=True)
class Token:
    """One name of a list, with the port that it asks for."""

    name: str
    port: int = ANY_PORT


@dataclass(frozen=True)
class NameList:
    """A value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA. Without ``exact`` a name is a prefix; an empty list takes all."""

    tokens: Tuple[Token, ...]
    negated: bool = False
    exact: bool = False

    def takes(self, token: Token, name: str, port: int = ANY_PORT) -> bool:
        """Does one token of the list take this interface or HCA port?"""
        same = name == token.name if self.exact else name.startswith(token.name)
        return same and (ANY_PORT in (port, token.port) or port == token.port)

    def accepts(self, name: str, port: int = ANY_PORT) -> bool:
        """Does the whole list admit this interface or HCA port?"""
        listed = not self.tokens or any(self.takes(token, name, port) for token in self.tokens)
        return listed != self.negated


def parse_list(value: str, limit: int = MAX_INTERFACES, version: Optional[Version] = None) -> NameList:
    """Read a list as parseStringList does: "^" and "=" count once, at the start, in this order; nothing is trimmed."""
    negated = value.startswith("^")
    value = value[1:] if negated else value
    exact = value.startswith("=")
    parts = (part.partition(":") for part in (value[1:] if exact else value).split(","))
    tokens = [Token(name[:63], _port(colon, rest, version or NEWEST)) for name, colon, rest in parts if name]
    return NameList(tuple(tokens[:limit]), negated, exact)


def _port(colon: str, text: str, version: Version) -> int:
    """The port of a token; before 2.30.7 everything after the first colon went through atoi, so that nothing is port 0."""
    if version >= NEWEST:
        text = text.split(":")[0]
        colon = text and colon
    found = re.match(r"\s*[+-]?\d+", text)
    return ANY_PORT if not colon else int(found.group()) if found else 0


def hca_list(env: Optional[Env], version: Optional[Version] = None) -> Optional[NameList]:
    """NCCL_IB_HCA, or None when it is unset. 16 devices up to 2.18.3, 32 from 2.18.5 (MAX_IB_DEVS)."""
    value = env.get("NCCL_IB_HCA") if env else None
    limit = 32 if (version or NEWEST) >= (2, 18, 5) else 16
    return parse_list(value, limit, version) if value else None


def socket_list(env: Optional[Env]) -> Optional[NameList]:
    """NCCL_SOCKET_IFNAME, or None when it is unset or shorter than two characters, which NCCL takes for unset."""
    value = env.get("NCCL_SOCKET_IFNAME") if env else None
    return parse_list(value) if value and len(value) > 1 else None


# --------------------------------------------------------------------------- interfaces


@dataclass(frozen=True)
class Endpoint:
    """An interface with the address that would be used of it."""

    interface: Interface
    address: Address


@dataclass(frozen=True)
class Sockets:
    """Interfaces that NCCL takes, in its order. The first one serves bootstrap, all of them NET/Socket.

    by: what decided: "NCCL_SOCKET_IFNAME", "ib", "NCCL_COMM_ID", "automatic", "docker", "lo" or "virbr"; "" for none.
    """

    endpoints: Tuple[Endpoint, ...]
    by: str = ""


@by_identity
def sockets(interfaces: Sequence[Interface], env: Optional[Env], version: Optional[Version] = None) -> Sockets:
    """The interfaces that NCCL will take on this node (ncclFindInterfaces)."""
    version = version or NEWEST
    found = _endpoints(interfaces, env.get("NCCL_SOCKET_FAMILY") if env else None, version)
    named = socket_list(env)
    if named is not None:
        taken = _first_of_each(e for e in found if named.accepts(e.interface.name))
        return Sockets(taken, "NCCL_SOCKET_IFNAME" if taken else "")
    for by, taken in _automatic(found, env, version):
        if taken:
            return Sockets(taken, by)
    return Sockets(())


def _automatic(
    found: List[Endpoint], env: Optional[Env], version: Version
) -> Iterator[Tuple[str, Tuple[Endpoint, ...]]]:
    """Steps of the automatic choice in their order; the first that finds something wins."""
    late = ("docker", "lo", "virbr") if version >= RUNNING_SINCE else ("docker", "lo")
    yield "ib", _first_of_each(e for e in found if e.interface.name.startswith("ib"))
    yield "NCCL_COMM_ID", _in_subnet_of(found, env.get("NCCL_COMM_ID") if env else None)
    yield "automatic", _first_of_each(e for e in found if not e.interface.name.startswith(late))
    for name in late:
        yield name, _first_of_each(e for e in found if e.interface.name.startswith(name))


def _endpoints(interfaces: Sequence[Interface], family: Optional[str], version: Version) -> List[Endpoint]:
    """getifaddrs() as NCCL walks it: IPv4 by index, then IPv6 by index, global before link-local."""
    wanted = {"AF_INET": "ipv4", "AF_INET6": "ipv6"}.get(family or "", "")
    found = [
        Endpoint(interface, address)
        for interface in interfaces
        if version < RUNNING_SINCE or interface.running is not False
        for address in interface.addresses or ()
        if address.family == wanted or (not wanted and address.family in ("ipv4", "ipv6"))
        if address.ip != "::1"
    ]
    return sorted(found, key=_order)


def _order(endpoint: Endpoint) -> Tuple[bool, float, bool]:
    index, address = endpoint.interface.index, endpoint.address
    return address.family == "ipv6", float("inf") if index is None else index, is_link_local(address.ip)


def _first_of_each(endpoints: Iterable[Endpoint]) -> Tuple[Endpoint, ...]:
    """The first address of every interface: one with IPv4 and IPv6 is used with its IPv4."""
    found: Dict[str, Endpoint] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.interface.name, endpoint)
    return tuple(found.values())[:MAX_INTERFACES]


def _in_subnet_of(endpoints: Sequence[Endpoint], comm_id: Optional[str]) -> Tuple[Endpoint, ...]:
    """The interface in whose subnet the address of NCCL_COMM_ID ("10.0.0.1:29500") lies; PyTorch does not set it."""
    target = ip_of((comm_id or "").rpartition(":")[0].strip("[]"))
    inside = (e for e in endpoints if target is not None and target in (network_of(e.address) or ()))
    return _first_of_each(inside)[:1]


@lru_cache(maxsize=4096)
def ip_of(text: str) -> Optional[Ip]:
    """An address without its zone, or None for what is none."""
    try:
        return ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return None


def network_of(address: Address) -> Optional[Subnet]:
    """Subnet of an interface's address, or None for what is none."""
    try:
        return ipaddress.ip_network(f"{address.ip.split('%')[0]}/{address.prefix}", strict=False)
    except ValueError:
        return None


def is_loopback(ip: str) -> bool:
    """127.0.0.0/8 or ::1."""
    found = ip_of(ip)
    return bool(found and found.is_loopback)


def is_link_local(ip: str) -> bool:
    """169.254.0.0/16 or fe80::/10: valid on one link only."""
    found = ip_of(ip)
    return bool(found and found.is_link_local)


LOCAL_NAMES = (
    r"docker\d*|docker_gwbridge|br-[0-9a-f]{12}|virbr\d+(-nic)?|vnet\d+|veth.+|cni\d+|cni-podman\d+|podman\d+|lxcbr\d+|"
    r"lxdbr\d+|lxc.+|cali.+|cilium_.+|flannel.*|kube-.+|nodelocaldns|vxlan\.calico|weave|vmnet\d+|vboxnet\d+|dummy\d+|"
    r"tun\d+|tap.+|wg.+|tailscale\d+|zt.+|utun\d+|ppp\d+|sit\d+|ip6tnl\d+"
)
"""Interfaces that lead into this node, its containers or a tunnel, by the names that their makers give them."""


def leads_nowhere(interface: Interface) -> bool:
    """Is it doubtful that other nodes can be reached here? Judged by name: in a pod the good eth0 is a veth."""
    return interface.kind == "loopback" or re.fullmatch(LOCAL_NAMES, interface.name) is not None


def reaches_others(interface: Interface) -> bool:
    """Is it up, with an address that other nodes could reach, and no bridge or tunnel of this node's own?"""
    addresses = (a.ip for a in interface.addresses or ())
    good = any(not is_loopback(ip) and not is_link_local(ip) for ip in addresses)
    return good and interface.up is not False and interface.running is not False and not leads_nowhere(interface)


# --------------------------------------------------------------------------- Gloo


def gloo_names(env: Optional[Env]) -> Tuple[str, ...]:
    """Names in GLOO_SOCKET_IFNAME: exact ones, no prefixes and no "^" or "=" (ProcessGroupGloo.cpp)."""
    value = env.get("GLOO_SOCKET_IFNAME") if env else None
    return tuple(value.split(",")) if value and len(value) > 1 else ()


def own_address(network: Network) -> Optional[str]:
    """The first address of the own host name that a socket here can be bound to: Gloo's default.

    None when there is none; Gloo then falls back to the loopback address. Where ``own_name`` is None it cannot be told.
    """
    here = {ip_of(a.ip) for interface in network.interfaces or () for a in interface.addresses or ()} - {None}
    resolved = network.own_name.addresses if network.own_name else ()
    return next((ip for ip in resolved if is_loopback(ip) or ip_of(ip) in here), None)


# --------------------------------------------------------------------------- RDMA ports


@dataclass(frozen=True)
class HcaPort:
    """A port of an HCA (host channel adapter: a network card that does RDMA)."""

    device: RdmaDevice
    port: RdmaPort

    @property
    def name(self) -> str:
        """mlx5_0:1, as NCCL_IB_HCA and NCCL's log write it."""
        return f"{self.device.name}:{self.port.port}"

    @property
    def active(self) -> Optional[bool]:
        """NCCL takes ports in the state ACTIVE only; None where the state could not be read."""
        return None if self.port.state is None else self.port.state == "ACTIVE"


@by_identity
def hca_ports(devices: Sequence[RdmaDevice], env: Optional[Env], version: Optional[Version] = None) -> List[HcaPort]:
    """Ports that NCCL_IB_HCA admits, whatever their state. EFA and the like have no such link layer: they need a plug-in."""
    named = hca_list(env, version)
    return [
        HcaPort(device, port)
        for device in devices
        for port in device.ports or ()
        if port.link_layer in ("InfiniBand", "Ethernet", None)
        if named is None or named.accepts(device.name, port.port)
    ]


def by_layer(ports: Iterable[HcaPort]) -> Dict[str, List[HcaPort]]:
    """InfiniBand, RoCE -> their ports; what has most bandwidth together comes first."""
    found: Dict[str, List[HcaPort]] = {}
    for port in ports:
        found.setdefault("RoCE" if port.port.link_layer == "Ethernet" else "InfiniBand", []).append(port)
    return dict(sorted(found.items(), key=lambda item: -sum(port.port.rate_gbit_s or 0 for port in item[1])))


def node_of(rdma: Rdma, device: RdmaDevice) -> Optional[bool]:
    """May this process open the device's /dev/infiniband/uverbsN? None where that could not be read."""
    if rdma.device_nodes is None:
        return None
    if device.uverbs is None:  # absent: the module ib_uverbs has not made one
        return False if "uverbs" in device.unread and device.unread["uverbs"].kind == "absent" else None
    nodes = (node for node in rdma.device_nodes if node.path == f"/dev/infiniband/{device.uverbs}")
    return next((None if None in (n.readable, n.writable) else bool(n.readable and n.writable) for n in nodes), False)


def opens(rdma: Rdma, device: RdmaDevice) -> Optional[bool]:
    """Can NCCL open the device? What libibverbs said counts, else what may be told of its /dev/infiniband/uverbsN."""
    return node_of(rdma, device) if device.verbs is None else device.verbs == "opens"


# --------------------------------------------------------------------------- GIDs of RoCE ports

GID_WALK_SINCE: Version = (2, 21)
"""From here on NCCL looks for a GID by itself; before, NCCL_IB_GID_INDEX was 0 where it was not set."""


@dataclass(frozen=True)
class GidChoice:
    """The row of a RoCE port's GID table that NCCL takes; ``gid`` is None where nothing is in that row.

    by: "NCCL_IB_GID_INDEX=3", "NCCL's own choice" or "the default before NCCL 2.21".
    """

    index: int
    gid: Optional[Gid]
    by: str


def gid_choice(port: RdmaPort, env: Optional[Env], version: Optional[Version] = None) -> Optional[GidChoice]:
    """What NCCL takes on a RoCE port (ncclIbGetGidIndex); None for InfiniBand and where the table could not be read."""
    if port.gids is None or port.link_layer != "Ethernet":
        return None
    asked = env.get("NCCL_IB_GID_INDEX") if env else None
    walks = (version or NEWEST) >= GID_WALK_SINCE
    index = integer(asked) if asked else -1 if walks else 0
    by = f"NCCL_IB_GID_INDEX={asked}" if asked else "the default before NCCL 2.21"
    if index < 0 and walks:
        index, by = _walk(port.gids, env), "NCCL's own choice"
    return GidChoice(index, next((gid for gid in port.gids if gid.index == index), None), by)


def _walk(gids: Sequence[Gid], env: Optional[Env]) -> int:
    """The row on which ncclUpdateGidIndex ends, going through the table from row 0."""
    rows = {gid.index: gid for gid in gids}
    wanted = 6 if env and env.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else 4
    roce = integer(env.get("NCCL_IB_ROCE_VERSION_NUM")) if env and env.get("NCCL_IB_ROCE_VERSION_NUM") else 2
    inside = _range(env, wanted)
    index = 0
    for number in sorted(rows.keys() - {0}):
        here, there = rows.get(index), rows[number]
        if gid_family(there) != wanted or not inside(there):
            continue
        other_family = gid_family(here) != wanted
        better = is_routable(there) and roce_version(there) == roce
        if other_family or (better and (roce_version(here) != roce or not is_routable(here))):
            index = number
    return index


def _range(env: Optional[Env], family: int) -> Callable[[Gid], bool]:
    """Does a GID lie in NCCL_IB_ADDR_RANGE? A range of the other family or of no sense is ignored: all do."""
    text = (env.get("NCCL_IB_ADDR_RANGE") if env else None) or ""
    try:
        net = ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        net = None
    if net is None or net.version != family:
        return lambda gid: True
    return lambda gid: gid_ip(gid) in net


def gid_ip(gid: Optional[Gid]) -> Optional[Ip]:
    """The address in a GID: the IPv4 one where it is mapped (::ffff:10.0.0.1); None for no GID."""
    found = ip_of(gid.gid) if gid is not None else None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def gid_family(gid: Optional[Gid]) -> int:
    """4 for an IPv4-mapped GID, else 6."""
    found = gid_ip(gid)
    return 4 if found is not None and found.version == 4 else 6


def is_routable(gid: Optional[Gid]) -> bool:
    """Is it configured and not link-local?"""
    found = gid_ip(gid)
    return found is not None and not found.is_link_local and not found.is_unspecified


def roce_version(gid: Optional[Gid]) -> Optional[int]:
    """1 of "IB/RoCE v1", 2 of "RoCE v2"; None where the type could not be read."""
    found = re.search(r"v([12])", gid.type or "") if gid is not None else None
    return int(found.group(1)) if found else None


# --------------------------------------------------------------------------- what carries the data


@dataclass(frozen=True)
class Carrier:
    """What will carry the data between nodes. kind: "rdma", "sockets", "plug-in" or "unknown"; why: in words."""

    kind: str
    why: str
    ports: Tuple[HcaPort, ...] = ()


@by_identity
def carrier(rdma: Optional[Rdma], env: Optional[Env], version: Optional[Version] = None) -> Carrier:
    """The network that NCCL will take (ncclNetInit): a plug-in, its own InfiniBand and RoCE, or TCP sockets."""
    return overridden(env) or _own_network(rdma, env, version)


def overridden(env: Optional[Env]) -> Optional[Carrier]:
    """What the environment sets in place of NCCL's own InfiniBand and RoCE, or None."""
    asked = (env.get("NCCL_NET") if env else None) or ""
    plugin = (env.get("NCCL_NET_PLUGIN") if env else None) or ""
    if asked.lower() == "socket":
        return Carrier("sockets", f"NCCL_NET={asked}")
    if asked and asked.lower() != "ib":
        return Carrier("plug-in", f"NCCL_NET={asked}")
    if plugin and plugin != "none" and not asked:
        return Carrier("plug-in", f"NCCL_NET_PLUGIN={plugin}")
    if env and integer(env.get("NCCL_IB_DISABLE")):
        return Carrier("sockets", "NCCL_IB_DISABLE is set")
    return None


@by_identity
def _own_network(rdma: Optional[Rdma], env: Optional[Env], version: Optional[Version]) -> Carrier:
    if rdma is None or rdma.devices is None:
        return Carrier("unknown", "the RDMA devices could not be read")
    ports = hca_ports(rdma.devices, env, version)
    if rdma.verbs_library == "" and any(port.active for port in ports):
        return Carrier("sockets", "libibverbs.so.1 is not on the library path")
    open_to_us = [port for port in ports if port.active and opens(rdma, port.device) is not False]
    if open_to_us:
        return Carrier("rdma", "", tuple(open_to_us))
    if any(port.active is None for port in ports):
        return Carrier("unknown", "the state of the RDMA ports could not be read")
    foreign = [d.name for d in rdma.devices if d.ports and all(p.link_layer == "Unspecified" for p in d.ports)]
    if foreign:
        return Carrier("unknown", f"{', '.join(foreign)}: used through a plug-in such as aws-ofi-nccl only")
    return Carrier("sockets", "no RDMA port that NCCL could use" if rdma.devices else "no RDMA device")


# --------------------------------------------------------------------------- how fast that is

TCP_SHARE = 0.9
"""Share of an Ethernet's line rate that NCCL's sockets reach up to 25 Gb/s. TCP's payload is 1448 of 1538 bytes on the wire
(94 %) at MTU 1500; measured and expected are 0.11 GB/s at 1 Gb/s, 1.0 to 1.18 at 10 Gb/s, 2.5 to 2.9 at 25 Gb/s."""
TCP_WIRE_BOUND_GBIT_S = 25.0
"""Beyond this the processors bound TCP, not the wire: 1.3 to 5.2 GB/s were measured at 100 Gb/s (NVIDIA/nccl issue 450)."""
RDMA_SHARE = 0.94
"""Share of the line rate that RDMA reaches: 24 GB/s at 200 Gb/s, 46 to 48 at 400 (NVIDIA/nccl-tests issues 290, 119)."""


def socket_gb_s(speed_gbit_s: float) -> Optional[float]:
    """Expected bandwidth in GB/s (10^9 bytes) of NCCL's sockets at a link speed; None where the wire is not the bound."""
    return TCP_SHARE * speed_gbit_s / 8 if speed_gbit_s <= TCP_WIRE_BOUND_GBIT_S else None


def rdma_gb_s(speed_gbit_s: float) -> float:
    """Expected bandwidth in GB/s of one RDMA port."""
    return RDMA_SHARE * speed_gbit_s / 8


_MADE_UP = frozenset(("e1000", "8139cp", "8139too", "pcnet32"))
"""Drivers of NICs that today exist as a hypervisor's imitation only; the collector knows the paravirtual ones."""


WIRED_KINDS = ("physical", "bond", "vlan", "ipoib", "macvlan", "wireless")
"""Kinds of interface whose stated speed is that of something real."""


def wire_speed_gbit_s(interface: Interface) -> Optional[float]:
    """Link speed of a real wire; None for virtual NICs (veth says 10 Gb/s, virtio and ENA -1) and where it is not known."""
    if interface.kind not in WIRED_KINDS or interface.driver in _MADE_UP or interface.speed_mbit_s is None:
        return None
    return interface.speed_mbit_s / 1000


def fastest(endpoints: Sequence[Endpoint]) -> Optional[Endpoint]:
    """The endpoint with the fastest wire, else the first: NCCL's search prefers the network devices with most bandwidth."""
    return max(endpoints, key=lambda e: wire_speed_gbit_s(e.interface) or 0.0) if endpoints else None


def traffic(
    network: Optional[Network],
    rdma: Optional[Rdma],
    env: Optional[Env],
    torch: Optional[Torch] = None,
    gpus: Optional[int] = None,
) -> str:
    """One sentence on how data will go between nodes: "NCCL will use enp3s0 at 1 Gb/s: about 0.11 GB/s, slow but normal".

    gpus: those of the job on this node; fewer of them than of RDMA ports need not use all ports.
    """
    version = version_of(torch)
    way = carrier(rdma, env, version)
    if way.kind == "rdma":
        some = "up to " if gpus is not None and gpus < len(way.ports) else ""
        return f"NCCL will use {some}{rdma_words(way.ports)}"
    if way.kind == "plug-in":
        return f"NCCL will use a network plug-in ({way.why})"
    found = sockets(network.interfaces, env, version) if network and network.interfaces else Sockets(())
    best = fastest(found.endpoints)
    if best is None or way.kind == "unknown":
        return ""
    return f"NCCL will use {speed_words(best.interface)}"


def speed_words(interface: Interface) -> str:
    """enp3s0 at 1 Gb/s: about 0.11 GB/s, slow but normal."""
    speed = wire_speed_gbit_s(interface)
    if interface.running is False:
        return f"{interface.name}, which has no link"
    if speed is None:
        return f"{interface.name} (speed not known)"
    rate = socket_gb_s(speed)
    if rate is None:
        return f"{interface.name} at {speed:g} Gb/s over TCP: a few GB/s, bound by the processors"
    slow = ", slow but normal" if speed < 10 else ""  # 10 Gb/s: where the check network/slow-interface draws the line
    return f"{interface.name} at {speed:g} Gb/s: about {rate:.2g} GB/s{slow}"


def rdma_words(ports: Sequence[HcaPort]) -> str:
    """8 InfiniBand ports at 200 Gb/s: about 24 GB/s each."""
    layers = sorted({"RoCE" if p.port.link_layer == "Ethernet" else "InfiniBand" for p in ports})
    rates = sorted({p.port.rate_gbit_s for p in ports if p.port.rate_gbit_s})
    words = f"{len(ports)} {' and '.join(layers)} {'port' if len(ports) == 1 else 'ports'}"
    if len(rates) != 1:
        return words + (f" at {rates[0]:g} to {rates[-1]:g} Gb/s" if rates else "")
    return f"{words} at {rates[0]:g} Gb/s: about {rdma_gb_s(rates[0]):.2g} GB/s{' each' if len(ports) > 1 else ''}"

"""What must agree for nodes to reach one another."""

from dataclasses import replace
from typing import Any, Dict, Iterator, List, Tuple

from ddp_doctor.checks.fleet._compare import agree, agree_by_subject
from ddp_doctor.cluster.fleet import Fleet
from ddp_doctor.cluster.folding import shortened
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.policy import Policy


@check(Severity.ERROR, several_nodes=True)
def same_address(fleet: Fleet) -> Iterator[Reading]:
    """Two machines have the same address on an interface that NCCL would use.

    Why: Packets go to whichever of them answered last: connections break or reach the wrong machine. Bridges of containers,
        whose addresses are the same everywhere, are not looked at.
    See: https://www.rfc-editor.org/rfc/rfc5227
    """
    owners: Dict[str, List[str]] = {}
    for node, addresses in fleet.addresses.values.items():
        for address in addresses:
            owners.setdefault(address, []).append(node)
    machines = fleet.boot_id.values
    twice = {ip: nodes for ip, nodes in owners.items() if len({machines.get(node, node) for node in nodes}) > 1}
    for ip, nodes in twice.items():
        yield Reading(
            ok=False,
            nodes=tuple(nodes),
            subject=ip,
            measured=f"{ip} on {shortened(nodes)}",
            expected="an address of its own on each machine",
            message=f"another machine has the address {ip} too",
        )
    clashing = {node for nodes in twice.values() for node in nodes}
    own = tuple(node for node in fleet.addresses.values if node not in clashing)
    if own:
        yield Reading(
            ok=True, nodes=own, measured="addresses of its own", expected="an address of its own on each machine"
        )


@check(Severity.ERROR, several_nodes=True)
def transport_differs(fleet: Fleet) -> Iterator[Reading]:
    """NCCL would use RDMA on some nodes and TCP on others.

    Why: Both ends of a connection must speak the same: a rank that found no usable HCA offers TCP sockets to peers that
        expect InfiniBand or RoCE, and the job ends or hangs when the first channel is set up.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    yield from agree(fleet.transport, "another way between nodes than the other nodes take", "by {}".format)


@check(Severity.ERROR, several_nodes=True)
def address_family_differs(fleet: Fleet) -> Iterator[Reading]:
    """NCCL would meet by IPv4 on some nodes and by IPv6 on others.

    Why: A node without an IPv4 address on the interface in question cannot reach the others' IPv4 addresses: ranks do not
        find one another.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-family
    """
    yield from agree(fleet.address_family, "another kind of address than on the other nodes")


@check(Severity.WARNING, several_nodes=True)
def mtu_differs(fleet: Fleet) -> Iterator[Reading]:
    """The MTU of the interfaces that NCCL would use differs between nodes.

    Why: Small packets pass and full ones of the node with the larger MTU are dropped where something on the way holds them
        for too large: connections are made and then hang. Where it works, it works at the smaller one.
    See: https://www.rfc-editor.org/rfc/rfc4821
    """
    yield from agree(fleet.mtu_bytes, "another MTU than on the other nodes", "MTU {} bytes".format)


@check(Severity.WARNING, several_nodes=True)
def link_speed_differs(fleet: Fleet) -> Iterator[Reading]:
    """The link of a node is of another speed than the others'.

    Why: All ranks wait for the slowest link: a port that came up at 1 Gb/s among ones of 25 Gb/s is a cable, a transceiver
        or a switch port.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    yield from agree(fleet.link_gbit_s, "another link speed than on the other nodes", "{:g} Gb/s".format)


@check(Severity.NOTE)
def interface_names_differ(fleet: Fleet) -> Iterator[Reading]:
    """The interface that NCCL would use has another name on some nodes.

    Why: NCCL chooses on each node by itself, so this is no fault; but one NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME for all
        nodes then names an interface that some of them do not have.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    yield from agree(fleet.interfaces, "interfaces of other names than on the other nodes", ", ".join)


@check(Severity.ERROR, several_nodes=True)
def master_resolves_differently(fleet: Fleet) -> Iterator[Reading]:
    """The master's name stands for different addresses on different nodes.

    Why: A stale line of /etc/hosts or another DNS server sends the ranks of one node to another machine: they wait for a
        master that never answers. The master's own answer, which may be its loopback address, is not compared.
    See: https://man7.org/linux/man-pages/man5/hosts.5.html
    """
    by_name: Dict[str, Dict[str, Any]] = {}
    for node, (name, addresses) in fleet.master_addresses.values.items():
        by_name.setdefault(name, {})[node] = addresses
    for name, values in by_name.items():
        column = replace(fleet.master_addresses, values=values)
        words = lambda ips, name=name: f"{name} is {', '.join(ips)}"  # noqa: E731
        yield from agree(column, f"{name} stands for another address than on the other nodes", words, name)


# --------------------------------------------------------------------------- RDMA


@check(Severity.WARNING, several_nodes=True)
def hcas_differ(fleet: Fleet, policy: Policy) -> Iterator[Reading]:
    """NCCL would use other RDMA ports, or as many in another order, than on the other nodes.

    Why: NCCL pairs ports by their place in the list: with a port missing, or two exchanged, data of one rail goes over the
        switches to another, or a GPU shares its port. A port that is down on one node is the usual reason.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    column = fleet.hcas.map(lambda names: tuple(n for n in names if not {n, n.split(":")[0]} & set(policy.ignore_hcas)))
    yield from agree(column, "other RDMA ports than on the other nodes", _ports)


def _ports(names: Tuple[str, ...]) -> str:
    return f"{len(names)}: {', '.join(names)}"


@check(Severity.WARNING, several_nodes=True)
def rdma_rate_differs(fleet: Fleet, policy: Policy) -> Iterator[Reading]:
    """An RDMA port runs at another rate than the same port of the other nodes.

    Why: All ranks wait for the slowest rail; a port that came up with fewer lanes or at a lower rate is a cable or a
        transceiver.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    words = "{:g} Gb/s".format
    yield from agree_by_subject(
        fleet.rdma_rates, "another rate than on the other nodes", words, None, policy.ignore_hcas
    )


@check(Severity.WARNING, several_nodes=True)
def rdma_mtu_differs(fleet: Fleet, policy: Policy) -> Iterator[Reading]:
    """The active MTU of an RDMA port differs between nodes.

    Why: Both ends of a connection use the smaller one: more packets, less bandwidth. On RoCE it follows from the
        interface's MTU, which then is smaller on that node.
    See: https://www.ibm.com/docs/en/linux-on-systems?topic=functions-set-mtu
    """
    words = "active MTU {} bytes".format
    yield from agree_by_subject(
        fleet.rdma_mtu_bytes, "another RDMA MTU than on the other nodes", words, None, policy.ignore_hcas
    )


@check(Severity.WARNING, several_nodes=True)
def subnet_manager_differs(fleet: Fleet, policy: Policy) -> Iterator[Reading]:
    """An InfiniBand port obeys another subnet manager than the same port of the other nodes.

    Why: It then hangs on another fabric, by a cable in the wrong switch, and cannot reach its peers; or two subnet managers
        each take themselves for the master of one fabric.
    See: https://raw.githubusercontent.com/linux-rdma/opensm/master/doc/partition-config.txt
    """
    words = "subnet manager at LID {}".format
    yield from agree_by_subject(
        fleet.subnet_managers, "another subnet manager than on the other nodes", words, None, policy.ignore_hcas
    )


@check(Severity.ERROR, several_nodes=True)
def gid_kinds_differ(fleet: Fleet, policy: Policy) -> Iterator[Reading]:
    """The GID that NCCL would take of a RoCE port is of another kind than on the other nodes.

    Why: RoCE v1 and v2, and IPv4 and IPv6 addresses, do not reach one another: the queue pair is set up and every message
        times out. One fixed NCCL_IB_GID_INDEX means another row on a node whose table has another order.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index
    """
    yield from agree_by_subject(
        fleet.gid_kinds, "another kind of GID than on the other nodes", str, None, policy.ignore_hcas
    )


@check(Severity.WARNING, several_nodes=True)
def flow_control_differs(fleet: Fleet, policy: Policy) -> Iterator[Reading]:
    """Flow control of a RoCE port is set otherwise than on the other nodes.

    Why: A node that marks its packets with another class, or does not pause in the same priority, loses packets when the
        network is full; RoCE resends from the loss on, and all wait.
    See: https://docs.nvidia.com/networking/display/mlnxofedv522230/flow+control
    """
    yield from agree_by_subject(
        fleet.flow_control, "other flow control than on the other nodes", str, None, policy.ignore_hcas
    )


@check(Severity.NOTE)
def firmware_differs(fleet: Fleet) -> Iterator[Reading]:
    """Adapters of one kind (PSID) have different firmware.

    Why: It mostly works; a fault of one firmware then shows on some nodes alone, and hours go by before anybody compares.
    See: https://docs.nvidia.com/networking/display/mlnxofedv24100700/updating+firmware+after+installation
    """
    yield from agree_by_subject(fleet.firmware, "other adapter firmware than on the other nodes", "firmware {}".format)

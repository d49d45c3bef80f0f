"""Checks of the links of RDMA ports: speed, packets, partitions, firmware, addresses, priorities."""

import re
from typing import Dict, Iterator, List, Optional, Tuple

from ddp_doctor import nccl, thresholds
from ddp_doctor.checks.rdma._chosen import chosen, interface_named, is_roce
from ddp_doctor.facts import PKEY_ROWS, Env, Gpus, Interface, Network, Rdma, RdmaPort, Torch
from ddp_doctor.model import Reading, Severity, check, unknown
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural

Ports = List[nccl.HcaPort]


@check(Severity.WARNING, several_nodes=True)
def rate_below_its_like(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """An RDMA port is slower than the same port of equal adapters.

    Why: A cable, transceiver or switch port let the link train with fewer lanes or at a lower speed. NCCL spreads data evenly
        over the ports, so the whole job runs at the pace of this one. Adapters are compared within one board only.
    See: https://github.com/NVIDIA/nccl/issues/307
        https://github.com/NVIDIA/nccl-tests/issues/106
    """
    for ports in _alike(chosen(rdma, env, policy, torch)).values():
        best = max((port.port.rate_gbit_s or 0 for port in ports), default=0)
        for port in ports if len(ports) > 1 else ():
            rate = port.port.rate_gbit_s
            if rate is None:
                yield unknown(port.port, "rate_gbit_s", port.name)
                continue
            yield Reading(
                ok=rate >= best,
                subject=port.name,
                measured=port.port.rate or f"{rate:g} Gb/s",
                expected=f"{best:g} Gb/s, as {plural(len(ports) - 1, 'other port')} of the same board may have",
                message=f"{port.name} runs at {rate:g} Gb/s, equal adapters at {best:g} Gb/s",
            )


def _alike(ports: Ports) -> Dict[Tuple[str, Optional[str], int], Ports]:
    """(board, link layer, port number) -> ports of it."""
    found: Dict[Tuple[str, Optional[str], int], Ports] = {}
    for port in ports:
        if port.device.board_id:
            found.setdefault((port.device.board_id, port.port.link_layer, port.port.port), []).append(port)
    return found


@check(Severity.WARNING, several_nodes=True)
def link_degraded(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """An InfiniBand link came up with one lane, or at the lowest speed.

    Why: Every InfiniBand port has four lanes (1X is one of them; 2X is a split cable, as meant), and no adapter in use for
        training is made for SDR, 2.5 Gb/s a lane: the cable or the transceiver is bad or badly plugged. A kernel that is older
        than the adapter also says SDR for speeds that it does not know.
    See: https://docs.kernel.org/admin-guide/abi-stable-files.html
        https://github.com/NVIDIA/nccl/issues/307
    """
    for port in chosen(rdma, env, policy, torch):
        width, speed = _width_and_speed(port.port)
        if width and port.port.link_layer == "InfiniBand" and port.port.lid:  # without a LID it is in no subnet: iWARP
            yield Reading(
                ok=width > 1 and speed not in ("", "SDR"),
                subject=port.name,
                measured=port.port.rate or "",
                expected="4X (2X on a split cable), faster than SDR",
                message=f"the link of {port.name} came up at {port.port.rate}",
            )


def _width_and_speed(port: RdmaPort) -> Tuple[int, str]:
    """(4, "HDR") of "200 Gb/sec (4X HDR)"; "" is SDR to older kernels. (0, "") where no width is said."""
    found = re.search(r"\(([0-9]{1,2})X ?([A-Z0-9]*)\)", port.rate or "")
    return (int(found.group(1)), found.group(2)) if found else (0, "")


@check(Severity.NOTE, several_nodes=True)
def firmware_differs(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """Adapters of one board have different firmware.

    Why: One was replaced or its update failed. Bugs and defaults (congestion control, adaptive routing) come with firmware, and
        make one rail behave unlike the others. Other boards have other firmware by design.
    See: https://docs.nvidia.com/networking/display/mlnxofedv24100700/updating+firmware+after+installation
    """
    boards: Dict[str, Dict[str, Optional[str]]] = {}
    for port in chosen(rdma, env, policy, torch):
        if port.device.board_id:
            boards.setdefault(port.device.board_id, {})[port.device.name] = port.device.firmware
    for board, devices in boards.items():
        versions = {version for version in devices.values() if version}
        if len(devices) > 1 and versions:
            yield Reading(
                ok=len(versions) == 1,
                subject=board,
                measured=", ".join(f"{name} {version or 'not known'}" for name, version in devices.items()),
                expected="one version for all adapters of a board",
                message=f"adapters of the board {board} have different firmware",
            )


_HEADERS_BYTES = 96
"""iboe_get_mtu() in include/rdma/ib_addr.h: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28 and ICRC 4."""
_MTUS = (256, 512, 1024, 2048, 4096)


def _roce_mtu(interface_mtu: int) -> int:
    """Largest RDMA packet, in bytes, that an interface's MTU leaves: 1024 of 1500, 4096 of 4200 and 9000."""
    return max((mtu for mtu in _MTUS if mtu <= interface_mtu - _HEADERS_BYTES), default=0)


@check(Severity.WARNING, several_nodes=True)
def mtu_below_interface(
    rdma: Rdma, network: Network, env: Env, policy: Policy, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """A RoCE port sends smaller packets than the MTU of its interface allows.

    Why: The two MTUs are never equal: the RDMA one is the largest of 256 to 4096 bytes that fits with its headers (1500
        gives 1024, 9000 gives 4096). A smaller one than that was not renewed when the interface's MTU changed, and connections
        to nodes that have the larger one cost bandwidth.
    See: https://www.ibm.com/docs/en/linux-on-systems?topic=functions-set-mtu
    """
    for port in filter(is_roce, chosen(rdma, env, policy, torch)):
        interface = interface_named(port.port.netdev, network)
        active, largest = port.port.active_mtu_bytes, port.port.max_mtu_bytes
        if active is None or largest is None:
            yield unknown(port.port, "active_mtu_bytes", port.name)
        elif interface is not None and interface.mtu is not None:
            allowed = min(largest, _roce_mtu(interface.mtu))
            yield Reading(
                ok=active >= allowed,
                subject=port.name,
                measured=f"active MTU {active} bytes; {interface.name} has MTU {interface.mtu}",
                expected=f"active MTU {allowed} bytes",
                message=f"{port.name} sends packets of {active} bytes though {interface.name} allows {allowed}",
            )


@check(Severity.NOTE, several_nodes=True)
def mtu_below_adapter(
    rdma: Rdma, env: Env, policy: Policy, network: Optional[Network] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """An RDMA port sends smaller packets than the adapter can.

    Why: Larger packets cost less: 4096 bytes is usual. RoCE takes what the MTU of its interface leaves (1024 bytes of 1500, 4096
        of 4200 and more), InfiniBand what the subnet manager sets. It must be equal on all nodes, and switches must allow it.
    See: https://www.ibm.com/docs/en/linux-on-systems?topic=functions-set-mtu
    """
    for port in chosen(rdma, env, policy, torch):
        active, largest = port.port.active_mtu_bytes, port.port.max_mtu_bytes
        if active is None or largest is None:
            yield unknown(port.port, "active_mtu_bytes", port.name)
            continue
        interface = interface_named(port.port.netdev, network) if is_roce(port) else None
        if interface is not None and interface.mtu is not None and active < min(largest, _roce_mtu(interface.mtu)):
            continue  # it could have more at this MTU: another check's affair
        why = f": the MTU of {port.port.netdev} leaves no more" if is_roce(port) and port.port.netdev else ""
        yield Reading(
            ok=active >= largest,
            subject=port.name,
            measured=f"active MTU {active} bytes",
            expected=f"{largest} bytes, which the adapter can",
            message=f"{port.name} sends packets of {active} bytes{why}",
        )


# --------------------------------------------------------------------------- partitions

_FULL_MEMBER = 0x8000
"""The highest bit of a partition key."""


@check(Severity.ERROR, several_nodes=True)
def partition_key_missing(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """An InfiniBand port has no partition key in the row that NCCL uses.

    Why: Ports talk within a partition only. NCCL takes the row NCCL_IB_PKEY of the port's table, 0 where it is not set; from
        an empty row no connection can be made ("ibv_modify_qp failed with error Invalid argument"). The subnet manager
        writes the table.
    See: https://raw.githubusercontent.com/linux-rdma/opensm/master/doc/partition-config.txt
        https://man7.org/linux/man-pages/man3/ibv_get_pkey_index.3.html
    """
    for port, row, key in _keys(chosen(rdma, env, policy, torch), env):
        if key is None:
            yield unknown(port.port, "pkeys", port.name)
            continue
        yield Reading(
            ok=bool(key & ~_FULL_MEMBER),
            subject=port.name,
            measured=f"row {row}: {f'0x{key:04x}' if key else 'empty'}; all rows: {', '.join(port.port.pkeys or ()) or 'none'}",
            expected=f"a partition key in row {row}",
            message=f"row {row} of the partition table of {port.name} is empty",
        )


@check(Severity.WARNING, several_nodes=True)
def partition_member_limited(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """An InfiniBand port is only a limited member of the partition that NCCL uses.

    Why: Limited members cannot talk to each other, only to full ones: two compute nodes then have links that are up and no
        connection. OpenSM makes all ports limited members when its partition file says nothing of the default partition.
    See: https://raw.githubusercontent.com/linux-rdma/opensm/master/doc/partition-config.txt
        https://docs.oracle.com/cd/E18476_01/doc.220/e18478/GUID-EF5F16AD-233D-439C-BF18-7D3D48091383.htm
    """
    for port, row, key in _keys(chosen(rdma, env, policy, torch), env):
        if key is None:
            yield unknown(port.port, "pkeys", port.name)
        elif key & ~_FULL_MEMBER:
            yield Reading(
                ok=bool(key & _FULL_MEMBER),
                subject=port.name,
                measured=f"row {row}: 0x{key:04x}",
                expected=f"full membership: 0x{key | _FULL_MEMBER:04x}",
                message=f"{port.name} cannot talk to other limited members of its partition",
            )


def _keys(ports: Ports, env: Env) -> Iterator[Tuple[nccl.HcaPort, int, Optional[int]]]:
    """(InfiniBand port, the row that NCCL takes, its key): 0 for an empty row, None where it is not known."""
    row = max(0, nccl.integer(env.get("NCCL_IB_PKEY")))
    for port in ports:
        if port.port.link_layer == "InfiniBand":
            yield port, row, _key(port.port.pkeys, row)


def _key(keys: Optional[Tuple[str, ...]], row: int) -> Optional[int]:
    if keys is None or row >= PKEY_ROWS:
        return None
    text = keys[row] if row < len(keys) else "0x0000"  # empty rows at the end are left out
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text) else None


# --------------------------------------------------------------------------- addresses and priorities


@check(Severity.WARNING, several_nodes=True)
def rails_share_subnet(
    rdma: Rdma, network: Network, env: Env, policy: Policy, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """Several RoCE ports are in one IPv4 subnet, and the kernel answers for one on behalf of another.

    Why: With arp_ignore 0 any interface answers ARP for any address of the node, so that others send a rail's packets to the
        wrong adapter, which drops them: TCP works and RDMA times out. With rp_filter 1 the kernel drops what comes in by another
        interface than its route. Each rail in a subnet of its own needs none of this.
    See: https://docs.kernel.org/networking/ip-sysctl.html
        https://www.ibm.com/docs/en/linux-on-systems?topic=setup-high-availability
        https://www.github.com/ofiwg/libfabric/wiki/Verbs-Provider-on-Multi%E2%80%90NIC-Systems
    """
    ports = [port for port in chosen(rdma, env, policy, torch) if is_roce(port)]
    rails = [interface_named(_gid_netdev(port, env, torch), network) for port in ports]
    for subnet, members in _by_subnet([rail for rail in rails if rail is not None]).items():
        if len(members) > 1:
            yield _arp_reading(subnet, members, network)


def _gid_netdev(port: nccl.HcaPort, env: Env, torch: Optional[Torch]) -> Optional[str]:
    """The interface whose address NCCL takes: that of its GID, else the port's."""
    choice = nccl.gid_choice(port.port, env, nccl.version_of(torch))
    return (choice.gid.netdev if choice is not None and choice.gid is not None else None) or port.port.netdev


@check(Severity.WARNING, several_nodes=True)
def gid_interface_down(
    rdma: Rdma, network: Network, env: Env, policy: Policy, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """The interface whose address NCCL will use on a RoCE port is down.

    Why: The port is as active as the card's own interface; its GIDs may belong to a VLAN over it. The row of an interface that
        is down stays in the table while its address does, and NCCL takes it: connections by it time out.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index
    """
    for port in filter(is_roce, chosen(rdma, env, policy, torch)):
        interface = interface_named(_gid_netdev(port, env, torch), network)
        if interface is not None and interface.running is not None:
            yield Reading(
                ok=interface.running,
                subject=port.name,
                measured=f"{interface.name} is {'up' if interface.running else 'down or has no link'}",
                expected="up, with a link",
                message=f"{interface.name}, by whose address NCCL will use {port.name}, is down",
            )


def _by_subnet(rails: List[Interface]) -> Dict[str, Dict[str, Interface]]:
    """IPv4 subnet -> its interfaces by name."""
    found: Dict[str, Dict[str, Interface]] = {}
    for rail in rails:
        for address in rail.addresses or ():
            subnet = nccl.network_of(address) if address.family == "ipv4" else None
            if subnet is not None and address.prefix < 31:
                found.setdefault(str(subnet), {})[rail.name] = rail
    return found


def _arp_reading(subnet: str, members: Dict[str, Interface], network: Network) -> Reading:
    wrong, where = [], f"{', '.join(members)} in {subnet}"
    for name, rail in members.items():
        ignore = _in_force("arp_ignore", rail.arp_ignore, network)
        strict = _in_force("rp_filter", rail.rp_filter, network)
        if ignore is None or strict is None:
            return unknown(rail, "arp_ignore" if ignore is None else "rp_filter", subnet)
        if ignore == 0 and not (network.sysctls or {}).get("net.ipv4.conf.all.arp_filter"):
            wrong.append(f"{name} arp_ignore 0")
        if strict == 1:
            wrong.append(f"{name} rp_filter 1")
    return Reading(
        ok=not wrong,
        subject=subnet,
        measured=where + (f": {', '.join(wrong)}" if wrong else ""),
        expected="arp_ignore 1 or 2, rp_filter 0 or 2, or a subnet for each rail",
        message=f"{', '.join(members)} share the subnet {subnet} and answer for each other",
    )


def _in_force(setting: str, own: Optional[int], network: Network) -> Optional[int]:
    """The kernel takes the higher one of the interface's value and that of "all"."""
    if own is None:
        return None
    return max(own, (network.sysctls or {}).get(f"net.ipv4.conf.all.{setting}", 0))


@check(Severity.WARNING, several_nodes=True)
def priorities_differ(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """RoCE ports of this node have different settings of priority and flow control.

    Why: RoCE that shall lose no packets needs the same trusted field (PCP or DSCP), the same priorities with PFC and the same
        traffic class on every adapter, node and switch. One that differs loses packets under load, and its rail slows the job.
    See: https://docs.nvidia.com/networking/display/mlnxofedv587061lts/Quality+of+Service+(QoS)
        https://docs.nvidia.com/networking/display/mlnxofedv522230/flow+control
    """
    drivers: Dict[Optional[str], Dict[str, str]] = {}
    for port in filter(is_roce, chosen(rdma, env, policy, torch)):
        words = _priorities(port.port)
        if words and not port.device.virtual_function:
            drivers.setdefault(port.device.driver, {})[port.name] = words
    for ports in drivers.values():
        if len(ports) > 1:
            yield Reading(
                ok=len(set(ports.values())) == 1,
                measured="; ".join(f"{name}: {words}" for name, words in ports.items())
                if len(set(ports.values())) > 1
                else f"{plural(len(ports), 'port')}: {next(iter(ports.values()))}",
                expected="the same on all RoCE ports",
                message="the RoCE ports of this node give their traffic different priorities",
            )


def _priorities(port: RdmaPort) -> str:
    """trust dscp, PFC on 3, traffic class 106; "" where nothing is known."""
    flow = port.flow or {}
    words = [f"trust {flow['trust']}"] if "trust" in flow else []
    words += [f"PFC on {flow['pfc'] or 'no priority'}"] if "pfc" in flow else []
    words += (
        [f"traffic class {port.traffic_class}"] if port.traffic_class is not None and port.traffic_class >= 0 else []
    )
    return ", ".join(words)


@check(Severity.NOTE, several_nodes=True)
def traffic_class_not_trusted(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """NCCL_IB_TC marks packets by DSCP, but the adapter sorts them by the VLAN's priority.

    Why: NCCL writes the traffic class into the IP header. An adapter that trusts PCP puts such packets into its default
        priority, which has no PFC: the setting does not make them lossless. ``mlnx_qos --trust dscp`` changes that.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-tc
        https://docs.nvidia.com/networking/display/mlnxofedv587061lts/Quality+of+Service+(QoS)
    """
    traffic_class = nccl.integer(env.get("NCCL_IB_TC"))
    for port in filter(is_roce, chosen(rdma, env, policy, torch)) if traffic_class > 0 else ():
        trust = (port.port.flow or {}).get("trust")
        if trust:
            yield Reading(
                ok=trust == "dscp",
                subject=port.name,
                measured=f"NCCL_IB_TC={traffic_class} (DSCP {traffic_class >> 2}); {port.port.netdev} trusts {trust}",
                expected="trust dscp",
                message=f"{port.name} does not look at the DSCP that NCCL_IB_TC sets",
            )


@check(Severity.NOTE, several_nodes=True)
def few_ports_for_gpus(
    rdma: Rdma, gpus: Gpus, env: Env, policy: Policy, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """Many GPUs share one RDMA port.

    Why: Machines made for training have a port for each GPU or two. With fewer the network bounds the job, or adapters are
        missing: not admitted to this container, left out by NCCL_IB_HCA, or fallen off the bus.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    ports, count = chosen(rdma, env, policy, torch), len(gpus.gpus or ())
    most = thresholds.bound("rdma.gpus_per_port").warning or 0
    if ports and count:
        names = ", ".join(port.name for port in ports[:8])
        yield Reading(
            ok=count <= most * len(ports),
            measured=f"{plural(count, 'GPU')}, {plural(len(ports), 'RDMA port')}: {names}",
            expected=f"at most {most:g} GPUs for a port",
            message=f"{count} GPUs share {plural(len(ports), 'RDMA port')}",
        )

"""Checks of what wears down a network that works: bonds, flapping links, full tables."""

from typing import Dict, Iterator, List, Optional, Tuple

from ddp_doctor.facts import Interface, Launch, Network, Os
from ddp_doctor.model import Reading, Severity, check, known, unknown
from ddp_doctor.policy import Policy
from ddp_doctor.thresholds import bound
from ddp_doctor.units import seconds

DAY_S = 86_400.0


@check(Severity.WARNING)
def bond_member_down(network: Network) -> Iterator[Reading]:
    """A member of a bond has no link.

    Why: The bond goes on with the others, so nothing fails, but the node has lost a part of its bandwidth and all of its
        spare: in a collective every other node waits for this one.
    See: https://docs.kernel.org/networking/bonding.html
    """
    for bond in _bonds(network):
        for member in _members(bond, network):
            if member.running is None:
                yield unknown(member, "running", member.name)
                continue
            yield Reading(
                ok=member.running,
                subject=member.name,
                measured=f"{member.name} of {bond.name} ({bond.bond_mode or 'bond'}): {'has a' if member.running else 'no'} link",
                expected="a link on every member",
                message=f"{member.name}, a member of {bond.name}, has no link",
            )


@check(Severity.WARNING)
def bond_members_unequal(network: Network) -> Iterator[Reading]:
    """Members of a bond have different speeds.

    Why: A bond that spreads traffic (802.3ad, balance-*) gives a flow to a member without looking at its speed: some flows
        are slow, and 802.3ad leaves the odd one out altogether.
    See: https://docs.kernel.org/networking/bonding.html
    """
    for bond in _bonds(network):
        running = [member for member in _members(bond, network) if member.running and member.speed_mbit_s]
        speeds = {member.speed_mbit_s for member in running}
        if len(running) > 1 and bond.bond_mode != "active-backup":
            yield Reading(
                ok=len(speeds) == 1,
                subject=bond.name,
                measured=", ".join(f"{member.name} {member.speed_mbit_s} Mb/s" for member in running),
                expected="one speed",
                message=f"the members of {bond.name} have different speeds",
            )


def _bonds(network: Network) -> List[Interface]:
    return [i for i in known(network.interfaces, network, "interfaces") if i.kind == "bond" and i.up is not False]


def _members(bond: Interface, network: Network) -> List[Interface]:
    return [i for i in network.interfaces or () if i.master == bond.name]


@check(Severity.NOTE)
def link_has_flapped(network: Network, os: Os) -> Iterator[Reading]:
    """The link of an interface has gone and come often since boot.

    Why: A cable, a transceiver or a switch port that loses its link for a second stalls every collective for as long, and
        one that does so for longer ends the job. A total since boot does not say when: --sample or watch shows whether it
        goes on.
    See: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net
    """
    limit = bound("network.carrier_changes_per_day").warning or 0
    uptime_s = known(os.uptime_s, os, "uptime_s")
    for interface in known(network.interfaces, network, "interfaces"):
        if interface.kind != "physical" or not interface.up or interface.carrier_changes is None:
            continue
        days = max(uptime_s / DAY_S, 1.0)
        yield Reading(
            ok=interface.carrier_changes <= limit * days,
            subject=interface.name,
            measured=f"{interface.carrier_changes} changes of the carrier in {seconds(uptime_s)}",
            expected=f"at most {limit:g} a day",
            message=f"the link of {interface.name} has gone and come {interface.carrier_changes // 2} times since boot",
            source=bound("network.carrier_changes_per_day").source,
        )


@check(Severity.WARNING)
def conntrack_nearly_full(network: Network) -> Iterator[Reading]:
    """The table of tracked connections is nearly full.

    Why: When it is full the kernel drops packets of new connections ("nf_conntrack: table full, dropping packet"): ranks
        then cannot connect to each other, at random. A job of many ranks opens thousands of connections at once.
    See: https://docs.kernel.org/networking/nf_conntrack-sysctl.html
    """
    limit = bound("network.conntrack_share")
    most = (network.sysctls or {}).get("net.netfilter.nf_conntrack_max")
    if network.conntrack_used is None or not most:  # nothing here tracks connections
        return
    share = 100 * network.conntrack_used / most
    yield Reading(
        ok=share <= (limit.warning or 0),
        measured=f"{network.conntrack_used} of {most} tracked connections ({share:.0f} %)",
        expected=f"at most {limit.warning:g} %",
        message="new connections will soon be dropped",
        source=limit.source,
    )


@check(Severity.WARNING)
def neighbour_table_nearly_full(network: Network, policy: Policy) -> Iterator[Reading]:
    """The neighbour table is nearly full.

    Why: Beyond net.ipv4.neigh.default.gc_thresh3 the kernel cannot keep the hardware address of a further node
        ("neighbour: arp_cache: neighbor table overflow!"), and packets to it are dropped at random. Its default of 1024
        is too small for a flat network with a thousand nodes and several interfaces each.
    See: https://man7.org/linux/man-pages/man7/arp.7.html
    """
    most = (network.sysctls or {}).get("net.ipv4.neigh.default.gc_thresh3")
    if network.neighbours is None or not most:
        return
    limit = bound("network.neighbour_share")
    wanted = max(network.neighbours, policy.nnodes or 0)
    share = 100 * wanted / most
    nodes = f", and the job has {policy.nnodes} nodes" if policy.nnodes and policy.nnodes > network.neighbours else ""
    yield Reading(
        ok=share <= (limit.warning or 0),
        measured=f"{network.neighbours} entries of at most {most}{nodes}",
        expected=f"at most {limit.warning:g} %",
        message="the kernel will not be able to reach further nodes",
        source=limit.source,
    )


@check(Severity.WARNING, several_nodes=True)
def backlog_too_small(network: Network, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Reading]:
    """The listen backlog is smaller than the number of ranks that connect at once.

    Why: All ranks connect to the master's store at the same moment. What net.core.somaxconn does not let wait is dropped
        and tried again seconds later, or times out: the start of a large job is slow or fails.
    See: https://docs.kernel.org/admin-guide/sysctl/net.html#somaxconn
    """
    backlog = (network.sysctls or {}).get("net.core.somaxconn")
    ranks = (launch.world_size if launch else None) or (policy.nnodes or 0) * (policy.nproc_per_node or 1)
    if backlog is None or not ranks or (launch and launch.is_master is False):
        return
    yield Reading(
        ok=backlog >= ranks,
        measured=f"net.core.somaxconn {backlog} for {ranks} ranks",
        expected="at least the number of ranks",
        message=f"{ranks} ranks will connect at once, and {backlog} may wait",
    )


@check(Severity.WARNING)
def module_too_hot(network: Network) -> Iterator[Reading]:
    """A transceiver is hotter than its maker allows.

    Why: A hot module loses bits and then its link; many switch off at their alarm temperature. A fan that stands, a blocked
        air path or a module that dies are the usual causes. The limits are those in the module's own memory.
    See: https://members.snia.org/document/dl/26418
    """
    for interface in known(network.interfaces, network, "interfaces"):
        module = interface.module
        if module is None or module.temperature_c is None:
            continue
        limit_c = module.temperature_high_warning_c or module.temperature_high_alarm_c
        if limit_c is None:
            yield unknown(module, "temperature_high_warning_c", interface.name)
            continue
        yield Reading(
            ok=module.temperature_c < limit_c,
            subject=interface.name,
            measured=f"{module.temperature_c:g} C",
            expected=f"below {limit_c:g} C, as the module itself says",
            message=f"the {module.kind or 'module'} of {interface.name} is at {module.temperature_c:g} C",
        )


@check(Severity.NOTE)
def fec_differs(network: Network) -> Iterator[Reading]:
    """Cards of one speed correct errors in different ways.

    Why: Both ends of a link must use the same forward error correction, and links of one speed in one machine are mostly
        cabled alike: the odd one was set by hand, or trained with a cable of another kind. Without correction a link of
        25 Gb/s a lane and more loses bits, which shows as retransmission.
    See: https://man7.org/linux/man-pages/man8/ethtool.8.html
    """
    cards = [i for i in known(network.interfaces, network, "interfaces") if i.running and i.speed_mbit_s and i.fec]
    alike: Dict[Tuple[Optional[str], Optional[int]], List[Interface]] = {}
    for card in cards:
        alike.setdefault((card.driver, card.speed_mbit_s), []).append(card)
    for (_, speed), group in alike.items():
        if len(group) > 1:
            yield Reading(
                ok=len({card.fec for card in group}) == 1,
                subject=group[0].name,
                measured=", ".join(f"{card.name} {'/'.join(card.fec or ())}" for card in group),
                expected="one kind of correction",
                message=f"interfaces of {speed} Mb/s use different forward error correction",
            )

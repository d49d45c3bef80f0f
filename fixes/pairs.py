"""Remedies for the ways between nodes."""

import shlex
from dataclasses import replace
from typing import Iterator, Optional, Tuple

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Launch, Network, Os, Pair, Pairs, PortTry, Torch
from ddp_doctor.fixes import network as of_network
from ddp_doctor.fixes import ports
from ddp_doctor.fixes._net import NCCL_ENV, NCCL_NETWORK, TORCHRUN, best_endpoint, good_interfaces, plain
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say

SECURITY_GROUPS = {
    "amazon": "https://docs.aws.amazon.com/eks/latest/userguide/sec-group-reqs.md",
}
PINGPONG = "https://manpages.ubuntu.com/manpages/noble/man1/ibv_rc_pingpong.1.html"
ROCE = "https://docs.nvidia.com/networking/display/mlnxofedv24100700/rdma+over+converged+ethernet+(roce)"
CLOUDS = {
    "amazon": "Amazon: let the nodes' security group admit all traffic that comes from this group itself.",
    "google": "Google: add a firewall rule of the VPC network that admits all protocols from the nodes' subnet.",
    "microsoft": "Azure: look for a rule of the network security group that denies what AllowVnetInBound lets through.",
}


def master_port_not_opened(
    pairs: Pairs, launch: Optional[Launch] = None, network: Optional[Network] = None
) -> Iterator[Remedy]:
    """Another port, or end the owner."""
    port = pairs.opened.port if pairs.opened else None
    yield from ports.master_port_taken(replace(launch or Launch(), master_port=port), network or Network())


def master_port_closed(
    pairs: Pairs,
    finding: Verdict,
    network: Optional[Network] = None,
    env: Optional[Env] = None,
    torch: Optional[Torch] = None,
    launch: Optional[Launch] = None,
    os: Optional[Os] = None,
) -> Iterator[Remedy]:
    """By what the attempt met."""
    if pairs.to_master is not None:
        yield from _by_outcome(pairs.to_master, finding, network or Network(), env, torch, launch, os)


def ports_blocked(
    pairs: Pairs,
    finding: Verdict,
    network: Optional[Network] = None,
    env: Optional[Env] = None,
    torch: Optional[Torch] = None,
    launch: Optional[Launch] = None,
    os: Optional[Os] = None,
) -> Iterator[Remedy]:
    """By what the attempts met."""
    pair = _meant(pairs, finding)
    if pair is not None:
        yield from _by_outcome(pair, finding, network or Network(), env, torch, launch, os)


def _meant(pairs: Pairs, finding: Verdict) -> Optional[Pair]:
    """The pair of the finding; the first that failed where it speaks of all."""
    failed = [p for p in pairs.peers or () if any(t.outcome != "open" for t in p.tries or ())]
    return next((p for p in pairs.peers or () if finding.subject == f"to {p.peer}"), next(iter(failed), None))


def _by_outcome(
    pair: Pair,
    finding: Verdict,
    network: Network,
    env: Optional[Env],
    torch: Optional[Torch],
    launch: Optional[Launch],
    os: Optional[Os],
) -> Iterator[Remedy]:
    tried: Optional[PortTry] = next((t for t in pair.tries or () if t.outcome != "open"), None)
    outcome = "local" if pair.local else tried.outcome if tried else ""
    if outcome in ("local", "unresolved", "wrong-answer"):
        yield _right_name(pair)
    elif outcome in ("unroutable", "prohibited"):
        yield _route(pair)
    elif outcome == "down":
        text = f"Check that {pair.peer} has the address {pair.ip} in this network, and its cable a link and the right VLAN."
        yield Remedy("Bring both nodes into one network", (say(text, who="network admin"),))
    else:
        yield from _open(pair, finding, network, env, torch, launch, os)


def _right_name(pair: Pair) -> Remedy:
    """The name or address by which the peer is called is wrong."""
    text = (
        f"Let {pair.host} stand for an address of {pair.peer} on this node: its line in /etc/hosts, or the site's DNS."
    )
    own = [ip for ip in pair.addresses or () if not nccl.is_link_local(ip)]
    has = (say(f"{pair.peer} itself has {', '.join(own)}."),) if own else ()
    return Remedy("Correct the name", (say(text, who="root", scope="this node"), *has))


def _route(pair: Pair) -> Remedy:
    look = (command(f"ip route get {shlex.quote(pair.ip)}"), command("ip rule")) if pair.ip else ()
    text = "Add the missing route, or remove the route or the firewall's rule of this node that forbids the way."
    return Remedy("Mend the way out of this node", (*look, say(text, who="root", scope="this node")))


def _open(
    pair: Pair,
    finding: Verdict,
    network: Network,
    env: Optional[Env],
    torch: Optional[Torch],
    launch: Optional[Launch],
    os: Optional[Os],
) -> Iterator[Remedy]:
    """Open the peer's firewall for the nodes' subnet; which it is, the peer's own facts say."""
    endpoint = best_endpoint(network, env, torch)
    subnet = nccl.network_of(endpoint.address) if endpoint else None
    on = f"on {pair.peer}"
    for name in pair.firewalls or ():
        if name in ("firewalld", "ufw"):
            for remedy in of_network.firewall_closed(network, replace(finding, subject=name), env, torch, launch):
                yield replace(remedy, title=f"{remedy.title} ({name} {on})")
        elif subnet is not None:
            yield Remedy(f"Let the nodes' subnet in ({name} {on})", tuple(_rule(name, subnet)))
    cloud = (os.virtualisation if os else None) or ""
    if cloud in CLOUDS:
        see = SECURITY_GROUPS.get(cloud, "")
        yield Remedy("Open the cloud's firewall between the nodes", (say(CLOUDS[cloud], who="cluster admin", see=see),))
    text = (
        f"Look for what turns it away {on}: nft list ruleset, iptables -S. Where nothing does, it is a firewall, an access "
        "list or client isolation of the network between. Let the nodes' subnet in with all its ports."
    )
    yield Remedy("Find the firewall", (say(text, who="network admin", scope="all nodes", see=NCCL_NETWORK),))


def _rule(name: str, subnet: nccl.Subnet) -> Iterator[Step]:
    """A rule before all others, until the next boot: names of tables and chains are each site's own."""
    risk = f"every host in {subnet} can then reach every port of that node"
    if name == "iptables":
        tool = "ip6tables" if subnet.version == 6 else "iptables"
        undo = f"{tool} -D INPUT -s {subnet} -j ACCEPT"
        yield command(
            f"{tool} -I INPUT -s {subnet} -j ACCEPT", who="root", scope="this node until reboot", risk=risk, undo=undo
        )
        return
    yield command("nft list ruleset", who="root", scope="this node")
    family = "ip6" if subnet.version == 6 else "ip"
    text = (
        f"Put '{family} saddr {subnet} accept' in front of the rule that drops or rejects, in the chain with hook input: "
        f"nft insert rule FAMILY TABLE CHAIN {family} saddr {subnet} accept."
    )
    yield say(
        text, who="root", risk=risk, see="https://wiki.nftables.org/wiki-nftables/index.php/Simple_rule_management"
    )


def peer_name_misleads(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    """Correct it, or do without names."""
    yield from _names(pairs, finding)


def peer_name_unresolved(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    """Make it known, or do without names."""
    yield from _names(pairs, finding)


def _names(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    pair = next((p for p in pairs.peers or () if finding.subject == f"to {p.peer}"), None)
    if pair is not None:
        yield _right_name(replace(pair, host=pair.name.name if pair.name else pair.peer))
    text = (
        "Give MASTER_ADDR (or --master-addr, --rdzv-endpoint) and torchrun's --local-addr as IP addresses on all nodes."
    )
    yield Remedy("Do without names", (say(text, scope="this job", see=TORCHRUN),))


def route_by_other_interface(
    pairs: Pairs, network: Network, finding: Verdict, env: Optional[Env] = None
) -> Iterator[Remedy]:
    """Let NCCL take the interface of the route, or mend the route."""
    pair = next(
        (p for p in pairs.peers or () if finding.subject == f"to {p.peer}"), next(iter(pairs.peers or ()), None)
    )
    name = plain(pair.interface) if pair else ""
    if name and any(i.name == name for i in good_interfaces(network)):
        step = export("NCCL_SOCKET_IFNAME", f"={name}", scope="this job", see=f"{NCCL_ENV}#nccl-socket-ifname")
        yield Remedy("Use the interface by which the peer is reached", (step,))
    if pair is not None:
        yield _route(pair)


def long_packets_vanish(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    """One MTU all the way."""
    yield from _mtu(pairs, finding)


def path_mtu_smaller(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    """One MTU all the way."""
    yield from _mtu(pairs, finding)


def _mtu(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    measured = [p for p in pairs.peers or () if p.path_mtu_bytes]
    pair = next((p for p in measured if finding.subject == f"to {p.peer}"), next(iter(measured), None))
    if pair is None:
        return
    ends, longest = min(filter(None, (pair.mtu_bytes, pair.peer_mtu_bytes)), default=0), pair.path_mtu_bytes or 0
    text = f"Raise the MTU of the switch ports, VLANs and tunnels between the two: they must take {ends} bytes of IP."
    yield Remedy("Let the network take the packets of its nodes", (say(text, who="network admin"),))
    name = plain(pair.interface)
    if name and longest >= 1280:
        undo = f"ip link set {name} mtu {pair.mtu_bytes}"
        step = command(f"ip link set {name} mtu {longest}", who="root", scope="this node until reboot", undo=undo)
        yield Remedy("Lower the MTU to what arrives, on all nodes alike", (step,))


def slower_than_other_pairs(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    """Find out where it is slow."""
    yield from _slow(pairs, finding)


def slower_than_link(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    """Find out where it is slow."""
    yield from _slow(pairs, finding)


def _slow(pairs: Pairs, finding: Verdict) -> Iterator[Remedy]:
    pair = next(
        (p for p in pairs.peers or () if finding.subject == f"to {p.peer}"), next(iter(pairs.peers or ()), None)
    )
    name = plain(pair.interface) if pair else ""
    looks: Tuple[Step, ...] = (command(f"ethtool {name}"), command(f"tc qdisc show dev {name}")) if name else ()
    text = (
        "Look at link speed and errors of both ends and of the switches between; exchange the cable or the transceiver."
    )
    again = say("Measure again when the network is idle: others' traffic takes its share.")
    yield Remedy("Find out where it is slow, on both nodes", (*looks, say(text, who="network admin"), again))


def farther_than_other_pairs() -> Iterator[Remedy]:
    """Choose nodes that stand together."""
    text = "Choose nodes of one zone and one placement group, or of one switch (Slurm: --switches=1)."
    yield Remedy(
        "Take nodes that stand near each other", (say(text, who="user", see="https://slurm.schedmd.com/sbatch.html"),)
    )


def rendezvous_failed(finding: Verdict) -> Iterator[Remedy]:
    """One torch on all nodes."""
    text = "Compare torch's version on the nodes, and unset http_proxy and the like for the job; then try again."
    yield Remedy("Make both ends equal", (say(text, scope="all nodes", see=TORCHRUN),))


def rdma_fails(finding: Verdict, pairs: Pairs) -> Iterator[Remedy]:
    """Find what stops RDMA while TCP passes."""
    roce = any(each.roce for each in pairs.rdma or () if f"{each.device} to {each.peer}" == finding.subject)
    if not roce:
        text = "Look at the fabric: ibdiagnet, and the routes and partitions of the subnet manager (saquery, smpquery)."
        looks = (command("ibstat", scope="this node"), say(text, who="network admin", see=PINGPONG))
        yield Remedy("Look at the InfiniBand fabric", looks)
        return
    rows = command(
        "grep -r . /sys/class/infiniband/*/ports/*/gid_attrs/types /sys/class/infiniband/*/ports/*/gids",
        scope="this node",
    )
    which = "Compare the rows that NCCL takes on both nodes: RoCE v2, with IPv4 addresses of networks that reach each other. Where they differ: NCCL_IB_GID_INDEX."
    yield Remedy("Look at the GIDs of both ends", (rows, say(which, scope="all nodes", see=NCCL_ENV)))
    let = "Let UDP port 4791 from the nodes' subnet through on both nodes and in the network between (RoCE v2)."
    yield Remedy("Let RoCE through the firewalls", (say(let, who="network admin", scope="all nodes", see=ROCE),))
    mtu = "Let every switch port on the way take packets as long as the adapters' interfaces do, or lower the interfaces' MTU."
    yield Remedy("Make the MTU one on the whole way", (say(mtu, who="network admin", scope="all nodes", see=ROCE),))


def rdma_slower_than_others() -> Iterator[Remedy]:
    """Find the slow link."""
    rate = command("grep . /sys/class/infiniband/*/ports/*/rate", scope="this node")
    text = "Look for packets that are sent again and for pauses on both adapters and their switch ports: ddp-doctor run --sample 5."
    again = say("Try again when the network is idle: others' traffic takes its share.")
    yield Remedy(
        "Look at the rates and the counters of both ends", (rate, say(text, scope="all nodes", see=PINGPONG), again)
    )

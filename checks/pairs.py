"""Checks of the ways between nodes, as they were tried while the peers listened; each speaks of one direction."""

from typing import Callable, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor import nccl
from ddp_doctor.cluster.folding import shortened
from ddp_doctor.facts import Env, Network, Pair, Pairs, PortTry, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, why_unknown
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural

ALL_OF = 3
"""Where so many peers, and all of them, fail in one way, it is this node that is odd: one finding."""


@check(Severity.ERROR)
def master_port_not_opened(pairs: Pairs) -> Iterator[Reading]:
    """The master cannot open MASTER_PORT.

    Why: The store of rank 0 listens on it, on all addresses; it failed when it was tried. Another job on that node, or what
        an earlier one left, holds the port, or the port is one of those below 1024 that only root may open.
    See: https://github.com/pytorch/pytorch/issues/73320
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    opened = known(pairs.opened, pairs, "opened")
    words = {"in-use": "another program holds it", "prohibited": "this user may not open it"}
    yield Reading(
        ok=opened.outcome == "opened",
        subject=f"port {opened.port}",
        measured=f"port {opened.port}: {words.get(opened.outcome, opened.detail or opened.outcome)}",
        expected="a port that the master can open",
        message="the master cannot open its port",
    )


@check(Severity.ERROR, several_nodes=True)
def master_port_closed(pairs: Pairs) -> Iterator[Reading]:
    """This node cannot reach the master's port, although the master listens on it.

    Why: Every rank connects to MASTER_ADDR:MASTER_PORT first and waits until it times out when it cannot. What the attempt
        met tells a firewall that drops from one that rejects, from a missing route and from a name that leads elsewhere.
    See: https://man7.org/linux/man-pages/man2/connect.2.html
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    pair = known(pairs.to_master, pairs, "to_master")
    yield from _by_tries((pair,), "a connection to the master's port", "the ranks here cannot meet the master")


@check(Severity.ERROR, several_nodes=True)
def ports_blocked(pairs: Pairs) -> Iterator[Reading]:
    """This node cannot reach ports that a peer's kernel picked.

    Why: NCCL and Gloo listen on ports that the kernel picks, on every node, and every node connects to others. Where
        MASTER_PORT alone is open the ranks meet, and then hang or time out.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
        https://github.com/pytorch/pytorch/issues/44544
    """
    found = known(pairs.peers, pairs, "peers")
    yield from _by_tries(found, "a connection to every port that a peer opens", "NCCL and Gloo cannot connect")


def _by_tries(pairs: Sequence[Pair], expected: str, message: str) -> Iterator[Reading]:
    """Readings of attempts; those that were not made, or did not end, are unknown."""
    cut = Reason("deadline", "it did not answer before the time was over")
    yield from _unknown((p for p in pairs if p.tries is None), lambda pair: why_unknown(pair, "tries"))
    yield from _unknown((p for p in pairs if _met(p) == "deadline"), lambda pair: cut)
    tried = [p for p in pairs if p.tries is not None and _met(p) != "deadline"]
    yield from _judged(
        tried, lambda pair: _fault(pair, message), _tries_words, expected, lambda good: "every port connects"
    )


def _failed(pair: Pair) -> Tuple[PortTry, ...]:
    return tuple(each for each in pair.tries or () if each.outcome != "open")


def _met(pair: Pair) -> str:
    """The first outcome that was not good; "open"."""
    return next((each.outcome for each in _failed(pair)), "open")


def _fault(pair: Pair, message: str) -> str:
    """What is wrong, in words that hold for any peer; "" for nothing."""
    failed = _failed(pair)
    if not failed:
        return ""
    some = "some ports: " if len(failed) < len(pair.tries or ()) else ""
    back = {None: "", "open": "; the way back is open"}.get(pair.back, "; neither does the way back work")
    return f"{message}: {some}{_meaning(pair, failed[0])}{back}"


_MEANINGS = {
    "refused": "a firewall resets the connection, or another machine has that address",
    "rejected": "a firewall rejects the connection",
    "filtered": "no answer at all, a firewall drops the packets",
    "down": "no machine on this network answers for that address",
    "unroutable": "there is no route",
    "prohibited": "this node itself forbids the connection, by a route or its own firewall",
    "reset": "a proxy or a firewall ends the connection",
    "wrong-answer": "something else answers there",
    "unresolved": "the name does not resolve here",
}


def _meaning(pair: Pair, tried: PortTry) -> str:
    if pair.local:
        return "that address leads to this node itself"
    return _MEANINGS.get(tried.outcome, "the connection failed")


def _tries_words(pair: Pair) -> str:
    """gpu07 (10.0.0.7) ports 40001, 40317: filtered. Without times, so that equal findings of many nodes are one."""
    failed = _failed(pair)
    shown = failed or pair.tries or ()
    listed = ", ".join(str(each.port) for each in shown)
    at = f" ({pair.ip})" if pair.ip and pair.ip != pair.peer else ""
    said = "connected" if not failed else failed[0].outcome
    detail = f", {failed[0].detail}" if failed and failed[0].detail else ""
    return f"{pair.peer}{at} port{'s' if len(shown) > 1 else ''} {listed}: {said}{detail}"


def _judged(
    pairs: Sequence[Pair],
    fault: Callable[[Pair], str],
    measured: Callable[[Pair], str],
    expected: str,
    all_good: Callable[[Sequence[Pair]], str],
    source: str = "",
) -> Iterator[Reading]:
    """A reading for each pair with a fault, or one where all fail alike; one for those without.

    all_good: what was measured of several pairs without a fault. It names none, so that many nodes' readings are one.
    """
    faults = [(pair, fault(pair)) for pair in pairs]
    bad = [(pair, message) for pair, message in faults if message]
    good = [pair for pair, message in faults if not message]
    if len(bad) >= ALL_OF and not good and len({message for _pair, message in bad}) == 1:
        yield Reading(
            ok=False,
            subject=f"all {len(bad)} peers",
            measured=f"{shortened([pair.peer for pair, _ in bad])}; such as {measured(bad[0][0])}",
            expected=expected,
            message=bad[0][1],
            source=source,
        )
        return
    for pair, message in bad:
        yield Reading(False, measured(pair), expected, message, f"to {pair.peer}", source)
    if good:
        yield Reading(True, f"{plural(len(good), 'peer')}: {all_good(good)}", expected, source=source)


def _unknown(pairs: Iterator[Pair], why: Callable[[Pair], Reason]) -> Iterator[Reading]:
    """One reading for the pairs of each reason."""
    found: List[Tuple[Reason, str]] = [(why(pair), pair.peer) for pair in pairs]
    for reason in dict.fromkeys(reason for reason, _peer in found):
        peers = shortened([peer for each, peer in found if each == reason])
        yield Reading(ok=None, subject=f"to {peers}", reason=reason)


# --------------------------------------------------------------------------- names and routes


@check(Severity.WARNING, several_nodes=True)
def peer_name_misleads(pairs: Pairs) -> Iterator[Reading]:
    """A peer's name leads, on this node, to an address that the peer does not have.

    Why: A stale or a loopback line in /etc/hosts, or another DNS server. torchrun's c10d rendezvous and Gloo publish host
        names or their addresses: ranks here then call themselves or a stranger.
    See: https://github.com/pytorch/pytorch/issues/15592
        https://man7.org/linux/man-pages/man5/hosts.5.html
    """
    named = [p for p in known(pairs.peers, pairs, "peers") if p.name is not None and p.name.addresses and p.addresses]
    yield from _judged(named, _misleads, _name_words, "an address of that peer", lambda good: "addresses of their own")


def _misleads(pair: Pair) -> str:
    """One wrong address beside right ones is enough: which one is taken differs from try to try."""
    found = pair.name.addresses if pair.name else ()
    own = {nccl.ip_of(ip) for ip in pair.addresses or ()}
    if all(nccl.is_loopback(ip) for ip in found):
        return "the peer's name leads to this node itself"
    wrong = [ip for ip in found if nccl.ip_of(ip) not in own]
    return "the peer's name leads to an address that the peer does not have" if wrong else ""


def _name_words(pair: Pair) -> str:
    found = ", ".join(pair.name.addresses) if pair.name else ""
    return f"{pair.name.name if pair.name else pair.peer} is {found}"


@check(Severity.NOTE, several_nodes=True)
def peer_name_unresolved(pairs: Pairs) -> Iterator[Reading]:
    """A peer's name does not resolve on this node.

    Why: NCCL needs addresses alone; torchrun's c10d rendezvous, mpirun and ssh between nodes need names.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    named = [p for p in known(pairs.peers, pairs, "peers") if p.name is not None]
    words = lambda p: f"{p.name.name}: {p.name.error or 'no address'}" if not p.name.addresses else _name_words(p)  # noqa: E731
    fault = lambda p: "" if p.name.addresses else "the peer's name does not resolve here"  # noqa: E731
    yield from _judged(named, fault, words, "an address of that peer", lambda good: "their names resolve")


@check(Severity.WARNING, several_nodes=True)
def route_by_other_interface(
    pairs: Pairs, network: Network, env: Env, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """Packets to a peer leave by another interface than the one that NCCL chose.

    Why: NCCL tells its peers the address of the interface that it chose, but what it sends goes where the kernel's routes
        lead: by a slower network, or from an address that the peer's firewall or reverse-path filter does not expect.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        https://docs.kernel.org/networking/ip-sysctl.html
    """
    if nccl.lacks(torch):
        raise NotKnown(Reason("not-applicable", "this torch has no NCCL"))
    interfaces = known(network.interfaces, network, "interfaces")
    chosen = [e.interface.name for e in nccl.sockets(interfaces, env, nccl.version_of(torch)).endpoints]
    routed = [p for p in known(pairs.peers, pairs, "peers") if p.interface is not None and not p.local]
    fault = lambda p: "" if p.interface in chosen else "packets leave by another interface than NCCL's"  # noqa: E731
    words = lambda p: f"to {p.ip or p.peer} by {p.interface}{f' from {p.source}' if p.source else ''}"  # noqa: E731
    if chosen:
        by = lambda good: f"by {' and '.join(sorted({str(p.interface) for p in good}))}"  # noqa: E731
        yield from _judged(routed, fault, words, f"by {' or '.join(chosen)}, NCCL's choice", by)


# --------------------------------------------------------------------------- packets


@check(Severity.ERROR, several_nodes=True)
def long_packets_vanish(pairs: Pairs) -> Iterator[Reading]:
    """Packets as long as both ends allow vanish on the way, without a word.

    Why: A switch port or a tunnel with a smaller MTU drops them, and nobody tells the sender. Small packets pass, so ping
        and the rendezvous work; the first large message hangs, over TCP as over RoCE.
    See: https://www.rfc-editor.org/rfc/rfc2923
        https://www.rfc-editor.org/rfc/rfc4821
    """
    yield from _by_mtu(pairs, told=False, message="long packets vanish: the first large message will hang")


@check(Severity.WARNING, several_nodes=True)
def path_mtu_smaller(pairs: Pairs) -> Iterator[Reading]:
    """The way to a peer takes shorter packets than the interfaces at both ends.

    Why: A router, a tunnel or a route says so, and TCP obeys; more packets make the processors work more. RoCE, which takes
        the MTU of the interface, does not hear it.
    See: https://www.rfc-editor.org/rfc/rfc1191
    """
    yield from _by_mtu(pairs, told=True, message="the way takes shorter packets than both interfaces")


def _by_mtu(pairs: Pairs, told: bool, message: str) -> Iterator[Reading]:
    """Readings of the path MTU where its end is, or is not, known to the kernel; a peer's own smaller MTU is no fault."""
    peers = [p for p in known(pairs.peers, pairs, "peers") if p.tries is not None]
    yield from _unknown(
        (p for p in peers if p.path_mtu_bytes is None), lambda pair: why_unknown(pair, "path_mtu_bytes")
    )
    measured = [p for p in peers if p.path_mtu_bytes is not None]
    fault = lambda p: message if (p.path_mtu_bytes or 0) < _both_take(p) and bool(p.path_mtu_known) == told else ""  # noqa: E731
    yield from _judged(measured, fault, _mtu_words, "as long as the interfaces of both ends allow", _least_mtu)


def _both_take(pair: Pair) -> int:
    """The smaller of both interfaces' MTUs in bytes; 0 where they are not known."""
    return min(filter(None, (pair.mtu_bytes, pair.peer_mtu_bytes)), default=0)


def _mtu_words(pair: Pair) -> str:
    ends = " and ".join(str(mtu) for mtu in (pair.mtu_bytes, pair.peer_mtu_bytes) if mtu)
    return f"packets of up to {pair.path_mtu_bytes} bytes arrive at {pair.peer}; MTU of the interfaces {ends or 'not known'}"


def _least_mtu(pairs: Sequence[Pair]) -> str:
    return f"packets of up to {min(p.path_mtu_bytes or 0 for p in pairs)} bytes arrive"


# --------------------------------------------------------------------------- speed


@check(Severity.WARNING, several_nodes=True)
def slower_than_other_pairs(pairs: Pairs) -> Iterator[Reading]:
    """A TCP stream to a peer is much slower than between other pairs of nodes.

    Why: All ranks wait for the slowest way. A port that came up at 100 Mb/s among ones of 10 Gb/s, a bad cable, a rate limit
        or another network's route make it.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    usual, limit = known(pairs.usual_gbit_s, pairs, "usual_gbit_s"), bound("pairs.usual_share")
    least = usual * (limit.warning or 0) / 100
    expected = f"at least {_rate(least)}: {limit.warning:g} % of the median of all pairs, {_rate(usual)}"
    yield from _by_rate(pairs, lambda pair: least, expected, "much slower than between other nodes", limit.source)


@check(Severity.WARNING, several_nodes=True)
def slower_than_link(pairs: Pairs) -> Iterator[Reading]:
    """A TCP stream to a peer has but a part of the links' speed.

    Why: One stream fills links of up to 25 Gb/s. Less means loss, a rate limit, a slower link between the switches, or others'
        traffic at that moment.
    See: https://github.com/NVIDIA/nccl/issues/450
    """
    limit = bound("pairs.link_share")
    share = (limit.warning or 0) / 100

    def least(pair: Pair) -> Optional[float]:
        link = pair.link_gbit_s
        return share * link if link is not None and link <= nccl.TCP_WIRE_BOUND_GBIT_S else None

    expected = f"at least {limit.warning:g} % of the slower end's link speed"
    yield from _by_rate(pairs, least, expected, "much slower than the links", limit.source)


def _by_rate(
    pairs: Pairs, least: Callable[[Pair], Optional[float]], expected: str, message: str, source: str
) -> Iterator[Reading]:
    peers = [p for p in known(pairs.peers, pairs, "peers") if p.tries is not None and least(p) is not None]
    yield from _unknown((p for p in peers if p.sent_gbit_s is None), lambda pair: why_unknown(pair, "sent_gbit_s"))
    measured = [p for p in peers if p.sent_gbit_s is not None]
    fault = lambda p: message if (p.sent_gbit_s or 0.0) < (least(p) or 0.0) else ""  # noqa: E731
    slowest = lambda good: f"{_rate(min(p.sent_gbit_s or 0.0 for p in good))} and more"  # noqa: E731
    yield from _judged(measured, fault, _rate_words, expected, slowest, source)


def _rate_words(pair: Pair) -> str:
    link = f" over links of {_rate(pair.link_gbit_s)}" if pair.link_gbit_s else ""
    return f"{_rate(pair.sent_gbit_s or 0.0)} to {pair.peer}{link}"


def _rate(gbit_s: float) -> str:
    """9.4 Gb/s, 94 Mb/s."""
    return f"{gbit_s:.3g} Gb/s" if gbit_s >= 1 else f"{1000 * gbit_s:.3g} Mb/s"


@check(Severity.NOTE, several_nodes=True)
def farther_than_other_pairs(pairs: Pairs) -> Iterator[Reading]:
    """Packets to a peer take much longer than between other pairs of nodes.

    Why: The node stands in another room, zone or region, or its packets go by a tunnel. Small messages, of which a training
        step has many, take as much longer.
    See: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html
    """
    ratio, least = bound("pairs.latency_ratio"), bound("pairs.latency_least")
    usual_us = 1e6 * known(pairs.usual_latency_s, pairs, "usual_latency_s")
    limit_us = max(usual_us * (ratio.warning or 0), least.warning or 0)
    peers = [p for p in known(pairs.peers, pairs, "peers") if p.tries is not None]
    yield from _unknown((p for p in peers if p.latency_min_s is None), lambda pair: why_unknown(pair, "latency_min_s"))
    measured = [p for p in peers if p.latency_min_s is not None]
    fault = lambda p: "much farther than other nodes" if 1e6 * (p.latency_min_s or 0) > limit_us else ""  # noqa: E731
    words = lambda p: f"shortest round trip to {p.peer} {_trip(p.latency_min_s or 0)}"  # noqa: E731
    expected = f"at most {_trip(limit_us / 1e6)}; the median of all pairs is {_trip(usual_us / 1e6)}"
    farthest = lambda good: f"round trips of up to {_trip(max(p.latency_min_s or 0.0 for p in good))}"  # noqa: E731
    yield from _judged(measured, fault, words, expected, farthest, ratio.source)


def _trip(duration_s: float) -> str:
    """45 us, 2.3 ms."""
    return f"{1e3 * duration_s:.3g} ms" if duration_s >= 1e-3 else f"{1e6 * duration_s:.3g} us"


# --------------------------------------------------------------------------- rendezvous


@check(Severity.ERROR, several_nodes=True)
def rendezvous_failed(pairs: Pairs) -> Iterator[Reading]:
    """A meeting in torch's own store failed.

    Why: Ranks meet in a TCPStore of rank 0 before anything else. Where its port can be reached and the meeting fails
        nonetheless, the versions of torch differ, a proxy or a filter changes what is said, or the name leads elsewhere.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    store = known(pairs.rendezvous, pairs, "rendezvous")
    yield Reading(
        ok=store.outcome in ("served", "met"),
        subject=f"to {store.host}" if store.outcome != "served" else "",
        measured=f"{store.host} port {store.port}: {store.outcome}{f', {store.detail}' if store.detail else ''}",
        expected="set, read and count in the store of the master",
        message="torch's store cannot be used from here",
    )


# --------------------------------------------------------------------------- RDMA


@check(Severity.ERROR, several_nodes=True)
def rdma_fails(pairs: Pairs) -> Iterator[Reading]:
    """An adapter of this node cannot send to the peer's over RDMA.

    Why: TCP may be fine and RDMA dead: packets of RoCE to UDP port 4791 are filtered or go by another VLAN, the GIDs are of
        networks that do not reach each other, a switch drops long packets, or on InfiniBand the partition or the subnet
        manager's routes are wrong. NCCL then ends with "transport retry counter exceeded" (12) after a long wait.
    See: https://docs.nvidia.com/networking/display/mlnxofedv24100700/rdma+over+converged+ethernet+(roce)
        https://manpages.ubuntu.com/manpages/noble/man1/ibv_rc_pingpong.1.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    tries = known(pairs.rdma, pairs, "rdma")
    for each in tries:
        if each.outcome == "unable":
            reason = Reason("unreadable", f"it could not be tried: {each.detail}")
            yield Reading(ok=None, subject=f"{each.device} to {each.peer}", reason=reason)
    tried = [each for each in tries if each.outcome != "unable"]
    dead = [each for each in tried if each.outcome != "met"]
    for each in dead:
        row = f", GID index {each.gid_index}" if each.gid_index is not None else ""
        yield Reading(
            ok=False,
            subject=f"{each.device} to {each.peer}",
            measured=f"{each.device}{row} to {each.peer_device} of {each.peer}: {each.outcome}{f', {each.detail}' if each.detail else ''}",
            expected="messages to and fro",
            message="RDMA to the peer is dead",
        )
    if len(tried) > len(dead):
        yield Reading(True, f"{plural(len(tried) - len(dead), 'adapter')} of a neighbour met", "messages to and fro")


@check(Severity.WARNING, several_nodes=True)
def rdma_slower_than_others(pairs: Pairs) -> Iterator[Reading]:
    """Messages over RDMA to a peer are much slower than between other adapters.

    Why: All ranks wait for the slowest way. A link that came up at a lower rate, congestion, lost packets that are sent again,
        or a detour over the other socket or the spine make it. It is measured message by message, so that its figure is
        below what bandwidth tests show, for all alike.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    usual, limit = known(pairs.usual_rdma_gbit_s, pairs, "usual_rdma_gbit_s"), bound("pairs.usual_share")
    least = usual * (limit.warning or 0) / 100
    met = [each for each in known(pairs.rdma, pairs, "rdma") if each.sent_gbit_s is not None]
    slow = [each for each in met if (each.sent_gbit_s or 0.0) < least]
    expected = f"at least {_rate(least)}: {limit.warning:g} % of the median of all, {_rate(usual)}"
    for each in slow:
        yield Reading(
            ok=False,
            subject=f"{each.device} to {each.peer}",
            measured=f"{_rate(each.sent_gbit_s or 0.0)} between {each.device} and {each.peer_device} of {each.peer}",
            expected=expected,
            message="much slower than between other adapters",
            source=limit.source,
        )
    if len(met) > len(slow):
        good = min(each.sent_gbit_s or 0.0 for each in met if each not in slow)
        yield Reading(
            True,
            f"{plural(len(met) - len(slow), 'adapter')} of a neighbour: {_rate(good)} and more",
            expected,
            source=limit.source,
        )

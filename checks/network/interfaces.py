"""Checks of the interfaces that NCCL and Gloo will take."""

import ipaddress
from typing import Iterator, List, Optional, Sequence

from ddp_doctor import nccl
from ddp_doctor.checks.network._choice import by, interfaces_of, named_positively, needs_nccl, state, used
from ddp_doctor.facts import Env, Interface, Launch, Network, Os, Rdma, Reason, Torch
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.policy import Policy

SLOW_GBIT_S = 10.0
"""Below this the network, not the GPUs, sets the pace of data-parallel training: 10 GbE is what guides ask for at least."""


@check(Severity.ERROR, several_nodes=True)
def no_usable_interface(network: Network, env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """No interface is up with an address that other nodes could reach.

    Why: Every rank must connect to the others by TCP, also where InfiniBand carries the data; with loopback, link-local
        addresses and local bridges alone it cannot.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    interfaces = interfaces_of(network)
    named = named_positively(interfaces, env, torch)
    good = [i for i in interfaces if nccl.reaches_others(i) or i.name in named]
    yield Reading(
        ok=bool(good),
        measured=", ".join(map(state, good or [i for i in interfaces if i.kind != "loopback"])) or "loopback alone",
        expected="an interface that is up and has an address for traffic between nodes",
        message="this node has no interface over which other nodes could be reached",
    )


@check(Severity.ERROR)
def loopback_down(network: Network) -> Iterator[Reading]:
    """The loopback interface is down.

    Why: Torchrun --standalone and a master called localhost meet on 127.0.0.1, which then answers nobody: "Network is
        unreachable". Fresh network namespaces (unshare -n, some sandboxes) begin like that.
    See: https://man7.org/linux/man-pages/man7/network_namespaces.7.html
    """
    for interface in known(network.interfaces, network, "interfaces"):
        if interface.kind == "loopback":
            up = known(interface.up, interface, "up")
            yield Reading(
                ok=up,
                subject=interface.name,
                measured=f"{interface.name} is {'up' if up else 'down'}",
                expected="up",
                message="processes of this node cannot reach each other by 127.0.0.1",
            )


@check(Severity.ERROR, several_nodes=True)
def loopback_chosen(network: Network, env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """NCCL will use the loopback interface.

    Why: It publishes 127.0.0.1 as the address of this rank, so that ranks on other nodes connect to themselves and fail.
        A list that only excludes, such as ^docker0, takes lo first: naming anything switches the automatic choice off.
    See: https://github.com/NVIDIA/nccl/issues/286
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    interfaces = interfaces_of(network)
    needs_nccl(torch)
    chosen = nccl.sockets(interfaces, env, nccl.version_of(torch))
    if chosen.endpoints and any(map(nccl.reaches_others, interfaces)):
        first = chosen.endpoints[0]
        yield Reading(
            ok=not nccl.is_loopback(first.address.ip),
            measured=f"{first.interface.name} ({first.address.ip}) by {by(chosen, env)}",
            expected="an interface that leads to the other nodes",
            message="NCCL publishes a loopback address to the other nodes",
        )


@check(Severity.ERROR, several_nodes=True)
def gloo_on_loopback(network: Network, env: Env) -> Iterator[Reading]:
    """GLOO_SOCKET_IFNAME names the loopback interface.

    Why: Gloo publishes 127.0.0.1 as the address of this rank: "connectFullMesh failed ... Connection refused", since the
        other nodes connect to themselves. It serves one node only.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    interfaces = {interface.name: interface for interface in interfaces_of(network)}
    for name in nccl.gloo_names(env):
        if name in interfaces and any(map(nccl.reaches_others, interfaces.values())):
            yield Reading(
                ok=interfaces[name].kind != "loopback",
                subject=name,
                measured=f"{state(interfaces[name])} by GLOO_SOCKET_IFNAME={env.get('GLOO_SOCKET_IFNAME')}",
                expected="an interface that leads to the other nodes",
                message="Gloo publishes a loopback address to the other nodes",
            )


@check(Severity.WARNING, several_nodes=True)
def doubtful_interface(
    network: Network, env: Env, rdma: Optional[Rdma] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """NCCL will use an interface that probably does not lead to the other nodes.

    Why: By itself NCCL leaves out docker*, lo* and, from 2.28.3, virbr* only. Bridges and veth ends of containers, VPNs and
        tunnels that are up are taken like any other; connections over them fail, hang or crawl.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
        https://github.com/NVIDIA/nccl/issues/529
    """
    interfaces = interfaces_of(network)
    chosen = used(interfaces, env, rdma, torch)
    named = named_positively(interfaces, env, torch)
    if any(map(nccl.reaches_others, interfaces)):
        for endpoint in chosen.endpoints:
            if endpoint.interface.kind != "loopback":  # a fault of its own
                yield Reading(
                    ok=endpoint.interface.name in named or not nccl.leads_nowhere(endpoint.interface),
                    subject=endpoint.interface.name,
                    measured=f"{endpoint.interface.name} ({endpoint.address.ip}) by {by(chosen, env)}",
                    expected="interfaces that lead to the other nodes",
                    message=f"NCCL will use {endpoint.interface.name}, which looks like a local bridge, tunnel or VPN",
                )


@check(Severity.ERROR, several_nodes=True)
def chosen_interface_down(
    network: Network, env: Env, rdma: Optional[Rdma] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """NCCL will use an interface that has no link.

    Why: An interface keeps its address when the cable, the transceiver or the switch port fails. NCCL before 2.28.3 takes it
        like any other, and the connections over it time out.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        https://github.com/NVIDIA/nccl/blob/v2.27.7-1/src/misc/socket.cc
    """
    chosen = used(interfaces_of(network), env, rdma, torch)
    for endpoint in chosen.endpoints:
        if not nccl.leads_nowhere(endpoint.interface):  # loopback and bridges without guests: faults of their own
            yield Reading(
                ok=endpoint.interface.running is not False,
                subject=endpoint.interface.name,
                measured=f"{state(endpoint.interface)} by {by(chosen, env)}",
                expected="an interface with a link",
                message=f"NCCL will use {endpoint.interface.name}, which has no link",
            )


@check(Severity.ERROR, several_nodes=True)
def address_behind_nat(
    network: Network, env: Env, os: Os, launch: Optional[Launch] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """The address that NCCL will publish is behind the NAT of a container or of WSL.

    Why: Other nodes cannot connect to an address that exists on this machine only: containers need the host's network, and
        WSL its mirrored mode. Forwarding MASTER_PORT does not help: every rank listens on ports of its own.
    See: https://docs.docker.com/engine/network/drivers/bridge/
        https://learn.microsoft.com/en-us/windows/wsl/networking
    """
    source = "" if os.container else "https://learn.microsoft.com/en-us/windows/wsl/networking"
    interfaces = interfaces_of(network)
    for endpoint in nccl.sockets(interfaces, env, nccl.version_of(torch)).endpoints[:1]:
        subnet = _nat(endpoint, interfaces, os)
        known_place = os.container in ("docker", "podman") or os.virtualisation == "wsl"
        if known_place and not nccl.is_loopback(endpoint.address.ip) and not _master_within(subnet, network, launch):
            yield Reading(
                ok=subnet is None,
                measured=f"{endpoint.interface.name} has {endpoint.address.ip}, in {os.container or os.virtualisation}",
                expected="an address in the network of the other nodes",
                message="other nodes cannot connect to this address",
                source=source,
            )


_BRIDGES = ("172.17.0.0/16", "10.88.0.0/16", "10.0.2.0/24")
"""Default bridges of Docker and Podman, and slirp4netns of rootless containers."""


def _nat(endpoint: nccl.Endpoint, interfaces: Sequence[Interface], os: Os) -> Optional[nccl.Subnet]:
    """The subnet behind NAT that the address is certainly in; a LAN may have the same numbers, so these alone do not tell."""
    subnet, ip = nccl.network_of(endpoint.address), nccl.ip_of(endpoint.address.ip)
    if os.container in ("docker", "podman") and endpoint.interface.kind in ("veth", "tunnel"):
        return next((net for net in map(ipaddress.IPv4Network, _BRIDGES) if ip in net), None)
    # WSL's NAT has a /20 of 172.16.0.0/12; its mirrored mode has the addresses of Windows, and an interface loopback0
    mirrored = any(interface.name == "loopback0" for interface in interfaces)
    if os.virtualisation != "wsl" or mirrored or subnet is None or subnet.prefixlen != 20:
        return None
    return subnet if ip in ipaddress.IPv4Network("172.16.0.0/12") else None


def _master_within(subnet: Optional[nccl.Subnet], network: Network, launch: Optional[Launch]) -> bool:
    """Is the master another one in that subnet? Then it leads there: containers of one machine that play several nodes."""
    if subnet is None or launch is None or launch.is_master is not False:
        return False
    resolved = network.master_name.addresses if network.master_name else ()
    return any(nccl.ip_of(text) in subnet for text in (launch.master_addr or "", *resolved))


@check(Severity.NOTE, several_nodes=True)
def slow_interface(
    network: Network, env: Env, rdma: Optional[Rdma] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """The interface that NCCL will use is slower than 10 Gb/s.

    Why: Without RDMA the gradients of every step cross it. It works; the figure says what to expect. Virtual NICs state no
        speed of a wire and are not judged.
    See: https://github.com/NVIDIA/nccl/issues/450
    """
    carrier = nccl.carrier(rdma, env, nccl.version_of(torch))
    if carrier.kind == "rdma":
        words = f"{nccl.rdma_words(carrier.ports)}; sockets only start the job"
        yield Reading(ok=True, measured=words, expected=f"at least {SLOW_GBIT_S:g} Gb/s between nodes")
    elif carrier.kind == "sockets":
        yield from _speed(
            network, env, torch, SLOW_GBIT_S, "the network will set the pace: slow but normal for this wire"
        )
    else:
        yield Reading(ok=None, reason=Reason("not-applicable", f"what carries the data is not known: {carrier.why}"))


@check(Severity.ERROR)
def interface_below_policy(
    network: Network, env: Env, policy: Policy, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """The interface that NCCL will use is slower than the site's policy demands.

    Why: A link that negotiated down, or the management network chosen in place of the fast one, makes every node of the job
        as slow as this one. The policy's interface_min_gbit_s sets the bound.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    if policy.interface_min_gbit_s is not None:
        yield from _speed(
            network, env, torch, policy.interface_min_gbit_s, "NCCL will use an interface below the policy"
        )


def _speed(
    network: Network, env: Env, torch: Optional[Torch], minimum_gbit_s: float, message: str
) -> Iterator[Reading]:
    """A reading of the fastest interface that NCCL will take, where it has the speed of a wire."""
    interfaces = interfaces_of(network)
    best = nccl.fastest(nccl.sockets(interfaces, env, nccl.version_of(torch)).endpoints)
    if best is None or best.interface.kind == "loopback":
        return
    speed, name = nccl.wire_speed_gbit_s(best.interface), best.interface.name
    if speed is None:
        reason = best.interface.unread.get("speed_mbit_s")
        virtual = Reason(
            "not-applicable", f"{name} is a virtual NIC ({_maker(best.interface)}): its speed is not judged"
        )
        unsaid = reason if reason and best.interface.kind in nccl.WIRED_KINDS else virtual
        if best.interface.running is False:
            unsaid = Reason("not-applicable", f"{name} has no link")
        elif best.interface.kind == "wireless":
            unsaid = Reason("not-applicable", f"{name} is wireless: its driver states no speed")
        yield Reading(ok=None, subject=name, reason=unsaid)
        return
    faster = _faster(interfaces, best.interface, speed)
    yield Reading(
        ok=speed >= minimum_gbit_s,
        subject=name,
        measured=nccl.speed_words(best.interface) + (f" ({faster} would be faster)" if faster else ""),
        expected=f"at least {minimum_gbit_s:g} Gb/s",
        message=message,
    )


def _maker(interface: Interface) -> str:
    """ena, hv_netvsc, veth: the driver's name where there is a driver."""
    return interface.driver or interface.kind or "kind not known"


def _faster(interfaces: Sequence[Interface], chosen: Interface, speed_gbit_s: float) -> str:
    """Another interface that leads to other nodes and is faster: "ens1f0 at 100 Gb/s"."""
    others = [(nccl.wire_speed_gbit_s(i) or 0, i.name) for i in interfaces if i != chosen and nccl.reaches_others(i)]
    speed, name = max(others, default=(0, ""))
    return f"{name} at {speed:g} Gb/s" if speed > speed_gbit_s else ""


@check(Severity.ERROR)
def socket_interface_missing(network: Network, env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """No interface here is what NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names.

    Why: NCCL then ends with "Bootstrap : no socket interface found" and never falls back; Gloo with "Unable to find address
        for". NCCL takes prefixes, one leading "^" and one "=" for the whole list and no blanks; Gloo takes exact names only.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    interfaces = interfaces_of(network)
    if nccl.socket_list(env) is not None and nccl.lacks(torch):
        reason = Reason("not-applicable", "this torch has no NCCL, which alone reads it")
        yield Reading(ok=None, subject="NCCL_SOCKET_IFNAME", reason=reason)
    elif nccl.socket_list(env) is not None:
        found = nccl.sockets(interfaces, env, nccl.version_of(torch)).endpoints
        yield Reading(
            ok=bool(found),
            subject="NCCL_SOCKET_IFNAME",
            measured=_names_measured(env, "NCCL_SOCKET_IFNAME", [e.interface.name for e in found], interfaces),
            expected="at least one interface with an address" + _running(torch),
            message="NCCL will find no interface" + _grammar(env.get("NCCL_SOCKET_IFNAME") or ""),
        )
    for name in nccl.gloo_names(env):
        here = [i.name for i in interfaces if i.name == name and i.addresses]
        yield Reading(
            ok=bool(here),
            subject="GLOO_SOCKET_IFNAME" + (f" {name}" if len(nccl.gloo_names(env)) > 1 else ""),
            measured=_names_measured(env, "GLOO_SOCKET_IFNAME", here, interfaces),
            expected="the exact name of an interface with an address",
            message=f"Gloo will find no interface {name!r}: it takes exact names, no prefixes, ^ or =",
        )


def _running(torch: Optional[Torch]) -> str:
    newer = (nccl.version_of(torch) or nccl.NEWEST) >= nccl.RUNNING_SINCE
    return " and a link (NCCL 2.28.3 and later)" if newer else ""


def _names_measured(env: Env, variable: str, found: List[str], interfaces: Sequence[Interface]) -> str:
    taken = f"takes {', '.join(found)}" if found else f"takes none of {', '.join(map(state, interfaces))}"
    return f"{variable}={env.get(variable)} {taken}"


def _grammar(value: str) -> str:
    """A hint at a mark that cannot work where it stands."""
    rest = value[1:] if value.startswith("^") else value
    rest = rest[1:] if rest.startswith("=") else rest
    wrong = [
        words
        for sign, words in ((" ", "a blank"), (";", '";"'), ("^", 'another "^"'), ("=", 'another "="'))
        if sign in rest
    ]
    return f": {' and '.join(wrong)} in the list belongs to a name" if wrong else ""

"""Checks of names, interfaces and firewalls: can the ranks of a job of several nodes find and reach each other?"""

import ipaddress
import re
from typing import Iterator, List, Optional, Sequence, Tuple

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Firewall, Gpus, Interface, Launch, Network, Os, Rdma, Reason, Resolved, Torch, Zone
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, why_unknown
from ddp_doctor.policy import Policy

SLOW_GBIT_S = 10.0
"""Below this the network, not the GPUs, sets the pace of data-parallel training: 10 GbE is what guides ask for at least."""


# --------------------------------------------------------------------------- the own host name


@check(Severity.ERROR, several_nodes=True)
def own_name_unresolved(
    network: Network, launch: Launch, env: Env, gpus: Optional[Gpus] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """This host's own name does not resolve.

    Why: Gloo binds to the address of the own host name and falls back to loopback when there is none, so that other
        nodes cannot connect; torchrun's c10d rendezvous publishes the name as MASTER_ADDR and looks its own address up.
    See: https://github.com/pytorch/pytorch/pull/26166
        https://github.com/pytorch/pytorch/issues/150532
    """
    yield from _own_name(network, launch, env, gpus, torch, "unresolved", "this host's own name does not resolve")


@check(Severity.ERROR, several_nodes=True)
def own_name_is_loopback(
    network: Network, launch: Launch, env: Env, gpus: Optional[Gpus] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """This host's own name resolves to a loopback address.

    Why: Gloo then listens on that address, where no other node can connect, and torchrun's c10d rendezvous does not
        recognise the master by its address, so that nobody serves the store. Stock Debian and Ubuntu write such a line
        with 127.0.1.1, other systems and virtual machines with 127.0.0.1.
    See: https://github.com/pytorch/pytorch/issues/79388
        https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution
    """
    yield from _own_name(network, launch, env, gpus, torch, "loopback", "this host's own name leads to itself only")


@check(Severity.ERROR, several_nodes=True)
def own_name_is_elsewhere(
    network: Network, launch: Launch, env: Env, gpus: Optional[Gpus] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """This host's own name resolves to an address that none of its interfaces has.

    Why: An old entry in DNS or /etc/hosts, or the public address of a host behind NAT. Gloo cannot bind to it and falls back
        to loopback; torchrun's c10d rendezvous does not recognise the master.
    See: https://github.com/pytorch/pytorch/pull/26166
        https://github.com/pytorch/pytorch/issues/73656
    """
    message = "this host's own name leads to an address that it does not have"
    yield from _own_name(network, launch, env, gpus, torch, "elsewhere", message)


@check(Severity.NOTE, several_nodes=True)
def own_name_useless_to_peers(
    network: Network, launch: Launch, env: Env, gpus: Optional[Gpus] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """Other nodes could not reach this host by the address of its own name, on which nothing known here relies.

    Why: Harmless while the launch is static (a node rank and the master's address) and only NCCL is used. Gloo
        without GLOO_SOCKET_IFNAME (device meshes, checkpoints and the default back ends use it beside NCCL) and torchrun's c10d rendezvous would fail.
    See: https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    if not _relies_on_own_name(launch, env, gpus, torch):
        fault, measured = _own_name_state(network)
        yield Reading(
            ok=not fault,
            measured=measured,
            expected="an address of an interface that other nodes reach",
            message="Gloo and torchrun's c10d rendezvous would not work with this host's own name",
        )


def _own_name(
    network: Network,
    launch: Launch,
    env: Env,
    gpus: Optional[Gpus],
    torch: Optional[Torch],
    fault: str,
    message: str,
) -> Iterator[Reading]:
    """The reading of one of the three ways in which the own name can be wrong.

    None where nothing relies on the name, and none where it is wrong in another way: that is no pass.
    """
    why = _relies_on_own_name(launch, env, gpus, torch)
    found, measured = _own_name_state(network) if why else ("", "")
    if why and found in ("", fault):
        yield Reading(
            ok=not found,
            measured=measured,
            expected="an address of an interface that other nodes reach",
            message=f"{message}, and {why}",
        )


def _own_name_state(network: Network) -> Tuple[str, str]:
    """("" or unresolved, loopback, elsewhere; what was measured), by the address that a socket here would be bound to."""
    resolved = known(network.own_name, network, "own_name")
    _interfaces(network)
    name = resolved.name or network.hostname or "the own host name"
    if resolved.error or not resolved.addresses:
        return "unresolved", _found(name, resolved)
    measured = f"{name} is {', '.join(resolved.addresses)}"
    address = nccl.own_address(network)
    if address is None:
        return "elsewhere", f"{measured}; no interface here has that address"
    return ("loopback" if nccl.is_loopback(address) else ""), measured


def _found(name: str, resolved: Resolved) -> str:
    """What the resolver said of a name; its errors mostly begin with the name."""
    said = resolved.error or ", ".join(resolved.addresses) or "no address"
    return said if said.startswith(f"{name}: ") else f"{name}: {said}"


def _relies_on_own_name(launch: Launch, env: Env, gpus: Optional[Gpus], torch: Optional[Torch]) -> str:
    """What in this job takes the address of the own host name; "" for nothing that is known."""
    if launch.rendezvous == "c10d":
        return "torchrun's c10d rendezvous publishes that name"
    if _gloo_only(gpus, torch) and not nccl.gloo_names(env):
        return "Gloo, the back end without GPUs, binds to its address (GLOO_SOCKET_IFNAME is not set)"
    return ""


def _gloo_only(gpus: Optional[Gpus], torch: Optional[Torch]) -> bool:
    """Is Gloo the only back end that a job here can use? Only what is known to lack counts."""
    without_gpu = gpus is not None and gpus.gpus == () and gpus.on_bus == () and not gpus.other_vendor
    return nccl.lacks(torch) or without_gpu


# --------------------------------------------------------------------------- interfaces


@check(Severity.ERROR, several_nodes=True)
def no_usable_interface(network: Network, env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """No interface is up with an address that other nodes could reach.

    Why: Every rank must connect to the others by TCP, also where InfiniBand carries the data; with loopback, link-local
        addresses and local bridges alone it cannot.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    interfaces = _interfaces(network)
    named = _named_positively(interfaces, env, torch)
    good = [i for i in interfaces if nccl.reaches_others(i) or i.name in named]
    yield Reading(
        ok=bool(good),
        measured=", ".join(map(_state, good or [i for i in interfaces if i.kind != "loopback"])) or "loopback alone",
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
    interfaces = _interfaces(network)
    _needs_nccl(torch)
    chosen = nccl.sockets(interfaces, env, nccl.version_of(torch))
    if chosen.endpoints and any(map(nccl.reaches_others, interfaces)):
        first = chosen.endpoints[0]
        yield Reading(
            ok=not nccl.is_loopback(first.address.ip),
            measured=f"{first.interface.name} ({first.address.ip}) by {_by(chosen, env)}",
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
    interfaces = {interface.name: interface for interface in _interfaces(network)}
    for name in nccl.gloo_names(env):
        if name in interfaces and any(map(nccl.reaches_others, interfaces.values())):
            yield Reading(
                ok=interfaces[name].kind != "loopback",
                subject=name,
                measured=f"{_state(interfaces[name])} by GLOO_SOCKET_IFNAME={env.get('GLOO_SOCKET_IFNAME')}",
                expected="an interface that leads to the other nodes",
                message="Gloo publishes a loopback address to the other nodes",
            )


def _needs_nccl(torch: Optional[Torch]) -> None:
    """Raises NotKnown where the torch has no NCCL, whose choices then concern nobody."""
    if nccl.lacks(torch):
        raise NotKnown(Reason("not-applicable", "this torch has no NCCL"))


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
    interfaces = _interfaces(network)
    chosen = _used(interfaces, env, rdma, torch)
    named = _named_positively(interfaces, env, torch)
    if any(map(nccl.reaches_others, interfaces)):
        for endpoint in chosen.endpoints:
            if endpoint.interface.kind != "loopback":  # a fault of its own
                yield Reading(
                    ok=endpoint.interface.name in named or not nccl.leads_nowhere(endpoint.interface),
                    subject=endpoint.interface.name,
                    measured=f"{endpoint.interface.name} ({endpoint.address.ip}) by {_by(chosen, env)}",
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
    chosen = _used(_interfaces(network), env, rdma, torch)
    for endpoint in chosen.endpoints:
        if not nccl.leads_nowhere(endpoint.interface):  # loopback and bridges without guests: faults of their own
            yield Reading(
                ok=endpoint.interface.running is not False,
                subject=endpoint.interface.name,
                measured=f"{_state(endpoint.interface)} by {_by(chosen, env)}",
                expected="an interface with a link",
                message=f"NCCL will use {endpoint.interface.name}, which has no link",
            )


def _used(interfaces: Sequence[Interface], env: Env, rdma: Optional[Rdma], torch: Optional[Torch]) -> nccl.Sockets:
    """The interfaces that a job will really use: with RDMA the first one alone, to start up; without, all carry data."""
    _needs_nccl(torch)
    version = nccl.version_of(torch)
    chosen = nccl.sockets(interfaces, env, version)
    one = nccl.carrier(rdma, env, version).kind == "rdma"
    return nccl.Sockets(chosen.endpoints[:1], chosen.by) if one else chosen


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
    interfaces = _interfaces(network)
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
    interfaces = _interfaces(network)
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
    interfaces = _interfaces(network)
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
    taken = f"takes {', '.join(found)}" if found else f"takes none of {', '.join(map(_state, interfaces))}"
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


# --------------------------------------------------------------------------- the master and firewalls


@check(Severity.ERROR)
def master_name_unresolved(network: Network, launch: Launch) -> Iterator[Reading]:
    """The master's name does not resolve on this node.

    Why: Every rank looks MASTER_ADDR up to reach the store of rank 0; those that cannot retry until they time out. A Slurm
        list that was not expanded (node[01-04]) is no name either: scontrol show hostnames expands it.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    if launch.master_addr and nccl.ip_of(launch.master_addr) is None:
        master = known(network.master_name, network, "master_name")
        yield Reading(
            ok=bool(master.addresses) and not master.error,
            measured=_found(master.name, master),
            expected="an address on every node",
            message="this node cannot find the master by its name",
        )


@check(Severity.ERROR, several_nodes=True)
def firewall_closed(
    network: Network, env: Env, launch: Optional[Launch] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """A firewall here has no rule for the ports that NCCL and Gloo open.

    Why: NCCL and Gloo listen on ports that the kernel picks from ip_local_port_range, on all nodes. Opening MASTER_PORT
        alone, as guides teach, lets the ranks meet and then hang. Trust the nodes' subnet or interface, or narrow the range
        and open it.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
        https://github.com/NVIDIA/nccl/issues/388
    """
    endpoints = nccl.sockets(_interfaces(network), env, nccl.version_of(torch)).endpoints[:1]
    for firewall in known(network.firewalls, network, "firewalls"):
        if firewall.name not in ("firewalld", "ufw"):
            continue  # docker, kube-proxy and cilium always have chains; an attempt from another node tells
        if not firewall.active:
            reason = None if firewall.active is False else why_unknown(firewall, "active")
            words = f"{firewall.name} is not active"
            yield Reading(ok=None if reason else True, subject=firewall.name, measured=words, reason=reason)
        for endpoint in endpoints if firewall.active else ():
            yield _firewall(firewall, endpoint, network, launch)


def _firewall(firewall: Firewall, endpoint: nccl.Endpoint, network: Network, launch: Optional[Launch]) -> Reading:
    needed = [known(network.port_range, network, "port_range")]
    if launch is not None and launch.is_master and launch.master_port:
        needed.append((launch.master_port, launch.master_port))
    interface, subnet = endpoint.interface.name, nccl.network_of(endpoint.address)
    zones = _zones(firewall, interface, subnet)
    wide = interface in (firewall.trusted_interfaces or ()) or _covers(firewall.trusted_sources, subnet, interface)
    opened = wide or any(
        zone.target == "ACCEPT" or _opens(zone.open_ports, needed, subnet, interface) for zone in zones
    )
    reason = None if opened else _why_unsure(firewall, zones)
    if reason:
        return Reading(ok=None, subject=firewall.name, reason=reason)
    ports = ", ".join(f"{low}-{high}" if low != high else str(low) for low, high in needed)
    named = [port for zone in zones for port in zone.open_ports or ()]
    return Reading(
        ok=opened,
        subject=firewall.name,
        measured=f"{firewall.name} is active{_zone_words(firewall, zones)}; open: {', '.join(named) or 'no port'}"
        + (f"; trusted: {', '.join(firewall.trusted_sources)}" if firewall.trusted_sources else ""),
        expected=f"TCP ports {ports} open to the other nodes on {interface}, or their subnet {subnet} trusted",
        message=f"{firewall.name} will turn away the other nodes' connections",
    )


def _why_unsure(firewall: Firewall, zones: Sequence[Zone]) -> Optional[Reason]:
    """Why it cannot be told that the firewall is closed, or None: rules not read, or sources that name no address."""
    if firewall.trusted_sources is None:
        return why_unknown(firewall, "trusted_sources")
    for zone in zones:
        for field in ("target", "open_ports"):
            if getattr(zone, field) is None:
                return why_unknown(zone, field)
    sources = (*firewall.trusted_sources, *(s for zone in firewall.zones or () for s in zone.sources or ()))
    vague = [source for source in sources if re.match("mac:|ipset:|not ", source)]
    return Reason("unreadable", f"{firewall.name}: who is meant by {', '.join(vague)} is not known") if vague else None


def _zones(firewall: Firewall, interface: str, subnet: Optional[nccl.Subnet]) -> List[Zone]:
    """What judges traffic from the subnet on the interface; ufw counts as one zone."""
    if firewall.zones is None:
        return [Zone("", firewall.target, firewall.open_ports, unread=firewall.unread)]
    name = (firewall.interfaces or {}).get(interface, firewall.zone)
    return [z for z in firewall.zones if z.name == name or _covers(z.sources, subnet, interface)]


def _zone_words(firewall: Firewall, zones: Sequence[Zone]) -> str:
    return (
        f" (zone {', '.join(z.name for z in zones)})" if firewall.zones is not None else f" (default {firewall.target})"
    )


def _covers(sources: Optional[Sequence[str]], subnet: Optional[nccl.Subnet], interface: str) -> bool:
    """Does one of the sources, "10.0.0.0/8" or "10.0.0.2 on eth0", overlap the subnet of the interface?"""
    for source in sources or ():
        text, _, on = source.partition(" on ")
        try:
            net = ipaddress.ip_network(text, strict=False)
        except ValueError:
            continue
        if on in ("", interface) and subnet is not None and net.version == subnet.version and net.overlaps(subnet):
            return True
    return False


def _opens(
    ports: Optional[Sequence[str]], needed: Sequence[Tuple[int, int]], subnet: Optional[nccl.Subnet], interface: str
) -> bool:
    """Do the open ports together cover every needed range for TCP from the subnet?"""
    spans = sorted(filter(None, (_span(port, subnet, interface) for port in ports or ())))
    return all(_covered(low, high, spans) for low, high in needed)


def _span(port: str, subnet: Optional[nccl.Subnet], interface: str) -> Optional[Tuple[int, int]]:
    """(first, last) of "29500/tcp", "1024-65535/any from 10.0.0.0/8 on eth0"; None where it does not serve the subnet."""
    found = re.match(r"(\d{1,5})(?:-(\d{1,5}))?/(tcp|any)(?: from (.+?))?(?: on (.+))?$", port)
    if not found or found.group(5) not in (None, interface):
        return None
    if found.group(4) and not _covers([found.group(4)], subnet, interface):
        return None
    return int(found.group(1)), int(found.group(2) or found.group(1))


def _covered(low: int, high: int, spans: Sequence[Tuple[int, int]]) -> bool:
    """Is every port from low to high in one of the sorted spans?"""
    for first, last in spans:
        if first <= low <= last:
            low = last + 1
    return low > high


# --------------------------------------------------------------------------- words and helpers


def _interfaces(network: Network) -> Tuple[Interface, ...]:
    """The interfaces, where at least one's addresses could be read; raises NotKnown otherwise."""
    interfaces = known(network.interfaces, network, "interfaces")
    if interfaces and all(i.addresses is None for i in interfaces):
        raise NotKnown(why_unknown(interfaces[0], "addresses"))
    return interfaces


def _named_positively(interfaces: Sequence[Interface], env: Env, torch: Optional[Torch]) -> List[str]:
    """Interfaces that NCCL_SOCKET_IFNAME asks for by name: a person chose them."""
    named = nccl.socket_list(env)
    if named is None or named.negated:
        return []
    chosen = nccl.sockets(interfaces, env, nccl.version_of(torch)).endpoints
    return [e.interface.name for e in chosen if e.interface.kind != "loopback"]


def _by(chosen: nccl.Sockets, env: Env) -> str:
    if chosen.by in ("NCCL_SOCKET_IFNAME", "NCCL_COMM_ID"):
        return f"{chosen.by}={env.get(chosen.by)}"
    return "NCCL's own choice"


def _state(interface: Interface) -> str:
    """eth1 (down), eth2 (no address), eth0 (10.0.0.5)."""
    if interface.up is False or interface.running is False:
        return f"{interface.name} ({'down' if interface.up is False else 'no link'})"
    return f"{interface.name} ({interface.addresses[0].ip if interface.addresses else 'no address'})"

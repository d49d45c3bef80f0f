"""Checks of firewalls: are the ports of a job closed?"""

import ipaddress
import re
from typing import Iterator, List, Optional, Sequence, Tuple

from ddp_doctor import nccl
from ddp_doctor.checks.network._choice import interfaces_of
from ddp_doctor.facts import Env, Firewall, Launch, Network, Reason, Torch, Zone
from ddp_doctor.model import Reading, Severity, check, known, why_unknown


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
    endpoints = nccl.sockets(interfaces_of(network), env, nccl.version_of(torch)).endpoints[:1]
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

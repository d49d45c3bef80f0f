"""Network: interfaces, routes, names, firewalls, proxies and ports of one node."""

import re
import time
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect import firewall, interfaces, netlink, services
from ddp_doctor.collect.master import master
from ddp_doctor.collect.numbers import read_number
from ddp_doctor.facts import Network, Reason, Resolved, Route, Socket, Unread, Variable
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

LIMIT_S = 25.0
"""Three questions to a resolver that does not answer, and the firewalls."""
QUICK_RESOLVE_S, RESOLVE_S = 1.0, 5.0
"""A name in /etc/hosts takes milliseconds. A resolver whose first server is dead takes its 5 s (resolv.conf(5))."""
SSH_PORT = 22
_RTF_UP, _RTF_REJECT = 0x1, 0x200
"""include/uapi/linux/route.h"""
_PROXIES = "http_proxy https_proxy all_proxy no_proxy grpc_proxy"


def read(host: Host, ask: Ask) -> Network:
    """The network as this process sees it. Profile quick asks the resolver for the node's own name alone."""
    unread: Unread = {}
    hostname = optional(lambda: host.read("/proc/sys/kernel/hostname").strip(), unread, "hostname")
    lines = optional(lambda: hosts_lines(host.read("/etc/hosts"), hostname or ""), unread, "hosts_lines")
    own_name = _own_name(host, hostname, RESOLVE_S if ask.active else QUICK_RESOLVE_S, unread)
    address, port = master(host, ask)
    return Network(
        hostname=hostname,
        fqdn=_fqdn(host, ask, own_name, bool(lines), unread),
        interfaces=interfaces.read_all(host, unread, modules=ask.active),
        default_route=_default_route(host, unread),
        own_name=own_name,
        hosts_lines=lines,
        firewalls=firewall.read_all(host),
        proxies=optional(lambda: _proxies(host.env()), unread, "proxies"),
        port_range=optional(lambda: _port_range(host), unread, "port_range"),
        listening=optional(lambda: _listening(host, port), unread, "listening"),
        sysctls=_sysctls(host),
        conntrack_used=optional(
            lambda: read_number(host, f"{_SYSCTL}/net/netfilter/nf_conntrack_count"), unread, "conntrack_used"
        ),
        neighbours=optional(lambda: len(host.read("/proc/net/arp").splitlines()) - 1, unread, "neighbours"),
        unread=unread,
        **_towards(host, ask, address, unread),
    )


_SYSCTL = "/proc/sys"
_SETTINGS = (
    "net.ipv4.conf.all.rp_filter net.ipv4.conf.all.arp_ignore net.ipv4.conf.all.arp_announce "
    "net.ipv4.neigh.default.gc_thresh1 net.ipv4.neigh.default.gc_thresh3 net.core.somaxconn "
    "net.netfilter.nf_conntrack_max net.ipv4.tcp_max_syn_backlog net.core.rmem_max net.core.wmem_max"
).split()


def _sysctls(host: Host) -> Dict[str, int]:
    """Those of ``_SETTINGS`` that this kernel, and this network namespace, have."""
    texts = (
        (name, optional(partial(host.read, f"{_SYSCTL}/{name.replace('.', '/')}"), {}, name)) for name in _SETTINGS
    )
    return {name: int(text) for name, text in texts if text and re.fullmatch(r"\d{1,20}\s*", text, re.ASCII)}


def hosts_lines(text: str, hostname: str) -> Tuple[str, ...]:
    """Lines of /etc/hosts that give an address to ``hostname``, in full or in short, without their comments."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    wanted = {hostname.lower(), hostname.lower().partition(".")[0]} - {""}
    return tuple(" ".join(words) for words in lines if wanted & {word.lower() for word in words[1:]})


def default_route(ipv4: str, ipv6: str) -> Optional[Route]:
    """The default route with the lowest metric of /proc/net/route, else of /proc/net/ipv6_route."""
    found = sorted(_ipv4_defaults(ipv4), key=lambda pair: pair[0]) or sorted(
        _ipv6_defaults(ipv6), key=lambda pair: pair[0]
    )
    return found[0][1] if found else None


def _ipv4_defaults(text: str) -> List[Tuple[int, Route]]:
    """(metric, route) of the rows whose destination and mask are 0; addresses are in the machine's byte order."""
    found = []
    for fields in (line.split() for line in text.splitlines()[1:]):
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000" or not _is_used(fields[3]):
            continue
        gateway = services.address(fields[2])
        found.append((int(fields[6]), _route_through(fields[0], gateway, "0.0.0.0")))  # noqa: S104  "none", not a bind
    return found


def _ipv6_defaults(text: str) -> List[Tuple[int, Route]]:
    """(metric, route) of the rows for ::/0; addresses are in network order."""
    import ipaddress

    found = []
    for fields in (line.split() for line in text.splitlines()):
        if len(fields) < 10 or fields[0] != "0" * 32 or fields[1] != "00" or not _is_used(fields[8]):
            continue
        gateway = str(ipaddress.IPv6Address(int(fields[4], 16)))
        found.append((int(fields[5], 16), _route_through(fields[9], gateway, "::")))
    return found


def _is_used(flags: str) -> bool:
    return bool(int(flags, 16) & _RTF_UP) and not int(flags, 16) & _RTF_REJECT


def _route_through(interface: str, gateway: str, none: str) -> Route:
    return Route(to="default", interface=interface, gateway=None if gateway == none else gateway)


def _default_route(host: Host, unread: Unread) -> Optional[Route]:
    ipv4 = optional(lambda: host.read("/proc/net/route"), unread, "default_route")
    ipv6 = optional(lambda: host.read("/proc/net/ipv6_route"), {}, "default_route")
    try:
        route = default_route(ipv4 or "", ipv6 or "")
    except ValueError as error:
        unread["default_route"] = Reason("unreadable", f"/proc/net/route: {error}")
        return None
    if route:
        unread.pop("default_route", None)
    elif ipv4 is not None:
        unread["default_route"] = Reason("absent", "no default route")
    return route


def _resolved(host: Host, name: str, limit_s: float) -> Resolved:
    """The resolver's answer, its words or "timed out", and how long it took. Unreadable when the deadline came first."""
    started = time.monotonic()
    addresses: Tuple[str, ...] = ()
    error = None
    try:
        addresses = host.resolve(name, limit_s)
    except Unreadable as refusal:
        if refusal.reason.kind == "deadline":  # that tells nothing of the resolver
            raise
        error = "timed out" if refusal.reason.kind == "timed-out" else refusal.reason.text
    elapsed_s = round(time.monotonic() - started, 4)
    duration_s = optional(lambda: host.ask(f"seconds to resolve {name}", lambda: elapsed_s), {}, "duration_s")
    return Resolved(name, addresses, error, duration_s)


def _own_name(host: Host, hostname: Optional[str], limit_s: float, unread: Unread) -> Optional[Resolved]:
    if not hostname:
        unread["own_name"] = unread.get("hostname") or Reason("absent", "no host name")
        return None
    return optional(lambda: _resolved(host, hostname, limit_s), unread, "own_name")


def _fqdn(host: Host, ask: Ask, own_name: Optional[Resolved], in_hosts: bool, unread: Unread) -> Optional[str]:
    """What socket.getfqdn() says, which is what torchrun publishes as the master's name."""
    if own_name is None:
        unread["fqdn"] = unread["own_name"]
    elif own_name.error:
        unread["fqdn"] = Reason("unresolved", own_name.error)
    elif not ask.active and not in_hosts:
        unread["fqdn"] = Reason("not-asked", "profile quick asks no name server")
    else:
        return optional(lambda: str(host.ask("fqdn", _getfqdn, RESOLVE_S)), unread, "fqdn")
    return None


def _getfqdn() -> str:
    import socket

    return socket.getfqdn()


def _towards(host: Host, ask: Ask, address: Optional[str], unread: Unread) -> Dict[str, Any]:
    """master_name and master_route. A name is asked for only by a profile that may; an address needs no asking."""
    why = Reason("not-applicable", "no master is named") if address is None else None
    if address is not None and not ask.active and not _is_address(address):
        why = Reason("not-asked", "profile quick asks no name server")
    if address is None or why is not None:
        unread.update(dict.fromkeys(("master_name", "master_route"), why or Reason("not-asked", "no master")))
        return {}
    name = optional(lambda: _resolved(host, address, RESOLVE_S), unread, "master_name")
    if name is None:
        unread["master_route"] = unread["master_name"]
        return {}
    if not name.addresses:
        unread["master_route"] = Reason("unresolved", name.error or f"{address}: no address")
        return {"master_name": name}
    return {"master_name": name, "master_route": optional(lambda: _route(host, address, name), unread, "master_route")}


def _is_address(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(%\w+)?", text))


def _route(host: Host, to: str, name: Resolved) -> Route:
    """Route to the first address of ``name``, as the kernel would choose it; nothing is sent."""
    ip = name.addresses[0]
    seen = host.ask(f"route to {ip}", lambda: netlink.route(ip))
    return Route(
        to=to,
        ip=ip,
        interface=seen.get("interface"),
        source=seen.get("source"),
        gateway=seen.get("gateway"),
        error=seen.get("error"),
    )


def _proxies(env: Dict[str, str]) -> Tuple[Variable, ...]:
    return tuple(Variable(name, value) for name, value in env.items() if name.lower() in _PROXIES.split())


def _port_range(host: Host) -> Tuple[int, int]:
    path = "/proc/sys/net/ipv4/ip_local_port_range"
    text = host.read(path)
    if not re.fullmatch(r"\s*[0-9]{1,5}\s+[0-9]{1,5}\s*", text):
        raise Unreadable(Reason("unreadable", f"{path}: not two port numbers: {text[:40]!r}"))
    low, high = text.split()
    return int(low), int(high)


def _listening(host: Host, master_port: Optional[int]) -> Tuple[Socket, ...]:
    """Listening sockets; the owners of those on the master's and sshd's ports."""
    rows = services.listening(host)
    in_question = {port for _, port in rows if port in (master_port, SSH_PORT)}
    unread: Unread = {}
    owners = optional(lambda: services.owners(host, in_question), unread, "pid") or {} if in_question else {}
    hidden = unread.get("pid") or Reason("no-rights", "the owner is another user's process, or outside this container")
    elsewhere = Reason("not-asked", "neither the master's port nor sshd's")
    return tuple(
        Socket(ip, port, *owners[port])
        if port in owners
        else Socket(ip, port, unread={"pid": hidden if port in in_question else elsewhere})
        for ip, port in sorted(rows, key=lambda row: (row[1], row[0]))
    )

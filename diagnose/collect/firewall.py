"""Firewalls: firewalld and ufw by their files, nftables and iptables by their policies (a part of ``network``).

kube-proxy, docker and cilium always have chains, and only root may read them: what their rules do to a port is left
to an attempt from another node. Nothing here changes anything: a tool that would load a kernel module is not run.
"""

import os
import re
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from ddp_doctor.collect import services
from ddp_doctor.facts import Firewall, Reason, Unread, Zone
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

_FOLDERS = ("/etc/firewalld", "/usr/lib/firewalld")
"""The administrator's files win over the distribution's: firewalld.dbus(5), "DIRECTORIES"."""
_DEFAULT_ZONE = "public"
"""firewalld.conf(5): DefaultZone"""
_RUN_LIMIT_S = 2.0
_SBIN = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
"""A scheduler's prolog has no PATH."""


def read_all(host: Host) -> Tuple[Firewall, ...]:
    """Every firewall that is installed here, in force or not."""
    found = (firewalld(host), ufw(host), nftables(host), iptables(host))
    return tuple(firewall for firewall in found if firewall)


# --------------------------------------------------------------------------- firewalld


def firewalld(host: Host) -> Optional[Firewall]:
    """firewalld with its zones, or None where it is not installed."""
    if not any(_there(host, path) for path in ("/usr/sbin/firewalld", *_FOLDERS)):
        return None
    unread: Unread = {}
    active = optional(lambda: services.running(host, "firewalld", "firewalld.service"), unread, "active")
    if active is False:
        return Firewall("firewalld", active=False, unread=_all_unread("firewalld is not running"))
    default = optional(lambda: _default_zone(host), unread, "zone")
    names = optional(lambda: _zone_names(host), unread, "zones")
    why = unread.get("zone") or unread.get("zones")
    if why is not None:
        return Firewall("firewalld", active=active, unread={**dict.fromkeys(_ZONE_FIELDS, why), **unread})
    zones = tuple(_zone(host, name) for name in dict.fromkeys((default or _DEFAULT_ZONE, *(names or ()))))
    bound = optional(lambda: dict(host.ask("zones of connections", _connection_zones)), {}, "") or {}
    interfaces = {**bound, **{i: zone.name for zone in zones for i in zone.interfaces or ()}}
    known = {zone.name for zone in zones}
    zones += tuple(_zone(host, name) for name in dict.fromkeys(interfaces.values()) if name not in known)
    used = tuple(z for z in zones if z.name in (default, *interfaces.values()) or z.sources or z.trusted_sources)
    unread.update({field: why for field, why in zones[0].unread.items() if field in ("target", "open_ports")})
    return Firewall(
        "firewalld",
        active=active,
        zone=default,
        interfaces=interfaces,
        target=zones[0].target,
        open_ports=zones[0].open_ports,
        trusted_sources=tuple(dict.fromkeys(source for zone in used for source in zone.trusted_sources or ())),
        trusted_interfaces=tuple(i for i, name in interfaces.items() if _target(zones, name) == "ACCEPT"),
        zones=used,
        unread=unread,
    )


_ZONE_FIELDS = ("zone", "interfaces", "target", "open_ports", "trusted_sources", "trusted_interfaces", "zones")


def _all_unread(words: str) -> Unread:
    return dict.fromkeys(_ZONE_FIELDS, Reason("not-applicable", words))


def _target(zones: Sequence[Zone], name: str) -> Optional[str]:
    return next((zone.target for zone in zones if zone.name == name), None)


def _default_zone(host: Host) -> str:
    try:
        text = host.read("/etc/firewalld/firewalld.conf")
    except Unreadable as error:
        if error.reason.kind != "absent":
            raise
        return _DEFAULT_ZONE
    found = re.findall(r"^\s*DefaultZone\s*=\s*([\w-]+)", text, re.MULTILINE)
    return found[-1] if found else _DEFAULT_ZONE


def _zone_names(host: Host) -> Tuple[str, ...]:
    """Zones that the administrator's folder changes; the distribution's bind no interface and no source."""
    try:
        names = host.list("/etc/firewalld/zones")
    except Unreadable as error:
        if error.reason.kind != "absent":
            raise
        return ()
    return tuple(name[: -len(".xml")] for name in names if name.endswith(".xml"))


def _zone(host: Host, name: str) -> Zone:
    unread: Unread = {}
    text = optional(lambda: _file(host, f"zones/{name}.xml"), unread, "target")
    parsed = parse_zone(name, text) if text is not None else None
    if parsed is None:
        reason = unread.get("target") or Reason("unreadable", f"zone {name}: not well-formed XML")
        fields = ("target", "open_ports", "sources", "trusted_sources", "interfaces")
        return Zone(name, unread=dict.fromkeys(fields, reason))
    zone, named = parsed
    ports = [port for service in named for port in _service_ports(host, service)]
    return Zone(**{**vars(zone), "open_ports": (*(zone.open_ports or ()), *ports)})


def _service_ports(host: Host, name: str) -> Tuple[str, ...]:
    try:
        return parse_service(_file(host, f"services/{name}.xml"))
    except Unreadable:
        return ()


def _file(host: Host, name: str) -> str:
    """A file of firewalld's, the administrator's first. Unreadable with the first reason that is not "absent"."""
    try:
        return host.read(f"{_FOLDERS[0]}/{name}")
    except Unreadable as error:
        if error.reason.kind != "absent":
            raise
        return host.read(f"{_FOLDERS[1]}/{name}")


def parse_zone(name: str, text: str) -> Optional[Tuple[Zone, Tuple[str, ...]]]:
    """A zone's file, firewalld.zone(5): the zone, and the services that it lets in. None when it is not XML."""
    root = _xml(text)
    if root is None:
        return None
    target = root.get("target", "default").strip("%")
    sources = tuple(_source(source) for source in root.findall("source"))
    rules = [rule for rule in root.findall("rule") if rule.find("accept") is not None]
    whole = [r for r in rules if r.find("source") is not None and {e.tag for e in r} <= {"source", "accept", "log"}]
    zone = Zone(
        name,
        target=target,
        open_ports=tuple(_ports(root)) + tuple(port for rule in rules for port in _ports(rule)),
        sources=sources,
        trusted_sources=(sources if target == "ACCEPT" else ()) + tuple(_source(r.find("source")) for r in whole),
        interfaces=tuple(e.get("name", "") for e in root.findall("interface")),
    )
    return zone, tuple(
        e.get("name", "") for e in root.findall("service") if re.fullmatch(r"[\w.-]+", e.get("name", ""))
    )


def parse_service(text: str) -> Tuple[str, ...]:
    """Ports of a service's file, firewalld.service(5)."""
    root = _xml(text)
    return () if root is None else tuple(_ports(root))


def _ports(element: Any) -> List[str]:
    source = element.find("source") if element.tag == "rule" else None
    origin = "" if source is None else f" from {_source(source)}"
    return [f"{e.get('port', '')}/{e.get('protocol', '')}{origin}" for e in element.findall("port")]


def _source(element: Any) -> str:
    kind = next((kind for kind in ("address", "mac", "ipset") if element.get(kind)), "")
    words = element.get(kind, "") if kind == "address" else f"{kind}:{element.get(kind, '')}"
    return f"not {words}" if element.get("invert", "").lower() in ("yes", "true") else words


def _xml(text: str) -> Any:
    """Root of an XML text, or None. A document type, which none of firewalld's files has, is refused unread."""
    from xml.etree import ElementTree

    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        return ElementTree.fromstring(text.encode("utf-8", "replace"))  # noqa: S314  no entities: see above
    except (ElementTree.ParseError, ValueError, LookupError):
        return None


def _connection_zones() -> Dict[str, str]:
    """Interface -> zone as NetworkManager and ifcfg files bind it; only these two words leave the child."""
    import glob

    found: Dict[str, str] = {}
    for path in glob.glob("/etc/sysconfig/network-scripts/ifcfg-*"):
        found.update(parse_ifcfg(_quiet(path)))
    for folder in ("/etc/NetworkManager", "/run/NetworkManager"):
        for path in glob.glob(f"{folder}/system-connections/*"):
            found.update(parse_keyfile(_quiet(path)))
    return found


def _quiet(path: str) -> str:
    """A file that may hold Wi-Fi passwords: read here, in the child, and never recorded."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def parse_ifcfg(text: str) -> Dict[str, str]:
    """{interface: zone} of an ifcfg file that names both."""
    words = dict(re.findall(r"""^\s*(DEVICE|ZONE)=["']?([\w.:-]+)""", text, re.MULTILINE))
    return {words["DEVICE"]: words["ZONE"]} if len(words) == 2 else {}


def parse_keyfile(text: str) -> Dict[str, str]:
    """{interface: zone} of the [connection] section of a NetworkManager keyfile that names both."""
    section = re.search(r"^\[connection\]\s*$(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    words = dict(re.findall(r"^(interface-name|zone)=([\w.:-]+)", section.group(1), re.MULTILINE) if section else ())
    return {words["interface-name"]: words["zone"]} if len(words) == 2 else {}


# --------------------------------------------------------------------------- ufw


def ufw(host: Host) -> Optional[Firewall]:
    """ufw by its files, or None where it is not installed. Its rules are root's to read."""
    unread: Unread = {}
    conf = optional(lambda: host.read("/etc/ufw/ufw.conf"), unread, "active")
    if conf is None and unread["active"].kind == "absent":
        return None
    active = None if conf is None else parse_shell(conf).get("ENABLED", "no").lower() == "yes"
    if active is False:
        return Firewall("ufw", active=False, unread=_all_unread("ufw is not enabled"))
    defaults = optional(lambda: host.read("/etc/default/ufw"), unread, "target")
    rules = optional(lambda: host.read("/etc/ufw/user.rules"), unread, "open_ports")
    rules_6 = optional(lambda: host.read("/etc/ufw/user6.rules"), {}, "open_ports")
    if rules is None:
        unread["trusted_sources"] = unread["trusted_interfaces"] = unread["open_ports"]
    ports, sources, interfaces = parse_ufw(f"{rules}\n{rules_6 or ''}")
    nothing = _all_unread("ufw has no zones")
    return Firewall(
        "ufw",
        active=active,
        target=None if defaults is None else parse_shell(defaults).get("DEFAULT_INPUT_POLICY", "DROP"),
        open_ports=None if rules is None else ports,
        trusted_sources=None if rules is None else sources,
        trusted_interfaces=None if rules is None else interfaces,
        unread={**{field: nothing[field] for field in ("zone", "interfaces", "zones")}, **unread},
    )


def parse_shell(text: str) -> Dict[str, str]:
    """NAME=value lines with or without quotes."""
    return dict(re.findall(r"""^\s*(\w+)=["']?([^"'\n#]*?)["']?\s*(?:#.*)?$""", text, re.MULTILINE))


def parse_ufw(text: str) -> Tuple[Tuple[str, ...], Tuple[str, ...], Tuple[str, ...]]:
    """(open ports, trusted sources, trusted interfaces) of the rules that ufw keeps as comments in user.rules.

    ``### tuple ### allow tcp 29500 0.0.0.0/0 any 10.0.0.0/8 in_eth0``: action, protocol, port, destination, source
    port, source, direction (src/parser.py and src/common.py of ufw).
    """
    ports: Dict[str, None] = {}
    sources: Dict[str, None] = {}
    interfaces: Dict[str, None] = {}
    for line in re.findall(r"^### tuple ### (.+)$", text, re.MULTILINE):
        fields = [field for field in line.split() if not field.startswith("comment=")]
        if len(fields) < 7 or fields[0].split("_")[0] not in ("allow", "limit"):
            continue
        protocol, port, source = fields[1], fields[2], fields[5]
        direction, _, interface = fields[-1].partition("_")
        if direction != "in":
            continue
        anywhere = source in ("0.0.0.0/0", "::/0", "any")
        limits = ("" if anywhere else f" from {source}") + (f" on {interface}" if interface else "")
        if port != "any":
            ports.update((f"{p.replace(':', '-')}/{protocol}{limits}", None) for p in port.split(","))
        elif protocol == "any" and not anywhere:
            sources[source + (f" on {interface}" if interface else "")] = None
        elif protocol == "any" and interface:
            interfaces[interface] = None
        else:
            ports[f"1-65535/{protocol}{limits}"] = None
    return tuple(ports), tuple(sources), tuple(interfaces)


# --------------------------------------------------------------------------- nftables and iptables


def nftables(host: Host) -> Optional[Firewall]:
    """Policies of the chains that filter what comes in; None where there is no nft on this node."""
    tool = _tool(host, "nft")
    if tool is None:
        return None
    unread: Unread = _policies_only("nftables")
    chains = optional(lambda: _root_run(host, "nft-list-chains", (tool, "list", "chains")), unread, "active")
    if chains is None:
        unread["target"] = unread["active"]
        return Firewall("nftables", unread=unread)
    policies = parse_nft_chains(chains)
    if policies:
        del unread["target"]
    return Firewall("nftables", active=bool(policies), target=_strictest(policies), unread=unread)


def iptables(host: Host) -> Optional[Firewall]:
    """Policy of the INPUT chain of the older iptables; None where its filter table is not in use."""
    unread: Unread = _policies_only("iptables")
    try:
        tables = host.read("/proc/net/ip_tables_names")
    except Unreadable as error:
        if error.reason.kind == "absent":  # ip_tables is not loaded: what iptables shows stands under nftables
            return None
        unread.update(active=error.reason, target=error.reason)
        return Firewall("iptables", unread=unread)
    tool = _tool(host, "iptables-legacy") or _tool(host, "iptables")
    if "filter" not in tables.split() or tool is None:
        return None
    rules = optional(lambda: _root_run(host, "iptables-list-input", (tool, "-w", "1", "-S", "INPUT")), unread, "active")
    if rules is None:
        unread["target"] = unread["active"]
        return Firewall("iptables", unread=unread)
    del unread["target"]
    target = next(iter(re.findall(r"^-P INPUT (\w+)", rules, re.MULTILINE)), "ACCEPT")
    return Firewall("iptables", active=target != "ACCEPT" or "-A INPUT" in rules, target=target, unread=unread)


def _policies_only(name: str) -> Unread:
    return {
        **_all_unread(f"{name} has no zones"),
        **{
            field: Reason("not-applicable", f"rules of {name} are not interpreted")
            for field in ("open_ports", "trusted_sources", "trusted_interfaces")
        },
        "target": Reason("absent", f"no chain of {name} filters what comes in"),
    }


def parse_nft_chains(text: str) -> List[str]:
    """Policies (ACCEPT, DROP) of the base chains of ``nft list chains`` that filter at the hook input."""
    found = re.findall(r"type filter hook input [^;]*;\s*(?:policy (\w+);)?", text)
    return [(policy or "accept").upper() for policy in found]


def _strictest(policies: Sequence[str]) -> Optional[str]:
    """A packet must pass every base chain of a hook: one that drops is enough."""
    return None if not policies else "DROP" if "DROP" in policies else "ACCEPT"


def _root_run(host: Host, name: str, argv: Sequence[str]) -> str:
    if host.user()[0] != 0:
        raise Unreadable(Reason("no-rights", f"{argv[0]}: needs root"))
    if argv[1] == "list" and not _has_nf_tables(host):
        return ""
    ran = host.run(name, argv, _RUN_LIMIT_S)
    if ran.status != 0:
        kind = "no-rights" if "not permitted" in ran.stderr else "unreadable"
        raise Unreadable(Reason(kind, f"{name}: status {ran.status}: {ran.stderr.strip()[:200]}"))
    return ran.stdout


def _has_nf_tables(host: Host) -> bool:
    """False on a kernel with modules that has not loaded nf_tables: asking would load it."""
    modules: Set[str] = set()
    try:
        modules = {line.split(" ", 1)[0] for line in host.read("/proc/modules").splitlines()}
    except Unreadable:  # a kernel without modules has all it has
        return True
    return "nf_tables" in modules or _there(host, "/sys/module/nf_tables")


def _tool(host: Host, name: str) -> Optional[str]:
    return next((path for path in (os.path.join(folder, name) for folder in _SBIN) if _there(host, path)), None)


def _there(host: Host, path: str) -> bool:
    try:
        return host.exists(path)
    except Unreadable:  # it is there, behind a folder that is root's
        return True

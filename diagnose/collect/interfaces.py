"""Interfaces: what /sys/class/net says of each, with the addresses that rtnetlink lists (a part of ``network``)."""

import errno
import re
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddp_doctor.collect import link_settings, netlink
from ddp_doctor.facts import Address, Interface, Module, Reason, Unread
from ddp_doctor.host import Host, optional

ROOT = "/sys/class/net"
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40
"""include/uapi/linux/if.h"""
_LOOPBACK, _INFINIBAND = 772, 32
_TUNNELS = frozenset((512, 768, 769, 776, 778, 823, 65534))
"""ARPHRD_ PPP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, NONE (tun, WireGuard): include/uapi/linux/if_arp.h"""

_TUNNEL_WORDS = (
    "tun vxlan geneve gre gretap ip6gre ip6gretap erspan ip6erspan ipip ip6tnl sit wireguard vti vti6 xfrm "
    "ppp wwan gtp bareudp ovpn"
)
_KINDS = {
    "bond": "bond",
    "team": "bond",
    "bridge": "bridge",
    "openvswitch": "bridge",
    "vlan": "vlan",
    "veth": "veth",
    "netkit": "veth",
    "macvlan": "macvlan",
    "macvtap": "macvlan",
    "ipvlan": "macvlan",
    "dummy": "dummy",
    "ipoib": "ipoib",
    "wlan": "wireless",
    **dict.fromkeys(_TUNNEL_WORDS.split(), "tunnel"),
}
"""The kernel's words (IFLA_INFO_KIND of a link, DEVTYPE of its uevent) in the words of ``Interface.kind``."""

_SIGNS = (
    ("bonding", "bond"),
    ("bridge", "bridge"),
    ("tun_flags", "tunnel"),
    ("wireless", "wireless"),
    ("phy80211", "wireless"),
)
"""Entries in an interface's folder that only one kind has; older kernels give no better word."""

_GUEST_DRIVERS = frozenset("virtio_net vmxnet3 hv_netvsc netvsc ena gve vif xen_netfront xen-netfront".split())
"""Drivers of NICs that a hypervisor or a cloud gives its guests: their speed is unknown or made up."""

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_all(host: Host, unread: Unread, modules: bool = False) -> Optional[Tuple[Interface, ...]]:
    """Every interface of this network namespace; None with the reason when they cannot even be listed.

    modules: also ask the transceivers. Rtnetlink has the say: /sys may have been mounted in another namespace (unshare -n) and shows the interfaces of that one.
    """
    names = optional(lambda: host.list(ROOT), unread, "interfaces")
    links = optional(lambda: host.ask("links", netlink.links), {}, "links")
    if names is None and links is None:
        return None
    unread.pop("interfaces", None)
    without: Unread = {}
    rows = optional(lambda: host.ask("addresses", netlink.addresses), without, "addresses")
    if links is None:
        found = [_interface(host, name, {}, rows, dict(without)) for name in names or ()]
    else:
        named = sorted(links, key=lambda name: (names or ()).index(name) if name in (names or ()) else len(links))
        found = [_interface(host, name, links[name], rows, dict(without)) for name in named]
    return _with_settings(host, [interface for interface in found if interface], modules)


_TOLD_BY_MODULES = ("kind", "vendor", "part", "temperature_c", "temperature_high_alarm_c", "temperature_high_warning_c")


def _module(told: Dict[str, Any]) -> Module:
    missing = Reason("absent", "this module does not tell it")
    known = {name: told[name] for name in _TOLD_BY_MODULES if name in told}
    return Module(**known, unread={name: missing for name in _TOLD_BY_MODULES if name not in told})


_CARDS = ("physical", "ipoib")
_SETTINGS = ("ring", "fec", "module")


def _with_settings(host: Host, found: List[Interface], modules: bool) -> Tuple[Interface, ...]:
    """With what the cards among them are set to."""
    names = [interface.name for interface in found if interface.kind in _CARDS]
    why: Unread = {}
    told = (
        optional(lambda: dict(host.ask("link-settings", lambda: link_settings.read(names, modules))), why, "ring")
        if names
        else {}
    )
    return tuple(_set(interface, (told or {}).get(interface.name), why.get("ring")) for interface in found)


def _set(interface: Interface, told: Optional[Dict[str, Any]], why: Optional[Reason]) -> Interface:
    unread = dict(interface.unread)
    if told is None:
        no_card = Reason("not-applicable", f"of no interest for a {interface.kind}")
        unread.update(dict.fromkeys(_SETTINGS, why if why and interface.kind in _CARDS else no_card))
        return replace(interface, unread=unread)
    known = {name: _setting(name, told.get(name), unread) for name in _SETTINGS}
    return replace(interface, unread=unread, **known)


def _setting(name: str, value: Any, unread: Unread) -> Any:
    """A value, or None with the reason in ``unread``."""
    if value is None:
        unread[name] = Reason("not-asked", "profile quick does not ask transceivers")
    elif isinstance(value, dict) and "error" in value:
        kind = "no-rights" if value.get("errno") in (errno.EPERM, errno.EACCES) else "absent"
        unread[name] = Reason(kind, f"{name}: {value['error']}")
    elif name == "module":
        return _module(value)
    else:
        return tuple(value) if name == "fec" else value
    return None


def _interface(host: Host, name: str, link: Dict[str, Any], rows: Any, unread: Unread) -> Optional[Interface]:
    """One interface, or None for what is none (/sys/class/net/bonding_masters). link: its row of ``netlink.links``."""
    folder = _Folder(host, f"{ROOT}/{name}", unread)
    entries = optional(lambda: host.list(folder.path), {}, name)
    if entries is None and name == "bonding_masters":
        return None
    index = folder.number("ifindex")
    if link and index != link["index"]:
        return _of_another_sysfs(name, link, rows, dict.fromkeys(_FROM_SYSFS, _OTHER_NAMESPACE))
    entries = entries or ()
    flags, operstate = link["flags"] if link else folder.flags(), folder.text("operstate")
    driver, pci, numa_node = _device(folder, entries)
    kind = kind_of(
        str(link.get("kind", "")), folder.uevent("uevent").get("DEVTYPE", ""), folder.number("type"), entries, driver
    )
    arp: Dict[str, Any] = _arp_settings(folder, name, kind)
    return Interface(
        name=name,
        index=index,
        kind=kind,
        addresses=None if rows is None else addresses_of(rows, index),
        mtu=folder.number("mtu"),
        speed_mbit_s=_speed(folder, kind),
        operstate=operstate,
        up=None if flags is None else bool(flags & IFF_UP),
        running=bool(link["flags"] & IFF_RUNNING) if link else is_running(flags, operstate),
        mac=folder.text("address", "mac"),
        driver=driver,
        pci=pci,
        numa_node=numa_node,
        master=_master(host, folder.path, entries),
        lower=tuple(entry[len("lower_") :] for entry in entries if entry.startswith("lower_")),
        bond_mode=_bond_mode(folder, kind),
        carrier_changes=folder.number("carrier_changes"),
        **arp,
        unread=unread,
    )


_CARRIES_TRAFFIC = ("physical", "virtio", "bond", "vlan", "ipoib", "macvlan")
"""Kinds whose own settings matter to a job: a node has hundreds of veth and bridges."""
_ARP_SETTINGS = ("rp_filter", "arp_ignore", "arp_announce")


def _arp_settings(folder: "_Folder", name: str, kind: str) -> Dict[str, Any]:
    """How the interface answers ARP and checks sources (net.ipv4.conf.NAME.*, Documentation/networking/ip-sysctl)."""
    if kind not in _CARRIES_TRAFFIC:
        folder.unread.update(dict.fromkeys(_ARP_SETTINGS, Reason("not-applicable", f"of no interest for a {kind}")))
        return {}
    settings = _Folder(folder.host, f"/proc/sys/net/ipv4/conf/{name}", folder.unread)
    return {setting: settings.number(setting) for setting in _ARP_SETTINGS}


def _bond_mode(folder: "_Folder", kind: str) -> Optional[str]:
    """ "802.3ad" of "802.3ad 4" (Documentation/networking/bonding)."""
    if kind != "bond":
        folder.unread["bond_mode"] = Reason("not-applicable", "no bond")
        return None
    text = folder.text("bonding/mode", "bond_mode")
    return text.split(" ")[0] if text else None


_FROM_SYSFS = (
    "mtu",
    "speed_mbit_s",
    "operstate",
    "mac",
    "driver",
    "pci",
    "numa_node",
    "master",
    "lower",
    "bond_mode",
    "carrier_changes",
    *_ARP_SETTINGS,
)
_OTHER_NAMESPACE = Reason("not-applicable", "/sys does not show the interfaces of this network namespace")


def _of_another_sysfs(name: str, link: Dict[str, Any], rows: Any, unread: Unread) -> Interface:
    """An interface of which /sys says nothing: what rtnetlink knows of it."""
    loopback = bool(link["flags"] & IFF_LOOPBACK)
    return Interface(
        name=name,
        index=link["index"],
        kind="loopback" if loopback else _KINDS.get(link["kind"], "other"),
        addresses=None if rows is None else addresses_of(rows, link["index"]),
        up=bool(link["flags"] & IFF_UP),
        running=bool(link["flags"] & IFF_RUNNING),
        unread={**unread, **({"addresses": Reason("unreadable", "rtnetlink does not tell")} if rows is None else {})},
    )


def kind_of(
    link_kind: str, devtype: str, hardware: Optional[int], entries: Sequence[str], driver: Optional[str]
) -> str:
    """What an interface is, from the surest sign to the weakest.

    link_kind: IFLA_INFO_KIND; devtype: DEVTYPE of the uevent; hardware: ARPHRD number; entries: its folder in sysfs.
    """
    named = _KINDS.get(link_kind) or _KINDS.get(devtype) or next((k for e, k in _SIGNS if e in entries), None)
    if hardware == _LOOPBACK or named:
        return "loopback" if hardware == _LOOPBACK else str(named)
    if hardware == _INFINIBAND:
        return "ipoib"
    if hardware in _TUNNELS:
        return "tunnel"
    if "device" not in entries:
        return "other"
    return "virtio" if driver in _GUEST_DRIVERS else "physical"


def is_running(flags: Optional[int], operstate: Optional[str]) -> Optional[bool]:
    """IFF_RUNNING by the kernel's own rule, since sysfs shows the flags without it.

    dev_get_flags() sets it for an interface that is up with operstate up or unknown (netif_oper_up(), net/core/dev.c).
    """
    if flags is None or operstate is None:
        return None
    return bool(flags & IFF_UP) and operstate in ("up", "unknown")


def addresses_of(rows: Any, index: Optional[int]) -> Tuple[Address, ...]:
    """Addresses of the interface ``index`` out of ``netlink.addresses``' rows."""
    return tuple(
        Address(ip=str(row["ip"]), prefix=int(row["prefix"]), family=str(row["family"]), scope=str(row["scope"]))
        for row in rows
        if row["index"] == index
    )


class _Folder:
    """An interface's folder in sysfs; what cannot be read of it is noted in ``unread``."""

    def __init__(self, host: Host, path: str, unread: Unread) -> None:
        self.host, self.path, self.unread = host, path, unread

    def text(self, entry: str, field: str = "") -> Optional[str]:
        found = optional(lambda: self.host.read(f"{self.path}/{entry}"), self.unread, field or entry)
        return None if found is None else found.strip()

    def number(self, entry: str, field: str = "") -> Optional[int]:
        field = field or {"ifindex": "index", "type": "kind"}.get(entry, entry)
        text = self.text(entry, field)
        if text is None or re.fullmatch(r"-?[0-9]{1,18}", text):
            return None if text is None else int(text)
        self.unread[field] = Reason("unreadable", f"{self.path}/{entry}: not a number: {text[:40]!r}")
        return None

    def flags(self) -> Optional[int]:
        text = self.text("flags", "up")
        if text is not None and re.fullmatch(r"0x[0-9a-f]{1,16}", text):
            return int(text, 16)
        self.unread.setdefault("up", Reason("unreadable", f"{self.path}/flags: not flags: {str(text)[:40]!r}"))
        self.unread["running"] = self.unread["up"]
        return None

    def uevent(self, entry: str) -> Dict[str, str]:
        return parse_uevent(optional(lambda: self.host.read(f"{self.path}/{entry}"), {}, entry) or "")


def parse_uevent(text: str) -> Dict[str, str]:
    """Variables of a uevent file."""
    return {name: value for name, sign, value in (line.partition("=") for line in text.splitlines()) if sign}


def _device(folder: _Folder, entries: Sequence[str]) -> Tuple[Optional[str], Optional[str], Optional[int]]:
    """(driver, PCI address, NUMA node) of the device behind an interface."""
    if "device" not in entries:
        nothing = Reason("not-applicable", "no device behind it")
        folder.unread.update(driver=nothing, pci=nothing, numa_node=nothing)
        return None, None, None
    driver, pci = driver_and_pci(folder.host, f"{folder.path}/device", folder.unread)
    return driver, pci, numa_of(folder.host, f"{folder.path}/device", folder.unread)


def driver_and_pci(host: Host, device: str, unread: Unread) -> Tuple[Optional[str], Optional[str]]:
    """Driver and PCI address of a device's folder: from its uevent, else from the links and the path."""
    seen = parse_uevent(optional(lambda: host.read(f"{device}/uevent"), {}, "uevent") or "")
    driver, pci = seen.get("DRIVER"), seen.get("PCI_SLOT_NAME")
    if driver is None:
        link = optional(lambda: host.link(f"{device}/driver"), unread, "driver")
        driver = link.rsplit("/", 1)[-1] if link else None
    if pci is None:  # virtio: the PCI function is a parent
        found = _PCI.findall(optional(lambda: host.realpath(device), unread, "pci") or "")
        pci = found[-1] if found else None
    if pci is None:
        unread.setdefault("pci", Reason("not-applicable", f"{device}: not on a PCI bus"))
    return driver, pci


def numa_of(host: Host, device: str, unread: Unread) -> Optional[int]:
    """NUMA node of a device's folder; None with the reason for -1, the kernel's "no such information"."""
    text = optional(lambda: host.read(f"{device}/numa_node").strip(), unread, "numa_node")
    if text is not None and re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if text is not None:
        unread["numa_node"] = Reason("not-applicable", f"{device}/numa_node: {text[:20]}: the machine does not say")
    return None


def _speed(folder: _Folder, kind: str) -> Optional[int]:
    """Mbit/s, or None with the reason: drivers say -1 (or that as an unsigned number) or EINVAL while down."""
    if kind == "loopback":
        folder.unread["speed_mbit_s"] = Reason("not-applicable", "loopback has no speed")
        return None
    speed = folder.number("speed", "speed_mbit_s")
    if speed is None or 0 < speed < 2**31:
        return speed
    folder.unread["speed_mbit_s"] = Reason("unreadable", f"{folder.path}/speed: {speed}: the driver does not say")
    return None


def _master(host: Host, path: str, entries: Sequence[str]) -> str:
    """Bond or bridge that it belongs to; "" for none."""
    upper = next((entry[len("upper_") :] for entry in entries if entry.startswith("upper_")), "")
    if "master" not in entries:
        return ""
    return (optional(lambda: host.link(f"{path}/master"), {}, "master") or upper).rsplit("/", 1)[-1]

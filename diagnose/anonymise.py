"""Anonymising: host names, addresses and users are replaced, the same way throughout one document or bundle.

Addresses keep what verdicts rest on: which ones are loopback, link-local or private, and which share a subnet (a
prefix-preserving mapping: two addresses share their first n bits afterwards exactly when they did before). The key is
thrown away, so a mapping cannot be repeated.
"""

import hashlib
import hmac
import ipaddress
import os
import re
from typing import Any, Dict, Iterator, List, Set, Union

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:.])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")

_NETWORK_SECTIONS = ("network", "launch", "reach", "logins", "env", "ssh", "rdma")
"""Sections whose texts may hold addresses; elsewhere four numbers with dots are a version (cuDNN 7.6.5.32)."""

_KEPT = [
    ipaddress.ip_network(text)
    for text in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/127", "fe80::/64", "ff00::/8")
]
"""Addresses that name no machine: any, loopback, link-local prefixes, multicast, net masks."""

_PREFIXES = [
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fe80::/64")
]
"""Ranges in which a replaced address stays."""

_ORDINARY = frozenset(
    "root localhost nobody user users home host node name test admin lib bin none true false yes unknown".split()
)
"""Words that name nobody, and would ruin texts if they were replaced."""


class Anonymiser:
    """Replaces what identifies; made from the facts of the node, which say what its names and addresses are."""

    def __init__(self, facts: Dict[str, Any]) -> None:
        self._key = os.urandom(32)
        words = {word: f"user-{i}" for i, word in enumerate(sorted(_users(facts)), 1)}
        words.update({word: f"host-{i}" for i, word in enumerate(sorted(_hosts(facts)), 1)})
        self._texts = self._spellings({address for text in _network_texts(facts) for address in _addresses(text)})
        self._words = words
        longest_first = sorted({**words, **self._texts}, key=len, reverse=True)
        self._pattern = re.compile(
            "|".join(r"(?<![\w-])" + re.escape(text) + r"(?![\w-])" for text in longest_first) or r"(?!)"
        )

    def data(self, value: Any) -> Any:
        """The same JSON data with every text replaced, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.data(entry) for entry in value]
        if isinstance(value, dict):
            return {self.text(key): self.data(entry) for key, entry in value.items()}
        return value

    def text(self, text: str) -> str:
        """One text with names, users and addresses replaced."""
        text = self._pattern.sub(lambda found: self._words.get(found.group()) or self._texts[found.group()], text)
        return _MAC.sub(lambda found: self._mac(found.group()), text)

    def address(self, address: Address) -> Address:
        """Prefix-preserving replacement that stays in its kind of range."""
        if any(address.version == net.version and address in net and net.prefixlen != 64 for net in _KEPT):
            return address
        kept = max((n.prefixlen for n in _PREFIXES if n.version == address.version and address in n), default=0)
        bits = f"{int(address):0{address.max_prefixlen}b}"
        new = "".join(
            bit if i < kept else str(int(bit) ^ self._flip(address.version, bits[:i])) for i, bit in enumerate(bits)
        )
        return type(address)(int(new, 2))

    def _flip(self, version: int, prefix: str) -> int:
        return hmac.new(self._key, f"{version}:{prefix}".encode(), hashlib.sha256).digest()[0] & 1

    def _mac(self, mac: str) -> str:
        if set(mac) <= set("0:") or mac.lower() == "ff:ff:ff:ff:ff:ff":
            return mac
        digest = hmac.new(self._key, mac.lower().encode(), hashlib.sha256).hexdigest()
        return ":".join(["02", *(digest[i : i + 2] for i in range(0, 10, 2))])

    def _spellings(self, addresses: Set[Address]) -> Dict[str, str]:
        """Every way in which the kernel writes an address -> the same way for its replacement."""
        return {
            old: new
            for address in addresses
            for old, new in zip(_spelt(address), _spelt(self.address(address)))
            if old != new
        }


def _spelt(address: Address) -> List[str]:
    """Plain, as in /proc/net (hexadecimal words in the machine's byte order), and as an RDMA GID."""
    packed = address.packed
    words = "".join(packed[i : i + 4][::-1].hex().upper() for i in range(0, len(packed), 4))
    if address.version == 4:
        mapped = ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + packed)
        return [str(address), words, "0000000000000000FFFF0000" + words, mapped.exploded]
    return [str(address), words, address.exploded, packed.hex()]


def _addresses(text: str) -> Iterator[Address]:
    for found in (*_IPV4.findall(text), *_IPV6.findall(text)):
        try:
            address = ipaddress.ip_address(found)
            yield getattr(address, "ipv4_mapped", None) or address
        except ValueError:
            continue


def _network_texts(facts: Dict[str, Any]) -> Iterator[str]:
    for section in _NETWORK_SECTIONS:
        yield from _all_texts(facts.get(section))


def _all_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _all_texts(entry)


def _named(facts: Dict[str, Any], *places: str) -> Iterator[str]:
    """Texts at dotted places in the facts."""
    for place in places:
        value: Any = facts
        for part in place.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str):
            yield value


def _hosts(facts: Dict[str, Any]) -> Set[str]:
    """Names of this node, its master and its peers, long and short."""
    names = set(
        _named(
            facts,
            "name",
            "os.hostname",
            "network.hostname",
            "network.fqdn",
            "launch.master_addr",
            "network.own_name.name",
        )
    )
    names.update(_named(facts, "network.master_name.name"))
    for section, key in (("logins", "logins"), ("reach", "connections")):
        names.update(entry["host"] for entry in (facts.get(section) or {}).get(key) or ())
    for line in (facts.get("network") or {}).get("hosts_lines") or ():
        names.update(line.split("#")[0].split()[1:])
    names.update({name.split(".")[0] for name in names if not _is_address(name)})
    return {
        name
        for name in names
        if len(name) > 1 and name.lower() not in _ORDINARY and not _is_address(name) and "localhost" not in name
    }


def _users(facts: Dict[str, Any]) -> Set[str]:
    """The user who took the facts, and the one in the home's path."""
    variables = (facts.get("env") or {}).get("variables") or ()
    mounts = (facts.get("disk") or {}).get("mounts") or ()
    homes = [mount["path"] for mount in mounts if mount.get("role") == "home"]
    names = {
        *_named(facts, "how.user"),
        *(v["value"] for v in variables if v["name"] in ("USER", "LOGNAME", "SUDO_USER")),
    }
    names.update(os.path.basename(home.rstrip("/")) for home in homes)
    return {name for name in names if len(name) > 2 and name.lower() not in _ORDINARY}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

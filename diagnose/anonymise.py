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
from itertools import product
from string import ascii_lowercase
from typing import Any, Dict, Iterable, Iterator, List, Sequence, Set, Union

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:.])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")

_NETWORK_SECTIONS = ("network", "launch", "reach", "logins", "env", "ssh", "rdma", "disk", "kernel_log")
"""Sections whose texts may hold addresses; elsewhere four numbers with dots are a version (cuDNN 7.6.5.32)."""

_HOST_SECTIONS = ("network", "launch", "reach", "logins", "env", "ssh")
"""Those of them whose texts may be lines of /etc/hosts or lists of hosts; an adapter's line looks like one and is none."""

_WORDS = frozenset(("kind", "driver", "rate", "vendor_device", "state", "phys_state", "link_layer", "quantity"))
"""Keys whose values are words out of a short list, or the kernel's own: a node called gpu07 must not take "gpu" from them."""

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
    """Replaces what identifies; made from the facts of the node, which say what its names and addresses are.

    texts: further texts that hold names and addresses (of a recording: /etc/hosts). Numbers at the end of host names
    stay, so that sets of nodes still name the same nodes: gpu[07-09] becomes host-a[07-09]. Paths, versions and
    interface names stay too.
    """

    def __init__(self, facts: Dict[str, Any], texts: Iterable[str] = ()) -> None:
        self._key = os.urandom(32)
        seen = [*_network_texts(facts), *texts]
        listed = _listed_hosts([*_network_texts(facts, _HOST_SECTIONS), *texts])
        hosts = {name for name in (*_hosts(facts), *listed) if _identifies(name)}
        stems = {_stem(name) for name in hosts}
        domains = {name.partition(".")[2] for name in hosts} - {""}
        self._words = {
            **_numbered("user", _users(facts)),
            **_lettered("domain", {domain for domain in domains if _identifies(domain)}),
            **_lettered("host", stems - {""}),
            **self._spellings({address for text in seen for address in _addresses(text)}),
        }
        longest_first = sorted(self._words, key=lambda word: (-len(word), word))
        ends = dict.fromkeys(stems, r"(?=[0-9]*(?![\w-])|\[)")
        alternatives = (re.escape(word) + ends.get(word, r"(?![\w-])") for word in longest_first)
        self._pattern = re.compile(r"(?<![\w-])(?:" + ("|".join(alternatives) or r"(?!)") + ")")

    def data(self, value: Any) -> Any:
        """The same JSON data with every text replaced, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.data(entry) for entry in value]
        if isinstance(value, dict):
            kept = {key: entry for key, entry in value.items() if key in _WORDS and isinstance(entry, str)}
            return {**{self.text(key): self.data(entry) for key, entry in value.items() if key not in kept}, **kept}
        return value

    def text(self, text: str) -> str:
        """One text with names, users and addresses replaced."""
        text = self._pattern.sub(lambda found: self._words[found.group()], text)
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
        return [str(address), words, "0000000000000000FFFF0000" + words, _as_gid(b"\0" * 10 + b"\xff\xff" + packed)]
    return [str(address), words, _as_gid(packed), packed.hex()]


def _as_gid(packed: bytes) -> str:
    """Eight groups of four digits, as sysfs writes a GID."""
    return ":".join(packed[i : i + 2].hex() for i in range(0, 16, 2))


def _addresses(text: str) -> Iterator[Address]:
    for found in (*_IPV4.findall(text), *_IPV6.findall(text)):
        try:
            address = ipaddress.ip_address(found)
            yield getattr(address, "ipv4_mapped", None) or address
        except ValueError:
            continue


def _network_texts(facts: Dict[str, Any], sections: Sequence[str] = _NETWORK_SECTIONS) -> Iterator[str]:
    for section in sections:
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
    variables = (facts.get("env") or {}).get("variables") or ()
    names.update(v["value"] for v in variables if v["name"].endswith(("_HOST", "NODENAME", "HOSTNAME", "MASTER_ADDR")))
    listed = [v["value"] for v in variables if v["name"].endswith(("NODELIST", "_NODES", "HOSTS"))]
    names.update(name for text in listed for name in re.findall(r"(?<![\w.\[,-])[A-Za-z][\w.-]*", text))
    for section, key in (("logins", "logins"), ("reach", "connections")):
        names.update(entry["host"] for entry in (facts.get(section) or {}).get(key) or ())
    return names | set(_file_servers(facts))


def _file_servers(facts: Dict[str, Any]) -> Iterator[str]:
    """Names of file servers: "fs1" of an export fs1:/home, and of the kernel's "server fs1 not responding"."""
    quotas = (facts.get("disk") or {}).get("quotas") or ()
    yield from (quota["place"].partition(":/")[0] for quota in quotas if ":/" in quota["place"])
    for event in (facts.get("kernel_log") or {}).get("events") or ():
        yield from re.findall(r"\bserver ([A-Za-z][\w.-]*) not responding", event["text"])


_HOSTS_LINE = re.compile(r"^[ \t]*[0-9a-fA-F:.]+(?:%\w+)?[ \t]+([^#\n]+)", re.MULTILINE)
_PROXY_HOST = re.compile(r"://(?:[^/@\s]*@)?([A-Za-z][\w.-]*)")
_NODE_SET = re.compile(r"(?<![\w.-])([A-Za-z][\w.-]*)\[[0-9,-]+\]")


def _listed_hosts(texts: Iterable[str]) -> Iterator[str]:
    """Names in lines of /etc/hosts, in addresses of proxies, and before the brackets of sets of nodes."""
    for text in texts:
        for names in _HOSTS_LINE.findall(text):
            yield from names.split()
        yield from _PROXY_HOST.findall(text)
        yield from _NODE_SET.findall(text)


def _stem(name: str) -> str:
    """The short name without the number at its end."""
    return name.partition(".")[0].rstrip("0123456789")


def _identifies(name: str) -> bool:
    return len(name) > 1 and name.lower() not in _ORDINARY and not _is_address(name) and "localhost" not in name


def _numbered(kind: str, words: Iterable[str]) -> Dict[str, str]:
    return {word: f"{kind}-{number}" for number, word in enumerate(sorted(words), 1)}


def _lettered(kind: str, words: Iterable[str]) -> Dict[str, str]:
    """a, b ... z, aa, ab ...: letters, because a number may follow."""
    letters = ("".join(pair) for pair in product(["", *ascii_lowercase], ascii_lowercase))
    return {word: f"{kind}-{letter}" for letter, word in zip(letters, sorted(words))}


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

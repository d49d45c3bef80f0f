"""Host files as other tools have them: MPI, DeepSpeed, Slurm and PBS lists, pdsh and clush, and /etc/hosts.

A line is a node, with whatever that tool says of it behind it ("gpu01 slots=8", "gpu01:8"); or a set of nodes
("gpu[01-64]"); or an address and names ("10.0.0.1 gpu01 gpu01.cluster"), of which the first is taken.
"""

import ipaddress
import re
from collections import Counter
from typing import Dict, Iterator, List, NamedTuple, Optional, Union

from ddp_doctor.cluster.names import BadNodes, parse_nodes

SIZE_LIMIT_BYTES = 16 * 2**20
"""100,000 nodes of 160 characters."""

_SLOTS = re.compile(r"(?P<host>[^:]+):\d+")
"""MPICH and Intel MPI: host:processes. An IPv6 address has more than one colon."""
_NOT_NODES = ("localhost", "ip6-localhost", "ip6-loopback", "ip6-localnet", "ip6-mcastprefix", "ip6-allnodes")


Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


class Read(NamedTuple):
    """Names in order, each once, and those that stood there more often than others."""

    names: List[str]
    repeated: List[str]


def read(path: str) -> Read:
    """The nodes of a host file. Raises BadNodes, which names the line, and OSError."""
    from ddp_doctor import given

    return parse(given.content(path, SIZE_LIMIT_BYTES).decode("utf-8", "backslashreplace"), path)


def parse(text: str, path: str = "host file") -> Read:
    """The nodes that the lines name. Raises BadNodes where a line is none of the forms, or there is no node at all."""
    counts: Dict[str, int] = Counter()
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        try:
            for name in _nodes(line.partition("#")[0].split()):
                counts[name] += 1
        except BadNodes as error:
            raise BadNodes(f"{path}, line {number}: {error}") from None
    if not counts:
        raise BadNodes(f"{path}: no node in it")
    least = min(counts.values())  # a list with a line for each process names all of them as often
    return Read(list(counts), [name for name, times in counts.items() if times > least])


def _nodes(words: List[str]) -> Iterator[str]:
    """The nodes of one line."""
    if not words:
        return
    first, rest = words[0], words[1:]
    address = _address(first)
    names = [word for word in rest if "=" not in word]
    if address is not None and names:
        if not _is_own(address) and names[0] not in _NOT_NODES:
            yield from parse_nodes([names[0]])
        return
    slots = _SLOTS.fullmatch(first) if address is None else None
    if all("=" in word for word in rest):
        yield from parse_nodes([slots.group("host") if slots else first])
    else:
        yield from parse_nodes([" ".join(words)])


def _is_own(address: Address) -> bool:
    """Is it none of a node's: loopback, multicast, broadcast, none?"""
    special = address.is_loopback or address.is_multicast or address.is_unspecified
    return special or str(address) == "255.255.255.255"


def _address(text: str) -> Optional[Address]:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None

"""Node names as people write them: ``gpu[01-64],login1``. Hostile ones never reach a library or a command."""

import re
from typing import Iterable, List

NODES_MAX = 100_000
"""No cluster has more; a set that would expand to more is a slip of the pen or an attack."""

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._:-]*[A-Za-z0-9_])?")
"""Host names, IPv4 and IPv6 addresses; never a leading "-", which a command would take for an option."""
_GROUP = re.compile(r"@([A-Za-z0-9_.-]+:)?[A-Za-z0-9_.-]+")
"""A node group of ClusterShell, named in full: "@gpu" or, of a source other than the default, "@slurm:gpu"."""
_RANGE = re.compile(r"\d{1,9}(-\d{1,9}(/\d{1,9})?)?")


class BadNodes(Exception):
    """The text is not a set of nodes; the message quotes what is wrong with it."""


def parse_nodes(texts: Iterable[str]) -> List[str]:
    """Names in order, each once, from texts such as "gpu[01-04]" or "a,b c". Raises BadNodes."""
    names: List[str] = []
    for text in texts:
        for part in _split(text):
            names.extend(_expand(part, NODES_MAX - len(names)))
    return list(dict.fromkeys(names))


def _split(text: str) -> List[str]:
    """Split at commas and blanks outside brackets."""
    return [part for part in re.split(r"[,\s]+(?![^\[\]]*\])", text) if part]


def _expand(part: str, room: int) -> List[str]:
    if part.startswith("@"):
        return _group(part, room)
    outside = re.sub(r"\[[^\[\]]*\]", "0", part)
    ranges = [r for inner in re.findall(r"\[([^\[\]]*)\]", part) for r in inner.split(",")]
    if len(part) > 4096 or not _NAME.fullmatch(outside) or not all(_RANGE.fullmatch(r) for r in ranges):
        raise BadNodes(
            f"not a node name or set: {part[:60]!r} (expected names such as gpu07 or sets such as gpu[01-64])"
        )
    if _size(part) > room:
        raise BadNodes(f"{part[:60]!r} stands for more than {NODES_MAX} nodes")
    if not ranges:
        return [part]
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return list(NodeSet(part, resolver=None))
    except NodeSetException as error:
        raise BadNodes(f"{part[:60]!r}: {error}") from None


def _group(part: str, room: int) -> List[str]:
    """The nodes of a group, as ClusterShell's configuration tells them."""
    if not _GROUP.fullmatch(part):
        raise BadNodes(f"not a node group: {part[:60]!r} (expected @group or @source:group)")
    from ClusterShell.NodeSet import NodeSet, NodeSetException
    from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError

    try:
        nodes = NodeSet(part)
    except (NodeSetException, GroupResolverError, GroupSourceError) as error:
        raise BadNodes(f"{part[:60]!r}: ClusterShell knows no such group or source of groups: {error}") from None
    if not nodes:
        raise BadNodes(f"{part[:60]!r}: no nodes; ClusterShell's groups.conf names no such group, or it is empty")
    if len(nodes) > room:
        raise BadNodes(f"{part[:60]!r} stands for more than {NODES_MAX} nodes")
    names = list(nodes)
    odd = next((name for name in names if not _NAME.fullmatch(name)), None)
    if odd is not None:
        raise BadNodes(f"{part[:60]!r}: not a node name: {odd[:60]!r}")
    return names


def _size(part: str) -> int:
    """How many names a set stands for, without expanding it."""
    total = 1
    for inner in re.findall(r"\[([^\[\]]*)\]", part):
        total *= sum(_length(r) for r in inner.split(","))
    return total


def _length(text: str) -> int:
    first, _, rest = text.partition("-")
    last, _, step = rest.partition("/")
    return max(0, int(last) - int(first)) // max(1, int(step or 1)) + 1 if last else 1

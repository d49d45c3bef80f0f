"""Node names in short: gpu01, gpu02 and gpu03 are gpu[01-03]."""

import re
from functools import lru_cache
from typing import Iterable, List, Tuple

FROM = 3
"""So many names are folded; fewer are easier to read one by one."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
"""Names that mean themselves to NodeSet: no brackets, operators or groups. Others are listed as they are."""


def folded(names: Iterable[str]) -> str:
    """Names as clush writes them, "gpu[01-63], login1"; up to two of them, and odd ones, one by one."""
    return _folded(tuple(names))


@lru_cache(maxsize=512)
def _folded(names: Tuple[str, ...]) -> str:
    plain = [name for name in names if _PLAIN.fullmatch(name)]
    odd = [name for name in names if not _PLAIN.fullmatch(name)]
    return ", ".join([*(_sets(plain) if len(plain) >= FROM else plain), *odd])


def _sets(names: List[str]) -> List[str]:
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        text = str(NodeSet(",".join(names), resolver=None))
    except NodeSetException:
        return names
    return re.split(r",(?![^\[\]]*\])", text)


def shortened(names: Iterable[str], limit: int = 200) -> str:
    """The folded names; where that is longer than ``limit`` characters, the first ones and how many more there are."""
    listed = tuple(names)
    text = _folded(listed)
    return text if len(text) <= limit else f"{_folded(listed[:SHOWN])} and {len(listed) - SHOWN} more"


SHOWN = 8
"""So many nodes are named of a set that is too long to read."""

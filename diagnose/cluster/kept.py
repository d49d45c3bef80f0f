"""Kept: the facts of many nodes as files, which ``run --facts FOLDER`` judges."""

import json
import re
from typing import Iterable, Iterator, Set, Tuple

from ddp_doctor.cluster.reached import Reached, Unreachable
from ddp_doctor.facts import to_plain


def files(nodes: Iterable[Reached]) -> Iterator[Tuple[str, str]]:
    """(name of the file, JSON) for each node with facts. No two names are the same, also where upper case is lower case."""
    taken: Set[str] = set()
    for node in nodes:
        if not isinstance(node, Unreachable):
            name = _free(re.sub(r"[^A-Za-z0-9_.@:-]", "_", node.name).lstrip(".") or "node", taken)
            yield f"{name}.json", json.dumps(to_plain(node), indent=1, sort_keys=True, allow_nan=False) + "\n"


def _free(name: str, taken: Set[str]) -> str:
    number = 1
    while (found := name if number == 1 else f"{name}-{number}").lower() in taken:
        number += 1
    taken.add(found.lower())
    return found

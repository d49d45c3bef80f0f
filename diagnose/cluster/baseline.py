"""The baseline: what a fleet was like on a good day, in one document, against which later runs are held.

    {"schema_version": 1, "tool": "0.1.0", "saved_at": 1764547200.0, "fleet": {"torch": [["2.3.1+cu121", ["gpu01", "gpu02"]]]}}

Other parts of the document (of ``nccl-test``) are left as they are when the fleet's part is written.
"""

import json
import time
from typing import Any, Dict, Optional

from ddp_doctor import __version__, document, given, header
from ddp_doctor.cluster.fleet import Fleet, GoodDay

SCHEMA_VERSION = 1
FILE_LIMIT_BYTES = 64 * 2**20
"""Some 40 columns of 10,000 nodes, each with its name, are 5 MB."""


def load(path: str) -> GoodDay:
    """The fleet's part of a baseline. Raises OSError, and BadDocument for what is no baseline or has no such part."""
    plain = _plain(given.content(path, FILE_LIMIT_BYTES), path)
    part, saved_at = plain.get("fleet"), plain.get("saved_at")
    if not isinstance(part, dict):
        raise document.BadDocument(f"{path}: a baseline without values of a fleet; run --save-baseline writes them")
    try:
        columns = {
            name: {node: _value(value) for value, nodes in rows for node in nodes} for name, rows in part.items()
        }
    except (TypeError, ValueError):
        raise document.BadDocument(f"{path}: a baseline, damaged: its part about the fleet cannot be read") from None
    moment = header.moment(saved_at) if isinstance(saved_at, (int, float)) else None
    return GoodDay(columns, f"as in the baseline of {moment:%Y-%m-%d}" if moment else "as in the baseline")


def save(path: str, fleet: Fleet, now: Optional[float] = None) -> None:
    """Write the fleet's part of a baseline, and leave its other parts. Raises OSError, and BadDocument for another file."""
    try:
        plain = _plain(given.content(path, FILE_LIMIT_BYTES), path)
    except FileNotFoundError:
        plain = {}
    part = {
        column.name: [[value, list(nodes)] for value, nodes in column.by_value().items()] for column in fleet.columns()
    }
    plain.update(
        schema_version=SCHEMA_VERSION, tool=__version__, saved_at=time.time() if now is None else now, fleet=part
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(plain, allow_nan=False) + "\n")


def _plain(content: bytes, path: str) -> Dict[str, Any]:
    plain = document.plain_from(content)
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if not isinstance(version, int) or "saved_at" not in plain:
        raise document.BadDocument(f"{path}: not a baseline of ddp-doctor")
    if version > SCHEMA_VERSION:
        raise document.BadDocument(
            f"{path}: a baseline of schema {version}: this ddp-doctor reads up to {SCHEMA_VERSION}"
        )
    return dict(plain)


def _value(plain: Any) -> Any:
    """Lists of JSON are tuples in a column; anything else that cannot be a value raises TypeError."""
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if isinstance(plain, dict):
        raise TypeError("no value of a column")
    return plain

"""Quantities in words."""

import datetime
from typing import Optional

from ddp_doctor.facts import UNLIMITED


def size(n_bytes: int) -> str:
    """64 KiB, 1.5 GiB, unlimited."""
    if n_bytes >= UNLIMITED:
        return "unlimited"
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def count(number: int) -> str:
    """1024, unlimited."""
    return "unlimited" if number >= UNLIMITED else str(number)


def plural(number: int, noun: str, more: str = "") -> str:
    """1 GPU, 8 GPUs, 2 entries."""
    return f"{number} {noun if number == 1 else more or noun + 's'}"


def times(number: int) -> str:
    """Once, 3 times."""
    return "once" if number == 1 else f"{number} times"


def moment(unix_s: float) -> Optional[datetime.datetime]:
    """The moment of a Unix time, or None for one that no calendar has (facts may be damaged)."""
    try:
        return datetime.datetime.fromtimestamp(unix_s, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def clock(unix_s: float) -> str:
    """2026-11-30 12:03 UTC; "" for a moment that no calendar has."""
    found = moment(unix_s)
    return found.strftime("%Y-%m-%d %H:%M UTC") if found else ""


def seconds(duration_s: float) -> str:
    """3.2 s, 4 min, 3 h, 12 days."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if duration_s >= 2 * length:
            return f"{duration_s / length:.0f} {unit}"
    return f"{duration_s:.3g} s"

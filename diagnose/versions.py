"""Versions as tuples of numbers: 535.104.05, 1.12.1+cu113, 8.2.2004, "2.28"."""

import re
from functools import lru_cache
from typing import Optional, Tuple

Release = Tuple[int, ...]


@lru_cache(maxsize=4096)
def release(text: str) -> Release:
    """The numbers that a version begins with: (2, 1, 0) for 2.1.0a0+fe05266; () where it begins with none."""
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", text.strip())
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def at_least(version: str, floor: str) -> Optional[bool]:
    """Is ``version`` the same as ``floor`` or newer? None where one of them is no version. 2.28 equals 2.28.0."""
    have, need = release(version), release(floor)
    if not have or not need:
        return None
    length = max(len(have), len(need))
    return padded(have, length) >= padded(need, length)


def padded(numbers: Release, length: int) -> Release:
    """``numbers`` with zeros at the end up to ``length``, or cut there."""
    return (numbers + (0,) * length)[:length]


def minor(text: str) -> str:
    """The first two numbers as text: 3.8 for 3.8.12, 12.1 for 12.1.105; the text itself where there are not two."""
    numbers = release(text)
    return ".".join(map(str, numbers[:2])) if len(numbers) > 1 else text


def newer(version: str) -> Release:
    """Key to sort version texts by."""
    return padded(release(version), 4)

"""Whole numbers that somebody else wrote."""

from typing import Optional

MOST_DIGITS = 20
"""2**64 has so many."""


def whole(text: str, digits: int = MOST_DIGITS) -> Optional[int]:
    """The number that ``text`` is, in at most so many ASCII digits without a sign; None for anything else.

    For ``isdigit`` alone a superscript two is a digit, too, of which ``int`` makes nothing, and of some thousand digits
    neither (https://docs.python.org/3/library/stdtypes.html#integer-string-conversion-length-limitation).
    """
    return int(text) if len(text) <= digits and text.isascii() and text.isdigit() else None

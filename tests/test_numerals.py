"""Whole numbers that somebody else wrote."""

import pytest
from ddp_doctor.numerals import whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("007", 7),
        (str(2**64), 2**64),
        ("", None),
        ("-1", None),
        ("+1", None),
        (" 1", None),
        ("1_000", None),
        ("\u00b2", None),  # superscript two: a digit for isdigit, none for int
        ("\u0663", None),  # ARABIC-INDIC DIGIT THREE
        ("9" * 21, None),
        ("9" * 5000, None),
    ],
)
def test_only_a_few_ascii_digits_are_a_number(text, expected):
    assert whole(text) == expected


def test_the_number_of_digits_can_be_less():
    assert (whole("65535", 5), whole("655350", 5)) == (65535, None)

"""The table of variables, read by a program: names, versions, values."""

import string
import subprocess
import sys

import pytest
from ddp_doctor import variables
from ddp_doctor.facts import Torch
from ddp_doctor.versions import release
from hypothesis import given
from hypothesis import strategies as st

NAMES = variables.by_name()
KINDS = "int bool bool-words bool-or-word enum enum-any-case list string path cpulist none".split()
LONG = [row.name for row in variables.table() if row.library == "nccl" and row.name[15:] and row.name[:5] == "NCCL_"]


def test_the_table_is_whole():
    assert len(NAMES) == len(variables.table()) > 500
    assert [row.name for row in variables.table() if row.kind not in KINDS] == []
    newer = {row.renamed_to for row in variables.table() if row.library in ("nccl", "pytorch-c10d", "gloo")} - {""}
    assert newer - set(NAMES) == set()


def test_a_default_is_always_allowed():
    numbers = [(row, row.default.split()[0]) for row in NAMES.values() if row.allowed and row.default.split()]
    assert [
        row.name for row, first in numbers if first.lstrip("-").isdigit() and not variables.is_allowed(row, first)
    ] == []


def test_the_table_is_not_read_at_import():
    code = "import ddp_doctor.variables as v; print(v.by_name.cache_info().currsize, v.table.__module__)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["0", "ddp_doctor.tables"]


def slow_distance(one, other):
    """The textbook's table, without bounds."""
    rows = [[max(i, j) if not i or not j else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            same = one[i - 1] == other[j - 1]
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (not same))
            if i > 1 and j > 1 and (one[i - 1], one[i - 2]) == (other[j - 2], other[j - 1]):
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1]


@given(st.text("ABC", max_size=7), st.text("ABC", max_size=7))
def test_the_bounded_distance_is_the_textbook_s(one, other):
    assert variables.distance(one, other) == min(slow_distance(one, other), 3)


@given(st.sampled_from(LONG), st.data())
def test_one_slip_in_a_long_name_is_found(name, data):
    place = data.draw(st.integers(5, len(name) - 1))
    letter = data.draw(st.sampled_from(string.ascii_uppercase))
    wrong = name[:place] + letter + name[place:]
    if wrong not in NAMES and not variables._build_name(wrong):  # NCCL_LIB...: build systems have such names
        assert variables.distance(wrong, variables.closest(wrong)) == 1


def test_no_real_name_is_taken_for_a_misspelt_one():
    assert [name for name in NAMES if variables.closest(name)] == []


@pytest.mark.parametrize(
    ("name", "version", "default"),
    [("NCCL_IB_TIMEOUT", "2.10.3", "14"), ("NCCL_IB_TIMEOUT", "2.20.5", "18"), ("NCCL_IB_TIMEOUT", "", "20")],
)
def test_a_default_by_version(name, version, default):
    assert variables.default(NAMES[name], release(version)) == default


@pytest.mark.parametrize(
    ("torch", "reader"),
    [
        (None, ("NCCL", ())),
        (Torch(version="2.4.1", nccl="2.20.5"), ("NCCL", (2, 20, 5))),
    ],
)
def test_who_reads_a_variable(torch, reader):
    assert variables.reader(NAMES["NCCL_DEBUG"], torch) == reader


def test_torch_reads_its_own():
    torch = Torch(version="2.4.1+cu121", nccl="2.20.5")
    assert variables.reader(NAMES["TORCH_NCCL_BLOCKING_WAIT"], torch) == ("torch", (2, 4, 1))
    assert variables.reader(NAMES["MASTER_PORT"], torch) == ("torchrun", ())


@pytest.mark.parametrize(
    ("text", "read_as"),
    [("1", ""), ("0x10", ""), (" 7 ", ""), ("-2", ""), ("", ""), ("true", "0"), ("4M", "4"), ("010", "8"), ("08", "0")],
)
def test_what_nccl_reads_out_of_a_text(text, read_as):
    assert variables.misread(NAMES["NCCL_BUFFSIZE"], text) == read_as

"""The checks' documentation as text and JSON."""

import json

import pytest
from ddp_doctor import reference, registry
from ddp_doctor.model import Severity
from ddp_doctor.registry import Check, Doc, Function, Registry

SEE = ("https://example.org/one", "https://example.org/" + "x" * 120)
CHECK = Check(
    "limits/memlock-too-low",
    print,
    {"limits": True, "policy": False},
    Severity.ERROR,
    True,
    Doc("Locked memory is too small.", "NCCL pins its buffers with the HCA " * 5, SEE, "nobody can \x1b[2J mend it"),
)
FIXED = Check("os/old", print, {"os": True}, Severity.NOTE, False, Doc("Old."), Function("os/old", print, {}))


def page(check=CHECK, **failed):
    return reference.text([check], Registry(failed_plugins=failed), detailed=True, width=60)


def test_a_page_has_every_part_within_the_width():
    text = page()
    for part in ("limits/memlock-too-low", "error (only for a job of several", "limits, policy", *SEE, "HCA: an RDMA"):
        assert part in text
    assert [line for line in text.splitlines() if len(line) > 60 and "http" not in line] == []
    assert r"none: nobody can \x1b[2J mend it" in " ".join(text.split())


def test_a_check_with_a_fix_says_so():
    assert "the report shows remedies" in page(FIXED)


def test_the_list_names_each_check_on_one_line_and_plugins_that_failed():
    loaded = Registry(failed_plugins={"site": "ImportError: no"})
    lines = reference.text([CHECK, FIXED], loaded, width=80).splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["limits/memlock-too-low", "error"], ["os/old", "note"]]
    assert lines[-1] == "plug-in site could not be loaded: ImportError: no"


def test_an_empty_list_is_no_error():
    assert "0 checks" in reference.text([], Registry())


@pytest.mark.parametrize("check", registry.load(plugins=False).checks.values(), ids=lambda check: check.id)
def test_every_check_has_a_page(check):
    assert page(check).splitlines()[0] == check.id


def test_json():
    (found,) = json.loads(reference.as_json([CHECK]))
    assert (found["id"], found["severity"], found["has_fix"]) == ("limits/memlock-too-low", "error", False)
    assert found["see"] == list(SEE)

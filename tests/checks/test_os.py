"""Checks of the operating system."""

import datetime
from pathlib import Path

import pytest
from ddp_doctor import config
from ddp_doctor.facts import Os, Reason
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

CENTOS8 = Policy(os_minimum={"centos": "8.2"}, os_recommended={"centos": "8.5"})
ONLY_CENTOS = Policy(os_minimum={"centos": "8.2"}, os_only_named=True)
MAJOR_ONLY = Policy(os_minimum={"centos": "9"})


def centos(version, stream=False):
    return Os(id="centos", version=version, pretty="CENTOS", like=("rhel", "fedora"), stream=stream)


@pytest.mark.parametrize(
    ("policy", "os", "minimum", "recommended"),
    [
        (Policy(), Os(id="ubuntu", version="22.04", pretty="Ubuntu 22.04.4 LTS"), "passed", "skipped"),
        (Policy(), Os(id="arch", pretty="Arch Linux", unread={"version": Reason("absent", "-")}), "passed", "skipped"),
        (CENTOS8, centos("8.1.1911"), "failed", "failed"),
        (CENTOS8, centos("8.2.2004"), "passed", "failed"),
        (CENTOS8, centos("8.5.2111"), "passed", "passed"),
        (CENTOS8, centos("8.10"), "passed", "passed"),
        (CENTOS8, centos("7.9.2009"), "failed", "failed"),
        (CENTOS8, centos("8"), "skipped", "skipped"),
        (CENTOS8, centos("8", stream=True), "skipped", "skipped"),
        (CENTOS8, centos("9", stream=True), "skipped", "skipped"),
        (MAJOR_ONLY, centos("8", stream=True), "failed", "skipped"),
        (MAJOR_ONLY, centos("9", stream=True), "passed", "skipped"),
        (CENTOS8, Os(id="ubuntu", version="18.04"), "passed", "skipped"),
        (ONLY_CENTOS, Os(id="ubuntu", version="22.04"), "failed", "skipped"),
        (CENTOS8, Os(id="centos", unread={"version": Reason("no-rights", "closed")}), "skipped", "skipped"),
    ],
)
def test_the_site_decides_which_release_is_too_old(policy, os, minimum, recommended):
    assert outcome("os/below-minimum", policy, os=os) == minimum
    assert outcome("os/below-recommended", policy, os=os) == recommended


def test_a_fault_names_release_and_floor():
    (verdict,) = judged("os/below-minimum", CENTOS8, os=centos("8.1.1911"))
    assert (verdict.measured, verdict.expected) == ("CENTOS (8.1.1911)", "centos 8.2 or later")
    assert "vault.centos.org" in remedy_text(verdict)


def test_a_release_without_a_pretty_name_is_told_by_id_and_version():
    (verdict,) = judged("os/below-minimum", os=Os(id="alpine", version="3.19.1"))
    assert verdict.measured == "alpine 3.19.1"


def test_a_distribution_that_nobody_named_is_told_what_is_accepted():
    (verdict,) = judged("os/below-minimum", ONLY_CENTOS, os=Os(id="ubuntu", version="22.04", pretty="Ubuntu 22.04"))
    assert verdict.expected == "one of centos >= 8.2"
    assert "vault.centos.org" not in remedy_text(verdict)


def test_the_example_for_centos_8_says_the_same():
    example = Path(__file__).parents[2] / "examples" / "centos8.toml"
    loaded = config.load(str(example))
    assert (loaded.policy.os_minimum, loaded.policy.os_recommended) == (CENTOS8.os_minimum, CENTOS8.os_recommended)
    assert (loaded.policy.driver_minimum, loaded.policy.os_only_named) == ("450.80.02", False)


@pytest.mark.parametrize(
    ("os", "day", "expected"),
    [
        (Os(id="centos", version="8.2.2004", container=""), "2021-12-31", "passed"),
        (Os(id="centos", version="8.2.2004", container=""), "2022-01-01", "failed"),
        (Os(id="centos", version="8", stream=True, container=""), "2024-05-31", "passed"),
        (Os(id="ubuntu", version="22.04", container=""), "2026-11-30", "passed"),
        (Os(id="ubuntu", version="20.04", container=""), "2026-11-30", "failed"),
        (Os(id="debian", version="12.11", container=""), "2026-11-30", "passed"),  # LTS is for everybody
        (Os(id="debian", version="12.11", container=""), "2028-07-01", "failed"),
        (Os(id="ubuntu", version="20.04", container="docker"), "2026-11-30", "skipped"),  # the machine's is not known
        (Os(id="arch", version=None, container=""), "2026-11-30", "skipped"),
        (Os(id="gentoo", version="2.15", container=""), "2026-11-30", "skipped"),
    ],
)
def test_a_release_that_gets_no_more_fixes_is_a_note(os, day, expected):
    assert outcome("os/end-of-life", Policy(today=datetime.date.fromisoformat(day)), os=os) == expected

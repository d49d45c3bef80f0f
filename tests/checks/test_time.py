"""Checks of the clock."""

import pytest
from ddp_doctor.facts import Clock, Launch, Os, Reason
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

TWO = Policy(nnodes=2)
UNREAD = {"offset_s": Reason("not-applicable", "no synchroniser"), "synchronised": Reason("not-applicable", "host")}


@pytest.mark.parametrize(
    ("name", "clock", "expected"),
    [
        ("chrony", Clock("chronyd", True, 0.0001), "passed"),
        ("hypervisor's agent keeps it", Clock("", True), "passed"),
        ("chrony without a source", Clock("chronyd", False), "failed"),
        ("nothing", Clock("", False), "failed"),
        ("container on a host without rtcsync", Clock("host", False), "skipped"),
        ("guest", Clock("host", None, unread=UNREAD), "skipped"),
        ("container", Clock("host", True), "passed"),
        ("unread", Clock(None, False, unread={"synchroniser": Reason("crashed", "-")}), "skipped"),
        ("unsure", Clock("phc2sys", None, unread=UNREAD), "skipped"),
    ],
)
def test_a_clock_that_the_host_keeps_is_no_fault(name, clock, expected):
    assert outcome("time/not-synchronised", TWO, time=clock) == expected


def test_the_clock_matters_to_several_nodes():
    severities = {
        nnodes: [
            (v.outcome.value, v.severity.value)
            for v in judged("time/not-synchronised", Policy(nnodes=nnodes), time=Clock("", False))
        ]
        for nnodes in (None, 1, 2)
    }
    assert severities == {None: [("failed", "note")], 1: [("skipped", "warning")], 2: [("failed", "warning")]}


@pytest.mark.parametrize(
    ("offset_s", "large", "breaks"),
    [
        (0.0, "passed", "passed"),
        (1.0, "passed", "passed"),
        (-1.5, "failed", "passed"),
        (9.0, "failed", "passed"),
        (-12.0, "failed", "failed"),
    ],
)
def test_an_offset_is_judged_by_its_size(offset_s, large, breaks):
    clock = Clock("chronyd", True, offset_s)
    assert outcome("time/offset-too-large", TWO, time=clock) == large
    assert outcome("time/offset-breaks-rendezvous", TWO, time=clock) == breaks


def test_an_offset_that_nobody_tells_is_unsure():
    assert outcome("time/offset-too-large", TWO, time=Clock("", False, unread=UNREAD)) == "skipped"


@pytest.mark.parametrize(
    ("clock", "measured", "message"),
    [
        (Clock("", False), "no synchroniser runs, not synchronised", "nothing keeps this node's clock"),
        (Clock("chronyd", False), "chronyd, not synchronised", "chronyd runs but is not synchronised"),
        (Clock("chronyd", True, -0.0002), "chronyd, synchronised, 0.2 ms off", ""),
        (Clock("chronyd", True, 1.0), "chronyd, synchronised, 1 s off", ""),
    ],
)
def test_it_is_said_who_keeps_the_clock_and_how_well(clock, measured, message):
    (verdict,) = judged("time/not-synchronised", TWO, time=clock)
    assert (verdict.measured, verdict.message) == (measured, message)


@pytest.mark.parametrize(("rendezvous", "expected"), [("static", "skipped"), ("c10d", "failed"), (None, "failed")])
def test_a_static_rendezvous_compares_no_clocks(rendezvous, expected):
    launch = Launch(rendezvous=rendezvous)
    assert outcome("time/offset-breaks-rendezvous", TWO, time=Clock("chronyd", True, 60.0), launch=launch) == expected


@pytest.mark.parametrize(
    ("os", "clock", "expected"),
    [
        (
            Os(id="centos", like=("rhel",), container=""),
            Clock("", False),
            ["dnf install -y chrony", "systemctl enable --now chronyd"],
        ),
        (
            Os(id="ubuntu", like=("debian",), container=""),
            Clock("", False),
            ["apt-get install -y chrony", "systemctl enable --now chrony"],
        ),
        (Os(id="sles", container=""), Clock("", False), ["zypper install -y chrony", "systemctl enable --now chronyd"]),
        (Os(id="ubuntu", container=""), Clock("chronyd", False), ["chronyc -n sources"]),
        (Os(id="ubuntu", container=""), Clock("systemd-timesyncd", False), ["timedatectl status"]),
        (Os(id="ubuntu", container="docker"), Clock("", False), []),
    ],
)
def test_a_synchroniser_is_installed_as_the_distribution_does(os, clock, expected):
    (verdict,) = judged("time/not-synchronised", TWO, time=clock, os=os)
    assert [step.text for remedy in verdict.fixes for step in remedy.steps if step.kind == "command"] == expected


@pytest.mark.parametrize(
    ("clock", "kind", "expected"),
    [
        (Clock("chronyd", True, 30.0), "", "chronyc makestep"),
        (Clock("systemd-timesyncd", True, 30.0), "", "systemctl restart systemd-timesyncd"),
        (Clock("chronyd", True, 30.0), "kubernetes", "synchronise the host"),
    ],
)
def test_a_wrong_clock_is_stepped_by_its_keeper(clock, kind, expected):
    (verdict,) = judged("time/offset-breaks-rendezvous", TWO, time=clock, os=Os(container=kind))
    assert expected in remedy_text(verdict)
    assert verdict.measured == "30 s off"


@pytest.mark.parametrize(
    ("systemd", "kind", "said"),
    [
        (True, "command", "systemctl enable --now chronyd"),
        (None, "command", "systemctl enable --now chronyd"),
        (False, "sentence", "Start chronyd: systemd does not run here"),
    ],
)
def test_services_are_started_in_words_where_systemd_does_not_run(systemd, kind, said):
    found = Os(id="rocky", container="", systemd=systemd)
    (verdict,) = judged("time/not-synchronised", TWO, time=Clock("", False), os=found)
    starts = [step for remedy in verdict.fixes for step in remedy.steps if "chronyd" in step.text]
    assert [(step.kind, step.who) for step in starts] == [(kind, "root")]
    assert starts[0].text.startswith(said)

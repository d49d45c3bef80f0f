"""Checks of bonds, flapping links and full tables."""

import pytest
from ddp_doctor.facts import Interface, Launch, Module, Network, Os
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

DAY_S = 86_400.0


def member(name="eth0", running=True, speed=100_000, **more):
    return Interface(name, kind="physical", running=running, speed_mbit_s=speed, master="bond0", up=True, **more)


def bond(mode="802.3ad", up=True):
    return Interface("bond0", kind="bond", bond_mode=mode, up=up, running=True)


def network(*interfaces, conntrack=None, neighbours=None, **sysctls):
    names = {"max": "net.netfilter.nf_conntrack_max", "thresh3": "net.ipv4.neigh.default.gc_thresh3",
             "somaxconn": "net.core.somaxconn"}  # fmt: skip
    said = {names[name]: value for name, value in sysctls.items()}
    return Network(interfaces=interfaces, sysctls=said, conntrack_used=conntrack, neighbours=neighbours)


@pytest.mark.parametrize(
    ("interfaces", "down", "unequal"),
    [
        ((bond(), member("eth0"), member("eth1")), "passed", "passed"),
        ((bond(), member("eth0"), member("eth1", running=False)), "failed passed", "skipped"),
        ((bond(), member("eth0"), member("eth1", speed=25_000)), "passed", "failed"),
        ((bond("active-backup"), member("eth0"), member("eth1", speed=1_000)), "passed", "skipped"),
        ((bond(up=False), member("eth0", running=False)), "skipped", "skipped"),
        ((bond(), member("eth0"), member("eth1", running=None)), "passed skipped", "skipped"),
        ((bond(), member("eth0"), member("eth1", speed=None)), "passed", "skipped"),
        ((member("eth0"),), "skipped", "skipped"),
    ],
)
def test_bonds(interfaces, down, unequal):
    assert outcome("network/bond-member-down", network=network(*interfaces)) == down
    assert outcome("network/bond-members-unequal", network=network(*interfaces)) == unequal


@pytest.mark.parametrize(
    ("changes", "uptime_s", "result"),
    [
        (2, DAY_S, "passed"),
        (11, DAY_S, "failed"),
        (11, 60.0, "failed"),
        (9, 60.0, "passed"),
        (300, 100 * DAY_S, "passed"),
        (None, DAY_S, "skipped"),
    ],
)
def test_a_link_that_flaps_is_a_note(changes, uptime_s, result):
    facts = network(member("eth0", carrier_changes=changes))
    (verdict,) = judged("network/link-has-flapped", network=facts, os=Os(uptime_s=uptime_s))
    assert (verdict.outcome.value, verdict.severity.value) == (result, "note")


def test_without_an_uptime_flaps_cannot_be_judged():
    assert outcome("network/link-has-flapped", network=network(member()), os=Os()) == "skipped"


@pytest.mark.parametrize(
    ("facts", "result"),
    [
        (network(conntrack=1000, max=262_144), "passed"),
        (network(conntrack=250_000, max=262_144), "failed"),
        (network(max=262_144), "skipped"),
        (network(conntrack=5), "skipped"),
        (network(conntrack=5, max=0), "skipped"),
    ],
)
def test_conntrack(facts, result):
    assert outcome("network/conntrack-nearly-full", network=facts) == result


@pytest.mark.parametrize(
    ("neighbours", "nnodes", "result"),
    [(20, None, "passed"), (1000, None, "failed"), (20, 1024, "failed"), (20, 64, "passed")],
)
def test_the_neighbour_table(neighbours, nnodes, result):
    facts = network(neighbours=neighbours, thresh3=1024)
    assert outcome("network/neighbour-table-nearly-full", Policy(nnodes=nnodes), network=facts) == result


@pytest.mark.parametrize(
    ("world_size", "is_master", "result"),
    [(16, True, "passed"), (512, True, "failed"), (512, None, "failed"), (512, False, "skipped")],
)
def test_the_backlog_of_the_master(world_size, is_master, result):
    launch = Launch(world_size=world_size, nnodes=64, is_master=is_master)
    assert outcome("network/backlog-too-small", network=network(somaxconn=128), launch=launch) == result


def test_the_remedies_are_larger_than_what_is():
    (full,) = judged("network/conntrack-nearly-full", network=network(conntrack=99, max=100))
    (backlog,) = judged(
        "network/backlog-too-small", Policy(nnodes=900, nproc_per_node=8), network=network(somaxconn=128)
    )
    assert "nf_conntrack_max=400" in remedy_text(full)
    assert "somaxconn=8192" in remedy_text(backlog)


# --------------------------------------------------------------------------- modules and error correction


@pytest.mark.parametrize(
    ("module", "result"),
    [
        (Module("QSFP28", temperature_c=45.0, temperature_high_warning_c=70.0), "passed"),
        (Module("QSFP28", temperature_c=71.0, temperature_high_warning_c=70.0), "failed"),
        (Module("OSFP", temperature_c=81.0, temperature_high_alarm_c=80.0), "failed"),
        (Module("OSFP", temperature_c=81.0), "skipped"),
        (Module("QSFP28"), "skipped"),
        (None, "skipped"),
    ],
)
def test_a_module_is_judged_by_its_own_limits(module, result):
    assert outcome("network/module-too-hot", network=network(member("eth0", module=module))) == result


@pytest.mark.parametrize(
    ("cards", "result"),
    [
        ((member("eth0", fec=("rs",)), member("eth1", fec=("rs",))), "passed"),
        ((member("eth0", fec=("rs",)), member("eth1", fec=("off",))), "failed"),
        ((member("eth0", fec=("rs",)), member("eth1", speed=25_000, fec=("baser",))), "skipped"),
        ((member("eth0", fec=("rs",)), member("eth1", running=False, fec=("off",))), "skipped"),
        ((member("eth0", fec=("rs",)), member("eth1", fec=None)), "skipped"),
    ],
)
def test_error_correction_of_cards_that_are_alike(cards, result):
    assert outcome("network/fec-differs", network=network(*cards)) == result

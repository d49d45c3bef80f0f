"""The report for people."""

import json
from dataclasses import replace

import pytest
from ddp_doctor import report as reports
from ddp_doctor.model import Outcome, Remedy, Severity, Verdict, command, say

LOGIN = Verdict("ssh/login-fails", "n1", Outcome.FAILED, Severity.ERROR, message="no login")


def ssh_to(name):
    return (Remedy("Log in once", (command(f"ssh {name}"),)),)


def table(report, **options):
    return reports.render("table", report, reports.Options(**options))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("table.txt", {}),
        ("table-verbose.txt", {"verbose": True}),
        ("table-narrow.txt", {"width": 60}),
        ("table-colour.txt", {"colour": True}),
    ],
)
def test_one_node(report, golden, name, options):
    golden(table(report, **options), name)


def test_several_nodes_share_findings_and_headers(fleet, golden):
    golden(table(fleet), "table-fleet.txt")


def test_subjects_that_share_a_finding_are_listed_in_one_block(report):
    peers = [
        replace(LOGIN, subject=name, measured=f"refused: {name}", fixes=ssh_to(name)) for name in ("a1", "a2", "a3")
    ]
    other = replace(LOGIN, subject="a4", measured="timed out")
    text = table(replace(report, verdicts=(*peers, other)))
    assert "a1, a2, a3: no login [ssh/login-fails]" in text
    assert [text.count(words) for words in ("refused: a1", "refused: a2", "ssh a1", "ssh a2")] == [1, 0, 1, 0]
    assert "shown     as for a1, the others are alike" in text
    assert text.count("[ssh/login-fails]") == 2
    assert (
        json.loads(reports.render("json", replace(report, verdicts=(*peers, other))))["verdicts"][1]["subject"] == "a2"
    )
    assert "| ERROR | ssh/login-fails | a1, a2, a3 |" in " ".join(
        reports.render("markdown", replace(report, verdicts=(*peers, other))).split()
    )


LONG = Remedy("Change the switch", (say("a very long way " * 10),))


@pytest.mark.parametrize("severity", [Severity.NOTE, Severity.WARNING])
@pytest.mark.parametrize("verbose", [False, True])
def test_of_a_note_the_best_and_the_short_remedies_have_steps_and_the_others_a_hint(report, severity, verbose):
    verdict = replace(LOGIN, severity=severity, fixes=(LONG, *ssh_to("a1"), replace(LONG, title="Change the cables")))
    text = table(replace(report, verdicts=(verdict,)), verbose=verbose)
    abridged = severity is Severity.NOTE and not verbose
    assert "ssh a1" in text
    assert text.count("or        ") == 2
    assert text.count("a very long way") == (10 if abridged else 20)
    assert text.count("(-v shows the steps of the remedies that are only named)") == abridged


def test_the_first_line_is_the_headline_and_the_last_ones_what_to_type(report):
    lines = table(report).splitlines()
    assert lines[0] == report.summary.headline
    assert [line.strip() for line in lines[-2:]] == list(report.summary.next[-2:])


def test_a_word_is_explained_once(fleet):
    assert table(fleet).count("HCA: an RDMA network card") == 1


def test_nothing_but_commands_and_addresses_passes_the_width(report):
    wide = [line.strip() for line in table(report, width=60).splitlines() if len(line) > 60]
    assert [line for line in wide if not line.startswith(("torchrun", "source", "https"))] == []


def test_what_the_encoding_cannot_carry_is_escaped(report):
    changed = replace(report, summary=replace(report.summary, headline="Ready \u2265 caf\u00e9"))
    assert table(changed, encoding="ascii").splitlines()[0] == r"Ready \u2265 caf\xe9"
    assert table(changed).splitlines()[0] == "Ready \u2265 caf\u00e9"


def test_colour_only_when_told(report):
    assert "\x1b[" in table(report, colour=True)
    assert "\x1b" not in table(report)

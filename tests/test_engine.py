"""The engine: facts in, verdicts out, whatever a check does."""

import datetime
import inspect

import pytest
from ddp_doctor.config import Config
from ddp_doctor.engine import exit_status, judge
from ddp_doctor.facts import Launch, Memory, NodeFacts, Reason
from ddp_doctor.model import Outcome, Reading, Remedy, Severity, Verdict, Waived, check, known, say, unknown
from ddp_doctor.policy import Policy, Waiver
from ddp_doctor.registry import Check, Doc, Function

FACTS = NodeFacts(
    "node1", memory=Memory(total_bytes=8, unread={"available_bytes": Reason("absent", "no MemAvailable")})
)
LATE = Reason("timed-out", "reading disk: no answer within 10 s")
DAY = datetime.date(2026, 6, 15)


def parameters(function):
    return {p.name: p.default is p.empty for p in inspect.signature(function).parameters.values()}


def made(function, fix=None):
    """A check as the registry makes it: its id is t/ and the function's name."""
    mark, id = function.__ddp_check__, f"t/{function.__name__}".replace("_", "-")
    remedy = Function(id, fix, parameters(fix)) if fix else None
    doc = Doc("A fault.", why="It hurts.", see=("https://example.org/a",))
    return Check(id, function, parameters(function), mark.severity, mark.several_nodes, doc, remedy)


def run(*functions, facts=FACTS, policy=None, severity=None, fix=None):
    config = Config(policy=policy or Policy(), severity=severity or {})
    return judge(facts, [made(function, fix) for function in functions], config)


def shape(verdicts):
    return [(v.subject, v.outcome.value, v.reason.kind if v.reason else None) for v in verdicts]


@check(Severity.ERROR)
def several(memory):
    yield Reading(True, "8 B", "8 B", "must not be shown", subject="a")
    yield Reading(False, "7 B", "8 B", "too small", subject="b")
    yield unknown(memory, "available_bytes", subject="c")


@check(Severity.WARNING)
def fails(memory):
    yield Reading(False, "7 B", "8 B", subject="GPU 3")


@check(Severity.WARNING, several_nodes=True)
def fails_among_nodes(memory):
    yield Reading(False)


@check(Severity.ERROR)
def nothing(memory):
    yield from ()


@check(Severity.ERROR)
def ignorant(memory):
    yield Reading(True, subject="a")
    yield Reading(True, known(memory.available_bytes, memory, "available_bytes"))


@check(Severity.ERROR)
def needs_disk(disk):
    yield Reading(True)


@check(Severity.ERROR)
def has_no_need_of_disk(memory, disk=None):
    yield Reading(disk is None)


@check(Severity.ERROR)
def raises(memory):
    yield Reading(False, subject="a")
    raise ZeroDivisionError("by nought")


@check(Severity.ERROR)
def leaves(memory):
    raise SystemExit(1)


@check(Severity.ERROR)
def yields_nonsense(memory):
    yield True


@check(Severity.ERROR)
def returns_none(memory):
    return None


@check(Severity.ERROR)
def over_the_fleet(fleet):
    yield Reading(True)


def test_a_check_has_a_verdict_for_each_thing_that_it_looked_at():
    assert shape(run(several)) == [("a", "passed", None), ("b", "failed", None), ("c", "skipped", "absent")]


def test_only_a_failure_says_what_is_wrong_and_why():
    passed, failed, _ = run(several)
    assert (passed.message, passed.why, passed.measured) == ("", "", "8 B")
    assert (failed.message, failed.why, failed.source) == ("too small", "It hurts.", "https://example.org/a")


def test_a_failure_without_words_of_its_own_has_the_title():
    assert run(fails)[0].message == "A fault."


def test_the_source_of_a_reading_comes_before_that_of_the_check():
    @check(Severity.ERROR)
    def sourced(memory):
        yield Reading(False, source="table row 7")

    assert run(sourced)[0].source == "table row 7"


@pytest.mark.parametrize(
    ("function", "facts", "expected"),
    [
        (nothing, FACTS, [("", "skipped", "not-applicable")]),
        (ignorant, FACTS, [("a", "passed", None), ("", "skipped", "absent")]),
        (needs_disk, NodeFacts("n", reasons={"disk": LATE}), [("", "skipped", "timed-out")]),
        (needs_disk, NodeFacts("n"), [("", "skipped", "not-recorded")]),
        (has_no_need_of_disk, FACTS, [("", "passed", None)]),
    ],
)
def test_what_is_not_known_is_skipped_with_its_reason_and_never_passes(function, facts, expected):
    assert shape(run(function, facts=facts)) == expected


def test_a_check_that_could_not_tell_has_a_reason_in_any_case():
    @check(Severity.NOTE)
    def silent(memory):
        yield Reading(None, subject="a")

    assert shape(run(silent)) == [("a", "skipped", "unreadable")]


@pytest.mark.parametrize(
    ("function", "expected", "words"),
    [
        (raises, [("a", "failed", None), ("", "broken", "broken")], "ZeroDivisionError: by nought (test_engine.py:"),
        (leaves, [("", "broken", "broken")], "SystemExit"),
        (yields_nonsense, [("", "broken", "broken")], "yielded True, not a Reading"),
        (returns_none, [("", "broken", "broken")], "TypeError"),
    ],
)
def test_a_check_that_breaks_is_reported_and_hides_no_other(function, expected, words):
    verdicts = run(function, fails)
    assert shape(verdicts) == [*expected, ("GPU 3", "failed", None)]
    assert words in verdicts[-2].reason.text


def test_a_check_over_a_fleet_is_not_for_one_node():
    assert run(over_the_fleet) == []


def test_reasons_name_every_section_that_is_not_there():
    @check(Severity.NOTE)
    def looks(reasons):
        yield Reading(True, " ".join(f"{name}={reasons[name].kind}" for name in ("disk", "gpus") if name in reasons))
        yield Reading("memory" not in reasons)

    first, second = run(looks, facts=NodeFacts("n", memory=Memory(), reasons={"disk": LATE}))
    assert first.measured == "disk=timed-out gpus=not-recorded"
    assert second.outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("nnodes", "launch", "severity", "expected"),
    [
        (None, None, None, ("failed", Severity.NOTE)),
        (1, None, None, ("skipped", Severity.WARNING)),
        (2, None, None, ("failed", Severity.WARNING)),
        (None, Launch(nnodes=2), None, ("failed", Severity.WARNING)),
        (None, Launch(nnodes=1), None, ("skipped", Severity.WARNING)),
        (2, Launch(nnodes=1), None, ("failed", Severity.WARNING)),
        (None, None, Severity.ERROR, ("failed", Severity.ERROR)),
    ],
)
def test_what_matters_to_several_nodes_is_a_note_while_their_number_is_unknown(nnodes, launch, severity, expected):
    overrides = {"t/fails-among-nodes": severity} if severity else {}
    facts = NodeFacts("n", memory=Memory(), launch=launch)
    (verdict,) = run(fails_among_nodes, facts=facts, policy=Policy(nnodes=nnodes), severity=overrides)
    assert (verdict.outcome.value, verdict.severity) == expected


def test_a_site_sets_the_severity_of_one_check():
    severities = {v.check: v.severity for v in run(fails, several, severity={"t/fails": Severity.NOTE})}
    assert severities == {"t/fails": Severity.NOTE, "t/several": Severity.ERROR}


@pytest.mark.parametrize(
    ("waiver", "waived"),
    [
        (Waiver("t/fails", "known"), Waived("known")),
        (Waiver("t/fails", "known", "GPU 3"), Waived("known")),
        (Waiver("t/fails", "known", "GPU*", DAY), Waived("known", "2026-06-15")),
        (Waiver("t/fails", "known", "GPU 4"), None),
        (Waiver("t/fails", "known", "gpu 3"), None),
        (Waiver("t/several", "known"), None),
        (Waiver("t/fails", "known", until=DAY - datetime.timedelta(days=1)), None),
    ],
)
def test_a_waiver_covers_its_check_and_subject_until_its_day(waiver, waived):
    (verdict,) = run(fails, policy=Policy(waivers=(waiver,), today=DAY))
    assert (verdict.outcome, verdict.severity, verdict.waived) == (Outcome.FAILED, Severity.WARNING, waived)


def test_a_fix_gets_the_finding_and_what_it_asks_for():
    def fix(finding, memory, policy, disk=None):
        yield Remedy(f"{finding.subject} of {memory.total_bytes}", (say(f"{policy.nnodes} {disk}"),))

    (verdict,) = run(fails, policy=Policy(nnodes=2), fix=fix)
    assert verdict.fixes == (Remedy("GPU 3 of 8", (say("2 None"),)),)


def test_only_failures_are_mended():
    passed, failed, skipped = run(several, fix=lambda finding: iter([Remedy("mend")]))
    assert [bool(v.fixes) for v in (passed, failed, skipped)] == [False, True, False]


def test_a_fix_that_lacks_a_section_or_a_value_leaves_the_finding_alone():
    def needs_disk(disk):
        yield Remedy("never")

    def needs_value(memory):
        yield Remedy(known(memory.available_bytes, memory, "available_bytes"))

    for fix in (needs_disk, needs_value):
        assert [(v.outcome.value, v.fixes) for v in run(fails, fix=fix)] == [("failed", ())]


def test_a_fix_that_breaks_is_reported_beside_its_finding():
    def breaks(finding):
        raise KeyError("x")

    def nonsense(finding):
        yield "reboot"

    for fix in (breaks, nonsense):
        broken, failed = run(fails, fix=fix)
        assert (broken.outcome, failed.outcome, failed.fixes) == (Outcome.BROKEN, Outcome.FAILED, ())
        assert broken.reason.text.startswith("its fix: ")


def result(outcome, severity=Severity.ERROR, waived=None):
    return Verdict("t/x", "n", outcome, severity, waived=waived)


@pytest.mark.parametrize(
    ("verdicts", "fail_on", "unsure", "status"),
    [
        ([], Severity.ERROR, False, 0),
        ([], Severity.ERROR, True, 3),
        ([result(Outcome.PASSED), result(Outcome.SKIPPED)], Severity.NOTE, False, 0),
        ([result(Outcome.FAILED)], Severity.ERROR, False, 1),
        ([result(Outcome.FAILED, Severity.WARNING)], Severity.ERROR, False, 0),
        ([result(Outcome.FAILED, Severity.WARNING)], Severity.WARNING, False, 1),
        ([result(Outcome.FAILED, Severity.NOTE)], Severity.WARNING, False, 0),
        ([result(Outcome.FAILED, waived=Waived("known"))], Severity.NOTE, False, 0),
        ([result(Outcome.BROKEN)], Severity.ERROR, False, 3),
        ([result(Outcome.BROKEN), result(Outcome.FAILED)], Severity.ERROR, False, 1),
        ([result(Outcome.FAILED)], Severity.ERROR, True, 1),
    ],
)
def test_the_exit_status_says_failed_before_unsure(verdicts, fail_on, unsure, status):
    assert exit_status(verdicts, fail_on, unsure) == status

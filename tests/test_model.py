"""The words of a diagnosis."""

import pytest
from ddp_doctor.facts import Memory, Reason
from ddp_doctor.model import (
    NotKnown,
    Outcome,
    Severity,
    Verdict,
    Waived,
    command,
    export,
    known,
    say,
    unknown,
    unset,
    why_unknown,
    worst,
    write_file,
)

CLOSED = Reason("no-rights", "/proc/meminfo: Permission denied")
MEMORY = Memory(total_bytes=0, unread={"available_bytes": CLOSED})


def verdict(outcome=Outcome.FAILED, severity=Severity.ERROR, waived=None):
    return Verdict("area/name", "node1", outcome, severity, waived=waived)


def test_a_value_that_is_there_is_returned_even_when_it_is_nothing():
    assert known(MEMORY.total_bytes, MEMORY, "total_bytes") == 0


def test_a_value_that_is_not_there_carries_its_reason():
    with pytest.raises(NotKnown) as caught:
        known(MEMORY.available_bytes, MEMORY, "available_bytes")
    assert caught.value.reason == CLOSED
    assert unknown(MEMORY, "available_bytes", "node").reason == CLOSED
    assert unknown(MEMORY, "available_bytes", "node").ok is None


def test_a_value_without_a_reason_was_not_recorded():
    reason = why_unknown(MEMORY, "swap_free_bytes")
    assert (reason.kind, reason.text) == (
        "not-recorded",
        "not looked at when these facts were taken (memory.swap_free_bytes)",
    )


def test_severities_are_ordered():
    assert [s.rank for s in (Severity.NOTE, Severity.WARNING, Severity.ERROR)] == [0, 1, 2]
    assert Severity("error") is Severity.ERROR


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], None),
        ([verdict(Outcome.PASSED)], None),
        ([verdict(Outcome.BROKEN), verdict(Outcome.SKIPPED)], None),
        ([verdict(severity=Severity.NOTE), verdict(severity=Severity.WARNING)], Severity.WARNING),
        ([verdict(waived=Waived("known")), verdict(severity=Severity.NOTE)], Severity.NOTE),
    ],
)
def test_the_worst_is_the_worst_failure_that_counts(found, expected):
    assert worst(found) is expected


def test_a_waived_failure_stays_a_failure_and_does_not_count():
    waived = verdict(waived=Waived("new cable ordered", "2027-01-31"))
    assert (waived.outcome, waived.counts, verdict().counts) == (Outcome.FAILED, False, True)


@pytest.mark.parametrize(
    ("step", "kind", "name", "value", "text"),
    [
        (say("Ask."), "sentence", "", "", "Ask."),
        (command("ls -l"), "command", "", "", "ls -l"),
        (export("NCCL_DEBUG", "INFO"), "export", "NCCL_DEBUG", "INFO", ""),
        (unset("NCCL_P2P_DISABLE"), "unset", "NCCL_P2P_DISABLE", "", ""),
        (write_file("/etc/x.conf", "a\n"), "file", "/etc/x.conf", "", "a\n"),
    ],
)
def test_steps_are_told_apart_by_their_kind(step, kind, name, value, text):
    assert (step.kind, step.name, step.value, step.text, step.who) == (kind, name, value, text, "user")

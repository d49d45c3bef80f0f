"""The tables of Xids and SXids, and what is read out of them."""

import pytest
from ddp_doctor import tables, xids
from ddp_doctor.collect.kernel_lines import event_of

CAUSES = {"application", "driver", "hardware", "memory", "nvlink", "recovery", "unused"}


def test_every_published_xid_is_there_once_and_says_what_to_do():
    rows = tables.xids()
    assert [int(row.code) for row in rows] == list(range(1, 173))
    for row in rows:
        assert row.cause in CAUSES, row.code
        assert row.severity in ("note", "warning", "error", "by-line"), row.code
        assert row.action == "by-line" or row.action in xids.ACTIONS, row.code
        assert row.meaning.endswith("."), row.code
        assert not (row.severity == "error" and row.action == "none"), row.code


def test_sxid_rows_are_blocks_and_exceptions_inside_them():
    for row in tables.sxids():
        assert int(row.first) <= int(row.last)
        assert row.fatal in ("yes", "no", "by-line")
        assert row.action in xids.ACTIONS
        same = [other for other in tables.sxids() if (other.first, other.last) == (row.first, row.last)]
        assert same == [row]


@pytest.mark.parametrize(
    ("line", "severity", "action"),
    [
        ("NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.", "error", "reboot"),
        ("NVRM: Xid (PCI:0000:07:00): 31, pid=7, name=python, Ch 1", "note", "restart-job"),
        ("NVRM: Xid (PCI:0000:07:00): 94, pid=7, Contained: SM (0x1). RST: No, D-RST: No", "warning", "restart-job"),
        ("NVRM: Xid (PCI:0000:07:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x1)", "note", "none"),
        ("NVRM: Xid (PCI:0000:07:00): 145, RLW_REMAP Fatal XC0 i0 Link 00 (0x1)", "error", "reset-gpu"),
        (
            "NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            "error",
            "reboot",
        ),
        (
            "NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            "note",
            "none",
        ),
        ("NVRM: Xid (PCI:0000:07:00): 154 (", "note", "none"),
        (
            "NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
            "error",
            "drain-and-reset",
        ),
        (
            "NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x0 (None) to 0x9 (Something New)",
            "error",
            "contact-support",
        ),
        ("NVRM: Xid (PCI:0000:07:00): 99999, unknown error", "note", "contact-support"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "error", "reset-gpu"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", "note", "none"),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 99999, Fatal, something new", "error", "check-nvlink"),
    ],
)
def test_what_a_line_s_code_means(line, severity, action):
    meaning = xids.meaning_of(event_of(line))
    assert (meaning.severity, meaning.action) == (severity, action)
    assert meaning.meaning
    assert meaning.todo

"""Checks of the kernel's log beside NVIDIA's drivers."""

from dataclasses import replace

import pytest
from ddp_doctor.collect.kernel_lines import event_of
from ddp_doctor.collect.kernel_log import fold
from ddp_doctor.facts import Gpu, Gpus, KernelLog, Rdma, RdmaDevice
from ddp_doctor.fixes import kernel as fixes
from ddp_doctor.policy import Policy
from judging import judged, outcome, own_checks, remedy_text

CHECKS = sorted(check for check in own_checks().checks if check.startswith("kernel/"))
CORRECTED = "nvidia 0000:4e:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"
LINK = "mlx5_core 0000:12:00.0 ib0: Link down"
HOT = "mce: CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)"


def log(*lines):
    events = [replace(event_of(line), first_at=1e9, last_at=1e9) for line in lines]
    return KernelLog(
        source="journal", since=1e9 - 60, until=1e9 + 60, whole_boot=True, events=fold(events)[0], dropped=0
    )


@pytest.mark.parametrize(
    ("lines", "failed"),
    [
        ((), None),
        ((CORRECTED,) * 100, None),
        ((CORRECTED,) * 101, "kernel/pcie-corrected-flood"),
        (
            ("pcieport 0000:50:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=x",),
            "kernel/pcie-uncorrected",
        ),
        (
            ("mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count.",),
            "kernel/adapter-fault",
        ),
        (("mlx5_core 0000:12:00.0: Detected insufficient power on the PCIe slot (27W).",), "kernel/adapter-trouble"),
        (("mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged",), None),
        (("mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 2): ACCESS_REG(0x805) op_mod(0x1) failed",), None),
        ((LINK,) * 4, None),
        ((LINK,) * 5, "kernel/link-flaps"),
        (("EDAC MC1: 1 UE memory read error",), "kernel/memory-uncorrected"),
        (("EDAC MC1: 3 CE memory read error",), "kernel/memory-corrected"),
        ((HOT,), None),
        ((HOT,) * 11, "kernel/cpu-throttled"),
        (("Out of memory: Killed process 456 (python) total-vm:1kB",), "kernel/process-killed"),
        (("INFO: task python:77 blocked for more than 120 seconds.",), "kernel/task-hung"),
        (("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",), "kernel/cpu-stalled"),
        (("EXT4-fs (md0): Remounting filesystem read-only",), "kernel/storage-error"),
        (("nfs: server 10.0.0.5 not responding, timed out",), "kernel/storage-error"),
        (("BUG: unable to handle kernel NULL pointer dereference at 78",), "kernel/kernel-crashed"),
        (("python[7]: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2[7f+1]",), "kernel/training-crashed"),
        (("gnome-shell[7]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6[7f+1]",), None),
    ],
)
def test_each_fault_is_told_by_one_check(lines, failed):
    told = {check for check in CHECKS if outcome(check, kernel_log=log(*lines)) != "passed"}
    assert told == ({failed} if failed else set())


DAY_S = 86_400.0


def spread(line, count, days, burst=0):
    """A log of so many days with like lines at even distances, and a burst of some in its last minutes."""
    until = 1e9 + days * DAY_S
    moments = [1e9 + n * days * DAY_S / max(1, count) for n in range(count)] + [until - 60 - n for n in range(burst)]
    events = fold(replace(event_of(line), first_at=at, last_at=at) for at in moments)[0]
    return KernelLog(source="journal", since=1e9, until=until, whole_boot=True, events=events, dropped=0)


@pytest.mark.parametrize(
    ("check", "line", "a_day"),
    [("pcie-corrected-flood", CORRECTED, 100), ("link-flaps", LINK, 4), ("cpu-throttled", HOT, 10)],
)
def test_what_is_seldom_is_no_fault_however_long_the_log_is(check, line, a_day):
    def judge(log):
        (verdict,) = judged(f"kernel/{check}", Policy(nnodes=2), kernel_log=log)
        return verdict

    assert judge(spread(line, 90 * a_day, 90)).outcome.value == "passed"
    assert judge(spread(line, 90 * a_day, 45)).outcome.value == "failed"
    burst = judge(spread(line, 2, 90, burst=a_day + 1))
    assert burst.outcome.value == "failed"
    assert burst.measured.startswith(f"{a_day + 1} in a day, {a_day + 3} lines")
    assert burst.expected.endswith("in a day")
    without = spread(line, 90 * a_day, 90)
    older = replace(without, events=tuple(replace(event, most_in_a_day=None) for event in without.events))
    assert judge(older).outcome.value == "passed"
    assert judge(replace(older, since=None)).outcome.value == "failed"


def test_devices_are_named():
    fatal = "pcieport 0000:4e:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=x"
    (verdict,) = judged("kernel/pcie-uncorrected", kernel_log=log(fatal), gpus=Gpus(gpus=(Gpu(3, pci="0000:4e:00.0"),)))
    assert "GPU 3 (0000:4e:00.0)" in verdict.message
    sick = "mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count."
    rdma = Rdma(devices=(RdmaDevice("mlx5_4", pci="0000:d2:00.0"),))
    (verdict,) = judged("kernel/adapter-fault", kernel_log=log(sick), rdma=rdma)
    assert "mlx5_4 (0000:d2:00.0)" in verdict.message
    assert "mlxfwreset -d 0000:d2:00.0 reset" in remedy_text(verdict)


def test_silence_says_since_when_and_where_from():
    (verdict,) = judged("kernel/task-hung", kernel_log=log())
    assert verdict.measured == "no hung process since 2001-09-09 01:45 UTC (journal, which reaches back to boot)"


def test_names_out_of_the_log_are_quoted():
    (verdict,) = judged("kernel/link-flaps", kernel_log=log(*[LINK.replace("ib0", "ib0-x")] * 6))
    hostile = replace(verdict, subject="$(reboot) x")
    (remedy,) = fixes.link_flaps(hostile)
    assert remedy.steps[0].text == "ethtool -m '$(reboot)'"


def test_a_laptop_s_heat_and_links_are_no_alarm():
    for check, line in (("kernel/cpu-throttled", HOT), ("kernel/link-flaps", LINK)):
        (alone,) = judged(check, Policy(nnodes=1), kernel_log=log(*[line] * 20))
        (unsure,) = judged(check, kernel_log=log(*[line] * 20))
        (many,) = judged(check, Policy(nnodes=2), kernel_log=log(*[line] * 20))
        assert (alone.outcome.value, unsure.severity.value, many.severity.value) == ("skipped", "note", "warning")

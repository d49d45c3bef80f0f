"""Checks of what NVIDIA's drivers told the kernel's log."""

from dataclasses import replace

import pytest
from ddp_doctor.collect.kernel_lines import event_of
from ddp_doctor.collect.kernel_log import fold
from ddp_doctor.facts import Gpu, Gpus, KernelLog, Launch, Os, PciGpu, Reason
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

CHECKS = (
    "xid/gpu-fault xid/gpu-trouble xid/program-error xid/driver-note xid/earlier-fault xid/nvswitch-fault "
    "xid/nvswitch-note xid/driver-fault"
).split()
GPUS = Gpus(gpus=(Gpu(0, pci="0000:07:00.0"), Gpu(1, pci="0000:4e:00.0")))


def log(*lines, **more):
    """A log of these lines, a minute apart."""
    events = [replace(event_of(line), first_at=1e9 + 60 * n, last_at=1e9 + 60 * n) for n, line in enumerate(lines)]
    return KernelLog(
        source="kmsg", since=1e9 - 60, until=1e9 + 7200, whole_boot=True, events=fold(events)[0], dropped=0, **more
    )


def xid(code, rest="", pci="0000:4e:00"):
    return f"NVRM: Xid (PCI:{pci}): {code}, {rest}"


@pytest.mark.parametrize("at", [1e30, -1e30, 1e18])
def test_a_moment_that_no_calendar_has_is_no_time(at):
    good, bad = replace(log(), since=at), replace(log(xid(79, "GPU has fallen off the bus.")), since=at)
    event = replace(bad.events[0], first_at=at, last_at=at)
    (quiet,), (fired,) = (
        judged("xid/gpu-fault", kernel_log=kernel_log, gpus=GPUS)
        for kernel_log in (good, replace(bad, events=(event,)))
    )
    assert (quiet.outcome.value, fired.outcome.value) == ("passed", "failed")
    assert "in what the log holds" in quiet.measured
    assert "(last" not in fired.measured


NONE = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


@pytest.mark.parametrize(
    ("lines", "failed"),
    [
        ((), None),
        ((xid(79, "GPU has fallen off the bus."),), "xid/gpu-fault"),
        ((xid(48, "An uncorrectable double bit error"),), "xid/gpu-fault"),
        ((xid(119, "pid=7, name=python, Timeout after 6s"),), "xid/gpu-fault"),
        ((xid(95, "pid=7062, Uncontained: LTC TAG"),), "xid/gpu-fault"),
        ((xid(64, "Row remapping failure"),), "xid/gpu-fault"),
        ((xid(74, "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0)"),), "xid/gpu-fault"),
        ((xid(154, RESET),), "xid/gpu-fault"),
        ((xid(94, "Contained: SM (0x1). RST: No, D-RST: No"),), "xid/gpu-trouble"),
        ((xid(31, "pid=626486, name=pt_main_thread, Ch 8"),), "xid/program-error"),
        ((xid(13, "Graphics SM Warp Exception"),), "xid/program-error"),
        ((xid(63, "Row remapping pending"),), "xid/driver-note"),
        ((xid(9999, "something"),), "xid/driver-note"),
        ((xid(154, RESET), xid(154, NONE)), None),
        ((xid(48, "DBE"), xid(154, RESET), xid(154, NONE)), "xid/earlier-fault"),
        ((xid(79, "lost"), "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54"), "xid/earlier-fault"),
        (("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54", xid(79, "lost")), "xid/gpu-fault"),
        (("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",), "xid/nvswitch-fault"),
        (("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 12028, Non-fatal, Link 32",), "xid/nvswitch-note"),
        (("NVRM: GPU 0000:4e:00.0: RmInitAdapter failed! (0x26:0xffff:1133)",), "xid/driver-fault"),
        ((xid(79, "lost"), "NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus."), "xid/gpu-fault"),
    ],
)
def test_each_fault_is_told_by_one_check(lines, failed):
    told = {check for check in CHECKS if "failed" in outcome(check, kernel_log=log(*lines), gpus=GPUS)}
    assert told == ({failed} if failed else set())


def test_a_fault_names_the_gpu_the_time_and_the_way_out():
    (verdict,) = judged(
        "xid/gpu-fault", kernel_log=log(xid(48, "pid=7, name=python, DBE")), gpus=GPUS, launch=Launch(launcher="slurm")
    )
    assert verdict.subject == "GPU 1 (0000:4e:00.0) Xid 48"
    assert "2001-09-09 01:46 UTC" in verdict.measured
    assert "python (pid 7)" in verdict.measured
    assert "reset the GPU" in verdict.message
    text = remedy_text(verdict)
    assert "nvidia-smi --gpu-reset -i 1" in text
    assert "State=DRAIN" in text


def test_without_a_scheduler_the_node_is_taken_out_of_service_by_hand():
    (verdict,) = judged("xid/gpu-fault", kernel_log=log(xid(79, "lost")), gpus=GPUS)
    assert "Take the node out of service, so that no job starts on it." in remedy_text(verdict)
    assert "scontrol" not in remedy_text(verdict)


def test_a_container_is_told_to_ask():
    (verdict,) = judged("xid/gpu-fault", kernel_log=log(xid(79, "lost")), gpus=GPUS, os=Os(container="docker"))
    text = remedy_text(verdict)
    assert "container can reset nothing" in text
    assert "\ncommand" not in text


def test_silence_says_since_when():
    (verdict,) = judged("xid/gpu-fault", kernel_log=log(), gpus=GPUS)
    assert verdict.measured == "no Xid since 2001-09-09 01:45 UTC (kmsg, which reaches back to boot)"
    (verdict,) = judged("xid/gpu-fault", kernel_log=replace(log(), whole_boot=False), gpus=GPUS)
    assert "does not reach back" in verdict.measured


def test_a_machine_without_gpus_is_not_judged():
    assert {outcome(check, kernel_log=log(), gpus=Gpus(gpus=(), on_bus=())) for check in CHECKS} == {"skipped"}


def test_what_could_not_be_read_is_no_pass():
    unread = KernelLog(unread={"events": Reason("no-rights", "needs root: kernel.dmesg_restrict is 1")})
    (verdict,) = judged("xid/gpu-fault", kernel_log=unread, gpus=GPUS)
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "no-rights")


def test_a_gpu_that_this_job_was_not_given_is_somebody_else_s():
    bus = tuple(PciGpu(f"0000:{bus}:00.0", "0x20b0") for bus in ("07", "4e", "9b"))
    mine = replace(GPUS, admitted=2, on_bus=bus)
    fault = log(xid(79, "lost", pci="0000:9b:00"))
    assert "failed" not in outcome("xid/gpu-fault", kernel_log=fault, gpus=mine)
    assert outcome("xid/fault-of-another-gpu", kernel_log=fault, gpus=mine) == "failed"
    assert outcome("xid/gpu-fault", Policy(scope="node"), kernel_log=fault, gpus=mine) == "failed"
    lost = replace(mine, gpus=mine.gpus[:1])  # of two that were given one answers: the other is the one that was lost
    assert outcome("xid/gpu-fault", kernel_log=log(xid(79, "lost")), gpus=lost) == "failed"


def test_the_driver_s_word_that_all_is_well_is_the_newest():
    well = replace(GPUS, gpus=(GPUS.gpus[0], replace(GPUS.gpus[1], recovery_action="none")))
    fault = log(xid(119, "Timeout"))
    assert outcome("xid/gpu-fault", kernel_log=fault, gpus=well) == "passed"
    assert outcome("xid/earlier-fault", kernel_log=fault, gpus=well) == "failed"

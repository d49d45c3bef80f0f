"""Time: the synchroniser's word, the kernel's, and who keeps whose clock."""

import os
import select
import subprocess
import sys
from typing import Any, Dict, List, Optional

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import time as time_section
from ddp_doctor.facts import Clock
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable

UNSYNC = {"status": 0x40, "offset": 0, "maxerror": 16000000}
SYNCED = {"status": 0x2001, "offset": -250000, "maxerror": 12345}
TRACKING = (
    "C0A80001,192.168.0.1,3,1700000000.123456789,-0.000012345,0.000001000,0.000020000,"
    "1.234,0.001,0.050,0.000900000,0.000300000,64.2,Normal\n"
)
BARE = "27 1 254:0 / / rw - ext4 /dev/vda1 rw\n"
POD = "500 400 0:50 / / rw - overlay overlay rw\n501 500 8:1 /x/kubelet/pods/1/etc-hosts /etc/hosts rw - xfs x rw\n"


def read(
    daemons: Optional[List[str]],
    kernel: Optional[Dict[str, int]],
    runs: Optional[Dict[str, Any]] = None,
    files: Optional[Dict[str, str]] = None,
    mountinfo: str = BARE,
) -> Clock:
    entries: Dict[str, Any] = {f"run {name}": {"value": ran} for name, ran in (runs or {}).items()}
    for name, value in (("synchroniser", daemons), ("adjtimex", kernel)):
        entries[f"ask {name}"] = {"reason": {"kind": "no-rights", "text": "no"}} if value is None else {"value": value}
    files = {"/proc/self/mountinfo": mountinfo, "/proc/cpuinfo": "flags\t: fpu\n", **(files or {})}
    return time_section.read(Recording(entries, {"root" + p: t for p, t in files.items()}, complete=True), Ask())


def ran(stdout: str, status: int = 0) -> Dict[str, Any]:
    return {"status": status, "stdout": stdout, "stderr": ""}


def test_chrony() -> None:
    found = read(["chronyd"], SYNCED, {"chronyc-tracking": ran(TRACKING)})
    assert found == Clock("chronyd", True, offset_s=-0.000012345, stratum=3, max_error_s=0.012345)


def test_chrony_has_the_last_word() -> None:
    """Without ``rtcsync`` chronyd leaves the kernel's flag alone."""
    assert read(["chronyd"], UNSYNC, {"chronyc-tracking": ran(TRACKING)}).synchronised is True
    lost = TRACKING.replace("Normal", "Not synchronised")
    assert read(["chronyd"], SYNCED, {"chronyc-tracking": ran(lost)}).synchronised is False


@pytest.mark.parametrize(
    "answer",
    [ran("506 Cannot talk to daemon\n", 1), ran("garbage"), ran(""), ran("a,b,3,0,nan" + ",0" * 9), ran("\x00," * 14)],
)
def test_chrony_that_cannot_be_understood(answer: Dict[str, Any]) -> None:
    found = read(["chronyd"], UNSYNC, {"chronyc-tracking": answer})
    assert (found.synchronised, found.stratum, found.offset_s) == (None, None, None)
    assert {"synchronised", "stratum", "offset_s"} <= set(found.unread)
    assert read(["chronyd"], SYNCED, {"chronyc-tracking": answer}).synchronised is True


def test_timesyncd() -> None:
    message = "NTPMessage={ Leap=0, Version=4, Mode=4, Stratum=2, Precision=-23, Ignored=no }\n"
    found = read(["systemd-timesyn"], SYNCED, {"timedatectl-timesync": ran(message)})
    assert found == Clock("systemd-timesyncd", True, offset_s=pytest.approx(-0.00025), stratum=2, max_error_s=0.012345)


def test_timesyncd_without_an_answer_yet() -> None:
    found = read(["systemd-timesyn"], UNSYNC, {"timedatectl-timesync": ran("")})
    assert (found.synchronised, found.stratum, found.unread["stratum"].kind) == (False, None, "absent")


def test_offset_of_the_kernel_in_microseconds() -> None:
    assert read(["ntpd"], {**SYNCED, "status": 1}).offset_s == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("daemons", "who"),
    [(["ptp4l", "phc2sys"], "ptp4l"), (["phc2sys"], "phc2sys"), (["chronyd", "ptp4l"], "chronyd"), ([], "")],
)
def test_synchroniser(daemons: List[str], who: str) -> None:
    found = read(daemons, SYNCED, {"chronyc-tracking": ran(TRACKING)})
    assert found.synchroniser == who


@pytest.mark.parametrize(
    ("files", "mountinfo", "kernel", "who", "synchronised"),
    [
        ({}, BARE, UNSYNC, "", False),
        ({}, POD, UNSYNC, "host", False),  # the kernel's flag is the host's own
        ({}, POD, SYNCED, "host", True),
        ({"/proc/sys/kernel/osrelease": "5.15-microsoft-standard-WSL2\n"}, BARE, UNSYNC, "host", None),
        ({"/sys/class/dmi/id/sys_vendor": "QEMU\n"}, BARE, UNSYNC, "", False),
    ],
)
def test_clock_that_the_host_keeps(
    files: Dict[str, str], mountinfo: str, kernel: Dict[str, int], who: str, synchronised: Optional[bool]
) -> None:
    found = read([], kernel, files=files, mountinfo=mountinfo)
    assert (found.synchroniser, found.synchronised) == (who, synchronised)
    assert ("synchronised" in found.unread) is (synchronised is None)


def test_nothing_readable_leaves_a_reason_everywhere() -> None:
    assert set(read(None, None).unread) == set(Clock.__dataclass_fields__) - {"unread"}


@pytest.mark.parametrize("text", ["", "NTPMessage=", "Stratum=x", "\x00"])
def test_what_is_no_message_is_a_reason(text: str) -> None:
    with pytest.raises(Unreadable):
        time_section.parse_timesync(text)


def test_this_machine_asks_the_kernel() -> None:
    found = time_section.read(Host(), Ask())
    assert found.synchroniser is not None
    assert found.max_error_s is not None or found.unread["max_error_s"].kind == "no-rights"


def test_running_daemon_is_found_by_its_name() -> None:
    reader, writer = os.pipe()
    script = (
        f"open('/proc/self/comm', 'w').write('phc2sys'); import os, signal; os.write({writer}, b'x'); signal.pause()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], pass_fds=[writer])
    try:
        assert select.select([reader], [], [], 10)[0]
        assert "phc2sys" in time_section.running_daemons("/")
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)

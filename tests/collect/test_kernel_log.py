"""Lines of the kernel's log, and the section that is made of them: real captures, every format of a time, hostile input."""

import os
import stat
from pathlib import Path

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import kernel_log
from ddp_doctor.collect.kernel_lines import NEEDLES, event_of, fault_lines, line_of, pci_of
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

CAPTURES = Path(__file__).parents[3] / "shared/captures/4-kernel-log"
NOW = 1_740_400_000.0
XID = "NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("prefix", "at", "uptime_s"),
    [
        ("", None, None),
        ("4,1227,437812449932,c;", None, 437812.449932),
        ("<4>[  201.650687] ", None, 201.650687),
        ("[ 1052.080846][   T41] ", None, 1052.080846),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ", 1737434504.283302, None),
        ("2025-01-21T05:41:44,5+01:00 ", 1737434504.5, None),
        ("2025-01-17T17:10:43+0000 host.example kernel: ", 1737133843.0, None),
        ("1737133843.250000 host kernel: ", 1737133843.25, None),
        ("<4>1 2025-01-17T17:10:43Z host kernel - - - ", 1737133843.0, None),
        ("2025-01-17T17:10:43.5Z host kernel: [  12.5] ", 1737133843.5, 12.5),
        ("host kernel: ", None, None),
        ("kernel: [  12.5] ", None, None),
        ("19:14:43  ", None, None),
    ],
)
def test_what_stands_before_the_kernel_s_words(prefix, at, uptime_s):
    line, event = line_of(prefix + XID, NOW), event_of(prefix + XID, NOW)
    assert (line.source, line.text, line.at, line.uptime_s) == ("kernel", XID, pytest.approx(at), uptime_s)
    assert (event.kind, event.code, event.pci, event.pid, event.process) == ("xid", 79, "0000:07:00.0", None, None)


def test_a_date_without_a_year_is_the_last_that_is_not_to_come():
    summer = line_of("Aug 17 06:18:01 host kernel: " + XID, NOW).at
    winter = line_of("Feb  1 06:18:01 host kernel: " + XID, NOW).at
    assert NOW - 365 * 86400 < summer < NOW - 180 * 86400 < winter < NOW
    assert line_of("Feb 31 06:18:01 host kernel: " + XID, NOW).at is None


@pytest.mark.parametrize(
    "prefix",
    [
        "12,5,100,-;",  # facility 1, which the kernel gives to what programs write into the ring
        "<12>[  1.5] ",
        "user  :notice: 2025-01-21T04:41:44,283302+00:00 ",
        "Aug 17 06:18:01 host root: ",
        "2025-01-17T17:10:43+0000 host train.py[77]: ",
        "1737133843.250000 host NVRM: ",
        "Aug 17 06:18:01 host systemd-networkd[5]: ",
    ],
)
def test_a_program_cannot_make_a_fault(prefix):
    assert event_of(prefix + XID, NOW) is None


@pytest.mark.parametrize(
    "line",
    [
        "mce: CPU supports 9 MCE banks",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
        "pcieport 0000:00:01.0: AER: enabled with IRQ 25",
        "bonding: bond0: enslaving eth0 as a backup interface with a down link.",
        "IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready",
        "veth12ab: Link is Down",
        "Buffer I/O error on dev fd0, logical block 0, async page read",
        "I/O error, dev sr0, sector 0 op 0x0:(READ)",
        "NVRM: GPU at PCI:0000:66:00: GPU-12345678-1234-5678-9abc-def012345678",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "the job printed: " + XID,
        "Call Trace:",
        "",
        "\x00\x1b[2J\ufffd",
    ],
)
def test_lines_that_tell_of_no_fault(line):
    assert event_of(line) is None


@pytest.mark.parametrize(
    ("line", "kind", "has"),
    [
        (
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "xid",
            {"action": "GPU Reset Required"},
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x0)",
            "xid",
            {"severity": "Fatal", "link": "09", "unit": "NETIR_LINK_EVT"},
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress",
            "sxid",
            {"severity": "Non-fatal", "link": "32"},
        ),
        ("NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "nvrm", {"what": "off-bus"}),
        ("NVRM: GPU 0000:91:00.0: RmInitAdapter failed! (0x26:0xffff:1133)", "nvrm", {"what": "init-failed"}),
        (
            "pcieport 0000:50:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            "aer",
            {"severity": "Uncorrected (Fatal)", "layer": "Transaction Layer"},
        ),
        (
            "nvidia 0000:4e:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
            "aer",
            {"severity": "Corrected"},
        ),
        (
            "mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count.",
            "mlx5",
            {"what": "health"},
        ),
        ("mlx5_core 0000:12:00.0 ib0: Link down", "link", {"what": "down"}),
        ("EDAC MC1: 1 UE memory read error on CPU_SrcID#0", "edac", {"what": "uncorrected", "number": "1"}),
        ("mce: CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)", "thermal", {}),
        ("LustreError: 167-0: fs-OST0001: This client was evicted by fs-OST0001", "filesystem", {"what": "evicted"}),
    ],
)
def test_what_a_line_tells(line, kind, has):
    event = event_of(line)
    assert event.kind == kind
    assert {key: (event.fields or {})[key] for key in has} == has
    assert fault_lines(line.encode(), 9)[0] == [line.encode()]  # the search of bytes lets it through


def test_an_xid_whose_address_was_cut_out_keeps_its_number():
    assert [
        event_of(line).code for line in ("NVRM: Xid (PCI:...): 145, RLW_RXPIPE Nonfatal", "NVRM: Xid 74: NVLink down")
    ] == [
        145,
        74,
    ]


def test_a_flood_of_one_kind_of_event_hides_no_other():
    killed = [event_of(f"Out of memory: Killed process {n} (python)") for n in range(2 * kernel_log.EVENTS_LIMIT)]
    events, left_out = kernel_log.fold([event_of(XID), *killed])
    assert events[0].code == 79
    assert (len(events), left_out) == (1 + kernel_log.EVENTS_LIMIT, kernel_log.EVENTS_LIMIT)


@pytest.mark.parametrize(
    ("hours", "most"),
    [([], 0), ([0], 1), ([0, 23, 24], 2), ([0, 24, 48], 1), ([48, 1, 2, 0], 3), ([0, None], None)],
)
def test_the_busiest_day(hours, most):
    assert kernel_log.most_in_a_day([None if h is None else 3600.0 * h for h in hours]) == most


@pytest.mark.parametrize(
    "line",
    [
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:{pid}]",
        "python[{pid}]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6",
    ],
)
def test_a_pid_without_end_is_none(line):
    event, endless = event_of(line.format(pid=4711)), event_of(line.format(pid="4" * 2000))
    assert event.pid == 4711
    assert endless is None or endless.pid is None


def test_secrets_and_control_characters_do_not_get_through():
    event = event_of("NVRM: Xid (PCI:0000:07:00): 31, pid=7, name=a\x1b[31m, password=hunter2 " + "x" * 9000)
    assert event.pid == 7
    assert "\x1b" not in event.text + event.process
    assert "hunter2" not in event.text
    assert len(event.text) <= 400


def test_addresses_are_written_like_those_of_the_gpus():
    assert [pci_of(text) for text in ("0000:07:00", "00000000:4E:00.0", "0008:01:00.1")] == [
        "0000:07:00.0",
        "0000:4e:00.0",
        "0008:01:00.1",
    ]


def captured(pattern):
    """Every line of the captures that match, or a reason to skip."""
    files = sorted(CAPTURES.glob(pattern))
    if not files:
        pytest.skip(f"no captures {pattern} here")
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [
        ("redhat-cip.dmesg-hp-server", set()),
        ("gpud/pkg_kmsg.kmsg.1.log", set()),
        ("azurehpc/0flap_syslog", set()),
        ("azurehpc/1dev_6flap_syslog", {"link"}),
        ("gpud/components_accelerator_nvidia_xid*", {"xid"}),
        ("syzkaller/hung*", {"hung-task"}),
        ("syzkaller/rcu*", {"lockup"}),
        ("npd/*hung", {"hung-task"}),
        ("npd/oom_kill", {"oom"}),
        ("lines/mlx5-examples*", {"mlx5", "netdev"}),
    ],
)
def test_captures_tell_of_their_faults_and_of_no_others(pattern, kinds):
    for name, data in captured(pattern).items():
        found = {e.kind for raw in data.split(b"\n") for e in [event_of(raw.decode("utf-8", "backslashreplace"))] if e}
        assert found == kinds, name


def test_every_xid_by_code():
    data = next(iter(captured("xid-by-code.txt").values())).decode()
    code, seen = None, set()
    for line in data.splitlines():
        if line.startswith("## Xid "):
            code = int(line.split()[-1])
        elif line.startswith("NVRM"):
            assert event_of(line).code == code, line
            seen.add(code)
    assert len(seen) > 25


def test_bytes_are_searched_for_every_kind_of_line():
    for name, data in captured("*/*").items():
        found = set(fault_lines(data, 10**6)[0])
        for raw in data.split(b"\n"):
            if event_of(raw.decode("utf-8", "backslashreplace")):
                assert raw in found, (name, raw)
    assert all(NEEDLES)


def test_the_last_lines_are_kept_and_the_others_counted():
    data = b"NVRM: a\nnothing\nNVRM: b SXid NVRM:\nNVRM: c"
    assert fault_lines(data, 2) == ([b"NVRM: b SXid NVRM:", b"NVRM: c"], 1)
    flood = XID.encode() + b"\n" + b"NVRM: nvAssertOkFailedNoLog\n" * 50 + b"mlx5 AER: x\n" * 50
    assert fault_lines(flood, 5)[0][0] == XID.encode()  # hidden by no other
    assert fault_lines(b"NVRM:" * 10**6, 2)[1] == 0  # one endless line
    assert len(fault_lines(b"NVRM:" * 10**6, 2)[0][0]) == 4096


def node(tmp_path, **files):
    """A tree with a log; boot was at 1737133800."""
    for name, text in {"proc/stat": "cpu 1\nbtime 1737133800\n", **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Host(str(tmp_path))


def no_tools(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "none"))


def test_a_log_file_tells_what_was_since_boot(tmp_path, monkeypatch):
    no_tools(monkeypatch, tmp_path)
    before = "2025-01-17T16:00:00+00:00 host kernel: " + XID
    after = "2025-01-17T18:00:0{}+00:00 host kernel: NVRM: Xid (PCI:0000:07:00): 31, pid=1{}, name=python, Ch 0000000{}"
    text = "\n".join([before, *(after.format(n, n, n) for n in range(3)), "2025-01-17T19:00:00+00:00 host app: well"])
    log = kernel_log.read(node(tmp_path, **{"var/log/kern.log": text}), Ask())
    (event,) = log.events
    assert (log.source, log.since, log.whole_boot) == ("/var/log/kern.log", 1737133800.0, True)
    assert (event.code, event.count, event.process, event.last_at - event.first_at) == (31, 3, "python", 2.0)


def test_a_log_that_begins_after_boot_says_so(tmp_path, monkeypatch):
    no_tools(monkeypatch, tmp_path)
    log = kernel_log.read(node(tmp_path, **{"var/log/messages": "2025-01-17T18:00:00Z host kernel: well\n"}), Ask())
    assert (log.since, log.whole_boot, log.events) == (1737136800.0, False, ())


def test_only_the_end_of_a_large_file_is_read(tmp_path, monkeypatch):
    no_tools(monkeypatch, tmp_path)
    filler = b"2025-01-17T18:00:00Z host kernel: nothing of note in this line\n" * (kernel_log.TAIL_BYTES // 60)
    text = b"2025-01-17T17:59:59Z host kernel: " + XID.encode() + b"\n" + filler
    log = kernel_log.read(node(tmp_path, **{"var/log/syslog": text}), Ask())
    assert (log.events, log.whole_boot) == ((), False)


@pytest.mark.parametrize("data", [b"", b"\x00" * 5000, b"\xff\xfe" * 3000, b"NVRM: Xid " * 50000])
def test_garbage_gives_a_reason_or_nothing(tmp_path, monkeypatch, data):
    no_tools(monkeypatch, tmp_path)
    host = node(tmp_path, **{"var/log/kern.log": data})
    if not data:
        with pytest.raises(Unreadable) as refused:
            kernel_log.read(host, Ask())
        assert refused.value.reason.text
        return
    log = kernel_log.read(host, Ask())
    assert log.events == ()
    assert log.unread["since"].kind == "unreadable"


@pytest.mark.parametrize(("uid", "needs"), [(1000, "root"), (0, "CAP_SYSLOG, which root lacks here")])
def test_what_may_not_be_read_is_said(uid, needs, tmp_path, monkeypatch):
    no_tools(monkeypatch, tmp_path)

    class Denied(Host):
        def ask(self, name, work, limit_s=5.0):
            from ddp_doctor.facts import Reason

            raise Unreadable(Reason("no-rights", name))

        def user(self):
            return uid, "somebody"

    node(tmp_path, **{"proc/sys/kernel/dmesg_restrict": "1\n"})
    with pytest.raises(Unreadable) as refused:
        kernel_log.read(Denied(str(tmp_path)), Ask())
    assert (refused.value.reason.kind, refused.value.reason.text) == (
        "no-rights",
        f"needs {needs}: kernel.dmesg_restrict is 1",
    )


def test_the_ring_is_read_without_waiting(tmp_path):
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    with pytest.raises(Unreadable):
        kernel_log.read_ring(str(fifo))


def test_the_ring_s_own_numbers_say_whether_it_reaches_back_to_boot(tmp_path):
    ring = tmp_path / "kmsg"
    ring.write_text("5,0,0,-;Linux version 6.1\n")
    assert kernel_log.read_ring(str(ring))["whole_boot"] is True
    ring.write_text(f"4,700,5000000,-;{XID}\n SUBSYSTEM=pci\n")
    told = kernel_log.read_ring(str(ring))
    assert (told["whole_boot"], told["lines"], told["dropped"]) == (False, [f"4,700,5000000,-;{XID}"], 0)

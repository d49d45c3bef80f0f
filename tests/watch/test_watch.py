"""The watch: what is told when, and how it ends."""

import io
import json
import os
import re
import signal
import subprocess
from dataclasses import replace

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect.counters import Take
from ddp_doctor.config import Config
from ddp_doctor.facts import (
    Counter,
    Gpu,
    GpuProcess,
    Gpus,
    KernelEvent,
    KernelLog,
    Memory,
    NodeFacts,
    Process,
    Processes,
    Rates,
)
from ddp_doctor.host import Host
from ddp_doctor.watch import BadTime, lines, loop, metrics, prometheus, screen
from ddp_doctor.watch.findings import QUIET_S, Findings, News
from ddp_doctor.watch.gpus import PATIENCE, WatchedGpus
from ddp_doctor.watch.kernel import KernelTail
from ddp_doctor.watch.looks import Looks, rates_between
from ddp_doctor.watch.memory import MemoryHistories
from ddp_doctor.watch.session import Session
from judging import own_checks
from running import DOCTOR, doctor

GIB = 2**30
STUCK = Processes((Process(7, "python", "D", waits_in="nv_open", devices=()),), (), ())
FINE = Processes((), (), ())
XID = KernelEvent("xid", "NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.", 79, "0000:07:00.0")


def node(**sections):
    return NodeFacts("node1", collected_at=1.7e9, **sections)


def findings(at_start=None):
    return Findings(own_checks().checks.values(), Config(), at_start or node(processes=FINE))


def checks(news):
    return [verdict.check for verdict in news.new]


# --------------------------------------------------------------------------- findings


def test_a_finding_is_told_when_it_arises_and_when_it_is_over():
    watched = findings()
    assert watched.judge(node(processes=FINE), 10.0) == News()
    assert checks(watched.judge(node(processes=STUCK), 20.0)) == ["processes/stuck-in-kernel"]
    assert watched.judge(node(processes=STUCK), 30.0) == News()
    assert watched.judge(node(processes=FINE), 40.0).over == (("processes/stuck-in-kernel", "pid 7"),)
    assert watched.worst_new.value == "warning"


def test_what_was_so_at_the_start_is_no_news():
    watched = findings(node(processes=STUCK))
    assert watched.judge(node(processes=STUCK), 10.0) == News()
    assert watched.worst_new is None


def test_what_comes_and_goes_is_not_told_each_time():
    watched = findings()
    told = [len(watched.judge(node(processes=STUCK if n % 2 else FINE), 10.0 * n).new) for n in range(40)]
    assert sum(told) == 1
    watched.judge(node(processes=FINE), 400.0)
    assert len(watched.judge(node(processes=STUCK), 10.0 + QUIET_S).new) == 1


def test_each_xid_is_told_and_none_is_ever_over():
    watched = findings()
    log = KernelLog("kmsg", 1.0, 2.0, events=(replace(XID, first_at=1.5, last_at=1.5),), dropped=0)
    quiet = replace(log, events=())
    told = [watched.judge(node(kernel_log=seen), 10.0 * n) for n, seen in enumerate((log, log, quiet, log))]
    assert [len(news.new) > 0 for news in told] == [True, True, False, True]
    assert all(check.startswith("xid/") for news in told for check in checks(news))
    assert [news.over for news in told] == [()] * 4


# --------------------------------------------------------------------------- memory and rates


def gpu(used, pid=42, **more):
    processes = (GpuProcess(pid, "python", used),) if pid else ()
    return Gpus(gpus=(Gpu(0, memory_total_bytes=80 * GIB, memory_used_bytes=used, processes=processes, **more),))


def test_memory_of_each_process_is_followed_and_forgotten_with_it():
    histories = MemoryHistories()
    for n in range(40):
        histories.add(60.0 * n, gpu(10 * GIB + n * GIB), Memory(total_bytes=100 * GIB, available_bytes=50 * GIB))
    grown = {trend.subject: trend for trend in histories.trends()}
    assert set(grown) == {"GPU 0, pid 42 (python)", "this node"}
    assert grown["GPU 0, pid 42 (python)"].per_s == pytest.approx(GIB / 60)
    histories.add(2500.0, gpu(GIB, pid=77), None)
    assert histories.trends() == ()


def test_a_leak_becomes_a_finding_with_its_slope():
    histories, watched = MemoryHistories(), findings()
    from ddp_doctor.facts import Trends

    for n in range(40):
        histories.add(60.0 * n, gpu(10 * GIB + n * GIB), None)
    (verdict,) = watched.judge(node(trends=Trends(histories.trends(), 0)), 1.0).new
    assert verdict.check == "trends/gpu-memory-grows"
    assert "60 GiB an hour" in verdict.measured


def test_two_takes_become_rates():
    before = Take(10.0, {("rdma", "mlx5_0/1", "symbol_error"): 3, ("disk", "sda", "reads"): 5})
    now = Take(20.0, {("rdma", "mlx5_0/1", "symbol_error"): 13})
    rates = rates_between(before, now)
    assert rates.interval_s == 10.0
    assert list(lines.moving(rates)) == [("rdma", "mlx5_0/1", "symbol_error", 1.0)]
    assert [c.second for c in rates.counters if c.source == "disk"] == [None]


# --------------------------------------------------------------------------- telling


MOVING = Rates(
    10.0,
    (
        Counter("rdma", "mlx5_0/1", "port_rcv_data", 0, 25 * 10**8),
        Counter("rdma", "mlx5_0/1", "symbol_error", 5, 25, 16, True),
        Counter("interface", "eth0", "rx_bytes", 0, 10 * 2**20),
        Counter("tcp", "", "OutSegs", 0, 1000),
        Counter("tcp", "", "RetransSegs", 0, 20),
        Counter("disk", "sda", "reads", 0, 10),
        Counter("disk", "sda", "read_ms", 0, 40),
        Counter("disk", "sda", "in_flight", 3, 4),
    ),
)
BUSY = Gpus(gpus=(Gpu(0, uuid="GPU-1", utilisation_percent=97, memory_used_bytes=GIB, throttle=("hw_slowdown",)),
                  Gpu(1, uuid="GPU-2", fault="GPU is lost")))  # fmt: skip
LOOK = node(rates=MOVING, gpus=BUSY, memory=Memory(available_bytes=7))


def test_a_line_holds_what_moves_and_what_was_found():
    watched = findings()
    news = watched.judge(node(processes=STUCK), 1.0)
    told = json.loads(lines.line(LOOK, news))
    assert told["rates"]["rdma"]["mlx5_0/1"] == {"port_rcv_data": 250000000.0, "symbol_error": 2.0}
    assert told["gpus"][1] == {"gpu": 1, "fault": "GPU is lost"}
    assert [found["check"] for found in told["new"]] == ["processes/stuck-in-kernel"]
    assert told["new"][0]["remedy"]


def test_the_table_is_in_the_units_of_people():
    text = "\n".join(screen.table(LOOK, findings(), 60.0, 120, 40))
    assert "GPU 0     97 % busy, 1 GiB" in text
    assert "hw slowdown" in text
    assert "GPU is lost" in text
    assert "in 953.7 MiB/s" in text  # words of four bytes
    assert "symbol_error 2/s" in text
    assert "2 % sent again" in text
    assert "4.0 ms each" in text


def test_the_table_fits_the_terminal_and_is_drawn_in_its_place():
    table = screen.table(LOOK, findings(), 60.0, 40, 5)
    assert len(table) == 2
    assert max(map(len, table)) <= 40
    assert screen.redrawn(2, ["a", "b"]) == "\x1b[2F\x1b[Ja\nb\n"
    assert screen.redrawn(0, ["a"]) == "a\n"


def test_hostile_names_reach_no_terminal():
    rates = Rates(1.0, (Counter("interface", "e\x1b[31m", "rx_bytes", 0, 9),))
    assert "\x1b" not in "".join(screen.table(node(rates=rates), findings(), 1.0, 100, 9))


def test_samples_have_the_labels_of_their_source():
    text = prometheus.render(metrics.samples(LOOK, findings(node(processes=STUCK))))
    assert 'ddp_doctor_rdma_port_counter_total{device="mlx5_0",port="1",counter="symbol_error"} 25' in text
    assert 'ddp_doctor_disk_requests_in_flight{disk="sda"} 4' in text
    assert 'ddp_doctor_gpu_answers{gpu="1",uuid="GPU-2"} 0' in text
    assert 'ddp_doctor_gpu_utilization_ratio{gpu="0",uuid="GPU-1"} 0.97' in text
    assert 'ddp_doctor_finding{check="processes/stuck-in-kernel",subject="pid 7",severity="warning"} 1' in text
    assert re.findall(r"^ddp_doctor_\w+_total(?!\{)", text, re.MULTILINE) == ["ddp_doctor_findings_total"]


# --------------------------------------------------------------------------- GPUs and the kernel's log


@pytest.fixture
def watched_gpus(fake_nvml):
    made = []

    def make(*said, count=2):
        fake_nvml.install(fake_nvml.healthy(count), *said)
        made.append(WatchedGpus(Host(), count))
        return made[-1]

    yield make
    for gpus in made:
        gpus.close()


def test_gpus_are_asked_again_and_again(watched_gpus):
    watched = watched_gpus()
    known = Gpus(source="nvml", gpus=(Gpu(0, serial="1"), Gpu(1, serial="2")))
    watched.look()
    watched.look()
    first, second = watched.facts(known).gpus
    assert (first.serial, first.pci, second.pci) == ("1", "0000:07:00.0", "0000:0f:00.0")
    assert first.fault is None
    assert first.memory_used_bytes == 0
    assert ("gpu", "GPU 1", "ecc_uncorrected_volatile") in watched.counters(Host())[0]


def test_a_gpu_that_is_lost_hides_no_other(watched_gpus):
    watched = watched_gpus({"1:nvmlDeviceGetUUID": "!15"})
    watched.look()
    first, second = watched.facts(Gpus(gpus=(Gpu(0), Gpu(1)))).gpus
    assert (first.fault, bool(second.fault)) == (None, True)
    assert "gpu GPU 1" in watched.counters(Host())[1]


def test_a_gpu_that_hangs_is_left_alone_after_a_while(watched_gpus, monkeypatch):
    monkeypatch.setattr("ddp_doctor.watch.gpus.LIMIT_S", 0.2)
    monkeypatch.setattr("ddp_doctor.watch.gpus.FIRST_LIMIT_S", 0.5)
    watched = watched_gpus({"1:nvmlDeviceGetUUID": "hang"})
    for _ in range(PATIENCE + 1):
        watched.look()
    assert watched.told[0].get("fault") is None
    assert watched.told[1]["fault"] == "has not answered for a while"


def test_all_gpus_are_asked_before_one_is_waited_for(watched_gpus, monkeypatch):
    calls = []
    for name in ("put", "answer"):
        own = getattr(Session, name)
        monkeypatch.setattr(Session, name, lambda s, *a, own=own, name=name: (calls.append(name), own(s, *a))[1])
    watched = watched_gpus(count=3)
    watched.look()
    assert calls == ["put"] * 3 + ["answer"] * 3
    assert [told.get("fault") for told in watched.told] == [None] * 3


@pytest.mark.parametrize(("most_s", "limit_s"), [(0.1, 0.2), (0.3, 0.3), (60.0, 0.5)])
def test_who_is_waited_for_is_told_once_with_the_time_it_has(watched_gpus, monkeypatch, most_s, limit_s):
    monkeypatch.setattr("ddp_doctor.watch.gpus.LIMIT_S", 0.2)
    monkeypatch.setattr("ddp_doctor.watch.gpus.FIRST_LIMIT_S", 0.5)
    monkeypatch.setattr("ddp_doctor.child.PATIENCE_S", 0.1)
    watched, told = watched_gpus({"1:nvmlDeviceGetUUID": "hang"}), []
    watched.waiting_for = lambda *late: told.append(late)
    watched.look(most_s)
    watched.look(most_s)
    assert [seconds for names, seconds in told if "GPU 1" in names] == [limit_s]


def test_what_hangs_at_the_start_is_not_waited_for_longer_than_is_watched(fake_nvml, monkeypatch):
    monkeypatch.setattr("ddp_doctor.watch.looks.START_S", 5.0)
    monkeypatch.setattr("ddp_doctor.watch.gpus.LIMIT_S", 0.2)
    fake_nvml.install(fake_nvml.healthy(3), {"1:nvmlDeviceGetUUID": "hang", "2:nvmlDeviceGetUUID": "hang"})
    told = []
    looks = Looks(Host(), Ask(), 0.1, lambda *late: told.append(late))
    try:
        assert looks.at_start.gpus.gpus[0].fault is None
        assert {gpu.unread["uuid"].kind for gpu in looks.at_start.gpus.gpus[1:]} == {"deadline"}
        assert told[0] == (["gpus"], 5.0)
        assert [bool(gpu.get("fault")) for gpu in looks.gpus.told] == [False, True, True]
    finally:
        looks.close()


def test_new_lines_of_the_kernels_log_are_events(monkeypatch, tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text("")
    tail = KernelTail(Host(str(tmp_path)))
    records = [
        b"4,900,5000000,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n KEY=1\n",
        BrokenPipeError(),
        b"12,901,5000001,-;NVRM: Xid (PCI:0000:0f:00): 79, written by a user\n",
        b"6,902,5000002,-;usb 1-1: new device\n",
    ]

    def read(_fd, _size):
        record = records.pop(0) if records else BlockingIOError()
        if isinstance(record, Exception):
            raise record
        return record

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read)
        log = tail.look()
    assert [(event.code, event.pci) for event in log.events] == [(79, "0000:07:00.0")]
    assert tail.look().events == ()
    tail.close()


def test_a_log_that_cannot_be_read_is_a_reason(tmp_path):
    tail = KernelTail(Host(str(tmp_path)))
    assert tail.look() is None
    assert tail.reason.kind == "absent"


# --------------------------------------------------------------------------- the loop and the command


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("15min", 900), ("1.5h", 5400), ("2d", 172800)]
)
def test_times(text, seconds):
    assert loop.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1y", "-1s", "0", "1e9h", "1h30m", "\u0663h", "nan", "1" * 400])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(BadTime):
        loop.duration_s(text)


class Scripted:
    """Looks without a node."""

    def __init__(self, *facts):
        self.facts = list(facts)

    def look(self):
        if not self.facts:
            raise KeyboardInterrupt
        return self.facts.pop(0)


def test_the_loop_tells_each_look_and_ends_with_an_interrupt():
    stream = io.StringIO()
    loop.watch(Scripted(LOOK, LOOK), findings(), loop.Plan(0.001), [loop.to_lines(stream)])
    assert [json.loads(line)["node"] for line in stream.getvalue().splitlines()] == ["node1", "node1"]


def test_a_real_node_is_looked_at_anew():
    looks = Looks(Host(), Ask())
    try:
        facts = looks.look()
    finally:
        looks.close()
    assert facts.rates.interval_s > 0
    assert facts.trends.clock_steps == 0
    assert facts.memory.available_bytes > 0
    assert ("tcp", "OutSegs") in {(c.source, c.name) for c in facts.rates.counters}


@pytest.mark.slow
def test_the_command_writes_lines_and_a_text_file(tmp_path):
    path = tmp_path / "ddp.prom"
    done = doctor("watch", "--interval", "1", "--for", "2s", "--prometheus", str(path))
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [look["schema_version"] for look in looks] == [1, 1]
    assert path.read_text().startswith("# HELP ddp_doctor_")
    assert done.returncode in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--for", "soon"), "not a time such as 90s"),
        (("--interval", "0"), "--interval"),
        (("--select", "no/such"), "no check is called"),
        (("--for", ""), "not a time such as 90s"),
        (("--interval", "nan"), "not a number of seconds"),
    ],
)
def test_wrong_usage_is_a_sentence(arguments, says):
    done = doctor("watch", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/no/such/folder/x.prom", "ddp-doctor: --prometheus /no/such/folder/x.prom: cannot be written: No such file"),
        ("", "ddp-doctor: --prometheus with no name: its name must end in .prom"),
    ],
)
def test_a_place_where_nothing_can_be_written_is_refused_before_the_first_look(path, says):
    done = doctor("watch", "--for", "1s", "--interval", "1", "--prometheus", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(says)
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_cannot_be_written_for_a_while_is_complained_of_once(tmp_path, capsys):
    path = tmp_path / "folder" / "x.prom"
    tell = loop.to_prometheus(str(path), findings())
    tell(LOOK, News())
    tell(LOOK, News())
    path.parent.mkdir()
    tell(LOOK, News())
    tell(LOOK, News())
    assert path.exists()
    first, second = capsys.readouterr().err.splitlines()
    assert "x.prom: cannot be written: No such file" in first
    assert second.endswith("x.prom: is written again")


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_ends_at_once_and_leaves_nothing(signum):
    argv = [*DOCTOR, "watch", "--interval", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as running:
        assert json.loads(running.stdout.readline())["schema_version"] == 1
        running.send_signal(signum)
        assert running.wait(20) in (0, 1)
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it():
    argv = [*DOCTOR, "watch", "--interval", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.readline()
        running.stdout.close()
        assert running.wait(20) in (0, 1)
        assert b"Traceback" not in running.stderr.read()

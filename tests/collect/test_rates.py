"""Counters: every source, garbage, a device that goes, and both readings out of a recording."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, Tuple

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import counters, gpu_counters, rates
from ddp_doctor.facts import Counter, Rates
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder, Recording
from ddp_doctor.unreadable import Unreadable
from judging import failures

CAPTURES = Path(__file__).parents[3] / "shared/captures"
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
NODE = {
    f"{PORT}/counters/symbol_error": "3\n",
    f"{PORT}/counters/link_downed": "255\n",
    f"{PORT}/counters/port_xmit_wait": "N/A (no PMA)\n",
    f"{PORT}/hw_counters/out_of_sequence": "18446744073709551615\n",
    f"{PORT}/hw_counters/lifespan": "10\n",
    "/sys/class/infiniband/mlx5_0/hw_counters/rx_icrc_encapsulated": "1\n",
    "/sys/class/net/eth0/device/vendor": "0x15b3\n",
    "/sys/class/net/eth0/statistics/rx_errors": "5\n",
    "/sys/class/net/eth0/carrier_changes": "2\n",
    "/sys/class/net/veth1/statistics/rx_errors": "9\n",
    "/proc/net/snmp": "Tcp: OutSegs RetransSegs\nTcp: 1000 7\nUdp: InErrors\nUdp: 4\n",
    "/proc/net/netstat": "TcpExt: ListenOverflows TCPBacklogDrop\nTcpExt: 1 0\n",
    "/proc/net/softnet_stat": "00000010 00000001 00000002 0\n00000020 00000003 00000000\n",
    "/proc/net/stat/nf_conntrack": "entries drop early_drop\n00000021 0000000a 00000001\n00000021 00000001 00000000\n",
    "/proc/diskstats": " 259 0 nvme0n1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n 259 1 nvme0n1p1 1 2 3 4 5 6 7 8 9 10 11\n 7 0 loop0 1 2 3 4 5 6 7 8 9 10 11\n",
    "/sys/block/nvme0n1/size": "1\n",
    "/sys/block/loop0/size": "1\n",
    "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "2\n",
    "/sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "3\n",
    "/sys/devices/system/edac/mc/mc0/ce_count": "6\n",
}
ETHTOOL = {"ask ethtool-statistics": {"value": {"eth0": {"rx_discards_phy": 7, "rx3_packets": 1, "rx_prio3_pause": 2}}}}


def recorded(files: Dict[str, str], entries: Dict[str, object] = ETHTOOL) -> Recording:
    return Recording(dict(entries), {"root" + path: text for path, text in files.items()}, complete=True)  # type: ignore[arg-type]


def numbers(found: Rates) -> Dict[Tuple[str, str, str], Tuple[object, object]]:
    return {(c.source, c.subject, c.name): (c.first, c.second) for c in found.counters or ()}


def test_one_reading_of_every_source() -> None:
    found = rates.read(recorded(NODE), Ask())
    assert {key: first for key, (first, _) in numbers(found).items()} == {
        ("rdma", "mlx5_0/1", "symbol_error"): 3,
        ("rdma", "mlx5_0/1", "link_downed"): 255,
        ("rdma", "mlx5_0/1", "out_of_sequence"): 2**64 - 1,
        ("rdma", "mlx5_0", "rx_icrc_encapsulated"): 1,
        ("interface", "eth0", "rx_errors"): 5,
        ("interface", "eth0", "carrier_changes"): 2,
        ("ethtool", "eth0", "rx_discards_phy"): 7,
        ("ethtool", "eth0", "rx_prio3_pause"): 2,
        ("tcp", "", "OutSegs"): 1000,
        ("tcp", "", "RetransSegs"): 7,
        ("tcp", "", "UdpInErrors"): 4,
        ("tcp", "", "ListenOverflows"): 1,
        ("tcp", "", "TCPBacklogDrop"): 0,
        ("softnet", "", "processed"): 0x30,
        ("softnet", "", "dropped"): 4,
        ("softnet", "", "time_squeeze"): 2,
        ("conntrack", "", "drop"): 11,
        ("conntrack", "", "early_drop"): 1,
        **{("disk", "nvme0n1", name): place for place, name in enumerate(counters.DISK_FIELDS, 1)},
        ("cpu", "", "core_throttle_count"): 5,
        ("edac", "mc0", "ce_count"): 6,
    }
    assert (found.interval_s, found.unread.keys()) == (None, {"interval_s"})
    assert found.unread["interval_s"].kind == "not-asked"


def test_widths_are_told() -> None:
    found = {c.name: (c.bits, c.sticks) for c in rates.read(recorded(NODE), Ask()).counters or ()}
    told = {
        name: found[name] for name in ("link_downed", "symbol_error", "out_of_sequence", "dropped", "io_ms", "reads")
    }
    assert told == {
        "link_downed": (8, True),
        "symbol_error": (16, True),
        "out_of_sequence": (None, False),
        "dropped": (32, False),
        "io_ms": (32, False),
        "reads": (None, False),
    }


@pytest.mark.parametrize(
    ("path", "text", "whose"),
    [
        (f"{PORT}/counters/symbol_error", "garbage\n", "rdma mlx5_0/1"),
        (f"{PORT}/counters/symbol_error", "-3\n", "rdma mlx5_0/1"),
        (f"{PORT}/counters/symbol_error", "", "rdma mlx5_0/1"),
        ("/sys/class/net/eth0/statistics/rx_errors", "9" * 30, "interface eth0"),
        ("/proc/net/snmp", "\x00\x01", None),
        ("/proc/net/softnet_stat", "00015c73 what\n", "softnet"),
        ("/proc/net/softnet_stat", "", "softnet"),
        ("/proc/net/stat/nf_conntrack", "entries drop\nzz zz\n", "conntrack"),
        ("/proc/net/stat/nf_conntrack", "", "conntrack"),
        ("/proc/diskstats", "garbage\n\n8 0\n", None),
    ],
)
def test_garbage_in_one_place_hides_no_other(path: str, text: str, whose: str) -> None:
    whole = numbers(rates.read(recorded(NODE), Ask()))
    found = rates.read(recorded({**NODE, path: text}), Ask())
    assert set(found.unread) == {"interval_s", *([whose] if whose else [])}
    kept = {key for key in whole if key[0] == "edac"} | {("rdma", "mlx5_0/1", "link_downed")}
    assert kept <= set(numbers(found))
    assert not whose or found.unread[whose].kind == "unreadable"


def test_a_source_that_fails_unforeseen_hides_no_other() -> None:
    def broken(_host: Host) -> counters.Found:
        raise RuntimeError("out of this world")

    found = counters.take(recorded(NODE), {"rdma": broken, "softnet": counters.softnet})
    assert (found.unread["rdma"].kind, len(found.numbers)) == ("crashed", 3)


SECOND = {"interval_s": 5.0, "numbers": [["rdma", "mlx5_0/1", "symbol_error", 9]], "unread": {}}


def test_the_second_reading_out_of_a_recording_costs_no_wait() -> None:
    host = recorded(NODE, {**ETHTOOL, "ask counters-2": {"value": SECOND}, "ask nvml-counters": {"value": {}}})
    found = rates.read(host, Ask(sample_s=3600))
    assert (found.interval_s, numbers(found)["rdma", "mlx5_0/1", "symbol_error"]) == (5.0, (3, 9))
    assert found.unread["ethtool eth0"].text == "ethtool eth0: there at the first reading, gone at the second"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        [],
        {},
        {**SECOND, "interval_s": "soon"},
        {**SECOND, "interval_s": float("nan")},
        {**SECOND, "numbers": [[1]]},
        {**SECOND, "unread": 3},
    ],
)
def test_a_damaged_second_reading_leaves_the_first(answer: object) -> None:
    host = recorded(NODE, {**ETHTOOL, "ask counters-2": {"value": answer}, "ask nvml-counters": {"value": {}}})
    found = rates.read(host, Ask(sample_s=5))
    assert (found.interval_s, found.unread["interval_s"].kind) == (None, "unreadable")
    assert numbers(found)["rdma", "mlx5_0/1", "symbol_error"] == (3, None)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in NODE.items():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_text(text)
    shutil.rmtree(tmp_path / "sys/class/net")
    return tmp_path


def between(monkeypatch: pytest.MonkeyPatch, happens: object) -> None:
    """Let something happen where the second reading would wait."""
    monkeypatch.setattr(rates, "sleep", lambda _s: happens())  # type: ignore[operator]


def test_two_readings_of_a_tree_that_changes(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    between(monkeypatch, lambda: (tree / PORT[1:] / "counters/symbol_error").write_text("13\n"))
    found = rates.read(Host(str(tree)), Ask(sample_s=5))
    assert numbers(found)["rdma", "mlx5_0/1", "symbol_error"] == (3, 13)
    assert found.interval_s
    assert found.interval_s > 0


def test_a_device_that_goes_between_the_readings(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    between(monkeypatch, lambda: shutil.rmtree(tree / "sys/class/infiniband/mlx5_0"))
    found = rates.read(Host(str(tree)), Ask(sample_s=5))
    assert numbers(found)["rdma", "mlx5_0/1", "symbol_error"] == (3, None)
    assert found.unread["rdma mlx5_0/1"].kind == "absent"
    assert numbers(found)["edac", "mc0", "ce_count"] == (6, 6)


def test_a_recording_holds_both_readings(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    between(monkeypatch, lambda: (tree / PORT[1:] / "counters/symbol_error").write_text("13\n"))
    host = Recorder(str(tree))
    live = rates.read(host, Ask(sample_s=5))
    assert rates.read(Recording(json.loads(json.dumps(host.entries)), {}), Ask(sample_s=5)) == live


@pytest.mark.parametrize(
    ("profile", "sample_s", "reads"),
    [("quick", 0, False), ("quick", 5, True), ("standard", 0, True), ("deep", 5, True)],
)
def test_a_quick_look_reads_no_counters_unless_asked(profile: str, sample_s: float, reads: bool) -> None:
    assert (rates.wanted(Ask(profile=profile, sample_s=sample_s)) is None) is reads


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("rx_discards_phy", True),
        ("rx_prio3_pause", True),
        ("rx_prio0_bytes", False),
        ("rx_out_of_buffer", True),
        ("rx_corrected_bits_phy", True),
        ("rx_err_lane_0_phy", True),
        ("rx12_cqe_compress_blks", False),
        ("rx_queue_0_drops", False),
        ("queue_3_tx_missed_tx", False),
        ("bw_in_allowance_exceeded", True),
        ("tx_pause_storm_error_events", True),
        ("rx_csum_none", False),
        ("rx_bytes", False),
    ],
)
def test_statistics_of_single_queues_are_left_out(name: str, kept: bool) -> None:
    assert counters.is_kept(name) is kept


@pytest.mark.lab
def test_a_real_drivers_statistics_by_ioctl() -> None:
    code = (
        "import json, subprocess; from ddp_doctor.collect.ethtool import statistics; "
        "subprocess.run('ip link add v0 type veth peer name v1'.split(), check=True); "
        "print(json.dumps(statistics(['v0', 'lo', 'nosuch'])))"
    )
    argv = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code]
    found = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert found["v0"]["peer_ifindex"] > 0
    assert found["v0"]["rx_queue_0_drops"] == 0
    assert (found["lo"], found["nosuch"]) == ({}, "No such device")


def test_counters_of_gpus_and_their_links(fake_nvml) -> None:  # type: ignore[no-untyped-def]
    fake_nvml.install(fake_nvml.healthy(2))
    found, unread = gpu_counters.gpus(Host())
    assert {subject for source, subject, _ in found if source == "gpu"} == {"GPU 0", "GPU 1"}
    assert (found["gpu", "GPU 1", "ecc_uncorrected_volatile"], unread) == (0, {})
    assert found["nvlink", "GPU 0 link 3", "replay"] == 0


def test_without_a_driver_there_are_no_gpus_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_counters.nvml, "library_missing", lambda: "NVML Shared Library Not Found")
    assert gpu_counters.gpus(Host()) == ({}, {})


# --------------------------------------------------------------------------- captures


def captured(place: str, below: str) -> Dict[str, str]:
    """Files of a capture as a node has them."""
    folder = CAPTURES / place
    if not folder.is_dir():
        pytest.skip("the captures are not on this machine")
    paths = (Path(at) / name for at, _, names in os.walk(folder, followlinks=True) for name in names)
    return {f"{below}/{path.relative_to(folder)}": path.read_text("utf-8", "backslashreplace") for path in paths}


@pytest.mark.parametrize(
    ("place", "below"),
    [
        ("gpud-h100", "/sys/class/infiniband"),
        ("procfs/sys", "/sys"),
        ("node_exporter/sys", "/sys"),
        ("rdma_exporter/basic/class", "/sys/class"),
        ("rdma_exporter/efa/class", "/sys/class"),
        ("rdma_exporter/vf/class", "/sys/class"),
    ],
)
def test_captured_ports_are_read_without_an_error(place: str, below: str) -> None:
    found, unread = counters.rdma(recorded(captured(f"1-infiniband-sysfs/{place}", below)))
    assert found
    assert all(reason.kind == "unreadable" and "no number" in reason.text for reason in unread.values())


@pytest.mark.parametrize(
    ("place", "source", "least"),
    [
        ("procfs-fixtures", counters.softnet, 3),
        ("procfs-fixtures", counters.disks, 11),
        ("node_exporter", counters.softnet, 3),
        ("node_exporter", counters.tcp, 10),
        ("node_exporter", counters.conntrack, 3),
    ],
)
def test_captured_tables_of_proc(place: str, source: counters.Source, least: int) -> None:
    files = {**captured(f"5-host/{place}/proc", "/proc"), "/sys/block/sda/size": "1\n"}
    found, unread = source(recorded(files))
    assert (len(found) >= least, unread) == (True, {})


def test_a_broken_softnet_table_has_a_reason() -> None:
    text = "00358fe3 00006283\n"
    with pytest.raises(Unreadable, match="not three hexadecimal"):
        counters.parse_softnet(text)


@pytest.mark.parametrize(
    "name",
    ["node_exporter/ethtool/eth0/statistics", "node_exporter/ethtool/bond0/statistics", "ethtool/eks.ethtool-ens5.txt"],
)
def test_captured_statistics_keep_what_tells_of_trouble(name: str) -> None:
    path = CAPTURES / "5-host" / name
    if not path.is_file():
        pytest.skip("the captures are not on this machine")
    lines = (line.rpartition(":") for line in path.read_text().splitlines())
    statistics = {left.strip(): int(right) for left, _, right in lines if right.strip().isdigit()}
    host = recorded(NODE, {"ask ethtool-statistics": {"value": {"eth0": statistics}}})
    found, unread = counters.driver_statistics(host)
    assert (0 < len(found) < 80 or not statistics, unread) == (True, {})


def test_healthy_h100_ports_give_no_finding() -> None:
    found, _ = counters.rdma(recorded(captured("1-infiniband-sysfs/gpud-h100", "/sys/class/infiniband")))
    twice = [Counter(*key, value, value, *counters.width(key)) for key, value in found.items()]
    assert twice
    assert failures("rates", rates=Rates(5.0, tuple(twice))) == []

"""Checks of counters: differences and rates, never totals."""

from typing import List, Optional, Tuple

import pytest
from ddp_doctor import tables
from ddp_doctor.facts import (
    Address,
    Counter,
    Env,
    Interface,
    Network,
    Os,
    Rates,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Variable,
)
from ddp_doctor.thresholds import bound
from judging import failures, judged, outcome, own_checks, remedy_text

CHECKS = [id for id in own_checks().checks if id.startswith("rates/")]
GB = 10**9


def rose(source: str, name: str, by: int, subject: str = "", start: int = 1000, interval_s: float = 5.0) -> Rates:
    return Rates(interval_s, (Counter(source, subject, name, start, start + by),))


FAULTS: List[Tuple[str, Rates]] = [
    ("rdma-link-errors", rose("rdma", "symbol_error", 500, "mlx5_0/1")),
    ("rdma-link-errors", rose("rdma", "port_rcv_errors", 500, "mlx5_0/1")),
    ("rdma-link-errors", rose("rdma", "local_link_integrity_errors", 1, "mlx5_0/1", 0)),
    ("rdma-link-errors", rose("rdma", "link_error_recovery", 6, "mlx5_0/1")),
    ("rdma-link-lost", rose("rdma", "link_downed", 1, "mlx5_0/1", 0)),
    ("rdma-packets-discarded", rose("rdma", "port_xmit_discards", 501, "mlx5_0/1")),
    ("rdma-packets-repeated", rose("rdma", "out_of_sequence", 1000, "mlx5_0/1")),
    ("rdma-packets-repeated", rose("rdma", "local_ack_timeout_err", 6, "mlx5_0/1")),
    ("rdma-packets-repeated", rose("rdma", "out_of_seq_request", 1000, "rxe0/1")),
    ("rdma-packets-repeated", rose("rdma", "unresponsive_remote_events", 1, "rdmap0s31/1")),
    ("rdma-requests-failing", rose("rdma", "retry_exceeded_err", 1, "rxe0/1")),
    ("rdma-requests-failing", rose("rdma", "req_cqe_error", 1, "mlx5_0/1")),
    ("interface-errors", rose("ethtool", "rx_crc_errors_phy", 6, "eth0")),
    ("interface-errors", rose("interface", "rx_errors", 6, "eth0")),
    ("interface-drops", rose("ethtool", "rx_prio3_discards", 51, "eth0")),
    ("interface-drops", rose("interface", "rx_missed_errors", 51, "eth0")),
    ("interface-link-lost", rose("interface", "carrier_changes", 2, "eth0")),
    ("cloud-allowance-exceeded", rose("ethtool", "bw_in_allowance_exceeded", 51, "ens5")),
    ("kernel-drops-packets", rose("softnet", "dropped", 1)),
    ("kernel-drops-packets", rose("tcp", "ListenOverflows", 1)),
    ("gpu-pcie-replays", rose("gpu", "pcie_replay", 9, "GPU 3")),
    ("gpu-uncorrected-errors", rose("gpu", "ecc_uncorrected_volatile", 1, "GPU 3")),
    ("gpu-clocks-lowered", rose("gpu", "lowered_for_heat_ns", 1 * GB, "GPU 3")),
    ("nvlink-errors", rose("nvlink", "replay", 1, "GPU 0 link 3")),
    ("nvlink-errors", rose("nvlink", "crc", 501, "GPU 0 link 3")),
    ("cpu-throttled", rose("cpu", "core_throttle_count", 6)),
    ("memory-errors-uncorrected", rose("edac", "ue_count", 1, "mc0")),
    ("memory-errors-corrected", rose("edac", "ce_count", 6, "mc0")),
]

QUIET: List[Tuple[str, Rates]] = [
    ("rdma-link-errors", rose("rdma", "symbol_error", 20, "mlx5_0/1")),
    ("rdma-link-errors", rose("rdma", "symbol_error", 0, "mlx5_0/1", 60000)),  # a total since boot is no fault
    (
        "rdma-link-errors",
        rose("rdma", "link_error_recovery", 1, "mlx5_0/1", interval_s=1.0),
    ),  # one is not sixty a minute
    ("rdma-link-lost", rose("rdma", "link_downed", 0, "mlx5_0/1", 12)),
    ("rdma-packets-repeated", rose("rdma", "packet_seq_err", 20, "mlx5_0/1")),
    ("interface-errors", rose("ethtool", "rx_crc_errors_phy", 0, "eth0", 7777)),
    ("interface-drops", rose("interface", "rx_missed_errors", 3, "eth0")),
    ("gpu-pcie-replays", rose("gpu", "pcie_replay", 1, "GPU 3", interval_s=1.0)),
    ("gpu-clocks-lowered", rose("gpu", "lowered_for_heat_ns", GB // 10, "GPU 3")),
    ("nvlink-errors", rose("nvlink", "crc", 5, "GPU 0 link 3")),
    ("memory-errors-corrected", rose("edac", "ce_count", 1, "mc0")),
]

NO_FAULTS = [
    ("rdma", "np_cnp_sent"),
    ("rdma", "rp_cnp_handled"),
    ("rdma", "roce_adp_retrans"),
    ("ethtool", "rx_prio3_pause"),
    ("ethtool", "tx_prio3_pause"),
    ("ethtool", "rx_corrected_bits_phy"),
    ("interface", "rx_dropped"),
    ("gpu", "lowered_for_power_ns"),
    ("gpu", "ecc_corrected_volatile"),
    ("softnet", "time_squeeze"),
]


@pytest.mark.parametrize(("check", "rates"), FAULTS)
def test_what_rises_too_fast_is_a_fault(check: str, rates: Rates) -> None:
    (verdict,) = judged(f"rates/{check}", rates=rates)
    assert verdict.outcome.value == "failed"
    assert verdict.fixes
    name = rates.counters[0].name if rates.counters else ""
    assert name in verdict.measured or "lowered" in name


@pytest.mark.parametrize(("check", "rates"), QUIET)
def test_what_rises_slowly_or_not_is_none(check: str, rates: Rates) -> None:
    assert outcome(f"rates/{check}", rates=rates) == "passed"


@pytest.mark.parametrize(("source", "name"), NO_FAULTS)
def test_congestion_control_at_work_and_mended_errors_are_no_fault(source: str, name: str) -> None:
    assert failures("rates", rates=Rates(5.0, (Counter(source, "x", name, 0, 10**9),))) == []


@pytest.mark.parametrize("check", [id for id in CHECKS if id != "rates/rdma-link-downed-often"])
def test_one_reading_is_a_skip_that_says_how_to_ask(check: str) -> None:
    reason = Reason("not-asked", "one reading has no rate: --sample 5 takes two readings, 5 s apart")
    (verdict,) = judged(
        check, rates=Rates(None, (Counter("rdma", "mlx5_0/1", "symbol_error", 9),), {"interval_s": reason})
    )
    assert verdict.outcome.value == "skipped"
    assert verdict.reason == reason


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("inf")])
def test_two_readings_at_one_moment_tell_no_rate(interval_s: float) -> None:
    rates = rose("rdma", "symbol_error", 500, "mlx5_0/1", interval_s=interval_s)
    assert outcome("rates/rdma-link-errors", rates=rates) == "skipped"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [(15, 15, "maximum of its width"), (9, 2, "reset")],
)
def test_saturated_and_reset_counters_are_unknown(first: int, second: int, words: str) -> None:
    counter = Counter("rdma", "mlx5_0/1", "excessive_buffer_overrun_errors", first, second, 4, True)
    (verdict,) = judged("rates/rdma-link-errors", rates=Rates(5.0, (counter,)))
    assert verdict.outcome.value == "skipped"
    assert verdict.reason
    assert words in verdict.reason.text


def test_a_counter_that_reached_its_maximum_meanwhile_rose_at_least_so_far() -> None:
    counter = Counter("rdma", "mlx5_0/1", "link_downed", 250, 255, 8, True)
    (verdict,) = judged("rates/rdma-link-lost", rates=Rates(5.0, (counter,)))
    assert verdict.outcome.value == "failed"
    assert "+5 or more" in verdict.measured


def test_a_device_that_has_gone_is_unknown() -> None:
    gone = {"rdma mlx5_0/1": Reason("absent", "rdma mlx5_0/1: there at the first reading, gone at the second")}
    rates = Rates(5.0, (Counter("rdma", "mlx5_0/1", "link_downed", 0, None, 8, True),), gone)
    (verdict,) = judged("rates/rdma-link-lost", rates=rates)
    assert (verdict.outcome.value, verdict.subject) == ("skipped", "mlx5_0 port 1")


def test_requests_that_were_flushed_at_a_programs_end_are_taken_off() -> None:
    def pair(flushed: int) -> Rates:
        names = (("req_cqe_error", 100), ("req_cqe_flush_error", flushed))
        return Rates(5.0, tuple(Counter("rdma", "mlx5_0/1", name, 7, 7 + by) for name, by in names))

    assert [outcome("rates/rdma-requests-failing", rates=pair(n)) for n in (100, 90)] == ["passed", "failed"]


PORTS = Rdma(
    devices=(
        RdmaDevice("mlx5_0", ports=(RdmaPort(1, state="ACTIVE", link_layer="InfiniBand"),)),
        RdmaDevice("mlx5_1", ports=(RdmaPort(1, state="DOWN", link_layer="InfiniBand"),)),
        RdmaDevice("mlx5_2", ports=(RdmaPort(1, state="ACTIVE", link_layer="InfiniBand"),)),
    )
)


def test_ports_that_nccl_does_not_use_are_left_out() -> None:
    rates = Rates(5.0, tuple(Counter("rdma", f"mlx5_{i}/1", "link_downed", 0, 1, 8, True) for i in range(3)))
    env = Env(variables=(Variable("NCCL_IB_HCA", "^mlx5_2"),))
    found = judged("rates/rdma-link-lost", rates=rates, rdma=PORTS, env=env)
    assert [verdict.subject for verdict in found] == ["mlx5_0 port 1"]


def test_interfaces_without_a_use_do_not_lose_their_link() -> None:
    address = Address("10.0.0.1", 24, "ipv4", "global")
    network = Network(
        interfaces=(Interface("eth0", up=True, addresses=(address,)), Interface("eth1", up=True, addresses=()))
    )
    rates = Rates(5.0, tuple(Counter("interface", name, "carrier_changes", 1, 3) for name in ("eth0", "eth1")))
    found = judged("rates/interface-link-lost", rates=rates, network=network)
    assert [verdict.subject for verdict in found] == ["eth0"]


@pytest.mark.parametrize(
    ("sent", "again", "expected"), [(100_000, 5_000, "failed"), (100_000, 100, "passed"), (100, 50, "skipped")]
)
def test_retransmissions_are_a_share_of_enough_segments(sent: int, again: int, expected: str) -> None:
    rates = Rates(5.0, (Counter("tcp", "", "OutSegs", 9, 9 + sent), Counter("tcp", "", "RetransSegs", 9, 9 + again)))
    assert outcome("rates/tcp-retransmissions", rates=rates) == expected


@pytest.mark.parametrize(
    ("requests", "waited_ms", "expected"), [(100, 20_000, "failed"), (100, 500, "passed"), (10, 20_000, "skipped")]
)
def test_a_disk_is_judged_when_it_has_enough_to_do(requests: int, waited_ms: int, expected: str) -> None:
    names = {"reads": requests, "writes": 0, "read_ms": waited_ms, "write_ms": 0, "weighted_io_ms": waited_ms}
    rates = Rates(5.0, tuple(Counter("disk", "sda", name, 5, 5 + by) for name, by in names.items()))
    assert outcome("rates/disk-slow", rates=rates) == expected


@pytest.mark.parametrize(
    ("waited", "sent", "expected"), [(9 * GB, 1 * GB, "failed"), (1 * GB, 9 * GB, "passed"), (1000, 10, "skipped")]
)
def test_a_port_waits_only_when_it_sends(waited: int, sent: int, expected: str) -> None:
    pairs = (("port_xmit_wait", waited), ("port_xmit_data", sent))
    rates = Rates(5.0, tuple(Counter("rdma", "mlx5_0/1", name, 0, by) for name, by in pairs))
    assert outcome("rates/rdma-port-waits", rates=rates) == expected


@pytest.mark.parametrize(
    ("total", "days", "expected"), [(255, 2, "failed"), (2, 1, "passed"), (12, 100, "passed"), (5, 0.01, "passed")]
)
def test_links_that_went_down_are_held_against_the_uptime(total: int, days: float, expected: str) -> None:
    rates = Rates(None, (Counter("rdma", "mlx5_0/1", "link_downed", total, None, 8, True),))
    assert outcome("rates/rdma-link-downed-often", rates=rates, os=Os(uptime_s=days * 86400)) == expected


def test_hostile_names_reach_no_command() -> None:
    for check, rates in FAULTS:
        hostile = Rates(
            5.0, tuple(Counter(c.source, "x; rm -rf /", c.name, c.first, c.second) for c in rates.counters or ())
        )
        (verdict,) = judged(f"rates/{check}", rates=hostile)
        commands = [step.text for remedy in verdict.fixes for step in remedy.steps if step.kind == "command"]
        assert not any("rm -rf" in text for text in commands)


@pytest.mark.parametrize(
    ("ring", "expected"), [({"rx": 1024, "rx_max": 8192}, True), ({"rx": 8192, "rx_max": 8192}, False), (None, False)]
)
def test_a_longer_ring_is_proposed_where_there_is_one(ring: Optional[dict], expected: bool) -> None:  # type: ignore[type-arg]
    network = Network(interfaces=(Interface("eth0", running=True, ring=ring),))
    (verdict,) = judged(
        "rates/interface-drops", rates=rose("interface", "rx_missed_errors", 99, "eth0"), network=network
    )
    assert ("ethtool -G eth0 rx 8192" in remedy_text(verdict)) is expected


def test_every_row_of_the_table_names_a_check_and_a_threshold_that_exist() -> None:
    for row in tables.counters():
        assert bool(row.check) is bool(row.threshold), row.name
        assert not row.check or (f"rates/{row.check}" in CHECKS and bound(row.threshold).unit), row.name

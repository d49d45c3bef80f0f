"""Flow control by data centre bridging messages: the kernel's real answer for an interface without it, and written ones."""

import struct

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import flow, rdma
from ddp_doctor.recording import Recording


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def pfc(enabled):
    return attribute(2, struct.pack("=BBBxH2x16Q", 8, enabled, 0, 0, *[0] * 16))


def applications(*selectors):
    return attribute(3, b"".join(attribute(1, struct.pack("=BBH", s, 3, 26)) for s in selectors))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (pfc(0b1000) + applications(5), {"pfc": "3", "trust": "dscp"}),
        (pfc(0b11000) + applications(1, 1), {"pfc": "3,4", "trust": "pcp"}),
        (pfc(0) + applications(), {"pfc": "", "trust": "pcp"}),
        (pfc(0), {"pfc": ""}),
        (b"", {}),
        (attribute(2, b"\x08"), {}),
        (attribute(3, b"\x01\x00\x01\x00" * 3), {"trust": "pcp"}),
        (b"\xff" * 7, {}),
    ],
)
def test_ieee_settings(data, found):
    assert flow.parse_ieee(data) == found


def test_the_kernel_says_that_the_loopback_interface_has_none():
    assert flow.ask(["lo"])["lo"]["error"] == "its driver has no data centre bridging"
    assert "No such device" in flow.ask(["nosuch0"])["nosuch0"]["error"]


PORT = "/sys/class/infiniband/mlx5_0/ports/1"
ECN = "/sys/class/net/eth1/ecn/roce_np/enable"


@pytest.mark.parametrize(
    ("answer", "ecn", "found", "why"),
    [
        ({"eth1": {"pfc": "3", "trust": "dscp"}}, {}, {"pfc": "3", "trust": "dscp"}, ""),
        (
            {"eth1": {"pfc": "", "error": "gone"}},
            {f"{ECN}/3": "1\n", f"{ECN}/4": "0\n"},
            {"pfc": "", "ecn_np": "3"},
            "",
        ),
        ({"eth1": {"error": "Operation not permitted"}}, {}, None, "eth1: Operation not permitted"),
        ({"eth1": {"pfc": 3}}, {}, None, "flow: no answer"),
        ([], {}, None, "flow: no answer"),
    ],
)
def test_a_ports_flow(answer, ecn, found, why):
    tree = {f"{PORT}/link_layer": "Ethernet\n", f"{PORT}/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001\n",
            f"{PORT}/gid_attrs/ndevs/0": "eth1\n", **ecn}  # fmt: skip
    entries = {"env ": {"value": {}}, "ask flow": {"value": answer}}
    files = {f"root{path}": text for path, text in tree.items()}
    (device,) = rdma.read(Recording(entries, files, complete=True), Ask()).devices
    (port,) = device.ports
    assert port.flow == found
    assert (port.unread["flow"].text if "flow" in port.unread else "") == why

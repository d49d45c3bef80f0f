"""Rings, error correction and modules: layouts, the kernel's words, and what becomes of them in the facts."""

import errno
import struct

import pytest
from ddp_doctor.collect import interfaces, link_settings
from ddp_doctor.recording import Recording

SFF_8472, SFF_8636 = 2, 3
CONNECTX = {"type": "1\n", "flags": "0x1003\n", "ifindex": "2\n", "device/uevent": "DRIVER=mlx5_core\n"}


def put(memory, at, data):
    return memory[:at] + data + memory[at + len(data) :]


def degrees(value):
    return struct.pack(">h", int(value * 256))


def qsfp28():
    memory = put(bytes(640), 0, b"\x11")
    memory = put(put(memory, 148, b"Mellanox        "), 168, b"MCP1600-C003    ")
    return put(put(put(memory, 22, degrees(41.5)), 512, degrees(80)), 516, degrees(75))


def test_a_qsfp28():
    assert link_settings.parse_module(SFF_8636, qsfp28()) == {
        "kind": "QSFP28", "vendor": "Mellanox", "part": "MCP1600-C003",
        "temperature_c": 41.5, "temperature_high_alarm_c": 80.0, "temperature_high_warning_c": 75.0,
    }  # fmt: skip


def test_an_sfp_with_diagnostics_and_one_without():
    memory = put(put(bytes(512), 0, b"\x03"), 20, b"FINISAR CORP.   ")
    assert link_settings.parse_module(SFF_8472, memory) == {"kind": "SFP", "vendor": "FINISAR CORP.", "part": ""}
    memory = put(put(put(memory, 92, b"\x68"), 256 + 96, degrees(-3)), 256, degrees(90))
    assert link_settings.parse_module(SFF_8472, memory)["temperature_c"] == -3.0


def test_a_module_with_cmis():
    memory = put(put(put(bytes(256), 0, b"\x19"), 14, degrees(55)), 129, b"NVIDIA          ")
    told = link_settings.parse_module(SFF_8636, memory)
    assert (told["kind"], told["vendor"], told["temperature_c"]) == ("OSFP", "NVIDIA", 55.0)


def test_a_cable_without_a_sensor_has_no_temperature():
    assert "temperature_c" not in link_settings.parse_module(SFF_8636, put(qsfp28(), 22, b"\0\0"))


@pytest.mark.parametrize("memory", [b"", b"\x19", b"\x11" * 20, b"\xff"])
def test_a_memory_that_is_cut_is_an_index_error_or_tells_less(memory):
    try:
        assert link_settings.parse_module(SFF_8636, memory)["kind"]
    except IndexError as error:
        assert str(error)  # noqa: PT017


def read(answer):
    files = {f"root/sys/class/net/eth0/{name}": text for name, text in CONNECTX.items()}
    entries = {"ask link-settings": answer}
    return interfaces.read_all(Recording(entries, files, complete=True), {})[0]


def test_what_the_kernel_says_becomes_facts():
    card = read({"value": {"eth0": {"ring": {"rx": 1024, "rx_max": 8192, "tx": 1, "tx_max": 2}, "fec": ["rs"],
                                    "module": {"kind": "OSFP", "odd": 1}}}})  # fmt: skip
    assert (card.ring["rx_max"], card.fec, card.module.kind) == (8192, ("rs",), "OSFP")
    assert card.module.unread["temperature_c"].kind == "absent"


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EPERM, "no-rights"), (errno.EOPNOTSUPP, "absent"), (errno.ENODEV, "absent")]
)
def test_its_refusals_are_reasons(number, kind):
    error = {"error": "words", "errno": number}
    card = read({"value": {"eth0": {"ring": error, "fec": error, "module": error}}})
    assert (card.ring, card.fec, card.module) == (None, None, None)
    assert {card.unread[name].kind for name in ("ring", "fec", "module")} == {kind}


def test_a_quick_look_asks_no_module_and_a_late_answer_is_a_reason():
    assert read({"value": {"eth0": {"ring": {}, "fec": []}}}).unread["module"].kind == "not-asked"
    assert read({"reason": {"kind": "timed-out", "text": "late"}}).unread["ring"].kind == "timed-out"

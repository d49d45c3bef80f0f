"""Topology: GPUs, NICs and bridges out of trees of files as sysfs lays them out, with real links."""

import os
from pathlib import Path
from typing import Dict, Iterable, Optional, Tuple

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import topology
from ddp_doctor.collect.iommu import by_words, iommu_words
from ddp_doctor.collect.pci_config import as_hex, parse_config
from ddp_doctor.facts import PciDevice, Topology
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder, Recording
from ddp_doctor.unreadable import Unreadable
from hypothesis import given
from hypothesis import strategies as st

GPU, NIC, BRIDGE, SWITCH = "0x030200", "0x020700", "0x060400", "0x068000"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"


def config(control: int = 0x2810, acs: Optional[int] = None, size: int = 4096) -> bytes:
    """A configuration space: PCI Express capability at 0x70 behind a power management one, ACS at 0x160 behind AER."""
    space = bytearray(size)
    space[0:8] = b"\xde\x10\x30\x23\x07\x04\x10\x00"
    space[0x34] = 0x50
    if size > 64:
        space[0x50:0x52] = b"\x01\x70"
        space[0x70:0x72] = b"\x10\x00"
        space[0x78:0x7A] = control.to_bytes(2, "little")
    if size > 256:
        space[0x100:0x104] = (0x160 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
        if acs is not None:
            space[0x160:0x168] = (0x000D | 1 << 16).to_bytes(4, "little") + b"\x5f\x00" + acs.to_bytes(2, "little")
    return bytes(space)


def place(
    root: Path, path: str, kind: str, ids: str = "10de:2330", space: Optional[bytes] = None, **files: str
) -> Path:
    """A function below /sys/devices, with the link that the bus has to it."""
    folder = root / "sys/devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    vendor, device = ids.split(":")
    link = {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_width": "16"}  # fmt: skip
    for name, text in {
        "class": kind,
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "numa_node": "0",
        **link,
        **files,
    }.items():
        (folder / name).write_text(f"{text}\n")
    if space is not None:
        (folder / "config").write_bytes(space)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    os.symlink(os.path.relpath(folder, bus), bus / folder.name)
    return folder


def linked(folder: Path, name: str, target: str) -> None:
    os.symlink(target, folder / name)


def machine(root: Path) -> None:
    """A GPU and a NIC on one switch, the ports of the switch redirecting; an NVSwitch, a GPU of a guest, a vGPU."""
    switch = "pci0000:15/0000:15:01.0/0000:16:00.0"
    place(root, "pci0000:15/0000:15:01.0", BRIDGE, "8086:352a", config(acs=0x0000))
    place(root, switch, BRIDGE, "1000:c030", config(acs=None))
    place(root, f"{switch}/0000:17:00.0", BRIDGE, "1000:c030", config(acs=0x001D))
    place(root, f"{switch}/0000:17:01.0", BRIDGE, "1000:c030", config(acs=0x0011))
    gpu = place(root, f"{switch}/0000:17:00.0/0000:18:00.0", GPU, current_link_speed="2.5 GT/s PCIe")
    linked(gpu, "iommu_group", "../../../../kernel/iommu_groups/7")
    nic = place(root, f"{switch}/0000:17:01.0/0000:19:00.0", NIC, "15b3:1021", config(0x5810))
    (nic / "infiniband/mlx5_0").mkdir(parents=True)
    (nic / "net/ib0").mkdir(parents=True)
    linked(nic, "driver", "../../../../../bus/pci/drivers/mlx5_core")
    place(root, "pci0000:00/0000:00:1f.0", SWITCH, "10de:22a3")
    place(root, "pci0000:00/0000:00:1f.1", "0x040300", "10de:228b")
    lent = place(root, "pci0000:00/0000:00:02.0", GPU)
    linked(lent, "driver", "../../../bus/pci/drivers/vfio-pci")
    virtual = place(root, "pci0000:00/0000:00:03.0", GPU)
    linked(virtual, "physfn", "../0000:00:02.0")


def read(root: Path) -> Topology:
    return topology.read(Host(str(root)), Ask())


def named(found: Topology) -> Dict[str, PciDevice]:
    return {device.pci[5:]: device for device in found.devices or ()}


def test_machine(tmp_path: Path) -> None:
    machine(tmp_path)
    found = read(tmp_path)
    devices = named(found)
    assert {pci: device.kind for pci, device in devices.items()} == {
        "00:1f.0": "nvswitch", "18:00.0": "gpu", "19:00.0": "nic", "15:01.0": "bridge", "16:00.0": "bridge",
        "17:00.0": "bridge", "17:01.0": "bridge",
    }  # fmt: skip
    gpu, nic = devices["18:00.0"], devices["19:00.0"]
    assert (gpu.host_bridge, gpu.parents) == ("pci0000:15", ("0000:15:01.0", "0000:16:00.0", "0000:17:00.0"))
    assert (gpu.speed_gt_s, gpu.speed_max_gt_s, gpu.width, gpu.iommu_group) == (2.5, 32.0, 16, "7")
    assert (nic.vendor_device, nic.driver, nic.rdma, nic.interfaces) == (
        "15b3:1021",
        "mlx5_core",
        ("mlx5_0",),
        ("ib0",),
    )
    assert (nic.max_read_request_bytes, nic.max_payload_bytes, nic.relaxed_ordering) == (4096, 128, True)
    assert {pci: device.acs_redirect for pci, device in devices.items() if device.kind == "bridge"} == {
        "15:01.0": False, "16:00.0": None, "17:00.0": True, "17:01.0": False
    }  # fmt: skip
    assert devices["16:00.0"].unread["acs_redirect"].kind == "not-applicable"
    assert gpu.unread["max_read_request_bytes"].kind == "not-asked"
    assert found.host_bridges == {"pci0000:00": 0, "pci0000:15": 0}


def test_what_a_recording_holds_of_the_configuration_space_replays_alike(tmp_path: Path) -> None:
    machine(tmp_path)
    recorder = Recorder(str(tmp_path))
    live = topology.read(recorder, Ask())
    assert topology.read(Recording(recorder.entries, {}), Ask()) == live


@pytest.mark.parametrize(
    ("space", "kind", "acs_kind"),
    [
        (config(size=64), "no-rights", "no-rights"),  # what the kernel gives those who are not root
        (b"\xff" * 4096, "unreadable", "unreadable"),  # fell off the bus
        (b"", "unreadable", "unreadable"),
        (config(size=256), "", "not-applicable"),
        (config(acs=None), "", "not-applicable"),
    ],
)
def test_what_the_configuration_space_does_not_tell_has_a_reason(space: bytes, kind: str, acs_kind: str) -> None:
    values, why = parse_config(as_hex(space.decode("utf-8", "backslashreplace")))
    assert why.get("max_read_request_bytes", None) == (why["acs_redirect"] if kind else None)
    assert why["acs_redirect"].kind == acs_kind
    assert values.get("acs_redirect") is None


def test_every_byte_comes_back_from_the_text_that_the_door_makes() -> None:
    data = bytes(range(256)) * 2 + "é€😀".encode() + b"\\x"
    assert bytes.fromhex(as_hex(data.decode("utf-8", "backslashreplace"))) == data


def looping() -> Iterable[bytes]:
    space = bytearray(config(acs=None))
    space[0x50:0x52] = b"\x01\x50"
    space[0x100:0x104] = (0x100 << 20 | 0x0001).to_bytes(4, "little")
    yield bytes(space)
    space[0x34] = 0xFC
    space[0x100:0x104] = (0xFFC << 20 | 0x0001).to_bytes(4, "little")
    yield bytes(space)


@pytest.mark.parametrize("space", list(looping()))
def test_capability_lists_that_run_in_circles_or_out_of_the_space_end(space: bytes) -> None:
    values, why = parse_config(space.hex())
    assert (values, {reason.kind for reason in why.values()}) == ({}, {"not-applicable"})


@given(st.binary(min_size=64, max_size=400) | st.binary(min_size=64, max_size=64).map(lambda head: head * 64))
def test_any_bytes_are_read_to_values_or_reasons(space: bytes) -> None:
    values, why = parse_config(as_hex(space.decode("utf-8", "backslashreplace")))
    assert {name for name, value in values.items() if value is not None} | set(why) == {
        "acs_redirect", "max_read_request_bytes", "max_payload_bytes", "relaxed_ordering"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sys/devices/pci0000:00/0000:00:02.0", ("pci0000:00", ())),
        ("/sys/devices/platform/soc/pci0009:00/0009:00:00.0/0009:01:00.0", ("pci0009:00", ("0009:00:00.0",))),
        ("/sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0", ("pci10000:e0", ("10000:e0:06.0",))),
        ("/sys/devices/LNXSYSTM:00/VMBUS:00/47505500-0001-0000-3130-444531444234/pci0001:00/0001:00:00.0", ("pci0001:00", ())),
    ],
)  # fmt: skip
def test_place_in_the_tree(path: str, expected: Tuple[str, Tuple[str, ...]]) -> None:
    assert topology.parse_place(path) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8.0 GT/s PCIe", 8.0), ("2.5 GT/s", 2.5), ("16 GT/s", 16.0), ("64.0 GT/s PCIe", 64.0), ("8", 8.0)],
)
def test_link(text: str, expected: float) -> None:
    assert topology.parse_link(text + "\n") == expected


@pytest.mark.parametrize("text", ["Unknown", "Unknown speed", "0", "63", "255", "", "-1", "GT/s", "\\xff", "999999"])
def test_link_that_the_kernel_does_not_know(text: str) -> None:
    with pytest.raises(Unreadable):
        topology.parse_link(text)


def test_a_bad_function_hides_no_other(tmp_path: Path) -> None:
    machine(tmp_path)
    place(
        tmp_path,
        "pci0000:00/0000:00:09.0",
        NIC,
        "15b3:xyz",
        numa_node="garbage",
        current_link_speed="\x00",
        max_link_width="",
    )
    (tmp_path / "sys/bus/pci/devices/0000:00:0a.0").symlink_to("../../../devices/nowhere")
    found = named(read(tmp_path))
    assert {"18:00.0", "19:00.0", "00:09.0"} <= set(found)
    bad = found["00:09.0"]
    assert (bad.vendor_device, bad.numa_node, bad.speed_gt_s, bad.width_max) == (None, None, None, None)
    assert {"vendor_device", "numa_node", "speed_gt_s", "width_max"} <= set(bad.unread)


def test_a_virtual_function_counts_where_it_does_rdma(tmp_path: Path) -> None:
    for number, rdma in ((1, True), (2, False)):
        folder = place(
            tmp_path, f"pci0000:00/0000:00:01.0/0000:01:00.{number}", "0x020000", "15b3:101e", current_link_width="0"
        )
        linked(folder, "physfn", "../0000:01:00.0")
        if rdma:
            (folder / "infiniband/mlx5_4").mkdir(parents=True)
    assert [d.pci for d in read(tmp_path).devices or () if d.kind == "nic"] == ["0000:01:00.1"]


def test_no_bus(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found.devices is None
    assert {name: reason.kind for name, reason in found.unread.items()} == dict.fromkeys(
        ("devices", "host_bridges", "iommu", "iommu_said_by", "peer_memory"), "absent"
    )


# --------------------------------------------------------------------------- IOMMU


@pytest.mark.parametrize(
    ("units", "kind", "cmdline", "expected"),
    [
        ((), None, "quiet", ("off", "/sys/class/iommu is empty")),
        (("dmar0",), "identity", "", ("passthrough", "/sys/kernel/iommu_groups/7/type: identity")),
        (("ivhd0",), "DMA-FQ", "iommu=pt", ("translated", "/sys/kernel/iommu_groups/7/type: DMA-FQ")),
        (("ivhd0",), "DMA", "", ("translated", "/sys/kernel/iommu_groups/7/type: DMA")),
        (("dmar0",), None, "ro intel_iommu=on iommu=pt", ("passthrough", "iommu=pt on the kernel's command line")),
        (("dmar0", "dmar1"), None, "ro intel_iommu=on", ("on", "/sys/class/iommu: dmar0, dmar1")),
        (("dmar0",), "garbage", "", ("on", "/sys/class/iommu: dmar0")),
    ],
)
def test_iommu(
    tmp_path: Path, units: Tuple[str, ...], kind: Optional[str], cmdline: str, expected: Tuple[str, str]
) -> None:
    machine(tmp_path)
    (tmp_path / "sys/kernel").mkdir(parents=True)
    for unit in units:
        (tmp_path / "sys/class/iommu" / unit).mkdir(parents=True)
    if kind is not None:
        (tmp_path / "sys/kernel/iommu_groups/7").mkdir(parents=True)
        (tmp_path / "sys/kernel/iommu_groups/7/type").write_text(kind + "\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(cmdline)
    found = read(tmp_path)
    assert (found.iommu, found.iommu_said_by) == expected


def test_of_the_command_line_only_what_concerns_this_is_kept() -> None:
    words = iommu_words("root=/dev/sda1 rd.password=secret amd_iommu=on iommu=pt pci=realloc=off noiommu")
    assert words == ("amd_iommu=on", "iommu=pt", "pci=realloc=off")
    assert by_words(("iommu.passthrough=1", "iommu=nopt")) == ("translated", "iommu=nopt on the kernel's command line")


# --------------------------------------------------------------------------- GPUDirect


@pytest.mark.parametrize(
    ("module", "kernel", "peermem", "expected"),
    [
        (CLOSED, "5.15.0-91-generic", True, "nvidia-peermem"),
        (CLOSED, "5.15.0-91-generic", False, ""),
        (OPEN, "5.15.0-91-generic", False, "dma-buf"),
        (OPEN, "5.4.0-200-generic", False, ""),
        (OPEN, "4.18.0-513.el8.x86_64", False, None),  # what Red Hat took over from newer kernels is not told
        ("garbage", "5.15.0", False, None),
    ],
)
def test_peer_memory(tmp_path: Path, module: str, kernel: str, peermem: bool, expected: Optional[str]) -> None:
    machine(tmp_path)
    for path, text in (("proc/driver/nvidia/version", module), ("proc/sys/kernel/osrelease", kernel)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    if peermem:
        (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    found = read(tmp_path)
    assert found.peer_memory == expected
    assert ("peer_memory" in found.unread) is (expected is None)


def test_gdrcopy_needs_module_and_node(tmp_path: Path) -> None:
    machine(tmp_path)
    (tmp_path / "sys/module/gdrdrv").mkdir(parents=True)
    assert read(tmp_path).gdrcopy is False
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/gdrdrv").touch()
    assert read(tmp_path).gdrcopy is True


def test_this_machine() -> None:
    found = topology.read(Host(), Ask())
    assert found.devices is not None or found.unread["devices"].kind == "absent"

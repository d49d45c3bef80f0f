"""RDMA devices over written trees, and over captured ones where ../shared is."""

import pytest
from captured_rdma import CAPTURES, TREES, captured
from ddp_doctor.ask import Ask
from ddp_doctor.collect import rdma
from ddp_doctor.recording import Recording

EINVAL = {"reason": {"kind": "unreadable", "text": "Invalid argument"}}
DENIED = {"reason": {"kind": "no-rights", "text": "Permission denied"}}
IB, PORT = "/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/mlx5_0/ports/1"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000\n"
ROCE = {
    f"{IB}/fw_ver": "28.39.1002\n",
    f"{IB}/board_id": "MT_0000000838\n",
    f"{IB}/hca_type": "MT4129\n",
    f"{IB}/node_type": "1: CA\n",
    f"{IB}/node_guid": "b83f:d203:0011:2233\n",
    f"{IB}/sys_image_guid": "b83f:d203:0011:2233\n",
    f"{IB}/device/uevent": "DRIVER=mlx5_core\nPCI_SLOT_NAME=0000:17:00.0\n",
    f"{IB}/device/numa_node": "-1\n",
    f"{IB}/device/infiniband_verbs/uverbs0/dev": "231:192\n",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/phys_state": "5: LinkUp\n",
    f"{PORT}/rate": "200 Gb/sec (4X HDR)\n",
    f"{PORT}/link_layer": "Ethernet\n",
    f"{PORT}/lid": "0x0\n",
    f"{PORT}/sm_lid": "0x0\n",
    f"{PORT}/gids/0": "fe80:0000:0000:0000:ba3f:d2ff:fe11:2233\n",
    f"{PORT}/gids/1": ZERO,
    f"{PORT}/gids/2": ZERO,
    f"{PORT}/gids/10": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    f"{PORT}/gid_attrs/types/0": "IB/RoCE v1\n",
    f"{PORT}/gid_attrs/ndevs/0": "ens1f0\n",
    f"{PORT}/gid_attrs/types/10": "RoCE v2\n",
    f"{PORT}/gid_attrs/ndevs/10": "ens1f0\n",
    f"{PORT}/counters/port_rcv_data": "18446744073709551615\n",
    f"{PORT}/counters/symbol_error": "N/A (no PMA)\n",
    f"{PORT}/hw_counters/out_of_sequence": "7\n",
    f"{PORT}/hw_counters/lifespan": "10\n",
}


def read(tree, entries=None):
    """The section of a node with these files."""
    files = {f"root{path}": text for path, text in tree.items()}
    return rdma.read(Recording({"env ": {"value": {}}, **(entries or {})}, files, complete=True), Ask())


def test_a_roce_port():
    entries = {f"read {PORT}/gid_attrs/{kind}/{row}": EINVAL for kind in ("types", "ndevs") for row in (1, 2)}
    (device,) = read(ROCE, entries).devices
    assert (device.firmware, device.board_id, device.hca_type) == ("28.39.1002", "MT_0000000838", "MT4129")
    assert (device.driver, device.pci, device.node_type, device.uverbs) == (
        "mlx5_core",
        "0000:17:00.0",
        "CA",
        "uverbs0",
    )
    assert (device.numa_node, device.unread["numa_node"].kind) == (None, "not-applicable")
    assert device.virtual_function is False
    (port,) = device.ports
    assert (port.state, port.phys_state, port.rate_gbit_s, port.link_layer) == ("ACTIVE", "LinkUp", 200.0, "Ethernet")
    assert [(g.index, g.type, g.netdev) for g in port.gids] == [(0, "IB/RoCE v1", "ens1f0"), (10, "RoCE v2", "ens1f0")]
    assert (port.netdev, port.lid, port.sm_lid) == ("ens1f0", 0, 0)
    assert (port.counters, port.hw_counters) == ({"port_rcv_data": 2**64 - 1}, {"out_of_sequence": 7})
    assert {name: port.unread[name].kind for name in port.unread} == {
        "counters.symbol_error": "unreadable",
        "pkeys": "not-applicable",
        "traffic_class": "absent",
        "active_mtu_bytes": "no-rights",
        "max_mtu_bytes": "no-rights",
        "flow": "absent",
    }


def test_one_broken_file_hides_nothing_else():
    tree = {**ROCE, f"{PORT}/rate": "fast\\xff\n", f"{PORT}/lid": "", f"{IB}/ports/x/state": "", f"{IB}2/fw_ver": "1\n"}
    found = read(tree, {f"list {PORT}/gids": DENIED, f"read {PORT}/state": EINVAL})
    assert [device.name for device in found.devices] == ["mlx5_0", "mlx5_02"]
    (port,) = found.devices[0].ports
    assert (port.state, port.phys_state, port.rate_gbit_s, port.lid, port.gids) == (None, "LinkUp", None, None, None)
    kinds = {field: port.unread[field].kind for field in ("state", "rate_gbit_s", "lid", "gids")}
    assert kinds == {"state": "unreadable", "rate_gbit_s": "unreadable", "lid": "unreadable", "gids": "no-rights"}
    assert (found.devices[1].ports, found.devices[1].unread["ports"].kind) == (None, "absent")


def test_without_rdma_everything_is_looked_for_and_nothing_found():
    found = read({"/proc/modules": "xfs 1 1 - Live 0x0\n"})
    assert (found.devices, found.pci_hcas, found.modules, found.device_nodes, found.plugins) == ((), (), (), (), ())
    assert {name: found.unread[name].kind for name in found.unread} == dict.fromkeys(
        ("verbs_library", "verbs_libraries", "providers"), "not-applicable"
    )


def test_the_netdev_of_an_infiniband_port_is_no_virtual_functions_stand_in():
    tree = {
        f"{IB}/ports/2/state": "4: ACTIVE\n",
        f"{IB}/device/net/eth0/dev_port": "1\n",
        f"{IB}/device/net/eth0/phys_port_name": "pf0vf3\n",
        f"{IB}/device/net/ib0/dev_port": "0\n",
        f"{IB}/device/net/ib1/dev_port": "1\n",
    }
    assert read(tree).devices[0].ports[0].netdev == "ib1"


def test_a_software_device_has_no_pci_function():
    (device,) = read({"/sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE\n"}).devices
    assert (device.pci, device.driver, device.uverbs, device.virtual_function) == (None, None, None, None)
    assert {device.unread[field].kind for field in ("driver", "uverbs", "virtual_function", "numa_node")} == {"absent"}


def test_a_software_device_finds_its_node_by_the_class():
    class_ = "/sys/class/infiniband_verbs"
    tree = {
        "/sys/class/infiniband/rxe0/node_type": "1: CA\n",
        f"{class_}/abi_version": "6\n",
        f"{class_}/uverbs0/ibdev": "mlx5_0\n",
        f"{class_}/uverbs1/ibdev": "rxe0\n",
    }
    (device,) = read(tree).devices
    assert (device.uverbs, "uverbs" in device.unread) == ("uverbs1", False)


def test_modules_and_device_nodes():
    node = {"kind": "char", "mode": 0o666, "uid": 0, "gid": 0, "size_bytes": 0, "readable": True, "writable": False}
    tree = {
        "/proc/modules": "mlx5_ib 4 0 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0\nxfs 1 1 - Live 0x0\n",
        "/sys/module/ib_core/refcnt": "1\n",
        "/dev/infiniband/by-ibdev/x": "",
    }
    entries = {"stat /dev/infiniband/uverbs0": {"value": node}, "stat /dev/infiniband/rdma_cm": DENIED}
    found = read(tree, entries)
    assert found.modules == ("ib_core", "mlx5_ib", "nvidia_peermem")
    nodes = {n.path: (n.readable, n.writable) for n in found.device_nodes}
    assert nodes == {"/dev/infiniband/uverbs0": (True, False), "/dev/infiniband/rdma_cm": (None, None)}


@pytest.mark.parametrize(
    ("pci_id", "pci_class", "made_for_rdma"),
    [
        ("15b3:1021", "020700", True),
        ("15b3:101d", "020000", True),
        ("15b3:1003", "028000", True),
        ("15b3:1979", "060400", False),
        ("8086:24f0", "020800", True),
        ("1d0f:efa2", "020000", True),
        ("1d0f:ec20", "020000", False),
        ("1077:7322", "0c0600", True),
        ("8086:1592", "020000", False),
        ("14e4:1750", "020000", False),
        ("8086:1521", "020000", False),
        ("", "000000", False),
    ],
)
def test_an_ordinary_nic_is_no_hca(pci_id, pci_class, made_for_rdma):
    assert rdma.is_hca(pci_id, pci_class) is made_for_rdma


def test_hcas_on_the_bus_with_and_without_a_driver():
    bus = "/sys/bus/pci/devices"
    tree = {
        f"{bus}/0000:17:00.0/uevent": "PCI_CLASS=20700\nPCI_ID=15B3:1021\n",
        f"{bus}/0000:18:00.0/uevent": "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:101D\n",
        f"{bus}/0000:18:00.2/uevent": "DRIVER=vfio-pci\nPCI_CLASS=20000\nPCI_ID=15B3:101E\n",
        f"{bus}/0000:19:00.0/uevent": "DRIVER=ice\nPCI_CLASS=20000\nPCI_ID=8086:1592\n",
        f"{bus}/0000:1a:00.0/uevent": "",
    }
    assert read(tree).pci_hcas == ("0000:17:00.0 15b3:1021 -", "0000:18:00.0 15b3:101d mlx5_core")


# --------------------------------------------------------------------------- captured trees


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no ../shared/captures here")
class TestCapturedTrees:
    @pytest.mark.parametrize(("name", "top"), TREES)
    def test_ports(self, name, top):
        found = rdma.read(Recording({}, captured(name, top), complete=True), Ask())
        assert {d.name: [port.state for port in d.ports] for d in found.devices} == TREES[name, top]
        for port in (port for device in found.devices for port in device.ports):
            assert port.rate_gbit_s == float(port.rate.split()[0])
            assert port.link_layer in ("InfiniBand", "Ethernet")
            assert port.phys_state.isidentifier()

    def test_details(self):
        def devices(name, top):
            return {d.name: d for d in rdma.read(Recording({}, captured(name, top), complete=True), Ask()).devices}

        (iwarp,) = devices("node_exporter", "sys")["i40iw0"].ports
        assert (iwarp.counters, iwarp.unread["counters.symbol_error"].kind) == ({}, "unreadable")
        (qib,) = devices("hwloc-qib-qdr-40c", "sys")["qib0"].ports
        assert [gid.index for gid in qib.gids] == [0]
        (roce,) = devices("derived-roce-gids", "class")["mlx5_0"].ports
        assert [gid.type for gid in roce.gids] == ["IB/RoCE v1", "RoCE v2"] * 2
        assert {name: d.virtual_function for name, d in devices("rdma_exporter/vf", "class").items()} == {
            "mlx5_0": None,  # what its device link points to was not captured
            "mlx5_4": True,
        }
        h100 = devices("gpud-h100", ".")
        assert (h100["mlx5_0"].firmware, h100["mlx5_bond_0"].ports[0].link_layer) == ("28.41.1000", "Ethernet")
        assert h100["mlx5_0"].ports[0].rate_gbit_s == 400.0

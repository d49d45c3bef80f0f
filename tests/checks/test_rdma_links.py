"""Checks of the links of RDMA ports: of those that NCCL would use."""

from dataclasses import replace

import pytest
from captured_rdma import CAPTURES, TREES, captured
from ddp_doctor.ask import Ask
from ddp_doctor.collect import rdma
from ddp_doctor.facts import (
    Address,
    DeviceNode,
    Env,
    Gid,
    Gpu,
    Gpus,
    Interface,
    Network,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Variable,
)
from ddp_doctor.policy import Policy
from ddp_doctor.recording import Recording
from judging import judged, outcome, own_checks, remedy_text

TWO = Policy(nnodes=2)
BOARD = "MT_0000000838"


def env(**variables):
    return Env(tuple(Variable(name, value) for name, value in variables.items()))


def hca(name, board=BOARD, firmware="28.41.1000", driver="mlx5_core", **port):
    """An InfiniBand adapter with one active port."""
    given = {
        "state": "ACTIVE",
        "rate_gbit_s": 400.0,
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "lid": 7,
        **port,
    }
    return RdmaDevice(
        name, ports=(RdmaPort(1, **given),), board_id=board, firmware=firmware, driver=driver, verbs="opens"
    )


def roce(name, netdev, **port):
    return hca(name, link_layer="Ethernet", netdev=netdev, **port)


def failed(check, devices, variables=None, policy=TWO, **facts):
    """Subjects that failed."""
    found = judged(f"rdma/{check}", policy, rdma=Rdma(tuple(devices)), env=variables or env(), **facts)
    return [v.subject for v in found if v.outcome.value == "failed"]


SLOW = {"rate_gbit_s": 200.0, "rate": "200 Gb/sec (2X NDR)"}
SIX = [hca(f"mlx5_{n}") for n in range(6)]


@pytest.mark.parametrize(
    ("name", "devices", "variables", "policy", "found"),
    [
        ("one of seven", [*SIX, hca("mlx5_6", **SLOW)], env(), TWO, ["mlx5_6:1"]),
        ("another board", [*SIX, hca("mlx5_6", board="MT_0000000884", **SLOW)], env(), TWO, []),
        ("board not known", [*SIX, hca("mlx5_6", board=None, **SLOW)], env(), TWO, []),
        ("storage by Ethernet", [*SIX, roce("mlx5_6", "eth0", **SLOW)], env(), TWO, []),
        ("left out", [*SIX, hca("mlx5_6", **SLOW)], env(NCCL_IB_HCA="^mlx5_6"), TWO, []),
        ("ignored", [*SIX, hca("mlx5_6", **SLOW)], env(), Policy(nnodes=2, ignore_hcas=("mlx5_6",)), []),
        ("down", [*SIX, hca("mlx5_6", state="DOWN", rate_gbit_s=10.0)], env(), TWO, []),
        ("TCP is wanted", [*SIX, hca("mlx5_6", **SLOW)], env(NCCL_IB_DISABLE="1"), TWO, []),
        ("alone", [hca("mlx5_0", **SLOW)], env(), TWO, []),
    ],
)
def test_a_port_that_is_slower_than_equal_ones(name, devices, variables, policy, found):
    assert failed("rate-below-its-like", devices, variables, policy) == found


def test_a_rate_that_could_not_be_read_is_no_pass():
    blind = hca("mlx5_9", rate_gbit_s=None, rate=None)
    found = judged("rdma/rate-below-its-like", TWO, rdma=Rdma((*SIX, blind)), env=env())
    assert [v.outcome.value for v in found].count("skipped") == 1


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (None, "^=mlx5_6"),
        ("^mlx5_9", "^mlx5_9,mlx5_6"),
        ("^=mlx5_9:1", "^=mlx5_9:1,mlx5_6"),
        ("=mlx5_0,mlx5_6:1,mlx5_1", "=mlx5_0,mlx5_1"),
        ("mlx5_0,mlx5_6", "mlx5_0"),
    ],
)
def test_a_slow_adapter_is_left_out_beside_those_that_are_left_out_now(now, then):
    variables = env(NCCL_IB_HCA=now) if now else env()
    devices = (hca("mlx5_0"), hca("mlx5_1"), hca("mlx5_6", **SLOW))
    (verdict,) = (v for v in judged("rdma/rate-below-its-like", TWO, rdma=Rdma(devices), env=variables) if v.fixes)
    assert f"export NCCL_IB_HCA {then}\n" in remedy_text(verdict)


def test_a_prefix_that_takes_a_slow_adapter_is_left_to_the_reader():
    (verdict,) = (
        v
        for v in judged(
            "rdma/rate-below-its-like", TWO, rdma=Rdma((*SIX, hca("mlx5_6", **SLOW))), env=env(NCCL_IB_HCA="mlx5")
        )
        if v.fixes
    )
    assert "Set NCCL_IB_HCA so that it leaves out mlx5_6." in remedy_text(verdict)


@pytest.mark.parametrize(
    ("device", "found"),
    [
        (hca("a", rate="10 Gb/sec (4X SDR)"), ["a:1"]),
        (hca("a", rate="10 Gb/sec (4X)"), ["a:1"]),
        (hca("a", rate="100 Gb/sec (1X NDR)"), ["a:1"]),
        (hca("a", rate="100 Gb/sec (2X HDR)"), []),
        (hca("a", rate="40 Gb/sec (4X QDR)"), []),
        (hca("a", rate="400 Gb/sec"), []),
        (roce("a", "eth0", rate="25 Gb/sec (1X EDR)"), []),
        (roce("a", "eth0", rate="10 Gb/sec (4X)"), []),
        (hca("a", rate="10 Gb/sec (4X)", lid=0), []),
        (hca("a", rate="25 Gb/sec (1X EDR)", lid=None), []),
        (hca("a", rate="10 Gb/sec (4X)", state="DOWN"), []),
    ],
)
def test_an_infiniband_link_with_one_lane_or_the_lowest_speed(device, found):
    assert failed("link-degraded", [device]) == found


def test_a_degraded_link_is_looked_at_by_its_adapter():
    (verdict,) = judged("rdma/link-degraded", TWO, rdma=Rdma((hca("mlx5_0", rate="25 Gb/sec (1X EDR)"),)), env=env())
    assert "mlxlink -d mlx5_0 -m -c" in remedy_text(verdict)
    (verdict,) = judged("rdma/link-degraded", TWO, rdma=Rdma((hca("-x;reboot", rate="25 Gb/sec (1X EDR)"),)), env=env())
    assert "reboot" not in remedy_text(verdict)


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ([hca("a"), hca("b", firmware="28.39.1002")], [BOARD]),
        ([hca("a"), hca("b", board="MT_1", firmware="28.39.1002")], []),
        ([hca("a"), hca("b", firmware=None)], []),
        ([hca("a"), hca("b", firmware="28.39.1002", state="DOWN")], []),
    ],
)
def test_firmware_is_compared_within_a_board(devices, found):
    assert failed("firmware-differs", devices) == found


def mtu(active, largest=4096):
    return {"active_mtu_bytes": active, "max_mtu_bytes": largest}


@pytest.mark.parametrize(
    ("active", "largest", "interface", "below_interface", "below_adapter"),
    [
        (1024, 4096, 1500, "passed", "failed"),
        (4096, 4096, 9000, "passed", "passed"),
        (4096, 4096, 4200, "passed", "passed"),
        (2048, 4096, 4100, "passed", "failed"),
        (1024, 4096, 9000, "failed", "skipped"),
        (2048, 2048, 9000, "passed", "passed"),
        (None, None, 9000, "skipped", "skipped"),
        (1024, 4096, None, "skipped", "failed"),
    ],
)
def test_packets_of_roce(active, largest, interface, below_interface, below_adapter):
    facts = {"rdma": Rdma((roce("a", "eth0", **mtu(active, largest)),)), "env": env()}
    network = Network(interfaces=(Interface("eth0", mtu=interface),))
    assert outcome("rdma/mtu-below-interface", TWO, network=network, **facts) == below_interface
    assert outcome("rdma/mtu-below-adapter", TWO, network=network, **facts) == below_adapter


def test_the_remedy_of_small_packets_fits_the_link():
    (verdict,) = judged("rdma/mtu-below-adapter", TWO, rdma=Rdma((roce("a", "eth0", **mtu(1024)),)), env=env())
    assert (verdict.severity.value, "ip link set eth0 mtu 9000" in remedy_text(verdict)) == ("note", True)
    (verdict,) = judged("rdma/mtu-below-adapter", TWO, rdma=Rdma((hca("a", **mtu(2048)),)), env=env())
    assert "subnet manager" in remedy_text(verdict)


@pytest.mark.parametrize(
    ("keys", "row", "missing", "limited"),
    [
        (("0xffff",), None, "passed", "passed"),
        (("0x7fff",), None, "passed", "failed"),
        (("0x7fff", "0x8001"), "1", "passed", "passed"),
        ((), None, "failed", "skipped"),
        (("0x0000", "0xffff"), None, "failed", "skipped"),
        (("0xffff",), "3", "failed", "skipped"),
        (("0xffff",), "99", "skipped", "skipped"),
        (("garbage",), None, "skipped", "skipped"),
        (None, None, "skipped", "skipped"),
    ],
)
def test_partition_keys(keys, row, missing, limited):
    variables = env(NCCL_IB_PKEY=row) if row else env()
    facts = {"rdma": Rdma((hca("a", pkeys=keys),)), "env": variables}
    assert outcome("rdma/partition-key-missing", TWO, **facts) == missing
    assert outcome("rdma/partition-member-limited", TWO, **facts) == limited


def rail(name, ip, prefix=24, ignore=1, rp=0):
    return Interface(name, addresses=(Address(ip, prefix, "ipv4"),), arp_ignore=ignore, rp_filter=rp)


RAILS = [roce("a", "eth0"), roce("b", "eth1")]


@pytest.mark.parametrize(
    ("interfaces", "sysctls", "found"),
    [
        ((rail("eth0", "10.0.0.1"), rail("eth1", "10.0.1.1", ignore=0)), {}, "skipped"),
        ((rail("eth0", "10.0.0.1"), rail("eth1", "10.0.0.2")), {}, "passed"),
        ((rail("eth0", "10.0.0.1", ignore=0), rail("eth1", "10.0.0.2")), {}, "failed"),
        ((rail("eth0", "10.0.0.1", ignore=0), rail("eth1", "10.0.0.2")), {"net.ipv4.conf.all.arp_ignore": 2}, "passed"),
        ((rail("eth0", "10.0.0.1", ignore=0), rail("eth1", "10.0.0.2")), {"net.ipv4.conf.all.arp_filter": 1}, "passed"),
        ((rail("eth0", "10.0.0.1", rp=1), rail("eth1", "10.0.0.2")), {}, "failed"),
        ((rail("eth0", "10.0.0.1", rp=1), rail("eth1", "10.0.0.2")), {"net.ipv4.conf.all.rp_filter": 2}, "passed"),
        ((rail("eth0", "10.0.0.1", ignore=None), rail("eth1", "10.0.0.2")), {}, "skipped"),
        ((rail("eth0", "10.0.0.1", ignore=0), rail("eth9", "10.0.0.2")), {}, "skipped"),
        ((rail("eth0", "10.0.0.0", 31, ignore=0), rail("eth1", "10.0.0.1", 31, ignore=0)), {}, "skipped"),
    ],
)
def test_rails_in_one_subnet(interfaces, sysctls, found):
    facts = {"rdma": Rdma(tuple(RAILS)), "env": env(), "network": Network(interfaces=interfaces, sysctls=sysctls)}
    assert outcome("rdma/rails-share-subnet", TWO, **facts) == found


def test_settings_for_rails_in_one_subnet():
    network = Network(interfaces=(rail("eth0", "10.0.0.1", ignore=0, rp=1), rail("eth1", "10.0.0.2")), sysctls={})
    (verdict,) = judged("rdma/rails-share-subnet", TWO, rdma=Rdma(tuple(RAILS)), env=env(), network=network)
    assert "all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.eth0.rp_filter=2" in remedy_text(verdict)
    assert verdict.measured == "eth0, eth1 in 10.0.0.0/24: eth0 arp_ignore 0, eth0 rp_filter 1"


def gid(index, ip, netdev):
    return Gid(index, f"::ffff:{ip}", "RoCE v2", netdev)


def test_rails_are_the_interfaces_of_the_gids_that_nccl_takes():
    devices = [
        roce("a", "eth0", gids=(gid(3, "10.9.0.1", "eth0.9"),)),
        roce("b", "eth1", gids=(gid(3, "10.9.0.2", "eth1.9"),)),
    ]
    vlans = (rail("eth0.9", "10.9.0.1", ignore=0), rail("eth1.9", "10.9.0.2", ignore=0))
    below = (rail("eth0", "10.0.0.1", ignore=0), rail("eth1", "10.0.1.1", ignore=0))
    network = Network(interfaces=(*below, *vlans), sysctls={})
    assert failed("rails-share-subnet", devices, network=network) == ["10.9.0.0/24"]


@pytest.mark.parametrize(("running", "found"), [(True, "passed"), (False, "failed"), (None, "skipped")])
def test_the_interface_of_the_gid_must_be_up(running, found):
    devices = (roce("a", "eth0", gids=(gid(3, "10.9.0.1", "eth0.9"),)),)
    network = Network(interfaces=(Interface("eth0", running=True), Interface("eth0.9", running=running)))
    verdicts = judged("rdma/gid-interface-down", TWO, rdma=Rdma(devices), env=env(), network=network)
    assert {v.outcome.value for v in verdicts} == {found}
    assert all("ip link set eth0.9 up" in remedy_text(v) for v in verdicts if v.fixes)


LOSSLESS, LOSSY = {"trust": "dscp", "pfc": "3"}, {"trust": "pcp", "pfc": ""}


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ([roce("a", "eth0", flow=LOSSLESS), roce("b", "eth1", flow=LOSSLESS)], "passed"),
        ([roce("a", "eth0", flow=LOSSLESS), roce("b", "eth1", flow=LOSSY)], "failed"),
        ([roce("a", "eth0", flow=LOSSLESS, traffic_class=106), roce("b", "eth1", flow=LOSSLESS)], "failed"),
        ([roce("a", "eth0", flow=LOSSLESS), roce("b", "eth1")], "skipped"),
        ([roce("a", "eth0", flow=LOSSLESS), replace(roce("b", "eth1", flow=LOSSY), driver="bnxt_re")], "skipped"),
        ([roce("a", "eth0", flow=LOSSLESS), replace(roce("b", "eth1", flow=LOSSY), virtual_function=True)], "skipped"),
        ([hca("a"), hca("b")], "skipped"),
    ],
)
def test_priorities_of_roce_ports(devices, found):
    assert outcome("rdma/priorities-differ", TWO, rdma=Rdma(tuple(devices)), env=env()) == found


@pytest.mark.parametrize(
    ("flow", "variables", "found"),
    [
        (LOSSY, env(NCCL_IB_TC="106"), "failed"),
        (LOSSLESS, env(NCCL_IB_TC="106"), "passed"),
        (LOSSY, env(), "skipped"),
        (None, env(NCCL_IB_TC="106"), "skipped"),
    ],
)
def test_a_traffic_class_that_the_adapter_does_not_look_at(flow, variables, found):
    facts = {"rdma": Rdma((roce("a", "eth0", flow=flow),)), "env": variables}
    assert outcome("rdma/traffic-class-not-trusted", TWO, **facts) == found


@pytest.mark.parametrize(
    ("gpus", "ports", "found"), [(8, 1, "failed"), (8, 2, "passed"), (4, 1, "passed"), (0, 1, "skipped")]
)
def test_many_gpus_on_one_port(gpus, ports, found):
    facts = {"rdma": Rdma(tuple(SIX[:ports])), "gpus": Gpus(gpus=tuple(Gpu(n) for n in range(gpus))), "env": env()}
    assert outcome("rdma/few-ports-for-gpus", TWO, **facts) == found


def test_without_rdma_nothing_is_judged_and_unread_devices_are_no_pass():
    for check in ("rate-below-its-like", "link-degraded", "mtu-below-adapter", "partition-key-missing"):
        assert outcome(f"rdma/{check}", TWO, rdma=Rdma(devices=()), env=env()) == "skipped"
        unread = Rdma(unread={"devices": Reason("no-rights", "/sys")})
        assert outcome(f"rdma/{check}", TWO, rdma=unread, env=env()) == "skipped"


# --------------------------------------------------------------------------- captured trees


def usable(device, number):
    """The device as if its character device and its provider were there, which no tree of /sys shows."""
    return replace(device, uverbs=f"uverbs{number}", verbs="opens")


def failures(name, top):
    """Checks that failed on a captured tree: id -> subjects; with those that broke."""
    found = rdma.read(Recording({"env ": {"value": {}}}, captured(name, top), complete=True), Ask())
    devices = tuple(usable(device, number) for number, device in enumerate(found.devices))
    nodes = tuple(DeviceNode(f"/dev/infiniband/uverbs{number}", True, True) for number in range(len(devices)))
    facts = replace(found, devices=devices, device_nodes=nodes, verbs_library="/usr/lib64/libibverbs.so.1")
    ids = [check for check in own_checks().checks if check.startswith("rdma/")]
    verdicts = [v for check in ids for v in judged(check, TWO, rdma=facts, env=env())]
    return {(v.check, v.subject) for v in verdicts if v.outcome.value in ("failed", "broken")}


FAILURES = {
    "gpud-h100": {("rdma/link-layers-mixed", "")},
}


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no ../shared/captures here")
@pytest.mark.parametrize(("name", "top"), TREES)
def test_captured_trees(name, top):
    assert failures(name, top) == FAILURES.get(name, set())

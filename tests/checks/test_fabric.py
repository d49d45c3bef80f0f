"""Checks of the NVLink fabric: the four fields of each GPU, fabric manager, and NVLink between nodes."""

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_doctor.collect import gpus as collecting
from ddp_doctor.collect import nvidia_smi
from ddp_doctor.facts import Env, Fabric, Gpu, GpuFabric, Gpus, Os, Reason, Variable
from ddp_doctor.policy import Policy
from judging import judged, outcome, own_checks, remedy_text

CAPTURES = Path(__file__).parents[3] / "shared/captures/3-nvidia-smi"
A100, H100, B200, GB200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200", "NVIDIA GB200"
RACK = "11111111-1111-1111-1111-111111111111"
DRIVER = "550.54.15"
GOOD = GpuFabric("completed", "success", "", 0, "healthy", ())
IN_RACK = replace(GOOD, cluster_uuid=RACK, clique_id=7)
WAITING = GpuFabric("in_progress", None, "", 0, unread={"status": Reason("not-applicable", "not completed")})
SWITCHES = ("0000:c4:00.0", "0000:c5:00.0")
RUNS = Fabric(
    nvswitches=SWITCHES,
    manager_running=True,
    manager_installed=True,
    manager_version=DRIVER,
    subnet_manager_running=False,
    imex_running=False,
    imex_channels=(),
)
DOWN = replace(RUNS, manager_running=False)
IN_CONTAINER = Fabric(
    nvswitches=SWITCHES,
    imex_channels=(),
    unread=dict.fromkeys(
        ("manager_running", "manager_version", "subnet_manager_running", "imex_running"),
        Reason("not-applicable", "a container does not see the daemons of its host"),
    ),
)
TRAY = Fabric((), False, False, None, False, True, ("/dev/nvidia-caps-imex-channels/channel0",))
LAPTOP = Fabric(
    (), None, None, None, None, None, (), dict.fromkeys(("manager_running",), Reason("not-applicable", "no"))
)
BARE, GUEST = Os(virtualisation=""), Os(virtualisation="google")
TWO, ONE = Policy(nnodes=2), Policy(nnodes=1)


def node(name, *fabrics, **more):
    found = tuple(Gpu(i, name=name, fabric=fabric) for i, fabric in enumerate(fabrics))
    return Gpus(driver=DRIVER, kernel_module=DRIVER, gpus=found, **more)


IDS = sorted(name for name in own_checks().checks if name.startswith("fabric/"))


def words(policy=TWO, os=BARE, **facts):
    """Check -> outcome, of those that failed or broke."""
    found = {name: outcome(name, policy, os=os, **facts) for name in IDS}
    return {name: word for name, word in found.items() if "failed" in word or "broken" in word}


HEALTHY = {
    "DGX A100": (node(A100, *[None] * 8), RUNS),
    "DGX H100": (node(H100, *[GOOD] * 8), RUNS),
    "H100 in a container": (node(H100, *[GOOD] * 2), IN_CONTAINER),
    "H100 of a cloud that keeps the switches": (
        node(H100, *[GOOD] * 8),
        Fabric((), False, False, None, False, False, ()),
    ),
    "H100 PCIe": (node("NVIDIA H100 PCIe", None, None), Fabric((), False, False, None, False, False, ())),
    "H100, a driver that tells no health": (node(H100, *[replace(GOOD, health=None, unhealthy=None)] * 8), RUNS),
    "HGX B200": (node(B200, *[GOOD] * 8), replace(RUNS, nvswitches=(), subnet_manager_running=True)),
    "GB200 tray": (node(GB200, *[IN_RACK] * 4), TRAY),
    "laptop": (Gpus(gpus=()), LAPTOP),
    "a GPU that says that it has no fabric": (node(H100, GpuFabric("not_supported")), LAPTOP),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_nodes_are_left_alone(name):
    gpus, fabric = HEALTHY[name]
    assert words(gpus=gpus, fabric=fabric) == {}


# --------------------------------------------------------------------------- each GPU


@pytest.mark.parametrize(
    ("fabric", "measured"),
    [
        (WAITING, "in progress"),
        (GpuFabric("not_started"), "not started"),
        (replace(GOOD, status="Insufficient Resources"), "completed, Insufficient Resources"),
    ],
)
def test_a_gpu_that_did_not_join(fabric, measured):
    good, bad = judged("fabric/gpu-not-registered", gpus=node(H100, GOOD, fabric))
    assert (good.outcome.value, bad.outcome.value, bad.subject) == ("passed", "failed", "GPU 1")
    assert (bad.measured, bad.severity.value) == (measured, "error")


@pytest.mark.parametrize(
    ("os", "name", "says"),
    [
        (Os(), H100, "nvidia-fabricmanager"),
        (Os(container="docker"), H100, "On the host, not in this container"),
        (Os(), GB200, "NVLink switches"),
    ],
)
def test_where_the_way_out_is(os, name, says):
    bad = judged("fabric/gpu-not-registered", gpus=node(name, WAITING, WAITING), os=os, fabric=RUNS)[0]
    assert says in remedy_text(bad)
    assert ("systemctl" in remedy_text(bad)) is (says == "nvidia-fabricmanager")


def test_one_gpu_in_a_virtual_machine_can_do_without():
    (bad,) = judged("fabric/gpu-not-registered", gpus=node(H100, WAITING))
    assert "NVreg_NvLinkDisable=1" in remedy_text(bad)


def test_a_result_that_is_not_known_is_no_pass():
    fabric = GpuFabric("completed", unread={"status": Reason("absent", "not told")})
    assert outcome("fabric/gpu-not-registered", gpus=node(H100, fabric)) == "skipped"


@pytest.mark.parametrize(
    ("health", "unhealthy", "check", "says"),
    [
        ("unhealthy", ("route_unhealthy",), "unhealthy", "a route to another GPU is broken"),
        (
            "unhealthy",
            ("incorrect_configuration:insufficient_nvlinks",),
            "unhealthy",
            "set up wrongly (insufficient nvlinks)",
        ),
        (None, ("no_partition",), "unhealthy", "no partition"),
        ("unhealthy", (), "unhealthy", "calls its fabric unhealthy"),
        ("unhealthy", ("degraded_bandwidth",), "degraded", "less bandwidth"),
        (None, ("route_recovery", "access_timeout_recovery"), "degraded", "routes are being repaired; accesses"),
        ("healthy", ("manager_disconnected",), "degraded", "out of reach"),
        ("limited_capacity", None, "degraded", "limited"),
    ],
)
def test_what_the_health_tells(health, unhealthy, check, says):
    gpus = node(H100, replace(GOOD, health=health, unhealthy=unhealthy), GOOD)
    assert words(gpus=gpus, fabric=RUNS) == {f"fabric/{check}": "failed passed"}
    assert says in judged(f"fabric/{check}", gpus=gpus)[0].message


# --------------------------------------------------------------------------- fabric manager


@pytest.mark.parametrize(
    ("gpus", "fabric", "failed"),
    [
        (node(A100, *[None] * 8), DOWN, {"fabric/manager-not-running"}),
        (node(H100, *[WAITING] * 8), DOWN, {"fabric/manager-not-running", "fabric/gpu-not-registered"}),
        (node(H100, *[GOOD] * 8), DOWN, {"fabric/manager-stopped"}),
        (
            node(B200, *[WAITING] * 8),
            replace(DOWN, nvswitches=()),
            {"fabric/manager-not-running", "fabric/gpu-not-registered", "fabric/subnet-manager-not-running"},
        ),
        (node(A100, *[None] * 8), replace(RUNS, manager_version="550.54.14"), {"fabric/manager-version-differs"}),
    ],
)
def test_the_fabric_manager(gpus, fabric, failed):
    assert set(words(gpus=gpus, fabric=fabric)) == failed


def test_a_guest_whose_fabric_the_provider_keeps():
    facts = {"gpus": node(B200, *[GOOD] * 8), "fabric": replace(DOWN, nvswitches=())}
    assert words(os=GUEST, **facts) == {}
    assert words(os=BARE, **facts) == {"fabric/manager-stopped": "failed"}


def test_a_manager_that_nobody_can_see_is_no_fault_and_no_pass():
    facts = {"gpus": node(A100, None, None), "fabric": IN_CONTAINER}
    assert {outcome(f"fabric/manager-{check}", **facts) for check in ("not-running", "version-differs")} == {"skipped"}


@pytest.mark.parametrize(
    ("os", "package"),
    [
        (Os(id="ubuntu", like=("debian",)), "apt-get install -y nvidia-fabricmanager-550"),
        (Os(id="rocky", like=("rhel",)), "dnf install -y nvidia-fabricmanager"),
    ],
)
def test_the_manager_is_installed_in_the_driver_s_version(os, package):
    facts = {"gpus": node(A100, None, None), "fabric": replace(DOWN, manager_installed=False), "os": os}
    text = remedy_text(judged("fabric/manager-not-running", **facts)[0])
    assert package in text
    assert DRIVER in text


# --------------------------------------------------------------------------- between nodes


def test_gpus_of_one_node_in_two_cliques():
    gpus = node(GB200, IN_RACK, IN_RACK, replace(IN_RACK, clique_id=8), GOOD)
    (bad,) = judged("fabric/cliques-differ", gpus=gpus)
    assert bad.measured == f"GPU 0, 1: clique 7 of {RACK}; GPU 2: clique 8 of {RACK}; GPU 3: no cluster"


@pytest.mark.parametrize(
    ("gpus", "fabric", "failed"),
    [
        (node(GB200, GOOD, GOOD), TRAY, {"fabric/no-cluster"}),
        (node(GB200, IN_RACK, IN_RACK), replace(TRAY, imex_channels=()), {"fabric/imex-channel-missing"}),
        (node(GB200, IN_RACK, IN_RACK), replace(TRAY, imex_running=False), {"fabric/imex-not-running"}),
        (node(GB200, IN_RACK, IN_RACK), replace(IN_CONTAINER, nvswitches=()), {"fabric/imex-channel-missing"}),
    ],
)
def test_nvlink_between_nodes(gpus, fabric, failed):
    assert set(words(gpus=gpus, fabric=fabric)) == failed
    assert words(ONE, gpus=gpus, fabric=fabric) == {}
    assert {judged(name, gpus=gpus, fabric=fabric)[0].severity.value for name in failed} == {"note"}


def test_whoever_goes_over_the_network_needs_no_channel():
    env = Env((Variable("NCCL_MNNVL_ENABLE", "0"),))
    assert words(gpus=node(GB200, IN_RACK), fabric=replace(TRAY, imex_channels=(), imex_running=False), env=env) == {}


@pytest.mark.parametrize(
    ("os", "says"),
    [
        (Os(), "NVreg_CreateImexChannel0=1"),
        (Os(container="docker"), "NVIDIA_IMEX_CHANNELS"),
        (Os(container="kubernetes"), "DRA"),
    ],
)
def test_how_a_channel_comes_about(os, says):
    gpus, fabric = node(GB200, IN_RACK), replace(TRAY, imex_channels=())
    (bad,) = judged("fabric/imex-channel-missing", TWO, gpus=gpus, fabric=fabric, os=os)
    assert says in remedy_text(bad)


# --------------------------------------------------------------------------- captures


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no shared captures beside the project")
@pytest.mark.parametrize("path", sorted(CAPTURES.rglob("*.xml")), ids=lambda path: path.name)
def test_captured_machines(path):
    told = nvidia_smi.parse(path.read_text())
    found = words(gpus=Gpus(gpus=tuple(map(collecting.gpu_of, told["gpus"]))))
    assert found == ({"fabric/unhealthy": "failed passed"} if path.name == "qx-gb200-fabric-degraded.xml" else {})

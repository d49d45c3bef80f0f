"""Checks of what a container was given: each fires on what is missing, and is silent on healthy containers and machines."""

from dataclasses import replace

import pytest
from ddp_doctor.facts import DeviceNode as Node
from ddp_doctor.facts import (
    Env,
    Gid,
    Gpu,
    Gpus,
    Interface,
    Network,
    Os,
    PciGpu,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Variable,
)
from ddp_doctor.policy import Policy
from judging import judged, outcome, own_checks, remedy_text

DOCKER = Os(id="ubuntu", container="docker", virtualisation="", kernel="5.15.0", machine="x86_64")
POD = replace(DOCKER, container="kubernetes")
BARE = replace(DOCKER, container="")
WSL = replace(DOCKER, virtualisation="wsl")
JETSON = replace(DOCKER, kernel="5.15.136-tegra", machine="aarch64")
ASKS = Env((Variable("NVIDIA_VISIBLE_DEVICES", "all"),))
CAPS = tuple(f"/dev/nvidia-caps/nvidia-cap{n}" for n in (1, 2))


def gpus(**more):
    """Two of the machine's four GPUs, given to a container."""
    known = {
        "source": "nvml",
        "driver": "550.54.15",
        "kernel_module": "550.54.15",
        "gpus": (Gpu(0, mig="disabled"), Gpu(1, mig="disabled")),
        "on_bus": tuple(PciGpu(f"0000:0{n}:00.0", "0x20b2", "nvidia") for n in range(4)),
        "device_nodes": ("/dev/nvidia0", "/dev/nvidia1"),
        "driver_nodes": ("/dev/nvidiactl", "/dev/nvidia-uvm", *CAPS),
    }
    return Gpus(**{**known, **more})


MIG = gpus(gpus=(Gpu(0, mig="enabled"),))
PARTS = replace(MIG, driver_nodes=(*MIG.driver_nodes, "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"))
LOST = gpus(gpus=None, nvml_error="Unknown Error", unread={"gpus": Reason("unreadable", "NVML: Unknown Error")})
NOT_GIVEN = gpus(gpus=(), device_nodes=(), driver_nodes=())


def roce(*netdevs, layer="Ethernet", readable=True):
    """Rdma with a port for each network interface."""
    ports = (
        (RdmaPort(1, "ACTIVE", link_layer=layer, netdev=n, gids=(Gid(3, "::ffff:a00:1", "RoCE v2", n),)),)
        for n in netdevs
    )
    devices = tuple(RdmaDevice(f"mlx5_{i}", ports=port, uverbs=f"uverbs{i}") for i, port in enumerate(ports))
    nodes = tuple(Node(f"/dev/infiniband/uverbs{i}", readable, readable) for i in range(len(devices)))
    return Rdma(devices=devices, device_nodes=nodes)


def network(*names, kind="physical"):
    return Network(interfaces=(Interface("lo", kind="loopback"), *(Interface(name, kind=kind) for name in names)))


HEALTHY = {
    "docker": {"gpus": gpus(), "os": DOCKER, "env": ASKS},
    "pod with MIG parts": {"gpus": PARTS, "os": POD, "env": ASKS},
    "machine itself": {"gpus": gpus(driver_nodes=("/dev/nvidiactl",)), "os": BARE, "env": ASKS},  # made when needed
    "machine in MIG mode": {"gpus": MIG, "os": BARE, "env": Env(())},
    "machine without device nodes": {"gpus": NOT_GIVEN, "os": BARE, "env": ASKS},
    "CPU container on a GPU machine": {"gpus": NOT_GIVEN, "os": DOCKER, "env": Env(())},
    "pod that asked for none": {"gpus": NOT_GIVEN, "os": POD, "env": Env((Variable("NVIDIA_VISIBLE_DEVICES", "void"),))},
    "CPU machine": {"gpus": Gpus(kernel_module="", gpus=(), on_bus=(), device_nodes=()), "os": DOCKER, "env": ASKS},
    "WSL": {"gpus": gpus(on_bus=(), device_nodes=(), driver_nodes=()), "os": WSL, "env": ASKS},
    "Jetson": {"gpus": gpus(on_bus=(), driver_nodes=()), "os": JETSON, "env": ASKS},
    "one GPU in a sandbox": {"gpus": gpus(gpus=(Gpu(0),), on_bus=()), "os": DOCKER, "env": ASKS},
    "RoCE with the machine's network": {"rdma": roce("ens1", "ens2"), "network": network("ens1", "ens2"), "os": DOCKER},
    "RoCE over one virtual function": {"rdma": roce("net1", "ens2"), "network": network("eth0", "net1"), "os": POD},
    "InfiniBand in a bridge network": {"rdma": roce(None, layer="InfiniBand"), "network": network("eth0", kind="veth"), "os": DOCKER},
    "RoCE adapters not given": {"rdma": roce("ens1", readable=False), "network": network("eth0", kind="veth"), "os": DOCKER},
}  # fmt: skip

ALL = sorted(check for check in own_checks().checks if check.startswith("container/"))


@pytest.mark.parametrize("node", HEALTHY)
def test_a_healthy_container_raises_no_alarm(node):
    policy = Policy(nnodes=2)
    verdicts = [v for check in ALL for v in judged(check, policy, **HEALTHY[node])]
    assert len(verdicts) >= len(ALL)
    assert [(v.check, v.message, v.reason) for v in verdicts if v.outcome.value in ("failed", "broken")] == []


BRIDGE = network("eth0", kind="veth")


@pytest.mark.parametrize(
    ("check", "facts", "says", "remedy"),
    [
        ("gpu-devices-taken-away", {"gpus": LOST, "os": DOCKER}, "lost its GPUs", "create-dev-char-symlinks"),
        ("driver-device-missing", {"gpus": gpus(driver_nodes=("/dev/nvidiactl",)), "os": DOCKER}, "/dev/nvidia-uvm is not", "nvidia-modprobe"),
        ("mig-devices-missing", {"gpus": MIG, "os": POD}, "no part of a MIG GPU", "nvidia.com/mig-1g.10gb: 1"),
        ("mig-devices-missing", {"gpus": MIG, "os": DOCKER}, "no part of a MIG GPU", '--gpus \'"device=0:0"\''),
        ("no-gpu-given", {"gpus": NOT_GIVEN, "os": DOCKER, "env": ASKS}, "none of the machine's 4 GPUs", "--gpus all"),
        ("no-gpu-given", {"gpus": NOT_GIVEN, "os": POD, "env": ASKS}, "none of the machine's 4 GPUs", "nvidia.com/gpu"),
        ("roce-in-another-network", {"rdma": roce("ens1"), "network": BRIDGE, "os": DOCKER}, "mlx5_0:1 are outside", "--network=host"),
        ("roce-in-another-network", {"rdma": roce("eth0"), "network": BRIDGE, "os": POD}, "mlx5_0:1 are outside", "hostNetwork"),
        ("pci-tree-hidden", {"gpus": gpus(on_bus=()), "os": DOCKER}, "/sys shows no PCI bus", "NCCL_TOPO_FILE"),
    ],
)  # fmt: skip
def test_what_a_container_lacks_is_named(check, facts, says, remedy):
    failed = [v for v in judged(f"container/{check}", Policy(nnodes=2), **facts) if v.outcome.value == "failed"]
    assert len(failed) == 1
    assert says in failed[0].message
    assert remedy in remedy_text(failed[0])


def test_lost_devices_are_told_once():
    assert outcome("gpu/unreadable", gpus=LOST, os=DOCKER) == "skipped"
    assert outcome("gpu/unreadable", gpus=LOST, os=BARE) == "failed"
    assert outcome("container/gpu-devices-taken-away", gpus=LOST, os=BARE) == "skipped"


def test_roce_matters_to_jobs_of_several_nodes():
    facts = {"rdma": roce("ens1"), "network": BRIDGE, "os": DOCKER}
    assert outcome("container/roce-in-another-network", Policy(nnodes=1), **facts) == "skipped"
    off = Env((Variable("NCCL_IB_DISABLE", "1"),))
    assert outcome("container/roce-in-another-network", Policy(nnodes=2), env=off, **facts) == "skipped"


def test_devices_that_could_not_be_listed_are_not_missing():
    unread = gpus(
        driver_nodes=None, unread={"driver_nodes": Reason("no-rights", "/dev/nvidia-caps: Permission denied")}
    )
    assert outcome("container/driver-device-missing", gpus=unread, os=DOCKER) == "skipped"
    assert outcome("container/mig-devices-missing", gpus=replace(unread, gpus=MIG.gpus), os=DOCKER) == "skipped"

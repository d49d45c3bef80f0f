"""Fleets of small nodes for tests: alike but for what a test says."""

from dataclasses import replace
from typing import Any, Dict, List, Optional

from ddp_doctor import engine
from ddp_doctor.cluster.fleet import Fleet, GoodDay
from ddp_doctor.config import Config
from ddp_doctor.facts import (
    Address,
    Clock,
    Cpu,
    Disk,
    Env,
    Gpu,
    GpuFabric,
    Gpus,
    How,
    Interface,
    Launch,
    Limit,
    Limits,
    LoadedLibrary,
    Memory,
    Mount,
    Network,
    NodeFacts,
    Os,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Resolved,
    Torch,
    Variable,
)
from ddp_doctor.model import Verdict
from ddp_doctor.policy import Policy
from judging import own_checks

GIB = 2**30


def node(number: int, **changes: Any) -> NodeFacts:
    """A healthy GPU node with InfiniBand, like its siblings in all that should be alike."""
    name = f"gpu{number:02d}"
    gpus = tuple(
        Gpu(
            i,
            name="NVIDIA H100 80GB HBM3",
            uuid=f"GPU-{number}-{i}",
            ecc_mode=True,
            persistence=True,
            mig="disabled",
            power_limit_w=700.0,
            fabric=GpuFabric(state="completed", cluster_uuid="", clique_id=0),
        )
        for i in range(8)
    )
    addresses = (Address(f"10.0.0.{number}", 16, "ipv4", "global"),)
    eth = Interface("eth0", 2, "physical", addresses, 9000, 25000, "up", True, True)
    docker = Interface(
        "docker0", 3, "bridge", (Address("172.17.0.1", 16, "ipv4", "global"),), 1500, None, "up", True, True
    )
    port = RdmaPort(1, "ACTIVE", "LinkUp", 400.0, "400 Gb/sec (4X NDR)", 4096, 4096, "InfiniBand", 10 + number, 1)
    devices = tuple(RdmaDevice(f"mlx5_{i}", (port,), "28.39.1002", "MT_0000000838") for i in range(2))
    facts = NodeFacts(
        name,
        how=How(tool_version="0.1.0"),
        os=Os("ubuntu", "22.04", "Ubuntu 22.04.5 LTS", kernel="5.15.0-140", machine="x86_64", hostname=name, boot_id=f"b{number}"),
        cpu=Cpu("Xeon", threads=224),
        memory=Memory(total_bytes=2015 * GIB + number),
        limits=Limits(Limit(65536, 65536), Limit(1024, 4096), Limit(100, 100), cap_ipc_lock=False),
        disk=Disk((Mount("cwd", "/data/run", "/data", "nfs4", True),)),
        time=Clock("chronyd", True, 0.0001 * number),
        gpus=Gpus("nvml", "570.133.20", gpus=gpus),
        torch=Torch(
            python_version="3.10.12",
            installed=True,
            version="2.6.0+cu124",
            cuda="12.4",
            hip="",
            nccl="2.21.5",
            nccl_loaded=LoadedLibrary("/x/libnccl.so.2", "2.21.5"),
        ),
        env=Env((Variable("NCCL_DEBUG", "INFO" if number % 2 else "WARN"), Variable("RANK", str(number)))),
        network=Network(name, name, (eth, docker), master_name=Resolved("gpu01", ("10.0.0.1",))),
        rdma=Rdma(devices, verbs_library="/usr/lib/libibverbs.so.1"),
        launch=Launch(is_master=number == 1),
    )  # fmt: skip
    return replace(facts, **changes)


def fleet_of(nodes: List[NodeFacts], policy: Optional[Policy] = None, good: Optional[GoodDay] = None) -> Fleet:
    """A fleet that these nodes were fed to."""
    fleet = Fleet(partitions=(policy or Policy()).partitions, good=good)
    for facts in nodes:
        fleet.add(facts)
    return fleet


def judged_fleet(
    check: str, nodes: List[NodeFacts], policy: Optional[Policy] = None, good: Optional[GoodDay] = None
) -> Dict[str, Verdict]:
    """Node -> the verdict of one check; "" for what blames none. The worst of several subjects."""
    config = Config(policy=policy or Policy())
    found: Dict[str, Verdict] = {}
    order = ("failed", "broken", "skipped", "passed")
    for verdict, names in engine.judge_fleet(fleet_of(nodes, policy, good), [own_checks().checks[check]], config):
        for name in names:
            before = found.get(name)
            if before is None or order.index(verdict.outcome.value) < order.index(before.outcome.value):
                found[name] = verdict
    return found


def failing(check: str, nodes: List[NodeFacts], **more: Any) -> List[str]:
    """The nodes on which a check failed."""
    return [name for name, v in judged_fleet(check, nodes, **more).items() if v.outcome.value == "failed"]

"""Ways out of what the compute test found."""

from typing import Iterator

from ddp_doctor.model import Remedy, command, say

RMA = "https://docs.nvidia.com/deploy/rma-process/index.html"


def wrong_results() -> Iterator[Remedy]:
    yield Remedy(
        "Take the GPU out of use and have it examined",
        (
            say("Let no job use this GPU; results since it was last known good are in doubt.", who="cluster admin"),
            command("dcgmi diag -r 3", who="root", scope="this node", risk="loads the GPUs for several minutes"),
            say("If a reset or reboot does not end it, have the GPU replaced.", who="vendor", see=RMA),
        ),
    )


def could_not_run() -> Iterator[Remedy]:
    yield Remedy(
        "Find out why the GPU cannot be used",
        (
            command("dmesg | grep -i -E 'xid|nvrm'", who="root", scope="this node"),
            command("nvidia-smi -q", scope="this node"),
            say("If the GPU hung, drain the node and reboot it.", who="cluster admin"),
        ),
    )


def differs_from_siblings() -> Iterator[Remedy]:
    yield from wrong_results()


def slow_gemm() -> Iterator[Remedy]:
    yield Remedy(
        "Find what slows the GPU down",
        (
            command("nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE", scope="this node"),
            say("Remove a power cap or a clock limit; look after fans, coolant and dust.", who="cluster admin"),
        ),
    )


def slow_memory() -> Iterator[Remedy]:
    yield from slow_gemm()


def slow_host_copy() -> Iterator[Remedy]:
    yield Remedy(
        "Compare the GPU's PCIe link with that of its siblings",
        (
            command(
                "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv",
                scope="this node",
            ),
            say(
                "While idle, GPUs lower the generation: look during a load. Reseat the card or its riser.", who="vendor"
            ),
        ),
    )


def slow_in_fleet() -> Iterator[Remedy]:
    yield from slow_gemm()


def gemm_slower_than_model() -> Iterator[Remedy]:
    yield from slow_gemm()


def memory_slower_than_model() -> Iterator[Remedy]:
    yield from slow_gemm()


def host_copy_slower_than_link() -> Iterator[Remedy]:
    yield from slow_host_copy()


def slow_peer_copy() -> Iterator[Remedy]:
    yield Remedy(
        "Find the connection that is slow",
        (
            command("nvidia-smi nvlink -s", scope="this node"),
            command("nvidia-smi nvlink -e", scope="this node"),
            command("nvidia-smi topo -m", scope="this node"),
            say("Reseat the GPU, its NVLink bridge or its riser, or have the board replaced.", who="vendor"),
        ),
    )

"""Fixes for what counters tell: mostly a cable, a configuration of the network, or a part to be replaced."""

import re
from typing import Iterator, Optional, Tuple

from ddp_doctor.facts import Env, Network
from ddp_doctor.fixes._net import plain, without_hca
from ddp_doctor.model import Remedy, Step, Verdict, command, say

_MLX = "https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html"
_ROCE = "https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters"


def rdma_link_errors(finding: Verdict, env: Optional[Env] = None) -> Iterator[Remedy]:
    yield _cable(finding.subject)
    yield Remedy("Keep NCCL off the port until then", (_without_port(finding.subject, env), _ON_ALL))


def rdma_link_lost(finding: Verdict, env: Optional[Env] = None) -> Iterator[Remedy]:
    yield _cable(finding.subject)
    yield Remedy("Keep NCCL off the port until then", (_without_port(finding.subject, env), _ON_ALL))


def rdma_packets_discarded() -> Iterator[Remedy]:
    yield _lossless()


def rdma_packets_repeated(finding: Verdict) -> Iterator[Remedy]:
    yield _lossless()
    yield _cable(finding.subject)


def rdma_requests_failing() -> Iterator[Remedy]:
    step = say("Run the job with NCCL_DEBUG=INFO: NCCL writes the status and the peer of the request that failed.")
    yield Remedy("Find out which request fails", (step,))


def rdma_port_waits() -> Iterator[Remedy]:
    step = say(
        "Look at the counters of the switches: which port to this node, or to its peers, is full.", who="network admin"
    )
    yield Remedy("Find what the port waits for", (step,))


def rdma_link_downed_often(finding: Verdict) -> Iterator[Remedy]:
    device, port = _device_and_port(finding.subject)
    more = command("ddp-doctor run --select rates --sample 60", scope="this node")
    yield Remedy("See whether it goes on", (more,))
    if device:
        clear = command(
            f"perfquery -C {device} -P {port} -R", who="root", risk="Others who watch the totals lose them."
        )
        yield Remedy("Begin to count anew", (clear,))


def interface_errors(finding: Verdict) -> Iterator[Remedy]:
    yield _cable(finding.subject)


def interface_link_lost(finding: Verdict) -> Iterator[Remedy]:
    yield _cable(finding.subject)


def interface_drops(finding: Verdict, network: Optional[Network] = None) -> Iterator[Remedy]:
    name = plain(finding.subject)
    found = next((i for i in (network.interfaces or () if network else ()) if i.name == finding.subject), None)
    ring = (found.ring if found else None) or {}
    most = ring.get("rx_max", 0)
    if name and most > ring.get("rx", most):
        longer = command(
            f"ethtool -G {name} rx {most}", who="root", scope="this node until reboot", risk=_BRIEF, see=_MLX
        )
        yield Remedy("Make the receive ring as long as it can be", (longer,))
    yield _lossless()


_BRIEF = "The interface goes down and up again: running jobs may lose their connections."


def cloud_allowance_exceeded() -> Iterator[Remedy]:
    step = say("Use an instance type with more bandwidth, or EFA with the plug-in aws-ofi-nccl.", who="cluster admin")
    yield Remedy("Get more bandwidth", (step,))


_FULL = {
    "dropped": ("Let more packets wait", "net.core.netdev_max_backlog"),
    "drop": ("Let more connections be tracked", "net.netfilter.nf_conntrack_max"),
    "early_drop": ("Let more connections be tracked", "net.netfilter.nf_conntrack_max"),
    "ListenOverflows": ("Let more connections wait to be accepted", "net.core.somaxconn"),
}
"""Counter -> what is full, and the setting of its size."""


def kernel_drops_packets(finding: Verdict) -> Iterator[Remedy]:
    rose = re.findall(r"(\w+) \+\d", finding.measured)
    for title, setting in dict.fromkeys(_FULL[name] for name in rose if name in _FULL):
        doubled = command(
            f"sysctl -w {setting}=$((2 * $(sysctl -n {setting})))", who="root", scope="this node until reboot"
        )
        yield Remedy(title, (doubled,))


def tcp_retransmissions() -> Iterator[Remedy]:
    looked = command("nstat -az TcpRetransSegs TcpExtTCPLostRetransmit; ss -tin", scope="this node")
    yield Remedy(
        "Find the connections that lose segments",
        (looked, say("Then compare the MTU and the errors of the ports on the way.", who="network admin")),
    )


def disk_slow() -> Iterator[Remedy]:
    looked = command("iostat -x 1 5; iotop -obn 3", who="root", scope="this node")
    yield Remedy(
        "Find who uses the disk",
        (looked, say("Put data and checkpoints on a faster disk, or let fewer workers load at a time.")),
    )


def gpu_pcie_replays(finding: Verdict) -> Iterator[Remedy]:
    yield _replace(finding.subject, "Reseat the GPU, its riser and its cables; if it goes on, replace them.")


def gpu_uncorrected_errors(finding: Verdict) -> Iterator[Remedy]:
    reset = say(
        f"End the programs on {finding.subject} and reset it (nvidia-smi --gpu-reset), or restart the machine.",
        who="root",
    )
    yield Remedy("Reset the GPU", (reset,))
    yield _replace(finding.subject, "If it happens again, run dcgmi diag -r 3 and replace the GPU.")


def gpu_clocks_lowered(finding: Verdict) -> Iterator[Remedy]:
    yield _replace(
        finding.subject, "Look at fans, air flow and the temperature of the air that comes in; clean the heat sink."
    )


def nvlink_errors(finding: Verdict) -> Iterator[Remedy]:
    yield _replace(
        finding.subject, "Reset all GPUs; if it goes on, run dcgmi diag -r 3 and have the board or the bridge replaced."
    )


def cpu_throttled() -> Iterator[Remedy]:
    yield _replace("the processors", "Look at fans, air flow and the temperature of the air that comes in.")


def memory_errors_uncorrected(finding: Verdict) -> Iterator[Remedy]:
    yield _replace(
        finding.subject,
        "Take the node out of the cluster and have the memory module replaced (ras-mc-ctl --errors names it).",
    )


def memory_errors_corrected(finding: Verdict) -> Iterator[Remedy]:
    yield _replace(
        finding.subject, "Have the memory module replaced at the next maintenance (ras-mc-ctl --errors names it)."
    )


def _cable(subject: str) -> Remedy:
    """What a bad link wants, cheapest first."""
    first = say(f"Clean and reseat the cable or transceiver of {subject}, at both ends.", who="cluster admin")
    then = say(
        "If it goes on, replace the cable, then change the switch port: the fault stays with one of them.",
        who="cluster admin",
    )
    return Remedy(f"Mend the link of {subject}", (first, then))


def _lossless() -> Remedy:
    hosts = say(
        "Configure PFC and ECN (DCQCN) the same way on all hosts and switches, for the priority that NCCL_IB_TC selects.",
        who="network admin",
        see=_ROCE,
    )
    return Remedy("Make the network lossless", (hosts,))


def _replace(what: str, text: str) -> Remedy:
    return Remedy(f"Service {what}", (say(text, who="cluster admin"),))


def _device_and_port(subject: str) -> Tuple[str, str]:
    found = re.fullmatch(r"([A-Za-z0-9_]+) port (\d+)", subject)
    return (found.group(1), found.group(2)) if found else ("", "")


_ON_ALL = say("Leave out the same port on all nodes: ports are paired by position.")


def _without_port(subject: str, env: Optional[Env]) -> Step:
    device, port = _device_and_port(subject)
    return without_hca(f"{device}:{port}", env) if device else say("Leave it out of NCCL_IB_HCA.")

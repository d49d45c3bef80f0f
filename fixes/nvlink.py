"""Ways out of faults of NVLinks and peer access."""

import shlex
from typing import Iterator, Optional, Tuple

from ddp_doctor.facts import Fabric, Gpus, Os
from ddp_doctor.fixes._node import engine_of, service
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say

FABRIC_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide"
HEALTH = "https://docs.nvidia.com/health-validation/reference/checks/nvlink"
GPU_DIRECT = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-direct"
P2P_DISABLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable"


def links_inactive(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Drain the node, look and reset", (*_look(finding), *_reset(finding, gpus, os)))
    yield from _leave_out(finding, gpus)


def links_missing(finding: Verdict) -> Iterator[Remedy]:
    seat = "Power the node off, take the NVLink bridges off and put them on again, all that the pair has room for."
    yield Remedy(
        "Seat the bridges anew", (*_look(finding), say(seat, who="cluster admin", risk="the node is out of service"))
    )


def no_links_active(os: Optional[Os] = None, fabric: Optional[Fabric] = None) -> Iterator[Remedy]:
    if fabric is not None and fabric.manager_running is False and fabric.nvswitches:
        start = service(os, "enable --now", "nvidia-fabricmanager", scope="this node", see=FABRIC_GUIDE)
        yield Remedy("Start the fabric manager", (start,))
    yield Remedy(
        "See whether the driver was told to leave NVLink off",
        (
            command("grep -r NVreg_NvLinkDisable /etc/modprobe.d /proc/cmdline", scope="this node"),
            say(
                "Take NVreg_NvLinkDisable=1 away and load the driver anew. In a virtual machine ask the provider: GPUs that are "
                "passed through without their NVSwitches have no NVLink.",
                who="cluster admin",
            ),
        ),
    )


def link_slow(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Reset the GPU, so that its links train again", (*_look(finding), *_reset(finding, gpus, os)))


def link_errors(finding: Verdict) -> Iterator[Remedy]:
    yield Remedy(
        "See whether they still grow",
        (
            command("ddp-doctor run --sample 5", scope="this node"),
            *_look(finding),
            say(
                "If one link's counters grow under load, report the GPU and the link to the vendor.",
                who="cluster admin",
            ),
        ),
    )


def peer_access_denied(
    finding: Verdict, gpus: Gpus, os: Optional[Os] = None, fabric: Optional[Fabric] = None
) -> Iterator[Remedy]:
    if fabric is not None and fabric.nvswitches and not engine_of(os):
        again = service(os, "restart", "nvidia-fabricmanager", scope="this node", see=FABRIC_GUIDE)
        look = command("nvidia-smi topo -p2p r", scope="this node")
        yield Remedy("Let the fabric manager set up the fabric again", (_drained(), again, look))
    yield Remedy("Reset the GPU", (_drained(), *_reset(finding, gpus, os)))
    yield from _leave_out(finding, gpus)
    yield Remedy(
        "Meanwhile go without NVLink",
        (export("NCCL_P2P_DISABLE", "1", scope="this job", risk="many times slower", see=P2P_DISABLE),),
    )


def peer_access_missing() -> Iterator[Remedy]:
    yield Remedy(
        "Let PCIe devices reach one another",
        (
            command("nvidia-smi topo -p2p r", scope="this node"),
            say(
                "CNS: the chipset or its setup forbids it. In the BIOS switch ACS off (and the IOMMU, or set it to passthrough: "
                "iommu=pt), and see that GPUs are below one root complex. DR: take the driver's option that disables it away.",
                who="cluster admin",
                scope="this node",
                see=GPU_DIRECT,
            ),
        ),
    )
    yield Remedy(
        "If it stays so, it is only slower", (say("NCCL finds out by itself and copies through the host's memory."),)
    )


def peer_access_missing_in_guest() -> Iterator[Remedy]:
    text = "Ask the provider for a kind of machine with NVLink or with peer access, if its speed matters. NCCL works without."
    yield Remedy("Choose another kind of machine", (say(text, see=GPU_DIRECT),))


# --------------------------------------------------------------------------- steps


def _drained() -> Step:
    return say("Take the node out of service and let no job use its GPUs.", who="cluster admin")


def _pci(finding: Verdict, gpus: Gpus) -> str:
    gpu = next((g for g in gpus.gpus or () if finding.subject == f"GPU {g.index}"), None)
    return shlex.quote(gpu.pci) if gpu is not None and gpu.pci else "PCI-ADDRESS"


def _look(finding: Verdict) -> Tuple[Step, ...]:
    index = finding.subject.rpartition(" ")[2]
    which = f" -i {index}" if index.isdigit() else ""
    return (
        command(f"nvidia-smi nvlink -s{which}", scope="this node", see=HEALTH),
        command(f"nvidia-smi nvlink -e{which}", scope="this node"),
        command("dmesg | grep -iE 'Xid|SXid|nvlink'", who="root", scope="this node"),
    )


def _reset(finding: Verdict, gpus: Gpus, os: Optional[Os]) -> Tuple[Step, ...]:
    """GPUs behind switches can be reset one by one where the fabric manager runs; A100 with NVSwitch all together."""
    if engine_of(os):
        return (say("From the host, not from this container: reset the GPU, then start the container again."),)
    more = {"who": "root", "scope": "this node", "risk": "ends what runs on this GPU"}
    return (
        command(f"nvidia-smi --gpu-reset -i {_pci(finding, gpus)}", **more),
        say(
            "If the driver refuses to reset one GPU alone, reset all (nvidia-smi --gpu-reset) or reboot; if it comes back "
            "the same, report the GPU and the board to the vendor.",
            who="cluster admin",
        ),
    )


def _leave_out(finding: Verdict, gpus: Gpus) -> Iterator[Remedy]:
    left = [str(gpu.index) for gpu in gpus.gpus or () if gpu.fault is None and finding.subject != f"GPU {gpu.index}"]
    if left:
        step = export("CUDA_VISIBLE_DEVICES", ",".join(left), scope="this job")
        yield Remedy("Meanwhile leave the GPU out", (step,))

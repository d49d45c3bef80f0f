"""Ways out where GPUs are missing, do not answer or are not alike."""

from typing import Iterator, Optional, Tuple

from ddp_doctor.facts import Gpu, Gpus, Launch, Os
from ddp_doctor.fixes._node import service
from ddp_doctor.fixes.gpu._steps import (
    DEBUG,
    container_steps,
    drain,
    elsewhere,
    found,
    in_container,
    power_cycle,
    reboot,
    reset,
)
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say
from ddp_doctor.policy import Policy

IMEX = "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html"
RECOVERY = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html"


def unreadable() -> Iterator[Remedy]:
    yield Remedy(
        "See what the driver says, then reset or reboot",
        (
            command("nvidia-smi", scope="this node"),
            command("dmesg | grep -iE 'NVRM|Xid'", who="root", scope="this node"),
            say(
                "If it hangs, reboot the node; if it hangs again, the GPU or its slot is to be replaced.",
                who="cluster admin",
            ),
        ),
    )


def not_answering(
    finding: Verdict, gpus: Gpus, os: Optional[Os] = None, launch: Optional[Launch] = None
) -> Iterator[Remedy]:
    gpu = found(finding, gpus)
    said = finding.measured.lower()
    there = elsewhere(os, "drain it, look for the Xid in the kernel's log, reset the GPU or reboot")
    look = command("dmesg | grep -iE 'NVRM|Xid'", who="root", scope="this node")
    if there is not None:
        yield there
    elif "requires" in said or "reset required" in said:
        yield Remedy("Drain the node and reset the GPU", (drain(launch), look, *reset(gpu), reboot(), power_cycle()))
    elif "lost" in said or "fallen" in said:
        seat = say(
            "If it is lost again, have its power cables, its seat and then the GPU itself changed.", who="vendor"
        )
        yield Remedy("Drain the node and power it off and on", (drain(launch), look, reboot(), power_cycle(), seat))
    elif "timed out" in said or "no answer" in said:
        hangs = say("A GPU that hangs takes no reset, and processes that ask for it cannot be ended.", see=DEBUG)
        yield Remedy("Drain the node and reboot it", (drain(launch), look, hangs, reboot(), power_cycle()))
    else:
        yield Remedy(
            "Drain the node and bring the GPU back", (drain(launch), look, *reset(gpu), reboot(), power_cycle())
        )
    left = ",".join(str(g.index) for g in gpus.gpus or () if g.fault is None)
    if left:
        yield Remedy("Meanwhile leave the GPU out", (export("CUDA_VISIBLE_DEVICES", left, scope="this job"),))


def fewer_listed_than_attached() -> Iterator[Remedy]:
    """The same as for a list that breaks off."""
    yield from list_incomplete()


def list_incomplete() -> Iterator[Remedy]:
    yield Remedy(
        "Ask again, and see how it ends",
        (
            command('nvidia-smi; echo "exit status $?"', scope="this node"),
            command("dmesg | grep -iE 'NVRM|Xid'", who="root", scope="this node"),
            say("If it breaks off again at the same place, the next GPU does not answer: treat the node as one that has lost it."),
        ),
    )  # fmt: skip


def recovery_needed(
    finding: Verdict, gpus: Gpus, os: Optional[Os] = None, launch: Optional[Launch] = None
) -> Iterator[Remedy]:
    title, steps = _recovery(finding.measured, found(finding, gpus), os)
    yield elsewhere(os, title.lower()) or Remedy(title, (drain(launch), *steps))


def _recovery(action: str, gpu: Optional[Gpu], os: Optional[Os]) -> Tuple[str, Tuple[Step, ...]]:
    """What to do for an action of NVML, in the order of their number there."""
    ended = say("Let the jobs end, or end them.", who="cluster admin", risk="ends what runs on this node's GPUs")
    ways = {
        "gpu_reset": ("Reset the GPU", (ended, *reset(gpu))),
        "node_reboot": ("Reboot the node", (reboot(),)),
        "drain_p2p": (
            "End the jobs that reach this GPU from others",
            (ended, say("Ask again then: the driver may want a reset next.", see=RECOVERY)),
        ),
        "drain_and_reset": ("Let the jobs end, then reset the GPU", (ended, *reset(gpu))),
        "recover_imex_domain": (
            "Recover the NVLink domain that the GPU is part of",
            (
                command("nvidia-imex-ctl -N", who="root", scope="this node", see=IMEX),
                service(os, "restart", "nvidia-imex", scope="all nodes", risk="ends jobs of the domain"),
            ),
        ),
        "bus_reset": (
            "Reset the GPU's PCIe bus",
            (
                ended,
                say(
                    "Where the machine's management can reset the GPU's slot alone, let it; else reboot.",
                    who="cluster admin",
                ),
                reboot(),
                power_cycle(),
            ),
        ),
        "system_reboot": ("Reboot the machine, by its power if need be", (reboot(), power_cycle())),
    }
    unknown = (
        f"Do what the driver asks for: {action}",
        (say("See NVIDIA's documentation of the action.", see=RECOVERY),),
    )
    return ways.get(action, unknown)


def fewer_than_on_bus(os: Optional[Os] = None) -> Iterator[Remedy]:
    if in_container(os):
        yield Remedy("Give the container its GPUs again", container_steps(os))
        return
    yield Remedy(
        "See why the driver did not start the missing GPU",
        (
            command("dmesg | grep -iE 'NVRM|Xid|nvidia'", who="root", scope="this node"),
            say(
                "RmInitAdapter failed, fallen off the bus or a power cable: power the node off and on, then have the GPU "
                "checked. A card that this driver no longer supports can be bound to vfio-pci, which counts as set aside.",
                who="cluster admin",
            ),
        ),
    )


def fewer_than_expected(gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    if gpus.on_bus == () and not in_container(os):
        text = "No NVIDIA device is on the PCI bus: look whether the card is in its slot, powered and on in the BIOS, or, in a "
        guest = "virtual machine, whether it was passed through."
        look = command("lspci -d 10de:", scope="this node")
        yield Remedy("See why the bus shows no GPU", (look, say(text + guest, who="cluster admin")))
    else:
        yield from fewer_than_on_bus(os)
    yield Remedy(
        "Correct the expectation",
        (say("Change expect_gpus in the policy, or --expect-gpus, if this node has fewer."),),
    )


def unexpected_model(policy: Policy) -> Iterator[Remedy]:
    model = policy.expect_gpu_model or ""
    yield Remedy(
        "Use another node, or change the policy", (say(f"expect_gpu_model asks for {model!r}.", who="cluster admin"),)
    )


def fewer_than_ranks(gpus: Gpus) -> Iterator[Remedy]:
    working = sum(1 for gpu in gpus.gpus or () if gpu.fault is None)
    hidden = gpus.visible_devices is not None
    steps = (say("CUDA_VISIBLE_DEVICES hides GPUs: let it name as many as there are processes."),) if hidden else ()
    yield Remedy(
        "Start as many processes as there are GPUs",
        (
            *steps,
            say(
                f"torchrun --nproc-per-node {working or 1} (this node has {working} GPUs that answer).",
                scope="this job",
            ),
        ),
    )


def models_differ() -> Iterator[Remedy]:
    yield Remedy(
        "Let the job use the GPUs of one model",
        (
            command("nvidia-smi --query-gpu=index,name,memory.total --format=csv", scope="this node"),
            say(
                "Name them in CUDA_VISIBLE_DEVICES, with CUDA_DEVICE_ORDER=PCI_BUS_ID so that the numbers are nvidia-smi's."
            ),
        ),
    )

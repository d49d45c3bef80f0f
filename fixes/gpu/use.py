"""Ways out where GPUs are taken, closed or divided."""

import shlex
from typing import Iterator, Optional

from ddp_doctor.facts import Gpus, Os
from ddp_doctor.fixes.gpu._steps import in_container
from ddp_doctor.fixes.gpu.presence import fewer_than_ranks
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say
from ddp_doctor.policy import Policy

NCCL_MIG = "https://github.com/NVIDIA/nccl/issues/1716"


def memory_taken(finding: Verdict) -> Iterator[Remedy]:
    index = finding.subject.rpartition(" ")[2]
    look = f"nvidia-smi -i {shlex.quote(index)} --query-compute-apps=pid,name,used_memory --format=csv"
    yield Remedy(
        "Find out whose it is, and end it if it is yours",
        (
            command(look, scope="this node"),
            say("Nothing listed and memory taken: the process is in another container, or left behind; root sees it with "
                "fuser -v /dev/nvidia*.", who="root"),
        ),
    )  # fmt: skip
    yield Remedy("Use other GPUs", (say("Name free GPUs in CUDA_VISIBLE_DEVICES.", scope="this job"),))


def compute_mode_prohibited(finding: Verdict) -> Iterator[Remedy]:
    yield Remedy("Open the GPU to programs", (_default_mode(finding.subject.rpartition(" ")[2], "PROHIBITED"),))


def exclusive_and_too_many_ranks(gpus: Gpus) -> Iterator[Remedy]:
    yield from fewer_than_ranks(gpus)
    closed = [gpu for gpu in gpus.gpus or () if (gpu.compute_mode or "").startswith("exclusive")]
    yield Remedy(
        "Let several processes on a GPU (NCCL still wants one rank a GPU)",
        tuple(_default_mode(str(gpu.index), "EXCLUSIVE_PROCESS") for gpu in closed),
    )


def _default_mode(index: str, before: str) -> Step:
    number = shlex.quote(index)
    return command(
        f"nvidia-smi -i {number} -c DEFAULT",
        who="root",
        scope="this node until reboot",
        undo=f"nvidia-smi -i {number} -c {before}",
    )


def mig_against_policy(finding: Verdict, policy: Policy) -> Iterator[Remedy]:
    if "unsupported" in finding.measured:
        yield Remedy("Use another node", (say("This GPU cannot be divided.", who="cluster admin"),))
        return
    index = shlex.quote(finding.subject.rpartition(" ")[2])
    on = int(policy.mig == "required")
    yield Remedy(
        f"Switch MIG {'on' if on else 'off'}",
        (
            say("Let no process use the GPU; a GPU reset or a reboot makes the change active.", who="cluster admin"),
            command(
                f"nvidia-smi -i {index} -mig {on}",
                who="root",
                scope="this node",
                undo=f"nvidia-smi -i {index} -mig {1 - on}",
            ),
        ),
    )


def mig_and_too_many_ranks(gpus: Gpus) -> Iterator[Remedy]:
    yield Remedy(
        "Start one process a GPU",
        (say(f"torchrun --nproc-per-node {len(gpus.gpus or ()) or 1}, each on a slice of a GPU of its own.", scope="this job"),),
    )  # fmt: skip
    yield _whole_gpus()
    yield Remedy(
        "Let NCCL put several ranks on a GPU, as an experiment",
        (
            export("NCCL_MULTI_RANK_GPU_ENABLE", "1", scope="this job", risk="NCCL 2.32 and newer; it may hang", see=NCCL_MIG),
            say("Each process names its own slice: CUDA_VISIBLE_DEVICES=MIG-UUID (nvidia-smi -L).", scope="this job"),
        ),
    )  # fmt: skip


def mig_and_several_ranks() -> Iterator[Remedy]:
    yield _whole_gpus()


def _whole_gpus() -> Remedy:
    return Remedy(
        "Use whole GPUs: other ones, or these with MIG off",
        (
            say("Ask the scheduler for GPUs without MIG.", scope="this job"),
            command(
                "nvidia-smi -mig 0",
                who="root",
                scope="this node",
                risk="ends what runs on the slices and removes them",
                undo="nvidia-smi -mig 1",
            ),
        ),
    )


def mig_unlike_siblings(finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    if in_container(os):
        yield Remedy(
            "Name the GPUs that the job shall use", (say("By their UUIDs (nvidia-smi -L), in CUDA_VISIBLE_DEVICES."),)
        )
        return
    index, on = shlex.quote(finding.subject.rpartition(" ")[2]), int("enabled" not in finding.measured)
    yield Remedy(
        "Make the GPUs alike",
        (
            say("Let no process use the GPU; on some models a reset makes the change active.", who="cluster admin"),
            command(f"nvidia-smi -i {index} -mig {on}", who="root", scope="this node", undo=f"nvidia-smi -i {index} -mig {1 - on}"),
        ),
    )  # fmt: skip
    yield Remedy(
        "Name the GPUs that the job shall use", (say("By their UUIDs (nvidia-smi -L), in CUDA_VISIBLE_DEVICES."),)
    )

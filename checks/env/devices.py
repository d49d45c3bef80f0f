"""CUDA_VISIBLE_DEVICES and the order of the GPUs."""

import re
from typing import Iterator, List, Optional, Sequence

from ddp_doctor import accelerators
from ddp_doctor.checks._job import ranks_here
from ddp_doctor.checks.env._settings import is_value, one, said
from ddp_doctor.facts import Env, Gpus, Launch, Variable
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.numerals import whole
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural

VISIBLE = "CUDA_VISIBLE_DEVICES"


@check(Severity.WARNING)
def all_gpus_hidden(env: Env, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """CUDA_VISIBLE_DEVICES hides every GPU.

    Why: Empty, or with -1 or something invalid in the first place, it leaves CUDA no device: is_available() is False and NCCL does
        not start. Right for a program that shall run on the CPU.
    See: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    variable = _visible(env)
    if variable is not None and (gpus is None or accelerators.is_gpu_node(gpus)):
        yield Reading(
            ok=bool(accelerators.chosen(variable.value)),
            subject=VISIBLE,
            measured=said(variable) if variable.value else f"{VISIBLE} is empty",
            expected="indices or UUIDs of GPUs, or not set",
            message="no GPU is visible to programs with this environment",
        )


def _visible(env: Env) -> Optional[Variable]:
    """The variable, also when it is empty, which CUDA does not take for unset."""
    found = next((v for v in known(env.variables, env, "variables") if v.name == VISIBLE), None)
    return found if found is not None and is_value(found.value) else None


def _entries(variable: Variable) -> List[str]:
    return [entry.strip() for entry in variable.value.split(",")]


@check(Severity.ERROR)
def gpu_listed_twice(env: Env) -> Iterator[Reading]:
    """CUDA_VISIBLE_DEVICES names a GPU twice.

    Why: The call torch.cuda.device_count() then gives 0, and CUDA gives an error instead of the devices.
    See: https://github.com/pytorch/pytorch/blob/v2.4.0/torch/cuda/__init__.py
        https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    variable = one(env, VISIBLE)
    if variable is not None:
        entries = _entries(variable)
        twice = sorted({entry for entry in entries if entry and entries.count(entry) > 1})
        yield Reading(
            ok=not twice,
            subject=VISIBLE,
            measured=said(variable),
            expected="every GPU once",
            message=f"{', '.join(twice)} is listed more than once: no GPU will be visible",
        )


@check(Severity.WARNING)
def gpu_list_cut(env: Env, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """CUDA_VISIBLE_DEVICES has an entry that is none, and CUDA stops reading there.

    Why: An index or a UUID that this node does not have, a blank before a UUID, or indices and UUIDs mixed end the list without
        a word: the GPUs named before are visible, those behind are not.
    See: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    variable = _visible(env)
    entries = _entries(variable) if variable is not None and variable.value.strip() else []
    good = accelerators.chosen(variable.value) if variable is not None else ()
    if variable is None or not good or entries[len(good) : len(good) + 1] == ["-1"]:  # "0,1,-1": cut on purpose
        return
    blank = [e.strip() for e in variable.value.split(",") if e != e.lstrip() and _kind(e.strip()) != "index"]
    bad = next((e for e in good if not _is_here(e, gpus) or _kind(e) != _kind(good[0]) or e in blank), "")
    bad = bad or (entries[len(good)] or "an empty entry" if len(entries) > len(good) else "")
    yield Reading(
        ok=not bad,
        subject=VISIBLE,
        measured=said(variable) + _have(gpus),
        expected="indices or UUIDs, of one kind, of GPUs that are here",
        message=f"CUDA ignores {bad} and what follows it",
    )


def _kind(entry: str) -> str:
    return "index" if whole(entry) is not None else entry[:3].upper()


def _whole(gpus: Optional[Gpus]) -> Sequence[str]:
    """UUIDs of the GPUs that NVML told about; () where it cannot be said what CUDA would number: unknown, or MIG."""
    found = gpus.gpus if gpus is not None and gpus.source == "nvml" else None
    if not found or any(gpu.mig == "enabled" for gpu in found):
        return ()
    return [gpu.uuid or "" for gpu in found]


def _is_here(entry: str, gpus: Optional[Gpus]) -> bool:
    """Is there such a GPU? True where that is not known."""
    uuids = _whole(gpus)
    if not uuids or _kind(entry) == "MIG" or (_kind(entry) != "index" and not all(uuids)):
        return True
    index = whole(entry)
    return any(u.lower().startswith(entry.lower()) for u in uuids) if index is None else index < len(uuids)


def _have(gpus: Optional[Gpus]) -> str:
    return f"; {plural(len(_whole(gpus)), 'GPU')} here" if _whole(gpus) else ""


@check(Severity.ERROR)
def fewer_gpus_than_ranks(
    env: Env, policy: Policy, launch: Optional[Launch] = None, gpus: Optional[Gpus] = None
) -> Iterator[Reading]:
    """CUDA_VISIBLE_DEVICES names fewer GPUs than there are ranks on a node.

    Why: A script takes the GPU of its LOCAL_RANK: those beyond the last one fail with "invalid device ordinal". A scheduler
        that shows each rank one GPU of its own means device 0.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    variable = one(env, VISIBLE)
    told = one(env, "LOCAL_WORLD_SIZE")
    ranks = ranks_here(policy, launch) or (
        int(told.value) if told is not None and re.fullmatch(r"\d{1,9}", told.value) else None
    )
    names = accelerators.chosen(variable.value) if variable is not None else None
    if gpus is None and names and ranks is not None and variable is not None:  # with GPUs known, gpu and launch judge
        alone = len(names) == 1 and any(v.name.startswith("SLURM_") for v in env.variables or ())
        yield Reading(
            ok=len(names) >= ranks or alone,
            subject=VISIBLE,
            measured=f"{said(variable)}: {plural(len(names), 'GPU')} for {plural(ranks, 'rank')}",
            expected=f"at least {plural(ranks, 'GPU')}",
            message=f"{plural(ranks - len(names), 'rank')} will have no GPU",
        )


@check(Severity.NOTE)
def gpu_order_differs(env: Env, gpus: Gpus) -> Iterator[Reading]:
    """CUDA numbers the unlike GPUs of this node otherwise than nvidia-smi does.

    Why: CUDA puts the fastest first, nvidia-smi goes by PCI address. With CUDA_VISIBLE_DEVICES by index another GPU may be chosen
        than the one that was looked up. CUDA_DEVICE_ORDER=PCI_BUS_ID makes both the same.
    See: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    variable, order = one(env, VISIBLE), one(env, "CUDA_DEVICE_ORDER")
    names = {gpu.name for gpu in accelerators.answering(gpus) if gpu.name}
    by_index = variable is not None and variable.value[:1].isdigit()
    if len(names) > 1 and variable is not None and by_index:
        yield Reading(
            ok=order is not None and order.value == "PCI_BUS_ID",
            subject="CUDA_DEVICE_ORDER",
            measured=f"{said(variable)}, {said(order) if order is not None else 'CUDA_DEVICE_ORDER is not set'}",
            expected="CUDA_DEVICE_ORDER=PCI_BUS_ID",
            message="the numbers in CUDA_VISIBLE_DEVICES need not be those of nvidia-smi",
        )

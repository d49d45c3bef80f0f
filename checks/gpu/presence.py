"""Checks of the GPUs' presence: are those that the job needs here, do they answer, are they alike."""

from collections import Counter
from typing import Iterator, Mapping, Optional, Sequence

from ddp_doctor.accelerators import (
    answering,
    drivable,
    is_gpu_node,
    is_jetson,
    label,
    none_admitted,
    ranks_per_node,
    taken_away,
    without_display_cards,
)
from ddp_doctor.checks.gpu._told import demanded, only_if_told, silent, unsure, usable_gpus
from ddp_doctor.facts import Gpu, Gpus, Launch, Os, Reason
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, unknown, why_unknown
from ddp_doctor.policy import GIB, Policy
from ddp_doctor.units import plural


@check(Severity.ERROR)
def unreadable(
    policy: Policy, reasons: Mapping[str, Reason], gpus: Optional[Gpus] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """The GPUs that should be here could not be read.

    Why: A driver that does not answer, or answers with an error, will not answer to the job either: a GPU that fell off
        the bus, a hung driver, devices that a container lost. What could not be read is never taken for healthy.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
    """
    is_due = demanded(policy)
    if is_jetson(os) and not is_due:  # older ones have the driver and no NVML
        return
    if gpus is None:
        reason = reasons.get("gpus")
        if is_due and reason is not None and reason.kind not in ("not-asked", "not-recorded", "interrupted"):
            yield _unreadable(reason.text, "asked for by --require, --expect-gpus or the policy")
        return
    if _complained(gpus):
        yield _unreadable(gpus.unread["gpus"].text, "somebody asked nvidia-smi for the GPUs of this node")
        return
    if not (is_due or gpus.kernel_module or is_gpu_node(gpus, os)) or (none_admitted(gpus, os) and not is_due):
        return
    mute = silent(gpus)
    if gpus.gpus == () and gpus.source == "proc":  # there is no driver that could be silent
        return
    if gpus.gpus is not None and mute is None:
        yield Reading(ok=True, measured=f"{plural(len(gpus.gpus), 'GPU')} read by {gpus.source or 'the driver'}")
    elif mute is not None and mute.kind == "absent":  # neither NVML nor nvidia-smi is here: CUDA may work all the same
        raise NotKnown(mute)
    elif not _explained(gpus) and not taken_away(gpus, os):
        why = gpus.nvml_error or (mute or why_unknown(gpus, "gpus")).text
        yield _unreadable(why, "the PCI bus, the loaded driver or the policy says that GPUs are here")


def _unreadable(why: str, because: str) -> Reading:
    return Reading(
        ok=False, measured=why, expected=f"an answer: {because}", message=f"the GPUs could not be read: {why}"
    )


def _complained(gpus: Gpus) -> bool:
    """Is this what nvidia-smi printed elsewhere, and is it a complaint instead of GPUs?"""
    said = gpus.unread.get("gpus")
    return (
        gpus.source == "nvidia-smi"
        and not gpus.gpus
        and bool(said and said.kind == "unreadable")
        and not _explained(gpus)
    )


def _explained(gpus: Gpus) -> bool:
    """Another check names the fault: no driver, or two versions of it."""
    no_driver = gpus.kernel_module == "" and bool(gpus.on_bus)
    return no_driver or "mismatch" in (gpus.nvml_error or "").lower()


@check(Severity.ERROR)
def not_answering(gpus: Gpus) -> Iterator[Reading]:
    """A GPU is lost or does not answer.

    Why: A GPU that fell off the bus (Xid 79) or whose firmware hangs takes the whole job down: its rank fails at the
        first CUDA call, or NCCL waits for it for ever. It comes back by a reset or a reboot, if at all.
    See: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
    """
    only_if_told(gpus)
    for gpu in gpus.gpus or ():
        yield Reading(
            ok=gpu.fault is None,
            subject=label(gpu),
            measured=gpu.fault or "answers",
            expected="answers",
            message=f"{label(gpu)}{f' at {gpu.pci}' if gpu.pci else ''} does not answer: {gpu.fault}",
        )


@check(Severity.WARNING)
def list_incomplete(gpus: Gpus) -> Iterator[Reading]:
    """The list of GPUs breaks off: there may be more of them than it names.

    Why: Either nvidia-smi ended at the next GPU, as it does where that one does not answer, or the text was cut when it was
        copied. What the list does not name is not judged.
    See: https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
    """
    broken = gpus.unread.get("gpus")
    if gpus.gpus and gpus.source != "proc" and not _counted(broken):
        yield Reading(
            ok=broken is None,
            measured=broken.text if broken else f"{plural(len(gpus.gpus), 'GPU')}, to the end",
            expected="a list that is whole",
            message=_why_incomplete(len(gpus.gpus), broken),
        )


def _why_incomplete(listed: int, broken: Optional[Reason]) -> str:
    if broken is not None and "listed before" in broken.text:
        return f"the list names {plural(listed, 'GPU')} more than once: it was edited, or put together out of several"
    return (
        f"the list of GPUs breaks off after {plural(listed, 'GPU')}: nvidia-smi ended at the next one, "
        "or the text was cut when it was copied"
    )


def _counted(broken: Optional[Reason]) -> bool:
    """nvidia-smi itself says that more are attached than it lists."""
    return broken is not None and " attached" in broken.text


@check(Severity.ERROR)
def fewer_listed_than_attached(gpus: Gpus) -> Iterator[Reading]:
    """More GPUs are attached than nvidia-smi lists.

    Why: It counts the GPUs before it asks each of them, and ends at one that does not answer. If the text was cut when it was
        copied, look at the whole of it: what it does not list is not judged.
    See: https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
    """
    broken = gpus.unread.get("gpus")
    if gpus.gpus and broken is not None and _counted(broken):
        yield Reading(
            ok=False,
            measured=broken.text,
            expected="as many listed as attached",
            message="nvidia-smi does not list all GPUs that it says are attached",
        )


@check(Severity.ERROR)
def recovery_needed(gpus: Gpus) -> Iterator[Reading]:
    """The driver says that a GPU must be brought back before it is used again.

    Why: The driver knows best what a fault has left behind: the next job on the GPU fails or hangs until this is done. What was
        measured is the action in one word, for automation: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset,
        recover_imex_domain, bus_reset or system_reboot.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
        nvml.h, nvmlDeviceGpuRecoveryAction_t
    """
    for gpu in answering(gpus):
        if gpu.recovery_action is not None:
            yield Reading(
                ok=gpu.recovery_action == "none",
                subject=label(gpu),
                measured=gpu.recovery_action,
                expected="none",
                message=f"the driver asks for a recovery of {label(gpu)}: {_words(gpu.recovery_action)}",
            )
    yield from unsure(gpus, "recovery_action")


_ACTIONS = {
    "gpu_reset": "reset it",
    "node_reboot": "reboot the node",
    "drain_p2p": "let the jobs end that reach it from other GPUs",
    "drain_and_reset": "let the jobs on it end, then reset it",
    "recover_imex_domain": "recover the NVLink domain (IMEX) that it is part of",
    "bus_reset": "reset its PCIe bus",
    "system_reboot": "reboot the machine",
}
"""Recovery action of NVML (nvmlDeviceGpuRecoveryAction_t) -> what to do, in words."""


def _words(action: str) -> str:
    return _ACTIONS.get(action, action.replace("_", " "))


@check(Severity.ERROR)
def fewer_than_on_bus(gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """The driver sees fewer GPUs than are on the PCI bus and were admitted to this container or job.

    Why: A GPU on the bus that the driver could not start, or that a container lost, is missing from the job: ranks fail
        with "invalid device ordinal", or the job runs on fewer GPUs than it was given. /sys shows a container all GPUs
        of the machine, so only those admitted to it count; those set aside for guests (vfio) do not.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
    """
    if gpus.gpus is None or not gpus.on_bus or none_admitted(gpus, os):
        return
    on_bus = drivable(gpus)
    only_if_told(gpus)
    if gpus.admitted is None and os and os.container:
        raise NotKnown(Reason("not-applicable", "nothing says how many GPUs this container was given"))
    due = len(on_bus) if gpus.admitted is None else min(gpus.admitted, len(on_bus))
    seen = {gpu.pci for gpu in gpus.gpus}
    missing = [f"{gpu.pci} ({_bound(gpu.driver)})" for gpu in on_bus if gpu.pci not in seen]
    admitted = f", {gpus.admitted} admitted by {gpus.admitted_by}" if gpus.admitted is not None else ""
    yield Reading(
        ok=len(gpus.gpus) >= due,
        measured=f"{plural(len(gpus.gpus), 'GPU')} of {len(on_bus)} on the bus{admitted}",
        expected=plural(due, "GPU"),
        message=f"{plural(due - len(gpus.gpus), 'GPU')} missing from the driver: {', '.join(missing) or 'unknown which'}",
    )


def _bound(driver: Optional[str]) -> str:
    return f"bound to {driver}" if driver else "bound to no driver"


@check(Severity.ERROR)
def fewer_than_expected(gpus: Gpus, policy: Policy) -> Iterator[Reading]:
    """There are fewer GPUs than expected.

    Why: The policy, --expect-gpus or --require gpus says how many GPUs this node must have.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
    """
    expected = policy.expect_gpus if policy.expect_gpus is not None else int("gpus" in policy.require)
    if not expected:
        return
    found = 0 if gpus.on_bus == () and not gpus.kernel_module and not gpus.gpus else len(known(gpus.gpus, gpus, "gpus"))
    only_if_told(gpus)
    working = len(answering(gpus))
    yield Reading(
        ok=working >= expected,
        measured=plural(working, "GPU") + (f", and {found - working} that does not answer" if found > working else ""),
        expected=f"at least {plural(expected, 'GPU')}",
        message=f"{working} of {plural(expected, 'GPU')} that this node must have",
    )


@check(Severity.ERROR)
def unexpected_model(gpus: Gpus, policy: Policy) -> Iterator[Reading]:
    """A GPU is not of the model that the policy expects.

    Why: A node with other GPUs than planned runs out of memory or slows down the whole job (expect_gpu_model).
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
    """
    if not policy.expect_gpu_model:
        return
    for gpu in answering(gpus):
        if gpu.name is None:
            yield unknown(gpu, "name", label(gpu))
            continue
        yield Reading(
            ok=policy.expect_gpu_model.lower() in gpu.name.lower(),
            subject=label(gpu),
            measured=gpu.name,
            expected=policy.expect_gpu_model,
            message=f"{label(gpu)} is {gpu.name}, not {policy.expect_gpu_model}",
        )


@check(Severity.ERROR)
def fewer_than_ranks(
    gpus: Gpus, policy: Policy, launch: Optional[Launch] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """There are fewer GPUs than processes that the job starts on this node.

    Why: Each rank takes the GPU of its LOCAL_RANK: those beyond the last GPU fail with "invalid device ordinal", and two
        ranks on one GPU make NCCL stop with "Duplicate GPU detected".
    See: https://github.com/NVIDIA/nccl/issues/1241
    """
    ranks = ranks_per_node(policy, launch)
    if ranks is None or not is_gpu_node(gpus, os):
        return
    if any(gpu.mig == "enabled" for gpu in answering(gpus)):
        raise NotKnown(Reason("not-applicable", "MIG divides these GPUs: their number does not bound the ranks"))
    usable, how = usable_gpus(gpus)
    yield Reading(
        ok=usable >= ranks,
        measured=f"{plural(usable, 'GPU')}{how}",
        expected=f"at least {ranks}, one for each process of this node",
        message=f"{plural(ranks, 'process', 'processes')} for {plural(usable, 'GPU')}: {_last(ranks - usable)} will fail",
    )


def _last(number: int) -> str:
    return "the last" if number == 1 else f"the last {number}"


@check(Severity.WARNING)
def models_differ(gpus: Gpus) -> Iterator[Reading]:
    """The GPUs of this node are not alike.

    Why: All ranks wait for the slowest GPU, and the one with the least memory bounds the batch. It works. A small card
        that drives a screen beside large ones is no fault: CUDA puts the fastest first, so a job does not reach it.
    See: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    working = answering(gpus)
    if len(working) < 2:
        return
    only_if_told(gpus)
    if any(gpu.name is None for gpu in working):
        raise NotKnown(why_unknown(next(gpu for gpu in working if gpu.name is None), "name"))
    compute, small = without_display_cards(working)
    beside = f"; beside them {_models(small)}, too small to train on" if small else ""
    yield Reading(
        ok=len({_model(gpu) for gpu in compute}) == 1,
        measured=_models(compute) + beside,
        expected="GPUs of one model",
        message=f"unlike GPUs, the slowest sets the pace: {_models(compute)}",
    )


def _model(gpu: Gpu) -> str:
    """Name and memory in whole GiB: one name is sold with different memory (A100-SXM4 is not, A100 80GB PCIe is)."""
    memory = f" ({round(gpu.memory_total_bytes / GIB)} GiB)" if gpu.memory_total_bytes else ""
    return f"{gpu.name}{memory}"


def _models(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{number} x {name}" for name, number in Counter(map(_model, gpus)).items())

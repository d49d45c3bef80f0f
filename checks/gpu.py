"""Checks of GPUs: are those that the job needs here, does the driver answer, are they free and alike."""

from collections import Counter
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple

from ddp_doctor.accelerators import (
    answering,
    chosen,
    drivable,
    is_gpu_node,
    is_jetson,
    label,
    none_admitted,
    ranks_per_node,
    taken_away,
    without_display_cards,
)
from ddp_doctor.facts import Env, Gpu, GpuProcess, Gpus, Launch, Os, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, unknown, why_unknown
from ddp_doctor.policy import GIB, Policy
from ddp_doctor.units import plural, size
from ddp_doctor.versions import at_least

CUDA_11_FLOOR = "450.80.02"
"""The oldest driver that runs any CUDA 11 build (CUDA compatibility guide, minor version compatibility)."""

MEMORY_TAKEN_BYTES = 2 * GIB
"""More than this in use before a job starts is somebody's: AMD's Primus preflight draws the line there too
(AMD-AGI/Primus, primus/tools/preflight/node_smoke). A desktop, DCGM and MPS stay below."""

RESERVE_BYTES = GIB
"""What the driver keeps for itself and NVML's first memory call counts as used, at most: 912 MB were seen on an idle A100
(github.com/Cldfire/nvml-wrapper/issues/57)."""

NEEDED_BY_THE_NODE = (
    "nv-hostengine",
    "dcgm",
    "nvidia-cuda-mps",
    "xorg",
    "xwayland",
    "gnome-shell",
    "nvidia-persistenced",
)
"""Beginnings of process names that belong on a GPU of a healthy node."""


# --------------------------------------------------------------------------- the driver


@check(Severity.ERROR)
def driver_not_loaded(gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """A GPU is on the PCI bus and no NVIDIA driver is loaded.

    Why: Without the kernel module nothing can use the GPU: CUDA finds no device and NCCL does not start. A new kernel
        whose module was not built (DKMS) and an installation that was never finished are the usual reasons.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html
    """
    on_bus = drivable(gpus)
    if not on_bus or none_admitted(gpus, os):
        return
    loaded = bool(gpus.gpus) or known(gpus.kernel_module, gpus, "kernel_module") != ""
    yield Reading(
        ok=loaded,
        measured=f"{plural(len(on_bus), 'GPU')} on the bus, "
        + (f"driver {gpus.driver}" if loaded else "no driver loaded"),
        expected="the nvidia kernel module is loaded",
        message=f"{plural(len(on_bus), 'GPU')} cannot be used: the NVIDIA driver is not loaded",
    )


@check(Severity.ERROR)
def bound_to_nouveau(
    gpus: Gpus, policy: Policy, torch: Optional[Torch] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """A GPU that torch or the policy wants is held by nouveau, the kernel's own display driver.

    Why: Nouveau cannot run CUDA, and NVIDIA's driver does not take a GPU that another driver has.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html
    """
    if _wanted(policy, torch):
        yield from _nouveau(gpus, os)


@check(Severity.NOTE)
def left_to_nouveau(
    gpus: Gpus, policy: Policy, torch: Optional[Torch] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """A GPU is held by nouveau, and no torch with CUDA is known here that would use it.

    Why: Nouveau serves a screen well and cannot run CUDA: to train on this GPU, NVIDIA's driver has to take its place.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/index.html
    """
    if not _wanted(policy, torch):
        yield from _nouveau(gpus, os)


def _wanted(policy: Policy, torch: Optional[Torch]) -> bool:
    """Does the policy ask for GPUs, or is there a torch that uses NVIDIA's?"""
    return _demanded(policy) or bool(torch and torch.cuda)


def _demanded(policy: Policy) -> bool:
    return "gpus" in policy.require or bool(policy.expect_gpus)


def _nouveau(gpus: Gpus, os: Optional[Os]) -> Iterator[Reading]:
    if none_admitted(gpus, os):
        return
    for gpu in known(gpus.on_bus, gpus, "on_bus"):
        if gpu.driver is None:
            yield unknown(gpus, "on_bus", gpu.pci)
        elif gpu.driver in ("nouveau", "nvidia"):
            yield Reading(
                ok=gpu.driver != "nouveau",
                subject=gpu.pci,
                measured=f"bound to {gpu.driver}",
                expected="bound to nvidia",
                message=f"the GPU at {gpu.pci} is held by nouveau, which cannot run CUDA",
            )


@check(Severity.ERROR)
def driver_library_mismatch(gpus: Gpus) -> Iterator[Reading]:
    """The driver's library and the loaded kernel module are of different versions.

    Why: The driver was upgraded and the old kernel module still runs (or a container brings libraries of another
        version). NVML and CUDA refuse to talk across versions: "Driver/library version mismatch", CUDA error 803.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
    """
    mismatch = "mismatch" in (gpus.nvml_error or "").lower()
    if not mismatch:
        _only_if_told(gpus)
    if mismatch or gpus.gpus:
        module, library = gpus.kernel_module or "of unknown version", gpus.library or "another version"
        yield Reading(
            ok=not mismatch,
            measured=f"kernel module {module}, library {library}" if mismatch else f"driver {gpus.driver or module}",
            expected="both of one version",
            message="the NVIDIA driver was changed under the running kernel module: neither nvidia-smi nor CUDA starts",
        )


@check(Severity.ERROR)
def unreadable(
    policy: Policy, reasons: Mapping[str, Reason], gpus: Optional[Gpus] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """The GPUs that should be here could not be read.

    Why: A driver that does not answer, or answers with an error, will not answer to the job either: a GPU that fell off
        the bus, a hung driver, devices that a container lost. What could not be read is never taken for healthy.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
    """
    demanded = _demanded(policy)
    if is_jetson(os) and not demanded:  # older ones have the driver and no NVML
        return
    if gpus is None:
        reason = reasons.get("gpus")
        if demanded and reason is not None and reason.kind not in ("not-asked", "not-recorded", "interrupted"):
            yield _unreadable(reason.text, "asked for by --require, --expect-gpus or the policy")
        return
    if not (demanded or gpus.kernel_module or is_gpu_node(gpus, os)) or (none_admitted(gpus, os) and not demanded):
        return
    silent = _silent(gpus)
    if gpus.gpus == () and gpus.source == "proc":  # there is no driver that could be silent
        return
    if gpus.gpus is not None and silent is None:
        yield Reading(ok=True, measured=f"{plural(len(gpus.gpus), 'GPU')} read by {gpus.source or 'the driver'}")
    elif (
        silent is not None and silent.kind == "absent"
    ):  # neither NVML nor nvidia-smi is here: CUDA may work all the same
        raise NotKnown(silent)
    elif not _explained(gpus) and not taken_away(gpus, os):
        why = gpus.nvml_error or (silent or why_unknown(gpus, "gpus")).text
        yield _unreadable(why, "the PCI bus, the loaded driver or the policy says that GPUs are here")


def _unreadable(why: str, because: str) -> Reading:
    return Reading(
        ok=False, measured=why, expected=f"an answer: {because}", message=f"the GPUs could not be read: {why}"
    )


def _silent(gpus: Gpus) -> Optional[Reason]:
    """Why the driver told nothing of GPUs that the kernel's own trees show; None where it told, or there are none."""
    if gpus.source != "proc" or not gpus.gpus:
        return None
    return gpus.gpus[0].unread.get(
        "memory_total_bytes", Reason("unreadable", gpus.nvml_error or "the driver was silent")
    )


def _only_if_told(gpus: Gpus) -> None:
    """Raises NotKnown where the driver told nothing: what the kernel's trees show need not work."""
    silent = _silent(gpus)
    if silent is not None:
        raise NotKnown(silent)


def _explained(gpus: Gpus) -> bool:
    """Another check names the fault: no driver, or two versions of it."""
    no_driver = gpus.kernel_module == "" and bool(gpus.on_bus)
    return no_driver or "mismatch" in (gpus.nvml_error or "").lower()


@check(Severity.ERROR)
def driver_below_minimum(gpus: Gpus, policy: Policy) -> Iterator[Reading]:
    """The NVIDIA driver is older than this site's minimum.

    Why: The site asks for a driver at least this new (driver_minimum in the policy).
    See: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    if policy.driver_minimum and (gpus.gpus or gpus.kernel_module):
        yield _driver_reading(gpus, policy.driver_minimum, "the site's policy")


@check(Severity.WARNING)
def driver_too_old_for_cuda_11(gpus: Gpus, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """The NVIDIA driver is too old for any CUDA 11 build, and no CUDA build is installed that could tell better.

    Why: Every torch since 1.13 is built with CUDA 11 or newer; such a build does not start on this driver. Where a torch
        with CUDA is installed stack/driver-too-old judges by its own floor instead.
    See: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    if not (gpus.gpus or gpus.kernel_module) or policy.driver_minimum or (torch and torch.cuda):
        return
    yield _driver_reading(gpus, CUDA_11_FLOOR, "the floor of CUDA 11")


def _driver_reading(gpus: Gpus, floor: str, whose: str) -> Reading:
    driver = gpus.driver or gpus.kernel_module or known(gpus.driver, gpus, "driver")
    return Reading(
        ok=at_least(driver, floor),
        measured=f"driver {driver}",
        expected=f"at least {floor} ({whose})",
        message=f"NVIDIA driver {driver} is older than {floor}, {whose}",
        reason=Reason("unreadable", f"driver version {driver!r}") if at_least(driver, floor) is None else None,
    )


# --------------------------------------------------------------------------- how many, and which


@check(Severity.ERROR)
def not_answering(gpus: Gpus) -> Iterator[Reading]:
    """A GPU is lost or does not answer.

    Why: A GPU that fell off the bus (Xid 79) or whose firmware hangs takes the whole job down: its rank fails at the
        first CUDA call, or NCCL waits for it for ever. It comes back by a reset or a reboot, if at all.
    See: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
    """
    _only_if_told(gpus)
    for gpu in gpus.gpus or ():
        yield Reading(
            ok=gpu.fault is None,
            subject=label(gpu),
            measured=gpu.fault or "answers",
            expected="answers",
            message=f"{label(gpu)}{f' at {gpu.pci}' if gpu.pci else ''} does not answer: {gpu.fault}",
        )


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
    _only_if_told(gpus)
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
    _only_if_told(gpus)
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
    usable, how = _usable(gpus)
    yield Reading(
        ok=usable >= ranks,
        measured=f"{plural(usable, 'GPU')}{how}",
        expected=f"at least {ranks}, one for each process of this node",
        message=f"{plural(ranks, 'process', 'processes')} for {plural(usable, 'GPU')}: the last {ranks - usable} will fail",
    )


def _usable(gpus: Gpus) -> Tuple[int, str]:
    """GPUs that answer and that CUDA_VISIBLE_DEVICES leaves, and how that was counted."""
    known(gpus.gpus, gpus, "gpus")
    _only_if_told(gpus)
    working = len(answering(gpus))
    names = chosen(gpus.visible_devices)
    if names is None or len(names) >= working:
        return working, ""
    return len(names), f" (CUDA_VISIBLE_DEVICES={gpus.visible_devices})"


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
    _only_if_told(gpus)
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


# --------------------------------------------------------------------------- are they free


@check(Severity.WARNING)
def memory_taken(gpus: Gpus) -> Iterator[Reading]:
    """Memory of a GPU is already taken.

    Why: Another job, a notebook or a process that was left behind holds it: the new job runs out of memory, or shares
        the GPU's time. Counted is what NVML's second memory call says, without the driver's reserve, DCGM and MPS.
    See: https://docs.nvidia.com/deploy/nvml-api/structnvmlMemory__v2__t.html
        https://github.com/Cldfire/nvml-wrapper/issues/57
    """
    for gpu in answering(gpus):
        if gpu.memory_used_bytes is None:
            yield unknown(gpu, "memory_used_bytes", label(gpu))
            continue
        owners = [process for process in gpu.processes or () if not _belongs(process)]
        if _is_system_memory(gpu) and not owners:
            continue
        reserve = RESERVE_BYTES if gpu.memory_used_includes_reserve else 0
        taken = gpu.memory_used_bytes - sum(p.used_bytes or 0 for p in gpu.processes or () if _belongs(p))
        yield Reading(
            ok=taken <= MEMORY_TAKEN_BYTES + reserve,
            subject=label(gpu),
            measured=_taken(gpu, owners),
            expected=f"at most {size(MEMORY_TAKEN_BYTES + reserve)} in use before the job starts",
            message=f"{size(taken)} of {label(gpu)} are in use by {_owners(owners)}",
        )


def _belongs(process: GpuProcess) -> bool:
    name = (process.name or "").rsplit("/", 1)[-1].lower()
    return process.kind in ("graphics", "mps") or name.startswith(NEEDED_BY_THE_NODE)


def _is_system_memory(gpu: Gpu) -> bool:
    """The GPU's memory is a NUMA node of the system (Grace): "used" may be the kernel's file cache there (NVML guide)."""
    return any(board in (gpu.name or "") for board in ("GH200", "GB200", "GB300", "GB10"))


def _taken(gpu: Gpu, owners: Sequence[GpuProcess]) -> str:
    of = f" of {size(gpu.memory_total_bytes)}" if gpu.memory_total_bytes else ""
    return f"{size(gpu.memory_used_bytes or 0)}{of} used" + (f" by {_owners(owners)}" if owners else "")


def _owners(owners: Sequence[GpuProcess]) -> str:
    named = [f"{(p.name or 'a process').rsplit('/', 1)[-1]} (pid {p.pid})" for p in owners]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return ", ".join(named[:3]) + more if named else "processes that are not visible from here"


@check(Severity.ERROR)
def compute_mode_prohibited(gpus: Gpus) -> Iterator[Reading]:
    """A GPU is in the compute mode Prohibited.

    Why: No program may open a CUDA context on it: CUDA says "all CUDA-capable devices are busy or unavailable" (46).
    See: https://docs.nvidia.com/deploy/mps/when-to-use-mps.html
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
    """
    for gpu in answering(gpus):
        if gpu.compute_mode is not None:
            yield Reading(
                ok=gpu.compute_mode != "prohibited",
                subject=label(gpu),
                measured=f"compute mode {gpu.compute_mode}",
                expected="default, or exclusive_process with one process a GPU",
                message=f"{label(gpu)} is closed to programs: compute mode Prohibited",
            )
        elif "compute_mode" not in gpu.unsupported:
            yield unknown(gpu, "compute_mode", label(gpu))


@check(Severity.ERROR)
def exclusive_and_too_many_ranks(
    gpus: Gpus, policy: Policy, launch: Optional[Launch] = None, env: Optional[Env] = None
) -> Iterator[Reading]:
    """The GPUs take one process each, and the job starts more processes than there are GPUs.

    Why: In the compute mode Exclusive Process the second process on a GPU fails with "all CUDA-capable devices are busy
        or unavailable" (46), unless MPS stands between.
    See: https://docs.nvidia.com/deploy/mps/when-to-use-mps.html
    """
    ranks = ranks_per_node(policy, launch)
    exclusive = _exclusive(gpus)
    if ranks is None or not exclusive or _mps(gpus, env):
        return
    usable, how = _usable(gpus)
    yield Reading(
        ok=ranks <= usable,
        measured=f"{len(exclusive)} of {plural(len(answering(gpus)), 'GPU')} exclusive, {ranks} processes{how}",
        expected=f"at most {plural(usable, 'process', 'processes')}, or compute mode default",
        message=f"{ranks} processes for {plural(usable, 'GPU')} that take one process each",
    )


@check(Severity.NOTE)
def compute_mode_exclusive(gpus: Gpus, env: Optional[Env] = None) -> Iterator[Reading]:
    """GPUs are in the compute mode Exclusive Process.

    Why: It is fine with one process a GPU; a second one, of another user or a profiler, is turned away.
    See: https://docs.nvidia.com/deploy/mps/when-to-use-mps.html
    No fix: Nothing needs to change with one process a GPU; many sites set it on purpose, and MPS wants it.
    """
    modes = [gpu.compute_mode for gpu in answering(gpus) if gpu.compute_mode is not None]
    if modes:
        exclusive = [label(gpu) for gpu in _exclusive(gpus)]
        yield Reading(
            ok=not exclusive or _mps(gpus, env),
            measured=f"exclusive: {', '.join(exclusive)}" if exclusive else f"compute mode {modes[0]}",
            expected="default; or exclusive with one process a GPU",
            message=f"{plural(len(exclusive), 'GPU')} will take one process each",
        )


def _exclusive(gpus: Gpus) -> List[Gpu]:
    return [gpu for gpu in answering(gpus) if (gpu.compute_mode or "").startswith("exclusive")]


def _mps(gpus: Gpus, env: Optional[Env]) -> bool:
    """MPS serves these GPUs, or this environment points to its daemon."""
    serving = any(
        process.kind == "mps" or (process.name or "").rsplit("/", 1)[-1].startswith("nvidia-cuda-mps")
        for gpu in answering(gpus)
        for process in gpu.processes or ()
    )
    return serving or bool(env and env.get("CUDA_MPS_PIPE_DIRECTORY"))


@check(Severity.ERROR)
def mig_against_policy(gpus: Gpus, policy: Policy) -> Iterator[Reading]:
    """MIG is on where the policy forbids it, or off where it is required.

    Why: A GPU divided by MIG has no NVLink and no peer copies, and a process sees one slice only: a job for whole GPUs
        does not run on it as planned, nor one for slices on whole GPUs.
    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html
        https://docs.rapids.ai/deployment/stable/guides/mig
    """
    if policy.mig == "allowed":
        return
    for gpu in answering(gpus):
        if gpu.mig is None:
            yield unknown(gpu, "mig", label(gpu))
            continue
        yield Reading(
            ok=(gpu.mig == "enabled") == (policy.mig == "required"),
            subject=label(gpu),
            measured=f"MIG {gpu.mig}",
            expected=f"MIG {policy.mig} by the policy",
            message=f"MIG is {gpu.mig} on {label(gpu)}, and {policy.mig} by the policy",
        )

"""Checks of the GPUs' memory: errors that could not be corrected, and the spare rows and pages that mend it."""

from typing import Iterator, Optional, Tuple

from ddp_doctor.accelerators import answering, label
from ddp_doctor.checks.gpu._siblings import compared
from ddp_doctor.checks.gpu._told import unsure
from ddp_doctor.facts import Gpu, Gpus
from ddp_doctor.gpu_models import is_datacenter
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural

SINCE = "since the driver was loaded or the GPU was reset"


def _of(gpus: Gpus, field: str) -> Iterator[Tuple[Gpu, int]]:
    """GPUs that answer and tell ``field``; many models and drivers do not have it."""
    for gpu in answering(gpus):
        value = getattr(gpu, field)
        if value is not None:
            yield gpu, int(value)


# --------------------------------------------------------------------------- errors


@check(Severity.ERROR)
def uncorrected_memory_errors(gpus: Gpus) -> Iterator[Reading]:
    """A GPU has met memory errors that could not be corrected, and nothing says that it has recovered.

    Why: The program that met such an error was ended, and on many GPUs the next one fails as well until the GPU is reset. The
        count is that since the driver was loaded or the GPU was reset. Where the driver says itself that no recovery is
        needed, gpu/recovered-memory-errors tells of it.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
        https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html
    """
    for gpu, count in _of(gpus, "ecc_uncorrected_volatile"):
        if not _goes_on(gpu):
            yield _errors(gpu, count, "")
    yield from unsure(gpus, "ecc_uncorrected_volatile")


@check(Severity.WARNING)
def recovered_memory_errors(gpus: Gpus) -> Iterator[Reading]:
    """A GPU has met memory errors that could not be corrected, and can be used again.

    Why: The program that met the error was ended; what was wrong is set aside and no job uses it any more. So it is where the
        driver asks for no recovery, and, with drivers that do not say, where the error was in memory with spare rows and none
        of them failed. It may come again: test the GPU, and reset it when it is idle.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
        https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/dynamic-page-offlining.html
    """
    for gpu, count in _of(gpus, "ecc_uncorrected_volatile"):
        if _goes_on(gpu):
            told = gpu.recovery_action == "none"
            yield _errors(gpu, count, "; the driver asks for no recovery" if told else "; no row failed to be replaced")


def _goes_on(gpu: Gpu) -> bool:
    """The driver says so; or it does not say, and the GPU sets memory aside without a reset (Ampere and newer, not SRAM)."""
    contained = gpu.remap_failure is False and not gpu.ecc_sram_uncorrected_volatile
    return gpu.recovery_action == "none" or (gpu.recovery_action is None and contained)


def _errors(gpu: Gpu, count: int, said: str) -> Reading:
    sram = f", {gpu.ecc_sram_uncorrected_volatile} of them in SRAM" if gpu.ecc_sram_uncorrected_volatile else ""
    return Reading(
        ok=count == 0,
        subject=label(gpu),
        measured=f"{plural(count, 'uncorrectable memory error')}{sram} {SINCE}{said}",
        expected="none",
        message=f"{label(gpu)} met {plural(count, 'memory error')} that could not be corrected",
    )


@check(Severity.NOTE)
def earlier_memory_errors(gpus: Gpus) -> Iterator[Reading]:
    """A GPU has met uncorrectable memory errors at some time before the driver was loaded.

    Why: The GPU keeps the count for its whole life. In its large memory it replaces what was wrong as long as it has spare rows
        or pages; its caches have none. A GPU whose count grows from month to month should leave the pool.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html
        https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html
    """
    for gpu, count in _of(gpus, "ecc_uncorrected_aggregate"):
        before = count - (gpu.ecc_uncorrected_volatile or 0)
        yield Reading(
            ok=before <= 0,
            subject=label(gpu),
            measured=f"{plural(count, 'uncorrectable memory error')} in the GPU's life{_mended(gpu)}",
            expected="none before this start of the driver",
            message=f"{label(gpu)} met {plural(before, 'uncorrectable memory error')} in its past",
        )


def _mended(gpu: Gpu) -> str:
    """What the GPU has done about it: rows remapped (Ampere and newer) or pages retired (before)."""
    rows, pages = gpu.remapped_uncorrectable, gpu.retired_double_bit
    if rows is not None:
        return f", {plural(rows, 'row')} remapped for them"
    return f", {plural(pages, 'page')} retired for them" if pages is not None else ""


@check(Severity.ERROR)
def sram_threshold_exceeded(gpus: Gpus) -> Iterator[Reading]:
    """A GPU says that its caches and registers had too many uncorrectable errors.

    Why: The GPU sets this flag when one place of its SRAM failed several times. Unlike the large memory it has no spare rows
        there: the GPU is to be replaced, and the vendor accepts this flag as the reason.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/rma-policy-thresholds-for-row-remapping.html
    """
    for gpu, exceeded in _of(gpus, "ecc_sram_threshold_exceeded"):
        count = gpu.ecc_sram_uncorrected_aggregate
        told = "" if count is None else f" ({plural(count, 'error')} in the GPU's life)"
        yield Reading(
            ok=not exceeded,
            subject=label(gpu),
            measured=f"SRAM threshold {'exceeded' if exceeded else 'not exceeded'}{told}",
            expected="not exceeded",
            message=f"the SRAM of {label(gpu)} is failing: it is to be replaced",
        )
    yield from unsure(gpus, "ecc_sram_threshold_exceeded")


@check(Severity.WARNING)
def sram_errors(gpus: Gpus) -> Iterator[Reading]:
    """A GPU's caches and registers have had several uncorrectable errors.

    Why: Each of them ended a program. The GPU itself raises its flag when one place failed several times; errors that are
        spread over many places add up without it.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/rma-policy-thresholds-for-row-remapping.html
    """
    limit = bound("gpu.sram_uncorrected")
    for gpu, count in _of(gpus, "ecc_sram_uncorrected_aggregate"):
        yield Reading(
            ok=count <= (limit.warning or 0),
            subject=label(gpu),
            measured=f"{plural(count, 'uncorrectable SRAM error')} in the GPU's life",
            expected=f"at most {limit.warning:g}",
            message=f"the caches of {label(gpu)} had {plural(count, 'uncorrectable error')}: have it tested",
            source=limit.source,
        )


# --------------------------------------------------------------------------- spare rows (Ampere and newer)


@check(Severity.NOTE)
def row_remap_pending(gpus: Gpus) -> Iterator[Reading]:
    """A row of a GPU's memory waits to be replaced by a spare one.

    Why: It is done at the next reset of the GPU. Until then the row is not used, and jobs run correctly and at full speed: no
        reason to drain a node or to end a job.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
    """
    for gpu, pending in _of(gpus, "remap_pending"):
        yield Reading(
            ok=not pending,
            subject=label(gpu),
            measured="row remap pending" if pending else "no row remap pending",
            expected="none pending",
            message=f"a row of memory of {label(gpu)} is remapped at its next reset: reset it when it is idle",
        )


@check(Severity.ERROR)
def row_remap_failed(gpus: Gpus) -> Iterator[Reading]:
    """A GPU could not replace a faulty row of its memory.

    Why: There is no spare row left for it. The next program that gets this memory fails, or computes with it until it fails.
        The GPU is to be replaced: the vendor accepts this flag, confirmed by the field diagnostic, as the reason.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/rma-policy-thresholds-for-row-remapping.html
    """
    for gpu, failed in _of(gpus, "remap_failure"):
        yield Reading(
            ok=not failed,
            subject=label(gpu),
            measured=f"row remap {'failed' if failed else 'never failed'}{_rows(gpu)}",
            expected="no failure",
            message=f"{label(gpu)} has a faulty row of memory that it could not replace",
        )
    yield from unsure(gpus, "remap_failure")


def _rows(gpu: Gpu) -> str:
    rows = gpu.remapped_uncorrectable
    return "" if rows is None else f"; {plural(rows, 'row')} remapped for uncorrectable errors"


@check(Severity.ERROR)
def spare_rows_used_up(gpus: Gpus) -> Iterator[Reading]:
    """A GPU has remapped as many rows of its memory as it can.

    Why: After 512 remappings for uncorrectable errors the next one fails. The GPU is to be replaced.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/rma-policy-thresholds-for-row-remapping.html
    """
    limit = bound("gpu.remapped_rows")
    for gpu, rows in _of(gpus, "remapped_uncorrectable"):
        yield Reading(
            ok=rows < (limit.error or 0),
            subject=label(gpu),
            measured=f"{plural(rows, 'row')} remapped for uncorrectable errors",
            expected=f"fewer than {limit.error:g}",
            message=f"{label(gpu)} has remapped {plural(rows, 'row')} of its memory and has no spare ones left",
            source=limit.source,
        )


# --------------------------------------------------------------------------- retired pages (before Ampere)


@check(Severity.WARNING)
def page_retirement_pending(gpus: Gpus) -> Iterator[Reading]:
    """A page of a GPU's memory waits to be retired.

    Why: On GPUs before Ampere a page is taken out of use when the driver starts the GPU anew. Until then programs may still
        get the weak page, and after an error of two bits the GPU starts no new program at all.
    See: https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html
    """
    for gpu, pending in _of(gpus, "retired_pending"):
        yield Reading(
            ok=not pending,
            subject=label(gpu),
            measured=f"{'a page waits' if pending else 'no page waits'} to be retired{_pages(gpu)}",
            expected="none waits",
            message=f"{label(gpu)} must be reset before its faulty memory is out of use",
        )


@check(Severity.ERROR)
def retirable_pages_used_up(gpus: Gpus) -> Iterator[Reading]:
    """A GPU has retired nearly as many pages of its memory as it can.

    Why: The list holds 64 pages; after that faulty memory stays in use. The GPU is to be replaced.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html
        https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html
    """
    limit = bound("gpu.retired_pages")
    for gpu in answering(gpus):
        retired = _retired(gpu)
        if retired is not None:
            yield Reading(
                ok=retired <= (limit.error or 0),
                subject=label(gpu),
                measured=f"{plural(retired, 'page')} retired{_pages(gpu)}",
                expected=f"at most {limit.error:g} of the 64 that it can",
                message=f"{label(gpu)} has retired {plural(retired, 'page')} of its memory and is to be replaced",
                source=limit.source,
            )


def _retired(gpu: Gpu) -> Optional[int]:
    counts = [count for count in (gpu.retired_single_bit, gpu.retired_double_bit) if count is not None]
    return sum(counts) if counts else None


def _pages(gpu: Gpu) -> str:
    parts = ((gpu.retired_single_bit, "single-bit"), (gpu.retired_double_bit, "double-bit"))
    told = [f"{count} for {name} errors" for count, name in parts if count is not None]
    return f" ({', '.join(told)})" if told else ""


# --------------------------------------------------------------------------- correction itself


@check(Severity.WARNING)
def ecc_unlike_siblings(gpus: Gpus) -> Iterator[Reading]:
    """Error correction is off on some GPUs of a model and on on the others.

    Why: Where it is off a flipped bit goes unseen into the gradients of all ranks. It also changes the memory that a GPU has
        and its speed. Mixed settings come from a GPU that was replaced, or from a command that reached some of them.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    for one in compared(gpus, lambda gpu: gpu.ecc_mode):
        yield Reading(
            ok=not one.odd,
            subject=label(one.gpu),
            measured=f"ECC {_on(one.value)}",
            expected=f"ECC {_on(one.usual)}, as on {plural(one.others, 'GPU')} of this model here",
            message=f"ECC is {_on(one.value)} on {label(one.gpu)} and {_on(one.usual)} on its siblings",
        )


@check(Severity.NOTE)
def ecc_off(gpus: Gpus) -> Iterator[Reading]:
    """Error correction is off on GPUs made for servers.

    Why: A flipped bit then goes unseen into the gradients of all ranks. It costs memory on GPUs without HBM, which is why some
        switch it off.
    See: https://man.archlinux.org/man/nvidia-smi.1
    """
    told = [gpu for gpu in answering(gpus) if gpu.ecc_mode is not None and is_datacenter(gpu)]
    off = [gpu for gpu in told if not gpu.ecc_mode]
    if told and len(off) in (0, len(told)):  # gpu/ecc-unlike-siblings
        yield Reading(
            ok=not off,
            measured=f"ECC {_on(not off)} on {plural(len(told), 'GPU')}",
            expected="ECC on",
            message=f"errors of memory go unseen: ECC is off on {plural(len(off), 'GPU')}",
        )


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"

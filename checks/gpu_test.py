"""Checks of the compute test: did each GPU calculate right, and as fast as its siblings."""

from statistics import median
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from ddp_doctor.facts import Compute, GpuTest, Reason
from ddp_doctor.model import Reading, Severity, check, known, unknown
from ddp_doctor.thresholds import bound

SIBLINGS = 3
"""With fewer of one model nothing tells which one is the slow one."""


@check(Severity.ERROR)
def wrong_results(compute: Compute) -> Iterator[Reading]:
    """A GPU calculates or copies wrong.

    Why: The same matrix product was not the same in every round, was far from the exact result, or data changed on their
        way. Such a GPU spoils a training without any error message: the loss drifts, or turns to NaN.
    See: https://arxiv.org/abs/2407.21783
    """
    for test in known(compute.gpus, compute, "gpus"):
        if test.wrong is None:
            yield unknown(test, "wrong", _label(test))
            continue
        yield Reading(
            ok=not test.wrong,
            subject=_label(test),
            measured="; ".join(test.wrong) or "all results right",
            expected="the same, right result in every round",
            message=f"{_label(test)} gives wrong results: {'; '.join(test.wrong)}",
        )


@check(Severity.ERROR)
def could_not_run(compute: Compute) -> Iterator[Reading]:
    """The compute test of a GPU did not come to its end.

    Why: Torch could not use the GPU, it ran out of memory, or it hung: a training would do the same.
    See: https://docs.pytorch.org/docs/stable/notes/cuda.html
    """
    for test in known(compute.gpus, compute, "gpus"):
        if test.error is None and test.gemm_tflop_s is None:
            yield unknown(test, "gemm_tflop_s", _label(test))
            continue
        yield Reading(
            ok=test.error is None,
            subject=_label(test),
            measured=test.error or "the test ran to its end",
            expected="the test runs to its end",
            message=f"{_label(test)} could not be tested: {test.error}",
        )


@check(Severity.WARNING)
def differs_from_siblings(compute: Compute) -> Iterator[Reading]:
    """A GPU's result differs from that of its siblings of the same model.

    Why: The same model with the same library takes the same steps and gets the same bits. Where one of several differs
        from all the others, that cannot be called wrong by itself (a library may choose another kernel), nor right.
    See: https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
    """
    for group in _models(known(compute.gpus, compute, "gpus")).values():
        for kind in sorted({kind for test in group for kind in test.checksums or {}}):
            sums = {_label(t): t.checksums[kind] for t in group if t.checksums and kind in t.checksums}
            yield from _agreement(kind, sums)


def _agreement(kind: str, sums: Dict[str, str]) -> Iterator[Reading]:
    """One reading for each GPU that can be compared with another; a difference is not a verdict."""
    common = max(sums.values(), key=list(sums.values()).count)
    for label, found in sums.items() if len(sums) > 1 else ():
        text = f"the {kind} matrix product of {label} differs in its bits from its siblings'; this alone is no proof"
        reason = None if found == common else Reason("unresolved", text)
        same = f"{kind}: the same bits as its siblings"
        yield Reading(
            ok=None if reason else True, subject=f"{label} {kind}", measured=same, expected=same, reason=reason
        )


@check(Severity.WARNING)
def slow_gemm(compute: Compute) -> Iterator[Reading]:
    """A GPU multiplies matrices slower than its siblings.

    Why: In data parallel training every step waits for the slowest GPU. Heat, a power cap, lowered clocks or a fault of
        the board slow one down.
    See: https://github.com/huggingface/gpu-fryer
    """
    tests = known(compute.gpus, compute, "gpus")
    for kind in sorted({kind for test in tests for kind in test.gemm_tflop_s or {}}):
        rate = _gemm(kind)
        yield from _slower(tests, rate, "gpu_test.gemm_share", f"{kind} matrix product", "TFLOP/s")


@check(Severity.WARNING)
def slow_memory(compute: Compute) -> Iterator[Reading]:
    """A GPU's memory is slower than that of its siblings.

    Why: In data parallel training every step waits for the slowest GPU; optimizers and normalisation run at the speed of
        the memory.
    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
    """
    tests = known(compute.gpus, compute, "gpus")
    yield from _slower(tests, lambda test: test.memory_gb_s, "gpu_test.memory_share", "device memory", "GB/s")


@check(Severity.WARNING)
def slow_host_copy(compute: Compute) -> Iterator[Reading]:
    """Copies between a GPU and the machine's memory are slower than those of its siblings.

    Why: The GPU's PCIe link may have fewer lanes or a lower generation than it should. Batches come late, and so does
        what NCCL sends to other nodes.
    See: https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html
    """
    tests, name = known(compute.gpus, compute, "gpus"), "gpu_test.copy_share"
    yield from _slower(tests, lambda test: test.to_device_gb_s, name, "copy to the GPU", "GB/s")
    yield from _slower(tests, lambda test: test.to_host_gb_s, name, "copy from the GPU", "GB/s")


def _gemm(kind: str) -> Callable[[GpuTest], Optional[float]]:
    return lambda test: (test.gemm_tflop_s or {}).get(kind)


def _slower(
    tests: Tuple[GpuTest, ...], rate: Callable[[GpuTest], Optional[float]], name: str, what: str, unit: str
) -> Iterator[Reading]:
    """A reading for each GPU with enough siblings, against their median."""
    limit = bound(name)
    for group in _models(tests).values():
        rates = {_label(test): found for test, found in ((test, rate(test)) for test in group) if found is not None}
        middle = median(rates.values()) if len(rates) >= SIBLINGS else 0.0
        for label, found in rates.items() if middle > 0 else ():
            least = middle * (limit.warning or 0) / 100
            yield Reading(
                ok=found >= least,
                subject=f"{label} {what}",
                measured=f"{what}: {found:.4g} {unit}",
                expected=f"at least {least:.4g} {unit}, {limit.warning:g} % of the median of its siblings",
                message=f"{label} is slower than its siblings ({what}: {found:.4g} {unit}, median {middle:.4g})",
                source=limit.source,
            )


def _models(tests: Tuple[GpuTest, ...]) -> Dict[str, List[GpuTest]]:
    """GPUs by model; those without a name are nobody's siblings."""
    groups: Dict[str, List[GpuTest]] = {}
    for test in tests:
        if test.name:
            groups.setdefault(test.name, []).append(test)
    return groups


def _label(test: GpuTest) -> str:
    return f"GPU {test.index}"

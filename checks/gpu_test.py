"""Checks of the compute test: did each GPU calculate right, as fast as its siblings, and as fast as its model should."""

from collections import Counter
from statistics import median
from typing import Any, Callable, Dict, Hashable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddp_doctor import nvlink, tables
from ddp_doctor import topology as places
from ddp_doctor.cluster.fleet import Fleet
from ddp_doctor.facts import Compute, Gpu, Gpus, GpuTest, Os, Reason, Topology
from ddp_doctor.gpu_models import is_datacenter, model_of
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, unknown
from ddp_doctor.numerals import whole
from ddp_doctor.tables import GpuModel
from ddp_doctor.thresholds import Bound, bound

SIBLINGS = 3
"""With fewer of one kind nothing tells which one is the odd one."""
VOLTA = 7.0
"""Compute capability. Before it boards of one name had memory of different speeds (Tesla P100 PCIe: 549 and 732 GB/s)."""
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCIe generation -> what one lane carries in one direction, in 10**9 bytes per second: 2.5 and 5 GT/s in 8b/10b code, 8, 16
and 32 GT/s in 128b/130b, 64 GT/s in flits of 242 bytes in 256 (PCI Express Base Specification 6.0)."""


# --------------------------------------------------------------------------- right results


@check(Severity.ERROR)
def wrong_results(compute: Compute) -> Iterator[Reading]:
    """A GPU calculates or copies wrong.

    Why: The same matrix product was not the same in every round, was further from the exact result than rounding can make it,
        or data changed on their way. Such a GPU spoils a training without any error message: the loss drifts, or turns to
        NaN.
    See: https://arxiv.org/abs/2407.21783
        https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
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
    """A GPU's matrix product has other bits than that of its siblings.

    Why: On GPUs of the same model with as many multiprocessors the same library is made to give the same bits. Where one has
        others it is likely to calculate wrong, though always the same wrong: nothing else shows that.
    See: https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
    """
    tests = known(compute.gpus, compute, "gpus")
    groups = _grouped([test for test in tests if test.multiprocessors], lambda t: (t.name, t.multiprocessors))
    for group in groups:
        for kind in sorted({kind for test in group for kind in test.checksums or {}}):
            sums = {_label(t): t.checksums[kind] for t in group if t.checksums and kind in t.checksums}
            yield from _agreement(kind, sums)


def _agreement(kind: str, sums: Dict[str, str]) -> Iterator[Reading]:
    """A reading for each GPU; one for all where there is no majority, which blames nobody."""
    ((common, count),) = Counter(sums.values()).most_common(1)
    if len(sums) < 2:
        return
    if 2 * count <= len(sums):
        names = ", ".join(sums)
        message = f"{names} do not get the same bits; which of them calculates wrong cannot be told"
        yield Reading(False, "different bits", f"{kind}: the same bits", message, f"{names} {kind}")
        return
    for label, found in sums.items():
        yield Reading(
            ok=found == common,
            subject=f"{label} {kind}",
            measured=f"{kind}: {'the same' if found == common else 'other'} bits",
            expected=f"{kind}: the same bits as {count - (found == common)} siblings",
            message=f"{label} gets other bits than its siblings in the same matrix product",
        )


# --------------------------------------------------------------------------- against siblings


@check(Severity.WARNING)
def slow_gemm(compute: Compute) -> Iterator[Reading]:
    """A GPU multiplies matrices slower than its siblings.

    Why: In data parallel training every step waits for the slowest GPU. Heat, a power cap, lowered clocks or a fault of
        the board slow one down.
    See: https://github.com/huggingface/gpu-fryer
    """
    tests = known(compute.gpus, compute, "gpus")
    kinds = sorted({kind for test in tests for kind in test.gemm_tflop_s or {}})
    products = [Quantity(f"{kind} matrix product", "TFLOP/s", _gemm(kind)) for kind in kinds]
    yield from _slower(_models(tests), "gpu_test.gemm", products)


@check(Severity.WARNING)
def slow_memory(compute: Compute) -> Iterator[Reading]:
    """A GPU's memory is slower than that of its siblings.

    Why: In data parallel training every step waits for the slowest GPU; optimizers and normalisation run at the speed of
        the memory.
    See: https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/plugins/memory-bandwidth.html
    """
    what = Quantity("device memory", "GB/s", lambda test: test.memory_gb_s)
    yield from _slower(_models(known(compute.gpus, compute, "gpus")), "gpu_test.memory", [what])


@check(Severity.WARNING)
def slow_host_copy(compute: Compute, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """Copies between a GPU and the machine's memory are slower than those of its siblings.

    Why: The GPU's PCIe link may have fewer lanes or a lower generation than it should. Batches come late, and so does
        what NCCL sends to other nodes.
    See: https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/plugins/pcie.html
    """
    ours = _ours(gpus)
    tests = [test for test in known(compute.gpus, compute, "gpus") if test.name]
    groups = _grouped(tests, lambda test: (test.name, _link_of(ours.get(test.index))))
    yield from _slower(groups, "gpu_test.copy", COPIES)


class Quantity(NamedTuple):
    """Something that is compared between GPUs."""

    what: str
    unit: str
    rate: Callable[[GpuTest], Optional[float]]


COPIES = (
    Quantity("copy to the GPU", "GB/s", lambda test: test.to_device_gb_s),
    Quantity("copy from the GPU", "GB/s", lambda test: test.to_host_gb_s),
)


def _gemm(kind: str) -> Callable[[GpuTest], Optional[float]]:
    return lambda test: (test.gemm_tflop_s or {}).get(kind)


def _slower(groups: Sequence[List[GpuTest]], bounds: str, quantities: Sequence[Quantity]) -> Iterator[Reading]:
    """A reading for each GPU with enough siblings, by what it is slowest in; one for a pair.

    bounds: rows of the table of thresholds: with _share against several siblings, with _pair_share against one.
    """
    for group in groups:
        found = [(quantity, _rates(group, quantity)) for quantity in quantities]
        many = [(quantity, rates) for quantity, rates in found if len(rates) >= SIBLINGS]
        pairs = [(quantity, rates) for quantity, rates in found if len(rates) == 2]
        for label in dict.fromkeys(label for _, rates in many for label in rates):
            own = [(quantity, rates) for quantity, rates in many if label in rates]
            yield _below_median(label, own, bound(f"{bounds}_share"))
        if pairs:
            yield _unlike(*min(pairs, key=lambda item: _share(item[1])), bound(f"{bounds}_pair_share"))


def _rates(group: Sequence[GpuTest], quantity: Quantity) -> Dict[str, float]:
    found = {_label(test): quantity.rate(test) for test in group}
    return {label: rate for label, rate in found.items() if rate is not None}


def _below_median(label: str, found: Sequence[Tuple[Quantity, Dict[str, float]]], limit: Bound) -> Reading:
    share = (limit.warning or 0) / 100
    places = [(rates[label] / (median(rates.values()) or 1.0), quantity, rates) for quantity, rates in found]
    lowest, quantity, rates = min(places, key=lambda item: item[0])
    slow = ", ".join(quantity.what for place, quantity, _ in places if place < share)
    rate, middle = rates[label], median(rates.values())
    return Reading(
        ok=lowest >= share,
        subject=label,
        measured=f"{quantity.what}: {rate:.4g} {quantity.unit}",
        expected=f"at least {middle * share:.4g} {quantity.unit}, {limit.warning:g} % of the median of its siblings",
        message=f"{label} is slower than its siblings ({slow}): {rate:.4g} {quantity.unit}, median {middle:.4g}",
        source=limit.source,
    )


def _share(rates: Dict[str, float]) -> float:
    """Percent of the fastest that the slowest reaches."""
    return 100 * min(rates.values()) / (max(rates.values()) or 1.0)


def _unlike(quantity: Quantity, rates: Dict[str, float], limit: Bound) -> Reading:
    """Of two both are named and none is blamed: they may differ more than one of many from the median."""
    names = " and ".join(rates)
    shown = ", ".join(f"{label} {rate:.4g} {quantity.unit}" for label, rate in rates.items())
    return Reading(
        ok=_share(rates) >= (limit.warning or 0),
        subject=names,
        measured=f"{quantity.what}: {shown}",
        expected=f"the slower of the two has at least {limit.warning:g} % of the other's speed",
        message=f"{names} are of one model, and one is much slower ({quantity.what}: {shown})",
        source=limit.source,
    )


# --------------------------------------------------------------------------- against other nodes


@check(Severity.WARNING, several_nodes=True)
def slow_in_fleet(fleet: Fleet) -> Iterator[Reading]:
    """A GPU is slower in the compute test than those of its model in all nodes.

    Why: Every step of a training waits for the slowest GPU of all. A node whose GPUs are all slow (its cooling, its power, its
        clocks) shows nothing by itself.
    See: https://github.com/huggingface/gpu-fryer
    """
    for what, column in fleet.compute_rates.by_subject().items():
        rates = [rate for own in column.values.values() for _, rate in own]
        if len(column.values) < 2 or len(rates) < SIBLINGS:
            reason = Reason("not-applicable", "too few GPUs of one model on other nodes to compare with")
            yield Reading(ok=None, nodes=tuple(column.values), subject=what, reason=reason)
            continue
        yield from _below_fleet(what, column.values, median(rates))


def _below_fleet(what: str, nodes: Mapping[str, Any], middle: float) -> Iterator[Reading]:
    """A reading for each node with a slow GPU, and one for all others."""
    limit = bound("gpu_test.memory_share" if "memory" in what else "gpu_test.gemm_share")
    least = middle * (limit.warning or 0) / 100
    expected = f"at least {least:.4g}, {limit.warning:g} % of the median of all nodes"
    slow = {node: [(i, rate) for i, rate in own if rate < least] for node, own in nodes.items()}
    good = tuple(node for node, found in slow.items() if not found)
    if good:
        yield Reading(True, "no GPU slower than the others", expected, subject=what, nodes=good, source=limit.source)
    for node, found in slow.items():
        if not found:
            continue
        names, shown = ", ".join(f"GPU {i}" for i, _ in found), ", ".join(f"{rate:.4g}" for _, rate in found)
        yield Reading(
            ok=False,
            nodes=(node,),
            subject=what,
            measured=f"{names}: {shown}",
            expected=expected,
            message=f"{names} slower than those of the other nodes: {shown}, median {middle:.4g}",
            source=limit.source,
        )


# --------------------------------------------------------------------------- against the model


@check(Severity.WARNING)
def gemm_slower_than_model(compute: Compute, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """A GPU multiplies matrices much slower than its model should.

    Why: Where all GPUs of a machine are slow, or there is but one, no sibling shows it: the machine's cooling, a power cable
        that is not in, or a driver that holds the clocks down.
    See: https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/README.md
    """
    limit = bound("gpu_test.gemm_model_share")
    speeds = {row.gpu: row for row in tables.gpu_speeds()}
    for test, gpu, model in _servers(compute, gpus):
        speed = speeds.get(model.gpu) if model else None
        rate = _gemm(speed.type)(test) if speed else None
        if speed is None:
            yield _not_judged(test, "how fast its model multiplies matrices is not in the tables")
        elif rate is None:
            yield unknown(test, "gemm_tflop_s", _label(test))
        else:
            what = Measured(f"{speed.type} matrix product", rate, "TFLOP/s")
            full = float(speed.measured_tflop_s)
            of = f"what was measured on another {speed.gpu}"
            yield _judged(test, what, full, limit, of, _slowed(gpu))


@check(Severity.WARNING)
def memory_slower_than_model(compute: Compute, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """A GPU's memory is much slower than its model's should be.

    Why: Optimizers, normalisation and everything that is not a matrix product run at the speed of the memory. Where all GPUs
        of a machine are slow, or there is but one, no sibling shows it.
    See: https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/plugins/memory-bandwidth.html
    """
    limit = bound("gpu_test.memory_model_share")
    for test, gpu, model in _servers(compute, gpus):
        if model is None or float(model.compute_capability) < VOLTA:
            yield _not_judged(test, "how fast its model's memory is, is not in the tables, or differs between boards")
        elif test.memory_gb_s is None:
            yield unknown(test, "memory_gb_s", _label(test))
        else:
            full = min(map(float, model.memory_gb_s.split("/")))
            what = Measured("device memory", test.memory_gb_s, "GB/s")
            yield _judged(test, what, full, limit, f"by the data sheet of the {model.gpu}", _slowed(gpu))


@check(Severity.WARNING)
def host_copy_slower_than_link(
    compute: Compute, gpus: Optional[Gpus] = None, os: Optional[Os] = None
) -> Iterator[Reading]:
    """Copies between a GPU and the machine's memory are much slower than its PCIe link allows.

    Why: The link trained with fewer lanes or at a lower generation than GPU and slot support, or it repeats what it sends.
        Batches come late, and so does what NCCL sends to other nodes. In virtual machines the link that is shown need not
        be the real one: there nothing is said.
    See: https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/plugins/pcie.html
    """
    limit = bound("gpu_test.copy_link_share")
    machine = "unknown" if os is None else known(os.virtualisation, os, "virtualisation")
    if machine:
        raise NotKnown(
            Reason("not-applicable", "in a virtual machine the PCIe link that is shown need not be the real one")
        )
    for test, gpu, model in _servers(compute, gpus):
        link = _link_of(gpu)
        if model is None or link is None or link[0] not in LANE_GB_S:
            yield _not_judged(test, "it is no GPU for servers, or its PCIe link is not known")
            continue
        rates = {copy: rate for copy, rate in ((copy, copy.rate(test)) for copy in COPIES) if rate is not None}
        if not rates:
            yield unknown(test, "to_device_gb_s", _label(test))
            continue
        copy, slowest = min(rates.items(), key=lambda item: item[1])
        full, of = LANE_GB_S[link[0]] * link[1], f"the most of PCIe generation {link[0]} x{link[1]}"
        yield _judged(test, Measured(copy.what, slowest, copy.unit), full, limit, of)


class Measured(NamedTuple):
    what: str
    rate: float
    unit: str


def _judged(
    test: GpuTest, measured: Measured, full: float, limit: Bound, of: str, slowed: Optional[str] = None
) -> Reading:
    """A rate against a share of what it could be; unknown where the GPU was ``slowed`` down on purpose."""
    what, rate, unit = measured
    least = full * (limit.warning or 0) / 100
    excused = slowed is not None and rate < least
    return Reading(
        ok=None if excused else rate >= least,
        subject=_label(test),
        measured=f"{what}: {rate:.4g} {unit}",
        expected=f"at least {least:.4g} {unit}, {limit.warning:g} % of {full:.4g} {unit}, {of}",
        message=f"{_label(test)} is much slower than it should be ({what}: {rate:.4g} {unit})",
        source=limit.source,
        reason=Reason("not-applicable", f"{what}: {rate:.4g} {unit}, but {slowed}") if excused else None,
    )


def _slowed(gpu: Optional[Gpu]) -> Optional[str]:
    """What was set on purpose and makes it slower than its model."""
    if gpu is None:
        return "whether its power limit or clocks were lowered is not known"
    if gpu.power_limit_w and gpu.power_default_limit_w and gpu.power_limit_w < gpu.power_default_limit_w:
        return f"its power limit was lowered to {gpu.power_limit_w:g} W"
    clock, usual = gpu.clock_application_mhz, gpu.clock_application_default_mhz
    return f"its clock was set to {clock} MHz" if clock and usual and clock < usual else None


def _not_judged(test: GpuTest, why: str) -> Reading:
    return Reading(ok=None, subject=_label(test), reason=Reason("not-applicable", why))


def _servers(compute: Compute, gpus: Optional[Gpus]) -> Iterator[Tuple[GpuTest, Optional[Gpu], Optional[GpuModel]]]:
    """Each GPU, what is known of it, and its model if that is for servers: namesakes in laptops and desktops differ."""
    ours = _ours(gpus)
    for test in known(compute.gpus, compute, "gpus"):
        server = is_datacenter(Gpu(test.index, name=test.name))
        yield test, ours.get(test.index), model_of(test.name or "") if server else None


# --------------------------------------------------------------------------- from GPU to GPU


@check(Severity.WARNING)
def slow_peer_copy(
    compute: Compute, gpus: Optional[Gpus] = None, topology: Optional[Topology] = None
) -> Iterator[Reading]:
    """Copies between two GPUs are slower than between others that are connected in the same way.

    Why: An NVLink that is down or makes errors, or a PCIe link with fewer lanes: every all-reduce goes at the speed of the
        slowest connection.
    See: https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/plugins/pcie.html
    """
    tests = known(compute.gpus, compute, "gpus")
    kinds = _connections(gpus, topology)
    groups: Dict[Hashable, Dict[Tuple[int, int], float]] = {}
    for pair, rate in _peer_rates(tests).items():
        kind = kinds.get((min(pair), max(pair)))
        if kind is not None:
            groups.setdefault((kind, _name(tests, pair[0]), _name(tests, pair[1])), {})[pair] = rate
    for key, rates in groups.items():
        if len(rates) >= SIBLINGS:
            yield from _slow_pairs(str(key[0] if isinstance(key, tuple) else key), rates)


def _peer_rates(tests: Sequence[GpuTest]) -> Dict[Tuple[int, int], float]:
    """(from, to) -> GB/s."""
    rates = ((test.index, whole(other), rate) for test in tests for other, rate in (test.peer_gb_s or {}).items())
    return {(index, other): rate for index, other, rate in rates if other is not None}


def _name(tests: Sequence[GpuTest], index: int) -> str:
    return next((test.name or "" for test in tests if test.index == index), "")


def _slow_pairs(kind: str, rates: Dict[Tuple[int, int], float]) -> Iterator[Reading]:
    """A reading for each GPU that copies: a slow pair counts against the one that has more of them."""
    limit, middle = bound("gpu_test.peer_share"), median(rates.values())
    least = middle * (limit.warning or 0) / 100
    blamed = _blamed([pair for pair, rate in rates.items() if rate < least])
    for index in sorted({index for pair in rates for index in pair}):
        slow = blamed.get(index, [])
        own = {pair: rates[pair] for pair in slow} or {pair: rate for pair, rate in rates.items() if index in pair}
        (a, b), lowest = min(own.items(), key=lambda item: item[1])
        yield Reading(
            ok=not slow,
            subject=f"GPU {index} peer copies ({kind})",
            measured=f"{len(slow)} of its copies slow; the slowest, from GPU {a} to GPU {b}: {lowest:.4g} GB/s",
            expected=f"at least {least:.4g} GB/s, {limit.warning:g} % of the median of all GPUs connected by {kind}",
            message=f"copies between GPU {a} and GPU {b} are slow ({lowest:.4g} GB/s, median by {kind} {middle:.4g})",
            source=limit.source,
        )


def _blamed(slow: Sequence[Tuple[int, int]]) -> Dict[int, List[Tuple[int, int]]]:
    """GPU -> its slow pairs; each pair once, with the GPU that most of those that are left have in common."""
    left, found = list(slow), {}
    while left:
        counts = Counter(index for pair in left for index in pair)
        worst = min(counts, key=lambda index: (-counts[index], index))
        found[worst] = [pair for pair in left if worst in pair]
        left = [pair for pair in left if worst not in pair]
    return found


def _connections(gpus: Optional[Gpus], topology: Optional[Topology]) -> Dict[Tuple[int, int], str]:
    """How each two GPUs are connected: NV18, or PIX, SYS ... and whether they reach each other without the processor."""
    ours = list(_ours(gpus).values())
    found = {pair: f"NV{links}" for pair, links in nvlink.bonds(ours).items()}
    placed = {p.gpu.index: p.device for p in (places.gpus_of(topology, gpus) if topology else ()) if p.gpu}
    for a in ours:
        for b in ours:
            both = a.index in placed and b.index in placed and a.index < b.index
            kind = places.pcie_class(placed[a.index], placed[b.index]) if both else None
            if kind is not None:
                access = "" if (a.peers or {}).get(str(b.index)) == "ok" else ", no peer access"
                found.setdefault((a.index, b.index), kind + access)
    return found


# --------------------------------------------------------------------------- helpers


def _ours(gpus: Optional[Gpus]) -> Dict[int, Gpu]:
    return {gpu.index: gpu for gpu in (gpus.gpus if gpus else None) or ()}


def _link_of(gpu: Optional[Gpu]) -> Optional[Tuple[int, int]]:
    """Generation and lanes that GPU and slot both support."""
    return (gpu.pcie_gen_max, gpu.pcie_width_max) if gpu and gpu.pcie_gen_max and gpu.pcie_width_max else None


def _models(tests: Sequence[GpuTest]) -> List[List[GpuTest]]:
    """GPUs by model; those without a name are nobody's siblings."""
    return _grouped([test for test in tests if test.name], lambda test: test.name)


def _grouped(tests: Sequence[GpuTest], key: Callable[[GpuTest], Hashable]) -> List[List[GpuTest]]:
    groups: Dict[Hashable, List[GpuTest]] = {}
    for test in tests:
        groups.setdefault(key(test), []).append(test)
    return list(groups.values())


def _label(test: GpuTest) -> str:
    return f"GPU {test.index}"

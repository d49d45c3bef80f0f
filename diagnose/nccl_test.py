"""``ddp-doctor nccl-test``: ranks of torch measure collectives on this node; what they say becomes a table and a verdict.

Bandwidths are those of nccl-tests: algbw is bytes by time, busbw is algbw by the share of the data that each rank's link must
carry. Unlike nccl-tests' default, which averages over ranks, the slowest rank counts (its ``-a 3``).
"""

import json
import os
import select
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor.bench import collectives

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench", "collectives.py")
COLLECTIVES = tuple(collectives.STEPS)
MARK = collectives.MARK
CONNECT_S = 90.0
"""For torch to be imported by all ranks, and for them to find each other."""
SIZE_S = 120.0
"""For the warm-up, the repeats and the check of one size."""
LEAST_BYTES, MOST_CPU_BYTES, MOST_GPU_BYTES = 8, 64 * 2**20, 8 * 2**30
"""nccl-tests' usual ends, from 8 B to 8 GiB; processors move less."""
MEMORY_SHARE = 8
"""A size takes at most an eighth of a GPU's free memory: input, output, and what the check compares."""
STEADY = 0.25
"""A spread between repeats above this share of the median is too much to judge by."""
LARGE_BYTES = 2**20
"""Smaller sizes are bound by latency: bandwidth is judged from here on."""
LINES_KEPT = 4000

_FACTORS: Dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
"""busbw of algbw for n ranks (nccl-tests, doc/PERFORMANCE.md); 1 for the others."""


class BadTest(Exception):
    """What was asked for cannot be measured; the text says why."""


@dataclass(frozen=True)
class Plan:
    """What is measured, by how many ranks, and with what."""

    python: str
    backend: str
    ranks: int
    sizes_bytes: Tuple[int, ...]
    collectives: Tuple[str, ...] = ("all_reduce",)
    dtypes: Tuple[str, ...] = ("float32",)
    iterations: int = 20
    warmup: int = 5
    repeats: int = 3
    check: bool = True

    def asked(self) -> str:
        """As the ranks take it."""
        names = ("backend", "sizes_bytes", "collectives", "dtypes", "iterations", "warmup", "repeats", "check")
        return json.dumps({**{name: getattr(self, name) for name in names}, "connect_s": CONNECT_S})


@dataclass
class Measured:
    """What came of it. failure: why there are not all results; phases: rank -> the last that it said."""

    plan: Plan
    about: Dict[str, Any] = field(default_factory=dict)
    results: List[Dict[str, Any]] = field(default_factory=list)
    phases: Dict[int, str] = field(default_factory=dict)
    failure: str = ""
    lines: List[str] = field(default_factory=list)
    """What the ranks printed besides."""


def sizes(least: int, most: int, factor: int) -> Tuple[int, ...]:
    """least, least * factor ... up to ``most``, in bytes. Raises BadTest."""
    if least < 1 or factor < 2:
        raise BadTest("sizes begin with at least 1 byte and grow by a factor of at least 2")
    if least > most:
        raise BadTest(f"the first size, {least} bytes, is larger than the last one, {most} bytes")
    found = [least]
    while found[-1] * factor <= most:
        found.append(found[-1] * factor)
    return tuple(found)


def size_of(text: str) -> int:
    """Bytes of "8", "64K", "128M", "8G", as nccl-tests write them. Raises BadTest."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
    number, unit = text.rstrip("kKmMgGbB"), text.lstrip("0123456789").upper().rstrip("B")
    if not number.isdecimal() or unit not in units:
        raise BadTest(f"not a size: {text[:20]!r} (expected 8, 64K, 128M or 8G)")
    return int(number) * units[unit]


def bandwidths_gb_s(result: Dict[str, Any], ranks: int) -> Tuple[float, float]:
    """(algbw, busbw) in GB/s, 10^9 bytes as in nccl-tests."""
    algbw = result["bytes"] / result["seconds"] / 1e9
    factor = _FACTORS.get(result["collective"])
    return algbw, algbw * (factor(ranks) if factor else 1.0)


# --------------------------------------------------------------------------- running


def run(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Measured:
    """Start the ranks, hear them, and end them whatever happens."""
    measured = Measured(plan)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            _argv(plan),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env=_env(),
        )
        try:
            for line in _lines(process, measured):
                _heard(measured, line)
                say(_progress(measured))
        finally:
            _end(process)
        errors.seek(0)
        measured.lines += errors.read()[-(2**20) :].decode("utf-8", "replace").splitlines()
    if not measured.failure and process.returncode:
        measured.failure = f"the ranks ended with status {process.returncode}"
    if not measured.failure and not measured.results:
        measured.failure = "the ranks ended without a result"
    return measured


def _argv(plan: Plan) -> List[str]:
    launcher = [plan.python, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc_per_node={plan.ranks}"]
    return [*launcher, "--master_addr=127.0.0.1", f"--master_port={_free_port()}", WORKER, plan.asked()]


def _env() -> Dict[str, str]:
    """Ours, without what a job around us says of its own ranks."""
    of_a_job = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in of_a_job and not name.startswith("TORCHELASTIC_")
    }
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return kept


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _lines(process: Any, measured: Measured) -> Iterator[str]:
    """Lines as they come; when one is too late, the failure says what was waited for, and for whom."""
    held, until = b"", time.monotonic() + CONNECT_S
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            measured.failure = _late(measured)
            return
        chunk = process.stdout.read1(1 << 16)
        if not chunk:
            process.wait()
            return
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
        if any(MARK.encode() in line for line in lines):
            until = time.monotonic() + (SIZE_S if measured.about else CONNECT_S)


def _late(measured: Measured) -> str:
    told = measured.phases
    if not measured.about:
        missing = [rank for rank in range(measured.plan.ranks) if told.get(rank) not in ("first", "done")]
        where = {rank: told.get(rank, "not started") for rank in missing}
        words = "; ".join(f"rank {rank}: {phase}" for rank, phase in list(where.items())[:16])
        return f"no first collective within {CONNECT_S:.0f} s ({words})"
    done = len(measured.results)
    return f"no answer within {SIZE_S:.0f} s, after {done} sizes"


def _heard(measured: Measured, line: str) -> None:
    if not line.startswith(MARK):
        if line.strip() and len(measured.lines) < LINES_KEPT:
            measured.lines.append(line[:2000])
        return
    try:
        told = json.loads(line[len(MARK) :])
    except ValueError:
        return
    if "phase" in told:
        measured.phases[int(told["rank"])] = str(told["phase"])
    elif "about" in told:
        measured.about = told["about"]
    elif "result" in told:
        measured.results.append(told["result"])


def _progress(measured: Measured) -> str:
    plan = measured.plan
    of = len(plan.sizes_bytes) * len(plan.collectives) * len(plan.dtypes)
    return (
        f"{len(measured.results)} of {of} sizes" if measured.about else f"{len(measured.phases)} of {plan.ranks} ranks"
    )


def _end(process: Any) -> None:
    """torchrun first, which ends its ranks; then whatever is left of them: they have sessions of their own."""
    import psutil

    try:
        ranks = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        ranks = []
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for rank in ranks:
        try:
            rank.kill()
        except psutil.Error:
            continue
    process.stdout.close()


# --------------------------------------------------------------------------- judging


@dataclass(frozen=True)
class Verdict:
    """ok: True, False, or None where it cannot be told. words: why."""

    ok: Optional[bool]
    words: Tuple[str, ...]

    @property
    def exit_status(self) -> int:
        """0 as wanted, 1 wrong or short, 3 not to be told."""
        return 3 if self.ok is None else 0 if self.ok else 1


def judged(measured: Measured, least_gb_s: Optional[float]) -> Verdict:
    """Wrong data is an error whatever the speed; then the peak of large sizes against what is wanted."""
    wrong = [_wrong_words(result, each) for result in measured.results for each in result.get("wrong") or ()]
    if wrong:
        return Verdict(False, ("wrong data", *wrong[:8]))
    if measured.failure:
        return Verdict(None, (measured.failure,))
    ranks = measured.plan.ranks
    large = [r for r in measured.results if "seconds" in r and r["bytes"] >= LARGE_BYTES]
    peaks = {
        name: max(bandwidths_gb_s(r, ranks)[1] for r in large if r["collective"] == name)
        for name in {r["collective"] for r in large}
    }
    if least_gb_s is None:
        return Verdict(True, tuple(f"{name}: {peak:.2f} GB/s busbw at best" for name, peak in sorted(peaks.items())))
    if not peaks or ranks < 2:
        return Verdict(None, ("no size of 1 MiB or more was measured between ranks: bandwidth cannot be judged",))
    short = {name: peak for name, peak in peaks.items() if peak < least_gb_s}
    noisy = [r for r in large if r["collective"] in short and r["spread"] > STEADY]
    if short and noisy and all(peak * (1 + max(r["spread"] for r in noisy)) >= least_gb_s for peak in short.values()):
        return Verdict(
            None,
            (f"inconclusive: repeats differ by up to {max(r['spread'] for r in noisy):.0%}; use more iterations (-n)",),
        )
    told = tuple(
        f"{name}: {peak:.2f} GB/s busbw at best, {least_gb_s:g} wanted" for name, peak in sorted(peaks.items())
    )
    return Verdict(not short, told)


def _wrong_words(result: Dict[str, Any], wrong: Sequence[Any]) -> str:
    rank, count, place, got, expected = wrong
    return (
        f"{result['collective']} of {result['bytes']} bytes of {result['dtype']}: rank {rank} has {count} wrong elements, "
        f"the first is element {place}: {got:g} instead of {expected:g}"
    )


# --------------------------------------------------------------------------- output

_HEADS = ("size", "count", "type", "collective", "time", "algbw", "busbw", "#wrong", "spread")
_UNITS = ("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "", "")


def table(measured: Measured, verdict: Verdict) -> str:
    """The table that users of nccl-tests know, and what it says."""
    plan, about = measured.plan, measured.about
    lines = [
        f"# {plan.ranks} ranks on this node, {plan.backend}, {about.get('device', '?')}, torch {about.get('torch', '?')}"
        + (f", NCCL {about['nccl']}" if about.get("nccl") else "")
    ]
    if plan.backend == "gloo":
        lines.append("# gloo on processors: this says nothing about GPUs, NVLink or RDMA")
    lines.append(
        f"# {plan.iterations} iterations, {plan.warmup} warm-ups, median of {plan.repeats}; times are the slowest rank's"
    )
    rows = [_HEADS, _UNITS, *(_row(result, plan.ranks) for result in measured.results)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADS))]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    word = {True: "OK", False: "NOT OK", None: "CANNOT TELL"}[verdict.ok]
    return "\n".join([*lines, "", *(f"{word}: {words}" for words in verdict.words)]) + "\n"


def _row(result: Dict[str, Any], ranks: int) -> Tuple[str, ...]:
    first = (str(result["bytes"]), str(result["count"]), result["dtype"], result["collective"])
    if "seconds" not in result:
        return (*first, result.get("skipped", "-"), "-", "-", "-", "-")
    algbw, busbw = bandwidths_gb_s(result, ranks)
    wrong = "-" if result["wrong"] is None else str(sum(each[1] for each in result["wrong"]))
    return (*first, f"{1e6 * result['seconds']:.1f}", f"{algbw:.3f}", f"{busbw:.3f}", wrong, f"{result['spread']:.0%}")


def as_json(measured: Measured, verdict: Verdict) -> str:
    """The same for programs."""
    plan = measured.plan
    results = [
        {**r, **(dict(zip(("algbw_gb_s", "busbw_gb_s"), bandwidths_gb_s(r, plan.ranks))) if "seconds" in r else {})}
        for r in measured.results
    ]
    word = {True: "passed", False: "failed", None: "unknown"}[verdict.ok]
    return json.dumps(
        {
            "schema_version": 1, "verdict": word, "reasons": verdict.words, "backend": plan.backend, "ranks": plan.ranks,
            "about": measured.about, "results": results, "failure": measured.failure or None,
        },
        indent=1,
    )  # fmt: skip

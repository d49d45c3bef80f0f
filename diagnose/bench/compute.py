"""The compute test, run by the examined interpreter: a process for each GPU, the same steps for all of them.

Python 3.6 and later, standard library and torch alone. Prints one line: MARK and a JSON list with an object for each
device. Options (JSON, first argument): devices, limit_s (the whole test); where known visible (UUIDs for
CUDA_VISIBLE_DEVICES), cpus (for each device the processors near it), peers (copies between the devices, too).
"""

import sys

if __name__ == "__main__" and sys.path and sys.path[0] == "":
    del sys.path[0]  # the working directory may hold a torch.py

import contextlib
import ctypes
import importlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
import warnings
from typing import Any, Callable, Dict, Iterator, List, Sequence, Set

MARK = "ddp-doctor-compute:"
MIB = 1 << 20
PATTERN = 0x5A5AA5A55A5AA5A5
"""Every bit is written as 0 and as 1: the pattern first, then its complement."""
IMPORT_LIMIT_S = 90.0
"""Importing torch from a cold network file system."""
PHASE_LIMIT_S = 45.0
"""No step needs more than ten seconds on a healthy GPU; with one processor for eight of them, more."""
END_LIMIT_S = 10.0
"""A process that held half of a GPU's memory ends in a second or two."""
TEXT_LIMIT = 2000
PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""
LAST_WORDS_LIMIT = 300
FREE_SHARE = 0.5
"""Largest share of the free memory that is filled."""
MISLEADING = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "CUDA_LAUNCH_BLOCKING",
)
"""Variables that change how a product is calculated or timed: the test is about the GPU, not about them."""

Said = Dict[str, Any]


class Unable(Exception):
    """The test cannot be done with this interpreter; that says nothing of the GPU."""


# ------------------------------------------------------------------------------------------------ one device


class Device:
    """A GPU, or the processor in its place: the same steps, with sizes and a clock of its own."""

    def __init__(self, torch: Any, name: str) -> None:
        self.torch, self.name = torch, name
        self.gpu = name.startswith("cuda")
        self.device = torch.device(name)
        self.n = 128
        self.block_bytes, self.pinned_bytes, self.span_s = MIB, MIB, 0.02
        if self.gpu:
            torch.cuda.init()  # first: without CUDA it says so in plain words
            torch.cuda.set_device(self.device)
            self.n = 8192
            self.block_bytes, self.span_s = 256 * MIB, 1.5
            # Little memory: four matrices of float32, one of integers, and room.
            while self.n > 256 and 32 * self.n * self.n > FREE_SHARE * self.free_bytes():
                self.n //= 2
            self.block_bytes = min(self.block_bytes, self.free_bytes() // 16) // 8 * 8
            self.pinned_bytes = min(64 * MIB, self.block_bytes)  # of the host, for each of up to sixteen processes

    def free_bytes(self) -> int:
        """Memory that nobody uses; a careful guess where torch is older than torch.cuda.mem_get_info (1.11)."""
        if not self.gpu:
            return 64 * MIB
        if hasattr(self.torch.cuda, "mem_get_info"):
            return int(self.torch.cuda.mem_get_info(self.device)[0])
        return int(min(2048 * MIB, self.torch.cuda.get_device_properties(self.device).total_memory // 4))

    def wait(self) -> None:
        if self.gpu:
            self.torch.cuda.synchronize(self.device)

    def generator(self) -> Any:
        """The same numbers on every device of one model."""
        return self.torch.Generator(device=self.device).manual_seed(1)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Seconds that ``work`` took on the device. (torch.cuda.Event.elapsed_time is in milliseconds.)"""
        if not self.gpu:
            start_s = time.perf_counter()
            work()
            return time.perf_counter() - start_s
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0

    def median_s(self, work: Callable[[], Any], after: Callable[[], Any] = lambda: None, share: float = 1.0) -> float:
        """Median seconds of at least five rounds within about span_s, after one that is not counted."""
        self.seconds(work)
        after()
        took = []  # type: List[float]
        end = time.perf_counter() + self.span_s * share
        while len(took) < 5 or (time.perf_counter() < end and len(took) < 1000):
            took.append(self.seconds(work))
            after()
        return sorted(took)[len(took) // 2]


class Kind:
    """A type of numbers to multiply, and how far from the exact result its products may lie.

    bits: of the significand of the type (24, 11, 8; TF32: 11), the hidden one included: a number is rounded by at most
    the share 2**-bits of it, cut off by at most 2**(1-bits). rounds_inputs: TF32 shortens both factors first.
    """

    def __init__(self, name: str, dtype: Any, bits: int, rounds_inputs: bool = False) -> None:
        self.name, self.dtype, self.bits, self.rounds_inputs = name, dtype, bits, rounds_inputs

    def farthest(self, left: Any, right: Any, exact: Any) -> Any:
        """The largest possible error of each entry of ``left @ right`` (float64 tensors of the inputs as they are).

        A sum of k products, added in any order in a precision of unit roundoff u, is off by at most k u times the sum of
        the products' magnitudes (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1 and 3.5).
        Products of float16 and bfloat16 are exact in float32, in which all types here are added: torch's switches for
        anything less are off (``_strict``). u of float32 is 2**-24; tensor cores cut off instead of rounding, and keep
        a few bits fewer of a smaller term (Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores,
        PeerJ Comput. Sci. 7:e330, 2021), so 2**-22 is taken. To it comes what shortening both factors of TF32 may cost,
        and the rounding of the result to the type. A right result cannot lie outside, whatever the kernel.
        """
        magnitudes = left.abs() @ right.abs()
        share = left.shape[1] * 2.0**-22
        if self.rounds_inputs:
            share += 2 * 2.0 ** (1 - self.bits)
        stored = 0.0 if self.rounds_inputs else 2.0 ** (1 - self.bits)
        return magnitudes * share * (1 + stored) + exact.abs() * stored


def kinds(device: Device) -> List[Kind]:
    """The types that this device has units for: tensor cores for float16 since 7.0, for bfloat16 and TF32 since 8.0."""
    torch = device.torch
    capability = tuple(torch.cuda.get_device_capability(device.device)) if device.gpu else (0, 0)
    found = [Kind("float32", torch.float32, 24)]
    if capability >= (7, 0):
        found.append(Kind("float16", torch.float16, 11))
    if capability >= (8, 0) or not device.gpu:
        found.append(Kind("bfloat16", torch.bfloat16, 8))
    if capability >= (8, 0):
        found.append(Kind("tf32", torch.float32, 11, rounds_inputs=True))
    return found


def _strict(torch: Any, tf32: bool) -> None:
    """TF32 as wanted, and sums in float32 throughout.

    By the switch that torch 1.7 to 2.13 all have: mixed with its successor (fp32_precision) torch raises, and alone it
    sets both. Switches that a version does not have raise AttributeError, or AssertionError before 2.0.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = tf32
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        if _has(matmul, name):
            setattr(matmul, name, False)


def _has(module: Any, name: str) -> bool:
    try:
        getattr(module, name)
    except (AttributeError, AssertionError):
        return False
    return True


def gemm(device: Device, said: Said) -> None:
    """Matrix products: 2 n**3 operations each, the same inputs everywhere."""
    torch, n = device.torch, device.n
    generator = device.generator()
    left, right = (torch.randn(n, n, generator=generator, device=device.device) for _ in range(2))
    for kind in kinds(device):
        _strict(torch, kind.rounds_inputs)
        _gemm(device, said, kind, left.to(kind.dtype), right.to(kind.dtype))


def _gemm(device: Device, said: Said, kind: Kind, left: Any, right: Any) -> None:
    """Time one type; compare the rounds bit by bit, and entries all over the result with the exact ones.

    The rounds must agree: "all cuBLAS API routines from a given toolkit version, generate the same bit-wise results at every
    run when executed on GPUs with the same architecture and the same number of SMs", unless several streams are active
    or fixed-point emulation is used (cuBLAS guide, Results Reproducibility). There is one stream here, a workspace of
    its own (CUBLAS_WORKSPACE_CONFIG), and no emulation.
    """
    torch = device.torch
    bits = torch.int32 if kind.dtype == torch.float32 else torch.int16
    out = torch.mm(left, right)
    first, differ, rounds = out.clone(), [], []

    def compare() -> None:
        rounds.append(1)
        if not torch.equal(out.view(bits), first.view(bits)):
            differ.append(1)

    took_s = device.median_s(lambda: torch.mm(left, right, out=out), compare)
    said["gemm_tflop_s"][kind.name] = 2.0 * device.n**3 / took_s / 1e12
    said["checksums"][kind.name] = str(int(first.view(bits).sum(dtype=torch.int64)))
    if differ:
        said["wrong"].append(f"gemm {kind.name}: {len(differ)} of {len(rounds)} rounds differ from the first")
    step = max(
        1, device.n // 64
    )  # 64 rows and 64 columns: an entry in each tile of 128 x 128, so of every multiprocessor
    some_left, some_right = left[::step].cpu().double(), right[:, ::step].cpu().double()
    exact = some_left @ some_right
    error = (first[::step, ::step].cpu().double() - exact).abs()
    far = int((~(error <= kind.farthest(some_left, some_right, exact))).sum())  # what is no number counts as far
    if far:
        said["wrong"].append(f"gemm {kind.name}: {far} of {exact.numel()} entries are not what rounding could make")


def memory(device: Device, said: Said) -> None:
    """Copy within device memory (read plus write), then fill and verify at most half of what is free."""
    torch, length = device.torch, device.block_bytes // 8
    source = torch.full((length,), PATTERN, dtype=torch.int64, device=device.device)
    target = torch.zeros_like(source)
    said["memory_gb_s"] = 2.0 * device.block_bytes / device.median_s(lambda: target.copy_(source)) / 1e9
    if not torch.equal(source, target):
        said["wrong"].append("memory: a copy differs")
    count = max(1, int(device.free_bytes() * FREE_SHARE) // device.block_bytes - 2)
    values = [PATTERN ^ number for number in range(count)]  # another one in each block: a wrong address shows
    blocks = [torch.full((length,), value, dtype=torch.int64, device=device.device) for value in values]
    bad = {number for number, block in enumerate(blocks) if bool((block != values[number]).any())}
    for block in blocks:
        block.bitwise_not_()
    bad |= {number for number, block in enumerate(blocks) if bool((block != ~values[number]).any())}
    if bad:
        said["wrong"].append(f"memory: {len(bad)} of {len(blocks)} blocks differ")


def host(device: Device, said: Said) -> None:
    """Copies between pinned host memory and the device, compared after the round trip; one device at a time."""
    torch, length = device.torch, device.pinned_bytes // 8
    there = torch.arange(length, dtype=torch.int64)
    back = torch.zeros_like(there)
    if device.gpu:
        there, back = there.pin_memory(), back.pin_memory()
    held = torch.zeros(length, dtype=torch.int64, device=device.device)
    rates = (("to_device_gb_s", held, there), ("to_host_gb_s", back, held))
    for name, to, of in rates:
        took_s = device.median_s(lambda to=to, of=of: to.copy_(of, non_blocking=True), share=0.2)  # type: ignore[misc]
        said[name] = device.pinned_bytes / took_s / 1e9
    device.wait()
    if not torch.equal(there, back):
        said["wrong"].append("copy to the GPU and back: data differ")


def peer(device: Device, said: Said, other: str) -> None:
    """Copy to another device, compared there; one pair at a time.

    torch runs it on the stream of the source, which the events are in, with peer access where the driver grants it and
    else through the host's memory, by the driver (aten/src/ATen/native/cuda/Copy.cu).
    """
    torch, there = device.torch, device.torch.device(other)
    length = min(device.block_bytes, 128 * MIB) // 8
    source = torch.arange(length, dtype=torch.int64, device=device.device)
    target = torch.zeros(length, dtype=torch.int64, device=there)
    took_s = device.median_s(lambda: target.copy_(source, non_blocking=True), share=0.05)
    said["peer_gb_s"][other] = 8.0 * length / took_s / 1e9
    device.wait()
    if not torch.equal(target, torch.arange(length, dtype=torch.int64, device=there)):
        said["wrong"].append(f"copy to {other}: data differ")


PHASES = {"gemm": gemm, "memory": memory, "host": host}


def be_device(name: str, limit_s: float, cpus: Sequence[int]) -> None:
    """Do each step that standard input names, and tell after each."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))  # ends it with whoever started it
    signal.setitimer(signal.ITIMER_REAL, limit_s)  # ... and in any case
    out = os.dup(1)
    os.dup2(2, 1)
    said = {"device": name, "pid": os.getpid(), "gemm_tflop_s": {}, "checksums": {}, "peer_gb_s": {}, "wrong": []}  # type: Said
    try:
        _near(cpus)
        torch = _torch(name)
        said["torch"] = str(torch.__version__)
        tell(out, said)
        device = Device(torch, name)
        if device.gpu:
            said["multiprocessors"] = int(torch.cuda.get_device_properties(device.device).multi_processor_count)
        said["duration_s"] = 0.0
        tell(out, said)
        for line in iter(sys.stdin.readline, ""):
            before_s = time.perf_counter()
            step(device, said, *line.split())
            said["duration_s"] += time.perf_counter() - before_s
            tell(out, said)
    except Unable as error:
        said["unable"] = str(error)[:TEXT_LIMIT]
        tell(out, said)
    except BaseException as error:  # noqa: BLE001  whatever a device's library raises is its answer
        said["error"] = f"{type(error).__name__}: {error}"[:TEXT_LIMIT]
        tell(out, said)


def step(device: Device, said: Said, phase: str, other: str = "") -> None:
    if phase == "peer":
        peer(device, said, other)
    else:
        PHASES[phase](device, said)
    if device.gpu:
        device.torch.cuda.empty_cache()


def _near(cpus: Sequence[int]) -> None:
    """Run near the GPU: pinned memory comes from the NUMA node of the processor that asks for it."""
    allowed = os.sched_getaffinity(0) & set(cpus)
    if allowed:
        os.sched_setaffinity(0, allowed)


def _torch(name: str) -> Any:
    """The torch of this interpreter. Raises Unable where it has none, or one that is not made for this device."""
    warnings.simplefilter("ignore")
    try:
        torch = importlib.import_module("torch")  # type: Any
    except ImportError as error:
        raise Unable(f"torch cannot be imported by {sys.executable}: {error}") from None
    if name.startswith("cuda") and not torch.version.cuda:
        raise Unable(f"torch {torch.__version__} of {sys.executable} is built without CUDA")
    torch.set_num_threads(1)  # others may compute on this machine
    return torch


def tell(out: int, said: Said) -> None:
    os.write(out, ("\n" + MARK + json.dumps(said) + "\n").encode("ascii"))


# ------------------------------------------------------------------------------------------------ all devices


def steps(devices: Sequence[str], peers: bool) -> Iterator[Dict[int, str]]:
    """For each step, device's place -> what it is told to do.

    All calculate at the same time, as in a training. Copies are made by one device after the other, since several GPUs may
    share a PCIe switch or the way between two processors: a rate is that of its own link.
    """
    for phase in ("gemm", "memory"):
        yield dict.fromkeys(range(len(devices)), phase)
    for place in range(len(devices)):
        yield {place: "host"}
    for place in range(len(devices)) if peers else ():
        for name in devices:
            if name != devices[place]:
                yield {place: "peer " + name}


class Worker:
    """The process of one device, and what it said last."""

    def __init__(self, place: int, argv: Sequence[str], name: str, news: "queue.Queue[Any]") -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        self.said, self.alive = {"device": name}, True  # type: Said, bool
        self.last_words = ""
        self._ears = [
            threading.Thread(target=self._listen, args=(place, news), daemon=True),
            threading.Thread(target=self._overhear, daemon=True),
        ]
        for ear in self._ears:
            ear.start()

    def _listen(self, place: int, news: "queue.Queue[Any]") -> None:
        for line in self.process.stdout or ():
            if line.startswith(MARK.encode()):
                news.put((place, json.loads(line[len(MARK) :].decode())))
        news.put((place, None))

    def _overhear(self) -> None:
        for line in self.process.stderr or ():
            text = ascii(line.decode("utf-8", "replace").strip())[1:-1]
            self.last_words = text[:LAST_WORDS_LIMIT] or self.last_words

    def order(self, text: str) -> None:
        try:
            assert self.process.stdin is not None  # noqa: S101  it was asked for
            self.process.stdin.write((text + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            pass  # it died: its end is told by the reader

    def how(self) -> str:
        """Of a process that died: its status, and the last that it printed as an error."""
        try:
            status = f" (exit status {self.process.wait(timeout=5)})"
        except subprocess.TimeoutExpired:
            status = ""
        self._ears[1].join(timeout=1)
        return status + (f": {self.last_words}" if self.last_words else "")

    def ended(self, limit_s: float) -> None:
        """Wait for the end of a process that was killed; one that the kernel will not end is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=max(0.0, limit_s))

    def give_up(self, error: str, key: str = "error") -> None:
        self.said.setdefault(key, error)
        self.alive = False
        self.process.kill()


def gather(workers: Sequence[Worker], news: "queue.Queue[Any]", waiting: Set[int], what: str, limit_s: float) -> None:
    """Wait until those in ``waiting`` have answered; give up those that die or are late.

    Whoever does not come as far as a torch that is imported says nothing of its GPU.
    """
    end, key = time.monotonic() + limit_s, "unable" if what == "import of torch" else "error"
    while waiting:
        try:
            place, said = news.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            for place in waiting:
                workers[place].give_up(f"{what}: no answer within {limit_s:.0f} s", key)
            return
        if said is None:
            if workers[place].alive:
                workers[place].give_up(f"{what}: its process died{workers[place].how()}", key)
        else:
            workers[place].said = said
            workers[place].alive = "error" not in said and "unable" not in said
        waiting.discard(place)


def run(
    source: str, devices: Sequence[str], limit_s: float, cpus: Sequence[Sequence[int]] = (), peers: bool = False
) -> List[Said]:
    """What every device said, in order. No step is begun that might not end within ``limit_s``."""
    end, news = time.monotonic() + limit_s, queue.Queue()  # type: float, queue.Queue[Any]
    workers = []
    for place, name in enumerate(devices):
        near = json.dumps(list(cpus[place]) if place < len(cpus) else [])
        argv = [sys.executable, "-B", "-c", source, "--device", name, str(limit_s + 10.0), near]
        workers.append(Worker(place, argv, name, news))
    gather(workers, news, set(range(len(workers))), "import of torch", min(IMPORT_LIMIT_S, limit_s))
    starting = {place for place in _living(workers) if "duration_s" not in workers[place].said}
    gather(workers, news, starting, "start", PHASE_LIMIT_S)
    for orders in steps(devices, peers):
        able = {place: text for place, text in orders.items() if workers[place].alive}
        if "peer" in next(iter(able.values()), ""):
            able = {place: text for place, text in able.items() if workers[devices.index(text.split()[1])].alive}
        if end - time.monotonic() < PHASE_LIMIT_S:
            for place in _living(workers):
                workers[place].said["cut_short"] = f"the {limit_s:.0f} s of the whole test were over"
            break
        for place, text in able.items():
            workers[place].order(text)
        what = next(iter(able.values()), "").replace("peer", "copy to")
        gather(workers, news, set(able), what, PHASE_LIMIT_S)
    for worker in workers:
        worker.process.kill()
    end = time.monotonic() + END_LIMIT_S
    for (
        worker
    ) in workers:  # the driver lists a process until it has ended: whoever looks next is not to take it for a job
        worker.ended(end - time.monotonic())
    return [worker.said for worker in workers]


def _living(workers: Sequence[Worker]) -> Set[int]:
    return {place for place, worker in enumerate(workers) if worker.alive}


def main(source: str, options: Dict[str, Any]) -> None:
    for name in MISLEADING:
        os.environ.pop(name, None)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS guide, Results Reproducibility
    if options.get("visible"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(options["visible"])
    answer = run(source, options["devices"], options["limit_s"], options.get("cpus", ()), options.get("peers", False))
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "--device":
        be_device(sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4]))
        os._exit(0)
    main(SOURCE, json.loads(sys.argv[1]))  # type: ignore[name-defined]  # noqa: F821  set by collect.compute.BOOT

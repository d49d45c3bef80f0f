"""The compute test, run by the examined interpreter: one process per GPU, all phases started together.

Python 3.6 and later, standard library and torch alone. Prints one line, MARK and a JSON list with an object for each
device. Options (JSON, first argument): devices, visible (UUIDs for CUDA_VISIBLE_DEVICES), limit_s (the whole test).
"""

# mypy: ignore-errors
# ruff: noqa: UP031, PERF401  (Python 3.6; plain steps)
import sys

if __name__ == "__main__" and sys.path and sys.path[0] == "":
    del sys.path[0]  # the working directory may hold a torch.py

import json
import os
import queue
import subprocess
import threading
import time

MARK = "ddp-doctor-compute:"
MIB = 1 << 20
PATTERN = 0x5A5AA5A55A5AA5A5
PHASE_LIMIT_S = 60.0
"""No phase needs more than ten seconds on a healthy GPU; with one processor for eight of them, more."""
START_LIMIT_S = 75.0
"""Importing torch from a cold network file system, and making a context."""
TEXT_LIMIT = 2000
FREE_SHARE = 0.5
"""Largest share of the free memory that is filled."""


# ------------------------------------------------------------------------------------------------ one device


class Device:
    """A GPU, or the processor in its place: the same steps, with sizes and a clock of its own."""

    def __init__(self, torch, name):
        self.torch, self.name = torch, name
        self.gpu = name.startswith("cuda")
        self.device = torch.device(name)
        if self.gpu:
            torch.cuda.init()  # first: without CUDA it says so in plain words
            torch.cuda.set_device(self.device)
        self.n = 8192 if self.gpu else 128
        self.block_bytes = 256 * MIB if self.gpu else MIB
        self.span_s = 1.5 if self.gpu else 0.02
        if self.gpu:  # little memory, shared machines: three matrices of float32, a copy as integers, and room
            while self.n > 1024 and 32 * self.n * self.n > FREE_SHARE * self.free_bytes():
                self.n //= 2
            self.block_bytes = int(min(self.block_bytes, self.free_bytes() // 16)) // 8 * 8

    def free_bytes(self):
        if not self.gpu:
            return 64 * MIB
        ask = getattr(self.torch.cuda, "mem_get_info", None)  # not in the oldest versions: then little is taken
        return ask(self.device)[0] if ask else 2048 * MIB

    def wait(self):
        if self.gpu:
            self.torch.cuda.synchronize(self.device)

    def seconds(self, work):
        """Seconds that ``work`` took on the device."""
        if not self.gpu:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000.0

    def median_s(self, work, after=lambda: None, share=1.0):
        """Median seconds of at least five rounds within about span_s, after one that is not counted."""
        self.seconds(work)
        after()
        took, end = [], time.perf_counter() + self.span_s * share
        while len(took) < 5 or (time.perf_counter() < end and len(took) < 1000):
            took.append(self.seconds(work))
            after()
        return sorted(took)[len(took) // 2]


def types(device):
    """(name, dtype, may TF32 be used) of the multiplications that this device has units for."""
    torch = device.torch
    ampere = device.gpu and torch.cuda.get_device_capability(device.device)[0] >= 8
    found = [("float32", torch.float32, False)]
    if device.gpu and not torch.version.hip:
        found.append(("float16", torch.float16, False))
    if ampere or not device.gpu:
        found.append(("bfloat16", torch.bfloat16, False))
    if ampere and not torch.version.hip:
        found.append(("tf32", torch.float32, True))
    return found


def gemm(device, said):
    """Matrix products: 2 n**3 operations each, equal inputs everywhere, results compared bit by bit."""
    torch, n = device.torch, device.n
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(n, n, generator=generator) for _ in range(2))
    for name, dtype, tf32 in types(device):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = left.to(dtype), right.to(dtype)
        exact = a[:4].double() @ b[:, :64].double()
        _gemm(device, said, name, (a.to(device.device), b.to(device.device)), exact)


def _gemm(device, said, name, inputs, exact):
    torch, n = device.torch, device.n
    out = torch.mm(*inputs)
    first, differ, rounds = out.clone(), [], []

    def compare():
        rounds.append(1)
        if not torch.equal(out, first):
            differ.append(1)

    took_s = device.median_s(lambda: torch.mm(*inputs, out=out), compare)
    said["gemm_tflop_s"][name] = 2.0 * n**3 / took_s / 1e12
    bits = torch.int32 if first.dtype == torch.float32 else torch.int16
    said["checksums"][name] = str(int(first.view(bits).sum(dtype=torch.int64)))
    if differ:
        said["wrong"].append("gemm %s: %d of %d rounds differ from the first" % (name, len(differ), len(rounds)))
    # In units of a result's standard deviation, sqrt(n): rounding of bfloat16 stays below 0.022, of float32 far below.
    error = float((first[:4, :64].cpu().double() - exact).abs().max()) / n**0.5
    if not error <= (1e-3 if name == "float32" else 0.04):
        said["wrong"].append(f"gemm {name}: off the exact result by {error:.3g} standard deviations")


def memory(device, said):
    """Copy within device memory (read plus write), then fill and verify at most half of what is free."""
    torch = device.torch
    source = torch.full((device.block_bytes // 8,), PATTERN, dtype=torch.int64, device=device.device)
    target = torch.zeros_like(source)
    said["memory_gb_s"] = 2.0 * device.block_bytes / device.median_s(lambda: target.copy_(source)) / 1e9
    blocks = [source, target]
    for _ in range(max(0, int(device.free_bytes() * FREE_SHARE) // device.block_bytes - 2)):
        blocks.append(source.clone())
    bad = sum(1 for block in blocks if bool((block != PATTERN).any()))
    if bad:
        said["wrong"].append("memory: %d of %d blocks differ" % (bad, len(blocks)))


def host(device, said):
    """Copies between pinned host memory and the device, compared after the round trip."""
    torch = device.torch
    there = torch.arange(device.block_bytes // 8, dtype=torch.int64)
    back = torch.zeros_like(there)
    if device.gpu:
        there, back = there.pin_memory(), back.pin_memory()
    held = torch.zeros(there.shape, dtype=torch.int64, device=device.device)
    said["to_device_gb_s"] = device.block_bytes / device.median_s(lambda: held.copy_(there, non_blocking=True)) / 1e9
    said["to_host_gb_s"] = device.block_bytes / device.median_s(lambda: back.copy_(held, non_blocking=True)) / 1e9
    device.wait()
    if not torch.equal(there, back):
        said["wrong"].append("copy to the GPU and back: data differ")


def peer(device, said, other):
    """Copy to another device, compared there; disjoint pairs run at the same time."""
    torch = device.torch
    source = torch.arange(device.block_bytes // 8, dtype=torch.int64, device=device.device)
    target = torch.zeros(source.shape, dtype=torch.int64, device=other)
    took_s = device.median_s(lambda: target.copy_(source, non_blocking=True), share=0.2)
    said["peer_gb_s"][other] = device.block_bytes / took_s / 1e9
    device.wait()
    if not torch.equal(target.cpu(), source.cpu()):
        said["wrong"].append(f"copy to {other}: data differ")


PHASES = {"gemm": gemm, "memory": memory, "host": host}


def be_device(name):
    """Do each phase that standard input names, and tell after each."""
    out = os.dup(1)
    os.dup2(2, 1)
    said = {"device": name, "gemm_tflop_s": {}, "checksums": {}, "peer_gb_s": {}, "wrong": []}
    try:
        import torch

        device = Device(torch, name)
        said["torch"] = str(torch.__version__)
        tell(out, said)
        for line in iter(sys.stdin.readline, ""):
            phase, _, other = line.strip().partition(" ")
            if phase == "peer":
                peer(device, said, other)
            else:
                PHASES[phase](device, said)
            if device.gpu:
                torch.cuda.empty_cache()
            tell(out, said)
    except BaseException as error:  # noqa: BLE001  whatever a device's library raises is its answer
        said["error"] = (f"{type(error).__name__}: {error}")[:TEXT_LIMIT]
        tell(out, said)


def tell(out, said):
    os.write(out, ("\n" + MARK + json.dumps(said) + "\n").encode("ascii"))


# ------------------------------------------------------------------------------------------------ all devices


def rounds(devices):
    """Disjoint pairs (i, j) of a tournament: everybody meets everybody once."""
    order = list(range(len(devices))) + ([None] if len(devices) % 2 else [])
    for _ in range(len(order) - 1):
        pairs = zip(order[: len(order) // 2], reversed(order[len(order) // 2 :]))
        yield [pair for pair in pairs if None not in pair]
        order = order[:1] + order[-1:] + order[1:-1]


def steps(devices, peers):
    """For each step, device's place -> what it is told to do."""
    for phase in ("gemm", "memory", "host"):
        yield dict.fromkeys(range(len(devices)), phase)
    for pairs in rounds(devices) if peers else ():
        yield {i: "peer " + devices[j] for i, j in pairs}
        yield {j: "peer " + devices[i] for i, j in pairs}


class Worker:
    """The process of one device, and what it said last."""

    def __init__(self, place, source, name, news):
        argv = [sys.executable, "-B", "-c", source, "--device", name]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self.said, self.alive = {"device": name}, True
        threading.Thread(target=self._listen, args=(place, news), daemon=True).start()

    def _listen(self, place, news):
        for line in self.process.stdout:
            if line.startswith(MARK.encode()):
                news.put((place, json.loads(line[len(MARK) :].decode())))
        news.put((place, None))

    def order(self, text):
        try:
            self.process.stdin.write((text + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            pass  # it died: its end is told by the reader

    def how(self):
        try:
            return " (exit status %d)" % self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return ""

    def give_up(self, error):
        self.said.setdefault("error", error)
        self.alive = False
        self.process.kill()


def gather(workers, news, waiting, what, limit_s):
    """Wait until those in ``waiting`` have answered; give up those that die or are late."""
    end = time.monotonic() + limit_s
    while waiting:
        try:
            place, said = news.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            for place in waiting:
                workers[place].give_up(f"{what}: no answer within {limit_s:.0f} s")
            return
        if said is None:
            workers[place].give_up(f"{what}: its process died{workers[place].how()}")
        else:
            workers[place].said = said
            workers[place].alive = "error" not in said
        waiting.discard(place)


def run(source, devices, limit_s, peers=False):
    """What every device said, in order."""
    end, news = time.monotonic() + limit_s, queue.Queue()
    workers = [Worker(i, source, name, news) for i, name in enumerate(devices)]
    gather(workers, news, set(range(len(devices))), "start", min(START_LIMIT_S, limit_s))
    for step in steps(devices, peers):
        able = {i: text for i, text in step.items() if workers[i].alive}
        left_s = end - time.monotonic()
        if left_s <= 0:
            for i in able:
                workers[i].give_up(f"{able[i]}: the time of the whole test, {limit_s:.0f} s, was over")
            break
        for i, text in able.items():
            workers[i].order(text)
        what = next(iter(able.values()), "").split(" ")[0]
        gather(workers, news, set(able), what, min(PHASE_LIMIT_S, left_s))
    for worker in workers:
        worker.process.kill()
    return [worker.said for worker in workers]


def main(source, options):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = (
        ":4096:8"  # the same result each time (CUDA's cuBLAS guide, reproducibility)
    )
    if options.get("visible"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(options["visible"])
    answer = run(source, options["devices"], options["limit_s"], options.get("peers", False))
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "--device":
        be_device(sys.argv[2])
        os._exit(0)
    main(SOURCE, json.loads(sys.argv[1]))  # type: ignore[name-defined]  # noqa: F821  set by collect.compute.BOOT

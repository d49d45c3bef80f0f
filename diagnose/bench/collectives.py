# mypy: ignore-errors
"""The ranks of ``ddp-doctor nccl-test``: one file, run by torchrun under the user's interpreter.

The standard library and torch 1.12 or newer alone, Python 3.7's syntax. What is asked comes as JSON in the first argument;
every line of answer begins with MARK. Times are of the slowest rank.
"""

import datetime
import json
import os
import statistics
import sys
import time

MARK = "NCCL-TEST "
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8")
MODULUS = 5
"""Values are small whole numbers, so that sums over many ranks are exact in float16 as in int64."""
WARM_BYTES = 1024
UNSUPPORTED = ("not support", "has no attribute", "nvalid scalar type", "not implemented", "nsupported data type")
"""What back ends say of collectives and types that they do not have, on all ranks alike."""


def say(**words):
    """One line that is never torn: a single write."""
    sys.stdout.write("\n" + MARK + json.dumps(words) + "\n")
    sys.stdout.flush()


def main():
    asked = json.loads(sys.argv[1])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    say(rank=rank, phase="started", host=os.uname()[1], pid=os.getpid())
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", local) if asked["backend"] == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(asked["backend"], timeout=datetime.timedelta(seconds=asked["connect_s"]))
    say(rank=rank, phase="connected")
    test = Test(torch, dist, device, rank, world, asked)
    test.first()
    say(rank=rank, phase="first")
    if rank == 0:
        say(about=test.about())
    for name in asked["collectives"]:
        for dtype in asked["dtypes"]:
            for size in asked["sizes_bytes"]:
                result = test.measured(name, dtype, size)
                if rank == 0:
                    say(result=result)
    test.together()
    dist.destroy_process_group()
    say(rank=rank, phase="done")


class Test:
    """The measurement of one rank."""

    def __init__(self, torch, dist, device, rank, world, asked):
        self.torch, self.dist, self.device = torch, dist, device
        self.rank, self.world, self.asked = rank, world, asked

    def about(self):
        """What ran here."""
        torch, cuda = self.torch, self.device.type == "cuda"
        return {
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
            "device": torch.cuda.get_device_name(self.device) if cuda else "CPU",
            "world_size": self.world,
        }

    def first(self):
        """The first collective, which sets up the connections."""
        self.dist.all_reduce(self.torch.ones(WARM_BYTES // 4, device=self.device))
        self.wait()

    def together(self):
        """Wait for all ranks. Not by barrier(): Gloo's also waits for operations that failed before, and fails with them."""
        self.dist.all_reduce(self.torch.zeros(1, device=self.device))
        self.wait()

    def wait(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def values(self, count, dtype, rank, turn):
        """What a rank puts in: different for each rank, element and iteration."""
        torch = self.torch
        places = torch.arange(count, device=self.device, dtype=torch.int64)
        return ((places + 3 * rank + 7 * turn) % MODULUS).to(getattr(torch, dtype))

    def measured(self, name, dtype, size_bytes):
        """Seconds of the slowest rank for each repeat, and how many elements were wrong on any rank."""
        item_bytes = self.torch.empty(0, dtype=getattr(self.torch, dtype)).element_size()
        count = size_bytes // item_bytes
        if name in ("all_gather", "reduce_scatter", "all_to_all"):
            count = count // self.world * self.world
        result = {"collective": name, "dtype": dtype, "bytes": count * item_bytes, "count": count}
        if count == 0:
            return dict(result, skipped="smaller than an element for each rank")
        try:
            step = STEPS[name](self, count, dtype)
            seconds = self.slowest(self.timed(step.run))
            wrong = self.wrong(step) if self.asked["check"] else None
        except (RuntimeError, AttributeError, ValueError) as error:
            words = str(error).strip().splitlines()
            if not any(sign in words[0] for sign in UNSUPPORTED):
                raise
            return dict(result, skipped=words[0][:200])
        spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
        return dict(result, seconds=statistics.median(seconds), spread=round(spread, 4), wrong=wrong)

    def timed(self, run):
        """Seconds of an iteration on this rank, for each repeat."""
        for _ in range(self.asked["warmup"]):
            run()
        found = []
        for _ in range(self.asked["repeats"]):
            self.together()
            found.append(self.one(run, self.asked["iterations"]))
        return found

    def one(self, run, times):
        if self.device.type != "cuda":
            started = time.perf_counter()
            for _ in range(times):
                run()
            return (time.perf_counter() - started) / times
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / times

    def slowest(self, seconds):
        times = self.torch.tensor(seconds, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(times, op=self.dist.ReduceOp.MAX)
        return times.tolist()

    def wrong(self, step):
        """[rank, how many elements, the first of them, what it is, what it should be] of each rank with wrong ones."""
        found = []
        for turn in (1, 2):
            got, expected = step.checked(turn)
            bad = (got.to(self.torch.float64) != expected.to(self.torch.float64)).nonzero().flatten()
            first = int(bad[0]) if len(bad) else -1
            told = [self.rank, len(bad), first, float(got[first]), float(expected[first])] if len(bad) else None
            told_by_all = [None] * self.world
            self.dist.all_gather_object(told_by_all, told)
            found += [each for each in told_by_all if each]
        return found


class Step:
    """A collective: ``run`` does it once; ``checked`` gives what came out, and what should."""

    def __init__(self, test, count, dtype):
        self.test, self.count, self.dtype, self.part = test, count, dtype, count // test.world
        self.tensor = test.values(count, dtype, test.rank, 0)

    def of(self, rank, turn, count=None):
        return self.test.values(count or self.count, self.dtype, rank, turn)

    def total(self, turn):
        return sum(self.of(rank, turn).to(self.test.torch.int64) for rank in range(self.test.world))


class AllReduce(Step):
    def run(self):
        self.test.dist.all_reduce(self.tensor)

    def checked(self, turn):
        self.tensor.copy_(self.of(self.test.rank, turn))
        self.run()
        return self.tensor, self.total(turn)


class Reduce(AllReduce):
    def run(self):
        self.test.dist.reduce(self.tensor, 0)

    def checked(self, turn):
        got, expected = AllReduce.checked(self, turn)
        return (got, expected) if self.test.rank == 0 else (expected, expected)


class Broadcast(Step):
    def run(self):
        self.test.dist.broadcast(self.tensor, 0)

    def checked(self, turn):
        self.tensor.copy_(self.of(self.test.rank, turn))
        self.run()
        return self.tensor, self.of(0, turn)


class AllGather(Step):
    def __init__(self, test, count, dtype):
        Step.__init__(self, test, count, dtype)
        self.mine = self.of(test.rank, 0, self.part)
        self.parts = list(self.tensor.chunk(test.world))

    def run(self):
        self.test.dist.all_gather(self.parts, self.mine)

    def checked(self, turn):
        self.mine.copy_(self.of(self.test.rank, turn, self.part))
        self.run()
        ranks = range(self.test.world)
        return self.test.torch.cat(self.parts), self.test.torch.cat([self.of(rank, turn, self.part) for rank in ranks])


class ReduceScatter(AllGather):
    def run(self):
        self.test.dist.reduce_scatter(self.mine, self.parts)

    def checked(self, turn):
        self.tensor.copy_(self.of(self.test.rank, turn))
        self.run()
        return self.mine, self.total(turn).chunk(self.test.world)[self.test.rank]


class AllToAll(Step):
    def __init__(self, test, count, dtype):
        Step.__init__(self, test, count, dtype)
        self.out = test.torch.empty_like(self.tensor)

    def run(self):
        self.test.dist.all_to_all_single(self.out, self.tensor)

    def checked(self, turn):
        self.tensor.copy_(self.of(self.test.rank, turn))
        self.run()
        mine = [self.of(rank, turn).chunk(self.test.world)[self.test.rank] for rank in range(self.test.world)]
        return self.out, self.test.torch.cat(mine)


class SendRecv(AllToAll):
    def run(self):
        dist, here, world = self.test.dist, self.test.rank, self.test.world
        sent = dist.isend(self.tensor, (here + 1) % world)
        dist.recv(self.out, (here - 1) % world)
        sent.wait()

    def checked(self, turn):
        self.tensor.copy_(self.of(self.test.rank, turn))
        self.run()
        return self.out, self.of((self.test.rank - 1) % self.test.world, turn)


STEPS = {
    "all_reduce": AllReduce,
    "reduce": Reduce,
    "broadcast": Broadcast,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "send_recv": SendRecv,
}


if __name__ == "__main__":
    main()

"""How fast a log is read, beside grep:  python benchmarks/explain.py [MEGABYTES]

A log of 1 GB (or so many MB) in real shapes, of which one line in a hundred matters, is read by ``ddp-doctor explain`` and by
``grep -cE`` with the same patterns, interleaved, three times each; one process each, LC_ALL=C. Bound: at least half of
grep's speed. Memory must not grow with the log: the bound is 300 MB.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import List, Tuple

from ddp_doctor import explain, registry

PLAIN = (
    "[2026-01-01 10:00:{0:02d}] [rank{1}] step {2} loss 2.{3} lr 0.0001 tokens/s 12345 mfu 0.41 grad_norm 0.{3}",
    "{1}: iteration {2}/500000 | consumed samples: 1234 | elapsed time per iteration (ms): 1234.5 | learning rate: 1.0E-04",
    " {1}%|####      | {2}/500000 [10:00<20:00,  6.8{3}it/s]",
    "INFO {2} dataloader.py:123] shard {3} of epoch {1} opened in 0.{0} s from /data/shards/{2}.tar",
)
TELLING = (
    "gpu01:100:200 [{1}] NCCL INFO Bootstrap : Using eth0:10.0.0.{3}<0>",
    "[W socket.cpp:697] [c10d] The client socket cannot be initialized to connect to [gpu0{1}]:29500 (errno: 97 - Address family not supported by protocol).",
    "gpu01:100:200 [{1}] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu0{3}<51159>",
)
SHARE, MOST_BYTES = 0.5, 300 * 10**6


def write(path: str, size_bytes: int) -> None:
    dice = random.Random(1)
    block = []
    while sum(map(len, block)) < 8 * 2**20:
        shapes = TELLING if dice.random() < 0.01 else PLAIN
        block.append(dice.choice(shapes).format(*(dice.randrange(60) for _ in range(4))) + "\n")
    data = "".join(block).encode()
    with open(path, "wb") as file:
        while file.tell() < size_bytes:
            file.write(data)


def patterns() -> List[str]:
    """What ``explain`` looks for."""
    return explain.patterns(explain.of_logs(list(registry.load(plugins=False).checks.values())))


def extended(pattern: str) -> str:
    """A pattern as grep -E takes it."""
    inside = {"\\d": "0-9", "\\w": "A-Za-z0-9_", "\\s": " \\t", "\\n": "\\t"}
    outside = {"\\d": "[0-9]", "\\s": "[ \t]", "\\S": "[^ \t]"}

    def class_of(found: "re.Match[str]") -> str:
        text = found.group()
        for short, long in inside.items():
            text = text.replace(short, long)
        return text.replace("\\", "") if text != "[^\\t]" else "."

    text = re.sub(r"\[\^?\]?[^\]]*\]", class_of, pattern)
    for short, long in outside.items():
        text = text.replace(short, long)
    return text.replace("(?:", "(")


def ran(argv: List[str]) -> Tuple[float, int]:
    """Seconds, and bytes at most in memory."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as printed:  # at /dev/null grep stops at the first line
        child = subprocess.Popen(argv, stdout=printed, env={**os.environ, "LC_ALL": "C"})
        _, _, usage = os.wait4(child.pid, 0)
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def main() -> int:
    size_bytes = int(sys.argv[1] if len(sys.argv) > 1 else 1000) * 10**6
    alternatives = "|".join(f"({extended(pattern)})" for pattern in patterns())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log.txt")
        write(path, size_bytes)
        commands = {
            "explain": [sys.executable, "-m", "ddp_doctor", "explain", path],
            "grep": ["grep", "-cE", alternatives, path],
        }
        seconds, held_bytes = {name: [] for name in commands}, 0
        for _ in range(3):
            for name, argv in commands.items():
                taken_s, most_bytes = ran(argv)
                seconds[name].append(taken_s)
                held_bytes = max(held_bytes, most_bytes if name == "explain" else 0)
    middle = {name: median(found) for name, found in seconds.items()}
    speeds = {name: size_bytes / 1e6 / taken_s for name, taken_s in middle.items()}
    kept = speeds["explain"] >= SHARE * speeds["grep"] and held_bytes <= MOST_BYTES
    told = "  ".join(f"{name} {speed:.0f} MB/s" for name, speed in speeds.items())
    print(
        f"{told}  ratio {speeds['explain'] / speeds['grep']:.2f}  {held_bytes / 1e6:.0f} MB  bounds {'kept' if kept else 'BROKEN'}"
    )
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())

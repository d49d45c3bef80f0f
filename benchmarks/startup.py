"""How long a passive run takes, as ratios within one run:  python benchmarks/startup.py PYTHON [REPEATS]

PYTHON is an interpreter that has both torch and ddp-doctor. The commands are interleaved, so that a busy moment of the
machine meets all of them, and the medians are compared:

* ``ddp-doctor --version``                                   bound: 0.15 s
* ``ddp-doctor run --profile quick``                         bounds: 0.5 s, and a quarter of torch's own collect_env
* ``ddp-doctor run --profile standard``                      bound: the time of ``import torch`` + 0.5 s
"""

import os
import statistics
import subprocess
import sys
import time
from typing import Dict, List

VERSION_MAX_S = 0.15
QUICK_MAX_S = 0.5
QUICK_MAX_RATIO = 0.25
STANDARD_EXTRA_MAX_S = 0.5


def seconds(argv: List[str]) -> float:
    """Wall time of one command whose output nobody reads."""
    started = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - started


def medians(commands: Dict[str, List[str]], repeats: int) -> Dict[str, float]:
    """Median seconds of each command over interleaved repeats, after one round that warms the caches."""
    times: Dict[str, List[float]] = {name: [] for name in commands}
    for round_number in range(repeats + 1):
        for name, argv in commands.items():
            taken_s = seconds(argv)
            if round_number:
                times[name].append(taken_s)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> int:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    doctor = [os.path.join(os.path.dirname(python), "ddp-doctor")]
    found = medians(
        {
            "version": [*doctor, "--version"],
            "quick": [*doctor, "run", "--profile", "quick"],
            "standard": [*doctor, "run", "--profile", "standard", "--python", python],
            "collect_env": [python, "-m", "torch.utils.collect_env"],
            "import torch": [python, "-c", "import torch"],
        },
        repeats,
    )
    bounds = {
        "version": VERSION_MAX_S,
        "quick": min(QUICK_MAX_S, QUICK_MAX_RATIO * found["collect_env"]),
        "standard": found["import torch"] + STANDARD_EXTRA_MAX_S,
    }
    for name, median_s in found.items():
        bound = bounds.get(name)
        word = "" if bound is None else f"  bound {bound:.3f} s: {'kept' if median_s <= bound else 'BROKEN'}"
        print(f"{name:14s} {median_s:.3f} s{word}")
    return int(any(found[name] > bound for name, bound in bounds.items()))


if __name__ == "__main__":
    sys.exit(main())

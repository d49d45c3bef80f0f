"""How long many nodes take:  python benchmarks/cluster.py [NODES ...]   (root on Linux; default 1 4 16 64)

Hosts of a lab (tests/lab), each with a real sshd, share this machine's processors. For each number of hosts, interleaved:

* ours: ``ddp-doctor run --nodes ... --profile quick``, which collects, judges and prints
* clush: ``clush -b`` with ``ddp-doctor collect --profile quick`` as the command: the same work on every node over the same
  ssh, without judging

The bound is 1.2 times clush, and half a second for judging and printing one report.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from lab.hosts import Lab, LabHost

COUNTS = (1, 4, 16, 64)
TIMES = 3
SHARE, JUDGING_S = 1.2, 0.5
DOCTOR = [sys.executable, "-m", "ddp_doctor"]


def taken_s(head: LabHost, argv: "list[str]") -> float:
    """Seconds of a command on the head; it must succeed."""
    started = time.perf_counter()
    subprocess.run(
        head.argv(argv), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - started


def ways(count: int) -> "dict[str, list[str]]":
    nodes = f"c[1-{count}]" if count > 1 else "c1"
    collect = " ".join([*DOCTOR, "collect", "--profile", "quick", "--output", "/dev/null"])
    clush = "from ClusterShell.CLI.Clush import main; main()"
    return {
        "ours": [*DOCTOR, "run", "--profile", "quick", "--select", "fleet,memory", "--brief", "--nodes", nodes],
        "clush": [sys.executable, "-c", clush, "-q", "-b", "-f", "64", "-w", nodes, collect],
        "true": [sys.executable, "-c", clush, "-q", "-b", "-f", "64", "-w", nodes, "true"],
    }


def main() -> int:
    counts = [int(word) for word in sys.argv[1:]] or list(COUNTS)
    broken = False
    with Lab() as lab:
        head = lab.add("head")
        hosts = []
        for count in counts:
            while len(hosts) < count:
                hosts.append(lab.add(f"c{len(hosts) + 1}"))
                hosts[-1].sshd()
            head.knows(*hosts)
            times = {name: [] for name in ways(count)}
            for _ in range(TIMES):
                for name, argv in ways(count).items():
                    times[name].append(taken_s(head, argv))
            middle = {name: median(found) for name, found in times.items()}
            kept = middle["ours"] <= SHARE * middle["clush"] + JUDGING_S
            broken = broken or not kept
            told = "  ".join(f"{name} {seconds:6.2f} s" for name, seconds in middle.items())
            print(
                f"{count:4d} nodes  {told}  ratio {middle['ours'] / middle['clush']:.2f}  bound {'kept' if kept else 'BROKEN'}",
                flush=True,
            )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())

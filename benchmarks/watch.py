"""What a watch costs on this node:  python benchmarks/watch.py [LOOKS]

Looks at the node LOOKS times (default 1000) without waiting, judges each look by every check, and renders it as a line of
JSON and as Prometheus' text. Bounds of the issue that asked for it:

* CPU of one look, children included: less than 1 % of one core at an interval of 10 s, which is 0.1 s
* memory: flat; resident memory after all looks against that after the first quarter, at most 2 % more
"""

import resource
import sys
import time
from typing import Tuple

from ddp_doctor import registry
from ddp_doctor.ask import Ask
from ddp_doctor.config import Config
from ddp_doctor.host import Host
from ddp_doctor.watch import lines, metrics, prometheus
from ddp_doctor.watch.findings import Findings
from ddp_doctor.watch.looks import Looks

INTERVAL_S = 10.0
SHARE_MAX = 0.01
GROWTH_MAX = 0.02


def cpu_s() -> float:
    """Of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def watched(count: int) -> Tuple[float, float, float]:
    """(CPU seconds of a look, growth of resident memory as a share, wall seconds of a look)."""
    looks = Looks(Host(), Ask())
    findings = Findings(registry.load().checks.values(), Config(), looks.at_start)
    early_bytes, started_s, began_s = 0, cpu_s(), time.monotonic()
    for number in range(count):
        facts = looks.look()
        news = findings.judge(facts, time.monotonic())
        lines.line(facts, news)
        prometheus.render(metrics.samples(facts, findings))
        if number == count // 4:
            early_bytes = resident_bytes()
    used_s, took_s = cpu_s() - started_s, time.monotonic() - began_s
    growth = resident_bytes() / early_bytes - 1
    looks.close()
    return used_s / count, growth, took_s / count


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    each_s, growth, wall_s = watched(count)
    share = each_s / INTERVAL_S
    print(
        f"CPU of a look       {each_s * 1000:7.1f} ms, {share:.2%} of a core at {INTERVAL_S:g} s (bound {SHARE_MAX:.0%})"
    )
    print(f"wall time of a look {wall_s * 1000:7.1f} ms")
    print(f"memory after {count} looks against {count // 4}: {growth:+.2%} (bound {GROWTH_MAX:+.0%})")
    return 0 if share < SHARE_MAX and growth < GROWTH_MAX else 1


if __name__ == "__main__":
    sys.exit(main())

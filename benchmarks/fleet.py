"""How a report over many nodes grows with their number:  python benchmarks/fleet.py [NODES] [FACTS.json]

Facts of NODES nodes (10,000) are made from one node's facts (some 30 kB; default: those of a test), written to a folder and
judged, folded and printed by ``ddp-doctor run --facts FOLDER``, for a tenth, a half and all of them:

* alike: a fleet of like machines; name, host name, addresses and boot of each differ      bounds: 10 s, 1 GB, linear
* unlike: also every identity and every quantity that moves (serials, temperatures, free space, clocks): nothing that was
  judged before can be taken over, but for settings and software                          bounds: 1 GB, linear

One node has another NCCL, which must be the finding.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Tuple

FACTS = Path(__file__).parent.parent / "tests" / "nodes" / "h100-infiniband" / "facts.json"
MOST_S = 10.0
MOST_BYTES = 10**9
LINEAR_SLACK = 1.3
"""All nodes may take this much more for each than a half of them: what is not linear takes twice as much."""
ODD = 7
_MOVING = re.compile(r"(_bytes|_c|_w|_s|_guid|uuid|lid)$")
_SIZES = ("total_bytes", "memory_total_bytes", "memlock_bytes", "core_bytes", "stack_bytes", "active_mtu_bytes", "power_limit_w",
          "power_default_limit_w", "cgroup_limit_bytes", "sm_lid", "sys_image_guid", "max_error_s", "rate_gbit_s", "speed_mbit_s")  # fmt: skip


def node(text: str, number: int, unlike: bool, dice: random.Random) -> Dict[str, Any]:
    """One node's facts: its own name, addresses and boot; with ``unlike`` also all that moves."""
    name = f"gpu{number:05d}"
    high, low = divmod(number, 256)
    own = text.replace("10.10.0.11", f"10.10.{high}.{low}").replace("10.20.0.11", f"10.20.{high}.{low}")
    facts: Dict[str, Any] = json.loads(own.replace("gpu011", name))
    facts["name"] = name
    facts["launch"] = {"launcher": "none"}
    facts["os"]["boot_id"] = f"boot-{number}"
    if unlike:
        facts = moved(facts, dice)
    if number == ODD:
        facts["torch"]["nccl_loaded"] = {"path": "/usr/lib/libnccl.so.2", "version": "2.19.3"}
    return facts


def moved(value: Any, dice: random.Random, name: str = "") -> Any:
    """The same facts with other identities, and other quantities of the same size."""
    if isinstance(value, dict):
        return {key: moved(each, dice, key) for key, each in value.items()}
    if isinstance(value, list):
        return [moved(each, dice, name) for each in value]
    if name in _SIZES or not _MOVING.search(name) or isinstance(value, bool) or value is None or not value:
        return value
    if isinstance(value, str):
        return value[:-4] + f"{dice.getrandbits(16):04x}" if len(value) > 8 else value
    factor = 1 - dice.random() / 10
    return max(1, int(value * factor)) if isinstance(value, int) else value * factor


def measured(folder: str) -> Tuple[float, int, str]:
    """Seconds, bytes at most in memory, and what was printed, of the command on all facts in a folder."""
    argv = [sys.executable, "-m", "ddp_doctor", "run", "--facts", folder]
    with tempfile.TemporaryFile("w+") as printed:
        started = time.perf_counter()
        child = subprocess.Popen(argv, stdout=printed, cwd="/")
        _, _, usage = os.wait4(child.pid, 0)
        taken_s = time.perf_counter() - started
        printed.seek(0)
        return taken_s, usage.ru_maxrss * 1024, printed.read()


def main() -> int:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    text = Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else FACTS.read_text()
    text = json.dumps(json.loads(text))
    broken = False
    for kind in ("alike", "unlike"):
        times = {}
        for count in (most // 10, most // 2, most):
            with tempfile.TemporaryDirectory() as folder:
                dice = random.Random(1)
                for number in range(count):
                    path = Path(folder, f"{number:05d}.json")
                    path.write_text(json.dumps(node(text, number, kind == "unlike", dice)))
                taken_s, held_bytes, printed = measured(folder)
            times[count] = taken_s
            found = "fleet/nccl-differs" in printed and f"gpu{ODD:05d}" in printed
            kept = found and held_bytes <= MOST_BYTES and (kind == "unlike" or taken_s <= MOST_S)
            kept = kept and (count < most or times[most] <= 2 * LINEAR_SLACK * times[most // 2])
            broken = broken or not kept
            size_mb, word = held_bytes / 1e6, "kept" if kept else "BROKEN"
            print(f"{kind:7s} {count:6d} nodes  {taken_s:6.2f} s  {size_mb:5.0f} MB  bounds {word}", flush=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())

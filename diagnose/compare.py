"""Facts against facts: what differs between two nodes, or on one node between then and now.

What changes from second to second (loads, temperatures, free space, counters) is no difference; nor is, between two nodes,
what is each one's own (host name, addresses, serial numbers). What tells most comes first.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddp_doctor import __version__, escape, header
from ddp_doctor.facts import SECTIONS, NodeFacts, Reason, to_plain
from ddp_doctor.units import plural

SCHEMA_VERSION = 1

VOLATILE = frozenset(
    "uptime_s load_1min available_bytes swap_free_bytes hugepages_free cgroup_used_bytes cgroup_pids_current free_bytes "
    "inodes_free offset_s max_error_s memory_used_bytes temperature_c temperature_margin_c temperature_memory_c "
    "utilisation_percent performance_state power_w clock_sm_mhz clock_memory_mhz throttle throttled_us pcie_gen pcie_replays "
    "processes duration_s import_s listening conntrack_used neighbours neighbour counters hw_counters errors carrier_changes "
    "used_bytes files throttled corrected uncorrected ecc_corrected_volatile ecc_corrected_aggregate age_s agent_keys "
    "speed_gt_s stratum".split()
)
"""Fields that are never the same twice; their bounds are what checks are for."""
OWN = frozenset(
    "name hostname fqdn boot_id uuid serial mac ip addresses own_name hosts_lines node_guid sys_image_guid lid gid gids "
    "node_rank rank local_rank is_master secure_boot_id source duplicate local".split()
)
"""Fields that are each node's own."""
_OWN_VARIABLES = re.compile(
    r"env\.variables\[((LOCAL_|NODE_|GROUP_|ROLE_)?RANK|SLURM_(NODEID|PROCID|LOCALID|TASK_PID|GTIDS)"
    r"|SLURMD_NODENAME|OMPI_COMM_WORLD_\w*RANK|PMI\w*_RANK|HOSTNAME)\]"
)
"""Variables that are each node's own."""
UNCOMPARED = ("kernel_log", "processes", "rates", "trends", "reach", "logins", "compute", "pairs")
"""Sections that tell of a moment: lines, processes, readings, answers."""
TELLING = (
    "torch.version", "torch.cuda", "torch.nccl", "torch.nccl_loaded", "torch.imported", "gpus.driver", "gpus.gpus",
    "gpus.kernel_module", "env.variables", "rdma.devices", "network.interfaces", "limits", "os.kernel", "os.pretty",
    "torch", "gpus", "network.firewalls", "network.sysctls", "fabric", "rdma", "network", "env", "memory", "cpu", "disk.mounts",
    "topology", "os", "time", "disk", "cuda", "launch", "ssh",
)  # fmt: skip
"""Beginnings of paths, the most telling first: what a job runs on, then what it runs through, then the rest."""
_KEYS = ("name", "index", "pci", "path", "role", "link", "port", "ip", "point", "source", "subject")
"""Fields by which the entries of a list are told apart."""
ALIKE_SHARE = 0.01
"""Sizes of memory that differ by less are the same: firmware and kernel keep a little more or less for themselves."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same. a, b: plain values, None where there is none of it.

    unknown: why one side is not known; then it may be the same after all.
    """

    path: str
    a: Any = None
    b: Any = None
    unknown: Optional[Reason] = None


@dataclass(frozen=True)
class Comparison:
    """Differences, the most telling first, and what could be read on one side only."""

    a: str
    b: str
    differences: Tuple[Difference, ...] = ()
    unknown: Tuple[Difference, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 nothing differs; 1 something does; 3 nothing that is known does, and something could not be read."""
        blind = any(d.unknown is not None and d.unknown.kind not in _MOOT for d in self.unknown)
        return 1 if self.differences else 3 if blind else 0


_MOOT = ("not-asked", "not-applicable", "not-recorded", "absent", "no-rights")


def compare(a: NodeFacts, b: NodeFacts) -> Comparison:
    """What differs between ``a`` and ``b``; of one and the same machine also what is its own."""
    same_machine = a.name == b.name or (
        a.os is not None and b.os is not None and a.os.hostname == b.os.hostname is not None
    )
    skipped = VOLATILE if same_machine else VOLATILE | OWN
    found = [d for d in _sections(a, b, skipped) if same_machine or not _OWN_VARIABLES.match(d.path)]
    found.sort(key=lambda difference: (_rank(difference.path), difference.path))
    return Comparison(
        _title(a, same_machine),
        _title(b, same_machine),
        tuple(d for d in found if d.unknown is None),
        tuple(d for d in found if d.unknown is not None),
    )


def _title(facts: NodeFacts, dated: bool) -> str:
    moment = header.moment(facts.collected_at) if facts.collected_at is not None and dated else None
    return f"{facts.name}, {moment:%Y-%m-%d %H:%M} UTC" if moment else facts.name


def _sections(a: NodeFacts, b: NodeFacts, skipped: frozenset) -> Iterator[Difference]:  # type: ignore[type-arg]
    for name in SECTIONS:
        if name in UNCOMPARED:
            continue
        one, other = getattr(a, name), getattr(b, name)
        if one is not None and other is not None:
            yield from _differences(name, to_plain(one), to_plain(other), skipped)
        elif one is not other:
            reasons = (b if other is None else a).reasons
            yield Difference(name, unknown=reasons.get(name) or Reason("not-recorded", f"{name} is not in these facts"))


def _differences(path: str, a: Any, b: Any, skipped: frozenset) -> Iterator[Difference]:  # type: ignore[type-arg]
    if isinstance(a, dict) and isinstance(b, dict):
        yield from _of_tables(path, a, b, skipped)
    elif isinstance(a, list) and isinstance(b, list) and _keyed(a) is not None and _keyed(b) is not None:
        yield from _of_lists(path, _keyed(a) or {}, _keyed(b) or {}, skipped)
    elif a != b and not _alike(path, a, b):
        yield Difference(path, a, b)


def _of_tables(path: str, a: Dict[str, Any], b: Dict[str, Any], skipped: frozenset) -> Iterator[Difference]:  # type: ignore[type-arg]
    """Fields of one section or entry; a field that one side could not read is not known, not gone."""
    for key in dict.fromkeys((*a, *b)):
        if key in skipped or key == "unread":
            continue
        place = f"{path}.{key}"
        if key in a and key in b:
            yield from _differences(place, a[key], b[key], skipped)
            continue
        reason = (b if key in a else a).get("unread", {}).get(key)
        unknown = Reason(**reason) if reason else None
        if unknown is not None and unknown.kind in ("absent", "not-applicable"):
            unknown = None
        yield Difference(place, a.get(key), b.get(key), unknown)


def _of_lists(path: str, a: Dict[str, Any], b: Dict[str, Any], skipped: frozenset) -> Iterator[Difference]:  # type: ignore[type-arg]
    """Entries of a list that are told apart by name: of the same name compared, others there or gone."""
    for key in dict.fromkeys((*a, *b)):
        place = f"{path}[{key}]"
        if key in a and key in b:
            yield from _differences(place, a[key], b[key], skipped - {"name"})
        else:
            yield Difference(place, _short(a.get(key)), _short(b.get(key)))


def _keyed(entries: List[Any]) -> Optional[Dict[str, Any]]:
    """Entries by what tells them apart; None where they are no tables, or nothing does."""
    if not all(isinstance(entry, dict) for entry in entries):
        return None
    for key in _KEYS:
        names = [str(entry.get(key)) for entry in entries if key in entry]
        if len(set(names)) == len(entries):
            return dict(zip(names, entries))
    return None


def _short(entry: Any) -> Any:
    """An entry that is only on one side, without what is in it."""
    if isinstance(entry, dict):
        return entry.get("value") or entry.get("version") or entry.get("state") or "there"
    return entry


def _alike(path: str, a: Any, b: Any) -> bool:
    """Sizes of memory that are nearly the same."""
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float)) and path.endswith("total_bytes")
    return bool(numbers and abs(a - b) <= ALIKE_SHARE * max(abs(a), abs(b)))


def _rank(path: str) -> int:
    return next(
        (rank for rank, start in enumerate(TELLING) if re.match(re.escape(start) + r"(?![\w])", path)), len(TELLING)
    )


# --------------------------------------------------------------------------- words


def text(comparison: Comparison, width: int) -> str:
    """For people: one line each, or two where the values are long."""
    a, b = escape.terminal(comparison.a), escape.terminal(comparison.b)
    count = len(comparison.differences)
    lines = [f"{plural(count, 'difference')} between {a} and {b}." if count else f"No difference between {a} and {b}."]
    if comparison.differences:
        lines += ["", *_rows(comparison.differences, a, b, width)]
    if comparison.unknown:
        lines += ["", "Known on one side only:"]
        lines += [f"  {d.path}: {escape.terminal(d.unknown.text)}" for d in comparison.unknown if d.unknown]
    return "\n".join(lines)


def _rows(differences: Tuple[Difference, ...], a: str, b: str, width: int) -> Iterator[str]:
    for path, one, other in _folded(differences):
        line = f"  {path}: {one} -> {other}"
        if len(line) <= width:
            yield line
        else:
            yield f"  {path}:"
            yield f"      {a}: {one}"
            yield f"      {b}: {other}"


def _folded(differences: Tuple[Difference, ...]) -> Iterator[Tuple[str, str, str]]:
    """(path, one, other) in words; entries of one list that differ alike stand together: gpus.gpus[0, 1].name."""
    alike: Dict[Tuple[str, str, str, str], List[str]] = {}
    for difference in differences:
        head, bracket, rest = difference.path.partition("[")
        entry, _, tail = rest.partition("]")
        key = (head + bracket, tail, _words(difference.a), _words(difference.b))
        alike.setdefault(key, []).append(entry)
    for (head, tail, one, other), entries in alike.items():
        path = f"{head}{', '.join(entries)}]{tail}" if head.endswith("[") else head
        yield escape.terminal(path), one, other


def _words(value: Any) -> str:
    """A plain value in one line; "-" for none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_words, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items()) or "none"
    return escape.terminal(str(value))


def as_json(comparison: Comparison) -> str:
    """One document: the two names, the differences in order, and what is known on one side only."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ddp-doctor", "version": __version__},
        "a": comparison.a,
        "b": comparison.b,
        "differences": [{"path": d.path, "a": d.a, "b": d.b} for d in comparison.differences],
        "unknown": [{"path": d.path, "reason": to_plain(d.unknown)} for d in comparison.unknown],
    }
    return json.dumps(document, indent=2, allow_nan=False)

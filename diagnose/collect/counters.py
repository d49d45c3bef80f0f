"""Counters: one look at what the kernel and the drivers count. ``rates`` and ``watch`` take two looks and compare.

A source is a function ``(host) -> (numbers, unread)``; each is guarded, and within one a device that does not answer
hides no other. Numbers are as the source counts them (``counters.py`` knows what a change of them is).
"""

import re
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, Optional, Tuple

from ddp_doctor.collect.ethtool import statistics
from ddp_doctor.collect.numbers import parse_number
from ddp_doctor.facts import Reason, Unread
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

Key = Tuple[str, str, str]
"""(source, subject, name), as in ``facts.Counter``."""
Numbers = Dict[Key, int]
Found = Tuple[Numbers, Unread]
Source = Callable[[Host], Found]

_RDMA, _NET, _CPU, _EDAC = (
    "/sys/class/infiniband",
    "/sys/class/net",
    "/sys/devices/system/cpu",
    "/sys/devices/system/edac/mc",
)

PMA_BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
    "port_xmit_data": 32,
    "port_rcv_data": 32,
    "port_xmit_packets": 32,
    "port_rcv_packets": 32,
}
"""Widths of InfiniBand's PortCounters, which stay at their maximum (drivers/infiniband/core/sysfs.c; IBTA 16.1.3.5).

Data and packets have 64 bits where the device has the extended counters, errors never do: a number that is larger than
this width shows that the driver counts in a wider one.
"""
MODULAR_BITS = 32
"""Per-processor numbers of softnet and conntrack are unsigned int, and so are the milliseconds of /proc/diskstats."""
DISK_FIELDS = (
    "reads",
    "reads_merged",
    "read_sectors",
    "read_ms",
    "writes",
    "writes_merged",
    "write_sectors",
    "write_ms",
    "in_flight",
    "io_ms",
    "weighted_io_ms",
)
"""https://docs.kernel.org/admin-guide/iostats.html; in_flight is no counter but how many wait at the moment."""
INTERFACE_COUNTERS = (
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "rx_missed_errors",
    "rx_crc_errors",
    "rx_fifo_errors",
    "tx_carrier_errors",
)
TCP_COUNTERS = {
    "Tcp": ("OutSegs", "RetransSegs", "InSegs", "InErrs", "AttemptFails", "EstabResets"),
    "Udp": ("InErrors", "RcvbufErrors"),
    "TcpExt": (
        "ListenOverflows",
        "ListenDrops",
        "TCPTimeouts",
        "TCPSynRetrans",
        "TCPLostRetransmit",
        "TCPBacklogDrop",
        "TCPAbortOnTimeout",
        "TCPSpuriousRTOs",
    ),
}
CONNTRACK_COUNTERS = ("drop", "early_drop", "insert_failed")
_SMALL_DISKS = re.compile(r"(loop|ram|zram|sr|fd|nbd)\d+")


@dataclass(frozen=True)
class Take:
    """One look. unread: source, or source and subject -> why its numbers are not here."""

    at_s: float
    """Seconds on the monotonic clock, when it began."""
    numbers: Numbers = field(default_factory=dict)
    unread: Unread = field(default_factory=dict)


def take(host: Host, sources: Optional[Dict[str, Source]] = None) -> Take:
    """Look at every source once. A source that cannot be read, or fails in a way that nobody foresaw, hides no other."""
    at_s = time.monotonic()
    numbers: Numbers = {}
    unread: Unread = {}
    for name, look in (SOURCES if sources is None else sources).items():
        try:
            found, missing = look(host)
        except Unreadable as error:
            unread[name] = error.reason
        except Exception as error:  # noqa: BLE001  what one driver writes must not hide the others
            unread[name] = Reason("crashed", f"{name}: {type(error).__name__}: {error}")
        else:
            numbers.update(found)
            unread.update(missing)
    return Take(at_s, numbers, unread)


def width(key: Key) -> Tuple[Optional[int], bool]:
    """(bits, does it stay at its maximum?) of a counter; None: 64, or not known."""
    source, _, name = key
    if source == "rdma" and name in PMA_BITS:
        return PMA_BITS[name], True
    if source in ("softnet", "conntrack") or (source == "disk" and name.endswith("_ms")):
        return MODULAR_BITS, False
    return None, False


# --------------------------------------------------------------------------- sources


def rdma(host: Host) -> Found:
    """Counters of each port ("mlx5_0/1"), and those that belong to the device as a whole ("mlx5_0")."""
    numbers: Numbers = {}
    unread: Unread = {}
    for device in _listed(host, _RDMA):
        folder = f"{_RDMA}/{device}"
        _read_all(host, ("rdma", device), f"{folder}/hw_counters", numbers, unread)
        for port in _listed(host, f"{folder}/ports"):
            for kind in ("counters", "hw_counters"):
                _read_all(host, ("rdma", f"{device}/{port}"), f"{folder}/ports/{port}/{kind}", numbers, unread)
    return numbers, unread


def interfaces(host: Host) -> Found:
    """Interfaces with a device below them (cards, a guest's virtio, IPoIB) and bonds: what the kernel counts of each."""
    numbers: Numbers = {}
    unread: Unread = {}
    for name in physical(host):
        folder = f"{_NET}/{name}"
        paths = {counter: f"{folder}/statistics/{counter}" for counter in INTERFACE_COUNTERS}
        _note(host, ("interface", name), {**paths, "carrier_changes": f"{folder}/carrier_changes"}, numbers, unread)
    return numbers, unread


def driver_statistics(host: Host) -> Found:
    """What ``ethtool -S`` shows of each card, without the numbers of single queues."""
    names = [name for name in physical(host) if _is_there(host, f"{_NET}/{name}/device")]
    if not names:
        return {}, {}
    numbers: Numbers = {}
    unread: Unread = {}
    for name, answer in dict(host.ask("ethtool-statistics", lambda: statistics(names))).items():
        if isinstance(answer, dict):
            wanted = {stat: value for stat, value in answer.items() if is_kept(stat) and isinstance(value, int)}
            numbers.update({("ethtool", name, stat): value for stat, value in wanted.items()})
        else:
            unread[f"ethtool {name}"] = Reason("unreadable", f"{name}: {answer}")
    return numbers, unread


def physical(host: Host) -> Tuple[str, ...]:
    """Names of interfaces with a device below them, and of bonds."""
    found = [name for name in _listed(host, _NET) if "/" not in name]
    return tuple(n for n in found if _is_there(host, f"{_NET}/{n}/device") or _is_there(host, f"{_NET}/{n}/bonding"))


_OF_A_QUEUE = re.compile(
    r"\d+_(?!phy)|_\d+$|\[\d+\]|queue|xdp|xsk|tls|ktls|prio\d+_(bytes|packets)|cache_|csum|gro|lro|tso"
)
_TOLD = re.compile(
    r"err|drop|discard|pause|crc|miss|out_of_buffer|no_buf|overflow|ecn|cnp|allowance|corrected|symbol|fec|link_down"
    r"|timeout|reset|fifo|stall|oversize|undersize|jabber|fragment|(rx|tx)_packets_phy|buffer_passed",
    re.IGNORECASE,
)


def is_kept(name: str) -> bool:
    """Is a driver's statistic one of those that tell of trouble? Those of a single queue are in the sums as well."""
    per_priority = re.fullmatch(r"[rt]x_prio\d_(pause|pause_duration|discards)", name)
    return bool(per_priority) or (not _OF_A_QUEUE.search(name) and bool(_TOLD.search(name)))


def tcp(host: Host) -> Found:
    """TCP's and UDP's own counters, of this network namespace."""
    tables = {**parse_snmp(host.read("/proc/net/snmp")), **parse_snmp(host.read("/proc/net/netstat"))}
    wanted = [(table, name) for table, names in TCP_COUNTERS.items() for name in names]
    found = {("tcp", "", _tcp_name(t, n)): tables[t][n] for t, n in wanted if n in tables.get(t, {})}
    if not found:
        raise Unreadable(Reason("unreadable", "/proc/net/snmp: no line of TCP in it"))
    return found, {}


def _tcp_name(table: str, name: str) -> str:
    return f"Udp{name}" if table == "Udp" else name


def parse_snmp(text: str) -> Dict[str, Dict[str, int]]:
    """Table -> name -> number out of pairs of lines, "Tcp: names" and "Tcp: numbers"; pairs that do not fit are left out."""
    found: Dict[str, Dict[str, int]] = {}
    lines = [line.split() for line in text.splitlines()]
    for names, values in zip(lines, lines[1:]):
        if len(names) == len(values) > 1 and names[0] == values[0] and not _are_numbers(names[1:]):
            pairs = zip(names[1:], values[1:])
            found[names[0].rstrip(":")] = {name: int(value) for name, value in pairs if _are_numbers([value])}
    return found


def _are_numbers(words: Iterable[str]) -> bool:
    return all(re.fullmatch(r"\d{1,20}", word, re.ASCII) for word in words)


def softnet(host: Host) -> Found:
    """Packets that the kernel took, dropped for a full backlog, and rounds that it broke off, over all processors."""
    return {("softnet", "", n): v for n, v in parse_softnet(host.read("/proc/net/softnet_stat")).items()}, {}


def parse_softnet(text: str) -> Dict[str, int]:
    """Sums of the first three hexadecimal columns, which are all that every kernel has. Raises Unreadable."""
    rows = [line.split()[:3] for line in text.splitlines() if line.strip()]
    if not rows or any(len(row) < 3 or not all(map(_is_hex, row)) for row in rows):
        raise Unreadable(Reason("unreadable", "/proc/net/softnet_stat: not three hexadecimal numbers in each line"))
    columns = zip(*([int(cell, 16) for cell in row] for row in rows))
    return dict(zip(("processed", "dropped", "time_squeeze"), map(sum, columns)))


def _is_hex(word: str) -> bool:
    return bool(re.fullmatch(r"[0-9a-fA-F]{1,16}", word, re.ASCII))


def conntrack(host: Host) -> Found:
    """Packets that connection tracking dropped, over all processors; nothing where it is not loaded."""
    try:
        text = host.read("/proc/net/stat/nf_conntrack")
    except Unreadable as error:
        if error.reason.kind != "absent":
            raise
        return {}, {}
    return {("conntrack", "", n): v for n, v in parse_conntrack(text).items()}, {}


def parse_conntrack(text: str) -> Dict[str, int]:
    """Sums of the columns of CONNTRACK_COUNTERS, found by their titles. Raises Unreadable."""
    titles, *rows = [line.split() for line in text.splitlines() if line.strip()] or [[]]
    wanted = {name: titles.index(name) for name in CONNTRACK_COUNTERS if name in titles}
    if not wanted or any(len(row) < len(titles) or not all(map(_is_hex, row)) for row in rows):
        raise Unreadable(Reason("unreadable", "/proc/net/stat/nf_conntrack: not a table of hexadecimal numbers"))
    return {name: sum(int(row[place], 16) for row in rows) for name, place in wanted.items()}


def disks(host: Host) -> Found:
    """Whole disks, without loop and RAM disks."""
    whole = {name.replace("!", "/") for name in _listed(host, "/sys/block")}
    found = parse_diskstats(host.read("/proc/diskstats"))
    wanted = {n: row for n, row in found.items() if n in whole and not _SMALL_DISKS.fullmatch(n)}
    return {("disk", disk, name): value for disk, row in wanted.items() for name, value in row.items()}, {}


def parse_diskstats(text: str) -> Dict[str, Dict[str, int]]:
    """Disk or partition -> DISK_FIELDS; lines that are something else are left out."""
    rows = (line.split() for line in text.splitlines())
    last = 3 + len(DISK_FIELDS)
    sound = [row for row in rows if len(row) >= last and _are_numbers(row[3:last])]
    return {row[2]: dict(zip(DISK_FIELDS, map(int, row[3:last]))) for row in sound}


def processors(host: Host) -> Found:
    """Times that processors were throttled for their heat (x86), and errors of the memory as EDAC counts them."""
    numbers: Numbers = {}
    unread: Unread = {}
    for cpu in _listed(host, _CPU):
        paths = {n: f"{_CPU}/{cpu}/thermal_throttle/{n}" for n in ("core_throttle_count", "package_throttle_count")}
        if re.fullmatch(r"cpu\d+", cpu) and _is_there(host, f"{_CPU}/{cpu}/thermal_throttle"):
            one: Numbers = {}
            _note(host, ("cpu", ""), paths, one, unread)
            for key, value in one.items():
                numbers[key] = numbers.get(key, 0) + value
    for mc in (name for name in _listed(host, _EDAC) if re.fullmatch(r"mc\d+", name)):
        _note(host, ("edac", mc), {n: f"{_EDAC}/{mc}/{n}" for n in ("ce_count", "ue_count")}, numbers, unread)
    return numbers, unread


SOURCES: Dict[str, Source] = {
    "rdma": rdma,
    "interface": interfaces,
    "ethtool": driver_statistics,
    "tcp": tcp,
    "softnet": softnet,
    "conntrack": conntrack,
    "disk": disks,
    "cpu": processors,
}
"""All but those of GPUs (``gpu_counters.py``): starting NVML takes long enough to be asked only for two looks."""


# --------------------------------------------------------------------------- files


def _listed(host: Host, path: str) -> Tuple[str, ...]:
    """Names in a directory; none where it does not exist: looked, found none."""
    try:
        return host.list(path)
    except Unreadable as error:
        if error.reason.kind != "absent":
            raise
        return ()


def _is_there(host: Host, path: str) -> bool:
    try:
        return host.exists(path)
    except Unreadable:
        return False


_SETTINGS = ("lifespan",)
"""hw_counters/lifespan is for how long counters are cached (Documentation/ABI/stable/sysfs-class-infiniband)."""


def _read_all(host: Host, whose: Tuple[str, str], folder: str, numbers: Numbers, unread: Unread) -> None:
    """Every counter in a folder."""
    try:
        names = [name for name in _listed(host, folder) if name not in _SETTINGS]
    except Unreadable as error:
        unread[" ".join(whose)] = error.reason
        return
    _note(host, whose, {name: f"{folder}/{name}" for name in names}, numbers, unread)


def _note(host: Host, whose: Tuple[str, str], paths: Dict[str, str], numbers: Numbers, unread: Unread) -> None:
    """Read counters of one subject; of those that cannot be read the first one's reason stands for all.

    A file that is not there, and "N/A (no PMA)", which the kernel writes where a device has no such counter, are no reason.
    """
    for name, path in paths.items():
        try:
            numbers[(*whose, name)] = _number(host, path)
        except Unreadable as error:
            if error.reason.kind not in ("absent", "not-applicable"):
                unread.setdefault(" ".join(whose).strip(), error.reason)


def _number(host: Host, path: str) -> int:
    text = host.read(path)
    if text.startswith("N/A"):
        raise Unreadable(Reason("not-applicable", f"{path}: {text.strip()[:40]}"))
    if re.fullmatch(r"\s*\d{20}\s*", text, re.ASCII):  # 64 bits have up to twenty digits
        return int(text)
    return parse_number(text, path)

"""Lines of the kernel's log: where each comes from, when it was written, and the fault that it tells of."""

import re
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Callable, Dict, List, Optional, Set, Tuple

from ddp_doctor import redact
from ddp_doctor.escape import terminal
from ddp_doctor.facts import KernelEvent

TEXT_LIMIT, LINE_LIMIT = 400, 4096
"""Characters of a line that are kept, and that are looked at."""

NEEDLES = tuple(
    b"NVRM:|NVRM: Xid|SXid|AER:|PCIe Bus Error|[Hardware Error]|mlx5|NETDEV WATCHDOG|ink is Down|ink down|ost carrier|EDAC|thrott"
    b"|blocked for more than|Killed process|Kill process|oom-kill:|I/O error|I/O tag|I/O Cmd|EXT4-fs|XFS (|emounting "
    b"|not responding|evicted|Disk failure|LOCKUP|soft lockup|detected stall|rcu: INFO|segfault at|Kernel panic|Kernel Panic"
    b"|peermem|kernel BUG|unable to handle kernel|Oops|divide error|NVRM loading|btrfs_|nvme".split(b"|")
)
"""One of these stands in every line that ``event_of`` knows: bytes are searched for them before anything is parsed."""


@dataclass(frozen=True)
class Line:
    """A line without what its source put before it.

    source: kernel, user (somebody wrote it into the kernel's log), or the name of the program that logged it.
    uptime_s: seconds since boot; at: Unix time in seconds. None where the line does not say it.
    """

    source: str
    text: str
    uptime_s: Optional[float] = None
    at: Optional[float] = None


_KMSG = re.compile(r"(\d{1,5}),(\d{1,20}),(\d{1,20}),[^;]{0,80};", re.ASCII)
_PRIORITY = re.compile(r"<(\d{1,4})>(?:1 )?", re.ASCII)
_DECODED = re.compile(r"([a-z0-9]+)\s*:\s*[a-z]+\s*: ?", re.ASCII)
_UPTIME = re.compile(r"\[\s*(\d{1,12}(?:\.\d{1,9})?)\](?:\s*\[\s*[TC]\d+\])? ?", re.ASCII)
_CTIME = re.compile(r"\[(?:[A-Z][a-z]{2}) ([A-Z][a-z]{2})\s+(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\] ?", re.ASCII)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)? ?", re.ASCII)
_UNIX = re.compile(r"(\d{9,11}\.\d{1,9}) (?=\S)", re.ASCII)
_RFC3164 = re.compile(r"([A-Z][a-z]{2})\s+(\d{1,2}) (\d\d:\d\d:\d\d) ", re.ASCII)
_TAG = re.compile(r"(\S{0,254}[^\s:\]]) ([A-Za-z(][\w.@/()-]{0,60}?)(?:\[\d+\])?: ?", re.ASCII)
_FIELDS_5424 = re.compile(r"(\S{1,255}) ([^\s:]{1,48}) (?:-|\d+) \S{1,32} - ", re.ASCII)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


def line_of(raw: str, now: Optional[float] = None) -> Line:
    """Take off what /dev/kmsg, dmesg (any format), journalctl (short formats) or syslog put before the kernel's words.

    now: Unix time against which a date without a year is placed; it is never in the future. Facilities other than 0 are
    "user": the kernel lets nobody else write with its own (Documentation/ABI/testing/dev-kmsg).
    """
    text = raw[:LINE_LIMIT].rstrip("\r\n")
    found = _KMSG.match(text)
    if found:
        return Line("user" if int(found.group(1)) >> 3 else "kernel", text[found.end() :], int(found.group(3)) / 1e6)
    source = "kernel"
    found = _PRIORITY.match(text)
    if found:
        source, text = ("user" if int(found.group(1)) >> 3 else "kernel"), text[found.end() :]
    found = _DECODED.match(text) if not found else None
    if found and found.group(1) in _FACILITIES:
        source, text = ("kernel" if found.group(1) == "kern" else "user"), text[found.end() :]
    at, rest, tagged = _dated(text, now)
    if at is not None and tagged:
        tag = _FIELDS_5424.match(rest) or _TAG.match(rest)
        if tag:
            source, rest = (source if tag.group(2) == "kernel" else tag.group(2)), rest[tag.end() :]
    else:
        rest = _KERNEL_TAG.sub("", _CLOCK.sub("", rest, count=1), count=1)
    found = _UPTIME.match(rest)
    if found:
        return Line(source, _KERNEL_TAG.sub("", rest[found.end() :], count=1), float(found.group(1)), at)
    return Line(source, _KERNEL_TAG.sub("", rest, count=1), None, at)


_FACILITIES = frozenset("kern user mail daemon auth syslog lpr news uucp cron authpriv ftp".split()) | frozenset(
    f"local{n}" for n in range(8)
)
_CLOCK = re.compile(r"^\d\d:\d\d:\d\d(?:[.,]\d{1,9})? +", re.ASCII)
_KERNEL_TAG = re.compile(r"^(?:[\w.-]{1,255} )?kernel: (?:\[\s*\d{1,12}\.\d{1,9}\] )?", re.ASCII)


def _dated(text: str, now: Optional[float]) -> Tuple[Optional[float], str, bool]:
    """(Unix time, what follows it, is a host and a program's name next?); None where the text begins with no date."""
    for pattern, reader in ((_ISO, _iso), (_CTIME, _ctime), (_UNIX, _unix)):
        found = pattern.match(text)
        if found:
            by_dmesg = pattern is _CTIME or (pattern is _ISO and "," in found.group())
            return _safe(reader, found), text[found.end() :], not by_dmesg
    found = _RFC3164.match(text)
    if found:
        return _safe(lambda f: _without_year(f, time.time() if now is None else now), found), text[found.end() :], True
    return None, text, False


def _safe(reader: Callable[["re.Match[str]"], float], found: "re.Match[str]") -> Optional[float]:
    try:
        return reader(found)
    except (ValueError, OverflowError):  # the 31st of February
        return None


def _unix(found: "re.Match[str]") -> float:
    return float(found.group(1))


def _iso(found: "re.Match[str]") -> float:
    import calendar

    day, clock, fraction, zone = found.groups()
    parts = time.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S")
    part_s = float(f"0.{fraction}") if fraction else 0.0
    if zone is None:
        return time.mktime(parts) + part_s
    minutes = 0 if zone == "Z" else int(zone[1:3]) * 60 + int(zone[-2:])
    return calendar.timegm(parts) + part_s + (minutes if zone[0] == "-" else -minutes) * 60


def _ctime(found: "re.Match[str]") -> float:
    month, day, clock, year = found.groups()
    return _local(int(year), month, day, clock)


def _without_year(found: "re.Match[str]", now: float) -> float:
    """The last such day that is not in the future, by more than the day by which a time zone may be wrong."""
    month, day, clock = found.groups()
    year = time.localtime(now).tm_year
    at = _local(year, month, day, clock)
    return at if at <= now + 86400 else _local(year - 1, month, day, clock)


def _local(year: int, month: str, day: str, clock: str) -> float:
    number = _MONTHS.index(month) // 3 + 1
    return time.mktime(time.strptime(f"{year} {number} {day} {clock}", "%Y %m %d %H:%M:%S"))


PCI = r"(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)"


def pci_of(text: str) -> str:
    """0000:07:00.0 of what drivers write as 0000:07:00, 00000000:07:00.0 or 0000:07:00.0."""
    domain, rest = text.lower().split(":", 1)
    return f"{domain[-4:]}:{rest}" + ("" if "." in rest else ".0")


@lru_cache(maxsize=None)
def _p(pattern: str) -> "re.Pattern[str]":
    """Compiled when the first fault comes: most looks meet none, and all of them cost 25 ms."""
    return re.compile(pattern, re.ASCII)


_XID = _p(rf"NVRM: Xid \(?(?:PCI:)?{PCI}(?: GPU-I:(?P<instance>\w+))?\)?: (?P<code>\d{{1,6}})\b[,:]?\s*(?P<rest>.*)")
_XID_BARE = _p(r"NVRM: Xid (?:\(PCI:[^)]{0,40}\): )?(?P<code>\d{1,6})[:,] ?(?P<rest>.*)")
"""Without an address: cut out, or never written."""
_SXID = _p(rf"(?P<device>nvidia-nvswitch\d+): SXid \(PCI:{PCI}\): (?P<code>\d{{1,6}}),? ?(?P<rest>.*)")
_PID = _p(r"pid='?(?P<pid>\d{1,10}|<unknown>|[A-Z]*)'?(?:, name=(?P<process>[^,]{1,64}))?(?:, |$)")
_ACTION = _p(r"GPU recovery action changed from 0x\w+ \((?P<was>[^)]{1,60})\) to 0x\w+ \((?P<action>[^)]{1,60})\)")
_NVLINK5 = _p(
    r"(?P<unit>[A-Z][\w/]{1,40}) +(?P<severity>Fatal|Nonfatal|Non-fatal) +\w+ i\d+ Link (?P<link>-?\d+)(?: \((?P<status>[^)]{0,100})\))?"
)
_SEVERITY = _p(r"(?P<severity>Fatal|Non-fatal)(?:, Link (?P<link>\d+))?")
_LINK = _p(r"NVLink: .{0,60}\blink (?P<link>\d+)")

_MLX5 = rf"(?:mlx5_core(?: {PCI})?(?: (?P<device>[A-Za-z][\w.]{{1,15}}))?: )?(?:mlx5_\w+:\d+:(?:\(pid \d+\):)? ?)?"
_NETDEV = r"(?P<device>(?!veth|cali|docker|br-|virbr|tap|lo\b|cni|flannel|cilium|lxc|vnet)[a-zA-Z][\w.-]{1,14})"
_DISK = r"(?P<device>(?!sr\d|fd\d|loop|ram)[a-zA-Z][\w.-]{1,40})"

PATTERNS: Tuple[Tuple[str, str, str], ...] = (
    # kind, what it is, pattern; the first that matches the beginning of the kernel's words wins
    ("nvrm", "off-bus", (rf"NVRM: (?:The NVIDIA GPU|GPU at|GPU) (?:PCI:)?{PCI}:?.*fallen off the bus")),
    ("nvrm", "off-bus", (r"NVRM: fallen off the bus and is not responding to commands")),
    ("nvrm", "init-failed", (rf"NVRM: (?:GPU {PCI}: |GPU at PCI:[\w:.]+: )?(?:RmInitAdapter failed|rm_init_adapter failed)")),
    ("nvrm", "reset-required", (rf"NVRM: (?:GPU {PCI}: ?)?.*(?:NV_ERR_RESET_REQUIRED|[Gg][Pp][Uu] requires reset|Reset required)")),
    ("nvrm", "api-mismatch", (r"NVRM: API mismatch")),
    ("nvrm", "bar-invalid", (r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid")),
    ("nvrm", "loaded", (r"NVRM: loading NVIDIA UNIX")),
    ("aer", "", (
        rf"(?:pcieport|[\w-]+) {PCI}: (?:AER: )?PCIe Bus Error: severity=(?P<severity>Corrected|Uncorrected \((?:Non-)?Fatal\)"
        r"|Uncorrectable \((?:Non-)?Fatal\)),?(?: type=(?P<layer>[^,]{1,40}))?")),
    ("mlx5", "health", (rf"(?=.{{0,60}}mlx5|poll_health){_MLX5}(?:poll_health:\d+:(?:\(pid \d+\):)? ?|print_health_info:\d+:(?:\(pid \d+\):)? ?|INFO: )?"
                          r".{0,60}(?:device's health compromised|[Ff]atal (?:firmware )?error|unrecoverable hardware error|unrecoverable)")),
    ("mlx5", "command-timeout", (rf"{_MLX5}(?:wait_func\S*:\d+:? ?(?:\(pid \d+\): ?)?)?.{{0,60}}timeout\. Will cause a leak")),
    ("mlx5", "command-failed", (rf"(?=.{{0,60}}mlx5){_MLX5}(?P<command>[A-Z][A-Z0-9_]{{2,40}})\(0x\w+\) op_mod\(0x\w+\) failed")),
    ("peermem", "", (r"nvidia-peermem \w+:\d+ ERROR")),
    ("mlx5", "power", (rf"{_MLX5}Detected insufficient power on the PCIe slot")),
    ("mlx5", "module", (rf"{_MLX5}Port module event\[error\]: module (?P<module>\d+), (?P<what>.{{1,80}})")),
    ("mlx5", "unplugged", (rf"{_MLX5}Port module event: module (?P<module>\d+), Cable unplugged")),
    ("netdev", "queue-timeout", (rf"NETDEV WATCHDOG: {_NETDEV} \((?P<driver>[\w-]+)\): transmit queue \d+ timed out")),
    ("link", "down", (rf"(?:[\w-]+ {PCI} ){_NETDEV}: (?:NIC )?Link (?:is )?[Dd]own")),
    ("link", "down", (rf"(?:bonding: \w+: |bond\w*: (?:\(slave ))?{_NETDEV}\)?: (?:link status definitely down|(?:NIC )?Link (?:is )?[Dd]own|[Ll]ost carrier)")),
    ("mce", "uncorrected", (r"(?:mce: )?\[Hardware Error\]: .{0,60}(?:event severity: (?:fatal|recoverable)|Uncorrected error|Machine check: Processor context corrupt)")),
    ("mce", "uncorrected", (r"mce: Uncorrected hardware memory error|Memory failure: 0x\w+: .{0,40}(?:Killed|Recovered|Failed)")),
    ("mce", "corrected", (r"(?:mce: )?\[Hardware Error\]: .{0,60}(?:event severity: corrected|Corrected error)")),
    ("mce", "logged", (r"mce: \[Hardware Error\]: (?:Machine check events logged|CPU \d+: Machine Check)")),
    ("edac", "uncorrected", (r"EDAC (?:\w+ )?(?P<device>MC\d+): (?P<number>\d+) UE ")),
    ("edac", "corrected", (r"EDAC (?:\w+ )?(?P<device>MC\d+): (?P<number>\d+) CE ")),
    ("thermal", "", (r"(?:mce: )?(?P<device>CPU\d+): (?:Core|Package) temperature (?:is )?above threshold, cpu clock (?:is )?throttled")),
    ("oom", "", (r"(?:Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): Kill(?:ed)? process (?P<pid>\d{1,10})(?:,? \(?(?P<process>[^),]{1,64})\)?)?")),
    ("oom", "", (r"oom-kill:constraint=(?P<constraint>\w+)(?:.*,task=(?P<process>[^,]{1,64}),pid=(?P<pid>\d{1,10}))?")),
    ("hung-task", "", (r"(?:INFO: )?task (?P<process>.{1,64}?):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d+) seconds")),
    ("hung-task", "", (r"(?P<process>[^:]{0,64}):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d+) seconds")),
    ("lockup", "soft", (r"(?:NMI )?watchdog: (?:BUG: )?soft lockup - CPU#\d+ stuck for (?P<seconds>\d+)s!(?: \[(?P<process>.{1,64}):(?P<pid>\d{1,10})\])?")),
    ("lockup", "hard", (r"(?:NMI )?watchdog: Watchdog detected hard LOCKUP")),
    ("lockup", "rcu", (r"(?:rcu: )?INFO: rcu_?\w* (?:self-)?detected (?:expedited )?stall|rcu: INFO: .{0,40}detected stalls?|INFO: rcu detected stall")),
    ("filesystem", "read-only", (rf"(?P<fs>EXT[234]-fs|XFS|BTRFS(?: \w+)?) \(?{_DISK}\)?: [Rr]emounting filesystem read-only")),
    ("filesystem", "error", (rf"(?P<fs>EXT[234]-fs)(?: error)? \((?:device )?{_DISK}\): (?:I/O error|\w+:\d+: )")),
    ("filesystem", "error", (rf"(?P<fs>XFS) \({_DISK}\): (?:log I/O error|metadata I/O error|[Cc]orruption|xfs_do_force_shutdown)")),
    ("filesystem", "error", (rf"EXT[234]-fs error \(device {_DISK}\)")),
    ("filesystem", "nfs-lost", (r"nfs4?: server (?P<device>\S{1,255}) not responding")),
    ("filesystem", "evicted", (r"LustreError: .{0,300}(?:was|been|This client was) evicted")),
    ("io-error", "", (rf"(?:blk_update_request: |end_request: |print_req_error: )?(?:critical (?:medium|target) error|I/O error), dev {_DISK},")),
    ("io-error", "", (rf"Buffer I/O error on dev(?:ice)? {_DISK}, logical block")),
    ("io-error", "timeout", (r"nvme (?P<device>nvme\d+): I/O (?:tag )?\d+ .{0,80}timeout")),
    ("io-error", "gone", (r"nvme (?P<device>nvme\d+): (?:controller is down; will reset|Device not ready|Removing after probe failure|Disabling device after reset failure)")),
    ("io-error", "raid", (rf"md/raid\S*:\s?.{{0,40}}?Disk failure on {_DISK}")),
    ("segfault", "", (r"(?:(?P<process>[^\[\]]{1,64})\[(?P<pid>\d{1,10})\]: )?segfault at \w+ ip \w+ sp \w+ error \w+ in (?P<library>[\w.+-]{1,100})")),
    ("panic", "panic", (r"Kernel [Pp]anic - not syncing: (?P<what>.{1,120})")),
    ("panic", "bug", (r"BUG: unable to handle|kernel BUG at|(?:Oops|divide error): \d+|Oops: ")),
)  # fmt: skip
"""The formats are the kernel's printk and the drivers' own; ``what`` becomes the field of that name."""


def event_of(raw: str, now: Optional[float] = None) -> Optional[KernelEvent]:
    """The fault that one line of a log tells of, or None. ``first_at`` is set where the line has a date.

    Lines that a program wrote are no events, whatever they say, except systemd-networkd's word on carriers.
    """
    line = line_of(raw, now)
    if line.source not in ("kernel", "systemd-networkd"):
        return None
    found = fault_of(line.text)
    if found is None or (line.source != "kernel" and found.kind != "link"):
        return None
    return replace(found, first_at=line.at, last_at=line.at)


def fault_of(text: str) -> Optional[KernelEvent]:
    """The fault that the kernel's words tell of, without a time."""
    found = _XID.match(text) or _XID_BARE.match(text)
    if found:
        return _xid(text, found)
    found = _SXID.match(text)
    if found:
        return _event("sxid", text, found, _matched(_SEVERITY, found.group("rest"), match=True))
    for kind, what, pattern in PATTERNS:
        found = _p(pattern).match(text)
        if found:
            return _event(kind, text, found, {"what": what} if what else {})
    return None


def _xid(text: str, found: "re.Match[str]") -> KernelEvent:
    rest = found.group("rest")
    fields: Dict[str, str] = {}
    for pattern in (_ACTION, _NVLINK5, _LINK):
        fields = fields or _matched(pattern, rest)
    named = _PID.match(rest)
    event = _event("xid", text, found, fields)
    if not named:
        return event
    pid, process = named.group("pid"), named.group("process")
    known = process if process and not process.startswith(("<unknown", "'<unknown")) else None
    return replace(event, pid=int(pid) if pid.isdigit() else None, process=_clean(known, 64) if known else None)


def _matched(pattern: "re.Pattern[str]", text: str, match: bool = False) -> Dict[str, str]:
    found = pattern.match(text) if match else pattern.search(text)
    return {k: _clean(v, 100) for k, v in found.groupdict().items() if v is not None} if found else {}


_OWN = ("pci", "code", "device", "pid", "process", "rest")


def _event(kind: str, text: str, found: "re.Match[str]", fields: Dict[str, str]) -> KernelEvent:
    """An event out of the groups of a pattern: those that are no fields of their own go into ``fields``."""
    groups = {name: value for name, value in found.groupdict().items() if value is not None}
    more = {**{k: _clean(v, 100) for k, v in groups.items() if k not in _OWN}, **fields}
    return KernelEvent(
        kind=kind,
        text=_clean(text, TEXT_LIMIT),
        code=int(groups["code"]) if "code" in groups else None,
        pci=pci_of(groups["pci"]) if "pci" in groups else None,
        device=_clean(groups["device"], 64) if "device" in groups else None,
        pid=int(groups["pid"]) if groups.get("pid", "").isdigit() else None,
        process=_clean(groups["process"], 64) if "process" in groups else None,
        fields=more or None,
    )


def _clean(text: str, limit: int) -> str:
    return terminal(redact.text(text.strip()))[:limit]


def fault_lines(data: bytes, limit: int) -> Tuple[List[bytes], int]:
    """(The last ``limit`` lines with each needle, in their order; how many further lines have one).

    Each needle is sought through the whole of it: that runs at the speed of memory, and no line is made of what has none.
    The limit is each needle's own, so that a flood of one kind of fault hides no other.
    """
    kept: Dict[int, int] = {}
    passed: Set[int] = set()
    for needle in NEEDLES:
        found = _lines_with(needle, data)
        kept.update(found[-limit:])
        passed.update(begin for begin, _end in found[:-limit])
    lines = [data[begin : min(kept[begin], begin + LINE_LIMIT)] for begin in sorted(kept)]
    return lines, len(passed - kept.keys())


def _lines_with(needle: bytes, data: bytes) -> List[Tuple[int, int]]:
    """(Begin, end) of each line that the needle stands in."""
    found, at = [], data.find(needle)
    while at >= 0:
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        found.append((data.rfind(b"\n", 0, at) + 1, end))
        at = data.find(needle, end)
    return found

"""KernelLog: faults of hardware and drivers that the kernel told of since boot.

Sources, the first that can be read: /dev/kmsg, the journal, dmesg, and the files of a syslog daemon. Where the ring was
overwritten the journal is asked too. The log is the machine's, in a container too.
"""

import os
import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ddp_doctor import redact
from ddp_doctor.ask import Ask
from ddp_doctor.collect.kernel_lines import LINE_LIMIT, Line, fault_lines, fault_of, line_of
from ddp_doctor.collect.numbers import labelled
from ddp_doctor.facts import KernelEvent, KernelLog, Reason
from ddp_doctor.host import Host, optional
from ddp_doctor.numerals import whole
from ddp_doctor.unreadable import Unreadable

LIMIT_S = 12.0
DAY_S = 86_400.0
RING_LIMIT_S, TOOL_LIMIT_S = 2.0, 3.0
LINES_LIMIT, EVENTS_LIMIT = 1000, 100
"""The newest lines with each needle are parsed; of each kind of event the newest are kept, like ones folded."""
JOURNAL_LINES = 20000
TAIL_BYTES = 4 * 2**20
"""As much of the end of a log file is read: some 40 000 lines, which take 0.1 s."""
FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog", "/var/log/dmesg")
BOOT_SLACK_S = 120.0
"""A daemon writes the ring's first lines down when it starts, this long after boot at most."""


@dataclass(frozen=True)
class Seen:
    """What a source gave. ``lines``: those with a needle. ``first``, ``last``: its oldest and newest line."""

    source: str
    lines: Tuple[str, ...]
    first: str
    last: str
    whole_boot: bool
    dropped: int = 0
    boot: Optional[float] = None
    """Unix time of boot by the clock that the source's uptimes are of, where it told."""


def read(host: Host, ask: Ask) -> KernelLog:
    """The events since boot of the first source that can be read. Unreadable with every source's reason when none can."""
    now, boot = host.now("kernel_log"), _boot(host)
    why: List[Reason] = []
    seen = _first(host, ask, why)
    if seen is None:
        raise Unreadable(_why_none(host, why))
    return log_of(seen, boot, now)


def log_of(seen: Seen, boot: Optional[float], now: float) -> KernelLog:
    """The section out of what a source gave: events of this boot, folded, and the window that the log covers."""
    boot = seen.boot if seen.boot is not None else boot
    since, until = (_at(text, boot, now) for text in (seen.first, seen.last))
    if since is not None and boot is not None:
        whole = seen.whole_boot or since < boot
        since = max(since, boot)
    else:
        whole = seen.whole_boot
    events, dropped = fold(_events(seen.lines, boot, now))
    unread = {} if since is not None else {"since": Reason("unreadable", f"{seen.source}: its lines have no time")}
    return KernelLog(
        source=seen.source,
        since=since,
        until=max(now if seen.source in ("kmsg", "journal", "dmesg") else until or 0.0, since or 0.0) or None,
        whole_boot=whole,
        events=events,
        dropped=dropped + seen.dropped,
        unread=unread,
    )


def _at(text: str, boot: Optional[float], now: float) -> Optional[float]:
    return _time(line_of(text, now), boot)


def _time(line: Line, boot: Optional[float]) -> Optional[float]:
    """Unix time of a line, by its date or by its seconds since boot."""
    if line.at is not None:
        return line.at
    return boot + line.uptime_s if boot is not None and line.uptime_s is not None else None


def _events(lines: Iterable[str], boot: Optional[float], now: float) -> Iterable[KernelEvent]:
    """Events of this boot, each with its time. What has no time counts: a log that has none is the ring's."""
    for text in lines:
        line = line_of(text, now)
        event = fault_of(line.text) if line.source in ("kernel", "systemd-networkd") else None
        if event is None or (line.source != "kernel" and event.kind != "link"):
            continue
        at = _time(line, boot)
        if at is None or boot is None or at >= boot - 1.0:
            yield replace(event, first_at=at, last_at=at)


def fold(events: Iterable[KernelEvent]) -> Tuple[Tuple[KernelEvent, ...], int]:
    """(Like events made one, in the order of their first; how many lines are of those beyond EVENTS_LIMIT of a kind)."""
    folded: Dict[Any, KernelEvent] = {}
    times: Dict[Any, List[Optional[float]]] = {}
    for event in events:
        key = (event.kind, event.code, event.pci, event.device, *_telling(event))
        known = folded.get(key)
        folded[key] = event if known is None else replace(known, count=known.count + 1, last_at=event.last_at)
        times.setdefault(key, []).append(event.first_at)
    folded = {key: replace(event, most_in_a_day=most_in_a_day(times[key])) for key, event in folded.items()}
    kept: List[KernelEvent] = []
    for kind in dict.fromkeys(event.kind for event in folded.values()):
        kept += [event for event in folded.values() if event.kind == kind][-EVENTS_LIMIT:]
    left_out = sum(event.count for event in folded.values()) - sum(event.count for event in kept)
    return tuple(event for event in folded.values() if event in kept), left_out


def most_in_a_day(times: Sequence[Optional[float]]) -> Optional[int]:
    """How many of these moments, at most, lie within 24 hours; None where one is not known."""
    known = sorted(moment for moment in times if moment is not None)
    if len(known) < len(times):
        return None
    return max((n + 1 - bisect_right(known, last - DAY_S) for n, last in enumerate(known)), default=0)


def _telling(event: KernelEvent) -> Tuple[Optional[str], ...]:
    """What else makes two events unlike: two processes that were killed are two."""
    fields = event.fields or {}
    process = event.process if event.kind in ("hung-task", "segfault") else None
    return (
        str(event.pid) if event.kind == "oom" else process,
        fields.get("what"),
        fields.get("severity"),
        fields.get("action"),
    )


def _boot(host: Host) -> Optional[float]:
    """Unix time of boot, as /proc/stat says."""
    text = optional(lambda: host.read("/proc/stat", limit_bytes=2**24), {}, "")
    found = labelled(text.replace("btime ", "btime: ") if text else "", "btime")
    return whole(found, 12) if found else None


def _first(host: Host, ask: Ask, why: List[Reason]) -> Optional[Seen]:
    ring = _try(lambda: _kmsg(host), why)
    if ring is not None and (ring.whole_boot or not ask.active):
        return ring
    journal = _try(lambda: _journal(host), why)
    if journal is not None and (ring is None or journal.whole_boot):
        return journal
    if ring is not None:
        return ring
    dmesg = _try(lambda: _dmesg(host), why)
    return dmesg or next((seen for path in FILES for seen in [_try(lambda p=path: _file(host, p), why)] if seen), None)


def _try(source: Any, why: List[Reason]) -> Optional[Seen]:
    try:
        seen: Seen = source()
        return seen
    except Unreadable as error:
        why.append(error.reason)
        return None


def _why_none(host: Host, why: List[Reason]) -> Reason:
    """The reason of them all: rights, if those were missing anywhere, since with them there would be a log."""
    restricted = optional(lambda: host.read("/proc/sys/kernel/dmesg_restrict").strip(), {}, "") == "1"
    if any(reason.kind == "no-rights" for reason in why):
        user = optional(host.user, {}, "")
        needs = "CAP_SYSLOG, which root lacks here" if user and user[0] == 0 else "root"
        text = f"needs {needs}: " + ("kernel.dmesg_restrict is 1" if restricted else "the kernel's log is not readable")
        return Reason("no-rights", text)
    kinds = {reason.kind for reason in why}
    kind = kinds.pop() if len(kinds) == 1 else "unreadable"
    return Reason(kind, "; ".join(reason.text for reason in why)[:400])


def _kmsg(host: Host) -> Seen:
    told = host.ask("kernel-ring", lambda: read_ring(os.path.join(host.root, "dev/kmsg")), limit_s=RING_LIMIT_S + 1.0)
    return _seen("kmsg", told)


def _seen(source: str, told: Any) -> Seen:
    """A child's answer, which a damaged recording may have made anything."""
    try:
        lines = tuple(str(text) for text in told["lines"])
        boot = told.get("boot")
        return Seen(
            source, lines, str(told["first"]), str(told["last"]), bool(told["whole_boot"]), int(told["dropped"]),
            None if boot is None else float(boot),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        raise Unreadable(Reason("unreadable", f"{source}: not what was expected")) from None


def read_ring(path: str) -> Dict[str, Any]:
    """Every record of /dev/kmsg that has a needle, without waiting for new ones. Runs in a child.

    A record is one read; its sequence number counts from boot, so that the first one's tells whether any was overwritten.
    """
    heads: List[bytes] = []
    first = last = b""
    end_at = time.monotonic() + RING_LIMIT_S
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        while time.monotonic() < end_at:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten while reading: the next read goes on with the oldest that is left
                continue
            if not record:
                break
            last = record
            first = first or record
            heads.append(record.split(b"\n", 1)[0])  # what follows are the record's KEY=value pairs
    finally:
        os.close(fd)
    kept, dropped = fault_lines(b"\n".join(heads), LINES_LIMIT)
    if not first:
        raise Unreadable(Reason("unreadable", f"{path}: no record in it"))
    sequence = first.split(b",")[1:2]
    return {
        "lines": [_kept(record) for record in kept],
        "first": _stamp(first),
        "last": _stamp(last),
        "whole_boot": sequence == [b"0"],
        "dropped": dropped,
        "boot": time.time() - time.clock_gettime(time.CLOCK_MONOTONIC),
    }


def _kept(line: bytes) -> str:
    return redact.text(line[:LINE_LIMIT].decode("utf-8", "backslashreplace"))


def _stamp(line: bytes) -> str:
    """A line's beginning, where its time stands: what the first and the last say is nobody's business."""
    return (
        line.split(b";")[0].decode("utf-8", "backslashreplace")[:80] + ";" if b";" in line[:80] else _kept(line)[:120]
    )


def _journal(host: Host) -> Seen:
    """The kernel's own lines of this boot (facility 0: a program's, written into the ring, have another)."""
    argv = [
        "journalctl",
        "-k",
        "-b",
        "--no-pager",
        "-q",
        "-o",
        "short-unix",
        "-n",
        str(JOURNAL_LINES),
        "SYSLOG_FACILITY=0",
    ]
    ran = host.run("journal-kernel", argv, limit_s=TOOL_LIMIT_S)
    denied = "not seeing messages" in ran.stderr or "ermission" in ran.stderr
    if ran.status or not ran.stdout.strip():
        kind = "no-rights" if denied else "absent" if not ran.status else "unreadable"
        raise Unreadable(Reason(kind, "journal: " + (ran.stderr.strip()[:200] or "no kernel messages of this boot")))
    return _from_text("journal", ran.stdout, JOURNAL_LINES)


def _dmesg(host: Host) -> Seen:
    ran = host.run("dmesg", ["dmesg", "-r"], limit_s=TOOL_LIMIT_S)
    if ran.status or not ran.stdout.strip():
        denied = "not permitted" in ran.stderr or "denied" in ran.stderr
        reason = ran.stderr.strip()[:200] or "no messages"
        raise Unreadable(Reason("no-rights" if denied else "unreadable", f"dmesg: {reason}"))
    return _from_text("dmesg", ran.stdout, None)


def _from_text(source: str, text: str, most: Optional[int]) -> Seen:
    data = text.encode("utf-8", "backslashreplace")
    told = _tail_of(data)
    head = data[:20000]
    whole = b"Linux version " in head and (most is None or data.count(b"\n") < most)
    return _seen(source, {**told, "whole_boot": whole})


def _tail_of(data: bytes) -> Dict[str, Any]:
    """Lines with a needle out of the text of a log, with its first and its last line."""
    lines, dropped = fault_lines(data, LINES_LIMIT)
    body = data.strip(b"\n")
    first, last = body[: body.find(b"\n")] if b"\n" in body else body, body[body.rfind(b"\n") + 1 :]
    return {"lines": [_kept(line) for line in lines], "first": _stamp(first), "last": _stamp(last), "dropped": dropped}


def _file(host: Host, path: str) -> Seen:
    real = os.path.join(host.root, path.lstrip("/"))
    told = host.ask(f"kernel-log-file {path}", lambda: read_tail(real), limit_s=TOOL_LIMIT_S)
    return _seen(path, told)


def read_tail(path: str) -> Dict[str, Any]:
    """The last TAIL_BYTES of a log file. Runs in a child. ``whole_boot`` is left to the times of its lines."""
    import stat

    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(Reason("unreadable", f"{path}: not a regular file"))
        begin = max(0, found.st_size - TAIL_BYTES)
        file.seek(begin)
        data = file.read(TAIL_BYTES)
    if begin:
        data = data[data.find(b"\n") + 1 :]
    if not data.strip():
        raise Unreadable(Reason("absent", f"{path}: empty"))
    return {**_tail_of(data), "whole_boot": not begin and b"Linux version " in data[:20000]}

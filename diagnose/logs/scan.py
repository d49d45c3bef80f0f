"""Scanning: the few lines that matter, out of gigabytes.

One regular expression of all patterns is searched through large pieces; only a line in which something is found is taken
apart. With google-re2 installed that runs in linear time at some hundred megabytes a second; without it by Python's own
engine, whose patterns here are without nested repetition, so that its time is linear, too.
"""

import importlib
import re
from typing import Any, Callable, Iterable, List, Match, Optional, Sequence

from ddp_doctor.logs import reading
from ddp_doctor.logs.log import Event, Hits, Log

ENOUGH = 300
"""Lines of one pattern: enough to see every rank of a large job; what a program prints without end costs no more time."""
TEXT_CHARS = 600
"""Of a line that is quoted; NCCL's longest have some 400."""

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]{0,30}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])")
_RANK = re.compile(
    r"\[rank(\d{1,6})\]|\[default(\d{1,6})\]|^\s{0,4}(\d{1,6}): |^\[1,(\d{1,6})\]<std|\[Rank (\d{1,6})\]|\btrainer(\d{1,6})\b|[( ]RANK[= ](\d{1,6})\b"
)
_NCCL = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,252}):\d{1,8}:\d{1,8} \[\d{1,3}\]")


class Scanner:
    """Looks for patterns in files, and keeps what it found as a ``Log``."""

    def __init__(self, patterns: Iterable[str]) -> None:
        wanted = list(dict.fromkeys(patterns))
        self.log = Log(hits={pattern: Hits() for pattern in wanted})
        self._look_for(wanted)

    def _look_for(self, patterns: Sequence[str]) -> None:
        self._each = [(pattern, re.compile(pattern)) for pattern in patterns]
        self._any = (
            _compiled("(?m)" + "|".join(f"(?:{pattern})" for pattern in patterns))
            if patterns
            else lambda data, place: None
        )

    def read(self, path: str, name: Optional[str] = None) -> None:
        """Take in one file. Raises reading.BadLog."""
        source, number = name or path, 1
        self.log.sources.append(source)
        for piece in reading.pieces(path):
            self._piece(piece, source, number)
            ends = piece.count(b"\n")
            number += ends
            self.log.lines += ends
            self.log.size_bytes += len(piece)

    def _piece(self, piece: bytes, source: str, first: int) -> None:
        place, counted, number = 0, 0, first
        last_end = len(piece)
        while place < last_end:
            match = self._any(piece, place)
            if match is None:
                break
            start = max(piece.rfind(b"\n", 0, match.start()), piece.rfind(b"\r", 0, match.start())) + 1
            end = _end(piece, match.end())
            number += piece.count(b"\n", counted, start)
            counted = start
            self._line(piece[start:end], source, number)
            place = max(end, match.end(), place + 1)
        tail = piece.rstrip()
        if tail:
            start = max(tail.rfind(b"\n"), tail.rfind(b"\r")) + 1
            self.log.last = _event(tail[start:], source, first + tail.count(b"\n"), self.log.lines + tail.count(b"\n"))

    def _line(self, line: bytes, source: str, number: int) -> None:
        event = _event(line, source, number, self.log.lines + number)
        full = False
        for pattern, regex in self._each:
            if regex.search(event.text):
                self.log.hits[pattern].add(event)
                full = full or self.log.hits[pattern].count >= ENOUGH
        if full:  # it tells nothing more, and would only cost time
            self._look_for([pattern for pattern, _ in self._each if self.log.hits[pattern].count < ENOUGH])
        if event.rank is not None:
            self.log.ranks.add(event.rank)


def scanned(
    paths: Sequence[str], patterns: Iterable[str], say: Callable[[List[str]], None] = lambda names: None
) -> Log:
    """The log of all these files. Raises reading.BadLog."""
    scanner = Scanner(patterns)
    for path in paths:
        say([path])
        scanner.read(path, "standard input" if path == "-" else path)
    return scanner.log


def _end(piece: bytes, place: int) -> int:
    ends = [found for found in (piece.find(b"\n", place), piece.find(b"\r", place)) if found >= 0]
    return min(ends, default=len(piece))


def _event(line: bytes, source: str, number: int, order: int) -> Event:
    text = _ANSI.sub(b"", line[: reading.LINE_BYTES]).decode("utf-8", "replace").replace("\0", "").strip()[:TEXT_CHARS]
    return Event(order, source, number, text, rank_of(text), host_of(text))


def rank_of(text: str) -> Optional[int]:
    """The rank that a line names as its writer; None where it names none."""
    match = _RANK.search(text)
    return int(next(group for group in match.groups() if group is not None)) if match else None


def host_of(text: str) -> Optional[str]:
    """The host in front of NCCL's lines: "gpu07:1234:1250 [3] NCCL INFO ..."."""
    match = _NCCL.search(text)
    return match.group(1) if match else None


Searcher = Callable[[bytes, int], Optional[Match[bytes]]]


def _compiled(pattern: str) -> Searcher:
    """Search of a pattern in bytes from a place on."""
    try:
        re2: Any = importlib.import_module("re2")  # google-re2, where it is installed
        options = re2.Options()
        options.max_mem = 256 << 20
        options.encoding = re2.Options.Encoding.LATIN1
        found: Any = re2.compile(pattern.encode("latin-1"), options)
    except Exception:  # noqa: BLE001  not installed, or of another make
        found = re.compile(pattern.encode("latin-1"))
    return lambda data, place: found.search(data, place)

"""Collectives: ranks that do different things, wait for one another, or are gone."""

import re
from collections import Counter
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

from ddp_doctor.checks.logs._cause import cause, looks_for
from ddp_doctor.logs.log import Cause, Event, Log, found
from ddp_doctor.model import Severity, check

DIST = "https://docs.pytorch.org/docs/stable/distributed.html"
ERRORS = "https://docs.pytorch.org/docs/stable/elastic/errors.html"
RECORDER = "https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html"

WATCHDOG = r"[Ww]atchdog caught collective operation timeout"
TIMEOUT = r"Timed out waiting \d{1,12}ms for (recv|send) operation|gloo.{0,120}[Tt]imed out|Collective timed out|collective operation timeout"
FINGERPRINT = r"Detected mismatch between collectives on ranks"
EXCEPTION = r"^(\[[\w |:.,-]{1,60}\]:?\s{0,8}|\d{1,6}: |\(?\w{1,40} pid=\d{1,9}[^)]{0,60}\)\s?|\[1,\d{1,6}\]<std\w{3}>:\s?)?([A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(Error|Exception|Exit|NotFound|Fault)(: |$)"
IGNORED, IGNORED_LINES = r"^Exception ignored in", 30
"""What Python prints of an exception in a destructor, with its traceback; the program goes on."""
SEGFAULT = r"Signal 11|exitcode: -11|Segmentation fault|[Cc]aught signal 11|SIGSEGV"
KILLED = r"exitcode: -9|Signal 9 \(SIGKILL\)|received signal 9|Killed\s{0,3}$"

_WORK = re.compile(
    r"\[?[Rr]ank (\d{1,6})[^\n]{0,160}?WorkNCCL\((?:SeqNum=(\d{1,12}), )?OpType=(\w{1,40})(?:, NumelIn=(\d{1,15}))?"
)
_FINGERPRINT = re.compile(r"OpType=(\w{1,40}), TensorShape=\[([\d, ]{0,200})\]")
_OF_TORCH = re.compile(
    r"Dist(Backend|Network|Store|)Error|ChildFailedError|Rendezvous\w{0,30}Error|OutOfMemoryError|SignalException|ProcessRaisedException"
    r"|ProcessExitedException|SystemExit|KeyboardInterrupt|BrokenPipeError|EOFError|ConnectionResetError|BrokenProcessPool"
    r"|(RuntimeError|ValueError): .{0,120}(NCCL|CUDA|c10d|[Ss]ocket|[Gg]loo|TCPStore|store|Timed out|timed out|[Rr]ank|collective|process group)"
)


class Waited(NamedTuple):
    """What a rank waited in when its watchdog ended it."""

    rank: int
    sequence: Optional[int]
    operation: str
    elements: Optional[int]
    event: Event


def waited(log: Log) -> List[Waited]:
    """Of each rank the first collective that timed out."""
    found: Dict[int, Waited] = {}
    for event in log.events(WATCHDOG):
        match = _WORK.search(event.text)
        if match:
            rank, sequence, operation, elements = match.groups()
            work = Waited(
                int(rank), int(sequence) if sequence else None, operation, int(elements) if elements else None, event
            )
            found.setdefault(work.rank, work)
    return [found[rank] for rank in sorted(found)]


def _words(works: List[Waited]) -> str:
    """ranks 0, 1, 2 wait in ALLREDUCE #57; rank 7 in BROADCAST #56."""
    groups: Dict[str, List[int]] = {}
    for work in works:
        number = f" #{work.sequence}" if work.sequence is not None else ""
        size = f" of {work.elements} elements" if work.elements is not None else ""
        groups.setdefault(f"{work.operation}{number}{size}", []).append(work.rank)
    told = [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))} in {what}"
        for what, ranks in groups.items()
    ]
    return "; ".join(told[:8])


@check(Severity.ERROR)
@looks_for(
    WATCHDOG,
    FINGERPRINT,
    do="Let every rank call the same collectives in the same order; TORCH_DISTRIBUTED_DEBUG=DETAIL or the flight recorder shows where they part.",
)
def desync_optype(log: Log) -> Iterator[Cause]:
    """Ranks are in different collectives.

    Why: A branch that some ranks take, an exception that one swallowed, or data that ended early: they wait for each other in
        operations that never meet.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    works = waited(log)
    if len({work.operation for work in works}) > 1:
        yield found((work.event for work in works), measured=_words(works), confidence="medium")
        return
    events = log.events(FINGERPRINT)
    kinds = {match[0] for event in events for match in _FINGERPRINT.findall(event.text)}
    if len(kinds) > 1:
        yield found(events)


@check(Severity.ERROR)
@looks_for(
    WATCHDOG,
    FINGERPRINT,
    r"[Ss]hape mismatch|op\.preamble\.length <= op\.nbytes",
    do="Give every rank tensors of one shape (pad, or gather the sizes first); TORCH_DISTRIBUTED_DEBUG=DETAIL names the ranks.",
)
def desync_shape_mismatch(log: Log) -> Iterator[Cause]:
    """Ranks call the same collective with tensors of different sizes.

    Why: Batches or outputs differ between ranks; NCCL then hangs or writes where it must not, Gloo complains of lengths.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    events = log.events(FINGERPRINT)
    kinds = {match[0] for event in events for match in _FINGERPRINT.findall(event.text)}
    if events and len(kinds) <= 1:
        yield found(events)
        return
    lengths = log.events(r"[Ss]hape mismatch|op\.preamble\.length <= op\.nbytes")
    works = waited(log)
    same = {(work.operation, work.sequence) for work in works}
    sizes = {work.elements for work in works if work.elements is not None}
    if len(works) > 1 and len(same) == 1 and len(sizes) > 1:
        yield found((work.event for work in works), measured=_words(works))
    elif any("preamble" in event.text for event in lengths):
        yield found(lengths, confidence="medium")


@check(Severity.ERROR)
@looks_for(
    WATCHDOG, do="Let all ranks of the group call it, or none: barrier(), broadcast and gather are collectives, too."
)
def desync_rank0_only_collective(log: Log) -> Iterator[Cause]:
    """A collective was called on rank 0 alone.

    Why: What only rank 0 does (logging, saving, evaluation) holds a collective, and nobody else comes.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    works = waited(log)
    tiny = bool(works) and works[0].elements == 1
    if [work.rank for work in works] == [0] and (tiny or max(log.ranks, default=0) > 0):
        yield found([works[0].event], measured=_words(works), tier=2, confidence="low")


desync_nccl_check = cause(
    __name__,
    f"""NCCL itself found that ranks call different collectives.

    Why: Its check of arguments compares what the ranks are about to do.
    See: {DIST}
    """,
    r"Mismatched collective detected",
    r"collective call mismatch|mismatched collective",
    do="Look at the calls around the rank that is named: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL prints them.",
)


@check(Severity.ERROR)
@looks_for(
    WATCHDOG,
    TIMEOUT,
    do="Find what the late rank did (py-spy dump, its log, TORCH_NCCL_TRACE_BUFFER_SIZE=2000 with TORCH_NCCL_DUMP_ON_TIMEOUT=1); a longer timeout only for work that must take long.",
)
def slow_rank_timeout(log: Log) -> Iterator[Cause]:
    """Ranks waited in a collective until the time-out: one came late, or not at all.

    Why: A checkpoint, an evaluation, a data index on one rank, a rank that hangs or has died. Where all wait in the same
        collective, the one that does not complain is the late one.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    works = waited(log)
    events = [work.event for work in works] or log.events(WATCHDOG, TIMEOUT)
    if not events or len({work.operation for work in works}) > 1:
        return
    missing = _missing(log, {work.rank for work in works})
    words = _words(works) + (f"; not heard of: {', '.join(map(str, sorted(missing)[:16]))}" if missing else "")
    yield found(events, measured=words, tier=4, confidence="medium" if works else "low")


def _missing(log: Log, waiting: Set[int]) -> Set[int]:
    return log.ranks - waiting if waiting else set()


def _exceptions(log: Log) -> List[Event]:
    """Exceptions of the program itself: not those by which torch tells what befell it, nor such as Python passed over."""
    ignored = [(event.source, event.number) for event in log.events(IGNORED)]
    return [
        event
        for event in log.events(EXCEPTION)
        if not _OF_TORCH.search(event.text)
        and not any(source == event.source and 0 < event.number - number <= IGNORED_LINES for source, number in ignored)
    ]


def _kind(event: Event) -> str:
    """FileNotFoundError."""
    match = re.search(r"\b(\w{1,60}(?:Error|Exception|Exit|NotFound|Fault))(?:: |$)", event.text)
    return match.group(1) if match else event.text[:40]


@check(Severity.ERROR)
@looks_for(
    EXCEPTION, IGNORED, do="Mend what the exception says: it is the program's own, and would come on one GPU as well."
)
def app_exception_all_ranks(log: Log) -> Iterator[Cause]:
    """The program raised the same exception on all ranks.

    Why: A path, an argument or a library that is wrong everywhere. torchrun's summary names the first process that ended, which is
        no cause.
    See: https://docs.pytorch.org/docs/stable/elastic/errors.html
    """
    events = _exceptions(log)
    kinds = Counter(map(_kind, events))
    if not kinds:
        return
    kind, count = kinds.most_common(1)[0]
    mine = [event for event in events if _kind(event) == kind]
    ranks = {event.rank for event in mine if event.rank is not None}
    if len(ranks) > 1 or (not ranks and count > 1):
        yield found(mine, tier=3, confidence="high" if len(ranks) > 1 else "medium")


@check(Severity.ERROR)
@looks_for(
    EXCEPTION, do="Mend what the exception says, on the rank that is named; what the other ranks print follows from it."
)
def app_exception_one_rank(log: Log) -> Iterator[Cause]:
    """The program raised an exception on one rank.

    Why: Its data, its files or its node differ from the others'. The other ranks wait for it and time out, or lose their connections.
    See: https://docs.pytorch.org/docs/stable/elastic/errors.html
    """
    events = _exceptions(log)
    ranks = {event.rank for event in events if event.rank is not None}
    if events and (len(ranks) == 1 or (not ranks and len(events) == 1)):
        yield found(events[-1:] if not ranks else events[:1], tier=3, confidence="medium")


@check(Severity.ERROR)
@looks_for(
    SEGFAULT,
    do="Get a core or a backtrace (faulthandler: python -X faulthandler); look for libraries of another build (LD_LIBRARY_PATH, extensions).",
)
def segfault_worker(log: Log) -> Iterator[Cause]:
    """A rank died of a segmentation fault.

    Why: A native extension, a library of another version, or an access beyond a mapped file.
    See: https://docs.python.org/3/library/faulthandler.html
    """
    events = log.events(SEGFAULT)
    if events:
        yield found(events, tier=3, confidence="medium")


@check(Severity.ERROR)
@looks_for(
    KILLED,
    do="Look into dmesg on that node, and at the scheduler's accounting (sacct, kubectl describe pod), for who killed it: most often the OOM killer.",
)
def rank_killed(log: Log) -> Iterator[Cause]:
    """A rank was killed from outside (SIGKILL).

    Why: The kernel for want of memory, the scheduler for a limit, or a person. The log does not say which.
    See: https://docs.pytorch.org/docs/stable/elastic/errors.html
    """
    events = log.events(KILLED)
    if events:
        yield found(events, tier=3, confidence="low")

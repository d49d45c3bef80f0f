"""Explaining: from a log to its causes, ranked; what is no cause; and what to do."""

import json
import re
import textwrap
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ddp_doctor.escape import fenced, terminal
from ddp_doctor.logs.log import Cause, Event, Log
from ddp_doctor.redact import text as redacted
from ddp_doctor.registry import Check

SCHEMA_VERSION = 1
ENDED_BADLY = (r"ChildFailedError", r"exitcode ?: -?[1-9]", r"(srun|slurmstepd): error", r"core dumped")
RAISED, CONSEQUENCE = 3, 4
"""Tiers of what the program raised itself, and of what mostly follows from something else."""
SHOWN = 3
"""Lines that are quoted of a cause, and causes that are told."""

HARMLESS: Tuple[Tuple[str, str], ...] = (
    (r"errno: 97 - Address family not supported", "this host has no IPv6; IPv4 was used"),
    (r"No plugin found|NET/Plugin ?: (Could not find|Plugin load|Failed to find|dlerror=libnccl-net\S{0,20}: cannot open)", "no network plug-in is installed; NCCL has its own"),
    (r"Failed to open libibverbs\.so", "no RDMA libraries here; needed for InfiniBand and RoCE alone"),
    (r"NET/IB : No device found", "no RDMA adapter here"),
    (r"OMP_NUM_THREADS environment variable", "torchrun's hint on threads"),
    (r"destroy_process_group\(\) was not called", "the program ended without saying goodbye"),
    (r"find_unused_parameters=True was specified", "a hint on speed"),
    (r"Grad strides do not match bucket view strides", "a hint on speed"),
    (r"is deprecated; use TORCH_NCCL|FutureWarning|DeprecationWarning", "a name that will change"),
    (r"0 nvls channels", "no NVLink SHARP between these GPUs"),
    (r"CollNet is not supported or fails to initialize|ignoring NCCL_ALGO=COLLNET", "no SHARP in the switches; NCCL does without"),
    (r"Could not enable P2P between dev", "these GPUs do not reach each other directly; NCCL does without"),
    (r"Using the loopback address as fallback", "a hint of Gloo's, harmless on one node"),
    (r"\[(Service thread|Proxy Service)[^\]]{0,20}\].{0,80}(Accept failed|Connection closed|[Cc]ould not receive)", "ranks that leave one after the other"),
    (r"TORCH_NCCL_AVOID_RECORD_STREAMS", "a hint on memory"),
    (r"\[W[^\]]{0,80}(TCPStore|socket)[^\]]{0,60}\].{0,120}(recvValue|Broken pipe|Connection reset|failed to (recv|send))", "a store that closed while ranks were leaving"),
)  # fmt: skip
"""Lines that look like faults and are none by themselves (reference: wards of many clusters) -> what they say."""

WARNED = r"NCCL WARN"
NOISE = (
    r"NCCL WARN .{0,40}(Failed to open libibverbs|CollNet is not supported|NET/Plugin|No plugin|ignoring NCCL_ALGO|Unable to open device)",
    r"NCCL WARN .{0,60}(Connection closed by remote peer|Accept failed|Socket recv failed|[Cc]onnection reset|Service thread|Proxy Service)",
)
"""Warnings of runs that go well: what is not there, and ranks that leave one after the other."""
RUNNING = (r"[Ee]poch[ :=\[]{1,3}\d", r"\bloss[\"']?[ :=]{1,3}-?\d", r"\d(\.\d{1,3})?(it/s|s/it)\b")
LEAVING = r"(Abort|Destroy) COMPLETE|\[Service thread\] Connection closed"

FAILING = (
    r"Traceback \(most recent call last\)",
    r"ChildFailedError",
    r"exitcode ?: -?[1-9]",
    r"\[E[^\]]{0,60}(ProcessGroup|socket|c10d|Exception)",
    r"unhandled (cuda|system) error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage|ncclRemoteError",
    r"NCCL (failure|error)",
    r"\b(RuntimeError|Dist(Backend|Network|Store|)Error)\b",
    r"(srun|slurmstepd): error",
    r"terminate called after|core dumped|Aborted \(",
    r"\bFATAL\b|Fatal error|FAILED",
)
"""Signs that something went wrong."""
TRACED = r"NCCL INFO \S{1,60}:\d{1,6} -> [1-9]"
"""How NCCL tells, frame by frame, where an error came from."""
SUCCEEDED = (
    r"Avg bus bandwidth",
    r"train_runtime|train_samples_per_second",
    r"Training (finished|completed?|runs)|[Tt]raining (is )?(done|finished|complete)",
    r"\"status\": \"success\"|target.{0,20}reached",
    r"100%\|",
)


@dataclass(frozen=True)
class Found:
    """A cause with its documentation."""

    id: str
    title: str
    why: str
    see: Tuple[str, ...]
    do: str
    cause: Cause

    @property
    def began(self) -> Optional[Event]:
        """The first line that shows it."""
        return self.cause.events[0] if self.cause.events else None


@dataclass(frozen=True)
class Explanation:
    """What came of a log. verdict: failing, healthy or unknown."""

    verdict: str
    causes: Tuple[Found, ...]
    dismissed: Tuple[Tuple[Event, str], ...]
    log: Log

    @property
    def exit_status(self) -> int:
        """0 healthy, 1 a cause, 3 not known."""
        return {"healthy": 0, "failing": 1}.get(self.verdict, 3)


def patterns(checks: Sequence[Check]) -> List[str]:
    """Everything that these checks, and we, look for."""
    own = [pattern for check in checks for pattern in getattr(check.call, "__log_patterns__", ())]
    return [
        *own,
        *(pattern for pattern, _ in HARMLESS),
        WARNED,
        *NOISE,
        LEAVING,
        *RUNNING,
        *ENDED_BADLY,
        TRACED,
        *FAILING,
        *SUCCEEDED,
    ]


def of_logs(checks: Sequence[Check]) -> List[Check]:
    """The checks that judge a log."""
    return [check for check in checks if "log" in check.parameters]


def explain(log: Log, checks: Sequence[Check]) -> Explanation:
    """The causes that the checks find, the likeliest first; "healthy" only where nothing failed."""
    found = [_found(check, cause) for check in checks for cause in check.call(log=log)]
    ranked = sorted(found, key=_likeliest)
    if not log.has(*ENDED_BADLY):
        ranked = [each for each in ranked if not _went_on(log, each)]
    dismissed = tuple((log.events(pattern)[0], words) for pattern, words in HARMLESS if log.has(pattern))
    if _went_well(log, ranked):
        ranked = []
    verdict = "failing" if ranked else "unknown" if _seems_failing(log) else "healthy"
    return Explanation(verdict, tuple(ranked), dismissed, log)


def _likeliest(each: Found) -> Tuple[int, bool, int]:
    """Nearer to the root first, guesses last, then the earliest."""
    return each.cause.tier, each.cause.confidence == "low", each.began.order if each.began else 0


def _found(check: Check, cause: Cause) -> Found:
    do = getattr(check.call, "__log_remedy__", "")
    return Found(check.id, check.doc.title, check.doc.why, check.doc.see, do, cause)


def _went_on(log: Log, each: Found) -> bool:
    """Did the job come to a good end after what the program raised, or what befell a peer?"""
    ends = log.events(*SUCCEEDED)
    return each.cause.tier >= RAISED and bool(ends) and ends[-1].order > max(e.order for e in each.cause.events)


def _went_well(log: Log, ranked: Sequence[Found]) -> bool:
    """Did it come to its end, and is what was found only what ranks print when others leave?"""
    ended = log.has(*SUCCEEDED) or (log.has(LEAVING, *RUNNING) and not log.has(*FAILING))
    return ended and all(each.cause.tier >= CONSEQUENCE for each in ranked)


def _seems_failing(log: Log) -> bool:
    if log.size_bytes == 0:
        return True
    warned = log.count(WARNED) > log.count(*NOISE) or (log.has(TRACED) and not log.has(LEAVING))
    return (log.has(*FAILING) or warned) and not log.has(*SUCCEEDED)


# --------------------------------------------------------------------------- output


def _quoted(event: Event) -> str:
    return terminal(redacted(event.text))


def _place(event: Event) -> str:
    """train.log:812 (rank 3, gpu07)."""
    who = [f"rank {event.rank}"] if event.rank is not None else []
    who += [terminal(event.host)] if event.host else []
    return f"{terminal(event.source)}:{event.number}" + (f" ({', '.join(who)})" if who else "")


def text(explained: Explanation, width: int, verbose: bool = False) -> str:
    """For a person: the cause, where it began, the lines that show it, what to do; then what else was seen."""
    lines = [_headline(explained)]
    for number, each in enumerate(explained.causes[: None if verbose else SHOWN]):
        lines += ["", *_cause_lines(each, number, width, verbose)]
    more = len(explained.causes) - SHOWN
    if more > 0 and not verbose:
        lines += ["", f"{more} more possible, less likely (-v shows them)"]
    if explained.dismissed:
        lines += ["", "Not the cause"]
        lines += [
            _wrapped("  ", f"{_place(e)}: {_quoted(e)[:90]}  <- {words}", width) for e, words in explained.dismissed[:6]
        ]
    if explained.verdict == "unknown":
        lines += ["", *_next_time(width)]
    return "\n".join(lines) + "\n"


def _headline(explained: Explanation) -> str:
    log = explained.log
    read = f"{log.lines} lines of {len(log.sources)} file{'s' if len(log.sources) != 1 else ''}" + (
        f", {len(log.ranks)} ranks" if log.ranks else ""
    )
    if explained.verdict == "healthy":
        return f"Healthy: no failure in {read}."
    if explained.verdict == "unknown":
        return f"Not known: no cause that ddp-doctor knows, in {read}."
    first = explained.causes[0]
    return f"{first.title} [{first.id}]   ({first.cause.confidence} confidence, {read})"


def _cause_lines(each: Found, number: int, width: int, verbose: bool) -> List[str]:
    cause, began = each.cause, each.began
    lines = (
        []
        if number == 0
        else [f"Also possible, or a consequence: {each.title} [{each.id}] ({cause.confidence} confidence)"]
    )
    if began is not None:
        lines.append(f"  began at  {_place(began)}")
    if began is None or cause.measured != began.text:
        lines.append(_wrapped("  seen      ", terminal(cause.measured), width))
    if number and not verbose:
        return lines
    lines += [
        _wrapped("  line      ", f"{e.number}: {_quoted(e)}", width) for e in cause.events[: 20 if verbose else SHOWN]
    ]
    lines += [_wrapped("  why       ", each.why, width), _wrapped("  do        ", each.do, width)]
    return lines + [f"  source    {address}" for address in each.see[:1]]


def _wrapped(head: str, words: str, width: int) -> str:
    return textwrap.fill(words, width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _next_time(width: int) -> List[str]:
    words = (
        "For the next run set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV TORCH_DISTRIBUTED_DEBUG=DETAIL "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1, keep the logs of all ranks (torchrun --log-dir D "
        "--redirects 3) and dmesg of the nodes, and give them all: ddp-doctor explain D dmesg.txt."
    )
    return [_wrapped("", words, width)]


def as_json(explained: Explanation) -> str:
    """The same for programs."""
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "verdict": explained.verdict,
            "causes": [_plain(each) for each in explained.causes],
            "dismissed": [{**_event(event), "reason": words} for event, words in explained.dismissed],
            "ranks": sorted(explained.log.ranks),
            "read": {"lines": explained.log.lines, "bytes": explained.log.size_bytes, "files": explained.log.sources},
        },
        indent=1,
    )


def _plain(each: Found) -> Dict[str, Any]:
    return {
        "id": each.id,
        "confidence": each.cause.confidence,
        "title": each.title,
        "began": _event(each.began) if each.began else None,
        "measured": redacted(each.cause.measured),
        "evidence": [_event(event) for event in each.cause.events[:20]],
        "why": each.why,
        "fixes": [each.do] if each.do else [],
        "see": list(each.see),
    }


def _event(event: Event) -> Dict[str, Any]:
    text = re.sub(r"[\x00-\x1f\x7f]", "", redacted(event.text))
    return {"file": event.source, "line": event.number, "rank": event.rank, "host": event.host, "text": text}


def markdown(explained: Explanation) -> str:
    """For an issue or a chat."""
    lines = [f"**{_headline(explained)}**"]
    for each in explained.causes[:SHOWN]:
        lines += ["", f"- `{each.id}` {each.title} ({each.cause.confidence} confidence)"]
        lines += [f"  - began at {_place(each.began)}"] if each.began else []
        lines += ["", fenced("\n".join(map(_quoted, each.cause.events[:SHOWN])), "text"), ""]
        lines += [f"  - do: {each.do}"]
    return "\n".join(lines) + "\n"

"""A look as one line of JSON: rates that are not zero, what GPUs do, what was found."""

import json
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddp_doctor import counters
from ddp_doctor.facts import Gpu, NodeFacts, Rates
from ddp_doctor.model import Verdict
from ddp_doctor.watch.findings import News

SCHEMA_VERSION = 1
GPU_FIELDS = (
    "memory_used_bytes", "memory_total_bytes", "utilisation_percent", "temperature_c", "power_w", "clock_sm_mhz", "throttle",
    "fault",
)  # fmt: skip


def line(facts: NodeFacts, news: News) -> str:
    """One look. Keys: schema_version, at (Unix time), node, interval_s, rates (source -> subject -> name -> per second,
    without those that stand still), gpus, new (findings that arose), over (those that are no longer so)."""
    rates = facts.rates or Rates()
    document = {
        "schema_version": SCHEMA_VERSION,
        "at": facts.collected_at,
        "node": facts.name,
        "interval_s": None if rates.interval_s is None else round(rates.interval_s, 3),
        "rates": nested(moving(rates)),
        "gpus": [gpu_line(gpu) for gpu in (facts.gpus.gpus if facts.gpus else None) or ()],
        "new": [finding(verdict) for verdict in news.new],
        "over": [{"check": check, "subject": subject} for check, subject in news.over],
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def moving(rates: Rates) -> Iterator[Tuple[str, str, str, float]]:
    """(source, subject, name, per second) of the counters that rose."""
    for counter, rose in counters.rises(rates.counters or ()):
        per_s = counters.per_second(rose, rates.interval_s)
        if per_s is not None:
            yield counter.source, counter.subject, counter.name, per_s


def nested(rates: Iterator[Tuple[str, str, str, float]]) -> Dict[str, Dict[str, Dict[str, float]]]:
    found: Dict[str, Dict[str, Dict[str, float]]] = {}
    for source, subject, name, per_s in rates:
        found.setdefault(source, {}).setdefault(subject, {})[name] = float(f"{per_s:.6g}")
    return found


def gpu_line(gpu: Gpu) -> Dict[str, Any]:
    known = {name: getattr(gpu, name) for name in GPU_FIELDS}
    return {"gpu": gpu.index, **{name: value for name, value in known.items() if value is not None}}


def finding(verdict: Verdict) -> Dict[str, Any]:
    """What a line says of a finding; ``ddp-doctor checks ID`` has the rest."""
    return {
        "check": verdict.check,
        "subject": verdict.subject,
        "severity": verdict.severity.value,
        "message": verdict.message,
        "measured": verdict.measured,
        "expected": verdict.expected,
        "remedy": remedy(verdict),
    }


def remedy(verdict: Verdict) -> Optional[str]:
    titles: List[str] = [fix.title for fix in verdict.fixes]
    return titles[0] if titles else None

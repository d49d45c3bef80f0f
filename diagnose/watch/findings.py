"""What a watch finds: the checks' verdicts on each look, told when they arise and when they are over."""

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Set, Tuple

from ddp_doctor import engine
from ddp_doctor.config import Config
from ddp_doctor.facts import NodeFacts
from ddp_doctor.model import Outcome, Severity, Verdict
from ddp_doctor.registry import Check

Key = Tuple[str, str]
"""(check, subject)."""
CHANGING = frozenset(
    ("rates", "kernel_log", "trends", "gpus", "network", "rdma", "time", "disk", "processes", "memory")
)
"""Sections that are looked at again: a check of others would only repeat itself."""
MOMENTS = ("xid/", "kernel/")
"""Checks of what happened at a moment: it is never over, and each time it is told anew."""
QUIET_S = 600.0
"""A finding that comes and goes is told again after so long at the earliest."""
MAX_KEPT = 10_000


@dataclass(frozen=True)
class News:
    """What one look brought: verdicts that began to fail, and those that no longer do."""

    new: Tuple[Verdict, ...] = ()
    over: Tuple[Key, ...] = ()


class Findings:
    """Verdicts by check and subject, over all looks."""

    def __init__(self, checks: Iterable[Check], config: Config, at_start: NodeFacts) -> None:
        self._checks = [check for check in checks if CHANGING.intersection(check.parameters)]
        self._config = config
        self._told_at: Dict[Key, float] = {}
        self.lasting: Dict[Key, Verdict] = {_key(verdict): verdict for verdict in self._failed(at_start)}
        self.known_at_start: Set[Key] = set(self.lasting)
        self.worst_new: Optional[Severity] = None
        """Of what arose since the start; None for nothing."""
        self.count_new = 0

    def judge(self, facts: NodeFacts, at_s: float) -> News:
        """Judge a look. at_s: seconds on the monotonic clock."""
        failed = {_key(verdict): verdict for verdict in self._failed(facts)}
        arisen = [key for key in failed if key not in self.lasting or key[0].startswith(MOMENTS)]
        over = tuple(key for key in self.lasting if key not in failed)
        self.lasting = failed
        new = [failed[key] for key in arisen if self._is_news(key, at_s)]
        for verdict in new:
            self.count_new += 1
            if self.worst_new is None or verdict.severity.rank > self.worst_new.rank:
                self.worst_new = verdict.severity
        return News(tuple(new), tuple(key for key in over if not key[0].startswith(MOMENTS)))

    def _failed(self, facts: NodeFacts) -> List[Verdict]:
        verdicts = engine.judge(facts, self._checks, self._config)
        return [v for v in verdicts if v.outcome is Outcome.FAILED and v.waived is None]

    def _is_news(self, key: Key, at_s: float) -> bool:
        last_s = self._told_at.get(key)
        if last_s is not None and at_s - last_s < QUIET_S and not key[0].startswith(MOMENTS):
            return False
        if len(self._told_at) < MAX_KEPT:
            self._told_at[key] = at_s
        return True


def _key(verdict: Verdict) -> Key:
    return verdict.check, verdict.subject

"""Judging small facts by one check, as the engine does it."""

from functools import lru_cache
from typing import Any, List, Optional

from ddp_doctor import engine, registry
from ddp_doctor.config import Config
from ddp_doctor.facts import NodeFacts
from ddp_doctor.model import Step, Verdict
from ddp_doctor.policy import Policy


@lru_cache(maxsize=None)
def own_checks() -> registry.Registry:
    """Our own checks and fixes, without those of plug-ins that may be installed here."""
    return registry.load(plugins=False)


def judged(check_id: str, policy: Optional[Policy] = None, **facts: Any) -> List[Verdict]:
    """Verdicts of one check on a node of which only these sections are known."""
    config = Config(policy=policy or Policy())
    return engine.judge(NodeFacts("node1", **facts), [own_checks().checks[check_id]], config)


def outcome(check_id: str, policy: Optional[Policy] = None, **facts: Any) -> str:
    """The one outcome of a check, or all of them when its subjects differ: "passed", "failed skipped"."""
    return " ".join(sorted({verdict.outcome.value for verdict in judged(check_id, policy, **facts)}))


def failures(area: str, **facts: Any) -> List[str]:
    """Ids of the checks of an area that fail on a node of which only these sections are known."""
    ids = [id for id in own_checks().checks if id.startswith(area + "/")]
    return [id for id in ids if any(v.outcome.value == "failed" for v in judged(id, **facts))]


def remedy_text(verdict: Verdict) -> str:
    """Everything that a verdict's remedies say, in one text."""
    return "\n".join(line for remedy in verdict.fixes for line in (remedy.title, *map(_line, remedy.steps)))


def _line(step: Step) -> str:
    return " ".join(filter(None, (step.kind, step.name, step.value, step.text)))

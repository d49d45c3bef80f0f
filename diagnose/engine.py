"""The engine: facts in, verdicts out. It never raises for what a node, a check or a plug-in does."""

import datetime
import fnmatch
import traceback
from dataclasses import replace
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from ddp_doctor.config import Config
from ddp_doctor.facts import SECTIONS, NodeFacts, Reason
from ddp_doctor.model import NotKnown, Outcome, Reading, Remedy, Severity, Verdict, Waived
from ddp_doctor.policy import Policy
from ddp_doctor.policy import for_node as policy_for_node
from ddp_doctor.registry import Check, Function

NOT_SAID = Reason("unreadable", "the check could not tell and does not say why")


def judge(facts: NodeFacts, checks: Iterable[Check], config: Config) -> List[Verdict]:
    """Every check's verdicts on one node; checks over a fleet, a log or a benchmark are not for one node's facts."""
    policy = replace(policy_for_node(config.policy, facts.launch), collected_on=_day(facts.collected_at))
    config = replace(config, policy=policy)
    supply = _supply(facts, config.policy)
    return [
        verdict
        for check in checks
        if _is_for(check, supply)
        for verdict in _verdicts(check, facts.name, supply, config)
    ]


def _day(seconds: Optional[float]) -> Optional[datetime.date]:
    """The day (UTC) of a moment in Unix time; None for none, and for one that no calendar has."""
    try:
        return None if seconds is None else datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).date()
    except (ValueError, OverflowError, OSError):
        return None


def _supply(facts: NodeFacts, policy: Policy) -> Dict[str, Any]:
    """Parameter name -> what is given for it; None for a section that could not be read."""
    sections = {name: getattr(facts, name) for name in SECTIONS}
    reasons = {
        name: facts.reasons.get(name) or Reason("not-recorded", f"{name} is not in these facts")
        for name, section in sections.items()
        if section is None
    }
    return {"policy": policy, "reasons": reasons, **sections}


def _is_for(check: Check, supply: Dict[str, Any]) -> bool:
    return all(name in supply for name, required in check.parameters.items() if required)


def _verdicts(check: Check, node: str, supply: Dict[str, Any], config: Config) -> Iterator[Verdict]:
    """Readings made into verdicts, with severity, waiver and remedies."""
    severity = _severity(check, config)
    for reading in _readings(check, supply, config.policy):
        verdict = _verdict(check, node, severity, reading)
        if verdict.outcome is Outcome.FAILED:
            verdict = replace(verdict, waived=_waiver(verdict, config.policy))
            fixes, broken = _remedies(check.fix, verdict, supply)
            verdict = replace(verdict, fixes=fixes)
            if broken:
                yield Verdict(check.id, node, Outcome.BROKEN, severity, reading.subject, reason=broken)
        yield verdict


def _severity(check: Check, config: Config) -> Severity:
    if check.id in config.severity:
        return config.severity[check.id]
    return Severity.NOTE if check.several_nodes and config.policy.nnodes is None else check.severity


def _readings(check: Check, supply: Dict[str, Any], policy: Policy) -> Iterator[Reading]:
    """What the check saw; a reading without verdict and with the reason where it could not look."""
    if check.several_nodes and policy.nnodes == 1:
        yield Reading(ok=None, reason=Reason("not-applicable", "the job has one node"))
        return
    missing = _missing(check, supply)
    if missing:
        yield Reading(ok=None, reason=missing)
        return
    seen = False
    try:
        for reading in check.call(**_arguments(check, supply)):
            seen = True
            if not isinstance(reading, Reading):
                raise TypeError(f"yielded {reading!r}, not a Reading")
            yield reading
    except NotKnown as error:
        seen = True
        yield Reading(ok=None, reason=error.reason)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a check of a plug-in may raise anything
        seen = True
        yield Reading(ok=None, reason=Reason("broken", f"{type(error).__name__}: {error} ({_where(error)})"))
    if not seen:
        yield Reading(ok=None, reason=Reason("not-applicable", "nothing of the kind on this node"))


def _missing(check: Check, supply: Dict[str, Any]) -> Optional[Reason]:
    """Why the check cannot look: the first required section that is not there."""
    for name, required in check.parameters.items():
        if required and supply[name] is None:
            reason: Reason = supply["reasons"][name]
            return reason
    return None


def _arguments(function: Function, supply: Dict[str, Any]) -> Dict[str, Any]:
    return {
        name: supply[name] for name, required in function.parameters.items() if required or supply.get(name) is not None
    }


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"


def _verdict(check: Check, node: str, severity: Severity, reading: Reading) -> Verdict:
    broken = reading.reason is not None and reading.reason.kind == "broken"
    unsure = Outcome.BROKEN if broken else Outcome.SKIPPED
    outcome = unsure if reading.ok is None else Outcome.PASSED if reading.ok else Outcome.FAILED
    return Verdict(
        check=check.id,
        node=node,
        outcome=outcome,
        severity=severity,
        subject=reading.subject,
        measured=reading.measured,
        expected=reading.expected,
        message=(reading.message or check.doc.title) if outcome is Outcome.FAILED else "",
        why=check.doc.why if outcome is Outcome.FAILED else "",
        source=reading.source or (check.doc.see[0] if check.doc.see else ""),
        reason=reading.reason or (NOT_SAID if outcome is Outcome.SKIPPED else None),
    )


def _waiver(verdict: Verdict, policy: Policy) -> Optional[Waived]:
    """The waiver that covers this verdict today, if one does."""
    for waiver in policy.waivers:
        covers = waiver.check == verdict.check and fnmatch.fnmatchcase(verdict.subject, waiver.subject)
        if covers and (waiver.until is None or policy.day <= waiver.until):
            return Waived(waiver.reason, waiver.until.isoformat() if waiver.until else None)
    return None


def _remedies(
    fix: Optional[Function], finding: Verdict, supply: Dict[str, Any]
) -> Tuple[Tuple[Remedy, ...], Optional[Reason]]:
    """The fix's remedies, best first, or why it could not tell."""
    if fix is None or any(
        required and supply.get(name) is None for name, required in fix.parameters.items() if name != "finding"
    ):
        return (), None
    try:
        remedies = tuple(fix.call(**_arguments(fix, {**supply, "finding": finding})))
        if not all(isinstance(remedy, Remedy) for remedy in remedies):
            raise TypeError("yielded something else than a Remedy")
        return remedies, None
    except NotKnown:
        return (), None
    except (Exception, SystemExit) as error:  # noqa: BLE001  a fix of a plug-in may raise anything
        return (), Reason("broken", f"its fix: {type(error).__name__}: {error} ({_where(error)})")


def exit_status(verdicts: Iterable[Verdict], fail_on: Severity, unsure: bool = False) -> int:
    """0 nothing at or above ``fail_on``; 1 something; 3 no verdict possible (a check broken, or ``unsure``)."""
    for verdict in verdicts:
        if verdict.counts and verdict.severity.rank >= fail_on.rank:
            return 1
        unsure = unsure or verdict.outcome is Outcome.BROKEN
    return 3 if unsure else 0

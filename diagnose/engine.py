"""The engine: facts in, verdicts out. It never raises for what a node, a check or a plug-in does."""

import datetime
import fnmatch
import traceback
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import AbstractSet, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from ddp_doctor.cluster.fleet import Fleet
from ddp_doctor.config import Config
from ddp_doctor.facts import SECTIONS, NodeFacts, Reason
from ddp_doctor.model import NotKnown, Outcome, Reading, Remedy, Severity, Verdict, Waived, folded
from ddp_doctor.policy import Policy
from ddp_doctor.policy import for_node as policy_for_node
from ddp_doctor.registry import Check, Function
from ddp_doctor.units import moment
from ddp_doctor.watched import Watched, forget, looked_at

NOT_SAID = Reason("unreadable", "the check could not tell and does not say why")

NOTHING = Reason("not-applicable", "nothing to look at on this node")


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


Batch = Tuple[Verdict, ...]
OF_A_NODE = frozenset((*SECTIONS, "reasons", "policy"))
"""Parameters that one node's facts supply; fleet, log and bench come from elsewhere."""


class Judge:
    """Judges nodes one after another; the verdicts are without their node's name.

    A check is not asked again where all that it looks at is as on the node before, or on one of the last nodes, which is
    seen by the identity of the fields: ``document.Reader`` makes equal ones one object. That is what makes large fleets of
    like nodes cheap.
    """

    def __init__(self, checks: Iterable[Check], config: Config) -> None:
        self._config = config
        groups: Dict[Tuple[str, ...], List[Check]] = {}
        for check in checks:
            asked = {*check.parameters, *(check.fix.parameters if check.fix else ())} & OF_A_NODE
            groups.setdefault(tuple(sorted(asked)), []).append(check)
        self._groups = [_Group(names, members) for names, members in groups.items()]
        self._last: Dict[str, Any] = {}
        """What was supplied for the node before."""
        self._shown: Dict[str, Any] = {}
        """Sections of the node that is judged, as checks are shown them."""
        self._same: Dict[Verdict, Verdict] = {}
        """Verdicts, so that equal ones of many nodes are one object."""

    def batches(self, facts: NodeFacts) -> List[Batch]:
        """Every check's verdicts, in batches that are the very same objects for nodes that are alike."""
        policy = replace(policy_for_node(self._config.policy, facts.launch), collected_on=_day(facts.collected_at))
        config = replace(self._config, policy=policy)
        supply = {**_supply(facts, policy), "terms": _terms(policy)}
        changed = _changed(self._last, supply)
        self._last, self._shown = supply, {}
        return [self._of_group(group, changed, supply, config) for group in self._groups]

    def verdicts(self, facts: NodeFacts) -> List[Verdict]:
        """The same, one by one."""
        return [verdict for batch in self.batches(facts) for verdict in batch]

    def _of_group(self, group: "_Group", changed: "Changed", supply: Dict[str, Any], config: Config) -> Batch:
        """What a group of checks says: the same as of the node before, or else each of them is asked."""
        if not group.touched(changed):
            return group.last
        if group.members:
            answers = [self._of_group(member, changed, supply, config) for member in group.members]
            group.last = tuple(verdict for answer in answers for verdict in answer)
            for member in group.members:
                group.saw(member.looked_at)
        else:
            group.last = self._of_check(group, supply, config)
        return group.last

    def _of_check(self, group: "_Group", supply: Dict[str, Any], config: Config) -> Batch:
        """What the one check of a group says: as of one of the last nodes, or it is asked."""
        known = group.answers.get(group.key(supply))
        if known is not None:
            return known[0]
        check = group.checks[0]
        watched = {name: self._watched(name, supply) for name in group.names}
        verdicts = _verdicts(check, "", {**supply, **watched}, config) if _is_for(check, supply) else ()
        batch = tuple(self._same.setdefault(verdict, verdict) for verdict in verdicts)
        group.saw({name: looked_at(section) for name, section in watched.items()})
        group.remember(batch, supply)
        return batch

    def _watched(self, name: str, supply: Dict[str, Any]) -> Any:
        """A parameter's value; of a section a watched one, the same for all checks of a node, of which nothing is seen yet."""
        if name not in SECTIONS:
            return supply[name]
        if name not in self._shown:
            self._shown[name] = Watched.of(supply[name])
        forget(self._shown[name])
        return self._shown[name]


Changed = Mapping[str, Optional[AbstractSet[str]]]
"""Parameter -> the fields that are others than on the node before; None: all of it."""


def _changed(last: Mapping[str, Any], supply: Mapping[str, Any]) -> Changed:
    found: Dict[str, Optional[AbstractSet[str]]] = {}
    for name in SECTIONS:
        old, new = last.get(name), supply[name]
        if old is None or new is None:
            same = bool(last) and old is new and last["reasons"][name] is supply["reasons"][name]
            found[name] = frozenset() if same else None
        elif old is not new:
            before = old.__dict__
            found[name] = {key for key, value in new.__dict__.items() if before.get(key) is not value}
    for name in ("terms", "reasons"):
        if not last or last[name] != supply[name]:
            found[name] = None
    return found


class _Group:
    """Checks that ask for the same parameters, and what came of the last nodes.

    A check is a pure function: where every field of sections that it ever looked at is the very object of a node before,
    the answer is that node's. ``members``: a group for each of several checks, since one that looks at what differs from
    node to node is no reason to ask the others again.
    """

    def __init__(self, names: Tuple[str, ...], checks: List[Check]) -> None:
        self.names, self.checks = names, checks
        self.members = [_Group(names, [check]) for check in checks] if len(checks) > 1 else []
        self.last: Batch = ()
        self.answers: Dict[Any, Tuple[Batch, Any]] = {}
        self.looked_at: Dict[str, Set[str]] = {name: set() for name in names}
        self._values: Dict[str, Callable[[Any], Tuple[Any, ...]]] = {}

    def touched(self, changed: Changed) -> bool:
        """Is anything that the checks look at another than on the node before?"""
        if "terms" in changed:  # severities depend on it, whether a check asks for it or not
            return True
        for name in self.names:
            if name in changed:
                fields = changed[name]
                if fields is None or not self.looked_at[name].isdisjoint(fields):
                    return True
        return False

    def key(self, supply: Dict[str, Any]) -> Tuple[Any, ...]:
        """What the answer depends on: the identity of each field that was looked at, or of the reason for no section."""
        parts: List[Any] = [supply["terms"]]
        for name in self.names:
            section = supply[name]
            if name == "reasons":
                parts.append(frozenset(section.items()))
            elif section is None:
                parts.append(id(supply["reasons"][name]))
            elif name in self._values:
                parts.extend(map(id, self._values[name](section)))
        return tuple(parts)

    def saw(self, seen: Mapping[str, AbstractSet[str]]) -> None:
        """Fields of sections that the checks looked at: from now on answers depend on them, too."""
        for name, fields in seen.items():
            if not fields <= self.looked_at[name]:
                self.looked_at[name] |= fields
                self._values[name] = _getter(sorted(self.looked_at[name]))
                self.answers.clear()

    def remember(self, batch: Batch, supply: Dict[str, Any]) -> None:
        """Keep an answer with the sections on whose fields it rests, so that these keep their identity."""
        if len(self.answers) >= REMEMBERED:
            del self.answers[next(iter(self.answers))]
        self.answers[self.key(supply)] = (batch, [supply[name] for name in self.names] + [supply["reasons"]])


def _getter(names: List[str]) -> Callable[[Any], Tuple[Any, ...]]:
    """Values of these attributes as a tuple."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda section: (get(section),)


def _terms(policy: Policy) -> Tuple[Any, ...]:
    """What of the policy differs between nodes."""
    return (policy.nnodes, policy.nproc_per_node, policy.launcher, policy.collected_on)


REMEMBERED = 64
"""So many different answers of a group of checks are kept: a fleet has few kinds of nodes, and many unlike sections."""


def judge_fleet(fleet: Fleet, checks: Iterable[Check], config: Config) -> Iterator[Tuple[Verdict, Tuple[str, ...]]]:
    """Verdicts of the checks over a fleet, without node, and the nodes that each holds for; ("",) where it blames none.

    A node without a value of a column that a check asked for is skipped by name, with the column's reason.
    """
    several = len(fleet.nodes) > 1
    policy = replace(config.policy, nnodes=config.policy.nnodes or (len(fleet.nodes) if several else None))
    supply = {"policy": policy, "reasons": {}, "fleet": fleet}
    for check in checks:
        if check.parameters.get("fleet") and _is_for(check, supply) and (several or fleet.good.columns):
            yield from _over_fleet(check, supply, replace(config, policy=policy))


def _over_fleet(check: Check, supply: Dict[str, Any], config: Config) -> Iterator[Tuple[Verdict, Tuple[str, ...]]]:
    fleet: Fleet = supply["fleet"]
    severity = _severity(check, config)
    fleet.asked.clear()
    told = False
    for reading in _readings(check, supply, config.policy):
        if reading.reason == NOTHING:
            break
        told = True
        for verdict in _of_reading(check, "", severity, reading, supply, config):
            yield verdict, reading.nodes or ("",)
    without = fleet.without()
    for reason, nodes in _by_reason(without).items():
        yield _verdict(check, "", severity, Reading(ok=None, reason=reason)), nodes
    if not told and not without:
        yield _verdict(check, "", severity, Reading(ok=None, reason=NOTHING)), ("",)


def _by_reason(without: Mapping[str, Reason]) -> Dict[Reason, Tuple[str, ...]]:
    found: Dict[Reason, List[str]] = {}
    for node, reason in without.items():
        found.setdefault(reason, []).append(node)
    return {reason: tuple(nodes) for reason, nodes in found.items()}


def _day(seconds: Optional[float]) -> Optional[datetime.date]:
    """The day (UTC) of a moment in Unix time; None for none, and for one that no calendar has."""
    found = None if seconds is None else moment(seconds)
    return found.date() if found else None


def _supply(facts: NodeFacts, policy: Policy) -> Dict[str, Any]:
    """Parameter name -> what is given for it; None for a section that could not be read."""
    sections = {name: getattr(facts, name) for name in SECTIONS}
    reasons = {
        name: facts.reasons.get(name) or _not_recorded(name) for name, section in sections.items() if section is None
    }
    return {"policy": policy, "reasons": reasons, **sections}


@lru_cache(maxsize=None)
def _not_recorded(name: str) -> Reason:
    return Reason("not-recorded", f"{name} is not in these facts")


def _is_for(check: Check, supply: Dict[str, Any]) -> bool:
    return all(name in supply for name, required in check.parameters.items() if required)


def _verdicts(check: Check, node: str, supply: Dict[str, Any], config: Config) -> Iterator[Verdict]:
    """Readings made into verdicts, with severity, waiver and remedies."""
    severity = _severity(check, config)
    for reading in _readings(check, supply, config.policy):
        yield from _of_reading(check, node, severity, reading, supply, config)


def _of_reading(
    check: Check, node: str, severity: Severity, reading: Reading, supply: Dict[str, Any], config: Config
) -> Iterator[Verdict]:
    """The verdict of a reading; before it, where the fix could not tell, that this is broken."""
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
        yield Reading(ok=None, reason=NOTHING)


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
    for verdict in folded(verdicts):
        if verdict.counts and verdict.severity.rank >= fail_on.rank:
            return 1
        unsure = unsure or verdict.outcome is Outcome.BROKEN
    return 3 if unsure else 0

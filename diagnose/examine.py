"""Examining: from this node, from facts or from a recording to one report."""

import os
from dataclasses import dataclass, replace
from typing import Any, Iterable, Iterator, List, Optional, Tuple

from ddp_doctor import __version__, collect, document, engine, registry, summary
from ddp_doctor.ask import Ask
from ddp_doctor.config import Config
from ddp_doctor.facts import SECTIONS, NodeFacts, Reason
from ddp_doctor.host import Host
from ddp_doctor.model import REPORT_SCHEMA_VERSION, Report, Tool, Verdict
from ddp_doctor.registry import Check, Registry

OUT_OF_SCOPE = {
    "node": ("limits", "env", "launch", "torch", "cuda", "ssh", "logins"),
    "job": ("ssh", "logins"),
    "user": (),
}
"""Sections that say nothing about what is judged: a prolog's limits and environment are root's, not the job's."""


@dataclass(frozen=True)
class Remarks:
    """What the report says of the examination itself."""

    lines: Tuple[str, ...] = ()
    interrupted: bool = False


def sections_in(scope: str) -> Tuple[str, ...]:
    """The sections to collect for a scope: node, job or user."""
    return tuple(name for name in SECTIONS if name not in OUT_OF_SCOPE[scope])


def this_node(host: Host, ask: Ask, scope: str, deadline_s: Optional[float]) -> NodeFacts:
    """Collect and read the facts behind ``host``."""
    return document.facts_from(collect.gather(host, ask, deadline_s, sections_in(scope)))


def in_scope(facts: NodeFacts, scope: str) -> NodeFacts:
    """Facts without the sections that are out of scope, for judging facts that were collected earlier."""
    out = dict.fromkeys(OUT_OF_SCOPE[scope])
    why = {name: Reason("not-asked", f"--scope {scope} does not judge it") for name in out}
    changes: Any = {**out, "reasons": {**facts.reasons, **why}}
    return replace(facts, **changes)


def report(nodes: Iterable[NodeFacts], checks: List[Check], loaded: Registry, config: Config) -> Report:
    """Judge nodes one by one and sum up."""
    verdicts: List[Verdict] = []
    seen: List[NodeFacts] = []
    for facts in nodes:
        seen.append(facts)
        verdicts.extend(engine.judge(in_scope(facts, config.policy.scope), checks, config))
    verdicts.extend(_plugin_verdicts(loaded))
    status = engine.exit_status(verdicts, config.fail_on, unsure=any(_interrupted(f) for f in seen) or not verdicts)
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        tool=Tool("ddp-doctor", __version__),
        nodes=tuple(summary.node(facts) for facts in seen),
        verdicts=tuple(verdicts),
        summary=summary.summarise(seen, verdicts, config.policy, status, tuple(_remarks(seen, config))),
    )


def _plugin_verdicts(loaded: Registry) -> Iterator[Verdict]:
    """A plug-in that could not be loaded is a check that is broken: it may have found something."""
    from ddp_doctor.model import Outcome, Severity

    for name, error in loaded.failed_plugins.items():
        reason = Reason("broken", f"plug-in {name} could not be loaded: {error}")
        yield Verdict("plugin/not-loaded", "", Outcome.BROKEN, Severity.WARNING, subject=name, reason=reason)


def _interrupted(facts: NodeFacts) -> bool:
    return any(reason.kind == "interrupted" for reason in facts.reasons.values())


def _remarks(nodes: List[NodeFacts], config: Config) -> Iterator[str]:
    if config.source:
        yield f"configuration: {config.source}"
    for facts in nodes:
        for left in facts.left_behind:
            yield f"{facts.name}: left behind: {left}"


def read_saved(paths: Iterable[str]) -> Tuple[List[NodeFacts], List[Report]]:
    """Facts and reports from files and folders of them. Raises BadDocument, which names the file."""
    facts: List[NodeFacts] = []
    reports: List[Report] = []
    for path in (file for given in paths for file in _files(given)):
        try:
            with open(path, "rb") as file:
                plain = document.plain_from(file.read())
            if document.is_report(plain):
                reports.append(document.report_from(plain))
            else:
                facts.append(document.facts_from(plain))
        except OSError as error:
            raise document.BadDocument(f"{path}: {error.strerror}") from None
        except document.BadDocument as error:
            raise document.BadDocument(f"{path}: {error}") from None
    return facts, reports


def _files(path: str) -> List[str]:
    if not os.path.isdir(path):
        return [path]
    found = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".json"))
    if not found:
        raise document.BadDocument(f"{path}: no .json file in this folder")
    return found


def selected(loaded: Registry, config: Config) -> List[Check]:
    """The checks that the configuration chooses. Raises UnknownCheck for a prefix that covers none."""
    for prefix in (*config.select, *config.ignore):
        if not registry.select(loaded, [prefix]):
            raise registry.UnknownCheck(prefix, list(loaded.checks))
    return registry.select(loaded, config.select, config.ignore)

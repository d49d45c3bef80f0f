"""Examining: from this node, from facts or from a recording to one report."""

import os
from dataclasses import replace
from typing import Dict, Iterable, Iterator, List, Optional, Set, Union

from ddp_doctor import __version__, document, engine, given, importers, summary
from ddp_doctor.cluster.fleet import Fleet
from ddp_doctor.cluster.reached import Reached, Unreachable
from ddp_doctor.config import Config
from ddp_doctor.facts import NodeFacts, Reason
from ddp_doctor.model import REPORT_SCHEMA_VERSION, Outcome, Report, Severity, Tool, Verdict, Verdicts
from ddp_doctor.registry import Check, Registry
from ddp_doctor.scope import in_scope

_MOOT = ("not-applicable", "not-asked")
FILE_LIMIT_BYTES = 512 * 2**20
"""A report on 10,000 nodes of 30 kB each (DESIGN 7) is 300 MB; what is longer, or never ends, is not read into memory."""


def report(
    nodes: Iterable[Reached],
    checks: List[Check],
    loaded: Registry,
    config: Config,
    examined: Optional[int] = None,
    fleet: Optional[Fleet] = None,
) -> Report:
    """Judge nodes one by one as they come, then the fleet, and sum up.

    examined: how many nodes there are, where it is known before they come. fleet: an empty one to be fed, with the good
    day that it is held against.
    """
    fleet = Fleet(partitions=config.policy.partitions) if fleet is None else fleet
    policy = replace(config.policy, examined=examined)
    judge = engine.Judge(checks, replace(config, policy=policy))
    verdicts, seen, entries = Verdicts(), summary.Seen(), []
    for found in _distinct(nodes):
        if isinstance(found, Unreachable):
            seen.miss(found)
            entries.append(summary.unreachable(found))
            continue
        facts = in_scope(found, policy.scope)
        seen.add(facts)
        fleet.add(facts)
        entries.append(summary.node(facts))
        verdicts.add_batches(facts.name, judge.batches(facts))
    for verdict, names in engine.judge_fleet(fleet, checks, config):
        verdicts.add(verdict, names)
    for verdict in _plugin_verdicts(loaded):
        verdicts.add(verdict, ("",))
    remarks = (f"configuration: {config.source}",) if config.source else ()
    blind = bool(seen.unreachable or seen.lost)
    unsure = blind or bool(summary.cut_short(seen, verdicts)) or _saw_nothing(verdicts)
    status = engine.exit_status(verdicts, config.fail_on, unsure)
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        tool=Tool("ddp-doctor", __version__),
        nodes=tuple(entries),
        verdicts=verdicts,
        summary=summary.summarise(seen, verdicts, config.policy, status, remarks),
    )


def _distinct(nodes: Iterable[Reached]) -> Iterator[Reached]:
    """Nodes under names of their own: a name that was there already gets a number, and fleet checks say what that means."""
    times: Dict[str, int] = {}
    for facts in nodes:
        times[facts.name] = times.get(facts.name, 0) + 1
        number = times[facts.name]
        yield facts if number == 1 else replace(facts, name=f"{facts.name} ({number})")


def _plugin_verdicts(loaded: Registry) -> Iterator[Verdict]:
    """A plug-in that could not be loaded is a check that is broken: it may have found something."""
    for name, error in loaded.failed_plugins.items():
        reason = Reason("broken", f"plug-in {name} could not be loaded: {error}")
        yield Verdict("plugin/not-loaded", "", Outcome.BROKEN, Severity.WARNING, subject=name, reason=reason)


def _saw_nothing(verdicts: Verdicts) -> bool:
    """Was nothing judged, though not because nothing applies or was asked?"""
    judged = any(verdict.outcome in (Outcome.PASSED, Outcome.FAILED) for verdict in verdicts.nodes)
    moot = verdicts.nodes and all(verdict.reason and verdict.reason.kind in _MOOT for verdict in verdicts.nodes)
    return not judged and not moot


def read_saved(files: Iterable[str]) -> Iterator[Union[NodeFacts, Report]]:
    """Facts and reports from files, one by one as they are asked for. Raises BadDocument, which names the file."""
    reader = document.Reader()
    names: Set[str] = set()
    for path in files:
        try:
            found = _document(given.content(path, FILE_LIMIT_BYTES), _name(path, names), reader)
        except OSError as error:
            raise document.BadDocument(f"{path}: {error.strerror}") from None
        except (document.BadDocument, importers.BadReport) as error:
            raise document.BadDocument(f"{path}: {error}") from None
        if isinstance(found, NodeFacts):
            names.add(found.name)
        yield found


def _document(content: bytes, name: str, reader: document.Reader) -> Union[NodeFacts, Report]:
    """One file's facts or report; what is not JSON may be another tool's report of the node ``name``."""
    facts = reader.facts(content)
    if facts is not None:
        return facts
    try:
        plain = document.plain_from(content)
    except document.BadDocument as error:
        imported = importers.facts(content, name)
        if imported is None:
            raise document.BadDocument(f"{error}; nor {importers.titles()}") from None
        return imported
    return document.report_from(plain) if document.is_report(plain) else document.facts_from(plain)


def _name(path: str, others: Set[str]) -> str:
    """A report of another tool names no node: it is called like its file, by the whole path where that is taken."""
    name = os.path.splitext(os.path.basename(path))[0]
    return path if name in others else name


def files(paths: Iterable[str]) -> List[str]:
    """The files in question: those given, and those in folders that were given. Raises BadDocument."""
    return [file for place in paths for file in _files(place)]


def _files(path: str) -> List[str]:
    if not os.path.isdir(path):
        return [path]
    found = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith((".json", ".xml")))
    if not found:
        raise document.BadDocument(f"{path}: no .json or .xml file in this folder")
    return found

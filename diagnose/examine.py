"""Examining: from this node, from facts or from a recording to one report."""

import os
from typing import Iterable, Iterator, List, Tuple, Union

from ddp_doctor import __version__, document, engine, given, importers, summary
from ddp_doctor.config import Config
from ddp_doctor.facts import NodeFacts, Reason
from ddp_doctor.model import REPORT_SCHEMA_VERSION, Outcome, Report, Severity, Tool, Verdict
from ddp_doctor.registry import Check, Registry
from ddp_doctor.scope import in_scope

_MOOT = ("not-applicable", "not-asked")
FILE_LIMIT_BYTES = 512 * 2**20
"""A report on 10,000 nodes of 30 kB each (DESIGN 7) is 300 MB; what is longer, or never ends, is not read into memory."""


def report(nodes: Iterable[NodeFacts], checks: List[Check], loaded: Registry, config: Config) -> Report:
    """Judge nodes one by one and sum up."""
    verdicts: List[Verdict] = []
    seen: List[NodeFacts] = []
    for facts in nodes:
        seen.append(facts)
        verdicts.extend(engine.judge(in_scope(facts, config.policy.scope), checks, config))
    verdicts.extend(_plugin_verdicts(loaded))
    remarks = (f"configuration: {config.source}",) if config.source else ()
    unsure = bool(summary.cut_short(seen, verdicts)) or _saw_nothing(verdicts)
    status = engine.exit_status(verdicts, config.fail_on, unsure)
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        tool=Tool("ddp-doctor", __version__),
        nodes=tuple(summary.node(facts) for facts in seen),
        verdicts=tuple(verdicts),
        summary=summary.summarise(seen, verdicts, config.policy, status, remarks),
    )


def _plugin_verdicts(loaded: Registry) -> Iterator[Verdict]:
    """A plug-in that could not be loaded is a check that is broken: it may have found something."""
    for name, error in loaded.failed_plugins.items():
        reason = Reason("broken", f"plug-in {name} could not be loaded: {error}")
        yield Verdict("plugin/not-loaded", "", Outcome.BROKEN, Severity.WARNING, subject=name, reason=reason)


def _saw_nothing(verdicts: List[Verdict]) -> bool:
    """Was nothing judged, though not because nothing applies or was asked?"""
    judged = any(verdict.outcome in (Outcome.PASSED, Outcome.FAILED) for verdict in verdicts)
    moot = verdicts and all(verdict.reason and verdict.reason.kind in _MOOT for verdict in verdicts)
    return not judged and not moot


def read_saved(paths: Iterable[str]) -> Tuple[List[NodeFacts], List[Report]]:
    """Facts and reports from files and folders of them. Raises BadDocument, which names the file."""
    facts: List[NodeFacts] = []
    reports: List[Report] = []
    for path in (file for place in paths for file in _files(place)):
        try:
            found = _document(given.content(path, FILE_LIMIT_BYTES), _name(path, facts))
        except OSError as error:
            raise document.BadDocument(f"{path}: {error.strerror}") from None
        except (document.BadDocument, importers.BadReport) as error:
            raise document.BadDocument(f"{path}: {error}") from None
        if isinstance(found, Report):
            reports.append(found)
        else:
            facts.append(found)
    return facts, reports


def _document(content: bytes, name: str) -> Union[NodeFacts, Report]:
    """One file's facts or report; what is not JSON may be another tool's report of the node ``name``."""
    try:
        plain = document.plain_from(content)
    except document.BadDocument as error:
        imported = importers.facts(content, name)
        if imported is None:
            raise document.BadDocument(f"{error}; nor {importers.titles()}") from None
        return imported
    return document.report_from(plain) if document.is_report(plain) else document.facts_from(plain)


def _name(path: str, others: List[NodeFacts]) -> str:
    """A report of another tool names no node: it is called like its file, by the whole path where that is taken."""
    name = os.path.splitext(os.path.basename(path))[0]
    return path if any(facts.name == name for facts in others) else name


def _files(path: str) -> List[str]:
    if not os.path.isdir(path):
        return [path]
    found = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith((".json", ".xml")))
    if not found:
        raise document.BadDocument(f"{path}: no .json or .xml file in this folder")
    return found

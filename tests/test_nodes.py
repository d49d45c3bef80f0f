"""Whole nodes through the whole house: recording, facts, verdicts, remedies, reports.

Each folder of tests/nodes/ is a node: ``node.toml`` describes it (see nodes/machine.py), ``[expected]`` in it is what a
person demands, and the goldens beside it, written by ``--rewrite-goldens`` and then read, hold every word.
"""

import datetime
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from ddp_doctor import collect, config, document, examine, registry, report
from ddp_doctor.ask import Ask
from ddp_doctor.facts import SECTIONS
from ddp_doctor.model import Outcome
from ddp_doctor.recording import open_recording
from nodes import machine

NODES = sorted(path.parent for path in (Path(__file__).parent / "nodes").glob("*/node.toml"))
DAY = datetime.date(2025, 6, 15)
CHECKS = registry.load(plugins=False)


@pytest.fixture(params=NODES, ids=lambda folder: folder.name, scope="module")
def node(request, tmp_path_factory):
    """(folder, description, facts as plain data, report) of one node."""
    folder = request.param
    described = machine.describe(folder)
    recording = tmp_path_factory.mktemp("recording") / folder.name
    machine.write(described, recording)
    plain = collect.gather(open_recording(str(recording)), Ask(**described["ask"]))
    settled = settle(plain)
    facts = document.facts_from(settled)
    judging = configuration(described)
    return (
        folder,
        described["expected"],
        settled,
        examine.report([facts], registry.chosen(CHECKS, (), ()), CHECKS, judging),
    )


def settle(plain):
    """What depends on the machine and the version that replays, made the same everywhere."""
    how = {**plain["how"], "python": "3.10.12", "tool_version": "0.1.0"}
    return {**plain, "how": how, "duration_s": 0.25}


def configuration(described):
    """The stock configuration, or that of an example file, with the options of the run and the day of the nodes."""
    path = described.get("config")
    found = config.load(str(Path(__file__).parent.parent / path) if path else None)
    given = {name: described["ask"].get(name) for name in ("nnodes", "nproc_per_node", "launcher")}
    return replace(found, source=path or "", policy=replace(found.policy, today=DAY, **given))


def test_what_a_person_expects(node):
    _, expected, _, judged = node
    failed = {v.check: v.severity.value for v in judged.verdicts if v.outcome is Outcome.FAILED}
    assert failed == expected["failed"]
    assert judged.summary.headline == expected["headline"]
    assert judged.summary.exit_status == expected["exit_status"]
    passed = {v.check for v in judged.verdicts if v.outcome is Outcome.PASSED}
    assert set(expected["passed"]) - passed == set()


def test_nothing_crashes(node):
    _, _, facts, judged = node
    assert {
        name: reason for name, reason in facts["reasons"].items() if reason["kind"] in ("crashed", "timed-out")
    } == {}
    assert {name for name in SECTIONS if facts.get(name) is None} == set(facts["reasons"])
    assert [v.check for v in judged.verdicts if v.outcome is Outcome.BROKEN] == []


def test_facts(node, golden):
    folder, _, facts, _ = node
    golden(json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False) + "\n", str(folder / "facts.json"))


def test_report(node, golden):
    folder, _, _, judged = node
    golden(report.render("table", judged, report.Options(width=100)), str(folder / "report.txt"))


def test_verdicts(node, golden):
    folder, _, _, judged = node
    golden("".join(sorted(map(line, judged.verdicts))), str(folder / "verdicts.txt"))


def line(verdict):
    """One line for what a check found."""
    outcome = verdict.severity.value if verdict.outcome is Outcome.FAILED else verdict.outcome.value
    said = [verdict.reason.text] if verdict.reason else [verdict.measured, verdict.expected]
    return f"{outcome:8}{verdict.check}{f' [{verdict.subject}]' if verdict.subject else ''}: {' | '.join(said)}\n"


def test_every_format(node):
    _, _, _, judged = node
    schema = json.loads((Path(report.__file__).parent / "schema.json").read_text())
    jsonschema.validate(json.loads(report.render("json", judged)), schema)
    for kind in report.formats():
        assert judged.nodes[0].name in report.render(kind, judged)

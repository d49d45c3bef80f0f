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
    return (folder, described["expected"], *examined(open_recording(str(recording)), described))


def examined(recording, described):
    """(facts as plain data, report) of what is behind a recording, by the options in [ask]."""
    plain = settle(collect.gather(recording, Ask(**described["ask"])))
    checks = registry.chosen(CHECKS, (), ())
    return plain, examine.report([document.facts_from(plain)], checks, CHECKS, configuration(described))


def settle(plain):
    """What depends on the machine and the version that replays, made the same everywhere."""
    how = {**plain["how"], "tool_version": "0.1.0"}
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
    assert_sound(facts, judged)


def assert_sound(facts, judged):
    """No section crashed, no check broke, and what is not known has a reason."""
    assert {name: reason for name, reason in facts["reasons"].items() if reason["kind"] == "crashed"} == {}
    assert {name for name in SECTIONS if facts.get(name) is None} == set(facts["reasons"])
    assert [v.check for v in judged.verdicts if v.outcome is Outcome.BROKEN] == []
    sections = {name: facts[name] for name in SECTIONS if facts.get(name)}
    assert [f"{name}.{path}" for name, section in sections.items() for path in unexplained(section)] == []


NOTHING_WRONG = ("nvml_error", "fault", "import_error", "import_failure", "cuda_error", "cuda_init_code", "error")
"""Fields in which None says that all is well."""


def unexplained(plain):
    """Fields that are None and have no reason, in a section and in what it holds."""
    known = plain.keys() if isinstance(plain, dict) and "unread" in plain else ()
    for name in known:
        if plain[name] is None and name not in plain["unread"] and name not in NOTHING_WRONG:
            yield name
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for name, value in inner:
        yield from (f"{name}.{path}" for path in unexplained(value))


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


CAPTURES = Path(__file__).parent.parent.parent / "shared" / "captures"
GRAFTS = [
    ("1-infiniband-sysfs/gpud-h100", "/sys/class/infiniband", "9 InfiniBand and RoCE ports at 200 to 400 Gb/s"),
    ("1-infiniband-sysfs/node_exporter/sys/class/infiniband", "/sys/class/infiniband", "NCCL will use"),
    ("1-infiniband-sysfs/procfs/sys/class/infiniband", "/sys/class/infiniband", "NCCL will use"),
    ("1-infiniband-sysfs/rdma_exporter/efa/class/infiniband", "/sys/class/infiniband", "NCCL will use"),
    ("5-host/procfs-fixtures/proc", "/proc", "8 InfiniBand ports at 400 Gb/s"),
    ("5-host/node_exporter/proc", "/proc", "8 InfiniBand ports at 400 Gb/s"),
    ("5-host/node_exporter/sys", "/sys", "8 InfiniBand ports at 400 Gb/s"),
]
"""A captured tree, where it stands on the node that it is grafted on, and what the headline then says."""


NOTES = {"rdma/link-layers-mixed", "rdma/few-ports-for-gpus", "rates/rdma-link-downed-often"}
"""True of a graft: adapters of another machine, and what they counted, under a node with eight GPUs that is up for ten days."""


@pytest.mark.parametrize(("tree", "place", "says"), GRAFTS, ids=[graft[0] for graft in GRAFTS])
def test_a_captured_tree_in_a_healthy_node(tree, place, says, tmp_path):
    if not (CAPTURES / tree).is_dir():
        pytest.skip(f"no captures here: {CAPTURES / tree}")
    described = machine.describe(Path(__file__).parent / "nodes" / "h100-infiniband")
    if "infiniband" in place:
        names = sorted(path.name for path in (CAPTURES / tree).iterdir())
        described.update(hca=[], env={**described["env"], "NCCL_IB_HCA": "^none"}, **with_devices(names))
    machine.write(described, tmp_path)
    for file in (path for path in (CAPTURES / tree).rglob("*") if path.is_file()):
        target = tmp_path / "root" / place.lstrip("/") / file.relative_to(CAPTURES / tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    facts, judged = examined(open_recording(str(tmp_path)), described)
    assert_sound(facts, judged)
    failed = [v for v in judged.verdicts if v.outcome is Outcome.FAILED]
    assert {v.check for v in failed} <= NOTES
    assert {v.severity.value for v in failed} <= {"note"}
    assert says in judged.summary.headline


def with_devices(names):
    """The captures of adapters lack what makes them usable: the devices of ib_uverbs."""
    nodes = {f"/dev/infiniband/uverbs{number}": "0666" for number in range(len(names))}
    verbs = {
        f"/sys/class/infiniband/{name}/device/infiniband_verbs/uverbs{number}/dev": "231:192\n"
        for number, name in enumerate(names)
    }
    return {"devices": nodes, "files": verbs}

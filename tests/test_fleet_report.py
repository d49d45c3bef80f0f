"""Several nodes in one report: judged as a stream, folded, with the fleet's own findings."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_doctor import document, engine, examine
from ddp_doctor import report as reports
from ddp_doctor.config import Config, load
from ddp_doctor.facts import SECTIONS, Env, LoadedLibrary, to_plain
from ddp_doctor.model import Verdicts, folded
from ddp_doctor.watched import Watched, looked_at
from fleets import node
from judging import own_checks
from running import doctor

CHECKS = list(own_checks().checks.values())


def odd(facts):
    return replace(facts, torch=replace(facts.torch, nccl_loaded=LoadedLibrary("/y", "2.19.3")))


def report(nodes, checks=CHECKS, **more):
    return examine.report(nodes, checks, own_checks(), Config(), **more)


@pytest.fixture
def saved(tmp_path):
    for facts in [*(node(n) for n in range(1, 6)), odd(node(6))]:
        (tmp_path / f"{facts.name}.json").write_text(json.dumps(to_plain(facts)))
    return tmp_path


def test_the_odd_node_stands_beside_the_folded_others(saved):
    done = doctor("run", "--facts", ".", "--select", "fleet", "-v", cwd=saved)
    assert done.returncode == 1
    assert done.stdout.startswith("Not ready: 1 thing to fix on 1 of 6 nodes.")
    assert "6 nodes      gpu[01-06]" in done.stdout
    assert "on        gpu06" in done.stdout
    assert "expected  NCCL 2.21.5, as on gpu[01-05]" in done.stdout
    assert "fleet/nccl-differs on 5 of 6 nodes: gpu[01-05]: NCCL 2.21.5" in done.stdout


def test_every_format_takes_a_fleet_and_json_reads_back(saved):
    found = report([node(1), node(2), odd(node(3)), odd(node(4))])
    texts = {name: reports.render(name, found) for name in reports.formats()}
    assert "nodes differ, and none is odd" in texts["table"]
    assert 'testsuite name="all nodes"' in texts["junit"]
    read = document.report_from(document.plain_from(texts["json"].encode()))
    assert read.verdicts == tuple(found.verdicts)
    assert folded(read.verdicts) == folded(found.verdicts)
    assert "NOT READY 4 nodes: fleet/nccl-differs" in texts["brief"]


def test_nobody_is_blamed_where_there_is_no_majority():
    found = report([node(1), odd(node(2))], [own_checks().checks["fleet/nccl-differs"]])
    assert found.summary.headline.startswith("Not ready: 1 thing to fix between the nodes.")
    assert [v.node for v in found.verdicts if v.check == "fleet/nccl-differs"] == [""]


def test_several_nodes_are_a_job_of_so_many_where_nothing_else_says():
    def severities(found):
        return {v.severity.value for v in found.verdicts if v.check == "time/not-synchronised"}

    unsynchronised = [replace(node(n), time=replace(node(n).time, synchronised=False)) for n in (1, 2)]
    assert severities(report(unsynchronised[:1], examined=1)) == {"note"}
    assert severities(report(unsynchronised, examined=2)) == {"warning"}
    alone = [replace(f, launch=replace(f.launch, nnodes=1)) for f in unsynchronised]
    assert {v.outcome.value for v in report(alone, examined=2).verdicts if v.check == "time/not-synchronised"} == {"skipped"}  # fmt: skip


def test_the_same_name_twice_is_two_nodes():
    found = report([node(1), node(1)])
    assert [n.name for n in found.nodes] == ["gpu01", "gpu01 (2)"]
    assert {v.node for v in found.verdicts if v.check == "fleet/same-machine-twice"} == {"gpu01", "gpu01 (2)"}


def test_nodes_judged_one_after_another_are_judged_as_each_alone():
    """What was seen before is not judged again, and nothing else comes of it."""
    nodes = [node(1), node(2), odd(node(3)), replace(node(4), torch=None), replace(node(5), env=None, collected_at=9e8)]
    reader = document.Reader()
    read = [reader.facts(json.dumps(to_plain(facts)).encode()) for facts in nodes]
    judge = engine.Judge(CHECKS, Config())
    for facts in [*read, *read]:
        alone = {replace(v, node="") for v in engine.judge(facts, CHECKS, Config())}
        assert set(judge.verdicts(facts)) == alone
        assert len(judge.verdicts(facts)) >= len(alone)
    assert read[0].torch is read[1].torch
    assert read[0].torch is not read[2].torch
    assert read[0].os.kernel is read[1].os.kernel


CAPTURED = sorted((Path(__file__).parent / "nodes").glob("*/facts.json"))


@pytest.mark.parametrize("seed", range(4))
def test_fields_of_many_nodes_mixed_give_the_verdicts_of_each_alone(seed):
    """Nodes made of fields of captured ones, so that some fields are as before and others are not."""
    dice, plain = random.Random(seed), [json.loads(path.read_text()) for path in CAPTURED]
    reader, judge = document.Reader(), engine.Judge(CHECKS, Config())
    for number in range(6):
        mixed = {**dice.choice(plain), "name": f"n{number}"}
        for section in [name for name in SECTIONS if isinstance(mixed.get(name), dict) and dice.random() < 0.6]:
            other = dice.choice(plain).get(section) or {}
            mixed[section] = {k: v if dice.random() < 0.7 else other.get(k, v) for k, v in mixed[section].items()}
        facts = reader.facts(json.dumps(mixed).encode())
        assert facts == document.facts_from(mixed)
        assert set(judge.verdicts(facts)) == {replace(v, node="") for v in engine.judge(facts, CHECKS, Config())}


def test_a_watched_section_is_like_the_section_and_tells_what_was_looked_at():
    section = node(1).env
    watched = Watched.of(section)
    assert looked_at(watched) == frozenset()
    assert isinstance(watched, Env)
    assert watched.get("NCCL_DEBUG") == "INFO"
    assert looked_at(watched) == {"variables"}
    assert (type(watched).__name__, Watched.of(None), looked_at(None)) == ("Env", None, frozenset())


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"{}", b'{"name": "a", "schema_version": 99}', b'{"name": "a", "schema_version": 1, "os": 7}'],
)
def test_what_the_fast_reader_cannot_take_is_left_to_the_one_that_names_the_fault(content):
    assert document.Reader().facts(content) is None


def test_the_fast_reader_reads_what_the_other_reads():
    plain = to_plain(odd(node(1, collected_at=5.0, left_behind=("pid 7",))))
    assert document.Reader().facts(json.dumps(plain).encode()) == document.facts_from(plain)


def test_verdicts_fold_and_unfold():
    (verdict, *_) = engine.judge(node(1), CHECKS[:1], Config())
    found = Verdicts()
    plain = replace(verdict, node="")
    found.add(plain, ("a", "b"))
    found.add(replace(plain), ("c",))
    found.add(replace(plain, subject="x"), ("a",))
    assert [(v.node, v.subject) for v in found] == [("a", ""), ("b", ""), ("c", ""), ("a", "x")]
    assert len(found) == 4
    assert list(folded(list(found)).values()) == list(found.nodes.values()) == [["a", "b", "c"], ["a"]]


def test_numbers_that_differ_on_every_node_are_one_finding(saved):
    nodes = [replace(node(n), limits=replace(node(n).limits, memlock_bytes=replace(node(n).limits.memlock_bytes, soft=1024 * n))) for n in range(1, 6)]  # fmt: skip
    found = report(nodes, [own_checks().checks["limits/memlock-too-low"]], examined=5)
    text = reports.render("table", found)
    assert text.count("[limits/memlock-too-low]") == 1
    assert "5 of 5 nodes: gpu[01-05]" in text
    assert "as on gpu01; measured values or remedies of the others differ" in " ".join(text.split())
    each = reports.render("table", found, reports.Options(verbose=True))
    assert each.count("[limits/memlock-too-low]") == 5


def test_a_saved_report_among_facts_is_refused(saved):
    (saved / "z.json").write_text(doctor("run", "--facts", "gpu01.json", "--json", cwd=saved).stdout)
    done = doctor("run", "--facts", ".", cwd=saved)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a saved report is printed alone" in done.stderr


def test_a_good_day_is_kept_and_later_runs_are_held_against_it(saved):
    assert doctor("run", "--facts", *(f"gpu0{n}.json" for n in range(1, 5)), "--save-baseline", "good", cwd=saved)
    done = doctor("run", "--facts", "gpu06.json", "--select", "fleet/nccl", "--baseline", "good", cwd=saved)
    assert done.returncode == 0, "one node, of which nothing says that it belongs to a job of several"
    assert "NCCL 2.21.5, as in the baseline of " in done.stdout
    several = doctor(
        "run", "--facts", "gpu05.json", "gpu06.json", "--select", "fleet/nccl", "--baseline", "good", cwd=saved
    )
    assert several.returncode == 1
    assert "on 1 of 2 nodes" in several.stdout
    bad = doctor("run", "--facts", "gpu06.json", "--baseline", "gpu01.json", cwd=saved)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "gpu01.json: not a baseline" in bad.stderr
    (saved / "r.json").write_text(doctor("run", "--facts", "gpu01.json", "--json", cwd=saved).stdout)
    empty = doctor("run", "--facts", "r.json", "--save-baseline", "other", cwd=saved)
    assert empty.returncode == 2
    assert not (saved / "other").exists()


def test_partitions_are_a_key_of_the_policy(tmp_path):
    path = tmp_path / "ddp-doctor.toml"
    path.write_text('[policy.partitions]\na100 = ["gpu[01-04]", "old-*"]\n')
    assert load(str(path)).policy.partitions == {"a100": ("gpu[01-04]", "old-*")}

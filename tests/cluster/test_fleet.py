"""The fleet: columns of small values, what a good day was like, partitions."""

import json
from dataclasses import fields, replace

import pytest
from ddp_doctor import document
from ddp_doctor.cluster import baseline, columns
from ddp_doctor.cluster.fleet import Fleet, GoodDay, matches
from ddp_doctor.facts import SECTIONS, Env, Gpus, NodeFacts, Os, Rdma, Torch, Variable
from fleets import fleet_of, node
from hypothesis import given
from hypothesis import strategies as st


def test_a_column_holds_values_by_node_and_why_others_have_none():
    fleet = fleet_of([node(1), replace(node(2), torch=None), node(3)])
    assert fleet.torch.values == {"gpu01": "2.6.0+cu124", "gpu03": "2.6.0+cu124"}
    assert fleet.torch.without["gpu02"].kind == "not-recorded"
    assert fleet.torch.values["gpu01"] is fleet.torch.values["gpu03"]


def test_a_misspelt_column_is_a_defect_that_names_those_there_are():
    with pytest.raises(AttributeError, match="no column 'trch'; there are: torch, cuda"):
        _ = Fleet().trch


def test_what_was_asked_for_says_which_nodes_are_skipped():
    fleet = fleet_of([node(1), replace(node(2), torch=None)])
    assert fleet.without() == {}
    assert fleet.kernel.values
    assert fleet.without() == {}
    assert fleet.torch.values
    assert list(fleet.without()) == ["gpu02"]


@pytest.mark.parametrize("name", sorted(columns.readers()))
def test_each_column_has_a_small_hashable_value_of_a_healthy_node(name):
    with_all = [node(n) for n in (1, 2)]
    column = getattr(fleet_of(with_all), name)
    assert {**column.values, **column.without}.keys() == {"gpu01", "gpu02"}
    assert all(len(repr(value)) < 400 for value in column.values.values())
    assert len({hash(value) for value in column.values.values()}) <= 2
    assert all(reason.kind != "broken" for reason in column.without.values())


HOLLOW = [
    NodeFacts("empty"),
    NodeFacts("hollow", os=Os(), gpus=Gpus(gpus=()), torch=Torch(), env=Env(()), rdma=Rdma(())),
]


@pytest.mark.parametrize("facts", HOLLOW, ids=lambda facts: facts.name)
def test_nothing_known_is_a_reason_in_every_column(facts):
    fleet = fleet_of([facts])
    broken = {c.name: r.text for c in fleet.columns() for r in c.without.values() if r.kind == "broken"}
    assert broken == {}


@given(st.sampled_from(SECTIONS), st.data())
def test_damaged_facts_break_no_fleet(section, data):
    """A field of a wrong kind, which the types allow in part, is a reason of the columns that read it."""
    facts = node(1)
    found = getattr(facts, section)
    if found is not None:
        name = data.draw(st.sampled_from([f.name for f in fields(found)]))
        facts = replace(
            facts, **{section: replace(found, **{name: data.draw(st.sampled_from(["x", -1, (), ("",), {}]))})}
        )
    fleet = fleet_of([facts, node(2)])
    assert fleet.nodes == ["gpu01", "gpu02"]
    assert all({*c.values, *c.without} == {"gpu01", "gpu02"} for c in fleet.columns())


def test_a_majority_is_more_than_half():
    def usual(*values):
        fleet = fleet_of([replace(node(n), os=Os(kernel=value)) for n, value in enumerate(values, 1)])
        return fleet.kernel.usual()

    assert usual("a", "a", "b") == "a"
    assert usual("a", "b") is None
    assert usual("a", "a", "b", "b") is None
    assert usual("a", "a", "b", "c") is None


def test_subjects_of_pairs_are_columns_of_their_own():
    nodes = [replace(node(n), env=Env((Variable("NCCL_ALGO", "Ring"),) if n == 1 else ())) for n in (1, 2)]
    column = fleet_of(nodes).variables
    assert column.by_subject()["NCCL_ALGO"].values == {"gpu01": "Ring"}
    assert column.by_subject("-")["NCCL_ALGO"].values == {"gpu01": "Ring", "gpu02": "-"}


@pytest.mark.parametrize(
    ("name", "patterns", "expected"),
    [
        ("gpu07", ("gpu[01-08]",), True),
        ("gpu09", ("gpu[01-08]",), False),
        ("a100-3", ("h100-*", "a100-*"), True),
        ("x", ("n[1-999999999]",), False),
        ("x", (), False),
    ],
)
def test_nodes_of_a_partition_are_sets_or_patterns(name, patterns, expected):
    assert matches(name, patterns) is expected


# ---------------------------------------------------------------- the good day


def test_a_baseline_reads_back_equal_and_leaves_the_other_parts(tmp_path):
    path = str(tmp_path / "good.json")
    fleet = fleet_of([node(1), node(2)])
    baseline.save(path, fleet, now=1764547200.0)
    found = baseline.load(path)
    assert found.words == "as in the baseline of 2025-12-01"
    assert found.columns == {column.name: column.values for column in fleet.columns()}
    plain = json.loads((tmp_path / "good.json").read_text())
    (tmp_path / "good.json").write_text(json.dumps({**plain, "nccl_test": {"all_reduce": [1, 2]}}))
    baseline.save(path, fleet_of([node(3)]))
    assert json.loads((tmp_path / "good.json").read_text())["nccl_test"] == {"all_reduce": [1, 2]}
    assert baseline.load(path).columns["torch"] == {"gpu03": "2.6.0+cu124"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a baseline"),
        ('{"schema_version": 1, "nodes": []}', "not a baseline"),
        ('{"schema_version": 9, "saved_at": 0}', "reads up to 1"),
        ('{"schema_version": 1, "saved_at": 0}', "without values of a fleet"),
        ('{"schema_version": 1, "saved_at": 0, "fleet": {"torch": [["x"]]}}', "damaged"),
        ('{"schema_version": 1, "saved_at": 0, "fleet": {"torch": [[{"a": 1}, ["n"]]]}}', "damaged"),
        ('{"schema_version": 1, "saved_at": 0, "fleet": {"torch": 1}}', "damaged"),
    ],
)
def test_what_is_no_baseline_is_refused_by_name_and_never_written_over(tmp_path, content, words):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(document.BadDocument, match=words):
        baseline.load(str(path))
    if words in ("not JSON", "not a baseline", "reads up to 1"):
        with pytest.raises(document.BadDocument):
            baseline.save(str(path), fleet_of([node(1)]))
        assert path.read_text() == content


def test_a_node_that_the_good_day_did_not_have_is_held_against_what_most_had():
    good = GoodDay({"torch": {"a": "1", "b": "1", "c": "2"}}, "then")
    assert [good.of("torch", name) for name in ("a", "c", "new")] == ["1", "2", "1"]
    assert good.of("kernel", "a") is None

"""One line for many nodes, and what each takes from it."""

import json

import pytest
from ddp_doctor import broadcast
from hypothesis import given
from hypothesis import strategies as st

scalars = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x", "1"]) | st.just([1])
keys = st.sampled_from(["do", "id", "ask", "common"])
requests = st.dictionaries(keys, scalars | st.dictionaries(keys, scalars, max_size=3), max_size=4)


@given(st.dictionaries(st.sampled_from(["n1", "n2", "n3", ""]), requests, min_size=1))
def test_every_node_finds_its_own_request(asked):
    line = json.loads(json.dumps(broadcast.packed(asked)))
    assert {node: broadcast.own(line, node) for node in asked} == asked
    assert broadcast.own(line, "other") is None


def test_what_is_common_is_said_once():
    asks = {f"n{rank}": {"do": "facts", "ask": {"profile": "quick", "node_rank": rank}} for rank in range(3)}
    assert broadcast.packed(asks) == {
        "common": {"do": "facts", "ask": {"profile": "quick"}},
        "to": {f"n{rank}": {"ask": {"node_rank": rank}} for rank in range(3)},
    }


def test_a_plain_request_is_for_everybody():
    assert broadcast.own({"do": "end"}, "n1") == {"do": "end"}


@pytest.mark.parametrize(
    "line", [{"to": 3}, {"to": {"n1": 3}, "common": {}}, {"to": {"n1": {}}}, {"to": {"n1": {}}, "common": []}]
)
def test_damaged_lines_are_for_nobody(line):
    assert broadcast.own(line, "n1") is None

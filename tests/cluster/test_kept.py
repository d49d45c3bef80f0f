"""Facts of many nodes as files."""

import json

from ddp_doctor.cluster import kept
from ddp_doctor.cluster.reached import Unreachable
from ddp_doctor.facts import NodeFacts, Reason


def test_a_file_for_each_node_that_was_reached():
    nodes = [NodeFacts("n1"), Unreachable("n2", Reason("refused", "nothing listens")), NodeFacts("fe80::1")]
    found = dict(kept.files(nodes))
    assert set(found) == {"n1.json", "fe80::1.json"}
    assert json.loads(found["n1.json"])["name"] == "n1"


def test_names_that_a_file_must_not_have():
    names = ["../../etc/passwd", ".hidden", "a/b", "a_b", "A_B", "", "\x1b[31m"]
    found = [name for name, _ in kept.files(map(NodeFacts, names))]
    assert len({name.lower() for name in found}) == len(names)
    assert not any("/" in name or "\x1b" in name or name.startswith(".") for name in found)

"""Which adapters are tried with which, and what the tool says."""

import itertools

import pytest
from ddp_doctor import verbs_tools
from ddp_doctor.cluster.rdma_ways import End, ends, rails, ring
from ddp_doctor.facts import Env, Gid, NodeFacts, Rdma, RdmaDevice, RdmaPort


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 9, 64])
def test_everybody_meets_the_next_one_and_rounds_are_disjoint(count):
    nodes = [f"n{number}" for number in range(count)]
    rounds = ring(nodes)
    met = [way for found in rounds for way in found]
    expected = (
        set()
        if count < 2
        else {(a, b) for a, b in zip(nodes, nodes[1:])} | ({(nodes[-1], nodes[0])} if count > 2 else set())
    )
    assert set(met) == expected
    assert len(met) == len(expected)
    assert len(rounds) <= 3
    for found in rounds:
        taken = list(itertools.chain(*found))
        assert len(taken) == len(set(taken))


def test_adapters_of_one_name_meet_and_else_those_of_one_place():
    ours = [End("mlx5_0", 1), End("mlx5_1", 1)]
    assert [(a.name, b.name) for a, b in rails(ours, [End("mlx5_1", 1), End("mlx5_0", 1)])] == [
        ("mlx5_0:1", "mlx5_0:1"),
        ("mlx5_1:1", "mlx5_1:1"),
    ]
    assert [(a.name, b.name) for a, b in rails(ours, [End("rocep1s0", 1)])] == [("mlx5_0:1", "rocep1s0:1")]
    assert rails([End("mlx5_0", 1, 3, roce=True)], [End("mlx5_0", 1)]) == []


def node(layer="Ethernet", state="ACTIVE", env=()):
    gids = (Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),)
    port = RdmaPort(1, state, "LinkUp", 400.0, "", 4096, 4096, layer, 0, 1, gids=gids if layer == "Ethernet" else None)
    return NodeFacts("n1", rdma=Rdma(devices=(RdmaDevice("mlx5_0", (port,)),)), env=Env(variables=env))


def test_ports_that_nccl_would_use():
    assert ends(node()) == (End("mlx5_0", 1, 3, 4096, True),)
    assert ends(node("InfiniBand")) == (End("mlx5_0", 1, None, 4096),)
    assert ends(node(state="DOWN")) == ()
    assert ends(NodeFacts("n1")) == ()


@pytest.mark.parametrize(
    ("status", "text", "found"),
    [
        (0, "  local address: LID 0x0000\n8192000 bytes in 0.02 seconds = 3700.63 Mbit/sec\n1000 iters in 0.02 seconds = 17.71 usec/iter", {"outcome": "met", "sent_gbit_s": 3.7006}),
        (1, "Failed status transport retry counter exceeded (12) for wr_id 2\nparse WC failed 1", {"outcome": "failed", "detail": "transport retry counter exceeded (12)"}),
        (1, "Couldn't connect to 10.0.0.2:18515", {"outcome": "unable", "detail": "Couldn't connect to 10.0.0.2:18515"}),
        (1, "Couldn't register MR", {"outcome": "unable", "detail": "Couldn't register MR"}),
        (-9, "", {"outcome": "unable", "detail": "ibv_rc_pingpong ended with status -9"}),
        (1, "8192000 bytes in 0.02 seconds = 3700.63 Mbit/sec\nmismatch", {"outcome": "unable", "detail": "mismatch"}),
    ],
)  # fmt: skip
def test_what_the_tool_says(status, text, found):
    assert verbs_tools.parse(status, text) == found


def test_a_node_without_the_tool(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed" in verbs_tools.serve({}, {})["unable"]
    assert verbs_tools.visit({}, {})["outcome"] == "unable"

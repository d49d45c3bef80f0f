"""What is asked of which node, and how long anybody waits."""

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.cluster import between, gathering
from ddp_doctor.cluster.gathering import MOST_LOGINS, NODE_LIMIT_S, Plan, asks_of
from ddp_doctor.cluster.names import BadNodes
from ddp_doctor.cluster.ssh import Way

NODES = ["n1", "n2", "n3", "n4"]
OPTIONS = {
    "python": None,
    "fanout": None,
    "node_timeout_s": None,
    "connect_timeout_s": None,
    "deadline": None,
    "push": False,
    "remote_command": None,
    "ssh_user": None,
    "ssh_port": None,
    "ssh_jump": None,
    "ssh_options": (),
    "slurm": False,
    "partition": None,
    "slurm_options": (),
    "hostfile": None,
    "exclude_nodes": (),
}


def test_the_master_has_rank_0_and_the_order_stays_the_users():
    asks = asks_of(Ask(master_addr="n3"), NODES)
    assert list(asks) == NODES
    assert [ask.node_rank for ask in asks.values()] == [1, 2, 0, 3]
    assert {ask.nnodes for ask in asks.values()} == {4}


def test_a_master_elsewhere_gives_no_ranks():
    assert {ask.node_rank for ask in asks_of(Ask(master_addr="10.0.0.1"), NODES).values()} == {None}


def test_one_node_is_no_job_of_several():
    assert asks_of(Ask(), ["n1"])["n1"].nnodes is None


@pytest.mark.parametrize("launcher", ["ssh", "mpirun", "deepspeed"])
def test_where_ranks_start_over_ssh_every_node_is_logged_in_to_from_several(launcher):
    peers = {node: ask.peers for node, ask in asks_of(Ask(launcher=launcher, master_addr="n2"), NODES).items()}
    assert peers == {"n2": ("n1", "n3", "n4"), "n1": ("n3", "n4"), "n3": ("n4", "n2"), "n4": ("n2", "n1")}


@pytest.mark.parametrize("launcher", [None, "torchrun", "slurm", "kubernetes"])
def test_where_ranks_do_not_start_over_ssh_nobody_logs_in(launcher):
    assert {ask.peers for ask in asks_of(Ask(launcher=launcher), NODES).values()} == {()}


def test_peers_that_a_user_names_are_taken():
    assert {ask.peers for ask in asks_of(Ask(launcher="ssh", peers=("x",)), NODES).values()} == {("x",)}


def test_nobody_logs_in_to_a_thousand_nodes():
    nodes = [f"n{number}" for number in range(1000)]
    asks = asks_of(Ask(launcher="mpirun"), nodes)
    assert len(asks["n0"].peers) == MOST_LOGINS
    assert asks["n999"].peers == ("n0", "n1")


@pytest.mark.parametrize(
    ("nodes", "fanout", "how_much", "held"),
    [(4, 64, between.PORTS, True), (4, 64, None, False), (1, 64, between.PORTS, False), (65, 64, between.PORTS, False)],
)
def test_connections_outlast_the_facts_where_ways_between_nodes_follow(nodes, fanout, how_much, held):
    asks = dict.fromkeys(map(str, range(nodes)), Ask())
    assert Plan(Way("x"), asks, (), fanout, between=how_much).held is held


def test_as_many_turns_as_there_are():
    asks = dict.fromkeys(map(str, range(130)), Ask())
    plan = Plan(Way("x", connect_s=10), asks, (), fanout=64)
    assert plan.limit_s() == 3 * (NODE_LIMIT_S + 10)
    assert Plan(Way("x"), asks, (), fanout=64, deadline_s=5.0).limit_s() == 5.0


@pytest.mark.parametrize(
    ("profile", "asked", "depth"),
    [
        ("quick", None, None),
        ("quick", True, between.SPEED),
        ("standard", None, between.PORTS),
        ("standard", True, between.SPEED),
        ("standard", False, None),
        ("deep", None, between.SPEED),
        ("deep", False, None),
    ],
)
def test_how_much_is_tried_between_nodes(profile, asked, depth):
    assert between.depth(profile, asked) == depth


@pytest.mark.parametrize(
    "given",
    [
        {"ssh_user": "-oProxyCommand=x"},
        {"ssh_user": "a b"},
        {"ssh_jump": "-J x"},
        {"ssh_jump": "$(id)"},
        {"ssh_options": ("ProxyCommand",)},
        {"ssh_options": ("-oProxyCommand=x",)},
        {"push": True, "remote_command": "x"},
        {"partition": "gpu"},
        {"slurm_options": ("account=x",)},
    ],
)
def test_what_ssh_must_not_be_given(given):
    with pytest.raises(BadNodes):
        gathering.plan(["a"], Ask(), {**OPTIONS, **given}, "user")


def test_a_plan_by_the_options():
    plan = gathering.plan(["a", "b"], Ask(profile="deep", sample_s=5.0), {**OPTIONS, "deadline": 60}, "user")
    assert plan.deadline_s == 59
    assert plan.node_limit_s == NODE_LIMIT_S + 5 + gathering.DEEP_S
    assert plan.between == between.SPEED


def test_nodes_of_options_and_file_each_once(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("n2 slots=8\nn3\nn3\n")
    given = {**OPTIONS, "nodes": ["n[1-2]"], "hostfile": str(path), "exclude_nodes": ["n1"]}
    names, remarks = gathering.named(given, {})
    assert names == ["n2", "n3"]
    assert len(remarks) == 1
    assert "n3" in remarks[0]
    with pytest.raises(BadNodes, match="no node is left"):
        gathering.named({**OPTIONS, "nodes": ["n1"], "exclude_nodes": ["n1"]}, {})

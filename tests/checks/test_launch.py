"""Checks of what the launcher set."""

import pytest
from ddp_doctor.facts import Address, Gpu, Gpus, Interface, Launch, Network, Os, Reason, Resolved, Route, Torch
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

TWO = Policy(nnodes=2)
EIGHT_GPUS = Gpus(gpus=tuple(Gpu(n) for n in range(8)))


@pytest.mark.parametrize(
    ("check", "launch", "found"),
    [
        ("rank-out-of-range", Launch(rank=15, world_size=16), "passed"),
        ("rank-out-of-range", Launch(rank=16, world_size=16), "failed"),
        ("rank-out-of-range", Launch(rank=16), "skipped"),
        ("local-rank-out-of-range", Launch(local_rank=7, local_world_size=8), "passed"),
        ("local-rank-out-of-range", Launch(local_rank=8, local_world_size=8), "failed"),
        ("node-rank-out-of-range", Launch(node_rank=1, nnodes=2), "passed"),
        ("node-rank-out-of-range", Launch(node_rank=2, nnodes=2), "failed"),
        ("variable-malformed", Launch(malformed={"RANK": "abc"}), "failed"),
        ("variable-malformed", Launch(malformed={}, sources={"rank": "RANK"}), "passed"),
        ("variable-malformed", Launch(malformed={}, sources={}), "skipped"),
    ],
)
def test_numbers_must_be_in_their_range(check, launch, found):
    verdicts = judged(f"launch/{check}", launch=launch)
    assert {v.outcome.value for v in verdicts} == {found}
    assert all(v.fixes for v in verdicts if found == "failed")


@pytest.mark.parametrize(
    ("policy", "launch", "found"),
    [
        (TWO, Launch(world_size=16, nnodes=2, nproc_per_node=8), "passed"),
        (TWO, Launch(world_size=12, nnodes=2, local_world_size=8), "failed"),
        (TWO, Launch(world_size=16, local_world_size=8), "passed"),
        (Policy(nnodes=2, homogeneous=False), Launch(world_size=6, nnodes=2, local_world_size=4), "skipped"),
        (TWO, Launch(world_size=2, nnodes=2, nproc_per_node=8), "passed"),
        (TWO, Launch(world_size=2, nnodes=2, local_world_size=8, local_rank=3), "failed"),
        (TWO, Launch(world_size=2, nnodes=2, nproc_per_node=8, local_rank=0,
                     sources={"world_size": "SLURM_STEP_NUM_TASKS"}), "skipped"),
        (Policy(), Launch(world_size=16, nproc_per_node=8), "skipped"),
    ],
)  # fmt: skip
def test_world_size_counts_the_ranks_that_are_started(policy, launch, found):
    assert outcome("launch/world-size-mismatch", policy, launch=launch) == found


@pytest.mark.parametrize(
    ("launch", "gpus", "torch", "without", "one_each"),
    [
        (Launch(local_rank=7), EIGHT_GPUS, None, "passed", "skipped"),
        (Launch(local_rank=8), EIGHT_GPUS, None, "failed", "skipped"),
        (Launch(local_rank=2), Gpus(gpus=EIGHT_GPUS.gpus, visible_devices="0,1"), None, "failed", "skipped"),
        (Launch(local_rank=2), Gpus(gpus=EIGHT_GPUS.gpus, visible_devices="0,1,-1,3"), None, "failed", "skipped"),
        (Launch(local_rank=2), EIGHT_GPUS, Torch(cuda_device_count=2), "failed", "skipped"),
        (Launch(local_rank=2), Gpus(gpus=EIGHT_GPUS.gpus, admitted=2), None, "failed", "skipped"),
        (
            Launch(local_rank=3, launcher="slurm"),
            Gpus(gpus=EIGHT_GPUS.gpus, visible_devices="3"),
            None,
            "skipped",
            "failed",
        ),
        (
            Launch(local_rank=3, launcher="torchrun"),
            Gpus(gpus=EIGHT_GPUS.gpus, visible_devices="3"),
            None,
            "failed",
            "skipped",
        ),
        (Launch(local_rank=3, launcher="slurm"), EIGHT_GPUS, None, "passed", "passed"),
        (Launch(local_rank=3), Gpus(gpus=()), None, "skipped", "skipped"),
        (Launch(), EIGHT_GPUS, None, "skipped", "skipped"),
    ],
)
def test_every_local_rank_needs_a_gpu(launch, gpus, torch, without, one_each):
    assert outcome("launch/local-rank-without-gpu", launch=launch, gpus=gpus, torch=torch) == without
    assert outcome("launch/one-gpu-per-rank", launch=launch, gpus=gpus, torch=torch) == one_each


def resolved(*addresses):
    return Network(master_name=Resolved("node0", addresses))


@pytest.mark.parametrize(
    ("policy", "launch", "network", "found"),
    [
        (TWO, Launch(master_addr="localhost"), Network(), "failed"),
        (TWO, Launch(master_addr="127.0.0.1"), Network(), "failed"),
        (TWO, Launch(master_addr="::1"), Network(), "failed"),
        (TWO, Launch(master_addr="10.0.0.1"), Network(), "passed"),
        (TWO, Launch(master_addr="node0", is_master=False), resolved("127.0.1.1"), "failed"),
        (TWO, Launch(master_addr="node0", is_master=True), resolved("127.0.1.1"), "skipped"),
        (TWO, Launch(master_addr="node0", is_master=False), resolved("10.0.0.1"), "passed"),
        (TWO, Launch(), Network(), "skipped"),
        (Policy(nnodes=1), Launch(master_addr="localhost"), Network(), "skipped"),
    ],
)
def test_several_nodes_cannot_meet_on_loopback(policy, launch, network, found):
    assert outcome("launch/master-is-loopback", policy, launch=launch, network=network) == found


OPTIONS = {"node_rank": "--node-rank", "master_addr": "--master-addr"}
BY_HAND = {"node_rank": "NODE_RANK", "master_addr": "MASTER_ADDR"}
RANK_BY_HAND = {"rank": "RANK", "master_addr": "MASTER_ADDR"}
BY_TORCHRUN = {"node_rank": "GROUP_RANK", "rank": "RANK", "master_addr": "MASTER_ADDR"}
BY_SLURM = {"node_rank": "SLURM_NODEID", "master_addr": "MASTER_ADDR"}


def told(node_rank, master_addr, sources=OPTIONS, **more):
    return Launch(node_rank=node_rank, master_addr=master_addr, sources=sources, **more)


def at(*own, hostname="node0", resolves=None, **more):
    """The network of a node with these addresses, on which the master's name resolves so."""
    name = None if resolves is None else Resolved("m", resolves)
    lo = Interface("lo", kind="loopback", addresses=(Address("127.0.0.1", 8, "ipv4", "host"),))
    addresses = tuple(Address(ip, 64 if ":" in ip else 24, "ipv6" if ":" in ip else "ipv4", "global") for ip in own)
    eth0 = Interface("eth0", kind="physical", addresses=addresses, up=True, running=True)
    return Network(hostname=hostname, interfaces=(lo, eth0), master_name=name, **more)


HERE = at("192.0.2.2")
DOCKER, POD, APPTAINER = Os(container="docker"), Os(container="kubernetes"), Os(container="apptainer")
UNASKED = at("192.0.2.2", unread={"master_name": Reason("not-asked", "profile quick asks no name server")})


@pytest.mark.parametrize(
    ("launch", "network", "os", "elsewhere", "here", "doubt"),
    [
        # what a person said, and the node contradicts
        (told(0, "10.0.0.1"), HERE, None, "failed", "skipped", "skipped"),
        (told(0, "10.0.0.1", BY_HAND), HERE, None, "failed", "skipped", "skipped"),
        (told(None, "10.0.0.1", RANK_BY_HAND, rank=0), HERE, None, "failed", "skipped", "skipped"),
        (told(0, "gpu7"), at("192.0.2.2", resolves=("10.0.0.1",)), None, "failed", "skipped", "skipped"),
        (told(0, "2001:db8::1"), at("2001:db8::2"), None, "failed", "skipped", "skipped"),
        (told(0, "10.0.0.1"), HERE, DOCKER, "failed", "skipped", "skipped"),
        (told(0, "gpu7"), at("192.0.2.2", resolves=("10.0.0.1",)), APPTAINER, "failed", "skipped", "skipped"),
        (told(1, "192.0.2.2"), HERE, None, "skipped", "failed", "skipped"),
        (told(1, "192.0.2.2", BY_HAND), HERE, None, "skipped", "failed", "skipped"),
        (told(1, "node0.cluster"), at("192.0.2.2", resolves=("127.0.1.1",)), None, "skipped", "failed", "skipped"),
        (
            told(1, "192.0.2.9"),
            at("192.0.2.2", master_route=Route("-", interface="lo")),
            None,
            "skipped",
            "failed",
            "skipped",
        ),
        # what fits together
        (told(0, "192.0.2.2"), HERE, None, "passed", "skipped", "skipped"),
        (told(0, "node0"), at("192.0.2.2", resolves=("127.0.1.1",)), None, "passed", "skipped", "skipped"),
        (told(0, "m"), at("192.0.2.2", "10.9.0.2", resolves=("10.9.0.2",)), None, "passed", "skipped", "skipped"),
        (told(1, "10.0.0.1"), HERE, None, "skipped", "passed", "skipped"),
        # what may be right: translated addresses, services, a scheduler's numbers
        (told(0, "8.8.8.8"), HERE, None, "skipped", "skipped", "failed"),
        (told(0, "m"), at("172.18.0.3", resolves=("172.18.0.2",)), DOCKER, "skipped", "skipped", "failed"),
        (told(0, "10.96.0.9"), HERE, POD, "skipped", "skipped", "failed"),
        (told(0, "10.0.0.1", BY_SLURM, launcher="slurm"), HERE, None, "skipped", "skipped", "failed"),
        (told(1, "192.0.2.2", BY_SLURM, launcher="slurm"), HERE, None, "skipped", "skipped", "failed"),
        # what launchers set together
        (told(0, "10.0.0.1", BY_TORCHRUN, rank=0, launcher="torchrun"), HERE, None, "skipped", "skipped", "skipped"),
        (told(1, "192.0.2.2", BY_TORCHRUN, rank=8, launcher="torchrun"), HERE, None, "skipped", "skipped", "skipped"),
        (told(0, "10.96.0.9", RANK_BY_HAND, rank=0, launcher="kubernetes"), HERE, POD, "skipped", "skipped", "skipped"),
        # what other checks judge, and what is not known
        (told(1, "127.0.0.1"), HERE, None, "skipped", "skipped", "skipped"),
        (told(1, "m"), at("192.0.2.2", resolves=("127.0.1.1",)), None, "skipped", "skipped", "skipped"),
        (told(0, "nosuch"), at("192.0.2.2", resolves=()), None, "skipped", "skipped", "skipped"),
        (told(0, "gpu7"), UNASKED, None, "skipped", "skipped", "skipped"),
        (told(0, None), HERE, None, "skipped", "skipped", "skipped"),
        (told(None, "10.0.0.1"), HERE, None, "skipped", "skipped", "skipped"),
        (Launch(node_rank=0, master_addr="10.0.0.1"), Network(), None, "skipped", "skipped", "skipped"),
    ],
)
def test_the_masters_address_and_the_nodes_rank_fit_together(launch, network, os, elsewhere, here, doubt):
    facts = {"launch": launch, "network": network, "os": os}
    assert outcome("launch/master-is-elsewhere", TWO, **facts) == elsewhere
    assert outcome("launch/master-is-this-node", TWO, **facts) == here
    assert outcome("launch/master-in-doubt", TWO, **facts) == doubt


def test_swapped_ranks_are_told_with_both_addresses_and_both_ways_out():
    (verdict,) = judged("launch/master-is-elsewhere", TWO, launch=told(0, "10.0.0.1", nnodes=2), network=HERE)
    assert verdict.severity.value == "error"
    assert verdict.measured == "node rank 0, master 10.0.0.1, this node has 192.0.2.2"
    assert "--master-addr 192.0.2.2" in remedy_text(verdict)
    assert "Give the node with 10.0.0.1 --node-rank 0, and this one 1." in remedy_text(verdict)
    (verdict,) = judged("launch/master-is-this-node", TWO, launch=told(1, "192.0.2.2"), network=HERE)
    assert "Give this node --node-rank 0, and 1 to the node that had 0." in remedy_text(verdict)


@pytest.mark.parametrize(("nnodes", "found"), [(1, "skipped"), (None, "failed")])
def test_a_master_elsewhere_matters_to_several_nodes(nnodes, found):
    (verdict,) = judged("launch/master-is-elsewhere", Policy(nnodes=nnodes), launch=told(0, "10.0.0.1"), network=HERE)
    assert (verdict.outcome.value, verdict.severity.value) == (found, "note" if nnodes is None else "error")


ENV = {"rank": "RANK", "world_size": "WORLD_SIZE"}
SLURM = {"rank": "SLURM_PROCID", "world_size": "SLURM_STEP_NUM_TASKS"}


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        (Launch(rank=0, world_size=16, sources=ENV), "failed"),
        (Launch(rank=0, world_size=16, sources=ENV, master_addr="10.0.0.1"), "passed"),
        (Launch(rank=0, world_size=16, sources=ENV, malformed={"MASTER_ADDR": "n[1-2]"}), "skipped"),
        (Launch(rank=0, world_size=16, sources=SLURM), "skipped"),
        (Launch(rendezvous="static"), "failed"),
        (Launch(rendezvous="c10d", rank=0, world_size=16, sources=ENV), "skipped"),
        (Launch(), "skipped"),
    ],
)
def test_ranks_need_a_place_to_meet(launch, found):
    assert outcome("launch/master-unset", TWO, launch=launch) == found


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"rank": "RANK", "world_size": "WORLD_SIZE"}, ["RANK", "WORLD_SIZE"]),
        ({"rank": "SLURM_PROCID", "world_size": "WORLD_SIZE"}, ["WORLD_SIZE"]),
        ({"rank": "PMI_RANK", "world_size": "PMI_SIZE"}, []),
    ],
)
def test_only_variables_that_are_set_are_taken_away(sources, said):
    (verdict,) = judged("launch/rank-out-of-range", launch=Launch(rank=4, world_size=4, sources=sources))
    assert [step.name for step in verdict.fixes[0].steps if step.kind == "unset"] == said
    assert verdict.fixes[0].steps


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (Launch(launcher="slurm", malformed={"MASTER_ADDR": "gpu[01-02]"}), "scontrol show hostnames"),
        (Launch(launcher="slurm", malformed={"MASTER_PORT": "1234567"}), "SLURM_JOB_ID % 20000"),
        (Launch(malformed={"RANK": "abc"}), "unset RANK"),
        (Launch(malformed={"--nnodes": "x"}), "Correct the option"),
    ],
)
def test_a_malformed_value_is_mended_where_it_comes_from(launch, said):
    (verdict,) = judged("launch/variable-malformed", launch=launch)
    assert said in remedy_text(verdict)


NO_MPI = Reason("not-asked", "nothing says that mpirun starts the processes")


@pytest.mark.parametrize(
    ("mpi", "found"),
    [
        ("Open MPI 1.10.7", "failed"),
        ("Open MPI 4.0.3", "failed"),
        ("Open MPI 4.0.4", "failed"),
        ("Open MPI 4.0.5", "passed"),
        ("Open MPI 4.1.0rc1", "passed"),
        ("Open MPI 4.1.6", "passed"),
        ("Open MPI 5.0.2", "passed"),
        ("Open MPI 10.0", "passed"),
        ("IBM Spectrum MPI 3.2.0", "skipped"),
        ("Intel(R) MPI 2019 Update 12", "skipped"),
        ("Hydra 3.3.2", "skipped"),
        (None, "skipped"),
    ],
)
def test_only_an_open_mpi_below_the_floor_is_too_old(mpi, found):
    launch = Launch(mpi=mpi, unread={"mpi": NO_MPI} if mpi is None else {})
    (verdict,) = judged("launch/openmpi-too-old", launch=launch)
    assert verdict.outcome.value == found


def test_an_old_open_mpi_is_replaced_or_done_without():
    (verdict,) = judged("launch/openmpi-too-old", launch=Launch(mpi="Open MPI 4.0.3"))
    assert (verdict.severity.value, verdict.measured) == ("warning", "mpirun on the PATH is Open MPI 4.0.3")
    assert "Open MPI 4.0.5 or newer first on the PATH" in remedy_text(verdict)
    assert "with torchrun" in remedy_text(verdict)

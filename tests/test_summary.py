"""Header, headline, counts and next lines, from facts made by hand."""

import shlex
import subprocess
from dataclasses import replace

import pytest
from ddp_doctor import summary
from ddp_doctor.facts import (
    Address,
    Cpu,
    Gpu,
    Gpus,
    How,
    Interface,
    Launch,
    Memory,
    Network,
    NodeFacts,
    Os,
    PciGpu,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Route,
    Socket,
    Torch,
)
from ddp_doctor.model import Outcome, Remedy, Severity, Verdict, Waived, command, say
from ddp_doctor.policy import Policy

LO = Interface("lo", 1, "loopback", (Address("127.0.0.1", 8, "ipv4", "host"),), operstate="up", running=True, up=True)


def interface(name, ip, speed_mbit_s=1000):
    address = Address(ip, 24, "ipv4", "global")
    return Interface(name, 2, "physical", (address,), 1500, speed_mbit_s, "up", True, True)


def facts(name="n1", ifname="enp3s0", ip="10.0.0.1", gpus=2, **more):
    """A node with GPUs and one interface."""
    network = Network(
        hostname=name,
        interfaces=(LO, interface(ifname, ip)),
        default_route=Route("1.1.1.1", interface=ifname),
        listening=(),
    )
    sections = {
        "gpus": Gpus(driver="535.104.05", cuda="12.2", gpus=tuple(Gpu(i, "NVIDIA A100") for i in range(gpus))),
        "network": network,
        "rdma": Rdma(devices=()),
        "torch": Torch("/opt/py/bin/python3", "3.10.12", "PATH", True, "2.3.1+cu121", "12.1"),
    }
    return NodeFacts(name, **{**sections, **more})


def verdict(outcome, severity=Severity.ERROR, check="limits/memlock-too-low", node="n1", **more):
    return Verdict(check, node, outcome, severity, **more)


FAILED, PASSED, SKIPPED, BROKEN = Outcome.FAILED, Outcome.PASSED, Outcome.SKIPPED, Outcome.BROKEN
REBOOT = (Remedy("Reboot", (command("reboot"),)), Remedy("Or wait", (say("Wait."),)))
AGAIN, OTHER = (Remedy("Reboot the node", (command("reboot"),)),), REBOOT[::-1]
WIRE = "NCCL will use enp3s0 at 1 Gb/s: about 0.11 GB/s, slow but normal."


def headline(verdicts, status, nodes=None, **policy):
    return summary.summarise([facts()] if nodes is None else nodes, verdicts, Policy(**policy), status).headline


# --------------------------------------------------------------------------- headline and counts


@pytest.mark.parametrize(
    ("verdicts", "status", "expected"),
    [
        ([verdict(PASSED)], 0, f"Ready. {WIRE}"),
        ([verdict(PASSED), verdict(FAILED)], 1, f"Not ready: 1 thing to fix. {WIRE}"),
        ([verdict(FAILED, subject="GPU 0"), verdict(FAILED, subject="GPU 1")], 1, f"Not ready: 1 thing to fix. {WIRE}"),
        (
            [verdict(FAILED, fixes=REBOOT), verdict(FAILED, check="os/x", fixes=AGAIN)],
            1,
            f"Not ready: 1 thing to fix. {WIRE}",
        ),
        (
            [verdict(FAILED, fixes=REBOOT), verdict(FAILED, check="os/x", fixes=OTHER)],
            1,
            f"Not ready: 2 things to fix. {WIRE}",
        ),
        ([verdict(FAILED), verdict(FAILED, check="os/x")], 1, f"Not ready: 2 things to fix. {WIRE}"),
        ([verdict(FAILED), verdict(BROKEN, check="os/x")], 1, f"Not ready: 1 thing to fix. {WIRE}"),
        ([verdict(FAILED, Severity.WARNING)], 0, f"Ready, with 1 warning. {WIRE}"),
        (
            [verdict(FAILED, Severity.WARNING)],
            1,
            f"Not ready: 1 warning to look at, which you chose to count as failures. {WIRE}",
        ),
        ([verdict(FAILED, waived=Waived("known"))], 0, f"Ready. {WIRE}"),
        ([verdict(FAILED, Severity.NOTE)], 0, f"Ready. {WIRE}"),
        ([verdict(PASSED), verdict(BROKEN, check="os/x")], 3, f"Cannot tell: 1 check broke (os/x). {WIRE}"),
        ([verdict(PASSED)], 3, f"Cannot tell: not every node could be examined. {WIRE}"),
        (
            [verdict(PASSED), verdict(SKIPPED, check="disk/x", reason=Reason("timed-out", "timed out"))],
            0,
            f"Ready as far as could be seen (1 check could not look). {WIRE}",
        ),
        (
            [verdict(PASSED), verdict(SKIPPED, check="disk/x", reason=Reason("no-rights", "needs root"))],
            0,
            f"Ready. {WIRE}",
        ),
        (
            [verdict(SKIPPED, reason=Reason("not-applicable", "none here"))],
            0,
            f"Nothing to judge: none of the checks (1) had anything to look at here. {WIRE}",
        ),
    ],
)
def test_headline(verdicts, status, expected):
    assert headline(verdicts, status) == expected


def test_an_examination_that_was_cut_short_says_so():
    cut = facts(disk=None, reasons={"disk": Reason("interrupted", "the deadline of 2 s")})
    assert headline([verdict(PASSED)], 3, [cut]).startswith("Cannot tell: the examination was cut short.")


def test_a_node_of_which_nothing_could_be_read_cannot_be_told():
    why = Reason("unreadable", "reading os: cannot start a child: Resource temporarily unavailable")
    blind = NodeFacts("n1", reasons={"reach": Reason("not-asked", "no --reach"), "os": why, "cpu": why})
    warned = [verdict(FAILED, Severity.WARNING, "facts/section-lost")]
    assert headline(warned, 3, [blind]).startswith(f"Cannot tell: nothing could be read ({why.text}).")
    assert headline(warned, 3, [blind, facts("n2")]).startswith("Cannot tell: nothing could be read on n1 (")
    assert not summary.Seen([NodeFacts("n1", reasons={"os": Reason("not-asked", "not selected")})]).lost


@pytest.mark.parametrize(
    ("node", "policy"),
    [(facts(), {"nnodes": 1}), (facts(gpus=0), {}), (facts(gpus=0, network=None), {}), (facts(network=None), {})],
)
def test_no_word_on_the_network_where_nccl_will_not_use_it_or_nothing_is_known(node, policy):
    assert headline([verdict(PASSED)], 0, [node], **policy) == "Ready."


def test_ready_without_a_torch_says_so():
    none = Torch("/usr/bin/python3", "3.10.12", "PATH", False)
    ready = [verdict(PASSED)]
    assert headline(ready, 0, [facts(torch=none)]) == f"Ready, but no torch was examined. {WIRE}"
    lost = facts(torch=None, reasons={"torch": Reason("timed-out", "timed out")})
    assert headline(ready, 0, [lost]) == f"Ready, but no torch was examined. {WIRE}"
    skipped = facts(torch=None, reasons={"torch": Reason("not-asked", "not selected")})
    assert headline(ready, 0, [skipped]) == f"Ready. {WIRE}"
    assert headline(ready, 0, [facts(torch=none), facts("n2")]).startswith("Ready. ")


def test_a_job_with_fewer_gpus_than_ports_need_not_use_all():
    port = RdmaPort(1, "ACTIVE", link_layer="InfiniBand", rate_gbit_s=400.0)
    rdma = Rdma(devices=tuple(RdmaDevice(f"mlx5_{n}", ports=(port,)) for n in range(8)))
    for gpus, words in ((8, "NCCL will use 8 InfiniBand"), (2, "NCCL will use up to 8 InfiniBand")):
        assert words in headline([verdict(PASSED)], 0, [facts(gpus=gpus, rdma=rdma)])
    node = facts(gpus=8, rdma=rdma)
    hidden = replace(node, gpus=replace(node.gpus, visible_devices="0,1"))
    assert "NCCL will use up to 8 InfiniBand" in headline([verdict(PASSED)], 0, [hidden])


def test_headline_of_several_nodes():
    nodes = [facts(), facts("n2", "eno1", "10.0.0.2"), facts("n3", ip="10.0.0.3")]
    found = headline([verdict(FAILED), verdict(PASSED, node="n2")], 1, nodes)
    assert found == (
        "Not ready: 1 thing to fix on 1 of 3 nodes. n1, n3: NCCL will use enp3s0 at 1 Gb/s: about 0.11 GB/s, slow but "
        "normal; n2: NCCL will use eno1 at 1 Gb/s: about 0.11 GB/s, slow but normal."
    )


def test_counts_are_of_verdicts_and_complete():
    verdicts = [verdict(FAILED), verdict(FAILED, Severity.NOTE), verdict(FAILED, waived=Waived("x")), verdict(PASSED)]
    assert summary.counts(verdicts) == {
        "error": 1,
        "warning": 0,
        "note": 1,
        "waived": 1,
        "passed": 1,
        "skipped": 0,
        "broken": 0,
    }


# --------------------------------------------------------------------------- what to type next


def following(*nodes, verdicts=(), **policy):
    """The next lines."""
    return list(summary.summarise(nodes, verdicts, Policy(**policy), 0).next)


def commands(*nodes, **policy):
    return [line for line in following(*nodes, **policy) if not line.startswith("#")]


TORCHRUN = "torchrun --nnodes 2 --nproc_per_node 2 --node_rank {} --master_addr 10.0.0.1 --master_port 29500 train.py"


def test_a_machine_alone_gets_its_line_and_the_way_to_two():
    assert commands(facts()) == [
        "torchrun --standalone --nproc_per_node 2 train.py",
        "ddp-doctor run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1",
        "ddp-doctor run --nnodes 2 --node-rank 1 --master-addr 10.0.0.1",
    ]


def test_a_job_of_one_node():
    assert commands(facts(), nnodes=1) == ["torchrun --standalone --nproc_per_node 2 train.py"]


def test_the_same_command_on_each_of_two_machines():
    first = facts(launch=Launch(node_rank=0, nnodes=2, master_addr="10.0.0.1"))
    second = facts("n2", "eno1", "10.0.0.2", launch=Launch(node_rank=1, nnodes=2, master_addr="10.0.0.1"))
    assert commands(first) == [TORCHRUN.format(0), TORCHRUN.format(1)]
    assert following(second)[:2] == ["# on this node:", TORCHRUN.format(1)]


def test_two_nodes_with_interfaces_of_different_names():
    nodes = facts(), facts("n2", "eno1", "10.0.0.2")
    assert following(*nodes) == [
        "# on n1:",
        "export NCCL_SOCKET_IFNAME='=enp3s0,eno1'",
        "export GLOO_SOCKET_IFNAME=enp3s0",
        TORCHRUN.format(0),
        "# on n2:",
        "export NCCL_SOCKET_IFNAME='=enp3s0,eno1'",
        "export GLOO_SOCKET_IFNAME=eno1",
        TORCHRUN.format(1),
    ]


def test_two_nodes_alike_need_no_exports():
    assert following(facts(), facts("n2", ip="10.0.0.2")) == [
        "# on n1:",
        TORCHRUN.format(0),
        "# on n2:",
        TORCHRUN.format(1),
    ]


def test_many_nodes_alike_share_one_line():
    nodes = [facts(f"n{i}", ip=f"10.0.0.{i}") for i in range(1, 10)]
    comment, line = following(*nodes)
    assert "0 on n1, 1 to 8 on the others" in comment
    assert line == TORCHRUN.format(0).replace("--nnodes 2", "--nnodes 9")


def test_unlike_nodes_get_their_own_number_of_processes():
    found = commands(facts(), facts("n2", ip="10.0.0.2", gpus=1))
    assert ["--nproc_per_node 2" in found[0], "--nproc_per_node 1" in found[1]] == [True, True]


def test_slurm_gets_one_line_that_each_node_completes():
    node = facts(launch=Launch(launcher="slurm", nnodes=2, master_addr="10.0.0.1"))
    (line,) = commands(node)
    assert shlex.split(line)[:7] == ["srun", "--nodes", "2", "--ntasks-per-node", "1", "bash", "-c"]
    assert shlex.split(line)[7] == TORCHRUN.format('"$SLURM_NODEID"')


def test_a_slurm_job_is_looked_at_and_started_by_one_line_each():
    launch = Launch(launcher="slurm", nnodes=2, slurm={"JOB_ID": "48213", "JOB_NODELIST": "n[1-2]"})
    look, start = commands(facts(launch=launch))
    assert look == (
        "srun --overlap --mem=0 --cpu-bind=none --gpu-bind=none --nodes 2 --ntasks 2 --ntasks-per-node 1 ddp-doctor run"
    )
    inner = shlex.split(start)[7]
    stub = 'scontrol() { echo n1; echo n2; }; torchrun() { echo "$@"; }; '
    said = subprocess.run(
        ["bash", "-c", stub + inner], env={"SLURM_NODEID": "1", "PATH": "/usr/bin:/bin"}, stdout=-1, check=True
    )
    assert said.stdout.decode() == TORCHRUN.format(1).replace("torchrun ", "").replace("10.0.0.1", "n1") + "\n"


def test_outside_a_job_srun_makes_one():
    assert commands(facts(), launcher="slurm", nnodes=2) == [
        "srun --nodes 2 --ntasks 2 --ntasks-per-node 1 ddp-doctor run"
    ]


@pytest.mark.parametrize("launcher", ["kubernetes", "mpirun", "deepspeed"])
def test_launchers_that_start_the_ranks_themselves_get_no_line(launcher):
    assert commands(facts(), launcher=launcher) == []


@pytest.mark.parametrize(
    ("torch", "start"),
    [
        (
            Torch("/opt/my env/bin/python", "3.10.12", "--python", True, "2.3.1"),
            "'/opt/my env/bin/python' -m torch.distributed.run ",
        ),
        (Torch("/usr/bin/python3", "3.8.2", "PATH", True, "1.9.0"), "/usr/bin/python3 -m torch.distributed.run "),
        (
            Torch("/usr/bin/python3", "3.8.2", "PATH", True, "1.8.1+cu111"),
            "/usr/bin/python3 -m torch.distributed.launch ",
        ),
        (Torch("/usr/bin/python3", "3.8.2", "PATH", True, "1.12.1+cu113"), "torchrun "),
        (None, "torchrun "),
    ],
)
def test_the_launcher_is_that_of_the_examined_torch(torch, start):
    assert commands(facts(torch=torch), nnodes=1)[0].startswith(start)


@pytest.mark.parametrize(
    ("node", "processes"),
    [
        (facts(gpus=0), 1),
        (facts(gpus=8), 8),
        (facts(gpus=8, launch=Launch(nproc_per_node=4)), 4),
        (facts(gpus=2, torch=Torch(cuda_device_count=1)), 1),
    ],
)
def test_processes_follow_the_gpus(node, processes):
    assert f"--nproc_per_node {processes} " in commands(node, nnodes=1)[0]


def test_processes_follow_cuda_visible_devices():
    node = facts(gpus=8)
    node = replace(node, gpus=replace(node.gpus, visible_devices="0,3"))
    assert "--nproc_per_node 2 " in commands(node, nnodes=1)[0]


def test_a_taken_port_is_not_proposed():
    first = facts()
    first = replace(first, network=replace(first.network, listening=(Socket("0.0.0.0", 29500), Socket("::", 29501))))
    assert "--master_port 29502 " in commands(first, facts("n2", ip="10.0.0.2"))[0]


def test_a_loopback_master_is_not_repeated():
    node = facts(launch=Launch(node_rank=0, nnodes=2, master_addr="localhost"))
    assert commands(node)[0] == "ddp-doctor run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1"


def test_braces_in_an_address_are_not_filled_in():
    assert "ddp-doctor run --nnodes 2 --node-rank 1 --master-addr '{}{1}'" in commands(facts(ip="{}{1}"))


def test_the_worst_finding_is_explained_first():
    found = following(facts(), verdicts=[verdict(FAILED, Severity.NOTE, "a/b"), verdict(FAILED)], nnodes=1)
    assert found[1] == "ddp-doctor checks limits/memlock-too-low"


def test_what_comes_from_facts_is_quoted():
    evil = "n1\nrm -rf ~; $(id)"
    first = facts(
        evil,
        evil,
        launch=Launch(nnodes=2, node_rank=0, master_addr=evil),
        torch=Torch(evil, installed=True, version="1.9.0"),
    )
    by_slurm = replace(first, launch=replace(first.launch, launcher="slurm"))
    for line in (*following(first), *following(first, facts("n2", ip="10.0.0.2")), *following(by_slurm)):
        if line.startswith("#"):
            assert "\n" not in line
        else:
            words = shlex.split(line)
            inner = shlex.split(words[-1]) if words[0] == "srun" else words
            assert {"rm", "-rf", "$(id)"} & {*words, *inner} == set()


# --------------------------------------------------------------------------- header


def test_header_of_a_full_node():
    node = facts(
        os=Os(pretty="Ubuntu 22.04.4 LTS", kernel="5.15.0", machine="x86_64", container="docker", virtualisation="kvm"),
        cpu=Cpu(model="AMD EPYC 7763", sockets=2, threads=256, allowed=64),
        memory=Memory(total_bytes=512 * 2**30, cgroup_limit_bytes=64 * 2**30),
        rdma=Rdma(
            devices=tuple(
                RdmaDevice(f"mlx5_{i}", (RdmaPort(1, "ACTIVE", rate_gbit_s=200.0, link_layer="InfiniBand"),))
                for i in range(6)
            )
        ),
        how=How("ssh", "root", 0, profile="standard", job="slurm 1234"),
        collected_at=1700000000.0,
        duration_s=0.42,
    )
    assert summary.node(node).summary == {
        "System": "Ubuntu 22.04.4 LTS, kernel 5.15.0, x86_64, in a container (docker), virtual machine (kvm)",
        "Machine": "2 x AMD EPYC 7763, 256 threads (64 usable), 512 GiB memory, limited to 64 GiB by its cgroup",
        "GPUs": "2 x NVIDIA A100, driver 535.104.05, which supports CUDA up to 12.2",
        "PyTorch": "2.3.1+cu121, for CUDA 12.1, not imported, Python 3.10.12 /opt/py/bin/python3 (PATH)",
        "Fabric": "6 x InfiniBand 200 Gb/s ACTIVE (mlx5_0, mlx5_1, mlx5_2, mlx5_3 and 2 more); enp3s0 10.0.0.1 at 1 Gb/s",
        "Taken": "over ssh, as root (uid 0), in job slurm 1234, profile standard, 2023-11-14 22:13 UTC, in 0.42 s",
    }


def test_header_says_why_something_is_not_known():
    node = NodeFacts("n1", reasons={"gpus": Reason("timed-out", "reading gpus: timed out after 5 s")})
    found = summary.node(node).summary
    assert found["GPUs"] == "not known: reading gpus: timed out after 5 s"
    assert found["System"] == "not in these facts"


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (Gpus(gpus=(), on_bus=(), nvml_error="library not found"), "none"),
        (Gpus(gpus=(), on_bus=(PciGpu("0000:07:00.0", "0x20b0"),)), "none usable, 1 on the PCI bus"),
        (Gpus(unread={"gpus": Reason("absent", "no NVML")}), "not known: no NVML"),
        (Gpus(gpus=(Gpu(0, "A100"), Gpu(1, fault="GPU is lost"))), "1 x A100, 1 x GPU is lost"),
    ],
)
def test_header_of_gpus(gpus, words):
    assert summary.node(NodeFacts("n1", gpus=gpus)).summary["GPUs"] == words


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (Torch("/usr/bin/python3", "3.8.2", "PATH", False), "not installed, Python 3.8.2 /usr/bin/python3 (PATH)"),
        (Torch("/p", "3.8.2", None, True, "2.1.0+cpu", "", ""), "2.1.0+cpu, CPU only, not imported, Python 3.8.2 /p"),
        (
            Torch("/p", "3.8.2", None, True, "2.1.0", "", "5.7", imported=False),
            "2.1.0, for ROCm 5.7, its import fails, Python 3.8.2 /p",
        ),
    ],
)
def test_header_of_torch(torch, words):
    assert summary.node(NodeFacts("n1", torch=torch)).summary["PyTorch"] == words

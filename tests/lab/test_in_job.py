"""``torchrun -m ddp_doctor run`` on lab hosts, with real torch old and new."""

import json
import os
import subprocess
import time

import pytest

pytestmark = pytest.mark.lab
LIMIT_S = 60
PORT = 29617
REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]


def has_doctor(python):
    return subprocess.run([python, "-c", "import ddp_doctor, click"], capture_output=True).returncode == 0


PYTHONS = [python for python in REAL if has_doctor(python)]
needs_torch = pytest.mark.skipif(
    not PYTHONS, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch and ddp_doctor"
)
C10D = ("--rdzv_backend=c10d", f"--rdzv_endpoint=j1:{PORT}", "--rdzv_id=lab")


def static(rank):
    return (f"--node_rank={rank}", "--master_addr=j1", f"--master_port={PORT}")


@pytest.fixture(scope="module")
def hosts(lab):
    return [lab.add(name) for name in ("j1", "j2", "j3")]


def start(host, python, rendezvous, *arguments, ranks=2, nodes=3):
    words = [python, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc_per_node={ranks}", *rendezvous]
    run = ["-m", "ddp_doctor", "run", "--profile", "quick", *arguments]
    return subprocess.Popen(
        host.argv([*words, *run]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def outcome(running):
    out, err = running.communicate(timeout=LIMIT_S)
    return running.returncode, out, err


@needs_torch
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("way", ["c10d", "static"])
def test_every_node_in_one_report_of_node_0(hosts, python, way):
    select = ("--json", "--select", "fleet,memory,launch")
    ways = [C10D if way == "c10d" else static(rank) for rank in range(3)]
    done = [outcome(running) for running in [start(h, python, w, *select) for h, w in zip(hosts, ways)]]
    reports = [out for _, out, _ in done if out.strip()]
    assert len(reports) == 1, done
    report = json.loads(reports[0])
    assert {node["name"]: node["status"] for node in report["nodes"]} == dict.fromkeys(("j1", "j2", "j3"), "examined")
    assert {node["how"]["via"] for node in report["nodes"]} == {"torchrun"}
    assert not [v for v in report["verdicts"] if v["outcome"] == "failed" and v["severity"] == "error"]
    assert [status for status, _, _ in done] == [0, 0, 0]


@needs_torch
@pytest.mark.parametrize("python", PYTHONS)
def test_all_nodes_leave_with_the_status_of_the_report(hosts, python):
    wrong = ("--brief", "--select", "facts,gpu", "--expect-gpus", "8")
    running = [start(host, python, static(rank), *wrong) for rank, host in enumerate(hosts)]
    done = [outcome(each) for each in running]
    assert [status for status, _, _ in done] == [1, 1, 1]
    assert sum("NOT READY 3 nodes" in out for _, out, _ in done) == 1


@needs_torch
def test_a_rank_that_does_not_come_is_named(hosts):
    """Node 2's first rank dies before it has facts: the others are not kept waiting."""
    python = PYTHONS[0]
    ok = [
        start(h, python, static(rank), "--json", "--select", "memory", "--deadline", "5")
        for rank, h in enumerate(hosts[:2])
    ]
    words = [python, "-m", "torch.distributed.run", "--nnodes=3", "--nproc_per_node=2", *static(2)]
    dead = subprocess.Popen(hosts[2].argv([*words, "--no_python", "true"]), stderr=subprocess.PIPE)
    done = [outcome(running) for running in ok]
    dead.communicate(timeout=LIMIT_S)
    report = json.loads(done[0][1])
    assert [node["status"] for node in report["nodes"]] == ["examined", "examined", "unreachable"]
    assert report["nodes"][2]["name"] == "node rank 2"
    assert [status for status, _, _ in done] == [1, 1]  # torchrun's own, for ranks that left with 3


@needs_torch
def test_a_program_that_a_rank_starts_waits_for_nobody(hosts):
    python = PYTHONS[0]
    words = [
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        "--nproc_per_node=2",
        "--master_addr=j1",
        f"--master_port={PORT}",
    ]
    shell = f'if [ "$RANK" = 0 ]; then {python} -m ddp_doctor run --profile quick --select memory --brief; fi'
    started = time.monotonic()
    done = hosts[0].run([python, *words, "--no_python", "sh", "-c", f"{shell}; true"], check=False)
    assert done.stdout.startswith("READY"), done.stderr
    assert time.monotonic() - started < LIMIT_S


@needs_torch
def test_where_the_store_cannot_be_reached(hosts):
    python = PYTHONS[0]
    env = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "nowhere.invalid",
        "MASTER_PORT": str(PORT),
    }
    words = ["env", *(f"{name}={value}" for name, value in env.items()), python, "-m", "ddp_doctor", "run", "--in-job"]
    done = hosts[0].run([*words, "--profile", "quick", "--select", "memory", "--deadline", "3"], check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"no meeting in torch's store at nowhere.invalid:{PORT}" in done.stderr

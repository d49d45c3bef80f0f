"""``run --slurm`` with a real Slurm on three hosts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab.hosts import Unable
from lab.slurm import Slurm

pytestmark = pytest.mark.lab
LIMIT_S = 60
QUICK = ("--profile", "quick", "--select", "fleet,memory,pairs")


@pytest.fixture(scope="module")
def slurm(lab):
    try:
        made = Slurm(lab, "head", ["n1", "n2", "n3"])
    except Unable as error:
        pytest.skip(f"slurm: {error}")
    with made:
        yield made


def doctor(slurm, *arguments, env=None):
    done = slurm.run([sys.executable, "-m", "ddp_doctor", "run", *arguments], check=False, env=env)
    assert "Traceback" not in done.stderr
    return done


def examined(slurm, *arguments, env=None):
    done = doctor(slurm, "--json", "--slurm", *QUICK, *arguments, env=env)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    return done.returncode, report, {node["name"]: node["status"] for node in report["nodes"]}


def test_the_lab_has_a_real_slurm(slurm):
    done = slurm.run(["srun", "-N3", "hostname"])
    assert sorted(done.stdout.split()) == ["n1", "n2", "n3"]


def statuses_of(*nodes):
    return dict.fromkeys(nodes, "examined")


def reasons(report):
    return {node["name"]: node["reason"]["text"] for node in report["nodes"] if node["status"] == "unreachable"}


@pytest.mark.parametrize("way", [(), ("--push",)], ids=["installed", "pushed"])
def test_all_nodes_of_a_partition(slurm, way):
    status, report, statuses = examined(slurm, "--partition", "lab", *way)
    assert (status, statuses) == (0, statuses_of("n1", "n2", "n3"))
    for node in report["nodes"]:
        assert node["how"]["via"] == "slurm"
        assert abs(node["how"]["clock_offset_s"]) <= node["how"]["clock_error_s"] < 5


def test_the_nodes_of_an_allocation_and_the_ways_between_them(slurm):
    asked = ("--json", "--slurm", "--select", "pairs,launch,fleet")
    done = slurm.run(["salloc", "-Q", "-N2", "--nodelist=n[2-3]", sys.executable, "-m", "ddp_doctor", "run", *asked])
    report = json.loads(done.stdout)
    assert {node["name"]: node["status"] for node in report["nodes"]} == statuses_of("n2", "n3")
    assert ("pairs/ports-blocked", "passed") in {(v["check"], v["outcome"]) for v in report["verdicts"]}
    assert not [v for v in report["verdicts"] if v["outcome"] == "failed" and v["check"].startswith("launch/")]


def test_a_step_of_ours_does_not_look_like_the_jobs_ranks(slurm, tmp_path):
    words = [sys.executable, "-m", "ddp_doctor", "collect", "--profile", "quick", "--slurm", "--output", str(tmp_path)]
    slurm.run(["salloc", "-Q", "-N2", "-n2", *words])
    for path in tmp_path.glob("*.json"):
        launch = json.loads(path.read_text())["launch"]
        assert launch["nnodes"] == 2
        assert launch["slurm"]["NTASKS"] == "2"
        assert not {"rank", "world_size", "local_world_size", "local_rank"} & set(launch)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_node_that_is_not_of_the_allocation(slurm):
    words = [sys.executable, "-m", "ddp_doctor", "run", "--slurm", "--nodes", "n3"]
    done = slurm.run(["salloc", "-Q", "-N2", "--nodelist=n[1-2]", *words], check=False)
    assert done.returncode == 2
    assert "not in this allocation, which has n[1-2]: n3" in done.stderr


def test_names_that_slurm_does_not_know(slurm):
    status, report, statuses = examined(slurm, "--nodes", "n1,elsewhere")
    assert (status, statuses) == (3, {"n1": "examined", "elsewhere": "unreachable"})
    assert reasons(report) == {"elsewhere": "Slurm knows no node of this name"}
    done = doctor(slurm, "--slurm", "--partition", "nowhere")
    assert (done.returncode, "no partition 'nowhere'" in done.stderr) == (2, True)


def test_without_an_allocation_nodes_must_be_named(slurm):
    done = doctor(slurm, "--slurm")
    assert done.returncode == 2
    assert "name the nodes with --nodes, or a --partition" in done.stderr


def test_where_the_tool_is_not_installed(slurm):
    status, report, _ = examined(slurm, "--nodes", "n[1-2]", "--remote-command", "/nowhere/ddp-doctor")
    assert status == 3
    assert {text.split(" (")[0] for text in reasons(report).values()} == {"no ddp-doctor there"}


def test_a_node_on_which_only_one_fails(slurm):
    script = f'if [ "$SLURMD_NODENAME" = n2 ]; then exit 9; fi; exec {sys.executable} -m ddp_doctor'
    path = slurm.folder / "doctor"
    path.write_text(f'#!/bin/sh\n{script} "$@"\n')
    path.chmod(0o755)
    status, report, statuses = examined(slurm, "--partition", "lab", "--remote-command", str(path))
    assert (status, statuses) == (3, {**statuses_of("n1", "n3"), "n2": "unreachable"})
    assert "exit code 9" in reasons(report)["n2"]


def test_what_slurm_refuses_is_said_in_its_words(slurm):
    status, report, _ = examined(slurm, "--nodes", "n1", "--slurm-option", "constraint=nosuch")
    assert status == 3
    assert "Invalid feature specification" in reasons(report)["n1"]


@pytest.mark.parametrize(
    "given", [("--slurm-option", "x y"), ("--slurm-option", "-K"), ("--partition", "-K"), ("--ssh-user", "x")]
)
def test_what_srun_must_not_be_given(slurm, given):
    done = doctor(slurm, "--slurm", "--nodes", "n1", *given)
    assert done.returncode == 2
    assert given[1].split()[0] in done.stderr or "--ssh-user" in done.stderr


def test_a_drained_node_is_named_and_the_others_are_examined(slurm):
    slurm.run(["scontrol", "update", "nodename=n3", "state=drain", "reason=test"])
    try:
        status, report, statuses = examined(slurm, "--partition", "lab")
    finally:
        slurm.run(["scontrol", "update", "nodename=n3", "state=resume"])
    assert (status, statuses) == (3, {**statuses_of("n1", "n2"), "n3": "unreachable"})
    assert reasons(report)["n3"] == "Slurm says that it is drained"


def test_nodes_that_run_other_jobs_are_left_alone(slurm):
    slurm.run(
        ["sbatch", "--nodelist=n1", "-N1", "--exclusive", "--wrap", "exec cat"],
        env={"SBATCH_INPUT": "/dev/zero", "SBATCH_OUTPUT": "/dev/null"},
    )
    try:
        slurm.wait_for({"n1": ("allocated",)})
        status, report, statuses = examined(slurm, "--partition", "lab")
    finally:
        slurm.run(["scancel", "--user=root"])
        slurm.wait_for({"n1": ("idle",)})
    assert (status, statuses) == (3, {**statuses_of("n2", "n3"), "n1": "unreachable"})
    assert "other jobs run on it" in reasons(report)["n1"]


def test_ctrl_c_leaves_no_job_and_no_process(slurm):
    words = ["--slurm", "--partition", "lab", "--profile", "deep", "--sample", "600", "--select", "rates", "--json"]
    inside = ["env", f"SLURM_CONF={slurm.env['SLURM_CONF']}", sys.executable, "-m", "ddp_doctor", "run", *words]
    running = subprocess.Popen(slurm.head.argv(inside), stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + LIMIT_S
    while not programs(slurm):
        assert running.poll() is None
        assert time.monotonic() < end
    inner = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    os.kill(int(inner[0]) if inner else running.pid, signal.SIGINT)
    out, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 3
    assert {node["reason"]["kind"] for node in json.loads(out)["nodes"]} == {"interrupted"}
    while programs(slurm) or slurm.run(["squeue", "-h"]).stdout.strip():
        assert time.monotonic() < end


def programs(slurm):
    """Command lines of our programs on the nodes."""
    lines = [line for host in slurm.nodes.values() for line in host.run(["ps", "-ewwo", "args="]).stdout.splitlines()]
    return [line for line in lines if "ddp_doctor node" in line]


def test_without_slurm_it_is_said_what_is_missing(lab):
    alone = lab.hosts.get("alone") or lab.add("alone")
    done = alone.run([sys.executable, "-m", "ddp_doctor", "run", "--slurm", "--nodes", "n1"], check=False)
    assert done.returncode == 2
    assert "sinfo" in done.stderr

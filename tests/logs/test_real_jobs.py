"""Jobs of real torch, old and new, that really fail: the cause is named from what torch itself wrote."""

import os
import socket
import subprocess
from pathlib import Path

import pytest
from ddp_doctor import explain, registry
from ddp_doctor.logs import scan

REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not REAL, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch"),
]
LIMIT_S = 120
CHECKS = explain.of_logs(list(registry.load(plugins=False).checks.values()))
PATTERNS = explain.patterns(CHECKS)

START = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
"""
INIT = START + "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=10))\n"
MODEL = """
class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.a(x)
"""
JOBS = {
    "healthy": (INIT + "dist.all_reduce(torch.ones(4)); print('loss', 0.5); dist.destroy_process_group()\n", {}, "healthy"),
    "one rank raises": (INIT + "if rank == 1: raise KeyError('label')\ndist.all_reduce(torch.ones(4))\n", {}, "app-exception-one-rank"),
    "all ranks raise": (INIT + "open('/nowhere/data.bin')\n", {}, "app-exception-all-ranks"),
    "one rank is killed": (INIT + "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(torch.ones(4))\n", {}, "rank-killed"),
    "one rank is late": (INIT + "if rank == 1: time.sleep(60)\ndist.all_reduce(torch.ones(4))\n", {}, "slow-rank-timeout"),
    "shapes differ": (INIT + "dist.all_reduce(torch.ones(4 + rank))\n", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "desync-shape-mismatch"),
    "operations differ": (
        INIT + "dist.all_reduce(torch.ones(4)) if rank else dist.broadcast(torch.ones(4), 0)\n",
        {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        "desync-optype",
    ),
    "unused parameters": (
        INIT + MODEL + "m = torch.nn.parallel.DistributedDataParallel(Two())\nfor _ in range(3): m(torch.ones(1, 2)).sum().backward()\n",
        {},
        "ddp-unused-parameters",
    ),
    "models differ": (INIT + "torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(1 + rank)]))\n", {}, "ddp-model-mismatch"),
    "no such interface": (INIT, {"GLOO_SOCKET_IFNAME": "nosuch0"}, "gloo-ifname-wrong"),
    "a back end that is not there": (START + "dist.init_process_group('nccl')\n", {}, "backend-missing"),
}  # fmt: skip


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def torchrun(python, folder, script, env, *more, nodes=1, port=None):
    """What a job of two ranks on this machine wrote."""
    path = folder / "train.py"
    path.write_text(script)
    address = ["--master_addr=127.0.0.1", f"--master_port={port or free_port()}"]
    words = [
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        "--nproc_per_node=2",
        *address,
        *more,
        str(path),
    ]
    log = folder / "job.log"
    with open(log, "wb") as file:
        job = subprocess.Popen(
            words,
            stdout=file,
            stderr=file,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **env},
            start_new_session=True,
        )
        try:
            job.wait(LIMIT_S)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, 9)
                job.wait()
    return log


def first(log: Path):
    found = explain.explain(scan.scanned([str(log)], PATTERNS), CHECKS)
    return found.causes[0].id[5:] if found.causes else found.verdict


@pytest.mark.parametrize("python", REAL)
@pytest.mark.parametrize(("script", "env", "kind"), JOBS.values(), ids=JOBS)
def test_what_a_real_job_wrote(tmp_path, python, script, env, kind):
    log = torchrun(python, tmp_path, script, env)
    assert first(log) == kind, log.read_text()[-3000:]


@pytest.mark.parametrize("python", REAL)
def test_a_port_that_is_taken(tmp_path, python):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        log = torchrun(python, tmp_path, INIT, {}, port=taken.getsockname()[1])
    assert first(log) == "port-in-use", log.read_text()[-3000:]


@pytest.mark.parametrize("python", REAL)
def test_a_master_whose_name_is_not_known(tmp_path, python):
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "29500"}
    path = tmp_path / "train.py"
    path.write_text(START + "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=3))\n")
    with open(tmp_path / "job.log", "wb") as file:
        subprocess.run([python, str(path)], stdout=file, stderr=file, env={**os.environ, **env}, timeout=LIMIT_S)
    assert first(tmp_path / "job.log") == "rendezvous-hostname-resolution"

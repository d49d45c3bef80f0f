"""Launch: options, torch's variables and the launchers' own; which node is the master."""

from typing import Any, Dict

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import launch
from ddp_doctor.facts import Launch
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
     +-- 10.0.0.0/24 2 0 2
           |-- 10.0.0.0
              /24 link UNICAST
           |-- 10.0.0.7
              /31 link UNICAST
              /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
"""
NODE = {
    "/proc/net/fib_trie": TRIE,
    "/proc/net/if_inet6": "fd000000000000000000000000000007 04 40 00 82     eth0\n",
    "/proc/sys/kernel/hostname": "gpu7\n",
    "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 gpu7.example gpu7 # me\n10.0.0.7 gpu7-ib\n10.0.0.8\tgpu8 other\nx gpu9\n",
}
QUICK = Ask(profile="quick")


def read(env: Dict[str, str], ask: Ask = QUICK, files: Any = None, **entries: Any) -> Launch:
    files = NODE if files is None else files
    spoken = {"env ": {"value": env}, **entries}
    return launch.read(Recording(spoken, {"root" + path: text for path, text in files.items()}, complete=True), ask)


def test_nothing_says_anything() -> None:
    found = read({})
    fields = ("rank", "world_size", "nnodes", "node_rank", "master_addr", "master_port", "rendezvous", "is_master")
    assert {found.unread[name].kind for name in fields} == {"absent"}
    assert (found.launcher, found.sources, found.malformed, found.slurm) == ("none", {}, {}, {})


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu8",
    "MASTER_PORT": "29500",
}
OPENMPI = {f"OMPI_COMM_WORLD_{name}": n for name, n in {"RANK": "9", "SIZE": "16", "LOCAL_RANK": "1"}.items()}
STEP = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"}
STEP_TASKS = {**STEP, "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16"}
PET = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "gpu8:29400"}


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        (TORCHRUN, ("torchrun", 9, 16, 1, 1, 2, 8, "gpu8", 29500)),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, ("mpi", 9, 16, 1, None, None, 8, None, None)),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, ("none", None, None, None, None, None, None, None, None)),
        (
            {**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
            ("slurm", None, None, None, 1, 2, None, None, None),
        ),
        (STEP_TASKS, ("slurm", 9, 16, 1, 1, 2, None, None, None)),
        ({**STEP, "SLURM_STEP_NUM_NODES": "1"}, ("slurm", None, None, None, None, 2, None, None, None)),
        (PET, ("torchrun", None, None, None, None, 2, 8, "gpu8", 29400)),
        ({"PET_RDZV_ENDPOINT": "[fd00::1]:5"}, ("torchrun", None, None, None, None, None, None, "fd00::1", 5)),
        ({"PET_RDZV_ENDPOINT": "gpu8"}, ("torchrun", None, None, None, None, None, None, "gpu8", None)),
        ({"KUBERNETES_SERVICE_HOST": "10.1.0.1"}, ("kubernetes", None, None, None, None, None, None, None, None)),
    ],
)
def test_what_launchers_set(env: Dict[str, str], wanted: Any) -> None:
    found = read(env)
    ranks = (found.launcher, found.rank, found.world_size, found.local_rank, found.node_rank, found.nnodes)
    assert (*ranks, found.nproc_per_node, found.master_addr, found.master_port) == wanted
    assert found.malformed == {}


def test_options_win() -> None:
    ask = Ask(
        profile="quick", launcher="ssh", nnodes=4, node_rank=3, nproc_per_node=2, master_addr="10.0.0.9", master_port=1
    )
    found = read(TORCHRUN, ask)
    assert (found.launcher, found.nnodes, found.node_rank, found.nproc_per_node) == ("ssh", 4, 3, 2)
    assert (found.master_addr, found.master_port, found.is_master) == ("10.0.0.9", 1, False)
    assert (found.sources or {})["nnodes"] == "--nnodes"
    assert (found.sources or {})["rank"] == "RANK"


@pytest.mark.parametrize(
    ("variable", "field", "text", "value"),
    [
        ("RANK", "rank", "abc", None),
        ("RANK", "rank", "", None),
        ("RANK", "rank", "-1", None),
        ("RANK", "rank", "1.0", None),
        ("RANK", "rank", "٣", None),
        ("RANK", "rank", "9" * 5000, None),
        ("RANK", "rank", " 3\n", 3),
        ("WORLD_SIZE", "world_size", "0", None),
        ("MASTER_PORT", "master_port", "65536", None),
        ("MASTER_PORT", "master_port", "29500", 29500),
        ("MASTER_ADDR", "master_addr", "tcp://10.0.0.1", None),
        ("MASTER_ADDR", "master_addr", "10.0.0.1:29500", None),
        ("MASTER_ADDR", "master_addr", "-oProxyCommand=x", None),
        ("MASTER_ADDR", "master_addr", "$(id)", None),
        ("MASTER_ADDR", "master_addr", "gpu8 ", None),
        ("MASTER_ADDR", "master_addr", "a\0b", None),
        ("MASTER_ADDR", "master_addr", "gpu_8.example.", "gpu_8.example."),
        ("MASTER_ADDR", "master_addr", "fe80::1%eth0", "fe80::1%eth0"),
        ("PET_NNODES", "nnodes", "2:2", 2),
        ("PET_NNODES", "nnodes", "many", None),
    ],
)
def test_malformed_values(variable: str, field: str, text: str, value: Any) -> None:
    found = read({variable: text})
    assert getattr(found, field) == value
    assert found.malformed == ({} if value is not None else {variable: text[:200]})
    assert found.unread[field].kind == "unreadable" if value is None else field not in found.unread


@pytest.mark.parametrize(
    ("variable", "field", "text"),
    [("PET_NNODES", "nnodes", "1:4"), ("PET_NPROC_PER_NODE", "nproc_per_node", "gpu")],
)
def test_what_is_settled_at_launch_is_not_malformed(variable: str, field: str, text: str) -> None:
    found = read({variable: text})
    assert (found.malformed, found.unread[field].kind) == ({}, "not-applicable")


@pytest.mark.parametrize(
    ("env", "is_master"),
    [
        ({"MASTER_ADDR": "10.0.0.7"}, True),
        ({"MASTER_ADDR": "10.0.0.8"}, False),
        ({"MASTER_ADDR": "10.0.0.255"}, False),
        ({"MASTER_ADDR": "fd00::7"}, True),
        ({"MASTER_ADDR": "fd00:0::7%eth0"}, True),
        ({"MASTER_ADDR": "GPU7"}, True),
        ({"MASTER_ADDR": "gpu7.cluster.local"}, True),
        ({"MASTER_ADDR": "gpu7-ib"}, True),
        ({"MASTER_ADDR": "gpu8"}, False),
        ({"MASTER_ADDR": "10.0.0.7", "GROUP_RANK": "1"}, False),
        ({"MASTER_ADDR": "203.0.113.5", "PET_NODE_RANK": "0"}, True),
        ({"MASTER_ADDR": "10.0.0.8", "RANK": "0"}, True),
        ({"MASTER_ADDR": "10.0.0.7", "RANK": "3"}, True),
        ({**STEP, "MASTER_ADDR": "10.0.0.7"}, True),
        ({**STEP, "SLURM_NODEID": "0"}, True),
        (STEP, False),
        ({"PET_NNODES": "1", "MASTER_ADDR": "localhost"}, True),
    ],
)
def test_who_is_the_master(env: Dict[str, str], is_master: bool) -> None:
    assert read(env).is_master is is_master


@pytest.mark.parametrize(
    ("env", "files", "kind"),
    [
        ({"MASTER_ADDR": "localhost", "PET_NNODES": "2"}, NODE, "not-applicable"),
        ({"MASTER_ADDR": "127.0.0.1"}, NODE, "not-applicable"),
        ({"MASTER_ADDR": "gpu9"}, NODE, "not-asked"),
        ({"MASTER_ADDR": "10.0.0.7"}, {}, "absent"),
        ({"MASTER_ADDR": "10.0.0.7:1"}, NODE, "absent"),
    ],
)
def test_the_master_cannot_be_told(env: Dict[str, str], files: Dict[str, str], kind: str) -> None:
    found = read(env, files=files)
    assert (found.is_master, found.unread["is_master"].kind) == (None, kind)


def test_the_resolver_is_asked_only_in_an_active_profile() -> None:
    env = {"MASTER_ADDR": "head.example"}
    resolved = {"resolve head.example": {"value": ["fd00::7"]}}
    unknown = {"resolve head.example": {"reason": {"kind": "unresolved", "text": "Name or service not known"}}}
    assert read(env, Ask(), **resolved).is_master is True
    assert read(env, QUICK, **resolved).unread["is_master"].kind == "not-asked"
    assert read(env, Ask(), **unknown).unread["is_master"].kind == "unresolved"


def test_slurms_words_and_no_guess_from_the_node_list() -> None:
    found = read({**STEP_TASKS, "SLURM_JOB_NODELIST": "gpu[7-8]", "SLURM_CONF": "/etc/slurm"})
    assert (found.slurm or {})["JOB_NODELIST"] == "gpu[7-8]"
    assert "CONF" not in (found.slurm or {})
    assert found.master_addr is None


@pytest.mark.parametrize(
    ("env", "rendezvous"),
    [(PET, "c10d"), ({"PET_NODE_RANK": "0", "PET_MASTER_ADDR": "a"}, "static"), (TORCHRUN, None)],
)
def test_rendezvous(env: Dict[str, str], rendezvous: Any) -> None:
    assert read(env).rendezvous == rendezvous


def test_this_machines_own_addresses(monkeypatch: Any) -> None:
    for name in ("GROUP_RANK", "PET_NODE_RANK", "RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    own = [address for address in launch._own_addresses(Host()) if address not in ("127.0.0.1", "::1")]
    asks = [Ask(profile="quick", master_addr=address, nnodes=2) for address in (*own, "192.0.2.250")]
    assert [launch.read(Host(), ask).is_master for ask in asks] == [True] * len(own) + [False]


HYDRA = """HYDRA build details:
    Version:                                 3.3.2
    Release Date:                            Tue Nov 12 21:23:16 CST 2019
    CC:                              gcc
"""
INTEL = """Intel(R) MPI Library for Linux* OS, Version 2019 Update 12 Build 20210429 (id: e380127cb)
Copyright 2003-2021, Intel Corporation.
"""


@pytest.mark.parametrize(
    ("text", "mpi"),
    [
        ("mpirun (Open MPI) 4.0.3\n\nReport bugs to http://www.open-mpi.org/community/help/\n", "Open MPI 4.0.3"),
        ("mpirun (Open MPI) 5.0.2\n", "Open MPI 5.0.2"),
        ("a remark\nmpirun (Open MPI) 4.1.0rc1\n", "Open MPI 4.1.0rc1"),
        ("mpirun (IBM Spectrum MPI) 10.3.1.02rtm0\n", "IBM Spectrum MPI 10.3.1.02rtm0"),
        (INTEL, "Intel(R) MPI 2019 Update 12"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n", "Intel(R) MPI 2021.11"),
        (HYDRA, "Hydra 3.3.2"),
        ("", None),
        ("mpirun (Open MPI)\n", None),
        ("mpirun (Open MPI) 4.0.3 but not really\n", None),
        ("mpirun (Open MPI) " + "4" * 10000, None),
        ("\x00\x1b[2J(" * 10000, None),
    ],
)
def test_what_mpirun_is(text: str, mpi: Any) -> None:
    found = read({}, Ask(profile="quick", launcher="mpirun"), **mpirun(text))
    assert found.mpi == mpi
    assert mpi is not None or found.unread["mpi"].kind == "unreadable"


def mpirun(text: str) -> Any:
    return {"run mpirun-version": {"value": {"status": 0, "stdout": text, "stderr": ""}}}


@pytest.mark.parametrize(
    ("env", "launcher", "used"),
    [
        ({}, "mpirun", True),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, None, True),
        ({**OPENMPI, **TORCHRUN}, "torchrun", True),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}, None, True),
        ({**STEP_TASKS, "PMI_RANK": "1", "PMI_SIZE": "2"}, None, False),
        (TORCHRUN, "torchrun", False),
        ({}, None, False),
    ],
)
def test_mpirun_is_asked_only_where_mpi_is_used(env: Dict[str, str], launcher: Any, used: bool) -> None:
    found = read(env, Ask(profile="quick", launcher=launcher), **mpirun("mpirun (Open MPI) 4.0.3\n"))
    assert found.mpi == ("Open MPI 4.0.3" if used else None)
    assert used or found.unread["mpi"].kind == "not-asked"


def test_an_mpirun_that_is_absent_or_hangs(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch, "_MPIRUN_LIMIT_S", 0.2)
    ask = Ask(profile="quick", launcher="mpirun")
    assert launch.read(Host(), ask).unread["mpi"].kind == "absent"
    tool = tmp_path / "mpirun"
    tool.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    tool.chmod(0o755)
    assert launch.read(Host(), ask).unread["mpi"].kind == "timed-out"


def test_without_an_environment_nothing_says_that_mpi_is_used() -> None:
    no_env = {"env ": {"reason": {"kind": "no-rights", "text": "not for you"}}}
    assert read({}, **no_env).unread["mpi"].kind == "no-rights"
    said = read({}, Ask(profile="quick", launcher="mpirun"), **no_env, **mpirun("mpirun (Open MPI) 4.0.3\n"))
    assert said.mpi == "Open MPI 4.0.3"

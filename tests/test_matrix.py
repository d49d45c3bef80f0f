"""What goes with what, and what to install on a node: the questions, the answers, and their errors."""

import json
from dataclasses import replace

import pytest
from ddp_doctor import compat, document, here, matrix, matrix_page, tables
from ddp_doctor.facts import Gpu, Gpus, NodeFacts, Os, PciGpu, Reason, Torch
from ddp_doctor.matrix import UnknownValue, asked, rows
from ddp_doctor.versions import newer
from running import NODES, doctor


def first(**question):
    """The newest build that fits a question: 2.4.1+cu121; None where none does."""
    found = rows(asked(**question))
    return f"{found[0].torch}+{found[0].build}" if found else None


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"torch": "2.4"}, "2.4.1+cu121"),
        ({"torch": "2.4.0"}, "2.4.0+cu121"),
        ({"torch": "2.1"}, "2.1.2+cu121"),
        ({"torch": "torch==2.4.1+cu118"}, "2.4.1+cu118"),
        ({"torch": "1.12", "cuda": "11.3"}, "1.12.1+cu113"),
        ({"cuda": "cu124"}, "2.6.0+cu124"),
        ({"cuda": "11"}, "2.7.1+cu118"),
        ({"driver": "535.104.05"}, "2.14.1+cu126"),
        ({"driver": "535"}, "2.14.1+cu126"),
        ({"driver": "R470"}, "2.7.1+cu118"),
        ({"driver": "525.60.12"}, "2.7.1+cu118"),
        ({"driver": "999.1"}, "2.15.0+cu132"),
        ({"driver": "390.157"}, None),
        ({"python": "3.8"}, "2.4.1+cu121"),
        ({"python": "python3.8.10"}, "2.4.1+cu121"),
        ({"python": "3.13t"}, "2.12.0+cu130"),
        ({"gpus": ["V100"]}, "2.14.1+cu126"),
        ({"gpus": ["V100", "H100"]}, "2.14.1+cu126"),
        ({"gpus": ["3.7"]}, "2.7.1+cu118"),
        ({"gpus": ["RTX 5090"], "cuda": "12.4"}, None),
        ({"os": "centos-7"}, "2.6.0+cu124"),
        ({"os": "ubuntu 22.04"}, "2.15.0+cu132"),
        ({"os": "glibc 2.17", "python": "3.14"}, None),
        ({"machine": "aarch64"}, "2.15.0+cu132"),
        ({"machine": "aarch64", "driver": "535"}, None),
    ],
)
def test_the_newest_build_that_fits(question, expected):
    assert first(**question) == expected


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("A100", "8.0"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA A100-PCIE-40GB MIG 1g.5gb", "8.0"),
        ("A10", "8.6"),
        ("Tesla T4", "7.5"),
        ("nvidia geforce rtx 4090", "8.9"),
        ("RTX 3090 Ti", "8.6"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("hopper", "9.0"),
        ("sm_90a", "9.0"),
        ("12.1", "12.1"),
        ("GB200", "10.0"),
        ("NVIDIA GB10", "12.1"),
    ],
)
def test_gpus_are_known_by_model_architecture_and_number(name, capability):
    assert asked(gpus=[name]).capabilities == (capability,)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"torch": "2.4.9"}, r"torch '2.4.9': .*nearest: 2.4.1, 2.5.0"),
        ({"torch": "2.4.1+cu117"}, r"its builds: cu118, cu121, cu124"),
        ({"torch": "latest"}, r"nearest: 2.15.0"),
        ({"cuda": "12.3"}, r"CUDA '12.3': .*nearest: 12.1, 12.4"),
        ({"driver": "53"}, r"driver '53': .*nearest: 418"),
        ({"driver": "new"}, r"driver 'new'"),
        ({"python": "3.5"}, r"Python '3.5': .*nearest: 3.6"),
        ({"python": "3.16"}, r"nearest: 3.15$"),
        ({"python": "snake"}, r"Python 'snake'"),
        ({"gpus": ["H1000"]}, r"nearest: H100"),
        ({"gpus": ["RTX"]}, r"may be 7.5, 8.6, 8.9, 12.0"),
        ({"gpus": ["Blackwell"]}, r"may be 10.0, 12.0"),
        ({"gpus": ["9.9"]}, r"nearest: 9.0, 10.0"),
        ({"gpus": [""]}, r"GPU ''"),
        ({"os": "ubuntu 23.10"}, r"nearest: Ubuntu"),
        ({"os": "\x1b[2J"}, r"say: glibc"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is_near(question, says):
    with pytest.raises(UnknownValue, match=says):
        asked(**question)


def test_where_nothing_fits_each_thing_alone_that_would_help_is_named():
    eased = matrix.without_one(asked(cuda="12.1", driver="470.57.02"))
    assert {name: f"{row.torch}+{row.build}" for name, row in eased.items()} == {
        "cuda": "2.7.1+cu118",
        "driver": "2.5.1+cu121",
    }


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        ("1.12", "The official wheels of torch 1.12 hold NCCL 2.10.3; guides that say 2.12 are wrong."),
        ("2.0", "The official wheels of torch 2.0 hold NCCL 2.14.3; guides that say 2.16 are wrong."),
    ],
)
def test_where_guides_err_it_is_said(torch, says):
    wanted = asked(torch=torch)
    assert says in matrix_page.text(wanted, rows(wanted))
    assert json.loads(matrix.as_json(wanted, rows(wanted)))["remarks"] == [says]


def test_what_rests_on_a_row_of_low_confidence_is_called_probable():
    low = {row.torch for row in tables.torch() if row.confidence == "low"}
    assert low
    for torch in low:
        wanted = asked(torch=torch)
        probable = [line for line in matrix_page.text(wanted, rows(wanted)).splitlines() if f"{torch} probably" in line]
        assert len(probable) == sum(row.confidence == "low" for row in rows(wanted))


@pytest.mark.parametrize("build", tables.torch(), ids=lambda build: f"{build.torch}+{build.build}")
def test_every_build_has_a_row_and_a_source(build):
    plain = matrix.plain(build)
    assert (plain["driver"]["minimum"], plain["source"][0]) == (compat.driver_floor(build.cuda).version, build.source)
    assert plain["install"].startswith(f"pip install torch=={build.torch}")
    assert json.loads(json.dumps(plain)) == plain


# --------------------------------------------------------------------------- this node

UBUNTU = Os(id="ubuntu", pretty="Ubuntu 22.04.5 LTS", kernel="5.15.0", machine="x86_64", glibc="2.35", container="")
PYTHON = Torch(python="/env/bin/python", python_version="3.12.3", installed=False)
ON_BUS = (PciGpu("0000:07:00.0", "0x2330", "nvidia"),)
NONE = Gpus(kernel_module="", gpus=(), on_bus=(), other_vendor=())


def gpus(driver="580.95.05", name="NVIDIA H100 80GB HBM3", capability="9.0", **more):
    gpu = Gpu(0, name=name, compute_capability=capability)
    return Gpus(**{"driver": driver, "kernel_module": driver, "gpus": (gpu,), "on_bus": ON_BUS, **more})


def advise(os=UBUNTU, gpus=NONE, torch=PYTHON, reasons=None, **asked):
    return here.advise(NodeFacts("node1", os=os, gpus=gpus, torch=torch, reasons=reasons or {}), **asked)


CU126 = "--index-url https://download.pytorch.org/whl/cu126"
CPU = "--index-url https://download.pytorch.org/whl/cpu"


@pytest.mark.parametrize(
    ("facts", "pip"),
    [
        ({"gpus": gpus()}, "install torch==2.15.0"),
        ({"gpus": gpus("535.104.05")}, f"install torch==2.14.1 {CU126}"),
        ({"gpus": gpus(name="Tesla V100-SXM2-16GB", capability="7.0")}, f"install torch==2.14.1 {CU126}"),
        ({"gpus": gpus(capability=None)}, "install torch==2.15.0"),
        ({"gpus": gpus("440.33"), "driver": "580.95.05"}, "install torch==2.15.0"),
        ({"gpus": gpus(), "os": replace(UBUNTU, glibc="2.17")}, "install torch==2.6.0"),
        ({"gpus": gpus(), "os": replace(UBUNTU, machine="aarch64")}, "install torch==2.15.0"),
        ({}, f"install torch==2.15.0 {CPU}"),
        ({"os": replace(UBUNTU, glibc="2.17")}, f"install torch==2.6.0 {CPU}"),
        ({"gpus": Gpus(kernel_module="535.1", gpus=(), on_bus=ON_BUS, admitted=0)}, f"install torch==2.15.0 {CPU}"),
    ],
)
def test_what_to_install_here(facts, pip):
    assert advise(**facts).install == f"/env/bin/python -m pip {pip}"


def test_another_python_is_called_by_its_own_name():
    assert advise(gpus=gpus(), python="3.8").install == "python3.8 -m pip install torch==2.4.1"


def test_where_pip_would_change_nothing_the_old_build_goes_first():
    there = replace(PYTHON, installed=True, version="2.14.1+cu130", cuda="13.0", flavour="official-wheel")
    assert advise(gpus=gpus("535.1"), torch=there).install.startswith("/env/bin/python -m pip uninstall -y torch && ")


def test_the_torch_of_an_image_is_left_alone():
    there = replace(PYTHON, installed=True, version="2.4.0a0+07cecf4168.nv24.05", cuda="12.4", flavour="ngc")
    assert "in an environment of its own" in advise(gpus=gpus(), torch=there).remarks[-1]


def test_a_hostile_path_is_quoted():
    advice = advise(torch=replace(PYTHON, python="/tmp/$(id)\x1b[2J/python"))
    assert advice.install.startswith("'/tmp/$(id)\x1b[2J/python' -m pip")
    assert "\x1b" not in matrix_page.advice(advice)


@pytest.mark.parametrize(
    ("facts", "says", "known"),
    [
        (
            {"gpus": gpus("390.157")},
            "No official wheel of torch runs on this node. With another driver: torch 2.15.0",
            True,
        ),
        (
            {"gpus": replace(NONE, on_bus=ON_BUS)},
            "Install NVIDIA's driver first, then ask again: 1 GPU on the bus",
            True,
        ),
        ({"gpus": gpus(None, kernel_module=None)}, "Cannot say: the driver is not known", False),
        ({"gpus": gpus(name="Radeon", capability=None)}, "Cannot say: the compute capability", False),
        ({"gpus": gpus(gpus=())}, "Cannot say: the compute capability", False),
        (
            {"gpus": None, "reasons": {"gpus": Reason("timed-out", "too slow")}},
            "the GPUs are not known (too slow)",
            False,
        ),
        ({"gpus": replace(NONE, other_vendor=("amd 0000:03:00.0",))}, "Not judged: GPUs of another vendor", True),
        ({"torch": None}, "Cannot say: the version of Python is not known", False),
        ({"os": None}, "Cannot say: the machine or its C library", False),
        ({"os": replace(UBUNTU, glibc=None, unread={"glibc": Reason("absent", "musl")})}, "has no glibc", True),
        ({"os": replace(UBUNTU, machine="ppc64le")}, "no official wheel of torch with CUDA for ppc64le", True),
        ({"os": replace(UBUNTU, kernel="5.15.136-tegra")}, "A Jetson", True),
    ],
)
def test_where_nothing_can_be_named_the_reason_is(facts, says, known):
    advice = advise(**facts)
    assert says in advice.says
    assert (advice.install, advice.known) == (None, known)


def test_every_recorded_node_gets_what_it_can_run():
    for path in sorted(NODES.glob("*/facts.json")):
        facts = document.facts_from(json.loads(path.read_text()))
        advice = here.advise(facts)
        assert advice.install, path
        if advice.build:
            assert compat.driver_runs(facts.gpus.driver, advice.build.cuda)
            assert compat.has_wheel_for(advice.build, facts.torch.python_version)
            assert compat.glibc_fits(advice.build, facts.os.glibc, facts.os.machine)
        assert json.loads(here.as_json(advice))["install"] == advice.install


# --------------------------------------------------------------------------- the command


def test_the_command_prints_a_table():
    done = doctor("matrix", "--torch", "2.4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split() == [
        "torch",
        "CUDA",
        "driver",
        "Python",
        "glibc",
        "GPUs",
        "NCCL",
        "cuDNN",
    ]
    assert "2.4.1    12.1 *  >= 525.60.13  3.8-3.12  >= 2.17" in done.stdout


def test_the_command_prints_json():
    found = json.loads(doctor("matrix", "--all", "--json").stdout)
    assert found["schema_version"] == "1.0"
    assert len(found["builds"]) == len(tables.torch())
    order = [newer(build["torch"]) for build in found["builds"]]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--torch", "2.4.9"], 2, "nearest: 2.4.1, 2.5.0"),
        (["--gpu", "\x1b[2J"], 2, r"\x1b[2J"),
        (["--here", "--gpu", "H100"], 2, "only --python and --driver"),
        (["--replay", "/no/such/bundle"], 2, "/no/such/bundle"),
        (["--driver", "470", "--cuda", "12.1"], 1, "with another driver: torch 2.5.1"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, status, says):
    done = doctor("matrix", *arguments)
    assert (done.returncode, "\x1b" in done.stdout + done.stderr) == (status, False)
    assert says in done.stdout + done.stderr


def test_the_command_looks_at_this_node():
    plain, named = doctor("matrix"), doctor("matrix", "--here")
    assert plain.stdout == named.stdout
    assert plain.returncode in (0, 1, 3)
    assert json.loads(doctor("matrix", "--json").stdout)["node"]["system"]


@pytest.mark.parametrize("text", ["1e9", "2..4", "2.4.", "two"])
def test_what_is_no_version_of_torch_is_refused(text):
    with pytest.raises(matrix.UnknownValue, match="no version"):
        matrix.asked(torch=text)

"""tools/verify_matrix.py: what it reads out of a wheel's metadata, and what it says of rows that differ."""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from ddp_doctor import compat
from ddp_doctor.versions import at_least

TOOL = Path(__file__).parents[1] / "tools" / "verify_matrix.py"
NEWEST = compat.newest_torch()
FIRST_PIP = "25.2"
"""pip index versions --json came by then."""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("verify_matrix", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        (["nvidia-nccl-cu12==2.20.5 ; platform_system == 'Linux'", "nvidia-cudnn-cu12 (==9.1.0.70)"], ("2.20.5", "9.1.0.70", None)),
        (["nvidia-cuda-runtime-cu12==12.1.105", "nvidia-nccl-cu12==2.20.5"], ("2.20.5", None, "12.1.105")),
        (["cuda-toolkit[cublas,cudart]==13.0.3; platform_system == 'Linux'"], (None, None, "13.0.3")),
        (["filelock", "my-nvidia-nccl-cu12==1.0"], (None, None, None)),
        ([], (None, None, None)),
    ],
)  # fmt: skip
def test_what_a_wheel_requires(tool, requires, expected):
    found = tool.required({"requires_dist": requires})
    assert (found.nccl, found.cudnn, found.cuda) == expected


def test_where_row_and_wheel_differ_both_are_said(tool):
    wheel = tool.Wheel(NEWEST.nccl, NEWEST.cudnn, f"{NEWEST.cuda}.2")
    assert list(tool.differences(NEWEST, wheel)) == []
    assert list(tool.differences(replace(NEWEST, nccl="2.1.0", cuda="9.0"), wheel)) == [
        f"NCCL: the row has 2.1.0, the wheel requires {NEWEST.nccl}",
        f"CUDA: the row has 9.0, the wheel requires {NEWEST.cuda}",
    ]
    assert list(tool.differences(NEWEST, replace(wheel, nccl=None))) == [
        f"NCCL: the row has {NEWEST.nccl}, the wheel requires none"
    ]


def test_pythons_that_a_row_lacks_or_has_too_many_are_said(tool):
    assert list(tool.pythons_differ(NEWEST, "x86_64", NEWEST.pythons)) == []
    assert list(tool.pythons_differ(NEWEST, "x86_64", (*NEWEST.pythons[1:], "3.99"))) == [
        "Python on x86_64: wheels for 3.99, which the row lacks",
        f"Python on x86_64: no wheels for {NEWEST.pythons[0]}, which the row has",
    ]


def test_the_newest_versions_are_chosen(tool):
    rows = tool.chosen(5)
    assert len({row.torch for row in rows}) == 5
    assert rows[0] == NEWEST


def wheel(folder, python, nccl):
    """A wheel of the newest torch with nothing in it but its metadata."""
    number, t = re.fullmatch(r"([\d.]+)(t?)", python).groups()
    tag = f"cp{number.replace('.', '')}-cp{number.replace('.', '')}{t}-manylinux_2_28_x86_64"
    requires = [
        f"Requires-Dist: nvidia-nccl-cu13=={nccl}",
        f"Requires-Dist: nvidia-cudnn-cu13=={NEWEST.cudnn}",
        f"Requires-Dist: cuda-toolkit=={NEWEST.cuda}.1",
    ]
    info = f"torch-{NEWEST.torch}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{NEWEST.torch}-{tag}.whl", "w") as archive:
        archive.writestr(
            f"{info}/METADATA",
            "\n".join(["Metadata-Version: 2.1", "Name: torch", f"Version: {NEWEST.torch}", *requires, ""]),
        )
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
@pytest.mark.skipif(not at_least(metadata.version("pip"), FIRST_PIP), reason=f"needs pip {FIRST_PIP}")
@pytest.mark.parametrize(
    ("nccl", "pythons", "status", "says"),
    [
        (NEWEST.nccl, NEWEST.pythons, 0, "for x86_64: as the row says"),
        ("2.1.0", NEWEST.pythons[1:], 1, f"NCCL: the row has {NEWEST.nccl}, the wheel requires 2.1.0"),
        (NEWEST.nccl, (), 3, "for x86_64: could not be asked"),
    ],
)
def test_real_pip_over_real_wheels(tmp_path, nccl, pythons, status, says):
    for python in pythons:
        wheel(tmp_path, python, nccl)
    only_here = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(
        [sys.executable, TOOL, "--versions", "1"],
        env={**mine, **only_here},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    assert says in done.stdout
    assert "for aarch64: could not be asked" in done.stdout

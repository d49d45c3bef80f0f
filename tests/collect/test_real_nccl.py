"""Real wheels of NCCL, one installed over the other: the version that is loaded is found. No GPU is needed for that."""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_doctor import probe
from ddp_doctor.ask import Ask
from ddp_doctor.collect import cuda, torch
from ddp_doctor.host import Host
from judging import judged

CACHE = Path(__file__).parents[2] / ".tests-env" / "wheels"
"""Kept between runs, as the environments beside it are."""
OLD, NEW, OTHER = ("nvidia-nccl-cu12", "2.16.2"), ("nvidia-nccl-cu12", "2.18.1"), ("nvidia-nccl-cu11", "2.14.3")
"""Among the smallest wheels of NCCL: 189, 210 and 177 MB."""
LOAD = "import ctypes, json, sys; ctypes.CDLL(sys.argv[1]); import probe; print(json.dumps(probe.nccl_loaded(None)))"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="these wheels are for x86_64"),
]


def pip(python, *arguments):
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def download(wheel):
    CACHE.mkdir(parents=True, exist_ok=True)
    name = "==".join(wheel)
    if not list(CACHE.glob(f"{wheel[0].replace('-', '_')}-{wheel[1]}-*.whl")):
        got = pip(sys.executable, "download", "--no-deps", "--only-binary", ":all:", "-d", str(CACHE), name)
        if got.returncode != 0:
            pytest.skip(f"{name} cannot be downloaded: {got.stderr.strip().splitlines()[-1:]}")


@pytest.fixture
def environment(tmp_path):
    """An environment with pip and the metadata of a torch that requires the newer wheel."""
    for wheel in (OLD, NEW, OTHER):
        download(wheel)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True, timeout=120)
    (site,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    for path, text in {
        "torch/version.py": "__version__ = '2.1.2+cu121'\ncuda = '12.1'\nhip = None\n",
        "torch/__init__.py": "",
        "torch-2.1.2+cu121.dist-info/METADATA": f"Name: torch\nRequires-Dist: {'=='.join(NEW)}\n\n",
        "torch-2.1.2+cu121.dist-info/INSTALLER": "pip\n",
    }.items():
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_text(text)
    yield tmp_path / "env/bin/python"
    shutil.rmtree(str(tmp_path))


def installed(python, wheel):
    """The versions of libnccl by the files alone and by loading it, and the verdict about packages, after one more wheel."""
    done = pip(python, "install", "--no-deps", "--no-index", f"--find-links={CACHE}", "==".join(wheel))
    assert done.returncode == 0, done.stderr
    ask = Ask(profile="quick", python=str(python))
    facts = {"torch": torch.read(Host(), ask), "cuda": cuda.read(Host(), ask)}
    (found,) = [library for library in facts["cuda"].nccls if library.where == "wheel"]
    here = str(Path(probe.__file__).parent)
    load = [str(python), "-c", LOAD, found.path]
    said = subprocess.run(load, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": here}, check=True)
    (verdict,) = judged("stack/packages-overwrite-each-other", **facts)
    return found.version, json.loads(said.stdout)[0][1], verdict


def test_the_version_that_is_loaded_is_found_whatever_was_installed_last(environment):
    for wheel in (OLD, NEW):
        by_files, loaded, verdict = installed(environment, wheel)
        assert (by_files, loaded, verdict.outcome.value) == (wheel[1], wheel[1], "passed")
    by_files, loaded, verdict = installed(environment, OTHER)
    assert (by_files, loaded) == (OTHER[1], OTHER[1])
    assert verdict.message == "2 packages of NCCL write one file, and 2.14.3 is there"
    assert verdict.expected == "one package of NCCL, 2.18.1"
    by_files, loaded, verdict = installed(environment, (NEW[0], NEW[1]))
    assert verdict.outcome.value == "failed"  # pip says that it is there already, and changes nothing

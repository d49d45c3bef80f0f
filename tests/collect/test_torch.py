"""Torch: the static look at many layouts, the probe in real interpreters with torches that work, break, hang and die."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import torch
from ddp_doctor.facts import LoadedLibrary, to_plain
from ddp_doctor.host import Host
from ddp_doctor.probe import MARK, nccl_number
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable

VERSION = "__version__ = '{}'\ndebug = False\ncuda = {}\ngit_version = '664058fa83f1'\nhip = None\n"
REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]
QUICK, STANDARD = Ask(profile="quick"), Ask(profile="standard")


def tree(files: Dict[str, str], env: Dict[str, str], **entries: Any) -> Recording:
    """A node made of files, whose own interpreter has no torch."""
    own = {"path": "/opt/doctor/bin/python", "prefix": "/opt/doctor", "sites": ["/opt/doctor/s"], "version": "3.12.1"}
    spoken = {"env ": {"value": env}, "ask own-interpreter": {"value": own}, **entries}
    modes = {"mode": 0o755, "uid": 0, "gid": 0, "size_bytes": 9, "readable": True, "writable": False}
    for path in files:
        if re.search("/(bin|shims)/", path):
            spoken[f"stat {path}"] = {"value": {"kind": "file", **modes}}
    return Recording(spoken, {"root" + path: text for path, text in files.items()}, complete=True)


def quick(files: Dict[str, str], env: Dict[str, str], **entries: Any) -> Any:
    return torch.read(tree(files, env, **entries), QUICK)


# ----------------------------------------------------------------------------------------------- which interpreter

VENV = {
    "/v/pyvenv.cfg": "home = /usr/bin\nversion = 3.10.4\ninclude-system-site-packages = false\n",
    "/v/bin/python3": "",
    "/v/lib/python3.10/site-packages/six.py": "",
}
CONDA = {
    "/c/bin/python3": "",
    "/c/lib/python3.9/os.py": "",
    "/c/conda-meta/python-3.9.16-h7a1cb2a_2.json": "{}",
    "/c/conda-meta/pytorch-1.13.1-py3.9_cuda11.7_cudnn8.5.0_0.json": "{}",
    "/c/conda-meta/nccl-2.14.3.1-h0800d71_0.json": "{}",
    "/c/lib/python3.9/site-packages/torch/version.py": VERSION.format("1.13.1", "'11.7'"),
}
DEBIAN = {
    "/usr/bin/python3": "",
    "/usr/lib/python3.11/os.py": "",
    "/usr/lib/python3/dist-packages/torch/version.py": VERSION.format("1.13.1", "None"),
    "/usr/lib/python3/dist-packages/torch-1.13.1.egg-info": "",
}
SYSTEM = {"PATH": "relative:/sbin:/usr/bin", "HOME": "/home/ana"}


@pytest.mark.parametrize(
    ("files", "env", "ask", "chosen", "installed"),
    [
        (
            {**VENV, **CONDA},
            {"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c"},
            QUICK,
            ("/v/bin/python3", "$VIRTUAL_ENV"),
            False,
        ),
        ({**VENV, **CONDA}, {"CONDA_PREFIX": "/c"}, QUICK, ("/c/bin/python3", "$CONDA_PREFIX"), True),
        ({**VENV, **DEBIAN}, {"VIRTUAL_ENV": "/gone", **SYSTEM}, QUICK, ("/usr/bin/python3", "PATH"), True),
        (VENV, {"PATH": "/v/bin"}, QUICK, ("/opt/doctor/bin/python", "own interpreter"), False),
        ({}, {}, QUICK, ("/opt/doctor/bin/python", "own interpreter"), False),
        (CONDA, SYSTEM, Ask(profile="quick", python="/c"), ("/c/bin/python3", "--python"), True),
        (DEBIAN, SYSTEM, Ask(profile="quick", python="python3"), ("/usr/bin/python3", "--python"), True),
        (VENV, {"HOME": "/v"}, Ask(profile="quick", python="~/bin/python3"), ("/v/bin/python3", "--python"), False),
    ],
)
def test_which_interpreter(files: Any, env: Any, ask: Ask, chosen: Any, installed: bool) -> None:
    found = torch.read(tree(files, env), ask)
    assert ((found.python, found.python_chosen_by), found.installed) == (chosen, installed)


def test_an_environment_made_for_the_doctor_alone_is_passed_over() -> None:
    files = {**DEBIAN, "/opt/doctor/bin/python3": "", "/opt/doctor/pyvenv.cfg": "home = /usr/bin\nversion = 3.12.1\n"}
    found = quick(files, {"VIRTUAL_ENV": "/opt/doctor", "PATH": "/opt/doctor/bin:/usr/bin"})
    assert (found.python_chosen_by, found.installed) == ("own interpreter", False)
    found = quick(files, {"VIRTUAL_ENV": "/opt/doctor", "PATH": "/usr/bin"})
    assert (found.python_chosen_by, found.version) == ("PATH", "1.13.1")


def test_no_interpreter_at_all() -> None:
    with pytest.raises(Unreadable) as error:
        torch.read(Recording({"env ": {"value": {}}}, {}, complete=True), QUICK)
    assert error.value.reason.kind == "absent"


SHIM = {"/p/shims/python3": "#!/bin/sh\n", "/p/version": "3.8.1\n", "/p/versions/3.8.1/bin/python3": ""}


def test_a_shim_is_looked_behind_and_an_unknown_layout_is_asked() -> None:
    lib = {"/p/versions/3.8.1/lib/python3.8/site-packages/torch/version.py": VERSION.format("1.12.1+cu113", "'11.3'")}
    found = quick({**SHIM, **lib}, {"PATH": "/p/shims"})
    assert (found.python, found.version) == ("/p/versions/3.8.1/bin/python3", "1.12.1+cu113")
    local = {**SHIM, "/p/version": "3.7.0\n", "/home/ana/.python-version": "3.8.1\n"}
    cwd = {"link /proc/self/cwd": {"value": "/home/ana/train"}}
    assert quick({**local, **lib}, {"PATH": "/p/shims"}, **cwd).version == "1.12.1+cu113"
    said = '{"path": "/nix/py", "prefix": "/nix", "version": "3.12.2", "sites": ["/s"]}'
    ran = {"value": {"status": 0, "stdout": "welcome\n" + said + "\n", "stderr": ""}}
    files = {"/wrap/bin/python3": "", "/s/torch/version.py": VERSION.format("2.2.0", "None")}
    found = quick(files, {"PATH": "/wrap/bin"}, **{"run python-layout": ran})
    assert (found.python_version, found.version) == ("3.12.2", "2.2.0")
    ran = {"value": {"status": -11, "stdout": "garbage", "stderr": ""}}
    found = torch.read(tree(files, {}, **{"run python-layout": ran}), Ask(profile="quick", python="/wrap/bin/python3"))
    assert (found.python, found.python_version, found.installed) == ("/wrap/bin/python3", None, False)


# -------------------------------------------------------------------------------------------------- layouts, static

SITE = "/v/lib/python3.10/site-packages"
WHEEL = {
    **VENV,
    f"{SITE}/torch/version.py": VERSION.format("2.5.1+cu124", "'12.4'"),
    f"{SITE}/torch-2.5.1.dist-info/METADATA": (
        'Name: torch\nRequires-Dist: filelock\nRequires-Dist: nvidia-nccl-cu12==2.21.5; platform_system == "Linux"\n'
        "Requires-Dist: triton==3.1.0\n\nRequires-Dist: numpy is only named in this description\n"
    ),
    f"{SITE}/torch-2.5.1.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: cp310-cp310-manylinux1_x86_64\n",
    f"{SITE}/torch-2.5.1.dist-info/INSTALLER": "pip\n",
    f"{SITE}/nvidia/nccl/lib/libnccl.so.2": "",
    f"{SITE}/nvidia_nccl_cu12-2.21.5.dist-info/INSTALLER": "pip",
    f"{SITE}/torchvision-0.20.1+cu124.dist-info/INSTALLER": "pip",
    f"{SITE}/numpy-1.26.4.dist-info/INSTALLER": "pip",
}
ACTIVE = {"VIRTUAL_ENV": "/v"}


def test_an_official_wheel() -> None:
    found = to_plain(quick(WHEEL, ACTIVE))
    unread = found.pop("unread")
    assert found == {
        "python": "/v/bin/python3",
        "python_version": "3.10.4",
        "python_chosen_by": "$VIRTUAL_ENV",
        "installed": True,
        "version": "2.5.1+cu124",
        "cuda": "12.4",
        "hip": "",
        "git": "664058fa83f1",
        "path": f"{SITE}/torch",
        "installer": "pip",
        "flavour": "official-wheel",
        "wheel_tag": "manylinux1_x86_64",
        "requires": ['nvidia-nccl-cu12==2.21.5; platform_system == "Linux"', "triton==3.1.0"],
        "nvidia_packages": {"nvidia-nccl-cu12": "2.21.5"},
        "companions": {"torchvision": "0.20.1+cu124", "numpy": "1.26.4"},
        "nccl_bundled": f"{SITE}/nvidia/nccl/lib/libnccl.so.2",
    }
    assert {reason["kind"] for reason in unread.values()} == {"not-asked"}
    assert set(unread) == set(torch.ONLY_IMPORTED)


def test_conda_debian_and_what_stands_elsewhere() -> None:
    conda = quick(CONDA, {"CONDA_PREFIX": "/c"})
    assert (conda.flavour, conda.installer, conda.python_version) == ("conda", "conda", "3.9.16")
    assert (conda.companions, conda.nccl_bundled) == ({"nccl": "2.14.3.1", "pytorch": "1.13.1"}, "")
    debian = quick(DEBIAN, SYSTEM)
    assert (debian.flavour, debian.installer, debian.python_version) == ("distribution", "distribution", "3.11")
    user = "/home/ana/.local/lib/python3.11/site-packages/torch/version.py"
    assert quick({**DEBIAN, user: VERSION.format("2.1.0", "'12.1'")}, SYSTEM).version == "2.1.0"
    assert quick({**DEBIAN, user: ""}, {**SYSTEM, "PYTHONNOUSERSITE": "1"}).version == "1.13.1"
    assert (
        quick({**DEBIAN, "/x/torch/version.py": VERSION.format("9", "None")}, {**SYSTEM, "PYTHONPATH": ":/x"}).version
        == "9"
    )


def test_a_virtual_environment_that_sees_the_system() -> None:
    files = {**VENV, **DEBIAN, "/usr/bin/python3.10": "", "/usr/lib/python3.10/os.py": ""}
    files["/v/pyvenv.cfg"] = "home = /usr/bin\nversion_info = 3.10.4.final.0\ninclude-system-site-packages = True\n"
    assert quick(files, ACTIVE).path == "/usr/lib/python3/dist-packages/torch"


def test_an_editable_installation() -> None:
    files = {
        **VENV,
        f"{SITE}/__editable__.torch.pth": "# made by pip\nimport os; os.abort()\n/src/pytorch\n",
        f"{SITE}/torch-2.6.0a0+git1234567.dist-info/direct_url.json": '{"url": "file:///src", "dir_info": {"editable": true}}',
        "/src/pytorch/torch/version.py": VERSION.format("2.6.0a0+git1234567", "'12.4'"),
    }
    found = quick(files, ACTIVE)
    assert (found.path, found.flavour, found.installer) == ("/src/pytorch/torch", "source", "source")
    assert (found.nccl_bundled, found.unread["nccl_bundled"].kind) == (None, "absent")


@pytest.mark.parametrize(
    ("version", "installer", "origin", "image", "flavour"),
    [
        ("2.5.1+cu124", "pip", {}, False, "official-wheel"),
        ("2.13.0+cpu", "uv", {}, False, "official-wheel"),
        ("2.4.0+rocm6.1", "pip", {}, False, "official-wheel"),
        ("2.6.0.dev20241112+cu124", "pip", {}, False, "official-wheel"),
        ("2.5.1", "pip", {"url": "file:///w/torch-2.5.1.whl", "archive_info": {}}, False, "official-wheel"),
        ("2.5.1", "pip", {"url": "https://github.com/pytorch/pytorch", "vcs_info": {}}, False, "source"),
        ("2.1.0a0+32f93b1", "pip", {}, True, "ngc"),
        ("2.1.0a0+32f93b1", "pip", {}, False, "ngc"),
        ("1.6.0a0+9907a3e", "pip", {}, True, "ngc"),
        ("1.6.0a0+b31f58d", "pip", {}, False, "source"),
        ("1.8.0a0+ceb16d8", "pip", {}, False, "source"),
        ("2.1.0a0+git32f93b1", "", {}, False, "source"),
        ("2.4.0a0+3bcc3cddb5.nv24.07", "pip", {}, False, "ngc"),
        ("2.0.0+computecanada", "pip", {}, False, "vendor"),
        ("2.5.1", "", {}, False, None),
    ],
)
def test_flavour(version: str, installer: str, origin: Any, image: bool, flavour: Any) -> None:
    assert torch.flavour(torch.Evidence(version, "/v/torch", installer, origin, None, image)) == flavour


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("__version__ = '1.4.0'\ncuda: str = '10.1'\n", {"version": "1.4.0", "cuda": "10.1", "hip": ""}),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.1'\n", {"cuda": "", "hip": "6.1"}),
        ("\0\0\\xff garbage", {}),
        ("__version__ = '2.0", {}),
    ],
)
def test_version_file(text: str, found: Dict[str, str]) -> None:
    assert torch.parse_version(text) == found


def test_a_broken_installation_still_tells_what_it_can() -> None:
    metadata = "/v/lib/python3.10/site-packages/torch-2.5.1.dist-info/METADATA"
    too_long = {"reason": {"kind": "unreadable", "text": "longer than 1048576 bytes"}}
    gone = quick({**VENV, metadata: "Name: torch\n"}, ACTIVE)
    assert (gone.installed, gone.version, gone.path, gone.requires) == (True, "2.5.1", None, ())
    broken = quick(WHEEL, ACTIVE, **{f"read {SITE}/torch/version.py": too_long, f"read {metadata}": too_long})
    assert (broken.version, broken.cuda, broken.unread["cuda"].kind) == ("2.5.1", None, "unreadable")
    assert (broken.wheel_tag, broken.unread["requires"].text) == ("manylinux1_x86_64", "longer than 1048576 bytes")


# --------------------------------------------------------------------------------------------------- imported, fake


@pytest.fixture
def environment(tmp_path: Path) -> Any:
    """A function that makes a virtual environment by hand with the given torch/__init__.py; it answers its python."""

    def make(source: str) -> str:
        base = Path(os.path.realpath(sys.executable))
        site = tmp_path / f"env/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        (site / "torch").mkdir(parents=True)
        (tmp_path / "env/bin").mkdir()
        (tmp_path / "env/bin/python3").symlink_to(base)
        (tmp_path / "env/pyvenv.cfg").write_text(f"home = {base.parent}\nversion = {sys.version.split()[0]}\n")
        (site / "torch/__init__.py").write_text(source)
        (site / "torch/version.py").write_text(VERSION.format("2.5.1+cu124", "'12.4'"))
        return str(tmp_path / "env/bin/python3")

    return make


def imported(python: str) -> Any:
    return torch.read(Host(), Ask(python=python))


@pytest.mark.parametrize(
    ("source", "failure", "words"),
    [
        ("raise ImportError('libcudnn.so.8: cannot open')", "exception", "ImportError: libcudnn.so.8: cannot open"),
        ("import sys; sys.exit('no licence')", "exception", "SystemExit: no licence"),
        ("raise ValueError('\\udcff\\n' * 9999)", "exception", "udcff"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "signal",
            "signal 11 (SIGSEGV)\nFatal Python error",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal", "signal 9 (SIGKILL)"),
        (
            "import os; os.write(2, b'out of licences\\n'); os._exit(3)",
            "exit",
            "exit status 3 before it answered\nout of",
        ),
        ("import time; time.sleep(3600)", "timed-out", "torch/__init__.py"),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "exit", "printed more than 8 MiB"),
    ],
)
def test_an_import_that_fails(environment: Any, monkeypatch: Any, source: str, failure: str, words: str) -> None:
    monkeypatch.setattr(torch, "IMPORT_LIMIT_S", 1.0 if failure == "timed-out" else 60.0)
    found = imported(environment(source))
    assert (found.imported, found.import_failure) == (False, failure)
    assert words in found.import_error
    assert (found.installed, found.version) == (True, "2.5.1+cu124")
    assert {found.unread[name].kind for name in ("nccl", "backends", "cuda_available", "arch_list")} == {"crashed"}


WORKS = """
import os, sys, types, warnings
from torch import version
__version__ = version.__version__
print("chatter", flush=True)
_C = types.SimpleNamespace(
    _cuda_getArchFlags=lambda: "sm_70 compute_90", _cuda_getDeviceCount=lambda: 0, _nccl_version=lambda: 0)
def module(name, **names):
    sys.modules["torch." + name] = new = types.ModuleType("torch." + name)
    new.__dict__.update(names)
    return new
def is_available():
    warnings.warn("CUDA initialization: driver too old")
    return False
def init(): raise RuntimeError("No CUDA GPUs are available")
cuda = module("cuda", is_available=is_available, init=init, nccl=module("cuda.nccl", version=lambda: (2, 21, 5)))
distributed = module("distributed", is_available=lambda: True, is_nccl_available=lambda: True, ProcessGroupGloo=1)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 90100))
"""


def test_an_import_that_works(environment: Any) -> None:
    found = imported(environment(WORKS))
    assert (found.imported, found.import_error, found.import_failure) == (True, None, None)
    assert (found.version, found.nccl, found.cudnn) == ("2.5.1+cu124", "2.21.5", "9.1.0")
    assert (found.arch_list, found.backends) == (("sm_70", "compute_90"), ("gloo", "nccl"))
    assert (found.cuda_available, found.cuda_device_count) == (False, 0)
    assert found.cuda_error == "CUDA initialization: driver too old"
    assert found.import_s >= 0
    assert found.unread["nccl_loaded"].text == "linked statically into torch"


def test_what_is_no_answer_is_passed_over() -> None:
    lines = ('{"nccl": 7, "version": ["x"], "imported": 1, "errors": 1}', "[1]", "garbage", "[" * 9999, '{"other": 1}')
    stdout = "".join(f"chatter\n{MARK}{line}\n" for line in (*lines, '{"nccl": "2.21.5", "errors": {"cudnn": "no"}}'))
    assert torch.parse_answers(stdout) == ({"nccl": "2.21.5"}, {"cudnn": "no"})


@pytest.mark.parametrize(("number", "text"), [(2408, "2.4.8"), (2708, "2.7.8"), (21003, "2.10.3"), (22105, "2.21.5")])
def test_nccl_numbers(number: int, text: str) -> None:
    assert nccl_number(number) == text


def test_a_working_import_whose_cuda_breaks_or_dies(environment: Any, tmp_path: Path) -> None:
    dies = WORKS.replace("return False", "import signal; os.kill(os.getpid(), signal.SIGBUS)")
    found = imported(environment(dies.replace("version=lambda: 90100", "version=lambda: 1 / 0")))
    assert (found.imported, found.nccl, found.backends) == (True, "2.21.5", ("gloo", "nccl"))
    assert "SIGBUS" in found.cuda_error
    assert {name: reason.kind for name, reason in found.unread.items() if name.startswith(("cud", "cuda"))} == {
        "cudnn": "unreadable",
        "cuda_available": "crashed",
        "cuda_device_count": "crashed",
    }


@pytest.fixture
def library(tmp_path: Path) -> Any:
    """A function that builds a shared library out of C source; it answers its path."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")

    def build(name: str, source: str) -> str:
        (tmp_path / "source.c").write_text(source)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / name, tmp_path / "source.c"], check=True)
        return str(tmp_path / name)

    return build


def test_the_libnccl_that_is_mapped(environment: Any, library: Any) -> None:
    nccl = library("libnccl.so.2", "int ncclGetVersion(int *v) { *v = 22105; return 0; }")
    found = imported(environment(WORKS + f"import ctypes; ctypes.CDLL({nccl!r})\n"))
    assert found.nccl_loaded == LoadedLibrary(nccl, "2.21.5")


@pytest.mark.parametrize(("answer", "code"), [("return 803;", 803), ("return 0;", 0), ("__builtin_trap();", None)])
def test_the_drivers_own_code(environment: Any, library: Any, monkeypatch: Any, answer: str, code: Any) -> None:
    folder = os.path.dirname(library("libcuda.so.1", f"int cuInit(unsigned flags) {{ {answer} }}"))
    monkeypatch.setenv("LD_LIBRARY_PATH", folder)
    found = imported(environment(WORKS))
    assert (found.cuda_init_code, found.cuda_error) == (code, "CUDA initialization: driver too old")
    assert (found.imported, found.cuda_device_count) == (True, 0)


def test_the_probe_imports_nothing_of_ours_and_writes_nothing(
    environment: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    python = environment(WORKS)
    (tmp_path / "torch.py").write_text("raise ImportError('from the working directory')")
    (tmp_path / "json.py").write_text("raise ImportError('from the working directory')")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    before = sorted(map(str, tmp_path.rglob("*")))
    assert imported(python).imported is True
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_a_folder_called_torch_is_not_torch(environment: Any, tmp_path: Path) -> None:
    python = environment("")
    for file in tmp_path.glob("env/lib/*/site-packages/torch/*.py"):
        file.unlink()
    found = imported(python)
    assert (found.installed, found.imported) == (False, False)
    assert "not PyTorch" in found.import_error


@pytest.mark.parametrize(("python", "failure"), [("/nowhere/python3", "could-not-start"), ("-c", "could-not-start")])
def test_an_interpreter_that_is_not_there(python: str, failure: str) -> None:
    found = imported(python)
    assert (found.installed, found.imported, found.import_failure) == (False, False, failure)
    assert found.unread["version"].kind == "absent"


def test_a_recording_of_a_quick_run_is_no_failed_import() -> None:
    host = tree(WHEEL, ACTIVE, **{"run torch-probe": {"reason": {"kind": "not-recorded", "text": "torch-probe"}}})
    found = torch.read(host, STANDARD)
    assert (found.version, found.imported, found.unread["imported"].kind) == ("2.5.1+cu124", None, "not-recorded")


# --------------------------------------------------------------------------------------------------- imported, real


@pytest.mark.skipif(not REAL, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch")
@pytest.mark.parametrize("python", REAL or ["none"])
def test_real_torch_says_what_its_files_say(python: str) -> None:
    static, found = torch.read(Host(), Ask(profile="quick", python=python)), torch.read(Host(), Ask(python=python))
    assert (found.imported, found.distributed, "gloo" in found.backends) == (True, True, True)
    assert found.flavour == "official-wheel"
    assert found.companions["numpy"]
    for name in ("version", "cuda", "hip", "git", "path", "python_version"):
        assert getattr(static, name) == getattr(found, name) is not None, name
    assert found.cuda_available is True or found.cuda_error
    if found.cuda:
        assert found.nccl
        assert found.arch_list
        assert "nccl" in found.backends
    else:
        assert found.unread["nccl"].kind == "not-applicable"

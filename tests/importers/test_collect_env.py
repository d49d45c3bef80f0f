"""Reports of ``python -m torch.utils.collect_env``: whatever form they are pasted in, what they say and how it is judged."""

import os
import re
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest
from ddp_doctor import document, engine, examine, header, importers, summary
from ddp_doctor.config import Config
from ddp_doctor.facts import SECTIONS, to_plain
from ddp_doctor.importers import BadReport, collect_env
from ddp_doctor.model import Outcome, Severity
from ddp_doctor.policy import Policy
from judging import own_checks
from running import doctor

CAPTURES = Path(__file__).parents[3] / "shared" / "captures" / "6-runs" / "collect_env"

GPUS = "\n".join(f"GPU {index}: NVIDIA A100-SXM4-80GB" for index in range(4))
PIP = ("numpy==1.26.4", "nvidia-cublas-cu12==12.4.5.8", "nvidia-nccl-cu12==2.21.5", "torch==2.5.1", "torchvision==0.20.1", "triton==3.1.0")  # fmt: skip
LSCPU = """Architecture:                       x86_64
CPU(s):                             8
On-line CPU(s) list:                0-3,6,7
Model name:                         AMD EPYC 7763 64-Core Processor
Thread(s) per core:                 1
Core(s) per socket:                 4
Socket(s):                          2
Hypervisor vendor:                  KVM
NUMA node0 CPU(s):                  0-3
NUMA node1 CPU(s):                  4-7"""


def text(
    version="2.5.1+cu124", cuda="12.4", rocm="N/A", os="Ubuntu 22.04.4 LTS (x86_64)", libc="glibc-2.35",
    python="3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0] (64-bit runtime)",
    platform="Linux-5.15.0-91-generic-x86_64-with-glibc2.35", available="True", nvcc="12.4.131", gpus=f"\n{GPUS}\n",
    driver="550.54.15", cpu=LSCPU, pip=PIP, conda=("Could not collect",),
):  # fmt: skip
    """A report in the format of torch 2.5."""
    lists = "\n".join([*(f"[pip3] {line}" for line in pip), *(f"[conda] {line}" for line in conda)])
    return f"""Collecting environment information...
PyTorch version: {version}
Is debug build: False
CUDA used to build PyTorch: {cuda}
ROCM used to build PyTorch: {rocm}

OS: {os}
GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0
Clang version: Could not collect
CMake version: version 3.30.5
Libc version: {libc}

Python version: {python}
Python platform: {platform}
Is CUDA available: {available}
CUDA runtime version: {nvcc}
CUDA_MODULE_LOADING set to: LAZY
GPU models and configuration: {gpus}
Nvidia driver version: {driver}
cuDNN version: Probably one of the following:
/usr/lib/x86_64-linux-gnu/libcudnn.so.8.9.7
/usr/lib/x86_64-linux-gnu/libcudnn_ops_train.so.8.9.7
HIP runtime version: N/A
MIOpen runtime version: N/A
Is XNNPACK available: True

CPU:
{cpu}

Versions of relevant libraries:
{lists}
"""


OLD = """PyTorch version: 1.0.0
Is debug build: No
CUDA used to build PyTorch: 9.0.176

OS: Ubuntu 18.04.1 LTS
GCC version: (Ubuntu 7.3.0-27ubuntu1~18.04) 7.3.0
CMake version: Could not collect

Python version: 3.7
Is CUDA available: Yes
CUDA runtime version: 9.1.85
GPU models and configuration: GPU 0: GeForce GTX 1050
Nvidia driver version: 396.54
cuDNN version: Could not collect

Versions of relevant libraries:
[pip] numpy (1.15.0)
[pip] torch (1.0.0)
[conda] pytorch                   1.0.0           py3.7_cuda9.0.176_cudnn7.4.1_1    pytorch
[conda] torch                     1.0.0                     <pip>
[conda] torchvision               0.2.1                      py_2    pytorch"""

NO_GPU = {"available": "False", "nvcc": "No CUDA", "gpus": "No CUDA", "driver": "No CUDA"}
NO_TORCH = {"version": "N/A", "cuda": "N/A", "available": "N/A"}


def facts(given, name="report"):
    """Facts from a text or bytes, as ``run --facts`` reads them."""
    found = importers.facts(given if isinstance(given, bytes) else given.encode(), name)
    assert found is not None
    return found


def verdicts(node, **policy):
    return engine.judge(node, own_checks().checks.values(), Config(policy=Policy(**policy)))


def alarms(node, **policy):
    """Checks that failed as a warning or an error; a broken check is one, too."""
    found = verdicts(node, **policy)
    loud = {v.check for v in found if v.outcome is Outcome.FAILED and v.severity is not Severity.NOTE}
    return loud | {f"{v.check} is broken: {v.reason}" for v in found if v.outcome is Outcome.BROKEN}


# --------------------------------------------------------------------------- reports that people made

EXPECTED = {
    "pytorch-issue-47493_3.txt": {"gpu/models-differ"},  # RTX 3090 and 2080 Ti
    "pytorch-issue-73228_2.txt": {"gpu/models-differ"},
}
"""The captures of nodes with something to look at. In all others CUDA works, or nobody needs it: not a word."""

FLAVOURS = {
    "conda": ("pytorch-issue-15319_2.txt", "pytorch-issue-29035_5.txt"),
    "official-wheel": ("pytorch-issue-47304_2.txt", "pytorch-issue-84873_2.txt"),
    "source": ("pytorch-issue-15119_2.txt", "pytorch-issue-35565_2.txt", "pytorch-issue-47493_3.txt", "pytorch-issue-51833_2.txt", "pytorch-issue-73228_2.txt"),
    None: ("pytorch-issue-37530_2.txt",),  # a wheel, or Arch's own package
}  # fmt: skip
"""All of MLPerf were made in NVIDIA's containers."""
MACS = ("pytorch-issue-11157_2.txt", "pytorch-issue-24164_2.txt", "pytorch-issue-39020_3.txt", "pytorch-issue-61096_2.txt", "pytorch-issue-83533_2.txt", "pytorch-issue-88820_1.txt")  # fmt: skip


@pytest.fixture(params=sorted(CAPTURES.glob("*.txt")) or [None], ids=lambda path: path.name if path else "none")
def capture(request):
    if request.param is None:
        pytest.skip("the captures are not here")
    return request.param


def test_captures_are_judged_as_an_engineer_would(capture):
    assert alarms(facts(capture.read_bytes(), capture.name)) == EXPECTED.get(capture.name, set())


def test_captures_of_macs_are_not_judged(capture):
    judged = {v.check for v in verdicts(facts(capture.read_bytes())) if v.outcome is not Outcome.SKIPPED}
    assert (judged == set()) == (capture.name in MACS)


def test_captures_say_the_same_as_their_text(capture):
    node, said = facts(capture.read_bytes()), capture.read_text("utf-8", "replace")
    if capture.name in MACS:
        return
    assert f"PyTorch version: {node.torch.version}\n" in said
    assert ("Is CUDA available: True" in said or "Is CUDA available: Yes" in said) == node.torch.cuda_available
    assert f"CUDA used to build PyTorch: {node.torch.cuda or 'None'}\n" in said
    assert f"Nvidia driver version: {node.gpus.driver or 'No CUDA'}\n" in said
    assert sum(said.count(f"GPU {g.index}: {g.name}\n") for g in node.gpus.gpus or ()) == said.count("\nGPU ") - 1 + said.count(": GPU 0:")  # fmt: skip
    flavour = next((name for name, files in FLAVOURS.items() if capture.name in files), "ngc")
    assert node.torch.flavour == flavour


# --------------------------------------------------------------------------- what it says


def test_everything_that_a_report_tells():
    node = facts(text())
    assert (node.name, node.collected_at, node.how.via) == ("report", None, "collect_env")
    os, torch, gpus, cpu = node.os, node.torch, node.gpus, node.cpu
    assert (os.id, os.version, os.like, os.pretty) == ("ubuntu", "22.04.4", ("debian",), "Ubuntu 22.04.4 LTS")
    assert (os.kernel, os.machine, os.glibc, os.virtualisation) == ("5.15.0-91-generic", "x86_64", "2.35", "kvm")
    assert (torch.version, torch.cuda, torch.hip, torch.python_version) == ("2.5.1+cu124", "12.4", "", "3.10.12")
    assert (torch.installed, torch.imported, torch.cuda_available) == (True, True, True)
    assert (torch.installer, torch.flavour) == ("pip", "official-wheel")
    assert torch.companions == {"numpy": "1.26.4", "torchvision": "0.20.1", "triton": "3.1.0"}
    assert torch.nvidia_packages == {"nvidia-cublas-cu12": "12.4.5.8", "nvidia-nccl-cu12": "2.21.5"}
    assert (gpus.source, gpus.driver) == ("nvidia-smi", "550.54.15")
    assert [(gpu.index, gpu.name) for gpu in gpus.gpus] == [(i, "NVIDIA A100-SXM4-80GB") for i in range(4)]
    assert (cpu.model, cpu.sockets, cpu.cores, cpu.threads, cpu.numa_nodes) == (
        "AMD EPYC 7763 64-Core Processor", 2, 8, 6, 2,
    )  # fmt: skip
    assert node.cuda.nvcc.version == "12.4.131"


def test_a_report_of_torch_1_0():
    node = facts(OLD)
    assert (node.os.pretty, node.os.kernel, node.os.glibc, node.cpu) == ("Ubuntu 18.04.1 LTS", None, None, None)
    assert (node.torch.version, node.torch.cuda, node.torch.hip) == ("1.0.0", "9.0.176", "")
    assert (node.torch.installer, node.torch.flavour) == ("conda", "conda")
    assert node.torch.companions["torchvision"] == "0.2.1"
    assert (node.gpus.driver, [gpu.name for gpu in node.gpus.gpus]) == ("396.54", ["GeForce GTX 1050"])


NO_FAULT = {"import_error", "import_failure", "import_s", "cuda_error", "cuda_init_code", "nvml_error", "fault"}
"""None in these says that nothing went wrong."""


@pytest.mark.parametrize("report", [text(), OLD, text(**NO_GPU), text(**NO_TORCH), text(os="Windows 11 Pro")])
def test_nothing_is_left_out_without_a_reason(report):
    node = facts(report)
    assert {name for name in SECTIONS if getattr(node, name) is None} == set(node.reasons)
    sections = [getattr(node, name) for name in SECTIONS if getattr(node, name) is not None]
    sections += list(node.gpus.gpus or ()) if node.gpus else []
    for section in sections:
        unknown = {f.name for f in fields(section) if getattr(section, f.name) is None}
        assert unknown - NO_FAULT <= set(section.unread)
        assert not set(section.unread) - unknown


def test_facts_are_written_and_read_back_without_loss():
    node = facts(text())
    assert document.facts_from(to_plain(node)) == node


# --------------------------------------------------------------------------- where torch is from, and on what

CONDA = "pytorch                   2.5.1           py3.10_cuda12.4_cudnn9.1.0_0    pytorch"
MAGMA = "magma-cuda110             2.5.2                         5    local"
NOT_COLLECTED = {"pip": ("Could not collect",)}


@pytest.mark.parametrize(
    ("changes", "flavour"),
    [
        ({}, "official-wheel"),
        (NOT_COLLECTED, "official-wheel"),  # +cu124 has PyTorch's own index alone
        ({"version": "2.5.1", "conda": (CONDA,)}, "conda"),
        ({"version": "2.5.1", "conda": (CONDA, "torch 2.5.1 pypi_0 pypi")}, "conda"),
        ({"version": "2.5.1", "conda": ("torch 2.5.1 pypi_0 pypi",)}, "official-wheel"),
        ({"version": "2.5.1"}, None),
        ({"version": "2.4.1", "conda": (CONDA,)}, None),  # conda's list is of another environment
        ({"version": "2.6.0.dev20241112+cu124"}, "official-wheel"),
        ({"version": "2.1.0a0+32f93b1"}, "ngc"),
        ({"version": "1.6.0a0+9907a3e", "conda": (MAGMA,)}, "ngc"),
        ({"version": "2.6.0a0+df5bbc09d1.nv24.12"}, "ngc"),
        ({"version": "1.6.0a0+9907a3e"}, "source"),
        ({"version": "2.6.0a0+git1234567"}, "source"),
        ({"version": "2.6.0a0+git1234567", "conda": ("torch 2.6.0a0+git1234567 dev_0 <develop>",)}, "source"),
        ({"version": "2.0.0+computecanada"}, "vendor"),
    ],
)
def test_which_binary_it_is(changes, flavour):
    node = facts(text(**changes))
    assert node.torch.flavour == flavour
    assert alarms(node) == set()


@pytest.mark.parametrize(
    ("changes", "kernel", "virtualisation"),
    [
        ({"platform": "Linux-5.15.153.1-microsoft-standard-WSL2-x86_64-with-glibc2.35", "cpu": ""}, "5.15.153.1-microsoft-standard-WSL2", "wsl"),
        ({"platform": "Linux-5.15.136-tegra-aarch64-with-glibc2.35", "os": "Ubuntu 22.04.4 LTS (aarch64)", "cpu": "", "gpus": "Could not collect", "driver": "Could not collect", "version": "2.3.0a0+40ec155e58.nv24.03"}, "5.15.136-tegra", None),
        ({"platform": "Linux-6.7.7-gentoo-dist-x86_64-AMD_Ryzen_9_5950X_16-Core_Processor-with-glibc2.40"}, "6.7.7-gentoo-dist", "kvm"),
        ({"platform": "Linux-4.18.0-193.el8.x86_64-x86_64-with-glibc2.10"}, "4.18.0-193.el8.x86_64", "kvm"),
        ({"platform": "Linux-3.10.0-1160.el7.x86_64-x86_64-with-centos-7.9.2009-Core", "cpu": "lscpu: command not found"}, "3.10.0-1160.el7.x86_64", None),
    ],
)  # fmt: skip
def test_kernel_and_kind_of_machine(changes, kernel, virtualisation):
    node = facts(text(**changes))
    assert (node.os.kernel, node.os.virtualisation) == (kernel, virtualisation)
    assert alarms(node) == set()


@pytest.mark.parametrize(
    ("said", "name", "version"),
    [
        ("CentOS Linux release 7.9.2009 (Core)  (x86_64)", "centos", "7.9.2009"),
        ("CentOS Linux 7 (Core) (x86_64)", "centos", "7"),
        ("Red Hat Enterprise Linux release 8.6 (Ootpa) (x86_64)", "rhel", "8.6"),
        ("Rocky Linux 9.3 (Blue Onyx) (x86_64)", "rocky", "9.3"),
        ("AlmaLinux 8.10 (Cerulean Leopard) (x86_64)", "almalinux", "8.10"),
        ("SUSE Linux Enterprise Server 15 SP5 (x86_64)", "sles", "15"),
        ("Debian GNU/Linux 12 (bookworm) (x86_64)", "debian", "12"),
        ("Amazon Linux 2 (x86_64)", "amzn", "2"),
        ("Arch Linux", "arch", None),
        ("linux (x86_64)", None, None),
        ("Could not collect", None, None),
    ],
)
def test_distributions(said, name, version):
    found = facts(text(os=said)).os
    assert (found.id, found.version) == (name, version)


@pytest.mark.parametrize(
    ("python", "libc", "glibc", "kind"),
    [
        ("3.8.10 (default)", "glibc-2.31", "2.31", None),
        ("3.7.13 (default)", "glibc-2.17", None, "not-recorded"),  # that of the build, not of the system
        ("3.12.1 (main)", "musl-1.2.4", None, "absent"),
        ("3.12.1 (main)", "-", None, "not-recorded"),
        ("3.12.1 (main)", "N/A", None, "not-recorded"),
    ],
)
def test_glibc_is_told_by_pythons_that_know_it(python, libc, glibc, kind):
    found = facts(text(python=python, libc=libc)).os
    assert (found.glibc, getattr(found.unread.get("glibc"), "kind", None)) == (glibc, kind)


ROCM = {"version": "2.4.1+rocm6.1", "cuda": "N/A", "rocm": "6.1.40091-a8dbc0c19", "gpus": "AMD Instinct MI250X (gfx90a:sramecc+:xnack-)", "driver": "Could not collect", "nvcc": "Could not collect"}  # fmt: skip


def test_rocm_is_told_apart_and_not_judged_by_nvidias_rules():
    node = facts(text(**ROCM))
    assert (node.torch.cuda, node.torch.hip, node.gpus.gpus) == ("", "6.1.40091-a8dbc0c19", None)
    assert node.gpus.other_vendor == ("AMD Instinct MI250X (gfx90a:sramecc+:xnack-)",)
    assert alarms(node) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"os": "macOS 14.5 (arm64)", "platform": "macOS-14.5-arm64-arm-64bit", "libc": "N/A", "cpu": "Apple M2", **NO_GPU},
        {"os": "Mac OSX 10.13.3", "platform": "Darwin-17.4.0-x86_64-i386-64bit", **NO_GPU},
        {"os": "Microsoft Windows 11 Pro (10.0.22631 64-bit)", "platform": "Windows-10-10.0.22631-SP0", "driver": "451.82"},
        {"os": "Could not collect", "platform": "Windows-10-10.0.22631-SP0", "available": "False"},
    ],
)  # fmt: skip
def test_other_systems_are_not_judged(changes):
    node = facts(text(**changes))
    report = examine.report([node], list(own_checks().checks.values()), own_checks(), Config())
    assert {verdict.outcome for verdict in report.verdicts} == {Outcome.SKIPPED}
    assert re.match(r"Cannot tell: .* is not judged: the checks are for Linux\)\.", report.summary.headline)
    assert (report.summary.exit_status, report.summary.next) == (3, ())


# --------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"driver": "470.57.02"}, set()),  # CUDA works: a forward-compatibility package
        ({"driver": "470.57.02", "available": "False"}, {"stack/driver-too-old", "stack/cuda-not-available"}),
        ({"driver": "525.60.13"}, set()),
        ({"available": "False"}, {"stack/cuda-not-available"}),
        ({"version": "2.5.1+cpu", "cuda": "Could not collect", "available": "False"}, {"stack/cpu-only-torch"}),
        ({"version": "2.5.1+cpu", "cuda": "None", **NO_GPU}, set()),
        ({**ROCM, "gpus": "Could not collect", "available": "False"}, set()),
        (NO_GPU, set()),  # the default wheel on a machine for the CPU
        (NO_TORCH, {"stack/torch-import-fails"}),
        ({**NO_TORCH, "pip": ("numpy==1.26.4",)}, {"stack/torch-missing-where-needed"}),
        ({**NO_TORCH, "pip": ("Could not collect",)}, set()),
        ({"gpus": "\nGPU 0: NVIDIA A100 80GB PCIe\nGPU 1: NVIDIA A30\n"}, {"gpu/models-differ"}),
    ],
)
def test_faults_that_a_report_shows(changes, expected):
    assert alarms(facts(text(**changes))) == expected


def test_gpus_that_must_be_there_and_are_not_told_are_a_fault():
    assert "gpu/unreadable" in alarms(facts(text(**NO_GPU)), require=("gpus",))


WARNING = """/opt/env/lib/python3.10/site-packages/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: Unexpected
error from cudaGetDeviceCount(). Error 802: system not yet initialized (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)
  return torch._C._cuda_getDeviceCount() > 0
"""


def test_the_warning_that_was_pasted_with_it_tells_the_cause():
    (verdict,) = [
        v for v in verdicts(facts(WARNING + text(available="False"))) if v.check == "stack/cuda-not-available"
    ]
    assert "fabric manager" in verdict.message
    assert facts(WARNING + text()).torch.cuda_error is None


def test_the_error_that_was_pasted_with_it_tells_why_the_import_failed():
    node = facts(
        "OSError: libcudart.so.12: cannot open shared object file: No such file or directory\n" + text(**NO_TORCH)
    )
    (verdict,) = [v for v in verdicts(node) if v.check == "stack/torch-import-fails"]
    assert "libcudart.so.12" in verdict.message


def test_an_import_that_failed_without_a_word_has_no_invented_cause():
    (verdict,) = [v for v in verdicts(facts(text(**NO_TORCH))) if v.check == "stack/torch-import-fails"]
    assert verdict.message == "torch 2.5.1 cannot be imported: the report does not tell the error"


def test_lists_of_another_environment_are_not_those_of_this_torch():
    node = facts(text(version="2.4.0+cu124"))
    assert (node.torch.companions, node.torch.nvidia_packages) == (None, None)
    assert "of another Python" in node.torch.unread["companions"].text


# --------------------------------------------------------------------------- GPUs


@pytest.mark.parametrize(
    ("said", "names", "kind"),
    [
        ("GPU 0: Tesla V100-SXM2-16GB", ["Tesla V100-SXM2-16GB"], None),
        ("GPU 0: Tesla T4 (UUID: GPU-11111111-2222-3333-4444-555555555555)", ["Tesla T4"], None),
        ("\nGPU 1: B\nGPU 0: A\n", ["A", "B"], None),
        ("No devices found.", [], None),
        ("Could not collect", None, "not-recorded"),
        ("No CUDA", None, "not-recorded"),
        ("\nGPU 0: A\n... and seven more\n", None, "unreadable"),
        ("\n" + "\n".join(f"GPU {i}: A" for i in range(300)) + "\n", None, "unreadable"),
    ],
)
def test_lists_of_gpus(said, names, kind):
    gpus = facts(text(gpus=said)).gpus
    assert (gpus.gpus and [gpu.name for gpu in gpus.gpus] if gpus.gpus != () else []) == names
    assert getattr(gpus.unread.get("gpus"), "kind", None) == kind


def test_gpus_that_mig_divides():
    node = facts(
        text(
            gpus="\nGPU 0: NVIDIA A100\n  MIG 3g.20gb     Device  0:\n  MIG 3g.20gb     Device  1:\nGPU 1: NVIDIA A100\n"
        )
    )
    assert [(gpu.name, gpu.mig) for gpu in node.gpus.gpus] == [("NVIDIA A100", "enabled"), ("NVIDIA A100", None)]


# --------------------------------------------------------------------------- how it is pasted


def every_line(before, report):
    return "\n".join(before + line for line in report.split("\n"))


VLLM = "\n".join(
    ["=" * 30, "          System Info", "=" * 30]
    + [f"{title:<28} : {value}" for title, value in (
        ("OS", "Ubuntu 22.04.4 LTS (x86_64)"), ("GCC version", "Could not collect"), ("Libc version", "glibc-2.35"))]
    + ["", "=" * 30, "       PyTorch Info", "=" * 30]
    + [f"{title:<28} : {value}" for title, value in (
        ("PyTorch version", "2.5.1+cu124"), ("Is debug build", "False"), ("CUDA used to build PyTorch", "12.4"), ("ROCM used to build PyTorch", "N/A"))]
    + ["", "=" * 30, "      Python Environment", "=" * 30]
    + [f"{title:<28} : {value}" for title, value in (
        ("Python version", "3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0] (64-bit runtime)"), ("Python platform", "Linux-5.15.0-91-generic-x86_64-with-glibc2.35"))]
    + ["", "=" * 30, "       CUDA / GPU Info", "=" * 30]
    + [f"{title:<28} : {value}" for title, value in (
        ("Is CUDA available", "True"), ("CUDA runtime version", "12.4.131"), ("GPU models and configuration", "\n" + GPUS + "\n"), ("Nvidia driver version", "550.54.15"), ("cuDNN version", "Could not collect"))]
    + ["", "=" * 30, "          CPU Info", "=" * 30, LSCPU, "", "=" * 30, "Versions of relevant libraries", "=" * 30]
    + [f"[pip3] {line}" for line in PIP]
    + ["[conda] Could not collect", "", "=" * 30, "         vLLM Info", "=" * 30, "ROCM Version                 : Could not collect", "vLLM Version                 : 0.6.4"]
)  # fmt: skip


@pytest.mark.parametrize(
    "pasted",
    [
        text().strip(),
        "### Environment\n\n<details><summary>collect_env</summary>\n\n```text\n" + text() + "```\n</details>\n\ncc @someone\n- OS: I do not know\n",
        every_line("> ", text()),
        every_line("> > ", text()).replace("> > \n", ">>\n"),
        every_line("    ", text()),
        every_line("2024-05-01T12:34:56.1234567Z ", text()),
        every_line("[rank0]: ", text()),
        every_line("3: ", text()),
        text().replace("\n", "\n\n"),
        text().replace("\n", "\r\n"),
        text().replace("PyTorch version", "\x1b[1;32mPyTorch version\x1b[0m").replace("GPU 2", "\x1b[OGPU 2").replace("Nvidia driver", "\x1b]0;title\x07Nvidia driver"),
        text() + "\n> quoted again:\n" + every_line("> ", text()),
        "<frozen runpy>:128: RuntimeWarning: 'torch.utils.collect_env' found in sys.modules\n" + text(),
        "\ufeff" + text(),
        text().encode("utf-16"),
        VLLM,
    ],
    ids=["bare", "details", "quoted", "quoted-twice", "indented", "ci-log", "torchrun", "srun-label", "blank-lines", "crlf", "escapes", "twice", "warning", "bom", "utf-16", "vllm"],
)  # fmt: skip
def test_it_is_read_in_every_form_in_which_people_paste_it(pasted):
    assert to_plain(facts(pasted)) == to_plain(facts(text()))


def test_two_reports_that_differ_are_no_node():
    with pytest.raises(BadReport, match="2 collect_env reports that differ"):
        facts(text() + text(driver="535.104.05"))


def told(node):
    """Everything that was told, as flat pairs; lists of packages by package."""
    found = {}
    for name in ("os", "torch", "gpus", "cpu", "cuda"):
        section = getattr(node, name)
        for field in fields(section) if section else ():
            value = getattr(section, field.name)
            if isinstance(value, dict) and field.name != "unread":
                found.update({(name, field.name, key): entry for key, entry in value.items()})
            elif value is not None and field.name != "unread":
                found[name, field.name] = value
    return found


@pytest.mark.parametrize("report", [text(), OLD], ids=["new", "old"])
def test_wherever_it_is_cut_what_is_left_is_true(report):
    """But where it is from: half of conda's list may hide that."""
    unsure = {("torch", "installer"), ("torch", "flavour"), ("cpu", "numa_nodes"), ("cpu", "threads")}
    whole, seen = told(facts(report)), 0
    for end in range(len(report)):
        if collect_env.recognises(report[:end]):
            seen += 1
            left = told(facts(report[:end]))
            assert {pair for pair in left if left[pair] != whole.get(pair)} <= unsure, report[:end][-60:]
    assert seen > len(report) / 4


# --------------------------------------------------------------------------- hostile, and none at all


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\x00" * 1000,
        bytes(range(256)) * 100,
        b"\xff\xfe\x00",
        b"PyTorch version: 2.5.1",
        b"Is CUDA available: True\nPyTorch version: 2.5.1\n",
        b"the PyTorch version: 2.5.1\nand Is CUDA available: True\n",
        b"PyTorch version: 1.8.0 (torchvision: 0.9.0)\nIs CUDA available (PyTorch): No\n",
        b"[" * 100000,
    ],
)
def test_what_is_no_report_is_not_taken_for_one(given):
    assert importers.facts(given, "x") is None


@pytest.mark.parametrize(
    "given",
    [
        text(version="2.5.1; rm -rf /", driver="$(id)", cuda="\u202e12.4"),
        text(gpus="\n" + "GPU 0: A (UUID: " * 50000 + "\n"),
        text(gpus="\n" + "MIG \n" * 100000),
        text(cpu="On-line CPU(s) list: " + "0-999999," * 1000 + "\n" + "\n" * 200000),
        text(pip=[f"p{i}==1.0" for i in range(20000)], conda=["a" + " " * 100000 + "x"]),
        text(os="(" * 100000),
        text(available="False") + "CUDA initialization: " * 50000,
        text(**NO_TORCH) + "ImportError: " * 50000 + "\n" * 100000,
        "\x1b]" * 100000 + "\x1b[" * 100000 + text(),
    ],
    ids=["shell", "uuid", "mig", "processors", "packages", "parentheses", "cuda-error", "import-error", "escapes"],
)
def test_hostile_reports_are_read_or_refused(given):
    node = importers.facts(given.encode(), "x")
    assert node is None or not any("broken" in alarm for alarm in alarms(node))
    assert node is None or node.torch.version in ("2.5.1+cu124", "2.5.1", None)


def test_values_that_are_no_versions_are_unreadable():
    node = facts(text(version="2.5.1; rm -rf /", driver="$(id)"))
    assert (node.torch.version, node.torch.unread["version"].kind) == (None, "unreadable")
    assert (node.gpus.driver, node.gpus.unread["driver"].kind) == (None, "unreadable")


# --------------------------------------------------------------------------- through the command


def test_the_command_reads_it_and_says_where_from(tmp_path):
    (tmp_path / "node7.txt").write_text(text())
    done = doctor("run", "--facts", str(tmp_path / "node7.txt"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Node         node7\n" in done.stdout
    assert "Taken        from a collect_env report, which does not say when or by whom\n" in done.stdout
    assert done.stdout.startswith("Ready as far as could be seen")
    assert done.stdout.endswith("on the node itself:\n  ddp-doctor run\n")


def test_reports_of_several_nodes_keep_apart(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "env.txt").write_text(text())
    nodes = list(examine.read_saved([str(tmp_path / "a" / "env.txt"), str(tmp_path / "b" / "env.txt")]))
    assert [node.name for node in nodes] == ["env", str(tmp_path / "b" / "env.txt")]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (b"hello\n", "nor a collect_env report"),
        ((text() + text(driver="1.0")).encode(), "2 collect_env reports that differ"),
    ],
)
def test_the_command_names_the_file_that_it_cannot_use(given, says, tmp_path):
    (tmp_path / "x.txt").write_bytes(given)
    done = doctor("run", "--facts", str(tmp_path / "x.txt"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "x.txt: " in done.stderr
    assert says in done.stderr


def test_headers_know_every_importer():
    assert set(header.OTHER_TOOLS) == {importer.VIA for importer in importers.importers()}
    assert importers.titles() == ", ".join(header.OTHER_TOOLS.values())
    node = replace(facts(text()), reasons={})
    assert summary.node(node).summary["Taken"].startswith("from a collect_env report")


REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]
SMI = """#!/bin/sh
if [ "$1" = -L ]; then echo "GPU 0: Tesla T4 (UUID: GPU-1)"; else echo "| Driver Version: 535.104.05   CUDA Version: 12.2 |"; fi
"""


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch")
@pytest.mark.parametrize("python", REAL or ["none"])
def test_what_the_real_collect_env_prints(python, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    search = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    node = facts(
        subprocess.run([python, "-m", "torch.utils.collect_env"], stdout=subprocess.PIPE, env=search, check=True).stdout
    )
    ask = "import torch; print(torch.__version__, torch.version.cuda or '')"
    said = subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout.rstrip("\n")
    assert f"{node.torch.version} {node.torch.cuda}" == said
    assert (node.torch.imported, node.torch.cuda_available, node.torch.flavour) == (True, False, "official-wheel")
    assert (node.gpus.driver, [gpu.name for gpu in node.gpus.gpus]) == ("535.104.05", ["Tesla T4"])

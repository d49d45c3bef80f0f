"""Checks of the software stack: rules over the tables, decoded errors, and what must stay silent."""

import datetime
import re
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_doctor import compat, decode, engine, tables
from ddp_doctor.config import Config
from ddp_doctor.facts import (
    Cuda,
    Env,
    Gpu,
    Gpus,
    Library,
    LoadedLibrary,
    NodeFacts,
    Os,
    PciGpu,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Toolkit,
    Torch,
    Variable,
)
from ddp_doctor.policy import Policy
from judging import judged, outcome, own_checks, remedy_text

UBUNTU = Os(id="ubuntu", version="22.04", kernel="5.15.0-91-generic", machine="x86_64", glibc="2.35", container="")
CENTOS = Os(id="centos", version="8.2.2004", like=("rhel", "fedora"), machine="x86_64", glibc="2.28", container="")
NGC = replace(UBUNTU, container="docker")
JETSON = replace(UBUNTU, kernel="5.15.136-tegra", machine="aarch64")
NO_GPUS = Gpus(source="proc", kernel_module="", gpus=(), on_bus=())


def gpus(driver="535.104.05", cuda="12.2", name="NVIDIA A100-SXM4-80GB", capability="8.0", **more):
    known = {
        "source": "nvml",
        "kernel_module": driver,
        "gpus": (Gpu(0, name=name, compute_capability=capability, pci="0000:07:00.0"),),
        "on_bus": (PciGpu("0000:07:00.0", "0x20b2", "nvidia"),),
    }
    return Gpus(driver=driver, cuda=cuda, **{**known, **more})


def dark(device_id, is_open):
    """A GPU on the bus that the loaded module does not start."""
    return {"gpus": (), "on_bus": (PciGpu("0000:07:00.0", device_id, "nvidia"),), "kernel_module_open": is_open}


def torch(version="2.4.1+cu124", cuda="12.4", **more):
    """An official wheel that was imported and works."""
    known = {
        "python": "/opt/env/bin/python",
        "python_version": "3.10.12",
        "python_chosen_by": "$VIRTUAL_ENV",
        "installed": True,
        "hip": "",
        "flavour": "official-wheel",
        "wheel_tag": "linux_x86_64",
        "requires": ('nvidia-nccl-cu12==2.20.5; platform_system == "Linux"',),
        "imported": True,
        "import_s": 1.9,
        "nccl": "2.20.5",
        "nccl_loaded": LoadedLibrary("/opt/env/lib/nvidia/nccl/lib/libnccl.so.2", "2.20.5"),
        "nccl_bundled": "/opt/env/lib/nvidia/nccl/lib/libnccl.so.2",
        "distributed": True,
        "backends": ("gloo", "nccl"),
        "cuda_available": True,
        "cuda_device_count": 8,
    }
    return Torch(version=version, cuda=cuda, **{**known, **more})


def static(**more):
    """A torch that was not imported."""
    silent = dict.fromkeys(("imported", "import_s", "nccl", "nccl_loaded", "distributed", "backends", "cuda_available"))
    return torch(**{**silent, "unread": {"imported": Reason("not-asked", "profile quick")}, **more})


def broken(error, failure="exception", **more):
    return static(imported=False, import_error=error, import_failure=failure, unread={}, **more)


def blind(error, code=None, **more):
    return torch(cuda_available=False, cuda_device_count=0, cuda_error=error, cuda_init_code=code, **more)


def test_an_interpreter_that_may_not_be_run_is_no_torch_to_install_anew():
    denied = broken("/root/env/bin/python: Permission denied", "could-not-start", python="/root/env/bin/python")
    (verdict,) = judged("stack/torch-import-fails", torch=denied, gpus=gpus(), os=UBUNTU)
    assert verdict.message.endswith("this user may not run /root/env/bin/python")
    assert "namei -l -- /root/env/bin/python" in remedy_text(verdict)
    assert "pip" not in remedy_text(verdict)


def test_how_the_python_was_chosen_is_said_in_words():
    own = Torch(installed=False, python="/opt/doctor/bin/python", python_chosen_by="own interpreter")
    (verdict,) = judged("stack/torch-not-installed", torch=own)
    assert "ddp-doctor's own: neither an active environment nor python3 on PATH has torch" in verdict.measured


def preloaded(version, where="ld-preload"):
    return Cuda(library_path=(), shadowing=(Library("/opt/nccl/libnccl.so.2", "nccl", version, where),))


NOT_THERE = Torch(installed=False, python="/usr/bin/python3", python_chosen_by="PATH")
CPU_ONLY = torch("2.4.1+cpu", "", nccl=None, nccl_loaded=None, backends=("gloo",), cuda_available=False, requires=())
STATIC_NCCL = torch(
    "1.12.1+cu113", "11.3", python_version="3.8.12", requires=(), nccl="2.10.3", nccl_loaded=None, nccl_bundled="",
    unread={"nccl_loaded": Reason("not-applicable", "linked statically")},
)  # fmt: skip
ROCM = torch("2.4.1+rocm6.1", "", hip="6.1.40091", nccl_loaded=None, requires=())
NGC_TORCH = torch(
    "2.1.0a0+fe05266",
    "12.1",
    flavour="ngc",
    nccl="2.18.3",
    nccl_loaded=LoadedLibrary("/usr/lib/libnccl.so.2", "2.18.3"),
)
RTX_5090 = gpus("570.86.10", "12.8", "NVIDIA GeForce RTX 5090", "12.0")
H100S = gpus(gpus=tuple(Gpu(n, name="NVIDIA H100 80GB HBM3", compute_capability="9.0") for n in range(8)))
CUDNN = Reason(
    "unreadable",
    "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (8, 9, 2) but found runtime version (8, 8, 1).",
)
BESIDE = {"torchvision": "0.19.1+cu124", "torchaudio": "2.4.1", "pytorch": "2.4.1"}
NEXT_YEARS = torch("2.19.0", "13.9", python_version="3.17.0")
COMPAT = Cuda(shadowing=(Library("/usr/local/cuda/compat/lib/libcuda.so.1", "cuda", "530.30.02", "ld-library-path"),))

WITH_T400 = (
    Gpu(0, compute_capability="8.0", memory_total_bytes=80 * 2**30),
    Gpu(1, compute_capability="3.5", memory_total_bytes=2 * 2**30),
)
BLACKWELL = (PciGpu("0000:07:00.0", "0x2b85", "nvidia"),)
H100_PCIE = Gpu(0, name="NVIDIA H100 PCIe", compute_capability="9.0")

HEALTHY = {
    "official wheel": (torch(), gpus(), UBUNTU),
    "not imported": (static(), gpus(), UBUNTU),
    "CUDA 12.4 on driver 535": (static(), gpus("535.104.05"), UBUNTU),
    "static NCCL on CentOS 8": (STATIC_NCCL, gpus("470.57.02", "11.4"), CENTOS),
    "CPU wheel on a laptop": (CPU_ONLY, NO_GPUS, UBUNTU),
    "CUDA wheel on a laptop": (torch(cuda_available=False, cuda_error="Found no NVIDIA driver"), NO_GPUS, UBUNTU),
    "ROCm node": (ROCM, replace(NO_GPUS, other_vendor=("amd 0000:03:00.0",)), UBUNTU),
    "NGC image over an old driver": (NGC_TORCH, gpus("470.57.02", "12.1"), NGC),
    "NGC image, not imported": (static(version="2.1.0a0+fe05266", cuda="12.1", flavour="ngc"), gpus("470.57.02", "11.4"), NGC),
    "Jetson": (torch("2.5.0a0+872d972e41.nv24.8", "12.6", flavour="ngc", distributed=False, backends=()), gpus("540.3.0"), JETSON),
    "container without GPUs": (torch(cuda_available=False), gpus(admitted=0, admitted_by="0 device nodes"), NGC),
    "torch of next year": (NEXT_YEARS, gpus("650.10", "14.0"), UBUNTU),
    "conda": (torch("2.1.0", "12.1", flavour="conda", python_version="3.12.1"), gpus(), UBUNTU),
    "what belongs together": (torch(companions=BESIDE, installer="conda", cudnn="9.1.0"), gpus(), UBUNTU),
    "Ada on code for 8.6": (static(), gpus(name="NVIDIA L40S", capability="8.9"), UBUNTU),
    "its own word for new GPUs": (torch(arch_list=("sm_90", "sm_100", "sm_120f")), RTX_5090, UBUNTU),
    "a display card beside": (static(), gpus(gpus=WITH_T400), UBUNTU),
    "Blackwell on the open module": (static(version="2.8.0+cu128", cuda="12.8"), replace(RTX_5090, kernel_module_open=True), UBUNTU),
    "Blackwell that answers": (static(version="2.8.0+cu128", cuda="12.8"), replace(RTX_5090, on_bus=BLACKWELL, kernel_module_open=False), UBUNTU),
    "PCIe H100": (static(), gpus(gpus=(H100_PCIE,) * 2), UBUNTU),
    "nightly": (static(version="2.9.0.dev20250801+cu128", cuda="12.8", companions={"torchvision": "0.24.0.dev20250801"}), gpus("570.86.10", "12.8"), UBUNTU),
}  # fmt: skip

FOR_OLD_DRIVERS = ("stack/driver-branch-ended",)
ALL = sorted(check for check in own_checks().checks if check.startswith("stack/"))


@pytest.mark.parametrize("node", HEALTHY)
def test_a_healthy_stack_raises_no_alarm(node):
    found, there, os = HEALTHY[node]
    policy = Policy(today=datetime.date(2025, 6, 15))
    facts = {"torch": found, "gpus": there, "os": os, "cuda": Cuda(shadowing=(), nccls=())}
    verdicts = [v for check in ALL if check not in FOR_OLD_DRIVERS for v in judged(check, policy, **facts)]
    assert len(verdicts) >= len(ALL) - len(FOR_OLD_DRIVERS)
    assert [(v.check, v.message, v.reason) for v in verdicts if v.outcome.value in ("failed", "broken")] == []


@pytest.mark.parametrize(
    ("check", "found", "there", "says"),
    [
        ("torch-missing-where-needed", NOT_THERE, gpus(), "no torch in /usr/bin/python3 (chosen by PATH)"),
        ("torch-not-installed", NOT_THERE, NO_GPUS, "no torch in /usr/bin/python3"),
        ("torch-import-fails", broken("undefined symbol: ncclCommRegister"), gpus(), "lacks ncclCommRegister"),
        ("cpu-only-torch", CPU_ONLY, gpus(), "built with no CUDA"),
        ("cpu-only-torch", ROCM, gpus(), "built with ROCm 6.1.40091"),
        ("cuda-not-available", blind("found no NVIDIA driver on your system"), gpus(), "no NVIDIA driver"),
        ("driver-too-old", static(), gpus("470.57.02", "11.4"), "470.57.02 is too old for the CUDA 12.4"),
        ("older-nccl-loaded", torch(nccl_loaded=LoadedLibrary("/usr/lib/libnccl.so.2", "2.15.5")), gpus(), "older than the 2.20.5"),
        ("newer-nccl-loaded", torch(nccl_loaded=LoadedLibrary("/opt/libnccl.so.2", "2.27.3")), gpus(), "instead of the 2.20.5"),
        ("distributed-not-built", torch(distributed=False), gpus(), "without torch.distributed"),
        ("nccl-not-available", torch(backends=("gloo",)), gpus(), "cannot start the backend nccl"),
        ("gloo-not-available", torch(backends=("nccl",)), gpus(), "cannot start the backend gloo"),
        ("python-not-supported", static(python_version="3.13.0"), gpus(), "no wheel for Python 3.13"),
        ("glibc-too-old", static(wheel_tag="manylinux_2_28_x86_64"), gpus(), "glibc 2.17 is too old"),
        ("glibc-too-old", static(version="2.7.0+cu126", cuda="12.6"), gpus(), "which needs 2.28"),
        ("no-code-for-gpu", static(), RTX_5090, "torch 2.4.1+cu124 has no code for NVIDIA GeForce RTX 5090 (12.0)"),
        ("no-code-for-gpu", torch(arch_list=("sm_80", "sm_90a")), gpus(capability="9.0"), "has no code for"),
        ("code-compiled-at-start", torch(arch_list=("sm_80", "compute_80")), RTX_5090, "compiles torch 2.4.1+cu124 for"),
        ("driver-too-old-to-compile", torch(arch_list=("sm_80", "compute_80")), gpus(capability="9.0"), "535.104.05 cannot compile"),
        ("companion-of-another-torch", torch(companions={"torchvision": "0.20.1"}), gpus(), "torchvision 0.20.1 does not belong"),
        ("companion-of-another-torch", torch(companions={"torchaudio": "2.5.0+cu124"}), gpus(), "does not belong to torch 2.4.1"),
        ("companion-of-another-torch", torch(companions={"torchvision": "0.29.2"}), gpus(), "does not belong to torch 2.4.1"),
        ("companion-of-another-cuda", torch(companions={"torchvision": "0.19.1+cu118"}), gpus(), "built for another CUDA"),
        ("companion-of-another-cuda", torch(companions={"torchvision": "0.19.1+cpu"}), gpus(), "built without CUDA"),
        ("torch-of-conda-and-pip", torch(installer="pip", companions={"pytorch": "2.1.0"}), gpus(), "over conda's pytorch 2.1.0"),
        ("driver-branch-ended", torch(), gpus("470.57.02"), "branch 470 gets no more fixes"),
        ("kernel-module-of-wrong-kind", torch(), gpus(**dark("0x2b85", is_open=False)), "the proprietary NVIDIA kernel module does not"),
        ("kernel-module-of-wrong-kind", torch(), gpus(**dark("0x1db1", is_open=True)), "the open NVIDIA kernel module does not"),
        ("nccl-has-known-bug", torch(nccl="2.17.1", nccl_loaded=None), H100S, "may hang where NVLink SHARP is used"),
        ("cudnn-of-another-version", torch(cudnn=None, unread={"cudnn": CUDNN}), gpus(), "cuDNN 8.8.1 is loaded, and torch 2.4.1+cu124 was built for 8.9.2"),
    ],
)  # fmt: skip
def test_a_fault_is_named(check, found, there, says):
    os = replace(UBUNTU, glibc="2.17") if check == "glibc-too-old" else UBUNTU
    failed = [v for v in judged(f"stack/{check}", torch=found, gpus=there, os=os) if v.outcome.value == "failed"]
    assert len(failed) == 1, failed
    assert says in failed[0].message
    assert failed[0].measured
    assert failed[0].expected
    assert failed[0].fixes


def test_the_end_of_a_driver_branch_is_judged_by_the_day_of_the_facts():
    facts = {"gpus": gpus("535.104.05")}
    assert outcome("stack/driver-branch-ended", Policy(today=datetime.date(2026, 6, 30)), **facts) == "passed"
    assert outcome("stack/driver-branch-ended", Policy(today=datetime.date(2026, 7, 1)), **facts) == "failed"
    config = Config(policy=Policy(today=datetime.date(2026, 7, 1)))
    then = NodeFacts("node1", collected_at=1750000000.0, **facts)  # 15 June 2025
    (verdict,) = engine.judge(then, [own_checks().checks["stack/driver-branch-ended"]], config)
    assert verdict.outcome.value == "passed"
    assert outcome("stack/driver-branch-ended", gpus=gpus("999.1")) == "skipped"


@pytest.mark.parametrize(
    ("path", "version", "stub", "older"),
    [
        ("/usr/local/cuda/lib64/stubs/libcuda.so.1", None, "failed", "skipped"),
        ("/usr/local/cuda/lib64/stubs/libcuda.so", None, "skipped", "skipped"),  # programs ask for libcuda.so.1
        ("/opt/image/libcuda.so.1", "470.57.02", "passed", "failed"),
        ("/usr/local/nvidia/lib64/libcuda.so.1", "535.104.05", "passed", "passed"),
        ("/usr/local/cuda/compat/libcuda.so.1", "550.54.15", "passed", "passed"),
        ("/usr/local/cuda/compat/libcuda.so.1", "530.30.02", "passed", "failed"),
    ],
)
def test_the_libcuda_that_comes_first(path, version, stub, older):
    facts = {"cuda": Cuda(shadowing=(Library(path, "cuda", version, "ld-library-path"),)), "gpus": gpus(), "os": UBUNTU}
    assert outcome("stack/stub-libcuda-first", torch=static(), **facts) == stub
    assert outcome("stack/libcuda-of-older-driver", torch=static(), **facts) == older
    assert "failed" not in outcome("stack/stub-libcuda-first", torch=torch(), **facts)  # CUDA was seen to work
    assert "failed" not in outcome("stack/libcuda-of-older-driver", torch=torch(), **facts)
    for check in ("stack/stub-libcuda-first", "stack/libcuda-of-older-driver"):
        assert outcome(check, **{**facts, "gpus": NO_GPUS}) == "skipped"
    assert all(v.fixes for v in judged("stack/stub-libcuda-first", **facts) if v.outcome.value == "failed")


def test_an_image_of_nvidia_takes_an_old_compat_library_out_of_the_way_itself():
    facts = {"cuda": COMPAT, "gpus": gpus(), "os": NGC}
    assert outcome("stack/libcuda-of-older-driver", torch=static(flavour="ngc"), **facts) == "skipped"
    assert outcome("stack/libcuda-of-older-driver", torch=blind("803", 803, flavour="ngc"), **facts) == "failed"


def test_a_silent_driver_does_not_prove_a_wrong_kernel_module():
    why = Reason("timed-out", "NVML did not answer")
    there = gpus(**{**dark("0x2b85", is_open=False), "gpus": None}, unread={"gpus": why})
    assert outcome("stack/kernel-module-of-wrong-kind", gpus=there, os=UBUNTU) == "skipped"
    vfio = gpus(on_bus=(PciGpu("0000:07:00.0", "0x2b85", "vfio-pci"),), kernel_module_open=False)
    assert outcome("stack/kernel-module-of-wrong-kind", gpus=vfio, os=UBUNTU) == "skipped"


@pytest.mark.parametrize(
    ("nvcc", "expected"), [("12.4.131", "passed"), ("12.1.105", "passed"), ("11.8.89", "failed"), (None, "skipped")]
)
def test_a_toolkit_matters_only_by_its_major_version(nvcc, expected):
    toolkit = Toolkit("/usr/local/cuda/bin/nvcc", nvcc) if nvcc else None
    cuda = Cuda(nvcc=toolkit, toolkits=(Toolkit("/usr/local/cuda-12.4", "12.4.1"),))
    assert outcome("stack/toolkit-of-another-cuda", torch=static(), cuda=cuda) == expected
    assert outcome("stack/toolkit-of-another-cuda", torch=CPU_ONLY, cuda=cuda) == "skipped"
    if expected == "failed":
        assert "CUDA_HOME /usr/local/cuda-12.4" in remedies("stack/toolkit-of-another-cuda", torch=static(), cuda=cuda)


def test_the_nccl_that_ld_preload_puts_first_is_known_without_an_import():
    check = "stack/nccl-would-be-replaced"
    assert outcome(check, torch=static(), cuda=preloaded("2.15.5")) == "failed"
    assert outcome(check, torch=static(), cuda=preloaded("2.27.3")) == "passed"
    assert outcome(check, torch=static(), cuda=preloaded("2.15.5", "ld-library-path")) == "skipped"  # RPATH may win
    assert outcome(check, torch=static(nccl_bundled=""), cuda=preloaded("2.15.5")) == "skipped"


def test_what_only_the_import_tells_is_not_asked_in_a_quick_run():
    for name in (
        "cuda-not-available",
        "older-nccl-loaded",
        "nccl-not-available",
        "gloo-not-available",
        "torch-import-fails",
    ):
        (verdict,) = judged(f"stack/{name}", torch=static(), gpus=gpus(), os=UBUNTU)
        assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "not-asked")


def test_an_interpreter_that_dies_in_cuda_is_a_fault():
    why = Reason("crashed", "the interpreter died when asked: ended by signal 11 (SIGSEGV)")
    found = torch(cuda_available=None, cuda_error=why.text, unread={"cuda_available": why})
    (verdict,) = judged("stack/cuda-not-available", torch=found, gpus=gpus(), os=UBUNTU)
    assert verdict.outcome.value == "failed"
    assert "crashed or hung" in verdict.message
    assert outcome("stack/cuda-not-available", torch=found, gpus=NO_GPUS) == "skipped"


def test_a_machine_without_gpus_is_offered_the_build_without_cuda():
    bare = replace(NO_GPUS, other_vendor=())
    assert "install torch --index-url https://download.pytorch.org/whl/cpu" in remedies(
        "stack/torch-not-installed", torch=NOT_THERE, gpus=bare, os=UBUNTU
    )


def test_a_required_torch_is_an_error_without_gpus_too():
    policy = Policy(require=("torch",))
    assert outcome("stack/torch-missing-where-needed", policy, torch=NOT_THERE, gpus=NO_GPUS) == "failed"
    assert outcome("stack/torch-not-installed", policy, torch=NOT_THERE, gpus=NO_GPUS) == "skipped"


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        ("11.3", "450.80.02", "passed"),
        ("11.8", "450.80.02", "passed"),
        ("11.3", "450.51.06", "failed"),
        ("11.0", "450.36.06", "passed"),  # the driver that CUDA 11.0 came with
        ("12.4", "525.60.13", "passed"),
        ("12.4", "525.60.11", "failed"),
        ("13.0", "580.65.06", "passed"),
        ("13.0", "575.57.08", "failed"),
        ("10.2", "440.33", "passed"),
        ("10.2", "418.87.01", "failed"),
        ("10.2", "580.65.06", "passed"),
        ("11.3", "440.33", "failed"),
        ("8.0", "450.80.02", "skipped"),
        ("99.0", "580.65.06", "skipped"),
        ("12.4", "not a version", "skipped"),
    ],
)
def test_the_driver_floor_is_that_of_the_major_version(cuda, driver, expected):
    found = static(version=f"2.0.0+cu{cuda.replace('.', '')}", cuda=cuda)
    assert outcome("stack/driver-too-old", torch=found, gpus=gpus(driver, "9.0"), os=UBUNTU) == expected


def test_forward_compatibility_is_left_to_the_import():
    old = gpus("470.57.02", "11.4")
    assert outcome("stack/driver-too-old", torch=static(), gpus=old, os=UBUNTU) == "failed"
    assert outcome("stack/driver-too-old", torch=static(), gpus=old, os=UBUNTU, cuda=COMPAT) == "skipped"
    assert outcome("stack/driver-too-old", torch=torch(), gpus=old, os=NGC, cuda=COMPAT) == "passed"
    assert outcome("stack/driver-too-old", torch=blind("804"), gpus=old, os=NGC, cuda=COMPAT) == "failed"


def test_tables_of_wheels_do_not_judge_other_builds():
    for flavour in ("ngc", "conda", "source", "distribution", "vendor"):
        (verdict,) = judged("stack/python-not-supported", torch=static(python_version="3.6.8", flavour=flavour))
        assert (verdict.outcome.value, "not an official wheel" in verdict.reason.text) == ("skipped", True)


def test_a_row_of_low_confidence_says_probably():
    (row,) = compat.torch_builds("2.15.0+cu130")
    (verdict,) = judged("stack/python-not-supported", torch=static(version="2.15.0+cu130", python_version="3.9.1"))
    assert row.confidence == "low"
    assert "probably no wheel for Python 3.9" in verdict.message
    assert verdict.source == row.source


@pytest.mark.parametrize(
    ("machine", "glibc", "expected"),
    [("x86_64", "2.17", "failed"), ("x86_64", "2.28", "passed"), ("aarch64", "2.27", "failed"), ("ppc64le", "2.17", "skipped")],
)  # fmt: skip
def test_glibc_for_the_newest_torch(machine, glibc, expected):
    os = replace(UBUNTU, machine=machine, glibc=glibc)
    assert outcome("stack/glibc-too-old-for-newest", os=os) == expected


def test_an_old_glibc_names_the_last_torch_that_it_loads():
    (verdict,) = judged("stack/glibc-too-old-for-newest", os=replace(UBUNTU, glibc="2.17"))
    assert verdict.message.startswith("glibc 2.17 stops at torch 2.6.0; ")
    musl = Os(machine="x86_64", unread={"glibc": Reason("absent", "musl")})
    assert outcome("stack/glibc-too-old-for-newest", os=musl) == "skipped"


RDMA = Rdma(devices=(RdmaDevice("mlx5_0", ports=(RdmaPort(1, state="ACTIVE", link_layer="InfiniBand"),)),))


@pytest.mark.parametrize(
    ("version", "there", "nnodes", "more", "expected"),
    [
        ("2.18.1", H100S, 2, {"rdma": RDMA}, ["tree-ll128-corrupts"]),
        ("2.18.1", H100S, 1, {"rdma": RDMA}, []),
        ("2.18.1", gpus(), 2, {"rdma": RDMA}, []),
        ("2.18.3", H100S, 2, {"rdma": RDMA}, []),
        ("2.17.1", H100S, None, {}, ["nvls-hangs"]),
        ("2.17.1", gpus(gpus=H100S.gpus[:4]), None, {}, []),  # four GPUs have no NVSwitch
        ("2.17.1", gpus(gpus=(H100_PCIE,) * 8), None, {}, []),
        ("2.17.1", H100S, None, {"env": Env((Variable("NCCL_NVLS_ENABLE", "0"),))}, []),
        ("2.29.2", gpus(), None, {"os": replace(UBUNTU, machine="aarch64")}, ["arm-hangs"]),
        ("2.29.2", gpus(), None, {"os": UBUNTU}, []),
        ("2.21.5", gpus(), 2, {"rdma": RDMA}, []),  # a bug that depends on the program is not counted
        ("2.26.2", gpus(), None, {"os": NGC}, []),  # the driver does not support CUDA 12.6
        ("2.26.2", gpus("570.86.10", "12.8"), None, {"os": NGC}, ["container-without-numa-fails"]),
    ],
)  # fmt: skip
def test_a_known_bug_of_nccl_counts_where_the_node_can_meet_it(version, there, nnodes, more, expected):
    found = torch(nccl=version, nccl_loaded=LoadedLibrary("/x/libnccl.so.2", version))
    verdicts = judged("stack/nccl-has-known-bug", Policy(nnodes=nnodes), torch=found, gpus=there, **more)
    assert [v.subject for v in verdicts if v.outcome.value == "failed"] == expected
    assert {v.outcome.value for v in verdicts} == ({"failed"} if expected else {"passed"})
    assert all(v.source.startswith("https://") and v.fixes for v in verdicts if v.outcome.value == "failed")


def test_a_slow_nccl_is_a_note_and_rocm_is_not_judged():
    found = torch(nccl="2.27.3", nccl_loaded=LoadedLibrary("/x/libnccl.so.2", "2.27.3"))
    (verdict,) = judged("stack/nccl-is-known-slow", Policy(nnodes=2), torch=found, gpus=gpus(), rdma=RDMA)
    assert (verdict.severity.value, verdict.subject) == ("note", "ring-slower-on-ampere")
    assert outcome("stack/nccl-is-known-slow", torch=ROCM, gpus=NO_GPUS) == "skipped"


def test_every_need_of_a_bug_can_be_told_or_is_never_counted():
    from ddp_doctor.checks.stack import nccl_bugs

    told = set(tables.BUG_NEEDS) - {"nvlink-down", "job:"}
    assert set(nccl_bugs._NEEDS) == told


TWO = {"nvidia-nccl-cu11": "2.21.5", "nvidia-nccl-cu12": "2.20.5"}


@pytest.mark.parametrize(
    ("packages", "present", "expected"),
    [
        ({"nvidia-nccl-cu12": "2.20.5"}, None, "passed"),
        (TWO, "2.20.5", "passed"),  # the one that torch requires came last
        (TWO, "2.21.5", "failed"),
        (TWO, None, "failed"),
        ({"nvidia-cudnn-cu11": "8.9.5.29", "nvidia-cudnn-cu12": "9.1.0.70"}, None, "passed"),  # names of their own
        ({"nvidia-cudnn-cu12": "9.1.0.70", "nvidia-cudnn-cu13": "9.13.0.50"}, None, "failed"),
        ({"nvidia-cublas-cu12": "12.4.5.8"}, None, "skipped"),
    ],
)
def test_packages_that_write_the_same_file(packages, present, expected):
    wheel = Library("/opt/env/lib/nvidia/nccl/lib/libnccl.so.2", "nccl", present, "wheel")
    facts = {"torch": static(nvidia_packages=packages), "cuda": Cuda(nccls=(wheel,))}
    assert outcome("stack/packages-overwrite-each-other", **facts) == expected
    if expected == "failed":
        names = " ".join(sorted(packages))
        assert f"-m pip uninstall -y {names}" in remedies("stack/packages-overwrite-each-other", **facts)


@pytest.mark.parametrize(
    ("text", "failure", "kind"),
    [
        ("ImportError: /lib64/libc.so.6: version `GLIBC_2.28' not found (required by libtorch.so)", "exception", "glibc"),
        ("libstdc++.so.6: version `GLIBCXX_3.4.29' not found", "exception", "libstdcxx"),
        ("libtorch_cuda.so: undefined symbol: ncclCommRegister", "exception", "nccl"),
        ("libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent", "exception", "mkl"),
        ("libtorch_cuda.so: undefined symbol: cudnnGetVersion", "exception", "symbol"),
        ("libcudart.so.11.0: cannot open shared object file: No such file or directory", "exception", "cuda-library"),
        ("libnvJitLink.so.12: cannot open shared object file", "exception", "cuda-library"),
        ("libcuda.so.1: cannot open shared object file", "exception", "libcuda"),
        ("libgomp-a34b3233.so.1: cannot open shared object file", "exception", "library"),
        ("libgomp.so.1: cannot allocate memory in static TLS block", "exception", "tls"),
        ("ImportError: numpy.core.multiarray failed to import", "exception", "numpy"),
        ("libtorch_cpu.so: file too short", "exception", "damaged"),
        ("libtorch_cuda.so: failed to map segment from shared object", "exception", "memory"),
        ("ModuleNotFoundError: No module named 'torch._C'", "exception", "shadowed"),
        ("ModuleNotFoundError: No module named 'typing_extensions'", "exception", "module"),
        ("RuntimeError: something new", "exception", "other"),
        ("ended by signal 4 (SIGILL)", "signal", "cpu"),
        ("ended by signal 9 (SIGKILL)", "signal", "killed"),
        ("ended by signal 11 (SIGSEGV)\nFatal Python error: Segmentation fault", "signal", "segfault"),
        ("timed out after 60 s", "timed-out", "slow"),
        ("no such file", "could-not-start", "interpreter"),
    ],
)  # fmt: skip
def test_an_import_error_is_decoded_and_has_a_way_out(text, failure, kind):
    assert decode.import_failure(failure, text).kind == kind
    (verdict,) = judged("stack/torch-import-fails", torch=broken(text, failure), gpus=gpus(), os=UBUNTU)
    assert verdict.outcome.value == "failed"
    assert verdict.fixes
    assert "{1}" not in verdict.message


TRIGGERED = " (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:100.)"


@pytest.mark.parametrize(
    ("text", "code", "visible", "kind"),
    [
        ("CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update", None, None, "driver"),
        ("CUDA initialization: Found no NVIDIA driver on your system. Please check", None, None, "no-driver"),
        ("CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized" + TRIGGERED, None, None, "fabric"),
        ("Error 803: system has unsupported display driver / cuda driver combination" + TRIGGERED, None, None, "mismatch"),
        ("Error 804: forward compatibility was attempted on non supported HW" + TRIGGERED, None, None, "compat"),
        ("Error 805: MPS client failed to connect to the MPS control daemon", None, None, "mps"),
        ("Error 34: CUDA driver is a stub library", None, None, "stub"),
        ("CUDA driver version is insufficient for CUDA runtime version", None, None, "driver"),
        ("Error 46: all CUDA-capable devices are busy or unavailable", None, None, "busy"),
        ("Error 101: invalid device ordinal", None, "7", "ordinal"),
        ("CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment" + TRIGGERED, None, None, "unknown"),
        ("No CUDA GPUs are available", 100, "", "hidden"),
        ("No CUDA GPUs are available", 100, "-1", "hidden"),
        ("No CUDA GPUs are available", 100, None, "no-device"),
        ("No CUDA GPUs are available", 802, None, "fabric"),
        ("Torch not compiled with CUDA enabled", None, None, "cpu-build"),
        ("something else" + TRIGGERED, None, "0", "other"),
        (None, None, None, "other"),
    ],
)  # fmt: skip
def test_a_cuda_error_is_decoded_and_has_a_way_out(text, code, visible, kind):
    assert decode.cuda_failure(text, visible, code).kind == kind
    there = gpus(visible_devices=visible)
    (verdict,) = judged("stack/cuda-not-available", torch=blind(text, code), gpus=there, os=UBUNTU)
    assert verdict.outcome.value == "failed"
    assert verdict.fixes
    assert "Triggered" not in verdict.measured


CODES = {
    2: "memory", 3: "fork", 34: "stub", 35: "driver", 36: "driver", 46: "busy", 100: "no-device", 101: "ordinal",
    304: "rights", 802: "fabric", 803: "mismatch", 804: "compat", 805: "mps", 807: "mps", 999: "unknown",
}  # fmt: skip


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_cuda_s_start_is_decoded(code):
    assert decode.cuda_failure(None, None, code).kind == CODES[code]
    assert decode.cuda_failure(f"Unexpected error from cudaGetDeviceCount(). Error {code}: x", None).kind == CODES[code]
    assert decode.cuda_failure(f"something (Triggered internally at CUDAFunctions.cpp:{code}.)", None).kind == "other"


def test_the_driver_version_that_cuda_tells_is_read():
    said = "The NVIDIA driver on your system is too old (found version 11040)."
    assert decode.cuda_failure(said, None).says == "the driver supports CUDA 11.4 at most"


def remedies(check, **facts):
    """All remedies of a check's failures, as one text."""
    return "\n".join(remedy_text(verdict) for verdict in judged(check, **facts))


def test_the_torch_to_install_fits_driver_gpu_python_and_glibc():
    volta = gpus("440.33.01", "10.2", "Tesla V100-SXM2-32GB", "7.0")
    found = replace(STATIC_NCCL, cuda_available=False)
    text = remedies("stack/driver-too-old", torch=found, gpus=volta, os=CENTOS)
    assert "/opt/env/bin/python -m pip install torch==1.12.1" in text
    assert "dnf module install nvidia-driver" in text
    newer = gpus("580.65.06", "13.0", "Tesla V100-SXM2-32GB", "7.0")
    text = remedies("stack/cpu-only-torch", torch=CPU_ONLY, gpus=newer, os=UBUNTU)
    assert "torch==2.14.1 --index-url https://download.pytorch.org/whl/cu126" in text  # CUDA 13 has no code for Volta
    assert "JetPack" in remedies("stack/cpu-only-torch", torch=CPU_ONLY, gpus=newer, os=JETSON)


@pytest.mark.parametrize(("floor", "first"), [(None, "Install torch"), ("450.80.02", "Install a newer driver")])
def test_a_newer_driver_comes_first_where_the_site_demands_it(floor, first):
    old = gpus("440.33.01", "10.2", "Tesla V100-SXM2-32GB", "7.0")
    for check, found in (
        ("driver-too-old", static()),
        ("cuda-not-available", blind("driver on your system is too old")),
    ):
        (verdict,) = judged(f"stack/{check}", policy=Policy(driver_minimum=floor), torch=found, gpus=old, os=CENTOS)
        assert verdict.fixes[0].title.startswith(first)


def test_a_hostile_interpreter_path_stays_one_word():
    found = replace(CPU_ONLY, python="/tmp/$(reboot)/python")
    assert "'/tmp/$(reboot)/python' -m pip" in remedies("stack/cpu-only-torch", torch=found, gpus=gpus(), os=UBUNTU)


CAPTURES = Path(__file__).parents[3] / "shared/captures/6-runs/collect_env"


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the wider captures are not here")
def test_the_driver_rule_is_silent_where_cuda_was_seen_to_work():
    """By the rule alone, without the word of CUDA itself, which would decide."""
    seen = {path.name: _collect_env(path.read_text(errors="replace")) for path in sorted(CAPTURES.glob("*.txt"))}
    working = {name: facts for name, facts in seen.items() if facts}
    older = [name for name, facts in working.items() if _judge_driver(UBUNTU, *facts) == "failed"]
    assert len(working) > 50
    assert older == ["mlperf-v0.7.NVIDIA.dgx1_ngc20.06_pytorch.txt"]  # CUDA 11.0 on 418.67 by forward compatibility
    assert _judge_driver(NGC, *working[older[0]]) == "skipped"


def _judge_driver(os, version, cuda, driver):
    return outcome("stack/driver-too-old", torch=static(version=version, cuda=cuda), gpus=gpus(driver, None), os=os)


def _collect_env(text):
    """(torch, CUDA build, driver) of a collect_env report in which CUDA is available; None elsewhere."""
    labels = ("PyTorch version", "CUDA used to build PyTorch", "Nvidia driver version", "Is CUDA available")
    found = [re.search(rf"^{label}: (.+?)\s*$", text, re.MULTILINE) for label in labels]
    values = [match.group(1) if match else "" for match in found]
    return tuple(values[:3]) if values[3] in ("Yes", "True") else None

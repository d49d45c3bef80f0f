"""Checks of the software stack: rules over the tables, decoded errors, and what must stay silent."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_doctor import compat, decode
from ddp_doctor.facts import Cuda, Gpu, Gpus, Library, LoadedLibrary, Os, PciGpu, Reason, Torch
from ddp_doctor.policy import Policy
from judging import judged, outcome, own_checks, remedy_text

UBUNTU = Os(id="ubuntu", version="22.04", kernel="5.15.0-91-generic", machine="x86_64", glibc="2.35", container="")
CENTOS = Os(id="centos", version="8.2.2004", like=("rhel", "fedora"), machine="x86_64", glibc="2.28", container="")
NGC = replace(UBUNTU, container="docker")
JETSON = replace(UBUNTU, kernel="5.15.136-tegra", machine="aarch64")
NO_GPUS = Gpus(source="proc", kernel_module="", gpus=(), on_bus=())


def gpus(driver="535.104.05", cuda="12.2", name="NVIDIA A100-SXM4-80GB", capability="8.0", **more):
    return Gpus(
        source="nvml",
        driver=driver,
        kernel_module=driver,
        cuda=cuda,
        gpus=(Gpu(0, name=name, compute_capability=capability),),
        on_bus=(PciGpu("0000:07:00.0", "0x20b2", "nvidia"),),
        **more,
    )


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
NEXT_YEARS = torch("2.19.0", "13.9", python_version="3.17.0")
COMPAT = Cuda(shadowing=(Library("/usr/local/cuda/compat/lib/libcuda.so.1", "cuda", "530.30.02", "ld-library-path"),))

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
}  # fmt: skip

ALL = sorted(check for check in own_checks().checks if check.startswith("stack/"))


@pytest.mark.parametrize("node", HEALTHY)
def test_a_healthy_stack_raises_no_alarm(node):
    found, there, os = HEALTHY[node]
    verdicts = [v for check in ALL for v in judged(check, torch=found, gpus=there, os=os, cuda=Cuda(shadowing=()))]
    assert len(verdicts) >= len(ALL)
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
    ],
)  # fmt: skip
def test_a_fault_is_named(check, found, there, says):
    os = replace(UBUNTU, glibc="2.17") if check == "glibc-too-old" else UBUNTU
    failed = [v for v in judged(f"stack/{check}", torch=found, gpus=there, os=os) if v.outcome.value == "failed"]
    assert len(failed) == 1
    assert says in failed[0].message
    assert failed[0].measured
    assert failed[0].expected
    assert failed[0].fixes


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

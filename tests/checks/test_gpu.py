"""Checks of GPUs: each fires on its fault and is silent on healthy nodes that look ill."""

from dataclasses import replace

import pytest
from ddp_doctor.facts import Gpu, GpuProcess, Gpus, Launch, Os, PciGpu, Rdma, Reason, Torch
from ddp_doctor.policy import GIB, MIB, Policy
from judging import judged, outcome, remedy_text

UBUNTU = Os(id="ubuntu", version="22.04", container="", kernel="5.15.0-91-generic")
CENTOS = Os(id="centos", version="8.2.2004", like=("rhel", "fedora"), container="", kernel="4.18.0-193.el8")
DOCKER = Os(id="ubuntu", version="22.04", container="docker", kernel="5.15.0-91-generic")
JETSON = Os(id="ubuntu", version="22.04", container="", kernel="5.15.136-tegra")
GONE = Reason("timed-out", "nvml: timed out after 20 s")


def gpu(index, **more):
    known = {
        "name": "NVIDIA A100-SXM4-80GB",
        "pci": f"0000:{index + 1:02x}:00.0",
        "compute_capability": "8.0",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 7 * MIB,
        "compute_mode": "default",
        "mig": "disabled",
        "processes": (),
    }
    return Gpu(index=index, **{**known, **more})


def bus(count, driver="nvidia"):
    return tuple(PciGpu(f"0000:{index + 1:02x}:00.0", "0x20b2", driver) for index in range(count))


def gpus(count=8, on_bus=8, **more):
    known = {
        "source": "nvml",
        "driver": "535.104.05",
        "kernel_module": "535.104.05",
        "library": "535.104.05",
        "cuda": "12.2",
        "gpus": tuple(gpu(index) for index in range(count)),
        "on_bus": bus(on_bus),
        "device_nodes": tuple(f"/dev/nvidia{index}" for index in range(count)),
    }
    return Gpus(**{**known, **more})


def changed(index, **more):
    """Eight GPUs, one of them different."""
    return gpus(gpus=tuple(gpu(i, **more) if i == index else gpu(i) for i in range(8)))


def processes(*names, used=4 * GIB, kind="compute"):
    return tuple(GpuProcess(100 + n, name, used, kind) for n, name in enumerate(names))


def remedies(check, **facts):
    """All remedies of a check's failures, as one text."""
    return "\n".join(remedy_text(verdict) for verdict in judged(check, **facts))


NOTHING = Gpus(source="proc", kernel_module="", gpus=(), on_bus=(), device_nodes=())
UNLOADED = gpus(gpus=None, kernel_module="", driver=None, nvml_error="Driver Not Loaded", device_nodes=())
MISMATCH = gpus(gpus=None, driver="535.104.05", library="535.129", nvml_error="Driver/library version mismatch")
NOUVEAU = replace(UNLOADED, on_bus=bus(1, "nouveau"))
GIVEN_TO_GUESTS = replace(UNLOADED, on_bus=bus(8, "vfio-pci"))
CONTAINER_WITHOUT = gpus(gpus=None, nvml_error="Library Not Found", device_nodes=(), admitted=0, admitted_by="nodes")
HANGS = gpus(gpus=None, unread={"gpus": GONE})
T400 = gpu(8, name="NVIDIA T400 4GB", memory_total_bytes=4 * GIB, compute_capability="7.5")
WSL = gpus(count=1, on_bus=0, kernel_module="", driver="546.12")
VGPU = gpus(count=1, on_bus=1, gpus=(gpu(0, name="GRID A100-40C", mig="unsupported"),))
JOB_WITH_2_OF_8 = gpus(count=2, on_bus=8, admitted=2, admitted_by="SLURM_JOB_GPUS=0,1")
UNCONFINED_JOB = gpus(count=8, on_bus=8, admitted=2, admitted_by="SLURM_JOB_GPUS=0,1")

HEALTHY = {
    "8 GPUs": (gpus(), UBUNTU),
    "laptop without a GPU": (NOTHING, UBUNTU),
    "container without GPUs": (CONTAINER_WITHOUT, DOCKER),
    "container with 2 of 8": (gpus(count=2, on_bus=8, admitted=2, admitted_by="2 device nodes"), DOCKER),
    "Slurm job with 2 of 8": (JOB_WITH_2_OF_8, UBUNTU),
    "Slurm job that sees all 8": (UNCONFINED_JOB, UBUNTU),
    "GPUs given to guests": (GIVEN_TO_GUESTS, UBUNTU),
    "WSL": (WSL, replace(UBUNTU, virtualisation="wsl")),
    "vGPU guest": (VGPU, UBUNTU),
    "Jetson without NVML": (Gpus(kernel_module="540.3.0", driver="540.3.0", on_bus=(), device_nodes=("/dev/nvidia0",)), JETSON),
    "ROCm node": (replace(NOTHING, other_vendor=("amd 0000:03:00.0",)), UBUNTU),
    "MIG on every GPU": (gpus(gpus=tuple(gpu(i, mig="enabled") for i in range(8))), UBUNTU),
    "T400 beside A100s": (gpus(gpus=(*gpus().gpus, T400), on_bus=9), UBUNTU),
    "DCGM and a display": (
        changed(0, memory_used_bytes=5 * GIB, processes=processes("nv-hostengine") + processes("Xorg", kind="graphics")),
        UBUNTU,
    ),
    "reserve counted as used": (changed(0, memory_used_bytes=912 * MIB, memory_used_includes_reserve=True), UBUNTU),
    "Grace's file cache": (
        gpus(gpus=(gpu(0, name="NVIDIA GH200 480GB", memory_used_bytes=60 * GIB),), on_bus=1),
        UBUNTU,
    ),
}  # fmt: skip

TREES_ALONE = gpus(source="proc", gpus=tuple(Gpu(n, unread={"memory_total_bytes": GONE}) for n in range(8)))
"""NVML hangs: the GPUs are known by the kernel's trees."""

ALL = (
    "bound-to-nouveau compute-mode-exclusive compute-mode-prohibited driver-below-minimum driver-library-mismatch "
    "driver-not-loaded driver-too-old-for-cuda-11 exclusive-and-too-many-ranks fewer-than-expected fewer-than-on-bus "
    "fewer-than-ranks left-to-nouveau memory-taken mig-against-policy models-differ not-answering unexpected-model unreadable"
).split()


@pytest.mark.parametrize("node", HEALTHY)
def test_a_healthy_node_raises_no_alarm(node):
    found, os = HEALTHY[node]
    verdicts = [verdict for name in ALL for verdict in judged(f"gpu/{name}", gpus=found, os=os)]
    assert len(verdicts) >= len(ALL)
    assert [(v.check, v.message) for v in verdicts if v.outcome.value in ("failed", "broken")] == []


@pytest.mark.parametrize(
    ("check", "found", "os", "policy", "says"),
    [
        ("driver-not-loaded", UNLOADED, UBUNTU, Policy(), "8 GPUs cannot be used"),
        ("bound-to-nouveau", NOUVEAU, UBUNTU, Policy(require=("gpus",)), "held by nouveau"),
        ("left-to-nouveau", NOUVEAU, UBUNTU, Policy(), "held by nouveau"),
        ("driver-library-mismatch", MISMATCH, UBUNTU, Policy(), "changed under the running kernel module"),
        ("unreadable", HANGS, UBUNTU, Policy(), "timed out after 20 s"),
        ("unreadable", replace(HANGS, on_bus=()), UBUNTU, Policy(), "timed out"),
        ("unreadable", replace(NOTHING, gpus=None, unread={"gpus": GONE}), UBUNTU, Policy(expect_gpus=8), "timed out"),
        ("unreadable", TREES_ALONE, UBUNTU, Policy(), "timed out"),
        ("driver-below-minimum", gpus(), UBUNTU, Policy(driver_minimum="550.54.14"), "older than 550.54.14"),
        ("driver-too-old-for-cuda-11", gpus(driver="440.33.01"), CENTOS, Policy(), "440.33.01 is older than 450.80.02"),
        ("not-answering", changed(3, fault="GPU is lost"), UBUNTU, Policy(), "GPU 3 at 0000:04:00.0 does not answer"),
        ("fewer-than-on-bus", gpus(count=7), UBUNTU, Policy(), "1 GPU missing from the driver: 0000:08:00.0"),
        ("fewer-than-on-bus", replace(JOB_WITH_2_OF_8, admitted=4), UBUNTU, Policy(), "2 GPUs missing"),
        ("fewer-than-expected", gpus(count=4, on_bus=4), UBUNTU, Policy(expect_gpus=8), "4 of 8 GPUs"),
        ("fewer-than-expected", changed(3, fault="GPU is lost"), UBUNTU, Policy(expect_gpus=8), "7 of 8 GPUs"),
        ("fewer-than-expected", NOTHING, UBUNTU, Policy(require=("gpus",)), "0 of 1 GPU"),
        ("unexpected-model", changed(5, name="NVIDIA A100-PCIE-40GB"), UBUNTU, Policy(expect_gpu_model="SXM4"), "GPU 5 is"),
        ("fewer-than-ranks", gpus(count=4, on_bus=4), UBUNTU, Policy(nproc_per_node=8), "8 processes for 4 GPUs"),
        ("fewer-than-ranks", gpus(visible_devices="0,1,-1,3"), UBUNTU, Policy(nproc_per_node=4), "4 processes for 2 GPUs"),
        ("models-differ", changed(5, name="NVIDIA A100-PCIE-40GB", memory_total_bytes=40 * GIB), UBUNTU, Policy(), "7 x"),
        ("memory-taken", changed(2, memory_used_bytes=9 * GIB), UBUNTU, Policy(), "9 GiB of GPU 2 are in use by processes"),
        ("memory-taken", changed(2, memory_used_bytes=9 * GIB, processes=processes("python3")), UBUNTU, Policy(), "python3 (pid 100)"),
        ("compute-mode-prohibited", changed(1, compute_mode="prohibited"), UBUNTU, Policy(), "GPU 1 is closed"),
        ("compute-mode-exclusive", changed(1, compute_mode="exclusive_process"), UBUNTU, Policy(), "1 GPU will take one"),
        ("exclusive-and-too-many-ranks", changed(1, compute_mode="exclusive_process"), UBUNTU, Policy(nproc_per_node=16), "16 processes for 8 GPUs"),
        ("mig-against-policy", changed(1, mig="enabled"), UBUNTU, Policy(mig="forbidden"), "MIG is enabled on GPU 1"),
        ("mig-against-policy", changed(1, mig="unsupported"), UBUNTU, Policy(mig="required"), "MIG is disabled on GPU 0"),
    ],
)  # fmt: skip
def test_a_fault_is_named(check, found, os, policy, says):
    failed = [v for v in judged(f"gpu/{check}", policy, gpus=found, os=os) if v.outcome.value == "failed"]
    assert failed
    assert says in failed[0].message
    assert failed[0].measured
    assert failed[0].expected
    assert failed[0].fixes or check == "compute-mode-exclusive"


@pytest.mark.parametrize(
    ("modules", "unloaded"),
    [
        (("ib_core", "nvidia_peermem"), "modprobe -r nvidia_peermem nvidia_drm nvidia_modeset nvidia_uvm nvidia\n"),
        (("gdrdrv", "nvidia_fs"), "modprobe -r gdrdrv nvidia_fs nvidia_drm nvidia_modeset nvidia_uvm nvidia\n"),
        ((), "modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia\n"),
        (None, "modprobe -r nvidia_peermem nv_peer_mem gdrdrv nvidia_fs nvidia_drm nvidia_modeset nvidia_uvm nvidia\n"),
    ],
)
def test_modules_that_hold_the_driver_are_unloaded_before_it(modules, unloaded):
    (verdict,) = judged("gpu/driver-library-mismatch", gpus=MISMATCH, os=UBUNTU, rdma=Rdma(modules=modules))
    text = remedy_text(verdict)
    assert text.index("systemctl stop 'nvidia-*' 'dcgm*'") < text.index(unloaded) < text.index("modprobe -a nvidia")
    assert "nvidia-fabricmanager" in text


def test_one_fault_of_the_driver_is_told_once():
    for found, check in ((UNLOADED, "driver-not-loaded"), (MISMATCH, "driver-library-mismatch")):
        failed = [n for n in ALL for v in judged(f"gpu/{n}", gpus=found, os=UBUNTU) if v.outcome.value == "failed"]
        assert failed == [check]


def test_a_section_that_could_not_be_read_is_an_error_only_where_gpus_were_asked_for():
    reasons = {"gpus": Reason("crashed", "reading gpus: signal 11")}
    assert outcome("gpu/unreadable", reasons=reasons) == "skipped"
    assert outcome("gpu/unreadable", Policy(require=("gpus",)), reasons=reasons) == "failed"
    asked = {"gpus": Reason("not-asked", "not selected")}
    assert outcome("gpu/unreadable", Policy(require=("gpus",)), reasons=asked) == "skipped"


def test_unknown_is_no_pass():
    silent = gpus(gpus=(Gpu(0, unread={"memory_used_bytes": GONE, "compute_mode": GONE, "name": GONE}),), on_bus=1)
    assert outcome("gpu/memory-taken", gpus=silent) == "skipped"
    assert outcome("gpu/compute-mode-prohibited", gpus=silent) == "skipped"
    assert (
        outcome("gpu/driver-below-minimum", Policy(driver_minimum="450.80.02"), gpus=gpus(driver="devel")) == "skipped"
    )


@pytest.mark.parametrize(
    ("check", "policy"),
    [
        ("driver-library-mismatch", Policy()),
        ("fewer-than-on-bus", Policy()),
        ("fewer-than-expected", Policy(expect_gpus=8)),
        ("fewer-than-ranks", Policy(nproc_per_node=8)),
        ("models-differ", Policy()),
    ],
)
def test_what_the_kernel_s_trees_show_while_the_driver_is_silent_is_no_pass(check, policy):
    named = tuple(replace(g, name="NVIDIA H100", pci=f"0000:{g.index + 1:02x}:00.0") for g in TREES_ALONE.gpus)
    (verdict,) = judged(f"gpu/{check}", policy, gpus=replace(TREES_ALONE, gpus=named), os=UBUNTU)
    assert (verdict.outcome.value, verdict.reason) == ("skipped", GONE)


def test_no_gpu_read_from_no_driver_is_no_reading():
    assert outcome("gpu/unreadable", Policy(expect_gpus=8), gpus=NOTHING, os=UBUNTU) == "skipped"


@pytest.mark.parametrize(
    ("policy", "torch", "check"),
    [
        (Policy(), Torch(installed=True, cuda=""), "left-to-nouveau"),
        (Policy(), None, "left-to-nouveau"),
        (Policy(), Torch(installed=True, cuda="12.4"), "bound-to-nouveau"),
        (Policy(expect_gpus=1), None, "bound-to-nouveau"),
    ],
)
def test_nouveau_is_an_error_where_the_gpu_is_wanted(policy, torch, check):
    names = ("bound-to-nouveau", "left-to-nouveau")
    found = [v.check for n in names for v in judged(f"gpu/{n}", policy, gpus=NOUVEAU, torch=torch) if v.fixes]
    assert found == [f"gpu/{check}"]


def test_a_bus_without_a_gpu_is_the_first_thing_to_look_at():
    (verdict,) = judged("gpu/fewer-than-expected", Policy(expect_gpus=8), gpus=NOTHING, os=UBUNTU)
    assert "No NVIDIA device is on the PCI bus" in remedy_text(verdict)
    assert "why the driver did not start" not in remedy_text(verdict)


def test_ranks_are_bounded_by_the_launcher_too_and_not_under_mig():
    launch = Launch(launcher="torchrun", local_world_size=8)
    assert outcome("gpu/fewer-than-ranks", gpus=gpus(count=4, on_bus=4), launch=launch) == "failed"
    assert outcome("gpu/fewer-than-ranks", gpus=gpus(), launch=launch) == "passed"
    assert outcome("gpu/fewer-than-ranks", gpus=NOTHING, launch=launch) == "skipped"
    assert outcome("gpu/fewer-than-ranks", Policy(nproc_per_node=14), gpus=changed(0, mig="enabled")) == "skipped"


def test_mps_makes_exclusive_mode_right():
    mps = processes("nvidia-cuda-mps-server", kind="mps")
    shared = gpus(gpus=tuple(gpu(i, compute_mode="exclusive_process", processes=mps) for i in range(2)), on_bus=2)
    assert outcome("gpu/exclusive-and-too-many-ranks", Policy(nproc_per_node=4), gpus=shared) == "skipped"
    assert outcome("gpu/compute-mode-exclusive", gpus=shared) == "passed"


def test_the_installed_cuda_build_judges_the_driver_instead_of_the_floor_of_cuda_11():
    old = gpus(driver="440.33.01")
    with_cuda = Torch(installed=True, version="1.12.1", cuda="10.2")
    assert outcome("gpu/driver-too-old-for-cuda-11", gpus=old, torch=with_cuda) == "skipped"
    assert outcome("gpu/driver-too-old-for-cuda-11", gpus=old, torch=Torch(installed=False)) == "failed"


@pytest.mark.parametrize(
    ("device", "os", "said"),
    [
        ("0x1db1", CENTOS, "dnf module install nvidia-driver:580-dkms"),
        ("0x1db1", UBUNTU, "ubuntu-drivers install --gpgpu nvidia:580-server"),
        ("0x102d", CENTOS, "dnf module install nvidia-driver:470-dkms"),
        ("0x20b2", CENTOS, "dnf module install nvidia-driver:latest-dkms"),
    ],
)
def test_an_old_gpu_gets_the_last_branch_that_drives_it(device, os, said):
    found = replace(UNLOADED, on_bus=(PciGpu("0000:01:00.0", "0x20b2"), PciGpu("0000:02:00.0", device)))
    assert said in remedies("gpu/driver-not-loaded", gpus=found, os=os)


@pytest.mark.parametrize(
    ("os", "command"),
    [
        (UBUNTU, "ubuntu-drivers install --gpgpu"),
        (CENTOS, "dnf module install nvidia-driver:latest-dkms"),
        (replace(UBUNTU, id="debian"), "apt install nvidia-driver"),
    ],
)
def test_the_driver_is_installed_as_the_distribution_does(os, command):
    assert command in remedies("gpu/driver-not-loaded", gpus=UNLOADED, os=os)


def test_in_a_container_nothing_is_installed():
    found = replace(UNLOADED, admitted=8, admitted_by="NVIDIA_VISIBLE_DEVICES=all")
    text = remedies("gpu/driver-not-loaded", gpus=found, os=DOCKER)
    assert "--gpus all" in text
    assert "install --gpgpu" not in text
    pod = replace(DOCKER, container="kubernetes")
    assert "nvidia.com/gpu" in remedies("gpu/driver-not-loaded", gpus=found, os=pod)


def test_a_hostile_address_stays_one_word():
    lost = gpus(gpus=(gpu(0, fault="Unknown Error", pci="$(reboot);"),), on_bus=1)
    assert "-i '$(reboot);'" in remedies("gpu/not-answering", gpus=lost, os=UBUNTU)

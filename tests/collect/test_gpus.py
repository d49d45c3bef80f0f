"""The gpus section: real pynvml over the fake driver library, nvidia-smi's XML, and the kernel's trees."""

import os
import select
import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import gpus, nvidia_smi, nvml, pci
from ddp_doctor.facts import UNLIMITED, Gpu, Reason, to_plain
from ddp_doctor.host import Host
from ddp_doctor.recording import Recorder, Recording
from ddp_doctor.unreadable import Unreadable

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 11\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs@b)  Tue Sep 23 09:55 2025\n"
CAPTURES = Path(__file__).parents[3] / "shared/captures/3-nvidia-smi"
MIB = 1 << 20


def put(root, files, links=()):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, target in dict(links).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)


@pytest.fixture
def node(tmp_path, fake_nvml, monkeypatch):
    """A machine with eight A100 as its kernel shows it; no nvidia-smi on PATH and no job around."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "CUDA_", "NVIDIA_", "container"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    root = tmp_path / "root"
    put(root, {"proc/driver/nvidia/version": PROPRIETARY}, {"proc/self/ns/pid": gpus.INITIAL_PID_NAMESPACE})
    for index, bus in enumerate(fake_nvml.buses):
        pci_gpu(root, f"0000:{bus}:00.0", numa=index // 4)
        information = f"Model: \t\t NVIDIA A100-SXM4-80GB\nGPU UUID: \t GPU-????????\nDevice Minor: \t {index}\n"
        put(root, {f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information": information, f"dev/nvidia{index}": ""})
    put(root, {"dev/nvidiactl": "", "dev/nvidia-uvm": ""})
    return Host(str(root))


def pci_gpu(root, name, vendor="0x10de", kind="0x030200", device="0x20b2", driver="nvidia", numa=0):
    folder = f"sys/bus/pci/devices/{name}"
    put(
        root,
        {
            f"{folder}/{n}": f"{v}\n"
            for n, v in (("vendor", vendor), ("class", kind), ("device", device), ("numa_node", numa))
        },
        {f"{folder}/driver": f"../../../../bus/pci/drivers/{driver}"} if driver else {},
    )


@pytest.fixture
def impatient(monkeypatch):
    """Limits of a test: what hangs in the fake library hangs for ever, what does not answers in milliseconds."""
    monkeypatch.setattr(nvml, "START_S", 1.0)
    monkeypatch.setattr(nvml, "STALL_S", 1.0)
    monkeypatch.setattr(nvml, "WAKE_S", 0.1)


def read(host, **ask):
    return gpus.read(host, Ask(**ask))


# --------------------------------------------------------------------------- over the fake driver library


NO_PART_OF_AN_A100 = ("temperature_margin_c", "retired_single_bit", "retired_double_bit", "retired_pending", "fabric")


def test_a_healthy_node_is_told_in_full(node, fake_nvml):
    fake_nvml.install(fake_nvml.healthy(8))
    found = read(node)
    assert (found.source, found.driver, found.library, found.cuda) == ("nvml", "535.104.05", "535.104.05", "12.2")
    assert (found.kernel_module, found.kernel_module_open, found.nvml_error) == ("535.104.05", False, None)
    assert len(found.gpus) == len(found.on_bus) == len(found.device_nodes) == 8
    assert found.gpus[4] == Gpu(
        index=4,
        name="NVIDIA A100-SXM4-80GB",
        uuid="GPU-00000000-0000-0000-0000-000000000004",
        pci="0000:87:00.0",
        serial="1565000000004",
        compute_capability="8.0",
        memory_total_bytes=80 << 30,
        memory_used_bytes=0,
        memory_used_includes_reserve=False,
        compute_mode="default",
        mig="disabled",
        persistence=True,
        temperature_c=31,
        temperature_slowdown_c=89,
        temperature_shutdown_c=92,
        temperature_max_c=85,
        temperature_memory_c=38,
        temperature_memory_max_c=95,
        utilisation_percent=0,
        performance_state=0,
        power_w=61.25,
        power_limit_w=400.0,
        power_default_limit_w=400.0,
        clock_sm_mhz=210,
        clock_sm_max_mhz=1410,
        clock_memory_mhz=1593,
        clock_memory_max_mhz=1593,
        throttle=("gpu_idle",),
        throttled_us={"sw_power_cap": 0, "sync_boost": 0},
        clock_application_mhz=1410,
        clock_application_default_mhz=1275,
        ecc_mode=True,
        ecc_corrected_volatile=0,
        ecc_corrected_aggregate=0,
        ecc_uncorrected_volatile=0,
        ecc_uncorrected_aggregate=0,
        ecc_sram_uncorrected_volatile=0,
        ecc_sram_uncorrected_aggregate=0,
        ecc_sram_threshold_exceeded=False,
        recovery_action="none",
        remapped_correctable=0,
        remapped_uncorrectable=0,
        remap_pending=False,
        remap_failure=False,
        pcie_gen=4,
        pcie_gen_max=4,
        pcie_gen_device_max=4,
        pcie_replays=0,
        pcie_width=16,
        pcie_width_max=16,
        nvlinks=found.gpus[4].nvlinks,  # test_nvlink.py
        peers={str(other): "ok" for other in range(8) if other != 4},
        numa_node=1,
        processes=(),
        unsupported=NO_PART_OF_AN_A100,
    )
    assert set(found.unread) == {"admitted", "admitted_by", "visible_devices"}


@pytest.mark.parametrize(
    ("call", "answer", "field", "value"),
    [
        ("nvmlDeviceGetComputeMode", "3", "compute_mode", "exclusive_process"),
        ("nvmlDeviceGetComputeMode", "2", "compute_mode", "prohibited"),
        ("nvmlDeviceGetMigMode", "1 1", "mig", "enabled"),
        ("nvmlDeviceGetMigMode", "!3", "mig", "unsupported"),
        ("nvmlDeviceGetPersistenceMode", "0", "persistence", False),
        ("nvmlDeviceGetCurrentClocksEventReasons", "72", "throttle", ("hw_slowdown", "hw_thermal_slowdown")),
        ("nvmlDeviceGetCurrentClocksEventReasons", "4096", "throttle", ("0x1000",)),
        ("nvmlDeviceGetRemappedRows", "3 1 1 0", "remapped_correctable", 3),
        ("nvmlDeviceGetRemappedRows", "3 1 1 0", "remap_pending", True),
        ("nvmlDeviceGetRemappedRows", "3 1 0 1", "remap_failure", True),
        ("nvmlDeviceGetTotalEccErrors", "2 7", "ecc_uncorrected_volatile", 2),
        ("nvmlDeviceGetTotalEccErrors", "2 7", "ecc_uncorrected_aggregate", 7),
        ("nvmlDeviceGetTotalEccErrors", "2 7 31 64", "ecc_corrected_volatile", 31),
        ("nvmlDeviceGetTotalEccErrors", "2 7 31 64", "ecc_corrected_aggregate", 64),
        ("nvmlDeviceGetMaxClockInfo", "1410 1410 1215 1290", "clock_memory_max_mhz", 1215),
        ("nvmlDeviceGetCurrPcieLinkGeneration", "1", "pcie_gen", 1),
        ("nvmlDeviceGetMemoryInfo_v2", f"{80 << 30} {1 << 30} 0 {79 << 30}", "memory_used_bytes", 79 << 30),
    ],
)
def test_values(node, fake_nvml, call, answer, field, value):
    fake_nvml.install(fake_nvml.healthy(2), {f"1:{call}": answer})
    found = read(node).gpus
    assert getattr(found[1], field) == value != getattr(found[0], field)


def test_what_a_device_does_not_support_and_what_fails_stay_apart(node, fake_nvml):
    odd = {
        "0:nvmlDeviceGetSerial": "!3",
        "0:nvmlDeviceGetPowerUsage": "!999",
        "0:nvmlDeviceGetEccMode": "!4",
        "0:nvmlDeviceGetComputeMode": "17",
        "0:nvmlDeviceGetUUID": "\udcff\udcfe",
        "0:nvmlDeviceGetMemoryInfo_v2": "!3",
        "0:nvmlDeviceGetMemoryInfo": "!3",
    }
    fake_nvml.install(fake_nvml.healthy(1), odd)
    (gpu,) = read(node).gpus
    assert set(gpu.unsupported) == {
        *NO_PART_OF_AN_A100,
        "serial",
        "memory_total_bytes",
        "memory_used_bytes",
        "memory_used_includes_reserve",
    }
    assert gpu.unread["power_w"] == Reason("unreadable", "NVML: Unknown Error")
    assert gpu.unread["ecc_mode"] == Reason("no-rights", "NVML: Insufficient Permissions")
    assert gpu.unread["compute_mode"].kind == gpu.unread["uuid"].kind == "unreadable"
    assert gpu.fault is None
    assert gpu.name == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ({"nvmlDeviceGetFieldValues": "230=3"}, "recovery_action", "drain_p2p"),
        ({"nvmlDeviceGetFieldValues": "230=77"}, "recovery_action", "action 77"),
        ({"nvmlDeviceGetFieldValues": "29=2 30=61 31=1"}, "retired_double_bit", 61),
        ({"nvmlDeviceGetFieldValues": "29=2 30=61 31=1"}, "retired_pending", True),
        ({"nvmlDeviceGetFieldValues": "271=5000"}, "throttled_us", {"hw_power_brake_slowdown": 5}),
        ({"nvmlDeviceGetSramEccErrorStatus": "1"}, "ecc_sram_threshold_exceeded", True),
        ({"nvmlDeviceGetMemoryErrorCounter": "2 7"}, "ecc_sram_uncorrected_aggregate", 7),
        ({"nvmlDeviceGetMarginTemperature": "4"}, "temperature_margin_c", 4),
        ({"nvmlDeviceGetPerformanceState": "8"}, "performance_state", 8),
        ({"nvmlDeviceGetPerformanceState": "32"}, "performance_state", None),
        ({"nvmlDeviceGetFieldValues": "!3"}, "recovery_action", None),
        ({"nvmlDeviceGetFieldValues": "!999"}, "temperature_memory_c", None),
    ],
)
def test_what_tells_of_ill_health(node, fake_nvml, said, field, value):
    fake_nvml.install(fake_nvml.healthy(1), said)
    (gpu,) = read(node).gpus
    assert getattr(gpu, field) == value
    assert value is not None or field in {*gpu.unread, *gpu.unsupported}
    assert gpu.fault is None


def test_a_driver_of_2019_lacks_calls_and_crashes_nothing(node, fake_nvml):
    v100 = {"nvmlDeviceGetName": "Tesla V100-SXM2-32GB", "nvmlSystemGetCudaDriverVersion": "10020"}
    fake_nvml.install(fake_nvml.healthy(8, "440.33.01"), v100, driver=440)
    found = read(node)
    gpu = found.gpus[0]
    assert (found.driver, found.cuda, gpu.name, gpu.pci) == (
        "440.33.01",
        "10.2",
        "Tesla V100-SXM2-32GB",
        "0000:07:00.0",
    )
    assert (gpu.memory_used_bytes, gpu.memory_used_includes_reserve) == (1 << 30, True)
    assert (gpu.mig, gpu.throttle) == ("unsupported", ("gpu_idle",))
    remapped = {"remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure"}
    newer = {"ecc_sram_threshold_exceeded", "temperature_margin_c", "pcie_gen_device_max"}
    assert set(gpu.unread) == remapped | newer | {"processes", "fabric"}
    assert gpu.unread["processes"] == Reason("absent", "NVML: Function Not Found")


def test_processes_of_all_kinds_are_named_without_arguments(node, fake_nvml):
    busy = {
        "0:nvmlDeviceGetComputeRunningProcesses_v3": f"700 {5 << 30} 701 {UNLIMITED * 2 + 1}",
        "0:nvmlDeviceGetGraphicsRunningProcesses_v3": f"702 {4 << 20}",
        "0:nvmlDeviceGetMPSComputeRunningProcesses_v3": f"703 {6 << 30}",
    }
    put(Path(node.root), {"proc/700/comm": "python3\n", "proc/702/comm": "Xorg\n", "proc/703/comm": "pt_main\n"})
    fake_nvml.install(fake_nvml.healthy(1), busy)
    (gpu,) = read(node).gpus
    assert [(p.pid, p.name, p.used_bytes, p.kind) for p in gpu.processes] == [
        (700, "python3", 5 << 30, "compute"),
        (701, None, None, "compute"),
        (702, "Xorg", 4 << 20, "graphics"),
        (703, "pt_main", 6 << 30, "mps"),
    ]


def test_a_container_does_not_name_its_own_process_for_the_machine_s_pid(node, fake_nvml):
    contained(node)
    put(Path(node.root), {"proc/700/comm": "innocent\n"})
    fake_nvml.install(fake_nvml.healthy(1), {"0:nvmlDeviceGetComputeRunningProcesses_v3": f"700 {5 << 30}"})
    (gpu,) = read(node).gpus
    assert (gpu.processes[0].pid, gpu.processes[0].name) == (700, None)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"3:nvmlDeviceGetHandleByIndex_v2": "!15"}, "GPU is lost"),
        ({"3:nvmlDeviceGetHandleByIndex_v2": "!999"}, "Unknown Error"),
        ({"3:nvmlDeviceGetPciInfo_v3": "!15"}, "GPU is lost"),
        ({"3:nvmlDeviceGetTemperature": "!16"}, "GPU requires reset"),
        ({"3:nvmlDeviceGetUUID": "!999"}, "Unknown Error"),
        ({"3:nvmlDeviceGetEccMode": "crash"}, "ended without an answer (signal 11)"),
    ],
)
def test_one_lost_gpu_hides_no_other(node, fake_nvml, said, fault):
    fake_nvml.install(fake_nvml.healthy(8), said)
    found = read(node).gpus
    assert [gpu.fault for gpu in found] == [None] * 3 + [fault] + [None] * 4
    assert found[3].pci == "0000:4e:00.0"
    assert found[3].numa_node == 0
    assert no_silent_gap(found[3])
    assert all(gpu.temperature_c == 31 for gpu in found if gpu.index != 3)


def test_a_gpu_that_never_answers_is_given_up_and_named(node, fake_nvml, impatient):
    fake_nvml.install(
        fake_nvml.healthy(8), {"5:nvmlDeviceGetPowerUsage": "hang", "6:nvmlDeviceGetHandleByIndex_v2": "hang"}
    )
    found = read(node).gpus
    assert [gpu.index for gpu in found if gpu.fault] == [5, 6]
    assert found[5].fault.startswith("timed out: no answer in ")
    assert found[5].pci == "0000:90:00.0"
    assert found[5].unread["uuid"].kind == "timed-out"
    assert no_silent_gap(found[5])


@pytest.mark.parametrize(("how", "kind"), [("hang", "timed-out"), ("crash", "crashed")])
def test_nvml_that_never_starts_leaves_the_kernel_s_word(node, fake_nvml, impatient, how, kind):
    fake_nvml.install(fake_nvml.healthy(8), {"nvmlInitWithFlags": how})
    found = read(node)
    assert (found.source, found.driver, found.nvml_error) == ("proc", "535.104.05", None)
    assert found.unread["nvml_error"].kind == found.unread["cuda"].kind == kind
    assert [gpu.pci for gpu in found.gpus][:2] == ["0000:07:00.0", "0000:0f:00.0"]
    assert found.gpus[0].name == "NVIDIA A100-SXM4-80GB"
    assert found.gpus[0].unread["memory_total_bytes"].kind == kind


def test_a_deadline_keeps_the_gpus_that_answered_and_leaves_no_process(fake_nvml):
    """Every descendant holds the pipe's write end: it reads as ended when the last of them is gone."""
    fake_nvml.install(fake_nvml.healthy(2), {"1:nvmlDeviceGetName": "hang"})
    script = (
        "from ddp_doctor import collect, ask, host\n"
        "gpus = collect.gather(host.Host(), ask.Ask(), 2.0, ('gpus',))['gpus']['gpus']\n"
        "print(gpus[0]['name'], gpus[1]['unread']['name']['kind'])"
    )
    ours, theirs = os.pipe()
    env = {**os.environ, **fake_nvml.env}
    ran = subprocess.run([sys.executable, "-c", script], env=env, pass_fds=[theirs], capture_output=True, check=True)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        assert select.select([pipe], [], [], 5.0)[0] == [pipe]
    assert ran.stdout == b"NVIDIA A100-SXM4-80GB deadline\n"


@pytest.mark.parametrize(
    ("code", "library", "words"),
    [
        (18, "535.161.07", "Driver/library version mismatch"),
        (9, "535.104.05", "Driver Not Loaded"),
        (999, None, "Unknown Error"),
    ],
)
def test_nvml_that_will_not_start_says_why(node, fake_nvml, code, library, words):
    said = {"nvmlInitWithFlags": f"!{code}", "nvmlSystemGetNVMLVersion": f"12.{library}" if library else "!999"}
    fake_nvml.install(fake_nvml.healthy(8), said)
    found = read(node)
    assert (found.source, found.nvml_error, found.library) == ("proc", words, library)
    assert found.driver == found.kernel_module == "535.104.05"
    assert len(found.gpus) == 8
    assert found.gpus[0].unread["memory_used_bytes"] == Reason("unreadable", f"NVML: {words}")


def test_a_gpu_on_the_bus_without_a_driver(tmp_path, fake_nvml):
    pci_gpu(tmp_path, "0000:07:00.0", driver="")
    put(tmp_path, {"dev/null": ""})
    fake_nvml.install({"nvmlInitWithFlags": "!9"})
    found = read(Host(str(tmp_path)))
    assert (found.kernel_module, found.driver, found.nvml_error, found.gpus) == ("", None, "Driver Not Loaded", None)
    assert found.unread["gpus"] == Reason("unreadable", "NVML: Driver Not Loaded")
    assert to_plain(found.on_bus) == [{"pci": "0000:07:00.0", "device_id": "0x20b2", "driver": "", "numa_node": 0}]


def test_gpus_that_the_cgroup_denies_are_not_ours(node, fake_nvml):
    denied = {f"{index}:nvmlDeviceGetHandleByIndex_v2": "!4" for index in range(6)}
    fake_nvml.install(fake_nvml.healthy(8), denied)
    assert [gpu.index for gpu in read(node).gpus] == [6, 7]
    fake_nvml.install(fake_nvml.healthy(8), {"nvmlDeviceGetHandleByIndex_v2": "!4"})
    found = read(node)
    assert found.gpus is None
    assert found.unread["gpus"] == Reason("no-rights", "NVML: Insufficient Permissions")


def test_a_recording_of_a_node_tells_the_same_again(node, fake_nvml):
    fake_nvml.install(fake_nvml.healthy(8), {"3:nvmlDeviceGetHandleByIndex_v2": "!15"})
    recorder = Recorder(node.root)
    live = read(recorder)
    fake_nvml.uninstall()
    assert read(Recording(recorder.entries, {})) == live


def no_silent_gap(gpu):
    """Every field without a value has its reason."""
    empty = {name for name, value in vars(gpu).items() if value is None}
    return empty - {"fault", "numa_node"} <= set(gpu.unread) | set(gpu.unsupported)


# --------------------------------------------------------------------------- nvidia-smi

CARD = """<gpu id="00000000:{bus}:00.0"><product_name>Tesla V100</product_name><uuid>GPU-{bus}</uuid>
<serial>[N/A]</serial><persistence_mode>Enabled</persistence_mode><compute_mode>Exclusive_Process</compute_mode>
<fb_memory_usage><total>32510 MiB</total><used>{used}</used></fb_memory_usage>
<clocks_throttle_reasons><clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
<clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown></clocks_throttle_reasons>
<power_readings><power_draw>[Unknown Error]</power_draw><enforced_power_limit>300.00 W</enforced_power_limit></power_readings>
<ecc_mode><current_ecc>ERR!</current_ecc></ecc_mode>
<ecc_errors><volatile><single_bit><total>12</total></single_bit><double_bit><total>3</total></double_bit></volatile><aggregate>N/A</aggregate></ecc_errors>
<pci><pci_gpu_link_info><link_widths><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info></pci>
<processes><process_info><pid>41</pid><type>C+G</type><process_name>/opt/my/python train.py --token x</process_name>
<used_memory>100 MiB</used_memory></process_info></processes></gpu>
"""
HEAD = (
    '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v10.dtd">\n<nvidia_smi_log>\n'
    "<driver_version>440.33.01</driver_version><cuda_version>10.2</cuda_version>\n"
)
OLD = HEAD + CARD.format(bus="3B", used="12 MiB") + CARD.format(bus="AF", used="[GPU is lost]") + "</nvidia_smi_log>\n"


@pytest.fixture
def no_library(monkeypatch):
    """A machine on which NVML's library cannot be found, whatever this one has."""
    monkeypatch.setattr(nvml, "LIBRARY", "libnvidia-ml.so.none")


def nvidia_smi_here(monkeypatch, tmp_path, script):
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("xml", "action"),
    [
        ("<gpu_recovery_action>None</gpu_recovery_action>", "none"),
        ("<gpu_recovery_action>Reset</gpu_recovery_action>", "gpu_reset"),
        ("<gpu_recovery_action>Drain and Reset</gpu_recovery_action>", "drain_and_reset"),
        ("<gpu_recovery_action>Drain P2P</gpu_recovery_action>", "drain_p2p"),
        ("<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>", "gpu_reset"),
        ("<gpu_reset_status><reset_required>No</reset_required></gpu_reset_status>", "none"),
        ("<gpu_reset_status><reset_required>No</reset_required>"
         "<drain_and_reset_recommended>Yes</drain_and_reset_recommended></gpu_reset_status>", "drain_and_reset"),
    ],
)  # fmt: skip
def test_nvidia_smi_s_recovery_action(xml, action):
    assert nvidia_smi._recovery_action(ElementTree.fromstring(f"<gpu>{xml}</gpu>")) == action


@pytest.mark.parametrize(("word", "total"), [("correctable", 5), ("uncorrectable", 9)])
def test_nvidia_smi_s_errors_are_summed_whatever_they_are_divided_into(word, total):
    counts = {"sram_correctable": 1, "dram_correctable": 4, "sram_uncorrectable_parity": 2, "dram_uncorrectable": 7}
    rows = "".join(f"<{tag}>{number}</{tag}>" for tag, number in counts.items())
    card = ElementTree.fromstring(f"<gpu><ecc_errors><volatile>{rows}</volatile></ecc_errors></gpu>")
    assert nvidia_smi._errors("volatile", word, "none")(card) == total


def test_nvidia_smi_answers_where_nvml_s_library_is_not_found(node, no_library, monkeypatch, tmp_path):
    (tmp_path / "old.xml").write_text(OLD)
    nvidia_smi_here(monkeypatch, tmp_path, f"cat {tmp_path}/old.xml")
    found = read(node)
    assert (found.source, found.driver, found.cuda) == ("nvidia-smi", "440.33.01", "10.2")
    assert found.nvml_error == "NVML Shared Library Not Found"
    good, lost = found.gpus
    assert (good.pci, good.memory_used_bytes, good.compute_mode) == ("0000:3b:00.0", 12 * MIB, "exclusive_process")
    assert (good.memory_used_includes_reserve, good.mig, good.pcie_width) == (True, "unsupported", 16)
    assert (good.throttle, good.power_limit_w, good.ecc_uncorrected_volatile) == (("hw_slowdown",), 300.0, 3)
    assert [to_plain(p) for p in good.processes] == [
        {"pid": 41, "name": "python", "used_bytes": 100 * MIB, "kind": "compute"}
    ]
    assert good.ecc_corrected_volatile == 12
    sums = {"ecc_corrected_aggregate", "ecc_uncorrected_aggregate", "ecc_sram_threshold_exceeded"}
    assert set(good.unsupported) == {"serial", *sums}
    assert good.unread["power_w"] == Reason("unreadable", "nvidia-smi: [Unknown Error]")
    assert good.unread["ecc_mode"] == Reason("unreadable", "nvidia-smi: ERR!")
    assert good.unread["pcie_gen"].kind == "absent"
    assert (good.fault, lost.fault, lost.memory_total_bytes) == (None, "GPU is lost", 32510 * MIB)
    assert no_silent_gap(good)
    assert no_silent_gap(lost)


def test_nvidia_smi_answers_where_pynvml_is_not_installed(node, monkeypatch, tmp_path, fake_nvml):
    fake_nvml.install(fake_nvml.healthy(2))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / "old.xml").write_text(OLD)
    nvidia_smi_here(monkeypatch, tmp_path, f"cat {tmp_path}/old.xml")
    found = read(node)
    assert (found.source, len(found.gpus), found.nvml_error) == ("nvidia-smi", 2, None)
    assert found.unread["nvml_error"].kind == "absent"
    assert "nvidia-ml-py" in found.unread["nvml_error"].text


@pytest.mark.parametrize(
    ("script", "error", "reason"),
    [
        ("echo 'No devices were found'; exit 6", "NVML Shared Library Not Found", "No devices were found"),
        ("head -c 2000 /dev/urandom; exit 1", "NVML Shared Library Not Found", "nvidia-smi"),
        (
            "echo 'Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error'",
            "NVML Shared Library Not Found",
            "Unable to determine the device handle",
        ),
        ("kill -SEGV $$", "NVML Shared Library Not Found", "printed nothing"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version: 535.161'; exit 18",
            "Driver/library version mismatch",
            "Driver/library version mismatch",
        ),
    ],
)
def test_nvidia_smi_that_gives_no_document(node, no_library, monkeypatch, tmp_path, script, error, reason):
    nvidia_smi_here(monkeypatch, tmp_path, script)
    found = read(node)
    assert (found.source, found.nvml_error) == ("proc", error)
    assert reason in found.gpus[0].unread["memory_total_bytes"].text
    assert found.gpus[0].unread["memory_total_bytes"].kind != "absent"


def test_xml_that_breaks_off_keeps_the_gpus_before_the_break():
    told = nvidia_smi.parse(OLD[: OLD.index("GPU-AF")])
    assert [gpu["pci"] for gpu in told["gpus"]] == ["0000:3b:00.0"]
    assert "breaks off" in told["error"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>',
            "entities: refused",
        ),
        ("<a>" * 100000, "<a>"),
        ("", "printed nothing"),
    ],
)
def test_hostile_xml_is_refused(text, reason):
    with pytest.raises(Unreadable, match=reason):
        nvidia_smi.parse(text)


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no shared captures beside the project")
@pytest.mark.parametrize("path", sorted(CAPTURES.rglob("*.xml")), ids=lambda path: path.name)
def test_every_captured_document_is_understood(path):
    text = path.read_text()
    told = nvidia_smi.parse(text)
    assert told["error"] is None
    assert len(told["gpus"]) == text.count("<gpu id=")
    for gpu in map(gpus.gpu_of, told["gpus"]):
        assert gpu.name
        assert gpu.uuid.startswith("GPU-")
        assert gpu.pcie_width_max in (8, 16)
        assert gpu.fault or (gpu.memory_total_bytes > 10 << 30 and gpu.memory_used_includes_reserve is False)
        limits = {f"temperature_{name}_c" for name in ("slowdown", "shutdown", "max", "memory_max")}  # or T.Limit
        assert (
            set(gpu.unread)
            <= {"compute_capability", "throttled_us", "nvlinks", "peers", "ecc_sram_threshold_exceeded", *limits}
            or gpu.fault
        )
        assert no_silent_gap(gpu)


# --------------------------------------------------------------------------- the kernel's trees


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROPRIETARY, ("535.104.05", False)),
        (OPEN, ("580.95.05", True)),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  440.33.01  Wed Nov 13 2019\n", ("440.33.01", False)),
        ("NVRM version: NVIDIA UNIX Open Kernel Module  570.86.15  Release Build\n", ("570.86.15", True)),
        ("garbage \\xff\n", (None, None)),
        ("", (None, None)),
    ],
)
def test_the_kernel_module_s_version(text, expected):
    assert gpus.parse_version(text) == expected


def test_the_bus_shows_gpus_alone(tmp_path):
    pci_gpu(tmp_path, "0000:07:00.0")
    pci_gpu(tmp_path, "0000:08:00.0", driver="vfio-pci")
    pci_gpu(tmp_path, "0000:09:00.1", kind="0x040300", driver="snd_hda_intel")
    pci_gpu(tmp_path, "0000:c4:00.0", kind="0x068000")
    pci_gpu(tmp_path, "0001:00:00.0", kind="0x030000", driver="nouveau", numa=-1)
    pci_gpu(tmp_path, "0000:07:00.4")
    put(tmp_path, {}, {"sys/bus/pci/devices/0000:07:00.4/physfn": "../0000:07:00.0"})
    pci_gpu(tmp_path, "0000:03:00.0", vendor="0x1a03", kind="0x030000", device="0x2000", driver="ast")
    pci_gpu(tmp_path, "0000:04:00.0", vendor="0x102b", kind="0x030000", device="0x0536", driver="mgag200")
    pci_gpu(tmp_path, "0000:0a:00.0", vendor="0x1002", kind="0x030000", device="0x1681", driver="amdgpu")
    pci_gpu(tmp_path, "0000:05:00.0", vendor="0x1002", kind="0x120000", device="0x74a1", driver="amdgpu")
    pci_gpu(tmp_path, "0000:06:00.0", vendor="0x1da3", kind="0x120000", device="0x1020", driver="habanalabs")
    pci_gpu(tmp_path, "0000:00:02.0", vendor="0x8086", kind="0x038000", device="0x46a6", driver="i915")
    pci_gpu(tmp_path, "0000:2a:00.0", vendor="0x8086", kind="0x038000", device="0x0bd5", driver="i915")
    put(tmp_path, {"sys/bus/pci/devices/0000:0b:00.0/class": "0x03\x00", "sys/bus/pci/devices/0000:0c:00.0/vendor": ""})
    found = pci.functions(Host(str(tmp_path)))
    on_bus = pci.nvidia_gpus(Host(str(tmp_path)), found)
    assert [(gpu.pci, gpu.driver, gpu.numa_node) for gpu in on_bus] == [
        ("0000:07:00.0", "nvidia", 0),
        ("0001:00:00.0", "nouveau", None),
    ]
    assert pci.other_vendors(found) == ("amd 0000:05:00.0", "habana 0000:06:00.0", "intel 0000:2a:00.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:07:00.0", "0000:07:00.0"),
        ("0000:0B:00.0", "0000:0b:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("00010000:3F:00.0", "10000:3f:00.0"),
        ("07:00.0", "0000:07:00.0"),
        ("Nonsense", "nonsense"),
    ],
)
def test_pci_addresses_are_written_as_sysfs_does(text, expected):
    assert pci.address(text) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"root/dev/dxg": ""}, None),
        ({"root/proc/device-tree/compatible": "nvidia,p3701-0000\0nvidia,tegra234\0"}, None),
    ],
    ids=["laptop", "wsl", "jetson"],
)
def test_no_gpu_on_the_bus_and_no_driver(no_library, files, expected):
    host = Recording(
        {}, {"root/sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n", "root/dev/null": "", **files}, True
    )
    host.entries.update({"ask nvml": {"value": {"error": "NVML Shared Library Not Found"}}, "env ": {"value": {}}})
    found = read(host)
    assert (found.gpus, found.on_bus, found.other_vendor, found.kernel_module) == (expected, (), (), "")
    assert ("gpus" in found.unread) == (expected is None)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("null",), ()),
        (("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia-uvm-tools"), ("/dev/nvidiactl", "/dev/nvidia-uvm")),
        (("nvidiactl", "nvidia-caps/nvidia-cap30"), ("/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap30")),
    ],
)
def test_the_driver_s_own_device_nodes(no_library, names, expected):
    host = Recording({}, {f"root/dev/{name}": "" for name in names}, True)
    host.entries.update({"ask nvml": {"value": {"error": "NVML Shared Library Not Found"}}, "env ": {"value": {}}})
    assert read(host).driver_nodes == expected


def test_device_nodes_that_cannot_be_listed_have_a_reason(no_library):
    why = {"kind": "no-rights", "text": "/dev/nvidia-caps: Permission denied"}
    host = Recording({"list /dev/nvidia-caps": {"reason": why}}, {"root/dev/nvidia-caps/nvidia-cap1": ""}, True)
    host.entries.update({"ask nvml": {"value": {"error": "NVML Shared Library Not Found"}}, "env ": {"value": {}}})
    found = read(host)
    assert (found.driver_nodes, found.unread["driver_nodes"].kind) == (None, "no-rights")


# --------------------------------------------------------------------------- what was given


def contained(node):
    link = Path(node.root) / "proc/self/ns/pid"
    link.unlink()
    link.symlink_to("pid:[4026532888]")


def test_a_container_was_given_what_has_a_device_node(node, fake_nvml):
    for index in range(2, 8):
        (Path(node.root) / f"dev/nvidia{index}").unlink()
    fake_nvml.install(fake_nvml.healthy(2))
    assert read(node).admitted is None, "a node that is missing on the machine itself is a fault"
    contained(node)
    found = read(node)
    assert (found.admitted, found.admitted_by) == (2, "2 /dev/nvidiaN device nodes in this container")
    assert (len(found.gpus), len(found.on_bus), found.device_nodes) == (2, 8, ("/dev/nvidia0", "/dev/nvidia1"))
    fake_nvml.install({"nvmlInitWithFlags": "!18"})
    assert [gpu.pci for gpu in read(node).gpus] == ["0000:07:00.0", "0000:0f:00.0"]


def test_a_container_without_device_nodes_has_no_gpu(node, no_library):
    contained(node)
    for index in range(8):
        (Path(node.root) / f"dev/nvidia{index}").unlink()
    found = read(node)
    assert (found.gpus, found.admitted, len(found.on_bus)) == ((), 0, 8)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_GPUS": "0,1"}, (2, "SLURM_JOB_GPUS=0,1")),
        ({"SLURM_JOB_GPUS": "0-3,6"}, (5, "SLURM_JOB_GPUS=0-3,6")),
        ({"SLURM_JOB_GPUS": "0-7", "SLURM_STEP_GPUS": "4"}, (1, "SLURM_STEP_GPUS=4")),
        ({"SLURM_JOB_ID": "9", "SLURM_GPUS_ON_NODE": "4"}, (4, "SLURM_GPUS_ON_NODE=4")),
        ({"SLURM_JOB_ID": "9", "GPU_DEVICE_ORDINAL": "0,1"}, (2, "GPU_DEVICE_ORDINAL=0,1")),
        ({"GPU_DEVICE_ORDINAL": "0,1"}, None),
        ({"SLURM_JOB_GPUS": ""}, None),
        ({"SLURM_JOB_GPUS": "x; rm"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, (0, "NVIDIA_VISIBLE_DEVICES=none")),
        ({"NVIDIA_VISIBLE_DEVICES": "1"}, (1, "NVIDIA_VISIBLE_DEVICES=1")),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-0a,GPU-0b"}, (2, "NVIDIA_VISIBLE_DEVICES=GPU-0a,GPU-0b")),
        ({"NVIDIA_VISIBLE_DEVICES": "0:0,0:1"}, (1, "NVIDIA_VISIBLE_DEVICES=0:0,0:1")),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-0a"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}, None),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, (0, "CUDA_VISIBLE_DEVICES=NoDevFiles")),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
    ],
)
def test_what_scheduler_and_runtime_say_was_given(env, expected):
    assert gpus.parse_admitted(env) == expected


def test_variables_reach_the_facts(node, fake_nvml, monkeypatch):
    fake_nvml.install(fake_nvml.healthy(8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.setenv("GPU_DEVICE_ORDINAL", "2,3")
    found = read(node)
    assert (found.visible_devices, found.admitted, found.admitted_by) == ("2,3", 2, "GPU_DEVICE_ORDINAL=2,3")

"""Cpu: what the machine has, and what is left of it to this process."""

import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Dict, Tuple

import pytest
from ddp_doctor import child
from ddp_doctor.ask import Ask
from ddp_doctor.collect import cpu
from ddp_doctor.facts import UNLIMITED, Cpu, MemoryController
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable

CAPTURES = Path(__file__).parents[3] / "shared/captures/5-host"
V2 = {
    "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "/proc/self/cgroup": "0::/slice/job\n",
}
V1 = {
    "/proc/self/mountinfo": "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
    "/proc/self/cgroup": "3:cpu,cpuacct:/job\n",
}


def x86(sockets: int, cores: int) -> str:
    """Two threads on each core."""
    block = "model name\t: AMD EPYC 7742 64-Core Processor\nphysical id\t: {}\ncore id\t\t: {}\ncpu cores\t: {}\n\n"
    return "".join(block.format(s, c, cores) for _ in range(2) for s in range(sockets) for c in range(cores))


def read(files: Dict[str, str]) -> Cpu:
    return cpu.read(Recording({}, {"root" + path: text for path, text in files.items()}, complete=True), Ask())


def test_node() -> None:
    files = {
        "/proc/cpuinfo": x86(2, 64),
        "/sys/devices/system/cpu/online": "0-255\n",
        "/proc/self/status": "Cpus_allowed:\tff\nCpus_allowed_list:\t0-7,128-135\n",
        "/sys/devices/system/node/has_cpu": "0,2-4\n",
        "/sys/devices/system/node/node0/cpulist": "0-127\n",
        "/sys/devices/system/node/node2/cpulist": "128-255\n",
        "/sys/devices/system/node/node10/cpulist": "\n",
        "/proc/sys/kernel/numa_balancing": "1\n",
        "/sys/devices/system/edac/mc/mc0/ce_count": "3\n",
        "/sys/devices/system/edac/mc/mc0/ue_count": "0\n",
        "/sys/devices/system/edac/mc/power/control": "auto\n",
        "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n",
        "/sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "powersave\n",
        "/sys/devices/system/cpu/cpufreq/policy2/scaling_governor": "performance\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq\n",
        "/proc/loadavg": "12.50 10.00 9.00 3/4000 12345\n",
        **V2,
        "/sys/fs/cgroup/slice/cpu.max": "800000 100000\n",
        "/sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
    }
    found = read(files)
    assert set(found.unread) == {"throttled"}  # AMD's driver counts none
    assert replace(found, unread={}) == Cpu(
        model="AMD EPYC 7742 64-Core Processor",
        sockets=2,
        cores=128,
        threads=256,
        allowed=16,
        quota=8.0,
        numa_nodes=4,
        governors=("performance", "powersave"),
        frequency_driver="acpi-cpufreq",
        allowed_list="0-7,128-135",
        numa_cpus={"0": "0-127", "2": "128-255", "10": ""},
        numa_balancing=1,
        memory_controllers=(MemoryController("mc0", corrected=3, uncorrected=0),),
        load_1min=12.5,
    )


def test_arm_is_counted_from_sysfs() -> None:
    files = {"/proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"}
    for number in range(4):
        folder = f"/sys/devices/system/cpu/cpu{number}/topology"
        files[f"{folder}/physical_package_id"] = f"{number // 2}\n"
        files[f"{folder}/thread_siblings_list"] = f"{number}\n"
    found = read(files)
    assert (found.model, found.sockets, found.cores) == ("Arm implementer 0x41 part 0xd4f", 2, 4)


@pytest.mark.parametrize(
    ("quota", "period", "processors"),
    [("-1\n", "100000\n", float(UNLIMITED)), ("150000\n", "100000\n", 1.5)],
)
def test_quota_of_version_1(quota: str, period: str, processors: float) -> None:
    folder = "/sys/fs/cgroup/cpu/job"
    found = read({**V1, f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period})
    assert found.quota == processors


def test_no_quota_file_is_no_quota() -> None:
    assert read(V2).quota == float(UNLIMITED)


@pytest.mark.parametrize("text", ["", "100000", "100000 0", "a b", "max100000", "\x00", "1 2 3"])
def test_what_is_no_quota_is_a_reason(text: str) -> None:
    found = read({**V2, "/sys/fs/cgroup/slice/job/cpu.max": text})
    assert found.quota is None
    assert found.unread["quota"].kind == "unreadable"


@pytest.mark.parametrize("text", ["", "\\xff\x00", "physical id\t: x\ncpu cores\t: 1\n", "0-", "model name\t:\n"])
def test_hostile_files_leave_reasons(text: str) -> None:
    paths = ("/proc/cpuinfo", "/sys/devices/system/cpu/online", "/proc/self/status", "/proc/loadavg")
    found = read({**dict.fromkeys(paths, text), "/sys/devices/system/node/has_cpu": text})
    fields = ("model", "sockets", "cores", "threads", "allowed", "allowed_list", "numa_nodes", "load_1min", "throttled")
    for field in fields:
        assert getattr(found, field) is None
        assert field in found.unread


def test_nothing_readable_leaves_a_reason_everywhere() -> None:
    found = read({})
    assert set(found.unread) == set(Cpu.__dataclass_fields__) - {"unread", "governors", "memory_controllers"}
    assert (found.governors, found.memory_controllers) == ((), ())


def test_throttling_is_counted_once_for_each_core_and_package() -> None:
    """Two sockets of two cores with two threads each: every thread repeats its core's count, every core its package's."""
    block = "processor\t: {}\nmodel name\t: Xeon\nphysical id\t: {}\ncore id\t\t: {}\ncpu cores\t: 2\n\n"
    places = [
        (thread * 4 + socket * 2 + core, socket, core) for thread in (0, 1) for socket in (0, 1) for core in (0, 1)
    ]
    files = {"/proc/cpuinfo": "".join(block.format(*place) for place in places)}
    for number, socket, core in places:
        folder = f"/sys/devices/system/cpu/cpu{number}/thermal_throttle"
        files[f"{folder}/core_throttle_count"] = f"{10 * socket + core}\n"
        files[f"{folder}/package_throttle_count"] = f"{100 * (socket + 1)}\n"
    assert read(files).throttled == (0 + 1 + 10 + 11) + (100 + 200)
    files["/sys/devices/system/cpu/cpu3/thermal_throttle/core_throttle_count"] = "garbage"
    assert read(files).throttled == (0 + 1 + 10) + (100 + 200)


def test_a_memory_controller_that_tells_nothing_hides_no_other() -> None:
    folder = "/sys/devices/system/edac/mc"
    first, second = (
        read(
            {f"{folder}/mc0/ce_count": "x", f"{folder}/mc1/ce_count": "0", f"{folder}/mc1/ue_count": "2"}
        ).memory_controllers
        or ()
    )
    assert (first.corrected, first.unread["corrected"].kind, first.unread["uncorrected"].kind) == (
        None,
        "unreadable",
        "absent",
    )
    assert (second.corrected, second.uncorrected) == (0, 2)


def test_this_machine_with_one_processor_allowed() -> None:
    def bound() -> object:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        found = cpu.read(Host(), Ask())
        return [found.threads, found.allowed]

    assert child.call("bound", bound, 10).value == [os.sysconf("SC_NPROCESSORS_ONLN"), 1]


def model_of(path: Path) -> str:
    try:
        return cpu.parse_model(path.read_text(errors="backslashreplace"))
    except Unreadable:
        return ""


@pytest.mark.skipif(not CAPTURES.exists(), reason="../shared/captures is not here")
def test_captured_processors() -> None:
    paths = [*CAPTURES.glob("cpuinfo/archspec/linux-*"), *CAPTURES.glob("insights-core/cpuinfo/*")]
    unnamed = {path.name for path in paths if not model_of(path)}
    assert len(paths) > 45
    assert {name for name in unnamed if "S390X" not in name} == set()


@pytest.mark.skipif(not CAPTURES.exists(), reason="../shared/captures is not here")
@pytest.mark.parametrize(
    ("archive", "expected"),
    [
        ("40intel64-2g2n4c+pcilocality", (4, 40, 40)),
        (
            "64amd64-4s2n4ca2co",
            (4, 32, 64),
        ),  # eight modules of two threads that share a floating-point unit, per socket
        ("nvidia-dgx-gb10", (1, 20, 20)),
        ("nvidiagpunumanodes", (2, 8, 32)),
    ],
)
def test_captured_trees(tmp_path: Path, archive: str, expected: Tuple[int, int, int]) -> None:
    with tarfile.open(CAPTURES / f"hwloc/{archive}.tar.bz2") as tar:
        wanted = [m for m in tar.getmembers() if "/sys/devices/system/cpu" in m.name or m.name.endswith("/cpuinfo")]
        tar.extraction_filter = lambda member, _: member  # type: ignore[method-assign]  # Python 3.12 wants one named
        tar.extractall(tmp_path, [m for m in wanted if m.isfile()])
    found = cpu.read(Host(str(next(tmp_path.iterdir()))), Ask())
    assert (found.sockets, found.cores, found.threads) == expected

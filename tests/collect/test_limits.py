"""Limits: this process's own, the cgroup's and the kernel's."""

import resource
from typing import Dict

import pytest
from ddp_doctor import child
from ddp_doctor.ask import Ask
from ddp_doctor.collect import limits
from ddp_doctor.facts import UNLIMITED, Limit, Limits, to_plain
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording

TEXT = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max stack size            8388608              unlimited            bytes     \n"
    "Max core file size        0                    unlimited            bytes     \n"
    "Max processes             4096                 4127580              processes \n"
    "Max open files            1024                 524288               files     \n"
    "Max locked memory         65536                65536                bytes     \n"
)
NODE = {
    "/proc/self/limits": TEXT,
    "/proc/self/status": "Name:\tpython\nCapEff:\t00000000a80425fb\n",
    "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "/proc/self/cgroup": "0::/pod/c\n",
    "/sys/fs/cgroup/pod/pids.max": "1024\n",
    "/sys/fs/cgroup/pod/pids.current": "17\n",
    "/sys/fs/cgroup/pod/c/pids.max": "max\n",
    "/sys/fs/cgroup/pod/c/pids.current": "3\n",
    "/proc/sys/kernel/pid_max": "4194304\n",
    "/proc/sys/kernel/threads-max": "8255160\n",
    "/proc/sys/fs/file-max": "9223372036854775807\n",
}


def read(files: Dict[str, str]) -> Limits:
    entries = {"env ": {"value": {"SLURM_JOB_ID": "7"}}, "user ": {"value": [1000, "ana"]}}
    return limits.read(Recording(entries, {"root" + path: text for path, text in files.items()}, complete=True), Ask())


def test_node() -> None:
    assert read(NODE) == Limits(
        memlock_bytes=Limit(65536, 65536),
        nofile=Limit(1024, 524288),
        nproc=Limit(4096, 4127580),
        stack_bytes=Limit(8388608, UNLIMITED),
        core_bytes=Limit(0, UNLIMITED),
        cap_ipc_lock=False,
        lowest_port=1,
        whose="the Slurm job (user ana)",
        cgroup_pids_max=1024,
        cgroup_pids_current=17,
        kernel_pid_max=4194304,
        kernel_threads_max=8255160,
        kernel_file_max=UNLIMITED,
    )


def test_the_lowest_port_of_a_user_is_the_kernels() -> None:
    plain = {"/proc/self/status": "CapEff:\t0000000000000000\n"}
    start = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
    assert read({**NODE, **plain, start: "1024\n"}).lowest_port == 1024
    assert read({**NODE, **plain, start: "0\n"}).lowest_port == 0
    assert read({**NODE, **plain}).lowest_port == 1024


def test_without_a_limit_the_own_group_is_counted() -> None:
    found = read({**NODE, "/sys/fs/cgroup/pod/pids.max": "max\n"})
    assert (found.cgroup_pids_max, found.cgroup_pids_current) == (UNLIMITED, 3)


@pytest.mark.parametrize(("mask", "has"), [("000001ffffffffff", True), ("0000000000004000", True), ("0", False)])
def test_capability_to_lock(mask: str, has: bool) -> None:
    assert limits.parse_capability(f"CapPrm:\tffff\nCapEff:\t{mask}\n", limits.CAP_IPC_LOCK) is has


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "this shell (user ana)"),
        ({"SSH_CONNECTION": "1"}, "this ssh session (user ana)"),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SSH_CONNECTION": "1"}, "the Slurm job step (user ana)"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "this pod (user ana)"),
    ],
)
def test_whose_limits_these_are(env: Dict[str, str], words: str) -> None:
    assert limits.whose(env, "ana") == words


@pytest.mark.parametrize(
    ("kind", "env", "words"),
    [
        ("docker", {}, "this docker container"),
        ("docker", {"SSH_CONNECTION": "10.0.0.1"}, "this docker container"),
        ("docker", {"SLURM_JOB_ID": "7"}, "the Slurm job"),
        ("kubernetes", {}, "this pod"),
        ("container", {}, "this container"),
        ("apptainer", {}, "this shell"),
    ],
)
def test_limits_in_a_container_are_those_of_the_container(kind: str, env: Dict[str, str], words: str) -> None:
    assert limits.whose(env, "root", kind) == f"{words} (user root)"


def test_the_container_is_told_by_its_marks() -> None:
    files = {**NODE, "/proc/self/cgroup": f"0::/docker/{'a' * 64}\n"}
    recording = Recording(
        {"env ": {"value": {}}, "user ": {"value": [0, "root"]}},
        {"root" + path: text for path, text in files.items()},
        complete=True,
    )
    assert limits.read(recording, Ask()).whose == "this docker container (user root)"


def test_missing_row_has_a_reason_and_hides_no_other() -> None:
    found = read({**NODE, "/proc/self/limits": TEXT.replace("locked", "pinned")})
    assert found.memlock_bytes is None
    assert found.unread["memlock_bytes"].kind == "unreadable"
    assert found.nofile == Limit(1024, 524288)
    assert set(found.unread) == {"memlock_bytes"}


@pytest.mark.parametrize("text", ["", "\x00\\xff", "Max open files", "Max open files  -1 x files\n", TEXT[:150]])
def test_hostile_files_leave_reasons(text: str) -> None:
    found = read(dict.fromkeys(NODE, text))
    assert found.memlock_bytes is None
    for field in ("memlock_bytes", "nofile", "nproc", "cap_ipc_lock", "cgroup_pids_max", "kernel_pid_max"):
        assert field in found.unread


def test_nothing_readable_leaves_a_reason_everywhere() -> None:
    found = limits.read(Recording({}, {}, complete=True), Ask())
    assert set(found.unread) == set(Limits.__dataclass_fields__) - {"unread"}


def test_limits_that_a_process_really_has() -> None:
    def lowered() -> object:
        resource.setrlimit(resource.RLIMIT_NOFILE, (77, 99))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 8192))
        return to_plain(limits.read(Host(), Ask()))

    found = child.call("lowered", lowered, 10).value
    assert found["nofile"] == {"soft": 77, "hard": 99}
    assert found["memlock_bytes"] == {"soft": 4096, "hard": 8192}

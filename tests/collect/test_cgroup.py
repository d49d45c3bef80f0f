"""Cgroups: where this process stands, whatever version is mounted and from wherever it is seen."""

from typing import Dict, Optional

import pytest
from ddp_doctor.collect.cgroup import Group, group, parse_limit, smallest
from ddp_doctor.facts import UNLIMITED
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable

V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
DOCKER_V1 = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
OTHER_TREE = "90 1 0:32 / /var/lib/machines/x/sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
MEMORY = "/sys/fs/cgroup/memory"


def host(mountinfo: str, cgroup: str, files: Optional[Dict[str, str]] = None) -> Recording:
    files = {"/proc/self/mountinfo": mountinfo, "/proc/self/cgroup": cgroup, **(files or {})}
    return Recording({}, {"root" + path: text for path, text in files.items()}, complete=True)


@pytest.mark.parametrize(
    ("mountinfo", "cgroup", "controller", "place"),
    [
        (V2, "0::/a/b\n", "memory", Group(2, ("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"))),
        (V2, "0::/\n", "memory", Group(2, ("/sys/fs/cgroup",))),
        (V2, "0::/../../outside\n", "memory", Group(2, ("/sys/fs/cgroup",))),
        (HYBRID, "4:memory:/job\n0::/user\n", "memory", Group(1, (f"{MEMORY}/job", MEMORY))),
        (
            HYBRID,
            "3:cpu,cpuacct:/x\n0::/\n",
            "cpu",
            Group(1, ("/sys/fs/cgroup/cpu,cpuacct/x", "/sys/fs/cgroup/cpu,cpuacct")),
        ),
        (HYBRID, "0::/user\n", "pids", Group(2, ("/sys/fs/cgroup/unified/user", "/sys/fs/cgroup/unified"))),
        # In a container of Docker the path is the machine's and the mount shows the container's own group.
        (DOCKER_V1, "4:memory:/docker/abc\n", "memory", Group(1, (MEMORY,))),
        (DOCKER_V1, "4:memory:/docker/abc/child\n", "memory", Group(1, (f"{MEMORY}/child", MEMORY))),
        (DOCKER_V1, "4:memory:/docker/abcdef\n", "memory", Group(1, (MEMORY,))),
        (OTHER_TREE + HYBRID, "4:memory:/job\n", "memory", Group(1, (f"{MEMORY}/job", MEMORY))),
        (V2, "garbage\n\x00\n", "memory", Group(2, ("/sys/fs/cgroup",))),
    ],
)
def test_place_of_this_process(mountinfo: str, cgroup: str, controller: str, place: Group) -> None:
    assert group(host(mountinfo, cgroup), controller) == place


def test_no_cgroups_is_a_reason() -> None:
    with pytest.raises(Unreadable) as caught:
        group(host("23 1 0:22 / /sys rw - sysfs sysfs rw\n", "0::/\n"), "memory")
    assert caught.value.reason.kind == "absent"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max", UNLIMITED),
        ("1073741824", 2**30),
        ("9223372036854771712", UNLIMITED),  # version 1 with pages of 4 KiB
        ("9223372036854710272", UNLIMITED),  # and of 64 KiB
        ("0", 0),
    ],
)
def test_limit(text: str, limit: int) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["", "-1", "1e9", "١٢", "9" * 40, "\\xff\\x00"])
def test_what_is_no_limit_is_a_reason(text: str) -> None:
    with pytest.raises(Unreadable):
        parse_limit(text)


def test_smallest_limit_counts_even_when_a_parent_sets_it() -> None:
    files = {"/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "4096\n"}
    place = Group(2, ("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"))
    assert smallest(host(V2, "0::/a/b\n", files), place, "memory.max") == (4096, "/sys/fs/cgroup/a")
    assert smallest(host(V2, "0::/a/b\n"), place, "memory.max") == (UNLIMITED, "")


def test_limit_that_may_not_be_read_is_not_unlimited() -> None:
    node = host(V2, "0::/\n")
    node.entries["read /sys/fs/cgroup/memory.max"] = {"reason": {"kind": "no-rights", "text": "Permission denied"}}
    with pytest.raises(Unreadable) as caught:
        smallest(node, group(node, "memory"), "memory.max")
    assert caught.value.reason.kind == "no-rights"

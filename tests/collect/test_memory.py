"""Memory: the machine's and the cgroup's."""

import tarfile
from pathlib import Path
from typing import Dict

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import memory
from ddp_doctor.facts import UNLIMITED, Memory
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording

CAPTURES = Path(__file__).parents[3] / "shared/captures/5-host"
MEMINFO = (
    "MemTotal:       1056315532 kB\nMemFree:        1000000000 kB\nMemAvailable:   1040000000 kB\n"
    "SwapTotal:             0 kB\nSwapFree:              0 kB\n"
    "HugePages_Total:      16\nHugePages_Free:       15\nHugepagesize:       2048 kB\n"
)
V2 = {
    "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "/proc/self/cgroup": "0::/pod\n",
    "/sys/fs/cgroup/pod/memory.max": "1073741824\n",
    "/sys/fs/cgroup/pod/memory.current": "900000000\n",
    "/sys/fs/cgroup/pod/memory.stat": "anon 500000000\nfile 450000000\ninactive_file 300000000\nactive_file 100000000\n",
}
V1 = {
    "/proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
    "/proc/self/cgroup": "4:memory:/docker/abc\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes": "900000000\n",
    "/sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300000000\ntotal_active_file 100000000\n",
}


def read(files: Dict[str, str]) -> Memory:
    return memory.read(Recording({}, {"root" + path: text for path, text in files.items()}, complete=True), Ask())


def test_machine() -> None:
    found = read({"/proc/meminfo": MEMINFO, "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"})
    assert (found.total_bytes, found.available_bytes) == (1056315532 * 1024, 1040000000 * 1024)
    assert (found.swap_total_bytes, found.swap_free_bytes) == (0, 0)
    assert (found.hugepages_total, found.hugepages_free, found.hugepage_bytes) == (16, 15, 2 * 2**20)
    assert found.transparent_hugepages == "madvise"


@pytest.mark.parametrize("files", [V1, V2], ids=["version 1", "version 2"])
def test_cgroup_limit_and_use_without_file_cache(files: Dict[str, str]) -> None:
    found = read({"/proc/meminfo": MEMINFO, **files})
    assert (found.cgroup_limit_bytes, found.cgroup_used_bytes) == (2**30, 500000000)


def test_no_limit() -> None:
    found = read({"/proc/meminfo": MEMINFO, **V2, "/sys/fs/cgroup/pod/memory.max": "max\n"})
    assert (found.cgroup_limit_bytes, found.cgroup_used_bytes) == (UNLIMITED, None)
    assert found.unread["cgroup_used_bytes"].kind == "not-applicable"


@pytest.mark.parametrize(
    "text",
    ["", "MemTotal:", "MemTotal: many kB\n", "\\xff\x00\x7fELF", "MemTotal: 1 GB\n", f"MemTotal: {'9' * 99} kB\n"],
)
def test_hostile_meminfo_is_a_reason_for_every_field(text: str) -> None:
    found = read({"/proc/meminfo": text})
    for field in memory._ROWS:
        assert getattr(found, field) is None
        assert found.unread[field].kind in ("absent", "unreadable")


def test_hostile_cgroup_is_not_unlimited() -> None:
    found = read({"/proc/meminfo": MEMINFO, **V2, "/sys/fs/cgroup/pod/memory.max": "\x00\x00"})
    assert found.cgroup_limit_bytes is None
    assert found.unread["cgroup_limit_bytes"].kind == "unreadable"
    assert found.total_bytes == 1056315532 * 1024


def test_nothing_readable_leaves_a_reason_everywhere() -> None:
    found = read({})
    assert set(found.unread) == set(Memory.__dataclass_fields__) - {"unread"}


def test_this_machine() -> None:
    found = memory.read(Host(), Ask())
    assert found.total_bytes is not None
    assert found.available_bytes is not None
    assert 0 < found.available_bytes <= found.total_bytes


@pytest.mark.skipif(not CAPTURES.exists(), reason="../shared/captures is not here")
def test_captured_machines(tmp_path: Path) -> None:
    texts = [p.read_text() for p in CAPTURES.glob("**/*eminfo*") if p.is_file()]
    texts += [p.read_text() for p in CAPTURES.glob("insights-core/meminfo/*")]
    for archive in CAPTURES.glob("hwloc/*.tar.bz2"):
        with tarfile.open(archive) as tar:
            member = next(m for m in tar.getmembers() if m.name.endswith("proc/meminfo"))
            texts.append(tar.extractfile(member).read().decode())  # type: ignore[union-attr]
    assert len(texts) >= 12
    for text in texts:
        assert memory.parse_row(text, "MemTotal") > 2**30

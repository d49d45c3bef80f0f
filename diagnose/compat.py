"""What goes with what: rules over the reference tables. Pure functions; None means "the tables do not say"."""

import datetime
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Iterable, Optional, Tuple

from ddp_doctor import tables
from ddp_doctor.tables import Companion, Distribution, DriverBranch, TorchBuild
from ddp_doctor.versions import at_least, minor, newer, padded, release


@dataclass(frozen=True)
class Floor:
    """A lowest version and the table row that it rests on."""

    version: str
    rule: str
    """In words: "minor-version compatibility within CUDA 12"."""
    source: str
    probably: str = ""


@lru_cache(maxsize=None)
def driver_floor(cuda: str) -> Optional[Floor]:
    """The oldest driver that runs programs built with this CUDA version, without a forward-compatibility package.

    From CUDA 11 a driver runs every toolkit of its major version, down to one floor for the major; CUDA 11.0 came with a
    driver below that floor, which runs 11.0 itself. Before CUDA 11 the driver that came with the toolkit is the floor.
    """
    own = [row for row in tables.cuda_toolkits() if row.cuda == minor(cuda) and row.driver]
    major = [row for row in tables.cuda_majors() if release(row.major) == release(cuda)[:1]]
    floors = [Floor(r.driver, f"minor-version compatibility of CUDA {r.major}", r.source, r.probably) for r in major]
    floors += [Floor(r.driver, f"the driver of CUDA {r.cuda} {r.update}".rstrip(), r.source, r.probably) for r in own]
    return min(floors, key=lambda floor: newer(floor.version)) if floors else None


def torch_builds(version: str) -> Tuple[TorchBuild, ...]:
    """The official wheels of a torch version, 1.12.1 or 1.12.1+cu113: of that build where the table has it."""
    public, _, local = version.partition("+")
    builds = tuple(row for row in tables.torch() if row.torch == public)
    return tuple(row for row in builds if row.build == local) or builds


def newest_torch() -> TorchBuild:
    """The newest torch, in the build that pip installs by default."""
    return max((row for row in tables.torch() if row.default == "yes"), key=lambda row: newer(row.torch))


def has_wheel_for(build: TorchBuild, python: str) -> bool:
    """Is there an official wheel of this build for the Python version: 3.8.12; 3.13t is the one without a GIL?"""
    return minor(python) + ("t" if python.endswith("t") else "") in build.pythons


def glibc_floor(builds: Iterable[TorchBuild], machine: str) -> Optional[Floor]:
    """The lowest glibc of these builds on x86_64 or aarch64; the least of them where they differ."""
    if machine not in ("x86_64", "aarch64"):
        return None
    floors = [
        Floor(glibc, f"the official wheel of torch {row.torch}+{row.build} for {machine}", row.source, row.probably)
        for row in builds
        for glibc in [row.glibc_x86_64 if machine == "x86_64" else row.glibc_aarch64]
        if glibc
    ]
    return min(floors, key=lambda floor: newer(floor.version)) if floors else None


def newest_runnable(
    driver: str, python: str, glibc: str, machine: str = "x86_64", capabilities: Iterable[str] = ()
) -> Optional[TorchBuild]:
    """The newest torch with CUDA that this driver, Python, glibc and these GPUs can run; None where there is none.

    capabilities: compute capabilities of the GPUs: "7.0".
    """
    fitting = [
        row
        for row in tables.torch()
        if has_wheel_for(row, python)
        and driver_runs(driver, row.cuda)
        and glibc_fits(row, glibc, machine)
        and (machine == "x86_64" or row.cuda_aarch64 == row.cuda)
        and all(runs_on(row, capability, driver, machine) for capability in capabilities)
    ]
    fitting.sort(key=lambda row: (newer(row.torch), row.default == "yes", newer(row.cuda)))
    return fitting[-1] if fitting else None


def runs_on(build: TorchBuild, capability: str, driver: Optional[str], machine: str = "x86_64") -> bool:
    """Does the wheel run on a GPU of this compute capability? ``driver``: None for one that is new enough.

    Machine code runs on every driver that runs the CUDA version. PTX is compiled by the driver, which must be as new as
    the toolkit that made it: minor-version compatibility does not cover that
    (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
    """
    if has_machine_code_for(build, capability, machine):
        return True
    own = [row.driver for row in tables.cuda_toolkits() if row.cuda == build.cuda and row.driver]
    compiles = driver is None or any(_at_least_branch(driver, floor) for floor in own)
    return compiles and has_code_for(build, capability, machine)


def has_code_for(build: TorchBuild, capability: str, machine: str = "x86_64") -> bool:
    """Does the wheel hold code that runs on a GPU of this compute capability?

    Code for X.y runs on X.z with z >= y; PTX of X.y also on everything newer (CUDA programming guide, compatibility of
    binaries and of PTX).
    """
    ptx = release(build.ptx)
    return has_machine_code_for(build, capability, machine) or bool(ptx and ptx <= release(capability))


def has_machine_code_for(build: TorchBuild, capability: str, machine: str = "x86_64") -> bool:
    """The same without PTX, which the driver compiles."""
    gpu = release(capability)
    codes = [release(a) for a in (build.architectures if machine == "x86_64" else build.architectures_aarch64)]
    return any(code[:1] == gpu[:1] and code <= gpu for code in codes)


def driver_runs(driver: str, cuda: str) -> bool:
    """Does a driver, 535.104.05 or 535 for the newest of that branch, run programs built with this CUDA version?"""
    floor = driver_floor(cuda)
    return floor is not None and _at_least_branch(driver, floor.version)


def _at_least_branch(driver: str, floor: str) -> bool:
    if len(release(driver)) == 1:
        return release(driver) >= release(floor)[:1] if release(floor) else False
    return at_least(driver, floor) is True


def glibc_fits(build: TorchBuild, glibc: str, machine: str) -> bool:
    """Can a system with this glibc load the official wheel?"""
    floor = glibc_floor([build], machine)
    return floor is not None and at_least(glibc, floor.version) is True


@lru_cache(maxsize=64)
def last_torch_for(glibc: str, machine: str) -> str:
    """The newest torch whose official wheel a system with this glibc can load; "none" where there is none."""
    return max((row.torch for row in tables.torch() if glibc_fits(row, glibc, machine)), key=newer, default="none")


def pip_line(build: TorchBuild) -> str:
    """What to type for this build (pytorch.org/get-started/previous-versions)."""
    if build.default == "yes":
        return f"pip install torch=={build.torch}"
    return f"pip install torch=={build.torch} --index-url https://download.pytorch.org/whl/{build.build}"


# --------------------------------------------------------------------------- torchvision, torchaudio


def companions(package: str, torch: str) -> Tuple[Companion, ...]:
    """The releases of torchvision or torchaudio that go with this torch (2.4.0 or 2.4.0+cu121), oldest first."""
    rows = [row for row in tables.companions() if row.package == package and _goes_with(row, torch) is True]
    return tuple(sorted(rows, key=lambda row: newer(row.version)))


def companion_fits(package: str, version: str, torch: str) -> Optional[bool]:
    """Does this release of torchvision or torchaudio go with this torch, by its own metadata? None: not in the tables."""
    public = version.partition("+")[0]
    rows = [row for row in tables.companions() if (row.package, row.version) == (package, public)]
    return _goes_with(rows[0], torch) if rows else None


def _goes_with(row: Companion, torch: str) -> Optional[bool]:
    if row.torch.startswith(">="):
        return at_least(torch, row.torch[2:])
    return newer(row.torch) == newer(torch) if row.torch else None


# --------------------------------------------------------------------------- end of life


def ended(end_of_life: str, day: datetime.date) -> Optional[bool]:
    """Is ``day`` after an end of life as the tables write it? None where they do not tell.

    2029-05-31; 2027-06 and 2031: to the last day of it; "past": before the day on which the tables were read.
    """
    found = re.match(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?", end_of_life)
    if not found:
        return True if end_of_life.startswith("past") and day >= tables.READ_ON else None
    year, month, last = (int(part) if part else None for part in found.groups())
    given = (year, month, last)
    return (day.year, day.month, day.day)[: 3 - given.count(None)] > given[: 3 - given.count(None)]


def driver_branch(driver: str) -> Optional[DriverBranch]:
    """The branch of a driver: R535 for 535.104.05."""
    return next((row for row in tables.drivers() if release(row.branch) == release(driver)[:1]), None)


def distribution(id: str, version: str, stream: bool = False) -> Optional[Distribution]:
    """The row of a release as os-release names it: ID and VERSION_ID (or a longer version); ``stream``: CentOS Stream."""
    rows = [row for row in tables.distributions() if row.id == id and ("Stream" in row.distribution) is stream]
    return next((row for row in rows if _is_release(row.version, version)), None)


def _is_release(row: str, version: str) -> bool:
    """Is 15.5 in "15 SP3-SP5", 8.2.2004 in "8"? SLES counts its service packs in the second number of VERSION_ID."""
    packs = re.match(r"(\d+) SP(\d+)(?:-SP(\d+))?$", row)
    numbers = release(version)
    if not packs:
        return numbers[: len(release(row))] == release(row) and bool(numbers)
    major, first, last = packs.groups()
    return numbers[:1] == (int(major),) and int(first) <= padded(numbers, 2)[1] <= int(last or first)

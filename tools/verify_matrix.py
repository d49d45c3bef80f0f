"""Are the newest rows of checks/data/torch.csv what the wheels themselves say? For maintainers, at each release.

    python tools/verify_matrix.py [--versions 5] [--indexes]

pip is asked, with its own configuration: which Pythons and which glibc have a wheel (the index's list of files), and what
the METADATA of the wheel requires (NCCL, cuDNN, CUDA). No wheel is installed; where the index has no metadata files of its
own, pip reads the end of the wheel. The default build of each version is looked for on the default index; ``--indexes``
also looks for the others where users are told to find them (``compat.pip_line``).

Exit status: 0 all that could be asked is so, 1 there are differences or newer versions, 3 nothing could be asked.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor import compat, tables
from ddp_doctor.tables import TorchBuild
from ddp_doctor.versions import minor, newer, release

LIMIT_S = 300
"""Of one call of pip: an index may be slow, none takes that long."""
OLD_GLIBC = "2.17"
"""Wheels for it were tagged by names that are older than PEP 600."""
WHEELS = ("--only-binary=:all:", "--no-deps")


class NotTold(Exception):
    """pip could not say; its last words."""


@dataclass(frozen=True)
class Wheel:
    """What the metadata of a wheel says; None where it says nothing."""

    nccl: Optional[str]
    cudnn: Optional[str]
    cuda: Optional[str]
    """With the patch level, where a package of CUDA's own version is required."""


def required(metadata: Dict[str, Any]) -> Wheel:
    """NCCL, cuDNN and CUDA out of the Requires-Dist lines of a wheel's METADATA, as pip's report has it."""
    lines = "\n".join(re.sub(r"[ ()]", "", line) for line in metadata.get("requires_dist", ()))
    toolkit = re.search(r"^(?:cuda-toolkit|nvidia-cuda-runtime(?:-cu\d+)?)(?:\[[^]]*\])?==([\d.]+)", lines, re.M)
    versions = (re.search(rf"^nvidia-{name}-cu\d+==([\d.]+)", lines, re.M) for name in ("nccl", "cudnn"))
    nccl, cudnn = (found.group(1) if found else None for found in versions)
    return Wheel(nccl, cudnn, toolkit.group(1) if toolkit else None)


def differences(build: TorchBuild, wheel: Wheel) -> Iterator[str]:
    """Where the row and the wheel's metadata do not agree."""
    cuda = minor(wheel.cuda) if wheel.cuda else None
    for what, row, said in (
        ("NCCL", build.nccl, wheel.nccl),
        ("cuDNN", build.cudnn, wheel.cudnn),
        ("CUDA", build.cuda, cuda),
    ):
        if said is not None and said != row:
            yield f"{what}: the row has {row or 'nothing'}, the wheel requires {said}"
        elif said is None and build.nccl_linkage.startswith("wheel"):
            yield f"{what}: the row has {row or 'nothing'}, the wheel requires none"


def pythons_differ(build: TorchBuild, machine: str, found: Sequence[str]) -> Iterator[str]:
    """Where the row's Pythons (of x86_64) are not those of the files on the index."""
    more, less = set(found) - set(build.pythons), set(build.pythons) - set(found)
    if more:
        yield f"Python on {machine}: wheels for {' '.join(sorted(more, key=newer))}, which the row lacks"
    if less:
        yield f"Python on {machine}: no wheels for {' '.join(sorted(less, key=newer))}, which the row has"


# --------------------------------------------------------------------------- asking pip


def _pip(*arguments: str) -> str:
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if ran.returncode:
        raise NotTold((ran.stderr.strip().splitlines() or ["pip said nothing"])[-1])
    return ran.stdout


def _target(python: str, machine: str, glibc: str) -> Tuple[str, ...]:
    """Options that let pip act for another interpreter and system."""
    number, t = minor(python).replace(".", ""), "t" if python.endswith("t") else ""
    tags = (
        f"manylinux_{glibc.replace('.', '_')}",
        *(("manylinux1", "manylinux2014", "linux") if glibc == OLD_GLIBC else ()),
    )
    platforms = (f"--platform={tag}_{machine}" for tag in tags)
    return (f"--python-version={minor(python)}", "--implementation=cp", f"--abi=cp{number}{t}", *platforms)


@lru_cache(maxsize=None)
def _versions(python: str, machine: str, glibc: str, index: Tuple[str, ...]) -> Tuple[str, ...]:
    """Versions of torch with a wheel for this Python, machine and glibc."""
    try:
        told = _pip("index", "versions", "torch", "--json", WHEELS[0], *_target(python, machine, glibc), *index)
    except NotTold as error:
        if "No matching distribution" in str(error):
            return ()
        raise
    return tuple(json.loads(told)["versions"])


def _metadata(build: TorchBuild, machine: str, index: Tuple[str, ...]) -> Dict[str, Any]:
    glibc = build.glibc_x86_64 if machine == "x86_64" else build.glibc_aarch64
    with tempfile.TemporaryDirectory() as nowhere:
        told = _pip(
            "install", "--quiet", "--dry-run", "--ignore-installed", "--use-feature=fast-deps", *WHEELS, "--report=-",
            f"--target={nowhere}", *_target(_plain(build)[-1], machine, glibc), *index, f"torch=={_wanted(build, index)}",
        )  # fmt: skip
    return dict(json.loads(told)["install"][0]["metadata"])


def _wanted(build: TorchBuild, index: Tuple[str, ...]) -> str:
    return f"{build.torch}+{build.build}" if index else build.torch


def _plain(build: TorchBuild) -> List[str]:
    return [python for python in build.pythons if not python.endswith("t")]


def _asked_pythons() -> List[str]:
    """Every Python of the newest rows, and the next one, with and without a GIL."""
    numbers = {
        release(python)[:2] for row in tables.torch() for python in row.pythons if newer(row.torch) >= newer("2.10")
    }
    low, high = min(numbers), max(numbers)
    return [f"3.{number}{t}" for number in range(low[1] - 1, high[1] + 2) for t in ("", "t")]


def _below(glibc: str) -> str:
    major, small = release(glibc)[:2]
    return f"{major}.{small - 1}"


def verify(build: TorchBuild, machine: str, index: Tuple[str, ...]) -> Iterator[str]:
    """Differences between a row and what pip finds. Raises NotTold."""
    glibc = build.glibc_x86_64 if machine == "x86_64" else build.glibc_aarch64
    version = _wanted(build, index)
    found = [python for python in _asked_pythons() if version in _versions(python, machine, glibc, index)]
    if not found:
        raise NotTold(f"no index that pip is configured with has torch {version} for {machine}")
    yield from pythons_differ(build, machine, found)
    if version in _versions(found[-1], machine, _below(glibc), index):
        yield f"glibc on {machine}: the row has {glibc}, there are wheels for {_below(glibc)}"
    cuda = build.cuda if machine == "x86_64" else build.cuda_aarch64
    if cuda == build.cuda:
        yield from differences(build, required(_metadata(build, machine, index)))


# --------------------------------------------------------------------------- all of it


def chosen(versions: int) -> List[TorchBuild]:
    """The rows of the newest versions, newest first."""
    newest = sorted({row.torch for row in tables.torch()}, key=newer)[-versions:]
    rows = [row for row in tables.torch() if row.torch in newest]
    return sorted(rows, key=lambda row: (newer(row.torch), row.default == "yes", newer(row.cuda)), reverse=True)


def _index(build: TorchBuild) -> Tuple[str, ...]:
    """Where users are told to find a build; the default index has the default one."""
    _, _, address = compat.pip_line(build).partition("--index-url ")
    return (f"--index-url={address}",) if address else ()


def _newer_ones() -> List[str]:
    """Versions on the index that the table does not have."""
    known = compat.newest_torch()
    found = _versions(_plain(known)[-1], "x86_64", known.glibc_x86_64, ())
    return [version for version in found if newer(version) > newer(known.torch)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold the newest rows of the torch table against the wheels.")
    parser.add_argument(
        "--versions", type=int, default=5, metavar="N", help="so many of the newest versions (default: 5)"
    )
    parser.add_argument("--indexes", action="store_true", help="also the builds that are not on the default index")
    options = parser.parse_args()
    told = [_tell(build, machine) for build in chosen(options.versions) for machine in ("x86_64", "aarch64")
            if build.default == "yes" or (options.indexes and machine == "x86_64")]  # fmt: skip
    new = _unknown_versions()
    if not any(found is not None for found in told):
        return 3
    return 1 if new or any(told) else 0


def _tell(build: TorchBuild, machine: str) -> Optional[List[str]]:
    """Print what is found about a row; the differences, None where it could not be asked."""
    name = f"torch {build.torch}+{build.build} for {machine}"
    try:
        found = list(verify(build, machine, _index(build)))
    except (NotTold, subprocess.TimeoutExpired) as error:
        print(f"{name}: could not be asked: {error}", flush=True)
        return None
    print(
        f"{name}: {'as the row says' if not found else ''}".rstrip(),
        *(f"  {line}" for line in found),
        sep="\n",
        flush=True,
    )
    return found


def _unknown_versions() -> List[str]:
    try:
        new = _newer_ones()
    except (NotTold, subprocess.TimeoutExpired):
        return []
    if new:
        print(f"not in the table: torch {', '.join(new)}")
    return new


if __name__ == "__main__":
    sys.exit(main())

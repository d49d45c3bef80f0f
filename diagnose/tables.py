"""The reference tables that ship with the package (``checks/data``), a source and a confidence on every row.

confidence: high (read in a primary source), medium (one source short of that), low (inferred): what rests on a row of
low confidence is said with "probably". ``disagreement``: where two sources say different things.
"""

import csv
import io
import pkgutil
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Dict, Tuple, Type, TypeVar

CONFIDENCES = ("high", "medium", "low")


class BadTable(Exception):
    """A table that ships with the package is damaged: a defect of ours."""


@dataclass(frozen=True)
class Row:
    """What every row has, whatever it is about."""

    confidence: str
    source: str
    source2: str
    disagreement: str
    note: str

    @property
    def probably(self) -> str:
        """ "probably " before a statement that rests on a row of low confidence, else nothing."""
        return "probably " if self.confidence == "low" else ""


@dataclass(frozen=True)
class TorchBuild(Row):
    """One official wheel: a torch version with a CUDA build."""

    torch: str
    released: str
    build: str
    """cu121; the local part of the version."""
    cuda: str
    default: str
    """yes: the one that pip finds on the index for x86_64."""
    pythons: Tuple[str, ...]
    """3.8 3.9 ... 3.13t, of the wheels for Linux x86_64."""
    glibc_x86_64: str
    glibc_aarch64: str
    cuda_aarch64: str
    """CUDA of the wheel for aarch64 on the index; empty: without CUDA."""
    nccl: str
    nccl_linkage: str
    cudnn: str
    architectures: Tuple[str, ...]
    """Compute capabilities with code in the wheel for x86_64."""
    architectures_aarch64: Tuple[str, ...]
    ptx: str
    rocm: Tuple[str, ...]


@dataclass(frozen=True)
class Toolkit(Row):
    """A release of the CUDA toolkit and the driver that it came with, which is its floor before CUDA 11."""

    cuda: str
    update: str
    driver: str
    """Empty where it was not published."""


@dataclass(frozen=True)
class Major(Row):
    """A major release of CUDA and the oldest driver that runs any toolkit of it (minor-version compatibility)."""

    major: str
    driver: str


@dataclass(frozen=True)
class DriverBranch(Row):
    branch: str
    """535"""
    kind: str
    """LTSB, PB (production) or NFB (new features)."""
    end_of_life: str
    """2028-06, or "past"."""
    newest: str
    cuda: str
    """Highest CUDA version of the branch."""


@dataclass(frozen=True)
class Architecture(Row):
    architecture: str
    compute_capability: str
    first_cuda: str
    last_cuda: str
    """Empty: still in the newest toolkit."""
    last_driver_branch: str


@dataclass(frozen=True)
class GpuModel(Row):
    gpu: str
    name: str
    """Part of the name that NVML gives it."""
    segment: str
    architecture: str
    compute_capability: str
    nvlink_per_direction_gb_s: str
    nvlink_form: str
    pcie_generation: str
    memory_gb: str


@dataclass(frozen=True)
class NcclRelease(Row):
    nccl: str
    tagged: str
    torch: str
    """Torch releases that bring it."""
    added: str
    """Variables that it added."""
    defaults: str
    removed: str
    behaviour: str
    bugs: str
    """Bugs that it fixed: older releases have them."""
    glibc: str


@dataclass(frozen=True)
class Distribution(Row):
    distribution: str
    version: str
    glibc: str
    end_of_life: str
    end_of_extended: str
    newest_torch: str


AnyRow = TypeVar("AnyRow", bound=Row)

TABLES: Dict[str, Type[Row]] = {
    "torch": TorchBuild,
    "cuda_toolkits": Toolkit,
    "cuda_majors": Major,
    "drivers": DriverBranch,
    "architectures": Architecture,
    "gpus": GpuModel,
    "nccl": NcclRelease,
    "distributions": Distribution,
}
"""Table (file name without .csv) -> what a row of it is."""


def torch() -> Tuple[TorchBuild, ...]:
    return _table("torch", TorchBuild)


def cuda_toolkits() -> Tuple[Toolkit, ...]:
    return _table("cuda_toolkits", Toolkit)


def cuda_majors() -> Tuple[Major, ...]:
    return _table("cuda_majors", Major)


def drivers() -> Tuple[DriverBranch, ...]:
    return _table("drivers", DriverBranch)


def architectures() -> Tuple[Architecture, ...]:
    return _table("architectures", Architecture)


def gpus() -> Tuple[GpuModel, ...]:
    return _table("gpus", GpuModel)


def nccl() -> Tuple[NcclRelease, ...]:
    return _table("nccl", NcclRelease)


def distributions() -> Tuple[Distribution, ...]:
    return _table("distributions", Distribution)


def _table(name: str, kind: Type[AnyRow]) -> Tuple[AnyRow, ...]:
    rows: Any = load(name)  # TABLES says that they are of this kind
    return rows  # type: ignore[no-any-return]


@lru_cache(maxsize=None)
def load(name: str) -> Tuple[Row, ...]:
    """All rows of a table. BadTable when it is missing or a row does not have its columns."""
    # pkgutil, not importlib.resources: the one call that Python 3.8 to 3.14, a wheel and an editable install agree on.
    data = pkgutil.get_data("ddp_doctor.checks", f"data/{name}.csv")
    if data is None:
        raise BadTable(f"{name}.csv is missing")
    return parse(name, data.decode("utf-8"))


def parse(name: str, text: str) -> Tuple[Row, ...]:
    """Rows of the table ``name`` out of its text."""
    kind = TABLES[name]
    columns = {f.name: f.type for f in fields(kind)}
    reader = csv.DictReader(io.StringIO(text), strict=True)
    if set(reader.fieldnames or ()) != set(columns):
        raise BadTable(f"{name}.csv: columns {reader.fieldnames}, not {sorted(columns)}")
    return tuple(_row(kind, columns, cells, f"{name}.csv:{reader.line_num}") for cells in reader)


def _row(kind: Type[Row], columns: Dict[str, Any], cells: Dict[str, Any], where: str) -> Row:
    if None in cells or None in cells.values():
        raise BadTable(f"{where}: not as many cells as columns")
    if not cells["source"] or cells["confidence"] not in CONFIDENCES:
        raise BadTable(f"{where}: no source, or a confidence other than {', '.join(CONFIDENCES)}")
    values: Dict[str, Any] = {n: text if columns[n] is str else tuple(text.split()) for n, text in cells.items()}
    return kind(**values)

"""The reference tables that ship with the package (``checks/data``), a source and a confidence on every row.

confidence: high (read in a primary source), medium (one source short of that), low (inferred): what rests on a row of
low confidence is said with "probably". ``disagreement``: where two sources say different things.
"""

import csv
import datetime
import io
import pkgutil
from dataclasses import fields
from functools import lru_cache
from typing import Any, Dict, Tuple, Type, TypeVar

from ddp_doctor.frozen import dataclass

CONFIDENCES = ("high", "medium", "low")
READ_ON = datetime.date(2026, 11, 30)
"""The day on which the sources were read: what they call past had ended by then."""


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
    nvlink_generation: str
    """none: without NVLink."""
    nvlink_links: str
    pcie_width: str
    """x16"""
    memory_gb_s: str
    first_cuda: str
    last_cuda: str
    """12.9, or "current": still in the newest toolkit."""


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
class NcclBug(Row):
    """A bug of NCCL releases: in ``since`` and later, up to but not in ``fixed``."""

    bug: str
    address: str
    """Where it was reported, or the release notes that name it."""
    since: str
    """First release that is known to have it; empty: older ones all."""
    fixed: str
    """First release without it; empty: not known."""
    needs: Tuple[str, ...]
    """What must all be so on a node for the bug to matter there; see ``BUG_NEEDS``."""
    effect: str
    """corrupts, hangs, fails or slow."""
    when: str
    """In words: the bug bites when ..."""
    instead: str
    """The way round it, where there is one beside another release."""


BUG_NEEDS = {
    "nodes>1": "the job has several nodes",
    "rdma": "it talks over RDMA",
    "nvswitch": "the GPUs hang on NVSwitch",
    "nvlink-down": "an NVLink is down",
    "container": "it runs in a container",
    "machine:": "os.machine is this",
    "capability:": "a GPU has this compute capability",
    "capability<=": "all GPUs have at most this compute capability",
    "gpu:": "a GPU's name has this in it",
    "cuda>=": "the driver supports at least this CUDA version",
    "env:": "the variable has this value",
    "job:": "of the program, which facts do not tell: such a bug is never more than a note",
}
"""Words of ``NcclBug.needs``; those that end in a sign are followed by a value."""


@dataclass(frozen=True)
class Companion(Row):
    """A release of torchvision or torchaudio, and the torch that its own metadata asks for."""

    package: str
    version: str
    torch: str
    """2.14.0: that release; >=2.14.0: that one or later; empty: its metadata does not say."""


@dataclass(frozen=True)
class Bandwidth(Row):
    """A published collective bandwidth."""

    scope: str
    system: str
    gpu: str
    gpus: str
    nodes: str
    interconnect: str
    collective: str
    message_size: str
    busbw_gb_s: str
    kind: str
    """measured, threshold, rule, estimate ..., with the circumstances."""
    warn_below_gb_s: str
    wire_limit_gb_s: str


@dataclass(frozen=True)
class Rule(Row):
    """What no other table has a column for, in words."""

    rule: str
    """forward-compatibility, trap or glibc."""
    subject: str
    limit: str
    says: str


@dataclass(frozen=True)
class Distribution(Row):
    distribution: str
    id: str
    """ID of os-release; CentOS Stream has that of CentOS."""
    version: str
    glibc: str
    end_of_life: str
    """2029-05-31, 2027-06, 2031 or past: see ``compat.ended``."""
    end_of_extended: str
    """Of support that is paid for, with its name: 2028-04 (ESM)."""
    newest_torch: str


@dataclass(frozen=True)
class Setting(Row):
    """An environment variable of NCCL, torch.distributed, Gloo, a plug-in or a launcher. ``note``: what goes wrong with it."""

    name: str
    library: str
    """Who reads it; "none": nobody ever did, though guides recommend it."""
    kind: str
    """int, bool (NCCL reads an integer), bool-words, bool-or-word, enum, enum-any-case, list, string, path, cpulist."""
    allowed: Tuple[str, ...]
    """Words, and numbers as "2", "0..31" or "1.."; empty: not restricted, or not in a form that a program can judge."""
    default: str
    defaults: str
    """By version of the library, oldest first: "2.3.5=14; 2.14.3=18"; empty: always ``default``."""
    since: str
    """First version of the library (NCCL, torch) that reads it; empty: older than anything in use."""
    last: str
    """Last version that reads it; empty: it is still read."""
    deprecated: str
    renamed_to: str
    instead: str
    meaning: str


@dataclass(frozen=True)
class Threshold(Row):
    """A bound of a measured quantity: what is beyond it is a finding. Read through ``thresholds.py``."""

    name: str
    """As the checks ask for it: "rdma.link_downed"."""
    unit: str
    """C, %, 1/h, ms, B/s, events ..."""
    beyond: str
    """above or below: on which side of the bound the fault lies."""
    warning: str
    """Decimal number; empty: there is no such bound. The same for ``error``."""
    error: str
    scope: str
    """To what it applies: "InfiniBand ports", "GPUs before Ampere", "every interface"."""
    says: str
    """What it means when it is crossed."""


@dataclass(frozen=True)
class NvLinkForm(Row):
    """How the NVLinks of a GPU model are meant to be used; their number and speed stand in the table of GPUs."""

    gpu: str
    """As in the table of GPUs."""
    joined: str
    """switch (all links, always), mesh (to some of the others), bridge (none without one), or optional (the board decides)."""
    manager: str
    """Where the fabric manager of its switches runs: host (if they are on its PCI bus), always (on the host, though they are not),
    or rack (on the switch trays). Empty: there is none."""
    by_design: str
    """What looks like a fault and is none."""


@dataclass(frozen=True)
class GpuSpeed(Row):
    """How fast a GPU in order was measured to multiply large matrices."""

    gpu: str
    """As in the table of GPUs."""
    type: str
    """Of the numbers: float16 or bfloat16, added up in float32."""
    peak_tflop_s: str
    """Of its data sheet, without sparsity, in 10**12 operations per second."""
    measured_tflop_s: str
    """The best that was measured with torch, over many shapes."""


@dataclass(frozen=True)
class CounterMeaning(Row):
    """What a rise of a counter means for a job, and which check judges it."""

    counted_by: str
    """rdma, ethtool, interface ...: ``facts.Counter.source``."""
    name: str
    """As the source calls it, with * and ? as in a shell."""
    check: str
    """Name of the check in the area rates; empty: no fault, whatever it counts."""
    threshold: str
    """Row of the table of thresholds; empty where no check judges it."""
    meaning: str
    """In a sentence."""


@dataclass(frozen=True)
class Xid(Row):
    """An error number of NVIDIA's GPU driver. Read through ``xids.py``."""

    code: str
    name: str
    meaning: str
    """A sentence."""
    cause: str
    """application, driver, hardware, memory, nvlink, recovery, or unused (by GPUs since Ampere)."""
    action: str
    """What brings the GPU back; see ``xids.ACTIONS``. by-line: the line says it."""
    severity: str
    """note, warning, error, or by-line."""


@dataclass(frozen=True)
class Sxid(Row):
    """Error numbers of NVIDIA's NVSwitch driver, from ``first`` to ``last``; of several rows the narrowest holds."""

    first: str
    last: str
    meaning: str
    """The part of the switch, and what is wrong there."""
    fatal: str
    """yes, no, or by-line: the line's own word, which holds wherever it says one."""
    action: str


AnyRow = TypeVar("AnyRow", bound=Row)

TABLES: Dict[str, Type[Row]] = {
    "torch": TorchBuild,
    "cuda_toolkits": Toolkit,
    "cuda_majors": Major,
    "drivers": DriverBranch,
    "architectures": Architecture,
    "gpus": GpuModel,
    "nccl": NcclRelease,
    "nccl_bugs": NcclBug,
    "companions": Companion,
    "distributions": Distribution,
    "variables": Setting,
    "bandwidth": Bandwidth,
    "rules": Rule,
    "thresholds": Threshold,
    "xids": Xid,
    "sxids": Sxid,
    "nvlinks": NvLinkForm,
    "gpu_speeds": GpuSpeed,
    "counters": CounterMeaning,
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


def nccl_bugs() -> Tuple[NcclBug, ...]:
    return _table("nccl_bugs", NcclBug)


def companions() -> Tuple[Companion, ...]:
    return _table("companions", Companion)


def bandwidth() -> Tuple[Bandwidth, ...]:
    return _table("bandwidth", Bandwidth)


def rules() -> Tuple[Rule, ...]:
    return _table("rules", Rule)


def distributions() -> Tuple[Distribution, ...]:
    return _table("distributions", Distribution)


def thresholds() -> Tuple[Threshold, ...]:
    return _table("thresholds", Threshold)


def nvlinks() -> Tuple[NvLinkForm, ...]:
    return _table("nvlinks", NvLinkForm)


def gpu_speeds() -> Tuple[GpuSpeed, ...]:
    return _table("gpu_speeds", GpuSpeed)


def counters() -> Tuple[CounterMeaning, ...]:
    return _table("counters", CounterMeaning)


def xids() -> Tuple[Xid, ...]:
    return _table("xids", Xid)


def sxids() -> Tuple[Sxid, ...]:
    return _table("sxids", Sxid)


def variables() -> Tuple[Setting, ...]:
    return _table("variables", Setting)


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

"""What goes with what: the official wheels of torch that fit what is asked. Pure; ``matrix_page`` prints it."""

import difflib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from ddp_doctor import compat, tables
from ddp_doctor.tables import GpuModel, TorchBuild
from ddp_doctor.versions import minor, newer, padded, release

SCHEMA_VERSION = "1.0"
MACHINES = ("x86_64", "aarch64")
"""Kinds of machine for which there are official wheels with CUDA."""


LABELS = {
    "torch": "torch",
    "cuda": "CUDA",
    "driver": "driver",
    "python": "Python",
    "capabilities": "GPU of compute capability",
    "glibc": "glibc",
    "machine": "machine",
}
"""What is asked -> how it is called."""


_VERSION = re.compile(r"[0-9]+(\.[0-9]+){0,3}((a|b|rc|\.dev|\.post)[0-9]+)?(\+[A-Za-z0-9._-]+)?", re.ASCII)
"""PEP 440 as far as torch uses it."""


class UnknownValue(Exception):
    """What was asked for is in no table; says what is nearest to it."""


@dataclass(frozen=True)
class Asked:
    """Values that builds must fit; None: any will do. ``asked`` makes one of what a user typed."""

    torch: Optional[str] = None
    """2.4, 2.4.1 or 2.4.1+cu121."""
    cuda: Optional[str] = None
    """12.1, or 12 for all of that major version."""
    driver: Optional[str] = None
    """535.104.05, or 535 for any of that branch."""
    python: Optional[str] = None
    """3.12, or 3.13t for the one without a GIL."""
    capabilities: Tuple[str, ...] = ()
    """Compute capabilities of the GPUs, all of which must run: 9.0."""
    glibc: Optional[str] = None
    machine: str = "x86_64"


def asked(
    torch: Optional[str] = None,
    cuda: Optional[str] = None,
    driver: Optional[str] = None,
    python: Optional[str] = None,
    gpus: Iterable[str] = (),
    os: Optional[str] = None,
    machine: str = "x86_64",
) -> Asked:
    """What a user typed, as values of the tables. Raises UnknownValue.

    gpus: names (H100, RTX 4090), compute capabilities (9.0, sm_90) or architectures (Hopper). os: "ubuntu 22.04",
    centos-7, or a glibc: "glibc 2.28".
    """
    return Asked(
        torch=_torch(torch) if torch else None,
        cuda=_cuda(cuda) if cuda else None,
        driver=_driver(driver) if driver else None,
        python=_python(python) if python else None,
        capabilities=tuple(sorted({_capability(gpu) for gpu in gpus}, key=newer)),
        glibc=_glibc(os) if os else None,
        machine=machine,
    )


def rows(wanted: Asked) -> Tuple[TorchBuild, ...]:
    """The builds that fit, newest torch first, the default build of each before the others."""
    found = [build for build in tables.torch() if fits(build, wanted)]
    return tuple(sorted(found, key=lambda row: (newer(row.torch), row.default == "yes", newer(row.cuda)), reverse=True))


def fits(build: TorchBuild, wanted: Asked) -> bool:
    """Does a build meet everything that is asked?"""
    return all(test(build, wanted) for test in _TESTS.values())


def without_one(wanted: Asked) -> Dict[str, TorchBuild]:
    """Where nothing fits: what is asked -> the newest build that would fit if that were not asked."""
    nothing: Dict[str, Any] = asdict(Asked())
    given = [name for name, value in asdict(wanted).items() if value != nothing[name]]
    eased = {name: rows(Asked(**{**asdict(wanted), name: nothing[name]})) for name in given}
    return {name: found[0] for name, found in eased.items() if found}


def remarks(builds: Sequence[TorchBuild]) -> Tuple[tables.Rule, ...]:
    """What guides say wrongly of these builds."""
    subjects = {f"torch {minor(build.torch)}" for build in builds}
    return tuple(rule for rule in tables.rules() if rule.rule == "guide" and rule.subject in subjects)


def span(pythons: Sequence[str]) -> str:
    """3.8-3.12 of 3.8 3.9 3.10 3.11 3.12; those without a GIL are told by the JSON."""
    plain = sorted((python for python in pythons if not python.endswith("t")), key=newer)
    minors = [padded(release(python), 2)[1] for python in plain]
    together = minors == list(range(minors[0], minors[-1] + 1)) if minors else False
    return f"{plain[0]}-{plain[-1]}" if together and len(plain) > 1 else " ".join(plain)


def plain(build: TorchBuild) -> Dict[str, Any]:
    """One build as JSON data: what its row says, the driver that it needs, what goes with it, and how to install it."""
    floor = compat.driver_floor(build.cuda)
    return {
        "torch": build.torch,
        "released": build.released,
        "build": build.build,
        "cuda": build.cuda,
        "default": build.default == "yes",
        "driver": floor and {"minimum": floor.version, "rule": floor.rule, "source": floor.source},
        "python": list(build.pythons),
        "glibc": {"x86_64": build.glibc_x86_64 or None, "aarch64": build.glibc_aarch64 or None},
        "cuda_aarch64": build.cuda_aarch64 or None,
        "compute_capabilities": {"x86_64": list(build.architectures), "aarch64": list(build.architectures_aarch64)},
        "ptx": build.ptx or None,
        "nccl": build.nccl or None,
        "nccl_linkage": build.nccl_linkage,
        "cudnn": build.cudnn or None,
        "torchvision": [row.version for row in compat.companions("torchvision", build.torch)],
        "torchaudio": [row.version for row in compat.companions("torchaudio", build.torch)],
        "install": compat.pip_line(build),
        "confidence": build.confidence,
        "source": [source for source in (build.source, build.source2) if source],
        "disagreement": build.disagreement or None,
        "note": build.note or None,
    }


def as_json(wanted: Asked, builds: Sequence[TorchBuild]) -> str:
    """The answer to a question as one JSON document."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "asked": asdict(wanted),
        "builds": [plain(build) for build in builds],
        "without_one": {} if builds else {name: plain(build) for name, build in without_one(wanted).items()},
        "remarks": [rule.says for rule in remarks(builds)],
    }
    return json.dumps(document, indent=2)


# --------------------------------------------------------------------------- does a build fit?


def _torch_fits(build: TorchBuild, wanted: Asked) -> bool:
    public, _, local = (wanted.torch or "").partition("+")
    parts = release(public)
    return release(build.torch)[: len(parts)] == parts and local in ("", build.build)


def _cuda_fits(build: TorchBuild, wanted: Asked) -> bool:
    parts = release(wanted.cuda or "")
    return release(build.cuda)[: len(parts)] == parts


def _driver_fits(build: TorchBuild, wanted: Asked) -> bool:
    return not wanted.driver or compat.driver_runs(wanted.driver, build.cuda)


def _python_fits(build: TorchBuild, wanted: Asked) -> bool:
    return not wanted.python or compat.has_wheel_for(build, wanted.python)


def _gpus_fit(build: TorchBuild, wanted: Asked) -> bool:
    return all(compat.runs_on(build, gpu, wanted.driver, wanted.machine) for gpu in wanted.capabilities)


def _glibc_fits(build: TorchBuild, wanted: Asked) -> bool:
    return not wanted.glibc or compat.glibc_fits(build, wanted.glibc, wanted.machine)


def _machine_fits(build: TorchBuild, wanted: Asked) -> bool:
    return wanted.machine == "x86_64" or build.cuda_aarch64 == build.cuda


_TESTS: Dict[str, Callable[[TorchBuild, Asked], bool]] = {
    "torch": _torch_fits,
    "cuda": _cuda_fits,
    "driver": _driver_fits,
    "python": _python_fits,
    "capabilities": _gpus_fit,
    "glibc": _glibc_fits,
    "machine": _machine_fits,
}


def misfits(build: TorchBuild, wanted: Asked) -> Tuple[str, ...]:
    """Names of what is asked that a build does not meet."""
    return tuple(name for name, test in _TESTS.items() if not test(build, wanted))


# --------------------------------------------------------------------------- what was typed


def _torch(text: str) -> str:
    """2.4, v2.4.1, torch==2.4.1+cu121."""
    version = re.sub(r"^(torch\s*==\s*|v)", "", text.strip())
    known = sorted({row.torch for row in tables.torch()}, key=newer)
    if not _VERSION.fullmatch(version):
        raise UnknownValue(
            f"torch {text!r}: no version; write 2.4, 2.4.1 or 2.4.1+cu121; nearest: {_near(text, known)}"
        )
    if not rows(Asked(torch=version)) or not release(version):
        builds = [row.build for row in compat.torch_builds(version.partition("+")[0])]
        more = f"; its builds: {', '.join(builds)}" if builds else f"; nearest: {_near(version, known)}"
        raise UnknownValue(f"torch {text!r}: no official wheel of it is in the tables{more}")
    return version


def _cuda(text: str) -> str:
    """12.1, cu121, 12."""
    tag = re.fullmatch(r"cu(\d+)(\d)", text.strip())
    version = f"{tag.group(1)}.{tag.group(2)}" if tag else ".".join(map(str, release(text)[:2]))
    if not version or not rows(Asked(cuda=version)):
        known = sorted({row.cuda for row in tables.torch()}, key=newer)
        raise UnknownValue(
            f"CUDA {text!r}: no official wheel is built with it; nearest: {_near(version or text, known)}"
        )
    return version


def _driver(text: str) -> str:
    """535.104.05, R535; drivers newer than the tables run what older ones run."""
    version = text.strip().lstrip("Rr")
    known = sorted((row.branch for row in tables.drivers()), key=newer)
    if not re.fullmatch(r"\d+(\.\d+)*", version) or newer(version) < newer("300"):
        raise UnknownValue(
            f"driver {text!r}: not a version of NVIDIA's driver for Linux; nearest: {_near(version, known)}"
        )
    return version


def _python(text: str) -> str:
    """3.12, 3.12.4, python3.12, 3.13t."""
    found = re.fullmatch(r"(?:python|cp)?(\d+\.\d+)(?:\.\d+)?(t?)", text.strip().lower())
    version = "".join(found.groups()) if found else ""
    known = {python for row in tables.torch() for python in row.pythons}
    if version not in known:
        alike = sorted((python for python in known if python.endswith("t") == version.endswith("t")), key=newer)
        raise UnknownValue(f"Python {text!r}: no official wheel is for it; nearest: {_near(version, alike)}")
    return version


def _capability(text: str) -> str:
    """9.0, sm_90, Hopper, H100, NVIDIA H100 80GB HBM3."""
    known = {row.compute_capability for row in tables.architectures()}
    number = re.fullmatch(r"(?:sm_|compute_)(\d+)(\d)a?", text.strip())
    typed = f"{number.group(1)}.{number.group(2)}" if number else text.strip()
    found = {typed} & known or _of_architecture(typed) or _of_model(typed)
    if len(found) == 1:
        return found.pop()
    if found:
        listed = ", ".join(sorted(found, key=newer))
        raise UnknownValue(f"GPU {text!r}: its compute capability may be {listed}; say which, or name the model")
    numbers = sorted(known, key=newer)
    near = _near(typed, numbers) if release(typed) else _alike(typed)
    raise UnknownValue(f"GPU {text!r}: not in the tables; nearest: {near}; or say its compute capability")


def capability_of(name: str) -> Optional[str]:
    """Compute capability of the model with this name, as NVML tells names; None where the tables do not have it."""
    found = _of_model(name) if name else set()
    return found.pop() if len(found) == 1 else None


def _of_model(typed: str) -> Set[str]:
    """Compute capabilities of the models with that name: an exact one, else one in which all words stand."""
    words = set(_words(typed))
    named = {row: [set(_words(row.gpu)), set(_words(row.name))] for row in tables.gpus()}
    exact = {row.compute_capability for row, names in named.items() if words in names}
    part = {row.compute_capability for row, names in named.items() if any(words <= name for name in names)}
    whole = [row for row, names in named.items() if names[1] - {"nvidia"} <= words]
    longest: List[GpuModel] = sorted(whole, key=lambda row: len(row.name))[-1:]
    return exact or part or {row.compute_capability for row in longest}


def _of_architecture(typed: str) -> Set[str]:
    rows_of = [row for row in tables.architectures() if row.architecture.lower() == typed.lower()]
    return {row.compute_capability for row in rows_of}


def _words(name: str) -> List[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"\(.*?\)", "", name.lower()))


def _glibc(text: str) -> str:
    """glibc 2.28; else that of a distribution: ubuntu 22.04, centos-7."""
    found = re.fullmatch(r"(?:g?libc[ -]?)(\d+\.\d+)", text.strip().lower())
    if found:
        return found.group(1)
    wanted = _words(text)
    names = {f"{row.distribution} {row.version}": row for row in tables.distributions()}
    row = next((row for name, row in names.items() if _words(name) == wanted), None)
    named = re.fullmatch(r"([a-z]+?)[ :-]?(\d.*)", text.strip().lower())
    row = row or (compat.distribution(named.group(1), named.group(2)) if named else None)
    if row is None:
        near = difflib.get_close_matches(text.replace("-", " ").title(), names, 3, 0.4) or sorted(names)[:3]
        raise UnknownValue(f"system {text!r}: not in the tables; nearest: {', '.join(near)}; or say: glibc 2.28")
    return row.glibc


def _near(version: str, known: Sequence[str]) -> str:
    """The version before and the one after; the newest where there is no number to go by."""
    if not release(version):
        return known[-1]
    below = [text for text in known if newer(text) < newer(version)][-1:]
    above = [text for text in known if newer(text) > newer(version)][:1]
    same = [text for text in known if newer(text) == newer(version)]
    return ", ".join([*below, *same, *above])


def _alike(name: str) -> str:
    names = {model.lower(): model for row in tables.gpus() for model in (row.gpu,)}
    found = difflib.get_close_matches(name.lower(), names, 3, 0.3)
    return ", ".join(names[text] for text in found) or "H100, A100, RTX 4090"

"""Torch: the torch of the examined interpreter, from its installed files, and (when asked) as it says when imported.

The static look reads files alone: it is instant and also tells when the import crashes. What is imported wins.
"""

import json
import os
import re
import signal
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ddp_doctor import redact, resources
from ddp_doctor.ask import Ask
from ddp_doctor.collect import pythons
from ddp_doctor.collect.pythons import Python
from ddp_doctor.facts import LoadedLibrary, Reason, Torch, Unread
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

IMPORT_LIMIT_S = 60.0
"""Importing torch from a cold network file system takes tens of seconds; a minute is a hang."""
PROBE_LIMIT_S = IMPORT_LIMIT_S + 6.0
"""The probe ends itself before this: torch's clean-up has 5 s of its own (probe.EXIT_LIMIT_S)."""
ERROR_LINES = 12
"""Last lines kept of what the interpreter printed before it died."""

COMPANIONS = frozenset(
    "torchvision torchaudio torchtext torchdata numpy triton pytorch-triton apex flash-attn transformer-engine xformers "
    "deepspeed accelerate transformers lightning pytorch-lightning horovod fairscale megatron-core mpi4py "
    "nccl cudatoolkit cuda-version pytorch-cuda cudnn pytorch libtorch".split()
)
"""Packages that are built against torch or bring what it loads; the last line is conda's names for NVIDIA's and for torch."""

IMPORTED = {
    "imported": bool,
    "import_error": str,
    "import_failure": str,
    "import_s": float,
    "python_version": str,
    "version": str,
    "cuda": str,
    "hip": str,
    "git": str,
    "path": str,
    "arch_list": list,
    "nccl": str,
    "nccl_loaded": list,
    "distributed": bool,
    "backends": list,
    "cudnn": str,
    "cuda_available": bool,
    "cuda_device_count": int,
    "cuda_error": str,
    "cuda_init_code": int,
}
"""Fields that the probe answers, with the type of the answer."""

ONLY_IMPORTED = tuple(
    name for name in IMPORTED if name not in ("python_version", "version", "cuda", "hip", "git", "path")
)
_MAY_BE_NONE = ("import_error", "import_failure", "import_s", "cuda_error", "cuda_init_code")
"""None in these means that nothing went wrong."""


def limit_s(ask: Ask) -> float:
    """Time limit of the section: the import's own, and the static look's."""
    return PROBE_LIMIT_S + 14.0 if ask.active else 10.0


def read(host: Host, ask: Ask) -> Torch:
    """The torch of the interpreter that ``pythons.find`` chooses. Unreadable where there is no interpreter at all."""
    unread: Unread = {}
    python = pythons.find(host, ask)
    facts = static(host, python, unread)
    if ask.active:
        facts.update(imported(host, python, unread))
    else:
        _note(unread, ONLY_IMPORTED, Reason("not-asked", "profile quick does not import torch"))
    facts["installed"] = facts["installed"] or bool(facts.get("imported"))
    _settle(facts, unread)
    return Torch(python=python.path, python_chosen_by=python.chosen_by, unread=unread, **facts)


def _note(unread: Unread, names: Tuple[str, ...], reason: Reason) -> None:
    for name in names:
        unread.setdefault(name, reason)


def _settle(facts: Dict[str, Any], unread: Unread) -> None:
    """No reason for what is known, a reason for what is not."""
    for name in [name for name in unread if facts.get(name) is not None]:
        del unread[name]
    if not facts["installed"]:
        for name in [name for name, reason in unread.items() if reason is _NOT_IMPORTED]:
            del unread[name]
        _note(unread, tuple(n for n in Torch.__annotations__ if facts.get(n) is None), _ABSENT)
    elif facts["path"] is None or "flavour" not in facts:  # imported, and not in the folders that were looked at
        _note(unread, ("installer", "flavour", "wheel_tag", "requires", "nvidia_packages", "nccl_bundled"), _ELSEWHERE)
    for name in ("python", "python_chosen_by", "installed", "unread", "companions", *_MAY_BE_NONE):
        if unread.get(name) is _ABSENT:
            del unread[name]


_ELSEWHERE = Reason("absent", "this torch lies outside the folders from which its interpreter imports by its files")
_ABSENT = Reason("absent", "torch is not installed there")
_NOT_IMPORTED = Reason("crashed", "torch cannot be imported")


# ------------------------------------------------------------------------------------------------------- static


class Evidence(NamedTuple):
    """What tells where a torch comes from."""

    version: str
    path: str
    installer: str
    """Text of the INSTALLER file; "" when there is none."""
    origin: Dict[str, Any]
    """direct_url.json (PEP 610); empty for a package from an index."""
    conda: Optional[str]
    """conda's own record of pytorch in this environment: pytorch-2.1.0-py3.10_cuda12.1_cudnn8.9.2_0.json."""
    nvidia_image: bool
    """This is one of NVIDIA's containers (NGC)."""


def static(host: Host, python: Python, unread: Unread) -> Dict[str, Any]:
    """What the installed files tell, without running anything."""
    listing = {site: pythons.names(host, site) for site in python.sites}
    path = pythons.torch_dir(host, python.sites)
    info = dist_info(listing, path)
    packages = installed_packages(listing)
    facts: Dict[str, Any] = {"python_version": python.version, "installed": bool(path or info), "path": path}
    facts["companions"] = _companions(host, python, packages)
    if not facts["installed"]:
        return facts
    facts["nvidia_packages"] = {name: version for name, version in packages.items() if name.startswith("nvidia-")}
    facts.update(_version_file(host, path, packages, unread))
    facts.update(_metadata(host, info, unread))
    evidence = _evidence(host, python, str(facts.get("version") or ""), path or "", info)
    facts.update(installer=installer(evidence), flavour=flavour(evidence))
    if facts["flavour"] is None:
        unread["flavour"] = Reason("unreadable", f"torch {evidence.version or '(no version)'}: of unknown origin")
    facts["nccl_bundled"] = _nccl_bundled(host, python, facts, unread)
    return facts


def dist_info(listing: Dict[str, Tuple[str, ...]], path: Optional[str]) -> Optional[str]:
    """Folder with torch's metadata, that beside the package first; old ones of a changed installation stay behind."""
    beside = os.path.dirname(path) if path else ""
    for site in sorted(listing, key=lambda site: site != beside):
        for name in reversed(listing[site]):
            if re.fullmatch(r"torch-\d.*\.(dist|egg)-info", name):
                return f"{site}/{name}"
    return None


def installed_packages(listing: Dict[str, Tuple[str, ...]]) -> Dict[str, str]:
    """Normalised name -> version of the packages whose metadata stand in these folders; the first one wins."""
    found: Dict[str, str] = {}
    for names in listing.values():
        for name in names:
            match = re.fullmatch(r"([A-Za-z0-9._]+)-(\d[^-]*)(-py\d.*)?\.(dist|egg)-info", name)
            if match:
                found.setdefault(re.sub(r"[-_.]+", "-", match.group(1)).lower(), match.group(2))
    return found


def _companions(host: Host, python: Python, packages: Dict[str, str]) -> Dict[str, str]:
    conda = parse_conda_meta(pythons.names(host, f"{python.prefix}/conda-meta") if python.prefix else ())
    return {name: version for name, version in {**conda, **packages}.items() if name in COMPANIONS}


def parse_conda_meta(names: Tuple[str, ...]) -> Dict[str, str]:
    """Name -> version of the packages in an environment's conda-meta folder."""
    matches = (re.fullmatch(r"(.+)-([^-]+)-[^-]+\.json", name) for name in names)
    return {match.group(1): match.group(2) for match in matches if match}


def _version_file(host: Host, path: Optional[str], packages: Dict[str, str], unread: Unread) -> Dict[str, Any]:
    """torch/version.py; the metadata's version where it cannot be read."""
    try:
        found = parse_version(host.read(f"{path}/version.py")) if path else {}
        reason = Reason(
            "unreadable", f"{path}/version.py does not say" if path else "no torch folder beside its metadata"
        )
    except Unreadable as error:
        found, reason = {}, error.reason
    _note(unread, ("version", "cuda", "hip", "git"), reason)
    return {"version": packages.get("torch"), **found}


def parse_version(text: str) -> Dict[str, str]:
    """version, cuda, hip and git out of torch/version.py, which is not run; "" for None."""
    names = {"version": "__version__", "cuda": "cuda", "hip": "hip", "git": "git_version"}
    found = {}
    for field, name in names.items():
        match = re.search(rf"^{name}\s*(?::[^=\n]*)?=\s*(?:['\"]([^'\"\n]*)['\"]|None)", text, re.MULTILINE)
        if match:
            found[field] = match.group(1) or ""
    if found and "hip" not in found:  # before torch 1.7 there was no such line
        found["hip"] = ""
    return found


def _metadata(host: Host, info: Optional[str], unread: Unread) -> Dict[str, Any]:
    """Requirements and wheel tag from the metadata folder."""
    facts: Dict[str, Any] = {}
    for field, name, parse in (("requires", "METADATA", parse_requires), ("wheel_tag", "WHEEL", parse_wheel_tag)):
        try:
            facts[field] = parse(host.read(f"{info}/{name}")) if info else None
            unread[field] = Reason("absent", f"{info}/{name} does not say" if info else "torch has no metadata folder")
        except Unreadable as error:
            unread[field] = error.reason
    return facts


def parse_requires(text: str) -> Tuple[str, ...]:
    """Requirements on nvidia-*, triton and numpy in a METADATA file, as written there."""
    head = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
    found = re.findall(r"^Requires-Dist:\s*(.+?)\s*$", head, re.MULTILINE)
    return tuple(r for r in found if re.match(r"(nvidia-|(pytorch-)?triton|numpy|cuda-)", r, re.IGNORECASE))


def parse_wheel_tag(text: str) -> Optional[str]:
    """Platform of a WHEEL file's first tag: manylinux_2_28_x86_64."""
    match = re.search(r"^Tag:\s*[^-\s]+-[^-\s]+-(\S+)", text, re.MULTILINE)
    return match.group(1) if match else None


def _evidence(host: Host, python: Python, version: str, path: str, info: Optional[str]) -> Evidence:
    records = pythons.names(host, f"{python.prefix}/conda-meta") if python.prefix else ()
    conda = next((n for n in records if re.match(r"(pytorch|libtorch|pytorch-gpu|pytorch-cpu)-\d", n)), None)
    text = _read(host, f"{info}/INSTALLER").strip() if info else ""
    return Evidence(version, path, text, _origin(host, info), conda, _is_nvidia_image(host))


def _origin(host: Host, info: Optional[str]) -> Dict[str, Any]:
    try:
        found = json.loads(_read(host, f"{info}/direct_url.json")) if info else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(host: Host, path: str) -> str:
    try:
        return host.read(path, clean=redact.text)
    except Unreadable:
        return ""


def _is_nvidia_image(host: Host) -> bool:
    """NVIDIA's PyTorch containers set NVIDIA_PYTORCH_VERSION, which an ssh login into one does not see."""
    try:
        named = "NVIDIA_PYTORCH_VERSION" in host.env()
    except Unreadable:
        named = False
    return named or pythons.is_there(host, "/opt/nvidia/nvidia_entrypoint.sh")


def installer(evidence: Evidence) -> str:
    """What put this torch there."""
    if "dir_info" in evidence.origin or "vcs_info" in evidence.origin:
        return "source"
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,20}", evidence.installer) and evidence.installer.lower() not in (
        "rpm",
        "debian",
    ):
        return evidence.installer.lower()
    if _is_the_distributions(evidence.path):
        return "distribution"
    return "conda" if evidence.conda else "unknown"


def _is_the_distributions(path: str) -> bool:
    """Below /usr/lib and not in /usr/local: only the distribution's packages write there."""
    return re.match(r"/usr/lib(64)?/python3", path) is not None


_OFFICIAL = re.compile(r"\d+\.\d+\.\d+(\.?(post|rc)\d+|\.dev\d{8})?(\+(cpu|cu\d{2,3}|rocm[\d.]+|xpu|cpu\.cxx11\.abi))?")
"""Versions on PyPI and download.pytorch.org, nightlies included."""
_COMMIT = re.compile(r"(\d+)\.(\d+)\.\d+a0\+(git)?[0-9a-f]{6,}.*")


def flavour(evidence: Evidence) -> Optional[str]:
    """official-wheel, conda, ngc, vendor, distribution or source; None when nothing tells.

    Tables about official wheels hold for those alone. A version a0+COMMIT is built from a checkout: torch's own
    setup.py writes a0+gitCOMMIT since 1.9, NVIDIA's containers have no "git" and since 24.x an ".nv" at the end.
    """
    how = installer(evidence)
    if ".nv" in evidence.version:
        return "ngc"
    if how == "source":
        return "source"
    commit = _COMMIT.fullmatch(evidence.version)
    if commit:
        new = (int(commit.group(1)), int(commit.group(2))) >= (1, 9)
        return "ngc" if evidence.nvidia_image or (new and not commit.group(3)) else "source"
    if how in ("conda", "distribution"):
        return how
    if _OFFICIAL.fullmatch(evidence.version):
        return "official-wheel" if how != "unknown" else None
    return "vendor" if "+" in evidence.version else None


def _nccl_bundled(host: Host, python: Python, facts: Dict[str, Any], unread: Unread) -> Optional[str]:
    """The libnccl that comes with this torch; "" for one linked statically.

    Official wheels and those of conda's channel "pytorch" carry NCCL inside libtorch_cuda.so until they require the
    package nvidia-nccl-cu*.
    """
    if facts.get("cuda") == "":
        unread["nccl_bundled"] = Reason("not-applicable", "a torch built without CUDA has no NCCL")
        return None
    found = next((path for path in nccl_places(python, facts.get("path")) if pythons.is_there(host, path)), None)
    if found is None and facts["flavour"] in ("official-wheel", "conda") and not _requires_nccl(facts):
        return ""
    if found is None:
        text = "none beside torch: only the import tells which libnccl this build loads"
        unread["nccl_bundled"] = Reason("absent", text)
    return found


def nccl_places(python: Python, torch_path: Optional[str]) -> List[str]:
    """Where wheels and conda put libnccl."""
    wheels = [f"{site}/nvidia/nccl/lib/libnccl.so.2" for site in python.sites]
    torch = [f"{torch_path}/lib/libnccl.so.2"] if torch_path else []
    conda = [f"{python.prefix}/lib/libnccl.so.2"] if python.prefix else []
    return wheels + torch + conda


def _requires_nccl(facts: Dict[str, Any]) -> bool:
    return any(requirement.startswith("nvidia-nccl") for requirement in facts.get("requires") or ())


# ----------------------------------------------------------------------------------------------------- imported


def imported(host: Host, python: Python, unread: Unread) -> Dict[str, Any]:
    """What the probe says, run by the examined interpreter in the user's own environment."""
    try:
        ran = host.run(
            "torch-probe", [python.path, "-B", "-", f"{IMPORT_LIMIT_S:g}"], PROBE_LIMIT_S, resources.text("probe.py")
        )
    except Unreadable as error:
        return _not_run(error.reason, unread)
    answers, errors = parse_answers(ran.stdout)
    end = how_it_ended(ran.status, ran.stderr)
    if "imported" not in answers:
        answers.update(imported=False, import_failure=end[0], import_error=redact.text(end[1]))
    return _facts(answers, errors, end[1], unread)


def _not_run(reason: Reason, unread: Unread) -> Dict[str, Any]:
    """The interpreter could not be started, or neither ended nor answered within its limit."""
    failure = {"timed-out": "timed-out", "crashed": "exit"}.get(reason.kind, "could-not-start")
    if reason.kind in ("not-recorded", "deadline"):  # neither says anything about torch
        _note(unread, ONLY_IMPORTED, reason)
        return {}
    _note(unread, ONLY_IMPORTED, Reason(reason.kind, f"torch was not imported: {reason.text}"))
    return {"imported": False, "import_failure": failure, "import_error": reason.text}


def parse_answers(stdout: str) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """(answers, errors) of the probe's lines; other text, and answers of the wrong type, are passed over."""
    from ddp_doctor.probe import MARK

    answers: Dict[str, Any] = {}
    errors: Dict[str, str] = {}
    for line in stdout.splitlines():
        if line.startswith(MARK):
            said = _json_object(line[len(MARK) :])
            answers.update((n, v) for n, v in said.items() if n in IMPORTED and _fits(v, IMPORTED[n]))
            failed = said.get("errors")
            errors.update((str(n), str(t)) for n, t in (failed.items() if isinstance(failed, dict) else ()))
    return answers, errors


def _json_object(text: str) -> Dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _fits(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def how_it_ended(status: int, stderr: str) -> Tuple[str, str]:
    """(kind of failure, text) of a probe that ended before it had answered everything."""
    last = "\n".join(telling_lines(stderr))
    if status < 0:
        return "signal", f"ended by {_signal_name(-status)}\n{last}".strip()
    if re.search(r"^Timeout \(\d+:\d\d:\d\d", stderr, re.MULTILINE):  # faulthandler's words
        return "timed-out", f"timed out after {IMPORT_LIMIT_S:g} s; it hung here:\n{last}"
    return "exit", f"ended with exit status {status} before it answered\n{last}".strip()


def telling_lines(stderr: str) -> List[str]:
    """The lines that say what happened: faulthandler's head and innermost frames, else the last ones."""
    noise = ("Extension modules:", '  File "<frozen importlib')
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith(noise)]
    heads = [i for i, line in enumerate(lines) if line.startswith(("Fatal Python error", "Timeout ("))]
    return lines[heads[-1] :][:ERROR_LINES] if heads else lines[-ERROR_LINES:]


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _facts(answers: Dict[str, Any], errors: Dict[str, str], end: str, unread: Unread) -> Dict[str, Any]:
    """Answers as fields; a reason for each field without one."""
    facts = {name: value for name, value in answers.items() if name not in ("arch_list", "backends", "nccl_loaded")}
    for name in ("arch_list", "backends"):
        if name in answers:
            facts[name] = tuple(map(str, answers[name]))
    facts["nccl_loaded"] = _loaded(answers.get("nccl_loaded"))
    for name, text in errors.items():
        unread[name] = Reason("unreadable", redact.text(text))
    if not answers["imported"]:
        reason = _NOT_IMPORTED
    else:
        _without_nccl(facts, answers, unread)
        reason = Reason("crashed", f"the interpreter died when asked: {redact.text(end)}")
    _note(unread, tuple(n for n in ONLY_IMPORTED if n not in answers and n not in _MAY_BE_NONE), reason)
    if answers["imported"] and "cuda_available" not in answers and "cuda_available" not in errors:
        facts["cuda_error"] = reason.text
    return facts


def _loaded(said: Any) -> Optional[LoadedLibrary]:
    """The first libnccl that is mapped."""
    if not said or not isinstance(said[0], list) or len(said[0]) != 2:
        return None
    path, version = said[0]
    return LoadedLibrary(str(path), str(version) if version else None)


def _without_nccl(facts: Dict[str, Any], answers: Dict[str, Any], unread: Unread) -> None:
    """A torch without NCCL or cuDNN says "": that is no version."""
    for name, title in (("nccl", "NCCL"), ("cudnn", "cuDNN")):
        if answers.get(name) == "":
            facts[name] = None
            unread[name] = Reason("not-applicable", f"this torch was built without {title}")
    if answers.get("nccl_loaded") == []:
        text = "linked statically into torch" if answers.get("nccl") else "this torch loads no libnccl"
        unread["nccl_loaded"] = Reason("not-applicable", text)

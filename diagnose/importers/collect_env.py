"""``python -m torch.utils.collect_env``: the report that a PyTorch issue asks for, of every torch since 0.4.

Its format is torch/utils/collect_env.py (env_info_fmt); vLLM prints the same titles with blanks before the colon. Reports
are pasted: quoted, indented, in ``<details>``, cut short. It tells of the software, and of GPUs what ``nvidia-smi -L``
says; not of a network, limits, variables or time. What it does not tell is not recorded, never healthy.
"""

import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ddp_doctor import redact
from ddp_doctor.collect.torch import COMPANIONS, Evidence, flavour, installer
from ddp_doctor.facts import SECTIONS, Cpu, Cuda, Gpu, Gpus, How, NodeFacts, Os, Reason, Toolkit, Torch, Unread
from ddp_doctor.importers import BadReport, section
from ddp_doctor.versions import release

TITLE = "a collect_env report"
VIA = "collect_env"

_TITLES = (
    "PyTorch version|Is debug build|CUDA used to build PyTorch|ROCM used to build PyTorch|XPU used to build PyTorch|OS|"
    "GCC version|Clang version|CMake version|Libc version|Python version|Python platform|Is CUDA available|"
    "CUDA runtime version|CUDA_MODULE_LOADING set to|GPU models and configuration|Nvidia driver version|cuDNN version|"
    "Is XPU available|HIP runtime version|MIOpen runtime version|Is XNNPACK available|Caching allocator config|CPU|"
    "Versions of relevant libraries"
)
_LINE = re.compile(rf"({_TITLES})( *): ?(.*)")
_BEFORE = re.compile(r"[\s>|│]*(?:\d{4}-\d\d-\d\dT[\d:.]+Z?\s+|\[?(?:rank)?\d{1,5}\]?:\s+)?")
"""What stands before the lines of a pasted report: marks of a quotation, indentation, a CI log's time, a rank's number."""
_NOT_TOLD = ("", "Could not collect", "N/A", "No CUDA", "None")

_NOT_RECORDED = Reason("not-recorded", "a collect_env report does not tell it")
_MAX_GPUS = 256
"""More than any machine has; a list without end is none."""
_MAX_LINE = 8192
"""lscpu's flags, the longest line, are some 2,000 characters."""
_MAX_CHARACTERS = 200
"""Longer than any name or version in it."""


class Report(NamedTuple):
    """A report taken apart."""

    values: Dict[str, str]
    """Title -> what stands behind its colon."""
    below: Dict[str, Tuple[str, ...]]
    """Title -> lines below it that are not empty."""
    lines: Tuple[str, ...]
    whole: bool
    """It goes on to conda's list, with which every report ends."""

    def told(self, title: str) -> Optional[str]:
        """The value of a title; None where the report says in one of its ways that it does not know."""
        value = self.values.get(title, "")
        return None if value in _NOT_TOLD else value[:_MAX_CHARACTERS]


def recognises(text: str) -> bool:
    """Is there such a report in the text? Its first and a later line tell."""
    return "PyTorch version" in text and bool(_reports(_lines(text)))


def facts(text: str, name: str) -> NodeFacts:
    """Facts from the one report in ``text``. Raises BadReport where there are several that differ."""
    report = parse(text)
    other = _other_system(report)
    known = {} if other else _sections(report, text)
    reason = Reason("not-applicable", f"{other} is not judged: the checks are for Linux") if other else _NOT_RECORDED
    reasons = {name: reason for name in SECTIONS if name not in known}
    return NodeFacts(name, how=How(via=VIA, profile="standard"), reasons=reasons, **known)


def _sections(report: Report, text: str) -> Dict[str, Any]:
    found: Dict[str, Any] = {"os": _os(report), "torch": _torch(report, text), "gpus": _gpus(report)}
    nvcc = report.told("CUDA runtime version")
    if nvcc and release(nvcc):
        found["cuda"] = section(Cuda, _NOT_RECORDED, {}, nvcc=Toolkit("an unrecorded path", nvcc, "nvcc"))
    cpu = _cpu(report)
    return {**found, "cpu": cpu} if cpu else found


# --------------------------------------------------------------------------- the text


def parse(text: str) -> Report:
    """Take the report in ``text`` apart. Raises BadReport where there is none, or several that differ."""
    lines = _lines(text)
    reports = _reports(lines)
    if not reports:
        raise BadReport("no collect_env report")
    if any(report.values != reports[0].values for report in reports):
        raise BadReport(f"{len(reports)} collect_env reports that differ: give each in a file of its own")
    vllms = any(re.match(r"PyTorch version {2,}:", line) for line in lines)
    return _report(lines) if vllms and len(reports) == 1 else reports[0]  # vLLM begins with the system


def _lines(text: str) -> List[str]:
    """Lines without what a quotation or a log puts before them."""
    short = (line[:_MAX_LINE] for line in text.split("\n"))
    return [line[_BEFORE.match(line).end() :].rstrip() for line in short]  # type: ignore[union-attr]  # it always matches


def _reports(lines: List[str]) -> List[Report]:
    """One for each line "PyTorch version: ..." that a report goes on from."""
    starts = [number for number, line in enumerate(lines) if re.match(r"PyTorch version *:", line)]
    reports = [_report(lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)])]
    return [report for report in reports if "Is CUDA available" in report.values]


def _report(lines: List[str]) -> Report:
    """Titles and what follows them; the first of a kind counts, as text after a report may look like one."""
    whole = any(line.startswith("[conda]") for line in lines)
    lines = [line for line in lines if line]
    if not whole:  # cut short, and who knows in the middle of what
        lines = lines[:-1]
    values: Dict[str, str] = {}
    below: Dict[str, List[str]] = {}
    title = ""
    for line in lines:
        found = _LINE.fullmatch(line)
        if found and found.group(1) not in values:
            title = found.group(1)
            values[title] = found.group(3).strip()
        else:
            below.setdefault(title, []).append(line)
    return Report(values, {name: tuple(under) for name, under in below.items()}, tuple(lines), whole)


# --------------------------------------------------------------------------- system


_SYSTEMS = (
    ("Ubuntu", "ubuntu", "debian"), ("Debian", "debian", ""), ("CentOS", "centos", "rhel fedora"),
    ("Red Hat", "rhel", "fedora"), ("Rocky", "rocky", "rhel centos fedora"), ("Alma", "almalinux", "rhel centos fedora"),
    ("Oracle Linux", "ol", "fedora"), ("Scientific Linux", "scientific", "rhel centos fedora"), ("Fedora", "fedora", ""),
    ("Amazon Linux", "amzn", "fedora"), ("SUSE Linux Enterprise", "sles", "suse"), ("openSUSE Leap", "opensuse-leap", "suse opensuse"),
    ("openSUSE Tumbleweed", "opensuse-tumbleweed", "opensuse suse"), ("Arch Linux", "arch", ""), ("Manjaro", "manjaro", "arch"),
    ("Gentoo", "gentoo", ""), ("Linux Mint", "linuxmint", "ubuntu debian"), ("Pop!_OS", "pop", "ubuntu debian"),
    ("NixOS", "nixos", ""), ("Alpine", "alpine", ""), ("Kali", "kali", "debian"),
)  # fmt: skip
"""Beginnings of the names that distributions give themselves, with ID and ID_LIKE of their os-release."""

_PLATFORM = re.compile(r"Linux-(.+?)-(x86_64|aarch64|ppc64le|s390x|riscv64|i\d86|armv\w+)(?:-.*)?")
"""platform.platform(): system, kernel release, machine, processor, C library."""


def _os(report: Report) -> Os:
    """The distribution, as it is in the container where the report was made in one; the kernel is the machine's."""
    name, machine = _split_machine(report.told("OS") or "")
    platform = _PLATFORM.fullmatch(report.told("Python platform") or "")
    kernel = platform.group(1) if platform else None
    unread, known = {}, _distribution(name)
    if known.get("id") and not known.get("version"):
        unread["version"] = Reason("not-applicable", "this distribution has no version number")
    return section(
        Os,
        _NOT_RECORDED,
        unread,
        pretty=name or None,
        kernel=kernel,
        machine=machine or (platform.group(2) if platform else None),
        glibc=_glibc(report, unread),
        virtualisation=_virtualisation(report, kernel or ""),
        **known,
    )


def _split_machine(name: str) -> Tuple[str, str]:
    """("Ubuntu 22.04.3 LTS", "x86_64") of what stands behind "OS:"; reports of old torches have no machine there."""
    found = re.fullmatch(r"(.*?)\s*\((x86_64|aarch64|arm64|ppc64le|s390x|riscv64|i\d86|armv\w+)\)", name)
    return (found.group(1), found.group(2)) if found else (name, "")


def _other_system(report: Report) -> Optional[str]:
    """The name of the system where it is not Linux, whose drivers, wheels and limits the checks are about."""
    name, platform = report.told("OS") or "", report.told("Python platform") or ""
    for system, begins in (
        ("macOS", ("mac", "Mac", "Darwin")),
        ("Windows", ("Windows", "Microsoft Windows", "CYGWIN")),
    ):
        if name.startswith(begins) or platform.startswith(begins):
            return name or system
    return None


def _distribution(name: str) -> Dict[str, Any]:
    row = next((row for row in _SYSTEMS if name.lower().startswith(row[0].lower())), None)
    if row is None:
        return {}
    version = re.search(r"(?<![\w.])\d+(?:\.\d+)*", name)
    known = {"id": row[1], "like": tuple(row[2].split()), "stream": "stream" in name.lower()}
    return {**known, "version": version.group()} if version else known


def _glibc(report: Report, unread: Unread) -> Optional[str]:
    """The system's glibc, which Python tells since 3.8; an older one tells for which it was itself built.

    https://github.com/python/cpython/pull/10891
    """
    library, _, version = (report.told("Libc version") or "").partition("-")
    python = release(report.told("Python version") or "")
    if library == "musl":
        unread["glibc"] = Reason("absent", "the C library is not glibc")
    elif version and python < (3, 8):
        unread["glibc"] = Reason(
            "not-recorded", "a Python before 3.8 tells for which glibc it was built, not which is here"
        )
    elif library == "glibc" and release(version):
        return version
    return None


def _virtualisation(report: Report, kernel: str) -> Optional[str]:
    if "microsoft" in kernel.lower():
        return "wsl"
    vendor = _lscpu(report).get("Hypervisor vendor", "")
    return {"KVM": "kvm", "VMware": "vmware", "Microsoft": "microsoft", "Xen": "xen"}.get(
        vendor, "vm" if vendor else None
    )


# --------------------------------------------------------------------------- processors


_LSCPU = re.compile(
    r"(CPU\(s\)|On-line CPU\(s\) list|Model name|Core\(s\) per socket|Socket\(s\)|Hypervisor vendor|NUMA node\d+ CPU\(s\)): +(\S.*)"
)


def _lscpu(report: Report) -> Dict[str, str]:
    """What lscpu printed, in English; the report has it since torch 2.0."""
    found = (_LSCPU.fullmatch(line) for line in report.lines)
    return {line.group(1): line.group(2)[:_MAX_CHARACTERS] for line in found if line}


def _cpu(report: Report) -> Optional[Cpu]:
    said = _lscpu(report)
    threads = _listed(said.get("On-line CPU(s) list", "")) or _number(said.get("CPU(s)"))
    if not threads:
        return None
    sockets, per_socket = _number(said.get("Socket(s)")), _number(said.get("Core(s) per socket"))
    return section(
        Cpu,
        _NOT_RECORDED,
        {},
        model=said.get("Model name"),
        sockets=sockets,
        cores=sockets * per_socket if sockets and per_socket else None,
        threads=threads,
        numa_nodes=len([title for title in said if title.startswith("NUMA node")]) or None,
    )


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text and re.fullmatch(r"\d{1,6}", text) else None


def _listed(text: str) -> int:
    """How many processors a list names: 0-3,8 are five; 0 for what is no list."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text):
        return 0
    bounds = [part.split("-") for part in text.split(",")]
    return sum(int(bound[-1]) - int(bound[0]) + 1 for bound in bounds)


# --------------------------------------------------------------------------- GPUs


def _gpus(report: Report) -> Gpus:
    unread: Unread = {}
    driver = report.told("Nvidia driver version")
    if driver and not re.fullmatch(r"\d+(\.\d+)+", driver):
        unread["driver"] = Reason("unreadable", f"the report's driver version is {driver!r}")
        driver = None
    rocm = report.told("ROCM used to build PyTorch") is not None
    found = None if rocm else _listed_gpus(report, unread)
    other = report.told("GPU models and configuration") if rocm else None
    if rocm:  # collect_env then asks torch, not nvidia-smi
        unread["gpus"] = Reason("not-applicable", "of a torch for ROCm the report names AMD's GPUs")
    return section(
        Gpus,
        _NOT_RECORDED,
        unread,
        silent=("nvml_error",),
        source="nvidia-smi",
        driver=driver,
        gpus=found,
        other_vendor=(other,) if other else None,
    )


def _listed_gpus(report: Report, unread: Unread) -> Optional[Tuple[Gpu, ...]]:
    """What ``nvidia-smi -L`` printed; None where it printed nothing, or where the list is cut or not understood."""
    title = "GPU models and configuration"
    if report.told(title) is None and not report.below.get(title):
        unread["gpus"] = Reason(
            "not-recorded", "nvidia-smi listed none: it failed or is not there, and the report does not say"
        )
        return None
    lines = [line for line in (report.values[title], *report.below.get(title, ())) if line]
    if "Nvidia driver version" not in report.values:
        unread["gpus"] = Reason("unreadable", "the report ends within its list of GPUs")
        return None
    if lines == ["No devices found."]:
        return ()
    return _parsed_gpus(lines, unread)


def _parsed_gpus(lines: List[str], unread: Unread) -> Optional[Tuple[Gpu, ...]]:
    found: Dict[int, Tuple[str, str]] = {}
    for line in (line[: 2 * _MAX_CHARACTERS] for line in lines[: 16 * _MAX_GPUS]):
        gpu = re.fullmatch(r"GPU (\d{1,4}): (\S.*?)(?: \(UUID: [^)]*\))?", line)
        if gpu:
            found[int(gpu.group(1))] = (gpu.group(2)[:_MAX_CHARACTERS], "")
        elif found and line.startswith("MIG "):
            last = next(reversed(list(found)))
            found[last] = (found[last][0], "enabled")
        elif not line.startswith("="):
            unread["gpus"] = Reason(
                "unreadable", f"a line in the report's list of GPUs is not understood: {line[:60]!r}"
            )
            return None
    if len(found) > _MAX_GPUS:
        unread["gpus"] = Reason("unreadable", f"the report lists more than {_MAX_GPUS} GPUs")
        return None
    return tuple(
        section(Gpu, _NOT_RECORDED, {}, ("fault",), index=index, name=name, mig=mig or None)
        for index, (name, mig) in sorted(found.items())
    )


# --------------------------------------------------------------------------- torch


class Package(NamedTuple):
    """A line of conda's or pip's list."""

    name: str
    version: str
    by_pip: bool = True
    build: str = ""
    """conda's build and channel: "py3.10_cuda11.8_cudnn8.7.0_0 pytorch"."""


def packages(lines: Iterable[str]) -> Tuple[Tuple[Package, ...], Tuple[Package, ...]]:
    """(pip's, conda's) packages among the lines of a report."""
    pip: List[Package] = []
    conda: List[Package] = []
    for line in lines:
        found = re.fullmatch(r"\[pip3?\] ([\w.-]+)(?:==| \()(\d[^\s()]*)\)?", line)
        if found:
            pip.append(Package(_normal(found.group(1)), found.group(2)))
        found = re.fullmatch(r"\[conda\] (\S+) +(\d\S*) +(\S.*)", line)
        if found:
            by_pip = re.search(r"<pip>|\bpypi\b|<develop>", found.group(3)) is not None
            conda.append(Package(_normal(found.group(1)), found.group(2), by_pip, found.group(3)))
    return tuple(pip), tuple(conda)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _torch(report: Report, text: str) -> Torch:
    """The torch of the Python that made the report; it was imported, where the report knows its version."""
    unread: Unread = {"cudnn": Reason("not-recorded", "the report lists the system's libcudnn, not torch's own")}
    pip, conda = packages(report.lines)
    version = report.told("PyTorch version")
    if version and not re.fullmatch(r"\d+\.\d+[\w.+-]*", version):
        unread["version"] = Reason("unreadable", f"the report's torch version is {version[:60]!r}")
        version = None
    python = re.match(r"\d+\.\d+(\.\d+)?", report.told("Python version") or "")
    known = (
        _imported(report, version, text, pip, conda, unread) if version else _not_imported(report, text, pip, unread)
    )
    return section(
        Torch,
        _NOT_RECORDED,
        unread,
        silent=("import_error", "import_failure", "import_s", "cuda_error", "cuda_init_code"),
        python_version=python.group() if python else None,
        python_chosen_by=VIA,
        **known,
    )


def _imported(
    report: Report, version: str, text: str, pip: Iterable[Package], conda: Iterable[Package], unread: Unread
) -> Dict[str, Any]:
    evidence = _evidence(version, conda, pip)
    known: Dict[str, Any] = {"installed": True, "imported": True, "version": version, **_build(report)}
    known.update(installer=installer(evidence), flavour=flavour(evidence))
    if known["flavour"] is None:
        unread["flavour"] = Reason("unreadable", f"torch {version}: the report does not tell where it is from")
    known["cuda_available"] = {"Yes": True, "True": True, "No": False, "False": False}.get(
        report.values["Is CUDA available"]
    )
    if known["cuda_available"] is False:
        known["cuda_error"] = _cuda_error(text)
    known.update(_around(report, version, pip, conda, unread))
    return known


def _build(report: Report) -> Dict[str, Any]:
    """CUDA and ROCm of the build. "None" and "Could not collect" say that torch.version.cuda is None."""
    cuda, hip = report.told("CUDA used to build PyTorch"), report.told("ROCM used to build PyTorch")
    if cuda is not None and not release(cuda):
        cuda = None
    elif "CUDA used to build PyTorch" in report.values:
        cuda = cuda or ""
    no_hip = bool(cuda) or "ROCM used to build PyTorch" in report.values
    return {"cuda": cuda, "hip": hip or ("" if no_hip else None)}


def _cuda_error(text: str) -> Optional[str]:
    """The warning that torch gives when CUDA does not start, where it was pasted with the report."""
    found = re.search(r"CUDA initialization: (.{1,400}?)(?:\(Triggered internally|\n\n|\Z)", text, re.DOTALL)
    return redact.text(" ".join(found.group(1).split())) if found else None


def _evidence(version: str, conda: Iterable[Package], pip: Iterable[Package]) -> Evidence:
    """Where this torch is from. A local part +cu121 has what pip takes from PyTorch's own index; conda's have none."""
    own = [package for package in conda if _same(package.version, version)]
    by_conda = next((p for p in own if p.name in ("pytorch", "pytorch-gpu", "pytorch-cpu") and not p.by_pip), None)
    developed = any(p.name == "torch" and "<develop>" in p.build for p in own)
    by_pip = any(p.name == "torch" and p.by_pip for p in own) or bool(re.search(r"\+(cu\d|cpu|rocm|xpu)", version))
    nvidias = any(p.name == "nvidia-dlprof-pytorch-nvtx" for p in pip) or any(
        p.name.startswith("magma-cuda") and p.build.endswith(" local") for p in conda
    )
    return Evidence(
        version,
        path="",
        installer="pip" if by_pip and not by_conda else "",
        origin={"dir_info": {}} if developed else {},
        conda=by_conda.name if by_conda else None,
        nvidia_image=nvidias,
    )


def _is_torch(package: Package, version: str) -> bool:
    return package.name in ("torch", "pytorch") and _same(package.version, version)


def _same(version: str, other: str) -> bool:
    """One version but for its local part, which pip's list leaves out for wheels of the index."""
    return version.partition("+")[0] == other.partition("+")[0]


def _around(
    report: Report, version: str, pip: Iterable[Package], conda: Iterable[Package], unread: Unread
) -> Dict[str, Any]:
    """Packages beside torch, from those lists in which this torch stands: the others are of another environment."""
    lists = [packages for packages in map(list, (pip, conda)) if any(_is_torch(p, version) for p in packages)]
    if not lists:
        why = "they are of another Python" if report.whole else "the report is cut short"
        reason = Reason("not-recorded", f"the lists in the report do not name torch {version}: {why}")
        unread.update(companions=reason, nvidia_packages=reason)
        return {}
    found: Dict[str, str] = {}
    for package in (package for names in lists for package in names):
        found.setdefault(package.name, package.version)
    return {"companions": {n: v for n, v in found.items() if n in COMPANIONS}, "nvidia_packages": _nvidia(found)}


def _nvidia(found: Dict[str, str]) -> Optional[Dict[str, str]]:
    """NVIDIA's packages, where the report lists them at all: collect_env's filter lets them through since torch 2.5."""
    listed = {name: version for name, version in found.items() if name.startswith("nvidia-")}
    return listed if any(re.match(r"nvidia-(nccl|cublas|cudnn)\b", name) for name in listed) else None


def _not_imported(report: Report, text: str, pip: Iterable[Package], unread: Unread) -> Dict[str, Any]:
    """collect_env writes N/A where it cannot import torch. Since it names the platform, pip's list is that Python's."""
    there = next((package.version for package in pip if package.name == "torch"), None)
    own_pip = "Python platform" in report.values and any(True for _ in pip)
    if report.values.get("PyTorch version") != "N/A" or not own_pip:
        return {}
    if there is None:
        return {"installed": False}
    lines = re.findall(r"^[ \t>|]*((?:ImportError|OSError): .{1,300})", text, re.MULTILINE)
    said = [line for line in lines if re.search(r"\.so|undefined symbol|GLIBC", line)]
    error = redact.text(said[-1]) if said else "collect_env could not import torch"
    return {
        "installed": True,
        "version": there,
        "imported": False,
        "import_failure": "exception",
        "import_error": error,
    }

"""CUDA: toolkits on the machine, and the CUDA libraries that a process here could load instead of torch's own."""

import json
import os
import re
from typing import Dict, Iterable, List, Optional, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect import pythons
from ddp_doctor.collect.pythons import is_there, names, real
from ddp_doctor.collect.torch import installed_packages, nccl_places, parse_conda_meta
from ddp_doctor.facts import Cuda, Library, Reason, Toolkit, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

HPC_SDK = "/opt/nvidia/hpc_sdk"
_FIXED = ("/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit")
"""Where Arch and Debian put the toolkit."""
_LIBRARY = re.compile(r"lib(cuda|cudart|nccl|cudnn)\.so(\.[\d.]+)?")
_CACHED = re.compile(_LIBRARY.pattern + r"|libibverbs\.so\.1|libnccl-net[\w.-]*\.so")
SYSTEM = tuple(
    f"{root}{sub}"
    for root in ("/usr/lib", "/usr/local/lib")
    for sub in ("", "64", "/x86_64-linux-gnu", "/aarch64-linux-gnu")
)
"""The loader's default folders and those of common distributions; ld.so.cache knows the others."""
CACHE_LIMIT_BYTES = 8 * 2**20
"""/etc/ld.so.cache is 30 kB to 1 MB."""
SCAN_LIMIT_BYTES = 2**30
"""A libnccl with all architectures is about 300 MB."""


def read(host: Host, ask: Ask) -> Cuda:
    """Toolkits by real path; libraries in LD_LIBRARY_PATH and LD_PRELOAD; every libnccl that is found."""
    unread: Unread = {}
    env = optional(host.env, unread, "library_path") or {}
    if "library_path" in unread:
        unread["shadowing"] = unread["library_path"]
    library_path = parse_library_path(env.get("LD_LIBRARY_PATH", ""))
    return Cuda(
        toolkits=tuple(toolkits(host, env)),
        nvcc=optional(lambda: nvcc(host, env), unread, "nvcc"),
        library_path=None if "library_path" in unread else library_path,
        shadowing=None if "shadowing" in unread else tuple(shadowing(host, env, library_path)),
        nccls=tuple(nccls(host, ask, env, library_path)),
        unread=unread,
    )


# ----------------------------------------------------------------------------------------------------- toolkits


def toolkits(host: Host, env: Dict[str, str]) -> List[Toolkit]:
    """Toolkits in the usual places and where CUDA_HOME points, each once."""
    found: Dict[str, Toolkit] = {}
    for folder in _toolkit_folders(host, env):
        path = real(host, folder)
        toolkit = None if path in found else _toolkit(host, path)
        if toolkit:
            found[path] = toolkit
    return sorted(found.values(), key=lambda toolkit: toolkit.path)


def _toolkit_folders(host: Host, env: Dict[str, str]) -> Iterable[str]:
    yield from (f"/usr/local/{name}" for name in names(host, "/usr/local") if re.fullmatch(r"cuda(-[\d.]+)?", name))
    yield from _FIXED
    yield from (env[name] for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT") if env.get(name, "").startswith("/"))
    for system in names(host, HPC_SDK):
        for release in names(host, f"{HPC_SDK}/{system}") if system.startswith("Linux_") else ():
            root = f"{HPC_SDK}/{system}/{release}/cuda"
            yield from (f"{root}/{name}" for name in names(host, root) if re.fullmatch(r"[\d.]+", name))


def _toolkit(host: Host, path: str) -> Optional[Toolkit]:
    """A folder that holds a version file, nvcc or the runtime library; the name of the last resort is its folder's."""
    for name, parse in (("version.json", parse_version_json), ("version.txt", parse_version_txt)):
        try:
            version = parse(host.read(f"{path}/{name}"))
        except Unreadable:
            continue
        if version:
            return Toolkit(path, version, name)
    if not any(
        is_there(host, f"{path}/{name}") for name in ("bin/nvcc", "lib64/libcudart.so", "lib64/libcudart.so.12")
    ):
        return None
    named = re.search(r"(\d+\.\d+)$", path)
    return Toolkit(path, named.group(1) if named else None, "folder name")


def parse_version_json(text: str, component: str = "cuda") -> Optional[str]:
    """Version of a component in CUDA's version.json (11.1 and later)."""
    try:
        version = json.loads(text)[component]["version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return _number(str(version))


def parse_version_txt(text: str) -> Optional[str]:
    """ "CUDA Version 10.2.89" (until 11.0)."""
    found = re.search(r"CUDA Version (\d[\d.]*)", text)
    return found.group(1) if found else None


def _number(text: str) -> Optional[str]:
    found = re.match(r"\d[\d.]*", text)
    return found.group() if found else None


def nvcc(host: Host, env: Dict[str, str]) -> Toolkit:
    """The nvcc that PATH finds: its version from the toolkit's version.json, else from itself. Unreadable "absent"."""
    path = pythons.on_path(host, env, "nvcc")
    if path is None:
        raise Unreadable(Reason("absent", "no nvcc on PATH"))
    toolkit = os.path.dirname(os.path.dirname(real(host, path)))
    try:
        version = parse_version_json(host.read(f"{toolkit}/version.json"), "cuda_nvcc")
    except Unreadable:
        version = None
    if version:
        return Toolkit(path, version, "version.json")
    return Toolkit(path, parse_nvcc(host.run("nvcc-version", [path, "--version"]).stdout), "nvcc")


def parse_nvcc(text: str) -> Optional[str]:
    """11.8.89 of "Cuda compilation tools, release 11.8, V11.8.89"."""
    found = re.search(r"release [\d.]+, V(\d[\d.]*)", text)
    return found.group(1) if found else None


# ---------------------------------------------------------------------------------------------------- libraries


def parse_library_path(text: str) -> Tuple[str, ...]:
    """Entries in order; the loader takes ":" and ";" and reads an empty entry as the working directory (ld.so(8))."""
    return tuple(re.split("[:;]", text)) if text else ()


def shadowing(host: Host, env: Dict[str, str], library_path: Tuple[str, ...]) -> List[Library]:
    """CUDA libraries that win over those that torch or the system would load."""
    preload = (entry for entry in re.split(r"[\s:]+", env.get("LD_PRELOAD", "")) if entry)
    found = [library for library in (_preloaded(host, entry) for entry in preload) if library]
    for folder in dict.fromkeys(library_path):
        if folder.startswith("/"):
            found += _in_folder(host, folder)
    return found


def _preloaded(host: Host, entry: str) -> Optional[Library]:
    match = _LIBRARY.match(os.path.basename(entry))
    if not match:
        return None
    version = version_in_name(real(host, entry)) if "/" in entry else None
    return Library(entry, match.group(1), version, "ld-preload")


def _in_folder(host: Host, folder: str) -> List[Library]:
    """One entry for each real file, under the shortest name with a version, which is the one that programs ask for."""
    files: Dict[str, Library] = {}
    found = (match for match in map(_LIBRARY.fullmatch, names(host, folder)) if match)
    for match in sorted(found, key=lambda match: (not match.group(2), len(match.group()))):
        path = os.path.join(folder, match.group())
        file = real(host, path)
        files.setdefault(file, Library(path, match.group(1), version_in_name(file), "ld-library-path"))
    return sorted(files.values(), key=lambda library: library.path)


def version_in_name(path: str) -> Optional[str]:
    """2.21.5 of libnccl.so.2.21.5; None for a name with the major version alone."""
    found = re.search(r"\.so\.(\d+\.[\d.]*\d)$", path)
    return found.group(1) if found else None


def nccls(host: Host, ask: Ask, env: Dict[str, str], library_path: Tuple[str, ...]) -> List[Library]:
    """Every libnccl that is found, by real path, in the order in which the loader would look."""
    found: Dict[str, Library] = {}
    for path, where in _nccl_paths(host, ask, env, library_path):
        if is_there(host, path) and real(host, path) not in found:
            file = real(host, path)
            found[file] = Library(file, "nccl", _nccl_version(host, file), where)
    return list(found.values())


def _nccl_paths(host: Host, ask: Ask, env: Dict[str, str], library_path: Tuple[str, ...]) -> Iterable[Tuple[str, str]]:
    """(path to try, where)"""
    for folder in dict.fromkeys(entry for entry in library_path if entry.startswith("/")):
        yield from ((os.path.join(folder, name), "ld-library-path") for name in ("libnccl.so.2", "libnccl.so"))
    yield from _beside_python(host, ask)
    yield from ((path, "ld-cache") for path in cached_libraries(host) if "/libnccl.so" in path)
    places = [*SYSTEM, *(f"{toolkit.path}/lib64" for toolkit in toolkits(host, env))]
    yield from ((f"{place}/{name}", "system") for place in places for name in ("libnccl.so.2", "libnccl.so"))


def _beside_python(host: Host, ask: Ask) -> Iterable[Tuple[str, str]]:
    """What wheels and conda put beside the examined torch."""
    try:
        python = pythons.find(host, ask)
    except Unreadable:
        return
    conda = f"{python.prefix}/lib/"
    for path in nccl_places(python, pythons.torch_dir(host, python.sites)):
        yield path, "conda" if path == f"{conda}libnccl.so.2" else "wheel"


def cached_libraries(host: Host) -> Tuple[str, ...]:
    """Paths of the libraries that concern us in the loader's cache."""
    try:
        return tuple(host.read("/etc/ld.so.cache", CACHE_LIMIT_BYTES, clean=parse_ld_cache).splitlines())
    except Unreadable:
        return ()


def parse_ld_cache(text: str) -> str:
    """The paths of CUDA, verbs and plug-in libraries in the binary ld.so.cache, one a line: all of it that is kept."""
    found = re.findall(r"/[^\0\n]+(?=\0)", text)
    return "\n".join(dict.fromkeys(path for path in found if _CACHED.match(os.path.basename(path))))


def _nccl_version(host: Host, file: str) -> Optional[str]:
    """From the file's name, the package that it belongs to, or the words that NCCL prints, which stand in the file."""
    return version_in_name(file) or _package_version(host, file) or _scanned_version(host, file)


def _package_version(host: Host, file: str) -> Optional[str]:
    """Of site-packages/nvidia/nccl/lib/libnccl.so.2 by pip's metadata, of PREFIX/lib/libnccl.so.2 by conda's."""
    site, inside, _ = file.partition("/nvidia/nccl/lib/")
    if inside:
        packages = installed_packages({site: names(host, site)})
        versions = {v for name, v in packages.items() if re.fullmatch(r"nvidia-nccl(-cu\d+)?", name)}
        return versions.pop() if len(versions) == 1 else None  # two packages write the same file: only it can tell
    prefix = os.path.dirname(os.path.dirname(file))
    return parse_conda_meta(names(host, f"{prefix}/conda-meta")).get("nccl")


def _scanned_version(host: Host, file: str) -> Optional[str]:
    """Look for "NCCL version 2.21.5+cuda12.4" in the library."""

    def work() -> Optional[str]:
        import mmap

        with open(os.path.join(host.root, file.lstrip("/")), "rb") as library:
            size = min(os.fstat(library.fileno()).st_size, SCAN_LIMIT_BYTES)
            with mmap.mmap(library.fileno(), size, access=mmap.ACCESS_READ) as content:
                at = content.find(b"NCCL version ")
                return parse_nccl_banner(content[at : at + 40].decode("ascii", "replace")) if at >= 0 else None

    try:
        answer = host.ask(f"nccl-version {file}", work, limit_s=3.0)
    except Unreadable:
        return None
    return answer if isinstance(answer, str) else None


def parse_nccl_banner(text: str) -> Optional[str]:
    """2.21.5 of "NCCL version 2.21.5+cuda12.4"."""
    found = re.match(r"NCCL version (\d+\.\d+\.\d+)", text)
    return found.group(1) if found else None

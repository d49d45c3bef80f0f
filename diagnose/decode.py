"""What error texts of torch's import and of CUDA mean, in a sentence; checks and fixes read the same tables."""

import re
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple


@dataclass(frozen=True)
class Cause:
    """What an error comes from. kind: a word for fixes to choose by; says: a clause that follows "because"."""

    kind: str
    says: str


_Rule = Tuple[str, str, str]
"""Pattern, kind, clause; {1} in the clause is the pattern's first group."""

_LIBRARY = (
    r"(?:cudart|cudnn|nccl|cublas|cusparse|cufft|curand|cusolver|cupti|nvrtc|nvJitLink|nvToolsExt|nvshmem|cufile)"
)

_IMPORT_RULES: Sequence[_Rule] = (
    (r"version `(GLIBC_[\d.]+)' not found", "glibc", "the C library of this system is older than {1}, which it needs"),
    (
        r"version `((?:GLIBCXX|CXXABI)_[\d.]+)' not found",
        "libstdcxx",
        "the libstdc++ that is found first is older than {1}, which it needs",
    ),
    (r"undefined symbol: (iJIT_\w+)", "mkl", "MKL 2024.1 or newer lacks {1}, which this torch expects from it"),
    (r"undefined symbol: (nccl\w+)", "nccl", "the libnccl that is found first lacks {1}: it is older than this torch's own"),
    (r"undefined symbol: (\w+)", "symbol", "a library that is found first does not have {1}: it is not the one of this build"),
    (r"libcuda\.so(?:\.1)?: cannot open", "libcuda", "the driver's libcuda.so.1 cannot be found here"),
    (rf"(lib{_LIBRARY}[\w.+-]*): cannot open", "cuda-library", "{1} of the CUDA libraries that it needs is missing"),
    (r"(lib[\w.+-]*\.so[\w.]*): cannot open", "library", "the library {1} is missing"),
    (r"numpy\.core\.multiarray failed|_ARRAY_API|NumPy 1\.x cannot be run|numpy\.dtype size", "numpy", "the installed numpy has another binary interface than the one that it was built for"),
    (r"static TLS block", "tls", "a library was loaded too late to get its place in thread-local memory (static TLS)"),
    (r"invalid ELF header|file too short|ELF file's phentsize", "damaged", "one of its files is damaged or cut short"),
    (r"failed to map segment|Cannot allocate memory|MemoryError", "memory", "its libraries could not be mapped: a memory limit, or a file system mounted noexec"),
    (r"No module named '?torch\._C|folder without __init__", "shadowed", "the folder called torch that Python found is not an installed torch"),
    (r"partially initialized module '?torch", "shadowed", "a file or folder called torch in the working directory hides the real one"),
    (r"No module named '?([\w.]+)", "module", "the Python package {1} that it needs is missing"),
    (r"Permission denied", "rights", "this user may not read all of its files"),
    (r"collect_env could not import", "not-told", "the report does not tell the error"),
)  # fmt: skip

_SIGNALS = {
    4: ("cpu", "this processor lacks an instruction that the build uses (signal 4, SIGILL)"),
    6: ("abort", "one of its libraries gave up (signal 6, SIGABRT)"),
    7: ("bus", "a file that it maps was cut short, or /dev/shm is full (signal 7, SIGBUS)"),
    8: ("abort", "one of its libraries divided by zero (signal 8, SIGFPE)"),
    9: ("killed", "something killed it, most often for using too much memory (signal 9, SIGKILL)"),
    11: ("segfault", "a library crashed (signal 11, SIGSEGV), most often because two builds of it are mixed"),
}

_CODE = r"(?:error|code|returned|result)\W{{0,3}}(?:{0})\b"
"""A number that stands for an error, not the line number of a source file."""

_CUDA_RULES: Sequence[_Rule] = (
    (r"interpreter died when asked", "died", "the interpreter crashed or hung when it asked CUDA"),
    (r"not compiled with CUDA", "cpu-build", "this torch was built without CUDA"),
    (r"driver on your system is too old", "driver", "the driver is too old for this CUDA build"),
    (r"found no NVIDIA driver|libcuda\.so(?:\.1)?: cannot open", "no-driver", "there is no NVIDIA driver that it could talk to"),
    (_CODE.format(802) + "|SYSTEM_NOT_READY|system not yet initialized", "fabric", "the GPUs' NVSwitch fabric is not set up (802): the fabric manager has not finished or does not run"),
    (_CODE.format(803) + "|SYSTEM_DRIVER_MISMATCH|unsupported display driver ?/ ?cuda driver", "mismatch", "libcuda and the loaded kernel module are of different versions (803)"),
    (_CODE.format(804) + "|COMPAT_NOT_SUPPORTED|forward compatibility was attempted", "compat", "a forward-compatibility libcuda is first on the path, and these GPUs may not use it (804)"),
    (_CODE.format("805|807") + "|MPS_(?:CONNECTION|SERVER)|MPS (?:client|server)", "mps", "the MPS daemon of this node does not answer (805, 807)"),
    (_CODE.format(34) + "|STUB_LIBRARY|stub library", "stub", "the libcuda that is found first is the toolkit's stub, not the driver's (34)"),
    (_CODE.format(35) + "|driver version is insufficient", "driver", "the driver is too old for this CUDA build (35)"),
    (_CODE.format(36) + "|REQUIRES_NEWER_DRIVER|not supported in the installed CUDA driver", "driver", "the driver is older than a call that this CUDA build makes (36)"),
    (_CODE.format(46) + "|DEVICE_UNAVAILABLE|busy or unavailable", "busy", "the GPUs are busy or closed to this process (46)"),
    (_CODE.format(100) + "|ERROR_NO_DEVICE|no CUDA-capable device", "no-device", "CUDA finds no GPU that it may use (100)"),
    (_CODE.format(101) + "|INVALID_DEVICE|invalid device ordinal", "ordinal", "CUDA_VISIBLE_DEVICES or the code names a GPU that is not there (101)"),
    (_CODE.format(304) + "|OS call failed", "rights", "the driver's devices /dev/nvidia* cannot be opened (304)"),
    (_CODE.format(999) + "|ERROR_UNKNOWN|CUDA unknown error", "unknown", "the driver failed inside (999): most often nvidia_uvm is not loaded or was left broken by a suspend"),
    (_CODE.format(2) + "|out of memory", "memory", "the GPU has no memory left for a context (2)"),
    (_CODE.format(3) + "|initialization error|forked subprocess", "fork", "CUDA was started before a fork, or cannot start (3)"),
    (r"No CUDA GPUs are available", "no-device", "CUDA finds no GPU that it may use"),
)  # fmt: skip


def import_failure(failure: Optional[str], text: str) -> Cause:
    """Why ``import torch`` failed: facts' ``import_failure`` and ``import_error``."""
    if failure == "timed-out":
        return Cause("slow", "it did not end in the time given to it: a slow or hanging file system, most often")
    if failure == "could-not-start":
        return Cause("interpreter", "the Python interpreter could not be started")
    if failure == "signal":
        number = re.search(r"signal (\d{1,9})", text)
        return Cause(*_SIGNALS.get(int(number.group(1)) if number else 0, ("signal", "a signal ended it")))
    return _first(_IMPORT_RULES, text) or Cause("other", "its own code raised an error")


def cuda_failure(text: Optional[str], visible_devices: Optional[str], init_code: Optional[int] = None) -> Cause:
    """Why torch cannot use CUDA: what it said, CUDA_VISIBLE_DEVICES as set (None: not set), what cuInit returned."""
    found = _first(_CUDA_RULES, f"error {init_code}") if init_code else None
    found = found or _first(_CUDA_RULES, text or "")
    if (found is None or found.kind == "no-device") and visible_devices is not None and not _names_one(visible_devices):
        return Cause("hidden", f'CUDA_VISIBLE_DEVICES="{visible_devices}" hides every GPU')
    version = re.search(r"found version (\d{1,9})", text or "")
    if version:
        return Cause("driver", f"the driver supports CUDA {_cuda_version(int(version.group(1)))} at most")
    return found or Cause("other", "CUDA gave no reason")


def _names_one(visible_devices: str) -> bool:
    return re.match(r"\s*(\d|GPU-|MIG-)", visible_devices) is not None


def _cuda_version(number: int) -> str:
    """11040 -> 11.4, as cudaDriverGetVersion counts (1000 x major + 10 x minor)."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _first(rules: Sequence[_Rule], text: str) -> Optional[Cause]:
    for pattern, kind, clause in rules:
        found = re.search(pattern, text, re.IGNORECASE)
        if found:
            return Cause(kind, clause.replace("{1}", found.group(1) if found.re.groups and found.group(1) else ""))
    return None

"""The probe: run *by the examined interpreter* as ``python -B - LIMIT_S < probe.py``. It imports torch and tells.

Python 3.6 and later, standard library and torch alone. Each answer is one line, MARK and a JSON object, on the
original standard output, written as soon as it is known: what was told stays told when a later step crashes or
hangs. Everything else that is printed goes to standard error. It makes no CUDA context and writes no file.
"""

import sys

if __name__ == "__main__" and sys.path and sys.path[0] == "":
    del sys.path[0]  # the working directory may hold a torch.py, or a json.py

import ctypes
import faulthandler
import importlib
import json
import os
import platform
import time
import warnings
from typing import Any, Callable, List, Optional, Tuple

MARK = "ddp-doctor-probe:"
EXIT_LIMIT_S = 5.0
"""Time for torch's own clean-up after the last answer."""
TEXT_LIMIT = 4000
"""Characters kept of an error's text."""


def main(limit_s: float) -> None:
    """Answer everything within ``limit_s`` seconds; past it, show where it hangs on standard error and end."""
    out = os.dup(1)
    os.dup2(2, 1)
    faulthandler.enable(2)
    faulthandler.dump_traceback_later(limit_s, exit=True, file=2)
    answer(out, python_version=platform.python_version())
    torch = _import(out)
    if torch is not None:
        for name, look in LOOKS:
            _look(out, name, look, torch)
    faulthandler.dump_traceback_later(EXIT_LIMIT_S, exit=True, file=2)


def answer(out: int, **facts: Any) -> None:
    """Write one answer."""
    line = "\n" + MARK + json.dumps(facts) + "\n"
    os.write(out, line.encode("ascii"))


def _import(out: int) -> Any:
    """The torch module, or None after the failure was told."""
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)  # CUDA itself is to be asked, not NVML
    start = time.perf_counter()
    try:
        torch = importlib.import_module("torch")
        if not getattr(torch, "__file__", None):
            raise ImportError(f"{list(torch.__path__)} is a folder without __init__.py, not PyTorch")
        importlib.import_module("torch.version")
    except BaseException as error:  # noqa: BLE001  SystemExit in a package's __init__ is an answer too
        answer(out, imported=False, import_failure="exception", import_error=said(error))
        return None
    answer(out, imported=True, import_s=round(time.perf_counter() - start, 3))
    return torch


def _look(out: int, name: str, look: Callable[[Any], Any], torch: Any) -> None:
    try:
        answer(out, **{name: look(torch)})
    except BaseException as error:  # noqa: BLE001  one question that fails must not hide the others
        answer(out, errors={name: said(error)})


def said(error: BaseException) -> str:
    """ "ImportError: libcudnn.so.8: cannot open shared object file", as UTF-8 can carry it."""
    text = f"{type(error).__name__}: {error}"
    return text[-TEXT_LIMIT:].encode("utf-8", "backslashreplace").decode("utf-8")


def version(torch: Any) -> str:
    """2.13.0+cpu"""
    return str(torch.__version__)


def path(torch: Any) -> str:
    """Folder of the package."""
    return os.path.dirname(os.path.abspath(str(torch.__file__)))


def build(name: str) -> Callable[[Any], str]:
    """A field of torch.version; "" when this build has none."""
    return lambda torch: str(getattr(torch.version, name, None) or "")


def arch_list(torch: Any) -> List[str]:
    """sm_70 ...; torch.cuda.get_arch_list() answers nothing while no GPU is seen, what lies below it does."""
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return str((flags() if flags else "") or "").split()


def nccl(torch: Any) -> str:
    """2.10.3; "" for a torch without NCCL. Old versions answer one number: 2708, 21003."""
    if not hasattr(torch._C, "_nccl_version"):
        return ""
    found = importlib.import_module("torch.cuda.nccl").version()
    if isinstance(found, int):
        return nccl_number(found)
    return ".".join(str(part) for part in found if part != "")


def nccl_number(number: int) -> str:
    """NCCL_VERSION_CODE of nccl.h: 1000, 100, 1 until 2.8, then 10000, 100, 1."""
    return _dotted(number, 1000 if number < 10000 else 10000)


def _dotted(number: int, major: int) -> str:
    return f"{number // major}.{number % major // 100}.{number % 100}"


def nccl_loaded(_torch: Any) -> List[List[Optional[str]]]:
    """[path, version] of each libnccl that is mapped into this process."""
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").split(None, 5)[-1] for line in maps if "/libnccl.so" in line}
    return [[p.encode("utf-8", "backslashreplace").decode("utf-8"), _nccl_version(p)] for p in sorted(paths)]


def _nccl_version(library: str) -> Optional[str]:
    """What the mapped library itself says; no second copy is loaded."""
    number = ctypes.c_int()
    try:
        handle = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return nccl_number(number.value) if handle.ncclGetVersion(ctypes.byref(number)) == 0 else None
    except (OSError, AttributeError):
        return None


def cudnn(torch: Any) -> str:
    """8.3.2; "" for a torch without cuDNN. cudnn.h: 1000, 100, 1 until 8, then 10000, 100, 1."""
    number = torch.backends.cudnn.version()
    if not number:
        return ""
    return _dotted(number, 1000 if number < 90000 else 10000)


def distributed(torch: Any) -> bool:
    """torch.distributed.is_available()"""
    return bool(importlib.import_module("torch.distributed").is_available())


def backends(torch: Any) -> List[str]:
    """Backends that this torch was built with."""
    dist = importlib.import_module("torch.distributed")
    if not dist.is_available():
        return []
    return [name for name in ("gloo", "nccl", "mpi", "ucc", "xccl") if _has_backend(dist, name)]


def _has_backend(dist: Any, name: str) -> bool:
    asked = getattr(dist, f"is_{name}_available", None)
    if asked is not None:
        return bool(asked())
    return hasattr(dist, "ProcessGroup" + {"gloo": "Gloo", "nccl": "NCCL"}.get(name, name.upper()))


def cuda_available(torch: Any) -> bool:
    """Can CUDA be used? What it warns of is kept for ``cuda_error``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
    _warnings.extend(str(warning.message) for warning in caught)
    return available


_warnings: List[str] = []


def cuda_device_count(torch: Any) -> int:
    """GPUs that CUDA shows to this process."""
    asked = getattr(torch._C, "_cuda_getDeviceCount", None)  # device_count() asks NVML
    count = asked or torch.cuda.device_count
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return int(count())


def cuda_error(torch: Any) -> Optional[str]:
    """Why CUDA is not available: is_available() swallows it. None when it is."""
    if torch.cuda.is_available():
        return None
    try:
        torch.cuda.init()
    except BaseException as error:  # noqa: BLE001
        return (str(error).strip() or type(error).__name__)[:TEXT_LIMIT] if not _warnings else _warnings[0]
    return _warnings[0] if _warnings else "torch.cuda.init() raises nothing, yet CUDA is not available"


def cuda_init_code(torch: Any) -> Optional[int]:
    """cuInit's answer when CUDA is not available; it makes no context. None without a driver library."""
    if torch.version.cuda is None or torch.cuda.is_available():
        return None
    try:
        return int(ctypes.CDLL("libcuda.so.1").cuInit(0))
    except OSError:
        return None


LOOKS: Tuple[Tuple[str, Callable[[Any], Any]], ...] = (
    ("version", version),
    ("cuda", build("cuda")),
    ("hip", build("hip")),
    ("git", build("git_version")),
    ("path", path),
    ("arch_list", arch_list),
    ("nccl", nccl),
    ("nccl_loaded", nccl_loaded),
    ("distributed", distributed),
    ("backends", backends),
    ("cudnn", cudnn),
    ("cuda_available", cuda_available),
    ("cuda_device_count", cuda_device_count),
    ("cuda_error", cuda_error),
    ("cuda_init_code", cuda_init_code),
)
"""What is asked, in order: what may crash or hang stands last."""

if __name__ == "__main__":
    main(float(sys.argv[1]))

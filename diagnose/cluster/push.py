"""--push: the node side travels over the ssh connection, so that nothing has to be installed on the nodes.

One archive of the modules that may run on a node (DESIGN 3: standard library alone) and of the pure Python libraries that
they would use, distro and pynvml. The node's own Python takes it into memory and leaves nothing behind.
"""

import importlib.util
import io
import os
import zipfile
from typing import Iterator, List, Optional, Tuple

PACKAGES = ("ddp_doctor", "ddp_doctor.collect", "ddp_doctor.bench")
"""What may run on a node, and what it imports; the engine's modules beside it are small, and stay unused."""
LIBRARIES = ("distro", "pynvml")
PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(15, 7, -1)), "/usr/libexec/platform-python")
"""Tried in this order: the first of Python 3.8 or newer is taken. The last is that of Red Hat's own tools."""
TOO_OLD = "no Python 3.8 or newer there"

_BOOT = """
import sys
sys.path[:] = [p for p in sys.path if p]
import os, tempfile
stdin = os.fdopen(os.dup(0), 'rb', 0)
def take(n):
    held = b''
    while len(held) < n:
        more = stdin.read(n - len(held))
        if not more: os._exit(1)
        held += more
    return held
size = int(take(12))
file = os.fdopen(os.memfd_create('ddp-doctor'), 'w+b', 0) if hasattr(os, 'memfd_create') else tempfile.TemporaryFile(buffering=0)
held = take(size)
while held: held = held[file.write(held):]
sys.path.insert(0, '/proc/self/fd/%d' % file.fileno())
sys.dont_write_bytecode = True
from ddp_doctor import node
node.main()
"""


def command() -> str:
    """The command line for a login shell: the first fitting Python runs what comes through its standard input."""
    boot = "".join(line + "\n" for line in _BOOT.strip().splitlines())
    tries = " ".join(PYTHONS)
    script = (
        f'for p in {tries}; do "$p" -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null '
        f'</dev/null && exec "$p" -c "$1"; done; echo "{TOO_OLD}" >&2; exit 127'
    )
    return f"exec sh -c {_quoted(script)} sh {_quoted(boot)}"


def _quoted(text: str) -> str:
    """For any login shell: bash, dash, zsh, and csh, which takes no line break within quotes."""
    if "'" not in text and "\n" not in text and "!" not in text:
        return f"'{text}'"
    import base64

    packed = base64.b64encode(text.encode()).decode()
    return f"'import base64; exec(base64.b64decode(\"{packed}\"))'"


def archive() -> bytes:
    """Length, in twelve digits, and the modules as a zip file."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, path in sorted(_files()):
            with open(path, "rb") as source:
                file.writestr(zipfile.ZipInfo(name), source.read(), zipfile.ZIP_DEFLATED)
    data = held.getvalue()
    return f"{len(data):012d}".encode() + data


def _files() -> Iterator[Tuple[str, str]]:
    """(name in the archive, path)."""
    for package in PACKAGES:
        for folder in _folders(package):
            for name in os.listdir(folder):
                if name.endswith(".py"):
                    yield f"{package.replace('.', '/')}/{name}", os.path.join(folder, name)
    for library in LIBRARIES:
        yield from _library(library)


def _folders(package: str) -> List[str]:
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec else []


def _library(name: str) -> Iterator[Tuple[str, str]]:
    """A library's module or package; nothing where it is not installed here: then it is missing there as well."""
    spec = importlib.util.find_spec(name)
    origin: Optional[str] = spec.origin if spec else None
    for folder in spec.submodule_search_locations or () if spec else ():
        for entry in os.listdir(folder):
            if entry.endswith(".py"):
                yield f"{name}/{entry}", os.path.join(folder, entry)
        return
    if origin and origin.endswith(".py"):
        yield f"{name}.py", origin

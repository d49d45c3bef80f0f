"""Pythons: which interpreter is examined, and where it finds packages, from its files alone wherever that can be told.

The rules are those of CPython's ``getpath`` and ``site`` and of Debian's patch to them (dist-packages).
"""

import json
import os
import re
from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

PTH_LIMIT_BYTES = 2**16
"""A .pth file is a few lines."""
_LAYOUT = (
    "import sys\nif sys.path and sys.path[0] == '': del sys.path[0]\nimport json\n"
    "print('\\n' + json.dumps({'path': sys.executable, 'prefix': sys.prefix, 'sites': sys.path,"
    " 'version': '.'.join(map(str, sys.version_info[:3]))}))"
)
"""Asked of an interpreter whose files do not say (a pyenv shim, a wrapper script, an unusual build)."""


@dataclass(frozen=True)
class Python:
    """An interpreter and the folders from which it imports packages, in its order."""

    path: str
    chosen_by: str
    version: Optional[str] = None
    """3.11.7, or 3.11 where no file tells more."""
    prefix: Optional[str] = None
    sites: Tuple[str, ...] = ()


def find(host: Host, ask: Ask) -> Python:
    """The interpreter to examine: --python, else where the user is.

    An activated environment is where the user is, with torch or without, unless it was made for ddp-doctor alone
    (our own, without torch). After that python3 on PATH if it has torch, then our own interpreter.
    Raises Unreadable when there is none.
    """
    env = _env(host)
    if ask.python:
        return at(host, env, named(host, env, ask), "--python")
    own = _own(host)
    for path, chosen_by in _candidates(host, env):
        python = at(host, env, path, chosen_by)
        if torch_dir(host, python.sites) or (chosen_by != "PATH" and python.prefix != (own and own.prefix)):
            return python
    if own is None:
        raise Unreadable(Reason("absent", "no Python interpreter found: name one with --python"))
    return own


def _env(host: Host) -> Dict[str, str]:
    try:
        return host.env()
    except Unreadable:
        return {}


def named(host: Host, env: Dict[str, str], ask: Ask) -> str:
    """Path of the interpreter that --python names: a path, a command on PATH, or the folder of an environment."""
    name = ask.python or ""
    if name.startswith("~/") and env.get("HOME"):
        name = env["HOME"] + name[1:]
    if "/" not in name:
        name = on_path(host, env, name) or name
    path = os.path.normpath(os.path.join(ask.cwd or _cwd(host), name))
    return _interpreter_in(host, path) or path


def _cwd(host: Host) -> str:
    """The working directory; "/" where it cannot be told."""
    try:
        return host.link("/proc/self/cwd")
    except Unreadable:
        return "/"


def _candidates(host: Host, env: Dict[str, str]) -> List[Tuple[str, str]]:
    """(path, chosen by) in the order in which they are tried; the activated environment stands in one variable."""
    found = []
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        path = _interpreter_in(host, env[variable]) if env.get(variable) else None
        if path:
            found.append((path, f"${variable}"))
    path = on_path(host, env, "python3")
    return [*found, (path, "PATH")] if path else found


def _interpreter_in(host: Host, prefix: str) -> Optional[str]:
    paths = (f"{prefix}/bin/{name}" for name in ("python3", "python"))
    return next((path for path in paths if is_there(host, path)), None)


def on_path(host: Host, env: Dict[str, str], name: str) -> Optional[str]:
    """The first executable file ``name`` in an absolute folder of PATH."""
    for folder in env.get("PATH", "").split(":"):
        path = os.path.join(folder, name)
        if folder.startswith("/") and _is_command(host, path):
            return path
    return None


def _is_command(host: Host, path: str) -> bool:
    try:
        found = host.stat(path)
    except Unreadable:
        return False
    return found.kind == "file" and bool(found.mode & 0o111)


def is_there(host: Host, path: str) -> bool:
    """Whether ``path`` can be seen to exist."""
    try:
        return host.exists(path)
    except Unreadable:
        return False


def torch_dir(host: Host, sites: Tuple[str, ...]) -> Optional[str]:
    """The torch package that these folders give, if any."""
    for site in sites:
        if any(is_there(host, f"{site}/torch/{name}") for name in ("version.py", "__init__.py")):
            return f"{site}/torch"
    return None


def _own(host: Host) -> Optional[Python]:
    """Our own interpreter: what this process itself imports from, as it knows for sure."""

    def work() -> Dict[str, object]:
        import platform
        import sys

        sites = [path for path in sys.path if os.path.isdir(path)]
        return {"path": sys.executable, "prefix": sys.prefix, "sites": sites, "version": platform.python_version()}

    try:
        found = host.ask("own-interpreter", work)
    except Unreadable:
        return None
    return Python(found["path"], "own interpreter", found["version"], found["prefix"], tuple(found["sites"]))


def at(host: Host, env: Dict[str, str], path: str, chosen_by: str) -> Python:
    """What the files around the interpreter ``path`` tell; it is run only where they tell too little."""
    path = _behind_shim(host, env, path)
    layout = _venv(host, env, path) or _base(host, env, path)
    if layout is None:
        return _asked(host, path, chosen_by)
    version, prefix, sites = layout
    return Python(path, chosen_by, version, prefix, _with_pth(host, _pythonpath(env), sites))


def _behind_shim(host: Host, env: Dict[str, str], path: str) -> str:
    """The interpreter that a shim of pyenv starts (a slow shell script), where pyenv's files name it plainly."""
    root, inside, name = path.rpartition("/shims/")
    if not inside or not is_there(host, f"{root}/versions"):
        return path
    files = (*(f"{folder}/.python-version" for folder in _upwards(_cwd(host))), f"{root}/version")
    texts = [env.get("PYENV_VERSION", ""), *(_text(host, file) for file in files)]
    version = re.match(r"\s*([\w.-]+)", next(filter(None, texts), ""))
    behind = f"{root}/versions/{version.group(1)}/bin/{name}" if version else path
    return behind if is_there(host, behind) else path


def _upwards(folder: str) -> List[str]:
    """``folder`` and its parents, without the root."""
    parts = folder.strip("/").split("/")
    return ["/" + "/".join(parts[:n]) for n in range(len(parts), 0, -1)]


_Layout = Tuple[Optional[str], str, Tuple[str, ...]]


def _venv(host: Host, env: Dict[str, str], path: str) -> Optional[_Layout]:
    """Layout of a virtual environment: pyvenv.cfg stands beside the interpreter's folder."""
    prefix = os.path.dirname(os.path.dirname(path))
    settings = parse_pyvenv(_text(host, f"{prefix}/pyvenv.cfg"))
    version = _version_in(settings.get("version") or settings.get("version_info"))
    short = _short(version) or _only_lib(host, prefix)
    if not settings or not short:
        return None
    sites = _existing(host, (f"{prefix}/{lib}/python{short}/site-packages" for lib in ("lib", "lib64")))
    if settings.get("include-system-site-packages", "").lower() == "true":
        base = _base(host, env, os.path.join(settings.get("home", "/usr/bin"), f"python{short}"))
        sites += base[2] if base else ()
    return version or short, prefix, sites


def parse_pyvenv(text: str) -> Dict[str, str]:
    """Settings of a pyvenv.cfg, names in lower case."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _base(host: Host, env: Dict[str, str], path: str) -> Optional[_Layout]:
    """Layout of an interpreter that is no virtual environment: distribution's, conda's, pyenv's, /usr/local's."""
    file = real(host, path)
    prefix = os.path.dirname(os.path.dirname(file))
    named_short = re.search(r"python(\d\.\d+)$", os.path.basename(file))
    short = named_short.group(1) if named_short else _only_lib(host, prefix)
    libs = (f"{prefix}/{lib}/python{short}" for lib in ("lib", "lib64"))
    if not short or not any(is_there(host, f"{lib}/os.py") or is_there(host, f"{lib}/site-packages") for lib in libs):
        return None
    user = () if env.get("PYTHONNOUSERSITE") else _user_sites(env, short)
    sites = _existing(host, (*user, *_system_sites(host, prefix, short)))
    return _full_version(host, prefix, short), prefix, sites


def _user_sites(env: Dict[str, str], short: str) -> Tuple[str, ...]:
    base = env.get("PYTHONUSERBASE") or (env["HOME"] + "/.local" if env.get("HOME") else "")
    return (f"{base}/lib/python{short}/site-packages",) if base.startswith("/") else ()


def _system_sites(host: Host, prefix: str, short: str) -> Tuple[str, ...]:
    """Debian's own Python uses dist-packages; a Python of /usr/local keeps site-packages beside them."""
    if prefix != "/usr":
        return (f"{prefix}/lib/python{short}/site-packages", f"{prefix}/lib64/python{short}/site-packages")
    if is_there(host, "/usr/lib/python3/dist-packages"):
        local = f"/usr/local/lib/python{short}/dist-packages"
        return (local, "/usr/lib/python3/dist-packages", f"/usr/lib/python{short}/dist-packages")
    roots = [f"{base}/{lib}" for base in ("/usr/local", "/usr") for lib in ("lib64", "lib")]
    return tuple(f"{root}/python{short}/site-packages" for root in roots)


def _full_version(host: Host, prefix: str, short: str) -> str:
    """The patch level, where conda's records or the C headers tell it."""
    header = _text(host, f"{prefix}/include/python{short}/patchlevel.h")
    found = re.search(rf'PY_VERSION\s+"({re.escape(short)}\.\d+)', header)
    if found:
        return found.group(1)
    records = " ".join(names(host, f"{prefix}/conda-meta"))
    found = re.search(rf"(?:^| )python-({re.escape(short)}\.\d+)-", records)
    return found.group(1) if found else short


def _only_lib(host: Host, prefix: str) -> Optional[str]:
    """ "3.11" when lib/ holds the library of exactly one Python."""
    found = {m.group(1) for m in (re.fullmatch(r"python(\d\.\d+)", n) for n in names(host, f"{prefix}/lib")) if m}
    return found.pop() if len(found) == 1 else None


def _asked(host: Host, path: str, chosen_by: str) -> Python:
    """What the interpreter itself says; only its path when it says nothing sensible."""
    try:
        ran = host.run("python-layout", [path, "-B", "-c", _LAYOUT])
        said = json.loads(ran.stdout.strip().splitlines()[-1])
        sites = tuple(str(site) for site in said["sites"])
        return Python(str(said["path"]) or path, chosen_by, str(said["version"]), str(said["prefix"]), sites)
    except (Unreadable, ValueError, LookupError, TypeError):
        return Python(path, chosen_by)


def _pythonpath(env: Dict[str, str]) -> Tuple[str, ...]:
    return tuple(p for p in env.get("PYTHONPATH", "").split(":") if p.startswith("/"))


def _with_pth(host: Host, first: Tuple[str, ...], sites: Tuple[str, ...]) -> Tuple[str, ...]:
    """``first``, then each site with the folders that its .pth files add (editable installations)."""
    found = list(first)
    for site in sites:
        found.append(site)
        for name in names(host, site):
            if name.endswith(".pth"):
                found += parse_pth(_text(host, f"{site}/{name}", PTH_LIMIT_BYTES), site)
    return tuple(dict.fromkeys(found))


def parse_pth(text: str, site: str) -> List[str]:
    """Folders that a .pth file names; its "import" lines are code, which is not run."""
    lines = (line.rstrip() for line in text.splitlines())
    return [os.path.join(site, ln) for ln in lines if ln and not ln.startswith(("#", "import ", "import\t"))]


def names(host: Host, folder: str) -> Tuple[str, ...]:
    """Names in ``folder``; none where it cannot be listed."""
    try:
        return host.list(folder)
    except Unreadable:
        return ()


def _text(host: Host, path: str, limit_bytes: int = PTH_LIMIT_BYTES) -> str:
    try:
        return host.read(path, limit_bytes)
    except Unreadable:
        return ""


def _existing(host: Host, folders: Iterable[str]) -> Tuple[str, ...]:
    """Those that are there, each once (lib64 is often a link to lib)."""
    found: Dict[str, str] = {}
    for folder in folders:
        if is_there(host, folder):
            found.setdefault(real(host, folder), folder)
    return tuple(found.values())


def real(host: Host, path: str) -> str:
    """``path`` with its links resolved, or as it is where they cannot be."""
    try:
        return host.realpath(path)
    except Unreadable:
        return path


def _version_in(text: Optional[str]) -> Optional[str]:
    found = re.match(r"\d+\.\d+(\.\d+)?", text or "")
    return found.group() if found else None


def _short(version: Optional[str]) -> Optional[str]:
    return ".".join(version.split(".")[:2]) if version else None

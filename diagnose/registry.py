"""The registry: checks and fixes are found by being there, in this package and in plug-ins.

A check's id is where it stands: ``memlock_too_low`` in ``checks/limits.py`` is ``limits/memlock-too-low``; its fix is the
function of the same name in ``fixes/limits.py``. A plug-in's area is the name of its entry point.
"""

import difflib
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ddp_doctor.facts import SECTIONS
from ddp_doctor.model import Mark, Severity

JUDGED = (*SECTIONS, "reasons", "fleet", "log", "bench", "policy")
"""What a check may ask for. ``reasons``: section -> why it could not be read."""


class BadCheck(Exception):
    """A check or fix that cannot work: a parameter that nothing supplies, a docstring without its parts."""


class UnknownCheck(Exception):
    """A prefix that covers no check; the text suggests one that does."""

    def __init__(self, prefix: str, ids: List[str]) -> None:
        areas = sorted({id.split("/")[0] for id in ids})
        close = difflib.get_close_matches(prefix, [*ids, *areas], n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"areas: {', '.join(areas)}"
        super().__init__(f"no check is called {prefix!r}; {hint}")


@dataclass(frozen=True)
class Doc:
    """A check's docstring, taken apart."""

    title: str
    why: str = ""
    see: Tuple[str, ...] = ()
    no_fix: str = ""


@dataclass(frozen=True)
class Function:
    """A check or fix and what it asks for: parameter name -> is it required?"""

    id: str
    call: Callable[..., Any]
    parameters: Dict[str, bool]


@dataclass(frozen=True)
class Check(Function):
    severity: Severity
    several_nodes: bool
    doc: Doc
    fix: Optional[Function] = None


@dataclass
class Registry:
    """All checks by id, in order, and the plug-ins that could not be loaded: name -> why."""

    checks: Dict[str, Check] = field(default_factory=dict)
    failed_plugins: Dict[str, str] = field(default_factory=dict)


def load(plugins: bool = True) -> Registry:
    """Find every check and its fix. A plug-in that fails is noted and stops nothing; a fault of our own raises BadCheck."""
    registry = Registry()
    fixes = _fixes(_modules("ddp_doctor.fixes"))
    registry.checks = {check.id: check for check in _checks(_modules("ddp_doctor.checks"), fixes)}
    for name, error in _load_plugins(registry) if plugins else ():
        registry.failed_plugins[name] = error
    registry.checks = dict(sorted(registry.checks.items()))
    return registry


def _modules(package_name: str, area: str = "") -> Iterator[Tuple[str, ModuleType]]:
    """(area, module) of everything in a package; the area is the first part of the path below it.

    A module whose name begins with "_" is what others share: no checks and no fixes are looked for in it.
    """
    package = importlib.import_module(package_name)
    if not hasattr(package, "__path__"):
        yield area, package
        return
    if area:
        yield area, package
    for found in pkgutil.walk_packages(package.__path__, package_name + "."):
        parts = found.name[len(package_name) + 1 :].split(".")
        if not any(part.startswith("_") for part in parts):
            yield area or parts[0], importlib.import_module(found.name)


def _checks(modules: Iterable[Tuple[str, ModuleType]], fixes: Dict[str, Function]) -> Iterator[Check]:
    for area, module in modules:
        for name, function in _own_functions(module):
            mark = getattr(function, "__ddp_check__", None)
            if isinstance(mark, Mark):
                yield _check(_id(area, name), function, mark, fixes)


def _check(id: str, function: Callable[..., Any], mark: Mark, fixes: Dict[str, Function]) -> Check:
    doc = parse_doc(function.__doc__ or "", id)
    return Check(id, function, _parameters(id, function, JUDGED), mark.severity, mark.several_nodes, doc, fixes.get(id))


def _fixes(modules: Iterable[Tuple[str, ModuleType]]) -> Dict[str, Function]:
    """Public functions of the fix modules by id."""
    found = {}
    for area, module in modules:
        for name, function in _own_functions(module):
            id = _id(area, name)
            found[id] = Function(id, function, _parameters(id, function, (*JUDGED, "finding")))
    return found


def _own_functions(module: ModuleType) -> List[Tuple[str, Callable[..., Any]]]:
    """Public functions that the module defines (or binds by plain assignment), not those that it imports."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    ]


def _id(area: str, name: str) -> str:
    return f"{area}/{name}".replace("_", "-")


def _parameters(id: str, function: Callable[..., Any], allowed: Iterable[str]) -> Dict[str, bool]:
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.name not in allowed:
            raise BadCheck(f"{id}: nothing supplies its parameter {parameter.name!r}; known: {', '.join(allowed)}")
    return {parameter.name: parameter.default is parameter.empty for parameter in parameters}


def parse_doc(text: str, id: str) -> Doc:
    """Take a docstring apart: title line, then ``Why:``, ``See:`` and ``No fix:``. Empty (python -OO) gives the id as title."""
    lines = inspect.cleandoc(text).splitlines()
    if not lines:
        return Doc(title=id)
    parts: Dict[str, List[str]] = {}
    current: List[str] = []
    for line in lines[1:]:
        found = re.match(r"(Why|See|No fix):\s*(.*)", line)
        if found:
            current = parts.setdefault(found.group(1), [])
        current.append((found.group(2) if found else line).strip())
    texts = {name: " ".join(filter(None, body)) for name, body in parts.items()}
    see = tuple(filter(None, parts.get("See", [])))
    return Doc(lines[0].strip(), texts.get("Why", ""), see, texts.get("No fix", ""))


def _load_plugins(registry: Registry) -> Iterator[Tuple[str, str]]:
    """Add checks of other distributions; yield (name, error) for those that cannot be loaded."""
    fixes: Dict[str, Function] = {}
    for group in ("ddp_doctor.fixes", "ddp_doctor.checks"):
        for point in _entry_points(group):
            try:
                modules = list(_modules(point.value, point.name))
                if group == "ddp_doctor.fixes":
                    fixes.update(_fixes(modules))
                    continue
                found = {check.id: check for check in _checks(modules, fixes)}
                clash = sorted(set(found) & set(registry.checks))
                if clash:
                    raise BadCheck(f"its check {clash[0]} is there already")
                registry.checks.update(found)
            except (Exception, SystemExit) as error:  # noqa: BLE001  a stranger's code may raise anything at import
                yield f"{point.name} ({point.value})", f"{type(error).__name__}: {error}"


def _entry_points(group: str) -> List[Any]:
    from importlib import metadata

    found: Any = metadata.entry_points()
    points = found.select(group=group) if hasattr(found, "select") else found.get(group, ())
    distinct = {
        (point.name, point.value): point for point in points
    }  # before Python 3.10 a distribution may be found twice
    return [distinct[key] for key in sorted(distinct)]


def select(registry: Registry, chosen: Iterable[str] = (), ignored: Iterable[str] = ()) -> List[Check]:
    """Checks whose id begins with one of ``chosen`` (all when empty) and with none of ``ignored``: the longest prefix wins."""
    chosen, ignored = tuple(chosen), tuple(ignored)

    def wanted(id: str) -> bool:
        inside = max((len(p) for p in chosen if _covers(p, id)), default=0 if not chosen else -1)
        outside = max((len(p) for p in ignored if _covers(p, id)), default=-1)
        return inside > outside or (inside == outside == 0)

    return [check for id, check in registry.checks.items() if wanted(id)]


def chosen(registry: Registry, selected: Iterable[str], ignored: Iterable[str]) -> List[Check]:
    """Like ``select``, for what a person wrote: a prefix that covers no check raises UnknownCheck."""
    selected, ignored = tuple(selected), tuple(ignored)
    for prefix in (*selected, *ignored):
        if not select(registry, [prefix]):
            raise UnknownCheck(prefix, list(registry.checks))
    return select(registry, selected, ignored)


def _covers(prefix: str, id: str) -> bool:
    """Is ``prefix`` the id, its area, or the beginning of its words?"""
    return (
        id == prefix
        or id.startswith((prefix.rstrip("/") + "/", prefix + "-"))
        or (prefix.endswith("*") and id.startswith(prefix[:-1]))
    )

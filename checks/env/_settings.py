"""What the checks of the environment share: which variables are judged, and how they are said."""

import re
from typing import Callable, Iterable, Iterator, List, Optional

from ddp_doctor import nccl, redact, variables
from ddp_doctor.facts import Env, Torch, Variable
from ddp_doctor.model import Reading, known
from ddp_doctor.tables import Setting

NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

Fault = Callable[[Variable, Setting], Optional[Reading]]

_NOT_A_VALUE = re.compile(r"\$|\{\{|^<.*>$")
"""What a shell, a template or a reader is to replace: its value is not known."""


def all_of(env: Env) -> List[Variable]:
    """The variables that are judged: of each name the value in force, and in a file of another kind every one.

    A script may set a name on several lines; of NCCL's own sources the first wins, and those that lose are judged by
    ``env/conf-file-overridden``.
    """
    found = known(env.variables, env, "variables")
    files = tuple(f"{path}:" for path in env.nccl_conf_files or ())
    seen = set()
    kept = []
    for variable in found:
        live = variable.source == "environment" or variable.source.startswith(files)
        key = (variable.name, "" if live else variable.value)
        if key not in seen and is_value(variable.value):
            kept.append(variable)
        seen.add(key)
    return kept


def is_value(text: str) -> bool:
    """Is it the value itself, neither hidden nor still to be filled in?"""
    return redact.HIDDEN not in text and not _NOT_A_VALUE.search(text)


def one(env: Env, name: str) -> Optional[Variable]:
    """The variable of this name in force, where its value is known and not empty (which NCCL takes for unset)."""
    found = next((v for v in known(env.variables, env, "variables") if v.name == name), None)
    return found if found is not None and found.value and is_value(found.value) else None


def number(env: Env, name: str) -> Optional[int]:
    """The variable of this name as NCCL reads it; None where it is not set."""
    found = one(env, name)
    return None if found is None else nccl.integer(found.value)


def said(variable: Variable) -> str:
    """NCCL_DEBUG=INFO, and where it stands if not in the environment: "NCCL_DEBUG=INFO (/etc/nccl.conf:3)"."""
    return f"{variable.name}={variable.value}{where(variable)}"


def where(variable: Variable) -> str:
    return "" if variable.source == "environment" else f" ({variable.source})"


def faults_or_pass(looked_at: Iterable[Variable], faults: Iterable[Optional[Reading]]) -> Iterator[Reading]:
    """The faults; where there are none, one passed reading that names what was looked at; nothing where nothing was."""
    found = [fault for fault in faults if fault is not None]
    yield from found
    names = sorted({variable.name for variable in looked_at})
    if names and not found:
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        yield Reading(ok=True, measured=", ".join(names[:6]) + more)


def in_table(env: Env, concerns: Callable[[Setting], bool], fault: Fault) -> Iterator[Reading]:
    """Readings of the variables that the table knows and that the check is about."""
    pairs = [(variable, variables.find(variable.name)) for variable in all_of(env)]
    known_ones = [(variable, setting) for variable, setting in pairs if setting is not None and concerns(setting)]
    yield from faults_or_pass((v for v, _ in known_ones), (fault(v, s) for v, s in known_ones))


def has_cloud_stack(env: Env) -> bool:
    """Does a cloud's own network stack set these variables? Then what looks forced is part of its tuning."""
    return any(variables.is_cloud_stack(variable.name) for variable in env.variables or ())


def is_rocm(torch: Optional[Torch]) -> bool:
    """RCCL reads most of NCCL's names, by versions of its own."""
    return torch is not None and bool(torch.hip)

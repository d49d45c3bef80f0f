"""NCCL's configuration files: what they set, what of it has an effect, and lines that NCCL reads otherwise than meant."""

import re
from typing import Dict, Iterator, List, Sequence

from ddp_doctor.checks.env._settings import one, said
from ddp_doctor.facts import Env, Variable
from ddp_doctor.model import Reading, Severity, check, known


@check(Severity.NOTE)
def conf_file_overridden(env: Env) -> Iterator[Reading]:
    """A value in an nccl.conf file has no effect because another one wins.

    Why: NCCL reads the environment first, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf, and keeps the first value.
        Someone who changes the file and sees no change looks here.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    No fix: which of the two values is meant is the user's to say.
    """
    for name, values in _by_name(known(env.variables, env, "variables")).items():
        losers = [v for v in values[1:] if v.value != values[0].value]
        if env.nccl_conf_files != () and any(variable.source != "environment" for variable in values):
            yield Reading(
                ok=not losers,
                subject=name,
                measured="; ".join(f"{v.source}: {v.value}" for v in values),
                expected="one value",
                message=f"{name}: {values[0].source} wins over {', '.join(v.source for v in losers)}",
            )


def _by_name(variables: Sequence[Variable]) -> Dict[str, List[Variable]]:
    found: Dict[str, List[Variable]] = {}
    for variable in variables:
        found.setdefault(variable.name, []).append(variable)
    return found


@check(Severity.NOTE)
def settings_in_files(env: Env) -> Iterator[Reading]:
    """NCCL takes settings from a file, which the environment does not show.

    Why: /etc/nccl.conf, ~/.nccl.conf and the file that NCCL_CONF_FILE names hold for every job here. Who compares nodes by their
        environment does not see them; nodes with different files behave differently.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    No fix: a site may want them; they should be the same on all nodes.
    """
    for path in known(env.nccl_conf_files, env, "nccl_conf_files"):
        found = [v for v in env.variables or () if _is_from(v, path)]
        yield Reading(
            ok=not found,
            subject=path,
            measured=", ".join(f"{v.name}={v.value}" for v in found) or "sets nothing",
            expected="known to those who look at the environment",
            message=f"{path} sets {', '.join(v.name for v in found)} for every job on this node",
        )


def _is_from(variable: Variable, path: str) -> bool:
    return re.fullmatch(re.escape(path) + r":\d+", variable.source) is not None


@check(Severity.WARNING)
def conf_line_misread(env: Env) -> Iterator[Reading]:
    """A line of an nccl.conf file means something else to NCCL than it seems to.

    Why: NCCL takes everything before the first "=" for the name and everything after it for the value: blanks, quotes, "export",
        "~" and the end of a Windows line belong to them, so that the setting is lost or wrong.
    See: https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/misc/param.cc
    """
    for path in known(env.nccl_conf_files, env, "nccl_conf_files"):
        for variable in env.variables or ():
            if _is_from(variable, path):
                wrong = _oddities(variable)
                yield Reading(
                    ok=not wrong,
                    subject=variable.name.strip(),
                    measured=f"{variable.source}: {variable.name}={variable.value!r}" if wrong else said(variable),
                    expected="NAME=value and nothing else",
                    message=f"NCCL takes {' and '.join(wrong)} for a part of the setting",
                )


def _oddities(variable: Variable) -> List[str]:
    name, value = variable.name, variable.value
    odd = (
        ("export", name.startswith("export ")),
        ("the blank before the equals sign", name != name.rstrip()),
        ("the blank at the beginning of the line", name != name.lstrip()),
        ("the blank after the equals sign", value[:1] in (" ", "\t")),
        ("the end of a Windows line", value.endswith("\r")),
        ("the quotes", value[:1] in ("'", '"') and bool(value[1:])),
        ("the comment after the value", " #" in value),
    )
    return [words for words, found in odd if found]


@check(Severity.WARNING)
def conf_file_missing(env: Env) -> Iterator[Reading]:
    """NCCL_CONF_FILE names a file that cannot be read.

    Why: NCCL says nothing and goes on without it; it does not read ~/.nccl.conf instead, and does not know "~".
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    variable = one(env, "NCCL_CONF_FILE")
    if variable is not None and variable.source == "environment":
        reason = env.unread.get("nccl_conf_files")
        there = variable.value in (env.nccl_conf_files or ())
        if there or (reason is not None and reason.kind in ("absent", "no-rights")):
            yield Reading(
                ok=there,
                subject="NCCL_CONF_FILE",
                measured=said(variable) + ("" if there or reason is None else f": {reason.text}"),
                expected="a file that every rank can read",
                message="NCCL will go on without the settings of this file",
            )


@check(Severity.WARNING)
def tilde_not_expanded(env: Env) -> Iterator[Reading]:
    """A path for NCCL begins with "~", which NCCL does not expand.

    Why: A shell replaces "~" at the beginning of an unquoted value only; NCCL itself, files of settings and container files
        take it for the name of a folder.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-file
    """
    for name in ("NCCL_CONF_FILE", "NCCL_DEBUG_FILE", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_FILE"):
        variable = one(env, name)
        live = variable is not None and (variable.source == "environment" or _from_conf(env, variable))
        if variable is not None and live:
            yield Reading(
                ok=not variable.value.startswith("~"),
                subject=name,
                measured=said(variable),
                expected="a path from /",
                message=f"NCCL will look for a folder called {variable.value.split('/')[0]!r} in the working directory",
            )


def _from_conf(env: Env, variable: Variable) -> bool:
    return any(_is_from(variable, path) for path in env.nccl_conf_files or ())

"""Checks of the environment and of NCCL's configuration files."""

from typing import Dict, Iterator, List, Sequence

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
        if any(variable.source != "environment" for variable in values):
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

"""Taking variables away and setting them, wherever they are set."""

import re
from typing import Iterator, Optional, Tuple

from ddp_doctor.facts import Env
from ddp_doctor.model import Remedy, Step, export, say, unset


def without(env: Env, name: str, see: str = "") -> Tuple[Step, ...]:
    """Take a variable away in every place where it is set: the environment, and lines of files."""
    sources = dict.fromkeys(v.source for v in env.variables or () if v.name == name)
    live = tuple(f"{path}:" for path in env.nccl_conf_files or ())
    return tuple(
        _away(name, source, see, "this node" if source.startswith(live) else "")
        for source in sources or ("environment",)
    )


def _away(name: str, source: str, see: str, scope: str) -> Step:
    """``scope``: of a line in a file; a script or manifest is no setting of a node."""
    if source == "environment" and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return unset(name, scope="this job", see=see)
    if source == "environment":
        return say(f"Take {name!r} out of the environment.", see=see)
    text = f"Take {name} out of {source.rpartition(':')[0]}, line {source.rpartition(':')[2]}."
    return say(text, who="root" if source.startswith("/etc/") else "user", scope=scope, see=see)


def instead(env: Env, old: str, new: str, value: Optional[str], see: str = "") -> Iterator[Remedy]:
    """Set another variable in place of one; without a value the person has to say it."""
    if value is None:
        step = say(f"Set {new} if you mean it.", scope="this job", see=see)
    else:
        step = export(new, value, scope="this job", see=see)
    yield Remedy(f"Set {new} in place of {old}", (*without(env, old), step))

"""Configuration: policy values, severities and waivers from ddp-doctor.toml or pyproject.toml.

    select = ["gpu", "stack"]              # as on the command line, which wins
    ignore = ["ssh"]
    fail_on = "warning"

    [policy]                               # the fields of policy.Policy; sizes may be written "8 GiB"
    driver_minimum = "450.80.02"
    os_minimum = { centos = "8.2" }

    [severity]
    "limits/nofile-too-low" = "error"

    [[waiver]]
    check = "gpu/models-differ"
    subject = "*"
    reason = "the display card stays"
    until = 2027-03-31

In pyproject.toml the same stands below ``[tool.ddp-doctor]``. "-" and "_" in keys are the same.
"""

import datetime
import difflib
import math
import os
import re
import stat
import sys
from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ddp_doctor import given
from ddp_doctor.model import Severity
from ddp_doctor.policy import Policy, Waiver

FILE_LIMIT_BYTES = 2**20
"""A site's policy is a few kB."""
SYSTEM_FILE = "/etc/ddp-doctor.toml"
_KEYS = ("policy", "severity", "waiver", "select", "ignore", "fail_on")
_UNITS = {
    "": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


class BadConfig(Exception):
    """The configuration cannot be used; the text names file, key and what was expected."""


@dataclass(frozen=True)
class Config:
    """Everything that a person can set about judging."""

    policy: Policy = field(default_factory=Policy)
    severity: Dict[str, Severity] = field(default_factory=dict)
    select: Tuple[str, ...] = ()
    ignore: Tuple[str, ...] = ()
    fail_on: Severity = Severity.ERROR
    source: str = ""
    """The file that it came from; "" for the stock values."""


def find(explicit: Optional[str], cwd: Optional[str]) -> Optional[str]:
    """The file to use: --config, else the working directory's, else the system's. Root takes only files that are its own."""
    if explicit is not None:
        return explicit
    for path in filter(_may_use, _here(cwd)):
        return path
    return SYSTEM_FILE if os.path.isfile(SYSTEM_FILE) else None


def passed_over(explicit: Optional[str], cwd: Optional[str]) -> List[str]:
    """Sentences about files of the working directory that would have been used by anybody but root."""
    distrusted = [path for path in _here(cwd) if not _may_use(path)] if explicit is None else []
    return [
        f"{path} is not used: root takes only a file that root owns and nobody else can write" for path in distrusted
    ]


def _here(cwd: Optional[str]) -> List[str]:
    """Configuration files in the working directory, the first that counts first."""
    own, shared = (os.path.join(cwd or "", name) for name in ("ddp-doctor.toml", "pyproject.toml"))
    candidates = [own] if cwd and os.path.isfile(own) else []
    return candidates + ([shared] if cwd and os.path.isfile(shared) and _section(shared) else [])


def _may_use(path: str) -> bool:
    """Root runs in other people's directories: only a file that root owns, and nobody else can write, speaks for root."""
    if os.geteuid() != 0:
        return True
    found = os.stat(path)
    return found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _section(path: str) -> bool:
    try:
        return bool(_table(path))
    except BadConfig:
        return False


def load(path: Optional[str]) -> Config:
    """Read a configuration file; the stock configuration when ``path`` is None. Raises BadConfig."""
    if path is None:
        return Config()
    table = _table(path)
    _refuse_unknown(path, "", table, _KEYS)
    severity = _mapping(path, "severity", table.get("severity", {}))
    waivers = tuple(_waiver(path, entry) for entry in _list(path, "waiver", table.get("waiver", [])))
    return Config(
        policy=replace(_policy(path, _mapping(path, "policy", table.get("policy", {}))), waivers=waivers),
        severity={id: _severity(path, f"severity.{id}", value) for id, value in severity.items()},
        select=_prefixes(path, "select", table.get("select", [])),
        ignore=_prefixes(path, "ignore", table.get("ignore", [])),
        fail_on=_severity(path, "fail_on", table.get("fail_on", Severity.ERROR)),
        source=path,
    )


def _table(path: str) -> Dict[str, Any]:
    """The file's own table, with "-" in keys of ours made "_"."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(given.content(path, FILE_LIMIT_BYTES).decode("utf-8"))
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of a number with too many digits
        raise BadConfig(f"{path}: not valid TOML: {error}") from None
    if os.path.basename(path) == "pyproject.toml":
        table = _mapping(path, "tool", table.get("tool", {}))
        table = _mapping(path, "tool.ddp-doctor", table.get("ddp-doctor", {}))
    return {key.replace("-", "_"): value for key, value in table.items()}


def _refuse_unknown(path: str, place: str, table: Dict[str, Any], allowed: Iterable[str]) -> None:
    for key in table:
        if key not in allowed:
            raise BadConfig(f"{path}: unknown key {place + key!r}{_suggestion(key, allowed)}")


def refuse_unknown_checks(config: Config, check_ids: Iterable[str]) -> None:
    """Raise BadConfig for a severity or waiver of a check that does not exist."""
    ids = list(check_ids)
    named = [("severity", id) for id in config.severity] + [("waiver", w.check) for w in config.policy.waivers]
    for place, id in named:
        if id not in ids:
            raise BadConfig(f"{config.source}: {place}: no check is called {id!r}{_suggestion(id, ids)}")


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "; ddp-doctor checks lists them" if "/" in word else ""


def _mapping(path: str, key: str, value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise BadConfig(f"{path}: {key}: expected a table, found {type(value).__name__}")
    return value


def _list(path: str, key: str, value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise BadConfig(f"{path}: {key}: expected a list, found {type(value).__name__}")
    return value


def _prefixes(path: str, key: str, value: Any) -> Tuple[str, ...]:
    if not all(isinstance(entry, str) for entry in _list(path, key, value)):
        raise BadConfig(f"{path}: {key}: expected a list of check ids or areas")
    return tuple(value)


def _severity(path: str, key: str, value: Any) -> Severity:
    try:
        return Severity(value)
    except ValueError:
        raise BadConfig(f"{path}: {key}: {value!r} is no severity: note, warning or error") from None


def _policy(path: str, table: Dict[str, Any]) -> Policy:
    import msgspec

    names = [f.name for f in fields(Policy) if f.name not in ("waivers", "today", "collected_on", "examined")]
    values = {key.replace("-", "_"): value for key, value in table.items()}
    _refuse_unknown(path, "policy.", values, names)
    for name in (name for name in values if name.endswith("_bytes")):
        values[name] = _bytes(path, name, values[name])
    try:
        policy = msgspec.convert(values, Policy)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: policy: {str(error).replace('$.', '')}") from None
    return checked(path, policy)


def checked(path: str, policy: Policy) -> Policy:
    """Refuse values that no rule could use."""
    for name, allowed in CHOICES.items():
        if getattr(policy, name) not in (None, *allowed):
            raise BadConfig(f"{path}: policy.{name}: {getattr(policy, name)!r} is none of {', '.join(allowed)}")
    for field_ in fields(Policy):
        value = getattr(policy, field_.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadConfig(f"{path}: policy.{field_.name}: {value} is no quantity that anything could be held against")
    from ddp_doctor.facts import SECTIONS

    for name in policy.require:
        if name not in SECTIONS:
            raise BadConfig(f"{path}: policy.require: unknown section {name!r}{_suggestion(name, SECTIONS)}")
    return policy


CHOICES = {
    "launcher": ("torchrun", "slurm", "ssh", "mpirun", "deepspeed", "kubernetes"),
    "scope": ("node", "job", "user"),
    "mig": ("allowed", "forbidden", "required"),
}


def _bytes(path: str, name: str, value: Any) -> int:
    """8589934592, "8 GiB" or "unlimited"."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value == "unlimited":
        return 2**63 - 1
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if not found or found.group(2).lower() not in _UNITS:
        raise BadConfig(f'{path}: policy.{name}: {value!r} is no size; write bytes or, for example, "8 GiB"')
    return int(float(found.group(1)) * _UNITS[found.group(2).lower()])


def _waiver(path: str, entry: Any) -> Waiver:
    entry = _mapping(path, "waiver", entry)
    _refuse_unknown(path, "waiver.", entry, ("check", "subject", "reason", "until"))
    for key in ("check", "reason"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise BadConfig(f"{path}: waiver: {key!r} is missing; a waiver names its check and its reason")
    return Waiver(entry["check"], entry["reason"], str(entry.get("subject", "*")), _day(path, entry.get("until")))


def _day(path: str, value: Any) -> Optional[datetime.date]:
    """A TOML date, or its text."""
    if value is None or (isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)):
        return value
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise BadConfig(f"{path}: waiver.until: {value!r} is no day; write 2027-03-31") from None

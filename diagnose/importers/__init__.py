"""Importers: reports of other tools, which users have already, read as facts.

An importer is a module here, found by being here, with three names: ``TITLE`` ("a collect_env report"),
``recognises(text) -> bool`` and ``facts(text, name) -> NodeFacts``, which raises BadReport where the text is one of its
kind and cannot be used. Text arrives decoded, with terminal escapes and carriage returns taken out.
"""

import importlib
import pkgutil
import re
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any, Dict, Iterable, Optional, Tuple, Type, TypeVar

from ddp_doctor.facts import NodeFacts, Reason, Unread

T = TypeVar("T")

LIMIT_BYTES = 64 * 2**20
"""Such reports are some kilobytes, nvidia-smi's XML of 16 GPUs 1 MB; a log around one may be long."""


class BadReport(Exception):
    """The report cannot be used; the text says why."""


@lru_cache(maxsize=None)
def importers() -> Tuple[Any, ...]:
    """The modules of this folder; one whose name begins with "_" is part of another."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)


def facts(content: bytes, name: str) -> Optional[NodeFacts]:
    """Facts of the node ``name`` from another tool's report; None where nobody here knows it. Raises BadReport."""
    if len(content) > LIMIT_BYTES:
        return None
    text = cleaned(decoded(content))
    found = next((importer for importer in importers() if importer.recognises(text)), None)
    return found.facts(text, name) if found else None


def titles() -> str:
    """What can be read: "a collect_env report"."""
    return ", ".join(importer.TITLE for importer in importers())


def decoded(content: bytes) -> str:
    """Text of a file: UTF-8, or UTF-16 with a byte order mark as PowerShell's ``>`` writes it."""
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return content.decode("utf-16" if utf16 else "utf-8-sig", "replace" if utf16 else "backslashreplace")


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
"""Control sequences, operating system commands and two-character escapes of ECMA-48."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def cleaned(text: str) -> str:
    """``text`` as a terminal would show it, without colours; every line ends in a line feed alone."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def section(kind: Type[T], reason: Reason, unread: Unread, silent: Iterable[str] = (), **known: Any) -> T:
    """A section of facts with a reason for everything that is not known: its own in ``unread``, else ``reason``.

    silent: fields in which None says that nothing went wrong.
    """
    optional = (f.name for f in fields(kind) if f.default is None)  # type: ignore[arg-type]
    missing = {name: unread.get(name, reason) for name in optional if known.get(name) is None}
    reasons: Dict[str, Reason] = {name: why for name, why in missing.items() if name not in silent}
    required = {f.name for f in fields(kind) if f.default is MISSING}  # type: ignore[arg-type]
    given = {name: value for name, value in known.items() if value is not None or name in required}
    make: Any = kind
    return make(unread=reasons, **given)  # type: ignore[no-any-return]

"""Linting: environment variables that files set, read as facts and judged by the checks of the environment.

A format is a module here, found by being here, with ``TITLE`` ("a Dockerfile"), ``recognises(name, text) -> int`` (0: no,
3: by the file's name; the highest wins) and ``variables(text) -> Iterator[Found or Problem]``. ``NCCL_CONF = True`` says
that NCCL itself reads the file. Nothing of a file is run or expanded: a value with "$" in it is not known, not judged.
"""

import importlib
import pkgutil
from functools import lru_cache
from typing import Any, NamedTuple, Tuple, Union


class Found(NamedTuple):
    """A variable that a file sets."""

    line: int
    name: str
    value: str
    scope: str = ""
    """Whose environment it belongs to where a file has several: a container, a service; "" for the file's own."""


class Problem(NamedTuple):
    """Something about a line that the reader of a report should know; never with a value in it."""

    line: int
    text: str
    kind: str = "unreadable"
    """unreadable: it was not judged. misread: it means something else to the program that reads it than it seems."""


Item = Union[Found, Problem]


@lru_cache(maxsize=None)
def formats() -> Tuple[Any, ...]:
    """The modules of this folder."""
    return tuple(importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))


def format_of(name: str, text: str) -> Any:
    """The format that knows this file best; ``name`` is without its folder."""
    return max(formats(), key=lambda module: module.recognises(name, text))

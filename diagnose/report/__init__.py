"""Reports print; they decide nothing. A format is a module of this package with ``render(report, options) -> str``,
found by being there; modules whose names begin with an underscore are shared by formats."""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Tuple

from ddp_doctor.model import Report, Severity


@dataclass(frozen=True)
class Options:
    """How a report is written.

    width: of the terminal, in columns. colour: ANSI colours may be used. verbose: passed and skipped checks one by one.
    encoding: of the output; what it cannot carry is written as an escape. fail_on: the severity from which JUnit
    calls a finding a failure.
    """

    width: int = 100
    colour: bool = False
    verbose: bool = False
    encoding: str = "utf-8"
    fail_on: Severity = Severity.ERROR


class UnknownFormat(Exception):
    """No such report format; the text names those that there are."""


def formats() -> Tuple[str, ...]:
    """Names of the report formats, in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def render(name: str, report: Report, options: Options = Options()) -> str:
    """Return ``report`` in the format ``name``, ending with a line end. Raises UnknownFormat."""
    if name not in formats():
        raise UnknownFormat(f"no report format {name!r}; there are: {', '.join(formats())}")
    text: str = importlib.import_module(f"{__name__}.{name}").render(report, options)
    return text

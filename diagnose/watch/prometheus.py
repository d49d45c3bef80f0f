"""Samples as a text file for node_exporter's textfile collector.

Names, units and escapes as Prometheus' conventions and its text format have them: base units, ``_total`` for counters,
https://prometheus.io/docs/practices/naming/ and https://prometheus.io/docs/instrumenting/exposition_formats/. The file is
written beside its place and renamed, so that the exporter never reads half of one.
"""

import contextlib
import os
import re
import stat
import tempfile
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

PREFIX = "ddp_doctor"
SUFFIX = ".prom"
"""node_exporter reads no other names (https://github.com/prometheus/node_exporter#textfile-collector)."""
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_]")


class Family(NamedTuple):
    """A metric: ``name`` without the prefix, its kind (gauge or counter) and what it says."""

    name: str
    kind: str
    help: str


class Sample(NamedTuple):
    family: Family
    labels: Tuple[Tuple[str, str], ...]
    value: float


def render(samples: Iterable[Sample]) -> str:
    """The text: every family once with HELP and TYPE, its samples below it, in order."""
    families: Dict[str, List[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.family.name, []).append(sample)
    return "".join(line + "\n" for name in sorted(families) for line in _family(families[name]))


def _family(samples: List[Sample]) -> Iterator[str]:
    family = samples[0].family
    name = f"{PREFIX}_{_FORBIDDEN.sub('_', family.name)}"
    yield f"# HELP {name} {_escaped(family.help, quotes=False)}"
    yield f"# TYPE {name} {family.kind}"
    for labels, value in sorted({sample.labels: sample.value for sample in samples}.items()):
        yield f"{name}{_labels(dict(labels))} {_number(value)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{_FORBIDDEN.sub("_", name)}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str, quotes: bool = True) -> str:
    r"""Backslash and line feed, and in a label's value the quotation mark."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _number(value: float) -> str:
    """Counters of 64 bits as they are; Prometheus reads them as floats."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**63 else repr(float(value))


def refusal(path: str) -> Optional[str]:
    """Why no file can be written at ``path``; None where one can. A file is made in its folder, and removed again."""
    if not path.endswith(SUFFIX):
        return f"its name must end in {SUFFIX}: node_exporter reads no other"
    if _in_the_way(path):
        return f"{_in_the_way(path)}, which would be replaced"
    try:
        handle, temporary = _beside(path)
        os.close(handle)
        os.unlink(temporary)
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return None


def write(path: str, text: str) -> None:
    """Write ``path`` in one step. Raises OSError of ``path``; what was there stays until the new one is whole."""
    try:
        handle, temporary = _beside(path)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            os.chmod(temporary, 0o644)  # mkstemp's 0600 would keep it from node_exporter, which runs as another user
            if _in_the_way(path):
                raise FileExistsError(0, _in_the_way(path))
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None


def _beside(path: str) -> Tuple[int, str]:
    """A new file in the folder of ``path``: its handle and its name, which node_exporter does not read. Raises OSError."""
    return tempfile.mkstemp(prefix=".ddp-doctor-", dir=os.path.dirname(os.path.abspath(path)))


def _in_the_way(path: str) -> str:
    """What is at ``path`` that must not be replaced: a device (/dev/null!), a pipe, a link; "" for a file or nothing.

    A link is its owner's, and in a folder of everybody's it may lead anywhere: it is neither replaced nor followed.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return ""
    kinds = ((stat.S_ISREG, ""), (stat.S_ISDIR, "is a directory"), (stat.S_ISLNK, "is a symbolic link"))
    return next((words for is_one, words in kinds if is_one(mode)), "is a device, a pipe or a socket")

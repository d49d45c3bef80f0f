"""What is known of environment variables: which exist, who reads them and since when, and what a value means there.

The table is ``checks/data/variables.csv``; it is read when the first variable is judged, never at import.
"""

import re
from functools import lru_cache
from typing import Dict, List, Optional, Tuple

from ddp_doctor import nccl
from ddp_doctor.facts import Torch
from ddp_doctor.tables import Setting
from ddp_doctor.tables import variables as table
from ddp_doctor.versions import Release, padded, release

FAMILIES = re.compile(r"(NCCL|TORCH_NCCL|TORCH_FR|TORCH_DISTRIBUTED|GLOO|OFI_NCCL)_\w+", re.ASCII)
"""Families in which a name that we do not know is worth a word."""

_BUILD = (
    r"NCCL_(VERSION|MAJOR|MINOR|PATCH|SUFFIX|HOME|DIR|PATH|PREFIX|STATIC|(ROOT|INC|INCLUDE|LIB|LIBRARY|LIBRARIES|BIN|SRC|BUILD)\w*"
    r"|(PACKAGE|PKG|INSTALL|TESTS?|TEMP|TMP)(_\w+)?)"
)
"""Names by which images and build scripts say where NCCL is: NVIDIA's images set NCCL_VERSION. NCCL does not read them."""

_PLUGINS = (
    r"NCCL_(FASTRAK|GPUDIRECTTCPXO?|TCPXO?|SHIMNET|GPUVIZ|DYNAMIC_CHUNK_SIZE|NET|TUNER|PROFILER|PROFILE|INSPECTOR|CTRAN|COLLTRACE)"
    r"(_\w+)?"
)
"""Families of clouds' network stacks and of plug-ins, whose names nobody lists. Google's set dozens of them."""

_LEFT_ALONE = re.compile(f"{_BUILD}|{_PLUGINS}", re.ASCII)
_CLOUD = re.compile(r"NCCL_(FASTRAK|GPUDIRECTTCPXO?)_\w+", re.ASCII)

MAX_DISTANCE = 2
SHORT = 5
"""Letters after the family below which one slip makes another word of a name: NCCL_NET and NCCL_VER."""


@lru_cache(maxsize=None)
def by_name() -> Dict[str, Setting]:
    """All rows of the table."""
    return {row.name: row for row in table()}


def find(name: str) -> Optional[Setting]:
    """What the table knows of a name."""
    return by_name().get(name)


def left_alone(name: str) -> bool:
    """Is it one of a family that has names of its own: of a cloud, a plug-in or a build script?"""
    return _LEFT_ALONE.fullmatch(name) is not None


def is_cloud_stack(name: str) -> bool:
    """Does it say that a cloud's own network stack is in use, which comes with a tuned set of variables?"""
    return _CLOUD.fullmatch(name) is not None


# --------------------------------------------------------------------------- names


def is_judged(name: str) -> bool:
    """Could it be a misspelt name of ours? One that we know, and one of a family beginning with other letters, cannot."""
    return bool(FAMILIES.fullmatch(name) or closest(name))


@lru_cache(maxsize=1024)
def closest(name: str) -> str:
    """The real name that this one was probably meant to be, or "". Another CCL's family is no slip: RCCL, HCCL, MCCL."""
    foreign = re.match(r"(?!NCCL_)[A-Z]*CCL_", name)
    if find(name) or foreign or _build_name(name):
        return ""
    near = (
        (distance(name, real, _allowance(real)), real) for real in _candidates(len(name)) if FAMILIES.fullmatch(real)
    )
    within = sorted((slips, real) for slips, real in near if slips <= _allowance(real))
    return within[0][1] if within else ""


def _build_name(name: str) -> bool:
    return re.fullmatch(_BUILD, name, re.ASCII) is not None


def _allowance(real: str) -> int:
    """Slips that may lie between a name and this real one."""
    found = re.match(r"(?:OFI_NCCL|TORCH_\w+?|NCCL|GLOO)_(\w+)", real)
    return MAX_DISTANCE if found is None or len(found.group(1)) >= SHORT else 1


@lru_cache(maxsize=None)
def _candidates(length: int) -> Tuple[str, ...]:
    """Real names of about this length."""
    return tuple(
        name for name, row in by_name().items() if abs(len(name) - length) <= MAX_DISTANCE and row.library != "none"
    )


def distance(one: str, other: str, limit: int = MAX_DISTANCE) -> int:
    """Edits between two names: insert, delete, replace, swap neighbours; ``limit`` + 1 where there are more than ``limit``."""
    far = limit + 1
    if (
        abs(len(one) - len(other)) > limit or len(set(one) ^ set(other)) > 2 * limit
    ):  # an edit changes two letters at most
        return far
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    before: List[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i] + [far] * len(other)
        for j in range(max(1, i - limit), min(len(other), i + limit) + 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other[j - 1]))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == other[j - 1]:
                row[j] = min(row[j], older[j - 2] + 1)
        if min(row) > limit:
            return far
    return min(row[-1], far)


# --------------------------------------------------------------------------- versions


def reader(setting: Setting, torch: Optional[Torch]) -> Tuple[str, Release]:
    """("NCCL", its version) or ("torch", its version), whichever reads the variable; () where that is not known."""
    if setting.library.startswith("nccl"):
        return "NCCL", nccl.version_of(torch) or ()
    if setting.library in ("pytorch-c10d", "gloo"):  # torchrun's own are set by the torchrun that reads them
        return "torch", release(torch.version or "") if torch is not None else ()
    return setting.library, ()


def not_yet(setting: Setting, version: Release) -> bool:
    """Is this version older than the first that reads the variable?"""
    first = release(setting.since)
    return bool(version and first) and padded(version, len(first)) < first


def no_longer(setting: Setting, version: Release) -> bool:
    """Is this version newer than the last that reads the variable? Where it is not known, the newest is taken."""
    last = release(setting.last)
    return bool(last) and (not version or padded(version, len(last)) > last)


def deprecated_in(setting: Setting, torch: Optional[Torch]) -> bool:
    """Is the name still read in this version, but by another name of first choice?"""
    _, version = reader(setting, torch)
    if no_longer(setting, version) or not setting.deprecated:
        return False
    since = release(setting.deprecated)
    return not version or not since or padded(version, len(since)) >= since


def torch_at_least(torch: Optional[Torch], floor: Release) -> bool:
    """Is this torch at least that version? Where it is not known, the newest is taken."""
    found = release((torch.version if torch is not None else None) or "")
    return not found or found >= floor


def default(setting: Setting, version: Release) -> str:
    """The default in this version, in the newest one where it is not known."""
    found = setting.default
    for step in filter(None, setting.defaults.split("; ")):
        since, _, value = step.partition("=")
        if not version or padded(version, 3) >= padded(release(since), 3):
            found = value
    return found


# --------------------------------------------------------------------------- values

_STRTOLL = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)\s*")
_STOI = re.compile(r"\s*[+-]?[0-9]+\s*")
BOOLEAN_WORDS = ("y", "yes", "1", "t", "true", "n", "no", "0", "f", "false")
"""What torch takes for a boolean, in any case; anything else raises (torch/csrc/distributed/c10d/Utils.hpp, getCvarBool)."""


def is_number_of_nccl(setting: Setting) -> bool:
    """Does NCCL or a plug-in of its family read it as an integer?"""
    return setting.kind in ("int", "bool") and setting.library.startswith("nccl")


def misread(setting: Setting, text: str) -> str:
    """What NCCL makes of a text that is not the number it seems to be: "0" of "true"; "" where nothing goes wrong.

    NCCL reads integers by strtoll with base 0 and takes what it understands of the beginning (src/misc/param.cc).
    """
    if not is_number_of_nccl(setting) or not text.strip():
        return ""
    value = nccl.integer(text)
    meant = text.strip().lstrip("+")
    octal = re.fullmatch(r"-?0[0-9]{1,40}", meant) and int(meant) != value
    return str(value) if octal or not _STRTOLL.fullmatch(text) else ""


def can_raise(setting: Setting) -> bool:
    """Does torch refuse some values of it with an exception?"""
    typed = setting.kind in ("bool-words", "int") or setting.name == "TORCH_DISTRIBUTED_DEBUG"
    return setting.library == "pytorch-c10d" and typed


def raises(setting: Setting, text: str) -> bool:
    """Will torch refuse this value with an exception?"""
    if not can_raise(setting):
        return False
    if setting.kind == "bool-words":
        return text.lower() not in BOOLEAN_WORDS
    if setting.kind == "int":
        return _STOI.fullmatch(text) is None
    return text.upper() not in setting.allowed


def is_allowed(setting: Setting, text: str) -> bool:
    """Is the value one of those that the variable can have? A number that cannot be read is judged by ``misread``."""
    if not setting.allowed or not text or setting.kind == "list":
        return True
    number = nccl.integer(text) if _STRTOLL.fullmatch(text) else None
    if number is not None and re.match(rf"{number}\b", setting.default):
        return True
    folded = text.upper() if setting.kind == "enum-any-case" else text
    words = [item.upper() if setting.kind == "enum-any-case" else item for item in setting.allowed]
    if folded in words or (number is None and not setting.kind.startswith("enum")):
        return True
    return number is not None and any(_covers(item, number) for item in setting.allowed)


def _covers(item: str, number: int) -> bool:
    """Is the number in "2", "0..31" or "1.."? A word covers none."""
    found = re.fullmatch(r"(-?\d+)(?:(\.\.)(-?\d+)?)?", item)
    if not found:
        return False
    low, dots, high = found.groups()
    return number >= int(low) and (number <= int(high) if high else bool(dots) or number == int(low))


def allowed_words(setting: Setting) -> str:
    """The values that it can have, in words: "0 to 31", "1 or more", "VERSION, WARN, INFO"."""
    return ", ".join(map(_words, setting.allowed))


def _words(item: str) -> str:
    low, dots, high = item.partition("..")
    return item if not dots else f"{low} to {high}" if high else f"{low} or more"

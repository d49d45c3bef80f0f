"""Dockerfiles: ENV in both its forms, and what CMD and ENTRYPOINT set. ARG and RUN are of the build, not of the job."""

import json
import re
from typing import Iterator, List, NamedTuple

from ddp_doctor.lint import Found, Item
from ddp_doctor.lint.shell import Word, settings, split, words_of

TITLE = "a Dockerfile"

_NAME = re.compile(r"(.*[._-])?(Dockerfile|Containerfile)([._-].*)?", re.IGNORECASE)
_FROM = re.compile(r"(?:[ \t]*(?:#.*|ARG\b.*)?\r?\n)*[ \t]*FROM[ \t]+\S", re.IGNORECASE)
_INSTRUCTION = re.compile(r"[ \t]*(?:ONBUILD[ \t]+)?([A-Za-z]+)[ \t]+(.*)", re.DOTALL)
_HERE = re.compile(r"<<-?['\"]?([A-Za-z_]\w*)")


class Instruction(NamedTuple):
    """An instruction with its continuation lines, comments among them taken out."""

    line: int
    name: str
    text: str


def recognises(name: str, text: str) -> int:
    """By name, or by FROM as the first instruction."""
    return 3 if _NAME.fullmatch(name) else 2 if _FROM.match(text) else 0


def variables(text: str) -> Iterator[Item]:
    """What the image sets for what runs in it."""
    for instruction in instructions(text):
        if instruction.name == "ENV":
            yield from _env(instruction)
        elif instruction.name in ("CMD", "ENTRYPOINT"):
            yield from _command(instruction)


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions; here-documents of RUN and COPY are passed over."""
    lines = text.split("\n")
    escape = "`" if re.match(r"#[ \t]*escape[ \t]*=[ \t]*`", text, re.IGNORECASE) else "\\"
    number = 0
    while number < len(lines):
        first = number
        parts: List[str] = []
        number = _taken(lines, number, escape, parts)
        found = _INSTRUCTION.fullmatch("\n".join(parts))
        if found:
            yield Instruction(first + 1, found.group(1).upper(), found.group(2))
            for mark in _HERE.findall(found.group(2)) if found.group(1).upper() in ("RUN", "COPY", "ADD") else ():
                ends = (at for at in range(number, len(lines)) if lines[at].strip() == mark)
                number = next(ends, number - 1) + 1


def _taken(lines: List[str], number: int, escape: str, parts: List[str]) -> int:
    """Put an instruction's lines into ``parts``, an empty one for each comment; the number of the line behind it."""
    for at in range(number, len(lines)):
        line = lines[at].rstrip()
        comment = line.lstrip().startswith("#") or (bool(parts) and not line)
        goes_on = line.endswith(escape) and not comment
        parts.append("" if comment else line[: -len(escape)] if goes_on else line)
        if not goes_on and not (comment and len(parts) > 1):
            break
    return at + 1


def _env(instruction: Instruction) -> Iterator[Item]:
    """ENV a=1 b="2 3", or the old ENV a 1."""
    old = re.fullmatch(r"\s*([A-Za-z_]\w*)[ \t]+([^=].*|=[ \t].*)", instruction.text, re.DOTALL)
    if old:
        yield Found(instruction.line, old.group(1), " ".join(old.group(2).split()).strip("'\""))
        return
    for word in words_of(_one_line(instruction.text), instruction.line):
        if not isinstance(word, Word):
            yield word
            continue
        name, equals, value = word.text.partition("=")
        if equals:
            yield Found(word.line, name, value)


def _one_line(text: str) -> str:
    """Continuation lines as a shell writes them."""
    return text.replace("\n", "\\\n")


def _command(instruction: Instruction) -> Iterator[Item]:
    """CMD ["env", "A=1", "torchrun"], or CMD A=1 torchrun."""
    try:
        words = [Word(instruction.line, str(word)) for word in json.loads(instruction.text)]
    except (ValueError, RecursionError, TypeError):
        words = split(_one_line(instruction.text), instruction.line)
    yield from settings(words)

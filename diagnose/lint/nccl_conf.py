"""NCCL's own file of settings: /etc/nccl.conf, ~/.nccl.conf."""

import re
from typing import Iterator

from ddp_doctor.collect.env import parse_conf
from ddp_doctor.lint import Found, Item

TITLE = "a file of NCCL's settings"
NCCL_CONF = True


def recognises(name: str, text: str) -> int:
    """By name: its grammar is stricter than a shell's, but looks alike."""
    return 3 if re.fullmatch(r".*\.?nccl\.conf", name) else 0


def variables(text: str) -> Iterator[Item]:
    """Names and values as NCCL takes them, with blanks and quotes."""
    for variable in parse_conf(text, ""):
        yield Found(int(variable.source[1:]), variable.name, variable.value)

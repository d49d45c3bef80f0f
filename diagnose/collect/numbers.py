"""Numbers out of the files of /proc and /sys, whatever stands in them."""

import re
from typing import Optional

from ddp_doctor.facts import Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable


def parse_number(text: str, what: str) -> int:
    """A whole number and nothing else. Raises Unreadable that names ``what``."""
    if not re.fullmatch(r"\d{1,19}", text.strip(), re.ASCII):
        raise Unreadable(Reason("unreadable", f"{what}: {text.strip()[:40]!r} is no number"))
    return int(text)


def read_number(host: Host, path: str) -> int:
    """The number that a file holds. Raises Unreadable."""
    return parse_number(host.read(path), path)


def parse_cpu_list(text: str, what: str) -> int:
    """How many processors or nodes a list like ``0-3,8`` names. Raises Unreadable."""
    text = text.strip()
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text, re.ASCII):
        raise Unreadable(Reason("unreadable", f"{what}: {text[:40]!r} is no list of numbers"))
    ranges = (part.partition("-") for part in text.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def labelled(text: str, label: str) -> Optional[str]:
    """The rest of the first line ``label: rest`` of a file like /proc/self/status or /proc/meminfo."""
    found = re.search(rf"^{re.escape(label)}[ \t]*:[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return found.group(1) if found else None

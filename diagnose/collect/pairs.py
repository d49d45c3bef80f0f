"""Pairs: the ways between nodes. ``cluster/pairs.py`` makes this section; one node alone has none."""

from typing import Optional

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Pairs, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

NOT_ASKED = Reason("not-asked", "ways between nodes are tried where several nodes are examined together")


def wanted(ask: Ask) -> Optional[Reason]:
    """Never: it is no matter of one node."""
    return NOT_ASKED


def read(host: Host, ask: Ask) -> Pairs:
    """Raises Unreadable, always."""
    raise Unreadable(NOT_ASKED)

"""Trends: what only shows over hours. ``watch`` makes this section; one look at a node has none."""

from typing import Optional

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Reason, Trends
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

NOT_ASKED = Reason("not-asked", "only ddp-doctor watch looks long enough to see a trend")


def wanted(ask: Ask) -> Optional[Reason]:
    """Never: it is no matter of one look."""
    return NOT_ASKED


def read(host: Host, ask: Ask) -> Trends:
    """Raises Unreadable, always."""
    raise Unreadable(NOT_ASKED)

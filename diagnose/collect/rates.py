"""Rates: counters, read once or twice."""

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Rates, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable


def read(host: Host, ask: Ask) -> Rates:
    raise Unreadable(Reason("not-asked", "not collected yet"))

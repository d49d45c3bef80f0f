"""Compute: the compute test of all GPUs in parallel."""

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Compute, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable


def read(host: Host, ask: Ask) -> Compute:
    raise Unreadable(Reason("not-asked", "not collected yet"))

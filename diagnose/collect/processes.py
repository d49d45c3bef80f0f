"""Processes: what waits in the kernel, is a zombie, or holds a GPU."""

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Processes, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable


def read(host: Host, ask: Ask) -> Processes:
    raise Unreadable(Reason("not-asked", "not collected yet"))

"""KernelLog: faults of hardware and drivers that the kernel told of since boot."""

from ddp_doctor.ask import Ask
from ddp_doctor.facts import KernelLog, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable


def read(host: Host, ask: Ask) -> KernelLog:
    raise Unreadable(Reason("not-asked", "not collected yet"))

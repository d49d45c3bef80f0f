"""Fabric: NVSwitches, fabric manager and IMEX."""

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Fabric, Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable


def read(host: Host, ask: Ask) -> Fabric:
    raise Unreadable(Reason("not-asked", "not collected yet"))

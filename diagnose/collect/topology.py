"""Topology: how GPUs and NICs hang on the PCIe tree."""

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Reason, Topology
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable


def read(host: Host, ask: Ask) -> Topology:
    raise Unreadable(Reason("not-asked", "not collected yet"))

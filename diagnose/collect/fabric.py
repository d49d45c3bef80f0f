"""Fabric: NVSwitches on the PCI bus, the fabric manager and what else NVLink needs beside the driver.

The files and processes of this host are looked at; of switches that belong to a rack or a hypervisor it knows nothing.
"""

import re
from typing import Optional, Set, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect import pci, services
from ddp_doctor.facts import Fabric, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

BINARY = "/usr/bin/nv-fabricmanager"
UNIT_FILES = tuple(
    f"{folder}/nvidia-fabricmanager.service" for folder in ("/usr/lib/systemd/system", "/etc/systemd/system")
)
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
MANAGER, SUBNET_MANAGER, IMEX = "nv-fabricmanage", "nvlsm", "nvidia-imex"
"""Names of the processes as /proc/PID/comm has them, which is cut after 15 characters."""
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h): any other is a container's."""

_OF_DAEMONS = ("manager_running", "manager_installed", "manager_version", "subnet_manager_running", "imex_running")


def read(host: Host, ask: Ask) -> Fabric:
    """What this host has of an NVLink fabric. Of a node without NVIDIA's driver only the bus and /dev are looked at."""
    unread: Unread = {}
    switches = optional(lambda: pci.nvswitches(host), unread, "nvswitches")
    channels = _channels(host, unread)
    if not switches and not _has_driver(host):
        why = Reason("not-applicable", "no NVIDIA driver is loaded here")
        unread.update(dict.fromkeys(_OF_DAEMONS, why))
        return Fabric(nvswitches=switches, imex_channels=channels, unread=unread)
    daemons = _daemons(host, unread)
    installed = _installed(host, unread)
    running = _runs(daemons, MANAGER)
    return Fabric(
        nvswitches=switches,
        manager_running=running,
        manager_installed=installed,
        manager_version=_version(host, bool(switches) or bool(running), installed, unread),
        subnet_manager_running=_runs(daemons, SUBNET_MANAGER),
        imex_running=_runs(daemons, IMEX),
        imex_channels=channels,
        unread=unread,
    )


def _has_driver(host: Host) -> bool:
    return bool(optional(lambda: host.exists("/proc/driver/nvidia"), {}, "driver"))


def _channels(host: Host, unread: Unread) -> Optional[Tuple[str, ...]]:
    """Device nodes of the IMEX channels; empty where their folder is not there."""
    try:
        names = host.list(IMEX_CHANNELS)
    except Unreadable as error:
        if error.reason.kind == "absent":
            return ()
        unread["imex_channels"] = error.reason
        return None
    return tuple(f"{IMEX_CHANNELS}/{name}" for name in names if re.fullmatch(r"channel\d{1,9}", name))


def _daemons(host: Host, unread: Unread) -> Optional[Set[str]]:
    """Those of the three daemons that run; None where this process does not see the host's."""
    names = ("manager_running", "subnet_manager_running", "imex_running")
    try:
        seen = services.running_of(host, (MANAGER, SUBNET_MANAGER, IMEX))
        if not seen and host.link("/proc/self/ns/pid") != INITIAL_PID_NAMESPACE:
            raise Unreadable(Reason("not-applicable", "a container does not see the daemons of its host"))
    except Unreadable as error:
        unread.update(dict.fromkeys(names, error.reason))
        return None
    return seen


def _runs(daemons: Optional[Set[str]], name: str) -> Optional[bool]:
    return None if daemons is None else name in daemons


def _installed(host: Host, unread: Unread) -> Optional[bool]:
    return optional(lambda: any(host.exists(path) for path in (BINARY, *UNIT_FILES)), unread, "manager_installed")


def _version(host: Host, matters: bool, installed: Optional[bool], unread: Unread) -> Optional[str]:
    """Version of the installed fabric manager; asked for where there is an NVSwitch or it runs: it costs a process."""
    if not (matters and installed):
        text = "the fabric manager is not installed" if matters else "no NVSwitch on the bus, no fabric manager running"
        unread["manager_version"] = Reason("not-applicable", text)
        return None
    ran = optional(lambda: host.run("fabric-manager-version", (BINARY, "--version")), unread, "manager_version")
    version = parse_version(ran.stdout + ran.stderr) if ran is not None else None
    if ran is not None and version is None:
        unread["manager_version"] = Reason("unreadable", "nv-fabricmanager --version: no version in what it printed")
    return version


def parse_version(text: str) -> Optional[str]:
    """ "Fabric Manager version is : 535.104.05" -> 535.104.05."""
    found = re.search(r"(?<![\d.])\d{3,4}\.\d{1,4}(?:\.\d{1,4})?(?![\d.])", text[:4096])
    return found.group() if found else None

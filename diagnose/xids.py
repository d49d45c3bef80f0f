"""Xid and SXid: what an error number of NVIDIA's drivers means, how bad it is, and what to do (``checks/data``)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, Optional

from ddp_doctor import tables
from ddp_doctor.facts import KernelEvent

ACTIONS = {
    "none": "nothing to do",
    "restart-job": "start the job again",
    "reset-gpu": "reset the GPU",
    "reset-fabric": "reset all GPUs and NVSwitches of the node together",
    "restart-fabric-manager": "restart the fabric manager",
    "reboot": "reboot the node; if it comes back, reseat or replace the GPU",
    "restart-vm": "restart the virtual machine",
    "update-driver": "update the driver",
    "check-nvlink": "check the NVLinks",
    "check-cables": "check the links' cables and connectors",
    "check-cooling": "check the cooling",
    "check-hardware": "check power cables and seating",
    "drain-and-reset": "let the jobs on it end, then reset the GPU",
    "contact-support": "contact the vendor's support",
}
"""Action in the tables -> in words."""

RECOVERY = (
    ("none", "none"),
    ("reboot", "reboot"),
    ("drain", "drain-and-reset"),
    ("imex", "contact-support"),
    ("reset", "reset-gpu"),
)
"""A word in what Xid 154 says the driver wants -> action; the first that is in it holds: "Node Reboot Required", "Drain P2P",
"Drain and Reset", "GPU Reset Required" (nvml.h, nvmlDeviceGpuRecoveryAction_t)."""


@dataclass(frozen=True)
class Meaning:
    """What an event's code says. severity: note, warning or error. known: the code is in the table."""

    known: bool
    meaning: str
    cause: str
    action: str
    severity: str
    source: str = ""

    @property
    def todo(self) -> str:
        return ACTIONS.get(self.action, self.action)


UNKNOWN = Meaning(False, "not in our table of Xids", "unknown", "contact-support", "note")


def meaning_of(event: KernelEvent) -> Meaning:
    """What an event of kind xid or sxid means; where the table leaves it to the line, by the line."""
    if event.code is None:
        return UNKNOWN
    return _sxid(event) if event.kind == "sxid" else _xid(event)


def xid(code: int) -> Optional[tables.Xid]:
    """The row of an Xid, or None."""
    return _xids().get(code)


def _xid(event: KernelEvent) -> Meaning:
    row = _xids().get(event.code or 0)
    if row is None:
        return UNKNOWN
    fields, action, severity = event.fields or {}, row.action, row.severity
    if row.cause == "recovery":
        said = fields.get("action", "none").lower()
        action = next((action for word, action in RECOVERY if word in said), "contact-support")
        severity = "note" if action == "none" else "error"
    elif severity == "by-line":
        fatal = fields.get("severity", "").lower() == "fatal"
        severity, action = ("error", "reset-gpu") if fatal else ("note", "none")
    return Meaning(True, row.meaning, row.cause, action, severity, row.source)


def _sxid(event: KernelEvent) -> Meaning:
    code = event.code or 0
    rows = [row for row in tables.sxids() if int(row.first) <= code <= int(row.last)]
    said = (event.fields or {}).get("severity", "").lower().replace("-", "")
    if not rows:
        return Meaning(
            False, "not in our table of SXids", "nvswitch", "check-nvlink", "error" if said == "fatal" else "note"
        )
    row = min(rows, key=lambda row: int(row.last) - int(row.first))
    fatal = said == "fatal" if said else row.fatal == "yes"
    meaning = f"NVSwitch: {row.meaning}."
    return Meaning(True, meaning, "nvswitch", row.action if fatal else "none", "error" if fatal else "note", row.source)


@lru_cache(maxsize=None)
def _xids() -> Dict[int, tables.Xid]:
    return {int(row.code): row for row in tables.xids()}

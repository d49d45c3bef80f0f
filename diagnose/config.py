"""Configuration: policy values, severities and waivers from ddp-doctor.toml or pyproject.toml, then the options."""

from dataclasses import dataclass, field
from typing import Dict, Tuple

from ddp_doctor.model import Severity
from ddp_doctor.policy import Policy


@dataclass(frozen=True)
class Config:
    """Everything that a person can set about judging."""

    policy: Policy = field(default_factory=Policy)
    severity: Dict[str, Severity] = field(default_factory=dict)
    select: Tuple[str, ...] = ()
    ignore: Tuple[str, ...] = ()
    fail_on: Severity = Severity.ERROR
    source: str = ""
    """The file that it came from; "" for the stock values."""

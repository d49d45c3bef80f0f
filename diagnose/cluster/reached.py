"""What came of a node that was to be examined: its facts, or that it was not reached."""

from dataclasses import dataclass
from typing import Union

from ddp_doctor.facts import NodeFacts, Reason


@dataclass(frozen=True)
class Unreachable:
    """A node that did not answer, under the name by which it was called, and why."""

    name: str
    reason: Reason


Reached = Union[NodeFacts, Unreachable]

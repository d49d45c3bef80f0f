"""What several checks of GPUs ask: did the driver tell, and how many GPUs may the job use."""

from typing import Iterator, Optional, Tuple

from ddp_doctor.accelerators import answering, chosen, label
from ddp_doctor.facts import Gpus, Reason
from ddp_doctor.model import NotKnown, Reading, known, unknown
from ddp_doctor.policy import Policy


def silent(gpus: Gpus) -> Optional[Reason]:
    """Why the driver told nothing of GPUs that the kernel's own trees show; None where it told, or there are none."""
    if gpus.source != "proc" or not gpus.gpus:
        return None
    return gpus.gpus[0].unread.get(
        "memory_total_bytes", Reason("unreadable", gpus.nvml_error or "the driver was silent")
    )


_WENT_WRONG = ("unreadable", "no-rights", "timed-out", "crashed")


def unsure(gpus: Gpus, field: str) -> Iterator[Reading]:
    """A reading for each GPU that answers and of which ``field`` could not be read, though it should have been."""
    for gpu in answering(gpus):
        reason = gpu.unread.get(field)
        if getattr(gpu, field) is None and reason is not None and reason.kind in _WENT_WRONG:
            yield unknown(gpu, field, label(gpu))


def only_if_told(gpus: Gpus) -> None:
    """Raises NotKnown where the driver told nothing: what the kernel's trees show need not work."""
    why = silent(gpus)
    if why is not None:
        raise NotKnown(why)


def usable_gpus(gpus: Gpus) -> Tuple[int, str]:
    """GPUs that answer and that CUDA_VISIBLE_DEVICES leaves, and how that was counted."""
    known(gpus.gpus, gpus, "gpus")
    only_if_told(gpus)
    working = len(answering(gpus))
    names = chosen(gpus.visible_devices)
    if names is None or len(names) >= working:
        return working, ""
    return len(names), f" (CUDA_VISIBLE_DEVICES={gpus.visible_devices})"


def demanded(policy: Policy) -> bool:
    """Does the policy say that there must be GPUs?"""
    return "gpus" in policy.require or bool(policy.expect_gpus)

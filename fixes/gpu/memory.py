"""Ways out of faults of the GPUs' memory."""

from typing import Iterator, Optional

from ddp_doctor.facts import Gpus, Launch, Os
from ddp_doctor.fixes.gpu._steps import drain, elsewhere, found, of, replace_it, reset
from ddp_doctor.model import Remedy, Verdict, command, say

ERRORS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"


def uncorrected_memory_errors(
    finding: Verdict, gpus: Gpus, os: Optional[Os] = None, launch: Optional[Launch] = None
) -> Iterator[Remedy]:
    gpu = found(finding, gpus)
    again = say(
        "Look again after the reset: the count begins anew. If errors come back, have the GPU tested.", see=ERRORS
    )
    yield elsewhere(os, "let the jobs end and reset the GPU") or Remedy(
        "Take the node out of service and reset the GPU", (drain(launch), *reset(gpu), again)
    )


def recovered_memory_errors(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    gpu = found(finding, gpus)
    test = command(f"dcgmi diag -r 3{f' -i {gpu.index}' if gpu else ''}", who="cluster admin", scope="this node",
                   risk="keeps the GPU busy for minutes")  # fmt: skip
    yield elsewhere(os, "reset the GPU when it is idle, and test it") or Remedy(
        "Reset the GPU when it is idle, and test it", (*reset(gpu), test)
    )


def earlier_memory_errors() -> Iterator[Remedy]:
    yield Remedy("Nothing now: write the count down, and compare it in a month", (say("A stable count is no fault.", see=ERRORS),))  # fmt: skip


def sram_threshold_exceeded(finding: Verdict, gpus: Gpus, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    yield replace_it(found(finding, gpus), launch)


def sram_errors(finding: Verdict, gpus: Gpus, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    yield replace_it(found(finding, gpus), launch)


def row_remap_pending(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    when = "Reset the GPU when it is idle: no job has to end for it"
    yield elsewhere(os, "reset the GPU when it is idle") or Remedy(when, reset(found(finding, gpus)))


def row_remap_failed(finding: Verdict, gpus: Gpus, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    yield replace_it(found(finding, gpus), launch)


def spare_rows_used_up(finding: Verdict, gpus: Gpus, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    yield replace_it(found(finding, gpus), launch)


def page_retirement_pending(
    finding: Verdict, gpus: Gpus, os: Optional[Os] = None, launch: Optional[Launch] = None
) -> Iterator[Remedy]:
    yield elsewhere(os, "let the jobs end and reset the GPU") or Remedy(
        "Let the jobs end and reset the GPU", (drain(launch), *reset(found(finding, gpus)))
    )


def retirable_pages_used_up(finding: Verdict, gpus: Gpus, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    yield replace_it(found(finding, gpus), launch)


def ecc_unlike_siblings(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    on = int("off" in finding.measured)
    which = of(found(finding, gpus))
    yield elsewhere(os, f"switch ECC {'on' if on else 'off'} on this GPU and reset it") or Remedy(
        "Make the GPUs alike",
        (
            command(f"nvidia-smi{which} -e {on}", who="root", scope="this node", undo=f"nvidia-smi{which} -e {1 - on}"),
            *reset(found(finding, gpus)),
        ),
    )


def ecc_off(os: Optional[Os] = None) -> Iterator[Remedy]:
    yield elsewhere(os, "switch ECC on and reboot") or Remedy(
        "Switch error correction on",
        (
            command("nvidia-smi -e 1", who="root", scope="this node", undo="nvidia-smi -e 0"),
            say("It holds from the next reboot or reset of the GPUs on.", who="root"),
        ),
    )

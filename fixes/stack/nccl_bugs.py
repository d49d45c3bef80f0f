"""Ways round known bugs of NCCL."""

import re
from typing import Iterator

from ddp_doctor import tables
from ddp_doctor.facts import Torch
from ddp_doctor.fixes.stack._pip import pip
from ddp_doctor.model import Remedy, Verdict, export, say, unset


def nccl_has_known_bug(torch: Torch, finding: Verdict) -> Iterator[Remedy]:
    bug = next((row for row in tables.nccl_bugs() if row.bug == finding.subject), None)
    if bug is None:
        return
    variable = re.match(r"([A-Z][A-Z_0-9]+)=([^\s,;]+)", bug.instead)
    off = re.fullmatch(r"unset (\w+)", bug.instead)
    if variable or off:
        step = (
            export(variable.group(1), variable.group(2), scope="this job")
            if variable
            else unset(off.group(1) if off else "")
        )
        rest = (
            (say(f"In full: {bug.instead}.", see=bug.address),) if variable and variable.group() != bug.instead else ()
        )
        yield Remedy("Go round it", (step, *rest))
    elif bug.instead:
        yield Remedy("Go round it", (say(f"{bug.instead[0].upper()}{bug.instead[1:]}.", see=bug.address),))
    fixed = f"NCCL {bug.fixed} or newer" if bug.fixed else "another NCCL"
    packages = [name for name in torch.nvidia_packages or {} if re.fullmatch(r"nvidia-nccl-cu\d+", name)]
    if len(packages) == 1 and bug.fixed:
        risk = "pip warns that torch requires another version; NCCL keeps its interface"
        step = pip(torch, f"install --no-deps '{packages[0]}>={bug.fixed}'")
        yield Remedy(f"Use {fixed} with this torch, on every node", (step, say("Do it on every node.", risk=risk)))
    yield Remedy(f"Use a torch that brings {fixed}", (say("ddp-doctor matrix shows which NCCL each torch brings."),))


def nccl_is_known_slow(torch: Torch, finding: Verdict) -> Iterator[Remedy]:
    yield from nccl_has_known_bug(torch, finding)

"""Answers of ``ddp-doctor matrix`` as text for people."""

import textwrap
from typing import Iterator, List, Sequence, Tuple

from ddp_doctor import compat, escape, here, matrix
from ddp_doctor.matrix import Asked
from ddp_doctor.tables import TorchBuild

HEADERS = ("torch", "CUDA", "driver", "Python", "glibc", "GPUs", "NCCL", "cuDNN")

_NODE = {"driver": "Driver", "gpus": "GPUs", "python": "Python", "system": "System", "torch": "PyTorch"}


def text(wanted: Asked, builds: Sequence[TorchBuild], width: int = 100) -> str:
    """The builds as a table, what guides say wrongly of them, and how to install the newest; or why there is none."""
    parts = _table_parts(wanted, builds) if builds else _nothing(wanted)
    return "\n\n".join("\n".join(line for one in part for line in _wrapped(one, width)) for part in parts)


def advice(found: "here.Advice", width: int = 100) -> str:
    """What to install on this node."""
    rests = [f"{_NODE[name]:<8}{escape.terminal(said)}" for name, said in found.node.items() if said]
    parts = [[found.says, *found.remarks], rests]
    if found.install:
        parts.insert(1, [f"  {escape.terminal(found.install)}"])
    if found.build:
        parts.append(list(_companions(found.build)))
        parts.append([rule.says for rule in matrix.remarks([found.build])])
    return "\n\n".join("\n".join(line for one in part for line in _wrapped(one, width)) for part in parts if part)


def _table_parts(wanted: Asked, builds: Sequence[TorchBuild]) -> List[List[str]]:
    from tabulate import tabulate

    rows = [_row(build, wanted.machine) for build in builds]
    table = tabulate(rows, headers=HEADERS, tablefmt="simple", disable_numparse=True)
    remarks = [rule.says for rule in matrix.remarks(builds)]
    return [part for part in ([table], remarks, _how(builds[0])) if part]


def _row(build: TorchBuild, machine: str) -> Tuple[str, ...]:
    floor = compat.driver_floor(build.cuda)
    arm = machine == "aarch64"
    codes = build.architectures_aarch64 if arm else build.architectures
    return (
        f"{build.torch} {build.probably}".rstrip(),
        f"{build.cuda}{' *' if build.default == 'yes' else ''}",
        f">= {floor.version}" if floor else "",
        matrix.span(build.pythons),
        f">= {build.glibc_aarch64 if arm else build.glibc_x86_64}",
        " ".join((*codes, *(["PTX"] if build.ptx else []))),
        build.nccl or "not known",
        build.cudnn or "not known",
    )


def _how(build: TorchBuild) -> List[str]:
    first = (
        f"CUDA with a * is what pip installs by itself. The newest of these, torch {build.torch} for CUDA {build.cuda}:"
    )
    return [first, f"  {compat.pip_line(build)}", *_companions(build)]


def _companions(build: TorchBuild) -> Iterator[str]:
    """torchvision and torchaudio that go with it."""
    found = {name: compat.companions(name, build.torch) for name in ("torchvision", "torchaudio")}
    listed = [f"{name} {rows[-1].version}" for name, rows in found.items() if rows]
    if listed:
        yield f"With it goes {' and '.join(listed)}."


def _nothing(wanted: Asked) -> List[List[str]]:
    eased = matrix.without_one(wanted)
    first = f"No official wheel of torch goes with all of this: {_asked(wanted)}."
    lines = [
        f"  with another {matrix.LABELS[name]}: torch {build.torch} for CUDA {build.cuda}"
        for name, build in eased.items()
    ]
    return [[first], ["The newest that would go:", *lines]] if lines else [[first]]


def _asked(wanted: Asked) -> str:
    values = (
        (name, getattr(wanted, name)) for name in matrix.LABELS if wanted.machine != Asked.machine or name != "machine"
    )
    texts = ((name, ", ".join(value) if isinstance(value, tuple) else value) for name, value in values)
    return ", ".join(escape.terminal(f"{matrix.LABELS[name]} {value}") for name, value in texts if value)


def _wrapped(line: str, width: int) -> List[str]:
    """Sentences are wrapped; tables and commands are not."""
    if "\n" in line or line.startswith("  ") or len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)

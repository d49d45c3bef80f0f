"""What to install on a node: the newest torch that its driver, GPUs, Python and glibc can run. Pure."""

import json
import shlex
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Optional, Tuple

from ddp_doctor import compat, matrix
from ddp_doctor.accelerators import answering, is_jetson, none_admitted
from ddp_doctor.facts import Gpus, NodeFacts, Os, Torch
from ddp_doctor.matrix import MACHINES, Asked
from ddp_doctor.tables import TorchBuild
from ddp_doctor.units import plural
from ddp_doctor.versions import minor, newer

SECTIONS = ("os", "gpus", "torch")
"""The sections of facts that the answer rests on."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""pytorch.org/get-started/locally: the index of wheels without CUDA."""


@dataclass(frozen=True)
class Advice:
    """What to install on a node; or, without ``install``, why that cannot be said."""

    node: Dict[str, Optional[str]]
    """What was found out, in words: driver, GPUs, Python, system."""
    says: str
    """The answer in a sentence."""
    known: bool = True
    """False: a fact that the answer needs could not be read."""
    install: Optional[str] = None
    """What to type."""
    build: Optional[TorchBuild] = None
    remarks: Tuple[str, ...] = ()
    """Why nothing newer, and what to mind: sentences."""


def advise(facts: NodeFacts, python: Optional[str] = None, driver: Optional[str] = None) -> Advice:
    """What to install on the node of these facts. ``python``, ``driver``: versions to take instead of the node's own."""
    node, os, gpus, torch = _node(facts), facts.os, facts.gpus, facts.torch
    if is_jetson(os):
        return Advice(
            node, "A Jetson: install the torch that NVIDIA builds for its JetPack release; official wheels do not fit."
        )
    if os is None or os.machine is None or os.glibc is None:
        return Advice(node, _no_system(facts), known=bool(os and _musl(os)))
    if os.machine not in MACHINES:
        return Advice(node, f"There is no official wheel of torch with CUDA for {os.machine}.")
    if python:  # that one does not have the torch of this one
        torch = Torch(python=f"python{python}", python_version=python)
        facts = replace(facts, torch=torch)
    version = torch.python_version if torch else None
    if version is None:
        return Advice(node, f"Cannot say: the version of Python is not known{_why(facts, 'torch')}.", known=False)
    wanted = Asked(python=_wheel_python(version), glibc=os.glibc, machine=os.machine)
    return _for_gpus(facts, gpus, wanted, driver, node)


def _for_gpus(
    facts: NodeFacts, gpus: Optional[Gpus], wanted: Asked, driver: Optional[str], node: Dict[str, Optional[str]]
) -> Advice:
    if gpus is None or (gpus.gpus is None and gpus.on_bus is None):
        return Advice(node, f"Cannot say: the GPUs are not known{_why(facts, 'gpus')}.", known=False)
    if gpus.other_vendor and not gpus.gpus and not gpus.on_bus:
        return Advice(
            node, f"Not judged: GPUs of another vendor ({', '.join(gpus.other_vendor)}); see pytorch.org/get-started."
        )
    if none_admitted(gpus, facts.os) or (not gpus.gpus and not gpus.on_bus):
        return _without_gpu(facts, wanted, node)
    driver = driver or gpus.driver
    if not driver:
        return _without_driver(gpus, node)
    capabilities = _capabilities(gpus)
    if not capabilities or None in capabilities:
        return Advice(node, "Cannot say: the compute capability of a GPU is not known.", known=False)
    return _with(replace(wanted, driver=driver, capabilities=tuple(filter(None, capabilities))), facts.torch, node)


def _with(wanted: Asked, torch: Optional[Torch], node: Dict[str, Optional[str]]) -> Advice:
    found = matrix.rows(wanted)
    if not found:
        eased = [
            f"{matrix.LABELS[name]}: torch {row.torch} for CUDA {row.cuda}"
            for name, row in matrix.without_one(wanted).items()
        ]
        more = f" With another {'; with another '.join(eased)}." if eased else ""
        return Advice(node, f"No official wheel of torch runs on this node.{more}")
    build = found[0]
    says = f"Install torch {build.torch} for CUDA {build.cuda}: {build.probably}the newest that runs on this node."
    remarks = (*_newer(build, wanted), *_care(torch))
    return Advice(node, says, True, _install(torch, build), build, remarks)


def _install(torch: Optional[Torch], build: TorchBuild) -> str:
    """The command; pip takes 2.14.1+cu130 for 2.14.1 and would install nothing (PEP 440, local versions)."""
    line = _command(torch, compat.pip_line(build))
    installed = torch is not None and newer(torch.version or "") == newer(build.torch) and torch.cuda != build.cuda
    return f"{_command(torch, 'pip uninstall -y torch')} && {line}" if installed else line


def _care(torch: Optional[Torch]) -> Tuple[str, ...]:
    """Where another torch is that pip had better leave alone."""
    makers = {"ngc": "comes with NVIDIA's image", "conda": "was installed by conda", "vendor": "is a vendor's build"}
    maker = makers.get(torch.flavour or "") if torch and torch.installed else None
    return (f"The torch that is there {maker}: install another one in an environment of its own.",) if maker else ()


def _newer(build: TorchBuild, wanted: Asked) -> Tuple[str, ...]:
    """Why the default build of the newest torch does not run here."""
    newest = compat.newest_torch()
    if newest.torch == build.torch:
        return ()
    wants = {
        "driver": f"driver {_floor(newest)} or newer",
        "python": f"Python {matrix.span(newest.pythons)}",
        "glibc": f"glibc {newest.glibc_x86_64 if wanted.machine == 'x86_64' else newest.glibc_aarch64} or newer",
        "capabilities": f"GPUs of compute capability {', '.join(newest.architectures)}",
        "machine": "another kind of machine",
    }
    missing = " and ".join(wants[name] for name in matrix.misfits(newest, wanted) if name in wants)
    return (f"torch {newest.torch} for CUDA {newest.cuda} needs {missing}.",)


def _floor(build: TorchBuild) -> str:
    floor = compat.driver_floor(build.cuda)
    return floor.version if floor else "not known"


def _without_gpu(facts: NodeFacts, wanted: Asked, node: Dict[str, Optional[str]]) -> Advice:
    """No GPU that a job here could use: the build without CUDA, for which Python and glibc count alone."""
    found = matrix.rows(Asked(python=wanted.python))
    fitting = [row for row in found if compat.glibc_fits(row, wanted.glibc or "", wanted.machine)]
    if not fitting:
        return Advice(node, "No official wheel of torch runs on this node: its Python or its C library does not fit.")
    newest = fitting[0]
    pip = f"pip install torch=={newest.torch} --index-url {CPU_INDEX}"
    says = f"Install torch {newest.torch} without CUDA: there is no NVIDIA GPU that a job here could use."
    return Advice(node, says, True, _command(facts.torch, pip))


def _without_driver(gpus: Gpus, node: Dict[str, Optional[str]]) -> Advice:
    if gpus.kernel_module != "":
        reason = gpus.unread.get("driver")
        return Advice(node, f"Cannot say: the driver is not known{f' ({reason.text})' if reason else ''}.", known=False)
    newest = compat.newest_torch()
    first = f"Install NVIDIA's driver first, then ask again: {plural(len(gpus.on_bus or ()), 'GPU')} on the bus, and no driver runs."
    return Advice(node, f"{first} Torch {newest.torch} for CUDA {newest.cuda} needs {_floor(newest)} or newer.")


def _capabilities(gpus: Gpus) -> Tuple[Optional[str], ...]:
    """Of each GPU that answers, once; None for one whose compute capability neither NVML nor its name tells."""
    return tuple({gpu.compute_capability or matrix.capability_of(gpu.name or "") for gpu in answering(gpus)})


def _wheel_python(version: str) -> str:
    return minor(version) + ("t" if version.endswith("t") else "")


def _command(torch: Optional[Torch], line: str) -> str:
    """pip of the examined interpreter, so that it does not land in another environment."""
    return f"{shlex.quote(torch.python)} -m {line}" if torch and torch.python else line


def _musl(os: Os) -> bool:
    reason = os.unread.get("glibc")
    return os.glibc is None and reason is not None and reason.kind == "absent"


def _no_system(facts: NodeFacts) -> str:
    if facts.os is not None and _musl(facts.os):
        return "No official wheel of torch runs on this node: it has no glibc, which they all need."
    return f"Cannot say: the machine or its C library is not known{_why(facts, 'os')}."


def _why(facts: NodeFacts, section: str) -> str:
    reason = facts.reasons.get(section)
    return f" ({reason.text})" if reason else ""


def _node(facts: NodeFacts) -> Dict[str, Optional[str]]:
    """What the answer rests on, in words."""
    os, gpus, torch = facts.os, facts.gpus, facts.torch
    named = (
        {f"{gpu.name or 'model not known'} ({gpu.compute_capability or '?'})" for gpu in answering(gpus)}
        if gpus
        else ()
    )
    return {
        "driver": gpus.driver if gpus else None,
        "gpus": ", ".join(sorted(named)) or None,
        "python": f"{torch.python_version} {torch.python}" if torch and torch.python_version else None,
        "system": f"{os.pretty or os.id}, glibc {os.glibc}, {os.machine}" if os else None,
        "torch": torch.version if torch and torch.installed else None,
    }


def as_json(advice: Advice) -> str:
    """The advice as one JSON document."""
    build = matrix.plain(advice.build) if advice.build else None
    document: Dict[str, Any] = {
        "schema_version": matrix.SCHEMA_VERSION,
        **asdict(replace(advice, build=None)),
        "build": build,
    }
    return json.dumps(document, indent=2)

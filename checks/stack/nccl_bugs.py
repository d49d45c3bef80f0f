"""Does the NCCL of this torch have a known bug that this node and this job can meet?"""

import re
from typing import Callable, Dict, Iterator, NamedTuple, Optional

from ddp_doctor import nccl, tables
from ddp_doctor.accelerators import answering, is_gpu_node
from ddp_doctor.facts import Env, Gpus, Os, Rdma, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check
from ddp_doctor.policy import Policy
from ddp_doctor.tables import NcclBug
from ddp_doctor.versions import at_least

GPUS_ON_NVSWITCH = 8
"""HGX boards with eight GPUs have NVSwitches; those with four connect each GPU to each (NVIDIA HGX platform)."""


@check(Severity.WARNING)
def nccl_has_known_bug(
    torch: Torch,
    gpus: Gpus,
    policy: Policy,
    os: Optional[Os] = None,
    rdma: Optional[Rdma] = None,
    env: Optional[Env] = None,
) -> Iterator[Reading]:
    """The NCCL of this PyTorch has a known bug that this node can meet.

    Why: It corrupts data, hangs or fails under conditions that are so here; each finding names the bug's address. Bugs that
        depend on what a program does, and those whose way round is set in the environment, are not counted.
    See: https://docs.nvidia.com/deeplearning/nccl/release-notes/index.html
    """
    yield from _readings(_Node(torch, gpus, policy, os, rdma, env), slow=False)


@check(Severity.NOTE)
def nccl_is_known_slow(
    torch: Torch,
    gpus: Gpus,
    policy: Policy,
    os: Optional[Os] = None,
    rdma: Optional[Rdma] = None,
    env: Optional[Env] = None,
) -> Iterator[Reading]:
    """The NCCL of this PyTorch is known to be slower than others on a node like this one.

    Why: A regression of that release, reported with measurements; each finding names its address.
    See: https://docs.nvidia.com/deeplearning/nccl/release-notes/index.html
    """
    yield from _readings(_Node(torch, gpus, policy, os, rdma, env), slow=True)


class _Node(NamedTuple):
    """What bugs are held against."""

    torch: Torch
    gpus: Gpus
    policy: Policy
    os: Optional[Os]
    rdma: Optional[Rdma]
    env: Optional[Env]


def _readings(node: _Node, slow: bool) -> Iterator[Reading]:
    if not node.torch.installed or not node.torch.cuda or not is_gpu_node(node.gpus, node.os):
        return
    numbers = nccl.version_of(node.torch)
    if numbers is None:
        raise NotKnown(Reason("not-applicable", f"which NCCL torch {node.torch.version} brings is not known"))
    version = ".".join(map(str, numbers))
    met = [b for b in tables.nccl_bugs() if (b.effect == "slow") is slow and _has(b, version) and _is_met(b, node)]
    for bug in met:
        yield Reading(
            ok=False,
            subject=bug.bug,
            measured=f"NCCL {version}",
            expected=f"NCCL {bug.fixed} or newer" if bug.fixed else "another NCCL",
            message=f"NCCL {version} {bug.probably}{_EFFECTS[bug.effect]} where {bug.when}",
            source=bug.address,
        )
    if not met:
        yield Reading(ok=True, measured=f"NCCL {version}", expected="no known bug that this node can meet")


_EFFECTS = {"corrupts": "corrupts data", "hangs": "may hang", "fails": "may fail", "slow": "is slow"}


def _has(bug: NcclBug, version: str) -> bool:
    """Does this release have the bug? Not where its end is unknown and the release is newer than any in its report."""
    return at_least(version, bug.since or "0") is True and (not bug.fixed or at_least(version, bug.fixed) is False)


def _is_met(bug: NcclBug, node: _Node) -> bool:
    """Everything that the bug needs is known to be so, and its way round is not set."""
    return not _avoided(bug, node.env) and all(_holds(need, node) for need in bug.needs)


def _avoided(bug: NcclBug, env: Optional[Env]) -> bool:
    ways = re.findall(r"([A-Z][A-Z_0-9]+)=([^\s,;]+)", bug.instead)
    return env is not None and any(env.get(name) == value for name, value in ways)


def _holds(need: str, node: _Node) -> bool:
    """Is a word of ``tables.BUG_NEEDS`` true here? What facts do not tell is not true."""
    for beginning in sorted(_NEEDS, key=len, reverse=True):
        if need.startswith(beginning):
            return _NEEDS[beginning](node, need[len(beginning) :])
    return False


def _capabilities(node: _Node) -> Iterator[str]:
    return (gpu.compute_capability for gpu in answering(node.gpus) if gpu.compute_capability)


def _on_nvswitch(node: _Node) -> bool:
    forms = {row.name: row.nvlink_form for row in tables.gpus() if "NVSwitch" in row.nvlink_form}
    names = [gpu.name or "" for gpu in answering(node.gpus)]
    return len(names) >= GPUS_ON_NVSWITCH and all(any(form in name for form in forms) for name in names)


def _has_variable(node: _Node, text: str) -> bool:
    name, _, value = text.partition("=")
    return node.env is not None and node.env.get(name) == value


def _at_most(node: _Node, highest: str) -> bool:
    found = list(_capabilities(node))
    return bool(found) and all(at_least(highest, capability) is True for capability in found)


_NEEDS: Dict[str, Callable[[_Node, str], bool]] = {
    "nodes>1": lambda node, _: (node.policy.nnodes or 1) > 1,
    "rdma": lambda node, _: nccl.carrier(node.rdma, node.env, nccl.version_of(node.torch)).kind == "rdma",
    "nvswitch": lambda node, _: _on_nvswitch(node),
    "container": lambda node, _: bool(
        node.os and node.os.container in ("docker", "podman", "kubernetes", "containerd")
    ),
    "machine:": lambda node, machine: bool(node.os and node.os.machine == machine),
    "capability:": lambda node, capability: capability in _capabilities(node),
    "capability<=": _at_most,
    "gpu:": lambda node, part: any(part in (gpu.name or "") for gpu in answering(node.gpus)),
    "cuda>=": lambda node, cuda: at_least(node.gpus.cuda or "", cuda) is True,
    "env:": _has_variable,
}
"""Words of ``tables.BUG_NEEDS`` that facts can tell; an NVLink's state and what a program does are not among them."""

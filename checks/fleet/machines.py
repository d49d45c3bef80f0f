"""GPUs and machines that should be alike, and names that should not."""

import statistics
from dataclasses import replace
from typing import Any, Dict, Iterator, Tuple

from ddp_doctor.checks.fleet._compare import agree, shared
from ddp_doctor.cluster.fleet import Column, Fleet
from ddp_doctor.facts import Reason
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.policy import Policy
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural, seconds


@check(Severity.WARNING, several_nodes=True)
def gpu_models_differ(fleet: Fleet) -> Iterator[Reading]:
    """Nodes have different models of GPUs.

    Why: It is allowed, and the slowest GPU sets the pace of every step while the others wait; the smallest memory bounds the
        batch. Two kinds on purpose are declared as partitions of the policy.
    See: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    yield from agree(fleet.gpu_models, "other GPUs than on the other nodes", ", ".join)


@check(Severity.ERROR, several_nodes=True)
def gpu_count_differs(fleet: Fleet, policy: Policy) -> Iterator[Reading]:
    """Nodes offer different numbers of GPUs to the job.

    Why: With as many ranks on each node, a node that lost a GPU (or shows fewer by CUDA_VISIBLE_DEVICES) ends the job with
        "invalid device ordinal". Set homogeneous = false in the policy where it is meant.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    if policy.homogeneous:
        yield from agree(
            fleet.gpu_count, "another number of GPUs than on the other nodes", lambda number: plural(number, "GPU")
        )


@check(Severity.WARNING, several_nodes=True)
def ecc_differs(fleet: Fleet) -> Iterator[Reading]:
    """Error correction of GPU memory is on on some nodes only.

    Why: Without it a flipped bit goes into the gradients of all ranks and nobody sees it; on boards with GDDR it also takes
        memory and bandwidth, so that ranks are of unlike speed.
    See: https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
    """
    yield from agree(fleet.ecc, "another ECC mode than on the other nodes", "ECC {}".format)


@check(Severity.WARNING, several_nodes=True)
def mig_differs(fleet: Fleet) -> Iterator[Reading]:
    """GPUs are divided by MIG on some nodes only.

    Why: A divided GPU shows instances with a part of its processors and memory, and NCCL does not run across instances as
        it does across GPUs: somebody forgot to switch it off.
    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    """
    yield from agree(fleet.mig, "another MIG mode than on the other nodes", "MIG {}".format)


@check(Severity.NOTE)
def persistence_differs(fleet: Fleet) -> Iterator[Reading]:
    """Persistence mode of the GPUs differs between nodes.

    Why: Without it the driver starts each GPU anew for each job, 1 to 3 s apiece, and forgets settings: one node begins
        late, and nvidia-persistenced does not run there.
    See: https://docs.nvidia.com/deploy/driver-persistence/index.html
    """
    yield from agree(fleet.persistence, "another persistence mode than on the other nodes", "persistence {}".format)


@check(Severity.WARNING, several_nodes=True)
def power_limit_differs(fleet: Fleet) -> Iterator[Reading]:
    """The power limit of the GPUs differs between nodes of one model.

    Why: A GPU with less power lowers its clocks under load, and every other rank waits for it in each step.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
    """
    for models, column in _by_model(fleet.power_limit_w, fleet.gpu_models).items():
        yield from agree(column, "another power limit than on the other nodes", _watts, ", ".join(models))


def _by_model(column: Column, models: Column) -> Dict[Tuple[str, ...], Column]:
    """A column of the nodes of each kind of GPU."""
    found: Dict[Any, Dict[str, Any]] = {}
    for node, value in column.values.items():
        found.setdefault(models.values.get(node, ()), {})[node] = value
    return {kind: replace(column, values=values) for kind, values in found.items()}


def _watts(limits: Tuple[float, ...]) -> str:
    return " and ".join(f"{limit:g} W" for limit in limits)


@check(Severity.WARNING, several_nodes=True)
def outside_nvlink_domain(fleet: Fleet) -> Iterator[Reading]:
    """GPUs of a node are in no NVLink domain, or in another one than most.

    Why: Within one domain (cluster UUID and clique: a rack of NVL72, say) NCCL goes by NVLink from node to node; a node
        outside goes by the network, far slower, and slows every collective that it is part of.
    See: https://docs.nvidia.com/multi-node-nvlink-systems/mnnvl-user-guide/overview.html
    """
    column = fleet.nvlink_domain
    if any(column.values.values()):
        yield from agree(column, "not in the NVLink domain of the other nodes", lambda name: name or "no NVLink domain")


@check(Severity.WARNING)
def less_memory(fleet: Fleet) -> Iterator[Reading]:
    """A node has less memory than the others.

    Why: A memory module that failed its test at boot is left out, silently: data loaders and checkpoints that fit on the
        other nodes end here by the OOM killer.
    See: https://docs.kernel.org/driver-api/edac.html
    """
    least = 1 - (bound("fleet.memory_less_than_others").warning or 0) / 100
    for group in fleet.memory_gib.groups():
        if len(group.values) < 2:
            yield from agree(group, "")
            continue
        typical = statistics.median_high(int(value) for value in group.values.values())
        for value, nodes in group.by_value().items():
            yield Reading(
                ok=int(value) >= least * typical,
                nodes=nodes,
                measured=f"{value} GiB",
                expected=f"about {typical} GiB, as on most nodes",
                message="less memory than the other nodes",
            )


@check(Severity.NOTE)
def processors_differ(fleet: Fleet) -> Iterator[Reading]:
    """Nodes have different processors, or another number of them.

    Why: Data loading, and everything that the host does in a step, takes longer on one node, and the others wait. A number
        that differs with one model means SMT switched off, or cores that are offline.
    See: https://docs.kernel.org/admin-guide/cputopology.html
    """
    yield from agree(fleet.processors, "other processors than on the other nodes")


# --------------------------------------------------------------------------- clocks


@check(Severity.WARNING, several_nodes=True)
def clocks_apart(fleet: Fleet) -> Iterator[Reading]:
    """The clock of a node is some seconds off from the others'.

    Why: Torchrun's c10d rendezvous compares the nodes' wall clocks: a node looks dead when its heartbeat, written every 5 s,
        seems 15 s old. Logs of several nodes cannot be put in order either.
    See: https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py
    """
    limits = bound("fleet.clocks_apart")
    yield from _clocks(fleet, limits.warning or 0.0, limits.error or 0.0)


@check(Severity.ERROR, several_nodes=True)
def clock_breaks_rendezvous(fleet: Fleet) -> Iterator[Reading]:
    """The clock of a node is so far off from the others' that they will take it for dead.

    Why: Torchrun's c10d rendezvous compares the nodes' wall clocks and drops a node whose heartbeat, written every 5 s, seems
        15 s old. A static rendezvous compares none.
    See: https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py
    """
    yield from _clocks(fleet, bound("fleet.clocks_apart").error or 0.0, float("inf"))


def _clocks(fleet: Fleet, from_s: float, below_s: float) -> Iterator[Reading]:
    """How far each clock is at least from the middle one; a synchroniser's word tells the size alone, not the side."""
    for kind in ("measured", "told"):
        offsets = {n: value[1] for n, value in fleet.clock_s.values.items() if value[0] == kind}
        if len(offsets) < 2:
            if offsets:
                yield Reading(
                    ok=None, nodes=tuple(offsets), reason=Reason("not-applicable", "no other node to compare with")
                )
            continue
        middle = statistics.median(offsets.values())
        far = {node: abs(offset - middle) for node, offset in offsets.items()}
        near = tuple(node for node, distance in far.items() if distance < from_s)
        for node, distance in far.items():
            if from_s <= distance < below_s:
                yield Reading(
                    ok=False,
                    nodes=(node,),
                    measured=f"{seconds(distance)} from the middle of the other clocks",
                    expected=f"less than {seconds(from_s)}",
                    message="the clock is off from the other nodes'",
                )
        if near:
            most = max(far[node] for node in near)
            yield Reading(
                ok=True, nodes=near, measured=f"at most {most:.3g} s apart", expected=f"less than {seconds(from_s)}"
            )


# --------------------------------------------------------------------------- names


@check(Severity.WARNING, several_nodes=True)
def same_host_name(fleet: Fleet) -> Iterator[Reading]:
    """Different machines have one host name.

    Why: Torchrun publishes the host name of its master, Gloo looks up its own, launchers log in by it: with one name on two
        machines they find the wrong one. A name such as localhost comes from an image that never got its own.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    boots = fleet.boot_id.values
    several = {
        name: len({boots.get(node, node) for node in nodes}) > 1 for name, nodes in fleet.host_name.by_value().items()
    }
    yield from shared(fleet.host_name, "another machine has the same host name", str, lambda name: not several[name])


@check(Severity.WARNING)
def same_machine_twice(fleet: Fleet) -> Iterator[Reading]:
    """Two of the nodes are one machine.

    Why: Host name and boot id are the same: a machine that is listed under two names, facts that were given twice, or
        machines that were resumed from one snapshot. NCCL takes such nodes for one (it hashes host name and boot id) and
        looks for shared memory that is not there.
    See: https://github.com/NVIDIA/nccl/blob/master/src/misc/utils.cc
    """
    yield from shared(
        fleet.identity, "another node in the list is the same machine", "{0[0]}".format, lambda value: False
    )

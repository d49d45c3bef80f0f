"""Checks of the NVLink fabric: GPUs registered and healthy, fabric manager, and NVLink between nodes (IMEX)."""

from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor import nccl
from ddp_doctor.accelerators import answering, label
from ddp_doctor.facts import Env, Fabric, Gpu, GpuFabric, Gpus, Os
from ddp_doctor.model import Reading, Severity, check, known, why_unknown
from ddp_doctor.nvlink import product
from ddp_doctor.units import plural

# --------------------------------------------------------------------------- each GPU


@check(Severity.ERROR)
def gpu_not_registered(gpus: Gpus) -> Iterator[Reading]:
    """A GPU has not joined the NVLink fabric.

    Why: From Hopper on a GPU behind NVSwitches must register with the fabric before CUDA starts on it. Until then torch says
        "CUDA error 802: system not yet initialized". The fabric manager does not run or is of another version, the GPU was reset
        without it, or the rack gave it no partition ("Insufficient Resources").
    See: https://docs.nvidia.com/deploy/nvml-api/structnvmlGpuFabricInfo__t.html
        https://github.com/NVIDIA/NVSentinel/issues/883
    """
    for gpu, fabric in _fabrics(gpus):
        if fabric.state is None or (fabric.state == "completed" and fabric.status is None):
            yield Reading(
                ok=None, subject=label(gpu), reason=why_unknown(fabric, "status" if fabric.state else "state")
            )
            continue
        yield Reading(
            ok=_is_registered(fabric),
            subject=label(gpu),
            measured=_registration(fabric),
            expected="registration completed with success",
            message=f"{label(gpu)} is not part of the NVLink fabric ({_registration(fabric)}): CUDA may not start on it",
        )


def _fabrics(gpus: Gpus) -> List[Tuple[Gpu, GpuFabric]]:
    """GPUs that have something to do with a fabric, by their own word."""
    told = [(gpu, gpu.fabric) for gpu in answering(gpus)]
    return [(gpu, fabric) for gpu, fabric in told if fabric is not None and fabric.state != "not_supported"]


def _is_registered(fabric: GpuFabric) -> bool:
    return fabric.state == "completed" and fabric.status == "success"


def _registration(fabric: GpuFabric) -> str:
    state = (fabric.state or "unknown").replace("_", " ")
    return f"{state}, {fabric.status}" if fabric.status else state


SENTENCES = {
    "route_unhealthy": "a route to another GPU is broken",
    "incorrect_configuration": "it is set up wrongly",
    "no_partition": "it was given no partition of the fabric",
    "unhealthy": "the GPU calls its fabric unhealthy",
    "degraded_bandwidth": "it has less bandwidth than it should",
    "route_recovery": "routes are being repaired",
    "access_timeout_recovery": "accesses to other GPUs timed out and are being repaired",
    "manager_disconnected": "its fabric manager is out of reach",
    "limited_capacity": "the GPU calls its fabric limited",
}
"""What a part of the health tells, as the end of "GPU 3: ..."."""
BROKEN = ("route_unhealthy", "incorrect_configuration", "no_partition", "unhealthy")
"""Those with which jobs fail; the others make them slow, or pass."""


@check(Severity.ERROR)
def unhealthy(gpus: Gpus) -> Iterator[Reading]:
    """The NVLink fabric of a GPU is unhealthy.

    Why: The GPU itself says that a route to another GPU is broken or that the fabric is set up wrongly: transfers over NVLink
        fail or hang, and jobs with them.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlFabricDefs.html
    """
    yield from _health(gpus, True)


@check(Severity.WARNING)
def degraded(gpus: Gpus) -> Iterator[Reading]:
    """The NVLink fabric of a GPU works with less than its full strength.

    Why: Some of its links are lost or are being repaired: collectives on this node are slower, for a while or until somebody
        looks after it.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlFabricDefs.html
    """
    yield from _health(gpus, False)


def _health(gpus: Gpus, broken: bool) -> Iterator[Reading]:
    """A reading of each GPU that tells of its fabric's health; drivers before R550 do not."""
    for gpu, fabric in _fabrics(gpus):
        if fabric.unhealthy is None and fabric.health is None:
            continue
        found = [words for words in _ailments(fabric) if (words.split(":")[0] in BROKEN) is broken]
        said = "; ".join(map(_sentence, found))
        yield Reading(
            ok=not found,
            subject=label(gpu),
            measured=said or ("healthy" if not _ailments(fabric) else "no such fault"),
            expected="a healthy fabric",
            message=f"{label(gpu)}: {said}",
        )


def _ailments(fabric: GpuFabric) -> Sequence[str]:
    """The parts that are not well; the summary where no part is named."""
    if fabric.unhealthy:
        return fabric.unhealthy
    return [fabric.health] if fabric.health in ("unhealthy", "limited_capacity") else []


def _sentence(ailment: str) -> str:
    """ "incorrect_configuration:insufficient_nvlinks" -> it is set up wrongly (insufficient nvlinks)."""
    name, _, kind = ailment.partition(":")
    sentence = SENTENCES.get(name, name.replace("_", " "))
    return f"{sentence} ({kind.replace('_', ' ')})" if kind else sentence


# --------------------------------------------------------------------------- fabric manager


@check(Severity.ERROR)
def manager_not_running(fabric: Fabric, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Reading]:
    """NVSwitches are here and no fabric manager runs.

    Why: The fabric manager sets up the switches. Without it CUDA does not start on any GPU behind them: "CUDA error 802: system
        not yet initialized". On GB200 and GB300 it runs on the rack's switches and is not looked for here.
    See: https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide
    """
    if _needs_manager(fabric, gpus, os) and not _all_registered(gpus):
        yield _manager(known(fabric.manager_running, fabric, "manager_running"), fabric, "CUDA does not start")


@check(Severity.WARNING)
def manager_stopped(fabric: Fabric, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Reading]:
    """The fabric manager no longer runs, though all GPUs have joined the NVLink fabric.

    Why: What it has set up goes on working; the next reset of a GPU, restart of the driver or error of an NVLink finds nobody to
        deal with it.
    See: https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide
    """
    if _needs_manager(fabric, gpus, os) and _all_registered(gpus):
        running = known(fabric.manager_running, fabric, "manager_running")
        yield _manager(running, fabric, "nobody looks after the NVSwitches")


def _needs_manager(fabric: Fabric, gpus: Optional[Gpus], os: Optional[Os]) -> bool:
    """Does the fabric manager belong on this host? Its switches are on the bus, or the model on bare metal says so."""
    if fabric.nvswitches:
        return True
    if os is None or os.virtualisation != "":  # the provider of a guest may run it outside
        return False
    models = [product(gpu) for gpu in (answering(gpus) if gpus else ())]
    return len(models) > 1 and all(model is not None and model.manager == "always" for model in models)


def _all_registered(gpus: Optional[Gpus]) -> bool:
    told = _fabrics(gpus) if gpus else []
    return bool(told) and all(_is_registered(fabric) for _, fabric in told)


def _manager(running: bool, fabric: Fabric, effect: str) -> Reading:
    switches = plural(len(fabric.nvswitches or ()), "NVSwitch", "NVSwitches")
    installed = ", not installed" if fabric.manager_installed is False else ""
    return Reading(
        ok=running,
        measured=f"{switches} on the bus, fabric manager {'runs' if running else 'does not run' + installed}",
        expected="nvidia-fabricmanager runs",
        message=f"the fabric manager does not run: {effect}",
    )


@check(Severity.ERROR)
def manager_version_differs(fabric: Fabric, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """The fabric manager is of another version than the NVIDIA driver.

    Why: It talks to the driver by an interface that changes with every release and refuses to start on any other: the GPUs are
        not set up after the next start. An upgrade of the driver alone is the usual reason.
    See: https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide
    """
    if not _needs_manager(fabric, gpus, os) or fabric.manager_installed is False:
        return
    version = known(fabric.manager_version, fabric, "manager_version")
    driver = gpus.kernel_module or known(gpus.driver, gpus, "driver")
    yield Reading(
        ok=version == driver,
        measured=f"fabric manager {version}, driver {driver}",
        expected=f"fabric manager {driver}",
        message=f"the fabric manager {version} does not work with the driver {driver}",
    )


@check(Severity.ERROR)
def subnet_manager_not_running(fabric: Fabric, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """The NVLink subnet manager does not run, and GPUs have not joined the fabric.

    Why: On boards with B200 and newer the switches are set up by nvlsm, which the fabric manager starts and needs. Without it the
        GPUs stay "in progress" and CUDA does not start.
    See: https://docs.nvidia.com/datacenter/tesla/pdf/fabric-manager-user-guide.pdf
    """
    if fabric.nvswitches or not _needs_manager(fabric, gpus, os):
        return
    running = known(fabric.subnet_manager_running, fabric, "subnet_manager_running")
    yield Reading(
        ok=running or _all_registered(gpus),
        measured="nvlsm runs" if running else "nvlsm does not run",
        expected="nvlsm runs",
        message="the NVLink subnet manager (nvlsm) does not run: the GPUs cannot join the fabric",
    )


# --------------------------------------------------------------------------- NVLink between nodes


@check(Severity.WARNING)
def cliques_differ(gpus: Gpus) -> Iterator[Reading]:
    """The GPUs of this node are in different parts of the NVLink fabric.

    Why: GPUs with different cluster or clique ids reach one another over the network or PCIe only, though they sit side by side:
        the rack was divided between them, or one of them was left out.
    See: https://docs.nvidia.com/multi-node-nvlink-systems/partition-guide-v1-2.pdf
    """
    groups: Dict[Tuple[str, Optional[int]], List[int]] = {}
    for gpu, fabric in _fabrics(gpus):
        if _is_registered(fabric) and fabric.cluster_uuid is not None:
            groups.setdefault((fabric.cluster_uuid, fabric.clique_id), []).append(gpu.index)
    if sum(map(len, groups.values())) > 1 and any(uuid for uuid, _ in groups):
        yield Reading(
            ok=len(groups) == 1,
            measured="; ".join(f"GPU {', '.join(map(str, where))}: {_clique(*key)}" for key, where in groups.items()),
            expected="one cluster and clique id",
            message=f"the GPUs of this node are in {len(groups)} parts of the NVLink fabric",
        )


def _clique(uuid: str, clique: Optional[int]) -> str:
    return f"clique {clique} of {uuid}" if uuid else "no cluster"


@check(Severity.WARNING, several_nodes=True)
def no_cluster(gpus: Gpus) -> Iterator[Reading]:
    """GPUs made for NVLink between nodes belong to no NVLink cluster.

    Why: On racks of GB200 and GB300 the nodes reach one another over NVLink, when their cluster id is not zero. With a zero NCCL
        takes the network, which is many times slower.
    See: https://docs.nvidia.com/multi-node-nvlink-systems/mnnvl-user-guide/mnnvl-user-guide.pdf
        https://github.com/NVIDIA/nccl/blob/master/src/mnnvl.cc
    """
    for gpu, fabric in _fabrics(gpus):
        model = product(gpu)
        if model is not None and model.manager == "rack" and fabric.cluster_uuid is not None:
            yield Reading(
                ok=fabric.cluster_uuid != "",
                subject=label(gpu),
                measured=f"cluster {fabric.cluster_uuid}" if fabric.cluster_uuid else "cluster id zero",
                expected="a cluster id",
                message=f"{label(gpu)} belongs to no NVLink cluster: other nodes are reached over the network",
            )


@check(Severity.ERROR, several_nodes=True)
def imex_channel_missing(fabric: Fabric, gpus: Gpus, env: Optional[Env] = None) -> Iterator[Reading]:
    """NVLink joins this node with others, and there is no IMEX channel to share memory by.

    Why: NCCL sees the cluster, tries to share GPU memory over it and stops: "MNNVL is available but not working on this system.
        Check the IMEX channel configuration". Channels are device nodes that an administrator, the driver's option
        NVreg_CreateImexChannel0 or the container runtime makes. A job on one node needs none.
    See: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html
        https://github.com/NVIDIA/nccl/blob/master/src/mnnvl.cc
    """
    if _joins_nodes(gpus, env):
        channels = known(fabric.imex_channels, fabric, "imex_channels")
        yield Reading(
            ok=bool(channels),
            measured=plural(len(channels), "IMEX channel"),
            expected="at least one in /dev/nvidia-caps-imex-channels",
            message="there is no IMEX channel: NCCL fails between the nodes of this NVLink cluster",
        )


@check(Severity.ERROR, several_nodes=True)
def imex_not_running(fabric: Fabric, gpus: Gpus, env: Optional[Env] = None) -> Iterator[Reading]:
    """NVLink joins this node with others, and the IMEX daemon does not run.

    Why: The daemon nvidia-imex passes memory handles between the nodes. Without it NCCL stops with "MNNVL is available but not working on
        this system. Check the IMEX configuration".
    See: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/deployment.html
        https://github.com/NVIDIA/nccl/blob/master/src/mnnvl.cc
    """
    if _joins_nodes(gpus, env):
        running = known(fabric.imex_running, fabric, "imex_running")
        yield Reading(
            ok=running,
            measured="nvidia-imex runs" if running else "nvidia-imex does not run",
            expected="nvidia-imex runs",
            message="the IMEX daemon does not run: NCCL fails between the nodes of this NVLink cluster",
        )


def _joins_nodes(gpus: Gpus, env: Optional[Env]) -> bool:
    """The GPUs are in a cluster with others, and NCCL is not told to leave it alone."""
    if env is not None and env.get("NCCL_MNNVL_ENABLE") is not None and nccl.integer(env.get("NCCL_MNNVL_ENABLE")) == 0:
        return False
    return any(fabric.cluster_uuid for _, fabric in _fabrics(gpus))

"""Checks of NVLink: are the links that this GPU model has up and fast, and may the GPUs reach one another's memory."""

from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor import nccl
from ddp_doctor.accelerators import answering, label
from ddp_doctor.facts import Env, Gpu, Gpus, NvLink, Os, Reason
from ddp_doctor.gpu_models import is_datacenter
from ddp_doctor.model import Reading, Severity, check, unknown
from ddp_doctor.nvlink import Product, active_links, bonds, product
from ddp_doctor.thresholds import bound
from ddp_doctor.units import plural

GPUS_OF_A_BOARD = 8
"""GPUs on an HGX board with NVSwitches (NVIDIA's fabric manager guide, GPU baseboard topologies)."""

# --------------------------------------------------------------------------- links


@check(Severity.ERROR)
def links_inactive(gpus: Gpus, os: Optional[Os] = None) -> Iterator[Reading]:
    """A GPU on NVSwitches has fewer active NVLinks than its model has.

    Why: Each of these links goes to a switch, and all are up on a sound node. A GPU that lost one is slower to every other,
        NVLink multicast (NVLS) is off for all, and the fabric manager may take the GPU off the fabric altogether: NCCL then
        fails with "P2P is disabled between NVLINK connected GPUs". The link, the GPU or the board is to be looked at. In a
        virtual machine with some of a board's GPUs part of the links is unused by design: there GPUs are compared.
    See: https://docs.nvidia.com/health-validation/reference/checks/nvlink
        https://docs.nvidia.com/datacenter/tesla/pdf/fabric-manager-user-guide.pdf
    """
    switched = [(gpu, known) for gpu, known in _judged(gpus) if known is not None and known.joined == "switch"]
    if not any(active_links(gpu) for gpu, _ in switched):  # no_links_active
        return
    is_part = bool(os and os.virtualisation) and len(switched) < GPUS_OF_A_BOARD
    for gpu, known in switched:
        if known is not None and gpu.nvlinks is not None:
            best = _best(gpu, [other for other, _ in switched])
            yield _links(gpu, best if is_part else known.links or best, known)
        else:
            yield unknown(gpu, "nvlinks", label(gpu))


@check(Severity.WARNING)
def links_missing(gpus: Gpus) -> Iterator[Reading]:
    """Some of a GPU's NVLinks to its neighbours are active and others are not.

    Why: A pair of GPUs is joined by all links of its bridges, and the GPUs of a board by equally many each. Some links only:
        a bridge that is missing or not quite in its place, or a broken link. NCCL runs with what is left, and slower. GPUs
        without any bridge are no fault, nor are pairs beside single ones.
    See: https://docs.nvidia.com/datacenter/dcgm/latest/learn/core-services/topology-and-links.html
    """
    judged = _judged(gpus)
    for gpu, known in judged:
        if known is not None and known.joined == "switch":
            continue
        best = _best(gpu, [other for other, _ in judged])
        if known is not None and known.joined == "bridge":
            best = known.links or best
        is_mesh = known is not None and known.joined == "mesh"
        if gpu.nvlinks is None:
            yield unknown(gpu, "nvlinks", label(gpu))
        elif active_links(gpu) or (best and is_mesh):  # elsewhere a GPU may have no neighbour
            yield _links(gpu, best, known)


@check(Severity.WARNING)
def no_links_active(gpus: Gpus) -> Iterator[Reading]:
    """None of the NVLinks between the GPUs of this node is active, though they are made for it.

    Why: NCCL then sends everything over PCIe or the host's memory, at a tenth of the speed. The fabric manager may not run, the
        driver may be told to leave NVLink off (NVreg_NvLinkDisable), or a virtual machine was given GPUs without their switches.
    See: https://docs.nvidia.com/datacenter/tesla/pdf/fabric-manager-user-guide.pdf
    """
    judged = [(gpu, known) for gpu, known in _judged(gpus) if known is not None and known.joined in ("switch", "mesh")]
    known_links = [gpu for gpu, _ in judged if gpu.nvlinks is not None]
    if len(known_links) > 1:
        active = sum(map(active_links, known_links))
        yield Reading(
            ok=active > 0,
            measured=f"{plural(active, 'active NVLink')} on {plural(len(known_links), 'GPU')}",
            expected="active NVLinks",
            message=f"the {len(known_links)} GPUs have no NVLink between them: NCCL will use PCIe",
        )


def _judged(gpus: Gpus) -> List[Tuple[Gpu, Optional[Product]]]:
    """GPUs whose links matter and what their model has: none where there is one GPU alone, or it is divided by MIG."""
    whole = [gpu for gpu in answering(gpus) if gpu.mig != "enabled" and "nvlinks" not in gpu.unsupported]
    told = [gpu for gpu in whole if gpu.nvlinks is not None]
    return [(gpu, product(gpu)) for gpu in whole] if len(whole) > 1 and told else []


def _best(gpu: Gpu, others: Sequence[Gpu]) -> int:
    """The most active links of a GPU of the same name."""
    return max((active_links(other) for other in others if other.name == gpu.name), default=0)


def _links(gpu: Gpu, expected: int, known: Optional[Product]) -> Reading:
    active = active_links(gpu)
    down = [str(link.link) for link in gpu.nvlinks or () if link.active is False]
    which = f" (not active: {', '.join(down)})" if down and active < expected else ""
    return Reading(
        ok=active >= expected,
        subject=label(gpu),
        measured=plural(active, "active NVLink") + which,
        expected=f"{expected} active NVLinks",
        message=f"{label(gpu)} has {active} of {expected} NVLinks",
        source=known.source if known is not None and known.source.startswith("https://") else "",
    )


@check(Severity.WARNING)
def link_slow(gpus: Gpus) -> Iterator[Reading]:
    """An NVLink runs slower than the links of this GPU model do.

    Why: A collective is as fast as its slowest link: a link that trained at a lower speed slows down all GPUs.
    See: https://docs.nvidia.com/health-validation/reference/checks/nvlink
    """
    share = (bound("nvlink.speed_share").warning or 0.0) / 100
    judged = _judged(gpus)
    for gpu, known in judged:
        speeds = _speeds(gpu)
        normal = known.link_gb_s if known is not None and known.link_gb_s else _fastest(gpu, [g for g, _ in judged])
        if speeds and normal:
            slow = {link: speed for link, speed in speeds.items() if speed < share * normal}
            yield Reading(
                ok=not slow,
                subject=label(gpu),
                measured=", ".join(f"link {link} at {speed:g} GB/s" for link, speed in slow.items())
                or f"{min(speeds.values()):g} GB/s a link",
                expected=f"about {normal:g} GB/s a link and direction",
                message=f"{label(gpu)} has {plural(len(slow), 'NVLink')} below its speed",
            )


def _speeds(gpu: Gpu) -> Dict[int, float]:
    links = gpu.nvlinks or ()
    return {link.link: link.speed_gb_s for link in links if link.active and link.speed_gb_s is not None}


def _fastest(gpu: Gpu, others: Sequence[Gpu]) -> float:
    return max((speed for g in others if g.name == gpu.name for speed in _speeds(g).values()), default=0.0)


@check(Severity.NOTE)
def link_errors(gpus: Gpus) -> Iterator[Reading]:
    """An NVLink has counted many errors since the driver was loaded.

    Why: Links repair what they can: a few replays over weeks are nothing. Many, or links that had to be trained again, tell of a
        link that is about to fail. How old the errors are these totals do not tell: a second reading does (--sample).
    See: https://docs.nvidia.com/datacenter/dcgm/latest/learn/core-services/topology-and-links.html
        https://facebookresearch.github.io/gcm/docs/GCM_Health_Checks/health_checks/check-dcgmi/nvlink
    """
    for gpu in answering(gpus):
        counted = [link for link in gpu.nvlinks or () if link.errors is not None]
        if counted:
            many = [f"link {link.link}: {words}" for link in counted for words in [_many(link)] if words]
            yield Reading(
                ok=not many,
                subject=label(gpu),
                measured="; ".join(many) or "few errors or none",
                expected="few errors since the driver was loaded",
                message=f"{plural(len(many), 'NVLink')} of {label(gpu)} counted many errors",
            )


_BOUNDS = {
    "replay": "nvlink.replays",
    "recovery": "nvlink.recoveries",
    "link_recovery": "nvlink.recoveries",
    "link_recovery_failed": "nvlink.damaged_packets",
    "malformed_packets": "nvlink.damaged_packets",
    "buffer_overruns": "nvlink.damaged_packets",
}
"""Counter -> its bound. Symbol and effective errors of NVLink 5 are corrected by design, CRC errors lead to replays."""


def _many(link: NvLink) -> str:
    """The counters beyond their bounds, in words."""
    errors = {name: (link.errors or {}).get(name, 0) for name in _BOUNDS}
    return ", ".join(
        f"{count} {name.replace('_', ' ')}"
        for name, count in errors.items()
        if count > (bound(_BOUNDS[name]).warning or 0.0)
    )


# --------------------------------------------------------------------------- peer access


@check(Severity.ERROR)
def peer_access_denied(gpus: Gpus, env: Optional[Env] = None) -> Iterator[Reading]:
    """GPUs that NVLink joins may not reach one another's memory.

    Why: NCCL takes this for broken hardware and stops: "P2P is disabled between NVLINK connected GPUs ... probably due to a
        hardware issue", ncclUnhandledCudaError. The usual reasons are a GPU that the fabric manager did not admit to the fabric
        or took off it after a link failed, and a broken link.
    See: https://github.com/NVIDIA/nccl/blob/master/src/graph/paths.cc
        https://github.com/NVIDIA/nccl/issues/2329
    """
    if env is not None and nccl.integer(env.get("NCCL_P2P_DISABLE")) == 1:
        return
    joined = bonds(answering(gpus))
    for gpu in _whole(gpus):
        others = [b if a == gpu.index else a for a, b in joined if gpu.index in (a, b)]
        yield from _peers(gpu, others, "NCCL will not start on these GPUs")


@check(Severity.WARNING)
def peer_access_missing(gpus: Gpus, os: Optional[Os] = None, env: Optional[Env] = None) -> Iterator[Reading]:
    """GPUs made for servers may not reach one another's memory over PCIe.

    Why: NCCL then copies through the host's memory, several times slower. The chipset or its settings (ACS, IOMMU) or a setting
        of the driver forbid it. GeForce cards do not have it by design and are not judged, nor are GPUs on different sockets.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-direct
    """
    if os is not None and os.virtualisation == "":
        yield from _over_pcie(gpus, env)


@check(Severity.NOTE)
def peer_access_missing_in_guest(gpus: Gpus, os: Optional[Os] = None, env: Optional[Env] = None) -> Iterator[Reading]:
    """The GPUs of this virtual machine may not reach one another's memory over PCIe.

    Why: Hypervisors seldom allow it, and the guest cannot change that: NCCL copies through the guest's memory, which is slower.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-direct
    """
    if os is not None and os.virtualisation:
        yield from _over_pcie(gpus, env)


def _over_pcie(gpus: Gpus, env: Optional[Env]) -> Iterator[Reading]:
    """Readings of GPUs for servers that no NVLink joins; none where NCCL is told not to use it."""
    if env is not None and nccl.integer(env.get("NCCL_P2P_DISABLE")) == 1:
        return
    joined, whole = bonds(answering(gpus)), _whole(gpus)
    for gpu in whole:
        alike = [other for other in whole if other.index != gpu.index and other.name == gpu.name]
        apart = [o.index for o in alike if (min(gpu.index, o.index), max(gpu.index, o.index)) not in joined]
        if is_datacenter(gpu):
            yield from _peers(gpu, apart, "NCCL copies through the host's memory", ("topology_not_supported",))


def _whole(gpus: Gpus) -> List[Gpu]:
    """GPUs that answer and are not divided by MIG, which has no peer access."""
    return [gpu for gpu in answering(gpus) if gpu.mig != "enabled"]


def _peers(gpu: Gpu, others: Sequence[int], effect: str, by_design: Tuple[str, ...] = ()) -> Iterator[Reading]:
    """One reading of a GPU's access to ``others``; none where there are none."""
    if not others:
        return
    if gpu.peers is None:
        yield unknown(gpu, "peers", label(gpu))
        return
    told = {other: gpu.peers.get(str(other), "unknown") for other in others}
    denied = {other: word for other, word in told.items() if word not in ("ok", "unknown", *by_design)}
    if set(told.values()) == {"unknown"}:
        yield Reading(ok=None, subject=label(gpu), reason=Reason("unreadable", "NVML does not tell of peer access"))
    else:
        which = ", ".join(map(str, denied))
        yield Reading(
            ok=not denied,
            subject=label(gpu),
            measured="; ".join(f"GPU {other}: {word.replace('_', ' ')}" for other, word in denied.items()) or "allowed",
            expected="peer access to the other GPUs",
            message=f"{label(gpu)} may not reach the memory of GPU {which}: {effect}",
        )

"""Checks of the software between NCCL and the RDMA devices: libibverbs, its providers, network plug-ins."""

from typing import Iterator, List, Optional, Tuple

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Gpus, Os, Rdma, RdmaDevice, Torch
from ddp_doctor.model import Reading, Severity, check, known, unknown, why_unknown


def _devices(rdma: Rdma, env: Env, torch: Optional[Torch]) -> List[RdmaDevice]:
    """Devices that NCCL would use if it can open them; none where the environment sends it elsewhere."""
    if nccl.overridden(env) is not None:
        return []
    ports = nccl.hca_ports(known(rdma.devices, rdma, "devices"), env, nccl.version_of(torch))
    found = {port.device.name: port.device for port in ports if port.active}
    return [device for device in found.values() if nccl.node_of(rdma, device)]


@check(Severity.ERROR, several_nodes=True)
def verbs_library_missing(rdma: Rdma, env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """The library by which NCCL reaches RDMA devices, libibverbs.so.1, is not installed.

    Why: NCCL loads it when it starts. Without it NCCL says "Failed to open libibverbs.so[.1]" at level INFO only and takes TCP,
        ten to a hundred times slower. A container needs it inside, whatever the host has.
    See: https://github.com/NVIDIA/nccl/issues/1410
        https://github.com/NVIDIA/nccl/issues/229
    """
    if _devices(rdma, env, torch):
        path = known(rdma.verbs_library, rdma, "verbs_library")
        yield Reading(
            ok=bool(path),
            measured=path or "the loader finds no libibverbs.so.1",
            expected="libibverbs.so.1 on the library path",
            message="NCCL cannot load libibverbs and takes TCP",
        )


@check(Severity.ERROR, several_nodes=True)
def device_cannot_be_opened(
    rdma: Rdma, env: Env, os: Optional[Os] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """An RDMA device that NCCL would use is not listed by libibverbs or cannot be opened.

    Why: Each kind of adapter needs a provider, a library of its own below libibverbs ("no userspace device-specific driver
        found"), and one that fits the kernel's driver: those of another verbs stack or of an older image do not. A container may
        also be forbidden to open a device that it sees. NCCL leaves such adapters out or takes TCP; one that hangs hangs it.
    See: https://github.com/NVIDIA/k8s-test-infra/issues/558
        https://github.com/NVIDIA/nccl/issues/2428
        https://github.com/Mellanox/k8s-rdma-shared-dev-plugin/issues/106
    """
    if rdma.verbs_library == "":
        return
    devices = [(device, *_opens(device)) for device in _devices(rdma, env, torch)]
    share = os is not None and bool(os.container) and any(ok for _, ok, _ in devices)
    for device, ok, words in devices:
        if ok is None:
            yield unknown(device, "verbs", device.name)
        elif ok or not (share and "cannot be opened" in words):  # a container is given some of the machine's
            yield Reading(
                ok=ok,
                subject=device.name,
                measured=f"{words}; providers: {', '.join(rdma.providers or ()) or 'none'}" if not ok else words,
                expected="libibverbs opens it",
                message=f"NCCL cannot use {device.name}: {words}",
            )


def _opens(device: RdmaDevice) -> Tuple[Optional[bool], str]:
    """Whether it opens, None where that is not known, and in words what was seen."""
    if device.verbs is None:
        reason = why_unknown(device, "verbs")
        return (False, reason.text) if reason.kind in ("timed-out", "crashed") else (None, "")
    words = {"not listed": "libibverbs has no provider for it"}.get(device.verbs, device.verbs)
    return device.verbs == "opens", words


@check(Severity.NOTE, several_nodes=True)
def two_verbs_stacks(rdma: Rdma) -> Iterator[Reading]:
    """There are two libibverbs on the library path.

    Why: The distribution's and NVIDIA's (MLNX_OFED, DOCA) have providers of their own. A library that meets those of the other
        finds no device or another version, and which one a process gets depends on its LD_LIBRARY_PATH.
    See: https://github.com/NVIDIA/nccl/issues/1044
    """
    libraries = known(rdma.verbs_libraries, rdma, "verbs_libraries") if rdma.devices else ()
    if libraries:
        yield Reading(
            ok=len(libraries) == 1,
            measured=", ".join(libraries),
            expected="one libibverbs.so.1",
            message=f"the loader takes {rdma.verbs_library or libraries[0]}, other processes may take another one",
        )


@check(Severity.WARNING, several_nodes=True)
def efa_without_plugin(rdma: Rdma, env: Env, gpus: Optional[Gpus] = None) -> Iterator[Reading]:
    """The node has EFA, but NCCL would not find the plug-in that drives it.

    Why: NCCL cannot use Amazon's Elastic Fabric Adapter by itself: it needs the plug-in aws-ofi-nccl (libnccl-net.so or
        libnccl-net-ofi.so) on the library path, and without it takes TCP without a word.
    See: https://github.com/aws/aws-ofi-nccl
        https://github.com/NVIDIA-NeMo/RL/pull/2359
    """
    adapters = [device.name for device in known(rdma.devices, rdma, "devices") if _is_efa(device)]
    elsewhere = nccl.overridden(env)
    if adapters and not (elsewhere and elsewhere.kind == "sockets") and not (gpus and gpus.gpus == ()):
        plugins = known(rdma.plugins, rdma, "plugins")
        yield Reading(
            ok=bool(plugins),
            measured=f"{', '.join(adapters)}; plug-ins: {', '.join(plugins) or 'none on the library path'}",
            expected="libnccl-net.so or libnccl-net-ofi.so on the library path",
            message="NCCL will not use EFA and takes TCP",
        )


def _is_efa(device: RdmaDevice) -> bool:
    return device.driver == "efa" or device.name.startswith("efa_")

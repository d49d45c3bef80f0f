"""Checks of what a container was given of the machine: devices, network interfaces, /sys."""

from typing import Iterator, Optional, Set

from ddp_doctor import nccl
from ddp_doctor.accelerators import answering, drivable, is_jetson, label, taken_away
from ddp_doctor.facts import Env, Gpus, Network, Os, Rdma, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known, unknown
from ddp_doctor.units import plural


@check(Severity.ERROR)
def gpu_devices_taken_away(gpus: Gpus, os: Os) -> Iterator[Reading]:
    """This container may no longer open the GPUs that it was given.

    Why: With systemd as the cgroup driver a "systemctl daemon-reload" on the machine (every package upgrade does one) writes
        the container's device rules anew, without GPUs that have no link in /dev/char. What runs keeps its GPUs, what starts
        afterwards gets "Failed to initialize NVML: Unknown Error".
    See: https://github.com/NVIDIA/nvidia-docker/issues/1730
        https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227
    """
    if os.container and gpus.device_nodes != () and gpus.kernel_module:
        lost = taken_away(gpus, os)
        if lost or answering(gpus):
            yield Reading(
                ok=not lost,
                measured=gpus.nvml_error or f"{plural(len(answering(gpus)), 'GPU')} can be opened",
                expected="the GPUs of this container can be opened",
                message="this container has lost its GPUs: it may no longer open them",
            )


@check(Severity.ERROR)
def driver_device_missing(gpus: Gpus, os: Os) -> Iterator[Reading]:
    """This container was given GPUs without the driver's own devices.

    Why: CUDA opens /dev/nvidiactl and /dev/nvidia-uvm beside each GPU's node; without nvidia-uvm nvidia-smi works and CUDA
        says "unknown error" (999). --device options written by hand, and a machine on which nvidia_uvm was not loaded when
        the container started, forget it. On the machine itself nvidia-modprobe makes them when they are needed.
    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
        https://github.com/NVIDIA/nvidia-docker/issues/997
        https://github.com/NVIDIA/nvidia-container-toolkit/issues/50
    """
    if os.container and gpus.device_nodes and not is_jetson(os):
        nodes = known(gpus.driver_nodes, gpus, "driver_nodes")
        for path in ("/dev/nvidiactl", "/dev/nvidia-uvm"):
            yield Reading(
                ok=path in nodes,
                subject=path,
                measured="is there" if path in nodes else "is not in this container",
                expected="in the container beside /dev/nvidia0",
                message=f"CUDA cannot start: {path} is not in this container",
            )


@check(Severity.ERROR)
def mig_devices_missing(gpus: Gpus, os: Os) -> Iterator[Reading]:
    """This container was given a GPU in MIG mode without any of its parts.

    Why: A GPU divided by MIG is used through its parts, and each needs two nodes in /dev/nvidia-caps, for the GPU instance
        and the compute instance. Without them CUDA finds no device. A process with CAP_SYS_ADMIN needs none.
    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
    """
    divided = [gpu for gpu in answering(gpus) if gpu.mig == "enabled"]
    if os.container and divided and gpus.device_nodes:
        nodes = known(gpus.driver_nodes, gpus, "driver_nodes")
        # nvidia-cap1 and nvidia-cap2 are for those who configure and watch MIG.
        parts = [
            n for n in nodes if n.startswith("/dev/nvidia-caps/") and not n.endswith(("/nvidia-cap1", "/nvidia-cap2"))
        ]
        yield Reading(
            ok=len(parts) >= 2,
            measured=f"{', '.join(map(label, divided))} in MIG mode, {plural(len(parts), 'node')} of parts",
            expected="a GPU instance's and a compute instance's node in /dev/nvidia-caps",
            message="CUDA will find no device: no part of a MIG GPU was given to this container",
        )


@check(Severity.NOTE)
def no_gpu_given(gpus: Gpus, os: Os, env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """This container asks for GPUs and was given none of the machine's.

    Why: An image made for GPUs sets NVIDIA_VISIBLE_DEVICES, but the container was started without --gpus, or by a runtime
        that does not know NVIDIA's hook. torch then says "Found no NVIDIA driver". For work without GPUs it is right so.
    See: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
    """
    asked = env.get("NVIDIA_VISIBLE_DEVICES")
    if os.container and gpus.kernel_module and drivable(gpus) and asked not in (None, "", "void", "none"):
        given = known(gpus.device_nodes, gpus, "device_nodes")
        yield Reading(
            ok=bool(given) or bool(answering(gpus)),
            measured=f"{len(given)} of the machine's {plural(len(drivable(gpus)), 'GPU')}, NVIDIA_VISIBLE_DEVICES={asked}",
            expected="at least one GPU",
            message=f"this container was given none of the machine's {plural(len(drivable(gpus)), 'GPU')}",
        )


@check(Severity.ERROR, several_nodes=True)
def roce_in_another_network(
    rdma: Rdma, network: Network, os: Os, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """The RoCE adapters that this container may open have their network interfaces outside of it.

    Why: RoCE addresses are those of an Ethernet interface, and the kernel lets a process use only interfaces of its own
        network namespace: NCCL finds no address, or dies with "ibv_modify_qp failed with error No such device".
        InfiniBand has addresses of its own and works in any namespace.
    See: https://github.com/NVIDIA/nccl/issues/925
        https://github.com/Mellanox/k8s-rdma-sriov-dev-plugin/issues/33
    """
    if not os.container or nccl.overridden(env) is not None:
        return
    ports = nccl.hca_ports(known(rdma.devices, rdma, "devices"), env, nccl.version_of(torch))
    given = [port for port in ports if port.active and nccl.node_of(rdma, port.device)]
    roce = [port for port in given if port.port.link_layer == "Ethernet"]
    if roce and roce == given:
        interfaces = known(network.interfaces, network, "interfaces")
        here = {interface.name for interface in interfaces if interface.kind != "veth"}
        if any(port.port.netdev is None and port.port.gids is None for port in roce):
            raise NotKnown(Reason("unreadable", "the GIDs of a RoCE port could not be read"))
        usable = [port.name for port in roce if _netdevs(port) & here]
        yield Reading(
            ok=bool(usable),
            measured=f"{len(usable)} of {plural(len(roce), 'RoCE port')} with an interface here ({', '.join(sorted(here))})",
            expected="the interface of at least one RoCE port in this container",
            message=f"RoCE will not work here: the interfaces of {', '.join(port.name for port in roce)} are outside",
        )


def _netdevs(port: nccl.HcaPort) -> Set[str]:
    """Interfaces of the port and of its addresses: a VLAN or macvlan on it has addresses of its own."""
    return {name for name in (port.port.netdev, *(gid.netdev for gid in port.port.gids or ())) if name}


@check(Severity.WARNING)
def pci_tree_hidden(gpus: Gpus, os: Os) -> Iterator[Reading]:
    """The PCI bus is hidden from this container.

    Why: NCCL reads from /sys how GPUs, network adapters and processors hang together. Without it every GPU seems equally far
        from every adapter, GPUDirect RDMA stays off, and rings cross the machine needlessly. A sandbox (gVisor) or a mount
        over /sys hides it; NCCL_TOPO_FILE can take its place.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file
        https://github.com/google/gvisor/pull/13114
    """
    if os.container and len(answering(gpus)) > 1 and os.virtualisation != "wsl" and not is_jetson(os):
        if gpus.on_bus is None:
            yield unknown(gpus, "on_bus")
            return
        yield Reading(
            ok=bool(gpus.on_bus),
            measured=f"{plural(len(answering(gpus)), 'GPU')} by the driver, {len(gpus.on_bus)} on the bus of /sys",
            expected="the GPUs in /sys/bus/pci/devices",
            message="NCCL cannot see how GPUs and adapters hang together: /sys shows no PCI bus here",
        )

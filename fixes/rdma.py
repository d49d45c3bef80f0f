"""Remedies for InfiniBand and RoCE."""

from typing import Iterator, Optional

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Os, Rdma, Torch
from ddp_doctor.fixes._net import NCCL_ENV, plain
from ddp_doctor.fixes._node import engine_of, install
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say, unset
from ddp_doctor.policy import Policy

VERBS = "https://docs.kernel.org/infiniband/user_verbs.html"


def required_rdma_missing(rdma: Rdma, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Load the driver where there is an adapter; look at its ports where there is a device."""
    if rdma.devices:
        yield Remedy("Bring a port up", (*_look(os), _cable()))
    else:
        yield from _driver(rdma, os)


def port_down(rdma: Rdma, env: Env, finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Cable and subnet manager; or name the ports that are meant."""
    device = plain(finding.subject.split(":")[0])
    if "RoCE" in finding.message:
        yield Remedy("Bring the link up", tuple(_interface_up(rdma, device)))
    elif "subnet manager" in finding.message:
        text = "Start a subnet manager (opensm) on the fabric, or ask why the running one leaves this port out."
        yield Remedy("Let a subnet manager make the port active", (*_look(os), say(text, who="network admin")))
    else:
        yield Remedy("Bring the link up", (*_look(os), *_phys(device), _cable()))
    active = [p for p in nccl.hca_ports(rdma.devices or (), None) if p.active]
    if active and env.get("NCCL_IB_HCA"):
        names = ",".join(dict.fromkeys(p.device.name for p in active))
        text = "Keep the list of adapters the same in number and order on all nodes: they are paired by position."
        steps = (export("NCCL_IB_HCA", f"={names}", scope="this job", see=f"{NCCL_ENV}#nccl-ib-hca"), say(text))
        yield Remedy("Name only the adapters that are meant to carry the job", steps)
    text = 'Name adapters that serve storage or management in ignore_hcas of the policy: ignore_hcas = ["mlx5_2"].'
    yield Remedy("Tell ddp-doctor that the port is down by design", (say(text),))


def port_down_beside_its_like(finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Cable; or say that it is meant so."""
    device = plain(finding.subject.split(":")[0])
    yield Remedy("Bring the link up", (*_look(os), *_phys(device), _cable()))
    text = f"ignore_hcas = [{finding.subject.split(':')[0]!r}] in the policy says so."
    yield Remedy("Tell ddp-doctor that the port is down by design", (say(text),))


def link_layers_mixed(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Remedy]:
    """Name the ports that carry the job: those of the kind that has most bandwidth."""
    ports = nccl.carrier(rdma, env, nccl.version_of(torch)).ports
    layers = nccl.by_layer(p for p in ports if not {p.name, p.device.name} & set(policy.ignore_hcas))
    (layer, meant), *rest = layers.items()
    others = {port.device.name for _, ports in rest for port in ports}
    names = ",".join(dict.fromkeys(p.name if p.device.name in others else p.device.name for p in meant))
    steps = (
        export("NCCL_IB_HCA", f"={names}", scope="this job", see=f"{NCCL_ENV}#nccl-ib-hca"),
        say("Keep the list the same in number and order on all nodes: adapters are paired by position."),
    )
    yield Remedy(f"Let NCCL use the {layer} ports alone", steps)
    text = f"ignore_hcas = [{', '.join(f'{name!r}' for name in sorted(others))}] in the policy says that they serve storage."
    yield Remedy("Tell ddp-doctor that the others are not meant", (say(text),))


def _interface_up(rdma: Rdma, device: str) -> Iterator[Step]:
    """Switch on the interfaces of RoCE ports that are down; a cable is for a person."""
    ports = (port for d in rdma.devices or () if device in ("", d.name) for port in d.ports or ())
    for port in ports:
        if port.link_layer == "Ethernet" and port.state != "ACTIVE" and plain(port.netdev):
            yield command(f"ip link set {plain(port.netdev)} up", who="root", scope="this node until reboot")
    yield say("Check cable, transceiver and switch port of these interfaces.", who="network admin")


def _look(os: Optional[Os]) -> Iterator[Step]:
    yield install(os, "infiniband-diags libibverbs-utils", "infiniband-diags ibverbs-utils")
    yield command("ibstat", scope="this node")


def _phys(device: str) -> Iterator[Step]:
    if device:
        yield command(f"ibv_devinfo -v -d {device}", scope="this node")


def _cable() -> Step:
    return say(
        "Check cable, transceiver and switch port; a port that is Disabled is switched on by ibportstate or mlxlink.",
        who="network admin",
    )


def hca_list_matches_nothing(rdma: Rdma, env: Env) -> Iterator[Remedy]:
    """Remove the list, or write names that are there."""
    see = f"{NCCL_ENV}#nccl-ib-hca"
    yield Remedy("Let NCCL take every active port", (unset("NCCL_IB_HCA", scope="this job", see=see),))
    names = ",".join(dict.fromkeys(p.device.name for p in nccl.hca_ports(rdma.devices or (), None) if p.active))
    if names:
        yield Remedy("Name adapters that are there", (export("NCCL_IB_HCA", f"={names}", scope="this job", see=see),))


def named_hca_absent(rdma: Rdma, env: Env) -> Iterator[Remedy]:
    """Find the adapter, or correct the list."""
    steps = (
        command("lspci -d 15b3:", scope="this node"),
        command("dmesg | grep -i -E 'mlx|infiniband'", who="root", scope="this node"),
        say("An adapter that lspci does not list fell off the bus: reboot or reseat it.", who="cluster admin"),
    )
    yield Remedy("Find the adapter", steps)
    yield from hca_list_matches_nothing(rdma, env)


def user_devices_missing(
    rdma: Rdma, finding: Verdict, os: Optional[Os] = None, torch: Optional[Torch] = None
) -> Iterator[Remedy]:
    """Hand the devices to the container, load the module, or give the rights."""
    if engine_of(os) == "kubernetes":
        text = "Ask for the RDMA resource of your cluster's device plug-in in the pod (resources.limits, such as rdma/hca: 1)."
        see = "https://github.com/Mellanox/k8s-rdma-shared-dev-plugin"
        yield Remedy("Give the pod the RDMA devices", (say(text, scope="this job", see=see),))
    elif engine_of(os) == "docker":
        text = "Start the container with --device=/dev/infiniband and --cap-add=IPC_LOCK."
        see = "https://docs.docker.com/reference/cli/docker/container/run/#device"
        yield Remedy("Give the container the RDMA devices", (say(text, scope="this job", see=see),))
    elif "not readable" in finding.measured or "not writable" in finding.measured:
        text = "rdma-core's udev rules give everyone read and write access; a rule of the site's own takes it away."
        steps = (
            install(os, "rdma-core", "rdma-core"),
            command("udevadm trigger --subsystem-match=infiniband_verbs", who="root"),
            say(text),
        )
        yield Remedy("Give users the right to open the devices", steps)
    else:
        see = VERBS
        keep = command(
            "echo ib_uverbs > /etc/modules-load.d/ib_uverbs.conf",
            who="root",
            scope="this node",
            undo="remove that file",
        )
        steps = (
            install(os, "rdma-core", "rdma-core"),
            command("modprobe ib_uverbs", who="root", scope="this node until reboot", see=see),
            keep,
        )
        yield Remedy("Load the module that makes the devices", steps)


def hca_without_device(rdma: Rdma, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Load the driver."""
    yield from _driver(rdma, os)


def _driver(rdma: Rdma, os: Optional[Os]) -> Iterator[Remedy]:
    mellanox = any(" 15b3:" in hca for hca in rdma.pci_hcas or ())
    if engine_of(os):
        yield Remedy(
            "Load the driver on the host", (say("Drivers belong to the host of this container.", who="cluster admin"),)
        )
    elif mellanox:
        steps = (
            install(os, "rdma-core", "rdma-core"),
            command("modprobe mlx5_ib", who="root", scope="this node until reboot", see=VERBS),
        )
        yield Remedy("Load the RDMA part of the driver", steps)
    else:
        text = "Check with lspci that the adapter is seen, and install its maker's driver."
        yield Remedy("Find the adapter and its driver", (command("lspci -nn"), say(text, who="root")))

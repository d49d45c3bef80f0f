"""Remedies for InfiniBand and RoCE."""

from typing import Iterator, Optional

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Os, Rdma, Torch
from ddp_doctor.fixes._net import NCCL_ENV, plain, without_hca
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


# --------------------------------------------------------------------------- links


def rate_below_its_like(finding: Verdict, os: Optional[Os] = None, env: Optional[Env] = None) -> Iterator[Remedy]:
    """Cable and transceiver first."""
    yield from _retrain(finding, os, env)


def link_degraded(finding: Verdict, os: Optional[Os] = None, env: Optional[Env] = None) -> Iterator[Remedy]:
    """Cable and transceiver first."""
    yield from _retrain(finding, os, env)


def _retrain(finding: Verdict, os: Optional[Os], env: Optional[Env]) -> Iterator[Remedy]:
    device = plain(finding.subject.split(":")[0])
    text = "Reseat or change the cable and its transceiver, try another switch port, and look whether the switch port's speed is set."
    look = (command(f"mlxlink -d {device} -m -c", who="root", scope="this node"),) if device else ()
    yield Remedy("Let the link train again", (*_look(os), *look, say(text, who="network admin")))
    if device:
        steps = (
            without_hca(device, env),
            say("Leave out the same adapter on all nodes: adapters are paired by position."),
        )
        yield Remedy("Until then, leave the adapter out", steps)


def firmware_differs() -> Iterator[Remedy]:
    """Update those that are behind."""
    steps = (
        command("mlxfwmanager --query", who="root", scope="this node"),
        say("Update the adapters that are behind with mlxfwmanager or the machine's maker's tool.", who="cluster admin",
            risk="the adapter is reset"),
    )  # fmt: skip
    yield Remedy("Give the adapters one firmware", steps)


def mtu_below_interface(rdma: Rdma, finding: Verdict) -> Iterator[Remedy]:
    """Let the port take the interface's MTU anew."""
    netdev = _netdev_of(rdma, finding)
    if netdev:
        steps = (
            command(
                f"ip link set {netdev} down && ip link set {netdev} up",
                who="root",
                scope="this node",
                risk="connections over it break",
            ),
            say("Load the adapter's driver anew, or reboot, where that does not help.", who="root"),
        )
        yield Remedy("Let the port take the MTU of its interface", steps)


def mtu_below_adapter(rdma: Rdma, finding: Verdict) -> Iterator[Remedy]:
    """RoCE: a larger interface MTU everywhere; InfiniBand: the subnet manager."""
    netdev = _netdev_of(rdma, finding) if "MTU of" in finding.message else ""
    if netdev:
        steps = (
            say("Let the switches pass packets of 9216 bytes first.", who="network admin"),
            command(
                f"ip link set {netdev} mtu 9000", who="root", scope="this node until reboot", undo="the MTU it had"
            ),
            say("Set the same on all nodes, and in the network configuration so that it stays.", scope="all nodes"),
        )
        yield Remedy("Raise the MTU of the interfaces on all nodes and switches", steps)
    else:
        text = "Ask which MTU the subnet manager and the switch ports allow (opensm: mtu=5 in partitions.conf is 4096 bytes)."
        yield Remedy("Let the subnet manager allow 4096 bytes", (say(text, who="network admin"),))


def _netdev_of(rdma: Rdma, finding: Verdict) -> str:
    """The interface of the port that was found, for a command line."""
    ports = (port for port in nccl.hca_ports(rdma.devices or (), None) if port.name == finding.subject)
    return next((plain(port.port.netdev) for port in ports), "")


_PARTITIONS = "https://raw.githubusercontent.com/linux-rdma/opensm/master/doc/partition-config.txt"


def partition_key_missing(env: Env) -> Iterator[Remedy]:
    """Unset a wrong row; else the subnet manager writes the table."""
    if env.get("NCCL_IB_PKEY"):
        yield Remedy("Let NCCL use the first row", (unset("NCCL_IB_PKEY", scope="this job"),))
    yield _membership()


def partition_member_limited() -> Iterator[Remedy]:
    """The subnet manager's configuration."""
    yield _membership()


def _membership() -> Remedy:
    text = "Give the ports of all compute nodes full membership of one partition in the subnet manager (opensm: partitions.conf, UFM)."
    return Remedy("Make the ports full members of a partition", (say(text, who="network admin", see=_PARTITIONS),))


# --------------------------------------------------------------------------- addresses and priorities


def gid_interface_down(finding: Verdict) -> Iterator[Remedy]:
    """Switch it on; or let NCCL take another row."""
    netdev = plain(finding.measured.split(" ")[0])
    if netdev:
        yield Remedy(
            "Bring the interface up", (command(f"ip link set {netdev} up", who="root", scope="this node until reboot"),)
        )
    yield Remedy(
        "Let NCCL choose another row",
        (unset("NCCL_IB_GID_INDEX", scope="this job", see=f"{NCCL_ENV}#nccl-ib-gid-index"),),
    )


_SUBNET = "https://docs.kernel.org/networking/ip-sysctl.html"


def rails_share_subnet(finding: Verdict) -> Iterator[Remedy]:
    """Kernel settings at once; a subnet for each rail in the long run."""
    settings = "net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
    strict = [
        part.split()[0] for part in finding.measured.rpartition(": ")[2].split(", ") if part.endswith("rp_filter 1")
    ]
    loose = "".join(f" net.ipv4.conf.{plain(name)}.rp_filter=2" for name in strict if plain(name))
    steps = (
        command(f"sysctl -w {settings}{loose}", who="root", scope="this node until reboot", see=_SUBNET),
        say("Write the same into /etc/sysctl.d/90-roce.conf, on all nodes, and clear the neighbour tables (ip neigh flush all).",
            who="root", scope="all nodes"),
    )  # fmt: skip
    yield Remedy("Let every interface answer for its own address only", steps)
    text = "Put each rail into a subnet of its own, the same rail of all nodes into the same one."
    yield Remedy("Separate the rails", (say(text, who="network admin"),))


def priorities_differ(rdma: Rdma) -> Iterator[Remedy]:
    """Look at each; what is right is the network's to say."""
    ports = nccl.hca_ports(rdma.devices or (), None)
    names = dict.fromkeys(plain(p.port.netdev) for p in ports if p.port.link_layer == "Ethernet" and p.active)
    looks = (command(f"mlnx_qos -i {name}", who="root", scope="this node") for name in names if name)
    text = (
        "Set trust, PFC and traffic class as the switches have them, on every adapter, and make it stay over a reboot."
    )
    yield Remedy("Give all RoCE ports the same settings", (*looks, say(text, who="network admin")))


def traffic_class_not_trusted(rdma: Rdma, finding: Verdict) -> Iterator[Remedy]:
    """Trust DSCP on the interface."""
    netdev = _netdev_of(rdma, finding)
    if netdev:
        steps = (
            command(f"mlnx_qos -i {netdev} --trust dscp", who="root", scope="this node until reboot",
                    undo=f"mlnx_qos -i {netdev} --trust pcp"),
            say("The switches must trust DSCP too, with the same priorities.", who="network admin"),
        )  # fmt: skip
        yield Remedy("Let the adapter sort packets by DSCP", steps)


def few_ports_for_gpus(env: Env) -> Iterator[Remedy]:
    """Find those that are missing."""
    if env.get("NCCL_IB_HCA"):
        yield Remedy("Let NCCL take every active port", (unset("NCCL_IB_HCA", scope="this job"),))
    steps = (command("ibv_devices", scope="this node"), command("lspci -d 15b3:", scope="this node"))
    text = "Compare with a node of the same kind; in a container ask for all of its adapters."
    yield Remedy("Find out whether adapters are missing", (*steps, say(text)))


# --------------------------------------------------------------------------- libibverbs and plug-ins


def verbs_library_missing(os: Optional[Os] = None) -> Iterator[Remedy]:
    """Install it, where the job runs."""
    inside = "Build the image with it: the library of the host does not count." if engine_of(os) else ""
    steps = (_rdma_core(os), *((say(inside),) if inside else ()))
    yield Remedy("Install libibverbs and its providers", steps)


def device_cannot_be_opened(finding: Verdict, os: Optional[Os] = None) -> Iterator[Remedy]:
    """A provider is installed; rights are given; a hanging adapter is reset."""
    if "no answer" in finding.measured:
        look = command("dmesg | grep -i -E 'mlx|infiniband'", who="root", scope="this node")
        yield Remedy(
            "Look after the adapter",
            (look, say("An adapter that does not answer needs a reboot.", who="cluster admin")),
        )
    elif "cannot be opened" in finding.measured and engine_of(os):
        text = "Give the container the device: --device=/dev/infiniband, or the RDMA resource of the cluster's device plug-in."
        yield Remedy("Let the container open the device", (say(text, scope="this job"),))
    else:
        text = "Use the libibverbs of one maker only: that of the distribution with the kernel's driver, or MLNX_OFED's with its own."
        yield Remedy("Install the provider of this adapter", (_rdma_core(os), say(text)))


def _rdma_core(os: Optional[Os]) -> Step:
    return install(os, "libibverbs rdma-core", "libibverbs1 ibverbs-providers")


def two_verbs_stacks(rdma: Rdma) -> Iterator[Remedy]:
    """Keep the one that fits the kernel's driver."""
    text = "Keep the libibverbs that belongs to the kernel's driver (modinfo mlx5_ib says whose it is) and take the other off the path."
    yield Remedy(
        "Keep one verbs stack", (command("ldconfig -p | grep libibverbs", scope="this node"), say(text, who="root"))
    )


def efa_without_plugin(os: Optional[Os] = None) -> Iterator[Remedy]:
    """Put the plug-in on the path, or install it."""
    folder = "/opt/amazon/ofi-nccl/lib"
    steps = (
        command("find /opt/amazon /opt/aws-ofi-nccl /usr/local -name 'libnccl-net*.so'", scope="this node"),
        export("LD_LIBRARY_PATH", f"{folder}:$LD_LIBRARY_PATH", scope="this job"),
        say("Write the folder in which it was found; the EFA installer puts it below /opt/amazon."),
    )
    yield Remedy("Put the plug-in on the library path", steps)
    text = "Install it with the EFA installer or from its releases" + (", in the image." if engine_of(os) else ".")
    yield Remedy("Install the plug-in", (say(text, who="root", see="https://github.com/aws/aws-ofi-nccl"),))

"""Checks of InfiniBand and RoCE: can NCCL use the adapters (HCAs) that this node has?"""

from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ddp_doctor import nccl
from ddp_doctor.facts import Env, Network, Os, Rdma, RdmaDevice, Torch
from ddp_doctor.model import Reading, Severity, check, known, unknown, why_unknown
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural


@check(Severity.ERROR)
def required_rdma_missing(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """The policy requires RDMA and this node has no port that NCCL could use.

    Why: A node without its InfiniBand or RoCE joins the job over TCP, and the whole job runs at its speed.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html
    """
    if "rdma" in policy.require:
        ports = nccl.hca_ports(rdma.devices or (), env, nccl.version_of(torch))
        active = [port for port in ports if port.active]
        unread = why_unknown(rdma, "devices").text if rdma.devices is None else ""
        yield Reading(  # what is required and could not be read is no better than what is not there
            ok=bool(active),
            measured=unread or _states(active or ports) or _nothing(rdma, env),
            expected="an active RDMA port",
            message="this node has no RDMA port that is known to be usable",
        )


def _nothing(rdma: Rdma, env: Env) -> str:
    """What was looked at where there is no port: the RDMA devices, those that NCCL_IB_HCA leaves out, the PCI bus."""
    devices = ", ".join(device.name for device in rdma.devices or ())
    left_out = f" (NCCL_IB_HCA={env.get('NCCL_IB_HCA')})" if devices and env.get("NCCL_IB_HCA") else ""
    bus = "could not be read" if rdma.pci_hcas is None else "; ".join(rdma.pci_hcas) or "no RDMA adapter"
    here = f"none of the ports of {devices} is for NCCL{left_out}" if devices else "/sys/class/infiniband is empty"
    return f"{here}; on the PCI bus: {bus}"


@check(Severity.ERROR, several_nodes=True)
def port_down(
    rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None, network: Optional[Network] = None
) -> Iterator[Reading]:
    """An RDMA port that NCCL should use is not active.

    Why: NCCL passes over it without a word. Nodes then have different lists of ports and pair the wrong ones, or all
        traffic goes by TCP. Only what NCCL_IB_HCA names must be up: second, storage and DPU ports are down by design. Without
        such names one active port will do, and an Ethernet port whose interface has no address is an ordinary NIC that
        nobody uses.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
        https://docs.kernel.org/admin-guide/abi-stable-files.html
    """
    devices = known(rdma.devices, rdma, "devices")
    if nccl.overridden(env) is None:
        for device in devices:
            if device.ports is None:
                yield unknown(device, "ports", device.name)
        for group in _groups(devices, env, policy, nccl.version_of(torch), network):
            yield _group_reading(group)


class _Group(NamedTuple):
    """Ports of which at least one must be active."""

    subject: str
    ports: Tuple[nccl.HcaPort, ...]


def _groups(
    devices: Sequence[RdmaDevice],
    env: Env,
    policy: Policy,
    version: Optional[nccl.Version],
    network: Optional[Network],
) -> Iterator[_Group]:
    """One group per HCA or port that NCCL_IB_HCA names; all ports together where it names none."""
    ports = [p for p in nccl.hca_ports(devices, env, version) if not {p.name, p.device.name} & set(policy.ignore_hcas)]
    named = nccl.hca_list(env, version)
    if named is None or named.negated or not named.tokens:
        meant = [port for port in ports if "rdma" in policy.require or not _idle_nic(port, network)]
        if meant:
            yield _Group("", tuple(meant))
        return
    names = {device.name for device in devices}
    for token in named.tokens:
        whole = [p for p in ports if named.takes(token, p.device.name, p.port.port)]
        exact = [p for p in whole if p.device.name == token.name]
        taken = exact if token.name in names else whole
        if taken:
            yield _Group(taken[0].name if token.port != nccl.ANY_PORT else token.name, tuple(taken))


def _idle_nic(port: nccl.HcaPort, network: Optional[Network]) -> bool:
    """Is it the port of an Ethernet card that has no link and no address, nor a bond or VLAN over it? False where not known."""
    interfaces = (network.interfaces if network else None) or ()
    own = next((i for i in interfaces if i.name == port.port.netdev), None)
    if port.active is not False or port.port.link_layer != "Ethernet" or own is None:
        return False
    over = [i for i in interfaces if i.name in (own.name, own.master) or own.name in (i.lower or ())]
    return all(i.addresses is not None and all(nccl.is_link_local(a.ip) for a in i.addresses) for i in over)


def _group_reading(group: _Group) -> Reading:
    active = [port for port in group.ports if port.active]
    unsure = next((port for port in group.ports if port.active is None), None)
    if not active and unsure:
        return unknown(unsure.port, "state", group.subject or unsure.name)
    one = len(group.ports) == 1
    return Reading(
        ok=bool(active),
        subject=group.subject,
        measured=_states(active or group.ports),
        expected="ACTIVE" if one else "at least one port ACTIVE",
        message=_why_down(group.ports),
    )


def _states(ports: Sequence[nccl.HcaPort]) -> str:
    """mlx5_0:1 DOWN (Polling), mlx5_1:1 ACTIVE; many that are alike as "8 ports ACTIVE"."""
    words = [
        f"{p.port.state or 'state unknown'}{'' if p.active or not p.port.phys_state else f' ({p.port.phys_state})'}"
        for p in ports
    ]
    if len(ports) > 4 and len(set(words)) == 1:
        return f"{plural(len(ports), 'port')} {words[0]}"
    return ", ".join(f"{port.name} {word}" for port, word in zip(ports, words))


def _why_down(ports: Sequence[nccl.HcaPort]) -> str:
    states = {port.port.state for port in ports}
    if all(port.port.link_layer == "Ethernet" for port in ports):  # such a port is as active as its interface (RoCE)
        of = next((port.port.netdev for port in ports if port.port.netdev), None)
        return (
            f"the network interface{f' {of}' if of and len(ports) == 1 else ''} of the RoCE port is down or has no link"
        )
    if states & {"INIT", "ARMED"}:
        reached = any(port.port.sm_lid for port in ports if not port.active)
        known_manager = "the link is up but the subnet manager has not made the port active"
        return known_manager if reached else "the link is up but no subnet manager has made the port active"
    if {port.port.phys_state for port in ports} == {"Disabled"}:
        return "the port is switched off"
    return (
        "the port has no link: cable, transceiver or switch port" if len(ports) == 1 else "no port of these has a link"
    )


@check(Severity.NOTE, several_nodes=True)
def port_down_beside_its_like(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """An InfiniBand port has no link while the same port of equal adapters is active.

    Why: Without NCCL_IB_HCA NCCL passes over it without a word: the GPUs beside it share the other adapters, and this node
        pairs its ports differently from the others. It may be meant so; a cable that came loose looks the same.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    named = nccl.hca_list(env, nccl.version_of(torch))
    if nccl.overridden(env) is None and (named is None or named.negated):
        ports = nccl.hca_ports(known(rdma.devices, rdma, "devices"), env, nccl.version_of(torch))
        for alike in _alike(p for p in ports if not {p.name, p.device.name} & set(policy.ignore_hcas)):
            active, board = [port for port in alike if port.active], alike[0].device.board_id
            if len(active) > len(alike) / 2:
                expected = f"ACTIVE, as on {len(active)} of {len(alike)} adapters of board {board}"
                message = "this port has no link, and those of its like have one"
                for port in (port for port in alike if not port.active):
                    yield Reading(False, _states([port]), expected, message, subject=port.name)
                if active == alike:
                    yield Reading(True, _states(active), expected, subject=f"board {board}")


def _alike(ports: Iterable[nccl.HcaPort]) -> List[List[nccl.HcaPort]]:
    """InfiniBand ports of one number on adapters of one board (PSID)."""
    found: Dict[Tuple[str, int], List[nccl.HcaPort]] = {}
    for port in ports:
        if port.device.board_id and port.port.link_layer == "InfiniBand" and port.active is not None:
            found.setdefault((port.device.board_id, port.port.port), []).append(port)
    return [group for group in found.values() if len(group) > 1]


@check(Severity.NOTE, several_nodes=True)
def link_layers_mixed(rdma: Rdma, env: Env, policy: Policy, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """NCCL will take InfiniBand and RoCE ports together.

    Why: Without NCCL_IB_HCA every active port counts, those of storage and management too. Such a port can slow down the job,
        and it cannot talk to an InfiniBand port: where nodes list their ports differently, NCCL from 2.26.2 ends with "Try
        selecting NICs of only one link type using NCCL_IB_HCA", and an older one waits or fails.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
        https://github.com/NVIDIA/nccl/issues/366
        https://github.com/NVIDIA/nccl/issues/1412
    """
    known(rdma.devices, rdma, "devices")
    ports = nccl.carrier(rdma, env, nccl.version_of(torch)).ports
    layers = nccl.by_layer(p for p in ports if not {p.name, p.device.name} & set(policy.ignore_hcas))
    if layers:
        yield Reading(
            ok=len(layers) == 1,
            measured="; ".join(f"{layer}: {_few(found)}" for layer, found in layers.items()),
            expected="ports of one kind, InfiniBand or RoCE",
            message="NCCL will use InfiniBand and RoCE ports side by side, which cannot talk to each other",
        )


def _few(ports: Sequence[nccl.HcaPort]) -> str:
    return plural(len(ports), "port") if len(ports) > 4 else ", ".join(port.name for port in ports)


@check(Severity.ERROR, several_nodes=True)
def hca_list_matches_nothing(rdma: Rdma, env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """NCCL_IB_HCA matches no RDMA port here.

    Why: NCCL then says "NET/IB : No device found" at level INFO only and takes TCP, ten to a hundred times slower. Names are
        prefixes; one "^" and one "=" at the start hold for the whole list; blanks and ";" belong to a name.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    named = nccl.hca_list(env, nccl.version_of(torch))
    devices = known(rdma.devices, rdma, "devices")
    if named is not None and nccl.overridden(env) is None and not any(d.ports is None for d in devices):
        taken = nccl.hca_ports(devices, env, nccl.version_of(torch))
        yield Reading(
            ok=bool(taken),
            measured=f"NCCL_IB_HCA={env.get('NCCL_IB_HCA')} takes "
            + (
                ", ".join(p.name for p in taken) or f"none of {', '.join(d.name for d in devices) or 'no RDMA devices'}"
            ),
            expected="at least one port",
            message="NCCL will find no RDMA port and take TCP",
        )


@check(Severity.WARNING, several_nodes=True)
def named_hca_absent(rdma: Rdma, env: Env, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """Some of the HCAs that NCCL_IB_HCA names are not there.

    Why: An adapter that fell off the bus, or a list for other machines. NCCL uses the rest; nodes with different lists pair
        their adapters wrongly.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
        https://github.com/NVIDIA/nccl/issues/302
    """
    version = nccl.version_of(torch)
    named = nccl.hca_list(env, version)
    devices = known(rdma.devices, rdma, "devices")
    if named is None or named.negated or nccl.overridden(env) or not nccl.hca_ports(devices, env, version):
        return
    absent = [t.name for t in named.tokens if not any(named.takes(t, d.name) for d in devices)]
    yield Reading(
        ok=not absent,
        measured=f"NCCL_IB_HCA={env.get('NCCL_IB_HCA')}; here are {', '.join(d.name for d in devices)}",
        expected="every name an RDMA device of this node",
        message=f"no RDMA device {', '.join(absent)} here",
    )


@check(Severity.ERROR, several_nodes=True)
def user_devices_missing(
    rdma: Rdma, env: Env, os: Optional[Os] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """RDMA hardware is there, but this process cannot open its user-space devices.

    Why: NCCL opens /dev/infiniband/uverbsN for reading and writing. Without them, in a container that was not given them or
        without the kernel module ib_uverbs, it takes TCP without a word. /sys is not namespaced and still shows the HCAs.
    See: https://docs.kernel.org/infiniband/user_verbs.html
        https://github.com/NVIDIA/nccl/issues/1291
    """
    ports = nccl.hca_ports(known(rdma.devices, rdma, "devices"), env, nccl.version_of(torch))
    devices = {port.device.name: port.device for port in ports if port.active is not False}.values()
    if devices and nccl.overridden(env) is None:
        known(rdma.device_nodes, rdma, "device_nodes")
        granted = [device for device in devices if nccl.node_of(rdma, device)]
        share = bool(granted) and os is not None and bool(os.container)  # a container is given some of the machine's
        for device in granted if share else devices:
            usable = nccl.node_of(rdma, device)
            if usable is None:
                yield unknown(device, "uverbs", device.name)
                continue
            yield Reading(
                ok=usable,
                subject=device.name,
                measured=_node_words(rdma, device),
                expected="its /dev/infiniband/uverbs device, readable and writable",
                message=f"NCCL cannot open {device.name} and takes TCP",
            )


def _node_words(rdma: Rdma, device: RdmaDevice) -> str:
    """What there is of the device's node."""
    if device.uverbs is None:
        return "no uverbs device" + ("" if "ib_uverbs" in (rdma.modules or ()) else ": ib_uverbs is not loaded")
    path = f"/dev/infiniband/{device.uverbs}"
    node = next((node for node in rdma.device_nodes or () if node.path == path), None)
    if node is None:
        return f"{path} does not exist here"
    lacks = [word for word, ok in (("readable", node.readable), ("writable", node.writable)) if not ok]
    return f"{path} is not {' and not '.join(lacks)}" if lacks else f"{path} readable and writable"


@check(Severity.NOTE, several_nodes=True)
def hca_without_device(rdma: Rdma) -> Iterator[Reading]:
    """An adapter made for RDMA is on the PCI bus, but there is no RDMA device for it.

    Why: Its driver, or the driver's RDMA part (mlx5_ib and the like), is not loaded, so that NCCL can use it as an ordinary
        network card only. Cards that do RDMA beside being ordinary NICs are not counted.
    See: https://docs.kernel.org/infiniband/user_verbs.html
    """
    devices = {device.pci for device in known(rdma.devices, rdma, "devices")}
    for hca in known(rdma.pci_hcas, rdma, "pci_hcas"):
        address, _, rest = hca.partition(" ")
        bound = not rest.endswith(" -")
        # Of a card in bond mode only one function has a device: with others there, a bound function is not judged.
        if address in devices or not (bound and devices):
            yield Reading(
                ok=address in devices,
                subject=address,
                measured=f"{hca.replace(' -', ' without a driver')}, no RDMA device" if address not in devices else hca,
                expected="an RDMA device below /sys/class/infiniband",
                message="this RDMA adapter can be used as an ordinary network card at most",
            )

"""Rdma: InfiniBand and RoCE devices, their ports and GIDs, and what user space needs to reach them."""

import re
from dataclasses import replace
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect import flow, verbs
from ddp_doctor.collect.cuda import SYSTEM, cached_libraries, parse_library_path
from ddp_doctor.collect.interfaces import driver_and_pci, numa_of, parse_uevent
from ddp_doctor.facts import PKEY_ROWS, DeviceNode, Gid, Rdma, RdmaDevice, RdmaPort, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.numerals import whole
from ddp_doctor.unreadable import Unreadable

LIMIT_S = 20.0
"""Adapters are asked by libibverbs as well, each of them within a limit of its own."""
ROOT = "/sys/class/infiniband"
_VERBS = "/sys/class/infiniband_verbs"
_NODES = "/dev/infiniband"
_PCI_DEVICES = "/sys/bus/pci/devices"
_EMPTY_GID = re.compile(r"(fe80|0000)(:0000){7}")
"""A row that is not in use: all zero, or a link-local prefix without an interface id (NCCL's configuredGid())."""
_NOT_COUNTERS = frozenset(("lifespan",))
"""hw_counters/lifespan is a setting: for how many milliseconds counters are cached (Documentation/ABI)."""

_PLUGIN = re.compile(r"libnccl-net[\w.-]*\.so")
_MODULES = frozenset(
    "ib_core ib_uverbs ib_umad ib_cm ib_ipoib iw_cm rdma_cm rdma_ucm mlx4_core mlx4_ib mlx5_core mlx5_ib hfi1 ib_qib "
    "irdma bnxt_re efa erdma qedr iw_cxgb4 hns_roce_hw_v2 mana_ib rdma_rxe siw nvidia_peermem nv_peer_mem gdrdrv "
    "nvidia_fs".split()
)
"""Kernel modules that a job over RDMA, and GPUDirect RDMA and Storage, may need."""

_HCA_CLASSES = ("0207", "0c06")
"""PCI classes "InfiniBand controller" and "InfiniBand" (serial bus): https://pci-ids.ucw.cz/read/PD"""
_NETWORK_CLASS = "02"
_HCA_VENDORS = frozenset(("15b3",))
"""Mellanox/NVIDIA: every network function of theirs that mlx4_core or mlx5_core drives does RDMA."""
_HCA_DEVICES = frozenset("8086:24f0 8086:24f1 1d0f:efa0 1d0f:efa1 1d0f:efa2 1d0f:efa3 1ded:107f".split())
"""Intel Omni-Path HFI, Amazon EFA and Alibaba eRDMA: the device tables of the kernel's hfi1, efa and erdma drivers.

NICs that can do RDMA beside being ordinary Ethernet cards in most servers (Intel E810, Broadcom NetXtreme-E, Chelsio,
QLogic) are left out on purpose: they count as RDMA devices where an RDMA driver has made them one.
"""


def read(host: Host, ask: Ask) -> Rdma:
    """Devices as /sys/class/infiniband shows them: /sys is not namespaced, a container sees all of the machine's."""
    unread: Unread = {}
    devices = optional(lambda: tuple(_device(host, name) for name in _listed(host, ROOT)), unread, "devices")
    nodes = optional(lambda: _device_nodes(host), unread, "device_nodes")
    found = Rdma(
        devices=devices,
        pci_hcas=optional(lambda: _pci_hcas(host), unread, "pci_hcas"),
        modules=optional(lambda: _modules(host), unread, "modules"),
        device_nodes=nodes,
        plugins=optional(lambda: _plugins(host), unread, "plugins"),
        unread=unread,
    )
    return _with_flow(host, _with_verbs(host, found)) if devices else _without_devices(found)


def _without_devices(found: Rdma) -> Rdma:
    """Nothing is asked of libibverbs where there is nothing that it could drive."""
    reason = found.unread.get("devices") or Reason("not-applicable", "no RDMA device")
    fields = ("verbs_library", "verbs_libraries", "providers")
    return replace(found, unread={**found.unread, **dict.fromkeys(fields, reason)})


def _listed(host: Host, path: str) -> Tuple[str, ...]:
    """Names in a directory; none where it does not exist: looked, found none."""
    try:
        return host.list(path)
    except Unreadable as error:
        if error.reason.kind != "absent":
            raise
        return ()


def _text(host: Host, path: str, unread: Unread, field: str) -> Optional[str]:
    found = optional(lambda: host.read(path), unread, field)
    return None if found is None else found.strip()


def _device(host: Host, name: str) -> RdmaDevice:
    path = f"{ROOT}/{name}"
    unread: Unread = {}
    driver, pci = driver_and_pci(host, f"{path}/device", unread)
    node_type = _text(host, f"{path}/node_type", unread, "node_type")
    return RdmaDevice(
        name=name,
        ports=_ports(host, path, unread),
        firmware=_text(host, f"{path}/fw_ver", unread, "firmware"),
        board_id=_text(host, f"{path}/board_id", unread, "board_id"),
        hca_type=_text(host, f"{path}/hca_type", unread, "hca_type"),
        node_guid=_text(host, f"{path}/node_guid", unread, "node_guid"),
        sys_image_guid=_text(host, f"{path}/sys_image_guid", unread, "sys_image_guid"),
        node_type=None if node_type is None else after_number(node_type),
        driver=driver,
        pci=pci,
        numa_node=numa_of(host, f"{path}/device", unread),
        virtual_function=_is_virtual_function(host, f"{path}/device", unread),
        uverbs=_uverbs(host, name, unread),
        unread=unread,
    )


def _is_virtual_function(host: Host, device: str, unread: Unread) -> Optional[bool]:
    """True for an SR-IOV function of a physical one. A guest cannot tell its own: there the link is missing."""
    names = optional(lambda: host.list(device), unread, "virtual_function")
    return None if names is None else "physfn" in names


def _uverbs(host: Host, name: str, unread: Unread) -> Optional[str]:
    """By the device's own folder; software devices (rxe, siw) have none and are named in the class's ``ibdev`` alone."""
    names: Optional[Tuple[str, ...]] = optional(
        lambda: host.list(f"{ROOT}/{name}/device/infiniband_verbs"), unread, "uverbs"
    )
    if names:
        return names[0]
    listed: Tuple[str, ...] = optional(lambda: host.list(_VERBS), {}, "uverbs") or ()
    for node in listed:
        if optional(lambda n=node: host.read(f"{_VERBS}/{n}/ibdev").strip(), {}, "uverbs") == name:  # type: ignore[misc]
            unread.pop("uverbs", None)
            return node
    if names == () or unread["uverbs"].kind == "absent":
        unread["uverbs"] = Reason("absent", f"{name}: neither device/infiniband_verbs nor {_VERBS} names its node")
    return None


# --------------------------------------------------------------------------- ports


def _ports(host: Host, path: str, unread: Unread) -> Optional[Tuple[RdmaPort, ...]]:
    names = optional(lambda: host.list(f"{path}/ports"), unread, "ports")
    if names is None:
        return None
    return tuple(_port(host, path, number) for number in _numbered(names))


def _numbered(names: Iterable[str]) -> List[int]:
    """The numbers among the names in a folder, in order."""
    return sorted(number for number in (whole(name, 5) for name in names) if number is not None)


def _port(host: Host, device: str, number: int) -> RdmaPort:
    path = f"{device}/ports/{number}"
    unread: Unread = {}
    state, phys_state = (_text(host, f"{path}/{field}", unread, field) for field in ("state", "phys_state"))
    rate = _text(host, f"{path}/rate", unread, "rate")
    gids = optional(lambda: _gids(host, path), unread, "gids")
    return RdmaPort(
        port=number,
        state=None if state is None else after_number(state),
        phys_state=None if phys_state is None else after_number(phys_state),
        rate=rate,
        rate_gbit_s=_rate(rate, unread),
        link_layer=_text(host, f"{path}/link_layer", unread, "link_layer"),
        lid=_number(host, f"{path}/lid", unread, "lid"),
        sm_lid=_number(host, f"{path}/sm_lid", unread, "sm_lid"),
        gids=gids,
        netdev=_netdev(host, device, number, gids or (), unread),
        counters=_counters(host, f"{path}/counters", unread, "counters"),
        hw_counters=_counters(host, f"{path}/hw_counters", unread, "hw_counters"),
        pkeys=_pkeys(host, path, unread),
        traffic_class=_traffic_class(host, device, number, unread),
        unread=unread,
    )


def _pkeys(host: Host, path: str, unread: Unread) -> Optional[Tuple[str, ...]]:
    """Keys by row, without the empty ones at the end."""
    if (optional(lambda: host.read(f"{path}/link_layer").strip(), {}, "") or "InfiniBand") != "InfiniBand":
        unread["pkeys"] = Reason("not-applicable", "partition keys are InfiniBand's")
        return None
    names = optional(lambda: host.list(f"{path}/pkeys"), unread, "pkeys")
    if names is None:
        return None
    rows = _numbered(names)[:PKEY_ROWS]
    keys = [optional(lambda r=row: host.read(f"{path}/pkeys/{r}").strip(), unread, "pkeys") for row in rows]  # type: ignore[misc]
    if None in keys:
        return None
    while keys and keys[-1] == "0x0000":
        keys.pop()
    return tuple(map(str, keys))


def _traffic_class(host: Host, device: str, number: int, unread: Unread) -> Optional[int]:
    """NVIDIA's own driver has this file, the kernel's has not: absent says nothing of the traffic class."""
    text = _text(host, f"{device}/tc/{number}/traffic_class", unread, "traffic_class")
    if text is None:
        return None
    found = re.search(r"tclass *= *([0-9]{1,3})", text) or re.fullmatch(r"(-1|[0-9]{1,3})", text)
    return int(found.group(1)) if found else -1


def after_number(text: str) -> str:
    """ "ACTIVE" of "4: ACTIVE", as the kernel writes states and types; other text as it is."""
    found = re.match(r"[0-9]+: *([^ ]+)", text)
    return found.group(1) if found else text


def parse_rate(text: str) -> Optional[float]:
    """Gbit/s of "200 Gb/sec (4X HDR)" or "2.5 Gb/sec (1X SDR)"."""
    found = re.match(r"([0-9]{1,6}(?:\.[0-9]+)?) Gb/sec", text)
    return float(found.group(1)) if found else None


def _rate(text: Optional[str], unread: Unread) -> Optional[float]:
    rate = parse_rate(text or "")
    if rate is None:
        unread["rate_gbit_s"] = unread.get("rate") or Reason("unreadable", f"rate: not a rate: {str(text)[:40]!r}")
    return rate


def _number(host: Host, path: str, unread: Unread, field: str) -> Optional[int]:
    text = _text(host, path, unread, field)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        unread[field] = Reason("unreadable", f"{path}: not a number: {text[:40]!r}" if text else f"{path}: empty")
        return None


def _gids(host: Host, path: str) -> Tuple[Gid, ...]:
    """Rows of the GID table that are in use. Type and netdev of an empty row answer EINVAL: it is not asked for them.

    Rows are freed and used again, so that empty ones stand between others: the table is read to its end.
    """
    rows = _numbered(host.list(f"{path}/gids"))
    found = ((row, optional(lambda r=row: host.read(f"{path}/gids/{r}").strip(), {}, "gid")) for row in rows)  # type: ignore[misc]
    return tuple(_gid(host, path, row, gid) for row, gid in found if gid and not _EMPTY_GID.fullmatch(gid))


def _gid(host: Host, path: str, row: int, gid: str) -> Gid:
    kind = optional(lambda: host.read(f"{path}/gid_attrs/types/{row}").strip(), {}, "type")
    netdev = optional(lambda: host.read(f"{path}/gid_attrs/ndevs/{row}").strip(), {}, "netdev")
    return Gid(row, gid, kind, netdev)


def _netdev(host: Host, device: str, port: int, gids: Sequence[Gid], unread: Unread) -> Optional[str]:
    """The port's network interface: as its GIDs say, else the one of the device's whose dev_port is the port's."""
    named = next((gid.netdev for gid in gids if gid.netdev), None)
    if named:
        return named
    names: Tuple[str, ...] = optional(lambda: host.list(f"{device}/device/net"), unread, "netdev") or ()
    for name in names:
        text = optional(lambda n=name: host.read(f"{device}/device/net/{n}/dev_port").strip(), {}, "dev_port")  # type: ignore[misc]
        if text == str(port - 1) and not _is_representor(host, f"{device}/device/net/{name}"):
            return name
    unread.setdefault("netdev", Reason("absent", f"{device}: no network interface for port {port}"))
    return None


def _is_representor(host: Host, net: str) -> bool:
    """A switchdev stand-in for a virtual function (pf0vf3) or sub-function (pf0sf1), not the port itself."""
    name = optional(lambda: host.read(f"{net}/phys_port_name"), {}, "phys_port_name") or ""
    return bool(re.search(r"[vs]f[0-9]+", name))


def _counters(host: Host, path: str, unread: Unread, field: str) -> Optional[Dict[str, int]]:
    """Counters that have a number; those without one ("N/A (no PMA)", an error) stand in ``unread`` by name."""
    names = optional(lambda: host.list(path), unread, field)
    if names is None:
        return None
    found: Dict[str, int] = {}
    for name in names:
        if name in _NOT_COUNTERS:
            continue
        text = optional(lambda n=name: host.read(f"{path}/{n}").strip(), unread, f"{field}.{name}")  # type: ignore[misc]
        if text is not None and re.fullmatch(r"[0-9]{1,20}", text):
            found[name] = int(text)
        elif text is not None:
            unread[f"{field}.{name}"] = Reason("unreadable", f"{path}/{name}: {text[:40]!r}")
    return found


# --------------------------------------------------------------------------- bus, modules, device nodes


def is_hca(pci_id: str, pci_class: str) -> bool:
    """Is a PCI function made for RDMA? pci_id: "15b3:1017"; pci_class: six hexadecimal digits."""
    if pci_class[:4] in _HCA_CLASSES or pci_id in _HCA_DEVICES:
        return True
    return pci_id[:4] in _HCA_VENDORS and pci_class[:2] == _NETWORK_CLASS


def _pci_hcas(host: Host) -> Tuple[str, ...]:
    """ "0000:07:00.0 15b3:1017 mlx5_core": address, vendor:device, driver ("-" for none); none that a guest was given."""
    found = []
    for address in _listed(host, _PCI_DEVICES):
        path = f"{_PCI_DEVICES}/{address}/uevent"
        seen = parse_uevent(optional(lambda p=path: host.read(p), {}, address) or "")  # type: ignore[misc]
        pci_id = seen.get("PCI_ID", "").lower()
        driver = seen.get("DRIVER", "-")
        if is_hca(pci_id, seen.get("PCI_CLASS", "").lower().zfill(6)) and not driver.startswith("vfio"):
            found.append(f"{address} {pci_id} {driver}")
    return tuple(found)


def _modules(host: Host) -> Tuple[str, ...]:
    """Loaded modules of ``_MODULES``; built into the kernel, they show in /sys/module."""
    built_in = optional(lambda: host.list("/sys/module"), {}, "modules")
    try:
        loaded = [line.split(" ", 1)[0] for line in host.read("/proc/modules").splitlines()]
    except Unreadable as error:
        if error.reason.kind != "absent" or built_in is None:
            raise
        loaded = []
    return tuple(sorted(_MODULES & {*loaded, *(built_in or ())}))


def _device_nodes(host: Host) -> Tuple[DeviceNode, ...]:
    """Character devices below /dev/infiniband, and whether this process may open them for reading and writing."""
    found = []
    for name in _listed(host, _NODES):
        path = f"{_NODES}/{name}"
        stat = optional(lambda p=path: host.stat(p), {}, name)  # type: ignore[misc]
        if stat is None:
            found.append(DeviceNode(path))
        elif stat.kind == "char":
            found.append(DeviceNode(path, stat.readable, stat.writable))
    return tuple(found)


# --------------------------------------------------------------------------- libibverbs


def _with_verbs(host: Host, found: Rdma) -> Rdma:
    """What libibverbs says, and the files of its stack."""
    unread = dict(found.unread)
    ports = {d.name: [port.port for port in d.ports or ()] for d in found.devices or () if _may_open(found, d)}
    answer = optional(lambda: verbs.read(host, ports), unread, "verbs_library")
    return replace(
        found,
        devices=tuple(_opened(device, answer, device.name in ports, unread) for device in found.devices or ()),
        verbs_library=answer["library"] if answer else None,
        verbs_libraries=optional(lambda: tuple(_verbs_libraries(host)), unread, "verbs_libraries"),
        providers=optional(lambda: tuple(_providers(host)), unread, "providers"),
        unread=unread,
    )


def _may_open(found: Rdma, device: RdmaDevice) -> bool:
    """Has the device a node below /dev/infiniband that this process may open?"""
    path = f"{_NODES}/{device.uverbs}"
    return any(node.path == path and node.readable and node.writable for node in found.device_nodes or ())


def _opened(device: RdmaDevice, answer: Optional[verbs.Answer], asked: bool, above: Unread) -> RdmaDevice:
    """A device with what libibverbs said of it; where it said nothing, with the reason."""
    said = answer["devices"].get(device.name) if answer else None
    ports = said.get("ports") if isinstance(said, dict) else None
    if isinstance(ports, dict):
        return replace(
            device, verbs="opens", ports=tuple(_with_mtu(p, ports.get(str(p.port))) for p in device.ports or ())
        )
    reason = _why_not_opened(device, answer, said, asked, above)
    words = (
        {"absent": "not listed", "no-rights": reason.text, "unreadable": reason.text}.get(reason.kind) if said else None
    )
    silent = tuple(_silent(port, reason) for port in device.ports) if device.ports is not None else None
    unread = device.unread if words else {**device.unread, "verbs": reason}
    return replace(device, verbs=words, ports=silent, unread=unread)


def _why_not_opened(
    device: RdmaDevice, answer: Optional[verbs.Answer], said: Any, asked: bool, above: Unread
) -> Reason:
    if answer is None and asked:
        return above.get("verbs_library", Reason("unreadable", "libibverbs did not answer"))
    if not asked:
        return Reason("no-rights", f"{device.name}: no device below {_NODES} that this process may open")
    if not isinstance(said, dict):
        return Reason("absent", f"{verbs.LIBRARY}: the loader does not find it")
    return Reason(str(said.get("kind", "unreadable")), str(said.get("text", "")))


def _silent(port: RdmaPort, reason: Reason) -> RdmaPort:
    return replace(port, unread={**port.unread, "active_mtu_bytes": reason, "max_mtu_bytes": reason})


def _with_mtu(port: RdmaPort, mtus: Any) -> RdmaPort:
    if not (isinstance(mtus, list) and len(mtus) == 2 and all(isinstance(mtu, int) for mtu in mtus)):
        return _silent(port, Reason("unreadable", f"port {port.port}: ibv_query_port gives no MTU"))
    return replace(port, max_mtu_bytes=mtus[0], active_mtu_bytes=mtus[1])


def _library_folders(host: Host) -> Tuple[str, ...]:
    """Folders of LD_LIBRARY_PATH and the loader's own, in its order."""
    listed = parse_library_path(host.env().get("LD_LIBRARY_PATH", ""))
    return tuple(dict.fromkeys((*(folder for folder in listed if folder.startswith("/")), *SYSTEM)))


def _verbs_libraries(host: Host) -> Iterator[str]:
    """Every libibverbs.so.1 by its real path, those of 32-bit programs left out."""
    paths = [f"{folder}/{verbs.LIBRARY}" for folder in _library_folders(host)]
    paths += [path for path in cached_libraries(host) if path.endswith("/" + verbs.LIBRARY)]
    there = (optional(lambda p=path: host.realpath(p), {}, "") for path in paths if _is_there(host, path))  # type: ignore[misc]
    real = dict.fromkeys(path for path in there if path and not re.search(r"/i[36]86-|/lib32/|^/lib/lib", path))
    native = any("/lib64/" in path for path in real)
    yield from (path for path in real if not (native and path.startswith("/usr/lib/libib")))


def _is_there(host: Host, path: str) -> bool:
    return bool(optional(lambda: host.exists(path), {}, ""))


def _providers(host: Host) -> Iterator[str]:
    names: Dict[str, None] = {}
    for folder in verbs.CONFIGURATION:
        for name in _listed(host, folder):
            text = optional(lambda p=f"{folder}/{name}": host.read(p), {}, "") or ""  # type: ignore[misc]
            names.update(dict.fromkeys(verbs.parse_driver(text)))
    yield from sorted(names)


def _plugins(host: Host) -> Tuple[str, ...]:
    """NCCL's network plug-ins that the loader would find."""
    found = dict.fromkeys(path for path in cached_libraries(host) if "/libnccl-net" in path)
    for folder in _library_folders(host):
        names = optional(lambda f=folder: host.list(f), {}, "") or ()  # type: ignore[misc]
        found.update(dict.fromkeys(f"{folder}/{name}" for name in names if _PLUGIN.fullmatch(name)))
    return tuple(found)


# --------------------------------------------------------------------------- flow control


def _with_flow(host: Host, found: Rdma) -> Rdma:
    """The flow control of RoCE ports' interfaces, asked for all of them at once."""
    devices = found.devices or ()
    names = [p.netdev for d in devices for p in d.ports or () if p.link_layer == "Ethernet" and p.netdev]
    if not names:
        return found
    unread: Unread = {}
    answer = optional(lambda: host.ask("flow", lambda: flow.ask(names), flow.LIMIT_S), unread, "flow")
    reason = unread.get("flow") or Reason("unreadable", "flow: no answer")
    with_flow = (
        replace(d, ports=tuple(_port_flow(host, p, answer, reason) for p in d.ports)) if d.ports else d for d in devices
    )
    return replace(found, devices=tuple(with_flow))


def _port_flow(host: Host, port: RdmaPort, answer: Any, reason: Reason) -> RdmaPort:
    if port.link_layer != "Ethernet" or not port.netdev:
        return port
    said = answer.get(port.netdev) if isinstance(answer, dict) else None
    settings = {k: v for k, v in said.items() if isinstance(v, str)} if isinstance(said, dict) else {}
    error = settings.pop("error", "")
    settings.update(flow.ecn(host, port.netdev))
    if settings:
        return replace(port, flow=settings)
    why = Reason("absent", f"{port.netdev}: {error}") if error else reason
    return replace(port, unread={**port.unread, "flow": why})

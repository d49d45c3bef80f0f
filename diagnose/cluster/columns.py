"""Columns of the fleet: what is compared between nodes. Each public function here is one: NodeFacts to a small value.

A value is hashable: a text, a number, or a tuple of them; a tuple of pairs (subject, value) where a node has several of a
kind. NotKnown says why a node has none; its reason "not-applicable" where there is nothing of the kind on the node.
"""

import inspect
import re
from typing import Any, Callable, Dict, Hashable, List, Optional, Set, Tuple, TypeVar

from ddp_doctor import nccl
from ddp_doctor.accelerators import answering, chosen
from ddp_doctor.facts import (
    Env,
    Gpu,
    Gpus,
    GpuTest,
    Interface,
    Limit,
    Mount,
    NodeFacts,
    Rdma,
    RdmaDevice,
    Reason,
    Torch,
)
from ddp_doctor.model import NotKnown, known
from ddp_doctor.remembered import by_identity
from ddp_doctor.variables import left_alone
from ddp_doctor.versions import minor

T = TypeVar("T")
Pairs = Tuple[Tuple[str, Hashable], ...]


def readers() -> Dict[str, Callable[[NodeFacts], Hashable]]:
    """Column -> function, of all that stand here."""
    return {
        name: function
        for name, function in globals().items()
        if inspect.isfunction(function)
        and function.__module__ == __name__
        and not name.startswith("_")
        and name != "readers"
    }


# --------------------------------------------------------------------------- software


def torch(facts: NodeFacts) -> str:
    """2.3.1+cu121"""
    return _text(facts, "torch", "version")


def cuda(facts: NodeFacts) -> str:
    """CUDA that torch was built with, or "cpu only"; "ROCm 6.0" where it is AMD's."""
    section = _section(facts, "torch")
    if section.hip:
        return f"ROCm {section.hip}"
    return known(section.cuda, section, "cuda") or "none (for processors alone)"


def nccl_version(facts: NodeFacts) -> str:
    """The NCCL that the job will use: the loaded one, else what torch or its wheel says."""
    section = _section(facts, "torch")
    if nccl.lacks(section):
        raise NotKnown(Reason("not-applicable", "this torch has no NCCL"))
    version = nccl.version_of(section)
    return ".".join(map(str, known(version, section, "nccl")))


def python(facts: NodeFacts) -> str:
    """3.10 of the examined interpreter: releases of one minor version read one another's data."""
    return minor(_text(facts, "torch", "python_version"))


def system(facts: NodeFacts) -> str:
    """Ubuntu 22.04.5 LTS"""
    return _text(facts, "os", "pretty")


def kernel(facts: NodeFacts) -> str:
    """5.15.0-140-generic"""
    return _text(facts, "os", "kernel")


def machine(facts: NodeFacts) -> str:
    """x86_64 or aarch64"""
    return _text(facts, "os", "machine")


def tool(facts: NodeFacts) -> str:
    """The ddp-doctor that took the facts."""
    if facts.how.tool_version is None:
        raise NotKnown(Reason("not-recorded", "the facts do not say what took them"))
    return facts.how.tool_version


# --------------------------------------------------------------------------- GPUs


def driver(facts: NodeFacts) -> str:
    """535.104.05"""
    return known(_with_gpus(facts).driver, facts.gpus, "driver")


def gpu_models(facts: NodeFacts) -> Tuple[str, ...]:
    """Names of the GPUs' models, each once."""
    return tuple(sorted({known(gpu.name, gpu, "name") for gpu in answering(_with_gpus(facts))}))


def gpu_count(facts: NodeFacts) -> int:
    """GPUs that answer and that CUDA_VISIBLE_DEVICES leaves to the job."""
    gpus = _with_gpus(facts)
    working, names = len(answering(gpus)), chosen(gpus.visible_devices)
    return working if names is None else min(working, len(names))


def ecc(facts: NodeFacts) -> str:
    """Error correction of the GPUs' memory: on, off, or mixed."""
    return _mode(facts, "ecc_mode", {True: "on", False: "off"})


def persistence(facts: NodeFacts) -> str:
    """Persistence mode of the GPUs: on, off, or mixed."""
    return _mode(facts, "persistence", {True: "on", False: "off"})


def mig(facts: NodeFacts) -> str:
    """enabled, disabled, or mixed."""
    return _mode(facts, "mig", {"enabled": "enabled", "disabled": "disabled", "unsupported": "unsupported"})


def compute_rates(facts: NodeFacts) -> Pairs:
    """(model and quantity, (index, rate) of each of its GPUs) in the compute test; see ``checks/gpu_test.py``."""
    compute = _section(facts, "compute")
    rates: Dict[str, List[Tuple[int, float]]] = {}
    tests: Tuple[GpuTest, ...] = known(compute.gpus, compute, "gpus")
    for test in tests:
        products = {f"{kind} matrix product (TFLOP/s)": rate for kind, rate in (test.gemm_tflop_s or {}).items()}
        for what, rate in {**products, "device memory (GB/s)": test.memory_gb_s}.items():
            if test.name and rate is not None:
                rates.setdefault(f"{test.name} {what}", []).append((test.index, rate))
    return tuple((what, tuple(found)) for what, found in sorted(rates.items()))


def power_limit_w(facts: NodeFacts) -> Tuple[float, ...]:
    """Power limits of the GPUs in watts, each once."""
    found = {gpu.power_limit_w for gpu in answering(_with_gpus(facts))} - {None}
    return _some(tuple(sorted(limit for limit in found if limit is not None)))


def nvlink_domain(facts: NodeFacts) -> str:
    """Cluster and clique of the GPUs' NVLink fabric across nodes; "" where the GPUs are in none."""
    fabrics = [gpu.fabric for gpu in answering(_with_gpus(facts)) if gpu.fabric and gpu.fabric.cluster_uuid is not None]
    if not fabrics:
        raise NotKnown(Reason("not-applicable", "the GPUs tell of no NVLink fabric"))
    found = sorted({f"{f.cluster_uuid} clique {f.clique_id}" if f.cluster_uuid else "" for f in fabrics})
    return " and ".join(found)


# --------------------------------------------------------------------------- the machine


def memory_gib(facts: NodeFacts) -> int:
    """The machine's memory in GiB."""
    return int(_of(facts, "memory", "total_bytes")) // 2**30


def processors(facts: NodeFacts) -> str:
    """Model and number of online processors."""
    cpu = _section(facts, "cpu")
    return f"{known(cpu.threads, cpu, 'threads')} x {known(cpu.model, cpu, 'model')}"


def limits(facts: NodeFacts) -> Pairs:
    """Soft limits that a job meets: memlock in bytes, open files, processes."""
    section = _section(facts, "limits")
    found: Dict[str, Optional[Limit]] = {
        "locked memory": section.memlock_bytes, "open files": section.nofile, "processes": section.nproc,
    }  # fmt: skip
    exempt = section.cap_ipc_lock
    return tuple(
        (name, limit.soft) for name, limit in found.items() if limit and not (exempt and name == "locked memory")
    )


def working_directory(facts: NodeFacts) -> str:
    """Where the working directory lies: "/data: nfs4 mounted at /data"."""
    mounts: Tuple[Mount, ...] = known(_section(facts, "disk").mounts, facts.disk, "mounts")
    for mount in mounts:
        if mount.role == "cwd":
            return (
                f"{mount.path}: {known(mount.fs_type, mount, 'fs_type')} mounted at {mount.point or 'an unknown place'}"
            )
    raise NotKnown(Reason("not-recorded", "the working directory is not in these facts"))


def clock_s(facts: NodeFacts) -> Tuple[str, float]:
    """("measured", seconds) against the machine that asked, with its sign; else ("told", size) as the synchroniser says."""
    if facts.how.clock_offset_s is not None:
        return ("measured", facts.how.clock_offset_s)
    return ("told", abs(float(_of(facts, "time", "offset_s"))))


# --------------------------------------------------------------------------- who it is


def host_name(facts: NodeFacts) -> str:
    """The machine's own name."""
    return _text(facts, "os", "hostname")


def identity(facts: NodeFacts) -> Tuple[str, str]:
    """Host name and boot id: what NCCL takes for one machine (getHostHash); golden images share /etc/machine-id."""
    return (_text(facts, "os", "hostname"), _text(facts, "os", "boot_id"))


def boot_id(facts: NodeFacts) -> str:
    """The kernel's boot: containers of one machine share it."""
    return _text(facts, "os", "boot_id")


def addresses(facts: NodeFacts) -> Tuple[str, ...]:
    """Addresses of the interfaces that NCCL would use, as the others would reach them."""
    return tuple(endpoint.address.ip for endpoint in _endpoints(facts) if nccl.reaches_others(endpoint.interface))


def master_addresses(facts: NodeFacts) -> Tuple[str, Tuple[str, ...]]:
    """The master's name and what this node's resolver answers; on the master itself the loopback address may be in it."""
    network = _section(facts, "network")
    answer = network.master_name
    if answer is None:
        raise NotKnown(network.unread.get("master_name") or Reason("not-asked", "no master was named"))
    if answer.error:
        raise NotKnown(Reason("unresolved", f"{answer.name} does not resolve here: {answer.error}"))
    if facts.launch is not None and facts.launch.is_master:
        raise NotKnown(Reason("not-applicable", "the master itself may have other addresses for its name"))
    return (answer.name, tuple(sorted(answer.addresses)))


# --------------------------------------------------------------------------- network


def interfaces(facts: NodeFacts) -> Tuple[str, ...]:
    """Names of the interfaces that NCCL would use for sockets, in its order."""
    return tuple(endpoint.interface.name for endpoint in _endpoints(facts))


def address_family(facts: NodeFacts) -> str:
    """IPv4 or IPv6: of the first interface, by which ranks meet."""
    return {"ipv4": "IPv4", "ipv6": "IPv6"}.get(_endpoints(facts)[0].address.family, "another")


def mtu_bytes(facts: NodeFacts) -> int:
    """The smallest MTU of the interfaces that NCCL would use for sockets."""
    return min(known(endpoint.interface.mtu, endpoint.interface, "mtu") for endpoint in _endpoints(facts))


def link_gbit_s(facts: NodeFacts) -> float:
    """Speed of the fastest wire among the interfaces that NCCL would use for sockets."""
    best = nccl.fastest(_endpoints(facts))
    speed = nccl.wire_speed_gbit_s(best.interface) if best else None
    if speed is None:
        raise NotKnown(Reason("not-applicable", "no interface that NCCL would use tells the speed of a real wire"))
    return speed


def transport(facts: NodeFacts) -> str:
    """What carries the data between nodes: RDMA, TCP or a plug-in."""
    way = nccl.carrier(facts.rdma, facts.env, nccl.version_of(facts.torch))
    if way.kind == "unknown":
        raise NotKnown(facts.reasons.get("rdma") or Reason("unreadable", way.why))
    return {"rdma": "RDMA", "sockets": "TCP sockets"}.get(way.kind, way.why)


def hcas(facts: NodeFacts) -> Tuple[str, ...]:
    """Names of the RDMA ports that NCCL would use, in its order."""
    return tuple(port.name for port in _ports(facts))


def rdma_rates(facts: NodeFacts) -> Pairs:
    """Rate of each RDMA port that NCCL would use, in Gb/s."""
    return tuple((p.name, p.port.rate_gbit_s) for p in _ports(facts) if p.port.rate_gbit_s is not None)


def rdma_mtu_bytes(facts: NodeFacts) -> Pairs:
    """Active MTU of each RDMA port that NCCL would use."""
    return tuple((p.name, p.port.active_mtu_bytes) for p in _ports(facts) if p.port.active_mtu_bytes is not None)


def subnet_managers(facts: NodeFacts) -> Pairs:
    """LID of the subnet manager that each InfiniBand port obeys."""
    found = ((p.name, p.port.sm_lid) for p in _ports(facts) if p.port.link_layer == "InfiniBand")
    return _some(tuple((name, lid) for name, lid in found if lid))


def gid_kinds(facts: NodeFacts) -> Pairs:
    """What the GID that NCCL takes of each RoCE port is: "RoCE v2, IPv4"."""
    version = nccl.version_of(facts.torch)
    choices = ((port.name, nccl.gid_choice(port.port, facts.env, version)) for port in _ports(facts))
    found = tuple(
        (name, f"RoCE v{nccl.roce_version(choice.gid)}, IPv{nccl.gid_family(choice.gid)}")
        for name, choice in choices
        if choice is not None and choice.gid is not None and nccl.roce_version(choice.gid) is not None
    )
    return _some(found)


def flow_control(facts: NodeFacts) -> Pairs:
    """Settings of each RoCE port by which loss is avoided: pfc, trust, ecn_np, ecn_rp, forced traffic class."""
    found = []
    for port in _ports(facts):
        flow = port.port.flow or {}
        settings = {name: flow[name] for name in ("pfc", "trust", "ecn_np", "ecn_rp") if name in flow}
        if (port.port.traffic_class or -1) >= 0:
            settings["traffic class"] = str(port.port.traffic_class)
        if settings and port.port.link_layer == "Ethernet":
            found.append(
                (port.name, "; ".join(f"{name} {value or 'none'}" for name, value in sorted(settings.items())))
            )
    return _some(tuple(found))


def firmware(facts: NodeFacts) -> Pairs:
    """Firmware by PSID: only boards of one kind are compared."""
    devices: Tuple[RdmaDevice, ...] = known(_section(facts, "rdma").devices, facts.rdma, "devices")
    found: Dict[str, Set[str]] = {}
    for device in devices:
        if device.board_id and device.firmware:
            found.setdefault(device.board_id, set()).add(device.firmware)
    return _some(tuple((psid, ", ".join(sorted(found[psid]))) for psid in sorted(found)))


# --------------------------------------------------------------------------- environment


_OWN = re.compile(
    r"(LOCAL_|NODE_|GROUP_|ROLE_)?RANK|NCCL_HOSTID|NCCL_(DEBUG|TOPO|GRAPH|GRAPH_DUMP|TOPO_DUMP|TUNER_CONFIG|CONF|RAS)\w*"
    r"|(TORCH|TORCH_NCCL|TORCHELASTIC)_\w*(DEBUG|TRACE|LOG|FILE|DIR|PIPE|PATH|HOME|CACHE|RESTART_COUNT|RUN_ID|ERROR)\w*"
    r"|TORCH_(SHOW_CPP_STACKTRACES|CPP_LOG_LEVEL|DEVICE_BACKEND_AUTOLOAD|CUDA_ARCH_LIST)|NCCL_VERSION"
)
"""Variables that differ by design (of one rank or one node), or that name files and change nothing of the job."""
_COMPARED = re.compile(
    r"(NCCL|TORCH|TORCH_NCCL|GLOO|PYTORCH|OFI_NCCL|UCX|FI)_\w+|MASTER_(ADDR|PORT)|WORLD_SIZE|OMP_NUM_THREADS"
)
_NAMES = {
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_OOB_NET_IFNAME",
    "UCX_NET_DEVICES",
}
"""Variables that name devices: other names where the devices are called otherwise are right (env/* judges each node's)."""


def variables(facts: NodeFacts) -> Pairs:
    """Variables of NCCL, Gloo and torch that should agree between nodes, with their values."""
    env = _section(facts, "env")
    known(env.variables, env, "variables")
    found: Dict[str, str] = {}
    for variable in env.variables:
        wanted = _COMPARED.fullmatch(variable.name) and not _OWN.fullmatch(variable.name)
        if wanted and variable.name not in _NAMES and not (left_alone(variable.name) and "VERSION" in variable.name):
            found.setdefault(variable.name, variable.value)
    return tuple(sorted(found.items()))


# --------------------------------------------------------------------------- helpers


def _section(facts: NodeFacts, name: str) -> Any:
    section = getattr(facts, name)
    if section is None:
        raise NotKnown(facts.reasons.get(name) or Reason("not-recorded", f"{name} is not in these facts"))
    return section


def _of(facts: NodeFacts, section: str, name: str) -> Any:
    found = _section(facts, section)
    return known(getattr(found, name), found, name)


def _text(facts: NodeFacts, section: str, name: str) -> str:
    return str(_of(facts, section, name))


def _with_gpus(facts: NodeFacts) -> Gpus:
    """The section, where the node has GPUs."""
    gpus: Gpus = _section(facts, "gpus")
    if not known(gpus.gpus, gpus, "gpus"):
        raise NotKnown(Reason("not-applicable", "no GPU on this node"))
    return gpus


def _mode(facts: NodeFacts, name: str, words: Dict[Any, str]) -> str:
    """One word for all GPUs of a node."""
    found: List[Gpu] = list(answering(_with_gpus(facts)))
    values = {words[getattr(gpu, name)] for gpu in found if getattr(gpu, name) in words}
    if not values:
        raise NotKnown(Reason("not-applicable", f"no GPU tells its {name.replace('_', ' ')}"))
    return values.pop() if len(values) == 1 else "mixed"


def _some(found: T) -> T:
    """``found`` where there is something; else there is nothing of the kind on the node."""
    if not found:
        raise NotKnown(Reason("not-applicable", "nothing of the kind on this node"))
    return found


def _endpoints(facts: NodeFacts) -> Tuple[nccl.Endpoint, ...]:
    """What NCCL takes for sockets: with RDMA the first interface alone counts, to start up."""
    network = _section(facts, "network")
    found: Tuple[Interface, ...] = known(network.interfaces, network, "interfaces")
    endpoints = _chosen(found, facts.rdma, facts.env, facts.torch)
    if not endpoints:
        raise NotKnown(Reason("not-applicable", "no interface that NCCL could use"))
    return endpoints


@by_identity
def _chosen(
    interfaces: Tuple[Interface, ...], rdma: Optional[Rdma], env: Optional[Env], torch: Optional[Torch]
) -> Tuple[nccl.Endpoint, ...]:
    version = nccl.version_of(torch)
    endpoints = nccl.sockets(interfaces, env, version).endpoints
    return endpoints[:1] if nccl.carrier(rdma, env, version).kind == "rdma" else endpoints


def _ports(facts: NodeFacts) -> Tuple[nccl.HcaPort, ...]:
    known(_section(facts, "rdma").devices, facts.rdma, "devices")
    way = nccl.carrier(facts.rdma, facts.env, nccl.version_of(facts.torch))
    if not way.ports:
        raise NotKnown(Reason("not-applicable", "no RDMA port that NCCL would use"))
    return way.ports

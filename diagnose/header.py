"""The header of a report: one node's facts in a few lines of words."""

from collections import Counter
from typing import Any, Dict, Iterable, List, Optional

from ddp_doctor import glossary, nccl
from ddp_doctor.facts import UNLIMITED, Cpu, Gpus, Interface, Memory, Network, NodeFacts, Os, Rdma, Torch
from ddp_doctor.units import clock, plural, seconds, size
from ddp_doctor.units import moment as moment

_NAMED = 4
"""So many interfaces and adapters are named, the others are counted."""
OTHER_TOOLS = {"collect_env": "a collect_env report", "nvidia_smi": "output of nvidia-smi"}
"""Reports of other tools, by the name of their importer."""
_VIA = {"local": "on the node itself", "ssh": "over ssh", "replay": "from a recording"}


def lines(facts: NodeFacts) -> Dict[str, str]:
    """Label -> text, in the order of the header. What is not known says why."""
    return {
        "System": _system(facts.os) if facts.os else _why(facts, "os"),
        "Machine": _machine(facts.cpu, facts.memory) or _why(facts, "cpu"),
        "GPUs": _gpus(facts.gpus) if facts.gpus else _why(facts, "gpus"),
        "PyTorch": _torch(facts.torch) if facts.torch else _why(facts, "torch"),
        "Fabric": "; ".join(_fabric(facts)),
        "Taken": _taken(facts),
    }


def _why(facts: NodeFacts, section: str) -> str:
    reason = facts.reasons.get(section)
    return f"not known: {reason.text}" if reason else "not in these facts"


def _unread(section: Any, name: str) -> str:
    reason = section.unread.get(name)
    return f"not known: {reason.text}" if reason else "not known"


def _joined(parts: Iterable[Optional[str]], by: str = ", ") -> str:
    return by.join(part for part in parts if part)


def _system(os: Os) -> str:
    name = os.pretty or _joined((os.id, os.version), " ") or _unread(os, "pretty")
    container = f"in a container ({os.container})" if os.container else None
    guest = f"virtual machine ({os.virtualisation})" if os.virtualisation else None
    return _joined((name, f"kernel {os.kernel}" if os.kernel else None, os.machine, container, guest))


def _machine(cpu: Optional[Cpu], memory: Optional[Memory]) -> str:
    return _joined((_processors(cpu) if cpu else None, _memory(memory) if memory else None))


def _processors(cpu: Cpu) -> str:
    sockets = f"{cpu.sockets} x " if cpu.sockets and cpu.sockets > 1 and cpu.model else ""
    usable = [n for n in (cpu.allowed, cpu.quota) if n is not None and cpu.threads and n < cpu.threads]
    limited = f" ({min(usable):.3g} usable)" if usable else ""
    return _joined((f"{sockets}{cpu.model}" if cpu.model else None, _counted(cpu.threads, "thread", limited)))


def _counted(number: Optional[int], noun: str, more: str = "") -> Optional[str]:
    return None if number is None else plural(number, noun) + more


def _memory(memory: Memory) -> Optional[str]:
    limit = memory.cgroup_limit_bytes
    limited = limit is not None and limit < min(memory.total_bytes or UNLIMITED, UNLIMITED)
    total = f"{size(memory.total_bytes)} memory" if memory.total_bytes is not None else None
    return _joined((total, f"limited to {size(limit)} by its cgroup" if limit is not None and limited else None))


def _gpus(gpus: Gpus) -> str:
    found = _unread(gpus, "gpus") if gpus.gpus is None else _models(gpus) or _none(gpus)
    driver = f"driver {gpus.driver}" if gpus.driver else None
    cuda = f"which supports CUDA up to {gpus.cuda}" if driver and gpus.cuda else None
    others = f"of other vendors: {', '.join(gpus.other_vendor)}" if gpus.other_vendor else None
    return _joined((found, driver, cuda, others))


def _models(gpus: Gpus) -> str:
    """8 x NVIDIA A100-SXM4-80GB."""
    models = Counter(gpu.name or gpu.fault or "model not known" for gpu in gpus.gpus or ())
    return _joined(f"{number} x {name}" for name, number in models.items())


def _none(gpus: Gpus) -> str:
    if gpus.on_bus:
        return f"none usable, {len(gpus.on_bus)} on the PCI bus"
    return "none" if gpus.on_bus is not None else "none usable"


def _torch(torch: Torch) -> str:
    python = _joined((f"Python {torch.python_version}" if torch.python_version else "Python", torch.python), " ")
    way = glossary.OWN_PYTHON if torch.python_chosen_by == "own interpreter" else torch.python_chosen_by
    chosen = f" ({way})" if way else ""
    if not torch.installed:
        return f"{_unread(torch, 'installed') if torch.installed is None else 'not installed'}, {python}{chosen}"
    build = f"for CUDA {torch.cuda}" if torch.cuda else f"for ROCm {torch.hip}" if torch.hip else None
    cpu_only = "CPU only" if torch.cuda == "" and not torch.hip else None
    used = torch.nccl_loaded.version if torch.nccl_loaded and torch.nccl_loaded.version else torch.nccl
    imported = {True: None, False: "its import fails", None: "not imported"}[torch.imported]
    return (
        _joined(
            (
                torch.version or "version not known",
                build or cpu_only,
                f"NCCL {used}" if used else None,
                imported,
                python,
            )
        )
        + chosen
    )


def _fabric(facts: NodeFacts) -> Iterable[str]:
    """RDMA adapters first, then interfaces with addresses that other nodes can reach."""
    yield _adapters(facts.rdma) if facts.rdma else f"RDMA {_why(facts, 'rdma')}"
    yield _interfaces(facts.network) if facts.network else f"network {_why(facts, 'network')}"


def _adapters(rdma: Rdma) -> str:
    if rdma.devices is None:
        return f"RDMA {_unread(rdma, 'devices')}"
    groups: Dict[str, List[str]] = {}
    for device in rdma.devices:
        for port in device.ports or ():
            rate = f" {port.rate_gbit_s:g} Gb/s" if port.rate_gbit_s else ""
            layer = "RoCE" if port.link_layer == "Ethernet" else port.link_layer or "RDMA"
            words = f"{layer}{rate} {port.state or 'state not known'}"
            groups.setdefault(words, []).append(device.name)
    texts = (f"{len(names)} x {words} ({_few(names)})" for words, names in groups.items())
    return _joined(texts) or "no RDMA adapter"


def _few(names: List[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _interfaces(network: Network) -> str:
    if network.interfaces is None:
        return f"interfaces {_unread(network, 'interfaces')}"
    return _few([_interface(i) for i in network.interfaces if addresses(i)]) or "no interface with an address"


def _interface(interface: Interface) -> str:
    speed = nccl.wire_speed_gbit_s(interface)
    state = "(no link)" if interface.running is False else f"at {speed:g} Gb/s" if speed else None
    return _joined((interface.name, addresses(interface)[0], state), " ")


def addresses(interface: Interface) -> List[str]:
    """Addresses that another node could use: global ones of an interface that is no loopback, IPv4 first."""
    if interface.kind == "loopback" or interface.up is False:
        return []
    usable = [a for a in interface.addresses or () if a.scope in (None, "global")]
    return [a.ip for a in sorted(usable, key=lambda a: a.family != "ipv4")]


def _taken(facts: NodeFacts) -> str:
    """How the facts were taken: root's or ssh's limits are not the job's."""
    how = facts.how
    if how.via in OTHER_TOOLS:
        return f"from {OTHER_TOOLS[how.via]}, which does not say when or by whom"
    user = f"as {how.user or 'user'} (uid {how.uid})" if how.uid is not None else None
    moment = _when(facts.collected_at) if facts.collected_at is not None else None
    took = f"in {seconds(facts.duration_s)}" if facts.duration_s is not None else None
    job = f"in job {how.job}" if how.job else "outside a scheduler's job"
    return _joined((_VIA.get(how.via, f"by {how.via}"), user, job, f"profile {how.profile}", moment, took))


def _when(unix_s: float) -> str:
    return clock(unix_s) or f"at {unix_s:g} s of Unix time"

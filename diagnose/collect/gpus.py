"""Gpus: what the NVIDIA driver, the kernel and the bus say of the GPUs, and what of them was given to this job.

Three ways, best first: NVML (``nvml.py``), ``nvidia-smi`` where NVML could not be used at all, and the kernel's own
trees. The bus is always looked at: it tells of GPUs for which no driver answers.
"""

import re
from dataclasses import fields, replace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.collect import nvidia_smi, nvlink, nvml, pci
from ddp_doctor.facts import Gpu, GpuProcess, Gpus, PciGpu, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

LIMIT_S = nvml.ASK_LIMIT_S + nvidia_smi.LIMIT_S + 5.0
PROC = "/proc/driver/nvidia"
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h): any other is a container's."""

Plain = Dict[str, Any]


def read(host: Host, ask: Ask) -> Gpus:
    """GPUs of this node. See ``Gpus`` for what each way can tell."""
    unread: Unread = {}
    functions = optional(lambda: pci.functions(host), unread, "on_bus")
    on_bus = None if functions is None else pci.nvidia_gpus(host, functions)
    if functions is None:
        unread["other_vendor"] = unread["on_bus"]
    env = optional(host.env, unread, "visible_devices")
    place = Place(on_bus, *_kernel_module(host, unread), _device_nodes(host, unread), _in_container(host, env or {}))
    trees = _proc_gpus(host, place)
    told = _ask_driver(host, unread)
    gpus = _gpus(host, told, trees, place, unread)
    visible, admitted, admitted_by = _given(env, place, unread)
    return Gpus(
        source=told.get("source", "proc"),
        driver=_driver(told, place.module, unread),
        kernel_module=place.module,
        kernel_module_open=place.module_open,
        library=_text(told, "library", unread),
        cuda=_text(told, "cuda", unread),
        nvml_error=told.get("nvml_error"),
        gpus=None if gpus is None else tuple(_complete(host, gpu, trees, gpus) for gpu in gpus),
        on_bus=on_bus,
        device_nodes=place.nodes,
        driver_nodes=_driver_nodes(host, unread),
        admitted=admitted,
        admitted_by=admitted_by,
        visible_devices=visible,
        other_vendor=None if functions is None else pci.other_vendors(functions),
        unread=unread,
    )


class Place(NamedTuple):
    """What the kernel says before any driver is asked."""

    on_bus: Optional[Tuple[PciGpu, ...]]
    module: Optional[str]
    module_open: Optional[bool]
    nodes: Optional[Tuple[str, ...]]
    contained: bool
    """In a container, which is given GPUs as device nodes."""


# --------------------------------------------------------------------------- the driver's word


def _ask_driver(host: Host, unread: Unread) -> Plain:
    """Answer of NVML or else of nvidia-smi, with ``source``; what neither gives stands in ``unread``."""
    try:
        told: Plain = dict(host.ask("nvml", nvml.talk, nvml.ASK_LIMIT_S))
    except Unreadable as error:
        unread["nvml_error"] = error.reason
        if error.reason.kind == "timed-out":  # nvidia-smi asks the same NVML and hangs as well
            unread["gpus"] = error.reason
            return {}
        return _ask_nvidia_smi(host, error.reason, unread)
    words = told.pop("error", None)
    if words is None:
        return {"source": "nvml", **told}
    told = {"nvml_error": str(words), **{name: value for name, value in told.items() if value}}
    if "Library Not Found" in words:
        return {**told, **_ask_nvidia_smi(host, Reason("absent", str(words)), unread)}
    unread["gpus"] = Reason("unreadable", f"NVML: {words}")
    return told


def _ask_nvidia_smi(host: Host, why: Reason, unread: Unread) -> Plain:
    """Answer of nvidia-smi; {} with ``why`` NVML did not answer as the reason when there is none."""
    try:
        ran = host.run("nvidia-smi-query", nvidia_smi.ARGV, limit_s=nvidia_smi.LIMIT_S)
        complaint = nvidia_smi.complaint(ran.stdout + ran.stderr)
        if complaint:
            unread.pop("nvml_error", None)
            unread["gpus"] = Reason("unreadable", f"NVML: {complaint['nvml_error']}")
            return complaint
        told = nvidia_smi.parse(ran.stdout or ran.stderr)
    except Unreadable as error:
        absent = error.reason.kind == "absent"
        answer = Reason(error.reason.kind, f"{why.text}; {error.reason.text}")  # what it does say counts
        unread["gpus"] = why if absent else answer
        return {}
    broken = told.pop("error")
    if broken:
        unread["gpus"] = Reason("unreadable", broken)
    return {"source": "nvidia-smi", **told}


def _gpus(host: Host, told: Plain, trees: Sequence[Plain], place: Place, unread: Unread) -> Optional[List[Gpu]]:
    """The GPUs that the driver tells of; else those of the kernel's trees; () where there is nothing to drive."""
    if "gpus" in told:
        return _permitted([gpu_of(plain) for plain in told["gpus"]], unread)
    if trees:
        why = unread.pop("gpus", Reason("absent", "the driver did not tell of its GPUs"))
        return [gpu_of({**plain, "silent": {"kind": why.kind, "text": why.text}}) for plain in trees]
    nothing = (place.module == "" and place.on_bus == ()) or (place.contained and place.nodes == ())
    if nothing and not _has_hidden_gpu(host):
        unread.pop("gpus", None)
        return []
    return None


def _has_hidden_gpu(host: Host) -> bool:
    """WSL's paravirtual GPU or the one inside a Jetson: CUDA works there without a function on the PCI bus."""
    if optional(lambda: host.exists("/dev/dxg"), {}, "gpus"):
        return True
    return "nvidia,tegra" in (optional(lambda: host.read("/proc/device-tree/compatible"), {}, "gpus") or "")


def _permitted(gpus: List[Gpu], unread: Unread) -> Optional[List[Gpu]]:
    """Leave out GPUs that the device cgroup or the device node's mode denies: NVML counts them, and they are not ours.

    (nvml.h: nvmlDeviceGetCount_v2 counts devices that nvmlDeviceGetHandleByIndex_v2 denies.)
    """
    kept = [gpu for gpu in gpus if not (gpu.fault and gpu.unread.get("uuid", Reason("", "")).kind == "no-rights")]
    if gpus and not kept:
        unread["gpus"] = Reason("no-rights", f"NVML: {gpus[0].fault}")
        return None
    return kept


_GPU_FIELDS = {field.name for field in fields(Gpu)}
_NOT_READ = _GPU_FIELDS - {"index", "mig", "numa_node", "unsupported", "fault", "unread"}


def gpu_of(plain: Plain) -> Gpu:
    """``Gpu`` of plain data; ``silent`` is the reason of every field that has no value."""
    known = {name: value for name, value in plain.items() if name in _GPU_FIELDS}
    unread = {name: Reason(**reason) for name, reason in known.pop("unread", {}).items()}
    if "silent" in plain:
        missing = (_NOT_READ | {"mig"}) - set(known) - set(known.get("unsupported", ())) - set(unread)
        unread.update({name: Reason(**plain["silent"]) for name in sorted(missing)})
    for name in ("unsupported", "throttle"):
        if name in known:
            known[name] = tuple(known[name])
    if known.get("processes") is not None:
        known["processes"] = tuple(GpuProcess(**process) for process in known["processes"])
    if known.get("nvlinks") is not None:
        known["nvlinks"] = tuple(nvlink.link_of(link) for link in known["nvlinks"])
    if known.get("fabric") is not None:
        known["fabric"] = nvlink.fabric_of(known["fabric"])
    return Gpu(unread=unread, **known)


def _complete(host: Host, gpu: Gpu, trees: Sequence[Plain], gpus: Sequence[Gpu]) -> Gpu:
    """Add what the kernel knows: which GPU a silent one is, its NUMA node, the names of its processes."""
    if gpu.pci is None and _same_order(gpus, trees):
        gpu = _identified(gpu, trees[gpu.index])
    node = pci.numa_node(host, gpu.pci) if gpu.pci else None
    unread = dict(gpu.unread)
    if node is None:
        unread["numa_node"] = Reason("absent", "the kernel names no NUMA node for this GPU")
    return replace(gpu, numa_node=node, processes=named(host, gpu.processes), unread=unread)


def _same_order(gpus: Sequence[Gpu], trees: Sequence[Plain]) -> bool:
    """NVML numbers GPUs by PCI address, as the trees are sorted; those that answered must prove it."""
    if [gpu.index for gpu in gpus] != list(range(len(trees))):
        return False
    proven = [gpu.pci == trees[gpu.index]["pci"] for gpu in gpus if gpu.pci]
    return all(proven) and (bool(proven) or len(gpus) == 1)


def _identified(gpu: Gpu, tree: Plain) -> Gpu:
    known = {name: tree[name] for name in ("pci", "name", "uuid") if name in tree and getattr(gpu, name) is None}
    return replace(gpu, unread={k: v for k, v in gpu.unread.items() if k not in known}, **known)


def named(host: Host, processes: Optional[Tuple[GpuProcess, ...]]) -> Optional[Tuple[GpuProcess, ...]]:
    """Name the processes by /proc/PID/comm, never by their command lines.

    The driver tells the machine's pids: in a pid namespace they are nobody's, or somebody else's.
    """
    if not processes or _pid_namespace(host) != INITIAL_PID_NAMESPACE:
        return processes
    return tuple(p if p.name else replace(p, name=_comm(host, p.pid)) for p in processes)


def _comm(host: Host, pid: int) -> Optional[str]:
    text = optional(lambda: host.read(f"/proc/{pid}/comm"), {}, "name")
    return text.strip() if text else None


def _pid_namespace(host: Host) -> Optional[str]:
    return optional(lambda: host.link("/proc/self/ns/pid"), {}, "pid")


# --------------------------------------------------------------------------- the kernel's word


def _kernel_module(host: Host, unread: Unread) -> Tuple[Optional[str], Optional[bool]]:
    """(version, is open); ("", None) when no nvidia module is loaded."""
    try:
        version, is_open = parse_version(host.read(f"{PROC}/version"))
    except Unreadable as error:
        version, is_open = _module_version(host, error.reason, unread), None
    if version == "":
        unread["kernel_module_open"] = Reason("not-applicable", "no nvidia kernel module is loaded")
    elif is_open is None:
        unread["kernel_module_open"] = Reason("unreadable", f"{PROC}/version does not tell")
    if version is None:
        unread.setdefault("kernel_module", Reason("unreadable", f"{PROC}/version: no version in it"))
    return version, is_open


def parse_version(text: str) -> Tuple[Optional[str], Optional[bool]]:
    """(version, is open) from /proc/driver/nvidia/version.

    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Wed ..." or "... Open Kernel Module for x86_64  580.95".
    """
    found = re.search(r"^NVRM version:.*?\s(\d{2,4}\.\d+(?:\.\d+)*)\b", text, re.MULTILINE)
    if not found:
        return None, None
    return found.group(1), "Open Kernel Module" in found.group(0)


def _module_version(host: Host, why: Reason, unread: Unread) -> Optional[str]:
    """Version that the loaded module itself states; "" when none is loaded."""
    if why.kind != "absent":
        unread["kernel_module"] = why
    try:
        return host.read("/sys/module/nvidia/version").strip()
    except Unreadable as error:
        if error.reason.kind == why.kind == "absent":
            return ""
        unread["kernel_module"] = error.reason
        return None


def _device_nodes(host: Host, unread: Unread) -> Optional[Tuple[str, ...]]:
    """/dev/nvidia0 ... in the order of their numbers."""
    names = optional(lambda: host.list("/dev"), unread, "device_nodes")
    if names is None:
        return None
    numbers = sorted(int(name[6:]) for name in names if re.fullmatch(r"nvidia\d{1,4}", name))
    return tuple(f"/dev/nvidia{number}" for number in numbers)


def _driver_nodes(host: Host, unread: Unread) -> Optional[Tuple[str, ...]]:
    """What a process opens beside the GPUs' own nodes: the driver's, and those of MIG's parts (/dev/nvidia-caps)."""
    names = optional(lambda: host.list("/dev"), unread, "driver_nodes")
    caps = (
        optional(lambda: host.list("/dev/nvidia-caps"), unread, "driver_nodes")
        if names and "nvidia-caps" in names
        else ()
    )
    if names is None or caps is None:
        return None
    found = [f"/dev/{name}" for name in ("nvidiactl", "nvidia-uvm") if name in names]
    return (*found, *(f"/dev/nvidia-caps/{name}" for name in caps))


def _proc_gpus(host: Host, place: Place) -> List[Plain]:
    """GPUs of /proc/driver/nvidia/gpus by address. It shows all of the machine's: a container's are those with a node."""
    found = []
    for folder in optional(lambda: host.list(f"{PROC}/gpus"), {}, "gpus") or ():
        text = optional(lambda folder=folder: host.read(f"{PROC}/gpus/{folder}/information"), {}, "gpus")  # type: ignore[misc]
        gpu = {"pci": pci.address(folder), **parse_information(text or "")}
        if gpu.pop("node", None) in (place.nodes or ()) or not place.contained:
            found.append(gpu)
    return [{**gpu, "index": index} for index, gpu in enumerate(sorted(found, key=lambda gpu: str(gpu["pci"])))]


def parse_information(text: str) -> Plain:
    """name, uuid and node of one GPU's "information" file; the uuid has question marks until the GPU was woken."""
    rows = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    known = {"name": rows.get("Model", ""), "uuid": rows.get("GPU UUID", "")}
    if rows.get("Device Minor", "").isdigit():
        known["node"] = f"/dev/nvidia{rows['Device Minor']}"
    return {name: value for name, value in known.items() if value and "?" not in value}


def _driver(told: Plain, module: Optional[str], unread: Unread) -> Optional[str]:
    """The driver's version as it says itself, else that of the kernel module."""
    version = told.get("driver") or module
    if version:
        return str(version)
    unread["driver"] = unread.get("kernel_module") or Reason("absent", "no NVIDIA driver is loaded")
    return None


def _text(told: Plain, name: str, unread: Unread) -> Optional[str]:
    if told.get(name):
        return str(told[name])
    unread[name] = unread.get("nvml_error") or Reason("absent", told.get("nvml_error") or "the driver did not tell")
    return None


# --------------------------------------------------------------------------- what was given to this job


def _given(
    env: Optional[Dict[str, str]], place: Place, unread: Unread
) -> Tuple[Optional[str], Optional[int], Optional[str]]:
    """(CUDA_VISIBLE_DEVICES, admitted, admitted_by)."""
    if env is None:
        unread["admitted"] = unread["admitted_by"] = unread["visible_devices"]
        return None, None, None
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        unread["visible_devices"] = Reason("absent", "CUDA_VISIBLE_DEVICES is not set")
    admitted, by = parse_admitted(env) or _by_nodes(place) or (None, None)
    if admitted is None:
        unread["admitted"] = unread["admitted_by"] = Reason("absent", "nothing here says how many GPUs were given")
    return visible, admitted, by


def parse_admitted(env: Dict[str, str]) -> Optional[Tuple[int, str]]:
    """(number of GPUs, what says so) by the scheduler's or the container runtime's variables; None when none says.

    SLURM_STEP_GPUS, SLURM_JOB_GPUS: the node's GPU numbers given to the step or job, SLURM_GPUS_ON_NODE how many
    (srun and sbatch manuals); GPU_DEVICE_ORDINAL is Slurm's only within a job.
    NVIDIA_VISIBLE_DEVICES: numbers or uuids; "all", "void" and an empty value limit nothing, and every CUDA image
    sets "all", also where no GPU was given (nvidia-container-toolkit's documentation).
    """
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL"):
        count = _count(env.get(name, "")) if name.startswith("SLURM") or "SLURM_JOB_ID" in env else None
        if count is not None:
            return count, f"{name}={env[name]}"
    if "SLURM_JOB_ID" in env and re.fullmatch(r"\d{1,3}", env.get("SLURM_GPUS_ON_NODE", "")):
        return int(env["SLURM_GPUS_ON_NODE"]), f"SLURM_GPUS_ON_NODE={env['SLURM_GPUS_ON_NODE']}"
    given = env.get("NVIDIA_VISIBLE_DEVICES", "")
    count = 0 if given == "none" else _count(given)
    if count is not None:
        return count, f"NVIDIA_VISIBLE_DEVICES={given}"
    if env.get("CUDA_VISIBLE_DEVICES") == "NoDevFiles":  # Slurm's word for a job without GPUs
        return 0, "CUDA_VISIBLE_DEVICES=NoDevFiles"
    return None


def _count(text: str) -> Optional[int]:
    """Number of GPUs in "0,1", "0-3", "gpu:0,1" or a list of GPU uuids; None when it is no such list.

    MIG devices ("0:1" is a part of GPU 0) count the GPUs that they are parts of; a MIG uuid does not say of which.
    """
    found = set()
    for item in text.split(","):
        item = item.strip()
        if re.fullmatch(r"GPU-[0-9a-fA-F-]+", item):
            found.add(item)
            continue
        numbers = re.fullmatch(r"(?:gpu:)?(\d{1,3})(?:-(\d{1,3})|:\d{1,3})?", item)
        if not numbers:
            return None
        first, last = numbers.group(1), numbers.group(2) or numbers.group(1)
        found.update(str(number) for number in range(int(first), int(last) + 1))
    return len(found)


def _by_nodes(place: Place) -> Optional[Tuple[int, str]]:
    """A container is given GPUs as device nodes. On the machine itself a missing node is a fault, no limit."""
    if place.nodes is None or not place.on_bus or not place.contained:
        return None
    return len(place.nodes), f"{len(place.nodes)} /dev/nvidiaN device nodes in this container"


def _in_container(host: Host, env: Dict[str, str]) -> bool:
    """A pid namespace of its own, or a marker of podman, docker or systemd-nspawn."""
    if "container" in env or _pid_namespace(host) not in (None, INITIAL_PID_NAMESPACE):
        return True
    return any(optional(lambda p=p: host.exists(p), {}, "container") for p in ("/.dockerenv", "/run/.containerenv"))  # type: ignore[misc]

"""Compute: the compute test of all idle GPUs, by the torch of the examined interpreter."""

import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ddp_doctor import redact, resources
from ddp_doctor.accelerators import chosen
from ddp_doctor.ask import Ask
from ddp_doctor.collect import gpus as gpus_of
from ddp_doctor.collect import nvml, pythons
from ddp_doctor.facts import Compute, Gpu, GpuProcess, GpuTest, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

TEST_LIMIT_S = 240.0
"""The whole test: about 15 s on eight healthy GPUs after torch was imported, and half a second for each pair of them."""
LIMIT_S = 2 * gpus_of.LIMIT_S + TEST_LIMIT_S + 30.0
TAKEN_BYTES = 2 << 30
"""More in use than this is somebody's, as in checks/gpu/use.py (AMD-AGI/Primus node_smoke)."""
BUSY_PERCENT = 10
"""A GPU that is busier is somebody's, whether its processes can be seen or not. An idle one says 0."""
TAKEN_WORDS = ("busy or unavailable", "cudaErrorDevicesUnavailable")
"""What CUDA says of a GPU of which another process has taken sole possession since we looked."""
HUNG_WORDS = "no answer within"
"""Of the worker: what hangs is still listed as a process on its GPU, and in a container under a pid that is not ours."""
BOOT = "import sys; SOURCE = sys.stdin.read(); exec(compile(SOURCE, 'compute.py', 'exec'))"
NUMBERS = ("memory_gb_s", "to_device_gb_s", "to_host_gb_s", "duration_s")
TABLES = ("gemm_tflop_s", "peer_gb_s")
MEASURED = (*NUMBERS, *TABLES, "checksums", "multiprocessors", "wrong")

Said = Dict[str, Any]


def wanted(ask: Ask) -> Optional[Reason]:
    """Only when asked: it loads every idle GPU for some seconds."""
    if ask.compute is False:
        return Reason("not-asked", "none of its checks is selected")
    if ask.compute or ask.profile == "deep":
        return None
    return Reason("not-asked", "the compute test runs with --profile deep or --select gpu-test")


def read(host: Host, ask: Ask) -> Compute:
    """The test's answers for the idle GPUs, and why the others were left alone.

    Unreadable: not-applicable (no GPU), absent (no torch that could use one), or why the GPUs are not known.
    """
    found = gpus_of.read(host, ask)
    if found.gpus is None:
        raise Unreadable(found.unread.get("gpus", Reason("absent", "the GPUs are not known")))
    if not found.gpus:
        raise Unreadable(Reason("not-applicable", "no GPU"))
    visible = chosen(host.env().get("CUDA_VISIBLE_DEVICES"))
    why = {gpu.index: why_not(gpu, visible) for gpu in found.gpus}
    free = [gpu for gpu in found.gpus if why[gpu.index] is None]
    said = measure(host, ask, plan(host, free)) if free else []
    why.update(interrupted(host, free, said))
    tests = [as_test(gpu, answer, free) for gpu, answer in zip(free, said) if why[gpu.index] is None]
    tests += [left_alone(gpu, why[gpu.index] or "") for gpu in found.gpus if why[gpu.index] is not None]
    return Compute(
        torch=next((str(s["torch"]) for s in said if s.get("torch")), None),
        gpus=tuple(sorted(tests, key=lambda t: t.index)),
        unread={} if any(s.get("torch") for s in said) else {"torch": Reason("not-applicable", "no GPU was tested")},
    )


# ------------------------------------------------------------------------------------------------ which GPUs


def why_not(gpu: Gpu, visible: Optional[Sequence[str]]) -> Optional[str]:
    """Why a GPU is left alone, or None: a running job must not be disturbed. visible: of CUDA_VISIBLE_DEVICES."""
    if gpu.fault:
        return f"it does not answer: {gpu.fault}"
    if not gpu.uuid:
        return "its UUID is not known"
    if visible is not None and not any(_means(name, gpu) for name in visible):
        return "CUDA_VISIBLE_DEVICES leaves it out"
    if gpu.mig == "enabled":
        return "it is divided (MIG)"
    if gpu.compute_mode == "prohibited":
        return "its compute mode is prohibited"
    if gpu.processes is None:
        return "whether a job uses it is not known"
    if gpu.memory_used_bytes is None:
        return "how much of its memory is in use is not known"
    return _in_use(gpu.processes) or _busy(gpu)


def _means(name: str, gpu: Gpu) -> bool:
    """An index, or the beginning of a UUID."""
    return name == str(gpu.index) or (not name.isdigit() and str(gpu.uuid).startswith(name))


def _in_use(processes: Sequence[GpuProcess]) -> Optional[str]:
    users = [p for p in processes if p.kind in ("compute", "mps")]
    if not users:
        return None
    return "in use by " + ", ".join(f"pid {p.pid}" + (f" ({p.name})" if p.name else "") for p in users)


def _busy(gpu: Gpu) -> Optional[str]:
    """In use by somebody whose processes are not seen: those of another container.

    Utilisation counts where persistence is on; else the driver has just woken the GPU, which it takes for work.
    """
    if (gpu.memory_used_bytes or 0) > TAKEN_BYTES:
        return "its memory is in use"
    busy = gpu.utilisation_percent is not None and gpu.utilisation_percent > BUSY_PERCENT
    return f"it is busy ({gpu.utilisation_percent} %)" if busy and gpu.persistence else None


def interrupted(host: Host, tested: Sequence[Gpu], said: Sequence[Said]) -> Dict[int, str]:
    """Index -> why the answer of a GPU tells nothing: a job began to use it during the test."""
    own = {answer.get("pid") for answer in said}
    users = _users_now(host, own) if said else {}
    found = {}
    for gpu, answer in zip(tested, said):
        error = str(answer.get("error"))
        taken = any(word in error for word in TAKEN_WORDS)
        now = users.get(str(gpu.uuid)) or ("another process took sole possession of it" if taken else None)
        if now and HUNG_WORDS not in error:
            found[gpu.index] = f"a job began to use it during the test: {now}"
    return found


def _users_now(host: Host, own: Set[Any]) -> Dict[str, str]:
    """UUID -> who uses it but our own processes, which have ended; nothing where that cannot be told."""
    told: Said = optional(lambda: host.ask("nvml-after-compute", nvml.talk, nvml.ASK_LIMIT_S), {}, "users") or {}
    gpus = [gpus_of.gpu_of(plain) for plain in told.get("gpus", ())]
    others = {str(gpu.uuid): [p for p in gpu.processes or () if p.pid not in own] for gpu in gpus if gpu.uuid}
    users = {uuid: _in_use(gpus_of.named(host, tuple(processes)) or ()) for uuid, processes in others.items()}
    return {uuid: text for uuid, text in users.items() if text}


# ------------------------------------------------------------------------------------------------ the test


class Plan(NamedTuple):
    """What the worker is told; see ``bench/compute.py``."""

    devices: List[str]
    visible: List[str]
    """UUIDs of these devices, in order."""
    cpus: List[List[int]]
    peers: bool


def plan(host: Host, gpus: Sequence[Gpu]) -> Plan:
    """The test of these GPUs. A GPU that takes one process only cannot be copied to from another GPU's process."""
    peers = all(gpu.compute_mode in (None, "default") for gpu in gpus)
    devices = [f"cuda:{number}" for number in range(len(gpus))]
    return Plan(devices, [str(gpu.uuid) for gpu in gpus], [_near(host, gpu) for gpu in gpus], peers)


def _near(host: Host, gpu: Gpu) -> List[int]:
    """Processors of the GPU's NUMA node; none where it is not known."""
    path = f"/sys/devices/system/node/node{gpu.numa_node}/cpulist"
    text = None if gpu.numa_node is None else optional(lambda: host.read(path), {}, "cpus")
    return parse_processors(text or "")


def parse_processors(text: str) -> List[int]:
    """0, 1, 2, 3, 8 of "0-3,8"; none of anything else, and never more than Linux can have (NR_CPUS 8192)."""
    found = [re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part, re.ASCII) for part in text.strip().split(",")]
    spans = [range(int(m.group(1)), int(m.group(2) or m.group(1)) + 1) for m in found if m]
    return sorted({number for span in spans for number in span}) if all(found) else []


def measure(host: Host, ask: Ask, wanted: Plan) -> List[Said]:
    """Run the test: one answer for each device. Unreadable where it did not answer, or could not be done at all."""
    options = json.dumps({**wanted._asdict(), "limit_s": TEST_LIMIT_S})
    python = pythons.find(host, ask)
    ran = host.run(
        "compute-test",
        [python.path, "-B", "-c", BOOT, options],
        TEST_LIMIT_S + 20.0,
        resources.text("bench/compute.py"),
    )
    answers = parse_answers(ran.stdout)
    if len(answers) != len(wanted.devices):
        last = redact.text((ran.stderr.strip().splitlines() or ["it printed nothing"])[-1])
        raise Unreadable(Reason("crashed", f"the compute test ended with status {ran.status}: {last}"))
    unable = [str(answer["unable"]) for answer in answers if answer.get("unable")]
    if len(unable) == len(answers):
        raise Unreadable(Reason("absent", redact.text(unable[0])))
    return answers


def parse_answers(stdout: str) -> List[Said]:
    """The list after the mark; empty where there is none."""
    from ddp_doctor.bench.compute import MARK  # here: it starts threads and processes, and is asked for seldom

    lines = [line[len(MARK) :] for line in stdout.splitlines() if line.startswith(MARK)]
    try:
        found = json.loads(lines[-1]) if lines else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else []


# ------------------------------------------------------------------------------------------------ facts


def as_test(gpu: Gpu, said: Said, gpus: Sequence[Gpu]) -> GpuTest:
    """One device's answer as facts; a number that was not reached has a reason."""
    error = redact.text(str(said["error"])) if said.get("error") else None
    facts: Said = {name: said[name] for name in NUMBERS if _is_number(said.get(name))}
    facts.update({name: _rates(said.get(name)) for name in TABLES if _rates(said.get(name))})
    if _is_number(said.get("multiprocessors")):
        facts["multiprocessors"] = int(said["multiprocessors"])
    sums = said.get("checksums")
    if isinstance(sums, dict) and sums:
        facts["checksums"] = {str(kind): str(total) for kind, total in sums.items()}
    if "peer_gb_s" in facts:
        names = {f"cuda:{number}": str(other.index) for number, other in enumerate(gpus)}
        facts["peer_gb_s"] = {names[name]: rate for name, rate in facts["peer_gb_s"].items() if name in names}
    wrong = said.get("wrong")
    if isinstance(wrong, list) and (wrong or not {"gemm_tflop_s", "memory_gb_s", "to_host_gb_s"} - set(facts)):
        facts["wrong"] = tuple(redact.text(str(text)) for text in wrong)
    kind, text = _why_unmeasured(said, error)
    unread: Unread = {name: Reason(kind, text) for name in MEASURED if name not in facts}
    device = str(said.get("device", ""))
    return GpuTest(gpu.index, device=device, name=gpu.name, uuid=gpu.uuid, error=error, unread=unread, **facts)


def _why_unmeasured(said: Said, error: Optional[str]) -> Tuple[str, str]:
    if error:
        return "crashed", error
    for key, kind in (("unable", "absent"), ("cut_short", "timed-out")):
        if said.get(key):
            return kind, redact.text(str(said[key]))
    return "not-applicable", "not measured here"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _rates(value: Any) -> Dict[str, float]:
    return {str(k): float(v) for k, v in value.items() if _is_number(v)} if isinstance(value, dict) else {}


def left_alone(gpu: Gpu, why: str) -> GpuTest:
    """A GPU that was not tested."""
    unread: Unread = {name: Reason("not-applicable", f"not tested: {why}") for name in MEASURED}
    return GpuTest(gpu.index, name=gpu.name, uuid=gpu.uuid, unread=unread)

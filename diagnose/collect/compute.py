"""Compute: the compute test of all idle GPUs in parallel, by the torch of the examined interpreter."""

import json
import os
from typing import Any, Dict, List, Optional

from ddp_doctor import redact
from ddp_doctor.ask import Ask
from ddp_doctor.collect import gpus as gpus_of
from ddp_doctor.collect import pythons
from ddp_doctor.facts import Compute, Gpu, GpuTest, Reason, Unread
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

TEST_LIMIT_S = 180.0
"""The whole test; about 15 s on eight healthy GPUs after torch was imported."""
LIMIT_S = TEST_LIMIT_S + 40.0
TAKEN_BYTES = 2 << 30
"""More in use than this is somebody's, as in checks/gpu/use.py (AMD-AGI/Primus node_smoke)."""
BOOT = "import sys; SOURCE = sys.stdin.read(); exec(compile(SOURCE, 'compute.py', 'exec'))"
MEASURED = ("gemm_tflop_s", "checksums", "memory_gb_s", "to_device_gb_s", "to_host_gb_s", "peer_gb_s", "wrong")
NUMBERS = ("memory_gb_s", "to_device_gb_s", "to_host_gb_s")


def wanted(ask: Ask) -> Optional[Reason]:
    """Only when asked: it loads every idle GPU for some seconds."""
    if ask.profile == "deep" or ask.compute:
        return None
    return Reason("not-asked", "the compute test runs with --profile deep or --select gpu-test")


def read(host: Host, ask: Ask) -> Compute:
    """The test's answers for the idle GPUs, and why the others were left alone. Unreadable where there is no GPU."""
    found = gpus_of.read(host, ask)
    if found.gpus is None:
        raise Unreadable(found.unread.get("gpus", Reason("absent", "the GPUs are not known")))
    if not found.gpus:
        raise Unreadable(Reason("not-applicable", "no GPU"))
    why = {gpu.index: why_not(gpu, host.env().get("CUDA_VISIBLE_DEVICES")) for gpu in found.gpus}
    free = [gpu for gpu in found.gpus if why[gpu.index] is None]
    # A GPU that takes one process only cannot be copied to from another GPU's process.
    peers = all(gpu.compute_mode in (None, "default") for gpu in free)
    uuids = [str(gpu.uuid) for gpu in free]
    said = measure(host, ask, [f"cuda:{i}" for i in range(len(free))], uuids, peers) if free else []
    tests = [as_test(gpu, answer, free) for gpu, answer in zip(free, said)]
    tests += [left_alone(gpu, why[gpu.index] or "") for gpu in found.gpus if why[gpu.index] is not None]
    return Compute(
        torch=next((str(s["torch"]) for s in said if s.get("torch")), None),
        gpus=tuple(sorted(tests, key=lambda t: t.index)),
        unread={} if any(s.get("torch") for s in said) else {"torch": Reason("absent", "no GPU was tested")},
    )


def why_not(gpu: Gpu, visible: Optional[str]) -> Optional[str]:
    """Why a GPU is left alone, or None: a running job must not be disturbed."""
    if not gpu.uuid:
        return "its UUID is not known"
    if visible is not None and not _is_visible(gpu, visible):
        return f"CUDA_VISIBLE_DEVICES={visible} leaves it out"
    if gpu.mig == "enabled":
        return "it is divided (MIG)"
    if gpu.compute_mode == "prohibited":
        return "its compute mode is prohibited"
    if gpu.processes is None:
        return "whether a job uses it is not known"
    users = [p for p in gpu.processes if p.kind in ("compute", "mps")]
    if users:
        return "in use by " + ", ".join(f"pid {p.pid}" + (f" ({p.name})" if p.name else "") for p in users)
    if gpu.memory_used_bytes is None:
        return "how much of its memory is in use is not known"
    return "its memory is in use" if gpu.memory_used_bytes > TAKEN_BYTES else None


def _is_visible(gpu: Gpu, visible: str) -> bool:
    words = [word.strip() for word in visible.split(",")]
    return any(w == str(gpu.index) or (w.startswith("GPU-") and str(gpu.uuid).startswith(w)) for w in words)


def measure(host: Host, ask: Ask, devices: List[str], visible: List[str], peers: bool = False) -> List[Dict[str, Any]]:
    """Run the test: one answer for each device. Unreadable where it did not answer."""
    options = json.dumps({"devices": devices, "visible": visible, "peers": peers, "limit_s": TEST_LIMIT_S})
    python = pythons.find(host, ask)
    ran = host.run("compute-test", [python.path, "-B", "-c", BOOT, options], TEST_LIMIT_S + 20.0, _source())
    answers = parse_answers(ran.stdout)
    if len(answers) != len(devices):
        last = redact.text((ran.stderr.strip().splitlines() or ["it printed nothing"])[-1])
        raise Unreadable(Reason("crashed", f"the compute test ended with status {ran.status}: {last}"))
    return answers


def _source() -> str:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(here, "bench", "compute.py"), encoding="utf-8") as file:
        return file.read()


def parse_answers(stdout: str) -> List[Dict[str, Any]]:
    """The list after the mark; empty where there is none."""
    from ddp_doctor.bench.compute import MARK

    lines = [line[len(MARK) :] for line in stdout.splitlines() if line.startswith(MARK)]
    try:
        found = json.loads(lines[-1]) if lines else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else []


def as_test(gpu: Gpu, said: Dict[str, Any], gpus: List[Gpu]) -> GpuTest:
    """One device's answer as facts; a number that was not reached has a reason."""
    error = redact.text(str(said["error"])) if said.get("error") else None
    facts: Dict[str, Any] = {name: float(said[name]) for name in NUMBERS if isinstance(said.get(name), (int, float))}
    for name in ("gemm_tflop_s", "checksums", "peer_gb_s"):
        if isinstance(said.get(name), dict) and said[name]:
            facts[name] = said[name]
    if "peer_gb_s" in facts:
        facts["peer_gb_s"] = {_index(name, gpus): rate for name, rate in facts["peer_gb_s"].items()}
    if said.get("wrong") or not error:
        facts["wrong"] = tuple(map(str, said.get("wrong", ())))
    reason = Reason("crashed" if error else "not-applicable", error or "not measured here")
    unread: Unread = {name: reason for name in MEASURED if name not in facts}
    device = str(said.get("device", ""))
    return GpuTest(gpu.index, device=device, name=gpu.name, uuid=gpu.uuid, error=error, unread=unread, **facts)


def _index(device: str, gpus: List[Gpu]) -> str:
    """ "cuda:1" is the second of those that were tested."""
    return str(gpus[int(device.split(":")[1])].index)


def left_alone(gpu: Gpu, why: str) -> GpuTest:
    """A GPU that was not tested."""
    unread: Unread = {name: Reason("not-applicable", f"not tested: {why}") for name in MEASURED}
    return GpuTest(gpu.index, name=gpu.name, uuid=gpu.uuid, unread=unread)

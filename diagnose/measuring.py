"""What ``nccl-test`` measures on this node, by its facts: which interpreter, which back end, how many ranks, which sizes."""

import tempfile
from typing import Any, Dict, List, Optional, Sequence

from ddp_doctor import document, nccl_test
from ddp_doctor.ask import Ask
from ddp_doctor.collect import gather
from ddp_doctor.facts import Gpu, NodeFacts
from ddp_doctor.host import Host

CPU_RANKS = 2


def plan(
    least: str, most: Optional[str], factor: int, python: Optional[str], options: Dict[str, Any]
) -> nccl_test.Plan:
    """The plan for this node. Raises BadTest where something is missing or busy, before anything is started."""
    facts = document.facts_from(gather(Host(), Ask(python=python), sections=("torch", "gpus", "processes")))
    torch = facts.torch
    if torch is None or not torch.installed or not torch.python:
        raise nccl_test.BadTest("no torch is installed in the Python that is examined: name one with --python")
    if torch.imported is False:
        raise nccl_test.BadTest(f"torch cannot be imported in {torch.python}: ddp-doctor run --select stack says why")
    gpus = _usable(facts)
    backend = options["backend"]
    if backend == "auto":
        backend = "nccl" if gpus and "nccl" in (torch.backends or ("nccl",)) and torch.cuda else "gloo"
    ranks = options["ranks"] or (len(gpus) if backend == "nccl" else CPU_RANKS)
    if backend == "nccl":
        _refuse(gpus, ranks, options["force"])
    first = nccl_test.size_of(least)
    last = nccl_test.size_of(most) if most else _most(backend, gpus)
    if backend == "nccl" and last > _most(backend, gpus):
        raise nccl_test.BadTest(
            f"{last} bytes do not fit: an eighth of the free memory of the fullest GPU is {_most(backend, gpus)} bytes"
        )
    return nccl_test.Plan(
        python=torch.python,
        backend=backend,
        ranks=ranks,
        sizes_bytes=nccl_test.sizes(first, last, factor),
        collectives=tuple(dict.fromkeys(options["collectives"])) or ("all_reduce",),
        dtypes=tuple(dict.fromkeys(options["dtypes"])) or ("float32",),
        iterations=options["iterations"],
        warmup=options["warmup"],
        check=bool(options["check"]),
    )


def _usable(facts: NodeFacts) -> Sequence[Gpu]:
    """The GPUs that torch sees: with MIG or CUDA_VISIBLE_DEVICES fewer than the driver's."""
    found = list((facts.gpus.gpus if facts.gpus else None) or ())
    seen = facts.torch.cuda_device_count if facts.torch and facts.torch.cuda_device_count is not None else len(found)
    return found[:seen]


def _refuse(gpus: Sequence[Gpu], ranks: int, force: bool) -> None:
    if ranks > len(gpus):
        raise nccl_test.BadTest(f"{ranks} ranks need as many GPUs; torch sees {len(gpus)}")
    busy = [f"GPU {gpu.index}" for gpu in gpus[:ranks] if gpu.processes]
    if busy and not force:
        raise nccl_test.BadTest(f"in use by other processes: {', '.join(busy)}; --force measures all the same")


def _most(backend: str, gpus: Sequence[Gpu]) -> int:
    """The largest size, in bytes."""
    if backend != "nccl":
        return nccl_test.MOST_CPU_BYTES
    free = [(gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0) for gpu in gpus if gpu.memory_total_bytes]
    return min(nccl_test.MOST_GPU_BYTES, min(free, default=nccl_test.MOST_CPU_BYTES) // nccl_test.MEMORY_SHARE)


def explained(lines: Sequence[str], width: int) -> List[str]:
    """What ``explain`` makes of what the ranks printed."""
    from ddp_doctor import explain, registry
    from ddp_doctor.logs import scan

    if not lines:
        return []
    checks = explain.of_logs(list(registry.load().checks.values()))
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".log") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        found = explain.explain(scan.scanned([file.name], explain.patterns(checks)), checks)
        return explain.text(found, width).replace(file.name, "the ranks' output").splitlines()

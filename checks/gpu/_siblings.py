"""GPUs compared with those of the same model in the same node."""

from collections import Counter
from typing import Any, Callable, Dict, Iterator, List, NamedTuple

from ddp_doctor.accelerators import answering
from ddp_doctor.facts import Gpu, Gpus


class Compared(NamedTuple):
    """A GPU's value beside what is usual among its siblings."""

    gpu: Gpu
    value: Any
    usual: Any
    """What most siblings have, this GPU among them; of two values that are equally frequent the greater one."""
    others: int
    """Siblings with the usual value, without this GPU."""

    @property
    def odd(self) -> bool:
        return bool(self.value != self.usual)


def compared(gpus: Gpus, value: Callable[[Gpu], Any]) -> Iterator[Compared]:
    """Each GPU that has siblings whose ``value`` is known as well, beside what is usual; those without value are left out.

    ``value``: None where it is not known. A GPU alone of its model is compared with none.
    """
    for group in siblings(gpus):
        known = [(gpu, found) for gpu in group for found in [value(gpu)] if found is not None]
        counts = Counter(found for _, found in known)
        if len(known) > 1:
            usual = max(counts, key=lambda found: (counts[found], found))
            for gpu, found in known:
                yield Compared(gpu, found, usual, counts[usual] - (found == usual))


def siblings(gpus: Gpus) -> List[List[Gpu]]:
    """GPUs that answer, by model. One whose name is not known (nvidia-smi's table cuts long ones) is nobody's sibling."""
    groups: Dict[str, List[Gpu]] = {}
    for gpu in answering(gpus):
        if gpu.name is not None:
            groups.setdefault(gpu.name, []).append(gpu)
    return list(groups.values())

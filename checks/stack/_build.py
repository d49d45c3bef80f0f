"""What several checks of the software stack ask about the installed torch."""

from typing import List, Tuple

from ddp_doctor import compat
from ddp_doctor.facts import Reason, Torch
from ddp_doctor.model import NotKnown, known
from ddp_doctor.tables import TorchBuild


def imported(torch: Torch) -> bool:
    """Was it imported, and did that work? NotKnown where nobody asked."""
    return bool(torch.installed) and known(torch.imported, torch, "imported")


def official_builds(torch: Torch) -> Tuple[TorchBuild, ...]:
    """The installed torch's rows in the table of official wheels; NotKnown where it is none of them."""
    version = known(torch.version, torch, "version")
    if known(torch.flavour, torch, "flavour") != "official-wheel":
        text = f"torch {version} is not an official wheel ({torch.flavour}): not judged by the table of wheels"
        raise NotKnown(Reason("not-applicable", text))
    builds: List[TorchBuild] = list(compat.torch_builds(version))
    if not builds:
        raise NotKnown(Reason("not-applicable", f"torch {version} is not in the table of official wheels"))
    return tuple(builds)

"""The tables' word on a GPU by the name that NVML gives it."""

import re
from functools import lru_cache
from typing import Optional

from ddp_doctor import tables
from ddp_doctor.facts import Gpu


@lru_cache(maxsize=None)
def model_of(name: str) -> Optional[tables.GpuModel]:
    """The row whose name reaches furthest in this name, in whole words: an H200 NVL is no "NVIDIA H200", an A100 no "NVIDIA A10"."""
    found = [(re.search(re.escape(row.name) + r"(?![0-9A-Za-z])", name), row) for row in tables.gpus() if row.name]
    rows = [(match.end(), len(row.name), row) for match, row in found if match]
    return max(rows, key=lambda item: item[:2])[2] if rows else None


def is_datacenter(gpu: Gpu) -> bool:
    """A model for servers: it has no fan of its own, and its clocks and limits are made to be held for months."""
    model = model_of(gpu.name or "")
    return model is not None and model.segment.startswith("datacenter")

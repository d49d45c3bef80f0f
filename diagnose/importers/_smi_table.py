"""The table that ``nvidia-smi`` prints: three cells in two or three lines for each GPU, since R440 in one form.

Names are cut ("NVIDIA RTX 6000 Ada Gene..."): such a name is not told. Memory is told without the driver's reserve since R510.
"""

import re
from typing import Any, Dict, List, Optional, Tuple

from ddp_doctor.collect.pci import address
from ddp_doctor.numerals import whole
from ddp_doctor.units import plural
from ddp_doctor.versions import at_least

Plain = Dict[str, Any]

_HEAD = re.compile(
    r"\| NVIDIA-SMI +\S+ +(?:KMD Version|Driver Version): *(\S{1,40}) +CUDA (?:UMD )?Version: *(\S{1,40})"
)
_FIRST = re.compile(
    r"\| *(\d{1,3}) +(\S.*?) +(On|Off|N/A|ERR!) *\| *([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]) +\S+ *\| *(\S+) *\|"
)
_WORD = r"([^\s|]{1,16})"
_SECOND = re.compile(
    rf"\| *{_WORD} +{_WORD} +{_WORD} +{_WORD} */ *{_WORD} *\| *{_WORD} */ *{_WORD} *\| *{_WORD} +(\S.*?) *\|"
)
_MIG = re.compile(r"\|[^|]*\|[^|]*\| *(Enabled|Disabled|N/A|ERR!)\*? *\|")
_LOST = re.compile(r"\| *(?:GPU is lost|.*requires re(?:set|start)).*", re.IGNORECASE)
_COMPUTE = {
    "Default": "default",
    "E. Process": "exclusive_process",
    "E. Thread": "exclusive_thread",
    "Prohibited": "prohibited",
}
_ERROR = "ERR!"
_MAX_LINE = 400
"""The table is 80 to 140 characters wide; a line without end costs its patterns the square of its length."""
MIB = 2**20


def recognises(text: str) -> bool:
    return bool(_HEAD.search(text))


def parse(text: str) -> Plain:
    """driver, cuda, gpus as plain ``Gpu`` data, and ``error`` where the table ends before its list of processes."""
    _, driver, cuda, below = _HEAD.split(text, maxsplit=1)
    lines = [line[:_MAX_LINE] for line in below.split("\n")]
    end = next((n for n, line in enumerate(lines) if "NVIDIA-SMI" in line), len(lines))
    gpus = _gpus(lines[:end], driver)
    start = next((n for n, line in enumerate(lines[:end]) if "Processes:" in line), None)
    whole = start is not None
    if start is not None:
        listed = _processes(lines[start:end])
        for gpu in gpus:
            gpu["processes"] = [process for index, process in listed if index == gpu["index"]]
    error = (
        None if whole else f"nvidia-smi: the table ends after {plural(len(gpus), 'GPU')}, before its list of processes"
    )
    versions = {"driver": driver, "cuda": cuda}
    return {
        **{name: value if re.match(r"\d", value) else None for name, value in versions.items()},
        "gpus": gpus,
        "error": error,
    }


_PROCESS = re.compile(r"\| *(\d{1,3}) +(?:\S+ +\S+ +)?(\d{1,10}) +([CGM+]{1,4}) +(\S.*?) +(\d{1,9})MiB *\|")


def _processes(lines: List[str]) -> List[Tuple[int, Plain]]:
    """(GPU, process) of each row; names without their path and arguments, as far as the table shows them."""
    found = []
    for row in filter(None, map(_PROCESS.match, lines)):
        index, pid, kind, name, used = row.groups()
        kinds = {"M": "mps", "C": "compute"}
        word = next((kinds[letter] for letter in "MC" if letter in kind), "graphics")
        plain = {
            "pid": int(pid),
            "name": name.split()[0].rsplit("/", 1)[-1],
            "used_bytes": int(used) * MIB,
            "kind": word,
        }
        found.append((int(index), plain))
    return found


def _gpus(lines: List[str], driver: str) -> List[Plain]:
    found = []
    for number, line in enumerate(lines):
        first = _FIRST.match(line)
        if first:
            below = (*lines[number + 1 : number + 3], "", "")
            found.append(_gpu(first, _SECOND.match(below[0]), _MIG.match(below[1]), driver))
        elif "Processes:" in line:
            break
    return found


def _gpu(
    first: "re.Match[str]", second: "Optional[re.Match[str]]", mig: "Optional[re.Match[str]]", driver: str
) -> Plain:
    """One GPU's cells. Where a vital one says ERR! the GPU does not answer."""
    index, name, persistence, pci, ecc = first.groups()
    gpu: Plain = {"index": int(index), "pci": address(pci), "unsupported": [], "unread": {}}
    gpu.update({} if name.endswith("...") or _ERROR in name else {"name": name})
    gpu.update({"persistence": persistence == "On"} if persistence in ("On", "Off") else {})
    errors = whole(ecc)
    gpu.update({} if errors is None else {"ecc_uncorrected_volatile": errors, "ecc_mode": True})
    gpu.update({"ecc_mode": False} if ecc == "Off" else {})
    if ecc == "N/A":
        gpu["unsupported"] += ["ecc_mode", "ecc_uncorrected_volatile"]
    gpu.update(_second(second, driver))
    gpu.update(_mig(mig))
    vital = (name, second.group(2) if second else "")
    if any(_ERROR in cell for cell in vital):
        gpu["fault"] = "ERR! (nvidia-smi's table)"
    return gpu


def _second(cells: "Optional[re.Match[str]]", driver: str) -> Plain:
    """Temperature, performance state, power, memory, utilisation and compute mode."""
    if cells is None:
        return {}
    _, temperature, state, power, cap, used, total, busy, mode = cells.groups()
    known: Tuple[Tuple[str, Optional[float]], ...] = (
        ("temperature_c", _number(temperature, "C")),
        ("performance_state", _number(state[1:]) if state.startswith("P") else None),
        ("power_w", _number(power, "W")),
        ("power_limit_w", _number(cap, "W")),
        ("memory_used_bytes", _bytes(used)),
        ("memory_total_bytes", _bytes(total)),
        ("utilisation_percent", _number(busy, "%")),
    )
    gpu: Plain = {name: value for name, value in known if value is not None}
    if "memory_used_bytes" in gpu:
        gpu["memory_used_includes_reserve"] = not at_least(driver, "510")
    if mode in _COMPUTE:
        gpu["compute_mode"] = _COMPUTE[mode]
    return gpu


def _mig(cell: "Optional[re.Match[str]]") -> Plain:
    """ "Enabled*" is a mode that waits for a reset to change: what is in force is not told then."""
    if cell is None or "*" in cell.group() or cell.group(1) == _ERROR:
        return {}
    return {"mig": "unsupported" if cell.group(1) == "N/A" else cell.group(1).lower()}


def _number(text: str, unit: str = "") -> Optional[float]:
    found = re.fullmatch(rf"(\d{{1,9}}){unit}", text)
    return int(found.group(1)) if found else None


def _bytes(text: str) -> Optional[int]:
    found = re.fullmatch(r"(\d{1,9})MiB", text)
    return int(found.group(1)) * MIB if found else None

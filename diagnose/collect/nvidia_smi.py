"""``nvidia-smi -q -x``: the second way to ask the driver, for drivers R440 to R580 and later."""

import contextlib
import re
from typing import Any, Callable, Dict, List, Optional, Tuple
from xml.etree import ElementTree

from ddp_doctor.collect.nvlink import fabric_of_words
from ddp_doctor.collect.pci import address
from ddp_doctor.facts import Reason
from ddp_doctor.numerals import whole
from ddp_doctor.unreadable import Unreadable

ARGV = ("nvidia-smi", "-q", "-x")
MOST_CHARACTERS = 200
"""Longer than any name or value."""
LIMIT_S = 30.0
"""It wakes GPUs one after the other, 1 to 3 s each without persistence (reference/wards.md): 8 of them in 24 s."""

Plain = Dict[str, Any]

_UNSUPPORTED = re.compile(r"\[?(N/A|Not Supported|Requested functionality has been deprecated)\]?$", re.IGNORECASE)
_GONE = re.compile(r"\[?(GPU is lost|GPU requires re(set|start))\b", re.IGNORECASE)
_DENIED = re.compile(r"\[?(Insufficient Permissions|No Permission)\]?$", re.IGNORECASE)


class _Missing(Exception):
    """The value is not one: ``kind`` of reason, or "unsupported" or "gone"; args[0] the words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def parse(text: str) -> Plain:
    """Read the XML: driver, cuda, gpus (as plain ``Gpu`` data), and ``error`` where it broke off or complained.

    What was complete before a break is kept. Raises Unreadable when it is no such document, or declares entities
    (nvidia-smi's names an external DTD, which is never fetched, and declares none).
    """
    if "<!ENTITY" in text:
        raise Unreadable(Reason("unreadable", "nvidia-smi -q -x: declares XML entities: refused"))
    elements, error = _elements(text)
    if not any(element.tag == "driver_version" for element in elements):
        said = first_line(text) or "printed nothing"
        raise Unreadable(Reason("unreadable", f"nvidia-smi -q -x: {said}"))
    return report(elements, error)


def report(elements: List[ElementTree.Element], error: Optional[str]) -> Plain:
    """What these elements of a report tell, as ``parse`` has it; fewer GPUs than "attached_gpus" says are an error, too."""
    cards = [element for element in elements if element.tag == "gpu" and element.get("id")]
    answer: Plain = {"gpus": [parse_gpu(index, element) for index, element in enumerate(cards)], "error": error}
    for name, tag in (("driver", "driver_version"), ("cuda", "cuda_version")):
        values = [(element.text or "").strip() for element in elements if element.tag == tag]
        # R610 adds "[Deprecated; will be removed ...]"
        version = re.match(r"\d[\d.]{0,40}", values[0]) if values else None
        answer[name] = version.group() if version else None
    answer["error"] = error or _miscounted(elements, len(cards))
    return answer


def _miscounted(elements: List[ElementTree.Element], listed: int) -> Optional[str]:
    """What "attached_gpus" says, where it is a number and not that of those listed."""
    said = next((whole((element.text or "").strip()) for element in elements if element.tag == "attached_gpus"), None)
    if said is None or said == listed:
        return None
    return f"nvidia-smi -q: says that {said} GPUs are attached, and lists {listed}"


def complaint(text: str) -> Plain:
    """What it says where NVML does not start: ``nvml_error`` and, from some versions, ``library``; {} for anything else."""
    found = re.search(r"^Failed to initialize NVML: (.{1,200})", text, re.MULTILINE)
    version = re.search(r"^NVML library version: ([\d.]+)", text, re.MULTILINE)
    if not found:
        return {}
    return {"nvml_error": found.group(1).strip(), **({"library": version.group(1)} if version else {})}


def first_line(text: str) -> str:
    """First line of what it printed, short enough for a reason."""
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "")


def _elements(text: str) -> Tuple[List[ElementTree.Element], Optional[str]]:
    """Elements in the order of their ends, and why they stop before the document does."""
    parser = ElementTree.XMLPullParser(events=("end",))
    error = None
    try:
        parser.feed(text)
        parser.close()
    except ElementTree.ParseError as broken:
        error = f"nvidia-smi -q -x: output breaks off or is no XML: {broken}"
    return [element for _, element in _events(parser)], error


def _events(parser: "ElementTree.XMLPullParser") -> List[Any]:
    events: List[Any] = []
    with contextlib.suppress(ElementTree.ParseError):  # the error stands at the end of the queue
        events.extend(parser.read_events())
    return events


def parse_gpu(index: int, card: ElementTree.Element) -> Plain:
    """Plain ``Gpu`` data of one <gpu>."""
    gpu: Plain = {"index": index, "unsupported": [], "unread": {}, "pci": address(card.get("id", "")[:64])}
    for name, read in READINGS.items():
        try:
            gpu[name] = read(card)
        except _Missing as missing:
            if missing.kind == "unsupported":
                gpu["unsupported"].append(name)
                continue
            if missing.kind == "gone":
                gpu["fault"] = str(missing)
            kind = "unreadable" if missing.kind == "gone" else missing.kind
            gpu["unread"][name] = {"kind": kind, "text": f"nvidia-smi: {missing}"}
    return gpu


# --------------------------------------------------------------------------- values


def _text(card: ElementTree.Element, *paths: str) -> str:
    """Text of the first of these elements that has a value; raises _Missing for what is not a value."""
    missing = _Missing("absent", f"no <{paths[0]}> in the output of this version")
    for path in paths:
        try:
            return _value((_innermost(card, path).text or "").strip()[:MOST_CHARACTERS])
        except _Missing as error:
            missing = missing if error.kind == "absent" else error
    raise missing


def _innermost(card: ElementTree.Element, path: str) -> ElementTree.Element:
    """The element at ``path``, or the childless one on the way there: <remapped_rows>N/A</remapped_rows>."""
    here = card
    for tag in path.split("/"):
        inner = here.find(tag)
        if inner is None:
            if here is card or len(here):
                raise _Missing("absent", path)
            return here
        here = inner
    return here


def _value(text: str) -> str:
    if _UNSUPPORTED.match(text):
        raise _Missing("unsupported", text)
    if _GONE.match(text):
        raise _Missing("gone", text.strip("[]"))
    if _DENIED.match(text):
        raise _Missing("no-rights", text.strip("[]"))
    if not text or re.match(r"\[?(ERR!|Unknown Error)", text, re.IGNORECASE):
        raise _Missing("unreadable", text or "empty")
    return text


def _reader(convert: Callable[[str], Any], *paths: str) -> Callable[[ElementTree.Element], Any]:
    """Reader of a field: the first of ``paths`` that is there, converted."""

    def read(card: ElementTree.Element) -> Any:
        text = _text(card, *paths)
        try:
            return convert(text)
        except ValueError:
            raise _Missing("unreadable", text[:80]) from None

    return read


def _number(text: str) -> float:
    """ "300 MHz", "16x", "29 C", "700.00 W" without the unit."""
    found = re.match(r"-?\d{1,18}(\.\d+)?(?!\d)", text)
    if not found:
        raise ValueError(text)
    return float(found.group())


def _integer(text: str) -> int:
    return int(_number(text))


def _bytes(text: str) -> int:
    """nvidia-smi writes MiB."""
    found = re.fullmatch(r"([0-9]{1,12}) MiB", text)
    if not found:
        raise ValueError(text)
    return int(found.group(1)) << 20


def _yes(text: str) -> bool:
    if text.lower() not in ("enabled", "disabled", "yes", "no"):
        raise ValueError(text)
    return text.lower() in ("enabled", "yes")


def _mig(card: ElementTree.Element) -> str:
    """A driver from before R450, or a GPU without MIG, cannot have it."""
    try:
        return _text(card, "mig_mode/current_mig").lower()
    except _Missing as missing:
        if missing.kind in ("unsupported", "absent"):
            return "unsupported"
        raise


def _includes_reserve(card: ElementTree.Element) -> bool:
    """Since R510 nvidia-smi tells the driver's reserve apart; before, it is within what is used."""
    _text(card, "fb_memory_usage/used")
    return card.find("fb_memory_usage/reserved") is None


def _fabric(card: ElementTree.Element) -> Plain:
    """The GPU's registration with the NVLink fabric: since R525, and N/A on a GPU that has none."""
    _text(card, "fabric/state")
    return fabric_of_words(
        {item.tag: (item.text or "")[:MOST_CHARACTERS] for item in card.iterfind("fabric//*") if not len(item)}
    )


def _untold(what: str) -> Callable[[ElementTree.Element], Any]:
    """Reader of what is in no report of nvidia-smi -q."""

    def read(card: ElementTree.Element) -> Any:
        raise _Missing("absent", f"nvidia-smi -q does not tell of {what}")

    return read


def _throttle(card: ElementTree.Element) -> List[str]:
    """Names of the active reasons; the block is called clocks_throttle_reasons before R535."""
    for word in ("event", "throttle"):
        block = card.find(f"clocks_{word}_reasons")
        if block is not None:
            _value((block.text or "").strip() or "-")
            prefix = f"clocks_{word}_reason_"
            return [
                item.tag.replace(prefix, "")[:MOST_CHARACTERS]
                for item in block
                if (item.text or "").strip() == "Active"
            ]
    raise _Missing("absent", "no <clocks_event_reasons> in the output of this version")


def _errors(kind: str, word: str, before_turing: str) -> Callable[[ElementTree.Element], int]:
    """Reader of the sum of correctable or uncorrectable errors, whatever this driver and GPU divide them into."""

    def read(card: ElementTree.Element) -> int:
        block = _innermost(card, f"ecc_errors/{kind}")
        named = [item for item in block if re.search(f"(^|_){word}", item.tag)]
        counts = named or block.findall(f"{before_turing}/total")
        texts = [(item.text or "").strip() for item in counts]
        numbers = [int(text) for text in texts if re.fullmatch(r"[0-9]{1,19}", text)]
        if not numbers:
            raise _Missing("unreadable", _value(next(iter(texts), "N/A")))
        return sum(numbers)

    return read


_REASONS = (
    ("sw_power_cap", "sw_power_cap"),
    ("sync_boost", "sync_boost"),
    ("sw_therm", "sw_thermal_slowdown"),
    ("hw_therm", "hw_thermal_slowdown"),
    ("hw_power_brak", "hw_power_brake_slowdown"),
)
"""Words in the names of the counters, "sw_therm_slowdown" in XML and "SW Thermal Slowdown" in text, and the reason."""


def _throttled(card: ElementTree.Element) -> Dict[str, int]:
    """Microseconds for which clocks were lowered, by reason."""
    block = card.find("clocks_event_reasons_counters")
    if block is None:
        raise _Missing("absent", "no <clocks_event_reasons_counters> in the output of this version")
    pairs = ((reason, item.text or "") for item in block for word, reason in _REASONS if word in item.tag)
    found = {reason: int(text.split()[0]) for reason, text in pairs if re.match(r"[0-9]{1,18} us", text.strip())}
    if not found:
        raise _Missing("unsupported", "N/A")
    return found


def _sram(kind: str) -> Callable[[ElementTree.Element], int]:
    """Reader of uncorrectable errors in SRAM, which R535 and later tell by what found them."""

    def read(card: ElementTree.Element) -> int:
        items = [item for item in _innermost(card, f"ecc_errors/{kind}") if item.tag.startswith("sram_uncorrectable")]
        texts = [(item.text or "").strip() for item in items]
        numbers = [int(text) for text in texts if re.fullmatch(r"[0-9]{1,19}", text)]
        if not numbers:
            raise _Missing("absent", _value(texts[0]) if texts else "this version does not tell SRAM apart")
        return sum(numbers)

    return read


_ACTIONS = {"reset": "gpu_reset", "reboot": "node_reboot"}
"""nvidia-smi's word -> that of nvmlDeviceGpuRecoveryAction_t, where they differ."""


def _recovery_action(card: ElementTree.Element) -> str:
    """What must be done; before R570 two answers of yes or no told it."""
    try:
        word = re.sub(r"[^a-z0-9]+", "_", _text(card, "gpu_recovery_action").lower())
        return _ACTIONS.get(word, word)
    except _Missing as missing:
        if missing.kind != "absent":
            raise
    drain, reset = (
        _yes(_text(card, f"gpu_reset_status/{name}")) if _is_told(card, f"gpu_reset_status/{name}") else None
        for name in ("drain_and_reset_recommended", "reset_required")
    )
    if drain is None and reset is None:
        raise _Missing("absent", "no <gpu_recovery_action> in the output of this version")
    return "gpu_reset" if reset else "drain_and_reset" if drain else "none"


def _is_told(card: ElementTree.Element, path: str) -> bool:
    try:
        return _text(card, path).lower() in ("yes", "no")
    except _Missing:
        return False


def _state(text: str) -> int:
    """ "P0"."""
    found = re.fullmatch(r"P([0-9]{1,2})", text)
    if not found:
        raise ValueError(text)
    return int(found.group(1))


def _processes(card: ElementTree.Element) -> List[Plain]:
    """Process names without their arguments; type is C, G, C+G or M+C (a client of MPS)."""
    block = card.find("processes")
    if block is None:
        raise _Missing("absent", "no <processes> in the output of this version")
    _value((block.text or "").strip() or "-")
    rows = [{item.tag: (item.text or "").strip() for item in row} for row in block.findall("process_info")]
    return [_process(row) for row in rows if whole(row.get("pid", ""), 10) is not None]


def _process(row: Dict[str, str]) -> Plain:
    kind = next(
        (kind for letter, kind in (("M", "mps"), ("C", "compute")) if letter in row.get("type", "C")), "graphics"
    )
    words = row.get("process_name", "").split()
    name = words[0].rsplit("/", 1)[-1][:MOST_CHARACTERS] if words and not words[0].startswith(("[", "N/A")) else None
    memory = row.get("used_memory", "")
    return {
        "pid": int(row["pid"]),
        "name": name,
        "used_bytes": _bytes(memory) if re.fullmatch(r"[0-9]{1,12} MiB", memory) else None,
        "kind": kind,
    }


_POWER = ("gpu_power_readings", "power_readings")


def _power(*names: str) -> Tuple[str, ...]:
    return tuple(f"{block}/{name}" for block in _POWER for name in names)


_LINK = "pci/pci_gpu_link_info"

READINGS: Dict[str, Callable[[ElementTree.Element], Any]] = {
    "name": _reader(str, "product_name"),
    "uuid": _reader(str, "uuid"),
    "serial": _reader(str, "serial"),
    "compute_capability": _reader(str, "cuda_compute_capability"),
    "memory_total_bytes": _reader(_bytes, "fb_memory_usage/total"),
    "memory_used_bytes": _reader(_bytes, "fb_memory_usage/used"),
    "memory_used_includes_reserve": _includes_reserve,
    "compute_mode": _reader(str.lower, "compute_mode"),
    "mig": _mig,
    "persistence": _reader(_yes, "persistence_mode"),
    "temperature_c": _reader(_integer, "temperature/gpu_temp"),
    "temperature_slowdown_c": _reader(_integer, "temperature/gpu_temp_slow_threshold"),
    "power_w": _reader(_number, *_power("average_power_draw", "power_draw", "instant_power_draw")),
    "power_limit_w": _reader(_number, *_power("current_power_limit", "enforced_power_limit", "power_limit")),
    "power_default_limit_w": _reader(_number, *_power("default_power_limit")),
    "clock_sm_mhz": _reader(_integer, "clocks/sm_clock"),
    "clock_sm_max_mhz": _reader(_integer, "max_clocks/sm_clock"),
    "clock_memory_mhz": _reader(_integer, "clocks/mem_clock"),
    "clock_memory_max_mhz": _reader(_integer, "max_clocks/mem_clock"),
    "throttle": _throttle,
    "ecc_mode": _reader(_yes, "ecc_mode/current_ecc"),
    "ecc_corrected_volatile": _errors("volatile", "correctable", "single_bit"),
    "ecc_corrected_aggregate": _errors("aggregate", "correctable", "single_bit"),
    "ecc_uncorrected_volatile": _errors("volatile", "uncorrectable", "double_bit"),
    "ecc_uncorrected_aggregate": _errors("aggregate", "uncorrectable", "double_bit"),
    "remapped_correctable": _reader(_integer, "remapped_rows/remapped_row_corr"),
    "remapped_uncorrectable": _reader(_integer, "remapped_rows/remapped_row_unc"),
    "remap_pending": _reader(_yes, "remapped_rows/remapped_row_pending"),
    "remap_failure": _reader(_yes, "remapped_rows/remapped_row_failure"),
    "pcie_gen": _reader(_integer, f"{_LINK}/pcie_gen/current_link_gen"),
    "pcie_gen_max": _reader(_integer, f"{_LINK}/pcie_gen/max_link_gen"),
    "pcie_width": _reader(_integer, f"{_LINK}/link_widths/current_link_width"),
    "pcie_width_max": _reader(_integer, f"{_LINK}/link_widths/max_link_width"),
    "temperature_shutdown_c": _reader(_integer, "temperature/gpu_temp_max_threshold"),
    "temperature_max_c": _reader(_integer, "temperature/gpu_temp_max_gpu_threshold"),
    "temperature_memory_max_c": _reader(_integer, "temperature/gpu_temp_max_mem_threshold"),
    "temperature_margin_c": _reader(_integer, "temperature/gpu_temp_tlimit"),
    "temperature_memory_c": _reader(_integer, "temperature/memory_temp"),
    "utilisation_percent": _reader(_integer, "utilization/gpu_util"),
    "performance_state": _reader(_state, "performance_state"),
    "throttled_us": _throttled,
    "clock_application_mhz": _reader(_integer, "applications_clocks/graphics_clock"),
    "clock_application_default_mhz": _reader(_integer, "default_applications_clocks/graphics_clock"),
    "ecc_sram_uncorrected_volatile": _sram("volatile"),
    "ecc_sram_uncorrected_aggregate": _sram("aggregate"),
    "ecc_sram_threshold_exceeded": _reader(_yes, "ecc_errors/aggregate/sram_threshold_exceeded"),
    "retired_single_bit": _reader(_integer, "retired_pages/multiple_single_bit_retirement/retired_count"),
    "retired_double_bit": _reader(_integer, "retired_pages/double_bit_retirement/retired_count"),
    "retired_pending": _reader(_yes, "retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    "recovery_action": _recovery_action,
    "pcie_gen_device_max": _reader(_integer, f"{_LINK}/pcie_gen/max_device_link_gen"),
    "pcie_replays": _reader(_integer, "pci/replay_counter"),
    "processes": _processes,
    "fabric": _fabric,
    "nvlinks": _untold("single NVLinks"),
    "peers": _untold("access between GPUs"),
}
"""Fields of ``Gpu`` and where they stand; nvidia-smi has renamed several between R440 and R580."""

"""``nvidia-smi -q`` in words: the same report as ``-q -x``, turned into the elements that its reader knows.

Indentation of four blanks a step says what belongs to what. Most titles are the elements' names with capitals and blanks;
``_TAGS`` has the others. Both forms of one machine must give the same facts: the tests compare them.
"""

import re
from typing import Dict, Iterator, List, Optional, Tuple
from xml.etree.ElementTree import Element, SubElement

HEAD = "NVSMI LOG"
"""The report begins with "==============NVSMI LOG==============" in every driver."""
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_MAX_LINE = 400
"""Titles and values are shorter."""
_DEEPEST = 12

_TAGS: Dict[Tuple[str, str], str] = {
    ("gpu", "GPU UUID"): "uuid",
    ("mig_mode", "Current"): "current_mig",
    ("mig_mode", "Pending"): "pending_mig",
    ("ecc_mode", "Current"): "current_ecc",
    ("ecc_mode", "Pending"): "pending_ecc",
    ("driver_model", "Current"): "current_dm",
    ("driver_model", "Pending"): "pending_dm",
    ("pci", "GPU Link Info"): "pci_gpu_link_info",
    ("pci_gpu_link_info", "PCIe Generation"): "pcie_gen",
    ("pci_gpu_link_info", "Link Width"): "link_widths",
    ("pcie_gen", "Max"): "max_link_gen",
    ("pcie_gen", "Current"): "current_link_gen",
    ("pcie_gen", "Device Current"): "device_current_link_gen",
    ("pcie_gen", "Device Max"): "max_device_link_gen",
    ("pcie_gen", "Host Max"): "max_host_link_gen",
    ("link_widths", "Max"): "max_link_width",
    ("link_widths", "Current"): "current_link_width",
    ("pci", "Replays Since Reset"): "replay_counter",
    ("pci", "Replay Number Rollovers"): "replay_rollover_counter",
    ("utilization", "Gpu"): "gpu_util",
    ("utilization", "GPU"): "gpu_util",
    ("temperature", "GPU Current Temp"): "gpu_temp",
    ("temperature", "GPU T.Limit Temp"): "gpu_temp_tlimit",
    ("temperature", "GPU Shutdown Temp"): "gpu_temp_max_threshold",
    ("temperature", "GPU Slowdown Temp"): "gpu_temp_slow_threshold",
    ("temperature", "GPU Max Operating Temp"): "gpu_temp_max_gpu_threshold",
    ("temperature", "GPU Shutdown T.Limit Temp"): "gpu_temp_max_tlimit_threshold",
    ("temperature", "GPU Slowdown T.Limit Temp"): "gpu_temp_slow_tlimit_threshold",
    ("temperature", "GPU Max Operating T.Limit Temp"): "gpu_temp_max_gpu_tlimit_threshold",
    ("temperature", "Memory Current Temp"): "memory_temp",
    ("temperature", "Memory Max Operating Temp"): "gpu_temp_max_mem_threshold",
    ("temperature", "Memory Max Operating T.Limit Temp"): "gpu_temp_max_mem_tlimit_threshold",
    ("remapped_rows", "Correctable Error"): "remapped_row_corr",
    ("remapped_rows", "Uncorrectable Error"): "remapped_row_unc",
    ("remapped_rows", "Pending"): "remapped_row_pending",
    ("remapped_rows", "Remapping Failure Occurred"): "remapped_row_failure",
    ("fabric", "CliqueId"): "cliqueId",
    ("fabric", "Clique ID"): "cliqueId",
    ("fabric", "ClusterUUID"): "clusterUuid",
    ("fabric", "Cluster UUID"): "clusterUuid",
    ("gpu", "Clocks Throttle Reasons"): "clocks_throttle_reasons",
    ("process_info", "Name"): "process_name",
    ("process_info", "Used GPU Memory"): "used_memory",
    ("retired_pages", "Pending Page Blacklist"): "pending_blacklist",
}
"""(element that it stands in, title) -> element."""
_CLOCKS = ("clocks", "applications_clocks", "default_applications_clocks", "max_clocks", "max_customer_boost_clocks")
_CLOCK = {"Graphics": "graphics_clock", "SM": "sm_clock", "Memory": "mem_clock", "Video": "video_clock"}
_REASON = {"Idle": "gpu_idle", "Display Clock Setting": "display_clocks_setting"}
_RETIRED = {"Single Bit ECC": "multiple_single_bit_retirement", "Double Bit ECC": "double_bit_retirement"}


def elements(text: str) -> List[Element]:
    """The report's top elements: driver_version, attached_gpus, gpu ...; a report in words does not show where it ends."""
    root = Element("nvidia_smi_log")
    stack: List[Tuple[int, Element]] = [(-1, root)]
    for indent, title, value in _lines(text):
        while stack[-1][0] >= indent:
            stack.pop()
        parent = stack[-1][1]
        if parent.tag == "processes" and title == "Process ID" and value:
            stack.append((indent, _process(parent, value)))
            continue
        here = _element(parent, title) if _GPU.match(title) is None else _gpu(root, title)
        here.text = value or here.text
        if len(stack) < _DEEPEST and value is None:
            stack.append((indent, here))
    return list(root)


def _lines(text: str) -> Iterator[Tuple[int, str, Optional[str]]]:
    """(indentation, title, value or None for a heading) of each line after the report's head."""
    begun = text.find(HEAD)
    for line in text[begun:].split("\n")[1:] if begun >= 0 else ():
        if line.startswith("#") or HEAD in line:  # another command's output follows
            return
        words = line[:_MAX_LINE].lstrip(" ")
        if words.strip():
            yield (min(len(line), _MAX_LINE) - len(words), *_title_and_value(words))


def _title_and_value(words: str) -> Tuple[str, Optional[str]]:
    """What stands before and behind ": "; a heading has no value, and a GPU's address has colons of its own."""
    if _GPU.match(words):
        return words.strip(), None
    title, colon, value = words.partition(": ")
    return (title.rstrip(), value) if colon else (words.rstrip().rstrip(":").rstrip(), None)


def _process(processes: Element, pid: str) -> Element:
    """The element of a process, whose other values stand below its number."""
    process = SubElement(processes, "process_info")
    SubElement(process, "pid").text = pid
    return process


def _gpu(root: Element, title: str) -> Element:
    return SubElement(root, "gpu", id=title.split()[1])


def _element(parent: Element, title: str) -> Element:
    """The element of a title below ``parent``."""
    if parent.tag in _CLOCKS and title in _CLOCK:
        return SubElement(parent, _CLOCK[title])
    if parent.tag.startswith("clocks_") and parent.tag.endswith("_reasons"):
        return SubElement(parent, f"{parent.tag[:-1]}_{_REASON.get(title, _plain(title))}")
    if parent.tag.startswith("clocks_") and "_reason_" in parent.tag:  # HW Slowdown has its two kinds below itself
        return SubElement(parent, _plain(title))
    if parent.tag == "retired_pages" and title in _RETIRED:
        return SubElement(SubElement(parent, _RETIRED[title]), "retired_count")
    return SubElement(parent, _TAGS.get((parent.tag, title), _plain(title)))


def _plain(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_") or "unnamed"

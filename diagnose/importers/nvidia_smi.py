"""What ``nvidia-smi`` printed: ``-q -x``, ``-q``, the plain table, or its complaint.

People paste it from a machine on which nothing else can be run. It tells of the GPUs alone; what it does not tell is not
recorded, never healthy.
"""

import re
from dataclasses import replace
from itertools import islice
from typing import Any, Dict, Optional

from ddp_doctor.collect import gpus as collecting
from ddp_doctor.collect import nvidia_smi
from ddp_doctor.facts import SECTIONS, Gpu, Gpus, How, NodeFacts, Reason, Unread
from ddp_doctor.importers import BadReport, _smi_table, _smi_text, section
from ddp_doctor.units import times
from ddp_doctor.unreadable import Unreadable

TITLE = "output of nvidia-smi"
VIA = "nvidia_smi"

Plain = Dict[str, Any]

_XML, _XML_END = re.compile(r"<nvidia_smi_log\b"), "</nvidia_smi_log>"
"""What stands before it names a DTD, which is never fetched, and says nothing of the GPUs."""
_ONE_GPU = re.compile(r"<gpu\s|^GPU [0-9A-Fa-f]{4,8}:", re.MULTILINE)
_NO_HANDLE = re.compile(r"^.{0,80}?(Unable to determine the device handle for .{1,120})$", re.MULTILINE)
_COMPLAINT = re.compile(r"^(?:Failed to initialize NVML: |No devices were found|NVIDIA-SMI has failed).*", re.MULTILINE)
_NOT_RECORDED = Reason("not-recorded", "nvidia-smi does not tell it")
_MAX_GPUS = 256


def recognises(text: str) -> bool:
    """Is there such output in the text?"""
    return any((_XML.search(text), _smi_text.HEAD in text, _smi_table.recognises(text), _said(text)))


def facts(text: str, name: str) -> NodeFacts:
    """Facts of the GPUs; the richest form that is in the text counts. Raises BadReport where it cannot be read."""
    try:
        told = _told(text)
    except Unreadable as error:
        raise BadReport(error.reason.text) from None
    windows = bool(re.search(r"<current_dm>(WDDM|TCC|MCDM)|Driver Model\s+Current\s*: (WDDM|TCC|MCDM)", text))
    known: Dict[str, Any] = {} if windows else {"gpus": _gpus(told)}
    reason = Reason("not-applicable", "Windows is not judged: the checks are for Linux") if windows else _NOT_RECORDED
    return NodeFacts(
        name,
        how=How(via=VIA, profile="quick"),
        reasons={section: reason for section in SECTIONS if section not in known},
        **known,
    )


def _told(text: str) -> Plain:
    """driver, cuda, gpus and error as ``collect.nvidia_smi.parse`` has them. Raises Unreadable, BadReport."""
    xml = _XML.search(text)
    if xml:
        end = text.find(_XML_END, xml.start())
        document = text[xml.start() : end + len(_XML_END) if end >= 0 else len(text)]
        return _told_once(nvidia_smi.parse(_bounded(document)))
    if _smi_text.HEAD in text:
        return _told_once(nvidia_smi.report(_smi_text.elements(_bounded(text)), None))
    if _smi_table.recognises(text):
        return _told_once(_smi_table.parse(text))
    return {"nvml_error": None, "error": _said(text)}


def _bounded(text: str) -> str:
    """``text``, where it has no more GPUs than any machine: they are counted before they are read. Raises BadReport."""
    if sum(1 for _ in islice(_ONE_GPU.finditer(text), _MAX_GPUS + 1)) > _MAX_GPUS:
        raise BadReport(f"lists more than {_MAX_GPUS} GPUs")
    return text


def _told_once(told: Plain) -> Plain:
    """Each GPU once, by its address, and an error where one was listed again: reports were put together, or edited.

    Raises BadReport.
    """
    first: Dict[Any, Plain] = {}
    for gpu in told["gpus"]:
        first.setdefault(gpu["pci"] or gpu["index"], gpu)
    if len(first) > _MAX_GPUS:
        raise BadReport(f"lists more than {_MAX_GPUS} GPUs")
    again = len(told["gpus"]) - len(first)
    error = f"nvidia-smi: lists a GPU that is listed before, {times(again)}" if again else None
    return {**told, "gpus": list(first.values()), "error": told["error"] or error}


def _said(text: str) -> Optional[str]:
    """What nvidia-smi says instead of a report."""
    found = _NO_HANDLE.search(text) or _COMPLAINT.search(text)
    return (found.group(1) if found.re is _NO_HANDLE else found.group()).strip()[:200] if found else None


def _gpus(told: Plain) -> Gpus:
    """The section; where the output breaks off, what was listed and the reason why there may be more."""
    unread: Unread = {}
    if told.get("error"):
        unread["gpus"] = Reason("unreadable", str(told["error"]))
    initialised = re.match(r"Failed to initialize NVML: (.*)", told.get("error") or "")
    listed = told.get("gpus")
    none = (told.get("error") or "").startswith("No devices were found")
    gpus = section(
        Gpus,
        _NOT_RECORDED,
        unread,
        silent=("nvml_error",),
        source="nvidia-smi",
        driver=told.get("driver"),
        cuda=told.get("cuda"),
        nvml_error=initialised.group(1) if initialised else None,
        gpus=tuple(map(_gpu, listed)) if listed is not None else () if none else None,
    )
    return replace(gpus, unread={**gpus.unread, **unread})


def _gpu(plain: Plain) -> Gpu:
    return collecting.gpu_of({**plain, "silent": {"kind": _NOT_RECORDED.kind, "text": _NOT_RECORDED.text}})

"""NVLinks, fabric and peer access as NVML tells them: readings of ``nvml.py``, in its children.

A driver or pynvml that is too old for a call gives a reason, never an exception other than NVML's own.
"""

from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor.collect.pci import address
from ddp_doctor.facts import GpuFabric, NvLink, Reason
from ddp_doctor.numerals import whole

Plain = Dict[str, Any]
Key = Tuple[int, int]
"""Field identifier and, as its scope, the link."""

MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of the newest nvml.h; 6, 12 or 18 in older ones. A link that there is not is an invalid argument."""
INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH = 2, 3, 13, 25
GONE = (15, 16)
"""nvmlReturn_t; GPU_IS_LOST and RESET_REQUIRED."""

REMOTE_KINDS = {0: "gpu", 1: "ibmnpu", 2: "switch"}
"""nvmlIntNvLinkDeviceType_t."""
NVSWITCH_IDS = (0x1AC0, 0x1AC1, 0x1AC2, 0x1AF1, 0x22A3)
"""PCI device ids of the NVSwitches of DGX-2, A100 and H100 boards (https://pci-ids.ucw.cz/read/PC/10de)."""

SPEED = 164
"""NVML_FI_DEV_NVLINK_GET_SPEED, in MB/s, with the link as scope (R535 and newer)."""
SPEED_OF_LINK = tuple(range(84, 90)) + tuple(range(132, 138))
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 to _L11, which older drivers have instead."""
ERRORS = {
    161: "replay",
    162: "recovery",
    163: "crc",
    206: "malformed_packets",
    207: "buffer_overruns",
    208: "rx_errors",
    209: "rx_remote_errors",
    210: "rx_general_errors",
    211: "local_link_integrity_errors",
    212: "tx_discards",
    213: "link_recovery_successful",
    214: "link_recovery_failed",
    215: "link_recovery",
    219: "effective_errors",
    221: "symbol_errors",
}
"""NVML_FI_DEV_NVLINK_ERROR_DL_* (NVLink 4 and older) and _COUNT_* (NVLink 5): those that a link lacks answer "not supported"."""
OLD_ERRORS = ("replay", "recovery", "crc_flit", "crc_data")
"""nvmlNvLinkErrorCounter_t from 0, of nvmlDeviceGetNvLinkErrorCounter: one call each, for drivers without the fields."""


# --------------------------------------------------------------------------- links


def nvlinks(nvml: Any, gpu: Any) -> List[Plain]:
    """Plain ``NvLink`` data of every link that the driver knows. Raises NVML's error where it knows of no NVLink at all."""
    states = _states(nvml, gpu)
    active = [link for link, is_active in states if is_active]
    values = _field_values(nvml, gpu, [(field, link) for link in active for field in (SPEED, *ERRORS)])
    return [_link(nvml, gpu, link, is_active, values) for link, is_active in states]


def error_counts(nvml: Any, gpu: Any) -> Dict[str, Dict[str, int]]:
    """Active link -> its error counters, also those that are zero; {} without NVLink. Raises NVML's error of a GPU that is gone."""
    try:
        active = [link for link, is_active in _states(nvml, gpu) if is_active]
    except nvml.NVMLError as error:
        if error.value in GONE:
            raise
        return {}
    values = _field_values(nvml, gpu, [(field, link) for link in active for field in ERRORS])
    known = {link: {n: values[f, link] for f, n in ERRORS.items() if (f, link) in values} for link in active}
    return {str(link): counts or _old_errors(nvml, gpu, link) for link, counts in known.items()}


def _states(nvml: Any, gpu: Any) -> List[Tuple[int, bool]]:
    """(link, is it active?) of the links that answer; their numbers need not be without gaps."""
    found, refusal = [], None
    for link in range(MAX_LINKS):
        try:
            found.append((link, bool(nvml.nvmlDeviceGetNvLinkState(gpu, link))))
        except nvml.NVMLError as error:
            if error.value not in (INVALID_ARGUMENT, NOT_SUPPORTED):
                raise
            refusal = refusal or error
    if not found and refusal is not None and refusal.value == NOT_SUPPORTED:
        raise refusal
    return found


_OF_ACTIVE = ("speed_gb_s", "remote_kind", "remote_pci", "errors")


def _link(nvml: Any, gpu: Any, link: int, is_active: bool, values: Dict[Key, int]) -> Plain:
    plain: Plain = {"link": link, "active": is_active, "unread": {}}
    if not is_active:
        _missing(plain, _OF_ACTIVE, "not-applicable", "the link is not active")
        return plain
    plain.update(_remote(nvml, gpu, link))
    speed_mb_s = values.get((SPEED, link)) or _old_speed(nvml, gpu, link)
    plain.update({"speed_gb_s": speed_mb_s / 1000} if speed_mb_s else {})
    errors = {name: values[field, link] for field, name in ERRORS.items() if (field, link) in values}
    errors = errors or _old_errors(nvml, gpu, link)
    if errors:
        plain["errors"] = {name: count for name, count in errors.items() if count}
    _missing(plain, _OF_ACTIVE, "absent", "NVML does not tell it of this link")
    return plain


def _missing(plain: Plain, names: Iterable[str], kind: str, text: str) -> None:
    plain["unread"].update({name: {"kind": kind, "text": text} for name in names if name not in plain})


def _remote(nvml: Any, gpu: Any, link: int) -> Plain:
    """What is at the other end; an NVSwitch that is not on this machine's bus has no address."""
    info = _or_none(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", gpu, link)
    number = _or_none(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link)
    pci = address(_text(info.busId)) if info is not None else ""
    kind = _kind_of_id(info.pciDeviceId) if number is None and info is not None else REMOTE_KINDS.get(number, "unknown")
    known: Plain = {"remote_kind": kind}
    if pci and not pci.startswith("ffff") and pci != "0000:00:00.0":
        known["remote_pci"] = pci
    return known


def _kind_of_id(vendor_device: int) -> str:
    """Drivers from before R470 do not tell the kind: NVIDIA's switches by their device ids, its other devices are GPUs."""
    vendor, device = vendor_device & 0xFFFF, vendor_device >> 16
    if vendor != 0x10DE:
        return "unknown"
    return "switch" if device in NVSWITCH_IDS else "gpu"


def _old_speed(nvml: Any, gpu: Any, link: int) -> Optional[int]:
    if link >= len(SPEED_OF_LINK):
        return None
    return _field_values(nvml, gpu, [SPEED_OF_LINK[link]]).get((SPEED_OF_LINK[link], 0))


def _old_errors(nvml: Any, gpu: Any, link: int) -> Dict[str, int]:
    counts = {
        name: _or_none(nvml, "nvmlDeviceGetNvLinkErrorCounter", gpu, link, i) for i, name in enumerate(OLD_ERRORS)
    }
    return {name: int(count) for name, count in counts.items() if count is not None}


def _or_none(nvml: Any, name: str, *args: Any, gone: Tuple[int, ...] = GONE) -> Any:
    """Answer of a call that not every driver and link has. Raises the errors in ``gone``: they are the GPU's, not the call's."""
    try:
        return getattr(nvml, name)(*args)
    except AttributeError:
        return None
    except nvml.NVMLError as error:
        if error.value in gone:
            raise
        return None


def _field_values(nvml: Any, gpu: Any, keys: Sequence[Any]) -> Dict[Key, int]:
    """Values of the fields that answer, all in one call; {} where the driver or pynvml cannot ask for them so."""
    try:
        answers = nvml.nvmlDeviceGetFieldValues(gpu, list(keys)) if keys else ()
    except (AttributeError, TypeError):  # a pynvml that knows no scope
        return {}
    except nvml.NVMLError as error:
        if error.value in GONE:
            raise
        return {}
    return {(a.fieldId, getattr(a, "scopeId", 0)): field_value(a) for a in answers if a.nvmlReturn == 0}


_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of the union nvmlValue_t by nvmlValueType_t."""


def field_value(answer: Any) -> int:
    """The number in a nvmlFieldValue_t."""
    return int(getattr(answer.value, _VALUES[answer.valueType] if answer.valueType < len(_VALUES) else "ullVal"))


def _text(value: Any) -> str:
    """pynvml before 11.510 answers bytes."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


# --------------------------------------------------------------------------- fabric

STATES = ("not_supported", "not_started", "in_progress", "completed")
"""nvmlGpuFabricState_t."""
SUMMARIES = ("not_supported", "healthy", "unhealthy", "limited_capacity")
"""NVML_GPU_FABRIC_HEALTH_SUMMARY_*."""
HEALTH_BITS = (
    (0, 1, "degraded_bandwidth"),
    (2, 1, "route_recovery"),
    (4, 1, "route_unhealthy"),
    (6, 1, "access_timeout_recovery"),
    (12, 2, "no_partition"),
    (14, 2, "manager_disconnected"),
)
"""NVML_GPU_FABRIC_HEALTH_MASK_*: lowest of two bits, the value that tells of a fault, and its name."""
CONFIGURATIONS = {
    2: "incorrect_sysguid",
    3: "incorrect_chassis_sn",
    4: "no_partition",
    5: "insufficient_nvlinks",
    6: "incompatible_gpu_fw",
    7: "invalid_location",
    8: "gpu_state_invalid",
}
"""NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*, four bits from bit 8; 0 is not supported and 1 none."""


def fabric(nvml: Any, gpu: Any) -> Plain:
    """Plain ``GpuFabric`` data. Raises NVML's error where the GPU has no fabric (not supported: before Hopper)."""
    info = _fabric_info(nvml, gpu)
    uuid = bytes(info.clusterUuid)
    plain: Plain = {
        "state": STATES[info.state] if info.state < len(STATES) else f"state {info.state}",
        "cluster_uuid": _uuid(uuid) if any(uuid) else "",
        "clique_id": info.cliqueId,
        "unread": {},
    }
    if plain["state"] == "completed":
        plain["status"] = "success" if info.status == 0 else _words(nvml, info.status)
    else:
        _missing(plain, ("status",), "not-applicable", "only a completed registration has a result")
    if getattr(info, "healthMask", 0):  # of 0 every part is "not supported"
        plain["unhealthy"] = unhealthy(info.healthMask)
    if hasattr(info, "healthSummary"):
        plain["health"] = SUMMARIES[info.healthSummary] if info.healthSummary < len(SUMMARIES) else "unknown"
    _missing(plain, ("unhealthy", "health"), "absent", "this driver does not tell the fabric's health")
    return plain


def unhealthy(mask: int) -> List[str]:
    """What a health mask tells of; incorrect_configuration with its kind: "incorrect_configuration:no_partition"."""
    found = [name for bit, bad, name in HEALTH_BITS if mask >> bit & 3 == bad]
    kind = mask >> 8 & 0xF
    return found + ([f"incorrect_configuration:{CONFIGURATIONS.get(kind, kind)}"] if kind > 1 else [])


_NO_WORDS = ("", "n/a", "not supported", "[n/a]")
_WORDS = {
    "bandwidth": ("degraded", "degraded_bandwidth"),
    "route_recovery_in_progress": ("true", "route_recovery"),
    "route_unhealthy": ("true", "route_unhealthy"),
    "access_timeout_recovery": ("true", "access_timeout_recovery"),
    "partition_assigned": ("false", "no_partition"),
}
"""Element of nvidia-smi's <fabric>: the word that tells of a fault, and its name."""


def fabric_of_words(words: Dict[str, str]) -> Plain:
    """Plain ``GpuFabric`` data of the elements that nvidia-smi prints in <fabric>, by their names."""
    said = {name: text.strip() for name, text in words.items() if text.strip().lower() not in _NO_WORDS}
    plain: Plain = {"state": said.get("state", "not supported").lower().replace(" ", "_"), "unread": {}}
    if plain["state"] == "completed" and "status" in said:
        plain["status"] = "success" if said["status"].lower() == "success" else said["status"]
    if "clusterUuid" in said:
        plain["cluster_uuid"] = said["clusterUuid"].lower() if said["clusterUuid"].strip("0-") else ""
    clique = whole(said.get("cliqueId", ""))
    if clique is not None:
        plain["clique_id"] = clique
    if "summary" in said:
        plain["health"] = said["summary"].lower().replace(" ", "_")
    if any(name in said for name in (*_WORDS, "incorrect_configuration")):
        found = [name for element, (bad, name) in _WORDS.items() if said.get(element, "").lower() == bad]
        kind = said.get("incorrect_configuration", "none").lower().replace(" ", "_")
        plain["unhealthy"] = found + ([f"incorrect_configuration:{kind}"] if kind != "none" else [])
    names = ("status", "cluster_uuid", "clique_id", "health", "unhealthy")
    _missing(plain, names, "absent", "nvidia-smi does not tell it of this GPU")
    return plain


def _fabric_info(nvml: Any, gpu: Any) -> Any:
    """The newest form of the answer that pynvml and the driver both have."""
    import ctypes

    for call, form, version in _fabric_forms():
        info = form(version=version) if version else form()
        try:
            getattr(nvml, call)(gpu, ctypes.byref(info))
        except AttributeError:
            if not version:
                raise
        except nvml.NVMLError as error:
            if not version or error.value not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH, INVALID_ARGUMENT):
                raise
        else:
            return info


def _fabric_forms() -> Iterator[Tuple[str, Any, int]]:
    """(call, structure, its version) from the newest to the first: nvmlGpuFabricInfo_v3_t, _v2_t and _t as in nvml.h.

    Those of pynvml before 13 are not used: their cluster id is 80 bytes long instead of 16.
    """
    import ctypes as c

    version = [("version", c.c_uint)]
    first = [("clusterUuid", c.c_ubyte * 16), ("status", c.c_uint), ("cliqueId", c.c_uint32), ("state", c.c_ubyte)]
    second = [*version, *first, ("healthMask", c.c_uint32)]
    third = [*second, ("healthSummary", c.c_ubyte)]
    for call, layout, number in (("V", third, 3), ("V", second, 2), ("", first, 0)):
        form = type("Fabric", (c.Structure,), {"_fields_": layout})
        yield f"nvmlDeviceGetGpuFabricInfo{call}", form, number and (number << 24 | c.sizeof(form))


def _uuid(raw: bytes) -> str:
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _words(nvml: Any, code: int) -> str:
    try:
        return _text(nvml.nvmlErrorString(code))
    except (nvml.NVMLError, AttributeError):
        return f"error {code}"


# --------------------------------------------------------------------------- peers

READ, WRITE = 0, 1
"""nvmlGpuP2PCapsIndex_t. NCCL asks for both (src/misc/nvmlwrap.cc)."""
PEER = (
    "ok",
    "chipset_not_supported",
    "gpu_not_supported",
    "topology_not_supported",
    "disabled_by_regkey",
    "not_supported",
    "unknown",
)
"""nvmlGpuP2PStatus_t."""


def peers(nvml: Any, count: int) -> Dict[str, Dict[str, str]]:
    """GPU -> other GPU -> may the one reach the other's memory? Of all GPUs at once: it wakes every one of them.

    A GPU that cannot be asked is left out.
    """
    handles = {index: _or_none(nvml, "nvmlDeviceGetHandleByIndex", index, gone=()) for index in range(count)}
    there = {index: handle for index, handle in handles.items() if handle is not None}
    found: Dict[str, Dict[str, str]] = {str(index): {} for index in there}
    for a in there:
        for b in there:
            if a < b:
                word = _peer(nvml, there[a], there[b])
                found[str(a)][str(b)] = found[str(b)][str(a)] = word
    return found


def _peer(nvml: Any, a: Any, b: Any) -> str:
    """The first answer for reading or writing that is not "ok"."""
    numbers = [_or_none(nvml, "nvmlDeviceGetP2PStatus", a, b, caps, gone=()) for caps in (READ, WRITE)]
    words = [PEER[n] if n is not None and n < len(PEER) else "unknown" for n in numbers]
    return next((word for word in words if word != "ok"), "ok")


# --------------------------------------------------------------------------- plain data to facts


def link_of(plain: Plain) -> NvLink:
    return NvLink(**{**plain, "unread": _reasons(plain)})


def fabric_of(plain: Plain) -> GpuFabric:
    known = {**plain, "unread": _reasons(plain)}
    if known.get("unhealthy") is not None:
        known["unhealthy"] = tuple(known["unhealthy"])
    return GpuFabric(**known)


def _reasons(plain: Plain) -> Dict[str, Reason]:
    return {name: Reason(**reason) for name, reason in plain.get("unread", {}).items()}

"""What the hardware of a described node says: the PCIe tree, NVSwitches and who looks after them, GPUs, counters.

slots       functions behind one PCIe switch, a list for each switch; a function in none has a port of its own
link_says   of a function, by its address: width, gt_s, where its link trained lower than it could
[nvswitch]  device pci, manager (version of the fabric manager that runs here)
processor   frequency_driver, throttled (events of its heat, of processors that count them)
[later]     counters, "SOURCE SUBJECT NAME" = how much each has risen when they are read again
"""

from typing import Any, Dict, Iterator, List, Tuple

Table = Dict[str, Any]
Entry = Tuple[str, Any]

BUS = "/sys/bus/pci/devices"
GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0}
"""Transfers of a PCIe generation."""


def function(pci: str, kind: str, ids: str, driver: str, numa: int = 0, members: str = "") -> Iterator[Entry]:
    """A function on the PCI bus. ids: VENDOR:DEVICE. members: "infiniband/mlx5_0 net/ib0", the devices that it carries."""
    folder = f"{BUS}/{pci}"
    vendor, device = ids.split(":")
    bound = f"DRIVER={driver}\n" if driver else ""
    plain = f"{bound}PCI_CLASS={int(kind, 16):X}\nPCI_ID={vendor.upper()}:{device.upper()}\nPCI_SLOT_NAME={pci}\n"
    for name, text in (("class", kind), ("vendor", f"0x{vendor}"), ("device", f"0x{device}"), ("uevent", plain)):
        yield f"read {folder}/{name}", text.rstrip() + "\n"
    yield f"read {folder}/numa_node", f"{numa}\n"
    if driver:
        yield f"link {folder}/driver", f"../../../bus/pci/drivers/{driver}"
    for member in members.split():
        yield f"list {folder}/{member.split('/')[0]}", [member.split("/")[1]]


def link(node: Table, pci: str, generation: int, now: int = 0, width: int = 16) -> Iterator[Entry]:
    """The PCIe link of a function: what it can, and what it trained to; an idle card of the desktop lowers its generation."""
    says = {"gt_s": GT_S[now or generation], "width": width, **node.get("link_says", {}).get(pci, {})}
    for name, gt_s in (("current", says["gt_s"]), ("max", GT_S[generation])):
        yield f"read {BUS}/{pci}/{name}_link_speed", f"{gt_s} GT/s PCIe\n" if gt_s else "Unknown\n"
    for name, lanes in (("current", says["width"]), ("max", width)):
        yield f"read {BUS}/{pci}/{name}_link_width", f"{lanes}\n"


# --------------------------------------------------------------------------- the tree


def tree(node: Table, functions: Dict[str, Table]) -> Iterator[Entry]:
    """Where functions (address -> what is read of each) hang, and the bridges above them."""
    groups = [[pci for pci in group if pci in functions] for group in node.get("slots", [])]
    alone = {pci[:-2] for pci in functions} - {pci[:-2] for group in groups for pci in group}
    for group in filter(None, groups):
        yield from _behind_a_switch(node, group, functions)
    for slot in sorted(alone):
        here = [pci for pci in functions if pci[:-2] == slot]
        yield from _behind_a_port(node, here, functions)
    for pci in functions:
        yield from _config(node, pci, "0c", False)


def _behind_a_switch(node: Table, group: List[str], functions: Dict[str, Table]) -> Iterator[Entry]:
    """A root port, the switch's upstream port, and a downstream port for each function."""
    domain, first = group[0][:4], min(int(pci[5:7], 16) for pci in group)
    root, upstream = f"{domain}:{first - 3:02x}:01.0", f"{domain}:{first - 2:02x}:00.0"
    above = f"/sys/devices/pci{domain}:{first - 3:02x}/{root}/{upstream}"
    best = max((functions[pci] for pci in group), key=lambda read: str(read.get("max_link_speed", "")).zfill(20))
    widest = {**best, **{name.replace("max", "current"): best[name] for name in best if name.startswith("max_link")}}
    numa = best.get("numa_node", "0\n")
    yield from _bridge(node, root, above.rsplit("/", 2)[0], widest, numa)
    yield from _bridge(node, upstream, above.rsplit("/", 1)[0], widest, numa)
    for number, pci in enumerate(group):
        down = f"{domain}:{first - 1:02x}:{number:02x}.0"
        yield from _bridge(node, down, above, functions[pci], numa)
        yield f"realpath {BUS}/{pci}", f"{above}/{down}/{pci}"


def _behind_a_port(node: Table, slot: List[str], functions: Dict[str, Table]) -> Iterator[Entry]:
    """Functions of one card below a root port of their own; those of bus 0, and a guest's, stand at the host bridge itself."""
    domain, bus = slot[0][:4], int(slot[0][5:7], 16)
    place = f"/sys/devices/pci{domain}:{max(bus - 1, 0):02x}"
    if bus and not node["processor"].get("guest"):
        port = f"{domain}:{bus - 1:02x}:01.0"
        yield from _bridge(node, port, place, functions[slot[0]], functions[slot[0]].get("numa_node", "0\n"))
        place = f"{place}/{port}"
    for pci in slot:
        yield f"realpath {BUS}/{pci}", f"{place}/{pci}"


def _bridge(node: Table, pci: str, place: str, below: Table, numa: str) -> Iterator[Entry]:
    """A bridge, whose link is that of what is below it."""
    yield from function(pci, "0x060400", "1000:c030", "pcieport", int(numa))
    for name in ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width"):
        if name in below:
            yield f"read {BUS}/{pci}/{name}", below[name]
    yield f"realpath {BUS}/{pci}", f"{place}/{pci}"
    yield from _config(node, pci, "06", True)


def _config(node: Table, pci: str, kind: str, has_acs: bool) -> Iterator[Entry]:
    """Configuration space as a recording holds it, in hexadecimal: for root with 4096 bytes read requests and relaxed ordering."""
    space = bytearray(4096 if node["user"]["uid"] == 0 and "pid_namespace" not in node["system"] else 64)
    space[0:2], space[6], space[0x0B], space[0x34] = b"\xde\x10", 0x10, int(kind, 16), 0x40
    if len(space) > 64:
        space[0x40], space[0x48:0x4A] = 0x10, (5 << 12 | 1 << 5 | 1 << 4).to_bytes(2, "little")
        space[0x100:0x104] = (0x1000D if has_acs else 0).to_bytes(4, "little")
        space[0x106] = 0x0C if pci in node.get("acs", []) else 0
    yield f"read {BUS}/{pci}/config", space.hex()


# --------------------------------------------------------------------------- NVLink


def nvswitch(node: Table) -> Iterator[Entry]:
    """NVSwitches on the bus, and the fabric manager: a container sees the switches and not the host's daemons."""
    switches = node.get("nvswitch", {})
    for pci in switches.get("pci", []):
        yield from function(pci, "0x068000", f"10de:{switches['device']}", "nvidia-nvswitch", switches.get("numa", 0))
    manager = switches.get("manager")
    if manager:
        yield "stat /usr/bin/nv-fabricmanager", {"kind": "file", "mode": 0o755, "uid": 0, "gid": 0, "size_bytes": 1, "readable": True, "writable": False}  # fmt: skip
        said = f"Fabric Manager version is : {manager}\n"
        yield "run fabric-manager-version", {"status": 0, "stdout": said, "stderr": ""}
    names = ["nv-fabricmanage"] if manager else []
    yield "ask processes called nv-fabricmanage, nvlsm, nvidia-imex", {"names": names, "hidden": False}


def links(node: Table, family: Table, pci: str) -> Table:
    """``links`` of a family: its NVLinks, spread over NVSwitches, or where there are none over the other GPUs, ``bridged`` so many together."""
    switches = node.get("nvswitch", {}).get("pci", [])
    board = family.get("bridged", len(family["pci"]))
    first = family["pci"].index(pci) // board * board
    ends = switches or [other for other in family["pci"][first : first + board] if other != pci]
    number = family.get("links", 0)
    each = {"active": True, "speed_gb_s": family.get("link_gb_s", 26.562), "errors": {}, "unread": {}}
    kind = "switch" if switches else "gpu"
    found: Table = {
        "nvlinks": [
            {"link": n, **each, "remote_kind": kind, "remote_pci": ends[n * len(ends) // number]} for n in range(number)
        ]
    }
    if number and switches and family["cc"] >= "9.0":
        found["fabric"] = {"state": "completed", "status": "success", "cluster_uuid": "", "clique_id": 0,
                           "health": "healthy", "unhealthy": [], "unread": {}}  # fmt: skip
    return found


# --------------------------------------------------------------------------- GPUs

MODELS: Dict[str, Tuple[Tuple[str, int, int, int, int, float, float], Table]] = {
    "H100 80GB HBM3": (("5", 345, 1980, 2619, 2619, 70.1, 700.0), {"temperature_margin_c": 53, "temperature_memory_c": 43}),
    "A100-SXM4-80GB": (("4", 210, 1410, 1593, 1593, 60.4, 400.0), {
        "temperature_shutdown_c": 92, "temperature_slowdown_c": 89, "temperature_max_c": 85, "temperature_memory_max_c": 95,
        "temperature_memory_c": 41, "clock_application_mhz": 1155, "clock_application_default_mhz": 1155}),
    "A100-PCIE-40GB": (("4", 210, 1410, 1215, 1215, 33.9, 250.0), {
        "temperature_shutdown_c": 92, "temperature_slowdown_c": 89, "temperature_max_c": 85, "temperature_memory_max_c": 95,
        "temperature_memory_c": 37, "clock_application_mhz": 765, "clock_application_default_mhz": 765}),
    "V100-SXM2-16GB": (("3", 135, 1530, 877, 877, 41.3, 300.0), {
        "temperature_shutdown_c": 90, "temperature_slowdown_c": 87, "temperature_max_c": 83, "temperature_memory_max_c": 85,
        "temperature_memory_c": 35, "clock_application_mhz": 1312, "clock_application_default_mhz": 1312}),
    "A10G": (("4", 210, 1710, 6251, 6251, 15.8, 300.0), {
        "temperature_shutdown_c": 98, "temperature_slowdown_c": 95, "temperature_max_c": 88,
        "clock_application_mhz": 1710, "clock_application_default_mhz": 1710}),
    "RTX 4090": (("4", 210, 3105, 405, 10501, 18.5, 450.0), {"temperature_margin_c": 55}),
    "RTX 4070 Ti": (("4", 210, 3120, 405, 10501, 9.7, 285.0), {"temperature_margin_c": 52}),
}  # fmt: skip
"""End of the name -> (PCIe generation, SM clock idle and highest, memory clock idle and highest, watts idle and at most), and
what else it tells: limits of temperature, and clocks of applications, which newer models have no more."""
SINCE = {"recovery_action": 570, "temperature_margin_c": 570, "ecc_sram_threshold_exceeded": 550}
"""Branch of the driver that first answered."""


def gpu(family: Table, driver: Table) -> Table:
    """What NVML says of an idle and sound GPU of this model with this driver."""
    (generation, sm, sm_max, memory, memory_max, watts, limit), more = next(
        found for name, found in MODELS.items() if family["name"].endswith(name)
    )
    gaming, ampere = "GeForce" in family["name"], family["cc"] >= "8.0"
    says = {
        **more,
        "clock_sm_mhz": sm, "clock_sm_max_mhz": sm_max, "clock_memory_mhz": memory, "clock_memory_max_mhz": memory_max,
        "power_w": watts, "power_limit_w": limit, "power_default_limit_w": limit,
        "throttle": ["gpu_idle"], "throttled_us": {"sw_power_cap": 120, "sync_boost": 0},
        "utilisation_percent": 0, "performance_state": 8 if gaming else 0, "recovery_action": "none",
        "pcie_gen": 1 if gaming else int(generation), "pcie_gen_max": int(generation),
        "pcie_gen_device_max": int(generation), "pcie_width": 16, "pcie_width_max": 16, "pcie_replays": 0,
        **({} if gaming else _memory(ampere)),
    }  # fmt: skip
    old = [name for name, branch in SINCE.items() if int(driver["version"].split(".")[0]) < branch and name in says]
    absent = {"kind": "absent", "text": "NVML: Function Not Found"}
    unsupported = sorted(set(_EVERY) - set(says))
    known = {name: value for name, value in says.items() if name not in old}
    return {**known, "unsupported": unsupported, "unread": dict.fromkeys(old, absent)}


_EVERY = (
    "temperature_shutdown_c", "temperature_slowdown_c", "temperature_max_c", "temperature_margin_c", "temperature_memory_c",
    "temperature_memory_max_c", "clock_application_mhz", "clock_application_default_mhz", "ecc_corrected_volatile",
    "ecc_corrected_aggregate", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "ecc_sram_uncorrected_volatile",
    "ecc_sram_uncorrected_aggregate", "ecc_sram_threshold_exceeded", "retired_single_bit", "retired_double_bit",
    "retired_pending", "remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure",
)  # fmt: skip
"""Fields that some model does not have."""


def _memory(ampere: bool) -> Table:
    """Errors of memory: rows are remapped from Ampere on, before it pages were retired."""
    ecc = {f"ecc_{kind}_{span}": 0 for kind in ("corrected", "uncorrected") for span in ("volatile", "aggregate")}
    rows = {"remapped_correctable": 0, "remapped_uncorrectable": 0, "remap_pending": False, "remap_failure": False}
    sram = {
        "ecc_sram_uncorrected_volatile": 0,
        "ecc_sram_uncorrected_aggregate": 0,
        "ecc_sram_threshold_exceeded": False,
    }
    pages = {"retired_single_bit": 0, "retired_double_bit": 0, "retired_pending": False}
    return {"ecc_mode": True, **ecc, **({**rows, **sram} if ampere else pages)}


def counted(gpu: Table) -> Table:
    """What the counters of a GPU and its NVLinks say."""
    if "fault" in gpu:
        return {"fault": gpu["fault"], "kind": "unreadable"}
    names = (
        "pcie_replay",
        "ecc_corrected_volatile",
        "ecc_uncorrected_volatile",
        "lowered_for_power_ns",
        "lowered_for_heat_ns",
    )
    return {"counts": dict.fromkeys(names, 0), "links": {str(link["link"]): {"crc": 0} for link in gpu["nvlinks"]}}


# --------------------------------------------------------------------------- processors and counters


def processors(node: Table) -> Iterator[Entry]:
    """How clocks are governed, and what counts its heat: Intel's driver on bare metal."""
    cpu = node["processor"]
    if "governor" in cpu:
        driver = cpu.get("frequency_driver", "intel_pstate" if "Intel" in cpu["model"] else "acpi-cpufreq")
        yield "read /sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", driver + "\n"
    if "Intel" in cpu["model"] and not cpu.get("guest"):
        for each in range(cpu["threads"]):
            for kind in ("core", "package"):
                yield (
                    f"read /sys/devices/system/cpu/cpu{each}/thermal_throttle/{kind}_throttle_count",
                    f"{cpu.get('throttled', 0)}\n",
                )


_TCP = {
    "InSegs": 91022113,
    "OutSegs": 90511012,
    "RetransSegs": 1121,
    "InErrs": 0,
    "AttemptFails": 12,
    "EstabResets": 40,
}
_TCP_EXT = {"ListenOverflows": 0, "ListenDrops": 0, "TCPTimeouts": 211, "TCPSynRetrans": 19, "TCPBacklogDrop": 0}


def counters(node: Table) -> Iterator[Entry]:
    """What the kernel counts of TCP, packets and disks."""
    for path, name, table in (("snmp", "Tcp", _TCP), ("netstat", "TcpExt", _TCP_EXT)):
        yield f"read /proc/net/{path}", f"{name}: {' '.join(table)}\n{name}: {' '.join(map(str, table.values()))}\n"
    yield "read /proc/net/softnet_stat", "00a1b2c3 00000000 00000004 00000000\n" * 2
    yield "list /sys/block", ["nvme0n1"]
    yield "read /proc/diskstats", " 259 0 nvme0n1 81022 11 9022113 20110 401221 902 40122113 310221 0 190221 330331\n"
    for nic in node.get("nic", []):
        if "driver" in nic:
            for name in ("rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "rx_missed_errors"):
                count = 40122113 if name.endswith("packets") else 0
                yield f"read /sys/class/net/{nic['name']}/statistics/{name}", f"{count}\n"
            yield f"read /sys/class/net/{nic['name']}/carrier_changes", "2\n"
    yield "ask ethtool-statistics", {}

"""Nodes written for tests: from a description that a person reads to a recording that ``ddp-doctor run --replay`` opens.

A ``node.toml`` says in a page what a node is; the functions here write what the kernel, NVML and the tools of such a node
say, in their own formats. What a description gives word for word (``[files]``, ``[run]``, ``[answers]`` ...) wins.

    about       one sentence on the node and why it is here
    [expected]  what a person expects of the report, by hand: see test_nodes.py
    like        another node: its tables hold where this one has none of that name
    config      the configuration file of the run, if any
    [ask]       options of the run, by the names of ``Ask``
    [system]    name kernel os_release distro glibc machine vendor product systemd (else: where it is no container)
    [processor] model sockets cores threads allowed quota governor guest (below a hypervisor)
    [memory]    total_gib available_gib swap_gib limit_gib
    [limits]    memlock_kib nofile nproc (numbers or "unlimited"), cap (CapEff mask)
    [user]      uid name home
    [mounts]    "POINT" = "TYPE SOURCE OPTIONS TOTAL_GIB FREE_GIB [ROOT]"
    [clock]     daemon offset_s stratum synchronised
    [env]       the environment
    [network]   gateway hosts resolves listening
    [[nic]]     name ip speed driver pci state kind members master mtu type
    [[hca]]     name layer rate state pci netdev address firmware psid
    [driver]    version cuda open error        [[gpu]]  count name pci memory_mib used_mib cc ...
    [gpu_says]  what NVML says of one GPU, by its index, over that of its family; [hca_says] and [nic_says] the same of an HCA or NIC, by its name
    [torch]     python prefix version cuda packages answers
    [pci]       other functions on the bus: "0000:00:02.0" = "CLASS VENDOR:DEVICE"
    kernel      lines of the kernel's log, as /dev/kmsg has them: root alone reads it
    denied      files that this user may not read
    [files] [links] [folders] [devices] [run] [answers]   word for word

What belongs to hardware is in hardware.py, which names its tables.
"""

import ipaddress
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from ddp_doctor.collect import counters, gpu_counters
from ddp_doctor.probe import MARK
from ddp_doctor.recording import Recording
from nodes import hardware

try:
    import tomllib
except ImportError:  # Python before 3.11
    import tomli as tomllib

NOW = 1750000000.0
"""2025-06-15 15:06:40 UTC: when all these nodes are looked at."""
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
GIB, MIB = 2**30, 2**20

Table = Dict[str, Any]
Entry = Tuple[str, Any]
"""A name in the recording's index, such as "read /etc/hosts", and its value."""


def describe(folder: Path) -> Table:
    """The description of a node; ``like`` names another one, whose tables hold where this one has none of that name."""
    with open(folder / "node.toml", "rb") as file:
        node = tomllib.load(file)
    node = {**describe(folder.parent / node["like"]), **node} if "like" in node else node
    for kind in ("hca", "nic"):
        for device in node.get(kind, []):
            device.update(node.get(f"{kind}_says", {}).get(device["name"], {}))
    return node


def write(node: Table, folder: Path) -> None:
    """Write the recording of a node."""
    entries: Dict[str, Table] = {}
    files: Dict[str, str] = {}
    for name, value in everything(node):
        operation, _, path = name.partition(" ")
        if operation == "read" and isinstance(value, str):
            files["root" + path] = value
        else:
            entries[name] = value if isinstance(value, dict) and "reason" in value else {"value": value}
    if "later" in node:
        entries["ask counters-2"] = {"value": _second_look(Recording(entries, files, complete=True), node)}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    index = {"format": 1, "complete": True, "entries": entries}
    (folder / "index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def _second_look(first: Recording, node: Table) -> Table:
    """All counters once more, 5 s later: those of ``later`` have risen."""
    later, sources = dict(node["later"]), {**counters.SOURCES, "gpu": gpu_counters.gpus}
    numbers = [
        [*key, value + later.pop(" ".join(filter(None, key)), 0)]
        for key, value in counters.take(first, sources).numbers.items()
    ]
    assert not later, f"nothing counts {', '.join(later)}"
    return {"interval_s": 5.0, "numbers": numbers, "unread": {}}


def everything(node: Table) -> Iterator[Entry]:
    """All that is recorded of a node; what comes later wins."""
    functions: Dict[str, Table] = {}
    for part in (
        _system, _processor, _memory, _limits, _mounts, _clock, _network, _nics, _rdma, _bus, _gpus, _torch, _ssh,
        hardware.nvswitch, hardware.processors, hardware.counters,
    ):  # fmt: skip
        for name, value in part(node):
            yield name, value
            operation, _, path = name.partition(" ")
            if path.startswith(hardware.BUS) and operation == "read":
                pci, what = path[len(hardware.BUS) + 1 :].split("/")
                functions.setdefault(pci, {})[what] = value
    yield from hardware.tree(node, functions)
    yield from _word_for_word(node)


def _word_for_word(node: Table) -> Iterator[Entry]:
    yield "env ", node.get("env", {})
    for path, text in node.get("files", {}).items():
        yield f"read {path}", text
    for path, target in node.get("links", {}).items():
        yield f"link {path}", target
    for path, names in node.get("folders", {}).items():
        yield f"list {path}", sorted(names)
        yield stat(path, "directory", 0o755)
    for path, mode in node.get("devices", {}).items():
        yield stat(path, "char", int(mode, 8))
    for path in node.get("denied", []):
        yield f"read {path}", {"reason": {"kind": "no-rights", "text": f"{path}: Permission denied"}}
    for name, ran in node.get("run", {}).items():
        yield f"run {name}", {"status": 0, "stdout": "", "stderr": "", **ran}
    for name, answer in node.get("answers", {}).items():
        yield f"ask {name}", answer


def stat(path: str, kind: str, mode: int, uid: int = 0) -> Entry:
    """A file, folder or device: who may use it follows from its mode as for a user who does not own it."""
    readable, writable = bool(mode & 0o4), bool(mode & 0o2)
    seen = {"kind": kind, "mode": mode, "uid": uid, "gid": uid, "size_bytes": 4096}
    return f"stat {path}", {**seen, "readable": readable or kind != "char", "writable": writable or kind != "char"}


# --------------------------------------------------------------------------- the machine


def _system(node: Table) -> Iterator[Entry]:
    system = node["system"]
    yield "read /proc/sys/kernel/hostname", system["name"] + "\n"
    yield "read /proc/sys/kernel/osrelease", system["kernel"] + "\n"
    yield "read /proc/sys/kernel/random/boot_id", f"{abs(hash_of(system['name'])):08x}-5d0f-4c39-9d4a-6b1f0d0c7e11\n"
    yield "read /proc/uptime", "864000.51 49000000.11\n"
    yield "read /proc/filesystems", system.get("filesystems", "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\n\text4\n")
    yield "read /etc/os-release", system["os_release"]
    if system.get("systemd", "pid_namespace" not in system):
        yield stat("/run/systemd/system", "directory", 0o755)
    yield "ask distro", system.get("distro", "")
    yield "ask glibc", "glibc " + system.get("glibc", "2.35")
    yield "ask machine", system.get("machine", "x86_64")
    for name in ("vendor", "product"):
        if name in system:
            file = {"vendor": "sys_vendor", "product": "product_name"}[name]
            yield f"read /sys/class/dmi/id/{file}", system[name] + "\n"
    yield "link /proc/self/ns/pid", system.get("pid_namespace", INITIAL_PID_NAMESPACE)
    yield "now ", NOW
    yield "now kernel_log", NOW
    yield "python ", "3.10.12"
    yield "ask processes", {"blocked": [], "zombies": [], "holding": [], "hidden": False}
    yield from _kernel(node)


def _kernel(node: Table) -> Iterator[Entry]:
    """What the kernel tells: its log to root alone, as distributions set it (kernel.dmesg_restrict)."""
    yield "read /proc/sys/kernel/numa_balancing", "0\n"
    for setting, value in {"rp_filter": 0, "arp_ignore": 0, "arp_announce": 0}.items():
        yield f"read /proc/sys/net/ipv4/conf/all/{setting}", f"{value}\n"
    yield "read /proc/sys/kernel/dmesg_restrict", "1\n"
    denied = {"reason": {"kind": "no-rights", "text": "/dev/kmsg: Operation not permitted"}}
    ring = {
        "lines": node.get("kernel", []),
        "first": "5,0,0,-;",
        "last": "6,4211,863999000000,-;",
        "whole_boot": True,
        "dropped": 0,
        "boot": NOW - 864000.5,
    }
    yield "ask kernel-ring", ring if node["user"]["uid"] == 0 and "pid_namespace" not in node["system"] else denied


def hash_of(text: str) -> int:
    """A small number that is the same on every Python."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(text)) % 2**32


def _processor(node: Table) -> Iterator[Entry]:
    cpu = node["processor"]
    sockets, cores, threads = cpu.get("sockets", 1), cpu["cores"], cpu["threads"]
    flags = "fpu vme msr sse4_2 avx avx2" + (" hypervisor" if cpu.get("guest") else "")
    blocks = [
        f"processor\t: {n}\nmodel name\t: {cpu['model']}\nphysical id\t: {n * sockets // threads}\n"
        f"siblings\t: {threads // sockets}\ncpu cores\t: {cores // sockets}\n"
        f"core id\t\t: {n % (cores // sockets)}\nflags\t\t: {flags}\n"
        for n in range(threads)
    ]
    yield "read /proc/cpuinfo", "\n".join(blocks)
    yield "read /proc/loadavg", "1.02 0.88 0.70 2/2104 41211\n"
    yield "read /sys/devices/system/cpu/online", f"0-{threads - 1}\n"
    yield "read /sys/devices/system/node/has_cpu", f"0-{sockets - 1}\n" if sockets > 1 else "0\n"
    each = threads // sockets
    for number in range(sockets):
        yield f"read /sys/devices/system/node/node{number}/cpulist", f"{number * each}-{(number + 1) * each - 1}\n"
    allowed = cpu.get("allowed", f"0-{threads - 1}")
    cap = node.get("limits", {}).get("cap", "0000000000000000")
    yield "read /proc/self/status", f"Name:\tpython3\nCapEff:\t{cap}\nCpus_allowed_list:\t{allowed}\n"
    if "governor" in cpu:
        yield "read /sys/devices/system/cpu/cpufreq/policy0/scaling_governor", cpu["governor"] + "\n"
    if "quota" in cpu:
        yield "read /sys/fs/cgroup/cpu.max", f"{int(cpu['quota'] * 100000)} 100000\n"


def _memory(node: Table) -> Iterator[Entry]:
    memory = node["memory"]
    rows = {
        "MemTotal": memory["total_gib"],
        "MemFree": memory["available_gib"] * 0.8,
        "MemAvailable": memory["available_gib"],
        "SwapTotal": memory.get("swap_gib", 0),
        "SwapFree": memory.get("swap_gib", 0),
    }
    text = "".join(f"{name + ':':<16}{int(gib * MIB):>10} kB\n" for name, gib in rows.items())
    huge = "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"
    yield "read /proc/meminfo", text + huge
    yield "read /sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"
    if "limit_gib" in memory:
        yield "read /sys/fs/cgroup/memory.max", f"{int(memory['limit_gib'] * GIB)}\n"
        yield "read /sys/fs/cgroup/memory.current", f"{int(memory.get('used_gib', 1) * GIB)}\n"
        yield "read /sys/fs/cgroup/memory.stat", "anon 268435456\nactive_file 0\ninactive_file 0\n"


def _limits(node: Table) -> Iterator[Entry]:
    limits = {"memlock_kib": 8192, "nofile": "1024/1048576", "nproc": 1029000, **node.get("limits", {})}
    memlock = limits["memlock_kib"]
    memlock = memlock if isinstance(memlock, str) else memlock * 1024
    rows = (
        ("Max stack size", "8388608/unlimited", "bytes"),
        ("Max core file size", "0/unlimited", "bytes"),
        ("Max processes", limits["nproc"], "processes"),
        ("Max open files", limits["nofile"], "files"),
        ("Max locked memory", memlock, "bytes"),
    )
    text = f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} {'Units':<10}\n"
    for name, value, unit in rows:
        soft, _, hard = str(value).partition("/")
        text += f"{name:<25} {soft:<20} {hard or soft:<20} {unit:<10}\n"
    yield "read /proc/self/limits", text
    yield "read /proc/sys/kernel/pid_max", "4194304\n"
    yield "read /proc/sys/kernel/threads-max", "4115834\n"
    yield "read /proc/sys/fs/file-max", "9223372036854775807\n"
    user = node["user"]
    yield "user ", [user["uid"], user["name"]]
    yield "ask home", user["home"]
    yield "ask home-folder", user["home"]


def _mounts(node: Table) -> Iterator[Entry]:
    """mountinfo, a cgroup of version 2, and what statvfs says of the places that a job writes to."""
    mounts: Dict[str, List[str]] = {point: words.split() for point, words in node["mounts"].items()}
    lines = [
        f"{20 + n} 1 0:{20 + n} {words[5] if len(words) > 5 else '/'} {point} {words[2]} - {words[0]} {words[1]} {words[2]}"
        for n, (point, words) in enumerate(mounts.items())
    ]
    shares = {p: _place(p, words) for p, words in mounts.items() if words[0] in NETWORK_TYPES}
    sizes = ("total_bytes", "free_bytes", "inodes_total", "inodes_free", "read_only")
    yield "ask network mounts", {point: {name: share[name] for name in sizes} for point, share in shares.items()}
    lines.append("90 1 0:90 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - cgroup2 cgroup2 rw")
    yield "read /proc/self/mountinfo", "\n".join(lines) + "\n"
    yield "read /proc/self/cgroup", "0::/\n"
    places = {"shm": "/dev/shm", "tmp": "/tmp", "home": node["user"]["home"], "cwd": node["ask"]["cwd"]}
    for role, path in places.items():
        point = max((p for p in mounts if path == p or path.startswith(p.rstrip("/") + "/")), key=len)
        if role == "shm" and point != "/dev/shm":
            continue
        yield f"ask disk {role}", _place(path, mounts[point])
        mine = role in ("home", "cwd")
        yield stat(path, "directory", 0o755 if mine else 0o1777, node["user"]["uid"] if mine else 0)


NETWORK_TYPES = ("nfs", "nfs4", "lustre")


def _place(path: str, words: List[str]) -> Table:
    total, free = (int(float(gib) * GIB) for gib in words[3:5])
    sizes = {"total_bytes": total, "free_bytes": free, "inodes_total": total // 16384, "inodes_free": free // 16384}
    read_only = "ro" in words[2].split(",")
    return {"real": path, "writable": not read_only, "read_only": read_only, **sizes}


def _clock(node: Table) -> Iterator[Entry]:
    clock = {"daemon": "chronyd", "offset_s": 0.000012, "stratum": 3, "synchronised": True, **node.get("clock", {})}
    comm = {"systemd-timesyncd": "systemd-timesyn"}.get(clock["daemon"], clock["daemon"])
    yield "ask synchroniser", [comm] if comm else []
    unsynchronised = not clock["synchronised"]
    status, worst_us = (64, 16000000) if unsynchronised else (8193, 12000)
    yield "ask adjtimex", {"status": status, "offset": 310000, "maxerror": worst_us}
    if clock["daemon"] == "chronyd":
        state = "Not synchronised" if unsynchronised else "Normal"
        line = f"C0A80001,192.168.0.1,{clock['stratum']},1749999900.1,{clock['offset_s']:.9f},0.000003,0.000009"
        line += f",-12.3,0.001,0.02,0.0007,0.0003,64.2,{state}\n"
        yield "run chronyc-tracking", {"status": 0, "stdout": line, "stderr": ""}
    elif clock["daemon"] == "systemd-timesyncd":
        line = f"NTPMessage={{ Leap=0, Version=4, Mode=4, Stratum={clock['stratum']}, Precision=-24 }}\n"
        yield "run timedatectl-timesync", {"status": 0, "stdout": line, "stderr": ""}


# --------------------------------------------------------------------------- network


def _network(node: Table) -> Iterator[Entry]:
    network = node.get("network", {})
    name = node["system"]["name"]
    yield "read /etc/hosts", network.get("hosts", "127.0.0.1 localhost\n")
    yield "read /proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"
    yield "read /proc/net/route", _routes(network.get("gateway", ""))
    yield "read /proc/net/ipv6_route", ""
    yield "ask listening", network.get("listening", [["0.0.0.0", 22]])
    yield "ask owners of ports in question", network.get("owners", [])
    yield "ask fqdn", network.get("fqdn", name)
    for host, addresses in network.get("resolves", {}).items():
        missing = {"reason": {"kind": "unresolved", "text": f"{host}: Name or service not known"}}
        yield f"resolve {host}", addresses or missing
    for target, route in network.get("routes", {}).items():
        yield f"ask route to {target}", route
    if "reach" in network:
        yield "ask reach", network["reach"]
    yield "read /proc/net/fib_trie", _fib_trie(node)


def _routes(gateway: str) -> str:
    """/proc/net/route of "eno1 10.0.0.1": addresses in the byte order of an x86."""
    text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    if gateway:
        interface, ip = gateway.split()
        word = int.from_bytes(ipaddress.ip_address(ip).packed, "little")
        text += f"{interface}\t00000000\t{word:08X}\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    return text


def _fib_trie(node: Table) -> str:
    ips = ["127.0.0.1"] + [ip.split("/")[0] for nic in node.get("nic", []) for ip in nic.get("ip", []) if "." in ip]
    return "Local:\n" + "".join(f"           |-- {ip}\n              /32 host LOCAL\n" for ip in ips)


ARPHRD = {"ethernet": 1, "infiniband": 32, "none": 65534, "loopback": 772}


def _nics(node: Table) -> Iterator[Entry]:
    lo = {"name": "lo", "ip": ["127.0.0.1/8", "::1/128"], "type": "loopback", "state": "unknown", "mtu": 65536}
    rows, links = [], {}
    for index, nic in enumerate([lo, *node.get("nic", [])], 1):
        links[nic["name"]] = {"index": index, "flags": _link_flags(nic), "kind": nic.get("kind", "")}
        rows += [_address(index, ip) for ip in nic.get("ip", [])]
        yield from _nic(index, nic)
    yield "ask addresses", rows
    yield "ask links", links


def _address(index: int, text: str) -> Table:
    ip = ipaddress.ip_interface(text)
    scope = "host" if ip.is_loopback else "link" if ip.is_link_local else "global"
    family = "ipv4" if ip.version == 4 else "ipv6"
    return {"index": index, "family": family, "ip": str(ip.ip), "prefix": ip.network.prefixlen, "scope": scope}


def _link_flags(nic: Table) -> int:
    """IFF_UP, IFF_LOOPBACK and IFF_RUNNING, as rtnetlink tells them (include/uapi/linux/if.h)."""
    state = nic.get("state", "up")
    return (state != "off") * 0x1 | (nic["name"] == "lo") * 0x8 | (state in ("up", "unknown")) * 0x40


def _nic(index: int, nic: Table) -> Iterator[Entry]:
    folder = f"/sys/class/net/{nic['name']}"
    state = nic.get("state", "up")
    flags = 0x1002 if state == "off" else 0x1003
    texts = {
        "address": nic.get("mac", f"52:54:00:00:00:{index:02x}"),
        "flags": f"0x{flags:x}",
        "ifindex": index,
        "mtu": nic.get("mtu", 1500),
        "operstate": "down" if state == "off" else state,
        "type": ARPHRD[nic.get("type", "ethernet")],
        "uevent": (f"DEVTYPE={nic['devtype']}\n" if "devtype" in nic else "") + f"INTERFACE={nic['name']}",
    }
    for name, value in texts.items():
        yield f"read {folder}/{name}", f"{value}\n"
    if state in ("down", "off"):  # the driver answers EINVAL while there is no link
        yield f"read {folder}/speed", "-1\n"
    elif nic["name"] != "lo":
        yield f"read {folder}/speed", f"{nic.get('speed', -1)}\n"
    for member in nic.get("members", []):
        yield f"link {folder}/lower_{member}", f"../{member}"
    if "master" in nic:
        yield f"link {folder}/master", f"../{nic['master']}"
    if "driver" in nic:
        slot = f"PCI_SLOT_NAME={nic['pci']}\n" if "pci" in nic and nic["driver"] != "virtio_net" else ""
        yield f"read {folder}/device/uevent", f"DRIVER={nic['driver']}\n{slot}"
        yield f"read {folder}/device/numa_node", f"{nic.get('numa', -1)}\n"
    for setting, value in {"rp_filter": 2, "arp_ignore": 0, "arp_announce": 0, **nic.get("arp", {})}.items():
        yield f"read /proc/sys/net/ipv4/conf/{nic['name']}/{setting}", f"{value}\n"


def _rdma(node: Table) -> Iterator[Entry]:
    hcas = node.get("hca", [])
    rdma = node.get("rdma", {})
    modules = rdma.get("modules", "ib_core ib_uverbs mlx5_ib mlx5_core rdma_cm rdma_ucm" if hcas else "")
    yield "read /proc/modules", "".join(f"{name} 1 0 - Live 0x0000000000000000\n" for name in modules.split())
    for name in modules.split():
        yield stat(f"/sys/module/{name}", "directory", 0o755)
    for number, hca in enumerate(hcas):
        yield from _hca(node, number, hca)
        if rdma.get("devices", True):
            yield stat(f"/dev/infiniband/uverbs{number}", "char", int(rdma.get("mode", "0666"), 8))
    if hcas and rdma.get("devices", True):
        yield stat("/dev/infiniband/rdma_cm", "char", 0o666)
        yield "ask verbs", _verbs(hcas)
        yield "read /etc/libibverbs.d/mlx5.driver", "driver mlx5\n"


def _verbs(hcas: List[Table]) -> Table:
    """What libibverbs says: every device has its provider, and packets as large as the adapter can."""
    devices = {hca["name"]: {"ports": {"1": [4096, hca.get("rdma_mtu", 4096)]}} for hca in hcas}
    return {"library": "/usr/lib64/libibverbs.so.1", "listed": sorted(devices), "devices": devices}


def _hca(node: Table, number: int, hca: Table) -> Iterator[Entry]:
    folder, pci = f"/sys/class/infiniband/{hca['name']}", hca["pci"]
    layer, state = hca.get("layer", "InfiniBand"), hca.get("state", "ACTIVE")
    guid = f"a088:c203:00f1:{0x1000 + number:04x}"
    device = {
        "fw_ver": hca.get("firmware", "28.39.1002"),
        "board_id": hca.get("psid", "MT_0000000838"),
        "hca_type": hca.get("type", "MT4129"),
        "node_guid": guid,
        "sys_image_guid": guid,
        "node_type": "1: CA",
        "device/uevent": f"DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SLOT_NAME={pci}",
        "device/numa_node": hca.get("numa", 0),
        f"device/infiniband_verbs/uverbs{number}/dev": f"231:{192 + number}",
    }
    port = {
        "state": {"ACTIVE": "4: ACTIVE", "DOWN": "1: DOWN", "INIT": "2: INIT"}[state],
        "phys_state": "5: LinkUp" if state != "DOWN" else hca.get("phys", "2: Polling"),
        "rate": hca.get("rate", "400 Gb/sec (4X NDR)"),
        "link_layer": layer,
        "lid": hex(number + 17) if layer == "InfiniBand" and state == "ACTIVE" else "0xffff",
        "sm_lid": "0x1" if layer == "InfiniBand" and state == "ACTIVE" else "0x0",
        "counters/symbol_error": 0,
        "counters/link_downed": 0,
        "counters/port_xmit_discards": 0,
        "counters/port_xmit_data": 184467 + number,
        "hw_counters/out_of_sequence": 0,
        "hw_counters/lifespan": 10,
        **dict(_gids(hca, layer, guid)),
        **({"pkeys/0": "0xffff", "pkeys/1": "0x0000"} if layer == "InfiniBand" else {}),
    }
    for name, value in device.items():
        yield f"read {folder}/{name}", f"{value}\n"
    for name, value in port.items():
        yield f"read {folder}/ports/1/{name}", f"{value}\n"
    kind, members = "0x020000" if layer == "Ethernet" else "0x020700", f"infiniband/{hca['name']}"
    yield from hardware.function(pci, kind, "15b3:1021", "mlx5_core", hca.get("numa", 0), members)
    yield from hardware.link(node, pci, 5 if hca.get("type", "MT4129") == "MT4129" else 4)
    if "netdev" in hca:
        yield f"read {folder}/device/net/{hca['netdev']}/dev_port", "0\n"


def _gids(hca: Table, layer: str, guid: str) -> Iterator[Tuple[str, str]]:
    """The GID table: the port's own on InfiniBand; on Ethernet a v1 and a v2 row for the link-local and each address."""
    rows = [f"fe80:0000:0000:0000:{guid}"]
    if "address" in hca:
        high, low = divmod(int(ipaddress.ip_address(hca["address"])), 65536)
        rows.append(f"0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}")
    kinds = ("IB/RoCE v1",) if layer == "InfiniBand" else ("IB/RoCE v1", "RoCE v2")
    for number, (gid, kind) in enumerate((gid, kind) for gid in rows for kind in kinds):
        yield f"gids/{number}", gid
        yield f"gid_attrs/types/{number}", kind
        if layer == "Ethernet":
            yield f"gid_attrs/ndevs/{number}", hca["netdev"]


def _bus(node: Table) -> Iterator[Entry]:
    """Functions that are neither GPU nor HCA: other cards, and those that the description names."""
    hcas = {hca["pci"] for hca in node.get("hca", [])}
    for nic in node.get("nic", []):
        if "pci" in nic and nic["pci"] not in hcas:
            numa = nic.get("numa", 0)
            yield from hardware.function(nic["pci"], "0x020000", "8086:1572", nic["driver"], numa, f"net/{nic['name']}")
            yield from hardware.link(node, nic["pci"], 3, width=8)
    for pci, words in node.get("pci", {}).items():
        yield from hardware.function(pci, *words.split(), "")


# --------------------------------------------------------------------------- GPUs and software


def _gpus(node: Table) -> Iterator[Entry]:
    driver, families = node.get("driver", {}), node.get("gpu", [])
    nodes: List[str] = [
        "null",
        "zero",
        "shm",
        *(["infiniband"] if node.get("hca") else []),
        *driver.get("extra_nodes", []),
    ]
    if not driver:
        yield "ask nvml", {"error": "NVML Shared Library Not Found"}
        yield "list /dev", sorted(nodes)
        return
    gpus = [gpu for family in families for gpu in _family(node, family)]
    sockets = node["processor"].get("sockets", 1)
    told = [gpu for gpu in gpus if gpu.pop("told")]
    for index, gpu in enumerate(told):
        gpu["index"] = index
        gpu["peers"] = {str(other): "ok" for other in range(len(told)) if other != index}
        gpu.update(node.get("gpu_says", {}).get(str(index), {}))
    yield from _module(driver)
    for minor, gpu in enumerate(gpus):
        ids, bound = gpu.pop("device"), gpu.pop("bound")
        if not driver.get("hidden_bus"):
            yield from hardware.function(gpu["pci"], "0x030200", f"10de:{ids}", bound, minor * sockets // len(gpus))
            yield from hardware.link(node, gpu["pci"], gpu["pcie_gen_max"], gpu["pcie_gen"])
            information = f"Model: \t\t {gpu['name']}\nGPU UUID: \t {gpu['uuid']}\nDevice Minor: \t {minor}\n"
            yield f"read /proc/driver/nvidia/gpus/{gpu['pci']}/information", information
    nodes += driver.get("nodes") or [f"nvidia{n}" for n in range(len(gpus))] + ["nvidiactl", "nvidia-uvm"]
    yield "list /dev", sorted(nodes)
    answer = {"driver": driver["version"], "library": driver.get("library", driver["version"]), "cuda": driver["cuda"]}
    if "error" in driver:
        answer = {"error": driver["error"], "library": driver.get("library")}
    else:
        answer["gpus"] = told
    yield "ask nvml", answer
    yield "ask nvml-counters", {str(gpu["index"]): hardware.counted(gpu) for gpu in answer.get("gpus", [])}


def _module(driver: Table) -> Iterator[Entry]:
    """/proc/driver/nvidia/version, which WSL does not have."""
    if driver.get("module", True):
        version = driver["version"]
        flavour = (
            f"Open Kernel Module for x86_64  {version}" if driver.get("open") else f"x86_64 Kernel Module  {version}"
        )
        text = f"NVRM version: NVIDIA UNIX {flavour}  Release Build\nGCC version:  gcc version 12.3.0\n"
        yield "read /proc/driver/nvidia/version", text


def _family(node: Table, family: Table) -> Iterator[Table]:
    """GPUs of one model, at the addresses given, idle and sound where nothing else is said."""
    for number, pci in enumerate(family["pci"]):
        gpu = {
            **hardware.gpu(family, node["driver"]),
            "name": family["name"],
            "uuid": f"GPU-{hash_of(pci):08x}-4b2c-11ef-9f0e-{0x02420A000001 + number:012x}",
            "pci": pci,
            "compute_capability": family["cc"],
            "memory_total_bytes": family["memory_mib"] * MIB,
            "memory_used_bytes": family.get("used_mib", 4) * MIB,
            "memory_used_includes_reserve": False,
            "compute_mode": "default",
            "mig": "disabled",
            "persistence": True,
            "temperature_c": 34 + number % 3,
            **hardware.links(node, family, pci),
            "processes": [],
            "device": family["device"],
            "bound": family.get("bound", "nvidia"),
            "told": number < family.get("told", len(family["pci"])),
        }
        yield {**gpu, **family.get("says", {})}


def _torch(node: Table) -> Iterator[Entry]:
    """An interpreter with its site-packages and a torch in it, and what the probe would say."""
    torch = node.get("torch")
    if torch is None:
        yield "ask own-interpreter", {"path": "/usr/bin/python3", "prefix": "/usr", "sites": [], "version": "3.10.12"}
        return
    python, prefix = torch["python"], torch["prefix"]
    short = ".".join(python.split(".")[:2])
    site = torch.get("site", f"{prefix}/lib/python{short}/site-packages")
    yield stat(f"{prefix}/bin/python3", "file", 0o755)
    if torch.get("venv", True):
        yield f"read {prefix}/pyvenv.cfg", f"home = /usr/bin\nversion = {python}\n"
    yield f"read {prefix}/lib/python{short}/os.py", "# the standard library\n"
    yield f"read {site}/README.txt", "packages\n"
    for package in torch.get("packages", []):
        yield f"read {site}/{package}.dist-info/INSTALLER", "pip\n"
    own = {"path": "/opt/doctor/bin/python", "prefix": "/opt/doctor", "sites": [], "version": "3.10.12"}
    yield "ask own-interpreter", own
    yield from _torch_package(site, torch)


def _torch_package(site: str, torch: Table) -> Iterator[Entry]:
    version = torch.get("version")
    answers: Table = {"python_version": torch["python"]}
    if version:
        cuda = torch.get("cuda", "")
        git = "2d5ab4ba0a9f3a3a3c2a0f3f5f6d5a1b0c9e8d7f"
        said = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda or None!r}\ngit_version = {git!r}\nhip = None\n"
        yield f"read {site}/torch/version.py", said
        yield f"read {site}/torch/__init__.py", "# torch\n"
        info = f"{site}/torch-{version}.dist-info"
        yield f"read {info}/INSTALLER", torch.get("installer", "pip") + "\n"
        requires = "".join(f"Requires-Dist: {line}\n" for line in torch.get("requires", []))
        yield f"read {info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{requires}\n"
        tag = torch.get("tag", "manylinux_2_28_x86_64")
        yield f"read {info}/WHEEL", f"Wheel-Version: 1.0\nTag: cp310-cp310-{tag}\n"
        if "nccl_wheel" in torch:
            yield f"read {site}/nvidia/nccl/lib/libnccl.so.2", "ELF\n"
        answers.update(imported=True, import_s=2.4, version=version, cuda=cuda, hip="", git=git, path=f"{site}/torch")
    answers.update(torch.get("answers", {}))
    lines = "".join(f"\n{MARK}{json.dumps({name: value})}\n" for name, value in answers.items())
    yield "run torch-probe", {"status": 0, "stdout": lines, "stderr": ""}


def _ssh(node: Table) -> Iterator[Entry]:
    home = node["user"]["home"]
    yield "run ssh-version", {"status": 0, "stdout": "", "stderr": "OpenSSH_8.9p1 Ubuntu-3ubuntu0.10, OpenSSL 3.0.2\n"}
    yield "ask ssh options", {}
    yield "ask known hosts", node.get("ssh", {}).get("known_hosts", 0)
    serves = node.get("ssh", {}).get("server", True)
    yield "ask processes called sshd", {"pids": [1201] if serves else [], "hidden": False}
    for name, mode in node.get("ssh", {}).get("files", {}).items():
        yield stat(f"{home}/.ssh/{name}", "file", int(mode, 8), node["user"]["uid"])
    if node.get("ssh", {}).get("files"):
        yield stat(f"{home}/.ssh", "directory", 0o700, node["user"]["uid"])

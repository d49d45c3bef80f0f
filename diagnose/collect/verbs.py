"""Verbs: what libibverbs, the library that NCCL itself loads, says of the RDMA devices.

The library is asked, not ibv_devinfo: NCCL loads libibverbs.so.1 at run time and takes TCP where it finds none, and only it
tells an active MTU and whether a device has its user-space driver (its provider). Functions and layouts: rdma-core,
libibverbs/verbs.h and compat-1_0.c. ``ask`` runs in a child: a provider that crashes takes nobody along. Every device is
opened in a thread of its own: one that hangs hides no other.
"""

import ctypes
import errno
import os
import re
import threading
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ddp_doctor.facts import Reason
from ddp_doctor.host import Host
from ddp_doctor.unreadable import Unreadable

LIBRARY = "libibverbs.so.1"
LIMIT_S = 2.0
"""For all devices together, which are opened at once. Opening one takes milliseconds."""
ALONE_LIMIT_S = 0.5
"""For one device, after another has crashed the child that asked for all."""
_START_S = 0.5
"""What a child and the loading of the library may take besides."""
_PORT_ATTR_BYTES = 4096
"""struct ibv_port_attr has some 52 bytes; the first three ints are state, max_mtu and active_mtu in every version."""
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""enum ibv_mtu"""

Answer = Dict[str, Any]


def read(host: Host, ports: Mapping[str, Sequence[int]], limit_s: float = LIMIT_S) -> Answer:
    """What the library says of these devices (name -> port numbers), as ``ask`` returns it.

    A device whose provider crashes ends the child that asks for all: then each is asked for alone.
    Raises Unreadable where nothing answers.
    """
    try:
        return _answer(host.ask("verbs", lambda: _quietly(ports, limit_s), limit_s + _START_S))
    except Unreadable as error:
        if error.reason.kind != "crashed" or len(ports) < 2:
            raise
    found: Answer = {"library": "", "listed": [], "devices": {}}
    for name in ports:
        alone = partial(_quietly, {name: ports[name]}, ALONE_LIMIT_S)
        try:
            one = _answer(host.ask(f"verbs {name}", alone, ALONE_LIMIT_S + _START_S))
        except Unreadable as error:
            found["devices"][name] = {"kind": error.reason.kind, "text": error.reason.text}
            continue
        found["library"], found["listed"] = one["library"], one["listed"]
        found["devices"].update(one["devices"])
    return found


def _answer(found: Any) -> Answer:
    """An answer of the shape of ``ask``'s; a recording may hold anything."""
    shapes = (("library", str), ("listed", list), ("devices", dict))
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in shapes):
        raise Unreadable(Reason("unreadable", "verbs: not an answer of libibverbs"))
    return found


def _quietly(ports: Mapping[str, Sequence[int]], limit_s: float) -> Answer:
    """For a child: libibverbs writes its warnings to standard error, which is the user's terminal."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    return ask(ports, limit_s)


def ask(ports: Mapping[str, Sequence[int]], limit_s: float) -> Answer:
    """library: its path, "" where the loader finds none. listed: names of the devices that have a provider here.

    devices: name -> {"ports": {number: [max_mtu, active_mtu] in bytes}}, or {"kind", "text"}: why it could not be opened.
    """
    try:
        library = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError:
        return {"library": "", "listed": [], "devices": {}}
    devices = _devices(library)
    found: Answer = {name: {"kind": "timed-out", "text": f"{name}: no answer in {limit_s:g} s"} for name in ports}
    threads = [
        threading.Thread(target=_look, args=(library, devices, name, ports[name], found), daemon=True)
        for name in ports
        if name in devices
    ]
    for name in set(ports) - set(devices):
        found[name] = {"kind": "absent", "text": f"{name}: {LIBRARY} does not list it: it has no provider for it"}
    _run(threads, limit_s)
    return {"library": _path_of_loaded(), "listed": sorted(devices), "devices": dict(found)}


def _run(threads: List[threading.Thread], limit_s: float) -> None:
    """Start all, and wait for all of them together."""
    import time

    until = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _devices(library: ctypes.CDLL) -> Dict[str, Any]:
    """Name -> struct ibv_device*; the list is never freed: the child ends soon."""
    library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    library.ibv_get_device_list.argtypes = [ctypes.POINTER(ctypes.c_int)]
    library.ibv_get_device_name.restype = ctypes.c_char_p
    library.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    library.ibv_open_device.restype = ctypes.c_void_p
    library.ibv_open_device.argtypes = [ctypes.c_void_p]
    library.ibv_query_port.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p]
    count = ctypes.c_int(0)
    listed = library.ibv_get_device_list(ctypes.byref(count))
    found = (listed[n] for n in range(count.value)) if listed else ()
    return {
        (library.ibv_get_device_name(device) or b"").decode("utf-8", "backslashreplace"): device for device in found
    }


def _look(library: ctypes.CDLL, devices: Dict[str, Any], name: str, ports: Sequence[int], found: Answer) -> None:
    """Open one device and query its ports."""
    context = library.ibv_open_device(devices[name])
    if not context:
        code = ctypes.get_errno()
        kind = "no-rights" if code in (errno.EPERM, errno.EACCES) else "unreadable"
        found[name] = {
            "kind": kind,
            "text": f"{name}: cannot be opened: {os.strerror(code) if code else 'no reason given'}",
        }
        return
    found[name] = {"ports": {str(port): _mtus(library, context, port) for port in ports}}


def _mtus(library: ctypes.CDLL, context: int, port: int) -> Optional[List[Optional[int]]]:
    """[max_mtu, active_mtu] in bytes; None where the port does not answer."""
    buffer = ctypes.create_string_buffer(_PORT_ATTR_BYTES)
    if library.ibv_query_port(context, port, buffer):
        return None
    _state, largest, active = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_int * 3)).contents
    return [_MTU_BYTES.get(largest), _MTU_BYTES.get(active)]


def _path_of_loaded() -> str:
    """The library's real path: what this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="backslashreplace") as maps:
        paths = (line.split(None, 5)[-1].strip() for line in maps if "libibverbs.so" in line)
        return next((path for path in paths if path.startswith("/")), LIBRARY)


# --------------------------------------------------------------------------- files of the stack

CONFIGURATION = ("/etc/libibverbs.d", "/usr/etc/libibverbs.d", "/usr/local/etc/libibverbs.d")
"""IBV_CONFIG_DIR of distributions, and of builds below other prefixes."""


def parse_driver(text: str) -> Tuple[str, ...]:
    """Names in a .driver file: "driver mlx5"; a path stands for the name of its library (libibverbs/init.c)."""
    lines = (line.split() for line in text.splitlines())
    names = (parts[1] for parts in lines if len(parts) == 2 and parts[0] == "driver")
    return tuple(re.sub(r"^lib|(-rdmav\d+)?(\.so)?$", "", os.path.basename(name)) for name in names)

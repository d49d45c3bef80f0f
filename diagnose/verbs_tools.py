"""RDMA between two nodes without a GPU: rdma-core's ibv_rc_pingpong, served on one node and visited by the other.

It opens a reliable connection, as NCCL does, and sends messages to and fro, so that one run proves both directions. The two
ends find each other over TCP first. Both have a time limit here: the tool itself would wait for ever.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from typing import Any, Dict, List

from ddp_doctor import child, command
from ddp_doctor.unreadable import Unreadable

TOOL = "ibv_rc_pingpong"
SIZE_BYTES, MESSAGES = 2**18, 20
"""5 MiB each way: packets of the full path MTU, a millisecond at 200 Gb/s, and bearable for software RoCE."""
TRY_S = 12.0
"""A dead way needs some 4 s: 7 times ibv_rc_pingpong's time-out 14, which is 67 ms, up to four times as long in hardware."""
CONNECT_S = 3.0
RETRY_S = 0.1
SERVED_S = 60
"""Nobody is waited for longer."""

Plain = Dict[str, Any]


def serve(request: Plain, state: Plain) -> Plain:
    """Wait for a visitor on one port of one adapter; until the next one, or ``leave``. port: where it listens, by TCP."""
    leave(state)
    tool = shutil.which(TOOL)
    if tool is None:
        return {"unable": f"{TOOL} is not installed here"}
    port = _free_port()
    argv = [*_limit(), *_argv(tool, request["end"], port)]
    null = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, start_new_session=True)
    ends = contextlib.ExitStack()
    ends.callback(process.wait)
    ends.enter_context(child.watched_group(process.pid))
    ends.callback(_end, process)
    state["rdma"] = ends
    return {"port": port}


def visit(request: Plain, state: Plain) -> Plain:
    """Send to and fro with the one that serves. outcome: met, failed, timed-out, or unable with the words of the tool."""
    tool = shutil.which(TOOL)
    if tool is None:
        return {"outcome": "unable", "detail": f"{TOOL} is not installed here"}
    argv = [*_argv(tool, request["end"], int(request["tcp_port"])), str(request["ip"])]
    until = time.monotonic() + min(TRY_S, float(request["limit_s"]))
    patient = time.monotonic() + CONNECT_S
    while True:
        found = _visited(argv, until - time.monotonic())
        if not re.match("Couldn't connect", found.get("detail", "")) or time.monotonic() > patient:
            return found
        time.sleep(RETRY_S)  # the other end is still opening its adapter


def leave(state: Plain) -> None:
    """End what serves."""
    ends = state.pop("rdma", None)
    if ends is not None:
        ends.close()


def _visited(argv: List[str], limit_s: float) -> Plain:
    try:
        ran = command.run(TOOL, argv, max(0.1, limit_s), "")
    except OSError as error:
        return {"outcome": "unable", "detail": str(error.strerror)}
    except Unreadable as error:
        late = error.reason.kind in ("timed-out", "deadline")
        return {"outcome": "timed-out" if late else "unable", "detail": error.reason.text}
    return parse(ran["status"], ran["stdout"] + ran["stderr"])


def parse(status: int, text: str) -> Plain:
    """What ibv_rc_pingpong said: "... = 3700.63 Mbit/sec", "Failed status transport retry counter exceeded (12) for wr_id 2"."""
    rate = re.search(r"= *([\d.]+) Mbit/sec", text)
    if status == 0 and rate:
        return {"outcome": "met", "sent_gbit_s": round(float(rate.group(1)) / 1000, 4)}
    failed = re.search(r"Failed status (.{1,80}?) \((\d+)\)", text)
    if failed:
        return {"outcome": "failed", "detail": f"{failed.group(1)} ({failed.group(2)})"}
    lines = [line.strip() for line in text.splitlines() if line.strip() and "address:" not in line]
    return {"outcome": "unable", "detail": lines[-1][:200] if lines else f"{TOOL} ended with status {status}"}


def _argv(tool: str, end: Plain, tcp_port: int) -> List[str]:
    words = [tool, "-d", str(end["device"]), "-i", str(int(end["port"])), "-p", str(tcp_port)]
    words += ["-s", str(SIZE_BYTES), "-n", str(MESSAGES)]
    if end.get("mtu_bytes"):
        words += ["-m", str(int(end["mtu_bytes"]))]
    return [*words, "-g", str(int(end["gid_index"]))] if end.get("gid_index") is not None else words


def _free_port() -> int:
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def _limit() -> List[str]:
    """timeout(1), where it is: should this process be killed, what it started ends all the same."""
    timeout = shutil.which("timeout")
    return [timeout, str(SERVED_S)] if timeout else []


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)

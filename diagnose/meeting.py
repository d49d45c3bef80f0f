"""Meeting: a rendezvous in torch's own TCPStore, served on one node and visited by the others.

It runs under the interpreter that has torch, in a child of its own: torch is never imported here.
"""

import json
import select
import subprocess
import time
from typing import Any, Dict, List

from ddp_doctor import command
from ddp_doctor.unreadable import Unreadable

STORE_S = 10.0
"""For the store itself, when torch is loaded: a connection and three questions take milliseconds."""
IMPORT_S = 50.0
"""For importing torch from a shared file system that is cold."""
LIMIT_S = IMPORT_S + STORE_S
LEAVE_S = 2.0

_COMMON = """
import datetime, json, sys, time
host, port, key, limit_s = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
def store(is_master):
    from torch.distributed import TCPStore
    limit = datetime.timedelta(seconds=limit_s)
    return TCPStore(host, port, is_master=is_master, timeout=limit, wait_for_workers=False)
def told(work):
    try:
        import torch.distributed
        started = time.monotonic()
        answer = work()
        answer["duration_s"] = round(time.monotonic() - started, 4)
    except BaseException as error:
        answer = {"outcome": "failed", "detail": (str(error).strip().splitlines() or [repr(error)])[0][:300]}
    sys.stdout.write("\\nMEETING " + json.dumps(answer) + "\\n")
    sys.stdout.flush()
"""
_SERVE = (
    _COMMON
    + """
def serve():
    global held
    held = store(True)
    held.set(key, "here")
    return {"outcome": "served"}
told(serve)
sys.stdin.read()
"""
)
_JOIN = (
    _COMMON
    + """
def join():
    held = store(False)
    if held.get(key) != b"here":
        return {"outcome": "failed", "detail": "another store answered"}
    held.set(key + "/" + sys.argv[5], "met")
    held.add(key + "/count", 1)
    return {"outcome": "met"}
told(join)
"""
)

Plain = Dict[str, Any]


def serve_store(request: Plain, state: Plain) -> Plain:
    """Open the store on this node; it stays open until ``leave``. outcome: served, failed or timed-out."""
    leave(state)
    process = subprocess.Popen(
        _argv(request, _SERVE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    state["store"] = process
    return _first_words(process, min(LIMIT_S, float(request["limit_s"])))


def join_store(request: Plain, state: Plain) -> Plain:
    """Visit the store of another node: read what it left, write, and count. outcome: met, failed or timed-out."""
    limit_s = min(LIMIT_S, float(request["limit_s"]))
    try:
        ran = command.run("torch", _argv(request, _JOIN), limit_s, "")
    except (OSError, Unreadable) as error:
        late = isinstance(error, Unreadable) and error.reason.kind in ("timed-out", "deadline")
        return {"outcome": "timed-out" if late else "failed", "detail": str(error)[:300]}
    return _told(ran["stdout"]) or {"outcome": "failed", "detail": f"torch ended with status {ran['status']}"}


def leave(state: Plain) -> None:
    """End what serves a meeting."""
    process = state.pop("store", None)
    if process is None:
        return
    process.stdin.close()
    try:
        process.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _argv(request: Plain, source: str) -> List[str]:
    words = [str(request[name]) for name in ("host", "port", "key")]
    return [str(request["python"]), "-B", "-c", source, *words, str(STORE_S), str(request.get("token", ""))]


def _first_words(process: Any, limit_s: float) -> Plain:
    """What the store's process says when it is open, or why it is not."""
    until, heard = time.monotonic() + limit_s, b""
    while time.monotonic() < until:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        chunk = process.stdout.read1(1 << 16) if ready else b""
        if ready and not chunk:
            return {"outcome": "failed", "detail": "torch ended before the store was open"}
        heard += chunk
        told = _told(heard.decode("utf-8", "replace"))
        if told:
            return told
    return {"outcome": "timed-out", "detail": f"the store was not open within {limit_s:.0f} s"}


def _told(stdout: str) -> Plain:
    """The line that tells what came of it; empty where there is none."""
    lines = [
        line[8:] for line in stdout.splitlines(keepends=True) if line.startswith("MEETING ") and line.endswith("\n")
    ]
    found = json.loads(lines[-1]) if lines else {}
    return found if isinstance(found, dict) else {}

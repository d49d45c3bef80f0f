"""Run one command without a shell, in a group of its own, within a time and an output limit."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Any, Dict, Sequence

from ddp_doctor import child
from ddp_doctor.facts import Reason
from ddp_doctor.unreadable import Unreadable

OUTPUT_LIMIT_BYTES = 8 * 2**20
"""nvidia-smi -q -x of 16 GPUs is about 1 MB."""
_POLL_S = 0.02
"""How soon the end of a command is seen whose descendants keep its output open."""


def run(name: str, argv: Sequence[str], limit_s: float, stdin: str) -> Dict[str, Any]:
    """Return status (negative: the signal), stdout and stderr of ``argv``.

    Raises OSError when it cannot be started, Unreadable (timed-out, deadline, crashed) when it does not end or says too much.
    """
    limit_s, late = child.within(limit_s)
    deadline = time.monotonic() + limit_s
    with child.signals_held() as release:
        process = _start(argv, limit_s)
        with child.watched_group(process.pid), _pipes_closed(process):
            try:
                release()
                heard = _exchange(process, stdin.encode(), deadline)
                status = child.reap(process.pid, deadline - time.monotonic())
            except BaseException:
                _kill(process)
                raise
            if status is None:
                _kill(process)
                raise Unreadable(Reason(late, f"{name}: {child.too_late(late, limit_s)}"))
    process.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    out, err = (heard[kind].decode("utf-8", "backslashreplace") for kind in ("stdout", "stderr"))
    if sum(map(len, heard.values())) > OUTPUT_LIMIT_BYTES:
        raise Unreadable(Reason("crashed", f"{name}: printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"))
    return {"status": process.returncode, "stdout": out, "stderr": err}


def _start(argv: Sequence[str], limit_s: float) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C", "LANG": "C"},
        preexec_fn=lambda: _own_group(limit_s),
    )


def _own_group(limit_s: float) -> None:
    os.setpgid(0, 0)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(signum, signal.SIG_DFL)
    child.signals_let_come()
    signal.setitimer(signal.ITIMER_REAL, limit_s + 1)  # survives exec: ends the command even if we are gone


def _exchange(process: "subprocess.Popen[bytes]", stdin: bytes, deadline: float) -> Dict[str, bytearray]:
    """Feed and hear the process until it ends, its pipes close, it says too much, or time is over."""
    heard = {"stdout": bytearray(), "stderr": bytearray()}
    with selectors.DefaultSelector() as selector:
        for kind in ("stdin", "stdout", "stderr"):
            pipe = getattr(process, kind)
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_WRITE if kind == "stdin" else selectors.EVENT_READ, kind)
        while len(selector.get_map()) and time.monotonic() < deadline:
            ended = child.ended(process.pid)  # asked before the last read, so nothing that was said is lost
            events = selector.select(0 if ended else min(_POLL_S, deadline - time.monotonic()))
            for key, _ in events:
                if key.data == "stdin":
                    stdin = _feed(selector, key, stdin)
                else:
                    _hear(selector, key, heard[key.data])
            if sum(map(len, heard.values())) > OUTPUT_LIMIT_BYTES:
                _kill(process, wait=False)
                break
            if ended and not any(key.data != "stdin" for key, _ in events):
                break
    return heard


def _feed(selector: selectors.BaseSelector, key: selectors.SelectorKey, data: bytes) -> bytes:
    try:
        data = data[os.write(key.fd, data[:65536]) :] if data else data
    except BlockingIOError:
        return data
    except OSError:  # it does not read its input: its own affair
        data = b""
    if not data:
        selector.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]
    return data


def _hear(selector: selectors.BaseSelector, key: selectors.SelectorKey, heard: bytearray) -> None:
    with contextlib.suppress(BlockingIOError):
        chunk = os.read(key.fd, 1 << 20)
        heard += chunk
        if not chunk:
            selector.unregister(key.fileobj)


@contextlib.contextmanager
def _pipes_closed(process: "subprocess.Popen[bytes]") -> Any:
    try:
        yield
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def _kill(process: "subprocess.Popen[bytes]", wait: bool = True) -> None:
    """End the group of a process that was not collected yet; one that the kernel will not end stays, uncollected."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    if wait:
        child.reap(process.pid, child.GRACE_S)
        process.returncode = -signal.SIGKILL

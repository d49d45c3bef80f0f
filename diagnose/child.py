"""Children with a time and a size limit: the only way in which the doctor waits for something that may block.

Sysfs of a wedged adapter, statvfs on a dead NFS or an NVML call on a lost GPU block in the kernel for ever; a
thread would take the doctor with it. A child is forked (so it needs no arguments), answers one line of JSON
through a pipe, and is ended with everything that it started when its time is over.
"""

import atexit
import contextlib
import json
import os
import selectors
import signal
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

ANSWER_LIMIT_BYTES = 64 * 2**20
"""An honest node's facts are about 30 kB (DESIGN 7), its recording a few MB."""
GRACE_S = 0.3
"""Time between the request to end and SIGKILL."""

_ENDINGS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
PATIENCE_S = 1.0
"""A person who watches is told after so long what is waited for."""
MARGIN_S = 0.4
"""What a child keeps of its time, or a quarter of that where it is short, to end something within it and to tell."""

_ends_at = float("inf")
"""When this process's own time is over, on the monotonic clock."""
_late = "timed-out"
"""What it is called when something within this process is cut short by that."""
_grace_s = GRACE_S
"""How long this process, told to end, waits for those that it started."""
_groups: Set[int] = set()
"""Process groups that this process started and must end before it ends itself."""
_owner = os.getpid()


@dataclass
class Outcome:
    """What became of a child: its answer, or the kind of failure with a sentence."""

    value: Any = None
    failure: Optional[str] = None
    """timed-out, deadline, crashed or None."""
    text: str = ""
    left_pid: Optional[int] = None
    """Set when the kernel would not end it."""


@dataclass
class Child:
    """A running child; ``deadline`` is on the monotonic clock."""

    name: str
    pid: int
    pipe: int
    deadline: float
    limit_s: float
    late: str
    """What it is called when its time is over: timed-out, or deadline when the time was cut short."""
    answer: bytearray = field(default_factory=bytearray)


def start(name: str, work: Callable[[], Any], limit_s: float, deadline_s: Optional[float] = None) -> Child:
    """Fork a child that runs ``work`` and answers with its JSON; it ends by itself soon after ``limit_s``.

    deadline_s: seconds after which the person will not wait any longer; cut short by it, a child is no fault of the node.
    A child of a child gets no more time than lets its parent still answer: ``within``.
    Raises OSError where there is no process or file descriptor left for it.
    """
    limit_s, late = within(limit_s)
    if deadline_s is not None and deadline_s < limit_s:
        limit_s, late = deadline_s, "deadline"
    read_end, write_end = os.pipe()
    with signals_held():
        try:
            pid = os.fork()
        except OSError:  # no more processes are allowed
            os.close(read_end)
            os.close(write_end)
            raise
        if pid == 0:
            os.close(read_end)
            _be_child(work, write_end, limit_s, late)
        os.close(write_end)
        with contextlib.suppress(OSError):  # the child does the same: whoever comes first
            os.setpgid(pid, pid)
        _groups.add(pid)
    return Child(name, pid, read_end, time.monotonic() + limit_s, limit_s, late)


def within(limit_s: float) -> Tuple[float, str]:
    """The time that something within this process gets, and what it is called when that is over.

    ``limit_s``, or what is left of this process's own time less a margin, whichever is shorter.
    """
    left_s = max(0.0, _ends_at - time.monotonic())
    left_s -= min(MARGIN_S, left_s / 4)
    return (limit_s, "timed-out") if limit_s <= left_s else (left_s, _late)


def too_late(late: str, limit_s: float) -> str:
    """The sentence for a time that was over."""
    return (
        f"no answer before the deadline, after {limit_s:.3g} s"
        if late == "deadline"
        else f"timed out after {limit_s:.3g} s"
    )


@contextlib.contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C and a request to end wait while a process is started and noted: between the two nobody would end it.

    Yields a function that lets them come before the block is left.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield release
    finally:
        release()


def signals_let_come() -> None:
    """In a new process: undo what ``signals_held`` of its parent left to it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)


def _be_child(work: Callable[[], Any], pipe: int, limit_s: float, late: str) -> None:
    """Run ``work`` in the child and leave without the parent's clean-up. Never returns."""
    status = 1
    try:
        _cut_loose(limit_s, late)
        answer = {"value": work()}
        status = 0
    except BaseException as error:  # noqa: BLE001  the parent tells; a traceback on our stdio would reach a user
        answer = {"crash": f"{type(error).__name__}: {error}"}
    try:
        data = json.dumps(answer, allow_nan=False).encode("ascii") + b"\n"
    except (TypeError, ValueError) as error:
        data = json.dumps({"crash": f"answer is not JSON: {error}"}).encode("ascii") + b"\n"
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(pipe, data) :]
    os._exit(status)


def _cut_loose(limit_s: float, late: str) -> None:
    """Own process group, none of our stdio, and an alarm that ends the process even if its parent is gone."""
    _groups.clear()
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the parent is told, too, and ends us
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _end_with_groups)
    signals_let_come()
    global _ends_at, _late, _grace_s
    _grace_s /= 2  # its parent waits no longer for it than it waits for its own
    _ends_at, _late = time.monotonic() + limit_s, late
    signal.setitimer(signal.ITIMER_REAL, limit_s + 2 * GRACE_S + 1)


def _end_with_groups(_signum: int, _frame: Any) -> None:
    end_groups()
    os._exit(128 + signal.SIGTERM)


def end_groups() -> None:
    """End every process group that this process started and has not yet collected.

    They are asked first: a child ends what it started itself, in groups of their own, which killing it would leave behind.
    """
    for pid in list(_groups):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    with contextlib.suppress(OSError):
        _reap(set(_groups), {}, _grace_s)
    for group in list(_groups):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    _groups.clear()


def first_pid() -> int:
    """The process that all others were forked from, one by another."""
    return _owner


@atexit.register
def _end_own_groups() -> None:
    """A process that ends in whatever way leaves none behind; one forked from it by others has none of its own."""
    if os.getpid() == _owner:
        end_groups()


@contextlib.contextmanager
def watched_group(pid: int) -> Iterator[None]:
    """Have group ``pid`` killed if this process is told to end meanwhile."""
    _groups.add(pid)
    try:
        yield
    finally:
        _groups.discard(pid)


def abandon(children: Iterable[Child]) -> None:
    """End children whose answers nobody waits for any more."""
    _end_all(list(children))


def finish(
    children: Iterable[Child],
    limit_bytes: int = ANSWER_LIMIT_BYTES,
    waiting_for: Optional[Callable[[List[str]], None]] = None,
) -> Iterator[Tuple[Child, Outcome]]:
    """Yield each child with its outcome as it answers, dies, or runs out of time.

    waiting_for: told the names of those that are still out, whenever PATIENCE_S have passed without an answer.
    """
    waiting: Dict[int, Child] = {child.pipe: child for child in children}
    with selectors.DefaultSelector() as selector:
        for fd in waiting:
            selector.register(fd, selectors.EVENT_READ)
        try:
            while waiting:
                first = min(child.deadline for child in waiting.values())
                left_s = max(0.0, first - time.monotonic())
                ready = selector.select(min(left_s, PATIENCE_S) if waiting_for else left_s)
                if waiting_for and not ready:
                    waiting_for([child.name for child in waiting.values()])
                done = [waiting[key.fd] for key, _ in ready if _is_done(waiting[key.fd], limit_bytes)]
                late = [c for c in waiting.values() if c not in done and time.monotonic() >= c.deadline]
                for child in done + late:
                    selector.unregister(child.pipe)
                    del waiting[child.pipe]
                yield from _collect(done, late, limit_bytes)
        finally:
            _end_all(list(waiting.values()))


def _is_done(child: Child, limit_bytes: int) -> bool:
    chunk = os.read(child.pipe, 1 << 20)
    child.answer += chunk
    return not chunk or chunk.endswith(b"\n") or len(child.answer) > limit_bytes


def _collect(done: List[Child], late: List[Child], limit_bytes: int) -> Iterator[Tuple[Child, Outcome]]:
    for child in done:
        yield child, _outcome(child, limit_bytes)
    lefts = _end_all(late)
    for child in late:
        left = child.pid if child.pid in lefts else None
        yield child, Outcome(failure=child.late, text=too_late(child.late, child.limit_s), left_pid=left)


def _outcome(child: Child, limit_bytes: int) -> Outcome:
    """Read the verdict of a child that answered, closed its pipe, or said too much."""
    if len(child.answer) > limit_bytes:
        _end_all([child])
        return Outcome(failure="crashed", text=f"answered more than {limit_bytes >> 20} MiB")
    if not child.answer.endswith(b"\n"):
        status = _statuses([child], GRACE_S).get(child.pid)
        return Outcome(failure="crashed", text=f"ended without an answer ({_how_it_ended(status)})")
    _statuses([child], GRACE_S)
    answer = json.loads(bytes(child.answer).decode("ascii"))
    if "crash" in answer:
        return Outcome(failure="crashed", text=str(answer["crash"]))
    return Outcome(value=answer["value"])


def _how_it_ended(status: Optional[int]) -> str:
    if status is None:
        return "no exit status"
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit status {os.WEXITSTATUS(status)}"


def _end_all(children: List[Child]) -> Set[int]:
    """End children and what they started; return the pids that the kernel would not end."""
    statuses = _statuses(children, wait_first_s=0.0)
    return {child.pid for child in children if child.pid not in statuses}


def _statuses(children: List[Child], wait_first_s: float) -> Dict[int, int]:
    """Wait, ask to end, kill, each for a little while: pid -> wait status of those that ended."""
    statuses: Dict[int, int] = {}
    pending = {child.pid for child in children}
    _reap(pending, statuses, wait_first_s)
    for ending in (signal.SIGTERM, signal.SIGKILL):
        for pid in pending:
            with contextlib.suppress(OSError):
                os.kill(pid, ending)
        _reap(pending, statuses, GRACE_S)
    for child in children:
        os.close(child.pipe)
        _groups.discard(child.pid)
    return statuses


def reap(pid: int, limit_s: float) -> Optional[int]:
    """Wait status of ``pid`` if it ends within ``limit_s``; what it left in its group is ended with it."""
    statuses: Dict[int, int] = {}
    _reap({pid}, statuses, limit_s)
    return statuses.get(pid)


def _reap(pending: Set[int], statuses: Dict[int, int], limit_s: float) -> None:
    """Collect ended pids out of ``pending``, and end what they left in their groups, for at most ``limit_s``."""
    until = time.monotonic() + limit_s
    pause_s = 0.0005
    while pending:
        for pid in [pid for pid in pending if ended(pid)]:
            with contextlib.suppress(OSError):  # before the pid is free to be used again
                os.killpg(pid, signal.SIGKILL)
            statuses[pid] = os.waitpid(pid, 0)[1]
            pending.discard(pid)
        if not pending or time.monotonic() >= until:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.02)


def ended(pid: int) -> bool:
    """Has the child ended? It stays to be collected, so its pid is not free yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def call(name: str, work: Callable[[], Any], limit_s: float) -> Outcome:
    """Run ``work`` in one child and wait for its outcome."""
    ((_, outcome),) = finish([start(name, work, limit_s)])
    return outcome

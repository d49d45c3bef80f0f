"""The program on a node: answers requests of the machine where the user is.

Requests come as lines of JSON on standard input, ``{"do": "facts", ...}``, one after the other; answers go to standard
output as lines that begin with MARK, so that what a login shell prints there is told apart. It ends when its input ends,
with everything that it started: that is what makes Ctrl-C at the other end clean. It imports what may run on a node alone
(DESIGN 3): nothing has to be installed for ``--push``.
"""

import contextlib
import json
import os
import select
import signal
import time
from functools import partial
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, Tuple

from ddp_doctor import __version__, broadcast, child
from ddp_doctor.facts import SCHEMA_VERSION, SECTIONS

MARK = "DDP-DOCTOR-ANSWER "
PIECE_MARK = "DDP-DOCTOR-PIECE "
PIECE_BYTES = 600
"""srun passes on lines of up to 1024 bytes whole (MAX_MSG_LEN of its slurmstepd); a node's name has up to 255."""
TOGETHER = "DDP_DOCTOR_TOGETHER"
"""Set in the environment of nodes that share one stream in and one out; SLURMD_NODENAME tells who each is."""
REQUEST_LIMIT_BYTES = 16 * 2**20
"""A request names, at most, all nodes of a large cluster with their addresses."""
LIMIT_S = 600.0
"""A request's time where it names none."""

Request = Dict[str, Any]


class Ended(Exception):
    """Nobody asks any more."""


def main() -> NoReturn:
    """Answer until the input ends. Exit status 0 where that came with a goodbye, else 1."""
    status = 1
    try:
        with contextlib.suppress(Ended, BrokenPipeError, KeyboardInterrupt):
            _serve(*_streams())
            status = 0
    finally:
        child.end_groups()
        os._exit(status)  # without waiting for threads, and without a word on streams that may be gone


def _streams() -> Tuple[int, int]:
    """Descriptors of our own for input and output; what libraries print goes to standard error."""
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, _told)
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return requests, answers


def _told(_signum: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _serve(requests: int, answers: int) -> None:
    """Answer requests until {"do": "end"}. Raises Ended."""
    state: Dict[str, Any] = {}
    name = os.environ.get("SLURMD_NODENAME", "") if os.environ.pop(TOGETHER, "") else ""
    say = partial(_say_together, answers, name) if name else partial(_say, answers)
    say({"hello": {"tool_version": __version__, "schema_version": SCHEMA_VERSION}})
    for line in _lines(requests):
        request = broadcast.own(line, name)
        if request is None:
            continue
        if request.get("do") == "end":
            return
        say(_answered(request, state, requests))


def _lines(fd: int) -> Iterator[Request]:
    """Requests as they come. Raises Ended when the input ends or is not ours."""
    held = b""
    while True:
        while b"\n" not in held:
            chunk = os.read(fd, 1 << 16)
            if not chunk or len(held) > REQUEST_LIMIT_BYTES:
                raise Ended
            held += chunk
        line, _, held = held.partition(b"\n")
        try:
            request = json.loads(line)
        except ValueError:
            raise Ended from None
        if not isinstance(request, dict):
            raise Ended
        yield request


def _say(fd: int, answer: Dict[str, Any]) -> None:
    _write(fd, f"\n{MARK}{json.dumps(answer, allow_nan=False)}\n".encode("ascii"))


def _say_together(fd: int, name: str, answer: Dict[str, Any]) -> None:
    """The same where many nodes write into one stream, which keeps but short lines whole: in pieces that bear our name."""
    text = json.dumps(answer, allow_nan=False)
    for start in range(0, len(text), PIECE_BYTES):
        end = start + PIECE_BYTES
        word = "more" if end < len(text) else "end"
        _write(fd, f"{PIECE_MARK}{name} {word} {text[start:end]}\n".encode("ascii"))


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _answered(request: Request, state: Dict[str, Any], requests: int) -> Dict[str, Any]:
    """The answer, with the number of the request: a value, or a failure and a text."""
    number = {"id": request.get("id")}
    if request.get("do") == "time":
        return {**number, "value": time.time()}
    word = str(request.get("do"))
    if word == "facts":
        return {**number, **_in_child(word, partial(_facts, request), _limit_s(request), requests)}
    from ddp_doctor import pairing

    if word in pairing.LASTING:
        return {**number, **_here(partial(pairing.ANSWERS[word], request, state))}
    if word in pairing.ANSWERS:
        return {
            **number,
            **_in_child(word, partial(pairing.ANSWERS[word], request, state), _limit_s(request), requests),
        }
    return {**number, "failure": "unreadable", "text": f"ddp-doctor {__version__} does not know {word!r}"}


def _limit_s(request: Request) -> float:
    given = request.get("limit_s")
    return float(given) if isinstance(given, (int, float)) else LIMIT_S


def _here(work: Callable[[], Any]) -> Dict[str, Any]:
    """Do it in this process, since it leaves something here that later requests need."""
    try:
        return {"value": work()}
    except Exception as error:  # noqa: BLE001  the session goes on; the one who asked is told
        return {"failure": "crashed", "text": f"{type(error).__name__}: {error}"}


def _in_child(word: str, work: Callable[[], Any], limit_s: float, requests: int) -> Dict[str, Any]:
    """Have a child do it, and end it when nobody waits for the answer any more. Raises Ended."""
    try:
        running = child.start(word, work, limit_s)
    except OSError as error:
        return {"failure": "unreadable", "text": f"cannot start a child: {error.strerror}"}
    if not _answers_first(running.pipe, requests, limit_s):
        child.abandon([running])
        raise Ended
    ((_, outcome),) = child.finish([running])
    if outcome.failure:
        return {"failure": outcome.failure, "text": outcome.text}
    return {"value": outcome.value}


def _answers_first(pipe: int, requests: int, limit_s: float) -> bool:
    """Wait for the child; False when the input ended before. A request that comes meanwhile stays where it is."""
    until = time.monotonic() + limit_s
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(requests, select.POLLRDHUP)  # and POLLHUP, POLLERR, which always count
    while time.monotonic() < until:
        ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
        if pipe in ready:
            return True
        if requests in ready:
            return False
    return True


def _facts(request: Request) -> Dict[str, Any]:
    from ddp_doctor.ask import typed
    from ddp_doctor.collect import gather
    from ddp_doctor.host import Host

    os.environ.update(_texts(request.get("environment")))
    for name in request.get("without") or ():
        os.environ.pop(str(name), None)
    sections = tuple(name for name in SECTIONS if name in (request.get("sections") or SECTIONS))
    ask = typed({**request["ask"], "cwd": _cwd()})
    facts = gather(Host(), ask, request.get("deadline_s"), sections)
    facts["how"]["via"] = request.get("via", "ssh")
    return facts


def _texts(given: Any) -> Dict[str, str]:
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}


def _cwd() -> Optional[str]:
    try:
        return os.getcwd()
    except OSError:
        return None


if __name__ == "__main__":
    main()

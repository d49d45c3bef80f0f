"""Inside a job: the ranks that a launcher already started examine their nodes, and meet in torch's store, as the job would.

One rank of each node collects; node 0 judges all and prints the one report; every node leaves with its exit status, so that
the launcher sees it everywhere. What goes through the store is JSON.
"""

import contextlib
import datetime
import importlib
import json
import re
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Type

from ddp_doctor import document
from ddp_doctor.cluster.names import BadNodes
from ddp_doctor.cluster.reached import Reached, Unreachable
from ddp_doctor.facts import Reason
from ddp_doctor.process import UNSURE

CONNECT_S = 60.0
"""For torch's store to be there: node 0 may import torch from a slow file system before it opens it."""
LEAVE_S = 5.0
"""What node 0 waits for the others to have heard the exit status: the store ends with it, or with the agent above it."""


class NoJob(BadNodes):
    """This process is no rank of a job; the text says what is missing."""


@dataclass(frozen=True)
class Place:
    """Who we are in the job."""

    node: int
    """Number of our node (torchrun's GROUP_RANK)."""
    nodes: int
    local_rank: int
    master_addr: str
    master_port: int
    opens_store: bool
    """Must this process open the store? Not where torchrun's agent keeps it."""
    run: str = ""
    """What sets this start apart from one that was restarted."""

    @property
    def collects(self) -> bool:
        """The first rank of each node does; the others have nothing to do."""
        return self.local_rank == 0


def place(env: Mapping[str, str]) -> Place:
    """Our place, by the variables of torch's env:// rendezvous. Raises NoJob."""
    rank, world, local = (_number(env, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    here = _number(env, "LOCAL_WORLD_SIZE", 1)
    nodes = _number(env, "GROUP_WORLD_SIZE", -(-world // max(1, here)))
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        raise NoJob(f"--in-job: {' and '.join(missing)} not set: start this with torchrun, or set what env:// needs")
    return Place(
        node=_number(env, "GROUP_RANK", rank // max(1, here)),
        nodes=nodes,
        local_rank=local,
        master_addr=env["MASTER_ADDR"],
        master_port=_number(env, "MASTER_PORT"),
        opens_store=rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        run=f"{env.get('TORCHELASTIC_RUN_ID', '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


def _number(env: Mapping[str, str], name: str, default: Optional[int] = None) -> int:
    text = env.get(name, "")
    if re.fullmatch(r"\d{1,9}", text):
        return int(text)
    if default is not None and not text:
        return default
    raise NoJob(
        f"--in-job: {name} is {'no number' if text else 'not set'}: start this with torchrun, or set what env:// needs"
    )


def is_rank_of_torchrun(env: Mapping[str, str], parent: bytes) -> bool:
    """Did torchrun start this very process as one of several ranks? parent: the command line of the process above it.

    A program that such a rank starts inherits the variables, and is no rank: it must not wait for the others.
    """
    started = re.search(rb"torchrun|torch[./]distributed[./](run|launch)|torch\.distributed\.elastic", parent)
    return "TORCHELASTIC_RUN_ID" in env and env.get("WORLD_SIZE", "1") != "1" and started is not None


class Meeting:
    """The store in which the nodes' collecting ranks meet."""

    def __init__(self, place: Place, connect_s: float = CONNECT_S) -> None:
        self._place, self._connect_s = place, connect_s
        self._store: Any = None

    def __enter__(self) -> "Meeting":
        """Raises NoJob where there is no torch, or no store."""
        try:
            torch: Any = importlib.import_module("torch.distributed")
        except Exception as error:  # noqa: BLE001  torch may fail to load in any way
            raise NoJob(f"--in-job: torch cannot be imported here: {type(error).__name__}: {error}") from None
        where = self._place
        try:
            store = torch.TCPStore(
                where.master_addr,
                where.master_port,
                is_master=where.opens_store,
                timeout=datetime.timedelta(seconds=self._connect_s),
                wait_for_workers=False,
            )
        except Exception as error:  # noqa: BLE001  RuntimeError, ValueError, DistStoreError ... by version
            words = str(error).strip().splitlines()
            address = f"{where.master_addr}:{where.master_port}"
            raise NoJob(f"no meeting in torch's store at {address}: {words[0] if words else error!r}") from None
        self._store = torch.PrefixStore(f"ddp-doctor/{where.run}", store)
        return self

    def __exit__(
        self, _kind: Optional[Type[BaseException]], error: Optional[BaseException], _trace: Optional[TracebackType]
    ) -> None:
        """Node 0: tell the others when there will be no report, and wait until they know what there is."""
        if self._place.node != 0:
            return
        if error is not None:
            self.tell(UNSURE)
        until = time.monotonic() + LEAVE_S
        for node in range(1, self._place.nodes):
            self._get(f"left/{node}", until - time.monotonic())

    def bring(self, facts: Dict[str, Any]) -> None:
        """Give node 0 our facts."""
        self._store.set(f"facts/{self._place.node}", json.dumps(facts))

    def gathered(self, own: Dict[str, Any], limit_s: float, say: Callable[[List[str]], None]) -> List[Reached]:
        """Every node's facts, or that it did not come within ``limit_s``. For node 0."""
        reader = document.Reader()
        until = time.monotonic() + limit_s
        found: List[Reached] = [_typed(f"node rank {self._place.node}", own, reader)]
        for node in range(1, self._place.nodes):
            say([f"{self._place.nodes - node} of {self._place.nodes} nodes"])
            text = self._get(f"facts/{node}", max(0.1, until - time.monotonic()))
            why = Reason(
                "timed-out", f"no facts within {limit_s:.0f} s: its ranks did not come, or cannot reach the store"
            )
            name = f"node rank {node}"
            found.append(Unreachable(name, why) if text is None else _parsed(name, text, reader))
        return found

    def tell(self, status: int) -> None:
        """Node 0's exit status, for all."""
        self._store.set("status", str(status))

    def status(self, limit_s: float) -> int:
        """What node 0 tells; 3 where it says nothing."""
        text = self._get("status", limit_s)
        with contextlib.suppress(Exception):  # node 0 has gone already
            self._store.set(f"left/{self._place.node}", "1")
        return UNSURE if text is None else int(text)

    def _get(self, key: str, limit_s: float) -> Optional[bytes]:
        """A value, when it is there within the time; None otherwise, also where the store has gone."""
        try:
            self._store.wait([key], datetime.timedelta(seconds=max(0.1, limit_s)))
            value: bytes = self._store.get(key)
            return value
        except Exception:  # noqa: BLE001  RuntimeError or DistStoreError, by version
            return None


def _parsed(name: str, text: bytes, reader: document.Reader) -> Reached:
    try:
        return _typed(name, json.loads(text), reader)
    except ValueError:
        return Unreachable(name, Reason("unreadable", "what it brought is no JSON"))


def _typed(name: str, plain: Any, reader: document.Reader) -> Reached:
    try:
        return reader.facts(json.dumps(plain).encode()) or document.facts_collected(plain)
    except (document.BadDocument, TypeError, ValueError) as error:
        return Unreachable(name, Reason("unreadable", f"its facts cannot be read: {error}"))

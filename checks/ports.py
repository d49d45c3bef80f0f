"""Checks of TCP ports: is the master's port free here, and can it be reached from here?"""

from typing import Iterator

from ddp_doctor.collect.master import DEFAULT_PORT
from ddp_doctor.facts import Connection, Launch, Limits, Network, Reach, Reason, Socket
from ddp_doctor.model import NotKnown, Reading, Severity, check, known
from ddp_doctor.units import seconds


@check(Severity.ERROR)
def master_port_taken(launch: Launch, network: Network) -> Iterator[Reading]:
    """Another process listens on MASTER_PORT of the master.

    Why: The store of rank 0 cannot bind to it ("errno: 98 - Address already in use"). Two jobs with the same port on one node
        and processes left by an earlier job are the usual causes. Any listener counts: the store binds to all addresses.
    See: https://github.com/pytorch/pytorch/issues/73320
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    if not _inside_job(launch):
        yield from _listeners(launch, network, "the master cannot open its port")


@check(Severity.NOTE)
def master_port_in_use(launch: Launch, network: Network) -> Iterator[Reading]:
    """MASTER_PORT is in use while a job runs here.

    Why: Inside a job (RANK is set) its own torchrun agent or the store of rank 0 is the expected owner. If the owner named here
        is not of this job, the ranks meet a stranger or each other's job.
    See: https://github.com/pytorch/pytorch/issues/73320
    """
    if _inside_job(launch):
        yield from _listeners(launch, network, "this should be this job's own store or torchrun agent: check the owner")


def _inside_job(launch: Launch) -> bool:
    """Is this a rank of a running job? A scheduler's task numbers say so only of its own step."""
    return launch.rank is not None and (launch.sources or {}).get("rank", "RANK") == "RANK"


def _listeners(launch: Launch, network: Network, message: str) -> Iterator[Reading]:
    """A reading of MASTER_PORT where this node is known to be the master."""
    if launch.master_port is None or launch.is_master is False:
        return
    known(launch.is_master, launch, "is_master")
    owners = [s for s in known(network.listening, network, "listening") if s.port == launch.master_port]
    yield Reading(
        ok=not owners,
        subject=f"port {launch.master_port}",
        measured=", ".join(dict.fromkeys(map(_owner, owners))) or f"nobody listens on port {launch.master_port}",
        expected=f"port {launch.master_port} free until the job opens it",
        message=message,
    )


def _owner(socket: Socket) -> str:
    """pid 4242 (python3) listens on 0.0.0.0."""
    who = "a process that is not visible from here" if socket.pid is None else f"pid {socket.pid}"
    return f"{who}{f' ({socket.process})' if socket.process else ''} listens on {socket.ip} port {socket.port}"


@check(Severity.NOTE)
def master_port_in_ephemeral_range(launch: Launch, network: Network) -> Iterator[Reading]:
    """MASTER_PORT lies in the range from which the kernel picks ports for outgoing connections.

    Why: Any program's outgoing connection may hold it when the job starts, which then fails now and then with "Address
        already in use". A port below net.ipv4.ip_local_port_range, such as 29500, is safe.
    See: https://github.com/NVIDIA/enroot/issues/243
        https://docs.kernel.org/networking/ip-sysctl.html
    """
    if launch.master_port is not None and launch.is_master is not False:
        low, high = known(network.port_range, network, "port_range")
        yield Reading(
            ok=not low <= launch.master_port <= high,
            measured=f"MASTER_PORT {launch.master_port}, ip_local_port_range {low}-{high}",
            expected="a port outside that range",
            message="an outgoing connection may hold MASTER_PORT when the job starts",
        )


@check(Severity.ERROR)
def master_port_privileged(launch: Launch, limits: Limits) -> Iterator[Reading]:
    """MASTER_PORT is one that only root may open.

    Why: The store of rank 0 cannot listen below net.ipv4.ip_unprivileged_port_start, 1024 by default, without root's rights
        or CAP_NET_BIND_SERVICE: "Permission denied" (errno 13).
    See: https://docs.kernel.org/networking/ip-sysctl.html
        https://man7.org/linux/man-pages/man7/capabilities.7.html
    """
    if launch.master_port is not None and known(launch.is_master, launch, "is_master"):
        lowest = known(limits.lowest_port, limits, "lowest_port")
        yield Reading(
            ok=launch.master_port >= lowest,
            subject=f"port {launch.master_port}",
            measured=f"MASTER_PORT {launch.master_port}; this process may open ports from {lowest} on",
            expected=f"a port from {lowest} on",
            message="the master may not open its port",
        )


@check(Severity.ERROR)
def master_port_unreachable(launch: Launch, reach: Reach) -> Iterator[Reading]:
    """This node cannot reach the master's port.

    Why: Every rank connects to MASTER_ADDR:MASTER_PORT first and waits until it times out when it cannot. The error, its delay
        and the neighbour table tell a firewall from a dead host and from a missing route.
    See: https://man7.org/linux/man-pages/man8/ip-route.8.html
        https://man7.org/linux/man-pages/man2/connect.2.html
    """
    attempts = [c for c in known(reach.connections, reach, "connections") if _is_master(c, launch)]
    if launch.master_addr and not any(not c.local for c in attempts):
        raise NotKnown(Reason("not-applicable", f"the master {launch.master_addr} is this node itself"))
    for connection in attempts:
        if connection.outcome == "unresolved":
            yield _unresolved(connection)
        elif not connection.local:
            yield _reading(connection, may_be_silent=True)


@check(Severity.ERROR)
def port_unreachable(launch: Launch, reach: Reach) -> Iterator[Reading]:
    """This node cannot reach a port that was asked for.

    Why: The person who asked needs it. The error, its delay and the neighbour table tell a firewall from a dead host and from a
        missing route. A refusal is fine for the master's port, where nothing listens before the job starts, and for no other.
    See: https://man7.org/linux/man-pages/man8/ip-route.8.html
        https://man7.org/linux/man-pages/man2/connect.2.html
    """
    for connection in known(reach.connections, reach, "connections"):
        if not _is_master(connection, launch):
            yield _reading(connection, connection.port == (launch.master_port or DEFAULT_PORT))


def _is_master(connection: Connection, launch: Launch) -> bool:
    return (connection.host, connection.port) == (launch.master_addr, launch.master_port or DEFAULT_PORT)


def _reading(connection: Connection, may_be_silent: bool) -> Reading:
    """may_be_silent: whoever will listen need not do so yet."""
    subject = f"{connection.host} port {connection.port}"
    if connection.outcome == "deadline":
        return Reading(ok=None, subject=subject, reason=Reason("deadline", "no answer before the deadline"))
    silent = ", or a refusal by the host itself while nothing listens yet" if may_be_silent else ""
    return Reading(
        ok=connection.outcome == "connected" or (connection.outcome == "refused" and may_be_silent),
        subject=subject,
        measured=f"{_where(connection)}: {_met(connection)}",
        expected=f"a connection{silent}",
        message=_meaning(connection),
    )


def _unresolved(connection: Connection) -> Reading:
    """network/master-name-unresolved judges it."""
    reason = Reason("unresolved", f"{connection.host}: {connection.errno or 'the name does not resolve'}")
    return Reading(ok=None, subject=f"{connection.host} port {connection.port}", reason=reason)


def _where(connection: Connection) -> str:
    """10.0.0.1 port 29500, with the address that was tried for a name."""
    tried = f" ({connection.ip})" if connection.ip and connection.ip != connection.host else ""
    return f"{connection.host}{tried} port {connection.port}"


def _met(connection: Connection) -> str:
    """What the attempt met: errno, delay, neighbour."""
    if connection.outcome == "connected":
        return "connected"
    if connection.outcome == "refused":
        return "refused: reachable, nothing listens (a firewall that answers with a reset looks the same)"
    delay = "" if connection.duration_s is None else f" after {seconds(connection.duration_s)}"
    beside = f", neighbour {connection.neighbour}" if connection.neighbour else ""
    return f"{connection.errno or connection.outcome}{delay}{beside}"


AT_ONCE_S = 1.0
"""The kernel gives up on a silent neighbour after three probes one second apart (mcast_solicit, retrans_time_ms of arp(7)); an
ICMP answer of a firewall comes within a round trip."""


def _meaning(connection: Connection) -> str:
    """What the outcome tells of the way, in a sentence."""
    outcome, neighbour = connection.outcome, connection.neighbour
    if outcome == "host-unreachable":
        if neighbour in ("FAILED", "INCOMPLETE"):
            return "the host does not answer on this network: it is down, or its address or cable is wrong"
        at_once = connection.duration_s is not None and connection.duration_s < AT_ONCE_S
        if neighbour or at_once:
            return "a firewall rejects the connection (firewalld's way): the host or a router on the way answers"
        return "no machine on the way knows the host, or a firewall rejects the connection"
    return {
        "refused": "nothing listens on that port",
        "unresolved": "the host's name does not resolve",
        "timed-out": "no answer at all: a firewall drops the packets, or the host is gone behind a router",
        "net-unreachable": "this node has no route to that network",
        "prohibited": "a route of type prohibit, or a local firewall rule, forbids the connection on this node",
        "blackhole": "a route of type blackhole swallows the packets on this node",
        "reset": "the connection was reset: a proxy or a firewall on the way ends it",
    }.get(outcome, f"the connection failed: {connection.errno or outcome}")

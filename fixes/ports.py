"""Remedies for TCP ports."""

import shlex
from typing import Iterator, List, Optional

from ddp_doctor.collect.master import DEFAULT_PORT
from ddp_doctor.facts import Launch, Network, Reach
from ddp_doctor.fixes._net import NCCL_NETWORK, TORCHRUN
from ddp_doctor.model import Remedy, Verdict, command, say


def master_port_taken(launch: Launch, network: Network) -> Iterator[Remedy]:
    """Another port, or end the owner."""
    yield _other_port(network, launch)
    owners = {s.pid: s.process for s in network.listening or () if s.port == launch.master_port and s.pid}
    for pid, process in owners.items():
        steps = (
            command(f"ps -o pid,ppid,user,lstart,cmd -p {pid}"),
            say(
                f"If it is left over from an earlier job: kill {pid} (process {process or 'unknown'}).",
                risk="it may be a running job",
            ),
        )
        yield Remedy("End the process that holds it", steps)


def master_port_in_use(launch: Launch, network: Network) -> Iterator[Remedy]:
    """Look at the owner."""
    yield from master_port_taken(launch, network)


def master_port_privileged(launch: Launch, network: Optional[Network] = None) -> Iterator[Remedy]:
    """A port that everybody may open."""
    yield _other_port(network or Network(), launch)


def master_port_in_ephemeral_range(launch: Launch, network: Network) -> Iterator[Remedy]:
    """A port below the range, or reserve this one."""
    if _outside(network, launch):
        yield _other_port(network, launch)
    port = launch.master_port
    see = "https://docs.kernel.org/networking/ip-sysctl.html"
    text = f"sysctl -w net.ipv4.ip_local_reserved_ports={port}"
    yield Remedy(
        "Keep the kernel from giving it away",
        (
            command(
                text, who="root", scope="this node until reboot", risk="replaces the list of reserved ports", see=see
            ),
        ),
    )


def _other_port(network: Network, launch: Launch) -> Remedy:
    """A free port that no outgoing connection gets, where there is one: the first after torchrun's default."""
    free = next(iter(_outside(network, launch) or _free(network, launch)), DEFAULT_PORT)
    text = f"Use another port on all nodes: --master-port {free} (or MASTER_PORT={free})."
    return Remedy("Use another port", (say(text, scope="this job", see=TORCHRUN),))


def _outside(network: Network, launch: Launch) -> List[int]:
    """Free ports outside the range of outgoing connections; none where that was widened to 65535."""
    low, high = network.port_range or (32768, 60999)
    return [port for port in _free(network, launch) if not low <= port <= high]


def _free(network: Network, launch: Launch) -> List[int]:
    """Ports from torchrun's default on that nobody listens on."""
    taken = {s.port for s in network.listening or ()} | {launch.master_port}
    return [port for port in range(DEFAULT_PORT, 65536) if port not in taken]


def master_port_unreachable(reach: Reach, finding: Verdict, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """By what the attempt met."""
    yield from _by_outcome(reach, finding)


def port_unreachable(reach: Reach, finding: Verdict, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """By what the attempt met."""
    yield from _by_outcome(reach, finding)


def _by_outcome(reach: Reach, finding: Verdict) -> Iterator[Remedy]:
    seen = next((c for c in reach.connections or () if f"{c.host} port {c.port}" == finding.subject), None)
    if seen is None:
        return
    address = shlex.quote(seen.ip) if seen.ip else ""
    dead = seen.outcome == "host-unreachable" and seen.neighbour in ("FAILED", "INCOMPLETE")
    if seen.outcome in ("net-unreachable", "prohibited", "blackhole"):
        look = (command(f"ip route get {address}"), command("ip rule")) if address else ()
        text = "Add the missing route, or remove the one that forbids the way."
        yield Remedy("Mend the route on this node", (*look, say(text, who="root", scope="this node")))
        if seen.outcome == "prohibited":
            text = "Look for a rule of the output chain that rejects it: nft list ruleset."
            yield Remedy("This node's own firewall", (say(text, who="root"),))
    elif seen.outcome == "unresolved":
        text = f"Correct the name {seen.host}, or give it a line in /etc/hosts or a record in the site's DNS."
        yield Remedy("Make the name resolve", (say(text, who="root", scope="this node"),))
    elif seen.outcome == "refused":
        text = f"Start the service that listens on port {seen.port} of {seen.host}, or correct the port."
        yield Remedy("Start what should listen", (say(text, who="root"),))
    elif dead:
        has = f" has the address {seen.ip} and" if seen.ip != seen.host else ""
        steps = (say(f"Check that {seen.host} is up,{has} is in this network and its cable has a link.", who="user"),)
        yield Remedy("Wake the host, or correct the address", steps)
    else:
        text = (
            f"Run ddp-doctor on {seen.host}: for firewalld and ufw it names the rule to add; of other firewalls nft list "
            "ruleset tells, as root. Open the whole range of ports to the other nodes, not this one alone: NCCL also "
            "connects on ports that the kernel picks."
        )
        yield Remedy("Open the firewall", (say(text, who="cluster admin", scope="all nodes", see=NCCL_NETWORK),))
        if seen.outcome == "timed-out":
            text = "In a cloud, open the security group between the nodes; on Wi-Fi, switch client isolation off."
            yield Remedy("The network between", (say(text, who="network admin"),))

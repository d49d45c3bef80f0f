"""Checks of host names: can the ranks of a job of several nodes find each other?"""

from typing import Iterator, Optional, Tuple

from ddp_doctor import nccl
from ddp_doctor.checks.network._choice import interfaces_of
from ddp_doctor.facts import Env, Gpus, Launch, Network, Resolved, Torch
from ddp_doctor.model import Reading, Severity, check, known


@check(Severity.ERROR, several_nodes=True)
def own_name_unresolved(
    network: Network, launch: Launch, env: Env, gpus: Optional[Gpus] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """This host's own name does not resolve.

    Why: Gloo binds to the address of the own host name and falls back to loopback when there is none, so that other
        nodes cannot connect; torchrun's c10d rendezvous publishes the name as MASTER_ADDR and looks its own address up.
    See: https://github.com/pytorch/pytorch/pull/26166
        https://github.com/pytorch/pytorch/issues/150532
    """
    yield from _own_name(network, launch, env, gpus, torch, "unresolved", "this host's own name does not resolve")


@check(Severity.ERROR, several_nodes=True)
def own_name_is_loopback(
    network: Network, launch: Launch, env: Env, gpus: Optional[Gpus] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """This host's own name resolves to a loopback address.

    Why: Gloo then listens on that address, where no other node can connect, and torchrun's c10d rendezvous does not
        recognise the master by its address, so that nobody serves the store. Stock Debian and Ubuntu write such a line
        with 127.0.1.1, other systems and virtual machines with 127.0.0.1.
    See: https://github.com/pytorch/pytorch/issues/79388
        https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution
    """
    yield from _own_name(network, launch, env, gpus, torch, "loopback", "this host's own name leads to itself only")


@check(Severity.ERROR, several_nodes=True)
def own_name_is_elsewhere(
    network: Network, launch: Launch, env: Env, gpus: Optional[Gpus] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """This host's own name resolves to an address that none of its interfaces has.

    Why: An old entry in DNS or /etc/hosts, or the public address of a host behind NAT. Gloo cannot bind to it and falls back
        to loopback; torchrun's c10d rendezvous does not recognise the master.
    See: https://github.com/pytorch/pytorch/pull/26166
        https://github.com/pytorch/pytorch/issues/73656
    """
    message = "this host's own name leads to an address that it does not have"
    yield from _own_name(network, launch, env, gpus, torch, "elsewhere", message)


@check(Severity.NOTE, several_nodes=True)
def own_name_useless_to_peers(
    network: Network, launch: Launch, env: Env, gpus: Optional[Gpus] = None, torch: Optional[Torch] = None
) -> Iterator[Reading]:
    """Other nodes could not reach this host by the address of its own name, on which nothing known here relies.

    Why: Harmless while the launch is static (a node rank and the master's address) and only NCCL is used. Gloo
        without GLOO_SOCKET_IFNAME (device meshes, checkpoints and the default back ends use it beside NCCL) and torchrun's c10d rendezvous would fail.
    See: https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    if not _relies_on_own_name(launch, env, gpus, torch):
        fault, measured = _own_name_state(network)
        yield Reading(
            ok=not fault,
            measured=measured,
            expected="an address of an interface that other nodes reach",
            message="Gloo and torchrun's c10d rendezvous would not work with this host's own name",
        )


def _own_name(
    network: Network,
    launch: Launch,
    env: Env,
    gpus: Optional[Gpus],
    torch: Optional[Torch],
    fault: str,
    message: str,
) -> Iterator[Reading]:
    """The reading of one of the three ways in which the own name can be wrong.

    None where nothing relies on the name, and none where it is wrong in another way: that is no pass.
    """
    why = _relies_on_own_name(launch, env, gpus, torch)
    found, measured = _own_name_state(network) if why else ("", "")
    if why and found in ("", fault):
        yield Reading(
            ok=not found,
            measured=measured,
            expected="an address of an interface that other nodes reach",
            message=f"{message}, and {why}",
        )


def _own_name_state(network: Network) -> Tuple[str, str]:
    """("" or unresolved, loopback, elsewhere; what was measured), by the address that a socket here would be bound to."""
    resolved = known(network.own_name, network, "own_name")
    interfaces_of(network)
    name = resolved.name or network.hostname or "the own host name"
    if resolved.error or not resolved.addresses:
        return "unresolved", _found(name, resolved)
    measured = f"{name} is {', '.join(resolved.addresses)}"
    address = nccl.own_address(network)
    if address is None:
        return "elsewhere", f"{measured}; no interface here has that address"
    return ("loopback" if nccl.is_loopback(address) else ""), measured


def _found(name: str, resolved: Resolved) -> str:
    """What the resolver said of a name; its errors mostly begin with the name."""
    said = resolved.error or ", ".join(resolved.addresses) or "no address"
    return said if said.startswith(f"{name}: ") else f"{name}: {said}"


def _relies_on_own_name(launch: Launch, env: Env, gpus: Optional[Gpus], torch: Optional[Torch]) -> str:
    """What in this job takes the address of the own host name; "" for nothing that is known."""
    if launch.rendezvous == "c10d":
        return "torchrun's c10d rendezvous publishes that name"
    if _gloo_only(gpus, torch) and not nccl.gloo_names(env):
        return "Gloo, the back end without GPUs, binds to its address (GLOO_SOCKET_IFNAME is not set)"
    return ""


def _gloo_only(gpus: Optional[Gpus], torch: Optional[Torch]) -> bool:
    """Is Gloo the only back end that a job here can use? Only what is known to lack counts."""
    without_gpu = gpus is not None and gpus.gpus == () and gpus.on_bus == () and not gpus.other_vendor
    return nccl.lacks(torch) or without_gpu


@check(Severity.ERROR)
def master_name_unresolved(network: Network, launch: Launch) -> Iterator[Reading]:
    """The master's name does not resolve on this node.

    Why: Every rank looks MASTER_ADDR up to reach the store of rank 0; those that cannot retry until they time out. A Slurm
        list that was not expanded (node[01-04]) is no name either: scontrol show hostnames expands it.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    if launch.master_addr and nccl.ip_of(launch.master_addr) is None:
        master = known(network.master_name, network, "master_name")
        yield Reading(
            ok=bool(master.addresses) and not master.error,
            measured=_found(master.name, master),
            expected="an address on every node",
            message="this node cannot find the master by its name",
        )

"""Remedies for nodes that differ from the others."""

import re
import shlex
from typing import Iterator

from ddp_doctor import escape
from ddp_doctor.cluster.fleet import Fleet
from ddp_doctor.cluster.folding import folded
from ddp_doctor.model import Remedy, Verdict, command, export, say, unset

FORWARD = "ssh forwards no variables: set it in the script that starts the ranks, not in one node's shell."
NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


def nccl_differs(fleet: Fleet) -> Iterator[Remedy]:
    """One environment for all; or one NCCL over the environments."""
    yield _one_environment(fleet)
    text = (
        "Look for another libnccl first on LD_LIBRARY_PATH or LD_PRELOAD of the odd nodes: cuda/* and stack/* name it."
    )
    yield Remedy("See which file is loaded there", (say(text),))


def torch_differs(fleet: Fleet) -> Iterator[Remedy]:
    """One environment for all."""
    yield _one_environment(fleet)


def torch_build_differs(fleet: Fleet) -> Iterator[Remedy]:
    """One environment for all."""
    yield _one_environment(fleet)


def cuda_differs(fleet: Fleet) -> Iterator[Remedy]:
    """One environment for all."""
    yield _one_environment(fleet)


def python_differs(fleet: Fleet) -> Iterator[Remedy]:
    """One environment for all."""
    yield _one_environment(fleet)


def _one_environment(fleet: Fleet) -> Remedy:
    """The same wheel everywhere, by a shared path or by the same line on each node."""
    found = re.fullmatch(r"([0-9.]+)(?:\+(cu[0-9]+))?", str(fleet.torch.usual()))
    steps = [say("Use one environment for all nodes: a shared path or one image; or install the same on the odd ones.")]
    if found:
        version, build = found.groups()
        index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
        line = f"python3 -m pip install torch=={version}{index}"
        steps.append(command(line, scope="the odd nodes, in the job's environment"))
    return Remedy("Give all nodes the same environment", tuple(steps))


def driver_differs(fleet: Fleet) -> Iterator[Remedy]:
    """Install the same driver."""
    usual = fleet.driver.usual()
    which = f"driver {usual}, which most nodes have" if usual else "one driver"
    text = f"Install {which}, on the odd nodes and restart them; a node that was updated and not restarted runs the old module."
    yield Remedy("Give all nodes the same driver", (say(text, who="root", scope="the odd nodes"),))


def variable_must_agree(finding: Verdict, fleet: Fleet) -> Iterator[Remedy]:
    """Set it to one value everywhere, or nowhere."""
    yield from _variable(finding, fleet)


def variable_differs(finding: Verdict, fleet: Fleet) -> Iterator[Remedy]:
    """Set it to one value everywhere, or nowhere."""
    yield from _variable(finding, fleet)


def _variable(finding: Verdict, fleet: Fleet) -> Iterator[Remedy]:
    """Whatever most nodes have: a value, or nothing."""
    name = finding.subject
    column = fleet.variables.by_subject("").get(name)
    usual = column.usual() if column else None
    if usual:
        yield Remedy("Set it on all nodes", (export(name, str(usual), scope="this job"), say(FORWARD, see=NCCL_ENV)))
    elif usual == "":
        yield Remedy("Unset it where it is set", (unset(name, scope="this job"), say(FORWARD, see=NCCL_ENV)))
    else:
        yield Remedy("Set it to one value on all nodes, or on none", (say(FORWARD, see=NCCL_ENV),))


def gpu_count_differs(fleet: Fleet) -> Iterator[Remedy]:
    """See where the missing one is; leave the node out; or start fewer ranks."""
    look = say(
        "See what became of the missing GPU on the odd nodes: the findings gpu/* and xid/*, or nvidia-smi -L there."
    )
    yield Remedy("Bring the GPU back, or leave the node out", (look,))
    fewest = min(fleet.gpu_count.values.values(), default=0)
    if fewest:
        text = f"Start torchrun with --nproc_per_node {fewest} on every node: as many as the poorest one has."
        yield Remedy("Use as many GPUs as all nodes have", (say(text, scope="this job"),))


def clock_breaks_rendezvous() -> Iterator[Remedy]:
    """Set the clocks; or launch with a rendezvous that compares none."""
    step = command("chronyc makestep", who="root", scope="the odd nodes", risk="programs that run see the time jump")
    same = say("Let all nodes ask the same servers: what counts is that they agree.", who="root")
    yield Remedy("Set the clock of the odd nodes", (step, same))
    text = "Start torchrun with --master_addr, --master_port and --node_rank: the static rendezvous compares no clocks."
    yield Remedy("Use the static rendezvous", (say(text, scope="this job"),))


def same_address(finding: Verdict) -> Iterator[Remedy]:
    """Give one of them another address."""
    text = f"Give all but one of the machines an address other than {finding.subject}; see which answers:"
    look = command(f"ip neighbour show {shlex.quote(finding.subject)}", scope="a third node")
    yield Remedy("Give each machine its own address", (say(text, who="network admin"), look))


def same_host_name(finding: Verdict) -> Iterator[Remedy]:
    """Name the machines."""
    step = command("hostnamectl set-hostname NAME", who="root", scope="each of the nodes but one")
    yield Remedy(f"Give the machines that are called {finding.subject} names of their own", (step,))


def transport_differs(fleet: Fleet) -> Iterator[Remedy]:
    """See why the adapters are not usable there; meanwhile TCP for all."""
    look = say(
        "See the findings rdma/* and env/* of the odd nodes: a port that is down, a device that cannot be opened."
    )
    yield Remedy("Make RDMA work on all nodes", (look,))
    if "TCP sockets" in fleet.transport.values.values():
        yield Remedy("Until then use TCP on all nodes, slowly", (export("NCCL_IB_DISABLE", "1", scope="this job"),))


def address_family_differs() -> Iterator[Remedy]:
    """One family for all."""
    text = "Give the odd nodes an address of the others' kind on that interface; the findings network/* show what they have."
    yield Remedy("Give all nodes the same kind of address", (say(text, who="network admin"),))


def master_resolves_differently(finding: Verdict) -> Iterator[Remedy]:
    """Correct the odd nodes' answer; or use the address."""
    name = escape.terminal(finding.subject)
    look = command(f"getent ahosts {shlex.quote(finding.subject)}", scope="the odd nodes")
    text = f"Correct the line for {name} in /etc/hosts of the odd nodes, or remove it so that they ask DNS like the others."
    yield Remedy("Correct what the name stands for", (look, say(text, who="root", scope="the odd nodes")))
    say_address = say("Give the master's address in place of its name: --master_addr IP.", scope="this job")
    yield Remedy("Use no name", (say_address,))


def gid_kinds_differ() -> Iterator[Remedy]:
    """Let NCCL look for the row; or mend the table."""
    text = "NCCL 2.21 and newer looks for a RoCE v2 row with an IPv4 address by itself when no row is fixed."
    yield Remedy("Fix no row", (unset("NCCL_IB_GID_INDEX", scope="this job"), say(text, see=NCCL_ENV)))
    address = say("Give the interface of the odd nodes' ports an IPv4 address, from which the row is made.", who="root")
    yield Remedy("Make the odd nodes' table like the others'", (address,))


def interface_names_differ(fleet: Fleet) -> Iterator[Remedy]:
    """One list for NCCL; the exact name on each node for Gloo."""
    names = sorted({name for value in fleet.interfaces.values.values() for name in value[:1]})
    steps = [export("NCCL_SOCKET_IFNAME", "=" + ",".join(names), scope="this job")]
    for value, nodes in fleet.interfaces.by_value().items():
        where = f"on {folded(nodes)}"
        steps.append(export("GLOO_SOCKET_IFNAME", value[0], scope=where))
    yield Remedy("Where names must be given: one list for NCCL, and for Gloo each node's own", tuple(steps[:9]))

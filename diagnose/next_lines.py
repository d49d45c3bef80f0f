"""What to type next: how to read on, how to look from both machines, and the launch line of each node, filled in.

Lines that begin with "#" are comments, the others can be pasted into a shell: what comes from facts is quoted.
"""

import re
import shlex
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ddp_doctor import escape, header, nccl
from ddp_doctor.facts import Interface, NodeFacts
from ddp_doctor.model import Severity, Verdict
from ddp_doctor.policy import Policy

DEFAULT_PORT = 29500
"""torchrun's own default for --master_port (torch/distributed/run.py)."""
SCRIPT = "train.py"
_LISTED = 8
"""For more nodes than this the launch line is shown once."""
_OWN_WAY = ("mpi", "mpirun", "deepspeed", "kubernetes")
"""Launchers that start the ranks themselves."""


def lines(nodes: Sequence[NodeFacts], verdicts: Sequence[Verdict], policy: Policy) -> Tuple[str, ...]:
    """Commands and comments, in the order in which a person needs them."""
    return (*_read_on(verdicts), *_start(nodes, policy))


def _read_on(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Where the worst finding is explained."""
    errors = sorted({v.check for v in verdicts if v.counts and v.severity is Severity.ERROR})
    if errors:
        yield "# what a finding means, in full:"
        yield f"ddp-doctor checks {shlex.quote(errors[0])}"
        yield "# when everything is fixed: look again with the same command, then start the job:"


def _start(nodes: Sequence[NodeFacts], policy: Policy) -> Iterator[str]:
    """How to start the job, or how to look at all of its nodes."""
    if not nodes or _launcher(nodes[0], policy) in _OWN_WAY or policy.scope == "node":
        return
    if nodes[0].how.via in header.OTHER_TOOLS:
        yield from _look_there(nodes[0])
        return
    job = nnodes(nodes, policy)
    if job is None:
        yield "# a job on this machine alone:"
        yield f"{_torchrun(nodes[0])} --standalone --nproc_per_node {_nproc(nodes[0], policy)} {SCRIPT}"
        yield from _look(nodes[0], policy, 2)
    elif job == 1:
        yield f"{_torchrun(nodes[0])} --standalone --nproc_per_node {_nproc(nodes[0], policy)} {SCRIPT}"
    elif master(nodes) is None:
        yield from _look(nodes[0], policy, job)
    elif _launcher(nodes[0], policy) == "slurm":
        yield _by_slurm(nodes, policy, job)
    else:
        yield from _by_hand(nodes, policy, job)


def _look_there(facts: NodeFacts) -> Iterator[str]:
    """Another tool's report tells a part; nothing helps on a system that is not judged."""
    if facts.os or facts.gpus:
        yield f"# {header.OTHER_TOOLS[facts.how.via]} tells a part; look at the rest on the node itself:"
        yield "ddp-doctor run"


def nnodes(nodes: Sequence[NodeFacts], policy: Policy, examined: int = 0) -> Optional[int]:
    """The number of the job's nodes, where something says so; else that of the nodes examined, ``nodes`` or more."""
    launch = nodes[0].launch if nodes else None
    told = policy.nnodes or (launch.nnodes if launch else None)
    examined = max(examined, len(nodes))
    return told or (examined if examined > 1 else None)


def _launcher(facts: NodeFacts, policy: Policy) -> Optional[str]:
    return policy.launcher or (facts.launch.launcher if facts.launch else None)


def master(nodes: Sequence[NodeFacts]) -> Optional[str]:
    """The address of node 0: as the launcher or the options say, else the first node's own when all are known."""
    told = next((f.launch.master_addr for f in nodes if f.launch and f.launch.master_addr), None)
    if told and not told.startswith("127.") and told not in ("localhost", "::1"):
        return told
    return own_address(nodes[0]) if len(nodes) > 1 else None


def own_address(facts: NodeFacts) -> Optional[str]:
    """The address under which other nodes reach this one: of the interface for traffic between nodes."""
    chosen = interface(facts)
    return next(iter(header.addresses(chosen)), None) if chosen else None


def interface(facts: NodeFacts) -> Optional[Interface]:
    """The interface for traffic between nodes: towards the master, else NCCL's choice, else the default route's."""
    network = facts.network
    if network is None or not network.interfaces:
        return None
    by_name = {i.name: i for i in network.interfaces if nccl.reaches_others(i) and header.addresses(i)}
    taken = nccl.sockets(network.interfaces, facts.env, nccl.version_of(facts.torch)).endpoints
    best = nccl.fastest([endpoint for endpoint in taken if endpoint.interface.name in by_name])
    routes = [route.interface or "" if route else "" for route in (network.master_route, network.default_route)]
    names = (routes[0], best.interface.name if best else "", routes[1])
    return next((by_name[name] for name in names if name in by_name), None)


def _look(facts: NodeFacts, policy: Policy, job: int) -> Iterator[str]:
    """How to look at every node of the job: by one line in a Slurm job, else from each machine."""
    if _launcher(facts, policy) != "slurm":
        yield from _look_from_each(facts, job)
        return
    yield "# look at every node of the job:"
    yield f"{_srun(facts, job)} ddp-doctor run"
    if _in_slurm_job(facts):
        yield "# then start the job:"
        yield _by_slurm([facts], policy, job)


def _in_slurm_job(facts: NodeFacts) -> bool:
    return bool(facts.launch and facts.launch.slurm and "JOB_ID" in facts.launch.slurm)


def _srun(facts: NodeFacts, job: int) -> str:
    """A step with one task a node. Inside a job it must share what other steps hold, or it waits for them."""
    share = "--overlap --mem=0 --cpu-bind=none --gpu-bind=none " if _in_slurm_job(facts) else ""
    return f"srun {share}--nodes {job} --ntasks {job} --ntasks-per-node 1"


def _look_from_each(facts: NodeFacts, job: int) -> Iterator[str]:
    """The way without ssh: the same command on each machine."""
    address = own_address(facts)
    yield f"# a job on {job} machines: look from each, with the address of the first one:"
    if address:
        yield "# (this machine's is filled in, as if it were the first)"
    master = shlex.quote(address or "IP")
    yield f"ddp-doctor run --nnodes {job} --node-rank 0 --master-addr {master}"
    yield "# and on the other machine:" if job == 2 else f"# and on the others, with --node-rank 1 to {job - 1}:"
    yield f"ddp-doctor run --nnodes {job} --node-rank 1 --master-addr {master}"


def _torchrun(facts: NodeFacts) -> str:
    """torchrun where it is that of the examined interpreter, else its module; ``launch`` before torch 1.9."""
    torch = facts.torch
    python = shlex.quote(torch.python) if torch and torch.python else "python3"
    found = re.match(r"(\d{1,9})\.(\d{1,9})", torch.version or "") if torch else None
    version = (int(found.group(1)), int(found.group(2))) if found else None
    if version and version < (1, 9):
        return f"{python} -m torch.distributed.launch"
    by_name = (
        torch is None
        or not torch.installed
        or torch.python_chosen_by in (None, "PATH", "$VIRTUAL_ENV", "$CONDA_PREFIX")
    )
    return "torchrun" if by_name and (version is None or version >= (1, 10)) else f"{python} -m torch.distributed.run"


def _nproc(facts: NodeFacts, policy: Policy) -> int:
    """Processes on a node: as told, else one for each GPU that a process would see, else one."""
    launch = facts.launch
    told = policy.nproc_per_node or (launch.nproc_per_node or launch.local_world_size if launch else None)
    return told or _visible_gpus(facts) or 1


def _visible_gpus(facts: NodeFacts) -> int:
    if facts.torch and facts.torch.cuda_device_count:
        return facts.torch.cuda_device_count
    there = len([gpu for gpu in facts.gpus.gpus or () if not gpu.fault]) if facts.gpus else 0
    chosen = facts.gpus.visible_devices if facts.gpus else None
    return there if chosen is None else min(there, len([part for part in chosen.split(",") if part.strip()]))


def _port(nodes: Sequence[NodeFacts]) -> int:
    """As told, else the first port from torchrun's default that nothing listens on at node 0."""
    launch, network = nodes[0].launch, nodes[0].network
    taken = {socket.port for socket in (network.listening or ())} if network else set()
    free = next(port for port in range(DEFAULT_PORT, DEFAULT_PORT + len(taken) + 1) if port not in taken)
    return launch.master_port if launch and launch.master_port else free


FIRST_OF_JOB = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
"""The first node of a Slurm job, in a shell on any of its nodes."""


def _line(facts: NodeFacts, policy: Policy, nodes: Sequence[NodeFacts], job: int, rank: str, first: str = "IP") -> str:
    """``first``: what stands for the master's address where it is not known."""
    address = master(nodes)
    return (
        f"{_torchrun(facts)} --nnodes {job} --nproc_per_node {_nproc(facts, policy)} --node_rank {rank} "
        f"--master_addr {shlex.quote(address) if address else first} --master_port {_port(nodes)} {SCRIPT}"
    )


def _by_slurm(nodes: Sequence[NodeFacts], policy: Policy, job: int) -> str:
    """One torchrun on each node of the allocation; SLURM_NODEID is known there alone."""
    inner = _line(nodes[0], policy, nodes, job, '"$SLURM_NODEID"', FIRST_OF_JOB)
    return f"srun --nodes {job} --ntasks-per-node 1 bash -c {shlex.quote(inner)}"


def _by_hand(nodes: Sequence[NodeFacts], policy: Policy, job: int) -> Iterator[str]:
    """A line for each node, to be typed there."""
    exports = _exports(nodes)
    if len(nodes) == 1:
        yield from _from_one(nodes[0], policy, job)
        return
    alike = len({_line(f, policy, nodes, job, "") for f in nodes}) == 1 and not exports
    if alike and len(nodes) > _LISTED:
        yield f"# on each node, with its own --node_rank: 0 on {escape.terminal(nodes[0].name)}, 1 to {job - 1} on the others"
        yield _line(nodes[0], policy, nodes, job, "0")
        return
    for rank, facts in enumerate(nodes):
        yield f"# on {escape.terminal(facts.name)}:"
        yield from exports.get(facts.name, ())
        yield _line(facts, policy, nodes, job, str(rank))


def _from_one(facts: NodeFacts, policy: Policy, job: int) -> Iterator[str]:
    """Lines for all nodes of a job of which one was seen."""
    launch = facts.launch
    here = launch.node_rank if launch and launch.node_rank is not None else 0 if launch and launch.is_master else None
    if here is None or here >= job:
        yield f"# on each of the {job} nodes, with its own number from 0 to {job - 1} for RANK:"
        yield _line(facts, policy, [facts], job, "RANK")
        return
    yield "# on this node:"
    yield _line(facts, policy, [facts], job, str(here))
    other = 1 if here == 0 else 0
    numbers = f"with --node_rank {other}" if job == 2 else f"with its own --node_rank from 0 to {job - 1}"
    yield f"# on {'the other node' if job == 2 else 'each other node'}, {numbers} and as many processes as it has GPUs:"
    yield _line(facts, policy, [facts], job, str(other))


def _exports(nodes: Sequence[NodeFacts]) -> Dict[str, List[str]]:
    """Where the interfaces' names differ: NCCL takes one list for all nodes, Gloo the exact name on each."""
    chosen = {facts.name: found.name for facts in nodes for found in [interface(facts)] if found}
    names = list(dict.fromkeys(chosen.values()))
    if len(names) < 2 or len(chosen) < len(nodes):
        return {}
    nccl = escape.export("NCCL_SOCKET_IFNAME", "=" + ",".join(names))
    return {node: [nccl, escape.export("GLOO_SOCKET_IFNAME", name)] for node, name in chosen.items()}

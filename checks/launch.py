"""Checks of what the launcher set: do rank, world size and master fit together?"""

from typing import Iterator, List, Optional, Set

from ddp_doctor import nccl
from ddp_doctor.collect.launch import is_same_name
from ddp_doctor.facts import Gpus, Launch, Network, Os, Reason, Torch
from ddp_doctor.model import NotKnown, Reading, Severity, check, known
from ddp_doctor.policy import Policy
from ddp_doctor.versions import at_least


@check(Severity.ERROR)
def variable_malformed(launch: Launch) -> Iterator[Reading]:
    """A launcher variable holds a text that it cannot hold.

    Why: The call init_process_group reads RANK, WORLD_SIZE and MASTER_PORT as whole numbers, a port from 0 to 65535
        ($SLURM_JOB_ID is too large for one), and MASTER_ADDR as one name or address.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    for name, text in (launch.malformed or {}).items():
        yield Reading(
            ok=False,
            subject=name,
            measured=f"{name}={text}",
            expected="one name or address" if name.endswith("ADDR") else "a whole number in its range",
            message=f"{name} cannot be read",
        )
    if launch.malformed == {} and launch.sources:
        yield Reading(ok=True, measured=f"{', '.join(sorted(set(launch.sources.values())))} can be read")


@check(Severity.ERROR)
def rank_out_of_range(launch: Launch) -> Iterator[Reading]:
    """RANK is not below WORLD_SIZE.

    Why: Ranks count from 0 to WORLD_SIZE - 1; the store waits for ranks that never come, or init_process_group refuses.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    yield from _below(launch, "RANK", launch.rank, "WORLD_SIZE", launch.world_size)


@check(Severity.ERROR)
def local_rank_out_of_range(launch: Launch) -> Iterator[Reading]:
    """LOCAL_RANK is not below LOCAL_WORLD_SIZE.

    Why: Local ranks count from 0 on every node. A global rank used as the local one works on the first node only.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    yield from _below(launch, "LOCAL_RANK", launch.local_rank, "LOCAL_WORLD_SIZE", launch.local_world_size)


@check(Severity.ERROR)
def node_rank_out_of_range(launch: Launch) -> Iterator[Reading]:
    """The node rank is not below the number of nodes.

    Why: Node ranks count from 0; torchrun's static rendezvous never completes with a node rank that nobody expects.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    yield from _below(launch, "node rank", launch.node_rank, "number of nodes", launch.nnodes)


def _below(launch: Launch, name: str, value: Optional[int], bound_name: str, bound: Optional[int]) -> Iterator[Reading]:
    if value is not None and bound is not None:
        yield Reading(
            ok=0 <= value < bound,
            measured=f"{name} {value}, {bound_name} {bound}",
            expected=f"{name} from 0 to {bound - 1}",
            message=f"{name} {value} does not exist in this job",
        )


@check(Severity.ERROR)
def local_rank_without_gpu(launch: Launch, gpus: Gpus, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """There is no GPU for this LOCAL_RANK.

    Why: Scripts take cuda:LOCAL_RANK; "invalid device ordinal" ends those that have none, and two ranks on one GPU end in
        "Duplicate GPU detected".
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    visible = _visible(gpus, torch)
    if launch.local_rank is not None and visible and not _one_each(launch, visible):
        yield Reading(
            ok=launch.local_rank < visible,
            measured=f"LOCAL_RANK {launch.local_rank}, {visible} visible to this process{_by(gpus)}",
            expected=f"at least {launch.local_rank + 1} visible GPUs",
            message=f"rank {launch.local_rank} of this node has no GPU",
        )


@check(Severity.NOTE)
def one_gpu_per_rank(launch: Launch, gpus: Gpus, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """Every rank sees one GPU only, so that LOCAL_RANK is not its number.

    Why: With --gpus-per-task or --gpu-bind Slurm shows each task its own GPU as device 0. That is fine for a script that uses
        device 0; one that uses cuda:LOCAL_RANK fails with "invalid device ordinal".
    See: https://slurm.schedmd.com/gres.html
    """
    visible = _visible(gpus, torch)
    if launch.local_rank is not None and launch.launcher == "slurm" and visible:
        yield Reading(
            ok=not _one_each(launch, visible),
            measured=f"LOCAL_RANK {launch.local_rank}, {visible} visible to this process{_by(gpus)}",
            expected="a script that uses device 0",
            message="use device 0 here, not LOCAL_RANK",
        )


def _one_each(launch: Launch, visible: int) -> bool:
    """Does Slurm show each rank a single GPU?"""
    return launch.launcher == "slurm" and visible == 1 and bool(launch.local_rank)


def _visible(gpus: Gpus, torch: Optional[Torch]) -> Optional[int]:
    """GPUs that this process sees: CUDA's own count, else CUDA_VISIBLE_DEVICES, else what was admitted; None: not known."""
    if torch is not None and torch.cuda_device_count:
        return torch.cuda_device_count
    if gpus.visible_devices is not None:
        return len(_before_invalid(gpus.visible_devices))
    found = len(gpus.gpus) if gpus.gpus is not None else None
    return found if gpus.admitted is None else min(gpus.admitted, found or gpus.admitted)


def _before_invalid(text: str) -> List[str]:
    """Entries of CUDA_VISIBLE_DEVICES up to the first that CUDA cuts the list at: an empty one or a negative number."""
    found = []
    for entry in text.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        found.append(entry.strip())
    return found


def _by(gpus: Gpus) -> str:
    return f" (CUDA_VISIBLE_DEVICES={gpus.visible_devices})" if gpus.visible_devices is not None else ""


@check(Severity.ERROR)
def world_size_mismatch(launch: Launch, policy: Policy) -> Iterator[Reading]:
    """WORLD_SIZE is not the number of nodes times the ranks per node.

    Why: The store waits for ranks that nobody starts. Nodes with different numbers of ranks are allowed: then set
        homogeneous = false in the policy. Before torchrun starts, platforms set WORLD_SIZE to the number of nodes: fine.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    ranks = launch.local_world_size if launch.local_world_size is not None else launch.nproc_per_node
    nnodes = launch.nnodes if launch.nnodes is not None else policy.nnodes
    # A scheduler's number of tasks is no world size when torchrun multiplies it.
    told = (launch.sources or {}).get("world_size", "WORLD_SIZE") == "WORLD_SIZE"
    if policy.homogeneous and told and launch.world_size is not None and ranks is not None and nnodes is not None:
        per_node = launch.local_rank is None and launch.world_size == nnodes
        yield Reading(
            ok=launch.world_size == ranks * nnodes or per_node,
            measured=f"WORLD_SIZE {launch.world_size}, {nnodes} nodes with {ranks} ranks each",
            expected=f"WORLD_SIZE {ranks * nnodes}" + (f", or {nnodes} before torchrun sets it" if per_node else ""),
            message="WORLD_SIZE and the ranks that are started differ",
        )


@check(Severity.ERROR, several_nodes=True)
def master_is_loopback(launch: Launch, network: Optional[Network] = None) -> Iterator[Reading]:
    """MASTER_ADDR is a loopback address in a job of several nodes.

    Why: Every node then looks for the store of rank 0 on itself; all but the first wait until they time out.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    if launch.master_addr:
        resolved = network.master_name.addresses if network is not None and network.master_name else ()
        # On the master itself its own name may well be 127.0.1.1: network/own-name-is-loopback judges that.
        loopback = bool(resolved) and all(map(nccl.is_loopback, resolved))
        local = _is_local_name(launch.master_addr)
        if loopback and launch.is_master and not local:
            return
        also = f" ({', '.join(resolved)})" if resolved and resolved != (launch.master_addr,) else ""
        yield Reading(
            ok=not local and not loopback,
            measured=f"MASTER_ADDR {launch.master_addr}{also}",
            expected="a name or address of the first node that all nodes reach",
            message="every node will look for the master on itself",
        )


def _is_local_name(address: str) -> bool:
    name = address.strip("[]").lower()
    return name in ("localhost", "localhost.localdomain", "ip6-localhost") or nccl.is_loopback(name)


@check(Severity.ERROR, several_nodes=True)
def master_is_elsewhere(launch: Launch, network: Network, os: Optional[Os] = None) -> Iterator[Reading]:
    """This node has rank 0, but the master's address is another machine's.

    Why: The store is opened by rank 0, on its own node. Here nobody connects to it, and there nobody opens it: all ranks wait
        until they time out. Swapped ranks and the address of another node are the usual causes.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    if _node_number(launch) == 0 and _is_by_hand(launch):
        here = _is_here(launch, network)
        if here or (here is False and not _may_stand_for_another(launch, network, os)):
            yield _meeting(launch, network, here, "rank 0 opens the store on this node, and all look for it elsewhere")


@check(Severity.ERROR, several_nodes=True)
def master_is_this_node(launch: Launch, network: Network) -> Iterator[Reading]:
    """The master's address is this node's, but its rank is not 0.

    Why: Rank 0 opens the store on its own node, where nobody looks for it; here nobody opens it: all ranks wait until they
        time out. Swapped ranks and the own address given on every node are the usual causes. Two torchrun on one machine,
        a trial of two nodes, are the exception.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    if _node_number(launch) and _is_by_hand(launch):
        here = _is_here(launch, network)
        if here is not None:
            yield _meeting(launch, network, not here, "all look for the store on this node, which does not open it")


@check(Severity.NOTE, several_nodes=True)
def master_in_doubt(launch: Launch, network: Network, os: Optional[Os] = None) -> Iterator[Reading]:
    """The node's rank and the master's address seem not to fit together.

    Why: The store is opened by rank 0, on its own node. The master's address may be right although this node does not have it:
        the public address of a cloud's machine, or a name that stands for a service. So may numbers that a scheduler gave.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    number = _node_number(launch)
    if number is not None and launch.launcher not in _MEET_BY_THEMSELVES:
        here = _is_here(launch, network)
        wrong = here is not None and here != (number == 0)
        judged = _is_by_hand(launch) and (here or not _may_stand_for_another(launch, network, os))
        if wrong and not judged:
            yield _meeting(launch, network, False, "make sure that the master's address leads to rank 0")


_MEET_BY_THEMSELVES = ("torchrun", "kubernetes")
"""Set rank and master together, the latter often as a service's name."""
_SHARE_THE_NETWORK = ("", "apptainer", "enroot")
"""Containers that have their machine's addresses and names; "" is none."""


def _node_number(launch: Launch) -> Optional[int]:
    """The node's rank, also of a script that is given RANK 0 alone; None when it is not known."""
    first = launch.rank == 0 and (launch.sources or {}).get("rank") == "RANK"
    return launch.node_rank if launch.node_rank is not None else 0 if first else None


def _is_by_hand(launch: Launch) -> bool:
    """Were the node's rank and the master named by a person, by options or by variables that no launcher sets?"""
    sources = launch.sources or {}
    said = (sources.get("node_rank", sources.get("rank", "")), sources.get("master_addr", ""))
    free = launch.launcher not in _MEET_BY_THEMSELVES
    return all(name.startswith("--") or (free and name in ("NODE_RANK", "RANK", "MASTER_ADDR")) for name in said)


def _is_here(launch: Launch, network: Network) -> Optional[bool]:
    """Is the master's address this node's? None where it is nobody's in particular (none, loopback)."""
    if not launch.master_addr or _is_local_name(launch.master_addr):
        return None
    if nccl.ip_of(launch.master_addr) is None and is_same_name(launch.master_addr, network.hostname or ""):
        return True
    addresses = _master_addresses(launch, network)
    if all(address.is_loopback for address in addresses):
        return None
    route = network.master_route
    return (route is not None and route.interface == "lo") or bool(addresses & _own_addresses(network))


def _master_addresses(launch: Launch, network: Network) -> Set[nccl.Ip]:
    """What the master's name resolves to. NotKnown when it does not: network/master-name-unresolved judges that."""
    ip = nccl.ip_of(launch.master_addr or "")
    names = () if ip else known(network.master_name, network, "master_name").addresses
    found = {ip} if ip else set(filter(None, map(nccl.ip_of, names)))
    if not found:
        raise NotKnown(Reason("unresolved", f"{launch.master_addr} does not resolve"))
    return found


def _own_addresses(network: Network) -> Set[nccl.Ip]:
    found = (
        nccl.ip_of(address.ip)
        for interface in known(network.interfaces, network, "interfaces")
        for address in known(interface.addresses, interface, "addresses")
    )
    return set(filter(None, found))


def _may_stand_for_another(launch: Launch, network: Network, os: Optional[Os]) -> bool:
    """Is it an address that may lead to this node although no interface has it, by translation or as a service's?"""
    kind = (os.container or "") if os is not None else ""
    by_name = nccl.ip_of(launch.master_addr or "") is None
    service = kind == "kubernetes" or (by_name and kind not in _SHARE_THE_NETWORK)
    public = any(address.is_global for address in _master_addresses(launch, network))
    return service or (public and not any(address.is_global for address in _own_addresses(network)))


def _meeting(launch: Launch, network: Network, ok: bool, message: str) -> Reading:
    """A reading of the node's rank beside the master's address and the node's own."""
    number = _node_number(launch)
    usable = (i for i in network.interfaces or () if nccl.reaches_others(i))
    own = [a.ip for i in usable for a in i.addresses or () if not nccl.is_link_local(a.ip)]
    resolved = network.master_name.addresses if network.master_name else ()
    also = f" ({', '.join(resolved)})" if resolved and resolved != (launch.master_addr,) else ""
    return Reading(
        ok=ok,
        measured=f"node rank {number}, master {launch.master_addr}{also}, this node has {', '.join(own) or 'no address'}",
        expected="an address of this node, which has rank 0" if number == 0 else "the address of the node with rank 0",
        message=message,
    )


@check(Severity.ERROR, several_nodes=True)
def master_unset(launch: Launch) -> Iterator[Reading]:
    """No master is named in a job of several nodes.

    Why: With env:// init_process_group refuses to start without MASTER_ADDR, and torchrun's static rendezvous takes 127.0.0.1,
        so that every node waits for itself.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    sources = launch.sources or {}
    ready_made = sources.get("rank") == "RANK" and sources.get("world_size") == "WORLD_SIZE"
    asked = launch.rendezvous == "static" or (ready_made and launch.rendezvous is None)
    if asked and not any(name.endswith("MASTER_ADDR") for name in launch.malformed or {}):
        yield Reading(
            ok=bool(launch.master_addr),
            measured=f"MASTER_ADDR {launch.master_addr or 'is not set'}",
            expected="a name or address of the first node",
            message="the ranks do not know where to meet",
        )


OPEN_MPI_FLOOR = "4.0.5"
"""What guides to training on several nodes ask for: "OpenMPI 4.0.5"."""


@check(Severity.WARNING)
def openmpi_too_old(launch: Launch) -> Iterator[Reading]:
    """Open MPI starts the ranks, and is older than 4.0.5.

    Why: The floor is that of guides to training on several nodes; PyTorch itself names none. Open MPI's release notes list
        what 4.0.5 fixes: mpirun with --map-by, binding under Slurm's srun, one-sided operations. An older one may well
        work. What is judged is the mpirun on the PATH, and only where mpirun starts the ranks.
    See: https://docs.open-mpi.org/en/v5.0.1/news/news-v4.0.x.html
    """
    name, _, version = known(launch.mpi, launch, "mpi").rpartition(" ")
    new_enough = at_least(version, OPEN_MPI_FLOOR)
    if name == "Open MPI" and new_enough is not None:
        yield Reading(
            ok=new_enough,
            measured=f"mpirun on the PATH is Open MPI {version}",
            expected=f"Open MPI {OPEN_MPI_FLOOR} or newer",
            message=f"Open MPI {version} lacks the corrections of {OPEN_MPI_FLOOR}",
        )

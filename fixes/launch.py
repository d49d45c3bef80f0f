"""Remedies for what the launcher set."""

from typing import Iterator, Optional

from ddp_doctor.collect.master import DEFAULT_PORT
from ddp_doctor.facts import Env, Launch, Network, Torch
from ddp_doctor.fixes._net import TORCHRUN, best_endpoint
from ddp_doctor.fixes._node import is_slurm
from ddp_doctor.model import Remedy, Step, Verdict, command, say, unset
from ddp_doctor.policy import Policy


def variable_malformed(finding: Verdict, launch: Launch) -> Iterator[Remedy]:
    """Write it as it must be."""
    if finding.subject.endswith("MASTER_ADDR") and is_slurm(launch):
        yield Remedy("Expand Slurm's list and take its first node", (_first_host(),))
    elif finding.subject.endswith("MASTER_PORT") and is_slurm(launch):
        text = 'export MASTER_PORT="$((10000 + SLURM_JOB_ID % 20000))"'
        yield Remedy("Make a port of the job's number", (command(text, scope="this job"),))
    elif finding.subject.startswith("--"):
        yield Remedy("Correct the option", (say(f"{finding.subject} must be {finding.expected}.", scope="this job"),))
    text = "Leave it to torchrun, which sets the variables of its ranks itself."
    name = finding.subject
    if not name.startswith(("--", "SLURM_")) and "(" not in name:
        yield Remedy("Remove the variable", (unset(name, scope="this job"), say(text, see=TORCHRUN)))


def _first_host() -> Step:
    text = 'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    return command(text, scope="this job", see="https://slurm.schedmd.com/scontrol.html")


def rank_out_of_range(launch: Launch) -> Iterator[Remedy]:
    """Let the launcher number the ranks."""
    yield _torchrun(launch)
    yield Remedy("Correct the variables", (say("Ranks count from 0 to WORLD_SIZE - 1 over all nodes.", see=TORCHRUN),))


def local_rank_out_of_range(launch: Launch) -> Iterator[Remedy]:
    """Let the launcher number the ranks."""
    yield _torchrun(launch)
    yield Remedy("Correct the variables", (say("Local ranks count from 0 on every node.", see=TORCHRUN),))


def node_rank_out_of_range(launch: Launch) -> Iterator[Remedy]:
    """Number the nodes from 0."""
    last = (launch.nnodes or 1) - 1
    text = f"Give the nodes the ranks 0 to {last}, each a different one: --node-rank 0 on the master."
    yield Remedy("Number the nodes from 0", (say(text, scope="this job", see=TORCHRUN),))


def _torchrun(launch: Launch) -> Remedy:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    steps = [unset(name, scope="this job") for name in names if name in (launch.sources or {}).values()]
    steps = steps or [say("Start the ranks with torchrun, which numbers them.", scope="this job", see=TORCHRUN)]
    if is_slurm(launch):
        text = "In an sbatch script set them inside srun (srun bash -c '...'): outside, all tasks get the first one's."
        steps.append(say(text, scope="this job", see="https://slurm.schedmd.com/srun.html"))
    return Remedy("Let the launcher set them", tuple(steps))


def local_rank_without_gpu(launch: Launch, finding: Verdict) -> Iterator[Remedy]:
    """As many ranks as GPUs."""
    text = "Start as many ranks per node as it has GPUs: torchrun --nproc-per-node gpu."
    yield Remedy("Start one rank per GPU", (say(text, scope="this job", see=TORCHRUN),))
    if "CUDA_VISIBLE_DEVICES" in finding.measured:
        steps = (
            unset("CUDA_VISIBLE_DEVICES", scope="this job"),
            say("A scheduler sets it on purpose: then ask for more GPUs."),
        )
        yield Remedy("Let the ranks see all GPUs", steps)


def one_gpu_per_rank(launch: Launch) -> Iterator[Remedy]:
    """Device 0, or no binding."""
    text = "Use torch.cuda.set_device(0) when torch.cuda.device_count() is 1, or drop --gpus-per-task and --gpu-bind."
    yield Remedy("Let script and binding agree", (say(text, see="https://slurm.schedmd.com/gres.html"),))


def world_size_mismatch(launch: Launch, policy: Policy, finding: Verdict) -> Iterator[Remedy]:
    """Let torchrun count, or say that the nodes differ."""
    yield Remedy(
        "Let torchrun count the ranks", (unset("WORLD_SIZE", scope="this job"), unset("RANK", scope="this job"))
    )
    text = "Set homogeneous = false in [policy] of ddp-doctor.toml."
    yield Remedy("Say that the nodes have different numbers of ranks", (say(text),))


def master_is_loopback(
    launch: Launch, network: Optional[Network] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Remedy]:
    """Name the first node."""
    yield from _name_master(launch, network, env, torch)


def master_is_elsewhere(
    launch: Launch, network: Optional[Network] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Remedy]:
    """This node's address, or another rank here."""
    yield from _name_master(launch, network, env, torch)
    last = (launch.nnodes or 2) - 1
    others = "1" if last == 1 else f"one from 1 to {last}"
    text = f"Give the node with {launch.master_addr} --node-rank 0, and this one {others}."
    yield Remedy(
        f"If {launch.master_addr} is the first node, number the nodes so", (say(text, scope="this job", see=TORCHRUN),)
    )


def master_is_this_node(launch: Launch) -> Iterator[Remedy]:
    """Rank 0 here, or the address of the node that has it."""
    text = f"Give this node --node-rank 0, and {launch.node_rank} to the node that had 0."
    yield Remedy("If this is the first node, number the nodes so", (say(text, scope="this job", see=TORCHRUN),))
    text = "On every node: --master-addr with the address of the node whose rank is 0."
    yield Remedy("Name the node with rank 0", (say(text, scope="this job", see=TORCHRUN),))


def master_in_doubt(launch: Launch, network: Optional[Network] = None) -> Iterator[Remedy]:
    """As for the fault that it may be."""
    yield from master_is_this_node(launch) if launch.node_rank else master_is_elsewhere(launch, network)


def master_unset(
    launch: Launch, network: Optional[Network] = None, env: Optional[Env] = None, torch: Optional[Torch] = None
) -> Iterator[Remedy]:
    """Name the first node."""
    yield from _name_master(launch, network, env, torch)


def _name_master(
    launch: Launch, network: Optional[Network], env: Optional[Env], torch: Optional[Torch]
) -> Iterator[Remedy]:
    if is_slurm(launch):
        yield Remedy("Take the job's first node", (_first_host(),))
    port = launch.master_port or DEFAULT_PORT
    endpoint = best_endpoint(network, env, torch)
    if endpoint is not None and (launch.node_rank == 0 or launch.rank == 0):
        text = f"On every node: --master-addr {endpoint.address.ip} --master-port {port} (this node's address)."
    else:
        text = f"On every node: --master-addr with the first node's address, --master-port {port}."
    yield Remedy("Name the first node by its address", (say(text, scope="this job", see=TORCHRUN),))


def openmpi_too_old(launch: Launch) -> Iterator[Remedy]:
    """A newer Open MPI, or none."""
    text = (
        "Put Open MPI 4.0.5 or newer first on the PATH, the same on all nodes: load its module, or install it beside."
    )
    undo = "Unload the module, or take its directory off the PATH."
    see = "https://docs.open-mpi.org/en/v5.0.1/installing-open-mpi/quickstart.html"
    newer = say(text, scope="all nodes", undo=undo, see=see)
    yield Remedy("Use a newer Open MPI", (newer, command("mpirun --version", scope="all nodes")))
    text = "Start the ranks with torchrun: its backends nccl and gloo need no MPI."
    yield Remedy("Do without MPI", (say(text, scope="this job", see=TORCHRUN),))

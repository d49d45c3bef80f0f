"""Software and settings that should be the same on all nodes."""

from dataclasses import replace
from typing import Any, Iterator

from ddp_doctor.checks.fleet._compare import agree
from ddp_doctor.cluster.fleet import Column, Fleet
from ddp_doctor.model import Reading, Severity, check
from ddp_doctor.policy import Policy
from ddp_doctor.units import count, size
from ddp_doctor.versions import minor

NOT_SET = "(not set)"


@check(Severity.ERROR, several_nodes=True)
def nccl_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes would use different versions of NCCL.

    Why: NCCL compares the versions of all ranks, to the last digit, when a communicator is made: "Mismatched NCCL version
        detected" and ncclInvalidUsage on every rank. Versions without this comparison hang or crash instead.
    See: https://github.com/NVIDIA/nccl/blob/master/src/init.cc
    """
    yield from agree(fleet.nccl_version, "another NCCL than on the other nodes", "NCCL {}".format)


@check(Severity.ERROR, several_nodes=True)
def torch_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes run different minor versions of torch.

    Why: Ranks must issue the same collectives and speak the same protocol with the store by which they meet; both change
        between versions, and the NCCL that a wheel brings with them. Jobs hang in the first collective or later.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    yield from agree(fleet.torch.map(minor), "another torch than on the other nodes", "torch {}".format)


@check(Severity.WARNING, several_nodes=True)
def torch_build_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes run different builds of torch that are of one minor version.

    Why: Patch releases and builds for another CUDA bring other libraries, often another NCCL, and round differently.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    yield from agree(_of_usual_minor(fleet.torch), "another build of torch than on the other nodes", "torch {}".format)


def _of_usual_minor(column: Column) -> Column:
    """Without the nodes whose minor version is another: they have a finding of their own."""
    usual = column.map(minor).usual()
    keep = {node: value for node, value in column.values.items() if usual is None or minor(str(value)) == usual}
    return replace(column, values=keep)


@check(Severity.WARNING, several_nodes=True)
def cuda_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes run builds of torch for different CUDA versions.

    Why: Kernels and NCCL are then compiled by different toolkits: results differ in the last digits, and a driver that
        serves one build may be too old for the other. A build without CUDA on one node ends the job there.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    yield from agree(fleet.cuda, "torch for another CUDA than on the other nodes", "built for CUDA {}".format)


@check(Severity.WARNING, several_nodes=True)
def python_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes run the job by different minor versions of Python.

    Why: Objects that ranks send one another are pickled, and code in them (lambdas by cloudpickle, compiled graphs) is read
        by the same minor version only. Packages are installed for each minor version apart.
    See: https://docs.python.org/3/library/pickle.html
    """
    yield from agree(fleet.python, "another Python than on the other nodes", "Python {}".format)


@check(Severity.WARNING, several_nodes=True)
def driver_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes run different NVIDIA drivers.

    Why: What a job may use (NVLS, cuMem, a CUDA version) follows from the driver; NCCL takes the least that all have. It
        mostly works and is slower, and a fault that one driver has shows on some nodes alone.
    See: https://docs.nvidia.com/deploy/cuda-compatibility/
    """
    yield from agree(fleet.driver, "another NVIDIA driver than on the other nodes", "driver {}".format)


@check(Severity.NOTE)
def kernel_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes run different kernels.

    Why: Nothing of a job depends on it by itself; a node that missed an update, or was not rebooted since, often differs in
        more than that.
    See: https://docs.kernel.org/admin-guide/sysctl/kernel.html
    """
    yield from agree(fleet.kernel, "another kernel than on the other nodes", "kernel {}".format)


@check(Severity.NOTE)
def system_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes run different operating systems.

    Why: Libraries, defaults of limits and firewalls, and paths come with the system: what was tried on one node need not
        hold on the other.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    yield from agree(fleet.system, "another operating system than on the other nodes")


@check(Severity.WARNING, several_nodes=True)
def machine_differs(fleet: Fleet) -> Iterator[Reading]:
    """Nodes have processors of different architectures.

    Why: One environment on a shared file system serves one architecture; NCCL does not claim to work between them.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/setup.html
    """
    yield from agree(fleet.machine, "another processor architecture than on the other nodes")


@check(Severity.NOTE)
def tool_differs(fleet: Fleet) -> Iterator[Reading]:
    """Facts of the nodes were taken by different versions of ddp-doctor.

    Why: A newer version reads more, and some of it better: what differs between such nodes may be the reading.
    See: ddp-doctor's CHANGELOG
    """
    yield from agree(
        fleet.tool, "facts by another version of ddp-doctor than on the other nodes", "ddp-doctor {}".format
    )


MUST_AGREE = (
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE",
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_COLLNET_ENABLE", "NCCL_CROSS_NIC",
    "NCCL_IB_QPS_PER_CONNECTION", "NCCL_OOB_NET_ENABLE", "NCCL_SOCKET_INLINE", "NCCL_SOCKET_MAGIC", "NCCL_SOCKET_FAMILY",
    "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER", "GLOO_ENABLE_STORE_V2_API", "OFI_NCCL_PROTOCOL",
)  # fmt: skip
"""Where ranks that differ do not find one another, refuse one another or wait for other messages. Of NCCL's and Gloo's: what
each does with them stands, with its source, in checks/data/variables.csv."""


@check(Severity.ERROR, several_nodes=True)
def variable_must_agree(fleet: Fleet) -> Iterator[Reading]:
    """A variable on which all ranks must agree differs between nodes.

    Why: Ranks that look for another master, choose another algorithm or speak another protocol do not find one another,
        or wait for messages that never come: the job hangs without a word. ssh forwards no variables, and a shell's
        start-up file may be another one on each machine.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    yield from _variables(fleet, True)


@check(Severity.WARNING, several_nodes=True)
def variable_differs(fleet: Fleet) -> Iterator[Reading]:
    """A variable of NCCL, Gloo or torch differs between nodes.

    Why: A setting that reaches some nodes only (ssh forwards none, a module was loaded on one) is rarely meant: time limits
        end the job on one side first, and a slow choice on one node is the pace of all.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    yield from _variables(fleet, False)


def _variables(fleet: Fleet, must_agree: bool) -> Iterator[Reading]:
    """Each variable that any node has; ranks' own ones and names of devices are not in the column."""
    for name, column in fleet.variables.by_subject(NOT_SET).items():
        if (name in MUST_AGREE) == must_agree:
            yield from agree(column, f"{name} is not the same on all nodes", _setting(name), name)


def _setting(name: str) -> Any:
    return lambda value: f"{name} {NOT_SET}" if value == NOT_SET else f"{name}={value}"


@check(Severity.WARNING, several_nodes=True)
def limits_differ(fleet: Fleet, policy: Policy) -> Iterator[Reading]:
    """Limits of a process differ between nodes.

    Why: A job meets the lowest one, on one node only and often late: RDMA buffers that cannot be pinned, files that cannot
        be opened. Limits of a login are not those of a daemon's child: facts must have been taken the same way.
    See: https://man7.org/linux/man-pages/man5/limits.conf.5.html
    """
    if policy.scope == "node":
        return
    for subject, column in fleet.limits.by_subject().items():
        words = size if subject == "locked memory" else count
        yield from agree(column, f"another limit of {subject} than on the other nodes", words, subject)


@check(Severity.WARNING, several_nodes=True)
def working_directory_differs(fleet: Fleet) -> Iterator[Reading]:
    """The working directory is not the same file system on all nodes.

    Why: A shared path that is not mounted on one node is an empty local folder there: the script is not found or is an old
        one, checkpoints are written where nobody looks for them.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    yield from agree(fleet.working_directory, "the working directory lies elsewhere than on the other nodes")

"""What the environment says of the job around NCCL: threads, libraries, proxies, the scheduler's numbers."""

import fnmatch
import ipaddress
import re
from typing import Dict, Iterator, List, Optional

from ddp_doctor import nccl
from ddp_doctor.checks._job import ranks_here
from ddp_doctor.checks.env._settings import one, said
from ddp_doctor.facts import UNLIMITED, Cpu, Cuda, Env, Launch, Network, Torch
from ddp_doctor.model import Reading, Severity, check, known
from ddp_doctor.policy import Policy
from ddp_doctor.units import plural


@check(Severity.WARNING)
def more_threads_than_processors(
    env: Env, cpu: Cpu, policy: Policy, launch: Optional[Launch] = None
) -> Iterator[Reading]:
    """OMP_NUM_THREADS times the ranks of this node is more than its processors.

    Why: The threads of all ranks then take turns, and each parallel region waits for the last one. torchrun sets 1 where nothing
        is set; the processors divided by the ranks is the most that makes sense.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    variable, ranks = one(env, "OMP_NUM_THREADS"), ranks_here(policy, launch)
    if variable is not None and ranks and re.fullmatch(r"[1-9]\d{0,6}", variable.value.strip()):
        here = min(float(known(cpu.threads, cpu, "threads")), cpu.quota if cpu.quota is not None else float(UNLIMITED))
        needed = int(variable.value) * ranks
        yield Reading(
            ok=needed <= here,
            subject=variable.name,
            measured=f"{said(variable)} and {plural(ranks, 'rank')}: {needed} threads, {here:g} processors",
            expected=f"at most {max(1, int(here // ranks))}",
            message=f"{needed} threads for {here:g} processors",
        )


@check(Severity.NOTE)
def library_path_first(cuda: Cuda, torch: Optional[Torch] = None) -> Iterator[Reading]:
    """LD_LIBRARY_PATH leads to another NCCL or cuDNN than the wheels bring.

    Why: Libraries found there can come before those that PyTorch's wheels bring, and be of a version that it was not built for.
        Builds that are meant to take the system's libraries (containers of NVIDIA's, conda, sources) are not judged.
    See: https://man7.org/linux/man-pages/man8/ld.so.8.html
        https://github.com/pytorch/pytorch/issues/119932
    """
    wheel = torch is None or torch.flavour in (None, "official-wheel")
    if not known(cuda.library_path, cuda, "library_path") or not wheel or (torch is not None and torch.imported):
        return  # once imported, stack/older-nccl-loaded and its like tell what was really loaded
    found = [
        library
        for library in known(cuda.shadowing, cuda, "shadowing")
        if library.name in ("nccl", "cudnn") and library.where == "ld-library-path"
    ]
    yield Reading(
        ok=not found,
        subject="LD_LIBRARY_PATH",
        measured=", ".join(f"{lib.path} ({lib.version or 'version not known'})" for lib in found)
        or "no NCCL and no cuDNN in it",
        expected="no NCCL and no cuDNN in it",
        message=f"{' and '.join(sorted({lib.name for lib in found}))} may be taken from there and not from the wheels",
    )


@check(Severity.NOTE)
def proxy_before_rendezvous(network: Network, launch: Launch) -> Iterator[Reading]:
    """A proxy is set and the rendezvous, which goes by HTTP, is not exempt from it.

    Why: NCCL, Gloo and torch's own store open plain TCP connections, which no proxy variable touches. A rendezvous over etcd is
        HTTP: its client may send the requests to the proxy, which does not know the nodes.
    See: https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
        https://github.com/etcd-io/etcd/issues/9763
    """
    if (launch.rendezvous or "").startswith("etcd") and launch.master_addr:
        values: Dict[str, str] = {}
        for variable in known(network.proxies, network, "proxies"):
            values.setdefault(variable.name.lower(), variable.value)
        proxies = [name for name in ("http_proxy", "all_proxy", "grpc_proxy") if values.get(name)]
        if proxies:
            exempt = [entry.strip() for entry in values.get("no_proxy", "").split(",") if entry.strip()]
            yield Reading(
                ok=any(_exempts(entry, launch.master_addr) for entry in exempt),
                subject=proxies[0],
                measured=f"{', '.join(proxies)} set, no_proxy={values.get('no_proxy', '')}",
                expected=f"no_proxy with {launch.master_addr}",
                message=f"requests to {launch.master_addr} may go to the proxy",
            )


def _exempts(entry: str, address: str) -> bool:
    """Does an entry of no_proxy cover the address: *, a name, .domain, an address, or a network?"""
    ip = nccl.ip_of(address)
    if ip is not None and "/" in entry:
        try:
            return ip in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    return entry in ("*", address) or address.endswith("." + entry.lstrip(".")) or fnmatch.fnmatchcase(address, entry)


@check(Severity.NOTE)
def nodes_differ_from_slurm(env: Env) -> Iterator[Reading]:
    """The number of nodes that torchrun is told is not that of the Slurm step.

    Why: Torchrun waits for nodes that nobody starts, or leaves some out. PET_NNODES stands for --nnodes; a value from another
        job or shell is easily left over.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
        https://slurm.schedmd.com/srun.html
    """
    step = one(env, "SLURM_STEP_NUM_NODES") or one(env, "SLURM_NNODES") or one(env, "SLURM_JOB_NUM_NODES")
    asked = one(env, "PET_NNODES")
    if (
        step is not None
        and asked is not None
        and re.fullmatch(r"\d{1,9}(:\d{1,9})?", asked.value)
        and re.fullmatch(r"\d{1,9}", step.value)
    ):
        low, high = _range(asked.value)
        yield Reading(
            ok=low <= int(step.value) <= high,
            subject="PET_NNODES",
            measured=f"{said(asked)}, {said(step)}",
            expected=f"PET_NNODES {step.value}, or not set",
            message="torchrun and Slurm count different nodes",
        )


def _range(text: str) -> List[int]:
    """[2, 2] of "2", [1, 4] of "1:4"."""
    numbers = [int(part) for part in text.split(":")]
    return [numbers[0], numbers[-1]]

"""Remedies for the environment: mostly less of it."""

import re
from typing import Iterator, Optional

from ddp_doctor import accelerators, nccl, variables
from ddp_doctor.checks._job import ranks_here
from ddp_doctor.facts import UNLIMITED, Cpu, Env, Gpus, Launch, Os, Rdma, Torch
from ddp_doctor.fixes._net import NCCL_ENV
from ddp_doctor.fixes._node import engine_of
from ddp_doctor.fixes._variables import instead, without
from ddp_doctor.model import Remedy, Verdict, export, say
from ddp_doctor.policy import Policy

CUDA_ENV = "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
DISTRIBUTED = "https://docs.pytorch.org/docs/stable/distributed.html"


def _take_away(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Take the variable away."""
    yield Remedy(f"Do without {finding.subject}", without(env, finding.subject, _see(finding.subject)))


def _see(name: str) -> str:
    return f"{NCCL_ENV}#{name.lower().replace('_', '-')}" if name.startswith("NCCL_") else ""


unknown_name = _take_away
name_newer_than_library = _take_away
libfabric_provider_ignored = _take_away
setting_without_effect = _take_away
not_for_this_job = _take_away
p2p_disabled_without_nvlink = _take_away
infiniband_disabled = _take_away
rdma_disabled = _take_away
slow_debugging_left_on = _take_away
cuda_launch_blocking_left_on = _take_away
hangs_go_unnoticed = _take_away
algorithm_forced = _take_away
algorithm_unknown = _take_away
old_and_new_name_differ = _take_away
minimum_above_maximum = _take_away
nodes_differ_from_slurm = _take_away


# --------------------------------------------------------------------------- names


def name_nobody_reads(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Take it away, and name what does what it was meant for."""
    setting = variables.find(finding.subject)
    steps = without(env, finding.subject)
    if setting is not None and setting.instead:
        see = DISTRIBUTED if "init_process_group" in setting.instead else NCCL_ENV
        steps = (*steps, say(f"What it was meant for is done by: {setting.instead}.", scope="this job", see=see))
    yield Remedy(f"Do without {finding.subject}", steps)


def misspelt_name(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """The right name with the same value, or neither."""
    yield from instead(env, finding.subject, finding.expected, env.get(finding.subject), _see(finding.expected))
    yield from _take_away(env, finding)


def name_no_longer_read(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Take it away; the new name mostly has other values."""
    yield from _take_away(env, finding)
    setting = variables.find(finding.subject)
    if setting is not None and setting.renamed_to:
        yield from instead(env, finding.subject, setting.renamed_to, None, _see(setting.renamed_to))


def name_deprecated(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """The new name with the same value."""
    yield from instead(env, finding.subject, finding.expected, env.get(finding.subject))


def libfabric_provider_hides_efa(env: Env) -> Iterator[Remedy]:
    """Let the plug-in choose."""
    yield Remedy("Let the EFA plug-in choose the provider", without(env, "FI_PROVIDER"))


# --------------------------------------------------------------------------- values


def value_not_a_number(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """A number for a word of yes or no; or nothing."""
    text = (env.get(finding.subject) or "").strip().lower()
    number = "1" if text in ("true", "yes", "on", "y", "enable", "enabled") else ""
    number = "0" if text in ("false", "no", "off", "n", "disable", "disabled") else number
    if number:
        yield Remedy("Say it as a number", (export(finding.subject, number, scope="this job"),))
    yield from value_not_allowed(env, finding)


def value_not_allowed(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """The default, or a value that is allowed."""
    yield from _take_away(env, finding)
    yield Remedy("Set a value that it can have", (say(f"{finding.subject}: {finding.expected}.", scope="this job"),))


def torch_refuses_value(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """The default, or a value that torch understands."""
    yield from value_not_allowed(env, finding)


def ib_timer_out_of_range(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """The default."""
    yield from _take_away(env, finding)
    if finding.subject == "NCCL_IB_TIMEOUT":
        text = "22 waits for 17 s at a time; every step more doubles that."
        steps = (export("NCCL_IB_TIMEOUT", "22", scope="this job", see=_see("NCCL_IB_TIMEOUT")), say(text))
        yield Remedy("Wait longer than by default", steps)


def ib_wait_too_long(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Report a broken link before the job's own time limit."""
    yield from ib_timer_out_of_range(env, finding)


def networks_contradict(env: Env) -> Iterator[Remedy]:
    """Drop one of the two."""
    yield Remedy("Let NCCL use InfiniBand", without(env, "NCCL_IB_DISABLE", _see("NCCL_IB_DISABLE")))
    yield Remedy("Let NCCL use what there is", without(env, "NCCL_NET", _see("NCCL_NET")))


# --------------------------------------------------------------------------- left over


def p2p_disabled(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Take it away, and see whether what it was for is gone."""
    text = (
        "If the job hangs without it, look at what the driver says first: nvidia-smi topo -p2p r, and an IOMMU or ACS."
    )
    yield Remedy(f"Do without {finding.subject}", (*without(env, finding.subject, _see(finding.subject)), say(text)))


def shared_memory_disabled(env: Env, os: Optional[Os] = None) -> Iterator[Remedy]:
    """Take it away, with a /dev/shm that is large enough."""
    where = {"docker": "docker run --shm-size=8g or --ipc=host", "kubernetes": "an emptyDir with medium Memory"}
    how = where.get(engine_of(os), "mount -o remount,size=50% /dev/shm")
    text = f"If /dev/shm was too small, make it larger: {how}."
    yield Remedy("Use shared memory", (*without(env, "NCCL_SHM_DISABLE", _see("NCCL_SHM_DISABLE")), say(text)))


def debug_output_left_on(env: Env) -> Iterator[Remedy]:
    """Warnings only."""
    yield Remedy("Print warnings only", (export("NCCL_DEBUG", "WARN", scope="this job", see=_see("NCCL_DEBUG")),))


def ll128_forced(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Let NCCL decide."""
    yield from _take_away(env, finding)


# --------------------------------------------------------------------------- files


def conf_line_misread(finding: Verdict) -> Iterator[Remedy]:
    """Write the line as NCCL reads it."""
    source = finding.measured.split(": ")[0]
    text = f"Write {source} as NAME=value, without blanks around the equals sign, quotes, export or a comment."
    who = "root" if source.startswith("/etc/") else "user"
    yield Remedy("Write the line as NCCL reads it", (say(text, who=who, scope="this node", see=NCCL_ENV),))


def conf_file_missing(env: Env) -> Iterator[Remedy]:
    """The right path, or none."""
    yield Remedy("Do without the file", without(env, "NCCL_CONF_FILE"))
    yield Remedy("Name a file that is there", (say("Give its whole path, the same on every node.", see=NCCL_ENV),))


def tilde_not_expanded(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Write the whole path."""
    text = f"Write the whole path of your home in {finding.subject}; in a shell, leave the quotes out."
    yield Remedy("Write the whole path", (say(text, scope="this job"),))


# --------------------------------------------------------------------------- lists of names


def list_mark_misplaced(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """The list as it was probably meant."""
    value = env.get(finding.subject) or ""
    marks = re.match(r"\^?=?", value)
    names = [name.strip(" \t^=") for name in re.split(r"[,;\s|]+", value)]
    if all(re.fullmatch(r"[\w.:@-]+", name) for name in names) and names:
        meant = (marks.group() if marks else "") + ",".join(names)
        yield Remedy("Write the list as it was probably meant", (export(finding.subject, meant, scope="this job"),))
    yield from _take_away(env, finding)


def gloo_list_has_pattern(env: Env) -> Iterator[Remedy]:
    """Exact names."""
    text = "Name the interface exactly (ip -br addr): GLOO_SOCKET_IFNAME=eth0. Names may differ between nodes."
    yield Remedy("Name the interface exactly", (say(text, scope="this job", see=DISTRIBUTED),))
    yield Remedy("Let Gloo take the address of the host name", without(env, "GLOO_SOCKET_IFNAME"))


def name_of_wrong_kind(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Let NCCL choose, or look the names up."""
    yield from _take_away(env, finding)
    look = "ibv_devices" if finding.subject == "NCCL_IB_HCA" else "ip -br addr"
    yield Remedy("Name one of the right kind", (say(f"{look} lists the names.", see=_see(finding.subject)),))


def exclusion_admits_loopback(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Let NCCL choose, or exclude lo as well."""
    yield from _take_away(env, finding)
    value = f"{env.get(finding.subject) or '^docker'},lo"
    yield Remedy("Exclude lo as well", (export(finding.subject, value, scope="this job", see=_see(finding.subject)),))


def prefix_takes_more(env: Env, finding: Verdict) -> Iterator[Remedy]:
    """Mean the names exactly."""
    value = env.get(finding.subject) or ""
    exact = f"^={value[1:]}" if value.startswith("^") else f"={value}"
    yield Remedy(
        "Mean the names exactly", (export(finding.subject, exact, scope="this job", see=_see(finding.subject)),)
    )


# --------------------------------------------------------------------------- RoCE


def gid_index_empty(env: Env, rdma: Rdma, finding: Verdict, torch: Optional[Torch] = None) -> Iterator[Remedy]:
    """Let NCCL look for the row, or name the right one."""
    version = nccl.version_of(torch) or nccl.NEWEST
    if version >= nccl.GID_WALK_SINCE:
        steps = without(env, "NCCL_IB_GID_INDEX", _see("NCCL_IB_GID_INDEX"))
        yield Remedy("Let NCCL look for the row itself", steps)
    row = _best_row(rdma, finding.subject)
    if row is not None:
        text = "show_gids or /sys/class/infiniband/*/ports/*/gid_attrs lists the rows; they may differ between nodes."
        steps = (export("NCCL_IB_GID_INDEX", str(row), scope="this job", see=_see("NCCL_IB_GID_INDEX")), say(text))
        yield Remedy("Name the row of the IPv4 address for RoCE v2", steps)


def gid_not_routable(env: Env, rdma: Rdma, finding: Verdict, torch: Optional[Torch] = None) -> Iterator[Remedy]:
    """The right row; an IPv4 address where there is none."""
    if _best_row(rdma, finding.subject) is not None:
        yield from gid_index_empty(env, rdma, finding, torch)
        return
    text = "Give the interface of the RoCE port an IPv4 address: NCCL looks for a GID that is made from one."
    yield Remedy("Give the port an IPv4 address", (say(text, who="network admin", see=_see("NCCL_IB_GID_INDEX")),))
    text = "Where the network is IPv6 alone, NCCL 2.21 and later can look for such a GID."
    steps = (export("NCCL_IB_ADDR_FAMILY", "AF_INET6", scope="this job", see=_see("NCCL_IB_ADDR_FAMILY")), say(text))
    yield Remedy("Let NCCL look for an IPv6 address", steps)


def _best_row(rdma: Rdma, name: str) -> Optional[int]:
    """The first row with an IPv4 address and RoCE v2 of the port mlx5_0:1."""
    gids = (
        gid
        for device in rdma.devices or ()
        for port in device.ports or ()
        if f"{device.name}:{port.port}" == name
        for gid in port.gids or ()
    )
    good = (g.index for g in gids if nccl.gid_family(g) == 4 and nccl.is_routable(g) and nccl.roce_version(g) == 2)
    return next(good, None)


# --------------------------------------------------------------------------- GPUs and processors


def all_gpus_hidden(env: Env) -> Iterator[Remedy]:
    """Show them."""
    text = "A scheduler that sets it gave this job no GPU: then ask for some."
    yield Remedy("Let programs see the GPUs", (*without(env, "CUDA_VISIBLE_DEVICES", CUDA_ENV), say(text)))


def gpu_listed_twice(env: Env) -> Iterator[Remedy]:
    """Every GPU once."""
    entries = dict.fromkeys(entry.strip() for entry in (env.get("CUDA_VISIBLE_DEVICES") or "").split(","))
    value = ",".join(entry for entry in entries if entry)
    yield Remedy("Name every GPU once", (export("CUDA_VISIBLE_DEVICES", value, scope="this job", see=CUDA_ENV),))


def gpu_list_cut(env: Env, gpus: Optional[Gpus] = None) -> Iterator[Remedy]:
    """Name GPUs that are here, or all."""
    yield Remedy("Let programs see all GPUs", without(env, "CUDA_VISIBLE_DEVICES", CUDA_ENV))
    here = [str(gpu.index) for gpu in accelerators.answering(gpus)] if gpus is not None else []
    named = [n for n in accelerators.chosen(env.get("CUDA_VISIBLE_DEVICES")) or () if n in here]
    if named:
        steps = (export("CUDA_VISIBLE_DEVICES", ",".join(named), scope="this job", see=CUDA_ENV),)
        yield Remedy("Name those that are here", steps)


def fewer_gpus_than_ranks(env: Env) -> Iterator[Remedy]:
    """As many ranks as GPUs."""
    see = "https://docs.pytorch.org/docs/stable/elastic/run.html"
    text = "Start as many ranks per node as GPUs are visible: torchrun --nproc-per-node gpu."
    yield Remedy("Start one rank per GPU", (say(text, scope="this job", see=see),))
    yield Remedy("Let the ranks see all GPUs", without(env, "CUDA_VISIBLE_DEVICES", CUDA_ENV))


def gpu_order_differs() -> Iterator[Remedy]:
    """One order for both."""
    yield Remedy(
        "Number the GPUs as nvidia-smi does",
        (export("CUDA_DEVICE_ORDER", "PCI_BUS_ID", scope="this job", see=CUDA_ENV),),
    )


def more_threads_than_processors(cpu: Cpu, policy: Policy, launch: Optional[Launch] = None) -> Iterator[Remedy]:
    """The processors divided by the ranks."""
    ranks = ranks_here(policy, launch) or 1
    here = min(float(cpu.threads or 1), cpu.quota if cpu.quota is not None else float(UNLIMITED))
    value = str(max(1, int(here // ranks)))
    yield Remedy("Share the processors among the ranks", (export("OMP_NUM_THREADS", value, scope="this job"),))


def library_path_first(env: Optional[Env] = None) -> Iterator[Remedy]:
    """Leave the folders of CUDA and NCCL out of it."""
    text = "Leave the folders with NCCL and cuDNN out of LD_LIBRARY_PATH; the wheels find their own."
    see = "https://man7.org/linux/man-pages/man8/ld.so.8.html"
    yield Remedy("Let the wheels find their own libraries", (say(text, scope="this job", see=see),))


def proxy_before_rendezvous(launch: Launch) -> Iterator[Remedy]:
    """Exempt the nodes from the proxy."""
    text = f"Add {launch.master_addr} and the network of the nodes to no_proxy and NO_PROXY on every node."
    yield Remedy("Exempt the nodes from the proxy", (say(text, scope="this job"),))

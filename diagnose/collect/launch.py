"""Launch: what the launcher set for this process, or the options said, with where each value came from."""

import ipaddress
import re
from typing import Any, Callable, Dict, Optional, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.facts import Launch, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

SLURM_NAMES = (
    "JOB_ID JOB_NUM_NODES NNODES NTASKS NTASKS_PER_NODE TASKS_PER_NODE JOB_NODELIST NODELIST NODEID PROCID LOCALID STEP_ID "
    "STEP_NUM_NODES STEP_NUM_TASKS STEP_NODELIST GPUS GPUS_ON_NODE GPUS_PER_NODE GPUS_PER_TASK JOB_GPUS STEP_GPUS "
    "CPUS_PER_TASK CPUS_ON_NODE MEM_PER_NODE CPU_BIND JOB_PARTITION LAUNCH_NODE_IPADDR"
).split()
MALFORMED_LIMIT = 200
"""Characters kept of a value that is not what it should be."""
COUNTED_AT_LAUNCH = ("gpu", "cpu", "auto", "xpu")
"""Words that torchrun's --nproc-per-node takes instead of a number."""
_MPIRUN_LIMIT_S = 3.0
"""It only prints; a start from a busy network file system may take its time."""
_MPIRUN_TEXT_LIMIT = 4096
"""Characters of its answer that are looked at: Hydra tells 20 lines about its build, the version first."""


def read(host: Host, ask: Ask) -> Launch:
    """Options win over variables; of the variables, those that torch reads win over the launchers' own.

    SLURM_NODELIST's first host is only by habit the master: nothing is concluded from it.
    """
    unread: Unread = {}
    env = optional(host.env, unread, "slurm")
    usable = _usable(env or {})
    values, sources, malformed = _fields(usable, ask)
    _reasons(usable, values, sources, unread)
    rendezvous = parse_rendezvous(usable)
    if rendezvous is None:
        unread.setdefault("rendezvous", Reason("absent", "nothing says which rendezvous the job uses"))
    return Launch(
        launcher=ask.launcher or (launcher(usable) if env is not None else None),
        rendezvous=rendezvous,
        is_master=optional(lambda: _is_master(host, ask, values, sources), unread, "is_master"),
        sources={field: name for field, name in sources.items() if field in values},
        malformed=malformed,
        mpi=optional(lambda: _mpi(host, ask, unread.get("slurm"), env or {}), unread, "mpi"),
        slurm=None if env is None else {n: env[f"SLURM_{n}"] for n in SLURM_NAMES if f"SLURM_{n}" in env},
        unread=unread,
        **values,
    )


# ------------------------------------------------------------------------------------------------ values


def number(least: int) -> Callable[[str], Optional[int]]:
    """Parse a decimal number of at least ``least``, as Python's int() would, within reason; None for other text."""

    def parse(text: str) -> Optional[int]:
        found = re.fullmatch(r"\s*\+?(\d{1,9})\s*", text, re.ASCII)
        return int(found.group(1)) if found and int(found.group(1)) >= least else None

    return parse


def port(text: str) -> Optional[int]:
    """A TCP port, 1 to 65535; None for other text."""
    found = number(1)(text)
    return found if found is not None and found <= 65535 else None


def node_count(text: str) -> Optional[int]:
    """2 of "2" and of torchrun's "2:2"; None for a range, which is an elastic job, and for other text."""
    least, colon, most = text.partition(":")
    return number(1)(least) if not colon or least == most else None


def address(text: str) -> Optional[str]:
    """A host name or an IP address; None for what is neither (a URL, host:port, blanks, an option)."""
    if _ip(text) or re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?", text, re.ASCII):
        return text
    return None


def _ip(text: str) -> Optional[str]:
    """An IP address in its normal form, without the interface of a link-local one."""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return None


def endpoint(text: str) -> Tuple[str, str]:
    """("10.0.0.1", "29400") of torchrun's --rdzv-endpoint; "" where it names no port. IPv6 stands in brackets."""
    found = re.fullmatch(r"\[([^\]]*)\](?::(.*))?|([^:]*)(?::(.*))?", text)
    if not found:
        return text, ""
    return found.group(1) or found.group(3) or "", found.group(2) or found.group(4) or ""


_FIELDS: Dict[str, Tuple[Callable[[str], Any], str]] = {
    "rank": (number(0), "RANK OMPI_COMM_WORLD_RANK MV2_COMM_WORLD_RANK PMI_RANK SLURM_PROCID"),
    "world_size": (
        number(1),
        "WORLD_SIZE OMPI_COMM_WORLD_SIZE MV2_COMM_WORLD_SIZE PMI_SIZE SLURM_STEP_NUM_TASKS",
    ),
    "local_rank": (
        number(0),
        "LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID SLURM_LOCALID",
    ),
    "local_world_size": (
        number(1),
        "LOCAL_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE MV2_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS",
    ),
    "node_rank": (number(0), "--node-rank PET_NODE_RANK GROUP_RANK NODE_RANK SLURM_NODEID"),
    "nnodes": (node_count, "--nnodes PET_NNODES GROUP_WORLD_SIZE NNODES SLURM_JOB_NUM_NODES SLURM_NNODES"),
    "nproc_per_node": (
        number(1),
        "--nproc-per-node PET_NPROC_PER_NODE LOCAL_WORLD_SIZE NPROC_PER_NODE OMPI_COMM_WORLD_LOCAL_SIZE "
        "MV2_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS",
    ),
    "master_addr": (address, "--master-addr MASTER_ADDR PET_MASTER_ADDR PET_RDZV_ENDPOINT(host)"),
    "master_port": (port, "--master-port MASTER_PORT PET_MASTER_PORT PET_RDZV_ENDPOINT(port)"),
}
"""Field -> how its text is read, and who may set it, the first one wins."""


def _fields(env: Dict[str, str], ask: Ask) -> Tuple[Dict[str, Any], Dict[str, str], Dict[str, str]]:
    """(field -> value, field -> who set it, who -> text that is no such value)."""
    values: Dict[str, Any] = {}
    sources: Dict[str, str] = {}
    malformed: Dict[str, str] = {}
    said = {**env, **_options(ask)}
    for field, (parse, names) in _FIELDS.items():
        name = next((name for name in names.split() if name in said), None)
        if name is None:
            continue
        sources[field] = name
        value = parse(said[name])
        if value is not None:
            values[field] = value
        elif not _is_open(name, said[name]):
            malformed[name] = said[name][:MALFORMED_LIMIT]
    return values, sources, malformed


def _options(ask: Ask) -> Dict[str, str]:
    """Options that were given, by their names on the command line."""
    names = ("node_rank", "nnodes", "nproc_per_node", "master_addr", "master_port")
    return {"--" + n.replace("_", "-"): str(getattr(ask, n)) for n in names if getattr(ask, n) is not None}


def _is_open(name: str, text: str) -> bool:
    """Right, but no number before the launch: "auto" processes, "2:4" nodes."""
    if name == "PET_NPROC_PER_NODE":
        return text in COUNTED_AT_LAUNCH
    return name == "PET_NNODES" and re.fullmatch(r"[1-9]\d{0,8}:[1-9]\d{0,8}", text, re.ASCII) is not None


def _reasons(env: Dict[str, str], values: Dict[str, Any], sources: Dict[str, str], unread: Unread) -> None:
    """Why a field is not known."""
    for field in _FIELDS:
        name = sources.get(field)
        if "slurm" in unread and name is None:
            unread[field] = unread["slurm"]
        elif name is None:
            unread[field] = Reason("absent", "neither an option nor a variable says")
        elif field not in values and _is_open(name, env.get(name, "")):
            unread[field] = Reason("not-applicable", f"{name}={env[name]} is settled at launch")
        elif field not in values:
            unread[field] = Reason("unreadable", f"{name} is not what it should be")


def _usable(env: Dict[str, str]) -> Dict[str, str]:
    """The variables without those that do not say what they seem to, and with an endpoint's two halves.

    A launcher's ranks are torch's only when it starts a process per GPU: where it starts one per node, that is an
    agent (torchrun) or a script. A step on some of a job's nodes numbers its nodes anew.
    """
    found = dict(env)
    if _int(env, "SLURM_STEP_NUM_TASKS") <= _int(env, "SLURM_STEP_NUM_NODES"):
        _drop(found, "SLURM_PROCID SLURM_LOCALID SLURM_STEP_NUM_TASKS")
    if _int(env, "SLURM_STEP_NUM_NODES") not in (0, _int(env, "SLURM_JOB_NUM_NODES")):
        _drop(found, "SLURM_NODEID")
    for library, local_size in (("OMPI_", "OMPI_COMM_WORLD_LOCAL_SIZE"), ("MV2_", "MV2_COMM_WORLD_LOCAL_SIZE")):
        if _int(env, local_size) <= 1:
            _drop(found, " ".join(f"{library}COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
    if _int(env, "MPI_LOCALNRANKS") <= 1:
        _drop(found, "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS")
    host, its_port = endpoint(env.get("PET_RDZV_ENDPOINT", ""))
    halves = {"PET_RDZV_ENDPOINT(host)": host, "PET_RDZV_ENDPOINT(port)": its_port}
    return {**found, **{name: text for name, text in halves.items() if text}}


def _int(env: Dict[str, str], name: str) -> int:
    return number(0)(env.get(name, "")) or 0


def _drop(env: Dict[str, str], names: str) -> None:
    for name in names.split():
        env.pop(name, None)


# ------------------------------------------------------------------------------------------------ launcher, master

_LAUNCHERS = (
    ("torchrun", r"TORCHELASTIC_RUN_ID|PET_(NNODES|NPROC_PER_NODE|RDZV_\w+|MASTER_\w+|NODE_RANK)"),
    ("mpi", r"(OMPI|MV2)_COMM_WORLD_(RANK|SIZE)|MPI_LOCALNRANKS"),
    ("slurm", r"SLURM_JOB_ID"),
    ("kubernetes", r"KUBERNETES_SERVICE_HOST"),
)
"""Launcher -> variables that it sets, the innermost launcher first."""


def launcher(env: Dict[str, str]) -> str:
    """Who starts, or would start, the processes here; none when no variable tells."""
    return next((name for name, sets in _LAUNCHERS if any(re.fullmatch(sets, v) for v in env)), "none")


def _mpi(host: Host, ask: Ask, no_env: Optional[Reason], env: Dict[str, str]) -> str:
    """Of the mpirun on the PATH, where the options or an MPI launcher's variables say that MPI starts the processes."""
    if ask.launcher != "mpirun" and no_env is not None:
        raise Unreadable(no_env)
    if ask.launcher != "mpirun" and not any(re.fullmatch(dict(_LAUNCHERS)["mpi"], name) for name in env):
        raise Unreadable(Reason("not-asked", "nothing says that mpirun starts the processes"))
    ran = host.run("mpirun-version", ["mpirun", "--version"], _MPIRUN_LIMIT_S)
    return parse_mpirun(f"{ran.stdout[:_MPIRUN_TEXT_LIMIT]}\n{ran.stderr[:_MPIRUN_TEXT_LIMIT]}")


_MPIS = (
    (r"^mpi(?:run|exec) \(([A-Za-z][A-Za-z ]{0,40})\) v?(\d[\w.+-]{0,40})\s*$", "{0} {1}"),
    (r"^(Intel\(R\) MPI) Library\b.{0,80}?, Version (\d[\w.]{0,40}(?: Update \d{1,4})?)", "{0} {1}"),
    (r"^HYDRA build details:\s{1,80}Version:[ \t]{0,80}(\d[\w.+-]{0,40})\s*$", "Hydra {0}"),
)
"""Open MPI and IBM's Spectrum MPI, Intel MPI, and the launcher of MPICH and MVAPICH."""


def parse_mpirun(text: str) -> str:
    """ "Open MPI 4.0.3" of mpirun --version: "mpirun (Open MPI) 4.0.3". Unreadable when it names no known MPI."""
    for pattern, name in _MPIS:
        found = re.search(pattern, text, re.MULTILINE | re.ASCII)
        if found:
            return name.format(*found.groups())
    raise Unreadable(Reason("unreadable", "mpirun --version names no known MPI"))


def parse_rendezvous(env: Dict[str, str]) -> Optional[str]:
    """c10d, etcd ... as PET_RDZV_BACKEND says; static when torchrun is given a master instead (its default)."""
    backend = env.get("PET_RDZV_BACKEND")
    if backend:
        return backend[:MALFORMED_LIMIT]
    return "static" if env.keys() & {"PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NODE_RANK"} else None


def _is_master(host: Host, ask: Ask, values: Dict[str, Any], sources: Dict[str, str]) -> bool:
    """By rank, else by whose the master's address is, else by Slurm's number of the node. Unreadable when none tells."""
    if "node_rank" in values and sources["node_rank"] != "SLURM_NODEID":
        return bool(values["node_rank"] == 0)
    if values.get("rank") == 0 or values.get("nnodes") == 1:
        return True
    if "master_addr" in values:
        return _is_own(host, ask, values["master_addr"])
    if "node_rank" in values:
        return bool(values["node_rank"] == 0)
    raise Unreadable(Reason("absent", "neither a node rank nor a master is named"))


def _is_own(host: Host, ask: Ask, name: str) -> bool:
    """Is the master ``name`` this node?"""
    ip = _ip(name)
    if ip is None and is_same_name(name, host.read("/proc/sys/kernel/hostname").strip()):
        return True
    addresses = {ip} if ip else set(_addresses_of(host, ask, name))
    if addresses and all(ipaddress.ip_address(a).is_loopback for a in addresses):
        raise Unreadable(
            Reason("not-applicable", f"{name} is a loopback address: every node takes itself for the master")
        )
    return bool(addresses & set(_own_addresses(host)))


def is_same_name(name: str, own: str) -> bool:
    """Equal host names, where one of them may lack the domain."""
    a, b = name.lower().rstrip("."), own.lower().rstrip(".")
    return bool(a) and (a == b or (("." in a) != ("." in b) and a.split(".")[0] == b.split(".")[0]))


def _addresses_of(host: Host, ask: Ask, name: str) -> Tuple[str, ...]:
    """From /etc/hosts, else by the resolver, which profile quick does not ask."""
    if name.lower() in ("localhost", "localhost.localdomain"):
        return ("127.0.0.1",)
    try:
        found = parse_hosts(host.read("/etc/hosts"), name)
    except Unreadable:
        found = ()
    if found:
        return found
    if not ask.active:
        raise Unreadable(Reason("not-asked", f"profile quick does not resolve {name}"))
    return tuple(filter(None, map(_ip, host.resolve(name))))


def parse_hosts(text: str, name: str) -> Tuple[str, ...]:
    """Addresses that /etc/hosts gives ``name``."""
    rows = (line.partition("#")[0].lower().split() for line in text.splitlines())
    return tuple(filter(None, (_ip(row[0]) for row in rows if name.lower() in row[1:])))


def _own_addresses(host: Host) -> Tuple[str, ...]:
    """Addresses of this node, from the kernel's tables."""
    found = parse_fib_trie(host.read("/proc/net/fib_trie"))
    try:
        return found + parse_if_inet6(host.read("/proc/net/if_inet6"))
    except Unreadable:  # no such file without IPv6
        return found


def parse_fib_trie(text: str) -> Tuple[str, ...]:
    """IPv4 addresses that /proc/net/fib_trie marks as this host's: "|-- 10.0.0.1" before "/32 host LOCAL"."""
    found = re.findall(r"\|-- ([\d.]+)\n(?:\s*/\d+ .*\n)*?\s*/32 host LOCAL", text)
    return tuple(dict.fromkeys(found))


def parse_if_inet6(text: str) -> Tuple[str, ...]:
    """IPv6 addresses in /proc/net/if_inet6."""
    found = re.findall(r"^([0-9a-f]{32}) ", text, re.MULTILINE)
    return tuple(str(ipaddress.IPv6Address(int(digits, 16))) for digits in found)

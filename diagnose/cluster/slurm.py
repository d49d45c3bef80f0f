"""By Slurm: which nodes there are, the one srun that starts our program on all of them, and what it means when that ends.

Nothing here changes the cluster: ``sinfo`` is read, and inside an allocation a step is run beside those that run already
(``--overlap``). Outside of one, srun asks for nodes as any job does, and gives them back when the report is there.
"""

import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ddp_doctor.cluster.folding import folded
from ddp_doctor.cluster.names import BadNodes, parse_nodes
from ddp_doctor.cluster.reached import Unreachable
from ddp_doctor.cluster.session import Session
from ddp_doctor.cluster.ssh import NOT_THERE
from ddp_doctor.facts import Reason
from ddp_doctor.node import TOGETHER

QUEUE_S = 60
"""What srun may wait for free nodes, where there is no allocation yet."""
COMMAND_S = 20.0
"""sinfo and srun --version; a controller that is busy answers within MessageTimeout, 10 s by default (slurm.conf(5))."""
OVERLAP_SINCE = (20, 11)
"""Before, steps shared a job's processors anyway: there was no --overlap (Slurm's NEWS for 20.11)."""

_OF_A_STEP = (
    "NTASKS NPROCS NTASKS_PER_NODE TASKS_PER_NODE STEP_NUM_TASKS STEP_TASKS_PER_NODE PROCID LOCALID CPUS_PER_TASK "
    "CPU_BIND CPU_BIND_TYPE CPU_BIND_LIST CPU_BIND_VERBOSE DISTRIBUTION EXPORT_ENV"
).split()
"""What our own step sets, and what is not so in the job: there it is as it is here."""
_DOWN = re.compile(r"down|fail|drain|maint|powered_down|powering|reboot|unknown|future|perfctrs|[*~#!%$@^]")
"""States and marks of a node on which nothing can be started: sinfo(1), NODE STATE CODES."""
_LOST = re.compile(r"down|fail|powered_down|unknown|[*~]")
"""The same for the nodes of an allocation, which may be draining and still run it."""
_BUSY = re.compile(r"alloc|comp")

_OPTION = re.compile(r"[a-z][a-z-]*(=\S.*)?")


class NoSlurm(BadNodes):
    """Slurm cannot be asked; the text says why, and what to do."""


@dataclass(frozen=True)
class Step:
    """The way to nodes by one srun. ``extra``: what every request for facts says besides."""

    argv: Tuple[str, ...]
    preamble: bytes = b""
    connect_s: float = QUEUE_S
    extra: Mapping[str, Any] = field(default_factory=dict)
    via: str = "slurm"

    def session(self, fanout: int, limit_s: float) -> Session:
        """All nodes at once, whatever ``fanout`` says: srun has a tree of its own."""
        from ddp_doctor.cluster.slurm_engine import SlurmEngine

        return Session(partial(SlurmEngine, self, limit_s), 1)


def step(
    nodes: Sequence[str],
    command: str,
    preamble: bytes,
    options: Mapping[str, Any],
    env: Mapping[str, str],
    limit_s: float,
) -> Step:
    """The step on these nodes. command: for ``sh``, the same on every node. Raises NoSlurm."""
    inside = "SLURM_JOB_ID" in env
    words = argv(nodes, command, options, inside, version(), limit_s)
    return Step(
        words, preamble, 10.0 if inside else QUEUE_S + 10.0, {"environment": job_variables(env), "without": _ours(env)}
    )


def argv(
    nodes: Sequence[str],
    command: str,
    options: Mapping[str, Any],
    inside: bool,
    slurm: Optional[Tuple[int, ...]],
    limit_s: float,
) -> Tuple[str, ...]:
    """The command line: one task on each node, which hears our standard input, and ends by itself."""
    count = str(len(nodes))
    words = ["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}"]
    words += [
        "--job-name=ddp-doctor",
        "--input=all",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        "--cpu-bind=none",
    ]
    words += [f"--export=ALL,{TOGETHER}=1"]
    if inside:
        words += ["--overlap"] if slurm is None or slurm >= OVERLAP_SINCE else []
    else:
        words += ["--exclusive", f"--immediate={QUEUE_S}", f"--time={int(limit_s // 60) + 2}"]
        words += [f"--partition={options['partition']}"] if options["partition"] else []
    return (*words, *(f"--{option}" for option in options["slurm_options"]), "--", "sh", "-c", command)


def check_options(options: Mapping[str, Any]) -> None:
    """Raises BadNodes for what srun must not be given."""
    partition = options["partition"]
    if partition is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*", partition):
        raise BadNodes(f"--partition {partition!r}: not the name of a partition")
    for option in options["slurm_options"]:
        if not _OPTION.fullmatch(option):
            raise BadNodes(
                f"--slurm-option {option!r}: expected an option of srun(1), as account=NAME or gpus-per-node=8"
            )
    for name in ("ssh_user", "ssh_port", "ssh_jump", "ssh_options"):
        if options[name]:
            raise BadNodes(
                f"--{name.replace('_', '-').rstrip('s')} and --slurm exclude each other: srun reaches the nodes"
            )


def job_variables(env: Mapping[str, str]) -> Dict[str, str]:
    """What a step of ours would say otherwise than the job: as it is here."""
    names = [f"SLURM_{name}" for name in _OF_A_STEP]
    return {name: env[name] for name in names if name in env}


def _ours(env: Mapping[str, str]) -> List[str]:
    return [f"SLURM_{name}" for name in _OF_A_STEP if f"SLURM_{name}" not in env]


# --------------------------------------------------------------------------- which nodes


def nodes_of(named: Sequence[str], partition: Optional[str], env: Mapping[str, str]) -> List[str]:
    """The nodes that are meant: those named, those of the allocation, or those of the partition. Raises NoSlurm, BadNodes."""
    allocated = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    if "SLURM_JOB_ID" in env and allocated:
        ours = parse_nodes([allocated])
        strange = [name for name in named if name not in ours]
        if strange:
            raise BadNodes(f"not in this allocation, which has {allocated}: {folded(strange)}")
        return list(named) or ours
    if named:
        return list(named)
    if partition is None:
        raise BadNodes("there is no allocation here: name the nodes with --nodes, or a --partition")
    found = [name for name, _ in states(("-p", partition))]
    if not found:
        raise BadNodes(f"Slurm has no partition {partition!r}, or none with nodes: see sinfo")
    return found


def states(words: Sequence[str]) -> List[Tuple[str, str]]:
    """(node, state) of the nodes that sinfo tells for these words. Raises NoSlurm, BadNodes."""
    told = _said(["sinfo", "-h", "-N", "-o", "%N %T", *words])
    found: Dict[str, str] = {}
    for line in told.splitlines():
        name, _, state = line.strip().partition(" ")
        for node in parse_nodes([name]):
            found.setdefault(node, state.strip())
    return list(found.items())


def ready(nodes: Sequence[str], inside: bool) -> Tuple[List[str], List[Unreachable]]:
    """The nodes on which something can be started, and why not on the others. Raises NoSlurm, BadNodes."""
    known = dict(states(("-n", ",".join(nodes))))
    lost = [Unreachable(node, why) for node in nodes for why in [_why_not(known.get(node), inside)] if why]
    names = {node.name for node in lost}
    return [node for node in nodes if node not in names], lost


def _why_not(state: Optional[str], inside: bool) -> Optional[Reason]:
    if state is None:
        return Reason("unresolved", "Slurm knows no node of this name")
    if (_LOST if inside else _DOWN).search(state):
        return Reason("unreachable", f"Slurm says that it is {state}")
    if not inside and _BUSY.match(state):
        return Reason("unreachable", f"Slurm says that it is {state}: other jobs run on it, and none was disturbed")
    return None


def version() -> Optional[Tuple[int, ...]]:
    """Slurm's version; None where srun tells none. Raises NoSlurm."""
    found = re.search(r"(\d+)\.(\d+)", _said(["srun", "--version"]))
    return tuple(map(int, found.groups())) if found else None


def _said(words: Sequence[str]) -> str:
    """What a command of Slurm's printed. Raises NoSlurm."""
    try:
        ran = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError:
        raise NoSlurm(
            f"--slurm: there is no {words[0]} on PATH; load Slurm's module, or use --nodes over ssh"
        ) from None
    except subprocess.TimeoutExpired:
        raise NoSlurm(
            f"--slurm: {words[0]} gave no answer within {COMMAND_S:.0f} s: is slurmctld alive? (scontrol ping)"
        ) from None
    except OSError as error:
        raise NoSlurm(f"--slurm: {words[0]}: {error.strerror}") from None
    text = ran.stderr.decode("utf-8", "replace").strip()
    if ran.returncode:
        raise NoSlurm(f"--slurm: {shlex.join(words[:2])} failed: {text.splitlines()[-1] if text else ran.returncode}")
    return ran.stdout.decode("utf-8", "replace")


# --------------------------------------------------------------------------- why it ended

_TEXTS = (
    (r"Invalid partition name|invalid partition", "there is no such partition: see sinfo"),
    (r"Invalid account or account/partition", "this account may not use the partition: --slurm-option account=NAME"),
    (r"Required node not available", "Slurm will start nothing there: the node is down, drained or reserved"),
    (r"Immediate execution impossible|Requested nodes are busy|Unable to allocate resources: .*busy",
     f"no free nodes within {QUEUE_S} s: name nodes that are idle, or run this inside the job"),
    (r"Requested node configuration is not available", "the nodes or the options do not fit the partition"),
    (r"Job/step already completing|Expired|Invalid job id|job .* not found", "the allocation of this shell has ended"),
    (r"Invalid node name", "Slurm knows no such node"),
    (r"Job violates|QOS|exceeds", "a limit of the account or partition forbids it"),
    (r"launch failed|Communication connection failure|Node failure|Socket timed out", "its slurmd did not start the program"),
    (r"Unable to contact slurm controller", "slurmctld does not answer"),
    (r"unrecognized option|unknown option|invalid option", "srun does not know one of its options"),
)  # fmt: skip
_EXITED = re.compile(r"error: (\S+): tasks? [\d,-]+: (Exited with exit code (\d+)|\w[\w ]*)")


def exited(line: str) -> List[Tuple[str, Optional[int], str]]:
    """(node, exit status, words) for each node whose task srun says in a line to have ended badly."""
    found = _EXITED.search(line)
    if not found:
        return []
    try:
        nodes = parse_nodes([found.group(1)])
    except BadNodes:
        return []
    return [(node, int(found.group(3)) if found.group(3) else None, found.group(2)) for node in nodes]


def why_a_task_ended(status: Optional[int], words: str, greeted: bool) -> Reason:
    """Why the program on one node ended."""
    if greeted:
        return Reason("crashed", f"ended in the middle of its work ({words})")
    if status in (1, 2, 126, 127):
        return Reason("absent", f"no ddp-doctor there ({words}): {NOT_THERE}")
    return Reason("crashed", f"the program there did not start ({words})")


def why_it_ended(status: Optional[int], stderr: str) -> Reason:
    """Why srun as a whole ended, by its last words."""
    said = [line for line in stderr.splitlines() if line.strip()]
    for pattern, text in _TEXTS:
        if any(re.search(pattern, line) for line in said):
            return Reason("unreachable", f"{text} (srun: {_last(said, pattern)})")
    words = f": {_last(said, '')}" if said else ""
    return Reason("unreachable", f"srun ended with status {status}{words}")


def _last(lines: Iterable[str], pattern: str) -> str:
    line = [line for line in lines if re.search(pattern, line)][-1]
    return _printable(re.sub(r"^srun: (error: )?", "", line))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text.strip())[:300]

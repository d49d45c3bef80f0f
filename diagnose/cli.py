"""The command line: arguments and exit status; nothing else."""

import contextlib
import os
import re
import shutil
import sys
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Iterator, List, Optional, Tuple

import click
from ddp_doctor import __version__, process
from ddp_doctor.process import UNSURE, USAGE

DEEP_SAMPLE_S = 5.0
"""Long enough for the slowest rates that are judged, short enough to wait for."""

_NAGIOS = {"passed": 0, "warning": 1, "error": 2, "unknown": 3}


def outcome() -> Tuple[int, str]:
    """Run the command that was typed; its exit status and, where it is not told yet, why."""
    try:
        status = cli.main(prog_name="ddp-doctor", standalone_mode=False)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return UNSURE, "interrupted"
    except click.ClickException as error:
        error.message = _printable(error.message)  # click before 8.2 writes what was typed as it is
        with contextlib.suppress(OSError):
            error.show()
        return (UNSURE if _nagios_asks() else error.exit_code), ""
    except SystemExit:  # click's own answer where the reader of --help has gone away
        return 0, ""
    except OSError as error:
        return USAGE, f"{error.filename or 'standard output'}: {error.strerror}"
    except Exception as error:  # noqa: BLE001  a defect of ours says nothing about the node, and drains none
        defect = f"{type(error).__name__}: {error} ({process.where(error)})"
        return UNSURE, f"a defect of ddp-doctor, please report it: {defect}"
    return (status if isinstance(status, int) else 0), ""


def _nagios_asks() -> bool:
    """For a monitoring system 2 is CRITICAL: how it was called is no fault of the node."""
    return "--exit-style=nagios" in sys.argv or "nagios" in sys.argv


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, invoke_without_command=True
)
@click.version_option(__version__, prog_name="ddp-doctor", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Find what would make a PyTorch distributed job fail, hang or crawl, and say what to change."""
    if context.invoked_subcommand is None:  # click's own status for this depends on its version
        click.echo(context.get_help(), err=True)
        context.exit(USAGE)


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order in which they are read."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


class _Seconds(click.FloatRange):
    """A number of seconds: click takes "nan" for one within every range."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        seconds: float = super().convert(value, param, ctx)
        return seconds if seconds == seconds else self.fail("not a number of seconds", param, ctx)


_asking = _options(
    click.option("--profile", type=click.Choice(["quick", "standard", "deep"]), default="standard", show_default=True,
                 help="quick: no torch import, nothing sent. standard: also imports torch, asks DNS, the named ports and logins. deep: also two readings of all counters, 5 s apart, and the compute test on idle GPUs."),
    click.option("--sample", "sample_s", type=_Seconds(0, 3600), metavar="SECONDS", help="Read counters twice, so far apart, and judge what rose (default: 5 with --profile deep, else one reading)."),
    click.option("--python", metavar="PATH", help="Interpreter whose torch is examined (default: $VIRTUAL_ENV, $CONDA_PREFIX, python3 on PATH if it has torch, else our own)."),
    click.option("--nnodes", type=click.IntRange(1), metavar="N", help="Number of nodes of the job."),
    click.option("--node-rank", type=click.IntRange(0), metavar="R", help="This node's rank; 0 is the master."),
    click.option("--nproc-per-node", type=click.IntRange(1), metavar="N", help="Ranks on each node."),
    click.option("--master-addr", metavar="HOST", help="Host name or address of the master (default: $MASTER_ADDR)."),
    click.option("--master-port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of the master (default: $MASTER_PORT)."),
    click.option("--launcher", type=click.Choice(["torchrun", "slurm", "ssh", "mpirun", "deepspeed", "kubernetes"]), help="What starts the ranks."),
    click.option("--peers", multiple=True, metavar="NODES", help="Nodes to which an ssh login without a password is tried: gpu[01-04] or a,b."),
    click.option("--reach", multiple=True, metavar="HOST:PORT", help="A further TCP port that must answer from here. Repeatable."),
    click.option("--deadline", type=_Seconds(min=0.1), metavar="SECONDS", help="Report what is known by then."),
)  # fmt: skip

_choosing = _options(
    click.option("--select", multiple=True, metavar="IDS", help="Only these checks: ids or their beginnings, comma-separated: gpu,stack/torch."),
    click.option("--ignore", multiple=True, metavar="IDS", help="Not these checks."),
    click.option("--fail-on", type=click.Choice(["note", "warning", "error"]), help="Lowest severity that makes the exit status 1 (default: error)."),
    click.option("--config", metavar="FILE", help="Configuration (default: ddp-doctor.toml or pyproject.toml here, else /etc/ddp-doctor.toml)."),
    click.option("--as-of", type=click.DateTime(["%Y-%m-%d"]), metavar="DAY", help="Judge waivers as of this day."),
)  # fmt: skip

_judging = _options(
    _choosing,
    click.option("--expect-gpus", type=click.IntRange(0), metavar="N", help="This node must show N GPUs."),
    click.option("--require", multiple=True, metavar="SECTIONS", help="Sections of facts that must have been read, comma-separated, out of: os, cpu, memory, limits, disk, time, gpus, torch, cuda, env, network, rdma, ssh, launch, reach, logins, kernel_log, processes, topology, fabric, rates, compute, trends, pairs."),
    click.option("--scope", type=click.Choice(["node", "job", "user"]), help="Whose readiness is judged; a prolog or health check as root judges the node (default: user)."),
)  # fmt: skip

_printing = _options(
    click.option("--output", "outputs", multiple=True, metavar="FORMAT=FILE", help="Also write table, json, junit or markdown to FILE; - instead of the table. Repeatable."),
    click.option("--json", "as_json", is_flag=True, help="The same as --output json=-."),
    click.option("--brief", is_flag=True, help="One line of at most 80 characters."),
    click.option("--exit-style", type=click.Choice(["plain", "nagios"]), default="plain", show_default=True, help="nagios: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."),
    click.option("-v", "--verbose", is_flag=True, help="Also what passed, and the steps of every remedy."),
)  # fmt: skip


_reaching = _options(
    click.option("--nodes", "--nodelist", "nodes", multiple=True, metavar="NODES", help="Examine these nodes over ssh, not this one: gpu[01-64], a,b, or a ClusterShell group @gpu. Repeatable."),
    click.option("--hostfile", metavar="FILE", help="Examine the nodes that FILE names: as for MPI, DeepSpeed, pdsh, or /etc/hosts."),
    click.option("--exclude-nodes", multiple=True, metavar="NODES", help="But not these."),
    click.option("--slurm", is_flag=True, help="By srun instead of ssh: all nodes of this allocation; outside of one those of --nodes or --partition."),
    click.option("--partition", metavar="NAME", help="With --slurm: the nodes of this partition that are idle."),
    click.option("--slurm-option", "slurm_options", multiple=True, metavar="NAME=VALUE", help="As for srun(1): account=ml, gpus-per-node=8. Repeatable."),
    click.option("--push", is_flag=True, help="Nothing is installed on the nodes: what runs there travels over ssh, and leaves nothing."),
    click.option("--remote-command", metavar="COMMAND", help="How ddp-doctor is called on the nodes (default: as here, at the same path)."),
    click.option("--fanout", type=click.IntRange(1, 1024), metavar="N", help="So many nodes at once (default: 64)."),
    click.option("--node-timeout", "node_timeout_s", type=click.FloatRange(1, 86400), metavar="SECONDS", help="What one node may take (default: 120, and samples and tests)."),
    click.option("--connect-timeout", "connect_timeout_s", type=click.IntRange(1, 3600), metavar="SECONDS", help="What its ssh may take to connect (default: 10)."),
    click.option("--ssh-user", metavar="NAME", help="Whom to log in as."),
    click.option("--ssh-port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of the nodes' sshd."),
    click.option("--ssh-jump", metavar="HOST", help="Through this host (ssh -J)."),
    click.option("--ssh-option", "ssh_options", multiple=True, metavar="NAME=VALUE", help="As in ssh_config(5): IdentityFile=~/.ssh/cluster. Repeatable."),
)  # fmt: skip

_listing = _options(
    click.option("--good-nodes", metavar="FILE", help="Write the nodes without a finding at or above --fail-on to FILE, one a line."),
    click.option("--bad-nodes", metavar="FILE", help="Write the others to FILE: those with one, and those that did not answer."),
    click.option("--fold-lists", is_flag=True, help="Write both as gpu[01-63]."),
)  # fmt: skip


@cli.command(short_help="Examine this node, or all nodes: what would fail, hang or crawl.")
@_asking
@_reaching
@_listing
@_judging
@_printing
@click.option(
    "--facts",
    "facts_given",
    multiple=True,
    metavar="FILE",
    help="Judge collected facts, a collect_env report or output of nvidia-smi, or re-print a saved report; more files or folders may follow.",
)
@click.option("--replay", metavar="BUNDLE", help="Judge a recorded bundle (tar.gz or folder) as if on its node.")
@click.option(
    "--in-job",
    is_flag=True,
    help="This process is a rank of a job: all nodes meet in torch's store, node 0 reports (default under torchrun).",
)
@click.option("--baseline", metavar="FILE", help="Hold the nodes against a good day that --save-baseline kept.")
@click.option("--save-baseline", metavar="FILE", help="Keep what the nodes are like now, to compare with later.")
@click.argument("files", nargs=-1)
def run(facts_given: Tuple[str, ...], files: Tuple[str, ...], replay: Optional[str], **options: Any) -> int:
    """Examine this node, or with --nodes or --hostfile all nodes of a job: what would make it fail, hang or crawl, and what
    to change."""
    if files and not facts_given:
        raise click.UsageError(f"unexpected argument {_printable(files[0])!r}; facts files are given with --facts")
    if facts_given and replay:
        raise click.UsageError("--facts and --replay exclude each other")
    cluster = _is_cluster(options)
    if options["in_job"] and (cluster or facts_given or replay):
        raise click.UsageError("--in-job goes with none of --nodes, --hostfile, --slurm, --facts and --replay")
    if cluster and (facts_given or replay):
        raise click.UsageError(
            "nodes are examined, or facts are judged: --nodes, --hostfile and --slurm go with neither --facts nor --replay"
        )
    writers = _writers(options)
    place = None if cluster or facts_given or replay else _place(options)
    if place is not None:
        return _run_in_job(place, writers, options)
    with _plain_errors():
        config = _config(options)
        baseline = options["baseline"]
        if facts_given:
            report, fleet = _report_of_saved((*facts_given, *files), config, baseline)
        elif cluster:
            report, fleet = _report_of_nodes(options, config, baseline)
        else:
            report, fleet = _report_of_node(_host(replay), _ask(options, config), config, options["deadline"], baseline)
        saved = _saved_baseline(options["save_baseline"], fleet)
    return _told(report, writers, options, config) if saved else USAGE


def _told(report: Any, writers: List[Tuple[str, str]], options: Any, config: Any) -> int:
    """Print the report and write the lists; the exit status."""
    status = _print(report, writers, options, config.fail_on)
    return status if _write_lists(report, options, config.fail_on) else USAGE


def _place(options: Any) -> Any:
    """Our place in a job whose ranks meet; None where this process is none of them."""
    if not options["in_job"] and "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from ddp_doctor.cluster import in_job

    with _plain_errors():
        asked = options["in_job"] or in_job.is_rank_of_torchrun(os.environ, process.command_line_above())
        return in_job.place(os.environ) if asked else None


def _run_in_job(place: Any, writers: List[Tuple[str, str]], options: Any) -> int:
    """One rank of each node collects, node 0 judges all and prints; the exit status is the same on all nodes."""
    from ddp_doctor import collect as collecting
    from ddp_doctor import examine
    from ddp_doctor.cluster import gathering, in_job
    from ddp_doctor.host import Host
    from ddp_doctor.progress import Progress

    if not place.collects:
        return 0
    with _plain_errors(), Progress() as progress:
        config = _config(options)
        checks, loaded = _checks(config)
        fleet = _fleet(config, options["baseline"])
        ask = _ask({**options, "python": options["python"] or sys.executable}, config)  # the ranks' own
        limit_s = options["deadline"] or gathering.node_limit_s(ask)
        facts = collecting.gather(Host(), ask, _time_for_collecting(options["deadline"]), waiting_for=progress)
        facts["how"]["via"] = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "env://"
        connect_s = min(in_job.CONNECT_S, options["deadline"] or in_job.CONNECT_S)
        with in_job.Meeting(place, connect_s) as meeting:
            if place.node:
                meeting.bring(facts)
                return meeting.status(limit_s + connect_s)
            reached = meeting.gathered(facts, limit_s, progress)
            report = examine.report(reached, checks, loaded, config, examined=place.nodes, fleet=fleet)
            saved = _saved_baseline(options["save_baseline"], fleet)
            status = _told(report, writers, options, config) if saved else USAGE
            meeting.tell(status)
    return status


def _is_cluster(options: Any) -> bool:
    return bool(options["nodes"] or options["hostfile"] or options["slurm"])


def _write_lists(report: Any, options: Any, fail_on: Any) -> bool:
    """Were the lists of good and bad nodes written, where they are wanted?"""
    if not (options["good_nodes"] or options["bad_nodes"]):
        return True
    from ddp_doctor.cluster import lists

    good, bad = lists.of(report, fail_on)
    written = True
    for path, names in ((options["good_nodes"], good), (options["bad_nodes"], bad)):
        if path:
            written &= _written(path, partial(_write, path, lists.text(names, options["fold_lists"])))
    return written


def _report_of_nodes(options: Any, config: Any, baseline: Optional[str]) -> Any:
    """Examine many nodes, over ssh or by Slurm."""
    from ddp_doctor import examine

    checks, loaded = _checks(config)
    fleet = _fleet(config, baseline)
    launcher = config.policy.launcher
    reached = _reached({**options, "launcher": launcher}, config, config.policy.scope, _asked_for("pairs", config))
    return examine.report(reached, checks, loaded, config, examined=len(reached), fleet=fleet), fleet


def _reached(options: Any, config: Any = None, scope: str = "user", pairs_asked: Optional[bool] = None) -> List[Any]:
    """The facts of many nodes, or why there are none."""
    from ddp_doctor.cluster import gathering
    from ddp_doctor.progress import Progress

    names, remarks = gathering.named(options, os.environ)
    for remark in remarks:
        process.complain(remark)
    plan = gathering.plan(names, _ask({**options, "python": None}, config), options, scope, pairs_asked, os.environ)
    with Progress() as progress:
        return gathering.reach(plan, progress)


def _fleet(config: Any, baseline: Optional[str]) -> Any:
    """An empty fleet, with the good day that it is held against."""
    from ddp_doctor.cluster.fleet import Fleet

    if baseline is None:
        return Fleet(partitions=config.policy.partitions)
    from ddp_doctor.cluster import baseline as good_day

    return Fleet(partitions=config.policy.partitions, good=good_day.load(baseline))


def _saved_baseline(path: Optional[str], fleet: Any) -> bool:
    """Was the baseline written, where one is wanted? A saved report that is printed again has no values to keep."""
    if path is None:
        return True
    from ddp_doctor.cluster import baseline as good_day

    if not fleet.nodes:
        raise click.UsageError("--save-baseline needs nodes that are examined, or facts; a saved report has too little")
    return _written(path, lambda: good_day.save(path, fleet))


def _report_of_node(host: Any, ask: Any, config: Any, deadline_s: Optional[float], baseline: Optional[str]) -> Any:
    """Examine one node; the checks are loaded while the node answers."""
    from ddp_doctor.collect import Gathering
    from ddp_doctor.progress import Progress
    from ddp_doctor.scope import sections_in

    with Gathering(host, ask, _time_for_collecting(deadline_s), sections_in(config.policy.scope)) as gathering:
        from ddp_doctor import document, examine

        checks, loaded = _checks(config)
        fleet = _fleet(config, baseline)
        with Progress() as progress:
            facts = document.facts_collected(gathering.document(progress))
    return examine.report([facts], checks, loaded, config, fleet=fleet), fleet


def _report_of_saved(paths: Tuple[str, ...], config: Any, baseline: Optional[str]) -> Any:
    """Judge collected facts, or take a saved report as it is."""
    from ddp_doctor import examine
    from ddp_doctor.facts import NodeFacts

    fleet = _fleet(config, baseline)
    files = examine.files(paths)
    saved = examine.read_saved(files)
    first = next(saved)
    if not isinstance(first, NodeFacts):
        if len(files) > 1:
            raise click.UsageError(ALONE)
        return first, fleet
    nodes = _facts_only(first, saved)
    return examine.report(nodes, *_checks(config), config, examined=len(files), fleet=fleet), fleet


ALONE = "a saved report is printed alone; give facts files to judge several nodes"


def _facts_only(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    """Nodes as they are read; a report among them is refused."""
    from ddp_doctor.facts import NodeFacts

    yield first
    for found in others:
        if not isinstance(found, NodeFacts):
            raise click.UsageError(ALONE)
        yield found


def _checks(config: Any) -> Tuple[Any, Any]:
    """The checks that are wanted, and the registry that they are from."""
    from ddp_doctor import config as configuration
    from ddp_doctor import registry

    loaded = registry.load()
    configuration.refuse_unknown_checks(config, loaded.checks)
    found = registry.chosen(loaded, config.select, config.ignore)
    if found and all("log" in check.parameters for check in found):
        raise click.UsageError("checks of logs judge what a job left: ddp-doctor explain FILE...")
    return found, loaded


def _time_for_collecting(deadline_s: Optional[float]) -> Optional[float]:
    """What --deadline leaves when the time to judge and to print (some 0.3 s, see benchmarks/) is taken off."""
    return None if deadline_s is None else max(0.1, deadline_s - 0.5)


@cli.command(short_help="The facts of this node, or of all nodes, as JSON; or a bundle for support.")
@_asking
@_reaching
@click.option(
    "--bundle",
    metavar="FILE.tar.gz",
    help="Also record everything that was read, to be judged elsewhere with run --replay.",
)
@click.option(
    "--output",
    "output",
    default="-",
    show_default=True,
    metavar="FILE",
    help="Where the facts go as JSON; with --nodes or --hostfile a folder, for a file of each node.",
)
@click.option("--anonymise", is_flag=True, help="Replace host names, addresses and users, the same way throughout.")
@click.option("--replay", metavar="BUNDLE", help="Take the facts from a recorded bundle.")
def collect(bundle: Optional[str], output: str, anonymise: bool, replay: Optional[str], **options: Any) -> int:
    """Collect the facts of this node, or with --nodes or --hostfile of all nodes of a job, as JSON, secrets redacted; with
    --bundle also the recording for support. run --facts judges them, elsewhere or later."""
    import json

    if _is_cluster(options):
        if bundle or anonymise or replay or output == "-":
            raise click.UsageError(
                "facts of many nodes go to a folder: --output FOLDER, without --bundle, --anonymise and --replay"
            )
        return _collect_nodes(output, options)

    from ddp_doctor import collect as collecting
    from ddp_doctor import recording
    from ddp_doctor.progress import Progress

    with _plain_errors():
        host: Any = recording.open_recording(replay) if replay else recording.Recorder() if bundle else _host(None)
        with Progress() as progress:
            deadline_s = _time_for_collecting(options["deadline"])
            facts = collecting.gather(host, _ask(options), deadline_s, waiting_for=progress)
        entries = host.inlined() if bundle and replay else getattr(host, "entries", {})
        if anonymise:
            from ddp_doctor.anonymise import Anonymiser

            anonymiser = Anonymiser(facts, recording.texts_with_names(entries))
            facts, entries = anonymiser.data(facts), anonymiser.data(entries)
    text = json.dumps(facts, indent=1, sort_keys=True, allow_nan=False) + "\n"
    written = [_written(output, lambda: _write(output, text))]
    if bundle:
        written.append(_written(bundle, lambda: recording.write_bundle(entries, bundle)))
    cut_short = any(reason["kind"] in ("interrupted", "deadline") for reason in facts["reasons"].values())
    return USAGE if not all(written) else UNSURE if cut_short else 0


def _collect_nodes(folder: str, options: Any) -> int:
    """Write a file of facts for each node; nodes without facts are named, and make the exit status 3."""
    from ddp_doctor.cluster import kept
    from ddp_doctor.cluster.reached import Unreachable

    with _plain_errors():
        reached = _reached(options)
        os.makedirs(folder, exist_ok=True)
    missing = [node for node in reached if isinstance(node, Unreachable)]
    for node in missing:
        process.complain(f"{node.name}: {node.reason.text}")
    path = partial(os.path.join, folder)
    written = [_written(path(name), partial(_write, path(name), text)) for name, text in kept.files(reached)]
    return USAGE if not all(written) else UNSURE if missing else 0


@cli.command(short_help="Rates and counters over time, and what only shows then.")
@click.option(
    "--interval",
    "interval_s",
    type=_Seconds(1.0, 3600.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--for", "duration", metavar="TIME", help="End after so long: 90s, 15m, 1h, 2d (default: until Ctrl-C).")
@click.option(
    "--prometheus",
    metavar="FILE",
    help="Also write each look to FILE for node_exporter's textfile collector (a name in .prom).",
)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each look, also on a terminal.")
@click.option("--nnodes", type=click.IntRange(1), metavar="N", help="Number of nodes of the job.")
@_choosing
def watch(interval_s: float, duration: Optional[str], prometheus: Optional[str], as_json: bool, **options: Any) -> int:
    """Watch this node while a job runs: rates live, and findings as they arise.

    Prints a table on a terminal and a line of JSON for each look elsewhere. The exit status is 1 when something arose at
    or above --fail-on, which is a warning here unless it is given.
    """
    from ddp_doctor.host import Host
    from ddp_doctor.watch import command

    with _plain_errors():
        config = _config(options)
        chosen, _ = _checks(config)
        plan = command.plan(interval_s, duration)
        fail_on = config.fail_on if options["fail_on"] else None
        return command.run(
            Host(), chosen, config, plan, command.Where(prometheus, as_json or not sys.stdout.isatty()), fail_on
        )


@cli.command(short_help="Mistakes in files that set variables.")
@click.option(
    "--nccl", metavar="VERSION", help="NCCL that will read the variables: 2.21.5 (default: that of torch's wheels)."
)
@click.option("--torch", metavar="VERSION", help="torch that will read them: 2.4, 2.4.1 or 2.4.1+cu121.")
@click.option("--nnodes", type=click.IntRange(1), metavar="N", help="Number of nodes of the job.")
@_choosing
@_printing
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def lint(files: Tuple[str, ...], nccl: Optional[str], torch: Optional[str], **options: Any) -> int:
    """Mistakes in the variables that files set: scripts, settings, Dockerfiles, Compose and Kubernetes YAML; - is stdin."""
    from ddp_doctor import linting

    writers = _writers(options)
    try:
        version = linting.versions(torch, nccl)
    except linting.BadVersion as error:
        raise click.UsageError(_printable(str(error))) from None
    read: List[Any] = []
    for path in files:
        try:
            read.append(linting.read(path))
        except OSError as error:
            process.complain(f"{path}: {error.strerror}")
    failed = UNSURE if options["exit_style"] == "nagios" else USAGE
    if not read:
        return failed
    with _plain_errors():
        config = _config(options)
        chosen, _ = _checks(config)
    report = linting.report(read, chosen, config, version)
    status = _print(report, writers, options, config.fail_on)
    return status if len(read) == len(files) or status == 1 else failed


@cli.command(short_help="What differs between two nodes, or between then and now.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def compare(a: str, b: str, as_json: bool) -> int:
    """What differs between the facts in the files A and B (of ``collect``): two nodes, or one node then and now.

    The exit status is 0 when nothing differs, 1 when something does, and 3 when nothing that is known does and something
    could not be read on one side.
    """
    from ddp_doctor import compare as comparing
    from ddp_doctor import examine
    from ddp_doctor.facts import NodeFacts

    with _plain_errors():
        found: List[Any] = list(examine.read_saved(examine.files([a, b])))
        if len(found) != 2 or not all(isinstance(facts, NodeFacts) for facts in found):
            raise click.UsageError("two files with facts are compared: one of each node, or of each day")
    comparison = comparing.compare(found[0], found[1])
    _write("-", (comparing.as_json(comparison) if as_json else comparing.text(comparison, _width())) + "\n")
    return comparison.exit_status


@cli.command(short_help="What to do about what run finds: to read, to source, or as a script.")
@_asking
@_choosing
@click.option(
    "--facts", "facts_given", metavar="FILE", help="For collected facts, or a saved report, instead of this node."
)
@click.option("--replay", metavar="BUNDLE", help="For a recorded bundle.")
@click.option("--env", "as_env", is_flag=True, help='Export and unset lines alone: eval "$(ddp-doctor fix --env)".')
@click.option(
    "--script", metavar="FILE", help="Also write a shell script that shows the commands, and runs them with --apply."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.argument("ids", nargs=-1, metavar="[CHECK-ID...]")
def fix(
    ids: Tuple[str, ...],
    facts_given: Optional[str],
    replay: Optional[str],
    as_env: bool,
    script: Optional[str],
    as_json: bool,
    **options: Any,
) -> int:
    """What to do about what run finds here, or in FILE; with CHECK-IDs about these alone. Nothing is applied.

    The exit status is 0 when there is nothing to fix at or above --fail-on, else 1.
    """
    from ddp_doctor import fixing, registry

    options.update(expect_gpus=None, require=(), scope=None)
    with _plain_errors():
        config = _config(options)
        registry.chosen(registry.load(), ids, ())
        if facts_given:
            report, _ = _report_of_saved((facts_given,), config, None)
        else:
            report, _ = _report_of_node(_host(replay), _ask(options, config), config, options["deadline"], None)
    found = fixing.fixes(report, ids)
    told = (
        fixing.as_json(found) + "\n"
        if as_json
        else fixing.environment(found)
        if as_env
        else fixing.text(found, _width())
    )
    written = not script or _written(script, partial(_write, script, fixing.script(found)))
    _write("-", told)
    return fixing.exit_status(found, config.fail_on) if written else USAGE


@cli.command("nccl-test", short_help="How fast and how right collectives are on this node.")
@click.option(
    "--nproc-per-node",
    "ranks",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Ranks (default: as many as there are GPUs; 2 without).",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "nccl", "gloo"]),
    default="auto",
    show_default=True,
    help="auto: nccl where torch sees GPUs, else gloo.",
)
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    type=click.Choice(["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]),
    help="Repeatable (default: all_reduce).",
)
@click.option("-b", "--minbytes", default="8", show_default=True, metavar="SIZE", help="First size: 8, 64K, 128M.")
@click.option(
    "-e",
    "--maxbytes",
    metavar="SIZE",
    help="Last size (default: 8G bounded by the free memory of the GPUs; 64M with gloo).",
)
@click.option(
    "-f",
    "--stepfactor",
    "factor",
    type=click.IntRange(2, 1024),
    default=2,
    show_default=True,
    metavar="N",
    help="Each size is so many times the one before.",
)
@click.option(
    "-n",
    "--iters",
    "iterations",
    type=click.IntRange(1, 100000),
    default=20,
    show_default=True,
    metavar="N",
    help="Iterations of each repeat.",
)
@click.option(
    "-w", "--warmup", type=click.IntRange(0, 100000), default=5, show_default=True, metavar="N", help="Warm-ups."
)
@click.option(
    "-c", "--check", type=click.IntRange(0, 1), default=1, show_default=True, metavar="0|1", help="Compare the data."
)
@click.option(
    "-d",
    "--datatype",
    "dtypes",
    multiple=True,
    type=click.Choice(["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8"]),
    help="Repeatable (default: float32).",
)
@click.option(
    "--min-busbw", type=_Seconds(min=0), metavar="GB/S", help="What the best large size of each collective must reach."
)
@click.option("--python", metavar="PATH", help="Interpreter with torch (default: as for run).")
@click.option("--force", is_flag=True, help="Also on GPUs that other processes use.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def nccl_test(
    minbytes: str, maxbytes: Optional[str], factor: int, min_busbw: Optional[float], as_json: bool, **options: Any
) -> int:
    """How fast collectives are between the ranks of this node, and whether their data is right: all GPUs with NCCL, or processors
    with Gloo. No compiler and no MPI is needed: torch is.

    The exit status is 0 when all is as wanted, 1 for wrong data or less than --min-busbw, and 3 when it cannot be told.
    """
    from ddp_doctor import measuring, nccl_test
    from ddp_doctor.progress import Progress

    try:
        plan = measuring.plan(minbytes, maxbytes, factor, _python(options.pop("python")), options)
    except nccl_test.BadTest as error:
        raise click.UsageError(_printable(str(error))) from None
    with Progress() as progress:
        measured = nccl_test.run(plan, lambda text: progress([text]))
    verdict = nccl_test.judged(measured, min_busbw)
    if measured.failure:
        process.complain(measured.failure)
        for words in measuring.explained(measured.lines, _width()):
            process.complain(words)
    _write("-", nccl_test.as_json(measured, verdict) + "\n" if as_json else nccl_test.table(measured, verdict))
    return verdict.exit_status


@cli.command(short_help="Why a job failed, from its logs.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="As Markdown, for an issue.")
@click.option("-v", "--verbose", is_flag=True, help="All causes that were weighed, with more of their lines.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def explain(files: Tuple[str, ...], as_json: bool, as_markdown: bool, verbose: bool) -> int:
    """Read the logs of a job (files, folders, gz, xz or bz2; - is standard input) and name the cause, where it began, and what
    to do. Give it all there is: every rank's log, the scheduler's, dmesg of the nodes.

    The exit status is 0 for a healthy log, 1 when a cause was found, and 3 when none is known.
    """
    from ddp_doctor import explain as explaining
    from ddp_doctor import registry
    from ddp_doctor.logs import reading, scan
    from ddp_doctor.progress import Progress

    checks = explaining.of_logs(list(registry.load().checks.values()))
    try:
        with Progress() as progress:
            log = scan.scanned(reading.files(files), explaining.patterns(checks), progress)
    except reading.BadLog as error:
        raise click.UsageError(_printable(str(error))) from None
    explained = explaining.explain(log, checks)
    if as_json:
        told = explaining.as_json(explained) + "\n"
    else:
        told = explaining.markdown(explained) if as_markdown else explaining.text(explained, _width(), verbose)
    _write("-", told)
    return explained.exit_status


@cli.command(short_help="List the checks, or explain one.")
@click.argument("check_id", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def checks(check_id: Optional[str], as_json: bool) -> int:
    """List the checks; with an ID (or the beginning of one) print the documentation."""
    from ddp_doctor import reference, registry

    loaded = registry.load()
    with _plain_errors():
        found = registry.chosen(loaded, [check_id] if check_id else [], [])
    text = reference.as_json(found) if as_json else reference.text(found, loaded, bool(check_id), _width())
    _write("-", text + "\n")
    return 0


@cli.command(hidden=True)
def node() -> None:
    """The program that run --nodes starts on each node: requests on standard input, answers on standard output."""
    from ddp_doctor import node as program

    program.main()


@cli.command(short_help="What goes with what, and what to install here.")
@click.option("--torch", metavar="VERSION", help="2.4, 2.4.1 or 2.4.1+cu121.")
@click.option("--cuda", metavar="VERSION", help="CUDA that the wheel is built with: 12.1, cu121 or 12.")
@click.option("--driver", metavar="VERSION", help="NVIDIA driver: 535.104.05, or 535 for that branch.")
@click.option("--python", metavar="VERSION", help="3.12, or 3.13t for the one without a GIL.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="GPU",
    help="Model (H100), compute capability (9.0) or architecture (Hopper). Repeatable.",
)
@click.option("--os", metavar="NAME", help='"ubuntu 22.04", centos-7, or "glibc 2.28".')
@click.option("--machine", type=click.Choice(["x86_64", "aarch64"]), help="Kind of machine (default: x86_64).")
@click.option(
    "--here",
    "on_node",
    is_flag=True,
    help="What to install on this node; so without any of the above, too. With --python or --driver: as if it had that one.",
)
@click.option("--all", "everything", is_flag=True, help="All official wheels with CUDA.")
@click.option("--replay", metavar="BUNDLE", help="What to install on the node of a recorded bundle.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def matrix(on_node: bool, everything: bool, replay: Optional[str], as_json: bool, **values: Any) -> int:
    """What goes with what: torch, CUDA, NCCL, driver, Python, GPU and system; and what to install on this node."""
    from ddp_doctor import matrix as table
    from ddp_doctor import matrix_page

    _refuse_odd(values)
    try:
        wanted = table.asked(**{name: value for name, value in values.items() if value})
    except table.UnknownValue as error:
        raise click.UsageError(_printable(str(error))) from None
    if on_node or replay or not (everything or any(values.values())):
        return _advise(replay, wanted, [name for name, value in values.items() if value], as_json)
    found = table.rows(wanted)
    _write("-", (table.as_json(wanted, found) if as_json else matrix_page.text(wanted, found, _width())) + "\n")
    return 0 if found else 1


def _refuse_odd(values: Any) -> None:
    """An empty variable of a script, or anything else that cannot be a version or a name, is a mistake."""
    for name, value in values.items():
        for text in value if isinstance(value, tuple) else (value,):
            if text is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._+=()/-]{0,80}", text):
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} {_printable(text[:80])!r}: neither a version nor a name")


def _advise(replay: Optional[str], wanted: Any, given: List[str], as_json: bool) -> int:
    """What to install on this node, or on a recorded one."""
    from ddp_doctor import collect as collecting
    from ddp_doctor import document, here, matrix_page
    from ddp_doctor.ask import Ask

    if set(given) - {"python", "driver"}:
        raise click.UsageError("for this node (--here, --replay) only --python and --driver can be given")
    with _plain_errors():
        facts = collecting.gather(_host(replay), Ask(profile="quick", cwd=_cwd()), sections=here.SECTIONS)
    advice = here.advise(document.facts_from(facts), wanted.python, wanted.driver)
    _write("-", (here.as_json(advice) if as_json else matrix_page.advice(advice, _width())) + "\n")
    return 0 if advice.install else 1 if advice.known else UNSURE


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """What users' input can cause becomes a sentence and exit status 2."""
    from ddp_doctor.cluster.names import BadNodes
    from ddp_doctor.config import BadConfig
    from ddp_doctor.document import BadDocument
    from ddp_doctor.recording import BadRecording
    from ddp_doctor.registry import UnknownCheck
    from ddp_doctor.watch import BadTime

    try:
        yield
    except (BadConfig, BadDocument, BadNodes, BadRecording, BadTime, UnknownCheck) as error:
        raise click.UsageError(_printable(str(error))) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise click.UsageError(_printable(f"{place}{error.strerror}")) from None


def _printable(text: str) -> str:
    from ddp_doctor.escape import terminal

    return terminal(text)


def _ask(options: Any, config: Any = None) -> Any:
    from ddp_doctor.ask import Ask
    from ddp_doctor.cluster.names import parse_nodes

    return Ask(
        profile=options["profile"],
        launcher=options["launcher"],
        nnodes=options["nnodes"],
        node_rank=options["node_rank"],
        nproc_per_node=options["nproc_per_node"],
        master_addr=_node(options["master_addr"]),
        master_port=options["master_port"],
        peers=tuple(parse_nodes(options["peers"])),
        ports=tuple(_endpoint(text) for text in options["reach"]),
        python=_python(options["python"]),
        cwd=_cwd(),
        sample_s=_sample_s(options["sample_s"], options["profile"]),
        compute=_asked_for("gpu-test", config),
    )


def _asked_for(area: str, config: Any) -> Optional[bool]:
    """Is a test asked for by the name of its checks, or judged by nobody? None: as the profile says."""
    if config is None:
        return None
    if any(name.startswith(area) for name in config.select):
        return True
    ignored = any(name.rstrip("/") in (area, area.split("-")[0]) for name in config.ignore)
    others = config.select and not any(area.startswith(name.rstrip("*/")) for name in config.select)
    return False if ignored or others else None


def _sample_s(given: Optional[float], profile: str) -> float:
    """Seconds between two readings of counters; 0: one reading."""
    return given if given is not None else DEEP_SAMPLE_S if profile == "deep" else 0.0


def _python(given: Optional[str]) -> Optional[str]:
    """An interpreter or the folder of an environment; a slip of the pen must not end as "no torch"."""
    if given is None or shutil.which(given) or shutil.which(os.path.join(given, "bin", "python")):
        return given
    raise click.UsageError(f"--python {_printable(given)!r}: no interpreter, and no environment with one in bin/")


def _cwd() -> Optional[str]:
    """The working directory; None where it was deleted, or lies on a file system that is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _node(name: Optional[str]) -> Optional[str]:
    from ddp_doctor.cluster.names import parse_nodes

    return parse_nodes([name])[0] if name else None


def _endpoint(text: str) -> Tuple[str, int]:
    from ddp_doctor.collect.master import is_port

    host, _, port = text.rpartition(":")
    name = _node(host.strip("[]"))
    if not name or not is_port(port):
        raise click.UsageError(f"--reach {_printable(text)!r}: expected HOST:PORT")
    return name, int(port)


def _host(replay: Optional[str]) -> Any:
    from ddp_doctor.host import Host
    from ddp_doctor.recording import open_recording

    return open_recording(replay) if replay else Host()


def _config(options: Any) -> Any:
    """The file's configuration, with the options over it."""
    from ddp_doctor import config as configuration
    from ddp_doctor.model import Severity

    found = configuration.load(configuration.find(options["config"], _cwd()))
    for remark in configuration.passed_over(options["config"], _cwd()):
        process.complain(remark)
    changes = {
        name: options[name]
        for name in ("nnodes", "nproc_per_node", "launcher", "expect_gpus", "scope")
        if options.get(name) is not None
    }
    if options.get("require"):
        changes["require"] = tuple(_words(options["require"]))
    if options["as_of"]:
        changes["today"] = options["as_of"].date()
    return replace(
        found,
        policy=configuration.checked("options", replace(found.policy, **changes)),
        select=tuple(_words(options["select"])) or found.select,
        ignore=tuple(_words(options["ignore"])) or found.ignore,
        fail_on=Severity(options["fail_on"]) if options["fail_on"] else found.fail_on,
    )


def _words(texts: Tuple[str, ...]) -> List[str]:
    return [word for text in texts for word in text.replace(",", " ").split()]


def _writers(options: Any) -> List[Tuple[str, str]]:
    """(format, file) of each report to write; the table on the terminal unless something else goes there."""
    from ddp_doctor import report as reports

    wanted = [*options["outputs"], *(["json=-"] if options["as_json"] else [])]
    writers = []
    for text in wanted:
        kind, equals, path = text.partition("=")
        if not equals or not path or kind not in reports.formats():
            raise click.UsageError(
                f"--output {_printable(text)!r}: expected FORMAT=FILE with one of {', '.join(reports.formats())}"
            )
        writers.append((kind, path))
    if sum(path == "-" for _, path in writers) > 1:
        raise click.UsageError("only one format can go to standard output")
    if not any(path == "-" for _, path in writers):
        writers.insert(0, ("brief" if options["brief"] else "table", "-"))
    return writers


def _print(report: Any, writers: List[Tuple[str, str]], options: Any, fail_on: Any) -> int:
    """Write every format; one that cannot be written does not keep the others."""
    from ddp_doctor import report as reports

    status = _status(report, options["exit_style"])
    for kind, path in writers:
        on_terminal = path == "-" and sys.stdout.isatty()
        how = reports.Options(
            width=_width(),
            colour=on_terminal and "NO_COLOR" not in os.environ,
            verbose=options["verbose"],
            encoding=(sys.stdout.encoding or "ascii") if path == "-" else "utf-8",
            fail_on=fail_on,
        )
        text = reports.render(kind, report, how)
        if not _written(path, partial(_write, path, text)):
            status = USAGE if options["exit_style"] == "plain" else UNSURE
    return status


def _written(path: str, write: Callable[[], None]) -> bool:
    """Did ``write`` succeed? If not, standard error says why, and what else is to be written still is."""
    try:
        write()
    except OSError as error:
        process.complain(f"{'standard output' if path == '-' else path}: cannot be written: {error.strerror}")
        return False
    return True


def _status(report: Any, style: str) -> int:
    from ddp_doctor.model import Severity, folded, worst

    if style == "plain":
        return int(report.summary.exit_status)
    found = worst(folded(report.verdicts))
    if found in (Severity.ERROR, Severity.WARNING):
        return _NAGIOS[found.value]
    return _NAGIOS[{1: "warning", 3: "unknown"}.get(report.summary.exit_status, "passed")]


def _write(path: str, text: str) -> None:
    """Write text to a file or, for "-", to standard output, whatever its encoding can carry.

    Raises OSError, but not where the reader has gone away (``| head``): it has what it wanted.
    """
    if path != "-":
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return
    encoding = sys.stdout.encoding or "ascii"
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()


def _width() -> int:
    """Columns of the terminal; 100 where there is none."""
    return max(40, min(120, shutil.get_terminal_size((100, 24)).columns))

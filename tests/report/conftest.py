"""Reports made by hand, with everything in them that a report can hold."""

import pytest
from ddp_doctor import model
from ddp_doctor.facts import How, Reason
from ddp_doctor.model import Outcome, Remedy, Report, Severity, Tool, Verdict, Waived, command, export, say, write_file

HOSTILE = "\x1b[2J\u202egnp.exe\nexport X=1 <b onload=x> `id` | [l](javascript:x) \ufffe\udcff]]>"
"""Clears a screen, reorders text, breaks lines, begins markup, and holds what XML and UTF-8 cannot."""

MEMLOCK = Verdict(
    check="limits/memlock-too-low",
    node="n1",
    outcome=Outcome.FAILED,
    severity=Severity.ERROR,
    measured="memlock 64 KiB of this shell (user ana)",
    expected="unlimited, or CAP_IPC_LOCK",
    message="NCCL cannot pin its InfiniBand buffers",
    why="NCCL registers its buffers with the HCA; past the limit the first collective dies with "
    '"unhandled system error", on whichever rank comes first.',
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    fixes=(
        Remedy(
            "Raise the limit for every login",
            (
                write_file(
                    "/etc/security/limits.d/90-rdma.conf",
                    "* soft memlock unlimited\n* hard memlock unlimited\n",
                    who="root",
                    scope="this node",
                    undo="remove the file",
                ),
                say("Log in again: a limit holds from the next login on."),
            ),
        ),
        Remedy("Start the job with sockets instead", (export("NCCL_IB_DISABLE", "1"),)),
    ),
)
SLOW = Verdict(
    check="network/slow-interface",
    node="n1",
    outcome=Outcome.FAILED,
    severity=Severity.NOTE,
    subject="enp3s0",
    measured="1 Gb/s",
    expected="10 Gb/s or more: 1 Gb/s gives NCCL about 0.11 GB/s",
    message="the network between nodes is slow",
    why="NCCL moves every gradient over it in each step.",
    fixes=(Remedy("See how much it matters", (command("ddp-doctor nccl-test -b 8 -e 64M"),)),),
)
SWAP = Verdict(
    check="memory/swapping",
    node="n1",
    outcome=Outcome.FAILED,
    severity=Severity.WARNING,
    measured="3 GiB of swap in use",
    message="memory was short",
    waived=Waived("shared login node", "2030-01-31"),
)


def _passed(check, measured, subject=""):
    return Verdict(check, "n1", Outcome.PASSED, Severity.ERROR, subject=subject, measured=measured, expected="enough")


def _skipped(check, kind, text, subject=""):
    return Verdict(check, "n1", Outcome.SKIPPED, Severity.ERROR, subject=subject, reason=Reason(kind, text))


BROKEN = Verdict(
    "site/quota", "n1", Outcome.BROKEN, Severity.ERROR, reason=Reason("broken", "ZeroDivisionError: x (quota.py:7)")
)
OTHERS = (
    _passed("disk/nearly-full", "30 GiB free", "/tmp"),
    _passed("disk/nearly-full", "12 GiB free", "/home/ana"),
    _passed("disk/read-only", "read and write"),
    _passed("limits/nofile-too-low", "1048576 open files"),
    _skipped("gpu/mixed-models", "not-applicable", "nothing of the kind on this node"),
    _skipped("gpu/memory-taken", "not-applicable", "nothing of the kind on this node"),
    _skipped("launch/rank-beyond-world", "not-applicable", "the job has one node"),
    _skipped("network/firewall-closed", "no-rights", "needs root: nft list ruleset: Operation not permitted"),
    _skipped("ssh/login-fails", "not-asked", "profile quick logs in nowhere"),
    _skipped("disk/out-of-inodes", "timed-out", "statvfs /home: timed out after 2 s", "/home/ana"),
)
NODE = model.Node(
    name="n1",
    how=How(via="local", user="ana", uid=1000, tool_version="0.1.0", python="3.10.12"),
    collected_at=1700000000.0,
    duration_s=0.31,
    summary={
        "System": "Ubuntu 22.04.4 LTS, kernel 5.15.0-105-generic, x86_64",
        "GPUs": "8 x NVIDIA A100-SXM4-80GB, driver 535.104.05, which supports CUDA up to 12.2",
        "PyTorch": "2.3.1+cu121, for CUDA 12.1, NCCL 2.20.5, Python 3.10.12 /usr/bin/python3 (PATH)",
    },
    left_behind=("pid 4242 (reading disk)",),
)
SUMMARY = model.Summary(
    headline="Not ready: 1 thing to fix. NCCL will use enp3s0 at 1 Gb/s: about 0.11 GB/s, slow but normal.",
    exit_status=1,
    counts={"error": 1, "warning": 0, "note": 1, "waived": 1, "passed": 4, "skipped": 6, "broken": 1},
    next=(
        "# what a finding means, in full:",
        "ddp-doctor checks limits/memlock-too-low",
        "torchrun --nnodes 2 --nproc_per_node 8 --node_rank 0 --master_addr 10.0.0.1 --master_port 29500 train.py",
    ),
    remarks=("configuration: /etc/ddp-doctor.toml",),
)


def _report(nodes, verdicts, summary=SUMMARY):
    return Report(1, Tool("ddp-doctor", "0.1.0"), tuple(nodes), tuple(verdicts), summary)


@pytest.fixture
def report():
    """One node with a fault, a note, a waived finding, a broken check, passes and skips."""
    return _report([NODE], [SLOW, SWAP, MEMLOCK, BROKEN, *OTHERS])


@pytest.fixture
def fleet():
    """Three nodes, of which two share a fault and one could not be reached."""
    nodes = [
        NODE,
        model.Node("n2", summary=NODE.summary),
        model.Node("n3", status="unreachable", reason=Reason("refused", "n3 port 22: connection refused")),
    ]
    found = [MEMLOCK, SLOW, model.Verdict(**{**vars(MEMLOCK), "node": "n2"})]
    return _report(nodes, found)


@pytest.fixture
def hostile():
    """Every text of it is hostile."""
    step = model.Step("command", text=HOSTILE, name=HOSTILE, value=HOSTILE, scope=HOSTILE, risk=HOSTILE, see=HOSTILE)
    text = dict.fromkeys(("check", "subject", "measured", "expected", "message", "why", "source"), HOSTILE)
    reason, fixes = Reason(HOSTILE, HOSTILE), (Remedy(HOSTILE, (step,)), Remedy(HOSTILE))
    verdicts = [
        Verdict(
            node=HOSTILE, outcome=outcome, severity=Severity.ERROR, reason=reason, fixes=fixes, waived=waived, **text
        )
        for outcome in Outcome
        for waived in (None, Waived(HOSTILE, HOSTILE))
    ]
    node = model.Node(HOSTILE, status=HOSTILE, summary={HOSTILE: HOSTILE}, left_behind=(HOSTILE,))
    summary = model.Summary(HOSTILE, 1, {}, (HOSTILE, "#" + HOSTILE), (HOSTILE,))
    return _report([node, node], verdicts, summary)

"""Remedies for processes that hang or were left behind."""

from typing import Iterator

from ddp_doctor.model import Remedy, Verdict, command, say


def stuck_in_kernel(finding: Verdict) -> Iterator[Remedy]:
    pid = finding.subject.split()[-1]
    yield Remedy(
        "Find out what it waits for, then mend that",
        (
            command(f"cat /proc/{pid}/stack", who="root"),
            say("In the NVIDIA driver: the kernel log has the Xid; reset the GPU or reboot the node. In a network file system: "
                "its server or the mount. The process ends by itself once the kernel lets go; until then only a reboot does."),
        ),
    )  # fmt: skip


def orphan_holds_gpu(finding: Verdict) -> Iterator[Remedy]:
    pid = finding.subject.split()[-1]
    yield Remedy(
        "Look whose it is, and end it if its job is over",
        (
            command(f"ps -o pid,ppid,user,lstart,args -p {pid}"),
            command(f"kill {pid}", who="user", risk="ends the process: be sure that its job is over"),
        ),
    )


def rank_not_collected(finding: Verdict) -> Iterator[Remedy]:
    yield Remedy("Look at the launcher's log for the rank that ended; end the job if it waits for it", ())

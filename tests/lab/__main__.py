"""A lab by hand, from the project's folder as root: ``python -m tests.lab up 4`` until Ctrl-C or the end of input.

``python -m tests.lab slurm 3``: the same with a Slurm, whose controller is on node1.
"""

import argparse
import contextlib
import shlex
import sys

from tests.lab.hosts import Lab, Unable
from tests.lab.slurm import Slurm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument(
        "what", choices=["up", "slurm"], help="build hosts, or a Slurm on them, and keep them until the end of input"
    )
    parser.add_argument("hosts", type=int, nargs="?", default=2, help="how many (default 2)")
    arguments = parser.parse_args()
    try:
        with contextlib.ExitStack() as stack:
            lab = stack.enter_context(Lab())
            stack.enter_context(contextlib.suppress(KeyboardInterrupt))
            up(lab, arguments.hosts)
            if arguments.what == "slurm":
                slurm = stack.enter_context(Slurm(lab, "node1", list(lab.hosts)[1:]))
                print(
                    f"on node1: export SLURM_CONF={slurm.env['SLURM_CONF']}; srun -N{arguments.hosts - 1} hostname",
                    flush=True,
                )
            sys.stdin.read()
    except Unable as error:
        print(f"no lab here: {error}", file=sys.stderr)
        return 1
    return 0


def up(lab: Lab, count: int) -> None:
    """Hosts node1 ... that let each other in; print how to enter each."""
    for number in range(1, count + 1):
        lab.add(f"node{number}").sshd()
    for host in lab.hosts.values():
        host.knows(*lab.hosts.values())
        print(f"{host.name} {host.address}: {shlex.join(host.argv(['bash']))}")
    print("Ctrl-C ends them all.", flush=True)


if __name__ == "__main__":
    sys.exit(main())

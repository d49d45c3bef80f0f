"""A lab by hand, from the project's folder as root: ``python -m tests.lab up 4`` until Ctrl-C or the end of input."""

import argparse
import contextlib
import shlex
import sys

from tests.lab.hosts import Lab, Unable


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("what", choices=["up"], help="build hosts and keep them until the end of input")
    parser.add_argument("hosts", type=int, nargs="?", default=2, help="how many (default 2)")
    arguments = parser.parse_args()
    try:
        with Lab() as lab, contextlib.suppress(KeyboardInterrupt):
            up(lab, arguments.hosts)
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

"""In the virtual machine: two node programs try RDMA between two devices:  rdma_pairs.py DEVICE GID ADDRESS DEVICE GID ADDRESS

Prints what each of them found, as JSON.
"""

import json
import subprocess
import sys
from typing import Any, Dict, List

from ddp_doctor.cluster.pairs import Node, run
from ddp_doctor.cluster.rdma_ways import End
from ddp_doctor.facts import Reason, to_plain
from ddp_doctor.node import MARK


class Pipes:
    """A session with programs of this machine."""

    def __init__(self, names: List[str]) -> None:
        pipe = subprocess.PIPE
        self.programs = {
            name: subprocess.Popen([sys.executable, "-m", "ddp_doctor", "node"], stdin=pipe, stdout=pipe, text=True)
            for name in names
        }

    def ask(self, requests: Any, limit_s: float) -> Dict[str, Any]:
        """One after the other: what must be at the same time is served first."""
        for name, request in requests.items():
            self.programs[name].stdin.write(json.dumps({**request, "id": 1}) + "\n")
            self.programs[name].stdin.flush()
        return {name: self.answer(name) for name in requests}

    def answer(self, name: str) -> Any:
        for line in self.programs[name].stdout:
            answer = json.loads(line[len(MARK) :]) if line.startswith(MARK) else {}
            if answer.get("id") == 1:
                return answer["value"] if "value" in answer else Reason(answer["failure"], answer["text"])
        return Reason("crashed", "the program ended")


def main() -> None:
    words = sys.argv[1:]
    ends = [(words[0], words[1], words[2]), (words[3], words[4], words[5])]
    nodes = [
        Node(name, address, rdma=(End(device, 1, int(gid), 1024, True),))
        for name, (device, gid, address) in zip("ab", ends)
    ]
    session = Pipes([node.name for node in nodes])
    found = run(session, nodes, throughput=False, rdma=True, limit_s=120)
    print(json.dumps({name: to_plain(section) for name, section in found.items()}))


if __name__ == "__main__":
    main()

"""A thousand nodes, of which three hundred are down: the command comes to its report, and names them.

ssh is a script here: no machine has a thousand sshd. What it prints and how it ends is OpenSSH's.
"""

import json
import os
import subprocess
import sys

import pytest
from ddp_doctor.node import MARK

pytestmark = pytest.mark.slow
LIMIT_S = 300
SSH = f"""#!/bin/sh
for word; do case $word in n[0-9][0-9][0-9]) node=$word;; esac; done
case $node in
  *0) echo "ssh: connect to host $node port 22: Connection refused" >&2; exit 255;;
  *1) echo "ssh: connect to host $node port 22: Connection timed out" >&2; exit 255;;
  *2) echo "me@$node: Permission denied (publickey)." >&2; exit 255;;
esac
printf '\\n{MARK}{{"hello": {{}}}}\\n'
while read -r line; do
  id=${{line##*'"id": '}}
  case $line in
    *'"do": "time"'*) printf '{MARK}{{"id": "ping", "value": %s}}\\n' "$(date +%s)";;
    *'"do": "facts"'*) printf '{MARK}{{"id": %s, "value": {{"name": "x", "schema_version": 1, "os": {{"hostname": "%s"}}, "reasons": {{}}}}}}\\n' "${{id%%\\}}*}}" "$node";;
    *) exit 0;;
  esac
done
"""


@pytest.fixture
def env(tmp_path):
    script = tmp_path / "ssh"
    script.write_text(SSH)
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_a_thousand_nodes_of_which_300_are_down(env, tmp_path):
    words = ["run", "--nodes", "n[000-999]", "--profile", "quick", "--select", "fleet,os", "--json", "--fold-lists"]
    words += ["--bad-nodes", str(tmp_path / "bad"), "--fanout", "256"]
    done = subprocess.run([sys.executable, "-m", "ddp_doctor", *words], env=env, capture_output=True, timeout=LIMIT_S)
    report = json.loads(done.stdout)
    reasons = {}
    for node in report["nodes"]:
        reasons.setdefault(node["reason"]["kind"] if node["reason"] else "examined", []).append(node["name"])
    assert {kind: len(names) for kind, names in reasons.items()} == {
        "examined": 700,
        "refused": 100,
        "timed-out": 100,
        "auth-refused": 100,
    }
    assert all(name.endswith("0") for name in reasons["refused"])
    assert done.returncode == 3
    assert len((tmp_path / "bad").read_text()) < 3000


def test_its_table_names_them_in_a_few_lines(env):
    words = ["run", "--nodes", "n[000-099]", "--profile", "quick", "--select", "os"]
    done = subprocess.run(
        [sys.executable, "-m", "ddp_doctor", *words], env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert "30 of 100 nodes did not answer" in done.stdout
    assert "n000" in done.stdout
    assert len(done.stdout.splitlines()) < 60

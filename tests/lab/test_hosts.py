"""The lab itself: hosts that see each other, and nothing that stays."""

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab
TESTS = Path(__file__).parent.parent
BUILD_AND_WAIT = """
import sys
sys.path.insert(0, sys.argv[1])
from lab.hosts import Lab
lab = Lab()
host = lab.add("victim")
print(host.pid, lab.switch.pid, lab.folder, flush=True)
sys.stdin.read()
"""


def test_hosts_have_names_addresses_and_a_process_table_of_their_own(lab):
    a, b = lab.add("a"), lab.add("b")
    assert a.run(["hostname"]).stdout == "a\n"
    assert b.run(["getent", "hosts", "a"]).stdout.split() == [a.address, "a"]
    assert a.run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
    assert a.run(["ps", "-p", "1", "-o", "comm="]).stdout == "cat\n"


def test_the_machine_does_not_see_what_happens_in_a_host(lab):
    before = (os.uname().nodename, Path("/etc/hosts").read_text(), sorted(os.listdir("/sys/class/net")))
    host = lab.add("inside")
    host.nft("tcp dport 1 drop")
    host.etc("hosts", "127.0.0.1 elsewhere\n")
    assert (os.uname().nodename, Path("/etc/hosts").read_text(), sorted(os.listdir("/sys/class/net"))) == before


def test_a_killed_host_is_gone_and_the_others_stay(lab):
    victim, witness = lab.add("victim"), lab.add("witness")
    victim.listen(5000)
    assert victim.port in lab.switch.run(["ls", "/sys/class/net"]).stdout.split()
    victim.close()
    assert victim.run(["true"], check=False).returncode != 0
    assert victim.port not in lab.switch.run(["ls", "/sys/class/net"]).stdout.split()
    assert witness.run(["hostname"]).stdout == "witness\n"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waiting for another's child needs pidfd_open (Python 3.9)")
def test_hosts_end_when_the_process_that_built_them_is_killed(lab):
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILD_AND_WAIT, str(TESTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    *pids, folder = builder.stdout.readline().split()
    watches = [os.pidfd_open(int(pid)) for pid in pids]
    builder.kill()
    builder.communicate()
    shutil.rmtree(folder)
    for watch in watches:  # readable once the process has ended
        assert select.select([watch], [], [], 30)[0]
        os.close(watch)


def test_by_hand(lab):
    words = [sys.executable, "-m", "tests.lab", "up", "2"]
    ran = subprocess.run(words, cwd=TESTS.parent, input="", capture_output=True, text=True, timeout=60)
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["node1", "node2", "Ctrl-C"]
    assert (ran.returncode, ran.stderr) == (0, "")

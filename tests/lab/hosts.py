"""A lab of hosts: namespaces with a name, an interface, /etc files and an sshd of their own, on one bridge.

    with Lab() as lab:
        a, b = lab.add("a"), lab.add("b")
        b.sshd()
        a.run(["ssh", "b", "true"])

Nothing of the machine is touched: bridge, interfaces, firewalls, mounts and processes live in namespaces that end with
their first process, and that ends when its standard input closes: whatever happens to this process, nothing stays but
a folder below the folder for temporary files. Needs root, util-linux, iproute2, and openssh-server for ``sshd``.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

NETWORK = "10.77.0."
RUN_LIMIT_S = 60
"""Nothing that a test runs in a lab takes longer."""

_NEEDS = ("unshare", "nsenter", "ip", "nft", "ssh", "ssh-keygen", "/usr/sbin/sshd")
_FILES = ("hosts", "passwd", "shadow", "nsswitch.conf", "resolv.conf", "hostname")
_SETUP = """
set -e
hostname "$1"
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd
for file in $2; do test ! -e "/etc/$file" || mount --bind "$3/etc/$file" "/etc/$file"; done
ip link set lo up
echo ready
exec cat
"""
_COLLECT = """
import json, sys
from ddp_doctor.ask import Ask
from ddp_doctor.collect import gather
from ddp_doctor.host import Host
asked = json.load(sys.stdin)
ask = {k: tuple(map(tuple, v)) if k == "ports" else tuple(v) if k == "peers" else v for k, v in asked["ask"].items()}
print(json.dumps(gather(Host(), Ask(**ask), asked["deadline_s"], tuple(asked["sections"]))))
"""


class Unable(Exception):
    """Labs cannot be built here; the text says why."""


def check_means() -> None:
    """Raise Unable when this process may not build a lab, or a tool is missing."""
    if os.geteuid() != 0:
        raise Unable("needs root")
    missing = [tool for tool in _NEEDS if shutil.which(tool) is None]
    if missing:
        raise Unable(f"not installed: {' '.join(missing)}")


class Namespace:
    """A set of namespaces kept by its first process."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        (folder / "etc").mkdir(parents=True)
        for file in _FILES:
            (folder / "etc" / file).touch()
        kinds = ("--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        words = ("sh", "-c", _SETUP, "sh", name, " ".join(_FILES), str(folder))
        self.holder = subprocess.Popen(
            ["unshare", *kinds, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        if self.holder.stdout is None or self.holder.stdout.readline() != b"ready\n":
            words_of_failure = self.holder.communicate()[1].decode(errors="replace").strip()
            raise Unable(f"no namespaces here: {words_of_failure}")
        self.pid = int(Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()[0])

    def argv(self, argv: Sequence[str], kinds: Sequence[str] = ("-n", "-u", "-i", "-m", "-p")) -> List[str]:
        """The command line that runs ``argv`` inside."""
        return ["nsenter", "-t", str(self.pid), *kinds, "--", *argv]

    def run(self, argv: Sequence[str], stdin: str = "", check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run ``argv`` inside and wait for it. Raises RuntimeError with what it said unless ``check`` is false."""
        ran = subprocess.run(self.argv(argv), input=stdin, capture_output=True, text=True, timeout=RUN_LIMIT_S)
        if check and ran.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(argv)}: status {ran.returncode}: {ran.stderr}")
        return ran

    def ip(self, words: str) -> None:
        """ip(8) in the network namespace alone, so that pids are this process's."""
        subprocess.run(self.argv(["ip", *words.split()], ("-n",)), check=True, timeout=RUN_LIMIT_S)

    def close(self) -> None:
        """End everything inside; doing so again does nothing."""
        if self.holder.returncode is not None:
            return
        try:
            self.holder.communicate(timeout=RUN_LIMIT_S)  # closes its input: the first process ends, and all with it
        except subprocess.TimeoutExpired:
            self.holder.kill()  # --kill-child
            self.holder.communicate()


class LabHost(Namespace):
    """One host: ``address`` on eth0, which ends in ``port`` of the switch; root's home is ``home``."""

    def __init__(self, lab: "Lab", name: str, number: int) -> None:
        super().__init__(name, lab.folder / name)
        self.lab, self.address, self.port = lab, f"{NETWORK}{number}", f"port{number}"
        self.home = self.folder / "home"
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        self.home.chmod(0o700)
        self.started: List[subprocess.Popen[str]] = []
        self.etc("hostname", f"{name}\n")
        self.etc("nsswitch.conf", "passwd: files\nshadow: files\ngroup: files\nhosts: files\n")
        self.etc("shadow", "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n")
        self.shell("/bin/bash")

    def etc(self, name: str, text: str) -> None:
        """Write one of ``_FILES``, in place since it is mounted."""
        (self.folder / "etc" / name).write_text(text)

    def shell(self, path: str) -> None:
        """Give root this login shell."""
        sshd = "sshd:x:109:65534::/run/sshd:/usr/sbin/nologin"
        self.etc("passwd", f"root:x:0:0:root:{self.home}:{path}\n{sshd}\nnobody:x:65534:65534::/:/usr/sbin/nologin\n")

    def nft(self, rules: str) -> None:
        """Add an input chain that accepts, with these rules: "tcp dport 29500 drop"."""
        chain = f"table inet lab {{ chain input {{ type filter hook input priority 0; policy accept; {rules}\n }}\n}}\n"
        self.run(["nft", "-f", "-"], stdin=chain)

    def start(self, argv: Sequence[str]) -> "subprocess.Popen[str]":
        """Start a server inside; return when it has written its first line. It ends with the host."""
        process = subprocess.Popen(self.argv(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{self.name}: {' '.join(argv)} did not start")
        return process

    def listen(self, port: int) -> None:
        """A server that accepts and says nothing."""
        code = "import socket, signal; s = socket.create_server(('', {})); print('ready', flush=True); signal.pause()"
        self.start([sys.executable, "-c", code.format(port)])

    def sshd(self, port: int = 22) -> None:
        """Start a real sshd with a host key of its own; it lets the lab's user key in."""
        key = self.folder / f"host_key_{port}"
        self.lab.keygen(key)
        (self.home / ".ssh" / "authorized_keys").write_text(self.lab.user_key.with_suffix(".pub").read_text())
        config = self.folder / f"sshd_config_{port}"
        config.write_text(f"Port {port}\nHostKey {key}\nUsePAM no\nPidFile none\nPasswordAuthentication no\n")
        self.run(["/usr/sbin/sshd", "-f", str(config), "-E", str(self.folder / "sshd.log")])

    def host_key(self, port: int = 22) -> str:
        """Its public host key: type and key."""
        return " ".join((self.folder / f"host_key_{port}.pub").read_text().split()[:2])

    def knows(self, *others: "LabHost") -> None:
        """Put the others' host keys into known_hosts and the lab's user key into ~/.ssh."""
        lines = [f"{other.name},{other.address} {other.host_key()}\n" for other in others]
        (self.home / ".ssh" / "known_hosts").write_text("".join(lines))
        self.has_key()

    def has_key(self) -> None:
        """Put the lab's user key into ~/.ssh."""
        for suffix in ("", ".pub"):
            shutil.copy(f"{self.lab.user_key}{suffix}", self.home / ".ssh" / f"id_ed25519{suffix}")

    def collect(
        self, *sections: str, env: Optional[Dict[str, str]] = None, deadline_s: Optional[float] = None, **ask: Any
    ) -> Dict[str, Any]:
        """Facts of this host as plain JSON data: ``collect("reach", master_addr="b", master_port=29500)``."""
        words = [f"{name}={value}" for name, value in (env or {}).items()]
        asked = json.dumps({"sections": sections, "ask": ask, "deadline_s": deadline_s})
        facts = json.loads(self.run(["env", *words, sys.executable, "-c", _COLLECT], stdin=asked).stdout)
        assert isinstance(facts, dict)
        return facts

    def close(self) -> None:
        """End the host with everything on it: its cable is cut first, its neighbours learn nothing."""
        if self.holder.returncode is None:
            self.lab.switch.ip(f"link del {self.port}")
        super().close()
        for process in self.started:
            process.communicate()
        self.started.clear()


class Lab:
    """Hosts on one switch; every name stands in every host's /etc/hosts once ``add`` has returned."""

    def __init__(self) -> None:
        check_means()
        self.folder = Path(tempfile.mkdtemp(prefix="ddp-doctor-lab-"))
        self.folder.chmod(0o755)
        self.hosts: Dict[str, LabHost] = {}
        self.others: Dict[str, str] = {}
        self.user_key = self.folder / "user_key"
        try:
            self.switch = Namespace("switch", self.folder / "switch")
            self.switch.ip("link add br0 type bridge")
            self.switch.ip("link set br0 up")
            self.keygen(self.user_key)
        except BaseException:
            self.close()
            raise

    def keygen(self, path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)

    def add(self, name: str) -> LabHost:
        """Build a host and plug it in."""
        number = len(self.hosts) + 1
        host = LabHost(self, name, number)
        self.switch.ip(f"link add {host.port} type veth peer name eth0 netns {host.pid}")
        self.hosts[name] = host
        self.switch.ip(f"link set {host.port} master br0 up")
        host.ip(f"address add {host.address}/24 dev eth0")
        host.ip("link set eth0 up")
        self._write_names()
        return host

    def name(self, name: str, address: str) -> None:
        """Give a name to an address that no host of the lab has."""
        self.others[name] = address
        self._write_names()

    def _write_names(self) -> None:
        named = {**{host.name: host.address for host in self.hosts.values()}, **self.others}
        text = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in named.items())
        for host in self.hosts.values():
            host.etc("hosts", text)

    def close(self) -> None:
        """End all hosts and remove the lab's folder."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            if hasattr(self, "switch"):
                stack.callback(self.switch.close)
            for host in self.hosts.values():
                stack.callback(host.close)

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

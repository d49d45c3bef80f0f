"""ssh's files, options and server; real agent, keys and sshd in the lab."""

import json

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import ssh
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable

CONFIG = """\
# comment
StrictHostKeyChecking accept-new
Include more.conf
Host gpu*
  User root
  ProxyJump login
Match exec "touch /tmp/never"
  BatchMode yes
Host *
  strictHostKeyChecking=no
  IdentityFile "~/.ssh/cluster key"
  ProxyCommand ssh -W %h:%p ana:secret@login
  SendEnv LANG
"""


def test_options_that_hold_for_every_host_in_their_order():
    more = "Port 2222\nInclude more.conf\nHost one\n  Port 1\n"
    found = ssh.parse_config(CONFIG, lambda words: [more] if words == "more.conf" else [])
    assert found[0] == ("StrictHostKeyChecking", "accept-new")
    assert ("StrictHostKeyChecking", "no") in found
    assert {value for name, value in found if name == "Port"} == {"2222"}
    assert ("IdentityFile", "~/.ssh/cluster key") in found
    assert ("ProxyCommand", "set") in found
    assert not {"User", "ProxyJump", "BatchMode", "SendEnv"} & {name for name, _ in found}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("id_ed25519", "private-key"),
        ("id_ed25519.pub", "public-key"),
        ("id_ed25519-cert.pub", "public-key"),
        ("id_rsa.old", "private-key"),
        ("cluster", "private-key"),
        ("cluster.pub", "public-key"),
        ("aws.pem", "private-key"),
        ("authorized_keys", "authorized_keys"),
        ("known_hosts", "known_hosts"),
        ("known_hosts.old", "file"),
        ("config", "config"),
        ("notes", "file"),
    ],
)
def test_a_file_is_known_by_its_name_and_its_neighbours(name, kind):
    assert ssh.kind_of(name, ("cluster", "cluster.pub", name)) == kind


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("OpenSSH_9.2p1 Debian-2+deb12u3, OpenSSL 3.0.15 3 Sep 2024\n", "OpenSSH_9.2p1"),
        ("OpenSSH_8.0p1, OpenSSL 1.1.1k  FIPS 25 Mar 2021\n", "OpenSSH_8.0p1"),
        ("Sun_SSH_1.1\n", "Sun_SSH_1.1"),
    ],
)
def test_version(text, version):
    assert ssh.parse_version(text) == version


@pytest.mark.parametrize("text", ["", "\x1b[2J\n"])
def test_a_client_that_prints_garbage_has_no_version(text):
    with pytest.raises(Unreadable):
        ssh.parse_version(text)


def test_ports_of_the_server():
    text = "Port 22\n#Port 23\nport 2222\nListenAddress 10.0.0.1:24\nListenAddress [::1]:25\nListenAddress 10.0.0.1\n"
    assert ssh.parse_ports(text) == (22, 2222, 24, 25)
    assert ssh.count_entries("# c\n\nhost ssh-ed25519 AAAA\n|1|x|y= ssh-rsa AAAA\n") == 2


def test_a_user_without_a_home_and_a_node_without_ssh():
    no_home = {"reason": {"kind": "absent", "text": "uid 4711 has no entry in the user database"}}
    host = Recording({"ask home": no_home, "env ": {"value": {}}}, {}, complete=True)
    found = ssh.read(host, Ask())
    kinds = {field: found.unread[field].kind for field in ("files", "options", "known_hosts", "client", "agent_keys")}
    assert set(kinds.values()) == {"absent"}
    assert (found.files, found.options, found.server_running, found.server_ports) == (None, None, None, None)


def test_systemd_that_listens_for_sshd_is_a_running_server():
    entries = {"ask listening": {"value": [["0.0.0.0", 22]]}, "ask home": {"value": "/home/ana"}}
    found = ssh.read(Recording(entries, {}, complete=True), Ask())
    assert (found.server_running, found.server_ports) == (True, (22,))


@pytest.mark.lab
def test_real_files_agent_and_server(lab):
    host = lab.add("host")
    assert host.collect("ssh")["ssh"]["server_running"] is False
    host.sshd()
    host.knows(host)
    folder = host.home / ".ssh"
    (folder / "id_ed25519").chmod(0o644)
    (folder / "config").write_text("Include extra/*.conf\nIdentityFile ~/keys/job\n")
    (folder / "extra").mkdir()
    (folder / "extra" / "a.conf").write_text("StrictHostKeyChecking no\n")
    (host.home / "keys").mkdir()
    (host.home / "keys" / "job").write_text("SECRET")
    agent = host.run(
        ["sh", "-c", "eval $(ssh-agent) >/dev/null; ssh-add -q ~/keys/none 2>/dev/null; echo $SSH_AUTH_SOCK"]
    )
    facts = host.collect("ssh", env={"SSH_AUTH_SOCK": agent.stdout.strip()})
    found = facts["ssh"]
    assert found["client"].startswith("OpenSSH_")
    assert (found["server_running"], found["server_ports"]) == (True, [22])
    assert (found["known_hosts"], found["agent_keys"]) == (1, 0)
    assert found["options"]["StrictHostKeyChecking"] == "no"
    files = {f["path"][len(str(host.home)) :]: (f["kind"], f["mode"]) for f in found["files"]}
    assert files["/.ssh/id_ed25519"] == ("private-key", "0644")
    assert files["/keys/job"][0] == "private-key"
    assert (files[""], files["/.ssh"]) == (("directory", "0700"), ("directory", "0700"))
    assert "SECRET" not in json.dumps(facts)


@pytest.mark.lab
def test_an_agent_that_is_gone_is_a_reason(lab):
    host = lab.add("other")
    found = host.collect("ssh", env={"SSH_AUTH_SOCK": "/nowhere"})["ssh"]
    assert ("agent_keys" in found, found["unread"]["agent_keys"]["kind"]) == (False, "unreadable")

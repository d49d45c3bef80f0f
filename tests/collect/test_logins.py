"""Logins to real sshd's of a lab, and what can go wrong with them."""

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import logins
from ddp_doctor.recording import Recording

OUTCOMES = {
    "good": ("ok", None),
    "chatty": ("ok", None),
    "10.77.0.2": ("ok", None),
    "root@good": ("ok", None),
    "locked": ("auth-refused", "Permission denied (publickey"),
    "stranger": ("host-key-unknown", "Host key verification failed"),
    "changed": ("host-key-changed", "Host key verification failed"),
    "closed": ("refused", "Connection refused"),
    "silent": ("timed-out", "timed out"),
    "filtered": ("timed-out", "timed out"),
    "sleepy": ("timed-out", "timed out after 12 s"),
    "nologin": ("remote-failed", None),
    "dead": ("unreachable", "No route to host"),
    "nobody": ("unresolved", "Could not resolve hostname nobody"),
    "-oProxyCommand=touch /tmp/x": ("error", "not a host name: not handed to ssh"),
    "$(id)": ("error", "not a host name: not handed to ssh"),
}
"""Peer -> outcome, and words of ssh's that the detail holds."""


@pytest.fixture(scope="module")
def asker(lab):
    """A host that knows the others' keys, but for the strangers' and the changed one's."""
    me = lab.add("me")
    hosts = {name: lab.add(name) for name in list(OUTCOMES) if name.isalpha() and name not in ("dead", "nobody")}
    lab.name("dead", "10.77.0.200")
    for name in hosts.keys() - {"closed", "silent"}:
        hosts[name].sshd()
    hosts["silent"].listen(22)
    hosts["filtered"].nft("tcp dport 22 drop")
    (hosts["locked"].home / ".ssh" / "authorized_keys").write_text("")
    (hosts["chatty"].home / ".bashrc").write_text("echo 'Permission denied'; echo 'motd: Connection refused' >&2\n")
    (hosts["sleepy"].home / ".bashrc").write_text("sleep 1000\n")
    hosts["nologin"].shell("/usr/sbin/nologin")
    me.knows(*(hosts[name] for name in ("good", "chatty", "locked", "filtered", "sleepy", "nologin")))
    with (me.home / ".ssh" / "known_hosts").open("a") as file:
        file.write(f"changed,{hosts['changed'].address} {hosts['good'].host_key()}\n")
    return me


@pytest.fixture(scope="module")
def found(asker):
    """Every login, side by side, and known_hosts before and after."""
    before = (asker.home / ".ssh" / "known_hosts").read_text()
    facts = asker.collect("logins", peers=list(OUTCOMES))
    assert (asker.home / ".ssh" / "known_hosts").read_text() == before
    return {login["host"]: login for login in facts["logins"]["logins"]}


@pytest.mark.lab
@pytest.mark.parametrize("peer", OUTCOMES)
def test_outcomes_are_told_apart(found, peer):
    outcome, words = OUTCOMES[peer]
    assert found[peer]["outcome"] == outcome
    assert words is None or words in found[peer]["detail"]


@pytest.mark.lab
def test_a_configuration_that_accepts_new_keys_is_obeyed_without_writing_them(asker, found):
    known = asker.home / ".ssh" / "known_hosts"
    before = known.read_text()
    (asker.home / ".ssh" / "config").write_text("Host *\n  StrictHostKeyChecking accept-new\n  ControlMaster auto\n")
    facts = asker.collect("logins", peers=["stranger", "changed"])
    assert [login["outcome"] for login in facts["logins"]["logins"]] == ["ok", "host-key-changed"]
    assert known.read_text() == before


@pytest.mark.lab
def test_nothing_is_left_behind_on_either_side(asker, found):
    processes = asker.run(["ps", "-e", "-o", "comm="]).stdout.split()
    assert "ssh" not in processes
    assert sorted(p.name for p in (asker.home / ".ssh").iterdir() if "known" in p.name) == ["known_hosts"]


@pytest.mark.lab
def test_what_the_deadline_cuts_short_tells_nothing_of_the_peer(asker):
    facts = asker.collect("logins", deadline_s=4, peers=["good", "silent"])
    assert {login["host"]: login["outcome"] for login in facts["logins"]["logins"]} == {
        "good": "ok",
        "silent": "deadline",
    }


@pytest.mark.lab
def test_without_a_client_every_login_says_so(asker):
    (login,) = asker.collect("logins", env={"PATH": "/nowhere"}, peers=["good"])["logins"]["logins"]
    assert login["outcome"] == "no-client"


@pytest.mark.parametrize(
    ("name", "sound"),
    [
        ("gpu01", True),
        ("gpu01.cluster.local", True),
        ("ana@gpu01", True),
        ("fe80::1%eth0", True),
        ("-oProxyCommand=x", False),
        ("ana@-oProxyCommand=x", False),
        ("a b", False),
        ("a;id", False),
        ("", False),
        ("gpu01\n", False),
    ],
)
def test_only_host_names_are_handed_to_ssh(name, sound):
    assert logins.is_host(name) is sound


def test_not_asked_in_quick_and_without_peers():
    assert logins.wanted(Ask(profile="quick", peers=("a",))).text == "profile quick sends nothing"
    assert logins.wanted(Ask()).kind == "not-asked"
    assert logins.wanted(Ask(peers=("a",))) is None


def test_what_ssh_prints_cannot_reach_a_terminal():
    answer = {"status": 255, "stderr": "x: \x1b[31mPermission denied\x1b[0m (publickey).\r\n\n", "duration_s": 0.1}
    host = Recording({"ask logins": {"value": {"a": answer}}}, {})
    (login,) = logins.read(host, Ask(peers=("a",))).logins
    assert (login.outcome, login.detail) == ("auth-refused", "x: \\x1b[31mPermission denied\\x1b[0m (publickey).")

"""Checks of ssh between nodes."""

import pytest
from ddp_doctor.checks.ssh import FAILURES
from ddp_doctor.facts import Login, Logins, Os, Reason, Ssh, SshFile
from ddp_doctor.policy import Policy
from judging import judged, outcome, remedy_text

MPIRUN = Policy(launcher="mpirun")
NO_CLIENT = Ssh(unread={"client": Reason("absent", "ssh: no such command")})


def logins(*pairs):
    return Logins(tuple(Login(host, outcome, "ssh's last words") for host, outcome in pairs))


@pytest.mark.parametrize(
    ("launcher", "check", "severity"),
    [
        (None, "ssh/login-perhaps-needed", "warning"),
        ("none", "ssh/login-perhaps-needed", "warning"),
        ("ssh", "ssh/login-fails", "error"),
        ("mpirun", "ssh/login-fails", "error"),
        ("deepspeed", "ssh/login-fails", "error"),
        ("torchrun", "ssh/login-unavailable", "note"),
        ("slurm", "ssh/login-unavailable", "note"),
        ("kubernetes", "ssh/login-unavailable", "note"),
    ],
)
def test_logins_matter_to_launchers_that_log_in(launcher, check, severity):
    policy, facts = Policy(launcher=launcher), logins(("node2", "timed-out"))
    checks = ("ssh/login-fails", "ssh/login-perhaps-needed", "ssh/login-unavailable")
    found = [v for name in checks for v in judged(name, policy, logins=facts) if v.outcome.value == "failed"]
    assert [(v.check, v.severity.value) for v in found] == [(check, severity)]
    assert found[0].fixes


def test_each_node_has_a_verdict_of_its_own():
    verdicts = judged("ssh/login-fails", MPIRUN, logins=logins(("node2", "ok"), ("node3", "auth-refused")))
    assert [(v.subject, v.outcome.value) for v in verdicts] == [("node2", "passed"), ("node3", "failed")]
    assert verdicts[1].message == "the node refuses every key: a password would be asked for"


def test_a_login_that_the_deadline_cut_short_is_not_judged():
    slow, bad = judged("ssh/login-fails", MPIRUN, logins=logins(("node2", "deadline"), ("node3", "refused")))
    assert (slow.outcome.value, slow.reason.kind) == ("skipped", "deadline")
    assert bad.outcome.value == "failed"


def test_logins_that_nobody_asked_for_are_no_fault():
    (verdict,) = judged(
        "ssh/login-fails", Policy(launcher="mpirun"), reasons={"logins": Reason("not-asked", "no peers")}
    )
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "not-asked")


@pytest.mark.parametrize(
    ("failure", "os", "expected"),
    [
        ("auth-refused", Os(), "command ssh-copy-id node2"),
        ("host-key-unknown", Os(), "command ssh node2 hostname"),
        ("host-key-changed", Os(), "command ssh-keygen -R node2"),
        ("unresolved", Os(), "/etc/hosts"),
        ("refused", Os(id="ubuntu"), "systemctl enable --now ssh"),
        ("refused", Os(id="rocky", like=("rhel",)), "systemctl enable --now sshd"),
        ("timed-out", Os(), "firewall"),
        ("unreachable", Os(), "route"),
        ("no-client", Os(id="debian"), "apt-get install -y openssh-client"),
        ("remote-failed", Os(), "BatchMode=yes -v node2"),
        ("error", Os(), "BatchMode=yes -v node2"),
    ],
)
def test_each_way_to_fail_has_its_own_remedy(failure, os, expected):
    (verdict,) = judged("ssh/login-fails", MPIRUN, logins=logins(("node2", failure)), os=os)
    assert failure in FAILURES
    assert expected in remedy_text(verdict)


@pytest.mark.parametrize("failure", sorted(FAILURES))
@pytest.mark.parametrize("host", ["$(id)", "-oProxyCommand=x", "a;b"])
def test_hostile_names_reach_no_command_unquoted(host, failure):
    (verdict,) = judged("ssh/login-fails", MPIRUN, logins=logins((host, failure)))
    commands = [step.text for remedy in verdict.fixes for step in remedy.steps if step.kind == "command"]
    for text in commands:
        assert host not in text.replace(f"'{host}'", "")
    assert verdict.fixes


@pytest.mark.parametrize(
    ("policy", "ssh", "expected"),
    [
        (Policy(launcher="mpirun", nnodes=2), NO_CLIENT, "failed"),
        (Policy(launcher="deepspeed", nnodes=2), Ssh(client="OpenSSH_9.2p1"), "passed"),
        (Policy(launcher="mpirun", nnodes=1), NO_CLIENT, "skipped"),
        (Policy(launcher="slurm", nnodes=2), NO_CLIENT, "skipped"),
        (Policy(nnodes=2), NO_CLIENT, "skipped"),
        (Policy(launcher="ssh", nnodes=2), Ssh(unread={"client": Reason("timed-out", "-")}), "skipped"),
    ],
)
def test_a_client_is_needed_by_launchers_that_log_in(policy, ssh, expected):
    assert outcome("ssh/client-absent", policy, ssh=ssh) == expected


def test_the_client_is_told_or_that_there_is_none():
    policy = Policy(launcher="mpirun", nnodes=2)
    measured = [
        judged("ssh/client-absent", policy, ssh=ssh)[0].measured for ssh in (Ssh(client="OpenSSH_9.2p1"), NO_CLIENT)
    ]
    assert measured == ["OpenSSH_9.2p1", "no ssh command"]


@pytest.mark.parametrize(
    ("mode", "expected"), [("0600", "passed"), ("0400", "passed"), ("0640", "failed"), ("0644", "failed")]
)
def test_a_private_key_is_for_its_owner(mode, expected):
    files = (
        SshFile("/home/ana/.ssh/id_ed25519", mode, 1000, "private-key"),
        SshFile("/home/ana/.ssh/id_ed25519.pub", "0644", 1000, "public-key"),
    )
    assert outcome("ssh/private-key-exposed", ssh=Ssh(files=files)) == expected


@pytest.mark.parametrize("mode", ["", "rw-------", "\u00b2", "0o600", "7" * 5000])
def test_what_is_no_mode_is_unknown(mode):
    key = SshFile("/home/ana/.ssh/id_ed25519", mode, 1000, "private-key")
    (verdict,) = judged("ssh/private-key-exposed", ssh=Ssh(files=(key,)))
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "unreadable")


def test_a_node_without_keys_has_none_exposed():
    assert outcome("ssh/private-key-exposed", ssh=Ssh(files=())) == "skipped"


@pytest.mark.parametrize(
    ("home", "folder", "keys", "system", "failed"),
    [
        ("0755", "0700", "0600", "rocky", []),
        ("0750", "0755", "0644", "rocky", []),
        ("0775", "0700", "0600", "rocky", ["/home/ana"]),
        ("0755", "0770", "0600", "rocky", ["/home/ana/.ssh"]),
        ("0755", "0700", "0664", "rocky", ["/home/ana/.ssh/authorized_keys"]),
        ("0755", "0700", "0602", "rocky", ["/home/ana/.ssh/authorized_keys"]),
        ("0775", "0770", "0664", "ubuntu", []),
        ("0777", "0700", "0600", "ubuntu", ["/home/ana"]),
        ("0775", "0770", "0664", None, []),
    ],
)
def test_sshd_wants_nobody_else_to_write_on_the_way_to_authorized_keys(home, folder, keys, system, failed):
    files = (
        SshFile("/home/ana", home, 1000, "directory"),
        SshFile("/home/ana/.ssh", folder, 1000, "directory"),
        SshFile("/home/ana/.ssh/sockets", "0777", 1000, "directory"),
        SshFile("/home/ana/.ssh/authorized_keys", keys, 1000, "authorized_keys"),
        SshFile("/home/ana/.ssh/config", "0666", 1000, "config"),
    )
    verdicts = judged("ssh/writable-by-others", Policy(nnodes=2), ssh=Ssh(files=files), os=Os(id=system))
    assert [v.subject for v in verdicts if v.outcome.value == "failed"] == failed


def test_without_authorized_keys_nobody_logs_in_with_one():
    files = (SshFile("/home/ana", "0775", 1000, "directory"),)
    assert outcome("ssh/writable-by-others", Policy(nnodes=2), ssh=Ssh(files=files)) == "skipped"


def test_rights_are_taken_away_from_the_quoted_path():
    hostile = SshFile("/home/ana/.ssh/id $(id)", "0644", 1000, "private-key")
    (verdict,) = judged("ssh/private-key-exposed", ssh=Ssh(files=(hostile,)))
    assert (verdict.measured, verdict.expected) == ("mode 0644", "mode 0600")
    assert "chmod go-rwx -- '/home/ana/.ssh/id $(id)'" in remedy_text(verdict)
    assert verdict.fixes[0].steps[0].kind == "command"

"""The words for ssh(1), and what it means when it ends early."""

import pytest
from ddp_doctor.cluster import ssh


def test_nothing_may_ask_and_the_users_options_come_before_our_habits():
    words = ssh.options("me", 2222, "bastion", ["StrictHostKeyChecking=accept-new", "ServerAliveInterval=60"], 7)
    assert (
        words.index("-oBatchMode=yes")
        < words.index("-oServerAliveInterval=60")
        < words.index("-oServerAliveInterval=5")
    )
    assert "-oConnectTimeout=7" in words
    assert words[-6:] == ("-l", "me", "-p", "2222", "-J", "bastion")


def test_options_with_blanks_stay_one_word():
    way = ssh.Way("true", ("-oProxyCommand=nc %h 22",))
    assert way.options_text == "'-oProxyCommand=nc %h 22'"


@pytest.mark.parametrize(
    ("status", "stderr", "greeted", "kind", "word"),
    [
        (255, "ssh: Could not resolve hostname gpu07: Name or service not known", False, "unresolved", "cannot be resolved"),
        (255, "ssh: connect to host gpu07 port 22: Connection refused", False, "refused", "nothing listens"),
        (255, "ssh: connect to host gpu07 port 22: Connection timed out", False, "timed-out", "no answer"),
        (255, "ssh: connect to host gpu07 port 22: No route to host", False, "unreachable", "no route"),
        (255, "me@gpu07: Permission denied (publickey).", False, "auth-refused", "none of your keys"),
        (255, "Host key verification failed.", False, "host-key-unknown", "not in known_hosts"),
        (255, "@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nHost key verification failed.", False, "host-key-changed", "installed anew"),
        (255, "kex_exchange_identification: read: Connection reset by peer", False, "unreachable", "ssh failed"),
        (255, "client_loop: send disconnect: Broken pipe", True, "crashed", "the connection broke"),
        (127, "bash: ddp-doctor: command not found", False, "absent", "--push"),
        (1, "/usr/bin/python3: No module named ddp_doctor", False, "absent", "--remote-command"),
        (2, "Error: No such command 'node'.", False, "absent", "older"),
        (1, "This account is currently not available.", False, "unreadable", "status 1"),
        (9, "", True, "crashed", "in the middle"),
        (None, "", False, "unreachable", "cut"),
    ],
)  # fmt: skip
def test_why_a_connection_ended(status, stderr, greeted, kind, word):
    reason = ssh.why_it_ended("gpu07", status, stderr, greeted)
    assert reason.kind == kind
    assert word in reason.text
    assert "gpu07" not in reason.text  # so that equal fates are told together


def test_where_the_tool_is_called():
    assert ssh.installed().startswith("exec ")
    assert ssh.installed("/opt/x/ddp-doctor") == "exec /opt/x/ddp-doctor node"

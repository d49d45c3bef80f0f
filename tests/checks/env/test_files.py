"""Checks of NCCL's configuration files."""

import pytest
from ddp_doctor.facts import Env, Reason, Variable
from judging import judged, outcome


def env(*rows):
    return Env(tuple(Variable(*row) for row in rows))


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (env(("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG", "WARN", "/etc/nccl.conf:3")), "failed"),
        (env(("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG", "WARN", "/etc/nccl.conf:3")), "passed"),
        (env(("NCCL_DEBUG", "WARN", "/etc/nccl.conf:3")), "passed"),
        (env(("NCCL_DEBUG", "WARN")), "skipped"),
        (Env(unread={"variables": Reason("unreadable", "/proc/self/environ")}), "skipped"),
    ],
)
def test_a_file_that_loses_is_noted(facts, found):
    assert outcome("env/conf-file-overridden", env=facts) == found


def test_who_wins_is_named():
    facts = env(("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG", "WARN", "/etc/nccl.conf:3"))
    (verdict,) = judged("env/conf-file-overridden", env=facts)
    assert verdict.message == "NCCL_DEBUG: environment wins over /etc/nccl.conf:3"


def failed(check, facts):
    return [v.subject for v in judged(f"env/{check}", env=facts) if v.outcome.value == "failed"]


CONF = "/etc/nccl.conf"


def conf(*rows, **more):
    return Env(tuple(Variable(name, value, f"{CONF}:{n}") for n, (name, value) in enumerate(rows, 1)), (CONF,), **more)


def test_settings_that_the_environment_does_not_show():
    (verdict,) = judged("env/settings-in-files", env=conf(("NCCL_IB_TC", "106"), ("NCCL_DEBUG", "WARN")))
    assert (verdict.severity.value, verdict.subject) == ("note", CONF)
    assert verdict.measured == "NCCL_IB_TC=106, NCCL_DEBUG=WARN"
    assert outcome("env/settings-in-files", env=conf()) == "passed"
    assert outcome("env/settings-in-files", env=Env((Variable("NCCL_DEBUG", "WARN", "a.sh:1"),), ())) == "skipped"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("export NCCL_DEBUG", "INFO", "export"),
        ("NCCL_DEBUG ", " INFO", "the blank before the equals sign and the blank after the equals sign"),
        ("NCCL_DEBUG", '"INFO"', "the quotes"),
        ("NCCL_DEBUG", "INFO\r", "the end of a Windows line"),
        ("NCCL_DEBUG", "INFO # for now", "the comment"),
    ],
)
def test_a_line_that_nccl_reads_otherwise(name, value, words):
    (verdict,) = judged("env/conf-line-misread", env=conf((name, value)))
    assert verdict.outcome.value == "failed"
    assert words in verdict.message
    assert "/etc/nccl.conf:1" in verdict.fixes[0].steps[0].text


def test_lines_as_they_should_be():
    facts = conf(("NCCL_DEBUG", "WARN"), ("NCCL_SOCKET_IFNAME", "=eth0"), ("NCCL_THREAD_THRESHOLDS", "1 2 3 4 5 6"))
    assert failed("conf-line-misread", facts) == []
    quoted = Env((Variable("NCCL_DEBUG", '"WARN"', "a.sh:1"),), ())
    assert outcome("env/conf-line-misread", env=quoted) == "skipped"


@pytest.mark.parametrize(
    ("files", "unread", "found"),
    [
        ((), {"nccl_conf_files": Reason("absent", "/x: no such file")}, "failed"),
        (("/x",), {}, "passed"),
        ((), {"nccl_conf_files": Reason("timed-out", "/x")}, "skipped"),
        (None, {}, "skipped"),
    ],
)
def test_a_file_that_is_not_there(files, unread, found):
    facts = Env((Variable("NCCL_CONF_FILE", "/x"),), files, unread)
    assert outcome("env/conf-file-missing", env=facts) == found


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        (Variable("NCCL_TOPO_FILE", "~/topo.xml"), "failed"),
        (Variable("NCCL_DEBUG_FILE", "~/log.%h.%p", f"{CONF}:1"), "failed"),
        (Variable("NCCL_TOPO_FILE", "/home/ana/topo.xml"), "passed"),
        (Variable("NCCL_TOPO_FILE", "~/topo.xml", "job.sh:3"), "skipped"),
    ],
)
def test_a_tilde_is_for_shells(variable, found):
    assert outcome("env/tilde-not-expanded", env=Env((variable,), (CONF,))) == found

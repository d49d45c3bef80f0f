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

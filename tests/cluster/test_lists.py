"""Lists of good and bad nodes."""

import json

import pytest
from ddp_doctor import examine, registry
from ddp_doctor.cluster import lists
from ddp_doctor.cluster.reached import Unreachable
from ddp_doctor.config import Config
from ddp_doctor.facts import Limit, Limits, NodeFacts, Reason
from ddp_doctor.model import Severity
from ddp_doctor.report import Options, render


def judged(*nodes):
    loaded = registry.load()
    checks = registry.chosen(loaded, ["limits"], [])
    return examine.report(nodes, checks, loaded, Config())


def node(name, nofile=1 << 20):
    limit = Limit(nofile, nofile)
    return NodeFacts(name, limits=Limits(memlock_bytes=Limit(None, None), nofile=limit, nproc=limit, cap_ipc_lock=True))


DEAD = Unreachable("n3", Reason("refused", "nothing listens at its ssh port"))


def test_who_did_not_answer_is_bad_and_who_has_a_finding():
    report = judged(node("n1"), node("n2", nofile=64), DEAD)
    assert lists.of(report, Severity.ERROR) == (["n1"], ["n2", "n3"])


def test_unreachable_nodes_are_named_failed_and_never_ignored():
    report = judged(node("n1"), DEAD)
    assert report.summary.exit_status == 3
    entry = report.nodes[1]
    assert (entry.name, entry.status, entry.reason.kind) == ("n3", "unreachable", "refused")
    assert (
        not [v for v, names in report.verdicts.folded() if "n3" in names]
        if hasattr(report.verdicts, "folded")
        else True
    )
    for kind in ("table", "brief", "markdown", "junit", "json"):
        assert "n3" in render(kind, report, Options(100, False, False, "utf-8", Severity.ERROR))


def test_a_finding_elsewhere_counts_more_than_a_node_that_is_away():
    assert judged(node("n1", nofile=64), DEAD).summary.exit_status == 1


def test_nobody_answered():
    report = judged(DEAD)
    assert (report.summary.exit_status, lists.of(report, Severity.ERROR)) == (3, ([], ["n3"]))
    assert json.loads(render("json", report, Options(100, False, False, "utf-8", Severity.ERROR)))["nodes"]


@pytest.mark.parametrize(("fold", "text"), [(False, "n1\nn2\nn3\nx\n"), (True, "n[1-3]\nx\n")])
def test_one_a_line_or_folded(fold, text):
    assert lists.text(["n1", "n2", "n3", "x"], fold) == text


def test_an_empty_list_is_an_empty_file():
    assert lists.text([], True) == ""

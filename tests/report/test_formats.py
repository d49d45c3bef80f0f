"""Every format: found by name, hostile text harmless, JSON without loss, XML that readers accept."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import junitparser
import pytest
from ddp_doctor import document
from ddp_doctor import report as reports
from ddp_doctor.model import Severity
from ddp_doctor.report import json as json_format
from jsonschema import Draft202012Validator

FORMATS = reports.formats()
SCHEMA = Path(json_format.__file__).with_name("schema.json")


def test_formats_are_found_by_being_there():
    assert FORMATS == ("brief", "json", "junit", "markdown", "table")


def test_an_unknown_format_is_refused_by_name(report):
    with pytest.raises(reports.UnknownFormat, match="brief, json, junit"):
        reports.render("_findings", report)


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_text_never_comes_out_raw(name, hostile):
    text = reports.render(name, hostile)
    text.encode("utf-8")
    bad = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert bad | ({"\ufffe"} & set(text)) == set()
    if name in ("brief", "table"):  # what a Slurm TaskProlog prints at the beginning of a line is obeyed
        assert not any(line.startswith(("export ", "unset ", "print ")) for line in text.splitlines())


def test_hostile_text_stays_text_in_markdown(hostile):
    outside, fence = [], ""
    for line in reports.render("markdown", hostile).splitlines():
        if fence and line == fence:
            fence = ""
        elif not fence and line.startswith("```"):
            fence = line[: len(line) - len(line.lstrip("`"))]
        elif not fence:
            outside.append(line)
    text = "\n".join(outside)
    assert "<b onload" not in text
    assert "[l](" not in text
    assert fence == ""


@pytest.mark.parametrize("name", ["markdown", "junit", "json", "brief"])
def test_golden(name, report, golden):
    golden(reports.render(name, report), f"{name}.txt")


def test_markdown_of_several_nodes(fleet, golden):
    golden(reports.render("markdown", fleet), "markdown-fleet.txt")


# --------------------------------------------------------------------------- JSON


@pytest.mark.parametrize("which", ["report", "fleet"])
def test_json_reads_back_equal(which, request):
    report = request.getfixturevalue(which)
    plain = document.plain_from(reports.render("json", report).encode())
    assert document.report_from(plain) == report
    assert list(plain) == ["schema_version", "tool", "nodes", "verdicts", "summary"]


def test_json_has_no_nan(report):
    nodes = (replace(report.nodes[0], duration_s=float("nan"), collected_at=float("inf")),)
    plain = json.loads(reports.render("json", replace(report, nodes=nodes)), parse_constant=pytest.fail)
    assert plain["nodes"][0]["duration_s"] is None


def test_the_schema_says_what_severity_means_of_a_check_that_passed():
    (verdict,) = [made for name, made in json_format.schema()["$defs"].items() if name == "Verdict"]
    assert "of a passed or skipped verdict" in verdict["description"]


def test_the_schema_is_that_of_the_types(golden):
    golden(json.dumps(json_format.schema(), indent=2, sort_keys=True) + "\n", str(SCHEMA))


@pytest.mark.parametrize("which", ["report", "fleet", "hostile"])
def test_reports_are_valid_by_the_schema(which, request):
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    found = json.loads(reports.render("json", request.getfixturevalue(which)))
    assert list(Draft202012Validator(schema).iter_errors(found)) == []
    found["verdicts"][0]["outcome"] = "maybe"
    assert [e.json_path for e in Draft202012Validator(schema).iter_errors(found)] == ["$.verdicts[0].outcome"]


# --------------------------------------------------------------------------- JUnit


def suites(report, **options):
    return junitparser.JUnitXml.fromstring(reports.render("junit", report, reports.Options(**options)).encode())


def results(report, **options):
    """Test case -> kinds of its results."""
    cases = [case for suite in suites(report, **options) for case in suite]
    return {case.name: [type(result).__name__ for result in case.result] for case in cases}


def test_junit_is_read_by_junitparser(report):
    found = suites(report)
    assert (found.tests, found.failures, found.errors, found.skipped) == (14, 1, 1, 7)
    kinds = results(report)
    assert kinds["limits/memlock-too-low"] == ["Failure"]
    assert kinds["network/slow-interface [enp3s0]"] == []
    assert kinds["memory/swapping"] == ["Skipped"]
    assert kinds["site/quota"] == ["Error"]


def test_junit_fails_from_the_severity_that_fails_the_run(report):
    assert results(report, fail_on=Severity.NOTE)["network/slow-interface [enp3s0]"] == ["Failure"]


def test_junit_says_measured_expected_and_the_waiver(report):
    text = reports.render("junit", report)
    assert "measured: memlock 64 KiB of this shell" in text
    assert "waived until 2030-01-31: shared login node" in text


def test_junit_names_the_host_of_each_suite(fleet):
    assert [suite.hostname for suite in suites(fleet)] == ["n1", "n2", "n3"]


def test_an_unreachable_node_is_an_error_in_junit(fleet):
    assert results(fleet)["node/examined"] == ["Error"]


def test_hostile_names_survive_xml(hostile):
    root = ElementTree.fromstring(reports.render("junit", hostile))
    assert len(list(root.iter("testcase"))) == 2 * (1 + len(hostile.verdicts))


# --------------------------------------------------------------------------- brief


@pytest.mark.parametrize(
    ("status", "start"), [(0, "READY n1"), (1, "NOT READY n1: limits/memlock-too-low"), (3, "CANNOT TELL n1")]
)
def test_brief_is_one_line_of_80_columns(report, status, start):
    long = replace(report.verdicts[2], check="limits/" + "x" * 100)
    for verdicts in (report.verdicts, (long,)):
        changed = replace(report, verdicts=verdicts, summary=replace(report.summary, exit_status=status))
        text = reports.render("brief", changed)
        assert text.endswith("\n")
        assert text.count("\n") == 1
        assert len(text) <= 81
        assert text.startswith(start[:20])

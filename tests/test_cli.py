"""The command line: exit statuses, options, mistakes, reports in several formats, saved documents."""

import json
import re
from pathlib import Path

import pytest
from ddp_doctor import __version__
from ddp_doctor.facts import SECTIONS
from nodes import machine
from running import FAULTY, NODES, NOTES, READY, WARNED, doctor, report

# ---------------------------------------------------------------- exit status


@pytest.mark.parametrize(
    ("facts", "options", "status"),
    [
        (READY, [], 0),
        (READY, ["--fail-on", "note"], 0),
        (NOTES, [], 0),
        (NOTES, ["--fail-on", "warning"], 0),
        (NOTES, ["--fail-on", "note"], 1),
        (WARNED, ["--fail-on", "error"], 0),
        (WARNED, ["--fail-on", "warning"], 1),
        (FAULTY, [], 1),
        (FAULTY, ["--select", "os,gpu"], 0),
        (FAULTY, ["--select", "disk"], 1),
        (FAULTY, ["--select", "disk", "--ignore", "disk/shm"], 0),
        (FAULTY, ["--ignore", "limits,disk"], 0),
        (FAULTY, ["--ignore", "limits", "--ignore", "disk"], 0),
        (READY, ["--expect-gpus", "8"], 0),
        (READY, ["--expect-gpus", "9"], 1),
        (READY, ["--require", "gpus,rdma"], 0),
        (NOTES, ["--require", "reach"], 1),
        (READY, ["--scope", "node", "--require", "limits"], 1),
        # the same as a monitoring system takes it: OK, WARNING, CRITICAL
        (READY, ["--exit-style", "nagios"], 0),
        (NOTES, ["--exit-style", "nagios"], 0),
        (WARNED, ["--exit-style", "nagios"], 1),
        (FAULTY, ["--exit-style", "nagios"], 2),
    ],
)
def test_exit_status(facts, options, status):
    assert doctor("run", *options, "--facts", facts).returncode == status


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["run", "--deadline", "nan"], 2),
        (["run", "--sample", "nan"], 2),
        (["run", "--facts", "none.json"], 2),
        (["run", "--exit-style", "nagios", "--facts", "none.json"], 3),
        (["run", "--exit-style=nagios", "--no-such-option"], 3),
    ],
)
def test_how_it_was_called_is_no_fault_of_the_node(arguments, status):
    assert doctor(*arguments).returncode == status


def test_what_was_not_seen_is_no_pass(tmp_path):
    (tmp_path / "empty.json").write_text('{"schema_version": 1, "name": "n1"}')
    done = doctor("run", "--facts", str(tmp_path / "empty.json"))
    assert (done.returncode, done.stdout.split("\n")[0]) == (3, "Cannot tell: nothing could be examined.")
    (tmp_path / "few.json").write_text('{"schema_version": 1, "name": "n1", "os": {"id": "debian", "version": "12"}}')
    done = doctor("run", "--facts", str(tmp_path / "few.json"))
    assert (done.returncode, done.stdout[:27]) == (0, "Ready as far as could be se")


BROKEN_CHECK = '''
from ddp_doctor.model import Severity, check

@check(Severity.NOTE)
def raises(os):
    """Raises."""
    raise RuntimeError("of its own making")
    yield
'''


@pytest.mark.parametrize(
    ("module", "facts", "status", "words"),
    [
        (BROKEN_CHECK, READY, 3, "mine/raises: RuntimeError: of its own making"),
        (BROKEN_CHECK, FAULTY, 1, "mine/raises: RuntimeError: of its own making"),
        ("raise OSError('at import')", READY, 3, "plug-in mine (theirs) could not be loaded: OSError: at import"),
    ],
)
def test_a_broken_check_or_plugin_leaves_no_verdict_unless_something_failed(tmp_path, module, facts, status, words):
    (tmp_path / "theirs.py").write_text(module)
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (tmp_path / "theirs-1.dist-info" / "entry_points.txt").write_text("[ddp_doctor.checks]\nmine = theirs\n")
    done = doctor("run", "--facts", facts, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == status
    assert words in " ".join(done.stdout.split())
    nagios = doctor("run", "--exit-style", "nagios", "--facts", facts, env={"PYTHONPATH": str(tmp_path)})
    assert nagios.returncode == (3 if status == 3 else 2)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Usage: ddp-doctor"),
        (["rnu"], "No such command 'rnu'"),
        (["run", "--selct", "gpu"], "--select"),
        (["run", "--select", "gpuu"], "no check is called 'gpuu'; did you mean 'gpu'?"),
        (["run", "--select", "limits/memlock-to-low"], "did you mean 'limits/memlock-too-low'?"),
        (["run", "--ignore", "weather"], "no check is called 'weather'; areas: container, cpu,"),
        (["run", "--profile", "slow"], "'slow' is not one of 'quick', 'standard', 'deep'"),
        (["run", "--fail-on", "fatal"], "'fatal' is not one of 'note', 'warning', 'error'"),
        (["run", "--scope", "world"], "'world' is not one of 'node', 'job', 'user'"),
        (["run", "--output", "yaml=x"], "expected FORMAT=FILE with one of brief, json, junit, markdown, table"),
        (["run", "--output", "json"], "expected FORMAT=FILE"),
        (["run", "--output", "json="], "expected FORMAT=FILE"),
        (["run", "--json", "--output", "junit=-"], "only one format can go to standard output"),
        (["run", "--require", "gpu"], "unknown section 'gpu'; did you mean 'gpus'?"),
        (["run", "--config", "none.toml"], "none.toml: No such file or directory"),
        (["run", "--as-of", "tomorrow"], "'tomorrow' does not match the format '%Y-%m-%d'"),
        (["run", "--deadline", "0"], "--deadline"),
        (["run", "--nnodes", "0"], "--nnodes"),
        (["run", "--master-port", "65536"], "--master-port"),
        (["run", "--master-addr", "$(id)"], "not a node name or set: '$(id)'"),
        (["run", "--master-addr", "-oProxyCommand=id"], "not a node name or set"),
        (["run", "--peers", "n[1-999999999]"], "stands for more than"),
        (["run", "--reach", "host"], "--reach 'host': expected HOST:PORT"),
        (["run", "--reach", "host:ssh"], "--reach 'host:ssh': expected HOST:PORT"),
        (["run", "facts.json"], "unexpected argument 'facts.json'; facts files are given with --facts"),
        (["run", "--facts"], "requires an argument"),
        (["run", "--facts", READY, "--replay", "x"], "--facts and --replay exclude each other"),
        (["run", "--replay", "none.tar.gz"], "none.tar.gz: No such file or directory"),
        (["run", "--replay", "/"], "no index.json in it: not a ddp-doctor recording"),
        (["collect", "--replay", "none.tar.gz"], "none.tar.gz: No such file or directory"),
        (["checks", "gpu/none"], "no check is called 'gpu/none'"),
        (["run", "--\x1b[31m"], r"--\x1b[31m"),
        (["run", "\x1b[31m"], r"\x1b[31m"),
    ],
)
def test_a_mistake_is_a_sentence_and_status_2(arguments, words):
    done = doctor(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""
    assert "\x1b" not in done.stderr


def test_a_mistake_in_the_configuration_names_file_and_key(tmp_path):
    (tmp_path / "ddp-doctor.toml").write_text("[policy]\nexpect_gpu = 8\n")
    (tmp_path / "ddp-doctor.toml").chmod(0o644)
    done = doctor("run", "--facts", READY, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path}/ddp-doctor.toml: unknown key 'policy.expect_gpu'; did you mean 'expect_gpus'?" in done.stderr


# ---------------------------------------------------------------- configuration


def test_the_command_line_wins_over_the_file(tmp_path):
    config = tmp_path / "site.toml"
    config.write_text('select = ["disk"]\nfail_on = "note"\n[policy]\nexpect_gpus = 9\n')
    assert doctor("run", "--config", str(config), "--facts", READY).returncode == 0
    assert doctor("run", "--config", str(config), "--facts", READY, "--select", "gpu").returncode == 1
    found = doctor("run", "--config", str(config), "--facts", READY, "--select", "gpu", "--expect-gpus", "8")
    assert found.returncode == 0
    assert f"(configuration: {config})" in " ".join(found.stdout.split())
    assert doctor("run", "--config", str(config), "--facts", NOTES, "--select", "network").returncode == 1


def test_waivers_are_judged_as_of_a_day(tmp_path):
    config = tmp_path / "site.toml"
    config.write_text(
        '[[waiver]]\ncheck = "disk/shm-too-small"\nreason = "one process"\nuntil = 2025-03-31\n'
        '[[waiver]]\ncheck = "limits/memlock-too-low"\nreason = "sockets"\nuntil = 2025-03-31\n'
    )
    given = ("run", "--config", str(config), "--facts", FAULTY, "--as-of")
    assert doctor(*given, "2025-03-31").returncode == 0
    late = doctor(*given, "2025-04-01")
    assert late.returncode == 1
    assert "waiver" in late.stdout


def test_the_scope_takes_out_what_says_nothing_about_it():
    assert doctor("run", "--facts", FAULTY, "--scope", "node", "--select", "limits").returncode == 0
    skipped = [v for v in report("--facts", FAULTY, "--scope", "node")["verdicts"] if v["check"].startswith("limits/")]
    assert {v["reason"]["text"] for v in skipped if v["reason"]} >= {"--scope node does not judge it"}


# ---------------------------------------------------------------- output

FORMATS = ("brief", "json", "junit", "markdown", "table")


def test_several_formats_at_once_and_still_the_table(tmp_path):
    outputs = [part for name in FORMATS for part in ("--output", f"{name}={tmp_path / name}")]
    done = doctor("run", "--facts", FAULTY, *outputs)
    assert done.stdout.startswith("Not ready: 2 things to fix.")
    assert {name: (tmp_path / name).read_text()[:9] for name in FORMATS} == {
        "brief": "NOT READY",
        "json": '{\n  "sche',
        "junit": "<?xml ver",
        "markdown": "## Not re",
        "table": "Not ready",
    }
    assert (tmp_path / "table").read_text() == done.stdout


def test_one_format_in_place_of_the_table():
    assert doctor("run", "--facts", READY, "--json").stdout == doctor("run", "--facts", READY, "--output=json=-").stdout
    assert doctor("run", "--facts", READY, "--output", "markdown=-").stdout.startswith("## Ready")


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in NODES.glob("*/facts.json")), ids=lambda path: path.name
)
def test_brief_is_one_line_that_fits(folder):
    line = doctor("run", "--brief", "--facts", str(folder / "facts.json")).stdout
    assert re.fullmatch(r"(READY|NOT READY) [ -~]+\n", line)
    assert len(line) <= 81


def test_a_long_name_does_not_make_the_line_longer(tmp_path):
    facts = json.loads(Path(FAULTY).read_text())
    (tmp_path / "long.json").write_text(json.dumps({**facts, "name": "n" * 300}))
    assert len(doctor("run", "--brief", "--facts", str(tmp_path / "long.json")).stdout) == 81


def test_a_file_that_cannot_be_written_does_not_keep_the_others(tmp_path):
    done = doctor(
        "run", "--facts", READY, "--output", f"json={tmp_path}/none/x", "--output", f"junit={tmp_path}/junit.xml"
    )
    assert done.returncode == 2
    assert done.stdout.startswith("Ready")
    assert done.stderr == f"ddp-doctor: {tmp_path}/none/x: cannot be written: No such file or directory\n"
    assert (tmp_path / "junit.xml").read_text().startswith("<?xml")
    nagios = doctor("run", "--facts", READY, "--exit-style", "nagios", "--output", f"json={tmp_path}")
    assert (nagios.returncode, nagios.stdout[:5]) == (3, "Ready")


def test_what_was_collected_is_written_where_it_can_be(tmp_path):
    done = doctor("collect", "--profile", "quick", "--bundle", f"{tmp_path}/none/b.tar.gz")
    assert done.returncode == 2
    assert json.loads(done.stdout)["schema_version"] == 1
    assert "none/b.tar.gz: cannot be written: No such file or directory" in done.stderr
    done = doctor("collect", "--profile", "quick", "--bundle", f"{tmp_path}/b.tar.gz", "--output", str(tmp_path))
    assert done.returncode == 2
    assert "cannot be written: Is a directory" in done.stderr
    assert doctor("run", "--profile", "quick", "--replay", f"{tmp_path}/b.tar.gz").stderr == ""


def test_version_and_help():
    assert doctor("--version").stdout == f"ddp-doctor {__version__}\n"
    assert "Find what would make a PyTorch distributed job fail" in doctor("--help").stdout


def test_the_help_names_every_section_that_can_be_required():
    told = " ".join(doctor("run", "--help").stdout.split())
    listed = re.search(r"comma-separated, out of: ([^.]*)\.", told)
    assert listed
    assert tuple(listed.group(1).split(", ")) == SECTIONS


def test_checks_are_listed_and_explained():
    listed = doctor("checks").stdout
    ids = re.findall(r"^ *([a-z-]+/[a-z0-9-]+)", listed, re.MULTILINE)
    assert len(ids) >= 40
    assert [check["id"] for check in json.loads(doctor("checks", "--json").stdout)] == sorted(ids)
    assert "NCCL" in doctor("checks", "limits/memlock-too-low").stdout


# ---------------------------------------------------------------- facts and reports that were saved


def saved(tmp_path, content):
    path = tmp_path / "saved.json"
    path.write_bytes(content)
    return str(path)


ALL_OF_IT = Path(READY).read_bytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"\0\xff" * 100, "not JSON"),
        pytest.param(ALL_OF_IT[:-200], "not JSON", id="cut short"),
        pytest.param(b"[" * 100_000, "not JSON", id="a list nested too deeply"),
        pytest.param(b'{"a":' * 100_000, "not JSON", id="nested too deeply"),
        (b'{"schema_version": 1, "name": "n1", "duration_s": NaN}', "not JSON"),
        (b'{"schema_version": 1, "name": "n1", "duration_s": 1e999}', "not JSON"),
        (b'{"schema_version": 1, "name": "\xff"}', "not JSON"),
        pytest.param(b"9" * 10_000, "not JSON", id="a long number"),
        (b"[]", "not facts of ddp-doctor: no schema_version in it"),
        pytest.param(b"[" + ALL_OF_IT + b"]", "not facts of ddp-doctor", id="in a list"),
        (b"{}", "not facts of ddp-doctor"),
        (b'{"schema_version": "1"}', "not facts of ddp-doctor"),
        (b'{"schema_version": 99, "name": "n1"}', "facts of schema 99: this ddp-doctor reads up to 1; use a newer one"),
        (b'{"schema_version": 1}', "missing required field `name`"),
        (b'{"schema_version": 1, "name": "n1", "gpus": {"gpus": "eight"}}', "at `$.gpus.gpus`"),
        (b'{"schema_version": 1, "name": "n1", "\\u001b[2J": 1, "os": 1}', "at `$.os`"),
        (b'{"schema_version": 99, "verdicts": []}', "a report of schema 99"),
        (b'{"schema_version": 1, "verdicts": []}', "a report, damaged"),
    ],
)
def test_a_saved_document_that_cannot_be_used_is_named_with_the_reason(tmp_path, content, words):
    path = saved(tmp_path, content)
    done = doctor("run", "--facts", path)
    assert done.returncode == 2
    assert f"{path}: " in done.stderr
    assert words in done.stderr


@pytest.mark.parametrize("path", ["/dev/zero", "junk"])
def test_a_file_without_end_and_one_of_100_mb(tmp_path, path):
    with open(tmp_path / "junk", "wb") as file:
        file.write(b"\x00")
        file.truncate(100_000_000)
    assert doctor("run", "--facts", str(tmp_path / path)).returncode == 2


@pytest.mark.parametrize("section", SECTIONS)
def test_facts_without_a_section_are_judged_by_the_others(tmp_path, section):
    facts = json.loads(ALL_OF_IT)
    facts.pop(section, None)
    facts["reasons"].pop(section, None)
    found = report("--facts", saved(tmp_path, json.dumps(facts).encode()))
    skipped = [v["check"] for v in found["verdicts"] if v["reason"] and section in v["reason"]["text"]]
    judged = [v for v in found["verdicts"] if v["outcome"] == "passed"]
    assert found["summary"]["counts"]["broken"] == 0
    assert judged
    assert skipped or not facts.get(section)


def test_facts_of_another_age_lack_fields_and_have_others(tmp_path):
    facts = json.loads(ALL_OF_IT)
    for name in SECTIONS:
        for field in list(facts.get(name) or ())[::2]:
            del facts[name][field]
    facts.update(weather={"sunny": True})
    found = report("--facts", saved(tmp_path, json.dumps(facts).encode()))
    assert found["summary"]["counts"]["broken"] == 0
    assert found["summary"]["counts"]["skipped"] > 0


def test_a_folder_of_facts_and_files_together(tmp_path):
    for number, facts in enumerate((READY, FAULTY, NOTES)):
        (tmp_path / f"{number}.json").write_bytes(Path(facts).read_bytes())
    (tmp_path / "read.me").write_text("not facts")
    found = report("--facts", str(tmp_path), WARNED)
    assert len(found["nodes"]) == 4
    assert found["summary"]["headline"].startswith("Not ready: 6 things to fix on 2 of 4 nodes.")
    (tmp_path / "empty").mkdir()
    assert "no .json or .xml file in this folder" in doctor("run", "--facts", str(tmp_path / "empty")).stderr


@pytest.mark.parametrize("facts", [READY, FAULTY])
@pytest.mark.parametrize("name", FORMATS)
def test_a_saved_report_is_printed_again_to_the_byte(tmp_path, facts, name):
    first = doctor("run", "--facts", facts, "--output", f"json={tmp_path}/r.json", "--output", f"{name}=-")
    again = doctor("run", "--facts", f"{tmp_path}/r.json", "--output", f"{name}=-")
    assert again.stdout == first.stdout
    assert again.returncode == first.returncode


def test_a_saved_report_is_printed_alone(tmp_path):
    doctor("run", "--facts", READY, "--output", f"json={tmp_path}/r.json")
    done = doctor("run", "--facts", f"{tmp_path}/r.json", FAULTY)
    assert done.returncode == 2
    assert "a saved report is printed alone" in done.stderr


HOSTILE = "\x1b[2J\u202enope\nexport X=1\n<b onload=x> `id` | [l](javascript:x) \x07"


def hostile(value):
    """The same facts with every text a hostile one; numbers and choices of words stay."""
    if isinstance(value, dict):
        return {key: hostile(each) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return value + HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("facts", [FAULTY, READY])
def test_hostile_texts_in_facts_never_come_out_raw(tmp_path, facts, name):
    path = saved(tmp_path, json.dumps(hostile(json.loads(Path(facts).read_text()))).encode())
    text = doctor("run", "-v", "--facts", path, "--output", f"{name}=-").stdout
    assert text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    if name in ("markdown", "junit"):
        assert "<b onload" not in re.sub(r"(?ms)^(`{3,}).*?^\1$", "", text)  # in a code block nothing is markup
    if name in ("brief", "table"):  # the standard output of a Slurm TaskProlog is obeyed
        assert not re.search(r"(?m)^(export|unset|print) ", text)


# ---------------------------------------------------------------- the same verdicts by every way


def verdicts(found):
    """What was judged: check, subject and outcome."""
    return sorted((v["check"], v["subject"], v["outcome"]) for v in found["verdicts"])


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A folder with this node's facts and recording, taken in one go."""
    folder = tmp_path_factory.mktemp("taken")
    done = doctor(
        "collect", "--profile", "quick", "--bundle", f"{folder}/bundle.tar.gz", "--output", f"{folder}/facts.json"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_facts_and_their_recording_come_to_the_same_verdicts(taken):
    by_facts = report("--facts", f"{taken}/facts.json")
    by_replay = report("--profile", "quick", "--replay", f"{taken}/bundle.tar.gz")
    assert verdicts(by_replay) == verdicts(by_facts)
    assert by_replay["summary"]["exit_status"] == by_facts["summary"]["exit_status"]
    assert doctor("collect", "--profile", "quick", "--replay", f"{taken}/bundle.tar.gz").returncode == 0


def test_a_run_comes_to_the_verdicts_of_its_facts(taken):
    """The machine is the same; only what changes from second to second may differ."""
    live = {(check, outcome) for check, _, outcome in verdicts(report("--profile", "quick"))}
    collected = {(check, outcome) for check, _, outcome in verdicts(report("--facts", f"{taken}/facts.json"))}
    assert {check for check, _ in live} == {check for check, _ in collected}
    fleeting = ("memory/", "cpu/", "time/", "ports/", "disk/", "processes/")
    assert {pair for pair in live ^ collected if not pair[0].startswith(fleeting)} == set()


@pytest.mark.parametrize("name", ["h100-infiniband", "name-and-link-broken", "container-defaults"])
def test_without_names_the_verdicts_are_the_same(tmp_path, name):
    described = machine.describe(NODES / name)
    machine.write(described, tmp_path / "recording")
    given = ("--profile", "quick", "--replay", str(tmp_path / "recording"))
    anonymous = doctor("collect", "--anonymise", *given).stdout
    assert not re.search(rf"\b{described['system']['name']}\b", anonymous)
    outcomes = [
        [(check, outcome) for check, _, outcome in verdicts(report(*way))]
        for way in (given, ("--facts", saved(tmp_path, anonymous.encode())))
    ]
    assert outcomes[0] == outcomes[1]


def test_a_bundle_is_anonymised_later(taken, tmp_path):
    given = ("--profile", "quick", "--replay")
    done = doctor("collect", "--anonymise", "--bundle", f"{tmp_path}/b.tar.gz", *given, f"{taken}/bundle.tar.gz")
    assert (done.returncode, done.stderr) == (0, "")
    outcomes = [
        [(check, outcome) for check, _, outcome in verdicts(report(*given, bundle))]
        for bundle in (f"{taken}/bundle.tar.gz", f"{tmp_path}/b.tar.gz")
    ]
    assert outcomes[0] == outcomes[1]

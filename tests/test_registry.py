"""The registry: checks and fixes are found by being there, in this package and in plug-ins."""

import inspect
import json
import re
import subprocess
import sys
import sysconfig
import venv

import ddp_doctor.checks
import pytest
from ddp_doctor import registry
from ddp_doctor.model import Severity
from ddp_doctor.registry import BadCheck, parse_doc, select
from judging import own_checks

CHECKS = own_checks().checks


# ---------------------------------------------------------------- our own checks


@pytest.mark.parametrize("check_id", sorted(CHECKS))
def test_a_docstring_is_title_why_and_see(check_id):
    lines = inspect.cleandoc(CHECKS[check_id].call.__doc__).splitlines()
    assert re.fullmatch(r"[A-Z].{10,115}\.", lines[0]), "a title that is a sentence"
    assert lines[1] == "", "an empty line after the title"
    starts = [line.split(":")[0] for line in lines[2:] if not line.startswith(" ")]
    assert starts in (["Why", "See"], ["Why", "See", "No fix"]), "the parts, in order, and nothing else"
    assert all(re.match(r"( {4}\S|(Why|See|No fix): \S)", line) for line in lines[2:]), (
        "continuations are indented by 4"
    )


@pytest.mark.parametrize("check_id", sorted(CHECKS))
def test_each_source_is_one_address_or_document(check_id):
    doc = CHECKS[check_id].doc
    assert doc.see
    assert all(re.fullmatch(r"https://\S+|[^:/]+( \S+)*", source) for source in doc.see)
    assert len(doc.why) > 40
    assert not doc.why[0].islower()


@pytest.mark.parametrize("check_id", sorted(id for id, c in CHECKS.items() if c.severity is Severity.ERROR))
def test_an_error_has_a_fix_or_a_reason_why_not(check_id):
    check = CHECKS[check_id]
    assert (check.fix is None) == bool(check.doc.no_fix)


def test_every_fix_belongs_to_a_check():
    fixes = registry._fixes(registry._modules("ddp_doctor.fixes"))
    assert fixes
    assert set(fixes) - set(CHECKS) == set()


def test_ids_are_where_checks_stand():
    check = CHECKS["limits/memlock-too-low"]
    assert check.call.__module__ == "ddp_doctor.checks.limits"
    assert check.fix.call.__module__ == "ddp_doctor.fixes.limits"
    assert check.parameters == {"limits": True, "rdma": True, "policy": True, "env": False}
    assert list(CHECKS) == sorted(CHECKS)


# ---------------------------------------------------------------- found by being there


@pytest.fixture
def further_checks(tmp_path, monkeypatch):
    """A folder whose modules count as ours, as if somebody had put them below checks/."""
    monkeypatch.setattr(ddp_doctor.checks, "__path__", [*ddp_doctor.checks.__path__, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


SOURCE = '''
from ddp_doctor.model import Reading, Severity, check

@check(Severity.NOTE)
def {name}({parameters}):
    """It happens.

    Why: It is so.
    See: https://example.org
    """
    yield Reading(True)

def _not_found():
    pass

def without_a_mark(host):
    pass
'''


def test_a_file_is_all_that_a_new_check_takes(further_checks):
    (further_checks / "zz_new.py").write_text(SOURCE.format(name="it_happens", parameters="memory, disk=None"))
    check = registry.load(plugins=False).checks["zz-new/it-happens"]
    assert (check.doc.title, check.parameters) == ("It happens.", {"memory": True, "disk": False})


def test_the_area_is_the_first_part_of_the_path(further_checks):
    folder = further_checks / "zz_logs"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "rdma.py").write_text(SOURCE.format(name="it_happens", parameters="log"))
    assert "zz-logs/it-happens" in registry.load(plugins=False).checks


def test_what_modules_share_is_no_check(further_checks):
    (further_checks / "_zz_shared.py").write_text(SOURCE.format(name="it_happens", parameters="nobody_supplies_this"))
    assert registry.load(plugins=False).checks.keys() == CHECKS.keys()


def test_a_check_that_is_imported_elsewhere_is_found_once(further_checks):
    (further_checks / "zz_one.py").write_text(SOURCE.format(name="it_happens", parameters="memory"))
    (further_checks / "zz_two.py").write_text("from ddp_doctor.checks.zz_one import it_happens\n")
    assert [id for id in registry.load(plugins=False).checks if id.startswith("zz-")] == ["zz-one/it-happens"]


def test_a_misspelt_parameter_fails_at_load(further_checks):
    (further_checks / "zz_new.py").write_text(SOURCE.format(name="it_happens", parameters="memroy"))
    with pytest.raises(
        BadCheck, match=r"zz-new/it-happens: nothing supplies its parameter 'memroy'; known: os, cpu, memory"
    ):
        registry.load(plugins=False)


# ---------------------------------------------------------------- docstrings and selection


def test_a_docstring_is_taken_apart():
    doc = parse_doc(
        """Title of the fault.

        Why: First line
            and second.
        See: https://a.example
            https://b.example/x
        No fix: Nobody can.
        """,
        "t/x",
    )
    assert (doc.title, doc.why, doc.no_fix) == ("Title of the fault.", "First line and second.", "Nobody can.")
    assert doc.see == ("https://a.example", "https://b.example/x")


def test_without_docstrings_the_id_is_the_title():
    assert parse_doc("", "t/x") == registry.Doc(title="t/x")


def test_python_without_docstrings_finds_every_check():
    ask = "from ddp_doctor import registry; print(*(c.doc.title for c in registry.load(plugins=False).checks.values()))"
    found = subprocess.run([sys.executable, "-OO", "-c", ask], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == list(CHECKS)


@pytest.mark.parametrize(
    ("chosen", "ignored", "expected"),
    [
        ((), (), "disk/full disk/full-inodes gpu/mig gpus/x"),
        (("disk",), (), "disk/full disk/full-inodes"),
        (("gpu",), (), "gpu/mig"),
        (("disk/full",), (), "disk/full disk/full-inodes"),
        (("disk/ful",), (), ""),
        (("g*",), (), "gpu/mig gpus/x"),
        ((), ("disk",), "gpu/mig gpus/x"),
        ((), ("disk/full-inodes",), "disk/full gpu/mig gpus/x"),
        (("disk/full-inodes",), ("disk",), "disk/full-inodes"),
        (("disk",), ("disk/full-inodes",), "disk/full"),
        (("disk",), ("disk",), ""),
        (("none",), (), ""),
    ],
)
def test_the_longest_prefix_wins(chosen, ignored, expected):
    found = registry.Registry({id: id for id in ("disk/full", "disk/full-inodes", "gpu/mig", "gpus/x")})
    assert " ".join(select(found, chosen, ignored)) == expected


# ---------------------------------------------------------------- plug-ins, as pip installs them

PLUGIN = {
    "setup.cfg": """
[metadata]
name = site-checks
version = 1.0
[options]
packages = site_checks
[options.entry_points]
ddp_doctor.checks =
    site = site_checks.checks
    raising = site_checks.raising
    leaving = site_checks.leaving
    misspelt = site_checks.misspelt
    absent = site_checks.absent
    gpu = site_checks.clashing
ddp_doctor.fixes =
    site = site_checks.fixes
    raising = site_checks.raising
""",
    "setup.py": "from setuptools import setup\nsetup()\n",
    "site_checks/__init__.py": "",
    "site_checks/checks.py": '''
from ddp_doctor.model import Reading, Severity, check

@check(Severity.ERROR)
def too_little_memory(memory):
    """This site wants more memory.

    Why: The site's jobs are large.
    See: the site's handbook
    """
    yield Reading(memory.total_bytes > 100, f"{memory.total_bytes} B", "101 B", "too little", subject="node")
''',
    "site_checks/fixes.py": """
from ddp_doctor.model import Remedy, say

def too_little_memory(finding):
    yield Remedy("Buy memory", (say(f"{finding.measured} is too little."),))
""",
    "site_checks/raising.py": "raise RuntimeError('the licence server does not answer')\n",
    "site_checks/leaving.py": "import sys\nsys.exit('no licence')\n",
    "site_checks/misspelt.py": SOURCE.format(name="it_happens", parameters="memroy"),
    "site_checks/clashing.py": SOURCE.format(name="models_differ", parameters="gpus"),
}

ASK = """
import json
from ddp_doctor import engine, registry
from ddp_doctor.config import Config
from ddp_doctor.facts import Memory, NodeFacts

loaded, alone = registry.load(), registry.load(plugins=False)
chosen = registry.select(loaded, ["site"])
(verdict,) = engine.judge(NodeFacts("n", memory=Memory(total_bytes=7)), chosen, Config())
print(json.dumps({
    "ids": sorted(loaded.checks),
    "failed": loaded.failed_plugins,
    "without plug-ins": [sorted(alone.checks), alone.failed_plugins],
    "verdict": [verdict.check, verdict.outcome.value, verdict.message, verdict.source],
    "remedies": [[r.title, r.steps[0].text] for r in verdict.fixes],
}))
"""


@pytest.fixture(scope="module")
def with_plugin(tmp_path_factory):
    """What ddp-doctor finds in a scratch environment where pip has installed the plug-in beside it."""
    project = tmp_path_factory.mktemp("plugin")
    for name, text in PLUGIN.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    python, packages = scratch_environment(tmp_path_factory.mktemp("scratch"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(packages), str(project)], check=True, capture_output=True, timeout=120)
    answer = subprocess.run([str(python), "-c", ASK], check=True, capture_output=True, timeout=60, cwd=str(project))
    return json.loads(answer.stdout)


def scratch_environment(where):
    """A fresh environment that also sees the packages of the one in which the tests run: (its python, its packages)."""
    venv.create(str(where), symlinks=True)
    (packages,) = where.glob("lib/python*/site-packages")
    ours = sysconfig.get_paths()["purelib"]
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return where / "bin" / "python", packages


def test_a_plugin_adds_checks_under_its_entry_point(with_plugin):
    assert set(with_plugin["ids"]) == set(CHECKS) | {"site/too-little-memory"}


def test_a_plugins_check_judges_and_its_fix_mends(with_plugin):
    assert with_plugin["verdict"] == ["site/too-little-memory", "failed", "too little", "the site's handbook"]
    assert with_plugin["remedies"] == [["Buy memory", "7 B is too little."]]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("raising (site_checks.raising)", "RuntimeError: the licence server does not answer"),
        ("leaving (site_checks.leaving)", "SystemExit: no licence"),
        ("misspelt (site_checks.misspelt)", "BadCheck: misspelt/it-happens: nothing supplies its parameter 'memroy'"),
        ("absent (site_checks.absent)", "ModuleNotFoundError: No module named 'site_checks.absent'"),
        ("gpu (site_checks.clashing)", "BadCheck: its check gpu/models-differ is there already"),
    ],
)
def test_a_plugin_that_fails_is_named_and_stops_nothing(with_plugin, name, error):
    assert with_plugin["failed"][name].startswith(error)
    assert len(with_plugin["failed"]) == 5


def test_no_plugin_is_loaded_where_none_is_wanted(with_plugin):
    assert with_plugin["without plug-ins"] == [sorted(CHECKS), {}]

"""The reference tables: complete, sourced, readable everywhere; and the rules over them."""

import csv
import datetime
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import ddp_doctor
import pytest
from ddp_doctor import checks, compat, tables
from ddp_doctor.tables import BadTable
from ddp_doctor.versions import at_least, minor, newer, release

DATA = Path(checks.__file__).parent / "data"
HEAD = "confidence,source,source2,disagreement,note,major,driver\n"


def test_every_file_is_a_table_and_every_table_a_file():
    assert {path.stem for path in DATA.glob("*.csv")} == set(tables.TABLES)


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_row_has_a_source_and_a_confidence(name):
    rows = tables.load(name)
    assert rows
    assert [row for row in rows if not row.source.strip() or row.confidence not in tables.CONFIDENCES] == []


@pytest.mark.parametrize("name", tables.TABLES)
def test_no_row_names_a_path_of_somebody_s_machine(name):
    text = (DATA / f"{name}.csv").read_text()
    assert re.findall(r"(?:/home|/root|/work|/tmp|/Users)/\S*", text) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "high,,,,,12,525.60.13\n", "no source"),
        (HEAD + "certain,somewhere,,,,12,525.60.13\n", "no source, or a confidence"),
        (HEAD + "high,somewhere,,,,12\n", "not as many cells"),
        (HEAD + "high,somewhere,,,,12,525.60.13,more\n", "not as many cells"),
        ("major,driver\n12,525.60.13\n", "columns"),
        ("", "columns"),
    ],
)
def test_a_row_without_a_source_or_out_of_shape_is_refused(text, says):
    with pytest.raises(BadTable, match=says):
        tables.parse("cuda_majors", text)


def pythons():
    """This interpreter and the others that pyenv has here."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    found = [str(path) for root in roots for path in root.glob("3.*/bin/python") if _minor(path) >= (3, 8)]
    return [sys.executable, *sorted(found)]


def _minor(path):
    return release(path.parent.parent.name)[:2]


@pytest.fixture(scope="module")
def zipped(tmp_path_factory):
    """The package as an archive, as an importer that knows no files sees a wheel."""
    target = tmp_path_factory.mktemp("zip") / "package.zip"
    folders = {"ddp_doctor": Path(ddp_doctor.__file__).parent, "ddp_doctor/checks": DATA.parent}
    with zipfile.ZipFile(target, "w") as archive:
        for name, folder in folders.items():
            for path in folder.rglob("*"):
                if path.suffix in (".py", ".csv"):
                    archive.write(path, f"{name}/{path.relative_to(folder)}")
    return target


@pytest.mark.parametrize("python", pythons())
def test_tables_and_rules_load_from_an_archive(python, zipped):
    if shutil.which(python) is None:
        pytest.skip(f"{python} is not here")
    code = "from ddp_doctor import compat, tables; print(len(tables.torch()), compat.driver_floor('12.4').version)"
    ran = subprocess.run(
        [python, "-I", "-W", "error", "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {code}", str(zipped)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stderr, ran.stdout.split()) == ("", [str(len(tables.torch())), "525.60.13"])


REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "compat"
MADE_FROM = {
    "torch_releases": {"torch": 104},
    "cuda_drivers": {"cuda_majors": 3, "drivers": 27, "cuda_toolkits": 59, "architectures": 16, "rules": 4},
    "gpu_arch": {"gpus": 55},
    "nccl_versions": {"nccl": 46},
    "os_support": {"distributions": 41, "rules": 5},
    "bandwidth_expectations": {"bandwidth": 119},
}
"""Reference -> tables made from it, with the number of its rows that they must have at least."""


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference data is not here")
@pytest.mark.parametrize("name", MADE_FROM)
def test_every_row_of_the_reference_is_in_a_table(name):
    with open(REFERENCE / f"{name}.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == sum(MADE_FROM[name].values())
    assert {table: len(tables.load(table)) >= rows for table, rows in MADE_FROM[name].items()} == dict.fromkeys(
        MADE_FROM[name], True
    )


def test_what_a_bug_of_nccl_needs_is_said_in_words_that_are_known():
    words = tuple(tables.BUG_NEEDS)
    for bug in tables.nccl_bugs():
        assert bug.address.startswith("https://"), bug
        assert bug.effect in ("corrupts", "hangs", "fails", "slow"), bug
        assert [need for need in bug.needs if not need.startswith(words)] == [], bug
        assert not bug.since or not bug.fixed or newer(bug.since) < newer(bug.fixed), bug


# --------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("version", "floor", "expected"),
    [
        ("535.104.05", "525.60.13", True),
        ("450.80.02", "450.80.02", True),
        ("450.51.06", "450.80.02", False),
        ("2.28", "2.28.0", True),
        ("2.9", "2.28", False),
        ("2.1.0a0+fe05266", "2.1", True),
        ("devel", "2.1", None),
        ("", "2.1", None),
    ],
)
def test_versions_compare_by_their_numbers(version, floor, expected):
    assert at_least(version, floor) is expected


def test_a_version_is_cut_to_two_numbers():
    assert [minor(text) for text in ("3.8.12", "12.1.105", "13", "devel")] == ["3.8", "12.1", "13", "devel"]


def test_every_wheel_has_a_driver_floor_that_its_own_toolkit_s_driver_meets():
    for build in tables.torch():
        floor = compat.driver_floor(build.cuda)
        own = [row.driver for row in tables.cuda_toolkits() if row.cuda == build.cuda and row.driver]
        assert floor is not None, build
        assert all(at_least(driver, floor.version) for driver in own), build


def test_what_the_guides_say_of_nccl_is_not_what_the_wheels_hold():
    held = {(row.torch, row.nccl) for row in tables.torch() if row.torch in ("1.12.1", "2.0.1")}
    assert held == {("1.12.1", "2.10.3"), ("2.0.1", "2.14.3")}


def test_the_wheels_of_a_version_are_found_by_its_build():
    assert [row.build for row in compat.torch_builds("1.12.1+cu113")] == ["cu113"]
    assert {row.build for row in compat.torch_builds("1.12.1")} == {"cu102", "cu113", "cu116"}
    assert {row.build for row in compat.torch_builds("1.12.1+cpu")} == {"cu102", "cu113", "cu116"}
    assert compat.torch_builds("2.1.0a0+fe05266") == compat.torch_builds("") == ()


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (("580.65.06", "3.12.1", "2.35", "x86_64", ["9.0"]), "pip install torch==2.15.0"),
        (("580.65.06", "3.12.1", "2.35", "x86_64", ["7.0"]), "2.14.1 --index-url https://download.pytorch.org/whl/cu126"),
        (("570.26", "3.12", "2.35", "x86_64", ["12.0"]), "2.11.0 --index-url https://download.pytorch.org/whl/cu128"),
        (("535.54.03", "3.11.4", "2.17", "x86_64", ["8.0"]), "pip install torch==2.6.0"),
        (("440.33", "3.8.12", "2.28", "x86_64", ["7.0"]), "pip install torch==1.12.1"),
        (("535.54.03", "3.6.8", "2.17", "x86_64", ["8.0"]), "1.10.2 --index-url https://download.pytorch.org/whl/cu113"),
        (("390.157", "3.8.12", "2.28", "x86_64", []), None),
        (("580.65.06", "3.5.2", "2.28", "x86_64", []), None),
        (("535.54.03", "3.12", "2.35", "aarch64", ["9.0"]), None),
    ],
)  # fmt: skip
def test_the_newest_torch_that_a_node_can_run(node, expected):
    build = compat.newest_runnable(*node)
    assert build is None if expected is None else compat.pip_line(build).endswith(expected)


def test_what_is_recommended_is_never_called_broken():
    """Over the whole table: the build that we name fits by every rule of ours."""
    drivers = {row.driver for row in (*tables.cuda_majors(), *tables.cuda_toolkits()) if row.driver}
    for driver in drivers:
        for python in ("3.6", "3.8", "3.10", "3.12", "3.14"):
            for glibc in ("2.17", "2.28", "2.39"):
                build = compat.newest_runnable(driver, python, glibc)
                if build is not None:
                    assert at_least(driver, compat.driver_floor(build.cuda).version)
                    assert compat.has_wheel_for(build, python)
                    assert compat.glibc_fits(build, glibc, "x86_64")


def test_code_for_a_gpu():
    (cu128,) = compat.torch_builds("2.9.1+cu128")
    runs = {cc: compat.has_code_for(cu128, cc) for cc in ("6.1", "7.0", "7.5", "8.9", "9.0", "10.3", "12.1")}
    assert runs == {"6.1": False, "7.0": True, "7.5": True, "8.9": True, "9.0": True, "10.3": True, "12.1": True}


def test_a_python_without_gil_has_wheels_of_its_own():
    (build,) = compat.torch_builds("2.12.0+cu130")
    assert [compat.has_wheel_for(build, python) for python in ("3.13.1", "3.13t", "3.12t")] == [True, True, False]
    (newest,) = compat.torch_builds("2.15.0+cu132")
    assert not compat.has_wheel_for(newest, "3.13t")


@pytest.mark.parametrize(
    ("package", "version", "torch", "fits"),
    [
        ("torchvision", "0.19.0", "2.4.0+cu121", True),
        ("torchvision", "0.19.0+cu121", "2.4.0", True),
        ("torchvision", "0.18.1", "2.4.0", False),
        ("torchvision", "0.29.2", "2.15.0", True),
        ("torchvision", "0.29.2", "2.13.0", False),
        ("torchaudio", "2.0.2", "2.0.1+cu118", True),
        ("torchaudio", "2.11.1", "2.14.1", True),
        ("torchaudio", "2.11.0", "2.11.0", None),
        ("torchvision", "0.99.0", "2.4.0", None),
        ("torchtext", "0.18.0", "2.4.0", None),
    ],
)
def test_what_goes_with_a_torch_by_its_own_metadata(package, version, torch, fits):
    assert compat.companion_fits(package, version, torch) is fits


def test_every_torch_of_the_table_has_a_torchvision():
    without = {row.torch for row in tables.torch() if not compat.companions("torchvision", row.torch)}
    assert without == set()


@pytest.mark.parametrize(
    ("end_of_life", "day", "expected"),
    [
        ("2029-05-31", (2029, 5, 31), False),
        ("2029-05-31", (2029, 6, 1), True),
        ("2027-06", (2027, 6, 30), False),
        ("2027-06", (2027, 7, 1), True),
        ("2031", (2031, 12, 31), False),
        ("2031", (2032, 1, 1), True),
        ("2024-07 (past)", (2024, 8, 1), True),
        ("past", (2026, 11, 30), True),
        ("past", (2020, 1, 1), None),
        ("2028-04 (ESM)", (2026, 1, 1), False),
        ("", (2026, 1, 1), None),
        ("LTSS", (2026, 1, 1), None),
    ],
)
def test_the_end_of_a_life(end_of_life, day, expected):
    assert compat.ended(end_of_life, datetime.date(*day)) is expected


@pytest.mark.parametrize(
    ("node", "row"),
    [
        (("centos", "8.2.2004", False), "CentOS 8"),
        (("centos", "8", True), "CentOS Stream 8"),
        (("ubuntu", "22.04", False), "Ubuntu 22.04"),
        (("sles", "15.5", False), "SLES 15 SP3-SP5"),
        (("sles", "12.5", False), "SLES 12 SP5"),
        (("sles", "15", False), "SLES 15 SP0-SP2"),
        (("sles", "16.0", False), "SLES 16.0"),
        (("amzn", "2023", False), "Amazon Linux 2023"),
        (("amzn", "2", False), "Amazon Linux 2"),
        (("ubuntu", "22.10", False), None),
        (("arch", "", False), None),
        (("debian", "", False), None),
    ],
)
def test_the_row_of_a_distribution(node, row):
    found = compat.distribution(*node)
    assert (found and f"{found.distribution} {found.version}") == row


def test_the_branch_of_a_driver():
    branches = {driver: compat.driver_branch(driver) for driver in ("535.104.05", "580", "300.1", "")}
    assert {driver: row and row.branch for driver, row in branches.items()} == {
        "535.104.05": "535", "580": "580", "300.1": None, "": None,
    }  # fmt: skip

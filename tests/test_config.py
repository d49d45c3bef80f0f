"""Configuration files: what is understood, and how mistakes are told."""

import datetime
import os

import pytest
from ddp_doctor import config
from ddp_doctor.config import BadConfig
from ddp_doctor.model import Severity
from ddp_doctor.policy import Policy

IDS = ["limits/memlock-too-low", "limits/nofile-too-low", "gpu/models-differ"]

FULL = """
select = ["gpu", "limits"]
ignore = ["ssh"]
fail-on = "warning"

[policy]
driver_minimum = "450.80.02"
os_minimum = { centos = "8.2" }
shm_min_bytes = "8 GiB"
memlock-min-bytes = "unlimited"
expect_gpus = 8
require = ["gpus"]

[severity]
"limits/nofile-too-low" = "error"

[[waiver]]
check = "gpu/models-differ"
subject = "GPU *"
reason = "the display card stays"
until = 2027-03-31
"""


def load(tmp_path, text, name="ddp-doctor.toml"):
    path = tmp_path / name
    path.write_text(text)
    found = config.load(str(path))
    config.refuse_unknown_checks(found, IDS)
    return found


def test_everything_that_can_be_set(tmp_path):
    found = load(tmp_path, FULL)
    assert found.select == ("gpu", "limits")
    assert found.fail_on is Severity.WARNING
    assert found.policy.shm_min_bytes == 8 * 2**30
    assert found.policy.memlock_min_bytes == 2**63 - 1
    assert found.policy.os_minimum == {"centos": "8.2"}
    assert found.severity == {"limits/nofile-too-low": Severity.ERROR}
    (waiver,) = found.policy.waivers
    assert (waiver.subject, waiver.until) == ("GPU *", datetime.date(2027, 3, 31))


def test_pyproject_has_the_same_below_its_tool_table(tmp_path):
    found = load(
        tmp_path, '[tool.ddp-doctor]\nfail_on = "note"\n[tool.ddp-doctor.policy]\nnnodes = 2\n', "pyproject.toml"
    )
    assert (found.fail_on, found.policy.nnodes) == (Severity.NOTE, 2)


def test_without_a_file_the_stock_policy_holds():
    assert config.load(None).policy == Policy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("selekt = []", ["'selekt'", "'select'"]),
        ("[policy]\nshm_min_byte = 1", ["'policy.shm_min_byte'", "'shm_min_bytes'"]),
        ('[policy]\nshm_min_bytes = "8 gigs"', ["shm_min_bytes", "8 gigs", "8 GiB"]),
        ('[policy]\nexpect_gpus = "eight"', ["expect_gpus", "int"]),
        ('[policy]\nmig = "sometimes"', ["mig", "sometimes", "forbidden"]),
        ('[policy]\nrequire = ["gpu"]', ["'gpu'", "'gpus'"]),
        ('[severity]\n"limits/memlock-to-low" = "error"', ["memlock-to-low", "limits/memlock-too-low"]),
        ('[severity]\n"limits/memlock-too-low" = "fatal"', ["fatal", "warning"]),
        ('[[waiver]]\ncheck = "gpu/models-differ"', ["reason"]),
        ('[[waiver]]\ncheck = "gpu/models-difer"\nreason = "x"', ["gpu/models-differ"]),
        ('[[waiver]]\ncheck = "gpu/models-differ"\nreason = "x"\nuntil = "soon"', ["soon", "2027-03-31"]),
        ('[[waiver]]\ncheck = "gpu/models-differ"\nreason = "x"\nuntl = 2027-01-01', ["'waiver.untl'", "'until'"]),
        ("policy = 3", ["policy", "table"]),
        ("waiver = 3", ["waiver", "list"]),
        ("select = [1]", ["select", "list of check ids"]),
        ("not toml", ["not valid TOML"]),
        ("\ufffe\x00", ["not valid TOML"]),
    ],
)
def test_mistakes_are_told_with_the_file_the_place_and_a_suggestion(tmp_path, text, words):
    with pytest.raises(BadConfig) as error:
        load(tmp_path, text)
    for word in ["ddp-doctor.toml", *words]:
        assert word in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(BadConfig, match="No such file"):
        config.load(str(tmp_path / "none.toml"))
    with pytest.raises(BadConfig, match="Is a directory"):
        config.load(str(tmp_path))


def test_the_working_directory_comes_before_the_system(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert config.find(None, str(tmp_path)) in (None, config.SYSTEM_FILE)
    (tmp_path / "ddp-doctor.toml").write_text("")
    os.chmod(tmp_path / "ddp-doctor.toml", 0o644)
    assert config.find(None, str(tmp_path)) == str(tmp_path / "ddp-doctor.toml")
    assert config.find("given.toml", str(tmp_path)) == "given.toml"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root distrusts other people's files")
@pytest.mark.parametrize(("uid", "mode"), [(1234, 0o644), (0, 0o666)])
def test_root_takes_no_configuration_that_others_could_have_written(tmp_path, uid, mode):
    path = tmp_path / "ddp-doctor.toml"
    path.write_text("")
    os.chmod(path, mode)
    os.chown(path, uid, -1)
    assert config.find(None, str(tmp_path)) in (None, config.SYSTEM_FILE)
    (remark,) = config.passed_over(None, str(tmp_path))
    assert remark.startswith(f"{path} is not used")
    assert config.passed_over("given.toml", str(tmp_path)) == []


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_bound_that_nothing_could_break_is_refused(tmp_path, value):
    with pytest.raises(BadConfig, match="clock_error_max_s"):
        load(tmp_path, f"[policy]\nclock_error_max_s = {value}\n")


def test_a_size_with_too_many_digits_is_a_mistake_and_no_defect(tmp_path):
    with pytest.raises(BadConfig, match="shm_min_bytes"):
        load(tmp_path, f'[policy]\nshm_min_bytes = "{"9" * 5000} GiB"\n')


def test_only_an_ordinary_file_of_an_ordinary_length_is_read(tmp_path):
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "long.toml").write_text("ignore = [" + '"ssh",' * 200_000 + "]")
    for name, words in (("fifo.toml", "not a regular file"), ("long.toml", "longer than 1 MiB")):
        with pytest.raises(BadConfig, match=words):
            config.load(str(tmp_path / name))
    with pytest.raises(BadConfig, match="not a regular file"):
        config.load("/dev/zero")

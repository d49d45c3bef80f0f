"""The textfile: format, escapes, and that it is never half written."""

import os
import stat

import pytest
from ddp_doctor.watch.prometheus import Family, Sample, refusal, render, write

USED = Family("gpu_memory_used_bytes", "gauge", "Memory in use.")
ERRORS = Family("rdma_port_errors_total", "counter", "Errors\nof a port.")


def test_families_stand_together_with_help_and_type():
    text = render([
        Sample(USED, (("gpu", "1"),), 5.0),
        Sample(ERRORS, (("device", "mlx5_0"), ("port", "1")), 2**53),
        Sample(USED, (("gpu", "0"),), 0.25),
    ])  # fmt: skip
    assert text.splitlines() == [
        "# HELP ddp_doctor_gpu_memory_used_bytes Memory in use.",
        "# TYPE ddp_doctor_gpu_memory_used_bytes gauge",
        'ddp_doctor_gpu_memory_used_bytes{gpu="0"} 0.25',
        'ddp_doctor_gpu_memory_used_bytes{gpu="1"} 5',
        "# HELP ddp_doctor_rdma_port_errors_total Errors\\nof a port.",
        "# TYPE ddp_doctor_rdma_port_errors_total counter",
        'ddp_doctor_rdma_port_errors_total{device="mlx5_0",port="1"} 9007199254740992',
    ]


def test_labels_from_a_hostile_node_are_escaped():
    text = render([Sample(Family("a-b", "gauge", "x"), (("na me", 'a"b\\c\nd'),), 1)])
    assert text.splitlines()[-1] == 'ddp_doctor_a_b{na_me="a\\"b\\\\c\\nd"} 1'


def test_a_series_is_told_once():
    text = render([Sample(USED, (("gpu", "0"),), 1), Sample(USED, (("gpu", "0"),), 2)])
    assert text.count('gpu="0"') == 1


def test_the_file_is_replaced_in_one_step_and_readable_for_the_exporter(tmp_path):
    path = tmp_path / "ddp-doctor.prom"
    write(str(path), "old\n")
    before = path.open()
    write(str(path), "new\n")
    with before:
        assert before.read() == "old\n"
    assert path.read_text() == "new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["ddp-doctor.prom"]


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(OSError, match="directory"):
        write(str(tmp_path), "x")
    assert os.listdir(tmp_path.parent).count(tmp_path.name) == 1
    assert [name for name in os.listdir(tmp_path.parent) if name.startswith(".ddp-doctor-")] == []


def no_file(path, kind):
    """Something at ``path`` that is no regular file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        os.symlink("elsewhere", path)
    else:
        os.mkdir(path)


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_what_is_no_file_is_never_replaced(tmp_path, kind):
    path = str(tmp_path / "x.prom")
    no_file(path, kind)
    before = os.lstat(path)
    assert kind in refusal(path)
    with pytest.raises(OSError, match=kind) as caught:
        write(path, "new\n")
    assert caught.value.filename == path
    assert os.lstat(path) == before
    assert os.listdir(tmp_path) == ["x.prom"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("", "must end in .prom"), ("x.txt", "must end in .prom"), ("no/folder/x.prom", "No such file"), ("new.prom", None),
     ("old.prom", None)],
)  # fmt: skip
def test_where_a_file_can_be_written(tmp_path, name, says):
    (tmp_path / "old.prom").write_text("old\n")
    refused = refusal(str(tmp_path / name) if name else "")
    assert (says in refused) if says else refused is None
    assert os.listdir(tmp_path) == ["old.prom"]
    assert (tmp_path / "old.prom").read_text() == "old\n"

"""Host files in the forms of other tools, and files that are none."""

import pytest
from ddp_doctor.cluster import hostfile
from ddp_doctor.cluster.names import BadNodes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01\ngpu02\n", ["gpu01", "gpu02"]),
        ("gpu01 slots=8\ngpu02 slots=8 max_slots=16\n", ["gpu01", "gpu02"]),  # Open MPI, DeepSpeed
        ("gpu01:8\ngpu02:8\n", ["gpu01", "gpu02"]),  # MPICH, Intel MPI
        ("gpu[01-03]\n", ["gpu01", "gpu02", "gpu03"]),  # pdsh, clush
        ("gpu01,gpu02 gpu03\n", ["gpu01", "gpu02", "gpu03"]),
        ("10.0.0.1 gpu01 gpu01.cluster\n10.0.0.2\tgpu02\n", ["gpu01", "gpu02"]),
        ("127.0.0.1 localhost\n::1 ip6-localhost\nff02::1 ip6-allnodes\n10.0.0.1 gpu01\n", ["gpu01"]),
        ("10.0.0.1\n10.0.0.2 slots=4\n", ["10.0.0.1", "10.0.0.2"]),
        ("fe80::1\n2001:db8::7 gpu07\n", ["fe80::1", "gpu07"]),
        ("# all of them\n\ngpu01 # the first\r\n  gpu02  \n", ["gpu01", "gpu02"]),
        ("\ufeffgpu01\n", ["gpu01"]),
    ],
)
def test_the_forms_of_other_tools(text, names):
    assert hostfile.parse(text) == (names, [])


def test_a_line_for_each_process_is_no_repetition_but_one_too_many_is():
    assert hostfile.parse("a\na\nb\nb\n") == (["a", "b"], [])
    assert hostfile.parse("a\nb\na\n") == (["a", "b"], ["a"])


@pytest.mark.parametrize(
    "line",
    ["-oProxyCommand=x", "gpu;id", "$(id)", "gpu[1-9999999999]", "gpu[0-999999999]", "a b=c d", "gpu01\x1b[2J", "../x"],
)
def test_what_is_no_node_is_refused_with_its_line(line):
    with pytest.raises(BadNodes, match="line 2"):
        hostfile.parse(f"gpu01\n{line}\n", "hosts")


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "127.0.0.1 localhost\n"])
def test_a_file_without_nodes(text):
    with pytest.raises(BadNodes, match="no node in it"):
        hostfile.parse(text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        hostfile.read(str(tmp_path / "nowhere"))


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(b"\xff\xfe\x00gpu01\n")
    with pytest.raises(BadNodes, match="line 1"):
        hostfile.read(str(path))

"""libibverbs by ctypes: a library of our own in its place, and files of its stack."""

import ctypes
import os
import shutil
import subprocess

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import rdma, verbs
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable

LIBRARY = r"""
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static const char *names[] = {"mlx5_0", "denied", "silent", "hangs", "odd", "crashes"};
void *ibv_get_device_list(int *count) {
    static const char **list[7];
    *count = 6;
    for (int n = 0; n < 6; n++) list[n] = &names[n];
    return list;
}
const char *ibv_get_device_name(const char **device) { return *device; }
void *ibv_open_device(const char **device) {
    if (!strcmp(*device, "denied")) { errno = EPERM; return 0; }
    if (!strcmp(*device, "hangs")) for (;;) pause();
    if (!strcmp(*device, "crashes")) raise(SIGKILL);
    return device;
}
int ibv_query_port(const char **context, unsigned char port, int *attr) {
    if (!strcmp(*context, "silent")) return EIO;
    attr[0] = 4, attr[1] = 5, attr[2] = strcmp(*context, "odd") ? port + 2 : 99;
    memset(attr + 3, 0x55, 128);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A libibverbs.so.1 with six devices, some of them ill."""
    folder = tmp_path_factory.mktemp("verbs")
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    (folder / "verbs.c").write_text(LIBRARY)
    path = folder / "libibverbs.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(folder / "verbs.c")], check=True)
    return path


@pytest.fixture
def loaded(library, monkeypatch):
    """The loader finds this library."""
    monkeypatch.setattr(verbs, "LIBRARY", str(library))
    return library


def test_mtus_are_those_that_ibv_devinfo_shows(loaded):
    found = verbs.read(Host(), {"mlx5_0": (1, 2)})
    assert found["library"] == str(loaded)
    assert found["devices"] == {"mlx5_0": {"ports": {"1": [4096, 1024], "2": [4096, 2048]}}}


def test_an_ill_device_hides_no_other(loaded):
    asked = dict.fromkeys(("mlx5_0", "denied", "silent", "hangs", "odd", "gone"), (1,))
    found = verbs.read(Host(), asked, limit_s=0.3)["devices"]
    assert found["mlx5_0"] == {"ports": {"1": [4096, 1024]}}
    assert (found["silent"], found["odd"]) == ({"ports": {"1": None}}, {"ports": {"1": [4096, None]}})
    assert {name: found[name]["kind"] for name in ("denied", "hangs", "gone")} == {
        "denied": "no-rights",
        "hangs": "timed-out",
        "gone": "absent",
    }


def test_a_provider_that_crashes_takes_nobody_along(loaded):
    found = verbs.read(Host(), {"mlx5_0": (1,), "crashes": (1,)})["devices"]
    assert (found["mlx5_0"], found["crashes"]["kind"]) == ({"ports": {"1": [4096, 1024]}}, "crashed")


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(verbs, "LIBRARY", "/nowhere/libibverbs.so.1")
    assert verbs.read(Host(), {"mlx5_0": (1,)}) == {"library": "", "listed": [], "devices": {}}


@pytest.mark.parametrize("answer", [None, [], {"library": "x"}, {"library": 1, "listed": [], "devices": {}}])
def test_an_answer_of_another_shape_is_none(answer):
    with pytest.raises(Unreadable):
        verbs.read(Recording({"ask verbs": {"value": answer}}, {}, complete=True), {"mlx5_0": (1,)})


def test_the_real_library_has_the_functions_that_are_called():
    try:
        real = ctypes.CDLL("libibverbs.so.1")
    except OSError:
        pytest.skip("no libibverbs.so.1 here")
    assert {name for name in ("ibv_open_device", "ibv_query_port") if hasattr(real, name)} == {
        "ibv_open_device",
        "ibv_query_port",
    }
    assert os.path.basename(verbs.ask({}, 1.0)["library"]).startswith("libibverbs.so")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("driver mlx5\n", ("mlx5",)),
        ("# nothing\n\ndriver\ndriver /usr/lib64/libibverbs/libmlx5-rdmav34.so\n", ("mlx5",)),
        ("driver mlx5-rdmav2\ndriver rxe", ("mlx5", "rxe")),
        ("\\xff garbage\n", ()),
    ],
)
def test_drivers(text, names):
    assert verbs.parse_driver(text) == names


# --------------------------------------------------------------------------- as facts

IB = "/sys/class/infiniband"
NODE = {"kind": "char", "mode": 0o666, "uid": 0, "gid": 0, "size_bytes": 0, "readable": True, "writable": True}


def node(*names, answer, files=(), env=None):
    """A node with these devices and what libibverbs says of them."""
    tree, entries = dict(files), {"env ": {"value": env or {}}, "ask verbs": {"value": answer}}
    for number, name in enumerate(names):
        tree[f"{IB}/{name}/ports/1/link_layer"] = "InfiniBand\n"
        tree[f"{IB}/{name}/device/infiniband_verbs/uverbs{number}/dev"] = "231:192\n"
        tree[f"/dev/infiniband/uverbs{number}"] = ""
        entries[f"stat /dev/infiniband/uverbs{number}"] = {"value": NODE}
    return rdma.read(Recording(entries, {f"root{path}": text for path, text in tree.items()}, complete=True), Ask())


def test_what_the_library_says_becomes_facts():
    said = {
        "a": {"ports": {"1": [4096, 2048]}},
        "b": {"kind": "absent", "text": "no provider"},
        "c": {"kind": "no-rights", "text": "c: cannot be opened: Operation not permitted"},
        "d": {"kind": "timed-out", "text": "d: no answer in 2 s"},
        "e": {"ports": {"1": [4096, "x"]}},
    }
    found = node(*"abcde", answer={"library": "/usr/lib64/libibverbs.so.1", "listed": [], "devices": said})
    a, b, c, d, e = found.devices
    assert (a.verbs, a.ports[0].max_mtu_bytes, a.ports[0].active_mtu_bytes) == ("opens", 4096, 2048)
    assert (b.verbs, c.verbs) == ("not listed", "c: cannot be opened: Operation not permitted")
    assert (d.verbs, d.unread["verbs"].kind, d.ports[0].unread["active_mtu_bytes"].kind) == (
        None,
        "timed-out",
        "timed-out",
    )
    assert (e.verbs, e.ports[0].active_mtu_bytes, e.ports[0].unread["active_mtu_bytes"].kind) == (
        "opens",
        None,
        "unreadable",
    )
    assert found.verbs_library == "/usr/lib64/libibverbs.so.1"


def test_no_library_and_a_library_that_is_not_asked():
    (device,) = node("a", answer={"library": "", "listed": [], "devices": {}}).devices
    assert (device.verbs, device.unread["verbs"].kind) == (None, "absent")


def test_files_of_two_stacks():
    files = {
        "/etc/libibverbs.d/mlx5.driver": "driver mlx5\n",
        "/etc/libibverbs.d/rxe.driver": "driver rxe\n",
        "/opt/ofed/lib/libibverbs.so.1": "",
        "/usr/lib64/libibverbs.so.1": "",
        "/usr/lib/libibverbs.so.1": "",
        "/opt/amazon/lib/libnccl-net.so": "",
        "/opt/amazon/lib/libnccl-net-ofi.so": "",
        "/opt/amazon/lib/libnccl-tuner.so": "",
    }
    env = {"LD_LIBRARY_PATH": "/opt/ofed/lib:/opt/amazon/lib"}
    found = node(
        "a", answer={"library": "/opt/ofed/lib/libibverbs.so.1", "listed": [], "devices": {}}, files=files, env=env
    )
    assert found.providers == ("mlx5", "rxe")
    assert found.verbs_libraries == ("/opt/ofed/lib/libibverbs.so.1", "/usr/lib64/libibverbs.so.1")
    assert found.plugins == ("/opt/amazon/lib/libnccl-net-ofi.so", "/opt/amazon/lib/libnccl-net.so")


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (("0xffff", "0x0000", "0x8001", "0x0000"), ("0xffff", "0x0000", "0x8001")),
        (("0x0000",), ()),
        (("0x7fff", *["0x0000"] * 30, "0x8002"), ("0x7fff",)),
    ],
)
def test_partition_keys(rows, found):
    files = {f"{IB}/a/ports/1/pkeys/{row}": f"{key}\n" for row, key in enumerate(rows)}
    (device,) = node("a", answer={"library": "", "listed": [], "devices": {}}, files=files).devices
    assert device.ports[0].pkeys == found


@pytest.mark.parametrize(("text", "found"), [("Global tclass=106\n", 106), ("-1\n", -1), ("\n", -1)])
def test_traffic_class(text, found):
    files = {f"{IB}/a/tc/1/traffic_class": text}
    (device,) = node("a", answer={"library": "", "listed": [], "devices": {}}, files=files).devices
    assert device.ports[0].traffic_class == found

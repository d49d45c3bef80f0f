"""The fabric section: NVSwitches as sysfs shows them, daemons as real processes."""

import subprocess
import sys

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import fabric, services
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording

DAEMONS = f"ask processes called {fabric.MANAGER}, {fabric.SUBNET_MANAGER}, {fabric.IMEX}"


def put(root, files, links=()):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, target in dict(links).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)


def function(root, pci, device="0x1af1", kind="0x068000", vendor="0x10de", driver="nvidia-nvswitch"):
    folder = f"sys/bus/pci/devices/{pci}"
    files = {"vendor": vendor, "device": device, "class": kind}
    put(
        root,
        {f"{folder}/{name}": f"{text}\n" for name, text in files.items()},
        {f"{folder}/driver": f"../../drivers/{driver}"} if driver else {},
    )


@pytest.fixture
def root(tmp_path):
    """A machine with the driver, and a process that sees all of it."""
    put(
        tmp_path,
        {"proc/driver/nvidia/version": "", "sys/bus/pci/devices/.keep": ""},
        {"proc/self/ns/pid": fabric.INITIAL_PID_NAMESPACE},
    )
    return tmp_path


def read(root):
    return fabric.read(Host(str(root)), Ask())


# --------------------------------------------------------------------------- switches


def test_nvswitches_and_what_looks_like_one(root):
    function(root, "0000:c4:00.0")
    function(root, "0000:c5:00.0", device="0x22a3", driver="")
    function(root, "0000:c6:00.0", driver="vfio-pci")
    function(root, "0000:00:0a.0", device="0x0269", driver="forcedeth")  # an nForce chipset's network, the same class
    function(root, "0000:00:0b.0", vendor="0x8086")
    function(root, "0000:07:00.0", device="0x20b2", kind="0x030200", driver="nvidia")
    function(root, "0000:08:00.0", device="garbage", driver="")
    assert read(root).nvswitches == ("0000:c4:00.0", "0000:c5:00.0")


def test_a_bus_that_cannot_be_read(tmp_path):
    put(tmp_path, {"proc/driver/nvidia/version": ""}, {"proc/self/ns/pid": fabric.INITIAL_PID_NAMESPACE})
    found = read(tmp_path)
    assert (found.nvswitches, found.unread["nvswitches"].kind) == (None, "absent")
    assert found.manager_running is False


def test_without_a_driver_no_daemon_is_looked_for(tmp_path):
    put(tmp_path, {"sys/bus/pci/devices/.keep": ""})
    found = read(tmp_path)
    assert (found.nvswitches, found.imex_channels) == ((), ())
    assert {name: reason.kind for name, reason in found.unread.items()} == dict.fromkeys(
        ("manager_running", "manager_installed", "manager_version", "subnet_manager_running", "imex_running"),
        "not-applicable",
    )


# --------------------------------------------------------------------------- daemons


@pytest.fixture
def daemon(tmp_path):
    """Start a process of this name; all are ended after the test."""
    started = []

    def start(name):
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\nprint('runs', flush=True)\nimport sys\nsys.stdin.read()\n")
        script.chmod(0o755)
        process = subprocess.Popen([str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"runs\n"  # its name is its own by now
        started.append(process)

    yield start
    for process in started:
        process.communicate()


def test_daemons_that_run_are_seen_by_name(root, daemon):
    assert (read(root).manager_running, read(root).imex_running) == (False, False)
    daemon("nv-fabricmanager")
    daemon("nvlsm")
    found = read(root)
    assert (found.manager_running, found.subnet_manager_running, found.imex_running) == (True, True, False)


def test_one_look_finds_all_names(daemon):
    daemon("nvidia-imex")
    assert services.running_of(Host(), ("nvidia-imex", "no-such-daemon")) == {"nvidia-imex"}


def recording(seen, namespace=fabric.INITIAL_PID_NAMESPACE, files=(), **entries):
    said = {DAEMONS: {"value": seen}, "link /proc/self/ns/pid": {"value": namespace}, **entries}
    there = {"root/proc/driver/nvidia/version": "", "root/sys/bus/pci/devices/.keep": "", **dict(files)}
    return fabric.read(Recording(said, there, complete=True), Ask())


@pytest.mark.parametrize(
    ("seen", "namespace", "running", "why"),
    [
        ({"names": [], "hidden": False}, "pid:[4026532000]", None, "not-applicable"),
        ({"names": ["nv-fabricmanage"], "hidden": False}, "pid:[4026532000]", True, None),
        ({"names": [], "hidden": True}, fabric.INITIAL_PID_NAMESPACE, None, "no-rights"),
    ],
)
def test_who_cannot_see_the_host_s_processes_does_not_say_that_none_runs(seen, namespace, running, why):
    found = recording(seen, namespace)
    reason = found.unread.get("manager_running")
    assert (found.manager_running, reason and reason.kind) == (running, why)


# --------------------------------------------------------------------------- version


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("Fabric Manager version is : 535.104.05\n", "535.104.05"),
        ("nv-fabricmanager 580.95\n", "580.95"),
        ("", None),
        ("usage: 1.2.3.4.5.6", None),
        ("\x00\xff" * 100, None),
    ],
)
def test_versions(printed, version):
    assert fabric.parse_version(printed) == version


RUNS = {"names": ["nv-fabricmanage"], "hidden": False}
INSTALLED = {"root" + fabric.BINARY: ""}


@pytest.mark.parametrize(
    ("answer", "version", "why"),
    [
        ({"value": {"status": 0, "stdout": "Fabric Manager version is : 550.54.15", "stderr": ""}}, "550.54.15", None),
        ({"value": {"status": -11, "stdout": "", "stderr": "core dumped"}}, None, "unreadable"),
        ({"reason": {"kind": "timed-out", "text": "no answer in 5 s"}}, None, "timed-out"),
    ],
)
def test_the_version_of_the_manager(answer, version, why):
    found = recording(RUNS, files=INSTALLED, **{"run fabric-manager-version": answer})
    reason = found.unread.get("manager_version")
    assert (found.manager_installed, found.manager_version, reason and reason.kind) == (True, version, why)


@pytest.mark.parametrize("files", [{}, INSTALLED])
def test_the_version_is_not_asked_where_it_does_not_matter(files):
    found = recording({"names": [], "hidden": False}, files=files)
    assert (found.manager_installed, found.unread["manager_version"].kind) == (bool(files), "not-applicable")


# --------------------------------------------------------------------------- IMEX


def test_imex_channels_are_device_nodes(root):
    names = ("channel0", "channel12", "other", "channel0\n0")
    put(root, {f"dev/nvidia-caps-imex-channels/{name}": "" for name in names})
    assert read(root).imex_channels == tuple(f"{fabric.IMEX_CHANNELS}/{name}" for name in ("channel0", "channel12"))


def test_channels_that_may_not_be_looked_at():
    denied = {"reason": {"kind": "no-rights", "text": "Permission denied"}}
    found = recording(RUNS, **{f"list {fabric.IMEX_CHANNELS}": denied})
    assert (found.imex_channels, found.unread["imex_channels"].kind) == (None, "no-rights")

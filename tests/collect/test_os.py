"""Os: distribution, container and kind of machine, also where a mark misleads."""

import platform
from pathlib import Path
from typing import Any, Dict, Optional

import pytest
from ddp_doctor.ask import Ask
from ddp_doctor.collect import os as os_section
from ddp_doctor.collect.container import INITIAL_PID_NAMESPACE, container_kind
from ddp_doctor.collect.virtualisation import virtualisation
from ddp_doctor.facts import Os
from ddp_doctor.host import Host
from ddp_doctor.recording import Recording
from ddp_doctor.unreadable import Unreadable

RELEASES = Path(__file__).parents[3] / "shared/captures/5-host/os-release"
CENTOS = 'NAME="CentOS Linux"\nVERSION="8 (Core)"\nID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="8"\nPRETTY_NAME="CentOS Linux 8 (Core)"\n'
STREAM = 'NAME="CentOS Stream"\nID="centos"\nVERSION_ID="9"\nPRETTY_NAME="CentOS Stream 9"\n'
DEBIAN = "ID=debian\nVERSION_ID=12\nPRETTY_NAME='Debian GNU/Linux 12 (bookworm)'\n"
SECURE_BOOT = os_section._SECURE_BOOT


def host(files: Dict[str, str], **entries: Any) -> Recording:
    """A recorded node; ``entries`` are answers of ``ask`` by name."""
    answers = {f"ask {name}": {"value": value} for name, value in entries.items()}
    return Recording(answers, {"root" + path: text for path, text in files.items()}, complete=True)


def read(files: Dict[str, str], **entries: Any) -> Os:
    return os_section.read(host(files, **entries), Ask())


def test_node() -> None:
    files = {
        "/etc/os-release": CENTOS,
        "/proc/sys/kernel/osrelease": "4.18.0-193.el8.x86_64\n",
        "/proc/sys/kernel/hostname": "n001\n",
        "/proc/self/mountinfo": "27 1 253:0 / / rw,relatime - xfs /dev/mapper/cl-root rw\n",
        "/proc/cpuinfo": "flags\t\t: fpu vme sse2\n",
        "/sys/class/dmi/id/sys_vendor": "Supermicro\n",
        "/proc/uptime": "86400.25 1000.00\n",
        "/proc/sys/kernel/random/boot_id": "d7e181cf-f0f8-42ad-8185-fa1c5367e56c\n",
        "/sys/fs/selinux/enforce": "1",
        "/sys/firmware/efi/fw_platform_size": "64\n",
        SECURE_BOOT: "\x06\x00\x00\x00\x01",
    }
    assert read(files, distro="8.2.2004", machine="x86_64", glibc="glibc 2.28") == Os(
        id="centos",
        version="8.2.2004",
        pretty="CentOS Linux 8 (Core)",
        like=("rhel", "fedora"),
        stream=False,
        kernel="4.18.0-193.el8.x86_64",
        machine="x86_64",
        glibc="2.28",
        hostname="n001",
        container="",
        virtualisation="",
        uptime_s=86400.25,
        boot_id="d7e181cf-f0f8-42ad-8185-fa1c5367e56c",
        selinux="enforcing",
        secure_boot=True,
        systemd=False,
    )


@pytest.mark.parametrize(
    ("files", "distro", "version", "stream"),
    [
        ({"/etc/os-release": CENTOS}, "8.5.2111", "8.5.2111", False),
        (
            {"/etc/os-release": CENTOS, "/etc/centos-release": "CentOS Linux release 8.2.2004 (Core)\n"},
            None,
            "8.2.2004",
            False,
        ),
        ({"/etc/os-release": CENTOS}, None, "8", False),
        ({"/etc/os-release": CENTOS}, "garbage", "8", False),
        ({"/etc/os-release": STREAM, "/etc/redhat-release": "CentOS Stream release 9\n"}, "9", "9", True),
        ({"/etc/os-release": DEBIAN, "/etc/debian_version": "12.5\n"}, None, "12.5", False),
        (
            {"/usr/lib/os-release": "ID=ubuntu\nVERSION_ID=22.04\n", "/etc/debian_version": "bookworm/sid\n"},
            None,
            "22.04",
            False,
        ),
        ({"/etc/os-release": "ID=arch\nNAME=Arch\n"}, "", None, False),
        ({"/etc/redhat-release": "CentOS release 6.9 (Final)\n"}, None, "6.9", False),
    ],
)
def test_version(files: Dict[str, str], distro: Optional[str], version: Optional[str], stream: bool) -> None:
    found = read(files, **({} if distro is None else {"distro": distro}))
    assert (found.version, found.stream) == (version, stream)


@pytest.mark.parametrize("text", ["", "\x00\\xff", "no release here", "ID", "=\n=", "[section]"])
def test_hostile_release_file_is_a_reason(text: str) -> None:
    found = read({"/etc/os-release": text, "/etc/redhat-release": text})
    assert found.id in (None, "linux")
    assert "version" in found.unread


def test_quotes_that_are_not_closed_lose_nothing_else() -> None:
    assert os_section.parse_os_release('ID="deb\nVERSION_ID=12\n') == {"ID": "deb", "VERSION_ID": "12"}


def test_musl_has_no_glibc() -> None:
    assert read({}, glibc=None).unread["glibc"].kind == "absent"


@pytest.mark.parametrize(
    ("files", "selinux"),
    [
        ({"/sys/fs/selinux/enforce": "0"}, "permissive"),
        ({"/proc/filesystems": "nodev\tproc\n\text4\n"}, "disabled"),
        ({"/proc/filesystems": "nodev\tselinuxfs\n"}, None),
        ({}, None),
    ],
)
def test_selinux(files: Dict[str, str], selinux: Optional[str]) -> None:
    found = read(files)
    assert found.selinux == selinux
    assert ("selinux" in found.unread) is (selinux is None)


@pytest.mark.parametrize(
    ("variable", "secure_boot", "kind"),
    [
        ("\x06\x00\x00\x00\x00", False, None),
        ("\x06\x00\x00\x00", None, "unreadable"),
        ("\x06\x00\x00\x00\\xff", None, "unreadable"),
        (None, None, "absent"),
    ],
)
def test_secure_boot(variable: Optional[str], secure_boot: Optional[bool], kind: Optional[str]) -> None:
    files = {"/sys/firmware/efi/fw_platform_size": "64\n", **({} if variable is None else {SECURE_BOOT: variable})}
    found = read(files)
    assert found.secure_boot is secure_boot
    assert getattr(found.unread.get("secure_boot"), "kind", None) == kind


def test_no_efi_is_not_applicable() -> None:
    assert read({}).unread["secure_boot"].kind == "not-applicable"


EXT4 = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
OVERLAY = "500 400 0:50 / / rw - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir=/u,workdir=/w\n"
DOCKER = OVERLAY.replace("/u,", "/var/lib/docker/overlay2/0f/diff,")
POD = OVERLAY + "501 500 8:1 /var/lib/kubelet/pods/0b/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
PODMAN = EXT4 + "501 500 0:9 /containers/storage/overlay-containers/1/userdata/hosts /etc/hosts rw - tmpfs tmpfs rw\n"
DOCKER_HOST = EXT4 + "99 27 0:60 / /var/lib/docker/overlay2/0f/merged rw - overlay overlay rw,lowerdir=/l,upperdir=/u\n"
LXC = "838 589 253:0 /var/lib/lxc/web/rootfs / rw - ext4 /dev/mapper/root rw\n"
ENROOT = "600 1 0:70 /enroot/data/user-1000/pyxis_77.0 / rw - tmpfs tmpfs rw\n"
ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("mountinfo", "others", "env", "namespace", "kind"),
    [
        (EXT4, {}, {}, "first", ""),
        # A virtual machine made from an image of Docker, and variables that srun carried out of a container.
        (EXT4, {"/.dockerenv": ""}, {}, "first", ""),
        (
            EXT4,
            {},
            {"container": "podman", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "APPTAINER_CONTAINER": "/x"},
            "first",
            "",
        ),
        (DOCKER_HOST, {}, {}, "first", ""),
        (EXT4, {"/proc/self/cgroup": "0::/system.slice/docker.service\n"}, {}, "first", ""),
        (OVERLAY, {}, {}, "first", ""),  # a live system, a diskless node
        (EXT4, {}, {}, "own", ""),  # WSL
        (OVERLAY, {}, {}, "own", "container"),
        (OVERLAY, {"/.dockerenv": ""}, {}, "first", "docker"),  # docker run --pid=host
        (DOCKER, {}, {}, "own", "docker"),
        (EXT4, {"/proc/self/cgroup": f"4:memory:/docker/{ID}\n"}, {}, "own", "docker"),
        (OVERLAY, {"/run/.containerenv": ""}, {}, "own", "podman"),
        (PODMAN, {}, {}, "own", "podman"),
        (POD, {"/.dockerenv": ""}, {}, "own", "kubernetes"),
        (OVERLAY, {}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "own", "kubernetes"),
        (OVERLAY, {"/proc/self/cgroup": f"0::/kubepods.slice/cri-containerd-{ID}.scope\n"}, {}, "own", "kubernetes"),
        (LXC, {}, {}, "own", "lxc"),
        (EXT4, {"/run/systemd/container": "systemd-nspawn\n"}, {}, "own", "systemd-nspawn"),
        (OVERLAY, {"/.singularity.d/runscript": ""}, {"APPTAINER_CONTAINER": "/x.sif"}, "first", "apptainer"),
        (ENROOT, {}, {}, "first", "enroot"),
        (OVERLAY, {}, {"container": "oci"}, "own", "container"),
        (OVERLAY, {}, {"container": "\x1b[31m; rm"}, "own", "container"),
    ],
)
def test_container(mountinfo: str, others: Dict[str, str], env: Dict[str, str], namespace: str, kind: str) -> None:
    node = host({"/proc/self/mountinfo": mountinfo, **others})
    link = INITIAL_PID_NAMESPACE if namespace == "first" else "pid:[4026532200]"
    node.entries.update({"env ": {"value": env}, "link /proc/self/ns/pid": {"value": link}})
    assert container_kind(node) == kind


def test_container_is_not_denied_without_data() -> None:
    found = read({})
    assert found.container is None
    assert found.unread["container"].kind == "absent"


FLAG, NO_FLAG, ARM = "flags\t: fpu hypervisor lahf\n", "flags\t: fpu lahf\n", "Features\t: fp asimd\n"


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "others", "kind"),
    [
        (NO_FLAG, "NVIDIA", "DGXA100 920-23687-2530-000", {}, ""),
        (NO_FLAG, "Amazon EC2", "p4d.metal", {}, ""),
        (FLAG, "Amazon EC2", "p4d.24xlarge", {}, "amazon"),
        (ARM, "Amazon EC2", "c7g.metal", {}, ""),
        (ARM, "Amazon EC2", "p6e-gb200.36xlarge", {}, "amazon"),
        (FLAG, "Google", "Google Compute Engine", {}, "google"),
        (FLAG, "QEMU", "Standard PC (Q35 + ICH9, 2009)", {}, "qemu"),
        (NO_FLAG, "QEMU", "Standard PC (Q35 + ICH9, 2009)", {}, "qemu"),  # hypervisor hidden for the GPU's driver
        (FLAG, "VMware, Inc.", "VMware7,1", {}, "vmware"),
        (FLAG, "Microsoft Corporation", "Virtual Machine", {}, "microsoft"),
        (NO_FLAG, "Microsoft Corporation", "Surface Laptop", {}, ""),
        (FLAG, "OpenStack Foundation", "OpenStack Nova", {}, "kvm"),
        (
            FLAG,
            "",
            "",
            {"/sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc kvm-clock\n"},
            "kvm",
        ),
        (
            FLAG,
            "",
            "",
            {"/sys/firmware/acpi/tables/FACP": "FACP\x14\x01\x00\x00\x06\\x8eFIRECKFCMVFADT"},
            "firecracker",
        ),
        (FLAG, "Unheard Of", "Cloud", {}, "vm"),
        (FLAG, "", "", {"/proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"}, "wsl"),
        (FLAG, "Dell Inc.", "R750", {"/sys/hypervisor/type": "xen\n", "/proc/xen/capabilities": "control_d\n"}, ""),
        (FLAG, "Xen", "HVM domU", {"/sys/hypervisor/type": "xen\n"}, "xen"),
        (ARM, "", "", {"/proc/device-tree/hypervisor/compatible": "linux,kvm\x00"}, "kvm"),
        (ARM, "NVIDIA", "Grace", {}, ""),
    ],
)
def test_virtualisation(cpuinfo: str, vendor: str, product: str, others: Dict[str, str], kind: str) -> None:
    dmi = {"/sys/class/dmi/id/sys_vendor": vendor + "\n", "/sys/class/dmi/id/product_name": product + "\n"}
    assert virtualisation(host({"/proc/cpuinfo": cpuinfo, **(dmi if vendor else {}), **others})) == kind


def test_bare_metal_is_not_assumed_without_data() -> None:
    with pytest.raises(Unreadable):
        virtualisation(host({"/proc/cpuinfo": ARM}))


def test_nothing_readable_leaves_a_reason_everywhere() -> None:
    assert set(read({}).unread) == set(Os.__dataclass_fields__) - {
        "unread",
        "systemd",
    }  # no folder of systemd's is an answer


def test_this_machine() -> None:
    found = os_section.read(Host(), Ask())
    assert (found.kernel, found.machine) == (platform.release(), platform.machine())
    assert found.glibc == (platform.libc_ver()[1] or None)
    assert found.uptime_s is not None
    assert found.uptime_s > 0


@pytest.mark.skipif(not RELEASES.exists(), reason="../shared/captures is not here")
@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("derived/centos8.2", ("centos", "8.2.2004", False)),
        ("derived/centos8.5", ("centos", "8.5.2111", False)),
        ("distro/centosstream8", ("centos", "8", True)),
        ("distro/centosstream9", ("centos", "9", True)),
        ("distro/centos7", ("centos", "7.1.1503", False)),
        ("distro/debian13", ("debian", "13.1", False)),
        ("distro/ubuntu24", ("ubuntu", "24.04", False)),
        ("distro/rocky9", ("rocky", "9.3", False)),
        ("distro/arch", ("arch", None, False)),
        ("distro/rhel6", ("rhel", "6.5", False)),
        ("go-sysinfo/sles15sp5", ("sles", "15.5", False)),
    ],
)
def test_captured_trees(tree: str, expected: object) -> None:
    found = os_section.read(Host(str(RELEASES / tree)), Ask())
    assert (found.id, found.version, found.stream) == expected


@pytest.mark.skipif(not RELEASES.exists(), reason="../shared/captures is not here")
def test_every_captured_release_file_is_read() -> None:
    paths = [p for p in RELEASES.glob("**/*") if p.is_file() and "os-release" in p.name]
    found = {str(p): os_section.parse_os_release(p.read_text()) for p in paths}
    unnamed = {p for p, release in found.items() if "ID" not in release}
    assert len(found) > 80
    assert all(Path(p).name in ("os-release-empty", "os-release.orig") or Path(p).stat().st_size < 64 for p in unnamed)

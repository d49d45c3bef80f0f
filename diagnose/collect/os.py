"""Os: distribution, kernel, C library, and on what kind of machine they run."""

import os
import re
import shlex
from typing import Any, Dict, List, Optional

from ddp_doctor.ask import Ask
from ddp_doctor.collect.container import container_kind
from ddp_doctor.collect.virtualisation import virtualisation
from ddp_doctor.facts import Os, Reason, Unread
from ddp_doctor.host import Host, optional
from ddp_doctor.unreadable import Unreadable

_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""The variable of EFI's global namespace (UEFI specification 3.3)."""


def read(host: Host, ask: Ask) -> Os:
    """Operating system of this node, as this process sees it."""
    unread: Unread = {}
    release = parse_os_release(optional(lambda: _os_release(host), unread, "id") or "")
    for name in ("version", "pretty", "like", "stream") if "id" in unread else ():
        unread[name] = unread["id"]
    return Os(
        **({} if "id" in unread else _distribution(host, release, unread)),
        kernel=optional(lambda: _line(host, "/proc/sys/kernel/osrelease"), unread, "kernel"),
        machine=optional(lambda: _machine(host), unread, "machine"),
        glibc=optional(lambda: _glibc(host), unread, "glibc"),
        hostname=optional(lambda: _line(host, "/proc/sys/kernel/hostname"), unread, "hostname"),
        container=optional(lambda: container_kind(host), unread, "container"),
        virtualisation=optional(lambda: virtualisation(host), unread, "virtualisation"),
        uptime_s=optional(lambda: parse_uptime(host.read("/proc/uptime")), unread, "uptime_s"),
        boot_id=optional(lambda: _line(host, "/proc/sys/kernel/random/boot_id"), unread, "boot_id"),
        selinux=optional(lambda: _selinux(host), unread, "selinux"),
        secure_boot=optional(lambda: _secure_boot(host), unread, "secure_boot"),
        systemd=optional(lambda: host.exists("/run/systemd/system"), unread, "systemd"),
        unread=unread,
    )


def _os_release(host: Host) -> str:
    """os-release where os-release(5) says that it is; before there was one, /etc/redhat-release in its place."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        text = optional(lambda path=path: host.read(path), {}, "")  # type: ignore[misc]
        if text and "=" in text:
            return str(text)
    return redhat_as_os_release(host.read("/etc/redhat-release"))


def parse_os_release(text: str) -> Dict[str, str]:
    """Variables of os-release(5); lines that are none are left out."""
    found = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            found[name] = _unquoted(value)
    return found


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:  # a quote that is not closed
        return value.strip("\"'")


def redhat_as_os_release(text: str) -> str:
    """The one line of /etc/redhat-release as os-release would say it. Raises Unreadable for another form."""
    found = re.match(r"(.+?) (?:release )?([\d.]+)", text)
    if not found:
        raise Unreadable(Reason("unreadable", "neither os-release nor redhat-release names a distribution"))
    name, version = found.groups()
    known = {
        "Red Hat": "rhel",
        "CentOS": "centos",
        "Fedora": "fedora",
        "Scientific": "scientific",
        "Cloud": "cloudlinux",
    }
    name_id = next((i for start, i in known.items() if name.startswith(start)), name.split()[0].lower())
    return f'ID={name_id}\nNAME="{name}"\nVERSION_ID={version}\nPRETTY_NAME="{text.strip()}"\n'


def _distribution(host: Host, release: Dict[str, str], unread: Unread) -> Dict[str, Any]:
    """Fields that os-release gives; ID is "linux" where it is not set (os-release(5))."""
    stream = "stream" in release.get("NAME", "").lower()
    version = _version(host, release, stream)
    if version is None:
        unread["version"] = Reason("not-applicable", "this distribution has no version number")
    pretty = release.get("PRETTY_NAME") or release.get("NAME")
    if pretty is None:
        unread["pretty"] = Reason("absent", "os-release has neither PRETTY_NAME nor NAME")
    like = tuple(release.get("ID_LIKE", "").split())
    return {"id": release.get("ID", "linux"), "version": version, "pretty": pretty, "like": like, "stream": stream}


def _version(host: Host, release: Dict[str, str], stream: bool) -> Optional[str]:
    """The most precise version: os-release's own where it has a minor number, else what ``distro`` finds.

    CentOS and Debian keep the minor number in files of their own (8.2.2004, 12.5), which ``distro`` knows; where that
    library is absent the same files are looked at.
    """
    short = release.get("VERSION_ID") or None
    if stream or (short and "." in short):
        return short
    best = optional(lambda: str(host.ask("distro", lambda: _ask_distro(host.root))), {}, "")
    found = [best] if best else _release_files(host)
    longer = [v for v in found if re.match(r"\d", v) and v.startswith(short or "")]
    return max([short or "", *longer], key=lambda v: (bool(v), v.count("."))) or None


def _ask_distro(root: str) -> str:
    try:
        import distro
    except ImportError:
        raise Unreadable(Reason("absent", "the Python package distro is not installed")) from None
    options: Dict[str, Any] = {} if root == "/" else {"root_dir": root}
    return str(distro.LinuxDistribution(include_lsb=False, include_uname=False, **options).version(best=True))


def _release_files(host: Host) -> List[str]:
    texts = (
        optional(lambda path=path: host.read(path), {}, "") or ""  # type: ignore[misc]
        for path in ("/etc/centos-release", "/etc/redhat-release", "/etc/debian_version")
    )
    return [found.group(1) for found in (re.search(r"(?:^|release )(\d+(?:\.\d+)*)", text) for text in texts) if found]


def _machine(host: Host) -> str:
    """Linux 6.1 and newer say it in a file."""
    text = optional(lambda: _line(host, "/proc/sys/kernel/arch"), {}, "")
    return str(text or host.ask("machine", lambda: os.uname().machine))


def _glibc(host: Host) -> str:
    """Version of the C library that our interpreter runs on. Raises Unreadable "absent" on musl."""
    name, _, version = str(host.ask("glibc", _confstr)).partition(" ")
    if name != "glibc" or not version:
        raise Unreadable(Reason("absent", "the C library is not glibc"))
    return version


def _confstr() -> Optional[str]:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # musl does not know the name
        return None


def parse_uptime(text: str) -> float:
    """Seconds since the start, the first number of /proc/uptime. Raises Unreadable."""
    found = re.match(r"\d{1,12}(\.\d+)?(?= )", text)
    if not found:
        raise Unreadable(Reason("unreadable", f"/proc/uptime says {text[:40]!r}"))
    return float(found.group())


def _selinux(host: Host) -> str:
    """enforcing, permissive or disabled. Raises Unreadable where SELinux is on and its files are hidden."""
    enforce = optional(lambda: host.read("/sys/fs/selinux/enforce").strip(), {}, "")
    if enforce in ("0", "1"):
        return "enforcing" if enforce == "1" else "permissive"
    # A kernel with SELinux off does not register its file system; a container may hide the one of its host.
    if re.search(r"\bselinuxfs$", host.read("/proc/filesystems"), re.MULTILINE):
        raise Unreadable(Reason("absent", "SELinux is on, but /sys/fs/selinux is not shown here"))
    return "disabled"


def _secure_boot(host: Host) -> bool:
    """Raises Unreadable "not-applicable" on a machine that was not started by EFI."""
    if not host.exists("/sys/firmware/efi"):
        raise Unreadable(Reason("not-applicable", "no EFI here: started by BIOS, or hidden by a container"))
    return parse_secure_boot(host.read(_SECURE_BOOT))


def parse_secure_boot(text: str) -> bool:
    """Four bytes of attributes, one of value (kernel, Documentation/filesystems/efivarfs.rst). Raises Unreadable."""
    if len(text) != 5 or text[4] not in "\x00\x01":
        raise Unreadable(Reason("unreadable", "the EFI variable SecureBoot is not five bytes ending in 0 or 1"))
    return text[4] == "\x01"


def _line(host: Host, path: str) -> str:
    """The one line of a file of the kernel. Raises Unreadable when it is empty."""
    text = host.read(path).strip()
    if not text:
        raise Unreadable(Reason("unreadable", f"{path}: empty"))
    return text

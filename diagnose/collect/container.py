"""Container: whether this process is in one, and of which kind.

A single mark proves little: a virtual machine made from a container image keeps /.dockerenv, variables leak through
srun and ssh, and live systems have an overlay for a root. So marks count with a root or a PID namespace that no bare
machine has.
"""

import re
from typing import Dict, Optional, Tuple

from ddp_doctor.collect.mounts import MOUNTINFO, MountLine, parse_mountinfo
from ddp_doctor.host import Host, optional

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO, 0xEFFFFFFC, in the kernel's include/linux/proc_ns.h."""
_TRACES = (
    ("kubernetes", r"/kubepods[./]|/kubelet/pods/"),
    ("podman", r"/libpod-[0-9a-f]{64}|/containers/storage/|/overlay-containers/"),
    ("docker", r"/docker/[0-9a-f]{64}|/docker-[0-9a-f]{64}\.scope|/docker/(containers|overlay2)/"),
    ("containerd", r"/io\.containerd\."),
    ("lxc", r"/lxc/|/lxc\.payload|/lxd/"),
    ("enroot", r"/enroot/|/pyxis_"),
)
"""What runtimes leave in the cgroup path and in the mounts of a container, the more telling first."""
_CONTAINER_ROOTS = ("overlay", "fuse.fuse-overlayfs", "aufs", "9p", "virtiofs")
_RUNTIME_MOUNTS = ("/", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf")


def container_kind(host: Host) -> str:
    """docker, podman, kubernetes, lxc, apptainer ... or "container"; "" on none. Raises Unreadable."""
    mounts = parse_mountinfo(host.read(MOUNTINFO))
    env: Dict[str, str] = optional(host.env, {}, "") or {}
    if _is_there(host, "/.singularity.d") and {"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"} & set(env):
        return "apptainer"
    trace = traced(_text(host, "/proc/self/cgroup"), mounts)
    return trace or _declared(host) or _marked(host, env, *_confinement(host, mounts))


def traced(cgroup: str, mounts: Tuple[MountLine, ...]) -> Optional[str]:
    """The runtime whose traces are in /proc/self/cgroup or in the mounts that a runtime makes.

    Only the root and the name files are looked at: a container host has its containers' trees mounted elsewhere.
    """
    own = [m for m in mounts if m.point in _RUNTIME_MOUNTS]
    text = "\n".join([cgroup, *(f"{m.root} {','.join(m.super_options)}" for m in own)])
    return next((kind for kind, pattern in _TRACES if re.search(pattern, text)), None)


def _declared(host: Host) -> Optional[str]:
    """What the container's manager wrote for systemd (https://systemd.io/CONTAINER_INTERFACE)."""
    said = (_text(host, path).strip() for path in ("/run/systemd/container", "/run/host/container-manager"))
    return next((_kind(text) for text in said if text), None)


def _kind(text: str) -> str:
    return text if re.fullmatch(r"[a-z-]{2,20}", text) and text != "oci" else "container"


def _confinement(host: Host, mounts: Tuple[MountLine, ...]) -> Tuple[bool, bool]:
    """(the root is of a kind that containers have, the PID namespace is not the machine's first)."""
    roots = [m.fs_type for m in mounts if m.point == "/"]
    namespace = optional(lambda: host.link("/proc/self/ns/pid"), {}, "")
    return bool(roots) and roots[-1] in _CONTAINER_ROOTS, namespace not in (None, INITIAL_PID_NAMESPACE)


def _marked(host: Host, env: Dict[str, str], container_root: bool, own_pids: bool) -> str:
    """Marks that count in a confined process only."""
    if not (container_root or own_pids):
        return ""
    if "KUBERNETES_SERVICE_HOST" in env:
        return "kubernetes"
    if _is_there(host, "/run/.containerenv"):
        return "podman"
    if _is_there(host, "/.dockerenv"):
        return "docker"
    if "container" in env:
        return _kind(env["container"])
    return "container" if container_root and own_pids else ""


def _is_there(host: Host, path: str) -> bool:
    return bool(optional(lambda: host.exists(path), {}, ""))


def _text(host: Host, path: str) -> str:
    return optional(lambda: host.read(path), {}, "") or ""

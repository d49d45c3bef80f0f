"""Ways out of faults of the NVLink fabric."""

from typing import Iterator, Optional, Tuple

from ddp_doctor.facts import Fabric, Gpus, Os
from ddp_doctor.fixes._node import engine_of, install, is_debian, service
from ddp_doctor.model import Remedy, Step, Verdict, command, export, say, write_file
from ddp_doctor.nvlink import product

GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide"
IMEX = "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide"
CHANNELS = "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html"
MNNVL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-mnnvl-enable"


def gpu_not_registered(
    gpus: Gpus, os: Optional[Os] = None, fabric: Optional[Fabric] = None, finding: Optional[Verdict] = None
) -> Iterator[Remedy]:
    if _in_rack(gpus):
        yield from _ask_the_rack()
    elif engine_of(os):
        yield Remedy("Look at the host's fabric manager", (_on_host(),))
    else:
        yield Remedy("Set up the fabric again", (*_restart(os), *_see()))
    if len(gpus.gpus or ()) == 1:
        text = "options nvidia NVreg_NvLinkDisable=1\n"
        file = write_file("/etc/modprobe.d/nvidia-nvlink.conf", text, who="root", scope="this node")
        alone = say("Load the driver anew, or reboot: a GPU without others does not need the fabric.", who="root")
        yield Remedy("In a virtual machine with this GPU alone, switch NVLink off", (file, alone))


def unhealthy(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    if _in_rack(gpus):
        yield from _ask_the_rack()
    drained = say("Take the node out of service.", who="cluster admin")
    yield Remedy("Drain the node and reset its GPUs", (drained, *_see(), *_reset(os)))


def degraded(finding: Verdict, gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    again = say(
        "Look again in some minutes: repairs end by themselves. What stays is a lost link.", who="cluster admin"
    )
    yield Remedy("See whether it passes", (*_see(), command("nvidia-smi nvlink -s", scope="this node"), again))
    yield from unhealthy(finding, gpus, os)


def manager_not_running(fabric: Fabric, gpus: Optional[Gpus] = None, os: Optional[Os] = None) -> Iterator[Remedy]:
    if fabric.manager_installed is False:
        yield Remedy("Install the fabric manager of the driver's version and start it", _install(gpus, os))
        return
    look = command("journalctl -u nvidia-fabricmanager -b", who="root", scope="this node")
    hint = say("If it complains of the driver's version, install that of the driver.", who="root", see=GUIDE)
    yield Remedy("Start the fabric manager", (_start(os), look, hint))


manager_stopped = manager_not_running


def manager_version_differs(gpus: Gpus, os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy("Install the fabric manager of the driver's version", _install(gpus, os))


def subnet_manager_not_running(os: Optional[Os] = None) -> Iterator[Remedy]:
    yield Remedy(
        "Install nvlsm and start the fabric manager, which starts it",
        (
            install(os, "nvlsm", "nvlsm"),
            command("modprobe ib_umad", who="root", scope="this node until reboot", see=GUIDE),
            *_restart(os),
        ),
    )


def cliques_differ() -> Iterator[Remedy]:
    yield from _ask_the_rack()


def no_cluster() -> Iterator[Remedy]:
    yield from _ask_the_rack()


def imex_channel_missing(os: Optional[Os] = None) -> Iterator[Remedy]:
    engine = engine_of(os)
    if engine == "kubernetes":
        text = "Ask for a channel by a ComputeDomain of NVIDIA's DRA driver, in the namespace of the pods."
        yield Remedy("Give the pod an IMEX channel", (say(text, who="cluster admin", scope="this job", see=CHANNELS),))
    elif engine:
        text = "Start the container with NVIDIA_IMEX_CHANNELS=0 (NVIDIA's container toolkit), on a host that has the channel."
        yield Remedy("Give the container an IMEX channel", (say(text, scope="this job", see=CHANNELS),))
    else:
        yield Remedy("Make the channel", tuple(_make_channel()))
    yield from _without_mnnvl()


def imex_not_running(os: Optional[Os] = None) -> Iterator[Remedy]:
    nodes = say(
        "Write the addresses of all nodes of the NVLink domain into /etc/nvidia-imex/nodes_config.cfg, the same on each.",
        who="cluster admin",
        scope="all nodes",
        see=IMEX,
    )
    check = command("nvidia-imex-ctl -N", who="root", scope="this node")
    yield Remedy(
        "Start the daemon on every node", (nodes, service(os, "enable --now", "nvidia-imex", scope="this node"), check)
    )
    yield from _without_mnnvl()


# --------------------------------------------------------------------------- steps


def _start(os: Optional[Os]) -> Step:
    return service(os, "enable --now", "nvidia-fabricmanager", scope="this node", see=GUIDE)


def _restart(os: Optional[Os]) -> Tuple[Step, ...]:
    drained = say("Let no job use the GPUs: a restart of the fabric manager may end them.", who="cluster admin")
    return drained, service(os, "restart", "nvidia-fabricmanager", scope="this node", see=GUIDE)


def _see() -> Tuple[Step, ...]:
    fields = "index,fabric.state,fabric.status"
    return (command(f"nvidia-smi --query-gpu={fields} --format=csv", scope="this node"),)


def _reset(os: Optional[Os]) -> Tuple[Step, ...]:
    if engine_of(os):
        return (_on_host(),)
    reset = command("nvidia-smi --gpu-reset", who="root", scope="this node", risk="ends what runs on the GPUs")
    return reset, say("If it stays, report the node to the vendor.", who="cluster admin")


def _on_host() -> Step:
    return say(
        "On the host, not in this container: see that nvidia-fabricmanager runs and is of the driver's version, and reset the "
        "GPUs.",
        who="cluster admin",
        see=GUIDE,
    )


def _install(gpus: Optional[Gpus], os: Optional[Os]) -> Tuple[Step, ...]:
    """On Debian and Ubuntu most packages carry the driver's branch in their names."""
    driver = (gpus.kernel_module or gpus.driver) if gpus is not None else None
    branch = (driver or "").split(".")[0]
    name = f"nvidia-fabricmanager-{branch}" if is_debian(os) and branch.isdigit() else "nvidia-fabricmanager"
    exact = say(
        f"Its version must be the driver's to the last digit ({driver or 'see nvidia-smi'}), from the same repository; hold both "
        "so that they are upgraded together.",
        who="root",
        see=GUIDE,
    )
    return install(os, name, name), exact, *_restart(os)


def _in_rack(gpus: Gpus) -> bool:
    models = [product(gpu) for gpu in gpus.gpus or ()]
    return any(model is not None and model.manager == "rack" for model in models)


def _ask_the_rack() -> Iterator[Remedy]:
    text = (
        "Look at the rack's NVLink switches (NMX controller, fabric manager) and at the partition that this node is in."
    )
    steps = (
        *_see(),
        say(text, who="cluster admin", scope="all nodes", see="https://docs.nvidia.com/multi-node-nvlink-systems/"),
    )
    yield Remedy("Have the rack's NVLink domain looked at", steps)


def _make_channel() -> Iterator[Step]:
    yield write_file(
        "/etc/modprobe.d/nvidia-imex.conf",
        "options nvidia NVreg_CreateImexChannel0=1\n",
        who="root",
        scope="this node",
        see=CHANNELS,
    )
    yield say(
        "Load the driver anew, or reboot; on a node for several users make a channel for each instead.", who="root"
    )
    yield command("ls -l /dev/nvidia-caps-imex-channels", scope="this node")


def _without_mnnvl() -> Iterator[Remedy]:
    step = export("NCCL_MNNVL_ENABLE", "0", scope="this job", risk="nodes talk over the network: slower", see=MNNVL)
    yield Remedy("Meanwhile go over the network", (step,))

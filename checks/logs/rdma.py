"""InfiniBand, RoCE, EFA and GPUDirect RDMA."""

from typing import Iterator

from ddp_doctor.checks.logs._cause import PROGRESS, cause, looks_for
from ddp_doctor.logs.log import Cause, Log, found
from ddp_doctor.model import Severity, check

NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
NCCL_NET = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/networking_troubleshooting.html"
NCCL_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
OFI = "https://github.com/aws/aws-ofi-nccl"
LOST_WC = r"([Gg]ot completion.{0,80}(error|status)[ =]\(?12\b|status=12\b|transport retry counter exceeded|IBV_WC_RETRY_EXC_ERR)"

ib_memlock = cause(
    __name__,
    f"""Memory cannot be locked for RDMA.

    Why: Registering memory (ibv_reg_mr) locks pages; below "ulimit -l unlimited", or with a small memory cgroup, it fails with "Cannot allocate memory".
    See: {NCCL_NET}
    """,
    r"ibv_reg_mr\w{0,20}.{0,80}(Cannot allocate memory|failed with error 12\b)",
    r"ibv_create_(cq|qp)\w{0,12}.{0,60}Cannot allocate memory",
    r"Call to ibv_reg_mr\w{0,12} failed",
    r"memlock|RLIMIT_MEMLOCK|max locked memory",
    unless=(r"nvidia[-_]peermem is not|Bad address",),
    do="Set memlock to unlimited where the job starts: /etc/security/limits.d, LimitMEMLOCK=infinity of slurmd or containerd, --ulimit memlock=-1.",
)

ib_rail_cross_nic = cause(
    __name__,
    f"""The RoCE adapters of two rails cannot reach each other.

    Why: Adapters in networks of their own (rails) reach only their like; a connection across them times out in ibv_modify_qp
        on the way to RTR although the GID is right.
    See: {NCCL_ENV}
    """,
    r"ibv_modify_qp failed with (110 Connection timed out|error Connection timed out|error 110)",
    do="Set NCCL_CROSS_NIC=0, name the HCAs in the same order on all nodes (NCCL_IB_HCA), and see that each rail reaches its like: ddp-doctor run --nodes ... --select pairs.",
)

ib_hca_selection = cause(
    __name__,
    f"""NCCL uses an HCA that is not meant for it.

    Why: Storage and management adapters, or one without a cable, are in the list; a queue pair with the peer's cannot be made.
    See: {NCCL_ENV}
    """,
    r"ibv_modify_qp failed with error No such device",
    r"ibv_modify_qp failed with (error )?19\b",
    needs=(r"ibvwrap\.c:\d|mlx4_|NCCL_IB_HCA|NET/IB : Using.{0,200}\[1\]",),
    unless=(r"GID_INDEX|GID index",),
    confidence="medium",
    do="Name the adapters of the compute fabric: NCCL_IB_HCA==mlx5_0,mlx5_1 ...; ddp-doctor run lists them.",
)

ib_gid_index = cause(
    __name__,
    f"""The GID of a RoCE port is wrong.

    Why: The row that NCCL_IB_GID_INDEX names is empty, of RoCE v1, or of a network that the peer does not reach. NCCL 2.21 and
        newer choose by themselves.
    See: {NCCL_ENV}
    """,
    r"ibv_modify_qp failed with error (No such device|Invalid argument|No data available|Network is unreachable|No route to host)",
    r"ibv_modify_qp failed with (error )?(19|22|61|101|113)\b",
    r"ibv_query_gid\w{0,8}.{0,60}(fail|error)",
    r"NCCL_IB_GID_INDEX.{0,80}(invalid|out of range|not found)",
    r"Got completion with error 12, opcode [01], len 0, vendor err 12[89]",
    unless=(r"Init COMPLETE", r"iteration|epoch|step \d"),
    confidence="medium",
    do="Unset NCCL_IB_GID_INDEX with NCCL 2.21 or newer, else set the row of RoCE v2 with the IPv4 address (show_gids), the same on all nodes.",
)

ib_mtu_mismatch = cause(
    __name__,
    f"""The two ends of an RDMA connection have different MTUs.

    Why: The longer packets are refused by the other end with local length errors or access violations.
    See: {NCCL_NET}
    """,
    r"local access violation work queue error",
    r"Got completion.{0,200}status=5 .{0,80}vendor err 249",
    r"IBV_WC_LOC_LEN_ERR|local length error",
    r"MTU.{0,40}(mismatch|differ)",
    confidence="medium",
    do="Give all adapters' interfaces and the switch ports one MTU (active_mtu of ibv_devinfo): ddp-doctor run --nodes compares them.",
)

ib_plugin_ibext = cause(
    __name__,
    f"""NVIDIA's network plug-in takes adapters that it cannot use.

    Why: HPC-X's IBext plug-in uses every RDMA device and does not obey NCCL_IB_DISABLE; with other makers' adapters it fails.
    See: {NCCL_ENV}
    """,
    r"P2P plugin IBext",
    r"NET/IBext|IBext_v\d{1,2}",
    needs=(r"irdma|bnxt_re|qedr|hns_|NCCL_IB_DISABLE|WARN|status=|completion with error",),
    unless=(r"Init COMPLETE", r"Avg bus bandwidth", r"status\": ?\"success"),
    confidence="medium",
    do="Leave the plug-in out: NCCL_NET_PLUGIN=none, or NCCL_NET=IB or Socket.",
)

ib_libibverbs_missing = cause(
    __name__,
    f"""The library libibverbs or its provider is missing where RDMA is wanted.

    Why: NCCL loads it at run time; images without it use sockets.
    See: {NCCL_NET}
    """,
    r"Failed to open libibverbs\.so",
    r"libibverbs: Warning: couldn't load driver",
    needs=(r"NCCL_IB_HCA|NCCL_IB_GID_INDEX|mlx5_|InfiniBand|NCCL_NET(=| set by environment to )IB",),
    unless=(r"NET/IB : Using", r"NCCL WARN (Cuda|Call to posix|Error while)", r"CUDA error|Cuda failure", r"NET/OFI"),
    tier=2,
    confidence="medium",
    do="Install rdma-core's libraries in the image: apt-get install libibverbs1 ibverbs-providers, or dnf install libibverbs.",
)

ib_device_access_container = cause(
    __name__,
    f"""The container may not open the RDMA devices.

    Why: /dev/infiniband was not given to it, or the cgroup forbids it; NCCL falls back to sockets, or fails.
    See: {NCCL_NET}
    """,
    r"ibv_open_device failed",
    r"NET/IB : Unable to open device",
    r"Unable to open RDMA device",
    r"/dev/infiniband/\S{1,40}.{0,60}(Permission denied|No such file|Operation not permitted)",
    unless=(r"nNodes 1\b", r"Avg bus bandwidth"),
    do="Start it with --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 (Kubernetes: the RDMA device plug-in, IPC_LOCK).",
)

ib_acs_gdr = cause(
    __name__,
    f"""GPUDirect RDMA is turned round or broken by ACS.

    Why: With Access Control Services on, PCIe switches send peer-to-peer traffic through the root; adapters then fail with
        protection errors or crawl.
    See: {NCCL_TROUBLE}
    """,
    r"[Gg]ot completion.{0,160}(error|status)[ =]\(?4\b|IBV_WC_LOC_PROT_ERR|local protection error",
    r"IBV_WC_REM_ACCESS_ERR|remote access error",
    do="Turn ACS off on the PCIe bridges between GPU and adapter (ddp-doctor run names them), or try NCCL_NET_GDR_LEVEL=LOC to confirm it.",
    confidence="medium",
)

ib_port_error_event = cause(
    __name__,
    f"""An RDMA port went down in mid-run.

    Why: A cable, a transceiver or a switch port: the adapter reports IBV_EVENT_PORT_ERR.
    See: {NCCL_NET}
    """,
    r"Got async event ?: ?port error",
    r"IBV_EVENT_PORT_ERR",
    r"async (fatal )?event.{0,40}(port (error|down)|device fatal)",
    r"mlx5_core .{0,80}[Ll]ink down",
    tier=0,
    do="Look at the port that is named: ibstat, mlxlink, the switch; ddp-doctor run tells flaps from the kernel's log.",
)

ib_retry_exceeded = cause(
    __name__,
    f"""RDMA packets are not answered any more (work completion status 12).

    Why: The peer ended or hangs, or the link or the fabric between lost the packets for longer than NCCL_IB_TIMEOUT and
        NCCL_IB_RETRY_CNT allow.
    See: {NCCL_ENV}
    """,
    LOST_WC,
    r"[Gg]ot completion.{0,120}(error|status)[ =]\(?(5|10|11|13)\b",
    tier=4,
    confidence="medium",
    do="See whether the peer that is named died first (its log, dmesg). If not: port counters on both ends (ddp-doctor run --sample 5), "
    "and, as a stopgap, NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7.",
)

efa_plugin = cause(
    __name__,
    f"""The EFA plug-in finds no provider.

    Why: The plug-in aws-ofi-nccl is loaded, and libfabric sees no EFA device: no device in the pod, a security group, or another libfabric.
    See: {OFI}
    """,
    r"NET/OFI.{0,80}(Could not find any optimal provider|No eligible providers|Failed to (initialize|find))",
    r"get_ofi_provider:\d{1,6}",
    r"aws-ofi-nccl initialization failed",
    do="Give the pod vpc.amazonaws.com/efa, see that fi_info -p efa lists the device, and take the libfabric of the EFA installer.",
)

efa_peer_gone_host_oom = cause(
    __name__,
    f"""The peer's EFA queue pair has gone: its process was killed.

    Why: "Invalid receiver queue pair number" or "Unreachable remote" means that the process at the other end is gone, most
        often by the memory limit of its container.
    See: {OFI}
    """,
    r"NET/OFI.{0,160}Invalid receiver queue pair number",
    r"NET/OFI.{0,160}(Unresponsive receiver|Destination resource not ready|[Uu]nreachable remote)",
    do="Look at the peer's container: kubectl describe pod (OOMKilled), dmesg there; raise its memory limit.",
)

net_plugin_lib_conflict = cause(
    __name__,
    f"""The network plug-in cannot be loaded for its own libraries.

    Why: Another libibverbs, libfabric or CUDA stands in front of the one that the plug-in was built with; "No plugin found"
        alone is harmless, this is not.
    See: {OFI}
    """,
    r"NET/Plugin.{0,200}(version `[\w.]{1,40}' not found|undefined symbol|wrong ELF class|invalid ELF header)",
    r"version `IBVERBS_\w{1,24}' not found",
    r"libnccl-net\S{0,40}: (undefined symbol|version)",
    do="Let one set of libraries be first on LD_LIBRARY_PATH: that which the plug-in was built with (ldd libnccl-net.so).",
)

ofi_gdr_level_hang = cause(
    __name__,
    f"""NCCL_NET_GDR_LEVEL is forced with the OFI plug-in, and ranks hang between nodes.

    Why: The plug-in decides itself where GPUDirect works; a level that is forced makes transfers stall on some machines.
    See: {NCCL_ENV}
    """,
    r"NCCL_NET_GDR_LEVEL set by environment to",
    needs=(
        r"NET/OFI|AWS Libfabric|aws-ofi-nccl|libfabric",
        r"Watchdog caught collective operation timeout|watchdog.{0,80}timeout",
    ),
    do="Unset NCCL_NET_GDR_LEVEL, and try again.",
    confidence="medium",
)

GDR_SENT, PLAIN_RECEIVED = r"\[send\] via NET/IB/\d{1,3}/GDRDMA", r"\[receive\] via NET/IB/\d{1,3}(/Shared)?$"
GDR_OFF = (
    r"GPU Direct RDMA Disabled for (HCA|GPU)",
    r"nvidia[-_]peermem.{0,60}(not (loaded|found|available)|failed)",
    r"NCCL_NET_GDR_LEVEL set by environment to (LOC|0)\b",
    r"NCCL_NET_GDR_READ set by environment to 0",
)


@check(Severity.ERROR)
@looks_for(
    *GDR_OFF,
    GDR_SENT,
    PLAIN_RECEIVED,
    *PROGRESS,
    do="Load the module: modprobe nvidia-peermem (or the open kernel module with dma-buf): ddp-doctor run says which is missing.",
)
def gdr_disabled(log: Log) -> Iterator[Cause]:
    """GPUDirect RDMA is not used, or in one direction only.

    Why: The nvidia-peermem module is not loaded and dma-buf does not work, or a variable forbids it: data goes through the
        host's memory. Where a connection sends with it and receives without, its other end lacks it.
    See: https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html
    """
    events = log.events(*GDR_OFF)
    if log.has(GDR_SENT) and log.has(PLAIN_RECEIVED):
        events += log.events(PLAIN_RECEIVED)
    if events and not log.has(*PROGRESS):
        yield found(events, tier=2, confidence="medium")

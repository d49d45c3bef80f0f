"""NVLink, NVSwitch and ways between GPUs."""

from ddp_doctor.checks.logs._cause import cause

FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"
NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
NCCL_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
NVLS = r"nvls\.cc:\d{1,6}|NVLS"

nvls_container_caps = cause(
    __name__,
    f"""NVLink SHARP needs rights that the container does not have.

    Why: Multicast handles are shared between processes by file descriptors and IMEX channels; a container without them gets
        "operation not permitted".
    See: {NCCL_ENV}
    """,
    r"nvls\.cc:\d{1,6}.{0,80}(operation not permitted|[Oo]peration not permitted|Cuda failure 800\b)",
    r"(cuMulticast|cuMemImport|cuMemExport)\w{0,40}.{0,80}(not permitted|denied)",
    do="Give the container the IMEX channel (/dev/nvidia-caps-imex-channels) and CAP_SYS_PTRACE or one user, or set NCCL_NVLS_ENABLE=0.",
)

nvls_driver_nccl_combination = cause(
    __name__,
    f"""This driver and this NCCL do not go together for NVLink SHARP.

    Why: The driver lacks what this NCCL asks for, and says "not supported".
    See: {NCCL_ENV}
    """,
    r"nvls\.cc:\d{1,6}.{0,80}(operation not supported|Cuda failure 801\b|invalid device function|Cuda failure 98\b)",
    do="Upgrade the driver, or set NCCL_NVLS_ENABLE=0.",
)

nvls_fabric_manager = cause(
    __name__,
    f"""NVLink SHARP fails: the fabric manager is not in order.

    Why: NVLS binds memory to multicast groups of the NVSwitches, which the fabric manager sets up; after a restart or an
        upgrade of it, or with stale state, the driver refuses.
    See: {FABRIC}
    """,
    r"nvls\.cc:\d{1,6} NCCL WARN",
    r"cuMulticast\w{1,30} (failed|error)",
    r"NVLS.{0,80}(Cuda failure|failed)",
    do="Restart nvidia-fabricmanager and reset the GPUs (or reboot); until then NCCL_NVLS_ENABLE=0.",
)

p2p_disabled_by_env = cause(
    __name__,
    f"""Peer-to-peer copies between GPUs are switched off by a variable.

    Why: NCCL_P2P_DISABLE=1 is copied from work-arounds; everything then goes through the host's memory.
    See: {NCCL_ENV}
    """,
    r"NCCL_P2P_DISABLE set by environment to 1",
    needs=(r"[Ss]low|GB/s|bandwidth|via SHM|samples/s",),
    unless=(r"NCCL WARN", r"status\": ?\"success"),
    confidence="low",
    tier=2,
    do="Unset NCCL_P2P_DISABLE; if the job then hangs, see logs/p2p-iommu-acs-hang.",
)

p2p_iommu_acs_hang = cause(
    __name__,
    f"""Copies between GPUs hang: the IOMMU or ACS turns them round.

    Why: With VT-d, AMD-Vi or ACS on, peer-to-peer transfers over PCIe do not arrive or read garbage; NCCL sets up its
        channels and the first collective never ends, without an error.
    See: {NCCL_TROUBLE}
    """,
    r"ACSCtl:\s{1,4}SrcValid\+",
    r"^#\s{1,8}Rank\s{1,8}\d{1,5} (Group\s{1,4}\d{1,4} )?\s{0,4}Pid",
    needs=(r"NCCL INFO|NCCL version",),
    unless=(
        r"NCCL WARN (Cuda|Call|Error|NET|Got|Mism|Dup|Mess|Sock|Conn|socket|Time|Boot)",
        r"NCCL INFO \S{1,60}:\d{1,6} -> [1-9]",
        r"Avg bus bandwidth",
        r"Out of bounds values",
        r"^\s{0,20}\d{1,12}\s{1,20}\d{1,12}\s{1,20}(float|half|bfloat|double|u?int)",
        r"Traceback|[A-Z]\w{1,40}(Error|Exception):",
        r"([Ee]poch|[Ii]ter(ation)?|[Ss]tep|loss|samples/s|accuracy)[ :=\[/]{1,3}\d[\d.e-]{0,12}([ ,;/|)\]]|$)",
        r"[Tt]raining (finished|done|complete|started)",
        r"[Dd]estroy COMPLETE|Abort COMPLETE",
        r"[Ww]atchdog|timed? ?out",
        r"via NET/",
        r"Bootstrap : Using [^\n]{0,40}(veth|ip6tnl|br-|docker)",
    ),
    tier=2,
    confidence="medium",
    do="Turn ACS off (and the IOMMU to pass-through, iommu=pt); ddp-doctor run names the bridges. To confirm: NCCL_P2P_DISABLE=1 makes it run.",
)

"""Facts: what is so on one node, in one frozen, typed document. No opinion in them.

A section that could not be read is None and ``NodeFacts.reasons`` says why; a field is None with an
entry in its section's ``unread``; an empty tuple means "looked, found none". This module runs on the
node and imports the standard library alone; ``document.py`` reads and writes it where judging happens.
"""

from dataclasses import field, fields, is_dataclass
from typing import Any, Dict, Optional, Tuple

from ddp_doctor.frozen import dataclass

SCHEMA_VERSION = 1
UNLIMITED = 2**63 - 1
"""How "unlimited" is written in a limit: JSON has no infinity."""

Strings = Tuple[str, ...]


@dataclass(frozen=True)
class Reason:
    """Why something is not known.

    kind: not-asked, not-applicable, no-rights, timed-out, crashed, unreadable, absent (there is no such file, tool or
    library), unresolved (a name), not-recorded (an older recording, or one by a narrower run), deadline and interrupted
    (the person would wait no longer: no fault of the node).
    """

    kind: str
    text: str


Unread = Dict[str, Reason]


def _unread() -> Any:
    return field(default_factory=dict)


@dataclass(frozen=True)
class How:
    """How the facts were taken: root's or ssh's limits and environment are not the job's."""

    via: str = "local"
    """local, ssh, srun, torchrun or replay; collect_env where another tool's report was read, lint where a file was."""
    user: Optional[str] = None
    uid: Optional[int] = None
    tool_version: Optional[str] = None
    python: Optional[str] = None
    """Version of the interpreter that took the facts."""
    profile: str = "quick"
    job: Optional[str] = None
    """Scheduler's job, e.g. "slurm 1234"."""
    clock_offset_s: Optional[float] = None
    """The node's clock less that of the machine that asked, with the round trip taken out; over a network alone."""
    clock_error_s: Optional[float] = None
    """Half of the round trip by which that was measured: the offset is right within it."""


# --------------------------------------------------------------------------- host


@dataclass(frozen=True)
class Os:
    id: Optional[str] = None
    """os-release ID: centos, ubuntu, debian, rhel ..."""
    version: Optional[str] = None
    """Best known version: 8.2.2004, 22.04; "8" for CentOS Stream; None where the release has none (Arch)."""
    pretty: Optional[str] = None
    like: Optional[Strings] = None
    stream: Optional[bool] = None
    """True for CentOS Stream, which has no minor version."""
    kernel: Optional[str] = None
    machine: Optional[str] = None
    """x86_64, aarch64 ..."""
    glibc: Optional[str] = None
    """None with the reason "absent" on musl."""
    hostname: Optional[str] = None
    container: Optional[str] = None
    """docker, podman, kubernetes, lxc, apptainer, enroot, systemd-nspawn, containerd, "container" (kind not told); "" on none."""
    virtualisation: Optional[str] = None
    """kvm, qemu, vmware, microsoft, xen, wsl, amazon, google, firecracker ..., "vm" (kind not told); "" on bare metal."""
    uptime_s: Optional[float] = None
    boot_id: Optional[str] = None
    selinux: Optional[str] = None
    """enforcing, permissive or disabled."""
    secure_boot: Optional[bool] = None
    systemd: Optional[bool] = None
    """systemd manages the services here (sd_booted(3))."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class MemoryController:
    """Errors of the machine's memory as EDAC counts them since its driver was loaded."""

    name: str
    """mc0 ..."""
    corrected: Optional[int] = None
    uncorrected: Optional[int] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Cpu:
    model: Optional[str] = None
    sockets: Optional[int] = None
    cores: Optional[int] = None
    threads: Optional[int] = None
    """Logical processors that are online on the machine."""
    allowed: Optional[int] = None
    """Logical processors in this process's affinity mask (cpuset, taskset, scheduler)."""
    quota: Optional[float] = None
    """cgroup CPU limit in processors; UNLIMITED as float when there is none."""
    numa_nodes: Optional[int] = None
    """NUMA nodes that have processors; a GPU's or CXL memory is a node without."""
    governors: Optional[Strings] = None
    """Distinct cpufreq governors; empty where the machine offers no cpufreq."""
    frequency_driver: Optional[str] = None
    """cpufreq's driver: acpi-cpufreq, intel_pstate, amd-pstate-epp ..., which gives the governors' names their meaning."""
    allowed_list: Optional[str] = None
    """The affinity mask as the kernel writes lists: "0-31,64-95"."""
    numa_cpus: Optional[Dict[str, str]] = None
    """NUMA node -> its processors as a list: {"0": "0-31", "1": "32-63"}; also nodes without processors ("")."""
    numa_balancing: Optional[int] = None
    """kernel.numa_balancing: 0 off, 1 on, 2 memory tiering."""
    throttled: Optional[int] = None
    """Thermal throttle events of all cores and packages since boot (thermal_throttle/*_throttle_count, x86 alone)."""
    memory_controllers: Optional[Tuple["MemoryController", ...]] = None
    """EDAC's memory controllers; empty where no EDAC driver is loaded."""
    load_1min: Optional[float] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Memory:
    total_bytes: Optional[int] = None
    available_bytes: Optional[int] = None
    swap_total_bytes: Optional[int] = None
    swap_free_bytes: Optional[int] = None
    hugepages_total: Optional[int] = None
    hugepages_free: Optional[int] = None
    hugepage_bytes: Optional[int] = None
    transparent_hugepages: Optional[str] = None
    cgroup_limit_bytes: Optional[int] = None
    """The smallest memory limit of this process's cgroup and its parents; UNLIMITED when none."""
    cgroup_used_bytes: Optional[int] = None
    """Usage of the cgroup that sets cgroup_limit_bytes, without reclaimable file cache."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Limit:
    """A resource limit; UNLIMITED for none."""

    soft: int
    hard: int


@dataclass(frozen=True)
class Limits:
    memlock_bytes: Optional[Limit] = None
    nofile: Optional[Limit] = None
    nproc: Optional[Limit] = None
    stack_bytes: Optional[Limit] = None
    core_bytes: Optional[Limit] = None
    cap_ipc_lock: Optional[bool] = None
    """The process has CAP_IPC_LOCK in its effective set: memlock does not bind it."""
    lowest_port: Optional[int] = None
    """The lowest TCP port that this process may listen on; 1 with CAP_NET_BIND_SERVICE."""
    whose: Optional[str] = None
    """Whose limits these are, e.g. "this shell (user ana)", "the job step", "root's ssh session"."""
    cgroup_pids_max: Optional[int] = None
    cgroup_pids_current: Optional[int] = None
    kernel_pid_max: Optional[int] = None
    kernel_threads_max: Optional[int] = None
    kernel_file_max: Optional[int] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Mount:
    """One place that a job writes to: /dev/shm, /tmp, the home, the working directory."""

    role: str
    """shm, tmp, home or cwd."""
    path: str
    point: Optional[str] = None
    """Where it is mounted."""
    fs_type: Optional[str] = None
    network: Optional[bool] = None
    """True for nfs, lustre, gpfs, ceph, beegfs, cifs, fuse.sshfs ..."""
    options: Optional[Strings] = None
    read_only: Optional[bool] = None
    total_bytes: Optional[int] = None
    free_bytes: Optional[int] = None
    """Free to this user (f_bavail)."""
    inodes_total: Optional[int] = None
    """0 where the file system has no fixed number (btrfs, many network file systems)."""
    inodes_free: Optional[int] = None
    writable: Optional[bool] = None
    """access(2) says this user may write."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Quota:
    """What a user may keep on a file system; None: no such limit."""

    place: str
    """The device or export, as the command names it."""
    used_bytes: int
    soft_bytes: Optional[int] = None
    """May be exceeded until its grace time is over."""
    limit_bytes: Optional[int] = None
    files: int = 0
    files_soft: Optional[int] = None
    files_limit: Optional[int] = None


@dataclass(frozen=True)
class Disk:
    mounts: Optional[Tuple[Mount, ...]] = None
    shares: Optional[Tuple[Mount, ...]] = None
    """Other network file systems: mounted here, or in /etc/fstab and not mounted. Their role is "share"."""
    quotas: Optional[Tuple[Quota, ...]] = None
    """Quotas of this user, where a command tells them."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Clock:
    """Time synchronisation."""

    synchroniser: Optional[str] = None
    """chronyd, systemd-timesyncd, ntpd, ptp4l, phc2sys, openntpd; "" when none runs; "host" in a container or guest
    whose clock is kept by its host (WSL, Hyper-V's time service). A KVM guest must be synchronised like any machine."""
    synchronised: Optional[bool] = None
    """The kernel's own word (adjtimex: STA_UNSYNC is clear) or the synchroniser's."""
    offset_s: Optional[float] = None
    """Distance from the source's time as the synchroniser says it; judge its size, the signs of tools differ."""
    stratum: Optional[int] = None
    max_error_s: Optional[float] = None
    """The kernel's bound on the clock's error (adjtimex maxerror)."""
    unread: Unread = _unread()


# --------------------------------------------------------------------------- GPUs and software


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    """The machine's own process id, also when this is a container."""
    name: Optional[str] = None
    """Without path and arguments; None where it cannot be told: the process ended, or lives in another pid namespace."""
    used_bytes: Optional[int] = None
    kind: str = "compute"
    """compute, graphics or mps."""


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU."""

    link: int
    active: Optional[bool] = None
    speed_gb_s: Optional[float] = None
    """Of one direction, in 10**9 bytes per second, as the driver says it."""
    remote_kind: Optional[str] = None
    """gpu, switch, ibmnpu (Power), or unknown."""
    remote_pci: Optional[str] = None
    errors: Optional[Dict[str, int]] = None
    """Error counters that are not zero, since the driver was loaded or the GPU reset: replay, recovery, crc (crc_flit, crc_data),
    and those of newer links: symbol_errors, effective_errors, malformed_packets, buffer_overruns, rx_errors, link_recovery ..."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class GpuFabric:
    """The GPU's registration with the NVLink fabric (Hopper and newer behind NVSwitches)."""

    state: Optional[str] = None
    """not_supported, not_started, in_progress or completed."""
    status: Optional[str] = None
    """NVML's word for the result: "success", or what failed. Only meaningful when completed."""
    cluster_uuid: Optional[str] = None
    """"" where it is all zero: not part of a multi-node NVLink domain."""
    clique_id: Optional[int] = None
    health: Optional[str] = None
    """healthy, unhealthy, limited_capacity, or not_supported."""
    unhealthy: Optional[Strings] = None
    """What the health mask tells of: degraded_bandwidth, route_recovery, route_unhealthy, access_timeout_recovery, no_partition,
    manager_disconnected, incorrect_configuration with its kind: "incorrect_configuration:insufficient_nvlinks"."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML (or nvidia-smi) tells it. "Not supported by this device" stands in ``unsupported``."""

    index: int
    name: Optional[str] = None
    uuid: Optional[str] = None
    pci: Optional[str] = None
    """Domain:bus:device.function in lower case with a 4-digit domain: 0000:07:00.0."""
    serial: Optional[str] = None
    compute_capability: Optional[str] = None
    """"8.0"."""
    memory_total_bytes: Optional[int] = None
    memory_used_bytes: Optional[int] = None
    """Without the driver's reserve (NVML's second memory call); see memory_used_includes_reserve."""
    memory_used_includes_reserve: Optional[bool] = None
    """True when only the first memory call answered: hundreds of MB may be the driver's own."""
    compute_mode: Optional[str] = None
    """default, exclusive_process, exclusive_thread or prohibited."""
    mig: Optional[str] = None
    """enabled, disabled, or "unsupported"."""
    persistence: Optional[bool] = None
    temperature_c: Optional[int] = None
    temperature_slowdown_c: Optional[int] = None
    temperature_shutdown_c: Optional[int] = None
    temperature_max_c: Optional[int] = None
    """Highest temperature at which the GPU keeps its full clocks (GPU max operating temperature)."""
    temperature_margin_c: Optional[int] = None
    """Degrees left to the slowdown (T.Limit), which replaces the absolute limits on newer GPUs."""
    temperature_memory_c: Optional[int] = None
    temperature_memory_max_c: Optional[int] = None
    utilisation_percent: Optional[int] = None
    """Share of the last sample period (up to 1 s) in which a kernel ran."""
    performance_state: Optional[int] = None
    """0 (highest) to 15."""
    power_w: Optional[float] = None
    power_limit_w: Optional[float] = None
    power_default_limit_w: Optional[float] = None
    clock_sm_mhz: Optional[int] = None
    clock_sm_max_mhz: Optional[int] = None
    clock_memory_mhz: Optional[int] = None
    clock_memory_max_mhz: Optional[int] = None
    throttle: Optional[Strings] = None
    """Names of the active clock event reasons: gpu_idle, sw_power_cap, hw_slowdown, hw_thermal_slowdown ..."""
    throttled_us: Optional[Dict[str, int]] = None
    """Microseconds for which clocks were lowered since the driver was loaded, by reason: hw_thermal_slowdown ..."""
    clock_application_mhz: Optional[int] = None
    """SM clock that applications are given, where somebody set it; clock_application_default_mhz: the board's own."""
    clock_application_default_mhz: Optional[int] = None
    ecc_mode: Optional[bool] = None
    ecc_corrected_volatile: Optional[int] = None
    ecc_corrected_aggregate: Optional[int] = None
    ecc_uncorrected_volatile: Optional[int] = None
    ecc_uncorrected_aggregate: Optional[int] = None
    ecc_sram_uncorrected_volatile: Optional[int] = None
    ecc_sram_uncorrected_aggregate: Optional[int] = None
    ecc_sram_threshold_exceeded: Optional[bool] = None
    """The GPU's own word that its uncorrectable SRAM errors are too many: it is to be replaced."""
    retired_single_bit: Optional[int] = None
    """Pages retired for repeated single-bit errors (GPUs before Ampere)."""
    retired_double_bit: Optional[int] = None
    retired_pending: Optional[bool] = None
    recovery_action: Optional[str] = None
    """What the driver says must be done: none, gpu_reset, node_reboot, drain_p2p or drain_and_reset (R570 and newer)."""
    remapped_correctable: Optional[int] = None
    remapped_uncorrectable: Optional[int] = None
    remap_pending: Optional[bool] = None
    remap_failure: Optional[bool] = None
    pcie_gen: Optional[int] = None
    pcie_gen_max: Optional[int] = None
    """The most that the GPU and the slot both support."""
    pcie_gen_device_max: Optional[int] = None
    """The most that the GPU itself supports."""
    pcie_width: Optional[int] = None
    pcie_width_max: Optional[int] = None
    pcie_replays: Optional[int] = None
    """PCIe replays since the driver was loaded."""
    nvlinks: Optional[Tuple[NvLink, ...]] = None
    """Links that the driver knows; on a product without NVLink, or divided by MIG, "nvlinks" stands in ``unsupported``."""
    fabric: Optional[GpuFabric] = None
    peers: Optional[Dict[str, str]] = None
    """Other GPU's index -> may it be reached by PCIe or NVLink peer access: ok, chipset_not_supported, gpu_not_supported,
    topology_not_supported, disabled_by_regkey, not_supported, unknown."""
    numa_node: Optional[int] = None
    processes: Optional[Tuple[GpuProcess, ...]] = None
    unsupported: Strings = ()
    """Fields that this device does not have."""
    fault: Optional[str] = None
    """What NVML said instead of answering for this GPU: "GPU is lost", "timed out: no answer in 10 s"; None: no fault."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class PciGpu:
    """A GPU function on the PCI bus that an NVIDIA driver would drive (no audio, no NVSwitch, not vfio-bound)."""

    pci: str
    device_id: str
    """PCI device id, e.g. "0x20b0"."""
    driver: Optional[str] = None
    """Bound kernel driver; "" when none is bound."""
    numa_node: Optional[int] = None


@dataclass(frozen=True)
class Gpus:
    source: Optional[str] = None
    """nvml, nvidia-smi, or proc (the kernel's trees alone)."""
    driver: Optional[str] = None
    """Version of the loaded kernel module or as NVML says: 535.104.05."""
    kernel_module: Optional[str] = None
    """Version of the loaded nvidia kernel module from /proc/driver/nvidia/version; "" when no module is loaded."""
    kernel_module_open: Optional[bool] = None
    library: Optional[str] = None
    """Version of the user-space driver library (NVML's), where it can be told apart from the module's."""
    cuda: Optional[str] = None
    """Highest CUDA version that the driver supports: "12.2"."""
    nvml_error: Optional[str] = None
    """NVML's own words when it would not start: "Driver/library version mismatch", "Driver Not Loaded" ...; None when it
    did, or when it could not be asked (then with a reason)."""
    gpus: Optional[Tuple[Gpu, ...]] = None
    on_bus: Optional[Tuple[PciGpu, ...]] = None
    """NVIDIA GPUs on the PCI bus; /sys is not namespaced: a container sees all of the machine's."""
    device_nodes: Optional[Strings] = None
    """/dev/nvidia0 ... that exist here."""
    driver_nodes: Optional[Strings] = None
    """/dev/nvidiactl, /dev/nvidia-uvm and /dev/nvidia-caps/nvidia-cap*: those of them that exist here."""
    admitted: Optional[int] = None
    """How many GPUs this container or job was given, when something says so (device nodes, scheduler, NVIDIA_VISIBLE_DEVICES)."""
    admitted_by: Optional[str] = None
    """What says so: "SLURM_JOB_GPUS=0,1"."""
    visible_devices: Optional[str] = None
    """CUDA_VISIBLE_DEVICES as set; None with the reason absent when unset."""
    other_vendor: Optional[Strings] = None
    """GPUs of other vendors on the bus that a training job could use: "amd 0000:03:00.0"."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class LoadedLibrary:
    """A shared library that the process really mapped."""

    path: str
    version: Optional[str] = None


@dataclass(frozen=True)
class Torch:
    """The torch of the examined interpreter."""

    python: Optional[str] = None
    """Path of the examined interpreter."""
    python_version: Optional[str] = None
    """3.8.12; 3.8 where torch was not imported and no file tells the patch level."""
    python_chosen_by: Optional[str] = None
    """--python, $VIRTUAL_ENV, $CONDA_PREFIX, PATH or own interpreter."""
    installed: Optional[bool] = None
    version: Optional[str] = None
    """1.12.1+cu113"""
    cuda: Optional[str] = None
    """CUDA version that this torch was built with; "" for a build without CUDA."""
    hip: Optional[str] = None
    """ROCm version of the build; "" for none."""
    git: Optional[str] = None
    path: Optional[str] = None
    installer: Optional[str] = None
    """pip, conda, uv, distribution, source or unknown."""
    flavour: Optional[str] = None
    """official-wheel, conda, ngc, vendor, distribution, source; or None with a reason."""
    wheel_tag: Optional[str] = None
    """manylinux_2_28_x86_64, linux_x86_64 ..., from the WHEEL file."""
    requires: Optional[Strings] = None
    """nvidia-*, triton and numpy requirements as the METADATA file states them."""
    nvidia_packages: Optional[Dict[str, str]] = None
    """nvidia-nccl-cu12 -> 2.21.5: packages installed in that environment."""
    companions: Optional[Dict[str, str]] = None
    """torchvision, torchaudio, numpy ... -> version."""
    imported: Optional[bool] = None
    """None: not asked (profile quick). False: the import failed; import_error says how."""
    import_error: Optional[str] = None
    import_failure: Optional[str] = None
    """exception, signal, exit (it ended the interpreter), timed-out or could-not-start; None when the import worked
    or was not asked."""
    import_s: Optional[float] = None
    arch_list: Optional[Strings] = None
    """sm_70, sm_80, compute_90 ..."""
    nccl: Optional[str] = None
    """Version that torch itself reports: 2.10.3."""
    nccl_loaded: Optional[LoadedLibrary] = None
    """The libnccl mapped into the process; None with the reason not-applicable when linked statically."""
    nccl_bundled: Optional[str] = None
    """Path of the libnccl that this torch ships or requires (static look), "" when it is linked statically."""
    cudnn: Optional[str] = None
    distributed: Optional[bool] = None
    """torch.distributed.is_available()"""
    backends: Optional[Strings] = None
    """gloo, nccl, mpi, ucc: those that this torch can start."""
    cuda_available: Optional[bool] = None
    cuda_device_count: Optional[int] = None
    cuda_error: Optional[str] = None
    """What CUDA said when it is not available."""
    cuda_init_code: Optional[int] = None
    """What the driver API's cuInit answered when CUDA is not available: 100, 802, 803, 804, 999 ...; 0 is success."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Toolkit:
    path: str
    version: Optional[str] = None
    source: str = "version.json"
    """version.json, version.txt, nvcc, or "folder name" where no file tells."""


@dataclass(frozen=True)
class Library:
    """A shared library found in a file system."""

    path: str
    name: str
    """nccl, cudart, cuda, cudnn ..."""
    version: Optional[str] = None
    where: str = "system"
    """ld-library-path, ld-preload, ld-cache, system, wheel or conda."""


@dataclass(frozen=True)
class Cuda:
    toolkits: Optional[Tuple[Toolkit, ...]] = None
    nvcc: Optional[Toolkit] = None
    """The nvcc that PATH finds; None with the reason absent."""
    library_path: Optional[Strings] = None
    """LD_LIBRARY_PATH entries in order."""
    shadowing: Optional[Tuple[Library, ...]] = None
    """libcuda, libcudart, libnccl, libcudnn in LD_LIBRARY_PATH or LD_PRELOAD."""
    nccls: Optional[Tuple[Library, ...]] = None
    """Every libnccl.so* found, by real path."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    """Redacted where it is not on the allow-list."""
    source: str = "environment"
    """environment, or the file and line: /etc/nccl.conf:3."""


@dataclass(frozen=True)
class Env:
    variables: Optional[Tuple[Variable, ...]] = None
    """From the environment first, then nccl.conf files in the order in which NCCL lets them win."""
    nccl_conf_files: Optional[Strings] = None
    unread: Unread = _unread()

    def get(self, name: str) -> Optional[str]:
        """The value in force of ``name``: the environment wins over nccl.conf files."""
        for variable in self.variables or ():
            if variable.name == name:
                return variable.value
        return None


# --------------------------------------------------------------------------- network


@dataclass(frozen=True)
class Address:
    ip: str
    prefix: int
    family: str
    """ipv4 or ipv6."""
    scope: Optional[str] = None
    """global, link or host."""


@dataclass(frozen=True)
class Module:
    """A transceiver or cable in a port."""

    kind: Optional[str] = None
    """"QSFP28", "OSFP" ..."""
    vendor: Optional[str] = None
    part: Optional[str] = None
    temperature_c: Optional[float] = None
    temperature_high_alarm_c: Optional[float] = None
    """The module's own limits, from its memory map."""
    temperature_high_warning_c: Optional[float] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Interface:
    name: str
    index: Optional[int] = None
    kind: Optional[str] = None
    """physical, virtio (a guest's NIC), bond, vlan, bridge, veth, tunnel, wireless, ipoib, dummy, macvlan, loopback, other."""
    addresses: Optional[Tuple[Address, ...]] = None
    mtu: Optional[int] = None
    speed_mbit_s: Optional[int] = None
    """None with a reason where the driver does not say (-1, EINVAL while down)."""
    operstate: Optional[str] = None
    running: Optional[bool] = None
    """IFF_RUNNING, what NCCL looks at: up with a carrier."""
    up: Optional[bool] = None
    """IFF_UP."""
    mac: Optional[str] = None
    driver: Optional[str] = None
    pci: Optional[str] = None
    numa_node: Optional[int] = None
    master: Optional[str] = None
    """Bond or bridge that it belongs to; "" for none."""
    lower: Optional[Strings] = None
    """Members of a bond or bridge, parent of a vlan."""
    bond_mode: Optional[str] = None
    """"802.3ad", "active-backup" ...; None with the reason not-applicable where it is no bond."""
    carrier_changes: Optional[int] = None
    """Since the interface was made, and so for most cards since boot."""
    rp_filter: Optional[int] = None
    arp_ignore: Optional[int] = None
    arp_announce: Optional[int] = None
    """net.ipv4.conf.<interface>.*; the kernel uses the higher one of this and of "all"."""
    ring: Optional[Dict[str, int]] = None
    """rx, rx_max, tx, tx_max in descriptors (ETHTOOL_GRINGPARAM)."""
    fec: Optional[Strings] = None
    """Forward error correction in force: rs, baser, off, llrs (ETHTOOL_GFECPARAM); empty: none is reported."""
    module: Optional["Module"] = None
    """The plugged-in transceiver or cable; None with the reason where it is not readable."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Route:
    """How this node would reach ``to``."""

    to: str
    ip: Optional[str] = None
    interface: Optional[str] = None
    source: Optional[str] = None
    gateway: Optional[str] = None
    error: Optional[str] = None
    """ENETUNREACH, EHOSTUNREACH, EACCES (prohibit), EINVAL (blackhole)."""


@dataclass(frozen=True)
class Resolved:
    """What the node's resolver answers for a name."""

    name: str
    addresses: Strings = ()
    error: Optional[str] = None
    """Resolver's words when it does not resolve; "timed out"."""
    duration_s: Optional[float] = None


@dataclass(frozen=True)
class Socket:
    """A listening TCP socket."""

    ip: str
    port: int
    pid: Optional[int] = None
    """Looked for only on the master's port and on sshd's: finding it means looking through every process."""
    process: Optional[str] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Zone:
    """A zone of firewalld as its permanent configuration has it."""

    name: str
    target: Optional[str] = None
    """ACCEPT, DROP, REJECT (%%REJECT%% in the file) or default (reject what no rule names)."""
    open_ports: Optional[Strings] = None
    """Of its ports, services and accepting rich rules: "29500/tcp", "8000-9000/tcp from 10.0.0.0/8"."""
    sources: Optional[Strings] = None
    """Addresses whose traffic is judged by this zone."""
    trusted_sources: Optional[Strings] = None
    """Sources from which everything is accepted."""
    interfaces: Optional[Strings] = None
    """Interfaces that the zone's own file names."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Firewall:
    """A firewall that is installed here. firewalld's and ufw's files are read, not the rules in the kernel.

    nftables and iptables: active means that something filters what comes in; their rules are not interpreted.
    """

    name: str
    """firewalld, ufw, nftables or iptables."""
    active: Optional[bool] = None
    zone: Optional[str] = None
    """firewalld: default zone, with the zone of each interface in ``interfaces``."""
    interfaces: Optional[Dict[str, str]] = None
    target: Optional[str] = None
    """Policy for what no rule names: ACCEPT, DROP, REJECT, default ... (firewalld: of the default zone)."""
    open_ports: Optional[Strings] = None
    """"29500/tcp", "1024-65535/tcp", "22/tcp from 10.0.0.0/8" (firewalld: of the default zone)."""
    trusted_sources: Optional[Strings] = None
    """Sources from which everything is accepted (firewalld: whatever their zone)."""
    trusted_interfaces: Optional[Strings] = None
    """Interfaces on which everything is accepted: "allow in on ib0" of ufw, a zone with the target ACCEPT."""
    zones: Optional[Tuple[Zone, ...]] = None
    """firewalld: the default zone and the others that an interface or a source is in."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Network:
    hostname: Optional[str] = None
    fqdn: Optional[str] = None
    """What socket.getfqdn() says, which torchrun publishes as MASTER_ADDR: "localhost" where /etc/hosts makes it that."""
    interfaces: Optional[Tuple[Interface, ...]] = None
    default_route: Optional[Route] = None
    """None with the reason absent when there is none."""
    master_route: Optional[Route] = None
    own_name: Optional[Resolved] = None
    hosts_lines: Optional[Strings] = None
    """Lines of /etc/hosts that name this host."""
    master_name: Optional[Resolved] = None
    firewalls: Optional[Tuple[Firewall, ...]] = None
    proxies: Optional[Tuple[Variable, ...]] = None
    port_range: Optional[Tuple[int, int]] = None
    """net.ipv4.ip_local_port_range"""
    listening: Optional[Tuple[Socket, ...]] = None
    sysctls: Optional[Dict[str, int]] = None
    """Kernel settings that a large job meets: net.ipv4.conf.all.rp_filter, net.ipv4.neigh.default.gc_thresh3,
    net.core.somaxconn, net.netfilter.nf_conntrack_max ...; without those that this kernel does not have."""
    conntrack_used: Optional[int] = None
    """Tracked connections; None with the reason absent where nothing tracks them."""
    neighbours: Optional[int] = None
    """Entries of the IPv4 neighbour table."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Gid:
    index: int
    gid: str
    """Full form: 0000:0000:0000:0000:0000:ffff:0a00:0001."""
    type: Optional[str] = None
    """"IB/RoCE v1" or "RoCE v2"."""
    netdev: Optional[str] = None


PKEY_ROWS = 16
"""An adapter is asked for each row of its partition table anew, and a subnet manager fills them from the first on."""


@dataclass(frozen=True)
class RdmaPort:
    port: int
    state: Optional[str] = None
    """ACTIVE, DOWN, INIT, ARMED."""
    phys_state: Optional[str] = None
    """LinkUp, Disabled, Polling ..."""
    rate_gbit_s: Optional[float] = None
    rate: Optional[str] = None
    """As the kernel writes it: "200 Gb/sec (4X HDR)"."""
    active_mtu_bytes: Optional[int] = None
    """256 to 4096, as libibverbs says (sysfs does not)."""
    max_mtu_bytes: Optional[int] = None
    link_layer: Optional[str] = None
    """InfiniBand or Ethernet."""
    lid: Optional[int] = None
    sm_lid: Optional[int] = None
    pkeys: Optional[Strings] = None
    """Partition keys by row, of the first PKEY_ROWS rows: "0xffff" (full member of the default partition), "0x7fff"
    (limited), "0x0000" (no key); without the empty rows at the end, and of InfiniBand ports alone."""
    traffic_class: Optional[int] = None
    """Forced RoCE traffic class (/sys/class/infiniband/*/tc/*/traffic_class); -1 where none is forced."""
    flow: Optional[Dict[str, str]] = None
    """Flow control of a RoCE port's interface: "pfc" (priorities that it has: "3", "" for none), "trust" (dscp or pcp),
    "rx_pause", "tx_pause" (on or off), "ecn_np", "ecn_rp" (priorities with DCQCN); what the driver does not tell is not in it."""
    gids: Optional[Tuple[Gid, ...]] = None
    """Rows in use: neither all zero nor a link-local prefix without an interface id."""
    netdev: Optional[str] = None
    counters: Optional[Dict[str, int]] = None
    hw_counters: Optional[Dict[str, int]] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class RdmaDevice:
    name: str
    ports: Optional[Tuple[RdmaPort, ...]] = None
    firmware: Optional[str] = None
    board_id: Optional[str] = None
    """PSID."""
    hca_type: Optional[str] = None
    node_guid: Optional[str] = None
    sys_image_guid: Optional[str] = None
    node_type: Optional[str] = None
    driver: Optional[str] = None
    pci: Optional[str] = None
    numa_node: Optional[int] = None
    virtual_function: Optional[bool] = None
    uverbs: Optional[str] = None
    """uverbs0: its character device's name."""
    verbs: Optional[str] = None
    """What libibverbs makes of it: "opens", "not listed" (its provider is missing), or why it cannot be opened."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class DeviceNode:
    path: str
    readable: Optional[bool] = None
    writable: Optional[bool] = None


@dataclass(frozen=True)
class Rdma:
    devices: Optional[Tuple[RdmaDevice, ...]] = None
    pci_hcas: Optional[Strings] = None
    """Functions on the PCI bus that are made for RDMA (InfiniBand, NVIDIA/Mellanox, Omni-Path, EFA, eRDMA), with or without a
    driver: "0000:07:00.0 15b3:101b mlx5_core", "-" for no driver. None that a guest was given (vfio), no ordinary NIC."""
    modules: Optional[Strings] = None
    """Those loaded of ib_core, ib_uverbs, mlx5_ib, rdma_cm, rdma_ucm, nvidia_peermem, rdma_rxe ..."""
    device_nodes: Optional[Tuple[DeviceNode, ...]] = None
    """/dev/infiniband/*"""
    verbs_library: Optional[str] = None
    """Path of the libibverbs.so.1 that the loader finds; "" when it finds none."""
    verbs_libraries: Optional[Strings] = None
    """Every libibverbs.so.1 on the library path, by real path: two are two stacks."""
    providers: Optional[Strings] = None
    """User-space drivers that libibverbs is configured to load: mlx5, rxe, efa ..."""
    plugins: Optional[Strings] = None
    """Network plug-ins for NCCL that the loader would find: paths of libnccl-net*.so, libnccl-ofi ..."""
    unread: Unread = _unread()


# --------------------------------------------------------------------------- ssh, launcher, active tests


@dataclass(frozen=True)
class SshFile:
    path: str
    mode: str
    """Octal permission bits: "0600"."""
    owner_uid: Optional[int] = None
    kind: str = "file"
    """private-key, public-key, authorized_keys, known_hosts, config or directory."""


@dataclass(frozen=True)
class Ssh:
    client: Optional[str] = None
    """OpenSSH_8.0p1; None with the reason absent."""
    files: Optional[Tuple[SshFile, ...]] = None
    agent_keys: Optional[int] = None
    """Keys that the agent holds; None with the reason absent when there is no agent."""
    known_hosts: Optional[int] = None
    """Number of entries; names are often hashed."""
    options: Optional[Dict[str, str]] = None
    """Client options that matter for a login without a person: StrictHostKeyChecking, BatchMode, ProxyJump ..."""
    server_running: Optional[bool] = None
    server_ports: Optional[Tuple[int, ...]] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Launch:
    """What the launcher set, or the options said."""

    launcher: Optional[str] = None
    """torchrun, slurm, mpi, kubernetes, none; from variables, or --launcher."""
    rank: Optional[int] = None
    world_size: Optional[int] = None
    local_rank: Optional[int] = None
    local_world_size: Optional[int] = None
    node_rank: Optional[int] = None
    nnodes: Optional[int] = None
    nproc_per_node: Optional[int] = None
    master_addr: Optional[str] = None
    master_port: Optional[int] = None
    rendezvous: Optional[str] = None
    """c10d or static, where it is known."""
    is_master: Optional[bool] = None
    """This node is the master: node rank 0, or the master's address is one of its own."""
    sources: Optional[Dict[str, str]] = None
    """Field -> where it came from: "--nnodes", "WORLD_SIZE", "SLURM_NNODES"."""
    malformed: Optional[Dict[str, str]] = None
    """Variable -> text that is not what it should be: RANK -> "abc"."""
    mpi: Optional[str] = None
    """What mpirun on the PATH is, where MPI is used: "Open MPI 4.0.3", "Intel(R) MPI 2019 Update 12", "Hydra 3.3.2"."""
    slurm: Optional[Dict[str, str]] = None
    """SLURM_* that matter: JOB_ID, NNODES, NTASKS, NODELIST, GPUS_ON_NODE ..."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Connection:
    """One attempt to reach a TCP port from this node."""

    host: str
    port: int
    ip: Optional[str] = None
    outcome: str = "connected"
    """connected, refused, timed-out, host-unreachable, net-unreachable, prohibited, blackhole, reset, unresolved,
    deadline (the person would not wait any longer), error."""
    errno: Optional[str] = None
    duration_s: Optional[float] = None
    neighbour: Optional[str] = None
    """Neighbour table's word after the attempt: REACHABLE, STALE, DELAY, PROBE, PERMANENT, NOARP, FAILED, INCOMPLETE; "" when it
    has none, or the peer is behind a gateway."""
    local: Optional[bool] = None
    """The address is one of this node's own."""


@dataclass(frozen=True)
class Reach:
    connections: Optional[Tuple[Connection, ...]] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Login:
    """One ssh login without a person."""

    host: str
    outcome: str
    """ok, auth-refused, host-key-unknown, host-key-changed, unresolved, refused, timed-out, unreachable, no-client, remote-failed,
    deadline (the person would not wait any longer), error."""
    detail: Optional[str] = None
    """ssh's own last words, escaped, one line."""
    duration_s: Optional[float] = None


@dataclass(frozen=True)
class Logins:
    logins: Optional[Tuple[Login, ...]] = None
    unread: Unread = _unread()


# --------------------------------------------------------------------------- hardware


@dataclass(frozen=True)
class KernelEvent:
    """One line, or a run of like lines, of the kernel's log that tells of a fault."""

    kind: str
    """xid, sxid, aer, mce, edac, mlx5, link, oom, hung-task, nvrm, nvswitch, io-error, filesystem ..."""
    text: str
    """The first of the like lines, redacted and escaped, at most 400 characters."""
    code: Optional[int] = None
    """Xid or SXid."""
    pci: Optional[str] = None
    """0000:07:00.0 of the device in question."""
    device: Optional[str] = None
    """Its name where the line has one instead: mlx5_core's interface, ib0, sda, mc0."""
    pid: Optional[int] = None
    process: Optional[str] = None
    fields: Optional[Dict[str, str]] = None
    """What else the line tells, by the kind: severity, link, subcode, action ..."""
    first_at: Optional[float] = None
    """Unix time in seconds of the first; None where the line has no time that can be placed."""
    last_at: Optional[float] = None
    count: int = 1
    most_in_a_day: Optional[int] = None
    """So many of the like lines, at most, came within 24 hours; None where one of them has no time."""


@dataclass(frozen=True)
class KernelLog:
    source: Optional[str] = None
    """kmsg, journal, dmesg, or the file that was read."""
    since: Optional[float] = None
    """Unix time of the oldest line that was seen of this boot: "no Xid" only speaks of what follows."""
    until: Optional[float] = None
    whole_boot: Optional[bool] = None
    """The log reaches back to this boot: nothing was overwritten."""
    events: Optional[Tuple[KernelEvent, ...]] = None
    """Oldest first; like ones folded, at most some hundreds; "dropped" counts the others."""
    dropped: Optional[int] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Process:
    """A process that waits in the kernel, is a zombie, or may hold a GPU or an HCA though its job is gone."""

    pid: int
    name: Optional[str] = None
    """/proc/PID/comm: never a command line."""
    state: Optional[str] = None
    """R, S, D, Z, T ..."""
    uid: Optional[int] = None
    parent: Optional[int] = None
    age_s: Optional[float] = None
    waits_in: Optional[str] = None
    """Kernel function in which it sleeps (wchan), where it is told."""
    unit: Optional[str] = None
    """systemd's unit that it belongs to: "vllm.service", "session-4.scope"; "" for none."""
    devices: Optional[Strings] = None
    """Device nodes that it holds open: /dev/nvidia0, /dev/infiniband/uverbs0; own processes alone unless root asks."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Processes:
    blocked: Optional[Tuple[Process, ...]] = None
    """In state D in two looks, 0.1 s or more apart."""
    zombies: Optional[Tuple[Process, ...]] = None
    holding: Optional[Tuple[Process, ...]] = None
    """Those that hold a GPU's device node open."""
    own_namespace: Optional[bool] = None
    """False in a container that does not see the machine's processes."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class PciDevice:
    """A GPU, a NIC or HCA, an NVSwitch, or a bridge on the way to one."""

    pci: str
    kind: str
    """gpu, nic (network or RDMA), nvswitch, bridge (root port or PCIe switch port) or other."""
    vendor_device: Optional[str] = None
    """"10de:20b0"."""
    host_bridge: Optional[str] = None
    """"pci0000:00": two devices below different ones meet in the processor."""
    parents: Optional[Strings] = None
    """Bridges from the root port down to the device, without the device; a virtual machine often shows none."""
    driver: Optional[str] = None
    """Bound kernel driver; "" when none is bound."""
    numa_node: Optional[int] = None
    """-1 is written as None with the reason absent."""
    speed_gt_s: Optional[float] = None
    """Transfer rate of a lane of its link: of a root port or a switch's downstream port the link below it, else that above.
    Idle GPUs lower it."""
    speed_max_gt_s: Optional[float] = None
    """The device's own maximum."""
    width: Optional[int] = None
    width_max: Optional[int] = None
    iommu_group: Optional[str] = None
    acs_redirect: Optional[bool] = None
    """Of a bridge: its ACS control redirects peer requests to the root complex; None where it is not readable (root alone
    reads the extended configuration space) with the reason, not-applicable where it has no ACS capability."""
    max_read_request_bytes: Optional[int] = None
    """These three are read of NICs and bridges alone: asking a GPU would wake one that sleeps."""
    max_payload_bytes: Optional[int] = None
    relaxed_ordering: Optional[bool] = None
    """It may mark its requests so that they overtake others (device control register)."""
    rdma: Strings = ()
    """RDMA devices of it: "mlx5_0"."""
    interfaces: Strings = ()
    """Network interfaces of it: "ib0"."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Topology:
    """How GPUs and NICs hang on the PCIe tree, and what lies on the way."""

    devices: Optional[Tuple[PciDevice, ...]] = None
    host_bridges: Optional[Dict[str, Optional[int]]] = None
    """PCI host bridge ("pci0000:00") -> NUMA node."""
    iommu: Optional[str] = None
    """off, passthrough, translated or "on" (kind not told)."""
    iommu_said_by: Optional[str] = None
    """What says so: "iommu=pt on the kernel's command line", "/sys/kernel/iommu_groups/7/type: DMA-FQ"."""
    peer_memory: Optional[str] = None
    """How NICs reach GPU memory: nvidia-peermem, dma-buf (kernel and driver have it), "" for no way found."""
    gdrcopy: Optional[bool] = None
    """The gdrdrv module is loaded and its device node exists."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Fabric:
    """What belongs to the NVLink fabric of the node rather than to one GPU."""

    nvswitches: Optional[Strings] = None
    """NVSwitch functions on the PCI bus, by address; a guest or container may have none and still sit on a fabric."""
    manager_running: Optional[bool] = None
    """nvidia-fabricmanager runs on this host; None in a container that does not see the host's processes."""
    manager_installed: Optional[bool] = None
    """Its program or unit file is here (in a container: in the image)."""
    manager_version: Optional[str] = None
    subnet_manager_running: Optional[bool] = None
    """nvlsm, which HGX B200 and newer need beside it."""
    imex_running: Optional[bool] = None
    imex_channels: Optional[Strings] = None
    """/dev/nvidia-caps-imex-channels/channel*"""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Counter:
    """A counter of the kernel, a driver or NVML, read once or twice."""

    source: str
    """rdma, ethtool, interface, tcp, softnet, disk, gpu, nvlink, cpu ..."""
    subject: str
    """What counts: "mlx5_0/1", "enp3s0", "GPU 3", "" for the whole node."""
    name: str
    """As the source calls it: symbol_error, rx_discards_phy, RetransSegs ..."""
    first: Optional[int] = None
    second: Optional[int] = None
    """None where there was no second reading, or the device had gone by then (with a reason in ``Rates.unread``)."""
    bits: Optional[int] = None
    """Width where it sticks or wraps there: 4, 8, 16, 32; None: 64, or not known."""
    sticks: bool = False
    """It stays at its maximum (InfiniBand's error counters) instead of beginning anew."""


@dataclass(frozen=True)
class Rates:
    """Counters, read once, or twice where ``Ask.sample_s`` says so."""

    interval_s: Optional[float] = None
    """Between the readings by the monotonic clock; None with the reason not-asked for one reading."""
    counters: Optional[Tuple[Counter, ...]] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class Trend:
    """How a quantity went over a long span, as ``watch`` saw it."""

    quantity: str
    """gpu-memory or host-memory."""
    subject: str
    """"GPU 3, pid 42 (python)"."""
    points: int
    span_s: float
    per_s: float
    """Bytes per second: the median of the slopes of all pairs of points."""
    levels: Tuple[float, ...]
    """Medians of the quarters of the span, in bytes."""
    last: float
    limit: Optional[float] = None
    """What there is of it, in bytes."""


@dataclass(frozen=True)
class Trends:
    trends: Optional[Tuple[Trend, ...]] = None
    clock_steps: Optional[int] = None
    """How often the wall clock was set, forward or back, by more than half a second while it was watched."""
    clock_step_s: Optional[float] = None
    """The largest of those steps."""
    watched_s: Optional[float] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class GpuTest:
    """What one GPU (or the processor, where there is none) did in the compute test."""

    index: int
    device: Optional[str] = None
    """cuda:0 or cpu."""
    name: Optional[str] = None
    uuid: Optional[str] = None
    gemm_tflop_s: Optional[Dict[str, float]] = None
    """Type -> 10**12 operations per second: "bfloat16", "float32"."""
    checksums: Optional[Dict[str, str]] = None
    """Type -> sum of the result's bits: equal on GPUs of one model with as many multiprocessors, with one library."""
    multiprocessors: Optional[int] = None
    memory_gb_s: Optional[float] = None
    """Device memory, read plus written, in 10**9 bytes per second."""
    to_device_gb_s: Optional[float] = None
    to_host_gb_s: Optional[float] = None
    peer_gb_s: Optional[Dict[str, float]] = None
    """Other GPU's index -> copy from this one to it."""
    wrong: Optional[Strings] = None
    """What came out wrong: "gemm bfloat16: 3 of 40 rounds differ", "copy to GPU 4: 1 block differs"; empty: all was right."""
    error: Optional[str] = None
    """Why it could not finish, in the library's own words."""
    duration_s: Optional[float] = None
    """Seconds that its own steps took, without importing torch and waiting for the others."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class Compute:
    """The compute test of all idle GPUs; a GPU that was left alone has the reason in every field's ``unread``."""

    torch: Optional[str] = None
    gpus: Optional[Tuple[GpuTest, ...]] = None
    unread: Unread = _unread()


@dataclass(frozen=True)
class PortTry:
    """One attempt to open a TCP connection to a port on which the peer listened at that time."""

    port: int
    outcome: str
    """open: the peer answered; refused (a reset); rejected (an ICMP answer of a firewall); filtered (no answer); down (nobody has
    that address on this network); unroutable; prohibited (by this node itself); reset; wrong-answer (something else answered);
    unresolved; deadline; error."""
    ip: Optional[str] = None
    detail: Optional[str] = None
    """errno, who rejected it, or what answered instead."""


@dataclass(frozen=True)
class Pair:
    """The way from this node to one peer that listened for it, in this direction."""

    peer: str
    host: str
    """What was tried: the address by which NCCL would call the peer, else its name."""
    name: Optional[Resolved] = None
    """What this node's resolver answers for the peer's name; None with the reason not-applicable where it is an address."""
    addresses: Optional[Strings] = None
    """The addresses that the peer itself says it has."""
    ip: Optional[str] = None
    """The address that was used: of a name the first that led to the peer, else the first."""
    local: Optional[bool] = None
    """That address is one of this node's own."""
    tries: Optional[Tuple[PortTry, ...]] = None
    back: Optional[str] = None
    """What the peer met on its way here: the worst outcome of its attempts, "open" where all was well."""
    interface: Optional[str] = None
    """The interface by which packets to the peer leave, by the kernel's choice, and their source address."""
    source: Optional[str] = None
    mtu_bytes: Optional[int] = None
    """MTU of that interface, and of the one by which the peer receives."""
    peer_mtu_bytes: Optional[int] = None
    path_mtu_bytes: Optional[int] = None
    """The longest IP packet that reached the peer undivided."""
    path_mtu_known: Optional[bool] = None
    """The kernel has been told of it (ICMP, a route), so that TCP sends no longer ones; False: they vanish without a word."""
    latency_min_s: Optional[float] = None
    """Round trips of single bytes over an open TCP connection."""
    latency_median_s: Optional[float] = None
    sent_gbit_s: Optional[float] = None
    """What one TCP stream from here brought to the peer in a fraction of a second, in 10**9 bit/s."""
    link_gbit_s: Optional[float] = None
    """Link speed of the slower end where both are known wires."""
    firewalls: Optional[Strings] = None
    """Firewalls that are active on the peer, by its own facts."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class OpenedPort:
    """MASTER_PORT on the master, opened for the test."""

    port: int
    outcome: str
    """opened, in-use, prohibited (below the ports that this user may open) or error."""
    detail: Optional[str] = None


@dataclass(frozen=True)
class Store:
    """A meeting in torch's own TCPStore, as a rendezvous has it: one node serves it, the others set, get and count."""

    host: str
    port: int
    outcome: str
    """served (on the master), met, failed, timed-out."""
    detail: Optional[str] = None
    """torch's own last words."""
    duration_s: Optional[float] = None


@dataclass(frozen=True)
class RdmaTry:
    """Messages to and fro over RDMA between an adapter of this node and one of a peer, without a GPU."""

    peer: str
    device: str
    """With its port, as NCCL writes it: mlx5_0:1."""
    peer_device: str
    outcome: str
    """met, failed (the way is dead: the adapter gave up), timed-out, unable (it could not be tried)."""
    detail: Optional[str] = None
    """The tool's own words: "transport retry counter exceeded (12)"."""
    sent_gbit_s: Optional[float] = None
    """Both directions together; half of it each way."""
    roce: Optional[bool] = None
    gid_index: Optional[int] = None
    """Of this node's port; None on InfiniBand."""


@dataclass(frozen=True)
class Pairs:
    """Ways from this node to others, tried while these listened: what only shows between nodes."""

    peers: Optional[Tuple[Pair, ...]] = None
    opened: Optional[OpenedPort] = None
    """On the master alone."""
    to_master: Optional[Pair] = None
    """The way to MASTER_ADDR and MASTER_PORT; on the master not-applicable."""
    usual_gbit_s: Optional[float] = None
    """Medians of all pairs that were measured in this run: of the TCP streams and of the shortest round trips."""
    usual_latency_s: Optional[float] = None
    rendezvous: Optional[Store] = None
    rdma: Optional[Tuple[RdmaTry, ...]] = None
    """Of the adapters that NCCL would use, with those of the next node."""
    usual_rdma_gbit_s: Optional[float] = None
    """Median of all that met in this run."""
    unread: Unread = _unread()


@dataclass(frozen=True)
class NodeFacts:
    """Everything that is known of one node."""

    name: str
    schema_version: int = SCHEMA_VERSION
    collected_at: Optional[float] = None
    """Unix time in seconds by the node's own clock."""
    duration_s: Optional[float] = None
    how: How = field(default_factory=How)
    os: Optional[Os] = None
    cpu: Optional[Cpu] = None
    memory: Optional[Memory] = None
    limits: Optional[Limits] = None
    disk: Optional[Disk] = None
    time: Optional[Clock] = None
    gpus: Optional[Gpus] = None
    torch: Optional[Torch] = None
    cuda: Optional[Cuda] = None
    env: Optional[Env] = None
    network: Optional[Network] = None
    rdma: Optional[Rdma] = None
    ssh: Optional[Ssh] = None
    launch: Optional[Launch] = None
    reach: Optional[Reach] = None
    logins: Optional[Logins] = None
    kernel_log: Optional[KernelLog] = None
    processes: Optional[Processes] = None
    topology: Optional[Topology] = None
    fabric: Optional[Fabric] = None
    rates: Optional[Rates] = None
    compute: Optional[Compute] = None
    trends: Optional[Trends] = None
    pairs: Optional[Pairs] = None
    reasons: Unread = _unread()
    """Section -> why it is None."""
    left_behind: Strings = ()
    """Children that the kernel would not end: "pid 4242 (reading disk)"."""


SECTIONS = tuple(
    f.name for f in fields(NodeFacts) if f.default is None and f.name not in ("collected_at", "duration_s")
)
"""Names of the sections, which are also the names of the modules in ``collect``."""


def to_plain(value: Any) -> Any:
    """Turn dataclasses and tuples into what ``json`` writes; leave out what is None or empty ``unread``."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: to_plain(v) for name, v in pairs if v is not None and not (name == "unread" and not v)}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, float) and value != value:
        return None
    return value

"""Driver, CUDA and libraries."""

from ddp_doctor.checks.logs._cause import PROGRESS, cause

COMPAT = "https://docs.nvidia.com/deploy/cuda-compatibility/"
FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"
NCCL_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
NCCL_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
PYTORCH = "https://pytorch.org/get-started/locally/"
CUDA_NOTES = "https://docs.pytorch.org/docs/stable/notes/multiprocessing.html"

cuda_driver_too_old = cause(
    __name__,
    f"""The driver is too old for the CUDA of this torch.

    Why: A CUDA runtime needs a driver of its major release at least; the message says insufficient for runtime.
    See: {COMPAT}
    """,
    r"CUDA driver version is insufficient for CUDA runtime version",
    r"NVIDIA driver on your system is too old",
    r"cudaErrorInsufficientDriver",
    r"CUDA failure 35\b|Cuda failure 35\b",
    r"unsatisfied condition: cuda ?>=",
    do="Upgrade the driver, or install the torch build for the driver that is there: ddp-doctor matrix.",
)

cuda_803 = cause(
    __name__,
    f"""The driver's kernel module and its library are of different versions (803).

    Why: The driver was upgraded and the module not reloaded, or a container brings a library of its own.
    See: {COMPAT}
    """,
    r"(CUDA|Cuda|cuda)[^\n]{0,80}\b803\b",
    r"system has unsupported display driver / cuda driver combination",
    r"Driver/library version mismatch",
    do="Reload the module or reboot; in a container leave libcuda to the container runtime.",
)

cuda_804 = cause(
    __name__,
    f"""CUDA's forward compatibility is used on a GPU or driver that does not support it (804).

    Why: A container's libcuda (cuda-compat) stands in front of the driver's; that works on data centre GPUs and certain
        driver branches only.
    See: {COMPAT}
    """,
    r"forward compatibility was attempted on non supported HW",
    r"\berror 804\b|failure 804\b|\(804\)",
    do="Take the compat library off the path (LD_LIBRARY_PATH, /usr/local/cuda/compat), or upgrade the driver.",
)

fabric_manager_802 = cause(
    __name__,
    f"""CUDA cannot start: the fabric manager does not run (802).

    Why: On machines with NVSwitch the GPUs are not initialised until nvidia-fabricmanager, of the driver's very version, has
        set up the fabric.
    See: {FABRIC}
    """,
    r"system not yet initialized",
    r"cudaErrorSystemNotReady",
    r"CUDA_ERROR_SYSTEM_NOT_READY",
    r"([Cc]uda|CUDA)[^\n]{0,60}\b802\b",
    tier=0,
    do="systemctl enable --now nvidia-fabricmanager, of the same version as the driver; in a cloud's virtual machine stop and start it.",
)

no_kernel_image = cause(
    __name__,
    f"""This torch has no code for this GPU.

    Why: Wheels hold code for a list of architectures; older or newer GPUs than these are not in it.
    See: {PYTORCH}
    """,
    r"no kernel image is available for execution on the device",
    r"cudaErrorNoKernelImageForDevice",
    r"with CUDA capability sm_\d{2,3}a? is not compatible with the current PyTorch installation",
    do="Install a torch build with this GPU's architecture: ddp-doctor matrix --gpu NAME.",
)

cuda_fork = cause(
    __name__,
    f"""CUDA was used before a process was forked.

    Why: A CUDA context does not survive fork; the child must be spawned, or CUDA must not be touched before.
    See: {CUDA_NOTES}
    """,
    r"Cannot re-initialize CUDA in forked subprocess",
    do="Use multiprocessing's start method spawn (or forkserver), or do not touch CUDA before the workers are started.",
)

nccl_library_conflict = cause(
    __name__,
    f"""Another NCCL is loaded than the one that torch was built with.

    Why: A system's libnccl on LD_LIBRARY_PATH, or two wheels over one another: symbols are missing or behave otherwise.
    See: {NCCL_TROUBLE}
    """,
    r"undefined symbol: nccl\w{1,60}",
    r"symbol lookup error.{0,200}nccl",
    r"libnccl\.so\.2: version",
    do="Take the other NCCL off LD_LIBRARY_PATH and install nvidia-nccl-cu* anew as torch asks for it: ddp-doctor run --select stack.",
)

nccl_library_missing = cause(
    __name__,
    f"""The NCCL library is missing.

    Why: The wheel's nvidia-nccl-cu* package was removed, or a source build links a system library that is not there.
    See: {NCCL_TROUBLE}
    """,
    r"libnccl\.so(\.\d)?: cannot open shared object file",
    r"libnccl\.so\.2: No such file",
    do="Install it: pip install --force-reinstall nvidia-nccl-cu12 as torch asks for it.",
)

nccl_version_mismatch = cause(
    __name__,
    f"""The nodes have different versions of NCCL.

    Why: The first handshake carries structures of other sizes: messages are truncated, address families are nonsense.
    See: {NCCL_TROUBLE}
    """,
    r"Mismatched NCCL version detected",
    r"Message truncated ?: received \d{1,9} bytes instead of \d{1,9}",
    r"with family \d{1,6} is neither AF_INET\(2\) nor AF_INET6\(10\)",
    unless=(r"NCCL_SOCKET_IFNAME",),
    confidence="medium",
    do="Give all nodes one image or one environment; ddp-doctor run --nodes compares what they load.",
)

nccl_bug_version = cause(
    __name__,
    """This release of NCCL has a known fault that looks like this.

    Why: Truncated messages while connections are set up come from fixed faults of certain releases with network plug-ins.
    See: https://docs.nvidia.com/deeplearning/nccl/release-notes/
    """,
    r"Message truncated ?: received \d{1,9} bytes instead of \d{1,9}",
    needs=(r"Channel \d{1,3}(/\d{1,3})? ?: .{0,40}via NET|NCCL version 2\.\d{1,2}|AWS Libfabric|NET/OFI",),
    unless=(r"Mismatched NCCL version",),
    tier=0,
    confidence="medium",
    do="Upgrade NCCL to a newer patch release (and the plug-in with it): ddp-doctor run --select stack names known faults.",
)

cudnn_library_conflict = cause(
    __name__,
    f"""Another cuDNN is loaded than the one that torch was built with.

    Why: LD_LIBRARY_PATH or a second wheel puts another release in front.
    See: {PYTORCH}
    """,
    r"cuDNN version incompatibility",
    r"CUDNN_STATUS_(NOT_INITIALIZED|VERSION_MISMATCH|SUBLIBRARY_VERSION_MISMATCH|SUBLIBRARY_LOADING_FAILED)",
    r"libcudnn\S{0,40}: (cannot open shared object file|undefined symbol)",
    do="Take the other cuDNN off LD_LIBRARY_PATH, or install nvidia-cudnn-cu* as torch asks for it.",
)

ld_preload_interception = cause(
    __name__,
    f"""A library that is preloaded stands between the program and CUDA or NCCL.

    Why: GPU sharing tools (HAMi, vGPU schedulers) and profilers intercept calls by LD_PRELOAD; memory handles for peers then fail or hang.
    See: {NCCL_TROUBLE}
    """,
    r"LD_PRELOAD",
    r"HAMi-core|\[HAMI|libvgpu\.so|vGPU scheduler|ld\.so\.preload",
    r"pynccl\.py:\d{1,5}\] vLLM is using nccl",
    needs=(r"LD_PRELOAD|HAMI|HAMi|libvgpu|vgpu|pynccl\.py",),
    unless=(
        *PROGRESS,
        r"Init COMPLETE",
        r"init complete",
        r"Using NCCL_P2P_DISABLE",
        r"[Cc]ustom_all_reduce|Graph capturing finished|Application startup complete",
    ),
    confidence="low",
    tier=2,
    do="Start once without the preloaded library (unset LD_PRELOAD, no /etc/ld.so.preload), or without the GPU sharing tool.",
)

vgpu_uvm_disabled = cause(
    __name__,
    """Unified memory is off on this virtual GPU.

    Why: Profiles of virtual GPUs need unified memory switched on in the hypervisor for CUDA's IPC and for NCCL.
    See: https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/
    """,
    r"(init|alloc|cuda\w{0,8})\.(cc|h):\d{1,5} NCCL WARN Cuda failure( 801)? 'operation not supported'",
    r"cudaMallocManaged.{0,80}not supported",
    r"GRID \w{1,12}-\d{1,3}[CQ]\b|vGPU.{0,80}(uvm|[Uu]nified)",
    needs=(r"operation not supported|CUDA_ERROR_NOT_SUPPORTED|Cuda failure 801",),
    unless=(r"nvls\.cc",),
    confidence="medium",
    do="Switch unified memory on for the profile (pciPassthru0.cfg.enable_uvm = 1), or use whole GPUs.",
)

mig_multi_rank = cause(
    __name__,
    """Several ranks were started on MIG instances.

    Why: CUDA shows a process one MIG instance only: the second rank has no device, and NCCL does not work between instances.
    See: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    """,
    r"device >= 0 && device < num_gpus",
    r"MIG-[0-9a-f]{8}",
    needs=(r"INTERNAL ASSERT FAILED|invalid device|Duplicate GPU|MIG",),
    confidence="medium",
    do="Use one rank for each MIG instance and node, or switch MIG off for this job.",
)

env_value_unsupported = cause(
    __name__,
    f"""A variable's value means something else to this NCCL.

    Why: Words such as NVL or SYS are known from certain releases on; an older one reads them as the number 0 and echoes that.
    See: {NCCL_ENV}
    """,
    r"NCCL_P2P_LEVEL set by environment to 0\b",
    r"NCCL_\w{1,40}.{0,40}(Invalid|invalid|unknown|unsupported) value",
    r"(Could not parse|Invalid) .{0,40}NCCL_\w{1,40}",
    confidence="medium",
    tier=2,
    do="Write the value as this release knows it: ddp-doctor lint --nccl VERSION FILE.",
)

torch_abi_mismatch = cause(
    __name__,
    f"""An extension was built against another torch.

    Why: Its binary looks for symbols that this torch does not have.
    See: {PYTORCH}
    """,
    r"undefined symbol: _ZN?K?\d{0,2}(c10|at|torch|3c10|2at|5torch)",
    r"undefined symbol: _Z\w{1,20}(c10|torch|at)\w{1,200}",
    r"operator torchvision::nms does not exist",
    r"compiled with a different version of PyTorch|was compiled (with|against) (Py)?[Tt]orch",
    do="Install the extension built for this torch (flash-attn, apex, torchvision ...), or build it anew.",
)

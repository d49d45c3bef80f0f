"""Hardware: Xids, ECC, PCIe, heat."""

from ddp_doctor.checks.logs._cause import cause

XID = "https://docs.nvidia.com/deploy/xid-errors/"
AER = "https://docs.kernel.org/PCI/pcieaer-howto.html"
RESET = "Reset the GPU (nvidia-smi -r) or reboot, and drain the node where it comes again; ddp-doctor checks xid/gpu-fault tells more."


def xid(*codes: int) -> str:
    """A kernel's line with one of these codes."""
    return rf"\bXid\b[^\n]{{0,40}}?[ :)]({'|'.join(map(str, codes))})\b[ ,]"


xid_79_off_bus = cause(
    __name__,
    f"""A GPU has fallen off the bus (Xid 79).

    Why: The PCIe link is gone: power, heat, the slot or riser, or the GPU itself. What CUDA says afterwards is a consequence.
    See: {XID}
    """,
    xid(79),
    r"GPU has fallen off the bus",
    r"GPU is lost",
    r"Surprise Down Error",
    tier=0,
    do="Drain the node; reboot (a power cycle, not a reset); where it comes again reseat or replace the GPU.",
)

xid_119_gsp_timeout = cause(
    __name__,
    f"""A GPU's system processor does not answer (Xid 119, 120).

    Why: Its firmware (GSP) hangs; every process that asks the GPU waits, and the one that is named is a victim.
    See: {XID}
    """,
    xid(119, 120),
    r"Timeout (after \d{1,4}s of )?waiting for RPC (response )?from GPU\d{0,2} ?GSP",
    tier=0,
    do=f"{RESET} A newer driver has fixes; as a stopgap NVreg_EnableGpuFirmware=0 where the GPU allows it.",
)

xid_nvlink5_145_149 = cause(
    __name__,
    f"""NVLink 5 reports faults (Xid 144 to 150).

    Why: Errors of Blackwell's NVLink units; the sub-code says whether a link, the GPU or the switch is to blame.
    See: {XID}
    """,
    xid(144, 145, 146, 147, 148, 149, 150),
    tier=0,
    do=f"Look the sub-code up in NVIDIA's list. {RESET}",
)

xid_74_nvlink = cause(
    __name__,
    f"""An NVLink has failed (Xid 74).

    Why: A link between GPUs or to an NVSwitch reported a fatal error: the connector, the GPU at the other end, the switch.
    See: {XID}
    """,
    xid(74),
    r"SXid.{0,60}(fatal|Fatal)",
    tier=0,
    do=RESET,
)

xid_48_64_94_95_memory = cause(
    __name__,
    f"""A GPU's memory has uncorrectable errors (Xid 48, 64, 94, 95).

    Why: A cell or a row is bad; a page or row is retired at the next reset. Xid 63 alone is only the record of that.
    See: {XID}
    """,
    xid(48, 64, 94, 95, 140, 171, 172),
    tier=0,
    do=f"{RESET} Look at nvidia-smi -q -d ECC,ROW_REMAPPER.",
)

xid_62_micro_controller = cause(
    __name__,
    f"""A GPU's internal micro-controller has halted (Xid 61, 62).

    Why: The GPU needs a reset; hardware or its firmware.
    See: {XID}
    """,
    xid(61, 62),
    tier=0,
    do=RESET,
)

ecc_uncorrectable = cause(
    __name__,
    f"""A GPU met an uncorrectable memory error.

    Why: CUDA ends the process; the GPU may need a reset so that the row is remapped.
    See: {XID}
    """,
    r"uncorrectable ECC error",
    r"cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE",
    r"[Cc]uda failure 214\b",
    tier=0,
    do=f"Drain the node. {RESET}",
)

xid_13_31_kernel_bug = cause(
    __name__,
    f"""A GPU kernel reads or writes where it must not, on several GPUs at once (Xid 13, 31).

    Why: The same Xid on many GPUs within seconds is the program's, not the hardware's: a kernel or library with a fault.
    See: {XID}
    """,
    xid(13, 31),
    needs=(xid(13), xid(31)),
    unless=(xid(43, 45, 48, 63, 64, 74, 79, 94, 95, 119),),
    confidence="medium",
    do="Find the kernel: CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; try other versions of the library that brings it.",
)

xid_31_mmu_fault = cause(
    __name__,
    f"""A GPU met an access to a wrong address (Xid 31).

    Why: Once, on one GPU, it is most often the program; again and again on one GPU and with different programs it is the GPU.
    See: {XID}
    """,
    xid(31),
    r"MMU Fault: ENGINE",
    confidence="medium",
    do="Run the same job on another node. If the fault stays with the GPU: drain and replace it; if with the job: compute-sanitizer.",
)

xid_13_43_app_fault = cause(
    __name__,
    f"""A GPU stopped a program for its own fault (Xid 13, 43, 45).

    Why: An index out of range, a bad pointer, an assertion; 43 and 45 mostly follow from another.
    See: {XID}
    """,
    xid(13, 43, 45, 69),
    unless=(xid(31, 48, 62, 63, 64, 74, 79, 94, 95, 119, 120),),
    tier=2,
    confidence="medium",
    do="Look for the first CUDA error of the program: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer.",
)

thermal_throttle = cause(
    __name__,
    """The GPUs are slowed down for heat.

    Why: All ranks wait for the slowest; the fans, the air's way, or the power.
    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
    """,
    r"(HW|SW|[Hh]ardware|[Ss]oftware) [Tt]hermal [Ss]lowdown ?[:=]? ?(Active|active)",
    r"[Tt]hermal (slowdown|throttl)\w{0,6}[^\n]{0,60}(GPU|active)",
    r"cpu clock throttled|temperature above threshold",
    tier=2,
    confidence="medium",
    do="See the temperatures against the GPU's own limits: ddp-doctor run; the fans and the air of the rack.",
)

pcie_aer = cause(
    __name__,
    f"""The PCIe bus reports errors.

    Why: A link with uncorrectable errors loses its device; corrected ones in numbers say that it is on the way.
    See: {AER}
    """,
    r"AER: .{0,20}Uncorrected \((Fatal|Non-Fatal)\) error",
    r"PCIe Bus Error: severity=Uncorrected",
    unless=(r"GPU has fallen off the bus", xid(79)),
    tier=0,
    do="Reseat or replace the card or riser that is named; ddp-doctor run shows the link's width and speed.",
)

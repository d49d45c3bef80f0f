"""What nvidia-smi printed, read as facts: XML, words, the table, complaints; whole and cut."""

import gzip
from pathlib import Path

import pytest
from ddp_doctor import engine, examine, importers
from ddp_doctor.collect import nvidia_smi
from ddp_doctor.config import Config
from ddp_doctor.facts import SECTIONS
from ddp_doctor.importers import BadReport
from ddp_doctor.model import Outcome, Severity
from judging import own_checks

CAPTURES = Path(__file__).parents[3] / "shared" / "captures" / "3-nvidia-smi"
GPU_XML = """
<gpu id="0000000{n}:07:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name><uuid>GPU-{n}</uuid>
<temperature><gpu_temp>33 C</gpu_temp></temperature><remapped_rows>N/A</remapped_rows>
<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode></gpu>
"""
XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>570.148.08</driver_version><cuda_version>12.8</cuda_version>
<attached_gpus>2</attached_gpus>{gpus}</nvidia_smi_log>
"""
WORDS = """
==============NVSMI LOG==============

Timestamp                                 : Thu Mar 14 20:46:07 2024
Driver Version                            : 535.86.10
CUDA Version                              : 12.2

Attached GPUs                             : 1
GPU 00000000:07:00.0
    Product Name                          : Tesla V100-SXM2-32GB
    GPU UUID                              : GPU-1
    MIG Mode
        Current                           : N/A
        Pending                           : N/A
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 3
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Throttle Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    FB Memory Usage
        Total                             : 32768 MiB
        Used                              : 4 MiB
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 1
            DRAM Correctable              : 2
            DRAM Uncorrectable            : 3
    Temperature
        GPU Current Temp                  : 88 C
        GPU Slowdown Temp                 : 87 C
    Clocks
        SM                                : 135 MHz
    Processes                             : None
"""
TABLE = """
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.183.01             Driver Version: 535.183.01   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:0F:00.0 Off |                    2 |
| N/A   30C    P0             113W / 700W |   1024MiB / 81559MiB |     97%   E. Process |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+
|   1  NVIDIA RTX 6000 Ada Gene...    Off | 00000000:2D:00.0 Off |                  Off |
| 30%   33C    P8              8W / 300W  |      4MiB / 49140MiB |      0%      Default |
|                                         |                      |                  N/A |
+-----------------------------------------+----------------------+----------------------+
|   2  ERR!                           Off | 00000000:44:00.0 Off |                 ERR! |
|ERR!  ERR!  ERR!             ERR! / ERR! |   4184MiB / 23028MiB |    ERR!      Default |
|                                         |                      |                 ERR! |
+-----------------------------------------+----------------------+----------------------+
"""
PROCESSES = """
| Processes:                                                                            |
|  No running processes found                                                           |
"""


def facts(text):
    return importers.facts(text.encode() if isinstance(text, str) else text, "node1")


def gpus(text):
    return facts(text).gpus


def test_xml_tells_of_the_gpus_and_of_nothing_else():
    found = facts(XML.format(gpus=GPU_XML.format(n=0) + GPU_XML.format(n=1)))
    assert (found.gpus.driver, found.gpus.cuda, found.how.via) == ("570.148.08", "12.8", "nvidia_smi")
    assert [(gpu.pci, gpu.temperature_c, gpu.ecc_mode) for gpu in found.gpus.gpus] == [
        ("0000:07:00.0", 33, True),
        ("0001:07:00.0", 33, True),
    ]
    assert "remap_pending" in found.gpus.gpus[0].unsupported
    assert set(found.reasons) == set(SECTIONS) - {"gpus"}
    assert found.gpus.unread["on_bus"].kind == "not-recorded"


def test_fewer_gpus_than_attached_are_told():
    assert gpus(XML.format(gpus=GPU_XML.format(n=0))).unread["gpus"].text.endswith("2 GPUs are attached, and lists 1")


def test_xml_that_breaks_off_keeps_what_was_whole():
    cut = gpus(XML.format(gpus=GPU_XML.format(n=0) + GPU_XML.format(n=1))[:-120])
    assert len(cut.gpus) == 1
    assert "breaks off" in cut.unread["gpus"].text


def test_xml_is_found_among_other_output():
    text = f"$ nvidia-smi -q -x\n{XML.format(gpus=GPU_XML.format(n=0) + GPU_XML.format(n=1))}\n$ echo done\ndone\n"
    assert len(gpus(text).gpus) == 2


@pytest.mark.parametrize(
    "text", ["<nvidia_smi_log>", XML.format(gpus='<!ENTITY a "b">')], ids=["no driver", "entities"]
)
def test_xml_without_a_driver_or_with_entities_is_refused(text):
    with pytest.raises(BadReport, match="nvidia-smi -q -x"):
        facts(text)


def test_words_tell_the_same_as_xml():
    found = gpus(WORDS)
    gpu = found.gpus[0]
    assert (found.driver, found.cuda, gpu.name, gpu.uuid, gpu.pci) == (
        "535.86.10", "12.2", "Tesla V100-SXM2-32GB", "GPU-1", "0000:07:00.0",
    )  # fmt: skip
    assert (gpu.pcie_gen, gpu.pcie_gen_max, gpu.pcie_width, gpu.pcie_width_max) == (1, 3, 8, 16)
    assert gpu.throttle == ("hw_slowdown", "hw_thermal_slowdown")
    assert (gpu.ecc_corrected_volatile, gpu.ecc_uncorrected_volatile) == (2, 4)
    assert (gpu.temperature_c, gpu.temperature_slowdown_c, gpu.clock_sm_mhz) == (88, 87, 135)
    assert (gpu.mig, gpu.memory_used_bytes, gpu.processes) == ("unsupported", 4 << 20, ())
    assert gpu.unread["remap_pending"].kind == "absent"


def test_the_table_tells_what_its_cells_hold():
    found = gpus(TABLE + PROCESSES)
    first, second, third = found.gpus
    assert (first.name, first.temperature_c, first.power_limit_w, first.utilisation_percent) == (
        "NVIDIA H100 80GB HBM3", 30, 700, 97,
    )  # fmt: skip
    assert (first.ecc_uncorrected_volatile, first.compute_mode, first.mig, first.performance_state) == (
        2, "exclusive_process", "disabled", 0,
    )  # fmt: skip
    assert (second.name, second.ecc_mode, second.mig, second.persistence) == (None, False, "unsupported", False)
    assert third.fault.startswith("ERR!")
    assert "gpus" not in found.unread


def test_a_table_without_its_processes_says_so():
    assert gpus(TABLE).unread["gpus"].text == "nvidia-smi: the table ends after 3 GPUs, before its list of processes"


@pytest.mark.parametrize(
    ("text", "nvml_error", "listed"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", "Driver/library version mismatch", None),
        ("Unable to determine the device handle for GPU0000:0F:00.0: Unknown Error\n", None, None),
        ("No devices were found\n", None, ()),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", None, None),
    ],
)
def test_complaints_are_facts(text, nvml_error, listed):
    found = gpus(text)
    assert (found.nvml_error, found.gpus) == (nvml_error, listed)
    assert found.unread["gpus"].text == text.strip()


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("Unable to determine the device handle for GPU0000:0F:00.0: Unknown Error", "gpu/unreadable"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "gpu/unreadable"),
        ("No devices were found", "gpu/unreadable"),
        ("Failed to initialize NVML: Unknown Error", "gpu/unreadable"),
        ("Failed to initialize NVML: Driver/library version mismatch", "gpu/driver-library-mismatch"),
        (XML.format(gpus=GPU_XML.format(n=0)), "gpu/fewer-listed-than-attached"),
    ],
)
def test_what_is_no_whole_list_of_gpus_is_never_called_healthy(text, check):
    assert failed(facts(text + "\n")) == {check}


IN_WORDS = """    Processes
        GPU instance ID                   : N/A
        Process ID                        : 58130
            Type                          : C
            Name                          : /usr/bin/python train.py
            Used GPU Memory               : 20322 MiB
        Process ID                        : 58131
            Type                          : G
            Name                          : Xorg
            Used GPU Memory               : 9 MiB
"""
IN_THE_TABLE = """
| Processes:                                                                            |
|    0   N/A  N/A     58130      C   /usr/bin/python                           20322MiB |
|    1   N/A  N/A     58131      G   /usr/lib/xorg/Xorg                            9MiB |
"""


def test_processes_are_read_from_words_and_from_the_table():
    (worded,) = gpus(WORDS.replace("    Processes                             : None\n", IN_WORDS)).gpus
    first, second, third = gpus(TABLE + IN_THE_TABLE).gpus
    told = [(p.pid, p.name, p.used_bytes, p.kind) for p in (*worded.processes, *first.processes, *second.processes)]
    python, xorg = (58130, "python", 20322 << 20, "compute"), (58131, "Xorg", 9 << 20, "graphics")
    assert told == [python, xorg, python, xorg]
    assert third.processes == ()


def test_windows_is_not_judged():
    text = WORDS.replace("    MIG Mode", "    Driver Model\n        Current      : WDDM\n    MIG Mode")
    report = examine.report([facts(text)], list(own_checks().checks.values()), own_checks(), Config())
    why = "Windows is not judged: the checks are for Linux"
    assert report.summary.headline == f"Cannot tell: nothing could be read ({why})."
    assert report.summary.exit_status == 3


@pytest.mark.parametrize(
    "text",
    [
        "==============NVSMI LOG==============",
        "==============NVSMI LOG==============\n" + "    x\n" * 5000,
        "==============NVSMI LOG==============\nDriver Version : 1\n" + "".join(" " * n + "a\n" for n in range(400)),
        "| NVIDIA-SMI 1 Driver Version: 1 CUDA Version: 1 |\n" + "|  0  " + "x" * 100_000,
        XML.format(gpus=GPU_XML.format(n=0) * 300),
    ],
    ids=["head alone", "headings", "a staircase", "an endless line", "300 GPUs"],
)
def test_odd_reports_have_a_clear_end(text):
    try:
        assert facts(text).gpus is not None
    except BadReport as error:
        assert str(error)  # noqa: PT017


ROWS = TABLE.partition("| N/A   30C")[0] + "| a b c " + "/|" * 190 + "\n"


@pytest.mark.parametrize(
    "text",
    [
        "<!DOCTYPE nvidia_smi_log " * 200_000 + "x",
        "<?xml " * 400_000,
        "==============NVSMI LOG==============\nDriver Version : 1\na" + " " * 400_000 + "b\n",
        ROWS,
        "| NVIDIA-SMI " + "x" * 400_000 + " " * 400_000,
        "Driver Model" + " " * 400_000 + WORDS,
    ],
    ids=["doctypes", "prologs", "blanks", "cells without an end", "an endless version", "blanks before a report"],
)
def test_text_made_to_cost_the_square_of_its_length_is_read_at_once(text):
    found = facts(text)
    assert found is None or found.gpus is not None


def test_a_long_prolog_is_no_part_of_the_report():
    text = XML.format(gpus=GPU_XML.format(n=0) + GPU_XML.format(n=1))
    assert len(gpus("<?xml " + " " * 400_000 + "?>" + text.partition("?>")[2]).gpus) == 2


@pytest.mark.parametrize("errors", ["\u00b2", "9" * 21, "-1"])
def test_what_is_no_number_of_errors_is_not_told(errors):
    found = gpus(TABLE.replace("                   2 |", f" {errors} |") + PROCESSES)
    assert found.gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert found.gpus[0].ecc_uncorrected_volatile is None


@pytest.mark.parametrize("attached", ["\u00b2", "-1", "many", "9" * 5000, ""])
def test_a_count_of_gpus_that_is_no_number_is_not_told(attached):
    text = XML.format(gpus=GPU_XML.format(n=0)).replace(">2<", f">{attached}<")
    assert failed(facts(text)) == set()


@pytest.mark.parametrize(
    "text",
    [
        XML.format(gpus=GPU_XML.format(n=0) * 2),
        TABLE.replace("2D:00.0", "0F:00.0") + PROCESSES,
        WORDS.replace("Attached GPUs                             : 1", "")
        + WORDS.partition("Attached GPUs                             : 1")[2],
    ],
    ids=["xml", "table", "words"],
)
def test_a_gpu_that_is_listed_twice_is_one_and_is_told(text):
    found = facts(text)
    assert len({gpu.pci for gpu in found.gpus.gpus}) == len(found.gpus.gpus)
    assert "listed before, once" in found.gpus.unread["gpus"].text
    (verdict,) = [v for v in verdicts_of(found) if v.check == "gpu/list-incomplete"]
    assert "more than once" in verdict.message


@pytest.mark.parametrize(
    "text",
    [
        XML.format(gpus="".join(GPU_XML.format(n=0).replace("07:00", f"{n:02x}:00") for n in range(200)) * 2),
        WORDS + "GPU 00000000:07:00.0\n" * 10_000,
    ],
    ids=["xml", "words"],
)
def test_more_gpus_than_any_machine_has_are_counted_before_they_are_read(text, monkeypatch):
    monkeypatch.setattr(nvidia_smi, "parse_gpu", lambda *_: pytest.fail("one was read"))
    with pytest.raises(BadReport, match="more than 256 GPUs"):
        facts(text)


def test_a_table_of_more_gpus_than_any_machine_has_is_refused():
    row = "|   0  A    On  | {domain:08X}:0F:00.0 Off |                    0 |\n"
    with pytest.raises(BadReport, match="more than 256 GPUs"):
        facts(TABLE + "".join(row.format(domain=n) for n in range(300)))


def test_a_name_without_end_is_cut():
    long = XML.format(gpus=GPU_XML.format(n=0)).replace("NVIDIA A100-SXM4-80GB", "N" * 5_000_000)
    assert gpus(long).gpus[0].name == "N" * nvidia_smi.MOST_CHARACTERS


# --------------------------------------------------------------------------- captures


def captured(*patterns):
    return [pytest.param(path, id=path.name) for pattern in patterns for path in sorted(CAPTURES.glob(pattern))] or [
        pytest.param(None, marks=pytest.mark.skip(reason="no captures here"))
    ]


HEALTHY = captured(
    "aicr/*.xml", "azurehpc/orig_nvsmi*", "k8s-test-infra-hardware/*.xml", "k8s-test-infra-mock/*healthy.xml",
    "k8s-test-infra-mock/*throttle-counters.xml", "gpu_exporter/linux-*",
    "gpud/nvidia-smi-query*.valid*", "gpud/nvidia-smi.5*", "mlperf/*.node*.txt", "table/*.txt",
)  # fmt: skip
CUT = ("nvidia-smi.525.125.06.out.0.valid", "llm-action.README.122.txt")
"""Tables that were cut when they were copied: that cannot be told from nvidia-smi having ended."""
BROKEN = {
    "azurehpc/bad_nvsmi8_output.txt": "gpu/page-retirement-pending gpu/retirable-pages-used-up",
    "broken/nvidia-smi-table.ERR-a10g.txt": "gpu/not-answering",
    "broken/oci-h100.sweep-host1.handle-unknown-error.txt": "gpu/unreadable",
    "broken/oci-h100.sweep-host3.handle-unknown-error.txt": "gpu/unreadable",
    "broken/oci-h100.sweep-host4.handle-unknown-error.txt": "gpu/unreadable",
    "broken/oci-h100.sweep-host6.7-gpus-listed.txt": "gpu/list-incomplete",
    "broken/oci-h100.sweep-host7.6-gpus-listed.txt": "gpu/list-incomplete",
    "gpud/nvidia-smi-query.535.161.08.out.0.valid": "gpu/all-slowed-by-power-brake",
    "gpud/nvidia-smi-query.535.183.01.out.0.invalid": "gpu/fewer-listed-than-attached",
    "k8s-test-infra-mock/qx-gb200-ecc-injected.xml": "gpu/row-remap-failed gpu/uncorrected-memory-errors",
    "k8s-test-infra-mock/qx-gb200-lost.xml": "gpu/not-answering gpu/row-remap-failed gpu/uncorrected-memory-errors",
}
"""Capture -> the checks that call it broken, and no other."""
ALLOWED = {"gpu/memory-taken"}
"""Machines that were at work when they were looked at."""


def failed(found, lowest=Severity.WARNING):
    return {v.check for v in verdicts_of(found) if v.severity.rank >= lowest.rank}


def verdicts_of(found):
    """What is found to be wrong."""
    verdicts = engine.judge(found, list(own_checks().checks.values()), Config())
    return [v for v in verdicts if v.outcome in (Outcome.FAILED, Outcome.BROKEN)]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_capture_is_called_broken_for_its_reason(name):
    if not CAPTURES.exists():
        pytest.skip("no captures here")
    found = facts((CAPTURES / name).read_bytes())
    assert failed(found) - ALLOWED == set(BROKEN[name].split())


@pytest.mark.parametrize("path", [c for c in HEALTHY if not any(c.id and name.endswith(c.id) for name in BROKEN)])
def test_a_healthy_capture_raises_no_alarm(path):
    found = facts(path.read_bytes())
    assert found.gpus.gpus
    assert all(gpu.name or "..." in path.read_text() or path.parent.name == "azurehpc" for gpu in found.gpus.gpus)
    assert failed(found) - ALLOWED == ({"gpu/list-incomplete"} if path.name in CUT else set())


def test_the_table_of_a_fleet_is_read_host_by_host():
    path = CAPTURES / "mlperf" / "oci-h100-529-host-sweep.pdsh.txt.gz"
    if not path.exists():
        pytest.skip("no captures here")
    hosts = {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            host, _, text = line.partition(": ")
            hosts.setdefault(host, []).append(text)
    counts = {host: len(found.gpus.gpus or ()) for host, lines in hosts.items()
              for found in [facts("".join(lines))] if found}  # fmt: skip
    short = {host for host, count in counts.items() if count != 8}
    assert len(hosts) > 500
    assert len(short) <= 7, "522 of 529 hosts list all eight"

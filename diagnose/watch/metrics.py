"""A look as samples for Prometheus."""

from typing import Iterator, Tuple

from ddp_doctor import __version__
from ddp_doctor.facts import Gpu, NodeFacts
from ddp_doctor.watch.findings import Findings
from ddp_doctor.watch.prometheus import Family, Sample

_INFO = Family("build_info", "gauge", "Version of ddp-doctor that wrote this file.")
_AT = Family("last_look_timestamp_seconds", "gauge", "When the node was looked at last.")
_COUNTERS = {
    "rdma": Family("rdma_port_counter_total", "counter", "Counters of RDMA ports as the kernel names them."),
    "interface": Family(
        "interface_counter_total", "counter", "Counters of network interfaces as the kernel names them."
    ),
    "ethtool": Family(
        "interface_driver_counter_total", "counter", "Counters of network drivers as ethtool -S names them."
    ),
    "tcp": Family("tcp_counter_total", "counter", "Counters of TCP and UDP as /proc/net/snmp and netstat name them."),
    "softnet": Family("softnet_counter_total", "counter", "Packets taken and dropped by the kernel's receive path."),
    "conntrack": Family("conntrack_counter_total", "counter", "Packets that connection tracking dropped."),
    "disk": Family("disk_counter_total", "counter", "Counters of disks as /proc/diskstats has them."),
    "cpu": Family("cpu_counter_total", "counter", "Throttling events of processors."),
    "edac": Family("edac_counter_total", "counter", "Errors of memory as EDAC counts them."),
    "gpu": Family("gpu_counter_total", "counter", "Counters of GPUs as NVML has them."),
    "nvlink": Family("nvlink_counter_total", "counter", "Errors of NVLinks as NVML has them."),
}
_GAUGES = {"in_flight"}
"""Numbers of a source of counters that go up and down: they have a family of their own."""
_IN_FLIGHT = Family("disk_requests_in_flight", "gauge", "Requests that wait for a disk.")
_GPU = (
    ("memory_used_bytes", 1.0, Family("gpu_memory_used_bytes", "gauge", "Memory in use.")),
    ("memory_total_bytes", 1.0, Family("gpu_memory_size_bytes", "gauge", "Memory that there is.")),
    ("utilisation_percent", 0.01, Family("gpu_utilization_ratio", "gauge", "Share of the time in which a kernel ran.")),
    ("temperature_c", 1.0, Family("gpu_temperature_celsius", "gauge", "Temperature of the GPU.")),
    ("power_w", 1.0, Family("gpu_power_watts", "gauge", "Power that the GPU draws.")),
    ("clock_sm_mhz", 1e6, Family("gpu_sm_clock_hertz", "gauge", "Clock of the multiprocessors.")),
)
_ANSWERS = Family("gpu_answers", "gauge", "1 when the GPU answered at the last look.")
_MEMORY = Family("memory_available_bytes", "gauge", "Memory that a process can still get.")
_OFFSET = Family("clock_offset_seconds", "gauge", "Distance from the time source, as the synchroniser says it.")
_FINDING = Family("finding", "gauge", "1 for each finding that holds: see ddp-doctor checks CHECK.")
_NEW = Family("findings_total", "counter", "Findings that arose since the watch began.")


def samples(facts: NodeFacts, findings: Findings) -> Iterator[Sample]:
    """Everything that a look knows and that has a number."""
    yield Sample(_INFO, (("version", __version__),), 1)
    yield Sample(_AT, (), facts.collected_at or 0.0)
    yield from _counters(facts)
    for gpu in (facts.gpus.gpus if facts.gpus else None) or ():
        yield from _gpu(gpu)
    if facts.memory and facts.memory.available_bytes is not None:
        yield Sample(_MEMORY, (), facts.memory.available_bytes)
    if facts.time and facts.time.offset_s is not None:
        yield Sample(_OFFSET, (), facts.time.offset_s)
    for (check, subject), verdict in findings.lasting.items():
        yield Sample(_FINDING, (("check", check), ("subject", subject), ("severity", verdict.severity.value)), 1)
    yield Sample(_NEW, (), findings.count_new)


def _counters(facts: NodeFacts) -> Iterator[Sample]:
    for counter in (facts.rates.counters if facts.rates else None) or ():
        value = counter.second if counter.second is not None else counter.first
        family = _COUNTERS.get(counter.source)
        if family is None or value is None:
            continue
        if counter.name in _GAUGES:
            yield Sample(_IN_FLIGHT, (("disk", counter.subject),), value)
        else:
            yield Sample(family, _labels(counter.source, counter.subject, counter.name), value)


def _labels(source: str, subject: str, name: str) -> Tuple[Tuple[str, str], ...]:
    """device and port of "mlx5_0/1", gpu and link of "GPU 3 link 2", else the subject under its usual name."""
    label = {"interface": "interface", "ethtool": "interface", "disk": "disk", "edac": "controller"}.get(source, "")
    labels: Tuple[Tuple[str, str], ...] = ((label, subject),) if label and subject else ()
    if source == "rdma":
        device, _, port = subject.partition("/")
        labels = (("device", device), ("port", port))
    elif source in ("gpu", "nvlink"):
        words = subject.split()
        labels = tuple(zip(("gpu", "link"), words[1::2]))
    return (*labels, ("counter", name))


def _gpu(gpu: Gpu) -> Iterator[Sample]:
    labels = (("gpu", str(gpu.index)), ("uuid", gpu.uuid or ""))
    yield Sample(_ANSWERS, labels, 0 if gpu.fault else 1)
    for name, factor, family in _GPU:
        value = getattr(gpu, name)
        if value is not None:
            yield Sample(family, labels, value * factor)

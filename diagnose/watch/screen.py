"""A look for a person: a table of rates that is drawn again in its place, findings above it as they arise."""

from typing import Dict, Iterator, List, Sequence, Tuple

from ddp_doctor import escape
from ddp_doctor.facts import Gpu, NodeFacts, Rates
from ddp_doctor.model import Verdict
from ddp_doctor.units import plural, seconds, size
from ddp_doctor.watch import lines
from ddp_doctor.watch.findings import Findings, News

WORDS_BYTES = 4
"""InfiniBand's port_*_data count words of 4 bytes (Documentation/ABI/stable/sysfs-class-infiniband)."""
SECTOR_BYTES = 512
"""/proc/diskstats counts sectors of 512 bytes, whatever the disk's own are."""
MAX_ROWS = 30
Row = Tuple[str, str, str]
"""What, its rates, what is wrong with it."""
Rising = Dict[str, float]


def rows(facts: NodeFacts) -> List[Row]:
    """A row for each GPU, port, interface and disk that does something, and for TCP."""
    moving = lines.nested(lines.moving(facts.rates or Rates()))
    found = [_gpu(gpu) for gpu in (facts.gpus.gpus if facts.gpus else None) or ()]
    found += [_port(name, rates) for name, rates in moving.get("rdma", {}).items() if "/" in name]
    found += [
        _interface(name, rates, moving.get("ethtool", {}).get(name, {}))
        for name, rates in moving.get("interface", {}).items()
    ]
    found += [_tcp(rates) for rates in moving.get("tcp", {}).values()]
    found += [_disk(name, rates) for name, rates in moving.get("disk", {}).items()]
    return found


def _gpu(gpu: Gpu) -> Row:
    if gpu.fault:
        return f"GPU {gpu.index}", "does not answer", gpu.fault
    told = (
        (gpu.utilisation_percent, "{} % busy"),
        (gpu.memory_used_bytes and size(gpu.memory_used_bytes), "{}"),
        (gpu.temperature_c, "{} C"),
        (gpu.power_w and round(gpu.power_w), "{} W"),
        (gpu.clock_sm_mhz, "{} MHz"),
    )
    slowed = [name.replace("_", " ") for name in gpu.throttle or () if "slowdown" in name]
    return f"GPU {gpu.index}", ", ".join(form.format(v) for v, form in told if v is not None), ", ".join(slowed)


def _port(name: str, rates: Rising) -> Row:
    received, sent = (rates.get(f"port_{way}_data", 0.0) * WORDS_BYTES for way in ("rcv", "xmit"))
    return (
        name,
        f"in {_pace(received)}, out {_pace(sent)}",
        _others(rates, ("_data", "_packets", "rx_", "tx_", "lifespan", "_wait")),
    )


def _interface(name: str, rates: Rising, driver: Rising) -> Row:
    ways = f"in {_pace(rates.get('rx_bytes', 0.0))}, out {_pace(rates.get('tx_bytes', 0.0))}"
    return name, ways, _others({**rates, **driver}, ("_bytes", "_packets", "_packets_phy", "buffer_passed"))


def _tcp(rates: Rising) -> Row:
    sent, again = rates.get("OutSegs", 0.0), rates.get("RetransSegs", 0.0)
    share = f", {100 * again / sent:.2g} % sent again" if sent and again else ""
    return "TCP", f"{sent:.0f} segments/s{share}", _others(rates, ("Segs",))


def _disk(name: str, rates: Rising) -> Row:
    read, written = (rates.get(f"{way}_sectors", 0.0) * SECTOR_BYTES for way in ("read", "write"))
    done = rates.get("reads", 0.0) + rates.get("writes", 0.0)
    waited = rates.get("read_ms", 0.0) + rates.get("write_ms", 0.0)
    each = f", {waited / done:.1f} ms each" if done else ""
    return name, f"read {_pace(read)}, write {_pace(written)}{each}, {rates.get('io_ms', 0.0) / 10:.0f} % busy", ""


def _pace(bytes_s: float) -> str:
    return f"{size(int(bytes_s))}/s"


def _others(rates: Rising, usual: Sequence[str]) -> str:
    """Counters that rise and are not those of traffic."""
    odd = {
        name: rate
        for name, rate in rates.items()
        if not name.endswith(tuple(usual)) and not name.startswith(tuple(usual))
    }
    return ", ".join(f"{name} {rate:.3g}/s" for name, rate in sorted(odd.items(), key=lambda pair: -pair[1])[:4])


def table(facts: NodeFacts, findings: Findings, watched_s: float, width: int, height: int) -> List[str]:
    """The lines of the table, none wider than ``width``, not more than ``height``."""
    found = rows(facts)[: max(1, min(MAX_ROWS, height - 4))]
    broad = max((len(what) for what, _, _ in found), default=0)
    middle = max((len(rates) for _, rates, _ in found), default=0)
    holding = len(findings.lasting)
    news = plural(findings.count_new, "new finding")
    head = f"{facts.name}: watched for {seconds(watched_s)}, {news}, {holding} hold now. Ctrl-C ends."
    body = [f"  {what:<{broad}}  {rates:<{middle}}  {wrong}".rstrip() for what, rates, wrong in found]
    return [escape.terminal(text)[:width] for text in (head, *(body or ["  nothing moves"]))]


def told(news: News, clock: str) -> Iterator[str]:
    """Lines about what arose and what is over."""
    for verdict in news.new:
        yield from _finding(verdict, clock)
    for check, subject in news.over:
        yield escape.terminal(f"{clock}  over     {f'{subject}: ' if subject else ''}no longer so [{check}]")


def _finding(verdict: Verdict, clock: str) -> Iterator[str]:
    yield escape.terminal(f"{clock}  {verdict.severity.value.upper():<8} {verdict.message} [{verdict.check}]")
    if verdict.measured:
        yield escape.terminal(f"{'':>{len(clock)}}           measured {verdict.measured}; expected {verdict.expected}")
    title = lines.remedy(verdict)
    if title:
        yield escape.terminal(f"{'':>{len(clock)}}           do: {title} (ddp-doctor checks {verdict.check})")


def redrawn(before: int, text: Sequence[str]) -> str:
    """What a terminal needs to draw ``text`` over the ``before`` lines above the cursor (ECMA-48: CPL, ED)."""
    return (f"\x1b[{before}F\x1b[J" if before else "") + "".join(f"{line}\n" for line in text)

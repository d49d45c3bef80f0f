"""Master: where the job's ranks will meet, as options or the launcher's variables say."""

from typing import Optional, Tuple

from ddp_doctor.ask import Ask
from ddp_doctor.host import Host
from ddp_doctor.numerals import whole
from ddp_doctor.unreadable import Unreadable

DEFAULT_PORT = 29500
"""torchrun's --master-port when none is given (torch/distributed/run.py)."""


def master(host: Host, ask: Ask) -> Tuple[Optional[str], Optional[int]]:
    """(address, port) of the master: options first, then MASTER_ADDR and MASTER_PORT; (None, None) when none is named."""
    try:
        env = host.env()
    except Unreadable:
        env = {}
    address = ask.master_addr or env.get("MASTER_ADDR", "").strip() or None
    if address is None:
        return None, ask.master_port or None
    written = env.get("MASTER_PORT", "").strip()
    port = int(written) if is_port(written) else DEFAULT_PORT
    return address, ask.master_port or port


def is_port(text: str) -> bool:
    """Is ``text`` a TCP port number?"""
    return 0 < (whole(text, 5) or 0) < 65536

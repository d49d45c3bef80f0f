"""Fixtures for every test. A module below tests/ that is named in ``pytest_plugins`` brings fixtures of its own."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in its background without it

pytest_plugins = ("fake_nvml.plugin", "goldens", "lab.plugin")

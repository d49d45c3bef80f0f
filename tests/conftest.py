"""Fixtures for every test. A module below tests/ that is named in ``pytest_plugins`` brings fixtures of its own."""

import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in its background without it

# The same examples every time, on a machine that may be slow: a run that fails, fails again
slow = (HealthCheck.filter_too_much, HealthCheck.too_slow)
settings.register_profile("project", derandomize=True, deadline=None, suppress_health_check=slow)
settings.load_profile("project")

pytest_plugins = ("fake_nvml.plugin", "goldens", "lab.plugin")

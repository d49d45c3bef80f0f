"""The real command in a process of its own, as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Sequence

NODES = Path(__file__).parent / "nodes"
READY = str(NODES / "h100-infiniband" / "facts.json")
"""Facts without a fault."""
NOTES = str(NODES / "laptop" / "facts.json")
"""Facts with a note and nothing worse."""
WARNED = str(NODES / "memlock-8gib" / "facts.json")
"""Facts with a warning and nothing worse."""
FAULTY = str(NODES / "container-defaults" / "facts.json")
"""Facts with errors."""
DOCTOR = (sys.executable, "-m", "ddp_doctor")
LIMIT_S = 60
"""Nothing here takes a tenth of it; a command that hangs fails its test."""


def doctor(*arguments: str, python: Sequence[str] = (), **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run ``ddp-doctor`` with these arguments; whatever happens, no traceback may reach a user.

    python: options for the interpreter. more: for subprocess.run; without it nothing is configured but by the arguments.
    """
    argv = [DOCTOR[0], *python, *DOCTOR[1:], *arguments]
    settings: Dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "backslashreplace", "cwd": "/"}
    done = subprocess.run(argv, timeout=LIMIT_S, **{**settings, **more})
    told = f"{done.stdout or ''}{done.stderr or ''}"
    assert "Traceback" not in told, told
    assert "a defect of ddp-doctor" not in told, told
    return done


def report(*arguments: str, **more: Any) -> Any:
    """The JSON report of a run, whatever it found."""
    return json.loads(doctor("run", "--json", *arguments, **more).stdout)


def without(*names: str, **more: str) -> Dict[str, str]:
    """Our environment without some variables, and with others."""
    return {**{name: value for name, value in os.environ.items() if name not in names}, **more}

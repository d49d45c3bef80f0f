"""The fixture ``vm``: what the scenarios of the virtual machine printed; it is booted once for all tests."""

import json
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import machine


class Results:
    """The folder that the virtual machine wrote: a folder for each scenario."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def text(self, scenario: str, name: str) -> str:
        """What a command printed; it must have succeeded."""
        status = (self.folder / scenario / f"{name}.status").read_text().strip()
        assert status == "0", (self.folder / scenario / f"{name}.stderr").read_text()
        return (self.folder / scenario / name).read_text()

    def facts(self, scenario: str, name: str = "facts.json") -> Dict[str, Any]:
        found = json.loads(self.text(scenario, name))
        assert isinstance(found, dict)
        return found

    def verdicts(self, scenario: str) -> List[Dict[str, Any]]:
        """Of ``ddp-doctor run``, whatever it found."""
        return list(json.loads((self.folder / scenario / "run.json").read_text())["verdicts"])

    def findings(self, scenario: str) -> Dict[str, str]:
        """Severity of each failed check."""
        return {v["check"]: v["severity"] for v in self.verdicts(scenario) if v["outcome"] == "failed"}


@pytest.fixture(scope="session")
def vm(tmp_path_factory: pytest.TempPathFactory) -> Results:
    try:
        return Results(machine.boot(tmp_path_factory.mktemp("vm")))
    except machine.Unable as error:
        pytest.skip(f"virtual machine: {error}")

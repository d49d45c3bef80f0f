"""What is shipped: a package that setup.cfg does not list works in place and is missing from the wheel."""

import configparser
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = {"diagnose": "ddp_doctor", "checks": "ddp_doctor.checks", "fixes": "ddp_doctor.fixes"}


def test_every_package_is_listed():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    inits = ((folder, path.parent) for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py"))
    found = {".".join((FOLDERS[folder], *path.relative_to(ROOT / folder).parts)) for folder, path in inits}
    assert found == set(setup["options"]["packages"].split())

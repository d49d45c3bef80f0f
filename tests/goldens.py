"""Golden files: texts that a person has read and found right. ``--rewrite-goldens`` writes them anew."""

from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--rewrite-goldens", action="store_true", help="write golden files anew, then read the difference")


@pytest.fixture
def golden(request):
    """A function that compares a text with a golden file, named relative to the test's folder or absolute."""

    def compare(text, name):
        path = Path(request.path).parent / "goldens" / name if not Path(name).is_absolute() else Path(name)
        if request.config.getoption("--rewrite-goldens"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        wanted = path.read_text(encoding="utf-8") if path.exists() else "(no golden file: --rewrite-goldens)"
        assert text.splitlines() == wanted.splitlines()
        assert text == wanted

    return compare

"""The fixture ``lab``: an empty lab of hosts for a module's tests, or a skip that says why there can be none.

@pytest.mark.lab
def test_x(lab):
    a, b = lab.add("a"), lab.add("b")
"""

from typing import Iterator

import pytest
from lab.hosts import Lab, Unable


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    try:
        made = Lab()
    except Unable as error:
        pytest.skip(f"lab: {error}")
    with made:
        yield made

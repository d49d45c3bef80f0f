"""Node names in short."""

import pytest
from ddp_doctor.cluster.folding import folded


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["gpu1"], "gpu1"),
        (["gpu02", "gpu01"], "gpu02, gpu01"),
        ([f"gpu{n:02d}" for n in range(1, 64)], "gpu[01-63]"),
        (["gpu1.c", "gpu2.c", "gpu4.c", "login"], "gpu[1-2,4].c, login"),
        (["r1n1", "r1n2", "r2n1", "r2n2"], "r[1-2]n[1-2]"),
        (["a1", "a2", "a3", "a1 (2)"], "a[1-3], a1 (2)"),
        (["@all", "n[1-9999999]", "a,b", "n1", "n2", "n3", "-oProxyCommand=x"], "n[1-3], @all, n[1-9999999], a,b, -oProxyCommand=x"),
    ],
)  # fmt: skip
def test_names_are_folded_as_clush_writes_them(names, text):
    assert folded(names) == text

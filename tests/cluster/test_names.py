"""Node names as people write them, and hostile ones."""

import os
import subprocess
import sys

import pytest
from ddp_doctor.cluster.names import BadNodes, parse_nodes


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["gpu07"], ["gpu07"]),
        (["a,b c"], ["a", "b", "c"]),
        (["gpu[08-10]"], ["gpu08", "gpu09", "gpu10"]),
        (["gpu[1,3],x"], ["gpu1", "gpu3", "x"]),
        (["r[1-2]n[1-2]"], ["r1n1", "r1n2", "r2n1", "r2n2"]),
        (["n[0-4/2]"], ["n0", "n2", "n4"]),
        (["10.0.0.1", "fd00::5"], ["10.0.0.1", "fd00::5"]),
        (["a,a", "a"], ["a"]),
        (["node.cluster.local"], ["node.cluster.local"]),
        ([], []),
    ],
)
def test_sets_are_expanded_in_order(texts, names):
    assert parse_nodes(texts) == names


@pytest.mark.parametrize(
    "text",
    ["-oProxyCommand=x", "$(id)", "a;reboot", "a`id`", "n[1-999999999]", "n[1-99999]m[1-99999]", "a\nb\x1b[2J", "@", "@-x", "@a b:c", "@nosuchgroup", "@nosuch:source", "a!b", "n[", "n[]", "n[1-]", "x" * 5000, "a&b", "../x"],
)  # fmt: skip
def test_hostile_names_are_refused(text):
    with pytest.raises(BadNodes):
        parse_nodes([text])


GROUPS = """[Main]
default: here
[here]
map: sed -n 's/^$GROUP: //p' $CFGDIR/nodes
list: cut -d: -f1 $CFGDIR/nodes
"""


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("@gpu", "['g1', 'g2', 'g9']"),
        ("@here:one,x", "['n1', 'x']"),
        ("@odd", "BadNodes: '@odd': not a node name: '$(id)'"),
        ("@none", "BadNodes: '@none': no nodes; ClusterShell's groups.conf names no such group, or it is empty"),
    ],
)
def test_groups_are_those_of_clustershell(tmp_path, text, printed):
    (tmp_path / "groups.conf").write_text(GROUPS)
    (tmp_path / "nodes").write_text("gpu: g[1-2],g9\none: n1\nodd: $(id)\n")
    code = f"""
from ddp_doctor.cluster.names import BadNodes, parse_nodes
try:
    print(parse_nodes([{text!r}]))
except BadNodes as error:
    print("BadNodes:", error)
"""
    env = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == printed

"""Captured trees of /sys/class/infiniband, read in place in ../shared."""

import csv
import posixpath
from pathlib import Path

CAPTURES = Path(__file__).parents[2] / "shared" / "captures" / "1-infiniband-sysfs"


def captured(name, top):
    """A captured tree as a complete recording; links stand in SYMLINKS.tsv, or as files that hold their targets."""
    base = CAPTURES / name
    prefix = {".": "/sys/class/infiniband", "sys": "", "class": "/sys"}[top]
    found = ((f"{prefix}/{path.relative_to(base)}", path) for path in base.rglob("*") if path.is_file())
    files = {place: path.read_bytes().decode("utf-8", "backslashreplace") for place, path in found}
    links = {place: text.strip() for place, text in files.items() if "/class/" in place and text.startswith("../")}
    with (CAPTURES / "SYMLINKS.tsv").open() as rows:
        for link, target in csv.reader(rows, delimiter="\t"):
            _, _, inside = link.partition(f"1-infiniband-sysfs/{name}/")
            if inside.startswith("sys/class/infiniband/") and inside.count("/") == 3:
                links[f"/{inside}"] = target
    for link, target in links.items():
        files.pop(link, None)
        source = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
        files.update({f"{link}{p[len(source) :]}": text for p, text in files.items() if p.startswith(f"{source}/")})
    return {f"root{place}": text for place, text in files.items()}


TREES = {
    ("derived-roce-gids", "class"): {"mlx5_0": ["ACTIVE"], "mlx5_1": ["ACTIVE"]},
    ("gpud-h100", "."): {
        name: ["ACTIVE"] for name in [f"mlx5_{n}" for n in (0, 1, 4, 5, 6, 7, 8, 9)] + ["mlx5_bond_0"]
    },
    ("hwloc-qib-qdr-40c", "sys"): {"qib0": ["ACTIVE"]},
    ("node_exporter", "sys"): {"i40iw0": ["ACTIVE"], "mlx4_0": ["ACTIVE", "ACTIVE"]},
    ("procfs", "sys"): {"hfi1_0": ["ACTIVE"], "mlx4_0": ["ACTIVE", "ACTIVE"], "mlx5_0": ["ACTIVE"]},
    ("rdma_exporter/basic", "class"): {"mlx5_0": ["ACTIVE", "DOWN"]},
    ("rdma_exporter/efa", "class"): {"rdmap0s0": ["ACTIVE"]},
    ("rdma_exporter/symlink", "class"): {"mlx5_0": ["ACTIVE", "DOWN"]},
    ("rdma_exporter/vf", "class"): {"mlx5_0": ["ACTIVE"], "mlx5_4": ["ACTIVE"]},
    ("rdma_exporter/guest_vf", "class"): {"mlx5_0": ["ACTIVE"]},
}
"""Tree and its top folder -> states of each device's ports."""

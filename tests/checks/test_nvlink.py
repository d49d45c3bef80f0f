"""Checks of NVLinks and peer access: every fault is seen, every healthy form of product is left alone."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_doctor import tables
from ddp_doctor.facts import Env, Fabric, Gpu, GpuFabric, Gpus, NvLink, Os, Reason, Variable
from ddp_doctor.nvlink import bonds, product
from judging import judged, outcome, remedy_text

CAPTURES = Path(__file__).parents[3] / "shared/captures/3-nvidia-smi"
A100, H100, B200, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200", "Tesla V100-SXM2-32GB"
BRIDGED, BARE, GUEST = "NVIDIA A100 80GB PCIe", Os(virtualisation=""), Os(virtualisation="kvm")


def links(active, of=None, to="switch", pci="", **more):
    """Links of which the first ``active`` are up; ``to`` switches, or GPUs at ``pci``."""
    up = [NvLink(i, True, more.get("speed", 25.0), to, pci or None, more.get("errors", {})) for i in range(active)]
    return tuple(up) + tuple(NvLink(i, False) for i in range(active, of or active))


def address(index):
    return f"0000:{index + 16:02x}:00.0"


def node(name, *nvlinks, **more):
    """A GPU for each of ``nvlinks``; peers are all allowed."""
    others = range(len(nvlinks))
    return Gpus(
        gpus=tuple(
            Gpu(
                i,
                name=name,
                pci=address(i),
                mig="disabled",
                nvlinks=links,
                peers={str(j): "ok" for j in others if j != i},
                **more,
            )
            for i, links in enumerate(nvlinks)
        )
    )


def pair(name, active, of=None):
    return node(name, links(active, of, "gpu", address(1)), links(active, of, "gpu", address(0)))


LINK_CHECKS = ("links-inactive", "links-missing", "no-links-active", "link-slow", "link-errors", "peer-access-denied")

HEALTHY = {
    "eight A100 on switches": node(A100, *[links(12)] * 8),
    "eight H100 on switches": node(H100, *[links(18, speed=26.562)] * 8),
    "eight B200, drivers that say 50": node(B200, *[links(18, speed=50.0)] * 8),
    "eight B200, drivers that say 53.125": node(B200, *[links(18, speed=53.125)] * 8),
    "GB200 tray": node("NVIDIA GB200", *[links(18, speed=53.125)] * 4),
    "PCIe cards without a bridge": node(BRIDGED, links(0, 12), links(0, 12)),
    "PCIe cards with bridges": pair(BRIDGED, 12),
    "a bridged pair and a single card": Gpus(
        gpus=(*pair(BRIDGED, 12).gpus, Gpu(2, name=BRIDGED, nvlinks=links(0, 12)))
    ),
    "H100 NVL without a bridge": node("NVIDIA H100 NVL", links(0, 18), links(0, 18)),
    "V100 cube mesh": node(V100, *[links(6, 6, "gpu", "0000:ff:00.0")] * 8),
    "V100 of a virtual machine": node(V100, *[links(4, 6, "gpu", "0000:ff:00.0")] * 4),
    "GH200 on its own": node("NVIDIA GH200 480GB", links(0, 18)),
    "two GH200 without links": node("NVIDIA GH200 480GB", links(0, 18), links(0, 18)),
    "one of eight H100 in a container": node(H100, links(0, 18)),
    "GeForce without a bridge": node("NVIDIA GeForce RTX 3090", links(0, 4), links(0, 4)),
    "a product without NVLink": node("NVIDIA L40S", None, None, unsupported=("nvlinks",)),
    "an unknown model": node("NVIDIA Z999", links(7, 9), links(7, 9)),
    "an unknown model, one without neighbour": node("NVIDIA Z999", links(7, 9), links(7, 9), links(0, 9)),
    "no GPU": Gpus(gpus=()),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_nodes_are_left_alone(name):
    found = {check: outcome(f"nvlink/{check}", gpus=HEALTHY[name], os=BARE) for check in LINK_CHECKS}
    assert {check: word for check, word in found.items() if "failed" in word or "broken" in word} == {}


def test_divided_gpus_are_not_judged():
    gpus = Gpus(gpus=tuple(replace(gpu, mig="enabled") for gpu in node(H100, links(18), links(0, 18)).gpus))
    assert {outcome(f"nvlink/{check}", gpus=gpus, os=BARE) for check in LINK_CHECKS[:4]} == {"skipped"}


def test_what_was_not_read_is_no_pass():
    gpus = Gpus(
        gpus=(Gpu(0, name=H100, nvlinks=links(18)), Gpu(1, name=H100, unread={"nvlinks": Reason("absent", "no")}))
    )
    assert outcome("nvlink/links-inactive", gpus=gpus) == "passed skipped"


# --------------------------------------------------------------------------- links


def test_a_link_that_is_down_on_one_of_eight():
    gpus = node(H100, *[links(18)] * 7, links(17, 18))
    *good, bad = judged("nvlink/links-inactive", gpus=gpus, os=BARE)
    assert {verdict.outcome.value for verdict in good} == {"passed"}
    assert (bad.outcome.value, bad.subject, bad.severity.value) == ("failed", "GPU 7", "error")
    assert bad.measured == "17 active NVLinks (not active: 17)"
    assert "nvidia-smi nvlink -s -i 7" in remedy_text(bad)
    assert "CUDA_VISIBLE_DEVICES 0,1,2,3,4,5,6" in remedy_text(bad)
    assert outcome("nvlink/no-links-active", gpus=gpus) == "passed"


def test_a_gpu_without_any_link_among_others():
    """nvidia-smi of such a node: "Unable to retrieve NVLink information as all links are inactive"."""
    verdicts = judged("nvlink/links-inactive", gpus=node(A100, *[links(12)] * 7, links(0, 12)))
    assert [v.subject for v in verdicts if v.outcome.value == "failed"] == ["GPU 7"]


def test_a_part_of_a_board_in_a_virtual_machine_is_compared_with_itself():
    half = node(A100, *[links(6, 12)] * 4)
    assert outcome("nvlink/links-inactive", gpus=half, os=GUEST) == "passed"
    assert outcome("nvlink/links-inactive", gpus=half, os=BARE) == "failed"
    odd = node(A100, links(6, 12), links(5, 12))
    assert outcome("nvlink/links-inactive", gpus=odd, os=GUEST) == "failed passed"


@pytest.mark.parametrize(
    ("gpus", "failed"),
    [
        (pair(BRIDGED, 8, 12), ["GPU 0", "GPU 1"]),
        (node(V100, links(6, 6, "gpu"), links(5, 6, "gpu")), ["GPU 1"]),
        (node(V100, links(6, 6, "gpu"), links(0, 6)), ["GPU 1"]),
        (node("NVIDIA Z999", links(9), links(8, 9)), ["GPU 1"]),
        (node("NVIDIA GH200 480GB", links(18, to="gpu"), links(12, 18, "gpu")), ["GPU 1"]),
    ],
)
def test_some_links_to_neighbours_are_missing(gpus, failed):
    verdicts = judged("nvlink/links-missing", gpus=gpus, os=BARE)
    assert [v.subject for v in verdicts if v.outcome.value == "failed"] == failed
    assert {v.severity.value for v in verdicts} == {"warning"}


def test_all_links_of_a_board_are_down():
    gpus = node(A100, *[links(0, 12)] * 8)
    (verdict,) = judged(
        "nvlink/no-links-active", gpus=gpus, fabric=Fabric(nvswitches=("0000:c4:00.0",), manager_running=False)
    )
    assert verdict.outcome.value == "failed"
    assert "nvidia-fabricmanager" in remedy_text(verdict)
    assert outcome("nvlink/links-inactive", gpus=gpus) == "skipped"


def test_a_slow_link():
    slow = (*links(17, speed=26.562), NvLink(17, True, 13.281, "switch"))
    verdicts = judged("nvlink/link-slow", gpus=node(H100, links(18, speed=26.562), slow))
    assert [(v.outcome.value, v.subject) for v in verdicts] == [("passed", "GPU 0"), ("failed", "GPU 1")]
    assert verdicts[1].measured == "link 17 at 13.281 GB/s"


def test_a_slow_link_of_an_unknown_model_is_compared_with_its_siblings():
    gpus = node("NVIDIA Z999", links(2, speed=100.0), links(2, speed=50.0))
    assert outcome("nvlink/link-slow", gpus=gpus) == "failed passed"


@pytest.mark.parametrize(
    ("errors", "word"),
    [
        ({}, "passed"),
        ({"replay": 900, "crc": 10**6, "recovery": 3}, "passed"),
        ({"symbol_errors": 10**9, "effective_errors": 10**6, "link_recovery_successful": 10**6}, "passed"),
        ({"recovery": 11}, "failed"),
        ({"replay": 1001}, "failed"),
        ({"link_recovery_failed": 1}, "failed"),
        ({"malformed_packets": 2, "buffer_overruns": 1}, "failed"),
    ],
)
def test_totals_of_errors_are_a_note(errors, word):
    (verdict,) = judged("nvlink/link-errors", gpus=node(H100, links(1, errors=errors)))
    assert (verdict.outcome.value, verdict.severity.value) == (word, "note")


CAPTURED = [
    (("gpud/nvidia-smi.nvlink.status.a100",), []),
    (("azurehpc/bad_nvlink_status.txt", "azurehpc/good_nvlink_status.txt"), ["GPU 6"]),  # GPUs 6 and 7 of one machine
]


def captured(text):
    """Facts of what ``nvidia-smi nvlink -s`` printed: "all links are inactive" is what it says of twelve that are down."""
    gpus = {}
    for line in text.splitlines():
        head = re.match(r"GPU (\d+): (.+) \(UUID", line)
        link = re.match(r"\s+Link (\d+): (\d+)", line)
        if head:
            gpus[int(head.group(1))] = (head.group(2), [])
        elif link:
            list(gpus.values())[-1][1].append(NvLink(int(link.group(1)), True, float(link.group(2)), "switch"))
    return Gpus(gpus=tuple(Gpu(i, name=name, nvlinks=tuple(up) or links(0, 12)) for i, (name, up) in gpus.items()))


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="no shared captures beside the project")
@pytest.mark.parametrize(("files", "failed"), CAPTURED)
def test_captured_machines(files, failed):
    gpus = captured("".join((CAPTURES / file).read_text() for file in files))
    assert len(gpus.gpus) > 1
    verdicts = judged("nvlink/links-inactive", gpus=gpus)
    assert [v.subject for v in verdicts if v.outcome.value == "failed"] == failed
    assert outcome("nvlink/link-slow", gpus=gpus) == "passed"


# --------------------------------------------------------------------------- peers


def forbid(gpus, a, b, word="chipset_not_supported"):
    """``gpus`` where a and b may not reach one another."""
    other = {a: str(b), b: str(a)}
    return Gpus(
        gpus=tuple(replace(g, peers={**g.peers, other[g.index]: word}) if g.index in other else g for g in gpus.gpus)
    )


def test_nvlinked_gpus_without_peer_access_stop_nccl():
    gpus = forbid(node(H100, *[links(18)] * 8), 4, 5, "not_supported")
    failed = [v for v in judged("nvlink/peer-access-denied", gpus=gpus) if v.outcome.value == "failed"]
    assert [(v.subject, v.measured) for v in failed] == [
        ("GPU 4", "GPU 5: not supported"),
        ("GPU 5", "GPU 4: not supported"),
    ]
    assert outcome("nvlink/peer-access-missing", gpus=gpus, os=BARE) == "skipped"
    assert "NCCL_P2P_DISABLE 1" in remedy_text(failed[0])


def test_whoever_switched_peer_access_off_is_not_told_that_it_is_missing():
    env = Env((Variable("NCCL_P2P_DISABLE", "1"),))
    gpus = forbid(node(H100, links(18), links(18)), 0, 1)
    assert outcome("nvlink/peer-access-denied", gpus=gpus, env=env) == "skipped"


@pytest.mark.parametrize(
    ("name", "word", "os", "check", "expected"),
    [
        ("NVIDIA L40S", "chipset_not_supported", BARE, "peer-access-missing", "failed"),
        ("NVIDIA L40S", "disabled_by_regkey", BARE, "peer-access-missing", "failed"),
        ("NVIDIA L40S", "topology_not_supported", BARE, "peer-access-missing", "passed"),
        ("NVIDIA L40S", "ok", BARE, "peer-access-missing", "passed"),
        ("NVIDIA L40S", "unknown", BARE, "peer-access-missing", "skipped"),
        ("NVIDIA L40S", "chipset_not_supported", GUEST, "peer-access-missing", "skipped"),
        ("Tesla T4", "chipset_not_supported", GUEST, "peer-access-missing-in-guest", "failed"),
        ("NVIDIA GeForce RTX 4090", "chipset_not_supported", BARE, "peer-access-missing", "skipped"),
        ("NVIDIA GeForce RTX 5090", "not_supported", BARE, "peer-access-missing", "skipped"),
        ("NVIDIA Z999", "not_supported", BARE, "peer-access-missing", "skipped"),
    ],
)
def test_peer_access_over_pcie(name, word, os, check, expected):
    gpus = forbid(node(name, None, None, unsupported=("nvlinks",)), 0, 1, word)
    assert outcome(f"nvlink/{check}", gpus=gpus, os=os) == expected


def test_gpus_unlike_one_another_are_not_compared():
    gpus = forbid(node("NVIDIA L40S", None, None), 0, 1)
    unlike = Gpus(gpus=(gpus.gpus[0], replace(gpus.gpus[1], name="NVIDIA L4")))
    assert outcome("nvlink/peer-access-missing", gpus=unlike, os=BARE) == "skipped"


# --------------------------------------------------------------------------- bonds and products


def test_bonds_over_switches_count_the_fewer_links():
    assert bonds(node(H100, links(18), links(17, 18), links(0, 18)).gpus) == {(0, 1): 17}


def test_bonds_over_a_fabric_whose_switches_nobody_sees():
    hidden = node(H100, links(18, to="unknown"), links(18, to="unknown"))
    assert bonds(hidden.gpus) == {}
    assert bonds([replace(gpu, fabric=GpuFabric("completed", "success")) for gpu in hidden.gpus]) == {(0, 1): 18}


def test_bonds_between_neighbours_are_told_by_either_end():
    a, b = pair(BRIDGED, 12).gpus
    assert bonds((a, b)) == {(0, 1): 12}
    assert bonds((replace(b, nvlinks=None), a)) == {(0, 1): 12}
    assert bonds((a, replace(b, pci="0000:99:00.0", nvlinks=()))) == {}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA GB200", "GB200 (Blackwell GPU)"),
        ("NVIDIA L4", None),
        (None, None),
    ],
)
def test_the_model_by_its_name(name, model):
    found = product(Gpu(0, name=name))
    assert (found and found.name) == model


def test_every_row_of_the_table_is_of_a_gpu_with_links():
    models = {row.gpu: row for row in tables.gpus()}
    rows = tables.nvlinks()
    assert [row.gpu for row in rows if models[row.gpu].nvlink_generation == "none"] == []
    assert {row.joined for row in rows} == {"switch", "mesh", "bridge", "optional"}
    assert {row.manager for row in rows} == {"host", "always", "rack", ""}
    assert {row.gpu for row in rows} == {m.gpu for m in models.values() if m.nvlink_generation != "none"}


def test_a_hostile_address_is_quoted():
    gpus = node(H100, links(18), links(17, 18))
    gpus = Gpus(gpus=(gpus.gpus[0], replace(gpus.gpus[1], pci="$(id); x")))
    (bad,) = [v for v in judged("nvlink/links-inactive", gpus=gpus) if v.outcome.value == "failed"]
    assert re.search(r"-i '\$\(id\); x'", remedy_text(bad))

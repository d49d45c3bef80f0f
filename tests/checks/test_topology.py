"""Checks of the way between GPUs and network cards."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_doctor.facts import (
    Env,
    Gpu,
    Gpus,
    NvLink,
    Os,
    PciDevice,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Reason,
    Topology,
    Torch,
    Variable,
)
from ddp_doctor.policy import Policy
from judging import failures, judged, outcome, remedy_text

TWO = Policy(nnodes=2)
METAL, GUEST = (
    Os(virtualisation="", machine="x86_64", container=""),
    Os(virtualisation="kvm", machine="x86_64", container=""),
)
NEEDS_ROOT = {"acs_redirect": Reason("no-rights", "needs root")}


def port(pci, *parents, acs=None, **more):
    unread = {} if acs is not None else {"acs_redirect": Reason("not-applicable", "no ACS capability")}
    return PciDevice(pci, "bridge", host_bridge=bridge_of(parents or (pci,)), parents=parents, numa_node=0, acs_redirect=acs,
                     **{"speed_gt_s": 32.0, "speed_max_gt_s": 32.0, "width": 16, "width_max": 16, "unread": unread, **more})  # fmt: skip


def bridge_of(parents):
    return f"pci0000:{parents[0][5:7]}"


def end(pci, kind, *parents, numa=0, **more):
    return PciDevice(pci, kind, host_bridge=bridge_of(parents), parents=parents, numa_node=numa,
                     **{"speed_gt_s": 32.0, "speed_max_gt_s": 32.0, "width": 16, "width_max": 16, **more})  # fmt: skip


def node(pairs=4, acs=False, lost=(), **more):
    """As an H100 server: on each of its switches a GPU and an RDMA card; half of them on each socket."""
    devices = []
    for n in range(pairs):
        root, up, left, right = (f"0000:{n + 1}{digit}:00.0" for digit in "0123")
        numa = 0 if n < pairs / 2 else 1
        devices += [
            port(root, acs=False),
            port(up, root),
            port(left, root, up, acs=acs),
            port(right, root, up, acs=acs),
        ]
        devices.append(
            end(f"0000:{n + 1}8:00.0", "gpu", root, up, left, numa=numa, speed_gt_s=2.5, vendor_device="10de:2330")
        )
        if n not in lost:
            devices.append(
                end(f"0000:{n + 1}9:00.0", "nic", root, up, right, numa=numa, rdma=(f"mlx5_{n}",), vendor_device="15b3:1021",
                    max_read_request_bytes=4096, relaxed_ordering=True)
            )  # fmt: skip
    return Topology(
        **{"devices": tuple(devices), "iommu": "off", "iommu_said_by": "-", "peer_memory": "nvidia-peermem", **more}
    )


def changed(topology, name, **fields):
    """The same with one device changed: by its address, or by its RDMA device."""
    return replace(
        topology, devices=tuple(replace(d, **fields) if name in (d.pci, *d.rdma) else d for d in topology.devices)
    )


def gpus(pairs=4, nvlink=False, name="NVIDIA H100 80GB HBM3", **more):
    links = tuple(NvLink(n, active=True, remote_kind="switch") for n in range(18)) if nvlink else ()
    return Gpus(gpus=tuple(Gpu(n, name=name, pci=f"0000:{n + 1}8:00.0", nvlinks=links, **more) for n in range(pairs)))


def rdma(count=4, **more):
    active = (RdmaPort(1, state="ACTIVE", link_layer="InfiniBand", rate_gbit_s=400.0),)
    return Rdma(devices=tuple(RdmaDevice(f"mlx5_{n}", ports=active, verbs="opens") for n in range(count)), **more)


def healthy(**more):
    return {
        "topology": node(),
        "os": METAL,
        "gpus": gpus(nvlink=True),
        "rdma": rdma(),
        "env": Env(variables=()),
        **more,
    }


# --------------------------------------------------------------------------- silent nodes


@pytest.mark.parametrize(
    "facts",
    [
        healthy(),
        healthy(gpus=gpus()),  # the same without NVLink
        healthy(topology=node(iommu="passthrough"), gpus=gpus()),
        healthy(topology=node(iommu="translated"), os=replace(METAL, machine="aarch64"), gpus=gpus()),  # Grace needs its SMMU
        healthy(topology=node(acs=True, iommu="translated"), os=GUEST),  # the host's affair
        healthy(topology=node(iommu="translated"), gpus=gpus(name="NVIDIA GeForce RTX 4090", peers={str(n): "chipset_not_supported" for n in range(4)})),
        {"topology": Topology(devices=(end("0000:02:00.0", "nic", "0000:00:01.0", interfaces=("eth0",), width=1, width_max=4),), iommu="translated"),
         "os": METAL, "gpus": Gpus(gpus=()), "rdma": Rdma(devices=())},  # a laptop
        {"topology": Topology(devices=(end("0000:01:00.0", "gpu", "0000:00:01.0", width=8, speed_gt_s=2.5),), iommu="translated"),
         "os": METAL, "gpus": gpus(1), "rdma": Rdma(devices=())},  # a desktop with one GPU in a slot for eight lanes
        healthy(topology=node(peer_memory=""), rdma=Rdma(devices=())),
        healthy(topology=node(peer_memory=""), env=Env(variables=(Variable("NCCL_IB_DISABLE", "1"),))),
        healthy(topology=node(peer_memory=""), gpus=gpus(name="NVIDIA GeForce RTX 4090")),
    ],
)  # fmt: skip
def test_healthy_nodes_are_quiet(facts):
    assert failures("topology", **facts) == []


def test_a_machine_with_fewer_cards_than_gpus_is_built_so():
    assert failures("topology", **healthy(topology=node(lost=(0, 2)), rdma=rdma(4))) == []


def test_a_flattened_tree_of_a_guest_is_not_judged():
    devices = tuple(
        PciDevice(f"{n:04x}:00:00.0", "gpu", host_bridge=f"pci{n:04x}:00", parents=(), numa_node=0) for n in range(4)
    )
    nic = PciDevice("0101:00:00.0", "nic", host_bridge="pci0101:00", parents=(), numa_node=1, rdma=("mlx5_0",))
    facts = healthy(topology=Topology(devices=(*devices, nic), peer_memory="nvidia-peermem"), os=GUEST)
    assert failures("topology", **facts) == []
    (verdict,) = judged("topology/gpu-far-from-nics", TWO, **facts)
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "not-applicable")


# --------------------------------------------------------------------------- ACS and IOMMU


def test_acs_between_gpus_of_one_switch():
    """Two GPUs below the switch whose ports redirect; the card beside them plays no part."""
    topology = node(pairs=1, acs=True)
    second = end("0000:28:00.0", "gpu", "0000:10:00.0", "0000:11:00.0", "0000:13:00.0")
    topology = replace(topology, devices=(*topology.devices, second))
    (verdict,) = judged("topology/acs-between-gpus", topology=topology, os=METAL, gpus=gpus(2))
    assert (verdict.outcome.value, verdict.severity.value) == ("failed", "warning")
    assert verdict.measured == "ACS redirects at 2 of 2 switch ports between GPUs: 0000:12:00.0, 0000:13:00.0"
    text = remedy_text(verdict)
    assert "setpci -s 0000:12:00.0 ECAP_ACS+0x6.w=0000" in text
    assert "pci=disable_acs_redir=0000:12:00.0;0000:13:00.0" in text
    assert outcome("topology/acs-between-gpus", topology=topology, os=METAL, gpus=gpus(2, nvlink=True)) == "skipped"
    assert (
        outcome("topology/acs-between-gpus", topology=node(), os=METAL, gpus=gpus()) == "skipped"
    )  # no switch joins two


def test_acs_between_gpus_and_cards():
    facts = healthy(topology=node(acs=True))
    (verdict,) = judged("topology/acs-between-gpu-and-nic", TWO, **facts)
    assert (verdict.outcome.value, verdict.severity.value) == ("failed", "warning")
    assert verdict.measured.startswith("ACS redirects at 8 of 8 switch ports between GPUs and RDMA cards")
    assert "On the machine itself" in remedy_text(
        judged("topology/acs-between-gpu-and-nic", TWO, **{**facts, "os": replace(METAL, container="docker")})[0]
    )
    assert outcome("topology/acs-between-gpu-and-nic", Policy(nnodes=1), **facts) == "skipped"
    assert outcome("topology/acs-between-gpu-and-nic", TWO, **healthy()) == "passed"


def test_acs_that_only_root_may_read_is_not_said_to_be_off():
    topology = node()
    for n in range(4):
        topology = changed(topology, f"0000:{n + 1}2:00.0", acs_redirect=None, unread=NEEDS_ROOT)
    (verdict,) = judged("topology/acs-between-gpu-and-nic", TWO, **healthy(topology=topology))
    assert (verdict.outcome.value, verdict.reason) == ("skipped", NEEDS_ROOT["acs_redirect"])


@pytest.mark.parametrize(
    ("state", "facts", "expected"),
    [
        ("translated", {"gpus": gpus()}, "failed"),
        ("translated", {"gpus": gpus(peers={str(n): "ok" for n in range(4)})}, "failed"),
        ("translated", {"gpus": gpus(nvlink=True)}, "skipped"),
        ("translated", {"gpus": gpus(), "os": Os(unread={"virtualisation": Reason("unreadable", "-")})}, "skipped"),
        ("passthrough", {"gpus": gpus()}, "passed"),
        ("off", {"gpus": gpus()}, "passed"),
        ("on", {"gpus": gpus()}, "skipped"),
        (None, {"gpus": gpus()}, "skipped"),
    ],
)
def test_iommu(state, facts, expected):
    assert outcome("topology/iommu-translates", **healthy(topology=node(iommu=state), **facts)) == expected


def test_a_tree_that_could_not_be_read_is_unknown():
    gone = {"parents": None, "host_bridge": None, "unread": {"parents": Reason("timed-out", "-")}}
    facts = healthy(gpus=gpus())
    facts["topology"] = replace(node(), devices=tuple(replace(d, **gone) for d in node().devices))
    for check in ("acs-between-gpus", "acs-between-gpu-and-nic", "gpu-without-near-nic", "gpu-far-from-nics"):
        (verdict,) = judged(f"topology/{check}", TWO, **facts)
        assert (verdict.outcome.value, verdict.reason) == ("skipped", Reason("timed-out", "-"))


def test_iommu_remedies():
    (verdict,) = judged("topology/iommu-translates", **healthy(topology=node(iommu="translated"), gpus=gpus()))
    text = remedy_text(verdict)
    redirecting = changed(node(iommu="translated"), "0000:10:00.0", acs_redirect=True)
    (second,) = judged("topology/iommu-translates", **healthy(topology=redirecting, gpus=gpus()))
    assert "setpci -s 0000:10:00.0 ECAP_ACS+0x6.w=0000" in remedy_text(second)
    assert verdict.fixes[0].title == "Set the IOMMU to passthrough"
    assert "setpci" not in text
    assert "iommu=pt" in text
    assert "export NCCL_P2P_DISABLE 1" in text


# --------------------------------------------------------------------------- near and far


def test_the_one_gpu_whose_card_is_gone():
    facts = healthy(topology=node(lost=(3,)), rdma=rdma(3))
    verdicts = {v.subject: v for v in judged("topology/gpu-without-near-nic", TWO, **facts)}
    assert {subject: v.outcome.value for subject, v in verdicts.items()} == {
        "GPU 0": "passed", "GPU 1": "passed", "GPU 2": "passed", "GPU 3": "failed"
    }  # fmt: skip
    assert verdicts["GPU 3"].measured == "nearest RDMA card: NODE"


def test_a_card_that_nccl_may_not_use_is_none():
    env = Env(variables=(Variable("NCCL_IB_HCA", "=mlx5_0,mlx5_1,mlx5_2"),))
    failed = [
        v for v in judged("topology/gpu-without-near-nic", TWO, **healthy(env=env)) if v.outcome.value == "failed"
    ]
    assert [v.subject for v in failed] == ["GPU 3"]
    assert "NCCL_IB_HCA" in remedy_text(failed[0])


def test_gpus_of_a_socket_without_a_card():
    facts = healthy(topology=node(lost=(2, 3)), rdma=rdma(2))
    failed = [v for v in judged("topology/gpu-far-from-nics", TWO, **facts) if v.outcome.value == "failed"]
    assert [(v.subject, v.severity.value) for v in failed] == [("GPU 2", "note"), ("GPU 3", "note")]
    assert outcome("topology/gpu-without-near-nic", TWO, **facts) == "skipped"


def test_a_job_with_two_of_the_gpus_is_judged_by_these():
    facts = healthy(topology=node(lost=(3,)), rdma=rdma(3), gpus=gpus(2, nvlink=True))
    assert [v.subject for v in judged("topology/gpu-without-near-nic", TWO, **facts)] == ["GPU 0", "GPU 1"]


# --------------------------------------------------------------------------- links


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"width": 8}, "failed"),
        ({"speed_gt_s": 16.0}, "failed"),
        ({"width": 8, "width_max": 8}, "passed"),  # the card has no more
        ({"speed_max_gt_s": 64.0}, "passed"),  # the slot has no more
        ({"width": None, "unread": {"width": Reason("absent", "-")}}, "skipped"),
    ],
)
def test_link_of_a_card_by_what_both_ends_can(fields, expected):
    facts = healthy(topology=changed(node(), "mlx5_1", **fields))
    (verdict,) = (v for v in judged("topology/nic-link-degraded", TWO, **facts) if v.subject == "mlx5_1")
    assert verdict.outcome.value == expected


def test_the_words_of_a_narrow_link():
    facts = healthy(topology=changed(node(), "mlx5_1", width=8))
    (verdict,) = (v for v in judged("topology/nic-link-degraded", TWO, **facts) if v.outcome.value == "failed")
    assert (verdict.measured, verdict.expected) == ("PCIe link at 32 GT/s x8", "32 GT/s x16, which both ends can")
    assert "lspci -vvv -s 0000:29:00.0" in remedy_text(verdict)


def test_a_card_that_carries_no_data_is_not_judged():
    facts = healthy(topology=changed(node(), "mlx5_1", width=1))
    subjects = [
        v.subject for v in judged("topology/nic-link-degraded", Policy(nnodes=2, ignore_hcas=("mlx5_1",)), **facts)
    ]
    assert subjects == ["mlx5_0", "mlx5_2", "mlx5_3"]


def test_link_of_a_switch():
    """Both ends of a link tell the same; a switch's inner connection and a port above an idle GPU are no such links."""
    slow = {"width": 8}
    facts = healthy(topology=changed(changed(node(), "0000:20:00.0", **slow), "0000:21:00.0", **slow))
    facts["topology"] = changed(facts["topology"], "0000:12:00.0", speed_gt_s=2.5)
    verdicts = judged("topology/switch-link-degraded", **facts)
    assert {v.subject: v.outcome.value for v in verdicts} == {
        "switch 0000:11:00.0": "passed", "switch 0000:21:00.0": "failed", "switch 0000:31:00.0": "passed", "switch 0000:41:00.0": "passed",
    }  # fmt: skip


def test_a_card_in_a_narrower_slot_than_its_siblings():
    topology = changed(changed(node(), "mlx5_2", width=8), "0000:33:00.0", width=8, width_max=8)
    facts = healthy(topology=topology)
    assert outcome("topology/nic-link-degraded", TWO, **facts) == "passed"
    failed = [v for v in judged("topology/nic-link-below-siblings", TWO, **facts) if v.outcome.value == "failed"]
    assert [(v.subject, v.measured) for v in failed] == [("mlx5_2", "32 GT/s x8")]


# --------------------------------------------------------------------------- GPUDirect and the card's settings


def test_gpudirect_rdma():
    facts = healthy(topology=node(peer_memory=""))
    (verdict,) = judged("topology/gpudirect-rdma-missing", TWO, **facts)
    assert (verdict.outcome.value, verdict.severity.value) == ("failed", "warning")
    assert "modprobe nvidia-peermem" in remedy_text(verdict)
    pod = judged("topology/gpudirect-rdma-missing", TWO, **{**facts, "os": replace(METAL, container="kubernetes")})[0]
    assert "GPU Operator" in remedy_text(pod)
    unknown = replace(node(), peer_memory=None, unread={"peer_memory": Reason("unreadable", "-")})
    assert outcome("topology/gpudirect-rdma-missing", TWO, **healthy(topology=unknown)) == "skipped"
    assert outcome("topology/gpudirect-rdma-missing", TWO, **healthy(topology=node(peer_memory="dma-buf"))) == "passed"


@pytest.mark.parametrize(
    ("env", "torch", "measured"),
    [
        (Env(variables=(Variable("NCCL_DMABUF_ENABLE", "0"),)), None, "by dma-buf, but NCCL_DMABUF_ENABLE is 0"),
        (Env(variables=()), Torch(nccl="2.10.3"), "by dma-buf, but NCCL 2.10.3 is older than 2.13, which brought it"),
        (Env(variables=(Variable("NCCL_DMABUF_ENABLE", "1"),)), Torch(nccl="2.13.4"), "by dma-buf"),
    ],
)
def test_dma_buf_is_of_use_to_a_nccl_that_takes_it(env, torch, measured):
    (verdict,) = judged(
        "topology/gpudirect-rdma-missing", TWO, **healthy(topology=node(peer_memory="dma-buf"), env=env, torch=torch)
    )
    assert (verdict.measured, verdict.outcome.value) == (measured, "failed" if "but" in measured else "passed")
    assert ("unset NCCL_DMABUF_ENABLE" in remedy_text(verdict)) is (measured.endswith("is 0"))


def test_read_requests_below_those_of_the_siblings():
    facts = healthy(topology=changed(node(), "mlx5_3", max_read_request_bytes=512))
    failed = [v for v in judged("topology/max-read-request-low", TWO, **facts) if v.outcome.value == "failed"]
    assert [(v.subject, v.measured, v.expected) for v in failed] == [
        ("mlx5_3", "read requests of 512 bytes", "4096 bytes, as its siblings")
    ]
    assert "setpci -s 0000:49:00.0 CAP_EXP+8.w=5000:7000" in remedy_text(failed[0])


def test_read_requests_of_512_bytes_everywhere_are_pcie_s_default():
    topology = node()
    for n in range(4):
        topology = changed(topology, f"mlx5_{n}", max_read_request_bytes=512)
    assert outcome("topology/max-read-request-low", TWO, **healthy(topology=topology)) == "passed"


def test_relaxed_ordering_off_for_one():
    facts = healthy(topology=changed(node(), "mlx5_0", relaxed_ordering=False))
    failed = [v for v in judged("topology/relaxed-ordering-differs", TWO, **facts) if v.outcome.value == "failed"]
    assert [v.subject for v in failed] == ["mlx5_0"]
    assert "CAP_EXP+8.w=0010:0010" in remedy_text(failed[0])


def test_what_only_root_may_read_of_a_card_is_skipped():
    unread = {name: Reason("no-rights", "needs root") for name in ("max_read_request_bytes", "relaxed_ordering")}
    topology = changed(node(pairs=1), "mlx5_0", max_read_request_bytes=None, relaxed_ordering=None, unread=unread)
    facts = healthy(topology=topology, gpus=gpus(1), rdma=rdma(1))
    for check in ("max-read-request-low", "relaxed-ordering-differs"):
        (verdict,) = judged(f"topology/{check}", TWO, **facts)
        assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "no-rights")


def test_addresses_in_commands_are_quoted():
    topology = changed(node(), "mlx5_0", pci="0000:19:00.0; rm -rf /", width=8)
    (verdict,) = (
        v
        for v in judged("topology/nic-link-degraded", TWO, **healthy(topology=topology))
        if v.outcome.value == "failed"
    )
    assert "-s '0000:19:00.0; rm -rf /'" in remedy_text(verdict)


# --------------------------------------------------------------------------- a captured server

CAPTURE = Path(__file__).parents[3] / "shared/captures/5-host/lspci/gpud.lspci-vvv.txt"
"""A server with eight H100, each with a 400 Gb/s card on its switch; only the NVSwitches' ports redirect, by design."""
here = pytest.mark.skipif(not CAPTURE.exists(), reason="../shared/captures is not here")


def from_lspci(text):
    """GPUs, cards and bridges of ``lspci -vvv``; the numbers of the bridges' buses tell what is below what."""
    blocks = {f"0000:{block[:7]}": block for block in re.split(r"\n(?=[0-9a-f]{2}:)", text.strip())}
    above = {f"0000:{bus}": pci for pci, b in blocks.items() for bus in re.findall(r"secondary=([0-9a-f]{2}),", b)}
    ports = iter(range(99))
    for pci, block in blocks.items():
        first = block.split("\n")[0]
        kinds = {"gpu": r"3D controller: NVIDIA", "nic": r"Ethernet controller: Mellanox", "bridge": r"PCI bridge"}
        kind = next((kind for kind, words in kinds.items() if re.search(words, first)), None)
        if kind is not None:
            yield from_block(pci, kind, block, way(pci, above), (f"mlx5_{next(ports)}",) if kind == "nic" else ())


def way(pci, above):
    """The bridges from the root port down to a function."""
    bridge = above.get(pci[:7])
    return (*way(bridge, above), bridge) if bridge else ()


def from_block(pci, kind, block, parents, rdma):
    def number(pattern):
        found = re.search(pattern, block)
        return None if found is None else float(found.group(1)) if "Speed" in pattern else int(found.group(1))

    acs = re.search(r"ACSCtl:.*ReqRedir([+-]) CmpltRedir([+-])", block)
    return PciDevice(
        pci, kind, host_bridge=f"pci{(parents or (pci,))[0][:7]}", parents=parents, numa_node=number(r"NUMA node: (\d)"),
        speed_gt_s=number(r"LnkSta:\s*Speed ([\d.]+)GT"), speed_max_gt_s=number(r"LnkCap:.*Speed ([\d.]+)GT"),
        width=number(r"LnkSta:.*Width x(\d+)"), width_max=number(r"LnkCap:.*Width x(\d+)"),
        acs_redirect="+" in acs.groups() if acs else None, max_read_request_bytes=number(r"MaxReadReq (\d+)"),
        relaxed_ordering="RlxdOrd+" in block, rdma=rdma, vendor_device=block.split("\n")[0][8:],
        unread={} if acs else {"acs_redirect": Reason("not-applicable", "no ACS capability")},
    )  # fmt: skip


def captured(edit=str):
    text = edit(CAPTURE.read_text(errors="backslashreplace"))
    topology = Topology(devices=tuple(from_lspci(text)), iommu="off", iommu_said_by="-", peer_memory="nvidia-peermem")
    return healthy(topology=topology, gpus=Gpus(gpus=(), on_bus=()), rdma=rdma(12))


def block_of(pci, old, new):
    """An edit of one function's block."""
    return lambda text: re.sub(
        rf"(?ms)^{re.escape(pci)} .*?(?=^\n|\Z)", lambda found: found.group().replace(old, new), text
    )


@here
def test_a_healthy_captured_server_is_quiet():
    facts = captured()
    kinds = [device.kind for device in facts["topology"].devices]
    assert (kinds.count("gpu"), kinds.count("nic"), kinds.count("bridge") > 40) == (8, 12, True)
    verdicts = [v for check in ("acs-between-gpu-and-nic", "nic-link-degraded", "switch-link-degraded", "gpu-without-near-nic")
                for v in judged(f"topology/{check}", TWO, **facts)]  # fmt: skip
    assert {v.outcome.value for v in verdicts} == {"passed"}
    assert len(verdicts) == 1 + 12 + 8 + 8
    assert failures("topology", **facts) == []


@here
@pytest.mark.parametrize(
    ("edit", "failed"),
    [
        (block_of("17:01.0", "ReqRedir- CmpltRedir-", "ReqRedir+ CmpltRedir+"), {"topology/acs-between-gpu-and-nic"}),
        (block_of("3c:00.0", "Width x16 (ok)", "Width x8 (downgraded)"), {"topology/nic-link-degraded"}),
        (block_of("3c:00.0", "MaxReadReq 4096", "MaxReadReq 512"), {"topology/max-read-request-low"}),
        (block_of("3c:00.0", "RlxdOrd+", "RlxdOrd-"), {"topology/relaxed-ordering-differs"}),
        (block_of("3c:00.0", "Mellanox", "Some"), {"topology/gpu-without-near-nic"}),
    ],
)  # fmt: skip
def test_the_same_with_one_fault(edit, failed):
    assert set(failures("topology", **captured(edit))) == failed

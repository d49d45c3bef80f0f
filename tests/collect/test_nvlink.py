"""NVLinks, fabric and peers: real pynvml over the fake driver library, and nvidia-smi's words."""

from types import SimpleNamespace

import pynvml
import pytest
from ddp_doctor.collect import gpus, nvlink, nvml
from ddp_doctor.facts import GpuFabric, NvLink
from ddp_doctor.host import Host

LINKS, FABRIC, FIELDS, P2P = (
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetP2PStatus",
)
HEALTHY_MASK = 0b10_10_10_10


def told(fake_nvml, *said, count=2, driver=580):
    """The GPUs that NVML tells of on a node of H100 with these differences."""
    fake_nvml.install(fake_nvml.healthy(count), fake_nvml.hopper(), *said, driver=driver)
    return [gpus.gpu_of(plain) for plain in Host().ask("nvml", nvml.talk, nvml.ASK_LIMIT_S)["gpus"]]


# --------------------------------------------------------------------------- links


def test_a_healthy_hopper_has_eighteen_links_to_switches(fake_nvml):
    gpu = told(fake_nvml)[1]
    assert [link.link for link in gpu.nvlinks] == list(range(18))
    assert gpu.nvlinks[0] == NvLink(0, True, 26.562, "switch", "0000:83:00.0", {})


def test_an_inactive_link_is_told_and_not_asked_further(fake_nvml):
    link = told(fake_nvml, {f"1:{LINKS}": "1 0 1"})[1].nvlinks[1]
    assert (link.active, link.speed_gb_s, link.errors) == (False, None, None)
    assert {reason.kind for reason in link.unread.values()} == {"not-applicable"}


def test_errors_that_were_counted_are_told_by_link(fake_nvml):
    links = told(fake_nvml, {f"0:{FIELDS}": "161=0 161.2=7 162=0 162.2=1 164=26562"})[0].nvlinks
    assert links[2].errors == {"replay": 7, "recovery": 1}
    assert {tuple(link.errors) for link in links if link.link != 2} == {()}


def test_newer_links_have_other_counters(fake_nvml):
    links = told(fake_nvml, {FIELDS: "164=53125 206=0 213=2 215=3 221=40"})[0].nvlinks
    assert links[17].errors == {"link_recovery_successful": 2, "link_recovery": 3, "symbol_errors": 40}
    assert links[17].speed_gb_s == 53.125


@pytest.mark.parametrize(("answer", "unsupported"), [("!3", True), ("!2", False)])
def test_without_nvlink(fake_nvml, answer, unsupported):
    gpu = told(fake_nvml, {LINKS: answer})[0]
    assert ("nvlinks" in gpu.unsupported, gpu.nvlinks) == (unsupported, None if unsupported else ())


def test_an_older_driver_is_asked_in_the_older_way(fake_nvml):
    said = {FIELDS: "84=25781 89=25781 132=25781", "nvmlDeviceGetNvLinkErrorCounter": "1 0 5 0"}
    links = told(fake_nvml, said, driver=440)[0].nvlinks
    assert [links[i].speed_gb_s for i in (0, 5, 6, 1, 12)] == [25.781, 25.781, 25.781, None, None]
    assert links[0].errors == {"replay": 1, "crc_flit": 5}
    assert links[1].unread["speed_gb_s"].kind == "absent"


def test_nothing_but_the_state(fake_nvml):
    silent = dict.fromkeys((FIELDS, "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkErrorCounter"), "!999")
    link = told(fake_nvml, silent)[0].nvlinks[0]
    assert (link.active, link.speed_gb_s, link.remote_pci, link.errors) == (True, None, None, None)
    assert set(link.unread) == {"speed_gb_s", "remote_pci", "errors"}


def test_a_switch_that_is_not_on_the_bus_has_no_address(fake_nvml):
    nowhere = {"nvmlDeviceGetNvLinkRemotePciInfo_v2": " ".join(["FFFFFFFF:FF:FF.0"] * 18)}
    link = told(fake_nvml, nowhere)[0].nvlinks[0]
    assert (link.remote_kind, link.remote_pci) == ("switch", None)


@pytest.mark.parametrize("gone", ["!15", "!16"])
def test_a_gpu_that_is_lost_meanwhile_is_a_fault(fake_nvml, gone):
    first, second = told(fake_nvml, {f"1:{LINKS}": gone})
    assert (first.fault, bool(second.fault)) == (None, True)
    assert second.unread["nvlinks"].kind == "unreadable"


@pytest.mark.parametrize(
    ("pci_id", "kind"), [(0x1AF110DE, "switch"), (0x22A310DE, "switch"), (0x20B210DE, "gpu"), (0x04EA1014, "unknown")]
)
def test_the_kind_of_the_other_end_by_its_id(pci_id, kind):
    assert nvlink._kind_of_id(pci_id) == kind


def test_a_pynvml_that_knows_no_scope_of_fields():
    class Old:
        class NVMLError(Exception):
            value = 0

        def nvmlDeviceGetFieldValues(self, gpu, keys):
            raise TypeError("int expected instead of tuple instance")

    assert nvlink._field_values(Old(), None, [(164, 0)]) == {}


# --------------------------------------------------------------------------- fabric


@pytest.mark.parametrize("driver", [580, 550, 535])
def test_a_registered_gpu(fake_nvml, driver):
    fabric = told(fake_nvml, driver=driver)[0].fabric
    assert (fabric.state, fabric.status, fabric.cluster_uuid, fabric.clique_id) == ("completed", "success", "", 0)
    assert fabric.unhealthy == (() if driver > 535 else None)
    assert fabric.health == ("healthy" if driver > 550 else None)
    assert set(fabric.unread) == {f for f in ("unhealthy", "health") if getattr(fabric, f) is None}


@pytest.mark.parametrize(
    ("answer", "state", "status", "unread"),
    [
        ("2 0 0 0 0 0", "in_progress", None, "status"),
        ("1 0 0 0 0 0", "not_started", None, "status"),
        ("3 999 0 0 0 0", "completed", "Unknown Error", "unhealthy"),
        ("9 0 0 0 0 0", "state 9", None, "status"),
    ],
)
def test_a_gpu_that_is_not_registered(fake_nvml, answer, state, status, unread):
    fabric = told(fake_nvml, {FABRIC: answer})[0].fabric
    assert (fabric.state, fabric.status) == (state, status)
    assert unread in fabric.unread


def test_a_gpu_of_a_rack(fake_nvml):
    fabric = told(fake_nvml, {FABRIC: f"3 0 7 {HEALTHY_MASK} 1 17"})[0].fabric
    assert (fabric.cluster_uuid, fabric.clique_id) == ("11111111-1111-1111-1111-111111111111", 7)


def test_a_pynvml_that_knows_the_first_call_alone(fake_nvml, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetGpuFabricInfoV")
    fabric = told(fake_nvml, {FABRIC: f"3 0 7 {HEALTHY_MASK} 1 17"})[0].fabric
    assert (fabric.state, fabric.clique_id, fabric.health) == ("completed", 7, None)


def test_a_pynvml_that_knows_no_fabric(fake_nvml, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetGpuFabricInfoV")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetGpuFabricInfo")
    assert told(fake_nvml)[0].unread["fabric"].kind == "unreadable"


def test_before_hopper_there_is_no_fabric(fake_nvml):
    gpu = told(fake_nvml, {FABRIC: "!3"})[0]
    assert gpu.fabric is None
    assert "fabric" in gpu.unsupported


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (0, []),
        (HEALTHY_MASK, []),
        (0b01, ["degraded_bandwidth"]),
        (0b01 << 2 | 0b01 << 4, ["route_recovery", "route_unhealthy"]),
        (0b01 << 6, ["access_timeout_recovery"]),
        (1 << 8, []),
        (5 << 8, ["incorrect_configuration:insufficient_nvlinks"]),
        (15 << 8, ["incorrect_configuration:15"]),
        (0b10 << 12 | 0b10 << 14, ["no_partition", "manager_disconnected"]),
        (0b01 << 12 | 0b01 << 14, []),
    ],
)
def test_the_parts_of_the_health_mask(mask, found):
    assert nvlink.unhealthy(mask) == found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            {"state": "Completed", "status": "Success", "cliqueId": "2", "clusterUuid": "0000-1", "summary": "Healthy"},
            {"state": "completed", "status": "success", "clique_id": 2, "cluster_uuid": "0000-1", "health": "healthy"},
        ),
        ({"state": "In Progress", "status": "N/A"}, {"state": "in_progress"}),
        ({"state": "Completed", "status": "Insufficient Resources"}, {"status": "Insufficient Resources"}),
        ({"state": "Completed", "clusterUuid": "00000000-0000"}, {"cluster_uuid": ""}),
        ({"state": "Completed", "bandwidth": "N/A", "incorrect_configuration": "N/A"}, {"state": "completed"}),
        ({"state": "Completed", "bandwidth": "Full", "route_unhealthy": "False"}, {"unhealthy": []}),
        (
            {"state": "Completed", "bandwidth": "Degraded", "incorrect_configuration": "Insufficient NVLinks"},
            {"unhealthy": ["degraded_bandwidth", "incorrect_configuration:insufficient_nvlinks"]},
        ),
    ],
)
def test_nvidia_smi_s_words(words, expected):
    plain = nvlink.fabric_of_words(words)
    assert {name: plain.get(name) for name in expected} == expected
    fabric = nvlink.fabric_of(plain)
    missing = {name for name in ("status", "cluster_uuid", "clique_id", "health", "unhealthy") if name not in plain}
    assert isinstance(fabric, GpuFabric)
    assert set(fabric.unread) == missing


# --------------------------------------------------------------------------- peers


def test_peers_of_all_gpus(fake_nvml):
    found = told(fake_nvml, {f"0:{P2P}": "0 0 1 4", f"1:{P2P}": "0 0 3 77"}, count=4)
    assert found[0].peers == {"1": "ok", "2": "chipset_not_supported", "3": "disabled_by_regkey"}
    assert found[3].peers == {"0": "disabled_by_regkey", "1": "unknown", "2": "ok"}


def test_one_gpu_has_no_peers(fake_nvml):
    assert told(fake_nvml, count=1)[0].peers == {}


def test_a_gpu_that_nobody_can_open_has_no_part_in_it(fake_nvml):
    found = told(fake_nvml, {"1:nvmlDeviceGetHandleByIndex_v2": "!15"}, count=3)
    assert [gpu.peers for gpu in found] == [{"2": "ok"}, None, {"0": "ok"}]
    assert found[1].unread["peers"].text == "GPU is lost"


def test_a_question_that_hangs_costs_this_answer_alone(fake_nvml, monkeypatch):
    monkeypatch.setattr(nvml, "PEERS_S", 0.2)
    found = told(fake_nvml, {P2P: "hang"})
    assert [(gpu.fault, gpu.peers, gpu.unread["peers"].kind) for gpu in found] == [(None, None, "timed-out")] * 2
    assert len(found[0].nvlinks) == 18


def test_a_value_is_read_by_its_type():
    union = SimpleNamespace(dVal=1.5, uiVal=2, ulVal=3, ullVal=4, sllVal=5, siVal=6, usVal=7)
    values = [nvlink.field_value(SimpleNamespace(valueType=kind, value=union)) for kind in (*range(7), 99)]
    assert values == [1, 2, 3, 4, 5, 6, 7, 4]

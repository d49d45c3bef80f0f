"""Checks of GPU health: each fires on its fault, alone, and is silent on healthy GPUs that look ill."""

from dataclasses import replace

import pytest
from ddp_doctor.facts import Env, Gpu, Gpus, Launch, Os, Reason, Variable
from ddp_doctor.gpu_models import is_datacenter, model_of
from ddp_doctor.policy import GIB, Policy
from judging import failures, judged, outcome, own_checks, remedy_text

BARE = Os(id="ubuntu", version="22.04", container="", systemd=True)
DOCKER = replace(BARE, container="docker")
A100 = Gpu(
    0,
    name="NVIDIA A100-SXM4-80GB",
    compute_mode="default",
    mig="disabled",
    persistence=True,
    memory_used_bytes=0,
    memory_total_bytes=80 * GIB,
    temperature_c=45,
    temperature_slowdown_c=92,
    temperature_max_c=87,
    temperature_memory_c=60,
    temperature_memory_max_c=95,
    utilisation_percent=98,
    performance_state=0,
    power_limit_w=400.0,
    power_default_limit_w=400.0,
    clock_application_mhz=1410,
    clock_application_default_mhz=1410,
    throttle=("sw_power_cap",),
    throttled_us={"hw_thermal_slowdown": 10**12, "hw_power_brake_slowdown": 10**12},
    ecc_mode=True,
    ecc_uncorrected_volatile=0,
    ecc_uncorrected_aggregate=0,
    ecc_sram_uncorrected_volatile=0,
    ecc_sram_uncorrected_aggregate=0,
    ecc_sram_threshold_exceeded=False,
    recovery_action="none",
    remapped_correctable=3,
    remapped_uncorrectable=0,
    remap_pending=False,
    remap_failure=False,
    pcie_gen=4,
    pcie_gen_max=4,
    pcie_gen_device_max=4,
    pcie_width=16,
    pcie_width_max=16,
    pcie_replays=160,
)
V100 = replace(A100, name="Tesla V100-SXM2-32GB", retired_single_bit=4, retired_double_bit=1, retired_pending=False,
               remapped_correctable=None, remapped_uncorrectable=None, remap_pending=None, remap_failure=None)  # fmt: skip
GEFORCE = replace(A100, name="NVIDIA GeForce RTX 4090", ecc_mode=None, persistence=False)
IDLE = {"utilisation_percent": 0, "performance_state": 8, "throttle": ("gpu_idle",), "pcie_gen": 1}


def one(gpu=A100, **odd):
    return node(gpu, 1, **odd)


def node(gpu=A100, count=8, **odd):
    """GPUs of one kind; ``odd`` is what the last of them has instead."""
    found = [replace(gpu, index=i, pci=f"0000:{i + 1:02x}:00.0") for i in range(count)]
    return Gpus(source="nvml", driver="570.1", gpus=(*found[:-1], replace(found[-1], **odd)))


def all_are(gpu=A100, **alike):
    return node(replace(gpu, **alike))


HEALTHY = {
    "eight at work": node(),
    "eight idle": all_are(**IDLE),
    "one": one(),
    "before Ampere": node(V100),
    "idle, in the middle of a change of clocks": all_are(**{**IDLE, "throttle": ("gpu_idle", "hw_slowdown")}),
    "held by clocks that were set": all_are(throttle=("applications_clocks_setting", "sync_boost", "display_clocks_setting")),
    "throttled for days in the past": all_are(throttle=()),
    "one idle GPU with a slow link": node(**IDLE),
    "GeForce at its target temperature": one(GEFORCE, temperature_margin_c=1, throttle=("sw_thermal_slowdown",)),
    "laptop on battery": one(
        GEFORCE, name="NVIDIA GeForce RTX 4070 Laptop GPU", throttle=("hw_power_brake_slowdown", "hw_slowdown"),
        power_limit_w=35.0, power_default_limit_w=80.0,
    ),
    "two slots of a desktop": node(GEFORCE, 2, pcie_width=4, pcie_width_max=4, pcie_gen=3, pcie_gen_max=3, pcie_gen_device_max=3),
    "a display card beside": replace(node(), gpus=(*node().gpus, replace(GEFORCE, index=8, name="NVIDIA T400", memory_total_bytes=4 * GIB, power_limit_w=30.0, power_default_limit_w=30.0))),
    "nothing known": Gpus(source="nvidia-smi", gpus=tuple(Gpu(i) for i in range(8))),
    "names cut by the table": all_are(name=None),
    "margin instead of limits": all_are(temperature_margin_c=30, temperature_max_c=None, temperature_slowdown_c=None),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_node_raises_no_alarm(name):
    found = [v for id in ids() for v in judged(id, gpus=HEALTHY[name], os=BARE)]
    assert [(v.check, v.message) for v in found if v.outcome.value in ("failed", "broken")] == []


def ids():
    return [id for id in own_checks().checks if id.startswith("gpu/")]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # memory
        (node(ecc_uncorrected_volatile=5, ecc_uncorrected_aggregate=5), "recovered-memory-errors"),
        (node(ecc_uncorrected_volatile=5, ecc_uncorrected_aggregate=5, recovery_action=None), "recovered-memory-errors"),
        (node(ecc_uncorrected_volatile=5, ecc_sram_uncorrected_volatile=5, recovery_action=None), "uncorrected-memory-errors"),
        (node(V100, ecc_uncorrected_volatile=5, recovery_action=None), "uncorrected-memory-errors"),
        (node(ecc_uncorrected_volatile=2, recovery_action="gpu_reset"), "recovery-needed uncorrected-memory-errors"),
        (node(ecc_uncorrected_aggregate=3, remapped_uncorrectable=1), "earlier-memory-errors"),
        (node(ecc_sram_threshold_exceeded=True), "sram-threshold-exceeded"),
        (node(ecc_sram_uncorrected_aggregate=5), "sram-errors"),
        (node(ecc_sram_uncorrected_aggregate=4), ""),
        (node(remap_pending=True), "row-remap-pending"),
        (node(remap_failure=True), "row-remap-failed"),
        (node(remapped_uncorrectable=511), ""),
        (node(remapped_uncorrectable=513), "spare-rows-used-up"),
        (node(V100, retired_pending=True), "page-retirement-pending"),
        (node(V100, retired_single_bit=50, retired_double_bit=11), ""),
        (node(V100, retired_single_bit=50, retired_double_bit=12), "retirable-pages-used-up"),
        (node(V100, retired_single_bit=None, retired_double_bit=62), "retirable-pages-used-up"),
        (node(ecc_mode=False), "ecc-unlike-siblings"),
        (all_are(ecc_mode=False), "ecc-off"),
        (all_are(GEFORCE, ecc_mode=False), ""),
        # pace
        (node(throttle=("hw_slowdown", "hw_thermal_slowdown")), "slowed-by-heat"),
        (node(throttle=("hw_slowdown", "hw_power_brake_slowdown")), "slowed-by-power-brake"),
        (all_are(throttle=("hw_slowdown", "hw_power_brake_slowdown")), "all-slowed-by-power-brake"),
        (one(throttle=("hw_slowdown", "hw_power_brake_slowdown")), "slowed-by-power-brake"),
        (node(throttle=("hw_slowdown",)), "slowed-by-hardware"),
        (node(throttle=("sw_thermal_slowdown",)), "slowed-by-driver-for-heat"),
        (node(temperature_c=82), ""),
        (node(temperature_c=83), "too-hot"),
        (node(temperature_max_c=None, temperature_c=88), "too-hot"),
        (node(temperature_margin_c=4), "too-hot"),
        (node(temperature_margin_c=5, temperature_c=86), ""),
        (node(temperature_memory_c=95), "memory-too-hot"),
        (node(power_limit_w=300.0), "power-limit-unlike-siblings"),
        (node(power_limit_w=300.0, power_default_limit_w=None), "power-limit-unlike-siblings"),
        (all_are(power_limit_w=300.0), "power-limit-lowered"),
        (node(clock_application_mhz=1095), "clocks-unlike-siblings"),
        (all_are(clock_application_mhz=1095), "clocks-lowered"),
        # link
        (node(pcie_gen=3), "pcie-generation-low"),
        (all_are(pcie_gen=1), "pcie-generation-low"),
        (node(pcie_width=8), "pcie-width-lost"),
        (node(**{**IDLE, "pcie_width": 8}), "pcie-width-lost"),
        (all_are(pcie_width=8), "pcie-width-low"),
        (one(pcie_width=8), "pcie-width-low"),
        (node(pcie_width=8, pcie_width_max=8), "pcie-slot-unlike-siblings"),
        (node(pcie_gen=3, pcie_gen_max=3), "pcie-slot-slow pcie-slot-unlike-siblings"),
        (all_are(pcie_gen=3, pcie_gen_max=3), "pcie-slot-slow"),
        (node(pcie_replays=1200), "pcie-replays-unlike-siblings"),
        (all_are(pcie_replays=1200), ""),
        # presence, driver, use
        (node(recovery_action="drain_p2p"), "recovery-needed"),
        (node(persistence=False), "persistence-off"),
        (node(mig="enabled"), "mig-unlike-siblings"),
        (all_are(mig="enabled"), ""),
        (replace(node(count=7), unread={"gpus": Reason("unreadable", "the output breaks off")}), "list-incomplete"),
    ],
)  # fmt: skip
def test_only_the_fault_is_told(found, expected):
    assert [id[len("gpu/") :] for id in failures("gpu", gpus=found, os=BARE)] == expected.split()


def test_every_failure_says_what_was_measured_and_what_to_do():
    found = node(
        replace(V100, recovery_action=None), ecc_uncorrected_volatile=1, ecc_sram_threshold_exceeded=True,
        retired_pending=True, retired_double_bit=70, throttle=("hw_slowdown", "hw_thermal_slowdown"), temperature_c=90,
        power_limit_w=100.0, clock_application_mhz=500, pcie_width=8, pcie_gen=1, persistence=False, ecc_mode=False,
    )  # fmt: skip
    failed = [v for id in ids() for v in judged(id, gpus=found, os=BARE) if v.outcome.value == "failed"]
    assert len(failed) > 9
    assert all(v.measured and v.expected and v.message and v.fixes for v in failed)
    assert all(v.subject in ("GPU 7", "") for v in failed)


# --------------------------------------------------------------------------- siblings


def test_the_odd_one_is_told_and_with_equal_shares_the_lower_one():
    halves = replace(
        node(count=4), gpus=tuple(replace(g, pcie_width=8 if g.index < 2 else 16) for g in node(count=4).gpus)
    )
    found = {v.subject: v.outcome.value for v in judged("gpu/pcie-width-lost", gpus=halves)}
    assert found == {"GPU 0": "failed", "GPU 1": "failed", "GPU 2": "passed", "GPU 3": "passed"}


def test_gpus_of_other_models_and_those_that_do_not_answer_are_no_siblings():
    mixed = node(count=3, name="NVIDIA L4", power_limit_w=72.0, power_default_limit_w=72.0)
    assert failures("gpu", gpus=mixed, os=BARE) == ["gpu/models-differ"]
    assert outcome("gpu/ecc-unlike-siblings", gpus=node(count=3, fault="GPU is lost", ecc_mode=False)) == "passed"


def test_an_idle_gpu_s_generation_is_unknown_not_passed():
    (verdict,) = judged("gpu/pcie-generation-low", gpus=one(**IDLE))
    assert (verdict.outcome.value, verdict.reason.kind) == ("skipped", "not-applicable")


# --------------------------------------------------------------------------- recovery


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("gpu_reset", "nvidia-smi --gpu-reset -i 0000:08:00.0"),
        ("node_reboot", "command reboot"),
        ("drain_p2p", "Let the jobs end"),
        ("drain_and_reset", "nvidia-smi --gpu-reset"),
        ("recover_imex_domain", "nvidia-imex-ctl -N"),
        ("bus_reset", "Reset the GPU's PCIe bus"),
        ("system_reboot", "power the node off and on"),
        ("action 9", "Do what the driver asks for: action 9"),
    ],
)
def test_what_the_driver_asks_for_is_one_word_and_has_its_remedy(action, says):
    failed = [v for v in judged("gpu/recovery-needed", gpus=node(recovery_action=action), os=BARE) if v.fixes]
    assert [(v.subject, v.measured, v.expected) for v in failed] == [("GPU 7", action, "none")]
    assert says in remedy_text(failed[0])


def test_a_container_is_told_what_is_to_be_done_on_its_node():
    (verdict,) = [
        v for v in judged("gpu/recovery-needed", gpus=node(recovery_action="gpu_reset"), os=DOCKER) if v.fixes
    ]
    assert "A container cannot do this" in remedy_text(verdict)
    assert "--gpu-reset" not in remedy_text(verdict)


def test_slurm_drains_the_node():
    launch = Launch(launcher="slurm")
    (verdict,) = [v for v in judged("gpu/row-remap-failed", gpus=node(remap_failure=True), launch=launch) if v.fixes]
    assert "scontrol update" in remedy_text(verdict)


@pytest.mark.parametrize(
    ("fault", "says", "never"),
    [
        ("GPU is lost", "power the node off and on", "--gpu-reset"),
        ("GPU requires reset", "nvidia-smi --gpu-reset -i 0000:08:00.0", "A GPU that hangs"),
        ("timed out: no answer in 10 s", "A GPU that hangs takes no reset", "--gpu-reset"),
        ("Unknown Error", "nvidia-smi --gpu-reset", "A GPU that hangs"),
        ("ERR! (nvidia-smi's table)", "nvidia-smi --gpu-reset", "A GPU that hangs"),
    ],
)
def test_the_way_back_depends_on_what_was_said(fault, says, never):
    (verdict,) = [v for v in judged("gpu/not-answering", gpus=node(fault=fault), os=BARE) if v.fixes]
    assert says in remedy_text(verdict)
    assert never not in remedy_text(verdict)
    assert "CUDA_VISIBLE_DEVICES 0,1,2,3,4,5,6" in remedy_text(verdict)


# --------------------------------------------------------------------------- MIG


@pytest.mark.parametrize(
    ("ranks", "variables", "expected"),
    [
        (1, {}, []),
        (2, {}, ["gpu/mig-and-several-ranks"]),
        (3, {}, ["gpu/mig-and-several-ranks", "gpu/mig-and-too-many-ranks"]),
        (3, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, ["gpu/mig-and-several-ranks"]),
    ],
)
def test_ranks_on_gpus_divided_by_mig(ranks, variables, expected):
    env = Env(variables=tuple(Variable(name, value, "environment") for name, value in variables.items()))
    found = {"gpus": node(replace(A100, mig="enabled"), 2), "env": env, "os": BARE}
    policy = Policy(nproc_per_node=ranks)
    failed = [id for id in ids() if any(v.outcome.value == "failed" for v in judged(id, policy, **found))]
    assert failed == expected


# --------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("", None),
    ],
)
def test_a_model_is_found_by_whole_words(name, row):
    model = model_of(name)
    assert (model and model.gpu) == row


def test_desktop_cards_are_not_made_for_servers():
    assert [is_datacenter(gpu) for gpu in (A100, V100, GEFORCE)] == [True, True, False]


def test_board_variants_each_at_their_own_default_are_no_fault():
    both = Gpus(gpus=(Gpu(0, name="NVIDIA GeForce RTX 4090", power_limit_w=450.0, power_default_limit_w=450.0),
                      Gpu(1, name="NVIDIA GeForce RTX 4090", power_limit_w=480.0, power_default_limit_w=480.0)))  # fmt: skip
    assert [id for id in failures("gpu", gpus=both) if "power" in id] == []


def test_the_second_slot_of_a_desktop_is_a_note_alone():
    slots = tuple(
        Gpu(n, name="NVIDIA GeForce RTX 4090", pcie_width=w, pcie_width_max=16) for n, w in enumerate((16, 8))
    )
    assert [id for id in failures("gpu", gpus=Gpus(gpus=slots)) if "width" in id] == ["gpu/pcie-width-low"]


@pytest.mark.parametrize(
    ("field", "check_id"),
    [
        ("recovery_action", "gpu/recovery-needed"),
        ("ecc_uncorrected_volatile", "gpu/uncorrected-memory-errors"),
        ("remap_failure", "gpu/row-remap-failed"),
        ("throttle", "gpu/slowed-by-heat"),
    ],
)
def test_what_the_driver_would_not_tell_is_said(field, check_id):
    told = Gpus(gpus=(Gpu(0, name="NVIDIA A100", unread={field: Reason("unreadable", "NVML: Unknown Error")}),))
    (verdict,) = judged(check_id, gpus=told)
    assert (verdict.outcome.value, verdict.subject, verdict.reason.text) == ("skipped", "GPU 0", "NVML: Unknown Error")


def test_a_flag_at_full_clocks_and_a_link_that_is_waking_are_no_fault():
    calm = Gpu(0, name="NVIDIA A100-SXM4-80GB", throttle=("sw_thermal_slowdown",), clock_sm_mhz=1410, clock_sm_max_mhz=1410,
               pcie_gen=1, pcie_gen_max=4, utilisation_percent=3, performance_state=0)  # fmt: skip
    found = failures("gpu", gpus=Gpus(gpus=(calm,)))
    assert [id for id in found if "slowed" in id or "pcie" in id] == []


def test_a_flag_of_the_power_supply_at_full_clocks_is_no_fault():
    calm = Gpu(0, name="NVIDIA H100", throttle=("hw_power_brake_slowdown",), clock_sm_mhz=1980, clock_sm_max_mhz=1980)
    assert [id for id in failures("gpu", gpus=Gpus(gpus=(calm,))) if "slowed" in id] == []


def test_a_superchip_copies_over_its_own_link():
    grace = Gpu(0, name="NVIDIA GB200", pcie_gen_max=4, pcie_gen_device_max=6)
    assert "gpu/pcie-slot-slow" not in failures("gpu", gpus=Gpus(gpus=(grace,)))

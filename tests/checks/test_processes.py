"""Checks of processes: what hangs or was left behind, and what only looks like it."""

import pytest
from ddp_doctor.facts import Process, Processes, Reason
from judging import judged, outcome, remedy_text

STUCK = "processes/stuck-in-kernel"
ORPHAN = "processes/orphan-holds-gpu"
ZOMBIE = "processes/rank-not-collected"
HELD = ("/dev/nvidia0",)


def facts(own=True, **found):
    return Processes(**{"blocked": (), "zombies": (), "holding": (), "own_namespace": own, **found})


@pytest.mark.parametrize(
    ("process", "result"),
    [
        (Process(7, "python", "D", waits_in="nv_open_q_wait", devices=()), "failed"),
        (Process(7, "python", "D", waits_in="rpc_wait_bit_killable", devices=()), "failed"),
        (Process(7, "python", "D", waits_in="mlx5_cmd_exec", devices=()), "failed"),
        (Process(7, "python", "D", waits_in="", devices=HELD), "failed"),
        (Process(7, "jbd2/sda1-8", "D", waits_in="jbd2_journal_commit_transaction", devices=()), "passed"),
        (Process(7, "dd", "D", waits_in="", devices=None, unread={"devices": Reason("no-rights", "x")}), "passed"),
    ],
)
def test_what_waits_for_a_gpu_an_hca_or_a_network_disk_is_stuck(process, result):
    assert outcome(STUCK, processes=facts(blocked=(process,))) == result


@pytest.mark.parametrize(
    ("process", "result"),
    [
        (Process(9, "python3", "S", 1000, 1, 3600.0, unit="session-4.scope", devices=HELD), "failed"),
        (Process(9, "python3", "S", 1000, 1, 3600.0, unit="user@1000.service", devices=HELD), "failed"),
        (Process(9, "python3", "S", 1000, 1, 3600.0, devices=HELD), "failed"),
        (Process(9, "python3", "S", 1000, 1, 3.0, devices=HELD), "passed"),
        (Process(9, "python3", "S", 1000, 800, 3600.0, unit="session-4.scope", devices=HELD), "passed"),
        (Process(9, "vllm", "S", 990, 1, 3600.0, unit="vllm.service", devices=HELD), "passed"),
        (Process(9, "nvidia-persiste", "S", 990, 1, 3600.0, devices=HELD), "passed"),
        (Process(9, "nv-hostengine", "S", 0, 1, 3600.0, devices=HELD), "passed"),
        (Process(9, "Xorg", "S", 0, 1, 3600.0, devices=HELD), "passed"),
    ],
)
def test_a_rank_that_outlived_its_launcher(process, result):
    assert outcome(ORPHAN, processes=facts(holding=(process,))) == result


def test_in_a_container_pid_1_is_the_job():
    process = Process(9, "python3", "S", 0, 1, 3600.0, devices=HELD)
    assert outcome(ORPHAN, processes=facts(own=False, holding=(process,))) == "skipped"


@pytest.mark.parametrize(("name", "result"), [("python3", "failed"), ("pt_main_thread", "failed"), ("sh", "passed")])
def test_a_zombie_of_a_training_process_is_a_note(name, result):
    (verdict,) = judged(ZOMBIE, processes=facts(zombies=(Process(5, name, "Z", parent=4),)))
    assert (verdict.outcome.value, verdict.severity.value) == (result, "note")


@pytest.mark.parametrize("check", [STUCK, ORPHAN, ZOMBIE])
def test_what_could_not_be_seen_is_no_pass(check):
    hidden = Reason("no-rights", "hidden")
    nothing = Processes(own_namespace=True, unread={"blocked": hidden, "zombies": hidden, "holding": hidden})
    assert outcome(check, processes=nothing) == "skipped"


def test_the_remedies_name_the_process():
    stuck = judged(STUCK, processes=facts(blocked=(Process(7, "python", "D", waits_in="", devices=HELD),)))
    left = judged(ORPHAN, processes=facts(holding=(Process(9, "python3", "S", 1000, 1, 3600.0, devices=HELD),)))
    assert "/proc/7/stack" in remedy_text(stuck[0])
    assert "kill 9" in remedy_text(left[0])

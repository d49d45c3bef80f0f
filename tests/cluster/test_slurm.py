"""The command line for srun, and what its words mean; the real one is in tests/lab."""

import pytest
from ddp_doctor.cluster import slurm
from ddp_doctor.cluster.names import BadNodes

OPTIONS = {
    "partition": None,
    "slurm_options": (),
    "ssh_user": None,
    "ssh_port": None,
    "ssh_jump": None,
    "ssh_options": (),
}


def argv(inside=True, version=(22, 5), limit_s=130.0, **options):
    return list(slurm.argv(["n1", "n2"], "exec x node", {**OPTIONS, **options}, inside, version, limit_s))


def test_one_task_on_each_node_that_hears_us():
    words = argv()
    assert words[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n1,n2", "--input=all", "--overlap"} <= set(
        words
    )
    assert words[words.index("--") :] == ["--", "sh", "-c", "exec x node"]


@pytest.mark.parametrize(("version", "there"), [((20, 2), False), ((20, 11), True), ((25, 5), True), (None, True)])
def test_steps_overlap_since_20_11(version, there):
    assert ("--overlap" in argv(version=version)) is there


def test_outside_of_an_allocation_it_asks_for_one_and_waits_for_a_minute():
    words = argv(inside=False, partition="gpu", slurm_options=("account=ml", "gpus-per-node=8"))
    assert {"--partition=gpu", "--account=ml", "--gpus-per-node=8", "--immediate=60", "--exclusive", "--time=4"} <= set(
        words
    )
    assert "--overlap" not in words
    assert "--partition=gpu" not in argv(inside=True, partition="gpu")


@pytest.mark.parametrize(
    "given",
    [
        {"partition": "-x"},
        {"partition": "a b"},
        {"slurm_options": ("-x",)},
        {"slurm_options": ("a b=c",)},
        {"slurm_options": ("",)},
        {"ssh_port": 22},
    ],
)
def test_what_srun_must_not_be_given(given):
    with pytest.raises(BadNodes):
        slurm.check_options({**OPTIONS, **given})


def test_nodes_of_an_allocation():
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[01-03]"}
    assert slurm.nodes_of([], None, env) == ["gpu01", "gpu02", "gpu03"]
    assert slurm.nodes_of(["gpu02"], None, env) == ["gpu02"]
    with pytest.raises(BadNodes, match="not in this allocation"):
        slurm.nodes_of(["gpu04"], None, env)
    with pytest.raises(BadNodes):
        slurm.nodes_of([], None, {**env, "SLURM_JOB_NODELIST": "$(id)"})


def test_a_job_looks_as_it_does_outside_of_our_step():
    env = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", "OTHER": "x"}
    assert slurm.job_variables(env) == {"SLURM_NTASKS": "16"}
    made = slurm.Step((), extra={})
    assert made.via == "slurm"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("srun: error: n2: task 1: Exited with exit code 9", [("n2", 9, "Exited with exit code 9")]),
        (
            "srun: error: n[1-2]: tasks 0-1: Exited with exit code 127",
            [(n, 127, "Exited with exit code 127") for n in ("n1", "n2")],
        ),
        ("srun: error: n3: task 2: Killed", [("n3", None, "Killed")]),
        ("srun: error: n3: task 2: Segmentation fault (core dumped)", [("n3", None, "Segmentation fault ")]),
        ("srun: error: $(id): task 2: Killed", []),
        ("srun: error: Unable to allocate resources: Invalid partition name specified", []),
        ("a greeting", []),
    ],
)
def test_which_task_ended(line, found):
    assert slurm.exited(line) == found


@pytest.mark.parametrize(
    ("stderr", "word"),
    [
        ("srun: error: Unable to allocate resources: Invalid partition name specified", "no such partition"),
        ("srun: error: Unable to allocate resources: Required node not available (down, drained or reserved)", "down, drained or reserved"),
        ("srun: error: Unable to create step for job 5: Job/step already completing or completed", "has ended"),
        ("srun: error: Unable to allocate resources: Requested nodes are busy", "no free nodes within 60 s"),
        ("srun: something\\x1b[31m new", "status 1: something"),
        ("", "status 1"),
    ],
)  # fmt: skip
def test_why_srun_ended(stderr, word):
    reason = slurm.why_it_ended(1, stderr)
    assert reason.kind == "unreachable"
    assert word in reason.text
    assert reason.text.isprintable()


@pytest.mark.parametrize(
    ("state", "inside", "outside"),
    [
        ("idle", True, True),
        ("mixed", True, True),
        ("allocated", True, False),
        ("completing", True, False),
        ("draining", True, False),
        ("drained", True, False),
        ("down*", False, False),
        ("idle*", False, False),
        ("idle~", False, False),
        ("reserved", True, True),
        (None, False, False),
    ],
)
def test_on_which_nodes_something_can_be_started(state, inside, outside):
    assert (slurm._why_not(state, True) is None) is inside
    assert (slurm._why_not(state, False) is None) is outside

"""Compute: which GPUs are left alone, the test of the others, and answers as facts."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from ddp_doctor.accelerators import chosen
from ddp_doctor.ask import Ask
from ddp_doctor.bench.compute import MARK
from ddp_doctor.collect import compute
from ddp_doctor.facts import Gpu, GpuProcess, to_plain
from ddp_doctor.host import Host, Ran
from ddp_doctor.unreadable import Unreadable
from running import doctor

IDLE = {"uuid": "GPU-ab", "processes": (), "memory_used_bytes": 5 << 20, "persistence": True}
FAKE_CUDA = str(Path(__file__).parents[1] / "fake_cuda")
REAL = [python for python in os.environ.get("DDP_DOCTOR_TEST_TORCH", "").split(":") if python]
needs_torch = pytest.mark.skipif(not REAL, reason="DDP_DOCTOR_TEST_TORCH names no interpreter with torch")


# --------------------------------------------------------------------------- which GPUs


@pytest.mark.parametrize(
    ("fields", "visible", "said"),
    [
        ({}, None, None),
        ({}, "0,3", None),
        ({}, "GPU-a", None),
        ({"processes": (GpuProcess(7, "Xorg", kind="graphics"),)}, None, None),
        ({"utilisation_percent": 3}, None, None),
        ({"utilisation_percent": 100, "persistence": False}, None, None),
        ({}, "1", "leaves it out"),
        ({}, "1,-1,3", "leaves it out"),
        ({}, "", "leaves it out"),
        ({"uuid": None}, None, "UUID is not known"),
        ({"fault": "GPU is lost"}, None, "does not answer: GPU is lost"),
        ({"compute_mode": "prohibited"}, None, "prohibited"),
        ({"processes": (GpuProcess(42, "python"),)}, None, r"in use by pid 42 (python)"),
        ({"processes": (GpuProcess(43, kind="mps"),)}, None, r"in use by pid 43"),
        ({"processes": None}, None, "whether a job uses it is not known"),
        ({"memory_used_bytes": 9 << 30}, None, "memory is in use"),
        ({"memory_used_bytes": None}, None, "memory is in use is not known"),
        ({"utilisation_percent": 97}, None, "busy (97 %)"),
        ({"mig": "enabled"}, None, "MIG"),
    ],
)
def test_a_gpu_in_use_is_left_alone(fields: Any, visible: Optional[str], said: Optional[str]) -> None:
    why = compute.why_not(Gpu(3, **{**IDLE, **fields}), chosen(visible))
    assert (why is None) if said is None else said in str(why)


class Driver(Host):
    """A machine whose GPUs are these, before the test and after it, with a worker that says what it is told to."""

    def __init__(self, before: Any, after: Any = None, answers: Any = None) -> None:
        super().__init__("/nowhere")
        self.told = {"nvml": before, "nvml-after-compute": after}
        self.answers, self.asked_for = answers, []  # type: Any, List[Any]

    def ask(self, name: str, work: Any, limit_s: float = 1.0) -> Any:
        if self.told.get(name) is None:
            raise Unreadable(compute.Reason("crashed", name))
        return {"driver": "580.95.05", "gpus": self.told[name]}

    def run(self, name: str, argv: Any, limit_s: float = 1.0, stdin: str = "") -> Ran:
        if name != "compute-test":
            raise Unreadable(compute.Reason("absent", name))
        self.asked_for.append(json.loads(argv[-1]))
        return Ran(
            0, self.answers if isinstance(self.answers, str) else MARK + json.dumps(self.answers) + "\n", "Boo\n"
        )

    def env(self) -> Dict[str, str]:
        return {}


def plain(index: int, **more: Any) -> Dict[str, Any]:
    idle = {"uuid": f"GPU-{index}", "name": "NVIDIA H200", "processes": [], "memory_used_bytes": 0, "mig": "disabled"}
    return {"index": index, **idle, **more}


ASK = Ask(compute=True, python=sys.executable)
RUN = [{"pid": 77, "name": "python", "kind": "compute"}]
SAID = {
    "torch": "2.13.0",
    "memory_gb_s": 4000.0,
    "to_host_gb_s": 55.0,
    "gemm_tflop_s": {"bfloat16": 700.0},
    "wrong": [],
}


def test_idle_gpus_are_tested_and_the_others_have_the_reason() -> None:
    before = [plain(0, processes=RUN), plain(1), plain(2), plain(3, mig="enabled")]
    answers = [{**SAID, "peer_gb_s": {"cuda:1": 390.0}}, {**SAID, "error": "RuntimeError: CUDA is angry"}]
    host = Driver(before, before, answers)
    found = compute.read(host, ASK)
    assert host.asked_for == [{"devices": ["cuda:0", "cuda:1"], "visible": ["GPU-1", "GPU-2"], "cpus": [[], []],
                               "peers": True, "limit_s": compute.TEST_LIMIT_S}]  # fmt: skip
    assert found.torch == "2.13.0"
    tests = found.gpus or ()
    assert [t.index for t in tests] == [0, 1, 2, 3]
    assert "in use by pid 77" in tests[0].unread["gemm_tflop_s"].text
    assert (tests[1].memory_gb_s, tests[1].wrong, tests[1].peer_gb_s, tests[1].error) == (
        4000.0,
        (),
        {"2": 390.0},
        None,
    )
    assert tests[2].error == "RuntimeError: CUDA is angry"
    assert tests[2].unread["to_device_gb_s"].kind == "crashed"
    assert "MIG" in tests[3].unread["wrong"].text
    for test in tests:
        assert all(getattr(test, name) is not None or name in test.unread for name in compute.MEASURED)


@pytest.mark.parametrize(
    ("after", "second", "why"),
    [
        ([plain(0), plain(1, processes=RUN)], SAID, "in use by pid 77"),
        ([plain(0), plain(1)], {"error": "CUDA-capable device(s) is/are busy or unavailable"}, "sole possession"),
        (None, {"error": "cudaErrorDevicesUnavailable"}, "sole possession"),
    ],
)
def test_a_job_that_began_during_the_test_takes_its_answer_away(after: Any, second: Any, why: str) -> None:
    first, taken = compute.read(Driver([plain(0), plain(1)], after, [SAID, second]), ASK).gpus or ()
    assert first.memory_gb_s == 4000.0
    assert (taken.memory_gb_s, taken.error) == (None, None)
    assert "a job began to use it during the test" in taken.unread["memory_gb_s"].text
    assert why in taken.unread["memory_gb_s"].text


@pytest.mark.parametrize("more", [{"pid": 77}, {"error": "gemm: no answer within 45 s"}])
def test_our_own_process_that_does_not_end_is_no_job(more: Any) -> None:
    (found,) = compute.read(Driver([plain(0)], [plain(0, processes=RUN)], [{**SAID, **more}]), ASK).gpus or ()
    assert (found.memory_gb_s, found.error) == (4000.0, more.get("error"))


@pytest.mark.parametrize(
    ("before", "answers", "kind", "text"),
    [
        ([], [], "not-applicable", "no GPU"),
        (None, [], "crashed", "nvml"),
        ([plain(0)], "torch says hello", "crashed", "status 0: Boo"),
        ([plain(0)], MARK + "[1", "crashed", "status 0: Boo"),
        ([plain(0)], [1], "crashed", "status 0: Boo"),
        ([plain(0)], [SAID, SAID], "crashed", "status 0: Boo"),
        ([plain(0)], [{"unable": "torch cannot be imported"}], "absent", "torch cannot be imported"),
    ],
)
def test_what_cannot_be_tested_has_a_reason(before: Any, answers: Any, kind: str, text: str) -> None:
    with pytest.raises(Unreadable) as raised:
        compute.read(Driver(before, before, answers), ASK)
    assert raised.value.reason.kind == kind
    assert text in raised.value.reason.text


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {
            "wrong": 7,
            "gemm_tflop_s": [1],
            "checksums": "x",
            "memory_gb_s": "fast",
            "peer_gb_s": {"cuda:9": 1, "x": "y"},
        },
        {
            "memory_gb_s": float("nan"),
            "to_host_gb_s": -1,
            "duration_s": True,
            "error": 5,
            "peer_gb_s": {"cuda:0": None},
        },
        {"error": "password=hunter2", "cut_short": [], "unable": {}},
    ],
)
def test_an_answer_out_of_shape_breaks_nothing(answer: Any) -> None:
    (found,) = compute.read(Driver([plain(0)], None, [answer]), ASK).gpus or ()
    assert all(getattr(found, name) is not None or name in found.unread for name in compute.MEASURED)
    assert "hunter2" not in json.dumps(to_plain(found), allow_nan=False)


def test_a_test_without_time_is_no_crash() -> None:
    found = compute.as_test(Gpu(0), {"cut_short": "over", "wrong": []}, [Gpu(0)])
    assert found.wrong is None
    assert found.unread["wrong"].kind == "timed-out"


@pytest.mark.parametrize(
    ("text", "found"), [("0-2,8\n", [0, 1, 2, 8]), ("", []), ("3", [3]), ("a-b", []), ("0-99999", []), ("5-1", [])]
)
def test_processors_near_a_gpu(text: str, found: Any) -> None:
    assert compute.parse_processors(text) == found


def test_it_runs_only_when_asked() -> None:
    assert compute.wanted(Ask(profile="deep")) is None
    assert compute.wanted(Ask(compute=True)) is None
    assert compute.wanted(Ask(profile="quick", compute=True)) is None
    for ask in (Ask(), Ask(profile="deep", compute=False)):
        assert str(getattr(compute.wanted(ask), "kind", "")) == "not-asked"


# --------------------------------------------------------------------------- the whole way


def on_path(folder: Any) -> str:
    """PYTHONPATH with this folder first."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def verdicts(*arguments: str, **more: Any) -> Dict[str, List[Any]]:
    """The compute test's verdicts by check."""
    found: Dict[str, List[Any]] = {}
    for verdict in json.loads(doctor("run", "--json", *arguments, **more).stdout)["verdicts"]:
        if verdict["check"].startswith("gpu-test/"):
            found.setdefault(verdict["check"][9:], []).append(verdict)
    return found


@pytest.mark.parametrize(
    "how", [["--select", "gpu-test"], ["--profile", "deep", "--sample", "0", "--select", "gpu*"], "file"]
)
@needs_torch
def test_the_command_tests_gpus_and_names_the_slow_one(how: Any, fake_nvml: Any, tmp_path: Path) -> None:
    fake_nvml.install(fake_nvml.healthy(4))
    if how == "file":
        (tmp_path / "ddp-doctor.toml").write_text('select = ["gpu-test"]\n')
        how = ["--config", str(tmp_path / "ddp-doctor.toml")]
    faults = json.dumps({"cuda:2": {"slow": 3, "flip": "mm"}})
    env = {**os.environ, **fake_nvml.env, "PYTHONPATH": on_path(FAKE_CUDA), "FAKE_CUDA": faults}
    found = verdicts("--python", REAL[0], *how, env=env)
    failed = {check: [v["subject"][:5] for v in of if v["outcome"] == "failed"] for check, of in found.items()}
    assert failed["wrong-results"] == failed["slow-memory"] == ["GPU 2"]
    assert set(failed["slow-gemm"]) == set(failed["slow-host-copy"]) == {"GPU 2"}
    assert not failed["could-not-run"]


@pytest.mark.parametrize("arguments", [[], ["--profile", "deep", "--sample", "0", "--ignore", "gpu-test"]])
def test_nobody_s_gpus_are_loaded_unasked(arguments: Any, fake_nvml: Any, tmp_path: Path) -> None:
    fake_nvml.install(fake_nvml.healthy(1))
    (tmp_path / "torch.py").write_text(
        f"open({str(tmp_path / 'used')!r}, 'w') if '--device' in __import__('sys').argv else 0"
    )
    env = {**os.environ, **fake_nvml.env, "PYTHONPATH": on_path(tmp_path)}
    found = verdicts("--python", sys.executable, *arguments, env=env)
    assert {v["outcome"] for of in found.values() for v in of} <= {"skipped"}
    assert not (tmp_path / "used").exists()


@pytest.mark.parametrize(("count", "words"), [(0, "no GPU"), (1, "torch cannot be imported by"), (None, "no GPU")])
def test_a_machine_without_gpus_or_torch_has_no_fault(count: Any, words: str, fake_nvml: Any, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    env = {**os.environ, "PYTHONPATH": on_path(tmp_path)}
    if count is not None:
        fake_nvml.install(fake_nvml.healthy(count))
        env.update(fake_nvml.env)
    found = verdicts("--python", sys.executable, "--select", "gpu-test", env=env)
    assert {v["outcome"] for of in found.values() for v in of} == {"skipped"}
    assert words in json.dumps(found["wrong-results"])

"""Comparing facts: two nodes, or one node then and now."""

import json
from dataclasses import replace

import pytest
from ddp_doctor import compare
from ddp_doctor.facts import Env, Memory, Os, Reason, Variable, to_plain
from fleets import GIB, node
from running import doctor

HERE = node(1, collected_at=1764547200.0)


def paths(a, b):
    return [(d.path, d.a, d.b) for d in compare.compare(a, b).differences]


def test_two_healthy_nodes_do_not_differ_by_what_is_their_own():
    assert compare.compare(node(1), node(3)).exit_status == 0
    assert paths(node(1), node(3)) == []


def test_what_tells_most_comes_first():
    other = replace(
        node(3),
        os=replace(node(3).os, kernel="6.1"),
        torch=replace(node(3).torch, nccl="2.19.3"),
        env=Env((*node(3).env.variables, Variable("NCCL_ALGO", "Ring"))),
        gpus=replace(node(3).gpus, driver="535.1", gpus=node(3).gpus.gpus[:7]),
    )
    assert paths(node(1), other) == [
        ("torch.nccl", "2.21.5", "2.19.3"),
        ("gpus.driver", "570.133.20", "535.1"),
        ("gpus.gpus[7]", "there", None),
        ("env.variables[NCCL_ALGO]", None, "Ring"),
        ("os.kernel", "5.15.0-140", "6.1"),
    ]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (HERE, []),
        (replace(HERE, os=replace(HERE.os, uptime_s=5.0)), []),
        (replace(HERE, memory=Memory(total_bytes=2015 * GIB + 4096, available_bytes=7)), []),
        (replace(HERE, memory=Memory(total_bytes=1890 * GIB)), ["memory.total_bytes"]),
        (replace(HERE, os=replace(HERE.os, boot_id="b9")), ["os.boot_id"]),
        (replace(HERE, how=replace(HERE.how, tool_version="9")), []),
    ],
)
def test_then_and_now_what_is_never_the_same_is_no_difference(now, expected):
    found = [path for path, *_ in paths(HERE, now) if path != "memory.available_bytes"]
    assert found == expected


def test_what_could_not_be_read_is_not_gone():
    blind = replace(HERE, torch=None, reasons={"torch": Reason("timed-out", "import torch: no answer in 60 s")})
    found = compare.compare(HERE, blind)
    assert found.differences == ()
    assert [(d.path, d.unknown.kind) for d in found.unknown] == [("torch", "timed-out")]
    assert found.exit_status == 3
    not_asked = replace(HERE, torch=None, reasons={"torch": Reason("not-asked", "profile quick")})
    assert compare.compare(HERE, not_asked).exit_status == 0
    unread = replace(HERE, os=Os(hostname="gpu01", boot_id="b1", unread={"kernel": Reason("crashed", "x")}))
    assert "os.kernel" in [d.path for d in compare.compare(HERE, unread).unknown]


def test_a_thing_that_is_absent_is_gone():
    gone = replace(HERE, torch=replace(HERE.torch, nccl=None, unread={"nccl": Reason("absent", "no NCCL in it")}))
    assert ("torch.nccl", "2.21.5", None) in paths(HERE, gone)


def test_entries_that_differ_alike_stand_on_one_line_and_hostile_text_is_escaped():
    changed = tuple(replace(gpu, name="A\x1b[2J") for gpu in HERE.gpus.gpus)
    text = compare.text(compare.compare(HERE, replace(HERE, gpus=replace(HERE.gpus, gpus=changed))), 100)
    assert "\x1b" not in text
    assert "gpus.gpus[0, 1, 2, 3, 4, 5, 6, 7].name: NVIDIA H100 80GB HBM3 -> A" in text
    assert text.startswith("8 differences between gpu01, 2025-12-01 00:00 UTC and gpu01, 2025-12-01 00:00 UTC.")


@pytest.fixture
def saved(tmp_path):
    other = replace(node(3), name="gpu02", torch=replace(node(3).torch, nccl="2.19.3"))
    for facts in (node(1), other):
        (tmp_path / f"{facts.name}.json").write_text(json.dumps(to_plain(facts)))
    (tmp_path / "same.json").write_text(json.dumps(to_plain(node(3))))
    return tmp_path


def test_the_command(saved):
    done = doctor("compare", "gpu01.json", "gpu02.json", cwd=saved)
    assert (done.returncode, done.stdout) == (
        1, "1 difference between gpu01 and gpu02.\n\n  torch.nccl: 2.21.5 -> 2.19.3\n",
    )  # fmt: skip
    same = doctor("compare", "gpu01.json", "same.json", cwd=saved)
    assert (same.returncode, same.stdout) == (0, "No difference between gpu01 and gpu03.\n")
    found = json.loads(doctor("compare", "--json", "gpu01.json", "gpu02.json", cwd=saved).stdout)
    assert found["differences"] == [{"path": "torch.nccl", "a": "2.21.5", "b": "2.19.3"}]
    assert (found["a"], found["b"], found["unknown"]) == ("gpu01", "gpu02", [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpu01.json"], "Missing argument 'B'"),
        (["gpu01.json", "none.json"], "none.json: No such file"),
        (["gpu01.json", "."], "two files with facts are compared"),
    ],
)
def test_wrong_usage_is_a_sentence(saved, arguments, words):
    done = doctor("compare", *arguments, cwd=saved)
    assert done.returncode == 2
    assert words in done.stderr

"""``ddp-doctor fix``: who must do what, what can be sourced, and a script; nothing hostile is ever run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_doctor import fixing
from ddp_doctor.fixing import Fix
from ddp_doctor.model import Outcome, Remedy, Severity, Verdict, command, export, say, unset, write_file

NODES = Path(__file__).parent / "nodes"
FACTS = sorted(NODES.glob("*/facts.json"))


def fix(*remedies, check="a/b", severity=Severity.ERROR, message="it is wrong", nodes=("n1",)):
    return Fix(Verdict(check, "", Outcome.FAILED, severity, message=message, fixes=remedies), nodes)


def doctor(*words):
    return subprocess.run(
        [sys.executable, "-m", "ddp_doctor", "fix", *words], capture_output=True, text=True, timeout=60
    )


def test_by_who_must_do_it_what_one_can_do_oneself_first():
    found = [
        fix(Remedy("Turn it off", (command("x", who="root"),)), check="a/root"),
        fix(Remedy("Ask", (say("Ask them.", who="network admin"),)), check="a/net"),
        fix(Remedy("Set it", (export("NCCL_DEBUG", "INFO"),)), check="a/me"),
        fix(check="a/none"),
    ]
    text = fixing.text(found, 100)
    places = [text.index(f"[{name}]") for name in ("a/me", "a/root", "a/net")]
    assert places == sorted(places)
    assert "Without a remedy that can be told\n  a/none: it is wrong (on n1)" in text
    assert "as root:\n            x" in text


def test_nothing_to_fix():
    assert fixing.text([], 80) == "Nothing to fix.\n"
    assert fixing.environment([]) == "# no finding asks for a variable\n"
    assert fixing.exit_status([], Severity.NOTE) == 0


@pytest.mark.parametrize(("fail_on", "status"), [(Severity.ERROR, 0), (Severity.WARNING, 1)])
def test_the_exit_status_is_that_of_a_gate(fail_on, status):
    assert fixing.exit_status([fix(severity=Severity.WARNING)], fail_on) == status


def test_variables_are_sourced_by_real_shells():
    values = {"NCCL_SOCKET_IFNAME": "=eth0,eth1", "A": "a b'c\"d$(id)`id`\\", "B": ""}
    found = [fix(Remedy("x", tuple(export(n, v) for n, v in values.items()))), fix(Remedy("y", (unset("C"),)))]
    text = fixing.environment(found)
    for shell in filter(shutil.which, ("sh", "bash", "zsh")):
        shown = "; ".join(f'printf "%s\\0" "${name}"' for name in values) + '; printf "%s" "${C-gone}"'
        done = subprocess.run([shell, "-c", f"C=x; {text}\n{shown}"], capture_output=True, text=True, check=True)
        assert done.stdout.split("\0") == [*values.values(), "gone"]


HOSTILE = ("eth0;touch owned", "$(touch owned)", "`touch owned`", "x\ntouch owned", "'; touch owned; '", "\x1b[2J")


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_are_never_run(tmp_path, words):
    steps = (
        say(words, see=words, risk=words),
        export(words, words),
        export("OK", words),
        unset(words),
        write_file(words, words),
        command("true", undo=words),
    )
    found = [fix(Remedy(words, steps), message=words, nodes=(words,)), fix(message=words)]
    script = tmp_path / "fix.sh"
    script.write_text(fixing.script(found))
    for argv in (["sh", str(script)], ["sh", str(script), "--apply"], ["sh", "-c", fixing.environment(found)]):
        subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == ["fix.sh"]
    assert "\x1b" not in fixing.text(found, 80)


@pytest.mark.parametrize("path", FACTS, ids=[path.parent.name for path in FACTS])
def test_scripts_for_recorded_nodes_are_sound(tmp_path, path):
    script = tmp_path / "fix.sh"
    done = doctor("--facts", str(path), "--script", str(script), "--json", "--as-of", "2025-06-15")
    assert done.returncode in (0, 1), done.stderr
    fixes = json.loads(done.stdout)["fixes"]
    assert all(each["remedies"] or each["severity"] != "error" or each["check"] for each in fixes)
    subprocess.run(["sh", "-n", str(script)], check=True)
    shown = subprocess.run(["sh", str(script)], check=True, capture_output=True, text=True).stdout
    assert all(line.startswith("+ ") or not line.startswith("#") for line in shown.splitlines())
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--severity=error", str(script)], check=True)


def test_with_apply_the_commands_run(tmp_path):
    script = tmp_path / "fix.sh"
    script.write_text(fixing.script([fix(Remedy("x", (command("touch done"), command("touch never", who="vendor"))))]))
    subprocess.run(["sh", str(script)], cwd=tmp_path, check=True, capture_output=True)
    assert not (tmp_path / "done").exists()
    subprocess.run(["sh", str(script), "--apply"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "done").exists()
    assert not (tmp_path / "never").exists()


def test_only_what_is_asked_for():
    path = str(NODES / "container-defaults" / "facts.json")
    checks = {each["check"] for each in json.loads(doctor("--facts", path, "--json", "disk").stdout)["fixes"]}
    assert checks == {"disk/shm-too-small"}
    done = doctor("--facts", path, "disk/shm-to-small")
    assert (done.returncode, "shm-too-small" in done.stderr) == (2, True)

"""The examples: they parse, call the command as it is, and do what they say as far as that can be seen without a cluster."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from ddp_doctor import cli

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted([*EXAMPLES.rglob("*.sh"), *EXAMPLES.rglob("*.sbatch")])
MANIFESTS = sorted(EXAMPLES.rglob("*.yaml"))


def names(paths):
    return [str(path.relative_to(EXAMPLES)) for path in paths]


@pytest.mark.parametrize("path", SCRIPTS, ids=names(SCRIPTS))
def test_scripts_are_sound(path):
    shell = path.read_text().split("\n", 1)[0].rpartition("/")[2]
    subprocess.run([shell, "-n", str(path)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--exclude=SC2181,SC2317", str(path)], check=True)


def calls(text):
    """(subcommand, options) of every call of ddp-doctor in a text."""
    text = re.sub(r'[\[\],"]', " ", text.replace("\\\n", " "))
    found = re.findall(
        r"(?:ddp-doctor|\$doctor|ddp_doctor)\s+(run|collect|watch|lint|checks|matrix|compare)\b([^\n|;&)]*)", text
    )
    return [(command, re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) for command, rest in found]


@pytest.mark.parametrize("path", [*SCRIPTS, *MANIFESTS], ids=names([*SCRIPTS, *MANIFESTS]))
def test_every_call_is_one_that_the_command_takes(path):
    found = calls(path.read_text())
    assert found
    for command, options in found:
        known = {word for p in cli.cli.commands[command].params if isinstance(p, click.Option) for word in p.opts}
        assert set(options) <= known, (command, options)


@pytest.mark.parametrize("path", MANIFESTS, ids=names(MANIFESTS))
def test_manifests_are_yaml(path):
    for document in yaml.safe_load_all(path.read_text()):
        assert {"kind", "metadata", "spec"} <= set(document) or "jobs" in document


def test_selectors_of_manifests_fit_their_pods():
    daemons = yaml.safe_load((EXAMPLES / "kubernetes" / "daemonset.yaml").read_text())["spec"]
    assert daemons["selector"]["matchLabels"] == daemons["template"]["metadata"]["labels"]
    job = yaml.safe_load((EXAMPLES / "kubernetes" / "job.yaml").read_text())["spec"]
    (term,) = job["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == job["template"]["metadata"]["labels"]
    assert job["completions"] == job["parallelism"]
    for spec in (job, daemons):
        (container,) = spec["template"]["spec"]["containers"]
        volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def doctor(folder, status, line="NOT READY gpu07: gpu/lost"):
    """A command in the doctor's place that says a line and ends so."""
    path = folder / "doctor"
    path.write_text(f"#!/bin/sh\necho '{line}'\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def run(script, env):
    return subprocess.run(
        ["sh", str(EXAMPLES / "slurm" / script)],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(("status", "drains"), [(0, False), (1, True), (2, False), (3, False), (127, False)])
def test_only_a_finding_fails_the_prolog(tmp_path, status, drains):
    assert (run("prolog.sh", {"DDP_DOCTOR": doctor(tmp_path, status)}).returncode != 0) is drains


def test_a_prolog_without_the_tool_drains_nothing():
    assert run("prolog.sh", {"DDP_DOCTOR": "/nowhere/ddp-doctor"}).returncode == 0


def test_the_real_command_in_a_prolog_says_one_line(tmp_path):
    wrapper = tmp_path / "ddp-doctor"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m ddp_doctor "$@"\n')
    wrapper.chmod(0o755)
    done = run("prolog.sh", {"DDP_DOCTOR": str(wrapper)})
    assert done.returncode in (0, 1)
    assert len(done.stdout.splitlines()) == 1
    assert len(done.stdout) <= 81


@pytest.mark.parametrize("status", [0, 1, 3])
def test_a_health_check_drains_with_the_finding_as_the_reason(tmp_path, status):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    env = {"DDP_DOCTOR": doctor(tmp_path, status), "SCONTROL": str(scontrol), "SLURMD_NODENAME": "gpu07"}
    assert run("health-check.sh", env).returncode == 0
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    expected = "update|nodename=gpu07|state=drain|reason=ddp-doctor: NOT READY gpu07: gpu/lost|"
    assert asked == (expected if status == 1 else "")

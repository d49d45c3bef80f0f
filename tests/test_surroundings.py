"""The command in odd surroundings: closed streams, foreign locales, no home, signals, other users, tools that misbehave."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import DOCTOR, FAULTY, LIMIT_S, READY, doctor, without

QUICK = ("run", "--profile", "quick")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to become another user, to mount")


def shell(line, **more):
    """Run the doctor below a shell; ``$DOCTOR`` in the line is the command, ``status`` its exit status."""
    return subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "DOCTOR": " ".join(DOCTOR)},
        capture_output=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        **more,
    )


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_neither_verdict_nor_files(tmp_path, closed):
    line = f"$DOCTOR {' '.join(QUICK)} --select os --output json=report.json {closed}"
    done = shell(line, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["summary"]["counts"]["passed"] > 0
    assert done.stdout[:5] == ("" if ">&-" in closed.replace("2>&-", "") else "Ready")


@pytest.mark.parametrize("arguments", ["checks", "matrix", "--help", "--version", "collect --profile quick"])
def test_closed_output_of_other_commands(arguments):
    done = shell(f"$DOCTOR {arguments} >&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (f"run --facts {READY}", 0),
        (f"run --facts {FAULTY}", 1),
        (f"run -v --facts {FAULTY} --json", 1),
        ("checks", 0),
        ("checks gpu", 0),
        ("matrix", 0),
        ("--help", 0),
        ("collect --profile quick", 0),
    ],
)
@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_goes_away_is_no_error(arguments, status, reader):
    done = shell(f"set -o pipefail; $DOCTOR {arguments} | {reader}; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.splitlines()[-1] == str(status)
    assert done.stderr == ""


def test_a_reader_that_goes_away_does_not_keep_the_files(tmp_path):
    done = shell(f"$DOCTOR run --facts {READY} --output json=report.json | true", cwd=tmp_path)
    assert done.stderr == ""
    assert json.loads((tmp_path / "report.json").read_text())["summary"]["exit_status"] == 0


@pytest.mark.parametrize("arguments", [f"run --facts {READY}", "checks", "matrix", "--help", "collect --profile quick"])
def test_a_full_disk_behind_standard_output(arguments):
    done = shell(f"$DOCTOR {arguments} >/dev/full")
    assert done.returncode == 2
    assert re.fullmatch(r"ddp-doctor: standard output: .*No space left on device\n", done.stderr)


def test_a_full_disk_behind_standard_error():
    assert shell("$DOCTOR run --no-such-option 2>/dev/full").returncode == 2


def test_no_colour_where_there_is_no_terminal():
    assert "\x1b" not in doctor("run", "--facts", FAULTY).stdout


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_on_a_terminal_unless_unwanted(more, coloured):
    ours, theirs = os.openpty()
    process = subprocess.Popen([*DOCTOR, "run", "--facts", FAULTY], stdout=theirs, env=without("NO_COLOR", **more))
    os.close(theirs)
    text = b""
    try:
        while chunk := _read(ours):
            text += chunk
    finally:
        os.close(ours)
    assert process.wait(LIMIT_S) == 1
    assert (b"\x1b[1;31m" in text) is coloured


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


# ---------------------------------------------------------------- interpreter, locale, folders, environment


@pytest.mark.parametrize("options", [("-OO",), ("-W", "error"), ("-I",), ("-X", "dev")], ids="_".join)
def test_options_of_the_interpreter(tmp_path, options):
    for arguments in ((*QUICK, "-v"), ("checks",), ("checks", "gpu"), ("collect", "--bundle", f"{tmp_path}/b.tar.gz")):
        done = doctor(*arguments, python=options)
        assert done.returncode in (0, 1)
        assert done.stderr == ""
        assert done.stdout
    assert doctor(*QUICK, "--replay", f"{tmp_path}/b.tar.gz", python=options).stderr == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16", "cp1252"])
def test_an_encoding_that_cannot_carry_everything(encoding, tmp_path):
    facts = json.loads(Path(FAULTY).read_text())
    (tmp_path / "f.json").write_text(json.dumps({**facts, "name": "schloß-\u2265\U0001f600"}))
    for arguments in (["run", "--facts", f"{tmp_path}/f.json"], ["checks"], ["checks", "gpu"], ["run", "--nö"]):
        done = doctor(*arguments, env=without(PYTHONIOENCODING=encoding), encoding=encoding)
        assert done.stdout or "such option" in done.stderr


def test_the_c_locale(tmp_path):
    surroundings = without(LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert doctor("run", "--facts", READY, env=surroundings).returncode == 0
    done = doctor("run", "--facts", READY, "--output", f"json={tmp_path}/schloß", env=surroundings)
    assert done.returncode == 0
    assert doctor("run", "--facts", "schloß", env=surroundings).returncode == 2


@pytest.mark.parametrize(
    "environment",
    [{}, {"PATH": ""}, {"PATH": "/none:relative::", "HOME": ""}, {"HOME": "/none", "PATH": "/usr/bin"}],
    ids=["nothing", "no PATH", "odd PATH", "no home"],
)
def test_hardly_any_environment(environment):
    found = json.loads(doctor("run", "--json", env=environment).stdout)
    assert found["summary"]["counts"]["broken"] == 0
    assert found["summary"]["exit_status"] in (0, 1)


def test_a_working_directory_that_was_deleted(tmp_path):
    (tmp_path / "gone").mkdir()
    done = shell(f"cd gone && rmdir ../gone && $DOCTOR {' '.join(QUICK)}", cwd=tmp_path)
    assert done.returncode in (0, 1)
    assert (done.stdout[:3], done.stderr) in (("Rea", ""), ("Not", ""))


NAMES = ("checks", "fixes", "diagnose", "torch", "click", "json", "psutil", "distro", "pynvml", "msgspec", "tabulate")


def test_modules_of_the_same_names_in_the_working_directory(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('a stranger\\'s {name}.py was imported')\n")
    for arguments in (("run",), QUICK, ("checks",), ("collect",)):
        done = doctor(*arguments, cwd=tmp_path)
        assert done.returncode in (0, 1)
        assert "stranger" not in done.stdout + done.stderr


def test_our_names_in_pythonpath(tmp_path):
    for name in NAMES[:4]:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('a stranger\\'s {name}.py was imported')\n")
    done = doctor(*QUICK, env=without(PYTHONPATH=str(tmp_path)))
    assert done.returncode in (0, 1)
    assert "stranger" not in done.stdout + done.stderr


def test_hardly_any_file_descriptors():
    done = shell(f"ulimit -n 20; $DOCTOR {' '.join(QUICK)} --select limits,facts")
    assert done.returncode == 1
    assert "limits/nofile-too-low" in done.stdout
    assert done.stderr == ""


# ---------------------------------------------------------------- another user, a read-only file system

IN_A_PLACE_OF_ITS_OWN = r"""
set -e
secret=$1 user=$2; shift 2
if [ -n "$secret" ]; then  # the interpreter is below a folder of root's alone: the same folder, open to all
    mkdir "$SCRATCH/open" && mount --rbind "$secret" "$SCRATCH/open"
    mount -t tmpfs -o mode=755 none "$secret"
    for name in $(ls -A "$SCRATCH/open"); do
        [ -d "$SCRATCH/open/$name" ] || continue
        mkdir "$secret/$name" && mount --rbind "$SCRATCH/open/$name" "$secret/$name"
    done
fi
mkdir "$SCRATCH/ro" && mount -t tmpfs -o ro none "$SCRATCH/ro"
cd "$SCRATCH/ro"
[ -z "$PROCESSES" ] || ulimit -u "$PROCESSES"
[ "$user" = 0 ] || exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs "$@"
exec "$@"
"""


def closed_ancestor(path):
    """The uppermost folder above ``path`` that others may not enter; "" where there is none."""
    return next((str(f) for f in reversed(Path(path).parents) if not f.stat().st_mode & 0o001), "")


@pytest.fixture
def elsewhere(tmp_path_factory):
    """A function that runs the doctor as another user, in a read-only working directory; mounts are its own."""
    scratch = tmp_path_factory.mktemp("scratch")
    for folder in (scratch, *scratch.parents):
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)

    def run(user, *arguments, **more):
        if not shutil.which("unshare") or not shutil.which("setpriv"):
            pytest.skip("unshare and setpriv (util-linux) are not on this machine")
        secret = closed_ancestor(os.path.realpath(DOCTOR[0])) if user else ""
        argv = ["unshare", "-m", "bash", "-c", IN_A_PLACE_OF_ITS_OWN, "-", secret, str(user), *DOCTOR, *arguments]
        environment = without("HOME", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", SCRATCH=str(scratch), **more)
        return subprocess.run(argv, env=environment, capture_output=True, encoding="utf-8", timeout=LIMIT_S)

    return run


@needs_root
def test_a_user_without_rights(elsewhere):
    done = elsewhere(65534, "run", "--json", HOME="/nonexistent")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["nodes"][0]["how"]["uid"] == 65534
    assert found["summary"]["counts"]["broken"] == 0
    assert done.returncode in (0, 1)


@needs_root
def test_a_user_without_a_name_and_without_more_processes(elsewhere):
    done = elsewhere(54321, "run", "--json", "--profile", "quick")
    found = json.loads(done.stdout)
    assert (done.stderr, found["nodes"][0]["how"]["user"]) == ("", "54321")


@needs_root
def test_where_no_process_can_be_started_nobody_can_tell(elsewhere):
    done = elsewhere(54322, "run", "--profile", "quick", PROCESSES="1")
    why = r"Cannot tell: nothing could be read \(reading \w+: cannot start a child: Resource temporarily unavailable\)"
    assert (done.returncode, done.stderr) == (3, "")
    assert re.match(why, " ".join(done.stdout.split())), done.stdout


@needs_root
def test_a_read_only_working_directory(elsewhere):
    done = elsewhere(0, "run", "--profile", "quick", "--output", "json=report.json")
    assert done.returncode == 2
    assert done.stdout.startswith(("Ready", "Not ready"))
    assert done.stderr == "ddp-doctor: report.json: cannot be written: Read-only file system\n"


# ---------------------------------------------------------------- tools that misbehave

TOOLS = (
    "nvidia-smi nvcc ssh ssh-add chronyc timedatectl ntpq nft iptables ip6tables iptables-save firewall-cmd ufw python3 "
    "python ibstat lspci getent hostname systemd-detect-virt srun scontrol sbatch sinfo mpirun"
).split()


@contextmanager
def tools(folder, script):
    """PATH that leads to tools which all do the same, and to nothing else but a shell's own."""
    folder.mkdir()
    for name in TOOLS:
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    yield without(PATH=f"{folder}:/usr/bin:/bin")


def assert_sound(done):
    """A whole report: no section was lost, no check broke."""
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["summary"]["counts"]["broken"] == 0
    lost = [v for v in found["verdicts"] if v["check"] == "facts/section-lost" and v["outcome"] == "failed"]
    assert [v["measured"] for v in lost] == []
    return found


@pytest.mark.parametrize(
    "script",
    [
        "head -c 100000 /dev/urandom; head -c 100000 /dev/urandom >&2",
        "cat /dev/zero",
        "yes 'GPU 0: NVIDIA A100-SXM4-80GB, 450.80.02, , ,' >&2",
        "kill -SEGV $$",
        "exit 1",
        "echo; exit 0",
        "printf '\\033[2J\\xff\\xfe\\n<b>,,,\\n'",
        'printf "%0.s9" {1..9000}',
        "exec >&- 2>&-",
        "sleep 100 & echo started",
    ],
    ids=["garbage", "zeros without end", "lines without end", "signal", "fails", "empty", "escapes", "digits", "silent", "daemon"],
)  # fmt: skip
def test_a_tool_that_says_nothing_of_use_loses_no_section(tmp_path, script):
    with tools(tmp_path / "bin", script) as environment:
        assert_sound(doctor(*QUICK, "--json", env=environment))


def test_a_tool_that_is_no_program(tmp_path):
    with tools(tmp_path / "bin", "") as environment:
        for name in TOOLS[::2]:
            (tmp_path / "bin" / name).write_bytes(b"\x7fELF\0\0\0\0")
        for name in TOOLS[1::2]:
            (tmp_path / "bin" / name).unlink()
            (tmp_path / "bin" / name).mkdir()
        assert_sound(doctor(*QUICK, "--json", env=environment))


@pytest.mark.slow
def test_tools_that_hang_lose_no_section(tmp_path):
    with tools(tmp_path / "bin", "trap '' INT TERM; sleep 1000") as environment:
        (tmp_path / "bin" / "nvidia-smi").unlink()  # has half a minute: waking GPUs takes seconds each
        assert_sound(doctor(*QUICK, "--json", env=environment))


def test_srun_of_a_run_does_not_fan_out(tmp_path):
    surroundings = {
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "4",
        "SLURM_JOB_NODELIST": "gpu[01-04]",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "4",
    }
    script = f'echo "$0 $*" >> {tmp_path}/calls'
    with tools(tmp_path / "bin", script) as environment:
        found = assert_sound(doctor("run", "--json", env={**environment, **surroundings}))
    calls = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    names = {call.split()[0].rsplit("/", 1)[-1] for call in calls}
    assert names.isdisjoint({"srun", "scontrol", "sbatch", "sinfo", "mpirun"})
    assert [call for call in calls if "gpu0" in call] == []
    assert len(found["nodes"]) == 1
    assert found["nodes"][0]["how"]["job"] == "slurm 7"


@pytest.mark.parametrize("options", [(), ("-v",), ("--brief",)], ids=["table", "verbose", "brief"])
@pytest.mark.parametrize("facts", [FAULTY, READY])
def test_nothing_that_a_task_prolog_obeys(options, facts):
    text = doctor("run", *options, "--facts", facts).stdout
    assert text
    assert not re.search(r"(?m)^(export|unset|print)\b", text)


# ---------------------------------------------------------------- signals and deadlines


class Hanging:
    """The doctor with a tool on PATH that hangs, and a pipe that closes when nothing of it is left."""

    def __init__(self, folder, *arguments):
        os.mkfifo(folder / "held")
        script = f"trap '' INT TERM; exec 7>{folder}/held; echo hangs >&7; sleep 1000"
        with tools(folder / "bin", script) as environment:
            self.process = subprocess.Popen(
                [*DOCTOR, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                env=environment,
                cwd="/",
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # under nohup it would be ignored
            )
        self._held = open(folder / "held")  # noqa: SIM115  waits until a tool has opened it
        assert self._held.readline() == "hangs\n"

    def settle(self, left):
        """Wait until no more than ``left`` sections are being read; then it is waiting for those."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        until = time.monotonic() + LIMIT_S
        while len(children.read_text().split()) > left:
            assert time.monotonic() < until, children.read_text()
            time.sleep(0.01)

    def end(self, *signums):
        """Send signals, wait; status and standard output."""
        for signum in signums:
            os.killpg(self.process.pid, signum)
        out, err = self.process.communicate(timeout=LIMIT_S)
        assert "Traceback" not in out + err
        with self._held:
            self._held.read()  # comes to an end when the last process that holds the pipe has ended
        return self.process.returncode, out, err


INTERRUPTED_WHERE = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("INTERRUPTED_WHERE"):
            del os.environ["INTERRUPTED_WHERE"]
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize("loaded", ["ddp_doctor.process", "ddp_doctor.cli", "click", "ddp_doctor.examine"])
def test_a_command_that_is_interrupted_while_it_loads_says_so_in_a_word(tmp_path, loaded):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_WHERE)
    done = doctor("run", "--profile", "quick", env=without(PYTHONPATH=str(tmp_path), INTERRUPTED_WHERE=loaded))
    assert (done.returncode, done.stdout, done.stderr.strip()) == (3, "", "ddp-doctor: interrupted")


HANG = ("--profile", "quick")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_what_it_has(tmp_path, signum):
    hanging = Hanging(tmp_path, "run", "--json", *HANG)
    hanging.settle(left=3)  # gpus by nvidia-smi, ssh by ssh, network by nft
    status, out, err = hanging.end(signum)
    assert err == ""
    found = json.loads(out)
    assert status == (1 if found["summary"]["counts"]["error"] else 3)
    assert found["summary"]["counts"]["passed"] > 0
    reasons = [v["reason"]["text"] for v in found["verdicts"] if v["reason"] and v["reason"]["kind"] == "interrupted"]
    assert "interrupted while reading gpus" in reasons


def test_an_interrupted_run_with_a_fault_has_failed(tmp_path):
    hanging = Hanging(tmp_path, "run", *HANG, "--select", "facts,os", "--require", "reach")
    hanging.settle(left=3)
    status, out, _ = hanging.end(signal.SIGINT)
    assert status == 1
    assert "facts/required-section-missing" in out


def test_an_interrupted_run_says_so_in_its_first_line(tmp_path):
    hanging = Hanging(tmp_path, "run", *HANG, "--select", "os,gpu")
    hanging.settle(left=3)
    status, out, _ = hanging.end(signal.SIGTERM)
    assert (status, out.split("\n")[0]) == (3, "Cannot tell: the examination was cut short.")


def test_interrupted_collecting_writes_what_it_has(tmp_path):
    hanging = Hanging(tmp_path, "collect", *HANG, "--bundle", f"{tmp_path}/b.tar.gz")
    hanging.settle(left=3)
    status, out, _ = hanging.end(signal.SIGINT)
    facts = json.loads(out)
    assert status == 3
    assert facts["os"]["kernel"]
    assert facts["reasons"]["gpus"] == {"kind": "interrupted", "text": "interrupted while reading gpus"}
    again = doctor("run", *HANG, "--json", "--replay", f"{tmp_path}/b.tar.gz")
    assert json.loads(again.stdout)["summary"]["counts"]["passed"] > 0


@pytest.mark.parametrize("times", [1, 2], ids=["once", "as timeout(1) does"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_any_moment_leaves_nothing_behind(tmp_path, signum, times):
    status, _, err = Hanging(tmp_path, "run", *HANG).end(*[signum] * times)
    assert status in (1, 3)
    assert err.strip() in ("", "ddp-doctor: interrupted")


def test_a_deadline_reports_what_is_known_by_then(tmp_path):
    """An environment with torch in it, the interpreter of which hangs."""
    package = tmp_path / "lib/python3.10/site-packages/torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text("__version__ = '2.5.1+cpu'\ncuda = None\nhip = None\n")
    status, out, err = Hanging(
        tmp_path, "run", "--json", "--deadline", "3", "--python", f"{tmp_path}/bin/python3"
    ).end()
    found = json.loads(out)
    assert (status, err) == (3, "")
    assert found["summary"]["headline"].startswith("Cannot tell: the examination was cut short.")
    assert found["summary"]["counts"]["passed"] > 0
    late = [v["reason"]["text"] for v in found["verdicts"] if v["reason"] and v["reason"]["kind"] == "deadline"]
    assert any("no answer before the deadline" in text for text in late)
    assert found["nodes"][0]["left_behind"] == []

"""Progress: on a terminal alone, and gone when it is over."""

import os
import pty
import sys

from ddp_doctor import child
from ddp_doctor.progress import Progress


def test_a_terminal_shows_what_is_waited_for_and_is_left_clean(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress() as progress:
            progress(["torch", "gpus"])
        said = os.read(ours, 1000).decode()
    os.close(ours)
    assert "waiting for torch, gpus" in said
    assert said.endswith("\x1b[K")


def test_nothing_is_said_elsewhere(capsys):
    with Progress() as progress:
        progress(["torch"])
    assert capsys.readouterr().err == ""


def test_a_child_that_takes_long_is_named_and_then_answers(monkeypatch):
    monkeypatch.setattr(child, "PATIENCE_S", 0.01)
    read_end, write_end = os.pipe()
    told = []

    def waiting_for(names):
        told.append(names)
        os.write(write_end, b"go")

    running = child.start("slow", lambda: os.read(read_end, 2).decode(), 30)
    ((_, outcome),) = child.finish([running], waiting_for=waiting_for)
    assert (told[0], outcome.value) == (["slow"], "go")
    os.close(read_end)
    os.close(write_end)

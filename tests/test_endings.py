"""How commands end: on a signal with one line and a way to go on, and never because nobody reads their output."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mammoth_sbs import commands
from mammoth_sbs.errors import Interrupted, Steady, Terminated, UserError, command, heed
from mammoth_sbs.files import write_atomically
from tests.conftest import REPO, Start

from utils.training import train

RUN = f"{sys.executable} main.py --model er_sbs --dataset seq-digits --n_tasks 2 --train_per_class 20 --lr .05 --seed 1"


def shell(line: str) -> subprocess.Popen:
    return subprocess.Popen(["bash", "-c", line], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(folder: Path) -> dict:
    (file,) = folder.rglob("*.json")
    return json.loads(file.read_text())["results"]


def test_output_that_nobody_takes_does_not_end_a_run(tmp_path: Path) -> None:
    ways = {"head": "2>&1 | head -n 1", "full": "> /dev/full", "closed": "<&- >&- 2>&-"}
    started = {name: shell(f"{RUN} --n_epochs 2 --base_path {shlex.quote(str(tmp_path / name))} {how}")
               for name, how in ways.items()}
    said = {name: process.communicate(timeout=300) for name, process in started.items()}
    for name, process in started.items():
        assert process.returncode == 0, (name, said[name])
        assert len(result(tmp_path / name)["class_il"]["matrix"]) == 2
        assert "Traceback" not in said[name][1] and "Exception" not in said[name][1]
    assert said["head"][0].count("\n") == 1
    assert "warning: standard output cannot be written (No space left on device): going on" in said["full"][1]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_in_a_line_from_which_to_go_on(number: int, status: int, tmp_path: Path) -> None:
    process = subprocess.Popen([*RUN.split(), "--n_epochs", "100000", "--resume", "--checkpoint_path", str(tmp_path),
                                "--base_path", str(tmp_path)], cwd=REPO, stderr=subprocess.PIPE, text=True,
                               stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("*.pt")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    line = process.communicate(timeout=120)[1].splitlines()[-1]
    assert process.returncode == status
    assert line.startswith("stopped in task 1 of 2; saved: ") and "_last.pt" in line
    assert line.endswith(" --resume 1") and "To go on: python main.py --model er-sbs" in line
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]  # nothing unfinished


# ---- the same in this process


class Dropped:
    """What is raised while it is deleted is dropped by Python, and also by libraries that call back."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_is_dropped_ends_the_run_at_its_next_step(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    it = start("er", "--n_epochs 3 --train_per_class 10 --savecheck epoch")
    monkeypatch.setattr(type(it.model), "begin_epoch", lambda model, epoch, dataset: Dropped() and None)
    with pytest.raises(SystemExit) as ended, command():
        train(it.model, it.dataset, it.args)
    assert ended.value.code == 130
    assert it.model.task_iteration == 1
    heed()  # it is over with the command


class Slow:
    """A file in whose writing a signal comes."""

    def write(self, data: bytes) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return len(data)

    def flush(self) -> None:
        pass


def test_a_signal_while_a_checkpoint_is_written_is_no_full_disk(tmp_path: Path) -> None:
    """torch.save makes an error of its own of it, which was taken for one of the disk: the run went on."""
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.pt", lambda f: torch.save({"a": torch.zeros(9999)}, Slow()), "checkpoint")
    assert not list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As SIGINT is for what a script starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with command():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            heed()
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_is_ctrl_c_while_a_command_runs_and_only_then(capsys: pytest.CaptureFixture) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, command():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert ended.value.code == 143
    assert capsys.readouterr().err == "stopped\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_line_and_the_status(capsys: pytest.CaptureFixture) -> None:
    for by, status in ((KeyboardInterrupt(), 130), (Terminated(), 143)):
        with pytest.raises(SystemExit) as ended, command(), command():
            raise Interrupted("; the same command goes on", by)
        assert ended.value.code == status
        assert capsys.readouterr().err == "stopped; the same command goes on\n"
    with pytest.raises(UserError, match="^as always$"), command():
        raise UserError("as always")


def test_every_command_is_guarded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from mammoth_sbs.commands import doctor

    def interrupted(argv: list[str]) -> None:
        assert isinstance(sys.stdout, Steady) and isinstance(sys.stderr, Steady)
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        commands.main(["doctor"])
    assert ended.value.code == 130
    assert not isinstance(sys.stdout, Steady)


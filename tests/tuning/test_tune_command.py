"""`mammoth-sbs tune`: it goes on after a kill, shares work between devices, says what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mammoth_sbs.commands import tune
from mammoth_sbs.errors import UserError
from mammoth_sbs.tuning import first_task, rotation
from mammoth_sbs.tuning.pairs import Point, grid
from tests.conftest import REPO
from tests.tuning.conftest import SMALL


def test_the_command_goes_on_after_a_kill(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    flags = ("--model er_sbs --dataset seq-digits --train_per_class 60 --buffer_size 40 --n_epochs 5 --lr .05 "
             f"--sbs-grid 0 .3 .6 --sbs-tune-epochs 10 --base_path {tmp_path} --non_verbose 1").split()
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, "-m", "mammoth_sbs", "tune", *flags, "--out", str(killed)],
                               cwd=REPO, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "2"})
    points = killed / "first_task.pt.points.jsonl"
    while not points.exists() or not points.read_text().endswith("\n"):
        assert process.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = points.read_text().splitlines()
    assert 0 < len(done) < 8
    made = (killed / "first_task.pt").stat().st_mtime_ns
    for out in (killed, whole):
        tune.main([*flags, "--out", str(out)])
    output = capsys.readouterr().out
    results = [json.loads((out / "tune.json").read_text()) for out in (killed, whole)]
    for result in results:
        assert len(result["points"]) == 8
        for point in result["points"]:
            del point["seconds"]
        assert output.count(f"flags to paste: {result['flags']}\n") >= 1
    assert results[0]["points"] == results[1]["points"]
    lines = points.read_text().splitlines()
    assert lines[: len(done)] == done  # kept, and
    assert len(lines) == len({line.split('"old"')[0] for line in lines}) == 8  # none twice
    assert (killed / "first_task.pt").stat().st_mtime_ns == made  # not learned again
    assert (whole / "tune.png").read_bytes().startswith(b"\x89PNG")
    assert output.count("<- chosen") == 2
    assert not [child for child in children if Path(f"/proc/{child}/status").exists()
                and "zombie" not in Path(f"/proc/{child}/status").read_text()]  # no child outlives its parent


def test_a_helper_on_another_device_takes_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    trial = rotation.Rotation.__call__

    def count(self: rotation.Rotation, q: float, s: float) -> Point:
        tried.append((q, s))
        return trial(self, q, s)

    monkeypatch.setattr(rotation.Rotation, "__call__", count)
    monkeypatch.setattr(rotation, "processes_for", lambda device: 0)
    monkeypatch.setattr(first_task, "further_gpus", lambda model: ["cpu"])
    monkeypatch.chdir(REPO)
    tune.main(f"--model er_sbs --dataset seq-digits {SMALL} --lr .05 --sbs-grid 0 .2 .4 --base_path {tmp_path} "
              f"--out {tmp_path} --non_verbose 1".split())
    pairs = grid("auto", "auto", (0, 0.2, 0.4))
    assert tried == pairs[::2]
    result = json.loads((tmp_path / "tune.json").read_text())
    assert [(p["q"], p["s"]) for p in result["points"]] == pairs


@pytest.mark.parametrize(("flags", "line"), [
    ("--model er_sbs --dataset seq-digits --sbs-q .2 --sbs-s .2", "neither --sbs-q nor --sbs-s is left to a search"),
    ("--model er_sbs --dataset seq-digits --sbs-q share --sbs-s share",
     "neither --sbs-q nor --sbs-s is left to a search"),
    ("--model er --dataset seq-digits", "--model er: the stock method has no q and s; take --model er_sbs"),
    ("--model er_sbs --dataset seq-digits --sbs-gird 0 .2", "unknown flag --sbs-gird; did you mean --sbs-grid"),
])
def test_the_command_says_what_is_wrong(flags: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        tune.main(flags.split())


def test_the_command_does_not_run_on_a_folder_that_is_no_mammoth(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMMOTH_ROOT", str(tmp_path))
    with pytest.raises(UserError, match="not a Mammoth checkout, it has no main.py"):
        tune.main(["--model", "er_sbs"])

"""A dry run: what there is to do, and the time it will take."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import mammoth_main
from tests.experiments.conftest import BASE


def test_dry_run_lists_the_runs_and_the_time(do: Callable[..., Path], capfd: pytest.CaptureFixture) -> None:
    text = f"{{base: {BASE} --model er_sbs, grid: {{sbs-q: [0, auto]}}, seeds: 2}}"
    folder = do(text, "--dry-run", "--jobs", "2")
    out = capfd.readouterr().out
    assert len(re.findall(r"^to do     [0-9a-f]{16}  --sbs-q (0|auto) --seed [01]$", out, re.M)) == 4
    assert "0 finished, 4 to do; 4 of them share 2 first tasks" in out
    assert re.search(r"expected time: about 0:00:\d\d with 2 at a time \(from a few steps of each kind of run\)", out)
    assert not folder.exists()
    do(text.replace("seeds: 2", "seeds: 1").replace(", auto", ""))
    do(text, "--dry-run")
    out = capfd.readouterr().out
    assert len(re.findall(r"^finished  [0-9a-f]{16}", out, re.M)) == 1 and "1 finished, 3 to do" in out
    assert "(from the finished runs)" in out


def test_the_expected_time_is_that_of_all_steps_and_evaluations_of_the_whole_data(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that moves by a second whenever it is read, a step and a batch of test images take one each."""
    from mammoth_sbs.experiments import duration

    ticks = itertools.count()
    monkeypatch.setattr(duration, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    words = ["--model", "er", *f"{BASE} --batch_size 16 --seed 0".split()]
    first, rest = duration.calibrate(words, 1)
    dataset = mammoth_main.initialize(mammoth_main.parse_args(words))[1]
    dataset.get_data_loaders()
    steps = [len(dataset.train_loader)]
    batch, tested = 16, len(dataset.test_loaders[0].dataset)
    dataset.get_data_loaders()
    steps.append(len(dataset.train_loader))
    assert min(steps) > 10  # more than were made
    assert first == 2 * steps[0]
    build, per_image = 1, 1 / batch
    assert rest == pytest.approx(build + 2 * steps[1] + per_image * tested * (1 + 2))

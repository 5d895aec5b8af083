"""Where a search on a first task keeps its files, what it writes, and how further GPUs are asked."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs.errors import UserError
from mammoth_sbs.tuning import first_task
from mammoth_sbs.tuning.pairs import grid


def args(base: Path, **more: Any) -> Namespace:
    return Namespace(**{"model": "er-sbs", "dataset": "seq-digits", "seed": 3, "lr": 0.1, "sbs_q": "auto",
                        "sbs_s": "auto", "sampler": "speed", "base_path": str(base), "results_path": "results/"} | more)


def test_searches_on_the_same_first_task_share_a_folder(tmp_path: Path) -> None:
    usual = args(tmp_path)
    out = first_task.place(usual, None)
    assert out.parent == tmp_path / "results" / "tune" and out.name.startswith("seq-digits_er-sbs_")
    assert usual.shared_first_task == str(out / "first_task.pt") and out.is_dir() and not list(out.iterdir())
    for alike in ({"sbs_q": 0.2}, {"sbs_grid": [0.1]}, {"sbs_tune_epochs": 5}, {"device": "cpu"}):
        assert first_task.place(args(tmp_path, **alike), None) == out, alike
    assert first_task.place(args(tmp_path, lr=0.2), None) != out != first_task.place(args(tmp_path, seed=4), None)
    later = args(tmp_path, start=1)
    assert first_task.place(later, None, {"start", "shared_first_task"}) == out
    assert first_task.place(args(tmp_path, start=1), None) != out
    mine = args(tmp_path, shared_first_task=str(tmp_path / "x.pt"))
    assert first_task.place(mine, tmp_path / "mine") == tmp_path / "mine"
    assert mine.shared_first_task == str(tmp_path / "x.pt")


def test_places_are_tried_before_anything_is_learned(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the result .*; see --out, --base_path and --results_path"):
        first_task.place(args(tmp_path), tmp_path / "file")


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = {"q": 0.2, "s": 0.05, "epochs": 3, "points": []}
    found = first_task.write(tmp_path, args(tmp_path), choice, 12.3456, ["--model", "er_sbs", "--data", "my data"])
    assert found == json.loads((tmp_path / "tune.json").read_text()) == {
        "command": "mammoth-sbs tune --model er_sbs --data 'my data'", "flags": "--sbs-q 0.2 --sbs-s 0.05",
        "model": "er-sbs", "dataset": "seq-digits", "seed": 3, "seconds": 12.35, **choice}
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^--sbs-q 0.2 --sbs-s 0.05 was chosen, but cannot write .*; it is saved as"):
        first_task.write(tmp_path / "file", args(tmp_path), choice, 1.0, [])


def test_further_gpus_are_all_but_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for device, others in (("cuda:1", ["cuda:0", "cuda:2"]), ("cuda", ["cuda:1", "cuda:2"]), ("cpu", [])):
        assert first_task.further_gpus(SimpleNamespace(device=torch.device(device))) == others


def test_a_helper_is_this_command_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(first_task.subprocess, "Popen", lambda words, stdout: asked.append(words))
    first_task.helper(["--model", "er_sbs"], "1/3", "cuda:1")
    assert asked == [[sys.executable, "-m", "mammoth_sbs", "tune", "--model", "er_sbs", "--device", "cuda:1", "--share",
                      "1/3"]]


def test_pairs_that_leave_a_twentieth_of_the_task_count() -> None:
    """0.55 + 0.4 is 0.9500000000000001."""
    assert grid("auto", "auto", [0.55, 0.4]) == [(0.4, 0.4), (0.4, 0.55), (0.55, 0.4)]
    assert grid("auto", "auto", [0.0, 0.95]) == [(0.0, 0.0), (0.0, 0.95), (0.95, 0.0)]
    assert grid("auto", "auto", [0.0, 0.1, 0.951]) == [(0.0, 0.0), (0.0, 0.1), (0.1, 0.0), (0.1, 0.1)]

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

from utils import training


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
    monkeypatch.setattr(first_task.subprocess, "Popen", lambda words, stdout: asked.append(words) or "it")
    assert first_task.helper(["--model", "er_sbs"], "1/3", "cuda:1") == "it"
    assert asked == [[sys.executable, "-m", "mammoth_sbs", "tune", "--model", "er_sbs", "--device", "cuda:1", "--share",
                      "1/3"]]


def test_pairs_that_leave_a_twentieth_of_the_task_count() -> None:
    """0.55 + 0.4 is 0.9500000000000001."""
    assert grid("auto", "auto", [0.55, 0.4]) == [(0.4, 0.4), (0.4, 0.55), (0.55, 0.4)]
    assert grid("auto", "auto", [0.0, 0.95]) == [(0.0, 0.0), (0.0, 0.95), (0.95, 0.0)]
    assert grid("auto", "auto", [0.0, 0.1, 0.951]) == [(0.0, 0.0), (0.0, 0.1), (0.1, 0.0), (0.1, 0.1)]


# ---- the search itself, with stand-ins for all that learns


class Host:
    """A host that notes what is asked of it, in order. Its clock goes on by ten seconds with every choice."""

    OF_THE_START = frozenset({"start"})

    def __init__(self, monkeypatch: pytest.MonkeyPatch, others: list[str]) -> None:
        self.notes: list[Any] = []
        self.clock = 1000.0
        note = self.notes.append
        self.dataset = SimpleNamespace(get_data_loaders=lambda: note("loaders"),
                                       train_loader=SimpleNamespace(dataset="data"))
        self.model = SimpleNamespace(
            net=SimpleNamespace(train=lambda: note("train")), choice={"task": 1, "q": 0.4, "s": 0.1},
            meta_begin_task=lambda dataset: note(("begin", dataset is self.dataset)),
            close_task=lambda dataset: note(("close", dataset is self.dataset)), describe=lambda data: f"of {data}")
        monkeypatch.setattr(first_task, "time", SimpleNamespace(monotonic=lambda: self.clock))
        monkeypatch.setattr(first_task, "choose", self.choose)
        monkeypatch.setattr(first_task, "further_gpus", lambda model: others if model is self.model else None)
        monkeypatch.setattr(first_task, "helper", self.helper)
        monkeypatch.setattr(training, "learn_first_task", self.learn)

    def initialize(self, args: Namespace) -> tuple[Any, Any, Namespace]:
        self.begun_with = Namespace(**vars(args))
        return self.model, self.dataset, args

    def learn(self, model: Any, dataset: Any, args: Namespace) -> None:
        assert (model, dataset) == (self.model, self.dataset) and args.shared_first_task
        self.notes.append("learn")

    def train(self, model: Any, dataset: Any, args: Namespace) -> None:
        self.learn(model, dataset, args)
        self.clock += 10

    def choose(self, model: Any, dataset: Any, task: Any, part: tuple[int, int] = (0, 1)) -> dict[str, Any]:
        assert (model, dataset, task) == (self.model, self.dataset, "of data")
        self.notes.append(("choose", part))
        self.clock += 10
        return {"q": 0.2, "s": 0.3, "points": [part]}

    def helper(self, argv: list[str], share: str, device: str) -> Any:
        self.notes.append(("helper", argv, share, device))
        return SimpleNamespace(wait=lambda: self.notes.append(("wait", device)))


ALONE = ["train", "loaders", ("begin", True), "learn", ("close", True)]


@pytest.mark.parametrize("typed", [{"device": None}, {"device": "cuda:0"}, {"device": None, "sbs_q": 0.2},
                                   {"device": None, "sbs_s": 0.2}])
def test_one_device_learns_the_task_and_then_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     typed: dict[str, Any]) -> None:
    host = Host(monkeypatch, [])
    out, found = first_task.tune(host, args(tmp_path, **typed), tmp_path / "out", (0, 1), ["--x"])  # type: ignore
    assert host.notes == [*ALONE, ("choose", (0, 1))]
    assert out == tmp_path / "out" and found == json.loads((out / "tune.json").read_text()) | {"points": [(0, 1)]}
    assert (found["q"], found["s"], found["seconds"], found["command"]) == (0.2, 0.3, 10.0, "mammoth-sbs tune --x")


@pytest.mark.parametrize("typed", [{}, {"sbs_q": 0.2}, {"sbs_s": "rule"}])
def test_further_gpus_take_their_shares_and_then_all_is_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                     typed: dict[str, Any]) -> None:
    host = Host(monkeypatch, ["cuda:1", "cuda:2"])
    result = first_task.tune(host, args(tmp_path, device=None, **typed), tmp_path, (0, 1), ["--x"])  # type: ignore
    assert host.notes == [*ALONE, ("helper", ["--x"], "1/3", "cuda:1"), ("helper", ["--x"], "2/3", "cuda:2"),
                          ("choose", (0, 3)), ("wait", "cuda:1"), ("wait", "cuda:2"), ("choose", (0, 1))]
    assert result and result[1]["points"] == [(0, 1)] and result[1]["seconds"] == 20.0


@pytest.mark.parametrize("typed", [{"device": "cuda:0"}, {"device": None, "sbs_q": 0.2, "sbs_s": "rule"}])
def test_a_device_that_was_named_and_the_rule_need_no_further_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                  typed: dict[str, Any]) -> None:
    host = Host(monkeypatch, ["cuda:1"])
    assert first_task.tune(host, args(tmp_path, **typed), tmp_path, (0, 1), []) is not None  # type: ignore
    assert host.notes == [*ALONE, ("choose", (0, 1))]


@pytest.mark.parametrize("share", [(1, 3), (2, 3)])
def test_a_helper_tries_its_share_and_writes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                       share: tuple[int, int]) -> None:
    host = Host(monkeypatch, ["cuda:1"])
    assert first_task.tune(host, args(tmp_path, device="cuda:2"), tmp_path, share, []) is None  # type: ignore
    assert host.notes == [*ALONE, ("choose", share)] and not (tmp_path / "tune.json").exists()


def test_on_mammoth_a_run_of_the_first_task_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, folder = Host(monkeypatch, ["cuda:1"]), Path("mine")
    monkeypatch.chdir(tmp_path)
    out, found = first_task.tune_on_mammoth(host, args(tmp_path, device=None), folder, ["--x"])
    assert out == folder and found == json.loads((tmp_path / "mine" / "tune.json").read_text())
    assert (found["q"], found["s"], found["seconds"]) == (0.4, 0.1, 10.0) and "task" not in found
    assert host.notes == ["learn"]
    begun = host.begun_with
    assert (begun.stop_after, begun.disable_log) == (1, True)
    assert begun.shared_first_task == str(tmp_path / "mine" / "first_task.pt")  # Mammoth works elsewhere
    places = [first_task.tune_on_mammoth(host, args(tmp_path, **more), None, [])[0] for more in ({}, {"start": 1})]
    assert places[0] == places[1]  # what begins a run makes no other task

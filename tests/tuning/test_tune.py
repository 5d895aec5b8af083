"""q and s chosen by the rotation task."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mammoth_sbs.commands import tune
from mammoth_sbs.errors import UserError
from mammoth_sbs.figures import heatmap
from mammoth_sbs.models.base import content
from mammoth_sbs.models.flags import GRID
from mammoth_sbs.tuning import first_task, rotation
from mammoth_sbs.tuning.pairs import Point, best, grid, rule
from mammoth_sbs.tuning.search import Journal, search
from tests.conftest import REPO, STOCK

from datasets.utils.continual_dataset import ContinualDataset
from utils.training import train, train_task

Start = Callable[..., SimpleNamespace]
SMALL = "--train_per_class 40 --buffer_size 40 --n_epochs 2"
CONV = f"{SMALL} --backbone tiny-resnet18 --num_filters 4"
AUTO = "--sbs-q auto --sbs-s auto --sbs-grid .2 .4"


def learn(it: SimpleNamespace, tasks: int = 1) -> rotation.Rotation:
    """Train some tasks, up to the moment before the last one's buffer is filled."""
    for t in range(tasks):
        it.dataset.get_data_loaders()
        it.model.meta_begin_task(it.dataset)
        train_task(it.model, it.dataset, it.args)
        if t < tasks - 1:
            it.model.meta_end_task(it.dataset)
    it.model.close_task(it.dataset)
    return rotation.Rotation(it.model, it.dataset, it.model.describe(it.dataset.train_loader.dataset))


def everything(model: Any) -> list[torch.Tensor]:
    """All that a search must not change: network, buffer, optimiser, and every generator's state."""
    return [*(value.clone() for value in model.net.state_dict().values()),
            *(p.grad.clone() for p in model.net.parameters() if p.grad is not None),
            *(value.clone() for value in content(model.buffer).values()),
            torch.tensor([len(model.buffer), model.current_task, model.args.batch_size, model.net.training]),
            model.generator.get_state(), torch.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(np.int64)),
            torch.tensor(random.getstate()[1])]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ---- a run that chooses is the run that was given the pair

@pytest.mark.parametrize("name", ["er", "derpp", "xder", "gem", "rpc", "fdr"])
def test_a_run_with_auto_ends_as_the_run_given_what_it_chose(start: Start, name: str) -> None:
    ends = []
    pair = AUTO
    for _ in range(2):
        it = start(f"{name}_sbs", f"{CONV} --stop_after 2 --disable_log 1 {pair}")
        train(it.model, it.dataset, it.args)
        ends.append(everything(it.model))
        if it.model.choice is not None:
            chosen = best([Point(**p) for p in it.model.choice["points"]])
            assert (it.model.sampler.band.q, it.model.sampler.band.s) == (chosen.q, chosen.s)
            pair = f"--sbs-q {chosen.q} --sbs-s {chosen.s}"
    assert pair != AUTO
    assert same(*ends)


@pytest.mark.parametrize("name", STOCK)
def test_a_trial_in_this_process_leaves_the_model_as_it_was(start: Start, name: str) -> None:
    it = start(f"{name}_sbs", CONV)
    trials = learn(it, tasks=2)
    args, before = copy.deepcopy(vars(it.args)), everything(it.model)
    trials(0.2, 0.4)
    assert same(before, everything(it.model))
    assert vars(it.args) == args
    assert it.model.net.classifier.out_features == 10
    assert it.model.dataset is it.dataset


def test_processes_change_nothing_but_the_time(start: Start) -> None:
    trials = learn(start("derpp_sbs", f"{SMALL} --n_tasks 2 --sbs-tune-epochs 3"))
    pairs = grid("auto", "auto", (0, 0.4))
    here, forked, two = ([point._replace(seconds=0) for point in search(trials, pairs, Journal(None, ""), n, True)]
                         for n in (0, 1, 2))
    assert here == forked == two
    assert len({point[2:5] for point in here}) > 1  # there is something to tell apart


# ---- what a trial is

def test_the_test_set_is_never_touched(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidden:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the test set was touched: {name}")

        __iter__ = __len__ = __getitem__ = lambda self, *args: self.__getattr__("its examples")

    get_data_loaders = ContinualDataset.get_data_loaders

    def without_test_data(self: ContinualDataset) -> Any:
        loaders = get_data_loaders(self)
        self.test_loaders[:] = [Forbidden() for _ in self.test_loaders]
        self.source = self.source._replace(test=Forbidden())
        return loaders

    monkeypatch.setattr(ContinualDataset, "get_data_loaders", without_test_data)
    it = start("er_sbs", f"{SMALL} {AUTO}")
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    train_task(it.model, it.dataset, it.args)
    it.model.meta_end_task(it.dataset)  # searches
    assert len(it.model.choice["points"]) == 4
    tune.main(f"--model er_sbs --dataset seq-digits --base_path {tmp_path} --out {tmp_path} {SMALL} --sbs-grid 0 .4 "
              "--non_verbose 1".split())
    with pytest.raises(AssertionError, match="was touched"):  # the guard works
        next(iter(it.dataset.test_loaders[0]))


@pytest.mark.parametrize("name", ["er", "gem", "fdr"])
def test_no_tuning_buffer_and_no_rotation_step_sees_the_held_out_tenth(
        start: Start, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = start(f"{name}_sbs", "--train_per_class 40 --n_epochs 2 --buffer_size 1000 --sbs-q 0 --sbs-s 0")
    trials = learn(it)
    labels = trials.task.labels
    assert torch.bincount(labels[trials.held_out]).tolist() == [4, 4]  # a tenth of each class
    images = {tuple(x.flatten().tolist()) for x in it.dataset.train_loader.dataset.data[trials.held_out]}
    seen = []
    trial_class = type(it.model)
    observe = trial_class.observe

    def watch(self: Any, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: int, sbs_index: Any) -> float:
        stored = (self.buffer.examples[: len(self.buffer)] * 255).round().to(torch.uint8)
        assert not images & {tuple(x.flatten().tolist()) for x in stored}
        for k in range(4):  # whichever way it was turned
            turned = torch.rot90((not_aug_inputs * 255).round().to(torch.uint8), k, (-2, -1))
            assert not images & {tuple(x.flatten().tolist()) for x in turned}
        seen.append(len(stored))
        return observe(self, inputs, labels, not_aug_inputs, epoch, sbs_index)

    monkeypatch.setattr(trial_class, "observe", watch)
    trials(0, 0)
    assert seen == [72] * 3  # the buffer takes all of the nine tenths, and all of them are learned
    monkeypatch.undo()
    assert len(it.model.fill(it.dataset, trials.task)) == 80  # the run's own buffer draws from everything


def test_images_are_augmented_then_turned() -> None:
    images = torch.arange(2 * 9).view(2, 1, 3, 3).to(torch.uint8)
    loader = rotation.TurnedImages(images, torch.tensor([3, 1]), torch.tensor([0, 1]), 10, lambda x: x.flip(-1), 2, 0)
    (inputs, labels, not_aug, index), = loader
    for k, row in enumerate(index.tolist()):
        turns = int(labels[k]) - 10
        assert turns == [3, 1][row]
        x = images[row].numpy()[0] / np.float32(255)
        assert np.array_equal(not_aug[k, 0], np.rot90(x, turns))
        assert np.array_equal(inputs[k, 0], np.rot90(x[:, ::-1], turns))  # turned, then mirrored: 90 would be 270


def test_a_last_batch_of_one_is_left_out() -> None:
    images, rows = torch.zeros(9, 1, 3, 3, dtype=torch.uint8), torch.arange(9)
    loader = rotation.TurnedImages(images, torch.zeros(9, dtype=torch.int64), rows, 0, None, 4, 0)
    assert [len(batch[1]) for batch in loader] == [4, 4]


@pytest.mark.parametrize("scope", ["task", "seen"])
@pytest.mark.parametrize("name", STOCK)
def test_the_widened_model_says_of_old_classes_what_the_model_said(start: Start, name: str, scope: str) -> None:
    it = start(f"{name}_sbs", f"{SMALL} --sbs-scope {scope}")
    trials = learn(it, tasks=3)
    with trials.same_randomness() as generator:
        filled = trials.copied(generator)
        filled.fill(it.dataset, trials.task)
        stored = {key: value.clone() for key, value in content(filled.buffer).items()}
        x = rotation.apply(it.model.normalization_transform, stored["examples"])
        with torch.no_grad():
            said = filled.net.eval()(x)
        trial, data = trials.widened(filled, 0.2, 0.2)
    assert (trials.tasks, trials.width, data.N_CLASSES, trial.cpt, trial.n_tasks) == (4, 4, 16, 4, 4)
    place = [0, 1, 4, 5, 8, 9]  # two classes per task, four outputs
    with torch.no_grad():
        assert torch.allclose(trial.net.eval()(x)[:, place], said[:, :6], atol=1e-5)
    now = content(trial.buffer)
    if "labels" in now:
        assert now["labels"].tolist() == [place[c] for c in stored["labels"].tolist()]
    if "logits" in now:
        assert now["logits"].shape[1] == 16
        assert torch.equal(now["logits"][:, place], stored["logits"][:, :6])
    trial.meta_begin_task(data)
    assert (trial.current_task, trial.n_past_classes, trial.n_seen_classes) == (3, 12, 16)
    assert set(data.train_loader.targets.tolist()) == {12, 13, 14, 15}
    if scope == "task":  # among the task's classes nothing has changed yet, the RPC head included
        assert torch.equal(trials.correct(trial), trials.known)


def test_the_rotation_task_is_learned_and_the_old_one_measured(start: Start) -> None:
    it = start("er_sbs", "--n_tasks 2 --n_epochs 3 --buffer_size 100 --sbs-tune-epochs 30")
    trials = learn(it)
    point = trials(0, 0)
    assert point.rotation > 75  # chance is 25
    assert point.old > 75  # chance is 20
    assert point.stored == 100
    assert point.score == (point.old + point.rotation) / 2


def test_forgotten_is_of_what_was_known(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = learn(start("er_sbs", SMALL))
    trials.known = torch.tensor([True] * 6 + [False] * 2)
    after = torch.tensor([True] * 3 + [False] * 3 + [True] * 2)
    monkeypatch.setattr(trials, "correct", lambda model, turned=False: after if not turned else ~after)
    point = trials(0, 0)
    assert (point.old, point.rotation, point.forgotten) == (62.5, 37.5, 50.0)


# ---- the grid, the choice, the rule

def test_the_default_grid_has_13_pairs() -> None:
    pairs = grid("auto", "auto", GRID)
    assert len(pairs) == 13
    assert all(q + s < 1 for q, s in pairs)
    assert grid("auto", 0.5, GRID) == [(0.0, 0.5), (0.2, 0.5), (0.4, 0.5)]
    assert grid(0.3, "auto", [0.4, 0, 0.4]) == [(0.3, 0), (0.3, 0.4)]


def test_of_equal_scores_the_pair_nearest_to_the_papers_is_taken() -> None:
    points = [Point(q, s, old, 30, 0, 0, 0) for q, s, old in ((0, 0, 60), (0.2, 0.4, 60), (0.4, 0.4, 60), (0, 0.2, 50))]
    assert best(points)[:2] == (0.2, 0.4)
    assert best([*points, Point(0.6, 0, 60.2, 30, 0, 0, 0)])[:2] == (0.6, 0)
    of_70 = [Point(0.6, 0.2, 100, 100 * 54 / 70, 0, 0, 0), Point(0.2, 0, 100 * 69 / 70, 100 * 55 / 70, 0, 0, 0)]
    assert best(of_70)[:2] == (0.2, 0)  # equal but for rounding


def test_the_rule_leaves_out_what_is_forgotten() -> None:
    assert rule(0.0) == (0.4, 0.0)
    assert rule(0.15) == (0.25, 0.15)
    assert rule(0.2) == (0.2, 0.2)
    assert rule(0.9) == (0.0, 0.4)


@pytest.mark.parametrize(("typed", "tried"), [
    ("--sbs-q rule --sbs-s rule", [(0, 0)]), ("--sbs-q rule --sbs-s .3", [(0, 0)]),
    ("--sbs-q auto --sbs-s .3", [(0, 0.3), (0.4, 0.3)]), ("--sbs-q auto --sbs-s rule", None)])
def test_one_side_may_be_given(start: Start, monkeypatch: pytest.MonkeyPatch, typed: str, tried: Any) -> None:
    trial = rotation.Rotation.__call__
    monkeypatch.setattr(rotation.Rotation, "__call__",
                        lambda self, q, s: trial(self, q, s)._replace(forgotten=25.0, old=100 * q, rotation=0.0))
    it = start("er_sbs", f"{SMALL} --stop_after 1 --disable_log 1 --sbs-grid 0 .4 {typed}")
    train(it.model, it.dataset, it.args)
    choice = it.model.choice
    expected = {"rule": (0.15, 0.25), "auto": (0.4, 0.4)}
    for side, flag in ((0, "q"), (1, "s")):
        given = getattr(it.args, f"sbs_{flag}")
        assert choice[flag] == (expected[given][side] if given in expected else given)
    assert (it.model.sampler.band.q, it.model.sampler.band.s) == (choice["q"], choice["s"])
    tried = tried or [(0, 0.25), (0.4, 0.25)]
    assert [(p["q"], p["s"]) for p in choice["points"]] == tried


@pytest.mark.parametrize(("when", "tasks"), [("first", [1]), ("each", [1, 2, 3, 4])])
def test_each_chooses_at_every_task_that_has_a_next(run: Callable, when: str, tasks: list[int]) -> None:
    result = run("er_sbs", f"--train_per_class 20 --buffer_size 40 --n_epochs 1 {AUTO} --sbs-tune {when}")
    entries = result["sbs"]["tasks"]
    assert [entry["task"] for entry in entries if entry["choice"]] == tasks
    assert entries[0]["choice"]["held_out"] == 4
    assert (result["sbs"]["q"], result["sbs"]["s"]) == ("auto", "auto")  # what was typed


def test_a_resumed_run_keeps_the_pair(start: Start, tmp_path: Path) -> None:
    flags = f"{SMALL} {AUTO} --disable_log 1"
    whole = start("er_sbs", f"{flags} --stop_after 2")
    train(whole.model, whole.dataset, whole.args)
    first = start("er_sbs", f"{flags} --stop_after 1 --savecheck task --ckpt_name part")
    train(first.model, first.dataset, first.args)
    rest = start("er_sbs", f"{flags} --stop_after 2 --loadcheck {tmp_path / 'part_0.pt'}")
    train(rest.model, rest.dataset, rest.args)
    assert rest.model.choice == {**whole.model.choice, "points": rest.model.choice["points"]}
    assert same(everything(whole.model), everything(rest.model))


# ---- stopping and starting again

def a_trial(tried: list, stop_at: int | None = None) -> Callable[[float, float], Point]:
    def trial(q: float, s: float) -> Point:
        if len(tried) == stop_at:
            raise KeyboardInterrupt
        tried.append((q, s))
        return Point(q, s, 50 + q, 50, 0, 10, 1)

    return trial


def test_a_search_that_was_stopped_goes_on_at_the_next_pair(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pairs, file = grid("auto", "auto", GRID), tmp_path / "points.jsonl"
    tried: list = []
    with pytest.raises(KeyboardInterrupt):
        search(a_trial(tried, stop_at=5), pairs, Journal(file, "a"), 0)
    assert tried == pairs[:5]
    capsys.readouterr()
    points = search(a_trial(tried), pairs, Journal(file, "a"), 0)
    assert tried == pairs  # each once
    assert [point[:2] for point in points] == pairs
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("choosing q and s: 6/13 pairs, q 0.2 s 0.2 scores 50.10")
    assert lines[-1].endswith("about 0 s left")
    assert len(file.read_text().splitlines()) == 13
    search(a_trial(tried), pairs, Journal(file, "another search"), 0, silent=True)
    assert tried == pairs * 2  # what another model scored does not count


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_a_line_that_was_broken_off_neither_counts_nor_spoils_the_next(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "points.jsonl"
    journal = Journal(file, "a")
    for q in (0.0, 0.2):
        journal.add(Point(q, 0, 1, 2, 3, 4, 5))
    file.write_bytes(file.read_bytes()[:-cut])
    whole = {(0.0, 0), (0.2, 0)} if cut == 1 else {(0.0, 0)}  # only the end of the line is missing
    assert journal.read().keys() == whole
    journal.add(Point(0.4, 0, 1, 2, 3, 4, 5))
    assert journal.read().keys() == whole | {(0.4, 0)}


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


def test_a_child_that_dies_is_reported_in_one_line() -> None:
    def dies(q: float, s: float) -> Point:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with pytest.raises(SystemExit, match=r"^error: a process of the search for q and s ended with code -9.*"):
        search(dies, [(0, 0), (0, 0.2)], Journal(None, ""), 2, silent=True)


# ---- the heat map

def test_the_heat_map_shows_differences_red_is_better_and_boxes_uniform(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    values = {(0.0, 0.0): 60.0, (0.0, 0.2): 63.0, (0.2, 0.0): 58.0}
    assert heatmap.differences(values) == {(0.0, 0.0): 0.0, (0.0, 0.2): 3.0, (0.2, 0.0): -2.0}
    axis = Figure().subplots()
    image = heatmap._panel(axis, heatmap.differences(values), "RdBu_r", (-3.0, 3.0), "{:+.1f}", None)
    red, blue = (image.cmap(image.norm(value)) for value in (2.0, -2.0))
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    cells = image.get_array()
    assert cells[1, 0] == 3.0  # s goes up
    assert cells[0, 1] == -2.0  # q goes right
    assert cells.mask[1, 1]  # not tried
    (box,) = axis.patches
    assert (box.get_x(), box.get_y()) == (-0.5, -0.5)
    assert box.get_edgecolor()[:3] == (0, 0, 0)
    png, svg = heatmap.draw({"a": values, "b": {(0.2, 0.2): 1.0, (0.4, 0.2): 2.0}}, tmp_path / "map")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "difference to the mean" in svg.read_text()  # one panel has no (0, 0)


# ---- the study of docs/tune.md

def test_the_tables_of_the_study_come_out_of_its_committed_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    script = SourceFileLoader("tune_study", str(REPO / "scripts" / "tune_study"))
    study = module_from_spec(spec_from_loader(script.name, script))
    script.exec_module(study)
    study.report(REPO / "results" / "tune" / "study.jsonl", tmp_path / "study")
    assert capsys.readouterr().out.strip() in (REPO / "docs" / "tune.md").read_text()


# ---- bad input

@pytest.mark.parametrize(("flags", "line"), [
    ("--sbs-q auto --sbs-s auto --sbs-grid .3", "leaves one pair.* give more values, or --sbs-q 0.3 --sbs-s 0.3"),
    ("--sbs-q auto --sbs-s auto --sbs-grid .5 .6", r"--sbs-grid 0.5 0.6: q \+ s is 1 or more in every pair"),
    ("--sbs-q auto --sbs-s .8", "leaves one pair"),
    ("--sbs-q auto --sbs-s auto --sbs-grid 0 20", r"a fraction in \[0, 1\), not 20; did you mean 0.2?"),
    ("--sbs-q atuo", r"--sbs-q takes a fraction in \[0, 1\), auto, rule, not atuo"),
    ("--sbs-s auto --sampler uniform", "--sbs-s auto: --sampler uniform has no q and s to choose"),
    ("--sbs-q rule --sbs-s .6", "--sbs-s 0.6: the rule may give 0.4 on the other side"),
    ("--sbs-q auto --sbs-tune-epochs 0", "at least 1 is needed, not 0"),
    ("--sbs-q auto --sbs-tune never", "invalid choice"),
])
def test_bad_flags_are_one_line_before_anything_is_trained(start: Start, flags: str, line: str) -> None:
    with pytest.raises(UserError, match=rf"^error: .*{line}") as error:
        start("er_sbs", flags)
    assert "\n" not in str(error.value)


def test_a_task_too_small_for_a_tenth_is_one_line(start: Start) -> None:
    it = start("er_sbs", f"{AUTO} --train_per_class 9 --disable_log 1")
    with pytest.raises(UserError, match="no class of task 1 has 10 examples; give numbers"):
        train(it.model, it.dataset, it.args)


@pytest.mark.parametrize(("flags", "line"), [
    ("--model er_sbs --dataset seq-digits --sbs-q .2 --sbs-s .2", "both numbers"),
    ("--model er --dataset seq-digits", "--model er: the stock method has no q and s; take --model er_sbs"),
    ("--model er_sbs --dataset seq-digits --sbs-gird 0 .2", "unknown flag --sbs-gird; did you mean --sbs-grid"),
])
def test_the_command_says_what_is_wrong(flags: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        tune.main(flags.split())


def test_the_command_does_not_run_on_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMMOTH_ROOT", str(tmp_path))
    with pytest.raises(UserError, match="embedded host only.* --sbs-q auto"):
        tune.main(["--model", "er_sbs"])


def test_one_epoch_and_a_buffer_larger_than_the_band_work(start: Start, capsys: pytest.CaptureFixture) -> None:
    it = start("er_sbs", f"--train_per_class 40 --buffer_size 100 --n_epochs 1 --stop_after 1 --disable_log 1 {AUTO}")
    train(it.model, it.dataset, it.args)
    assert "with --n_epochs 1 learning speed is 0 or 1" in capsys.readouterr().out
    assert [p["stored"] for p in it.model.choice["points"]] == [44, 30, 30, 16]  # what each band has of the 72


def test_epochs_default_to_a_tenth() -> None:
    from mammoth_sbs.tuning.pairs import tune_epochs

    for n, expected in ((1, 1), (9, 1), (15, 1), (50, 5)):
        assert tune_epochs(Namespace(sbs_tune_epochs=None, n_epochs=n)) == expected
    assert tune_epochs(Namespace(sbs_tune_epochs=7, n_epochs=50)) == 7

"""The rotation task: a run that chooses is the run that was given the pair; what a trial is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mammoth_sbs.commands import tune
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.base import content
from mammoth_sbs.tuning import rotation
from mammoth_sbs.tuning.pairs import Point, best
from tests.conftest import STOCK, Start
from tests.tuning.conftest import AUTO, CONV, SMALL, everything, learn, same

from datasets.utils.continual_dataset import ContinualDataset
from utils.training import train, train_task


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


@pytest.mark.parametrize("name", ["er", "gem"])
def test_a_trial_leaves_out_the_q_quickest_and_the_s_slowest(start: Start, name: str,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    it = start(f"{name}_sbs", "--train_per_class 40 --n_epochs 2 --buffer_size 1000 --sbs-q 0 --sbs-s 0")
    trials = learn(it)
    trials.task.speed = torch.arange(80.0).roll(7) / 80  # no ties
    stored = []
    fill = type(it.model).fill
    monkeypatch.setattr(type(it.model), "fill", lambda *args: stored.append(fill(*args)) or stored[-1])
    point = trials(0.5, 0.125)
    assert (point.q, point.s, point.stored) == (0.5, 0.125, 27 if name == "er" else 72)
    ranked = trials.rest[trials.task.speed[trials.rest].argsort(descending=True)]  # 72: 36 quickest, 9 slowest
    if name == "er":
        assert set(stored[0].tolist()) == set(ranked[36:63].tolist())
    else:  # a quota per class: the band comes first, then what is nearest to it
        labels = trials.task.labels
        for c in (0, 1):
            mine = [i for i in stored[0].tolist() if labels[i] == c]
            band = [i for i in ranked[36:63].tolist() if labels[i] == c]
            assert set(mine[: len(band)]) == set(band)


def test_images_are_augmented_then_turned() -> None:
    images = torch.arange(2 * 9).view(2, 1, 3, 3).to(torch.uint8)
    loader = rotation.TurnedImages(rotation.Pictures(images, torch.tensor([3, 1])), torch.tensor([0, 1]), 10,
                                   lambda x: x.flip(-1), 2, 0)
    (inputs, labels, not_aug, index), = loader
    for k, row in enumerate(index.tolist()):
        turns = int(labels[k]) - 10
        assert turns == [3, 1][row]
        x = images[row].numpy()[0] / np.float32(255)
        assert np.array_equal(not_aug[k, 0], np.rot90(x, turns))
        assert np.array_equal(inputs[k, 0], np.rot90(x[:, ::-1], turns))  # turned, then mirrored: 90 would be 270


def test_a_last_batch_of_one_is_left_out() -> None:
    images, rows = torch.zeros(9, 1, 3, 3, dtype=torch.uint8), torch.arange(9)
    loader = rotation.TurnedImages(rotation.Pictures(images, torch.zeros(9, dtype=torch.int64)), rows, 0, None, 4, 0)
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


def test_a_task_too_small_for_a_tenth_is_one_line(start: Start) -> None:
    it = start("er_sbs", f"{AUTO} --train_per_class 9 --disable_log 1")
    with pytest.raises(UserError, match="no class of task 1 has 10 examples; give numbers"):
        train(it.model, it.dataset, it.args)

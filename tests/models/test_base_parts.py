"""The layer that all `_sbs` models share, part by part: flags, steps, choices, what is filled, reported and saved."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mammoth_sbs import tuning
from mammoth_sbs.core.band import SpeedBand
from mammoth_sbs.core.samplers import Task, get_sampler
from mammoth_sbs.core.samplers.speed import Speed
from mammoth_sbs.core.speed import LearningSpeed
from mammoth_sbs.errors import UserError, one_line
from mammoth_sbs.models.base import SCORES, SpeedSampled, closed, content
from mammoth_sbs.models.derpp import DerppSbs
from mammoth_sbs.models.gem import GemSbs
from mammoth_sbs.models.record import INDEX
from tests.conftest import Start

from models.agem import AGem
from models.er import Er
from utils.buffer import Buffer

FEW = "--train_per_class 6 --n_epochs 2 --buffer_size 10"


def begun(it: SimpleNamespace, task: int = 0) -> SimpleNamespace:
    """A run at the beginning of a task; `data` is the task's."""
    for _ in range(task + 1):
        it.dataset.get_data_loaders()
    it.model._current_task = task
    it.model.meta_begin_task(it.dataset)
    it.data = it.dataset.train_loader.dataset
    return it


def learned(it: SimpleNamespace, epochs: int = 2) -> SimpleNamespace:
    """As after so many epochs, in which each example was right as often as its place says."""
    for epoch in range(epochs):
        index = torch.arange(len(it.data))
        it.model.speed.update(index, index % (epochs + 1) > epoch, epoch)
    return it


# ---- buffers

def test_a_closed_buffer_takes_nothing_until_it_is_open_again() -> None:
    buffer = Buffer(3)
    with pytest.raises(KeyError), closed(buffer):
        buffer.add_data(torch.ones(1, 2), labels=torch.ones(1))
        assert buffer.is_empty()
        raise KeyError
    buffer.add_data(torch.ones(1, 2))
    assert len(buffer) == 1 and "add_data" not in vars(buffer)


def test_the_content_of_a_buffer_is_what_its_slots_in_use_hold() -> None:
    buffer = Buffer(4)
    assert content(buffer) == {}
    buffer.add_data(torch.tensor([[1.0], [2.0]]), labels=torch.tensor([5, 6]))
    assert {name: value.tolist() for name, value in content(buffer).items()} == {
        "examples": [[1], [2]], "labels": [5, 6]}


# ---- flags

def test_errors_of_other_programs_are_shown_as_ever() -> None:
    """Only on a patched checkout a mistake of the user is made one line by the models."""
    assert sys.excepthook is not one_line


def test_published_values_are_defaults_where_nothing_was_said() -> None:
    parser = ArgumentParser()
    parser.set_defaults(dataset="seq-cifar100", lr=0.7)
    assert DerppSbs.get_parser(parser) is parser
    found = {name: parser.get_default(name) for name in ("alpha", "beta", "lr", "buffer_size", "sampler", "sbs_look")}
    assert found == {"alpha": 0.1, "beta": 0.5, "lr": 0.7, "buffer_size": 500, "sampler": "speed", "sbs_look": None}
    assert parser.get_default("minibatch_size") is None and parser.get_default("sbs_record") is None
    names = {option for action in parser._actions for option in action.option_strings}
    assert {"--minibatch_size", "--sbs-record", "--sbs-during"} <= names


def test_only_methods_that_insert_at_every_step_can_be_told_what_to_do_meanwhile(start: Start) -> None:
    assert DerppSbs.inserts_each_step and not GemSbs.inserts_each_step
    assert start("derpp_sbs", "--sbs-during stock").args.sbs_during == "stock"
    assert not hasattr(start("gem_sbs").args, "sbs_during")


@pytest.mark.parametrize(("flags", "warned"), [("--n_epochs 1", True), ("--n_epochs 2", False), ("--n_epochs 3", False),
                                               ("--n_epochs 1 --sampler uniform", False)])
def test_one_epoch_ranks_nothing(start: Start, flags: str, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    start("er_sbs", flags)
    assert ("warning: with --n_epochs 1 learning speed" in capsys.readouterr().out) is warned


@pytest.mark.parametrize("name", ["stream-speed", "stream_speed", "stream_cbrs"])
def test_samplers_of_streams_are_not_for_the_end_of_a_task(start: Start, name: str) -> None:
    with pytest.raises(UserError, match=f"--sampler {name}: is for methods that insert at every step; take er_sbs"):
        start("agem_sbs", f"--sampler {name}")


def test_what_is_to_be_chosen_is_checked_before_it_is_trained(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple] = []
    monkeypatch.setattr(tuning, "check", lambda args: checked.append((args.sbs_q, args.sbs_s)))
    start("er_sbs", FEW)
    assert not checked
    for flags, band in (("--sbs-q auto --sbs-s .3", (0, 0.3)), ("--sbs-q .1 --sbs-s rule", (0.1, 0)),
                        ("--sbs-q .1 --sbs-s .3", (0.1, 0.3))):
        model = start("er_sbs", f"{FEW} {flags}").model
        assert (model.sampler.band.q, model.sampler.band.s) == band
        assert model.leaves_open is (0 in band)
    assert checked == [("auto", 0.3), (0.1, "rule")]


def test_a_sampler_gets_of_q_and_s_what_it_takes(start: Start) -> None:
    """CCS leaves out the slowest only; a uniform draw takes neither, so that they may be anything."""
    assert start("er_sbs", f"{FEW} --sampler ccs --sbs-q .2 --sbs-s .4").model.sampler.band.s == 0.4
    assert start("er_sbs", f"{FEW} --sampler uniform --sbs-q .9 --sbs-s .9").model.sampler.name == "uniform"


# ---- predictions

@pytest.mark.parametrize(("scope", "task", "predicted"), [
    ("task", None, [3, 2]), ("task", 0, [0, 1]), ("task", 2, [4, 5]), ("seen", None, [0, 2]), ("seen", 2, [0, 2])])
def test_predictions_are_among_the_classes_of_a_task_or_of_all_so_far(scope: str, task: int | None,
                                                                      predicted: list[int]) -> None:
    model: Any = SimpleNamespace(args=SimpleNamespace(sbs_scope=scope), current_task=1, n_past_classes=2,
                                 n_seen_classes=4, classify=lambda outputs: -outputs,
                                 dataset=SimpleNamespace(get_offsets=lambda t: (2 * t, 2 * t + 2)))
    logits = torch.tensor([[8.0, 2, 1, 5, 9, 7], [1, 3, 6, 2, 7, 8]])
    assert SpeedSampled.predict(model, -logits, task).tolist() == predicted


def test_training_dynamics_are_shown_the_logits_of_the_task_and_labels_as_their_columns() -> None:
    seen: list[tuple[Tensor, ...]] = []
    model: Any = SimpleNamespace(n_past_classes=2, n_seen_classes=4, classify=lambda outputs: 2 * outputs,
                                 dynamics=SimpleNamespace(update=lambda *given: seen.append(given)))
    SpeedSampled.follow(model, torch.tensor([5, 9]), torch.tensor([2, 3]), torch.arange(12.0).view(2, 6))
    ((index, labels, logits),) = seen
    assert (index.tolist(), labels.tolist(), logits.tolist()) == ([5, 9], [0, 1], [[4, 6], [16, 18]])


# ---- steps

def test_the_beginning_of_a_task(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(Er, "begin_task", lambda self, dataset: told.append(dataset), raising=False)
    it = start("er_sbs", FEW)
    it.model.buffer.add_data(torch.rand(3, 1, 8, 8), labels=torch.tensor([0, 1, 0]))
    it.model.learned = "of the task before"
    begun(it, 1)
    assert told == [it.dataset] and it.data.extra_return_fields == (INDEX,)
    assert it.data.batch(torch.tensor([7, 2]))[3].tolist() == [7, 2]
    assert it.model._before.keys() == {"labels"} and it.model._before["labels"].tolist() == [0, 1, 0]
    it.model.buffer.labels[0] = 9  # what was there is kept
    assert it.model._before["labels"].tolist() == [0, 1, 0]
    assert len(it.model.speed) == len(it.data) and it.model.learned is None and it.model.dynamics is None
    assert it.model.hook.speed is it.model.speed and it.model.hook.also is None
    assert len(it.model.net._forward_hooks) == 1
    measured = begun(start("er_sbs", f"{FEW} --sbs-score margin"))
    assert len(measured.model.dynamics.total) == len(measured.data) and measured.model.hook.also is not None


@pytest.mark.parametrize("model", ["er_sbs", "agem_sbs"])
def test_a_step_counts_its_batch_once_in_each_epoch(start: Start, model: str,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def observe(self: Any, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> float:
        given.append((inputs, labels, not_aug_inputs, epoch))
        self.net(inputs)
        return 0.5

    monkeypatch.setattr(Er if model == "er_sbs" else AGem, "observe", observe)
    it = begun(start(model, FEW))
    monkeypatch.setattr(it.model.hook, "predict", lambda outputs: it.data.targets[4:8])
    inputs, labels, raw = it.data.batch(torch.arange(4, 8))[:3]
    for epoch in (None, 0, 1, 1, 2):  # no epoch is the first
        assert it.model.observe(inputs, labels, raw, epoch=epoch, sbs_index=torch.arange(4, 8)) == 0.5
    assert it.model.speed.epochs == 3 and it.model.speed.count.tolist() == [0] * 4 + [3] * 4 + [0] * 4
    assert all(a is b for a, b in zip(given[0], (inputs, labels, raw, None), strict=True))
    assert [epoch for *_, epoch in given] == [None, 0, 1, 1, 2]


def test_after_a_task_nothing_is_measured_and_other_fields_stay(start: Start) -> None:
    it = begun(start("er_sbs", FEW))
    it.data.add_extra_return_field("other", torch.arange(len(it.data)))
    it.model.close_task(it.dataset)
    assert it.model.hook is None and not it.model.net._forward_hooks
    assert it.data.extra_return_fields == ("other",)


@pytest.mark.parametrize(("tune", "task", "before", "opened", "chooses"), [
    ("first", 0, None, True, True), ("first", 1, None, True, True), ("first", 1, 1, True, False),
    ("each", 1, 1, True, True), ("each", 3, 1, True, True), ("each", 4, 1, True, False), ("each", 4, None, True, True),
    ("first", 0, None, False, False), ("each", 1, 1, False, False)])
def test_q_and_s_are_chosen_once_or_at_each_task_that_has_a_next(
        tune: str, task: int, before: int | None, opened: bool, chooses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple] = []
    monkeypatch.setattr(tuning, "choose", lambda *given: asked.append(given) or {"q": 0.1, "s": 0.5, "points": []})
    model: Any = SimpleNamespace(args=SimpleNamespace(sbs_tune=tune), current_task=task, n_tasks=5, leaves_open=opened,
                                 choice=before and {"task": before, "q": 0.3, "s": 0.3}, sampler="as it was")
    SpeedSampled.choose_band(model, "the data set", "the task")  # type: ignore[arg-type]
    if chooses:
        assert asked == [(model, "the data set", "the task")]
        assert model.choice == {"task": task + 1, "q": 0.1, "s": 0.5, "points": []}
        assert isinstance(model.sampler, Speed) and (model.sampler.band.q, model.sampler.band.s) == (0.1, 0.5)
    else:
        assert not asked and model.sampler == "as it was"


# ---- the end of a task

def test_a_task_that_was_passed_through_ends_as_stock_and_stores_nothing(start: Start,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(AGem, "end_task", lambda self, dataset: told.append(dataset))
    it = begun(start("agem_sbs", FEW))
    it.model.meta_end_task(it.dataset)
    assert told == [it.dataset] and it.model.buffer.is_empty() and it.model.speed is it.model.hook is None
    assert it.model.run_info()["sbs"]["tasks"] == []
    it = learned(begun(start("agem_sbs", FEW)), epochs=1)
    it.model.meta_end_task(it.dataset)
    assert len(told) == 1 and len(it.model.buffer) == 8 and it.model.speed is it.model.hook is None


def test_the_parts_of_the_end_of_a_task_come_in_their_order(start: Start) -> None:
    it = learned(begun(start("er_sbs", FEW)))
    told: list[tuple] = []
    global_state = torch.get_rng_state()
    it.model.describe = lambda data: told.append(("describe", data)) or "a task"
    it.model.choose_band = lambda *given: told.append(("choose_band", *given))
    it.model.fill = lambda *given: told.append(("fill", *given, float(torch.rand(())))) or "stored"
    it.model.report = lambda *given: told.append(("report", *given))
    it.model.end_task(it.dataset)
    draw = told[2][-1]
    assert told == [("describe", it.data), ("choose_band", it.dataset, "a task"),
                    ("fill", it.dataset, "a task", draw), ("report", "a task", "stored", it.data)]
    assert torch.equal(torch.get_rng_state(), global_state) and it.model.speed is None
    torch.set_rng_state(global_state)
    assert float(torch.rand(())) != draw


def test_a_task_is_described_by_what_its_sampler_needs_and_no_pass_is_made_for_less(start: Start) -> None:
    it = learned(begun(start("er_sbs", FEW), 1))
    it.model.features_and_logits = None  # is not asked for
    task = it.model.describe(it.data)
    assert torch.equal(task.labels, it.data.targets) and task.first_class == 2
    assert torch.equal(task.speed, it.model.speed.value) and len(set(task.speed.tolist())) == 3
    assert task.features is task.logits is task.losses is task.uncertainty is None
    it.model.sampler = get_sampler("herding")
    logits = torch.randn(12, 2)
    it.model.features_and_logits = lambda data: (torch.ones(12, 3), logits)
    task = it.model.describe(it.data)
    assert task.features.tolist() == [[1, 1, 1]] * 12 and task.logits is logits
    log_p = logits.log_softmax(1)
    torch.testing.assert_close(task.losses, -log_p[torch.arange(12), it.data.targets - 2])


def test_scores_draw_from_the_models_generator_and_nobody_elses(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple] = []
    monkeypatch.setitem(SCORES, "uncertainty", lambda *given: asked.append(given) or torch.rand(12))
    values = []
    for flags in ("--sbs-score uncertainty", "--sampler rainbow"):
        it = learned(begun(start("er_sbs", f"{FEW} {flags}")))
        for seed in (1, 2):
            torch.manual_seed(seed)
            state = torch.get_rng_state()
            it.model.generator.manual_seed(5)
            it.model.features_and_logits = lambda data: (torch.ones(12, 3), torch.ones(12, 2))
            task = it.model.describe(it.data)
            assert asked.pop() == (it.model, it.data) and not asked
            assert torch.equal(torch.get_rng_state(), state)
            values.append(task.speed if "score" in flags else 1 - task.uncertainty)
    assert task.uncertainty.min() >= 0 and torch.equal(task.speed, it.model.speed.value)
    for value in values[1:]:
        torch.testing.assert_close(value, values[0])


def test_dynamics_take_the_place_of_learning_speed(start: Start) -> None:
    it = learned(begun(start("er_sbs", f"{FEW} --sbs-score margin")))
    it.model.follow(torch.tensor([3]), torch.tensor([1]), torch.tensor([[1.0, 4, *[0] * 8]]))
    assert it.model.describe(it.data).speed.tolist() == [0, 0, 0, 3, *[0] * 8]


# ---- filling

class Asked:
    """A sampler that chooses the first ones, as many as it is asked for or as there are."""

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        self.k = k
        return torch.arange(min(k, len(task)))


def filled(it: SimpleNamespace, old: int, size: int, n: int) -> SimpleNamespace:
    """A buffer of some size that held `old` examples, after a task with `n`."""
    it.model.args.buffer_size, it.model.buffer = size, Buffer(size)
    if old:
        it.model.buffer.add_data(torch.arange(1.0, old + 1).view(old, 1, 1, 1).expand(old, 1, 8, 8),
                                 labels=torch.full((old,), 7))
    it.model._before = {"labels": torch.full((old,), 7)} if old else {}
    it.model.sampler = Asked()
    it.chosen = it.model.fill(it.dataset, Task(it.data.targets[:n]))
    return it


@pytest.mark.parametrize(("task", "old", "size", "n", "share", "stay"), [
    (0, 0, 10, 12, 10, 0), (0, 0, 10, 6, 10, 0), (1, 10, 10, 12, 5, 5), (2, 10, 10, 12, 3, 7), (2, 4, 10, 12, 6, 4),
    (1, 10, 10, 2, 5, 8), (1, 6, 10, 3, 5, 6), (1, 2, 8, 12, 6, 2)])
def test_a_task_gets_its_share_and_the_room_that_nobody_uses(
        start: Start, task: int, old: int, size: int, n: int, share: int, stay: int) -> None:
    it = filled(begun(start("er_sbs", FEW), task), old, size, n)
    assert it.model.sampler.k == share and it.chosen.tolist() == list(range(min(share, n)))
    labels = it.model.buffer.labels[: len(it.model.buffer)].tolist()
    assert labels == [7] * stay + it.data.targets[it.chosen].tolist()
    assert torch.equal(it.model.buffer.examples[stay : len(labels)], it.data.data[it.chosen].float() / 255)
    kept = it.model.buffer.examples[:stay, 0, 0, 0].tolist()
    assert kept == sorted(set(kept)) and set(kept) <= set(range(1, old + 1))  # in their order, none twice


def test_who_stays_is_up_to_the_models_generator(start: Start) -> None:
    kept = []
    for seed, own in ((1, 5), (2, 5), (1, 6), (1, 7)):
        torch.manual_seed(seed)
        it = begun(start("er_sbs", FEW), 1)
        it.model.generator.manual_seed(own)
        kept.append(filled(it, 10, 10, 12).model.buffer.examples[:5, 0, 0, 0].tolist())
    assert kept[0] == kept[1] and len({tuple(k) for k in kept}) > 1


@pytest.mark.parametrize(("old", "seen", "n", "after"), [(10, 1000, 12, 1000), (4, 4, 12, 10), (3, 3, 6, 9)])
def test_a_stock_reservoir_goes_on_where_it_was_if_the_buffer_is_full(start: Start, old: int, seen: int, n: int,
                                                                     after: int) -> None:
    it = begun(start("er_sbs", FEW), 1)
    it.model.buffer.add_data(torch.rand(old, 1, 8, 8), labels=torch.full((old,), 7))
    it.model._before = {"labels": it.model.buffer.labels[:old].clone()}
    it.model.buffer.num_seen_examples, it.model.sampler = seen, Asked()
    it.model.fill(it.dataset, Task(it.data.targets[:n]))
    assert it.model.buffer.num_seen_examples == after


@pytest.mark.parametrize("name", ["labels", "logits", "both"])
def test_what_is_of_earlier_tasks_is_where_nothing_beside_the_image_has_changed(name: str) -> None:
    buffer = Buffer(6)
    logits, labels = torch.arange(18.0).view(6, 3), torch.arange(6)
    buffer.add_data(torch.arange(6.0).view(6, 1), labels=labels, logits=logits)
    before = {"labels": labels[:4].clone(), "logits": logits[:4].clone()}
    buffer.logits[1, 2] = -1  # in part
    buffer.logits[2] = -1
    buffer.labels[3] = 9
    stays = {"labels": [0, 1, 2], "logits": [0, 3], "both": [0]}[name]
    model: Any = SimpleNamespace(buffer=buffer, _before=before if name == "both" else {name: before[name]})
    old = SpeedSampled.old_content(model)
    assert old["examples"].flatten().tolist() == stays and old["logits"].tolist() == buffer.logits[stays].tolist()
    model._before = {}
    assert SpeedSampled.old_content(model)["examples"].tolist() == []


def test_what_is_stored_is_the_image_and_what_the_method_names(start: Start) -> None:
    model = begun(start("derpp_sbs", FEW), 2).model
    batch = torch.rand(4, 1, 8, 8), torch.tensor([4, 5, 4, 4]), torch.rand(4, 1, 8, 8), torch.arange(4)
    model.training_outputs = lambda inputs: inputs.flatten(1)[:, :10]
    found = model.to_store(batch)
    assert found.keys() == {"examples", "labels", "logits"} and found["labels"] is batch[1]
    assert found["examples"] is batch[2] and torch.equal(found["logits"], batch[0].flatten(1)[:, :10])
    model.stores = ("task_labels",)
    model.training_outputs = None  # no pass for nothing
    found = model.to_store(batch)
    assert found.keys() == {"examples", "task_labels"} and found["task_labels"].tolist() == [2] * 4


# ---- the report

def reported(task: int = 1, choice: dict | None = None, sampler: Any = None, stored: tuple = (1, 2)) -> Any:
    speed = LearningSpeed(5)
    for epoch in range(4):  # 1, .75, .5, .25 and 0
        speed.update(torch.arange(5), torch.arange(5) < 4 - epoch, epoch)
    model: Any = SimpleNamespace(speed=speed, current_task=task, sampler=sampler or Speed(0.2, 0.4), choice=choice,
                                 _history=[], learned=None)
    labels, indexes = torch.tensor([3, 2, 3, 2, 2]), np.array([40, 41, 52, 53, 64])
    SpeedSampled.report(model, Task(labels, speed=speed.value), torch.tensor(stored, dtype=torch.int64),
                        SimpleNamespace(indexes=indexes))
    return model


def test_what_is_known_of_a_task_that_was_learned(capsys: pytest.CaptureFixture[str]) -> None:
    model = reported()
    found, (entry,) = model.learned, model._history
    assert entry == {"task": 2, "examples": 5, "epochs": 4, "train_accuracy": 20, "speed_mean": 0.5,
                     "speed_quartiles": [0.25, 0.5, 0.75], "stored": 2, "stored_speed_mean": 0.625,
                     "left_out_quick": 1, "left_out_slow": 2, "band": [0.5, 0.75]}
    assert (found.task, found.band, found.statistics) == (2, SpeedBand(0.2, 0.4), entry)
    assert found.speed.tolist() == [1, 0.75, 0.5, 0.25, 0] and found.labels.tolist() == [3, 2, 3, 2, 2]
    assert found.indices.tolist() == [40, 41, 52, 53, 64] and found.stored.tolist() == [1, 2]
    assert capsys.readouterr().out == (
        "SBS task 2: 5 examples, learning speed 0.500 (quartiles 0.25 0.50 0.75), left out 1 quickest and 2 slowest, "
        "band 0.50 to 0.75, 2 stored at 0.625\n")


def test_a_choice_is_said_at_every_task_and_noted_where_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    for made, noted in ((2, True), (1, False)):
        choice = {"task": made, "q": 0.2, "s": 0.4, "points": [1]}
        (entry,) = reported(choice=choice)._history
        assert entry["choice"] == (choice if noted else None)
        assert f"), q 0.2 and s 0.4 chosen at task {made}, left out 1" in capsys.readouterr().out


def test_without_a_band_there_is_none_to_report(capsys: pytest.CaptureFixture[str]) -> None:
    model = reported(sampler=get_sampler("uniform"), stored=())
    assert model.learned.band is None and model._history[0]["stored_speed_mean"] is None
    assert not {"band", "choice", "left_out_quick"} & model._history[0].keys()
    assert capsys.readouterr().out.endswith("(quartiles 0.25 0.50 0.75), 0 stored\n")


def test_the_runs_file_says_what_was_asked_for(start: Start) -> None:
    model = start("er_sbs", f"{FEW} --sbs-q .1 --sbs-s .3 --sbs-scope seen --sbs-score loss").model
    model._history.append("a task")
    assert model.run_info() == {"sbs": {"sampler": "speed", "q": 0.1, "s": 0.3, "scope": "seen", "score": "loss",
                                        "tasks": ["a task"]}}


# ---- checkpoints

def test_the_state_within_a_task(start: Start, tmp_path: Any) -> None:
    flags = f"{FEW} --sbs-score margin --sbs-record {tmp_path / 'r.npz'}"
    one, other = (begun(start("er_sbs", flags), 1) for _ in range(2))
    learned(one)
    model = one.model
    model._before, model._history = {"labels": torch.tensor([1, 0])}, ["a task"]
    model.dynamics.total += 3
    model.choice = {"task": 1, "q": 0.1, "s": 0.5}
    model.buffer.num_seen_examples, model.recorder.epoch = 77, 5
    torch.rand(2, generator=model.generator)
    state = model.get_extra_state()
    assert state["seen"] == 77 and state["choice"] is model.choice and state["record"]["epoch"] == 5
    other.model.set_extra_state(state)
    found = other.model
    assert found._before["labels"].tolist() == [1, 0] and found._history == ["a task"] and found._seen == 77
    assert torch.equal(found.speed.value, model.speed.value) and found.speed.value.any()
    assert torch.equal(found.dynamics.total, model.dynamics.total) and found.recorder.epoch == 5
    assert torch.equal(found.generator.get_state(), model.generator.get_state())
    assert found.choice == model.choice and (found.sampler.band.q, found.sampler.band.s) == (0.1, 0.5)


def test_between_tasks_there_is_less_to_save(start: Start) -> None:
    model = begun(start("er_sbs", f"{FEW} --sbs-score margin")).model
    model.speed = None
    state = model.get_extra_state()
    assert state["speed"] is state["before"] is state["dynamics"] is state["choice"] is None
    before = model._before
    model.set_extra_state({**state, "seen": None})
    assert model._before is before and model._seen is None
    model.speed = LearningSpeed(3)
    model.set_extra_state(state)  # the next task has begun, and goes on from its own beginning
    assert model.speed.epochs == 0 and model._before is before
    plain = begun(start("er_sbs", FEW)).model
    assert plain.get_extra_state()["dynamics"] is None and plain.get_extra_state()["before"] == {}


def test_dynamics_that_were_not_measured_cannot_be_gone_on_with(start: Start) -> None:
    with_it, without = (begun(start("er_sbs", f"{FEW} {flags}")).model for flags in ("--sbs-score margin", ""))
    with pytest.raises(UserError, match="--sbs-score margin: is measured while a task is learned"):
        with_it.set_extra_state(without.get_extra_state())
    without.set_extra_state(with_it.get_extra_state())
    assert without.dynamics is None


def test_a_loaded_buffer_has_seen_what_it_had_seen(start: Start) -> None:
    """Mammoth takes every buffer that it loads for full."""
    class Host:
        def load_buffer(self, buffer: Any) -> None:
            self.buffer = SimpleNamespace(num_seen_examples=len(buffer))

    class Loaded(SpeedSampled, Host):  # type: ignore[misc]
        def __init__(self, seen: int | None) -> None:
            self.__dict__["_seen"] = seen

        __setattr__ = object.__setattr__

    for seen, expected in ((12, 12), (None, 5)):
        model = Loaded(seen)
        model.load_buffer([0] * 5)
        assert model.buffer.num_seen_examples == expected

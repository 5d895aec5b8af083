"""The layer that all `_sbs` models share, part by part: flags, predictions, steps, and what a checkpoint holds."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mammoth_sbs import tuning
from mammoth_sbs.core.samplers.speed import Speed
from mammoth_sbs.core.speed import LearningSpeed
from mammoth_sbs.errors import UserError, one_line
from mammoth_sbs.models.base import SpeedSampled, closed, content
from mammoth_sbs.models.derpp import DerppSbs
from mammoth_sbs.models.gem import GemSbs
from mammoth_sbs.models.record import INDEX
from tests.conftest import Start
from tests.models.conftest import FEW, begun, learned

from models.agem import AGem
from models.er import Er
from utils.buffer import Buffer

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

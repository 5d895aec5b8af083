"""The end of a task, part by part: how it is described, filled into the buffer and reported."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs.core.band import SpeedBand
from mammoth_sbs.core.samplers import Task, get_sampler
from mammoth_sbs.core.samplers.speed import Speed
from mammoth_sbs.core.speed import LearningSpeed
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.base import SCORES, SpeedSampled
from tests.conftest import Start
from tests.models.conftest import FEW, begun, learned

from models.agem import AGem
from utils.buffer import Buffer


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


# ---- forward passes of its own

class Small(nn.Module):
    """Batch normalisation and a classifier; notes whether gradients are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.classifier = nn.BatchNorm1d(3), nn.Linear(3, 6)
        self.grads: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.grads.add(torch.is_grad_enabled())
        return self.classifier(self.norm(x))


def small(training: bool) -> Any:
    net = Small().train(training)
    net.norm.running_mean += torch.tensor([1.0, 2, 3])
    return SimpleNamespace(net=net, before=copy.deepcopy(net), modules=net.modules, device="cpu", n_past_classes=2,
                           n_seen_classes=4, classify=lambda outputs: 2 * outputs, sampler=SimpleNamespace(name="x"),
                           normalized=lambda data, index: data.images[index], args=SimpleNamespace(backbone="y"))


def left_alone(model: Any) -> bool:
    """Statistics, mode and hooks are as they were, and no gradients were kept."""
    old = model.before.state_dict()
    return (all(torch.equal(value, old[name]) for name, value in model.net.state_dict().items())
            and model.net.training is model.net.norm.training is model.before.training
            and model.net.norm.track_running_stats and not model.net.classifier._forward_pre_hooks
            and model.net.grads == {False})


@pytest.mark.parametrize("training", [True, False])
def test_features_and_logits_of_a_task_are_those_of_evaluation(training: bool) -> None:
    model, data = small(training), SimpleNamespace(images=torch.randn(300, 3), targets=torch.zeros(300))
    features, logits = SpeedSampled.features_and_logits(model, data)
    assert left_alone(model)
    with torch.no_grad():
        expected = model.before.eval().norm(data.images)
        torch.testing.assert_close(features, expected)
        torch.testing.assert_close(logits, 2 * model.before.classifier(expected)[:, 2:4])
    model.net.classifier = None
    with pytest.raises(UserError, match="--sampler x needs features, and --backbone y has no `classifier` layer"):
        SpeedSampled.features_and_logits(model, data)


@pytest.mark.parametrize("training", [True, False])
def test_outputs_of_a_training_step_teach_the_network_nothing(training: bool) -> None:
    model, x = small(training), torch.randn(9, 3)
    found = SpeedSampled.training_outputs(model, x)
    assert left_alone(model)
    torch.testing.assert_close(found, model.before.train()(x).detach())


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

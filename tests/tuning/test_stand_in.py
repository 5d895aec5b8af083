"""The rotation task on a stand-in for model and data set: all numbers are known, and nothing is trained."""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs.core.samplers import Task
from mammoth_sbs.errors import UserError
from mammoth_sbs.tuning import rotation

OFFSETS = [(0, 5), (5, 8)]  # the first task is wider than the rotation task
LABELS = torch.tensor([5, 6, 7] * 20)


class Examples:
    """Another host's: images come one by one, and drawing one takes a random number."""

    targets = LABELS

    def __init__(self, height: int = 4, width: int = 4) -> None:
        images = torch.arange(60 * height * width) % 251
        self.images = images.view(60, 1, height, width).to(torch.uint8)

    def __getitem__(self, i: int) -> tuple[Tensor, int, Tensor]:
        torch.rand(1), np.random.rand(), random.random()
        return torch.zeros(1), int(LABELS[i]), self.images[i].float() / 255


class Net(nn.Module):
    """Says of an image what its first pixel says."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.classifier: nn.Module = nn.Linear(2, 10, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x.flatten(1)[:, :2])


class Model(nn.Module):
    """At the end of its second task. What it was made of, and where it was sent, it notes."""

    def __init__(self, net: nn.Module, loss: Any, args: Namespace, transform: Any, dataset: Any = None) -> None:
        super().__init__()
        print("a method that talks")
        self.net, self.loss, self.args, self.transform, self.dataset = net, loss, args, transform, dataset
        self.generator, self.recorder, self.device = torch.Generator().manual_seed(3), [0], torch.device("cpu")
        self.current_task, self._current_task, self.solver, self.sent = 1, 1, sys, []
        self.grads_da = torch.ones(6)
        self.buffer: Any = Buffer()

    def normalization_transform(self, x: Tensor) -> Tensor:
        return 1 - x

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    @torch.no_grad()
    def training_outputs(self, x: Tensor) -> Tensor:
        return self.net(x)

    def to(self, device: Any) -> Model:  # type: ignore[override]
        self.sent.append(device)
        return self


class Buffer:
    """Three of five slots are filled."""

    attributes = ("examples", "labels", "logits")

    def __init__(self) -> None:
        self.examples = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))
        self.labels = torch.tensor([1, 4, 7, 0, 0])
        self.logits = torch.arange(50.0).view(5, 10)

    def __len__(self) -> int:
        return 3


def task() -> Task:
    return Task(LABELS, speed=torch.arange(60.0) / 60, first_class=5)


def model(data: Any = None, net: Any = None, **more: Any) -> tuple[Model, Any]:
    args = Namespace(**{"dataset": "seq-x", "backbone": "net-x", "sbs_scope": "task", "sbs_tune_epochs": 4,
                        "n_epochs": 20, "batch_size": 7, "buffer_size": 50, "lr_milestones": None} | more)
    dataset = SimpleNamespace(get_offsets=lambda t: OFFSETS[t], N_TASKS=9,
                              train_loader=SimpleNamespace(dataset=data or Examples()))
    return Model(net or Net(), nn.CrossEntropyLoss(), args, lambda x: x.flip(-1), dataset), dataset


def trials(*given: Any, **more: Any) -> rotation.Rotation:
    return rotation.Rotation(*model(*given, **more), task())


def test_where_outputs_go_if_a_task_has_more_classes_than_there_are_turns() -> None:
    it = trials()
    assert (it.tasks, it.width, it.first_turn) == (3, 5, 10)
    assert it.place.tolist() == [0, 1, 2, 3, 4, 5, 6, 7] and it.own.tolist() == [5, 6, 7]
    assert len(it.held_out) == 6 and sorted([*it.held_out.tolist(), *it.rest.tolist()]) == list(range(60))
    assert it.epochs == 4 and len(it.known) == 6


def test_turns_and_images_come_from_the_models_generator_and_leave_all_others_alone() -> None:
    it, dataset = model()
    first = rotation.Rotation(it, dataset, task())
    torch.manual_seed(99)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate(), it.generator.get_state()
    again = rotation.Rotation(it, dataset, task())
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == np.random.get_state()[1].tolist()
    assert before[2] == random.getstate() and torch.equal(before[3], it.generator.get_state())
    assert torch.equal(first.pictures.turns, again.pictures.turns) and torch.equal(first.held_out, again.held_out)
    assert set(first.pictures.turns.tolist()) == {0, 1, 2, 3} and len(first.pictures.turns) == 60
    it.generator.manual_seed(4)
    other = rotation.Rotation(it, dataset, task())
    assert not torch.equal(first.pictures.turns, other.pictures.turns)
    assert torch.equal(first.pictures.images, Examples().images)


def test_images_that_a_host_has_as_bytes_are_taken_as_they_are() -> None:
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    data = SimpleNamespace(batch=None, data=images, targets=LABELS[:3])
    assert rotation.images_of(data) is images


def test_images_that_are_not_square_cannot_be_turned() -> None:
    with pytest.raises(UserError, match="^--dataset seq-x: the rotation task needs square images, not 4 x 6; give"):
        trials(Examples(4, 6))


@pytest.mark.parametrize("head", [None, nn.Sequential(nn.Linear(2, 10))])
def test_a_network_without_a_linear_classifier_cannot_be_widened(head: Any) -> None:
    net = Net()
    net.classifier = head
    with pytest.raises(UserError, match="^--backbone net-x: has no linear `classifier` layer, which the rotation"):
        trials(net=net)


def test_a_frozen_trunk_is_asked_about_turned_images_once() -> None:
    asked = []

    class Data:
        data, indexes, targets = torch.arange(120.0).view(60, 2), np.arange(60) + 1000, LABELS

    def turned(k: int, indexes: np.ndarray) -> np.ndarray:
        asked.append(k)
        return np.stack([indexes * 10 + k, indexes], 1)

    def dataset(height: int, width: int) -> Any:
        images = torch.zeros(60, 1, height, width)
        return SimpleNamespace(train_loader=SimpleNamespace(dataset=Data()), turned=turned,
                               pictures=SimpleNamespace(train=SimpleNamespace(images=images)))

    turns = torch.arange(60) % 4
    features = rotation.Features(dataset(3, 3), turns)
    assert asked == [1, 2, 3] and (features.height, features.width) == (3, 3)
    rows = torch.tensor([7, 4, 1, 2])  # turned by 3, 0, 1 and 2
    assert torch.equal(features.upright(rows, "no transform"), Data.data[rows])
    assert features.turned(rows).tolist() == [[10073.0, 1007.0], [8.0, 9.0], [10011.0, 1001.0], [10022.0, 1002.0]]
    assert Data.data[1].tolist() == [2.0, 3.0]  # as it was
    oblong = rotation.Features(dataset(3, 5), turns)
    assert (oblong.height, oblong.width) == (3, 5) and len(asked) == 3  # nobody is asked about what will be refused

    it, _ = model(frozen=True)
    data = dataset(3, 3)
    data.get_offsets = lambda t: OFFSETS[t]
    assert isinstance(rotation.Rotation(it, data, task()).pictures, rotation.Features)
    it, data = model(frozen=False)
    assert type(rotation.Rotation(it, data, task()).pictures) is rotation.Pictures


# ---- what is right


class Says:
    """A model whose outputs are known."""

    def __init__(self, outputs: Tensor, scope: str, training: bool) -> None:
        self.outputs, self.args, self.device = outputs, Namespace(sbs_scope=scope), torch.device("cpu")
        self.net, self.given, self.modes = Net().train(training), [], []

    def normalization_transform(self, x: Tensor) -> Tensor:
        return x - 0.5

    def __call__(self, inputs: Tensor) -> Tensor:
        self.given.append(inputs)
        self.modes.append((self.net.training, torch.is_grad_enabled()))
        return self.outputs


def test_what_counts_as_right_with_either_scope_before_and_after_for_classes_and_turns() -> None:
    it = trials()
    it.place, it.own, it.first_turn = torch.tensor([0, 1, 2, 3, 4, 7, 8, 9]), torch.tensor([7, 8, 9]), 11
    rows, turns = torch.arange(6), it.pictures.turns[it.held_out]
    classes = it.task.labels[it.held_out] - 5
    upright = it.pictures.images[it.held_out].float() / 255 - 0.5
    # whether before the rotation task, whether asked for turns, where the answers stand, what else takes part
    cases = (True, False, 5, [0, 4]), (False, False, 7, [4, 11]), (False, True, 11, [4, 9])
    for before, turned, answers, others in cases:
        for scope, training in (("task", True), ("seen", False), ("task", False), ("seen", True)):
            truth, count = (turns, 4) if turned else (classes, 3)
            outputs = torch.zeros(6, 15)
            outputs[rows, answers + truth] = 3.0
            outputs[0, answers + (truth[0] + 1) % count] = 4.0  # a mistake
            outputs[[1, 2], others] = 5.0  # wrong if all that was seen takes part
            outputs[[3, 4], [8 if before else 5, 10]] = 6.0  # outputs that stand for nothing
            says: Any = Says(outputs, scope, training)
            it.model = says if before else None
            found = it.correct(says, turned) if turned else it.correct(says)
            wrong = {0} if scope == "task" else {0, 1, 2}
            assert found.tolist() == [i not in wrong for i in range(6)]
            assert torch.equal(says.given[0], rotation.turn(upright, turns) if turned else upright)
            assert says.modes == [(False, False)] and says.net.training is training


# ---- one trial


def test_a_trial_is_a_copy_filled_for_the_pair_that_learns_and_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    it = trials()
    told: list[Any] = []
    it.known = torch.tensor([True, True, True, True, False, False])

    def fill(dataset: Any, given: Any) -> Tensor:
        assert dataset is it.dataset and given is it.task
        band = filled.sampler.sampler.band
        told.append(("fill", band.q, band.s, filled.sampler.index.tolist() == it.rest.tolist()))
        return torch.arange(11)

    filled: Any = SimpleNamespace(fill=fill)

    @contextmanager
    def same_randomness() -> Iterator[str]:
        told.append("in")
        yield "generator"
        told.append("out")

    answers = {False: torch.tensor([True, False, False, True, True, False]),
               True: torch.tensor([True, False, False, False, False, False])}
    monkeypatch.setattr(it, "same_randomness", same_randomness)
    monkeypatch.setattr(it, "copied", lambda generator: {"generator": filled}[generator])
    monkeypatch.setattr(it, "widened", lambda model, q, s: told.append((model is filled, q, s)) or ("trial", "data"))
    monkeypatch.setattr(it, "learn", lambda trial, data: told.append((trial, data)))
    monkeypatch.setattr(it, "correct", lambda trial, turned=False: told.append((trial, turned)) or answers[turned])
    clock = iter((100.0, 107.25))
    monkeypatch.setattr(rotation, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    point = it(0.1, 0.3)
    assert told == ["in", ("fill", 0.1, 0.3, True), (True, 0.1, 0.3), ("trial", "data"), ("trial", False),
                    ("trial", True), "out"]
    assert point == (0.1, 0.3, 50.0, pytest.approx(100 / 6), 50.0, 11, 7.25)


def test_every_trial_draws_the_same_numbers_and_uses_up_nobody_elses() -> None:
    it = trials()
    torch.manual_seed(5)
    before, own = torch.get_rng_state(), it.generator.get_state()
    drawn = []
    for _ in range(2):
        with it.same_randomness() as generator:
            drawn.append((torch.rand(3).tolist(), np.random.rand(), torch.rand(3, generator=generator).tolist()))
        assert torch.equal(before, torch.get_rng_state()) and torch.equal(own, it.generator.get_state())
        torch.rand(1)
        before = torch.get_rng_state()
    assert drawn[0] == drawn[1]


def test_on_a_gpu_its_randomness_too_is_forked_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    it = trials()
    it.model.device = torch.device("cuda:1")
    told: list[Any] = []

    @contextmanager
    def noted(*what: Any) -> Iterator[None]:
        told.append(what)
        yield
        told.append("left")

    monkeypatch.setattr(torch.random, "fork_rng", lambda gpus: noted("fork", gpus))
    monkeypatch.setattr(torch.cuda, "device", lambda gpu: noted("on", gpu))
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: told.append(seed))
    with it.same_randomness():
        told.append("inside")
    gpu = it.model.device
    assert told == [("fork", [gpu]), ("on", gpu), 0, "left", "inside", "left"]
    it.model.device = torch.device("cpu")
    told.clear()
    with it.same_randomness():
        assert told == [("fork", [])]


def test_a_copy_has_its_own_network_and_buffer_and_shares_the_rest() -> None:
    it = trials()
    generator = torch.Generator()
    copy = it.copied(generator)
    assert copy is not it.model and copy.net is not it.model.net and copy.buffer is not it.model.buffer
    assert torch.equal(copy.net.classifier.weight, it.model.net.classifier.weight)
    assert copy.net.classifier.weight is not it.model.net.classifier.weight and copy.generator is generator
    for shared in ("args", "dataset", "recorder", "transform", "loss", "solver"):
        assert getattr(copy, shared) is getattr(it.model, shared), shared


@pytest.mark.parametrize("bias", [True, False])
def test_the_widened_model_is_built_anew_around_the_filled_ones_network_and_buffer(
        capsys: pytest.CaptureFixture, bias: bool) -> None:
    it = trials(net=Net(bias), lr_milestones=[5, 12], sbs_record="a file")
    filled, _ = model(net=Net(bias), lr_milestones=[5, 12], sbs_record="a file")
    known = [value.detach().clone() for value in filled.net.classifier.parameters()]
    buffer = filled.buffer
    labels, logits = buffer.labels.clone(), buffer.logits.clone()
    capsys.readouterr()
    trial, data = it.widened(filled, 0.1, 0.3)
    assert capsys.readouterr().out == ""
    assert type(trial) is Model and trial is not filled and trial.net is filled.net and trial.loss is filled.loss
    assert trial.buffer is buffer and trial.dataset is data and trial.sent == [filled.device]
    assert trial.transform is filled.transform and trial._current_task == 2 and not hasattr(trial, "grads_cs")
    now = vars(trial.args)
    assert {key: now[key] for key in ("n_epochs", "lr_milestones", "num_classes", "sbs_q", "sbs_s", "sbs_record",
                                      "buffer_size", "batch_size")} == {
        "n_epochs": 4, "lr_milestones": [1, 2], "num_classes": 15, "sbs_q": 0.1, "sbs_s": 0.3, "sbs_record": None,
        "buffer_size": 50, "batch_size": 7}
    assert now["nowand"] and filled.args.sbs_record == "a file"
    head = trial.net.classifier
    assert (head.in_features, head.out_features, head.bias is not None) == (2, 15, bias)
    for new, old in zip(head.parameters(), known, strict=True):
        assert torch.equal(new[:8], old[:8]) and new.requires_grad
    loader = data.train_loader
    assert loader.rows is it.rest and loader.pictures is it.pictures and loader.transform is filled.transform
    assert (loader.first_class, loader.batch_size, len(loader), loader.dataset) == (10, 7, 8, loader)
    assert loader.targets.tolist() == (it.pictures.turns[it.rest] + 10).tolist()
    assert (data.N_TASKS, data.N_CLASSES_PER_TASK, data.N_CLASSES, data.c_task) == (3, 5, 15, 2)
    assert (data.get_offsets(), data.get_offsets(0), data.get_offsets(1)) == ((10, 15), (0, 5), (5, 10))
    assert data.test_loaders == [] and data._dataset is it.dataset
    # what is stored of old classes stays, new outputs are what they now are, and empty slots stay empty
    assert buffer.labels.tolist() == labels.tolist() and buffer.logits.shape == (5, 15)
    assert torch.equal(buffer.logits[:3, :8], logits[:3, :8]) and not buffer.logits[3:].any()
    with torch.no_grad():
        said = trial.net(1 - buffer.examples[:3])
    assert torch.equal(buffer.logits[:3, 8:], said[:, 8:]) and said[:, 8:].any()


def test_stored_labels_go_where_the_widened_head_has_them() -> None:
    it = trials()
    it.place = torch.tensor([9, 8, 7, 6, 5, 4, 3, 2])
    trial, _ = model()
    trial.net.classifier = nn.Linear(2, 15)
    it.renumber(trial)
    assert trial.buffer.labels.tolist() == [8, 5, 2, 0, 0]
    assert torch.equal(trial.buffer.logits[:3][:, it.place], torch.arange(50.0).view(5, 10)[:3, :8])
    bare, _ = model()
    bare.buffer.attributes = ("examples",)
    it.renumber(bare)  # a method that stores neither
    assert bare.buffer.labels.tolist() == [1, 4, 7, 0, 0] and bare.buffer.logits.shape == (5, 10)


def test_mammoths_gem_has_a_gradient_of_zeros_for_each_task_that_has_ended() -> None:
    it = trials()
    filled, _ = model()
    filled.grads_cs = [torch.ones(6), torch.ones(6)]
    trial, _ = it.widened(filled, 0, 0)
    assert [grad.tolist() for grad in trial.grads_cs] == [[0.0] * 6] * 2


def test_mammoth_is_given_the_transform_that_it_has_not_yet_converted() -> None:
    it = trials()
    filled, _ = model()
    filled.original_transform = "as it was"
    trial, data = it.widened(filled, 0, 0)
    assert trial.transform == "as it was" and data.train_loader.transform is filled.transform


def test_a_small_buffer_passes_a_methods_own_check_of_one_example_per_class() -> None:
    it = trials(buffer_size=8)
    filled, _ = model(buffer_size=8)
    assert it.widened(filled, 0, 0)[0].args.buffer_size == 15

"""Inside a trial: what is held out, what counts as right, how the rotation task is learned, what it depends on."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs.core.samplers import Task
from mammoth_sbs.core.samplers.speed import Speed
from mammoth_sbs.tuning import rotation
from mammoth_sbs.tuning.pairs import Point
from tests.conftest import Start
from tests.tuning.conftest import SMALL, learn


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_tenth_of_each_class_is_drawn_at_random() -> None:
    labels = torch.tensor([3] * 29 + [5] * 30 + [8] * 9).roll(11)
    masks = [rotation.held_out_tenth(labels, seeded(seed)) for seed in range(30)]
    for mask in masks:
        assert [int((labels[mask] == c).sum()) for c in (3, 5, 8)] == [2, 3, 0]
    ever = torch.stack(masks).any(0)
    assert ever[labels != 8].float().mean() > 0.8 and torch.equal(masks[0], rotation.held_out_tenth(labels, seeded()))


def test_percent() -> None:
    assert rotation.percent(torch.tensor([True, False, False, False])) == 25
    assert rotation.percent(torch.zeros(0, dtype=torch.bool)) == 0
    assert rotation.percent(torch.ones(1, dtype=torch.bool)) == 100


def test_each_image_is_turned_by_its_own_quarter_turns() -> None:
    images, turns = torch.arange(4 * 9).view(4, 1, 3, 3), torch.tensor([2, 0, 3, 1])
    turned = rotation.turn(images, turns)
    for image, n, found in zip(images, turns.tolist(), turned, strict=True):
        assert torch.equal(found, torch.rot90(image, n, (1, 2)))
    assert images[0, 0, 0, 0] == 0  # the images themselves are as they were


def test_a_sampler_within_some_examples_sees_and_chooses_only_those() -> None:
    task = Task(torch.tensor([0, 1] * 10), speed=torch.arange(20.0) / 20)
    index = torch.tensor([19, 2, 5, 8, 11, 14])
    within = rotation.Within(Speed(0.2, 0.2), index)
    assert set(within.choose(task, 9, seeded()).tolist()) == {5, 8, 11, 14}  # of six, without one on either side
    chosen = within.choose_per_class(task, {1: 2, 0: 1}, seeded()).tolist()
    assert set(chosen[:2]) <= {5, 11, 19} and chosen[2] in (2, 8, 14)
    assert len(within.choose(task, 2, seeded())) == 2


def test_images_of_another_host_are_made_bytes() -> None:
    class Plain:
        targets = list(range(300))

        def __getitem__(self, i: int) -> tuple:
            return torch.zeros(1, 2, 2), i, torch.full((1, 2, 2), (i % 256) / 255)

    found = rotation.images_of(Plain())
    assert found.dtype == torch.uint8 and found[:, 0, 0, 0].tolist() == [i % 256 for i in range(300)]


# ---- what is right

class Says:
    """A model whose outputs are known."""

    def __init__(self, outputs: Tensor, scope: str) -> None:
        self.outputs, self.args, self.device = outputs, Namespace(sbs_scope=scope), torch.device("cpu")
        self.net, self.given, self.modes = nn.Linear(1, 1), [], []

    def normalization_transform(self, x: Tensor) -> Tensor:
        return x - 0.5

    def __call__(self, inputs: Tensor) -> Tensor:
        self.given.append(inputs)
        self.modes.append(self.net.training)
        return self.outputs


@pytest.fixture
def trials(start: Start) -> rotation.Rotation:
    """At the end of the second task: its classes are 4 and 5 of the widened head, the turns are 8 to 11."""
    return learn(start("er_sbs", SMALL), tasks=2)


def test_places_in_the_widened_head(trials: rotation.Rotation) -> None:
    assert (trials.place.tolist(), trials.own.tolist(), trials.first_turn) == ([0, 1, 4, 5], [4, 5], 8)
    assert (trials.tasks, trials.width) == (3, 4)
    assert len(trials.held_out) == 8 and len(trials.rest) == 72


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scope", ["task", "seen"])
def test_which_of_the_held_out_are_right(trials: rotation.Rotation, scope: str, training: bool) -> None:
    labels = trials.task.labels[trials.held_out]  # 2 and 3
    outputs = torch.zeros(8, 12)
    outputs[torch.arange(8), labels + 2] = 3.0
    outputs[0, 4], outputs[0, 5] = outputs[0, 5].clone(), outputs[0, 4].clone()  # a mistake within the task
    outputs[1, 0], outputs[2, 9] = 5.0, 5.0  # what an earlier task, or a turn, says
    outputs[3, 2], outputs[4, 7] = 5.0, 5.0  # outputs that stand for nothing
    model = Says(outputs, scope)
    model.net.train(training)
    wrong = {"task": {0}, "seen": {0, 1, 2}}[scope]
    assert trials.correct(model).tolist() == [i not in wrong for i in range(8)]
    upright = trials.dataset.train_loader.dataset.data[trials.held_out].float() / 255 - 0.5
    assert torch.equal(model.given[0], upright) and model.modes == [False] and model.net.training is training

    turns = trials.pictures.turns[trials.held_out]
    outputs = torch.zeros(8, 12)
    outputs[torch.arange(8), turns + 8] = 3.0
    outputs[0, 8 + (turns[0] + 1) % 4] = 4.0
    outputs[1, 1], outputs[2, 6] = 5.0, 5.0
    model = Says(outputs, scope)
    assert trials.correct(model, turned=True).tolist() == [i not in {0, *({1} if scope == "seen" else {})}
                                                           for i in range(8)]
    assert torch.equal(model.given[0], rotation.turn(upright, turns))


@pytest.mark.parametrize("scope", ["task", "seen"])
def test_before_the_rotation_task_the_models_own_outputs_count(trials: rotation.Rotation, scope: str) -> None:
    labels = trials.task.labels[trials.held_out]
    outputs = torch.zeros(8, 10)
    outputs[torch.arange(8), labels] = 3.0
    outputs[0, 5 - labels[0]] = 4.0
    outputs[1, 1], outputs[2, 7] = 5.0, 5.0  # an earlier task's; one of a task to come
    trials.model = Says(outputs, scope)
    wrong = {"task": {0}, "seen": {0, 1}}[scope]
    assert trials.correct(trials.model).tolist() == [i not in wrong for i in range(8)]


# ---- how it is learned

def test_the_rotation_task_has_its_own_epochs_schedule_and_room(start: Start) -> None:
    it = start("er_sbs", "--train_per_class 40 --n_epochs 20 --lr_scheduler multisteplr --lr_milestones 5 15 "
                         "--buffer_size 6 --sbs-tune-epochs 4 --stop_after 1")
    it.args.n_epochs = 1
    trials = learn(it)
    it.args.n_epochs = 20
    with trials.same_randomness() as generator:
        filled = trials.copied(generator)
        filled.fill(it.dataset, trials.task)
        trial, data = trials.widened(filled, 0.1, 0.3)
    assert (trial.args.n_epochs, trial.args.lr_milestones) == (4, [1, 3])
    assert (trial.args.sbs_q, trial.args.sbs_s, trial.args.num_classes) == (0.1, 0.3, 8)
    assert trial.args.buffer_size == 8 and it.args.buffer_size == 6  # at least one for each class
    assert trial.current_task == 1 and data.get_offsets() == data.get_offsets(1) == (4, 8)
    assert data.get_offsets(0) == (0, 4) and len(data.train_loader) == 3 and data.train_loader.dataset.first_class == 4


def fake(losses: list[Any], debug: bool = False) -> Any:
    """A model that notes what it is told."""
    notes: list[Any] = []
    left = iter(losses)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)

    def observe(inputs: Tensor, labels: Tensor, not_aug: Tensor, epoch: int, sbs_index: Tensor) -> Any:
        notes.append((epoch, len(labels), optimizer.param_groups[0]["lr"]))
        optimizer.step()
        return next(left)

    return SimpleNamespace(
        notes=notes, net=nn.Linear(1, 1).eval(), device=torch.device("cpu"), opt=optimizer,
        args=Namespace(debug_mode=debug, lr_scheduler="multisteplr", lr_milestones=[1], sched_multistep_lr_gamma=0.5,
                       n_epochs=2),
        meta_begin_task=lambda data: notes.append("task"), meta_begin_epoch=lambda epoch, data: notes.append("begin"),
        meta_end_epoch=lambda epoch, data: notes.append("end"), meta_observe=observe, get_debug_iters=lambda: 2)


def test_epochs_steps_and_schedule_are_the_hosts(trials: rotation.Rotation) -> None:
    trials.model.args.sbs_tune_epochs = 2
    loader = rotation.TurnedImages(trials.pictures, trials.rest, 8, None, 32, 0)
    data: Any = SimpleNamespace(train_loader=loader)
    model = fake([0.5] * 6)
    trials.learn(model, data)
    epochs = [["begin", (e, 32, rate), (e, 32, rate), (e, 8, rate), "end"] for e, rate in ((0, 1.0), (1, 0.5))]
    assert model.notes == ["task", *epochs[0], *epochs[1]] and model.net.training
    model = fake([0.5] * 4, debug=True)
    trials.learn(model, data)
    assert [note for note in model.notes if isinstance(note, tuple)] == [(0, 32, 1.0)] * 2 + [(1, 32, 0.5)] * 2


def test_a_network_that_diverges_learns_no_further(trials: rotation.Rotation) -> None:
    trials.model.args.sbs_tune_epochs = 2
    data: Any = SimpleNamespace(train_loader=rotation.TurnedImages(trials.pictures, trials.rest, 8, None, 32, 0))
    model = fake([0.5, float("nan")])
    trials.learn(model, data)
    assert model.notes[-1] == (0, 32, 1.0) and len(model.notes) == 4
    model = fake([torch.tensor(float("inf"))])  # a GPU's is looked at, at the first of fifty steps
    trials.learn(model, data)
    assert len(model.notes) == 3


def test_the_rotation_task_comes_in_another_order_every_epoch_and_in_the_same_for_a_seed(
        trials: rotation.Rotation) -> None:
    orders = []
    for seed in (1, 1, 2):
        loader = rotation.TurnedImages(trials.pictures, trials.rest, 8, None, 32, seed)
        orders.append([torch.cat([batch[3] for batch in loader]).tolist() for _ in range(2)])
    assert orders[0] == orders[1] != orders[2] and orders[0][0] != orders[0][1]
    assert sorted(orders[0][0]) == list(range(72))


# ---- what it depends on

def test_the_key_names_all_that_an_outcome_depends_on(start: Start) -> None:
    def key(flags: str = "", change: Any = None) -> str:
        it = start("er_sbs", f"{SMALL} {flags}")
        trials = learn(it)
        if change:
            change(it.model, trials)
        return trials.key

    usual = key()
    assert key() == key("--results_path elsewhere/") == key("--sbs-q 0.1") == usual
    others = [key("--sbs-tune-epochs 3"), key("--minibatch_size 7"),
              key(change=lambda model, _: model.net.classifier.bias.data.add_(1e-3)),
              key(change=lambda _, trials: trials.task.speed.add_(0.1)),
              key(change=lambda _, trials: torch.rand(1, generator=trials.generator)),
              key(change=lambda model, _: model.buffer.add_data(examples=torch.ones(1, 1, 8, 8),
                                                               labels=torch.zeros(1).long()))]
    assert len({usual, *others}) == 7


# ---- what is chosen

@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[float, float]]]:
    """Every search that was made. (.4, 0) is best, and 30% are forgotten with a uniform buffer."""
    asked: list[list[tuple[float, float]]] = []

    def search(trials: Any, pairs: Any, journal: Any, processes: int, silent: bool) -> list[Point]:
        asked.append(list(pairs))
        return [Point(q, s, 50 + 10 * ((q, s) == (0.4, 0.0)) + q - s, 50, 30, 5, 1) for q, s in pairs]

    monkeypatch.setattr(rotation, "search", search)
    monkeypatch.setattr(rotation, "Rotation", lambda *_: SimpleNamespace(
        epochs=2, held_out=torch.arange(8), known=torch.tensor([True, False]), key="k"))
    return asked


def choose(q: Any, s: Any, **more: Any) -> dict[str, Any]:
    args = Namespace(sbs_q=q, sbs_s=s, sbs_grid=[0.0, 0.4], non_verbose=True)
    found = rotation.choose(SimpleNamespace(args=args, device=torch.device("cpu")), None, None, **more)  # type: ignore[arg-type]
    assert (found["epochs"], found["held_out"], found["before"]) == (2, 8, 50)
    return found


def test_auto_is_the_best_of_the_grid_and_rule_comes_from_what_is_forgotten(tried: list) -> None:
    found = choose("auto", "auto")
    assert (found["q"], found["s"], len(found["points"])) == (0.4, 0.0, 4) and len(tried) == 1
    assert found["points"][2]["old"] == pytest.approx(60.4)
    found = choose("rule", "rule")
    assert (found["q"], found["s"], tried[-1]) == (0.1, 0.3, [(0.0, 0.0)]) and len(found["points"]) == 1
    found = choose("rule", 0.5)
    assert (found["q"], found["s"]) == (0.1, 0.5)
    found = choose("auto", "rule")  # the rule first, then the grid beside it
    assert (found["q"], found["s"]) == (0.4, 0.3) and tried[-2:] == [[(0.0, 0.0)], [(0.0, 0.3), (0.4, 0.3)]]
    found = choose(0.4, "auto")
    assert (found["q"], found["s"], tried[-1]) == (0.4, 0.0, [(0.4, 0.0), (0.4, 0.4)])


def test_a_part_of_the_pairs_is_every_nth_from_the_ith(tried: list) -> None:
    choose("auto", "auto", part=(1, 2))
    choose("auto", "auto", part=(0, 3))
    assert tried == [[(0.0, 0.4), (0.4, 0.4)], [(0.0, 0.0), (0.4, 0.4)]]

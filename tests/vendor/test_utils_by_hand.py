"""Small parts of the embedded host on numbers that can be followed by hand."""

from __future__ import annotations

import ctypes
import inspect
import logging
import random
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mammoth_sbs.values
from mammoth_sbs.errors import UserError

import utils
from utils import augmentations, checkpoints, conf
from utils.augmentations import Augment, DeNormalize, Normalize, StrongAugment, cutmix_data, random_crop
from utils.batch_norm import bn_track_stats
from utils.buffer import Buffer, _herded, fill_buffer, icarl_replay
from utils.evaluate import evaluate
from utils.loggers import print_mean_accuracy, print_metrics, print_table

# ---- evaluation, and the lines that a run prints


class Batches(list):
    def __init__(self, outputs: list[list[float]], labels: list[int], size: int) -> None:
        x, y = torch.tensor(outputs).float(), torch.tensor(labels)
        super().__init__(zip(x.split(size), y.split(size), x.split(size), strict=True))
        self.dataset = labels


class Echo:
    """Says what it is shown; notes in which mode."""

    def __init__(self) -> None:
        self.net, self.device, self.modes = nn.Linear(1, 1), torch.device("cpu"), []

    def __call__(self, inputs: Tensor) -> Tensor:
        self.modes.append((self.net.training, torch.is_grad_enabled()))
        return inputs.clone()


def test_accuracy_among_the_classes_seen_and_among_those_of_the_task() -> None:
    """Three tasks of two classes, and outputs of one to come."""
    loaders = [Batches([[9, 1, 0, 0, 0, 0, 99], [1, 9, 0, 0, 0, 0, 99], [2, 1, 0, 5, 0, 0, 99], [2, 1, 0, 0, 0, 0, 0],
                        [9, 1, 0, 0, 0, 0, 0]], [0, 1, 0, 1, 1], 2),
               Batches([[0, 0, 5, 4, 6, 0, 0], [7, 0, 5, 4, 6, 0, 0]], [2, 3], 1),
               Batches([[0, 0, 0, 0, 3, 0, 9]], [4], 5)]
    dataset: Any = SimpleNamespace(test_loaders=loaders, get_offsets=lambda k=2: (2 * k, 2 * k + 2))
    for training in (True, False):
        model: Any = Echo()
        model.net.train(training)
        assert evaluate(model, dataset) == ([40.0, 0.0, 100.0], [60.0, 50.0, 100.0])
        assert evaluate(model, dataset, last=True) == ([100.0], [100.0])
        assert set(model.modes) == {(False, False)} and model.net.training is training


def test_mean_accuracies_are_one_line(capsys: pytest.CaptureFixture) -> None:
    print_mean_accuracy(([10.0, 20.123], [30.0, 50.0]), 2, False)
    print_mean_accuracy(([10.0], [30.0]), 3, True, "FINAL ", epoch=4)
    print_mean_accuracy(([10.0], [30.0]), 3, False, epoch=0)
    assert capsys.readouterr().out.splitlines() == [
        "Accuracy for 2 task(s): \t [Class-IL]: 15.06 % \t [Task-IL]: 40.0 %",
        "FINAL Joint Accuracy (epoch 4): \t [Class-IL]: 10.0 % \t [Task-IL]: 30.0 %",
        "Accuracy (epoch 0) for 3 task(s): \t [Class-IL]: 10.0 % \t [Task-IL]: 30.0 %"]


def test_the_matrices_are_tables(capsys: pytest.CaptureFixture) -> None:
    print_table([([10.0], [20.0]), ([30.0, 40.0], [50.0, 70.0]), ([1.0, 2.0, 6.0], [3.0, 4.0, 5.0])])
    assert capsys.readouterr().out.splitlines() == [
        "", "Class-IL accuracy (%)   task 1   task 2   task 3     mean",
        "after task 1             10.00                      10.00",
        "after task 2             30.00    40.00             35.00",
        "after task 3              1.00     2.00     6.00     3.00",
        "", "Task-IL accuracy (%)   task 1   task 2   task 3     mean",
        "after task 1            20.00                      20.00",
        "after task 2            50.00    70.00             60.00",
        "after task 3             3.00     4.00     5.00     4.00"]


def test_what_the_matrices_come_to(capsys: pytest.CaptureFixture) -> None:
    print_metrics({"class_il": {"final": 10.0, "forgetting": 2.0, "anytime": 3.0},
                   "task_il": {"final": 20.5, "forgetting": -4.0}})
    assert capsys.readouterr().out.splitlines() == [
        "", "                                 Class-IL  Task-IL", "final accuracy, %                   10.00    20.50",
        "forgetting, points                   2.00    -4.00"]


# ---- the system


def test_memory_is_kept_where_there_is_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    """-1, -2 and -3 are M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD."""
    for platform, has_it in (("linux", True), ("linux", False), ("darwin", True)):
        told: list[tuple[int, int]] = []
        library = SimpleNamespace(**({"mallopt": lambda *words, told=told: told.append(words)} if has_it else {}))
        with monkeypatch.context() as patch:
            patch.setattr(ctypes, "CDLL", lambda name, library=library: library)
            patch.setattr(sys, "platform", platform)
            conf.keep_memory()
        assert sorted(told) == ([(-3, 32 * 2**20), (-2, 64 * 2**20), (-1, 2**31 - 1)]
                                if platform == "linux" and has_it else [])


def test_numpy_has_the_seed_itself() -> None:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        for seed in (3, 5, 2**32 - 1, 2**32 + 3):
            conf.set_random_seed(seed)
            assert np.random.rand() == np.random.RandomState(seed % 2**32).rand()
            assert random.random() == random.Random(seed).random()
            assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(seed))
    finally:
        random.setstate(before[0]), np.random.set_state(before[1]), torch.set_rng_state(before[2])


def test_the_log_is_shown_beside_what_others_do_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root, other = logging.getLogger(), logging.NullHandler()
    level = root.level
    monkeypatch.setattr(root, "handlers", [other])
    try:
        for _ in range(2):
            utils.setup_logging()
            assert root.handlers[0] is other and len(root.handlers) == 2
    finally:
        root.setLevel(level)


def test_the_type_of_a_flag_is_that_of_its_default_else_what_was_written() -> None:
    def build(size, width=1, rate=None, name=None, other="x"):  # noqa: ANN001, ANN202
        """A network."""

    build.__annotations__ = {"size": int, "rate": float, "name": "whatever", "other": int}
    found = utils.flags_of(build)
    assert found["size"][0] is inspect.Parameter.empty and found["size"][1]("1") == 1
    assert found["rate"] == (None, found["rate"][1]) and found["rate"][1]("0.5") == 0.5
    assert found["name"][1] is found["other"][1] is mammoth_sbs.values.text
    for name in ("size", "width"):
        with pytest.raises(Exception, match="at least 1"):
            found[name][1]("0")


def test_batch_statistics_are_kept_unless_they_are_not_to_be() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm2d(3)))
    layers = [net[1], net[2][0]]
    for context, inside in ((bn_track_stats(net), True), (bn_track_stats(net, True), True),
                            (bn_track_stats(net, False), False)):
        with context:
            assert [layer.track_running_stats for layer in layers] == [inside] * 2
        assert [layer.track_running_stats for layer in layers] == [True] * 2


# ---- the buffer


def test_stored_examples_go_where_they_are_asked_for() -> None:
    buffer = Buffer(3)
    buffer.add_data(examples=torch.zeros(3, 1), labels=torch.arange(3))
    for found in (buffer.get_data_by_index(torch.tensor([0]), device="meta"), buffer.get_all_data(device="meta"),
                  buffer.get_data(2, device="meta", return_index=True)):
        assert {value.device.type for value in found} == {"meta"}
    assert buffer.examples.device.type == "cpu"


def test_herding_takes_what_brings_the_mean_nearest() -> None:
    features = torch.rand(9, 3, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 10)[:, None]
    for normalized in (True, False):
        values = [np.array(row) / (np.linalg.norm(row) if normalized else 1) for row in features.tolist()]
        mean, chosen = sum(values) / 9, list[int]()
        for n in range(1, 10):
            distances = {i: np.linalg.norm(mean - sum(values[k] for k in (*chosen, i)) / n)
                         for i in range(9) if i not in chosen}
            chosen.append(min(distances, key=distances.__getitem__))
        for count in (0, 1, 4, 9, 12):
            assert _herded(features, count, normalized).tolist() == chosen[:count]
        assert _herded(features[:1], 3, normalized).tolist() == [0]


class Examples:
    """Of classes 2 and 3; a batch carries a field more."""

    def __init__(self) -> None:
        self.targets = torch.tensor([2, 3, 2, 3])

    def batch(self, rows: Tensor) -> tuple[Any, ...]:
        return "augmented", self.targets[rows], rows.float().view(-1, 1), "a field more"

    def extend(self, images: Tensor, labels: Tensor) -> None:
        self.added = images.tolist(), labels.tolist()


def test_a_field_that_a_batch_carries_beside_is_not_stored() -> None:
    data = Examples()
    dataset: Any = SimpleNamespace(get_offsets=lambda t: (2, 4), train_loader=SimpleNamespace(dataset=data))
    buffer = Buffer(8)
    fill_buffer(buffer, dataset, 1)
    assert sorted(zip(buffer.get_all_data()[0].flatten().tolist(), buffer.get_all_data()[1].tolist(), strict=True)) == [
        (0.0, 2), (1.0, 3), (2.0, 2), (3.0, 3)]


def test_icarl_learns_images_and_labels_whatever_else_is_stored() -> None:
    buffer, data = Buffer(2), Examples()
    buffer.add_data(examples=torch.tensor([[0.0], [1.0]]), labels=torch.tensor([0, 1]), logits=torch.zeros(2, 4))
    dataset: Any = SimpleNamespace(train_loader=SimpleNamespace(dataset=data))
    icarl_replay(SimpleNamespace(buffer=buffer, current_task=1), dataset)
    assert data.added == ([[0], [255]], [0, 1])


# ---- checkpoints


class Flagged(list):
    """Something that only this program knows."""


def test_a_checkpoint_executes_nothing_with_any_version_of_torch(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"format": 2, "x": Flagged()}, tmp_path / "c.pt")
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda path, map_location, weights_only=False: load(  # the default before 2.6
        path, map_location=map_location, weights_only=weights_only))
    with pytest.raises(UserError, match="not a checkpoint, or a damaged one; take another"):
        checkpoints.read_checkpoint(tmp_path / "c.pt")


class Method(nn.Module):
    def __init__(self, with_buffer: bool = True) -> None:
        super().__init__()
        self.net = nn.Linear(2, 1)
        self.args, self.task_iteration = Namespace(model="er"), 0
        self.opt = torch.optim.SGD(self.parameters(), lr=0.5)
        if with_buffer:
            self.buffer = Buffer(3)


def test_what_is_saved_is_restored(tmp_path: Path) -> None:
    for with_buffer, within in ((True, True), (True, False), (False, True), (False, False)):
        there_and_back(tmp_path / "c.pt", with_buffer, within)


def there_and_back(file: Path, with_buffer: bool, within: bool) -> None:
    def loader() -> Any:
        return SimpleNamespace(generator=torch.Generator().manual_seed(4))

    args = Namespace(model="er", dataset="seq-x", seed=1, lr=0.1, device=torch.device("cpu"))
    method, before = Method(with_buffer), torch.get_rng_state()
    method.task_iteration = 7
    method.opt.param_groups[0]["lr"] = 0.25
    if with_buffer:
        method.buffer.add_data(examples=torch.ones(2, 1))
    schedule = torch.optim.lr_scheduler.MultiStepLR(method.opt, [5], 0.5)
    schedule.last_epoch = 3
    ours = loader()
    torch.rand(5, generator=ours.generator)
    inside = checkpoints.place_in_task(method, ours, schedule, 3)  # type: ignore[arg-type]
    checkpoints.save_checkpoint(file, method, args, 0, [], inside=inside, run="r", seconds=1.0, during=[],  # type: ignore
                                ahead=None)
    drawn = torch.rand(1)
    state = checkpoints.load_checkpoint(file, args)
    assert state["args"] == {"model": "er", "dataset": "seq-x", "seed": 1, "lr": 0.1} and "digest" in state
    with pytest.raises(UserError, match=f"^--here {file}: of another run: --lr 0.1 there and 0.2 here; leave these"):
        checkpoints.load_checkpoint(file, Namespace(**vars(args) | {"lr": 0.2}), "--here")
    assert checkpoints.load_checkpoint(file, Namespace(**vars(args) | {"lr": 0.2}), may_differ={"lr"}) is not None
    other, theirs = Method(with_buffer), loader()
    later = torch.optim.lr_scheduler.MultiStepLR(other.opt, [5], 0.5)
    if within:
        checkpoints.restore(state, other, theirs, later)  # type: ignore[arg-type]
    else:
        checkpoints.restore(state, other)  # type: ignore[arg-type]
    assert torch.equal(torch.rand(1), drawn)
    assert torch.equal(other.net.weight, method.net.weight)
    assert not with_buffer or len(other.buffer) == 2
    assert (other.task_iteration, other.opt.param_groups[0]["lr"], later.last_epoch) == ((7, 0.25, 3) if within
                                                                                        else (0, 0.5, 0))
    assert torch.equal(theirs.generator.get_state(), ours.generator.get_state()) is within
    torch.set_rng_state(before)


def test_what_does_not_fit_the_method_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Method()
    wrong = {"model": {"net.weight": torch.zeros(9)}, "buffer": None}
    with pytest.raises(UserError, match=r"^--model er: what the checkpoint holds does not fit the method .* \("):
        checkpoints.restore(wrong, method)  # type: ignore[arg-type]

    def refuse(state: Any) -> None:
        raise UserError("the method's own line")

    monkeypatch.setattr(method, "load_state_dict", refuse)
    with pytest.raises(UserError, match="^the method's own line$"):
        checkpoints.restore(wrong, method)  # type: ignore[arg-type]


def test_a_new_flag_that_is_on_makes_another_run() -> None:
    theirs, usual = {"args": {"model": "er"}}, checkpoints.run_digest(Namespace(model="er"))
    for on in (True, 1, 2, "x", [0]):
        with pytest.raises(UserError, match="--brand_new None there and"):
            checkpoints.check_same_run(theirs, Namespace(model="er", brand_new=on), "here", "do that")
        assert checkpoints.run_digest(Namespace(model="er", brand_new=on)) != usual
    for off in (False, 0, None, "", []):
        checkpoints.check_same_run(theirs, Namespace(model="er", brand_new=off), "here", "do that")
        assert checkpoints.run_digest(Namespace(model="er", brand_new=off)) == usual


# ---- augmentation


def test_augmentation_does_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(8, dtype=torch.uint8).view(2, 1, 2, 2)
    assert torch.equal(Augment(None)(x), x.float() / 255)
    normalize = Normalize([0.5], [0.25])
    assert torch.equal(Augment(normalize)(x), (x.float() / 255 - 0.5) / 0.25)
    monkeypatch.setattr(augmentations, "random_crop", lambda x, padding, generator: x + padding + generator)
    monkeypatch.setattr(augmentations, "random_flip", lambda x, generator: x * generator)
    ones = torch.ones(1, 1, 2, 2)
    assert Augment(None, padding=2)(ones, 10).max() == 13  # type: ignore[arg-type]
    assert Augment(None, flip=True)(ones, 10).max() == 10  # type: ignore[arg-type]
    assert Augment(None, 2, True)(ones, 10).max() == 130  # type: ignore[arg-type]


def test_normalisation_can_be_undone() -> None:
    x = torch.rand(2, 3, 2, 2)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    found = Normalize(mean, std)(x)
    torch.testing.assert_close(found[:, 2], (x[:, 2] - 0.3) / 2)
    torch.testing.assert_close(DeNormalize(mean, std)(found), x)


def test_a_crop_is_anywhere_within_the_padding() -> None:
    x = torch.arange(1.0, 7).view(1, 1, 2, 3).expand(300, 1, 2, 3)
    padded = nn.functional.pad(x[0, 0], (1, 1, 1, 1))
    windows = {tuple(padded[y : y + 2, x : x + 3].flatten().tolist()) for y in range(3) for x in range(3)}
    found = random_crop(x, 1, torch.Generator().manual_seed(0))
    assert {tuple(image.flatten().tolist()) for image in found} == windows
    assert torch.equal(found, random_crop(x, 1, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(("beta", "centre", "cut", "share"), [
    (1.0, 0, (0, 0, 0, 0), 1.0), (0.0, 0, (0, 2, 0, 3), 0.75), (0.0, 3, (1, 4, 0, 6), 0.25),
    (0.75, 2, (1, 3, 1, 3), 5 / 6)])
def test_a_cutmix_window_ends_at_the_border(monkeypatch: pytest.MonkeyPatch, beta: float, centre: int,
                                            cut: tuple[int, int, int, int], share: float) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(np.random, "beta", lambda *given: asked.append(given) or beta)
    monkeypatch.setattr(np.random, "randint", lambda size: np.array([centre, centre]))
    monkeypatch.setattr(torch, "randperm", lambda n: torch.tensor([1, 0]))
    x = torch.stack([torch.zeros(1, 4, 6), torch.ones(1, 4, 6)])
    mixed, _, second, found = cutmix_data(x, torch.tensor([5, 6]), force=True)
    top, bottom, left, right = cut
    expected = torch.zeros(4, 6)
    expected[top:bottom, left:right] = 1
    assert torch.equal(mixed[0, 0], expected) and second.tolist() == [6, 5] and found == pytest.approx(share)
    assert asked == [(1.0, 1.0)]


def test_the_whole_image_as_its_window_is_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "uniform_", lambda self, low, high: self.fill_((low + high) / 2))
    x = torch.rand(2, 3, 5, 7)
    torch.testing.assert_close(StrongAugment(None, scale=(1.0, 1.0)).resized_crop(x), x)

"""How the data are cut into tasks, permuted, thinned out and held out for validation."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mammoth_sbs.errors import UserError
from tests.vendor.conftest import FAST, parse


def tasks_of(it: SimpleNamespace) -> list[tuple[list[int], list[int]]]:
    """The training and test classes of every task."""
    out = []
    for _ in range(it.dataset.N_TASKS):
        train, test = it.dataset.get_data_loaders()
        out.append((train.dataset.targets.unique().tolist(), test.dataset.targets.unique().tolist()))
    return out


@pytest.mark.parametrize("flags, expected", [
    ("", [2] * 5), ("--dataset_config 2tasks", [5] * 2), ("--n_tasks 10", [1] * 10), ("--n_tasks 1", [10]),
    ("--dataset_config 2tasks --n_tasks 5", [2] * 5), ("--joint 1", [10]), ("--max_classes 6 --n_tasks 3", [2] * 3),
    ("--max_classes 5", [1] * 5),
])
def test_splits(start: Callable, flags: str, expected: list[int]) -> None:
    it = start("sgd", f"{FAST} {flags}")
    first = 0
    assert len(expected) == it.dataset.N_TASKS and sum(expected) == it.dataset.N_CLASSES
    assert it.args.num_classes == it.model.net.classifier.out_features == sum(expected)
    for t, (train, test) in enumerate(tasks_of(it)):
        assert train == test == list(range(first, first + expected[t]))
        assert it.dataset.get_offsets(t) == (first, first + expected[t])
        first += expected[t]


@pytest.mark.parametrize("dataset, config, tasks", [
    ("seq-cifar10", "2tasks", 2), ("seq-cifar10", "5tasks", 5), ("seq-cifar100", "2tasks", 2),
    ("seq-cifar100", "5tasks", 5), ("seq-cifar100", "20tasks", 20), ("seq-tinyimg", "2tasks", 2),
    ("seq-tinyimg", "10tasks", 10)])
def test_the_papers_splits_have_names(dataset: str, config: str, tasks: int) -> None:
    assert parse(f"--model sgd --lr 1 --dataset {dataset} --dataset_config {config}").n_tasks == tasks


def few(it: SimpleNamespace) -> dict[int, list[int]]:
    """Places in the whole training set, by the digit that is on the images."""
    rows = sorted(row for _ in range(it.dataset.N_TASKS)
                  for row in it.dataset.get_data_loaders()[0].dataset.indexes.tolist())
    return {digit: [row for row in rows if it.dataset.source.train.labels[row] == digit] for digit in range(10)}


def test_train_per_class_takes_the_same_images_for_every_seed_and_split(start: Callable) -> None:
    a = few(start("sgd", "--train_per_class 7 --seed 1"))
    assert all(len(set(rows)) == 7 for rows in a.values())
    for flags in ("--seed 2", "--seed 1 --n_tasks 2", "--seed 1 --joint 1", "--seed 3 --permute_classes 1"):
        assert few(start("sgd", f"--train_per_class 7 {flags}")) == a


def digits_by_label(it: SimpleNamespace) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Which digits hide behind every label, in training and in test."""
    out: tuple[dict, dict] = ({}, {})
    for _ in range(it.dataset.N_TASKS):
        loaders = it.dataset.get_data_loaders()
        for which, (loader, source) in enumerate(zip(loaders, it.dataset.source[:2], strict=True)):
            for label, row in zip(loader.dataset.targets.tolist(), loader.dataset.indexes, strict=True):
                out[which].setdefault(label, set()).add(int(source.labels[row]))
    return out


def test_permuted_classes_are_the_same_in_training_and_test_and_follow_the_seed(start: Callable) -> None:
    orders = {}
    for seed in (1, 1, 2):
        train, test = digits_by_label(start("sgd", f"{FAST} --permute_classes 1 --seed {seed}"))
        assert train == test and all(len(digits) == 1 for digits in train.values())
        order = [train[label].pop() for label in range(10)]
        assert sorted(order) == list(range(10)) != order
        assert orders.setdefault(seed, order) == order
    assert orders[1] != orders[2]
    it = start("sgd", f"{FAST} --permute_classes 1 --seed 1")
    assert it.dataset.get_class_names() == [str(c) for c in orders[1]]
    train, _ = digits_by_label(start("sgd", FAST))
    assert train == {c: {c} for c in range(10)}


@pytest.mark.parametrize("validation, share", [("20", 0.2), ("0.25", 0.25)])
def test_validation_images_are_held_out_of_training(start: Callable, validation: str, share: float) -> None:
    it = start("sgd", f"--validation {validation} --n_epochs 1")
    labels = it.dataset.source.train.labels
    for t in range(5):
        train, held = it.dataset.get_data_loaders()
        assert not set(train.dataset.indexes) & set(held.dataset.indexes)
        for c in (2 * t, 2 * t + 1):
            whole = int((labels == c).sum())
            n_held = int((held.dataset.targets == c).sum())
            assert n_held == int(np.ceil(share * whole)) and int((train.dataset.targets == c).sum()) == whole - n_held
        for row, label in zip(held.dataset.indexes, held.dataset.targets, strict=True):
            assert labels[row] == label  # they come from the training data, not from the test set


def test_validation_ends_with_the_real_test_set(run: Callable, start: Callable, capsys: pytest.CaptureFixture) -> None:
    result = run("er", f"{FAST} --validation 20 --stop_after 2")
    out = capsys.readouterr().out
    pattern = r"^FINAL Accuracy for 2 task\(s\): \t \[Class-IL\]: ([\d.]+) % \t \[Task-IL\]: ([\d.]+) %$"
    (printed,) = re.findall(pattern, out, re.M)
    plain = start("er", FAST)
    for _ in range(2):
        plain.dataset.get_data_loaders()
    from utils.evaluate import evaluate

    class_il, task_il = evaluate(result["model"], plain.dataset)
    assert result["test"] == {"class_il": class_il, "task_il": task_il}
    assert [float(v) for v in printed] == [round(sum(v) / 2, 2) for v in (class_il, task_il)]


# ---- an order of one's own, and other second tasks


def digits_of(it: SimpleNamespace) -> list[tuple[list[int], list[int]]]:
    """What is on the training and test images of every task, in the order of their labels."""
    out = []
    for _ in range(it.dataset.N_TASKS):
        found = []
        for part, source in zip(it.dataset.get_data_loaders(), (it.dataset.source.train, it.dataset.source.test),
                                strict=True):
            pairs = zip(part.dataset.targets.tolist(), source.labels[part.dataset.indexes].tolist(), strict=True)
            found.append([digit for _, digit in sorted(set(pairs))])
        out.append((found[0], found[1]))
    return out


@pytest.mark.parametrize(("flags", "expected"), [
    ("--custom_class_order 7,6,2,3,0,1,5,9,8,4", [[7, 6, 2, 3, 0], [1, 5, 9, 8, 4]]),
    ("--custom_class_order 7-6-2-3-0-1-5-9-8-4", [[7, 6, 2, 3, 0], [1, 5, 9, 8, 4]]),
    ("--custom_class_order 5-9,4-0", [[5, 6, 7, 8, 9], [4, 3, 2, 1, 0]]),
    ("--custom_class_order 0-9", [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),
    ("--custom_class_order 0-1,8,9 --max_classes 4", [[0, 1], [8, 9]]),  # A, then C
    ("--custom_class_order 4,9 --max_classes 2 --permute_classes 1", [[4], [9]]),
])
def test_classes_arrive_in_the_order_that_is_given(start: Callable, flags: str, expected: list[list[int]]) -> None:
    it = start("sgd", f"{FAST} --n_tasks 2 {flags}")
    assert digits_of(it) == [(digits, digits) for digits in expected]
    assert it.dataset.get_class_names() == [str(digit) for digits in expected for digit in digits]


def test_classes_are_known_by_their_names() -> None:
    from datasets.utils.tasks import custom_class_order

    names = ["apple", "aquarium_fish", "baby", "bear"]
    assert custom_class_order("bear,0,aquarium_fish,baby", names, 4).tolist() == [1, 2, 3, 0]
    assert sorted(custom_class_order("baby,apple", names, 2).tolist()) == [0, 1, 2, 3]
    assert custom_class_order("baby,apple", names, 2)[[2, 0]].tolist() == [0, 1]


@pytest.mark.parametrize(("flags", "says"), [
    ("--custom_class_order 0-8", "names 9 classes, and 10 are used; name as many, or give --max_classes 9"),
    ("--custom_class_order 0-8,8", "class 8 is named twice"),
    ("--custom_class_order 0-10", "'0-10' is no class; there are 0 to 9"),
    ("--custom_class_order 0,one", "'one' is no class"),
    ("--second_task rotations", "tasks of at least 3 classes, not 8 x 8 and 2"),
    ("--second_task random-labels --n_tasks 1", "there is one task"),
    ("--lr_later 0.1 -1", "--lr_later: a number above 0 is needed, not -1"),
])
def test_orders_and_tasks_that_cannot_be(start: Callable, flags: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        start("sgd", f"{FAST} {flags}")


def test_a_second_task_of_rotations(start: Callable) -> None:
    it = start("sgd", f"{FAST} --n_tasks 2 --second_task rotations")
    for first, second in zip(it.dataset.get_data_loaders(), it.dataset.get_data_loaders(), strict=True):
        plain, turned = first.dataset, second.dataset
        assert plain.indexes.tolist() == turned.indexes.tolist()
        turns = turned.targets - 5 + 1  # labels 5, 6 and 7 are 90, 180 and 270 degrees
        assert sorted(turns.unique().tolist()) == [1, 2, 3]
        for before, after, k in zip(plain.data, turned.data, turns.tolist(), strict=True):
            assert torch.equal(torch.rot90(before, k, (1, 2)), after)
        assert not turned.transform.flip
    assert it.dataset.get_offsets() == (5, 10)


def test_a_second_task_of_random_labels(start: Callable) -> None:
    it, other = (start("sgd", f"--n_tasks 2 --seed {seed} --second_task random-labels") for seed in (0, 1))
    usual = start("sgd", "--n_tasks 2")
    for one in (it, other, usual):
        one.dataset.get_data_loaders()
    for part, again, truth in zip(it.dataset.get_data_loaders(), other.dataset.get_data_loaders(),
                                  usual.dataset.get_data_loaders(), strict=True):
        assert torch.equal(part.dataset.data, truth.dataset.data)
        labels, right = part.dataset.targets, truth.dataset.targets
        assert sorted(labels.unique().tolist()) == [5, 6, 7, 8, 9]
        assert 0.1 < (labels == right).float().mean() < 0.3  # a fifth, by chance
        assert not torch.equal(labels, again.dataset.targets)


def test_test_per_class(start: Callable) -> None:
    for flags in ("", "--permute_classes 1 --seed 5", "--validation 20"):
        it = start("sgd", f"{FAST} --test_per_class 4 {flags}")
        for _ in range(5):
            test = it.dataset.get_data_loaders()[1].dataset
            assert torch.bincount(test.targets)[-2:].tolist() == [4, 4]

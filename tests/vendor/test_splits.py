"""How the data are cut into tasks, permuted, thinned out and held out for validation."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

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

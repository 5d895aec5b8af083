"""Evaluation of a network with batch normalisation: in evaluation mode, and without a trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from utils.evaluate import evaluate, mask_classes
from utils.training import train_task

CONV = "--backbone tiny-resnet18 --num_filters 2 --train_per_class 20 --n_epochs 2 --batch_size 8"


def by_hand(net: torch.nn.Module, dataset: SimpleNamespace) -> tuple[list[float], list[float]]:
    """Per cent right on each task, one task's test images in one batch: among the classes seen, and among its own."""
    class_il, task_il = [], []
    seen = 2 * len(dataset.test_loaders)
    for k, loader in enumerate(dataset.test_loaders):
        x, y = (torch.cat(parts) for parts in list(zip(*loader, strict=True))[:2])
        with torch.no_grad():
            outputs = net(x)
        class_il.append(100 * float((outputs[:, :seen].argmax(1) == y).float().mean()))
        task_il.append(100 * float((outputs[:, 2 * k : 2 * k + 2].argmax(1) + 2 * k == y).float().mean()))
    return class_il, task_il


@pytest.mark.parametrize("training", [True, False])
def test_a_network_with_batch_normalisation_is_evaluated_by_its_running_statistics(
        start: Callable[..., SimpleNamespace], training: bool) -> None:
    it = start("sgd", CONV)
    for _ in range(2):
        it.dataset.get_data_loaders()
        it.model.meta_begin_task(it.dataset)
        train_task(it.model, it.dataset, it.args)
        it.model.meta_end_task(it.dataset)
    it.model.net.train(training)
    before = copy.deepcopy(it.model.net.state_dict())
    found = evaluate(it.model, it.dataset)
    assert it.model.net.training is training  # as it was
    assert all(torch.equal(before[name], value) for name, value in it.model.net.state_dict().items())
    net = copy.deepcopy(it.model.net)
    right, wrong = by_hand(net.eval(), it.dataset), by_hand(net.train(), it.dataset)
    for mine, theirs, other in zip(found, right, wrong, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5) and mine != pytest.approx(other, rel=1e-5)


def test_masking_leaves_the_classes_of_one_task(start: Callable[..., SimpleNamespace]) -> None:
    it = start("sgd", "--n_tasks 5")
    outputs = torch.arange(20.0).view(2, 10)
    mask_classes(outputs, it.dataset, 1)
    assert outputs.isfinite().tolist() == [[False, False, True, True] + [False] * 6] * 2
    assert outputs[:, 2:4].tolist() == [[2, 3], [12, 13]]

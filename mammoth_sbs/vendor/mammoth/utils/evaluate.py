"""Accuracy with and without knowing the task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from datasets.utils.continual_dataset import batches_on

if TYPE_CHECKING:
    from datasets.utils.continual_dataset import ContinualDataset
    from models.utils.continual_model import ContinualModel


def mask_classes(outputs: Tensor, dataset: ContinualDataset, k: int) -> None:
    """Leave only the classes of task `k` in play."""
    first, end = dataset.get_offsets(k)
    outputs[:, :first] = -float("inf")
    outputs[:, end:] = -float("inf")


@torch.no_grad()
def evaluate(model: ContinualModel, dataset: ContinualDataset, last: bool = False) -> tuple[list[float], list[float]]:
    """Per cent correct on each task so far, or on the `last`: Class-IL (among classes seen), Task-IL (the task's)."""
    was_training = model.net.training
    model.net.eval()
    n_classes = dataset.get_offsets()[1]
    accuracies: tuple[list[float], list[float]] = ([], [])
    for k, loader in list(enumerate(dataset.test_loaders))[-1 if last else 0 :]:
        right = torch.zeros(2, dtype=torch.int64, device=model.device)  # a GPU is waited for once per task
        for inputs, labels, *_ in batches_on(loader, model.device):
            outputs, labels = model(inputs.to(model.device)), labels.to(model.device)
            right[0] += (outputs[:, :n_classes].argmax(1) == labels).sum()
            mask_classes(outputs, dataset, k)
            right[1] += (outputs.argmax(1) == labels).sum()
        for found, into in zip(right.tolist(), accuracies, strict=True):
            into.append(100 * found / len(loader.dataset))
    model.net.train(was_training)
    return accuracies

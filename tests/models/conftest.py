"""What the tests of the SBS models share."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from utils.training import train

EACH_STEP = ("er", "der", "derpp")  # insert into the buffer at every step in stock
SMALL = "--train_per_class 20 --n_epochs 2"
FEW = "--train_per_class 6 --n_epochs 2 --buffer_size 10"


def follow(it: SimpleNamespace) -> list[SimpleNamespace]:
    """Note, at the end of every task: counts of the hook, the task as the sampler saw it, and what was stored."""
    notes: list[SimpleNamespace] = []
    report = it.model.report

    def note(task, stored, data) -> None:  # noqa: ANN001
        notes.append(SimpleNamespace(task=task, stored=stored, data=data, counts=it.model.speed.count.clone(),
                                     buffer=it.model.buffer.serialize(), n=len(it.model.buffer)))
        report(task, stored, data)

    it.model.report = note
    train(it.model, it.dataset, it.args)
    return notes


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

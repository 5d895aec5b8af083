"""Chosen examples of a task, on either host: as batches, and as a data set that stock methods take for the task."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate


def fetch(data: Any, index: Tensor) -> tuple[Tensor, ...]:
    """Some of a task's examples as one batch, `(inputs, labels, not_aug_inputs, ...)`."""
    return data.batch(index) if hasattr(data, "batch") else tuple(default_collate([data[int(i)] for i in index]))


def not_augmented(data: Any, index: Tensor) -> Tensor:
    """Some of a task's images as they are; the embedded host has them without augmenting any."""
    return data.not_augmented(index) if hasattr(data, "not_augmented") else fetch(data, index)[2]


def even_parts(index: Tensor, size: int) -> tuple[Tensor, ...]:
    """Batches of about `size`, none much smaller: batch normalisation would not know a batch of one."""
    return index.tensor_split(max(1, math.ceil(len(index) / size))) if len(index) else ()


class Chosen:
    """Some examples of a task in a given order, with what stock methods use of a data set wrapper and its loader."""

    def __init__(self, data: Any, index: Tensor, batch_size: int) -> None:
        self.source, self.index, self.batch_size = data, index, batch_size
        self.targets = torch.as_tensor(data.targets)[index]
        self.data = index  # only ever masked by stock code

    @property
    def dataset(self) -> Chosen:
        return self

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: Tensor) -> tuple[Tensor, ...]:
        return fetch(self.source, self.index[index])

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for index in even_parts(torch.arange(len(self)), self.batch_size):
            yield self.batch(index)


class View:
    """A data set whose train loader gives the chosen examples; all else is the data set's."""

    def __init__(self, dataset: Any, loader: Any) -> None:
        self._dataset, self.train_loader = dataset, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

"""The replay buffer: a fixed number of slots, filled by reservoir sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils.augmentations import Transform


class Buffer:
    """Holds examples and whatever a method stores beside them, in tensors of `buffer_size` rows."""

    attributes = ("examples", "labels", "logits", "task_labels")
    examples: Tensor
    labels: Tensor
    logits: Tensor
    task_labels: Tensor

    def __init__(self, buffer_size: int, device: torch.device | str = "cpu") -> None:
        self.buffer_size, self.device = buffer_size, device
        self.num_seen_examples = 0

    def __len__(self) -> int:
        return min(self.num_seen_examples, self.buffer_size)

    @property
    def used_attributes(self) -> list[str]:
        """What this method stores."""
        return [name for name in self.attributes if hasattr(self, name)]

    def is_empty(self) -> bool:
        return self.num_seen_examples == 0

    def is_full(self) -> bool:
        return self.num_seen_examples >= self.buffer_size

    def empty(self) -> None:
        """Forget everything, the number of examples seen included."""
        for name in self.used_attributes:
            delattr(self, name)
        self.num_seen_examples = 0

    def add_data(self, examples: Tensor, labels: Tensor | None = None, logits: Tensor | None = None,
                 task_labels: Tensor | None = None) -> None:
        """Offer a batch to the reservoir: the n-th example ever seen takes a slot with probability size / n."""
        fields = {"examples": examples, "labels": labels, "logits": logits, "task_labels": task_labels}
        given = {name: value for name, value in fields.items() if value is not None}
        for name, value in given.items():
            if not hasattr(self, name):
                dtype = torch.int64 if name.endswith("labels") else torch.float32
                setattr(self, name, torch.zeros((self.buffer_size, *value.shape[1:]), dtype=dtype, device=self.device))
        seen = self.num_seen_examples + np.arange(len(examples))
        slots = seen.copy()
        late = seen >= self.buffer_size
        if late.any():
            slots[late] = np.random.randint(0, seen[late] + 1)
        self.num_seen_examples += len(examples)
        # of two examples that drew the same slot, the later one stays: unique() keeps the first of the reversed
        slots, last = np.unique(slots[::-1], return_index=True)
        rows = (len(examples) - 1 - last)[slots < self.buffer_size]
        slots = slots[slots < self.buffer_size]
        if len(slots):
            index, source = torch.from_numpy(slots), torch.from_numpy(rows)
            for name, value in given.items():
                target = getattr(self, name)
                target[index] = value.detach()[source.to(value.device)].to(target.device, target.dtype)

    def get_data(self, size: int, transform: Transform | None = None, return_index: bool = False,
                 device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """`size` examples (or all, if there are fewer) drawn without replacement, with what is stored beside them."""
        choice = np.random.choice(len(self), size=min(size, len(self)), replace=False)
        index = torch.from_numpy(choice)
        data = self.get_data_by_index(index, transform, device)
        return (index.to(device or self.device), *data) if return_index else data

    def get_data_by_index(self, indexes: Tensor, transform: Transform | None = None,
                          device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """The content of some slots."""
        first, *rest = (getattr(self, name)[indexes].to(device or self.device) for name in self.used_attributes)
        return (transform(first) if transform else first, *rest)

    def get_all_data(self, transform: Transform | None = None,
                     device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """The content of all slots in use."""
        return self.get_data_by_index(torch.arange(len(self)), transform, device)

    def serialize(self) -> dict[str, Tensor | int]:
        """Content for a checkpoint."""
        content: dict[str, Tensor | int] = {name: getattr(self, name).cpu() for name in self.used_attributes}
        return {**content, "num_seen_examples": self.num_seen_examples}

    def load(self, content: dict) -> None:
        """Undo of `serialize`."""
        self.empty()
        for name, value in content.items():
            setattr(self, name, value.to(self.device) if isinstance(value, Tensor) else value)


def fill_buffer(buffer: Buffer, dataset: Any, t_idx: int, required_attributes: list[str]) -> None:
    """Give every class seen an equal quota: cut old classes to it, draw the new ones at random (GEM)."""
    old, seen = dataset.get_offsets(t_idx)
    quota = buffer.buffer_size // seen
    kept = dict(zip(buffer.used_attributes, buffer.get_all_data(), strict=True)) if not buffer.is_empty() else {}
    buffer.empty()
    for c in range(old) if kept else ():
        rows = torch.where(kept["labels"] == c)[0][:quota]
        if len(rows):
            buffer.add_data(**{name: value[rows] for name, value in kept.items()})
    data = dataset.train_loader.dataset
    for c in data.targets.unique():
        rows = torch.where(data.targets == c)[0]
        rows = rows[torch.randperm(len(rows))[:quota]]
        _, labels, examples = data.batch(rows)[:3]
        given = {"examples": examples, "labels": labels, "task_labels": torch.full((len(rows),), t_idx)}
        buffer.add_data(**{name: given[name] for name in required_attributes})

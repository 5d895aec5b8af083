"""What a sampler may look at: one task's examples, each described by the fields it asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class Task:
    """The N examples of D_t. A field is None unless the sampler named it in `needs`.

    >>> task = Task(labels=torch.tensor([0, 1, 1]), speed=torch.tensor([0.25, 1, 0.5]))
    >>> len(task), task.subset(torch.tensor([2, 0])).speed
    (3, tensor([0.5000, 0.2500]))
    """

    labels: Tensor  # (N,) classes
    speed: Tensor | None = None  # (N,) learning speed, Eq. 1, or another score where high means quick
    features: Tensor | None = None  # (N, D) what the last layer sees
    logits: Tensor | None = None  # (N, C) of the task's own classes
    losses: Tensor | None = None  # (N,) cross-entropy
    first_class: int = 0  # the class of the first column of `logits`; the next columns are the next classes
    uncertainty: Tensor | None = None  # (N,) how little augmented views of an example agree

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: Tensor) -> Task:
        """The same fields for some of the examples, in the order of `index`."""
        part = replace(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(part, name, value[index])
        return part

    def need(self, name: str) -> Tensor:
        """The field `name`, checked: there, and finite."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"this sampler needs `{name}`, which the task does not have")
        if not torch.isfinite(value).all():
            raise ValueError(f"`{name}` has values that are not finite: the network has diverged")
        return value

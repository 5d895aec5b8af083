"""What every sampler is, and what several of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from mammoth_sbs.core.samplers.task import Task


class Sampler(ABC):
    """A way to choose which examples of a task go into the replay buffer.

    >>> class Slowest(Sampler):
    ...     name, needs = "slowest", frozenset({"speed"})
    ...     def choose(self, task, k, generator):
    ...         return task.need("speed").argsort()[:k]
    >>> task = Task(labels=torch.tensor([0, 0, 1]), speed=torch.tensor([1, 0.25, 0.5]))
    >>> Slowest().choose(task, 2, torch.Generator())
    tensor([1, 2])
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()  # of Task: speed, features, logits, losses, uncertainty
    takes: ClassVar[frozenset[str]] = frozenset()  # of `q` and `s`: those that it is built with

    @abstractmethod
    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """`k` distinct indices into `task` (all of them if it has fewer), int64 on the CPU."""

    def choose_per_class(self, task: Task, quotas: dict[int, int], generator: torch.Generator) -> Tensor:
        """As `choose`, for a method whose buffer gives each class its own quota."""
        members = {c: (task.labels == c).nonzero().flatten() for c in quotas}
        chosen = [members[c][self.choose(task.subset(members[c]), k, generator)] for c, k in quotas.items()]
        return torch.cat([torch.empty(0, dtype=torch.int64), *chosen])


def clamp(k: int, task: Task) -> int:
    """How many examples can be chosen: a caller's share may exceed a small task or class."""
    if k < 0:
        raise ValueError(f"cannot choose {k} examples: k must not be negative")
    return min(k, len(task))


def spread(counts: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """`k` divided evenly over classes of these sizes: what a small class cannot give, the others do.

    A rest too small for one example per class goes to classes drawn at random.
    """
    quotas = torch.zeros_like(counts)
    while (left := k - int(quotas.sum())) > 0:
        open_classes = (quotas < counts).nonzero().flatten()
        share = left // len(open_classes)
        if share == 0:
            share = 1
            open_classes = open_classes[torch.randperm(len(open_classes), generator=generator)[:left]]
        quotas[open_classes] = torch.minimum(quotas[open_classes] + share, counts[open_classes])
    return quotas


def by_class(labels: Tensor, k: int, generator: torch.Generator) -> Iterator[tuple[Tensor, int]]:
    """Each class's examples with its part of `k`. They come in random order, so that ties are broken at random."""
    order = torch.randperm(len(labels), generator=generator)
    counts = labels.unique(return_counts=True)[1]
    members = order[labels[order].argsort(stable=True)].split(counts.tolist())
    return zip(members, spread(counts, k, generator).tolist(), strict=True)

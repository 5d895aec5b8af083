"""For methods whose stock `end_task` gives each class a quota: it is handed the chosen examples instead of the task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mammoth_sbs.core.samplers import Task
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.base import SpeedSampled
from mammoth_sbs.models.chosen import Chosen, View


def rank_in_class(classes: Tensor) -> Tensor:
    """How many of its own class come before each example."""
    by_class = torch.argsort(classes, stable=True)
    counts = torch.bincount(classes)
    rank = torch.empty_like(by_class)
    rank[by_class] = torch.arange(len(classes)) - (counts.cumsum(0) - counts)[classes[by_class]]
    return rank


class ClassQuota(SpeedSampled):
    """Fills through the stock `end_task`, so that quota, reduction and what is stored stay the method's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        least = self.num_classes * (self.n_tasks if self.by_domain else 1)
        if self.args.buffer_size < least:
            raise UserError(f"--buffer_size {self.args.buffer_size}: {self.stock} gives each of the {self.num_classes} "
                            f"classes a quota{' in each domain' * self.by_domain}; give at least {least}")

    @property
    def by_domain(self) -> bool:
        """Whether all tasks have the same classes: then it is a class of a domain that has a quota."""
        return getattr(self.dataset, "SETTING", "") == "domain-il"

    def old_quota(self) -> int:
        """How many examples of an old class the stock method keeps at the end of this task."""
        return self.args.buffer_size // (self.n_seen_classes * (self.current_task + 1 if self.by_domain else 1))

    def new_quota(self) -> int:
        """How many examples of a new class it takes at the most: the room left, divided among them and rounded up."""
        labels = self.buffer.labels[: len(self.buffer)] if not self.buffer.is_empty() else torch.zeros(0).long()
        kept = torch.bincount(labels).clamp(max=self.old_quota()).sum() if self.current_task else 0
        return -(-(self.args.buffer_size - int(kept)) // self.n_classes_current_task)

    def fill(self, dataset: Any, task: Task) -> Tensor:
        quotas = dict.fromkeys(range(self.n_past_classes, self.n_seen_classes), self.new_quota())
        chosen = self.sampler.choose_per_class(task, quotas, self.generator)
        # one of each class in turn: the order within a class stays, and batches are mixed as in training
        chosen = chosen[torch.argsort(rank_in_class(task.labels[chosen]), stable=True)]
        view = View(dataset, self.loader(dataset.train_loader.dataset, chosen))
        super(SpeedSampled, self).end_task(view)
        labels = self.buffer.labels[: len(self.buffer)].cpu()
        if self.by_domain:
            labels = labels[self.buffer.task_labels[: len(self.buffer)].cpu() == self.current_task]
        taken = torch.bincount(labels, minlength=self.n_seen_classes)
        classes = task.labels[chosen]
        return chosen[rank_in_class(classes) < taken[classes]]  # first come, first served

    def loader(self, data: Any, chosen: Tensor) -> Chosen:
        """What the stock method gets in place of the task's loader."""
        return Chosen(data, chosen, self.args.batch_size)

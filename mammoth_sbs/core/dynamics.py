"""Scores from training dynamics that the forward hook can keep beside learning speed, for a few more bytes per example.

All are scaled so that high means easy, as quick does (`--sbs-score`). Each example is seen once per epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Dynamics(ABC):
    """One number per example, kept up to date by every training step's own forward pass."""

    def __init__(self, n: int) -> None:
        self.total = torch.zeros(n)
        self.looks = torch.zeros(n, dtype=torch.int16)

    @abstractmethod
    def update(self, index: Tensor, labels: Tensor, logits: Tensor) -> None:
        """A batch has passed: `logits` of the task's classes, `labels` as their columns."""

    def add(self, index: Tensor, found: Tensor) -> None:
        """Count what a pass found."""
        index = index.cpu()
        self.total[index] += found.float().cpu()
        self.looks[index] += 1

    @property
    def value(self) -> Tensor:
        """Of every example: the mean over its looks."""
        return self.total / self.looks.clamp_min(1)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            setattr(self, name, value.clone())


class Margin(Dynamics):
    """Area under the margin (Pleiss et al., NeurIPS 2020): the label's logit minus the largest other, over epochs.

    >>> margin = Margin(2)
    >>> margin.update(torch.tensor([1]), torch.tensor([0]), torch.tensor([[3.0, 1.0]]))
    >>> margin.value
    tensor([0., 2.])
    """

    def update(self, index: Tensor, labels: Tensor, logits: Tensor) -> None:
        column = labels.unsqueeze(1)
        others = logits.scatter(1, column, -torch.inf).amax(1)
        margin = logits.gather(1, column).squeeze(1) - others
        self.add(index, torch.where(others.isinf(), 0.0, margin))  # a task of one class has no others


class EL2N(Dynamics):
    """Minus the error's length, ||softmax - onehot|| (Paul et al., NeurIPS 2021); there the mean over several networks
    early in training, here over the epochs of the one that is trained."""

    def update(self, index: Tensor, labels: Tensor, logits: Tensor) -> None:
        error = logits.softmax(1)
        error[torch.arange(len(labels)), labels] -= 1
        self.add(index, -error.norm(dim=1))


class ForgettingEvents(Dynamics):
    """Minus how often an example was right and then, when it was seen next, wrong (Toneva et al., ICLR 2019). One that
    was never right counts as forgotten every time."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.before = torch.zeros(n, dtype=torch.bool)
        self.ever = torch.zeros(n, dtype=torch.bool)

    def update(self, index: Tensor, labels: Tensor, logits: Tensor) -> None:
        index, right = index.cpu(), (logits.argmax(1) == labels).cpu()
        self.add(index, -(self.before[index] & ~right).float())
        self.before[index] = right
        self.ever[index] |= right

    @property
    def value(self) -> Tensor:
        return torch.where(self.ever, self.total, -self.looks.float())


DYNAMICS: dict[str, type[Dynamics]] = {"margin": Margin, "el2n": EL2N, "forgetting-events": ForgettingEvents}

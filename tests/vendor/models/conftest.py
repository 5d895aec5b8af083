"""A slow reference of one step of a method, written from its paper and Mammoth's behaviour.

References use plain autograd, explicit loops and a hand-written SGD update on a copy of the network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

LR, CPT, BUFFER, BATCH, MINI = 0.05, 2, 14, 8, 6
STEP = (f"--backbone tiny-resnet18 --num_filters 4 --lr {LR} --buffer_size {BUFFER} --batch_size {BATCH} "
        f"--minibatch_size {MINI} --train_per_class 12 --n_epochs 1")


def at_task(it: SimpleNamespace, task: int) -> None:
    """Bring model and data set to the beginning of a task without training on those before."""
    for _ in range(task + 1):
        it.dataset.get_data_loaders()
    it.model._current_task = task
    it.model.net.train()
    it.model.meta_begin_task(it.dataset)


def fill(it: SimpleNamespace, *extra: str, tasks: int = 1) -> None:
    """A full buffer of random images of earlier tasks, in the fields that the method stores."""
    g = torch.Generator().manual_seed(3)
    labels = torch.randint(CPT * tasks, (BUFFER,), generator=g)
    labels[: CPT * tasks] = torch.arange(CPT * tasks)
    fields = {"labels": labels, "logits": 2 * torch.randn(BUFFER, 10, generator=g), "task_labels": labels // CPT}
    images = torch.rand(BUFFER, 1, 8, 8, generator=g)
    it.model.buffer.add_data(examples=images, **{name: fields[name] for name in extra})


def batch(it: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    return next(iter(it.dataset.train_loader))[:3]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The slots that successive draws from the buffer give: the second shares two with the first."""
    draws = [[3, 11, 0, 7, 5, 13], [1, 7, 9, 3, 2, 12], [4, 10, 8, 6]]
    left = iter(draws)

    def choice(n: int, size: int, replace: bool) -> np.ndarray:
        assert n == BUFFER and not replace
        if size == BUFFER:  # GEM takes all
            return np.arange(BUFFER)
        row = next(left)
        assert size == len(row)
        return np.array(row)

    monkeypatch.setattr(np.random, "choice", choice)
    return [torch.tensor(row) for row in draws]


class Reference:
    """A copy of the model's network and buffer, and an SGD step written out."""

    def __init__(self, it: SimpleNamespace) -> None:
        self.net = copy.deepcopy(it.model.net)
        self.buffer = {name: getattr(it.model.buffer, name).clone() for name in it.model.buffer.used_attributes}
        mean, std = it.dataset.MEAN[0], it.dataset.STD[0]
        self.normalize = lambda x: (x - mean) / std
        self.args, self.t = it.args, it.model.current_task

    def images(self, slots: Tensor) -> Tensor:
        return self.normalize(self.buffer["examples"][slots])

    def unnoticed(self, x: Tensor) -> Tensor:
        """A forward pass with batch statistics after which the running ones are as before."""
        kept = [b.clone() for b in self.net.buffers()]
        out = self.net(x)
        for b, old in zip(self.net.buffers(), kept, strict=True):
            b.data = old
        return out

    def grads(self, loss: Tensor) -> list[Tensor]:
        for p in self.net.parameters():
            p.grad = None
        loss.backward(retain_graph=True)
        return [p.grad.clone() for p in self.net.parameters()]

    def update(self, grads: list[Tensor]) -> None:
        with torch.no_grad():
            for p, g in zip(self.net.parameters(), grads, strict=True):
                p -= LR * g

    def descend(self, loss: Tensor) -> float:
        self.update(self.grads(loss))
        return float(loss.detach())


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the mean log-probability of the true class, one example at a time."""
    total = logits.new_zeros(())
    for row, label in zip(logits, labels, strict=True):
        total = total - (row[label] - torch.logsumexp(row, 0))
    return total / len(labels)


def mean_square(a: Tensor, b: Tensor) -> Tensor:
    return sum(((x - y) ** 2).sum() for x, y in zip(a, b, strict=True)) / a.numel()  # type: ignore[return-value]


def check(it: SimpleNamespace, reference: Reference, loss: float, expected: float) -> None:
    """Same loss and, after the step, the same weights and batch statistics, to 1e-4 relative."""
    assert loss == pytest.approx(expected, rel=1e-4)
    moved = 0.0
    expected_state = reference.net.state_dict()
    for name, ours in it.model.net.state_dict().items():
        theirs = expected_state[name]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
        moved += float((ours - it.before[name]).abs().sum())
    assert moved > 0.01  # the step did something, so that equality says something


@pytest.fixture
def ready(start: Callable[..., SimpleNamespace]) -> Callable[..., SimpleNamespace]:
    """A model at the beginning of a later task, its buffer full."""

    def ready(model: str, *fields: str, flags: str = "", task: int = 1, tasks: int = 1) -> SimpleNamespace:
        it = start(model, f"{STEP} {flags}")
        at_task(it, task)
        fill(it, *fields, tasks=tasks)
        it.before = copy.deepcopy(it.model.net.state_dict())
        return it

    return ready


def flat(grads: list[Tensor]) -> np.ndarray:
    return torch.cat([g.flatten() for g in grads]).double().numpy()


def per_class(it: SimpleNamespace) -> list[int]:
    labels = it.model.buffer.get_all_data()[it.model.buffer.used_attributes.index("labels")]
    return torch.bincount(labels, minlength=10).tolist()


def counts_after(it: SimpleNamespace, tasks: int, count: Callable[[SimpleNamespace], Any]) -> list[Any]:
    """What `count` says after each task, without training."""
    out = []
    it.model.net.train()
    for _ in range(tasks):
        it.dataset.get_data_loaders()
        it.model.meta_begin_task(it.dataset)
        it.model.meta_end_task(it.dataset)
        out.append(count(it))
    return out

"""Gradients of a head on features, as the factors that they are products of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from backbone.pretrained import Head
from utils.buffer import Buffer

MOST = 2048  # stored examples; of more, products of all pairs would cost more than those of whole gradients


class Stored(NamedTuple):
    """What a buffer of features holds, by task: as long as nothing is stored, the same at every step."""

    examples: Tensor  # the buffer's own
    version: int  # of these: it grows when something is stored
    x: Tensor
    y: Tensor
    sizes: list[int]  # of the tasks
    products: Tensor  # of all pairs of examples

    @classmethod
    def of(cls, buffer: Buffer) -> Stored:
        n = len(buffer)
        tasks = buffer.task_labels[:n]
        order = tasks.argsort(stable=True)
        x, y = buffer.examples[order], buffer.labels[order]
        sizes = tasks.unique(return_counts=True)[1].tolist()
        return cls(buffer.examples, buffer.examples._version, x, y, sizes, x @ x.T)

    def is_of(self, buffer: Buffer) -> bool:
        return self.examples is buffer.examples and self.version == buffer.examples._version


class Factors:
    """The gradients of a head's losses on several parts: stored ones, and the stream, which comes last.

    That of the hidden layer is errors' x features, a sum over the examples of a part. So products of two gradients are
    sums over pairs of examples, and only the one that is learned by is ever written out: a head has a third of a
    million parameters, and a part some tens of examples.
    """

    def __init__(self, net: Head, stored: Stored) -> None:
        self.net, self.stored = net, stored
        self.errors: list[Tensor] = []  # of each part: gradients of its hidden layer's outputs
        self.rest: list[Tensor] = []  # of each part: the gradient of all other parameters

    @staticmethod
    def fit(net: nn.Module, buffer: Buffer) -> TypeGuard[Head]:
        """Whether this network's gradients have such factors, and it pays."""
        return isinstance(net, Head) and isinstance(net.hidden, nn.Linear) and len(buffer) <= MOST

    def add(self, x: Tensor, y: Tensor, loss: Callable[..., Tensor]) -> Tensor:
        """The loss on one more part, whose gradient it keeps."""
        outputs: list[Tensor] = []
        hook = self.net.hidden.register_forward_hook(lambda _layer, _given, out: outputs.append(out))
        value = loss(self.net(x), y)
        hook.remove()
        error, *rest = torch.autograd.grad(value, [*outputs, *list(self.net.parameters())[1:]])
        self.errors.append(error)
        self.rest.append(torch.cat([g.reshape(-1) for g in rest]))
        return value

    def products(self, x: Tensor) -> np.ndarray:
        """Of all gradients with each other, as doubles; `x` is the stream's part."""
        errors, rest = torch.cat(self.errors), torch.stack(self.rest)
        across, old = self.stored.x @ x.T, len(self.stored.x)
        parts = torch.block_diag(*(errors.new_ones(1, len(e)) for e in self.errors))
        total, start = rest @ rest.T, 0
        for i, part in enumerate(self.errors[:-1]):  # with itself and those after it
            end = start + len(part)
            pairs = part @ errors[start:].T
            pairs[:, : old - start] *= self.stored.products[start:end, start:]
            pairs[:, old - start :] *= across[start:end]
            total[i, i:] += parts[i:, start:] @ pairs.sum(0)
            start = end
        stream = self.errors[-1]
        total[-1, -1] += ((stream @ stream.T) * (x @ x.T)).sum()
        upper = total.triu(1)
        return (upper + upper.T + total.diag().diag()).double().cpu().numpy()

    def stream(self, x: Tensor) -> Tensor:
        """The stream's gradient as one vector."""
        return torch.cat([(self.errors[-1].T @ x).reshape(-1), self.rest[-1]])

    def combined(self, x: Tensor, v: Tensor) -> Tensor:
        """The stream's gradient and `v` times the old tasks', as one vector."""
        weights = v.to(x)
        rows = weights.repeat_interleave(torch.tensor(self.stored.sizes, device=x.device))[:, None]
        old = (torch.cat(self.errors[:-1]) * rows).T @ self.stored.x
        return self.stream(x) + torch.cat([old.reshape(-1), weights @ torch.stack(self.rest[:-1])])

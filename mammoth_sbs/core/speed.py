"""Learning speed (paper, Eq. 1): how often an example was classified correctly while its task was learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mammoth_sbs.core.band import SpeedBand


class LearningSpeed:
    """One count per example and a number of epochs; their ratio is the learning speed.

    With `matrix=True` it also keeps M, the epoch-wise classification matrix, one bit per entry.

    >>> speed = LearningSpeed(3)
    >>> for epoch in range(4):  # the first example is right from the start, the second later, the third never
    ...     speed.update(torch.tensor([0, 1, 2]), torch.tensor([True, epoch >= 3, False]), epoch)
    >>> speed.value
    tensor([1.0000, 0.2500, 0.0000])
    """

    def __init__(self, n: int, matrix: bool = False) -> None:
        self.count = torch.zeros(n, dtype=torch.int32)
        self.epochs = 0
        self.rows: list[np.ndarray] | None = [] if matrix else None  # M, each epoch packed to n/8 bytes
        self._seen = torch.zeros(n, dtype=torch.bool)  # in the epoch under way
        self._correct = torch.zeros(n if matrix else 0, dtype=torch.bool)
        self._right = torch.zeros((), dtype=torch.int64)  # in the epoch under way
        self._epoch: int | None = None

    def __len__(self) -> int:
        return len(self.count)

    def update(self, index: Tensor, correct: Tensor, epoch: int, seen: Tensor | bool = True) -> None:
        """Count the examples `index` that were classified correctly; an example counts once per epoch.

        `seen` false says that it was not them: on a GPU that is only known there.
        """
        if epoch != self._epoch:
            self._close_epoch()
            self._epoch, self.epochs = epoch, self.epochs + 1
            self._seen.zero_()
            self._correct.zero_()
            self._right.zero_()
        if self.count.device != correct.device:  # counting where the logits are spares a wait for the device
            self.count, self._seen, self._correct, self._right = (
                t.to(correct.device) for t in (self.count, self._seen, self._correct, self._right)
            )
        index = index.to(correct.device, torch.long)
        first = correct & ~self._seen[index] & seen
        self.count[index] += first
        self._right += first.sum()
        self._seen[index] |= seen
        if self.rows is not None:
            self._correct[index] |= first

    @property
    def value(self) -> Tensor:
        """Learning speed of every example, in [0, 1]."""
        return self.count.cpu().float() / max(self.epochs, 1)

    @property
    def accuracy(self) -> float:
        """Share of the examples seen in the last epoch that were classified correctly: whether the task was learned."""
        return float(self._right) / max(int(self._seen.sum()), 1)

    @property
    def matrix(self) -> np.ndarray:
        """M: epochs x examples, boolean."""
        if self.rows is None:
            raise ValueError("M was not kept: use LearningSpeed(n, matrix=True)")
        self._close_epoch()
        packed = np.stack(self.rows) if self.rows else np.zeros((0, (len(self) + 7) // 8), np.uint8)
        return np.unpackbits(packed, axis=1, count=len(self)).astype(bool)

    def _close_epoch(self) -> None:
        if self.rows is not None and len(self.rows) < self.epochs:
            self.rows.append(np.packbits(self._correct.cpu().numpy()))

    def state_dict(self) -> dict[str, Tensor | int | None]:
        """Enough to go on after a checkpoint at the end of an epoch."""
        return {"count": self.count.cpu(), "epochs": self.epochs, "seen": self._seen.cpu(), "right": self._right.cpu(),
                "rows": torch.from_numpy(np.packbits(self.matrix, axis=1)) if self.rows is not None else None}

    def load_state_dict(self, state: dict) -> None:
        if self.rows is not None:
            if state["rows"] is None:
                raise ValueError("M was not kept by what saved this: use LearningSpeed(n, matrix=True) there too")
            self.rows = list(state["rows"].numpy())
        self.count, self.epochs, self._epoch = state["count"].clone(), state["epochs"], None
        self._seen, self._right = state["seen"].clone(), state["right"].clone()


@dataclass(frozen=True)
class Learned:
    """A task that has been learned: the learning speed of its N examples, and which of them the buffer took."""

    task: int  # from 1
    speed: Tensor  # (N,)
    labels: Tensor  # (N,)
    indices: Tensor  # (N,) places in the data set
    stored: Tensor  # places in the task of what the buffer took
    band: SpeedBand | None  # if the sampler has one
    statistics: dict[str, Any]  # as in the run's JSON file


def equal(a: Tensor, b: Tensor) -> bool:
    """`torch.equal`, by NumPy where it knows the type: in a seventh of the time."""
    if a.dtype not in (torch.float32, torch.float64):
        return torch.equal(a, b)
    return np.array_equal(a.detach().numpy(), b.detach().numpy())


class SpeedHook:
    """A forward hook that reads the stream batch's predictions off the pass that the training step makes anyway.

    A step may forward memory first (GEM), the stream first, or both concatenated (ER): the stream's pass is the
    first one whose leading rows are the stream batch, on a CPU also its last (MER has replay first). All other passes
    of the step are replay and are not counted.

    >>> net, speed = nn.Identity(), LearningSpeed(2)
    >>> hook = SpeedHook(net, speed, lambda logits: logits.argmax(1))
    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> hook.expect(x, y, index=torch.tensor([0, 1]), epoch=0)
    >>> logits = net(torch.cat([x, x]))  # the stream and replay in one pass
    >>> speed.value
    tensor([1., 0.])
    """

    def __init__(self, net: nn.Module, speed: LearningSpeed, predict: Callable[[Tensor], Tensor],
                 also: Callable[[Tensor, Tensor, Tensor], None] | None = None) -> None:
        """`also` is given index, labels and outputs of every stream batch too."""
        self.speed, self.predict, self.also = speed, predict, also
        self._batch: tuple[Tensor, Tensor, Tensor, int] | None = None
        self._perhaps = False  # it may have passed: only the GPU knows
        self._handle = net.register_forward_hook(self)

    def expect(self, inputs: Tensor, labels: Tensor, index: Tensor, epoch: int) -> None:
        """Announce the stream batch of the step that comes."""
        self._batch, self._perhaps = (inputs, labels, index, epoch), False

    def __call__(self, net: nn.Module, args: tuple, output: Tensor | tuple) -> None:
        if self._batch is None:
            return
        inputs, labels, index, epoch = self._batch
        given = args[0]
        n = len(inputs)
        rows = slice(0, n)
        same: Tensor | bool = given is inputs
        if not same:
            if given[:n].shape != inputs.shape:
                return
            # a GPU is not waited for: it counts nothing if it finds another batch
            same = equal(given[:n], inputs) if given.device.type == "cpu" else (given[:n] == inputs).all()
        if same is False and len(given) > n and equal(given[-n:], inputs):
            same, rows = True, slice(len(given) - n, None)
        if same is False:
            return
        if same is True:
            self._batch = None
        self._perhaps = True
        logits = output[0] if isinstance(output, tuple) else output
        self.speed.update(index, self.predict(logits[rows].detach()) == labels, epoch, same)
        if self.also is not None and bool(same):
            self.also(index, labels, logits[rows].detach())

    @property
    def waiting(self) -> bool:
        """True if the announced batch has not passed through the network, as far as is known."""
        return self._batch is not None and not self._perhaps

    def remove(self) -> None:
        self._handle.remove()
        self._batch = None

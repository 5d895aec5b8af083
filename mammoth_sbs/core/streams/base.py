"""What every stream sampler is: it gives each example of a stream a slot of the buffer, or none, when it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Look:
    """Some examples as a training step's own forward pass saw them. What is not asked for is not computed.

    >>> look = Look(torch.tensor([0, 1]), torch.tensor([[2.0, 0.0], [1.0, 0.0]]))
    >>> look.correct, look.margin
    (array([ True, False]), array([ 2., -1.], dtype=float32))
    """

    def __init__(self, labels: Tensor, logits: Tensor) -> None:
        self.logits = logits.detach()
        self._labels = labels
        self.labels: np.ndarray = labels.cpu().numpy()

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def loss(self) -> np.ndarray:
        """Cross-entropy over all outputs: there are no tasks in a stream."""
        return F.cross_entropy(self.logits.float(), self._labels, reduction="none").cpu().numpy()

    @cached_property
    def p(self) -> np.ndarray:
        """The probability given to the label."""
        return np.exp(-self.loss)

    @cached_property
    def correct(self) -> np.ndarray:
        """Whether the label is predicted: what learning speed counts."""
        return (self.logits.argmax(1) == self._labels).cpu().numpy()

    @cached_property
    def margin(self) -> np.ndarray:
        """The label's logit minus the largest other one (Pleiss et al., 2020)."""
        column = self._labels.unsqueeze(1)
        others = self.logits.scatter(1, column, -torch.inf).amax(1)
        return (self.logits.gather(1, column).squeeze(1) - others).float().cpu().numpy()


class StreamSampler(ABC):
    """While there is room, an example takes the next slot; from then on a subclass says who enters and who leaves.

    Example after example in the order of the stream, so that it does not matter how the stream is cut into batches.
    Memory is O(size): what is known of the stored examples, slot by slot.
    """

    name: ClassVar[str]

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self.labels = np.full(size, -1)  # of the stored examples

    def offer(self, look: Look, generator: torch.Generator) -> dict[int, int]:
        """What a batch changes in the buffer: slots, and where what they hold now comes from, a row of the batch or
        (as ~slot) another slot."""
        self.sources: dict[int, int] = {}
        room = min(max(self.size - self.seen, 0), len(look))
        for i in range(room):
            self.put(self.seen + i, look, i)
        for i, slot in self.late(look, room, generator) if room < len(look) else ():
            self.put(slot, look, i)
        self.seen += len(look)
        return {slot: source for slot, source in self.sources.items() if source != ~slot}

    @abstractmethod
    def late(self, look: Look, first: int, generator: torch.Generator) -> Iterable[tuple[int, int]]:
        """For the examples of a batch from `first` on, which find the buffer full: those that enter, with their slots.
        Each is stored before the next is asked for."""

    def put(self, slot: int, look: Look, i: int) -> None:
        """Example `i` takes a slot: remember what is to be known of it."""
        self.sources[slot] = i
        self.labels[slot] = look.labels[i]

    def replayed(self, slots: np.ndarray, look: Look) -> None:  # noqa: B027
        """Stored examples were replayed, and this is how the network saw them."""

    def candidates(self, look: Look, first: int) -> list[tuple[int, int]]:
        """Whom a reservoir (Vitter, 1985) lets in, and the slot it drew for each: drawn as the stock buffer draws, from
        NumPy's own generator, so that it lets in the same."""
        draws = np.random.randint(0, self.seen + np.arange(first, len(look)) + 1)
        return [(first + int(i), int(draws[i])) for i in np.flatnonzero(draws < self.size)]

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: numbers and tensors."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return {"seen": self.seen, **{name: torch.from_numpy(value.copy()) for name, value in arrays.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo of `state_dict`."""
        for name, value in state.items():
            setattr(self, name, value.numpy().copy() if isinstance(value, Tensor) else value)


def draw(weights: np.ndarray, generator: torch.Generator) -> int:
    """A place, drawn with probabilities proportional to these weights; uniformly if all are 0."""
    total = np.cumsum(weights if weights.any() else np.ones(len(weights)), dtype=np.float64)
    u = float(torch.rand((), dtype=torch.float64, generator=generator)) * total[-1]
    return min(int(np.searchsorted(total, u, side="right")), len(weights) - 1)


def rescaled(values: np.ndarray) -> np.ndarray:
    """To 0..1; values that are all the same become 0."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)

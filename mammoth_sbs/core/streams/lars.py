"""LARS, Loss-Aware Reservoir Sampling, step by step (Buzzega et al., "Rethinking Experience Replay: a Bag of Tricks for
Continual Learning", ICPR 2021).

Who enters is a reservoir's choice. Who leaves is drawn with a probability proportional to its score -loss: examples of
low loss leave, examples of high loss stay. A loss is that of the last time the example was seen: at its arrival, and at
each replay since, from forward passes that happen anyway.

Choices made: scores are rescaled to 0..1 over the buffer, or -loss would be no probability; if all losses are the same,
a random one leaves. (`lars`, without `stream-`, is the same idea for the end of a task.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mammoth_sbs.core.streams.base import Look, StreamSampler, draw, rescaled


class LARS(StreamSampler):
    """A reservoir in which well-known examples make room."""

    name = "stream-lars"

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.loss = np.zeros(size, dtype=np.float32)

    def put(self, slot: int, look: Look, i: int) -> None:
        super().put(slot, look, i)
        self.loss[slot] = look.loss[i]

    def replayed(self, slots: np.ndarray, look: Look) -> None:
        self.loss[slots] = look.loss

    def late(self, look: Look, first: int, generator: torch.Generator) -> Iterator[tuple[int, int]]:
        for i, _ in self.candidates(look, first):
            yield i, draw(self.leaving(), generator)

    def leaving(self) -> np.ndarray:
        """How likely each stored example is to leave, up to a factor."""
        return rescaled(-self.loss)

"""CBRS, Class-Balancing Reservoir Sampling (Chrysakis & Moens, ICML 2020, Algorithm 1).

Every class has as much room as the others, or all that it brought: a class is *full* once it was the largest in the
buffer. An example of a class that is not full takes the place of a random one of the largest class. One of a full
class c enters with probability m_c / n_c (stored over seen) and takes the place of a random one of its own class: a
reservoir within the class.

Choices made: of several classes that are equally large, a random one gives way; all of them count as full. The
draws come from the sampler's own generator.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mammoth_sbs.core.streams.base import Look, StreamSampler


class CBRS(StreamSampler):
    """Classes share the buffer evenly, whatever the stream's proportions."""

    name = "stream-cbrs"

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.stored: np.ndarray = np.zeros(0, dtype=np.int64)  # m_c, by class
        self.came: np.ndarray = np.zeros(0, dtype=np.int64)  # n_c
        self.full: np.ndarray = np.zeros(0, dtype=bool)

    def put(self, slot: int, look: Look, i: int) -> None:
        if self.labels[slot] >= 0:
            self.stored[self.labels[slot]] -= 1
        else:  # there is room, so that nobody was asked
            self.count(int(look.labels[i]))
        super().put(slot, look, i)
        self.stored[look.labels[i]] += 1

    def count(self, c: int) -> None:
        """One more of a class has come, perhaps the first."""
        if c >= len(self.came):
            more = c + 1 - len(self.came)
            self.stored, self.came, self.full = (np.pad(a, (0, more)) for a in (self.stored, self.came, self.full))
        self.came[c] += 1

    def late(self, look: Look, first: int, generator: torch.Generator) -> Iterator[tuple[int, int]]:
        for i in range(first, len(look)):
            c = int(look.labels[i])
            self.count(c)
            largest = self.stored == self.stored.max()
            self.full |= largest
            if self.full[c]:
                if float(torch.rand((), generator=generator)) <= self.stored[c] / self.came[c]:
                    yield i, self.any_of(self.labels == c, generator)
            else:
                largest_class = self.any_of(largest, generator)
                yield i, self.any_of(self.labels == largest_class, generator)

    @staticmethod
    def any_of(mask: np.ndarray, generator: torch.Generator) -> int:
        places = np.flatnonzero(mask)
        return int(places[int(torch.randint(len(places), (), generator=generator))])

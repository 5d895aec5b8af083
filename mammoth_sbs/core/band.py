"""The band D'_t: a task without its quickest and slowest learned examples (paper, Algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """A task's examples as indices, each part ordered from quick to slow."""

    quick: Tensor
    kept: Tensor  # D'_t
    slow: Tensor


@dataclass(frozen=True)
class SpeedBand:
    """Leaves out the `q` quickest and `s` slowest learned examples, given as fractions.

    >>> SpeedBand(q=0.25, s=0.25).split(torch.tensor([0.1, 0.9, 0.5, 0.6]), torch.Generator())
    Split(quick=tensor([1]), kept=tensor([3, 2]), slow=tensor([0]))
    """

    q: float = 0.2
    s: float = 0.2

    def __post_init__(self) -> None:
        for name, value in (("q", self.q), ("s", self.s)):
            if not 0 <= value < 1:
                hint = f"; did you mean {value / 100:g}?" if 1 <= value < 100 else ""
                raise ValueError(f"{name} is a fraction in [0, 1), not {value:g}{hint}")
        if self.q + self.s >= 1:
            raise ValueError(f"q + s must be below 1, or nothing is left; got {self.q:g} + {self.s:g}")

    def left_out(self, n: int) -> tuple[int, int]:
        """How many of `n` examples go on each side: floor(q n) and floor(s n), free of float dust like .29 * 100."""
        return math.floor(self.q * n + 1e-9), math.floor(self.s * n + 1e-9)

    def split(self, speed: Tensor, generator: torch.Generator) -> Split:
        """Rank by learning speed. It has few values, so ties are everywhere: they are broken at random."""
        n = len(speed)
        shuffled = torch.randperm(n, generator=generator)
        order = shuffled[torch.argsort(speed[shuffled], descending=True, stable=True)]
        quick, slow = self.left_out(n)
        return Split(order[:quick], order[quick : n - slow], order[n - slow :])

    def limits(self, speed: Tensor) -> tuple[float, float]:
        """Learning speed of the slowest and of the quickest example that are kept."""
        quick, slow = self.left_out(len(speed))
        ranked = torch.sort(speed, descending=True).values
        return float(ranked[len(speed) - slow - 1]), float(ranked[quick])


def nearest_first(split: Split, speed: Tensor) -> Tensor:
    """The left-out examples, those nearest to the band in learning speed first (ties stay in random order)."""
    out = torch.cat([split.quick.flip(0), split.slow])
    high, low = speed[split.kept[0]], speed[split.kept[-1]]
    distance = torch.maximum(speed[out] - high, low - speed[out]).clamp(min=0)
    return out[torch.argsort(distance, stable=True)]

"""Speed-Based Sampling class by class: the band is of each class, and each class gives equally many.

Not in the paper, whose band is of the whole task: that leaves out more of slow classes, and draws some classes more
often than others, which Herding and IPM do not. With q = s = 0 it is a uniform buffer with equally many of each class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mammoth_sbs.core.band import SpeedBand
from mammoth_sbs.core.samplers.base import Sampler, by_class, clamp
from mammoth_sbs.core.samplers.task import Task


class SpeedBalanced(Sampler):
    """Leaves out the q quickest and s slowest of each class, then draws equally many of each."""

    name = "speed-balanced"
    needs = frozenset({"speed"})
    takes = frozenset({"q", "s"})

    def __init__(self, q: float = 0.2, s: float = 0.2) -> None:
        self.band = SpeedBand(q, s)

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """Never leaves the bands. What the band of a small class cannot give, the others do."""
        speed = task.need("speed")
        classes = [(task.labels == c).nonzero().flatten() for c in task.labels.unique()]
        kept = torch.cat([torch.empty(0, dtype=torch.int64),
                          *(of[self.band.split(speed[of], generator).kept] for of in classes)])
        parts = by_class(task.labels[kept], min(clamp(k, task), len(kept)), generator)
        return kept[torch.cat([torch.empty(0, dtype=torch.int64), *(members[:quota] for members, quota in parts)])]

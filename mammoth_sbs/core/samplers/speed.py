"""Speed-Based Sampling (Hacohen & Tuytelaars, 2025): uniform over the band D'_t of learning speeds."""

from __future__ import annotations

import torch
from torch import Tensor

from mammoth_sbs.core.band import SpeedBand, nearest_first
from mammoth_sbs.core.samplers.base import Sampler, clamp
from mammoth_sbs.core.samplers.task import Task

SMALL = 0.1  # of the data: a buffer that holds less is a small one


def by_share(share: float) -> tuple[float, float]:
    """(q, s) for a buffer that holds this share of the data: the slowest go, more of them if it is small."""
    return 0.0, 0.4 if share < SMALL else 0.2


class Speed(Sampler):
    """Leaves out the q quickest and s slowest learned examples, then draws uniformly without replacement."""

    name = "speed"
    needs = frozenset({"speed"})
    takes = frozenset({"q", "s"})

    def __init__(self, q: float = 0.2, s: float = 0.2) -> None:
        self.band = SpeedBand(q, s)

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """Never leaves the band: if D'_t has fewer than `k` examples, all of D'_t is chosen."""
        kept = self.band.split(task.need("speed"), generator).kept
        return kept[torch.randperm(len(kept), generator=generator)[: clamp(k, task)]]

    def choose_per_class(self, task: Task, quotas: dict[int, int], generator: torch.Generator) -> Tensor:
        """The band is of the whole task; a class that it lost is topped up with its examples nearest to the band."""
        speed = task.need("speed")
        split = self.band.split(speed, generator)
        kept = split.kept[torch.randperm(len(split.kept), generator=generator)]
        preferred = torch.cat([kept, nearest_first(split, speed)])
        labels = task.labels[preferred]
        return torch.cat([preferred[labels == c][:k] for c, k in quotas.items()])

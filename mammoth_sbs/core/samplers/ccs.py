"""CCS, Coverage-centric Coreset Selection (Zheng, Liu, Lai & Prakash, ICLR 2023, Algorithm 1).

A cut, then coverage: the hardest fraction beta is left out, as it holds wrong labels; the rest is cut into strata of
equal width in the score, and the k examples are spread evenly over the strata, drawn uniformly within each; what a
small stratum cannot give, the others do.

Choices made for end-of-task selection of k of N examples:
- the score is learning speed, or what `--sbs-score` says: `margin` is the one the paper mostly uses;
- beta is `--sbs-s`, the fraction of slowest examples that SBS leaves out too;
- 50 strata, as in the paper. Learning speed has E + 1 values, so that most strata are empty if there are fewer epochs;
- if less than k is left after the cut, the hardest are cut only as far as k allows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mammoth_sbs.core.band import SpeedBand
from mammoth_sbs.core.samplers.base import Sampler, by_class, clamp
from mammoth_sbs.core.samplers.task import Task

STRATA = 50


class CCS(Sampler):
    """Evenly over strata of learning speed, without the slowest."""

    name = "ccs"
    needs = frozenset({"speed"})
    takes = frozenset({"s"})

    def __init__(self, s: float = 0.2) -> None:
        self.band = SpeedBand(0.0, s)

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """Stratum after stratum, from slow to quick."""
        k = clamp(k, task)
        speed = task.need("speed")
        split = self.band.split(speed, generator)
        kept = torch.cat([split.kept, split.slow])[: max(k, len(split.kept))]  # from quick to slow
        if k == 0:
            return kept[:0]
        score = speed[kept].double()
        low, high = score.aminmax()
        stratum = ((score - low) / (high - low).clamp_min(1e-12) * STRATA).long().clamp_max(STRATA - 1)
        return kept[torch.cat([members[:quota] for members, quota in by_class(stratum, k, generator)])]

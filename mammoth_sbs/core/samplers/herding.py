"""Herding (Welling, 2009) as iCaRL chooses its exemplars (Rebuffi et al., CVPR 2017, Algorithm 4).

Choices made for end-of-task selection of k of N examples:
- per class, as in iCaRL: k is spread evenly over the classes, the rest goes to classes drawn at random;
- features are those of the last layer's input, each normalised to length 1 (iCaRL, Sec. 2); mu is their plain mean;
- the chosen ones come best first within each class, so that a class's first m are also its best m.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mammoth_sbs.core.samplers.base import Sampler, by_class, clamp
from mammoth_sbs.core.samplers.task import Task


class Herding(Sampler):
    """Per class the exemplars whose running mean stays closest to the class mean."""

    name = "herding"
    needs = frozenset({"features"})

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """Class after class, each in the order in which iCaRL would add its exemplars."""
        k = clamp(k, task)
        features = task.need("features")
        chosen = [torch.empty(0, dtype=torch.int64)]
        for members, quota in by_class(task.labels, k, generator):
            chosen.append(members[herd(F.normalize(features[members], dim=1), quota)])
        return torch.cat(chosen)


def herd(phi: Tensor, k: int) -> Tensor:
    """Adds `k` times the row of `phi` that brings the mean of the chosen rows closest to the mean of all."""
    mu = phi.mean(dim=0)
    half = phi.square().sum(dim=1) / 2
    chosen = torch.empty(k, dtype=torch.int64)
    w = mu.clone()  # j * mu minus the sum of the rows chosen so far, for the j-th choice
    for j in range(k):
        # argmin |mu - (row + sum) / j| = argmin |w - row|, multiplied out: one product with all rows
        gain = phi @ w - half
        gain[chosen[:j]] = -torch.inf
        chosen[j] = gain.argmax()
        w += mu - phi[chosen[j]]
    return chosen

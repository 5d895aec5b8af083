"""Rainbow Memory (Bang, Kim, Yoo, Ha & Choi, CVPR 2021, Algorithm 1).

Every class has the same room. Its examples are sorted by uncertainty, how little augmented views of an image agree, and
taken at equal steps along that order: from the certain at the class's centre to the uncertain at its border.

Choices made for end-of-task selection of k of N examples:
- the paper chooses anew from memory and task together; here the older examples of the buffer are evicted as for any
  other sampler, and the task's are chosen so;
- uncertainty is one minus the share of 12 views that get the commonest class, as `--sbs-score uncertainty`; ties, of
  which there are many, are broken at random.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mammoth_sbs.core.samplers.base import Sampler, by_class, clamp
from mammoth_sbs.core.samplers.task import Task


class Rainbow(Sampler):
    """Per class at equal steps from the most certain to the least certain example."""

    name = "rainbow"
    needs = frozenset({"uncertainty"})

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """Class after class, the certain ones first."""
        k = clamp(k, task)
        uncertainty, chosen = task.need("uncertainty"), [torch.empty(0, dtype=torch.int64)]
        for members, quota in by_class(task.labels, k, generator):
            order = members[uncertainty[members].argsort(stable=True)]
            chosen.append(order[torch.arange(quota) * len(order) // max(quota, 1)])
        return torch.cat(chosen)

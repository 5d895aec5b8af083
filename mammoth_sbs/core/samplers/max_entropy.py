"""Max entropy: the examples the network is least sure about (Shannon, 1948; for exemplars: Chaudhry et al., 2018).

Choices made for end-of-task selection of k of N examples:
- the entropy is that of the softmax over the task's own classes, after its last epoch;
- the k highest of the whole task, not per class: a class the network finds hard gets more of the buffer;
- ties, which a saturated network has many of at entropy 0, are broken at random.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mammoth_sbs.core.samplers.base import Sampler, clamp
from mammoth_sbs.core.samplers.task import Task


class MaxEntropy(Sampler):
    """The `k` examples with the highest predictive entropy."""

    name = "max-entropy"
    needs = frozenset({"logits"})

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """Highest entropy first."""
        k = clamp(k, task)
        log_p = task.need("logits").log_softmax(dim=1)
        entropy = -(log_p.exp() * log_p).sum(dim=1)
        order = torch.randperm(len(task), generator=generator)
        return order[entropy[order].topk(k).indices]

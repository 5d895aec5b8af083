"""Uniform sampling: what reservoir sampling (Vitter, 1985) leaves in a buffer after one pass over a task.

At the end of a task all N examples are there, so no reservoir is needed: k are drawn without replacement.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mammoth_sbs.core.samplers.base import Sampler, clamp
from mammoth_sbs.core.samplers.task import Task


class Uniform(Sampler):
    """Every set of `k` examples is equally likely."""

    name = "uniform"

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """O(N): the first `k` of a random permutation."""
        k = clamp(k, task)
        return torch.randperm(len(task), generator=generator)[:k]

"""LARS, Loss-Aware Reservoir Sampling (Buzzega et al., "Rethinking Experience Replay: a Bag of Tricks", ICPR 2021).

There, once the buffer is full, a new example takes the place of stored example i with a probability proportional to
i's score -loss, rescaled to 0..1 over the buffer: examples of low loss leave, examples of high loss stay.

Choices made for end-of-task selection of k of N examples:
- all N examples are there at once, so the buffer starts with all of them, and examples leave one by one, each time with
  that probability, until k are left; the draw whether a new example enters at all belongs to a stream and falls away;
- the losses are those after the last epoch, for all examples, and are rescaled once, over the task:
  r_i = (max loss - loss_i) / (max loss - min loss). The example of highest loss (r = 0) leaves only when it must;
- leaving one by one with probabilities proportional to r_i is the same as waiting for N exponential clocks with the
  rates r_i (Efraimidis & Spirakis, 2006): the k that ring last stay. That is one pass instead of N - k draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mammoth_sbs.core.samplers.base import Sampler, clamp
from mammoth_sbs.core.samplers.task import Task


class LARS(Sampler):
    """Random, but examples of high loss are more likely to stay."""

    name = "lars"
    needs = frozenset({"losses"})

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """The `k` examples that would be replaced last."""
        k = clamp(k, task)
        losses = task.need("losses").double()
        if k == 0:
            return torch.empty(0, dtype=torch.int64)
        low, high = losses.aminmax()
        # A rate of 0 becomes tiny: examples tied at the highest loss, or all with one loss, then leave at random.
        tiny = 1e-12
        rate = ((high - losses) / (high - low).clamp_min(tiny)).clamp_min(tiny)
        leaves_at = torch.empty_like(rate).exponential_(generator=generator) / rate
        return leaves_at.topk(k).indices

"""GSS, Gradient-based Sample Selection (Aljundi et al., NeurIPS 2019), the greedy variant (Algorithm 2).

There an example's score is its highest cosine similarity, by gradient, to random examples of the buffer; an example of
low score takes the place of one of high score.

Choices made for end-of-task selection of k of N examples:
- the gradient is that of the cross-entropy for the last layer's weights: g_i = e_i f_i^T with e = softmax - onehot over
  the task's own classes and f the features. It stays factored, <g_i, g_j> = (e_i . e_j)(f_i . f_j): N x (C + D) numbers
  instead of N x C D. Cosines need no norms, and e / (1 - p_label) = (softmax of the other classes) - onehot keeps its
  direction even where the network is so sure that e itself would round to 0;
- all N examples are there at once, so instead of replacements along a stream, k times the example with the lowest score
  is added, the first at random, ties at random;
- the score is against all chosen so far: the random subset was there to save backward passes, and none are needed;
- not per class: the gradient already tells classes apart. Examples without any gradient (features 0) come last.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mammoth_sbs.core.samplers.base import Sampler, clamp
from mammoth_sbs.core.samplers.task import Task


class GSS(Sampler):
    """Examples whose gradients point in directions as different as possible."""

    name = "gss"
    needs = frozenset({"features", "logits"})

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """In the order in which they were added. O(k N (C + D)) time, O(N (C + D)) memory."""
        k = clamp(k, task)
        order = torch.randperm(len(task), generator=generator)  # argmin takes the first of a tie: here a random one
        f = F.normalize(task.need("features")[order], dim=1)
        e = F.normalize(error_direction(task)[order], dim=1)
        score = torch.where(f.any(dim=1), -1.0, 2.0)  # below and above any cosine
        chosen = torch.empty(k, dtype=torch.int64)
        for i in range(k):
            chosen[i] = j = score.argmin()
            score = torch.maximum(score, (f @ f[j]) * (e @ e[j]))
            score[j] = torch.inf
        return order[chosen]


def error_direction(task: Task) -> Tensor:
    """softmax(logits) - onehot(label), divided by 1 - p_label; (N, C)."""
    logits = task.need("logits")
    column = (task.labels - task.first_class).unsqueeze(1)
    if ((column < 0) | (column >= logits.shape[1])).any():
        last_class = task.first_class + logits.shape[1] - 1
        raise ValueError(f"labels outside {task.first_class}..{last_class}, the classes of the columns of `logits`")
    others = logits.scatter(1, column, -torch.inf).softmax(dim=1)
    return others.scatter(1, column, -1.0)

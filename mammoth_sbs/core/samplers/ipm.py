"""IPM, Iterative Projection and Matching (Zaeemzadeh, Joneidi et al., CVPR 2019, Algorithm 1).

v, the first right singular vector of the data, is matched by the example most correlated with it; all rows are
projected on the orthogonal complement of that example; repeat.

Choices made for end-of-task selection of k of N examples:
- per class, as in the paper's "learning using representatives": k is spread evenly over the classes;
- the data are the features, not centred; correlation is with the normalised residual rows (the paper's text; the code
  its authors published divides by the norms of the original rows);
- a row with less than a thousandth of its norm left is explained and not matched. When all are (more picks than the
  rank), the procedure starts again from the original rows not yet chosen; rows of 0 come last;
- v comes from block power iteration on the D x D Gram matrix of the residuals. v itself is projected away with its
  match, but the rest of the block holds its runners-up: a warm start for the next v;
- rows are never projected: v and q, the direction of a chosen residual, lie in the complement already, so the product
  of either with a residual row is that with the original row; residual norms follow by Pythagoras, in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mammoth_sbs.core.samplers.base import Sampler, by_class, clamp
from mammoth_sbs.core.samplers.task import Task

BLOCK, STEPS = 16, 3  # width and steps of the power iteration
EXPLAINED = 1e-6  # of a row's squared norm


class IPM(Sampler):
    """Per class the examples whose span is closest to all of the class's features."""

    name = "ipm"
    needs = frozenset({"features"})

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        """Class after class, each in the order of its matches. O(k (N / C + D) D) time, O(N D / C) memory."""
        k = clamp(k, task)
        features = task.need("features")
        chosen = [torch.empty(0, dtype=torch.int64)]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # many small products: on a busy machine threads wait for each other, 10 times longer
        try:
            for members, quota in by_class(task.labels, k, generator):
                chosen.append(members[project_and_match(features[members].double(), quota, generator)])
        finally:
            torch.set_num_threads(threads)
        return torch.cat(chosen)


def project_and_match(rows: Tensor, k: int, generator: torch.Generator) -> list[int]:
    """`k` rows, in the order of their choice."""
    norm2 = rows.square().sum(dim=1)
    residual2 = torch.zeros_like(norm2)  # squared norms of the residual rows; 0: chosen or explained
    block = torch.randn(rows.shape[1], BLOCK, dtype=rows.dtype, generator=generator)
    chosen: list[int] = []
    while len(chosen) < k:
        if not residual2.any():
            residual2 = norm2.clone()
            residual2[chosen] = 0
            if not residual2.any():  # only rows of 0 are left
                return chosen + sorted(set(range(len(rows))) - set(chosen))[: k - len(chosen)]
            gram = rows[residual2 > 0].T @ rows[residual2 > 0]
            basis = rows.new_zeros(k, rows.shape[1])
        for _ in range(STEPS):
            block = torch.linalg.qr(gram @ block).Q
        block = block @ torch.linalg.eigh(block.T @ gram @ block).eigenvectors
        v = block[:, -1]
        m = int(torch.where(residual2 > 0, (rows @ v).square() / residual2, -1.0).argmax())
        q = rows[m]
        for _ in range(2):  # once would leave rounding errors
            q = q - basis.T @ (basis @ q)
        q = basis[len(chosen)] = q / q.norm()
        chosen.append(m)
        residual2 -= (rows @ q).square()
        residual2[residual2 <= EXPLAINED * norm2] = 0
        residual2[m] = 0
        h = gram @ q
        h -= (q @ h) / 2 * q
        gram.addr_(q, h, alpha=-1).addr_(h, q, alpha=-1)  # (I - q q^T) gram (I - q q^T)
    return chosen

import math
from argparse import ArgumentParser
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor

from mammoth_sbs.values import number

from backbone import set_gradient
from datasets.utils.continual_dataset import ContinualDataset
from models.utils.continual_model import gradient
from models.utils.replay_model import ReplayModel
from utils.buffer import fill_buffer

PART = 8192  # parameters at a time: as doubles, the gradients of many tasks would not fit into a processor's cache


def project_to_cone(g: Tensor, memories: Tensor, margin: float, eps: float = 1e-3) -> Tensor:
    """The gradient nearest to `g` that does not raise the loss of any old task: g + v m, by the GEM paper's dual.

    min v G v / 2 + t v over v >= margin, G = m m' + eps I, t = m g: non-negative least squares in v - margin.
    `eps` keeps the program strictly convex; if parallel gradients are so long that it drowns, it grows.
    """
    parts = list(zip(memories.cpu().split(PART, 1), g.cpu().split(PART), strict=True))
    products = torch.zeros(len(memories), len(memories) + 1, dtype=torch.float64)
    for m, h in parts:
        both = torch.cat([m, h[None]]).double()
        products += both[:-1] @ both.T
    gram, target = products[:, :-1].numpy(), products[:, -1].numpy()
    if not np.isfinite(gram).all() or not np.isfinite(target).all():
        return torch.full_like(g, math.nan)  # the loop reports a diverged network
    n, scale = len(gram), max(1, gram.max())  # the same program in numbers that the solver's tolerances are made for
    gram, target, eps = (gram + gram.T) / 2 / scale, target / scale, eps / scale
    while True:
        try:
            root = np.linalg.cholesky(gram + eps * np.eye(n)).T
            slope = root.T @ root @ np.full(n, margin) + target  # where v is the margin
            v = torch.from_numpy(nnls(root, -solve_triangular(root, slope, trans="T"))[0] + margin)
            return g + torch.cat([v @ m.double() for m, _ in parts]).to(g)
        except (np.linalg.LinAlgError, RuntimeError):
            eps *= 10


class Gem(ReplayModel):
    """Gradient Episodic Memory: a step may not raise the loss on any old task's memory."""

    NAME = "gem"

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        ReplayModel.get_parser(parser)
        parser.add_argument("--gamma", type=number(0), default=0.5, help="margin by which old tasks are protected")
        return parser

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.grads_cs: list[Tensor] = []  # of each task that has ended, and of the stream: those of the last step
        self.grads_da = torch.zeros(sum(p.numel() for p in self.net.parameters()), device=self.device)

    def end_task(self, dataset: ContinualDataset) -> None:
        fill_buffer(self.buffer, dataset, self.current_task, required_attributes=["examples", "labels", "task_labels"])
        self.grads_cs.append(torch.zeros_like(self.grads_da))

    def memory_gradients(self) -> Tensor | None:
        """One row per old task: the gradient of its loss on its part of the buffer."""
        if self.buffer.is_empty():
            return None
        x, y, tasks = self.buffer.get_data(self.args.buffer_size, self.transform, device=self.device)
        return torch.stack([gradient(self.net, self.loss(self.net(x[tasks == t]), y[tasks == t]))
                            for t in tasks.unique()])

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        memories = self.memory_gradients()
        loss = self.loss(self.net(inputs), labels)
        g = self.grads_da = gradient(self.net, loss)
        if memories is not None:
            self.grads_cs = list(memories)
            direction = g / g.abs().max().clamp(min=1e-12)  # only the sign matters; a long g would leave float's range
            if (memories @ direction < 0).any():
                g = project_to_cone(g, memories, self.args.gamma)
        set_gradient(self.net, g)
        self.opt.step()
        return self.number(loss)

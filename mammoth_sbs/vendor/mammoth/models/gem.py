import math
from argparse import ArgumentParser
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor, nn

from mammoth_sbs.values import number

from backbone import set_gradient
from backbone.pretrained import Head
from datasets.utils.continual_dataset import ContinualDataset
from models.utils.continual_model import gradient
from models.utils.factors import Factors, Stored
from models.utils.replay_model import ReplayModel
from utils.buffer import fill_buffer

PART = 8192  # parameters at a time: as doubles, the gradients of many tasks would not fit into a processor's cache


def products(memories: Tensor, g: Tensor) -> np.ndarray:
    """Of all pairs of gradients, the stream's last, as doubles."""
    total = torch.zeros(len(memories) + 1, len(memories) + 1, dtype=torch.float64)
    for m, h in zip(memories.cpu().split(PART, 1), g.cpu().split(PART), strict=True):
        both = torch.cat([m, h[None]]).double()
        total += both @ both.T
    return total.numpy()


def cone_weights(products: np.ndarray, margin: float, eps: float = 1e-3) -> Tensor:
    """By how much each old task's gradient is to be added to the stream's, so that it raises the loss of none: the GEM
    paper's dual, from the products of all these gradients, the stream's last.

    min v G v / 2 + t v over v >= margin, G = m m' + eps I, t = m g: non-negative least squares in v - margin.
    `eps` keeps the program strictly convex; if parallel gradients are so long that it drowns, it grows.
    """
    gram, target = products[:-1, :-1], products[:-1, -1]
    if not np.isfinite(products).all():
        return torch.full((len(gram),), math.nan, dtype=torch.float64)  # the loop reports a diverged network
    n, scale = len(gram), max(1, gram.max())  # the same program in numbers that the solver's tolerances are made for
    gram, target, eps = (gram + gram.T) / 2 / scale, target / scale, eps / scale
    while True:
        try:
            root = np.linalg.cholesky(gram + eps * np.eye(n)).T
            slope = root.T @ root @ np.full(n, margin) + target  # where v is the margin
            return torch.from_numpy(nnls(root, -solve_triangular(root, slope, trans="T"))[0] + margin)
        except (np.linalg.LinAlgError, RuntimeError):
            eps *= 10


def project_to_cone(g: Tensor, memories: Tensor, margin: float, eps: float = 1e-3) -> Tensor:
    """The gradient nearest to `g` that does not raise the loss of any old task."""
    v = cone_weights(products(memories, g), margin, eps)
    return g + torch.cat([v @ part.double() for part in memories.cpu().split(PART, 1)]).to(g)


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
        # of each task that has ended, and of the stream: those of the last step that wrote them out
        self.grads_cs: list[Tensor] = []
        self.grads_da = torch.zeros(sum(p.numel() for p in self.net.parameters()), device=self.device)
        self.stored: Stored | None = None  # of a buffer of features

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
        net: nn.Module = self.net
        if 0 < len(self.buffer) <= self.args.buffer_size and Factors.fit(net, self.buffer):
            return self.observe_factors(net, inputs, labels)
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

    def observe_factors(self, net: Head, inputs: Tensor, labels: Tensor) -> float | Tensor:
        """The same step of a head on features, without the old tasks' gradients ever being written out."""
        if self.stored is None or not self.stored.is_of(self.buffer):
            self.stored = Stored.of(self.buffer)
        self.buffer.draw(self.args.buffer_size)  # as the other way does: random numbers do not depend on the way
        factors = Factors(net, self.stored)
        for x, y in zip(self.stored.x.split(self.stored.sizes), self.stored.y.split(self.stored.sizes), strict=True):
            factors.add(x, y, self.loss)
        loss = factors.add(inputs, labels, self.loss)
        found = factors.products(inputs)
        hurts = not (found[:-1, -1] >= 0).all()  # also if they are not numbers
        set_gradient(self.net, factors.combined(inputs, cone_weights(found, self.args.gamma)) if hurts
                     else factors.stream(inputs))
        self.opt.step()
        return self.number(loss)

import math
from argparse import ArgumentParser
from typing import Any

import torch
from torch import Tensor

from datasets.utils.continual_dataset import ContinualDataset
from models.utils.class_quota import new_class_quotas, reduce_classes, take_by_quota
from models.utils.replay_model import ReplayModel
from utils.args import add_as_paper_arg


def polytope(n: int) -> Tensor:
    """The vertices of a regular simplex around the origin, as n columns of unit length in n - 1 dimensions."""
    m = n - 1
    x = torch.eye(m, n, dtype=torch.float64)
    x[:, m] = (1 - math.sqrt(1 + m)) / m
    x -= x.mean(1, keepdim=True)
    return (x / x[:, 0].norm()).float()


class RPC(ReplayModel):
    """Regular Polytope Classifier: a fixed head whose classes are equally far apart, with replay.

    As in Mammoth, training sees the network's plain logits and the fixed head is applied at evaluation only.
    """

    NAME = "rpc"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_as_paper_arg(parser, "train through the polytope, and share the buffer among all tasks seen")
        return ReplayModel.get_parser(parser)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rpchead = polytope(self.num_classes).to(self.device)

    def classify(self, outputs: Tensor) -> Tensor:
        """The fixed head, on the network's outputs but the last."""
        return outputs[:, :-1] @ self.rpchead

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        self.opt.zero_grad()
        inputs, labels = self.with_replay(inputs, labels)
        outputs = self.net(inputs)
        loss = self.loss(self.classify(outputs) if self.args.as_paper else outputs, labels)
        loss.backward()
        self.opt.step()
        return self.number(loss)

    def end_task(self, dataset: ContinualDataset) -> None:
        tasks = self.current_task + bool(self.args.as_paper)  # Mammoth counts the tasks before this one
        if self.current_task > 0:
            reduce_classes(self.buffer, self.args.buffer_size // (tasks * self.cpt))
        quota = new_class_quotas(self.buffer, self.cpt)
        for data in dataset.train_loader:
            if not quota.any():
                break
            take = take_by_quota(data[1] % self.cpt, quota)
            self.buffer.add_data(examples=data[2][take], labels=data[1][take])

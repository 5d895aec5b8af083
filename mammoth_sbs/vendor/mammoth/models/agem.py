from argparse import ArgumentParser

import torch
from torch import Tensor

from backbone import set_gradient
from datasets.utils.continual_dataset import ContinualDataset
from models.utils.continual_model import gradient
from models.utils.replay_model import ReplayModel
from utils.args import add_as_paper_arg


class AGem(ReplayModel):
    """Averaged GEM: a step may not raise the loss on one random batch of the memory."""

    NAME = "agem"

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_as_paper_arg(parser, "store buffer_size / tasks examples of each task, not one batch")
        return ReplayModel.get_parser(parser)

    def end_task(self, dataset: ContinualDataset) -> None:
        if self.args.as_paper:
            data = dataset.train_loader.dataset
            _, labels, examples = data.batch(torch.randperm(len(data))[: self.args.buffer_size // self.n_tasks])[:3]
        else:
            _, labels, examples = next(iter(dataset.train_loader))[:3]
        self.buffer.add_data(examples=examples, labels=labels)

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        loss = self.loss(self.net(inputs), labels)
        g = gradient(self.net, loss)
        if not self.buffer.is_empty():
            x, y = self.replay()
            reference = gradient(self.net, self.loss(self.net(x), y))
            overlap = torch.dot(g.double(), reference.double())  # squares of large gradients leave float's range
            share = (overlap / torch.dot(reference.double(), reference.double())).float()
            g = torch.where(overlap < 0, g - share * reference, g)  # no question that a GPU would have to answer first
        set_gradient(self.net, g)
        self.opt.step()
        return self.number(loss)

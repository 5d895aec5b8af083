from argparse import ArgumentParser

import torch
from torch import Tensor

from models.utils.continual_model import ContinualModel
from utils.args import add_rehearsal_args
from utils.buffer import Buffer


class Er(ContinualModel):
    """Experience Replay: every batch is joined by one from the buffer."""

    NAME = "er"

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        return add_rehearsal_args(parser)

    def __init__(self, *args, **kwargs) -> None:  # noqa: ANN002, ANN003
        super().__init__(*args, **kwargs)
        self.buffer = Buffer(self.args.buffer_size)

    def with_replay(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The stream batch, followed by one from the buffer."""
        if self.buffer.is_empty():
            return inputs, labels
        replayed, old_labels = self.buffer.get_data(self.args.minibatch_size, self.transform, device=self.device)
        return torch.cat([inputs, replayed]), torch.cat([labels, old_labels])

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> float:
        self.opt.zero_grad()
        all_inputs, all_labels = self.with_replay(inputs, labels)
        loss = self.loss(self.net(all_inputs), all_labels)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()

"""What all methods with a replay buffer share."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import torch
from torch import Tensor

from models.utils.continual_model import ContinualModel
from utils.args import add_rehearsal_args
from utils.buffer import Buffer


class ReplayModel(ContinualModel):
    """A method with a buffer of `--buffer_size` examples."""

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        return add_rehearsal_args(parser)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = Buffer(self.args.buffer_size, self.device)

    def replay(self, return_index: bool = False) -> tuple[Tensor, ...]:
        """A random batch of the buffer, augmented, with what is stored beside the images."""
        return self.buffer.get_data(self.args.minibatch_size, self.transform, return_index, self.device)

    def with_replay(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The stream batch, followed by one from the buffer."""
        if self.buffer.is_empty():
            return inputs, labels
        replayed, old_labels = self.replay()
        return torch.cat([inputs, replayed]), torch.cat([labels, old_labels])
